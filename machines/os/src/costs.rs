//! The processor time of each step of the operating system: named tables, each number with its
//! source, and every number overridable in configuration.
//!
//! One table is measured: the kernel's own code in a virtual machine whose clock models the memory
//! ([`CostPreset::Linux612`]). Of the others, the papers print few absolute numbers; their breakdowns are pictures. So each table is *pinned*
//! by the throughputs that the text states (the tests of this file recompute them). The share of
//! the single steps within a pinned total is an estimate, and marked as one.
//!
//! Moving the bytes is not included: the machine plays copies and zeroing against its memory. The
//! `*_gb_per_s` entries are the most that one core can move; the machine limits the copies by them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use terrace_hardware::error::ConfigError;
use terrace_hardware::units::Picoseconds;

/// Costs of a machine that a paper measured, or that Linux has on such a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CostPreset {
    /// Two-socket Xeon E5-2650v3, Linux 4.14 (Nimble paper, table 1 and section 4.2).
    #[default]
    Nimble,
    /// Two-socket Xeon Gold 6252N with Optane, Linux 5.6 (Radiant paper, table 1).
    Radiant,
    /// AMD A10-6800K, Linux 3.16 (granularity paper, table 1 and sections 2.2, 5).
    Granularity,
    /// Linux 6.12 with the kernel series on Nimble's machine as the virtual machine models it:
    /// measured by `kernel/time`, nothing fitted to a paper (docs/measurements/kernel.md).
    #[serde(rename = "linux-6.12")]
    Linux612,
    /// Everything free: for tests of placement alone.
    Free,
}

