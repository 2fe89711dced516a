//! How to open a host and what groups to attach.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use terrace_core::page::PageSize;

use crate::backend::Mechanisms;
use crate::conflicts::Intent;
use crate::costs::Costs;
use crate::group_layout::Source;
use crate::guard::GuardCommand;
use crate::mover::PageMover;
use crate::roots::Roots;
use crate::samples::SampleReads;
use crate::sampling::Samples;
use crate::tiermem::TablePolicy;
use crate::tracker::GroupTracker;

/// Most pages of a group that can be tracked. DAMON keeps the regions of a process in one array of 16
/// bytes each, and the kernel allocates no more than 4 MB at once.
pub const MOST_PAGES: u64 = 262_144;

/// How to open a host.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Mount points of the kernel's files.
    pub roots: Roots,
    /// How to start the guard. Without one, the changes of a run that is killed are undone at the
    /// next start.
    pub guard: Option<GuardCommand>,
    /// Kinds of groups, as far as conflicts depend on them.
    pub intent: Intent,
    /// Permission to change settings that conflict, and restore them at the end. Without it such a
    /// setting prevents the start.
    pub fix_conflicts: bool,
    /// Start although settings conflict that were not changed.
    pub accept_conflicts: bool,
    /// Nothing on the host is changed except what tracking itself needs: DAMON's threads and trace
    /// instances. Settings that conflict stay as they are, even with `fix_conflicts`.
    pub dry_run: bool,
    /// Groups are tracked and never moved: one tier is enough, and of the settings that conflict
    /// only those are changed that prevent tracking.
    pub observe_only: bool,
    /// Fast and slow nodes, for firmware that reports none or wrong ones.
    pub nodes: Option<(Vec<u32>, Vec<u32>)>,
    /// The requested mechanisms.
    pub mechanisms: Mechanisms,
    /// Which accesses that miss the last level are sampled.
    pub sample_reads: SampleReads,
    /// Hint faults report pages that are accessed very often, for groups by ranges; NUMA balancing is on
    /// meanwhile, without promotions. Only with permission to change settings. A stock kernel can fall
    /// over by them, for it takes what slow pages keep, times, for numbers of processors once pages have
    /// moved in a pause (`task_numa_group` in kernel/sched/fair.c).
    pub hint_faults: bool,
    /// Most groups at the same time; with DAMON each has a kernel thread kept ready.
    pub max_groups: u32,
    /// Ends all groups when it is set: see [`crate::termination::stop_flag`].
    pub stop: Option<Arc<AtomicBool>>,
}

impl HostOptions {
    /// Options for a run with these page sizes; settings are not changed.
    pub fn new(intent: Intent) -> Self {
        HostOptions {
            roots: Roots::default(),
            guard: None,
            intent,
            fix_conflicts: false,
            accept_conflicts: false,
            dry_run: false,
            observe_only: false,
            nodes: None,
            mechanisms: Mechanisms::Auto,
            sample_reads: SampleReads::NONE,
            hint_faults: false,
            max_groups: 8,
            stop: None,
        }
    }
}

/// A group to be managed.
#[derive(Debug, Clone)]
pub struct GroupSpec {
    /// Its name, for messages.
    pub name: String,
    /// Its processes.
    pub source: Source,
    /// Size of the pages that are tracked and moved; memory in pages of the other size is counted
    /// as untracked.
    pub page_size: PageSize,
    /// Ranges of 2 MB are tracked and moved as pages, whatever maps them: huge or base pages.
    /// `page_size` is 2 MB then.
    pub by_range: bool,
    /// Length of a period.
    pub period_ms: u64,
    /// Most pages that are tracked. A region of DAMON costs 3.4 KB of kernel memory and about a
    /// millisecond to set up.
    pub cap_pages: u64,
    /// Time that one call that moves pages should not exceed.
    pub stall_ms: u64,
    /// Share of a period that its moves may take.
    pub move_share: f64,
    /// Whether the group continues without processes.
    pub keep_empty: bool,
    /// Whether translations are flushed as each period begins: costs one move of a base page for
    /// each process, and without it pages that stay in a TLB look unused. All groups together make
    /// a bounded number of flushes a second.
    pub flush: bool,
    /// How often a page's accessed bit is sampled in a period.
    pub samples: Samples,
    /// Placement of its page tables, on the Terrace kernel.
    pub tables: Option<TablePolicy>,
    /// Ends this group alone when it is set; the host's own flag where it is `None`.
    pub stop: Option<Arc<AtomicBool>>,
}

impl GroupSpec {
    /// A group with the usual bounds: 65,536 huge pages (128 GB) or 16,384 base pages (64 MB),
    /// stalls of 20 ms, half of the period for moves.
    pub fn new(name: &str, source: Source, page_size: PageSize, period_ms: u64) -> Self {
        let cap_pages = match page_size {
            PageSize::Huge => 65_536,
            PageSize::Base => 16_384,
        };
        GroupSpec {
            name: name.to_owned(),
            source,
            page_size,
            by_range: false,
            period_ms,
            cap_pages,
            stall_ms: 20,
            move_share: 0.5,
            keep_empty: false,
            flush: true,
            samples: Samples::One,
            tables: None,
            stop: None,
        }
    }
}

/// A managed group. Tracker and mover may be moved to another thread.
pub struct AttachedGroup {
    /// Its name.
    pub name: String,
    /// Its number, for [`crate::Host::release`].
    pub slot: u32,
    /// Scans its pages.
    pub tracker: GroupTracker,
    /// Moves them.
    pub mover: PageMover,
    /// Costs of both.
    pub costs: Costs,
}