macro_rules! cost_table {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty,)*) => {
        /// Costs of the single steps. `_ns` is nanoseconds of processor time.
        #[derive(Debug, Clone, PartialEq)]
        pub struct CostTable {
            $($(#[doc = $doc])+ pub $name: $type,)*
        }

        /// A preset, and values that replace entries of it.
        #[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct CostConfig {
            /// The table to start from.
            pub preset: CostPreset,
            $(
                $(#[doc = $doc])+
                #[serde(skip_serializing_if = "Option::is_none")]
                #[schemars(range(min = 0, max = 1_000_000_000))]
                pub $name: Option<$type>,
            )*
        }

        impl CostConfig {
            /// The preset with the given entries in place of its own.
            pub fn table(&self) -> Result<CostTable, ConfigError> {
                let mut table = CostTable::preset(self.preset);
                $(
                    if let Some(value) = self.$name {
                        let range = 0.0..=1e9;
                        if !range.contains(&(value as f64)) {
                            return Err(ConfigError::new("os.costs", format!(
                                "{} is {value}; expected 0 to 1e9", stringify!($name))));
                        }
                        table.$name = value;
                    }
                )*
                Ok(table)
            }
        }
    };
}

cost_table! {
    /// One call that moves pages: entering the kernel, reading the list, draining the lists of
    /// pages that each processor holds back.
    move_call_ns: u64,
    /// Allocating the frame that a base page moves to.
    move_allocate_base_ns: u64,
    /// Allocating the block that a huge page moves to.
    move_allocate_huge_ns: u64,
    /// Locking a page, walking its reverse map and writing a migration entry in place of the
    /// page's.
    unmap_ns: u64,
    /// Writing the new entry in place of the migration entry.
    map_ns: u64,
    /// Freeing the frame that a base page left.
    move_free_base_ns: u64,
    /// Freeing the block that a huge page has left.
    move_free_huge_ns: u64,
    /// Splitting a huge page into base pages.
    split_huge_ns: u64,
    /// Starting one more copying thread, and waiting for it.
    copy_thread_ns: u64,
    /// Maximum copy rate of one thread from one tier to another.
    copy_gb_per_s: f64,
    /// Maximum exchange rate of one thread, counting the bytes of both sides.
    exchange_gb_per_s: f64,
    /// A shootdown, on the initiating processor: preparing and sending the interrupt.
    shootdown_ns: u64,
    /// The initiating processor's wait for each other processor that runs the address space.
    shootdown_wait_ns: u64,
    /// The interrupt on each of those processors, without the invalidation itself.
    shootdown_interrupt_ns: u64,
    /// Invalidating one page (`invlpg`), on every processor.
    invlpg_ns: u64,
    /// Invalidating everything (writing `cr3`), on every processor.
    full_flush_ns: u64,
    /// A page fault: the trap, finding the mapping, locking, and the return.
    fault_ns: u64,
    /// Allocating a frame for a fault, when one is free.
    allocate_ns: u64,
    /// Maximum zeroing rate of one core.
    zero_gb_per_s: f64,
    /// Allocating a page-table page, besides zeroing it.
    table_allocate_ns: u64,
    /// Freeing a page, when a mapping is removed.
    free_ns: u64,
    /// Checking one entry of a page-table page for algorithm 1's question whether any page is
    /// left in fast memory (line 18), in picoseconds.
    table_scan_entry_ps: u64,
    /// Moving a page-table page, besides copying it and the shootdown: locks, allocation, the
    /// parent's entry, freeing.
    table_move_ns: u64,
    /// One pass of direct reclaim.
    reclaim_pass_ns: u64,
    /// Each frame that reclaim frees.
    reclaim_frame_ns: u64,
    /// One pass of compaction that failed.
    compact_ns: u64,
    /// Choosing and killing a process when memory has run out.
    oom_kill_ns: u64,
    /// Reading one accessed bit, and clearing it, in picoseconds.
    scan_entry_ps: u64,
    /// Collapsing base pages to a huge page, besides copying them and the shootdown.
    collapse_ns: u64,
}

impl CostTable {
    /// The costs of a preset.
    pub fn preset(preset: CostPreset) -> Self {
        match preset {
            CostPreset::Nimble => Self::nimble(),
            CostPreset::Radiant => Self::radiant(),
            CostPreset::Granularity => Self::granularity(),
            CostPreset::Linux612 => Self::linux_6_12(),
            CostPreset::Free => Self::free(),
        }
    }

    /// Pinned by the Nimble paper's text: one base page moves at 40 MB/s and 512 at 750 MB/s
    /// (section 1, figure 2; section 4.2.4 has 800), a huge page at 2.9 times that (4.2.1), 2.8
    /// times faster again with four threads (4.2.2), concurrency gains 10 to 25 % (4.2.3), 512
    /// pairs of base pages are exchanged at 1.1 GB/s and of huge pages at 11.2, where copying
    /// alone reaches 11.7 (4.2.4), 15 times base-page migration (4.2.5).
    ///
    /// From these: one base page takes 100 us, hardly any of it copying, so the call costs some
    /// 95. A huge page takes 900 us with one thread; what four threads gain says that some 775 of
    /// it are copying (2.71 GB/s a thread). 512 base pages take 2,700 us, less copying and call
    /// 3.6 us a page; an exchange, which neither allocates nor frees, takes 3.15 us a page. The
    /// gain of concurrency is the threads started once a batch instead of once a page, and the
    /// huge pages' rate in big batches leaves some 30 us a page to allocate and free. How unmapping
    /// and mapping divide the rest, and what other processors' interrupts cost, is an estimate.
    fn nimble() -> Self {
        CostTable {
            move_call_ns: 95_000,
            move_allocate_base_ns: 300,
            move_allocate_huge_ns: 15_000,
            unmap_ns: 1_800,
            map_ns: 1_150,
            move_free_base_ns: 150,
            move_free_huge_ns: 12_000,
            split_huge_ns: 30_000,
            copy_thread_ns: 8_000,
            copy_gb_per_s: 2.71,
            exchange_gb_per_s: 2.93,
            shootdown_ns: 700,
            shootdown_wait_ns: 500,
            shootdown_interrupt_ns: 1_000,
            invlpg_ns: 200,
            full_flush_ns: 400,
            ..Self::common()
        }
    }

    /// The Radiant paper prints ratios only, no time of a step. Its machine is one generation and a
    /// half newer than Nimble's; the steps are Nimble's, with less for the call.
    fn radiant() -> Self {
        CostTable {
            move_call_ns: 60_000,
            copy_gb_per_s: 4.0,
            exchange_gb_per_s: 4.4,
            ..Self::nimble()
        }
    }

    /// The granularity paper quotes 13.2 us for a shootdown (section 2.2) and says that shootdowns
    /// and other software dominate a 4 KB migration (figure 1b). On its four cores 13.2 us are the
    /// own part and three waits; how they divide is an estimate. The cost of the call falls with
    /// granularity as the shootdown's does (figure 1b), so each operation is a call.
    fn granularity() -> Self {
        CostTable {
            move_call_ns: 8_000,
            shootdown_ns: 3_000,
            shootdown_wait_ns: 3_330,
            shootdown_interrupt_ns: 3_000,
            ..Self::nimble()
        }
    }

    /// From `reproductions/measured/kernel-time.tsv`. Lists of 1 and of 512 base pages, 13.8 and 1,841
    /// us, give the call and 3.58 us a page, of which copying alone at 2.25 GB/s takes 1.82. A whole
    /// huge page takes 996 us, of which copying takes 932 and the call 10. One that is split first
    /// takes 2,131 us, 310 more than its base pages in a call. Eight by four threads, one after the
    /// other, leave 22 us for each thread that helps. Eight pairs of huge pages trade places at 10.6
    /// GB/s by four threads.
    ///
    /// How the rest of a page divides is by instructions of the kernel's own tracepoints: looking up
    /// and unmapping, allocating, moving over and mapping, putting back (docs/measurements/kernel.md).
    /// What a huge page's mapping takes above a base page's is with its freeing. Shootdowns of other
    /// processors were not measured: the program has one thread. They are Nimble's.
    fn linux_6_12() -> Self {
        CostTable {
            move_call_ns: 10_060,
            move_allocate_base_ns: 320,
            move_allocate_huge_ns: 10_600,
            unmap_ns: 415,
            map_ns: 870,
            move_free_base_ns: 150,
            move_free_huge_ns: 42_000,
            split_huge_ns: 310_000,
            copy_thread_ns: 22_000,
            copy_gb_per_s: 2.25,
            exchange_gb_per_s: 2.73,
            ..Self::nimble()
        }
    }

    /// Steps that no paper states, from Linux on a server of these years; all of them estimates.
    fn common() -> Self {
        CostTable {
            move_call_ns: 0,
            move_allocate_base_ns: 0,
            move_allocate_huge_ns: 0,
            unmap_ns: 0,
            map_ns: 0,
            move_free_base_ns: 0,
            move_free_huge_ns: 0,
            split_huge_ns: 0,
            copy_thread_ns: 0,
            copy_gb_per_s: 2.54,
            exchange_gb_per_s: 2.93,
            shootdown_ns: 0,
            shootdown_wait_ns: 0,
            shootdown_interrupt_ns: 0,
            invlpg_ns: 0,
            full_flush_ns: 0,
            fault_ns: 600,
            allocate_ns: 150,
            zero_gb_per_s: 10.0,
            table_allocate_ns: 250,
            free_ns: 80,
            table_scan_entry_ps: 500,
            table_move_ns: 2_000,
            reclaim_pass_ns: 20_000,
            reclaim_frame_ns: 500,
            compact_ns: 100_000,
            oom_kill_ns: 5_000_000,
            scan_entry_ps: 2_000,
            collapse_ns: 20_000,
        }
    }

    fn free() -> Self {
        CostTable {
            fault_ns: 0,
            allocate_ns: 0,
            zero_gb_per_s: 1e6,
            copy_gb_per_s: 1e6,
            exchange_gb_per_s: 1e6,
            table_allocate_ns: 0,
            free_ns: 0,
            table_scan_entry_ps: 0,
            table_move_ns: 0,
            reclaim_pass_ns: 0,
            reclaim_frame_ns: 0,
            compact_ns: 0,
            oom_kill_ns: 0,
            scan_entry_ps: 0,
            collapse_ns: 0,
            ..Self::common()
        }
    }
}

/// The time of `count` steps of `each` nanoseconds.
pub(crate) fn ns(each: u64, count: u64) -> Picoseconds {
    Picoseconds(each * 1000 * count)
}
