//! Counters and samples of a program at trace fidelity: the time that its periods took, reads by
//! tier and their latency, and one read in so many by page.
//!
//! Counters are those of the run's own results, as differences from period to period: over a run
//! they add up to them. A sample is a line that was read from memory, taken in time order and
//! reported by its virtual page, as with PEBS; walks, which read page tables, are not sampled.
//! Sampling costs nothing, and nothing here affects how the program runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace_core::page::{Layout, PageSize, SpaceId};
use terrace_core::scan::PeriodCounters;
use terrace_hardware::address::PhysicalAddress;
use terrace_hardware::request::When;
use terrace_hardware::units::Picoseconds;
use terrace_os::Os;
use terrace_os::frames::Owner;

use super::counts::Counts;
use terrace_core::sample_picker::SamplePicker;

/// How far a program has run since its start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// Run time.
    pub(super) ran: Picoseconds,
    pub(super) counts: Counts,
    /// Cores that the waiting times are summed over.
    pub(super) cores: u64,
}

impl Progress {
    /// Times in whole ns: the whole time, migration stalls, stalls on slow memory; the last two of
    /// a core on average.
    fn times_ns(&self) -> [u64; 3] {
        let each = 1000 * self.cores.max(1);
        let slow: u64 = self.counts.memory_stall_ps[1..].iter().sum();
        [self.ran.0 / 1000, self.counts.migration_ps / each, slow / each]
    }

    /// Lines read from fast and from slow memory.
    fn reads(&self) -> [u64; 2] {
        let [fast, slow @ ..] = self.counts.reads;
        [fast, slow.iter().sum()]
    }
}

/// Counters and samples of one program.
pub(super) struct ReadMeter {
    sampler: SamplePicker,
    /// Sampled reads whose pages are not known yet.
    picked: Vec<PhysicalAddress>,
    /// Sampled reads by address of the base page.
    samples: BTreeMap<u64, u32>,
    /// Total latency of reads from fast and from slow memory; `timed` is the number of these reads.
    latency_ps: [u64; 2],
    timed: [u64; 2],
    /// The progress at the last report.
    reported: Progress,
}

impl ReadMeter {
    pub(super) fn new(sampler: SamplePicker) -> Self {
        ReadMeter {
            sampler,
            picked: Vec::new(),
            samples: BTreeMap::new(),
            latency_ps: [0; 2],
            timed: [0; 2],
            reported: Progress::default(),
        }
    }

    /// Counts the read of a line. A read whose completion the tier has yet to schedule has no known
    /// time: it does not count for the latency.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        at: Picoseconds,
        address: PhysicalAddress,
        when: When,
        tier: usize,
    ) {
        if let When::At(done) = when {
            let slow = usize::from(tier > 0);
            self.latency_ps[slow] += done.since(at).0;
            self.timed[slow] += 1;
        }
        if self.sampler.pick(1) > 0 {
            self.picked.push(address);
        }
    }

    /// Finds the pages of the samples, before any of them moves.
    pub(super) fn find_pages(&mut self, space: SpaceId, os: &Os) {
        for physical in self.picked.drain(..) {
            let (owner, address, size) = match os.owner(physical) {
                Owner::Base { space, address } => (space, address, PageSize::Base),
                Owner::Huge { space, address } => (space, address, PageSize::Huge),
                _ => continue,
            };
            if owner == space {
                let within = physical.0 % size.bytes();
                let page = (address + within) & !(PageSize::Base.bytes() - 1);
                *self.samples.entry(page).or_default() += 1;
            }
        }
    }

    /// The counts since the last report.
    pub(super) fn tell(
        &mut self,
        now: Progress,
        space: SpaceId,
        layout: &Layout,
    ) -> PeriodCounters {
        let before = std::mem::replace(&mut self.reported, now);
        let (times, old_times) = (now.times_ns(), before.times_ns());
        let [elapsed_ns, migration_stall_ns, slow_stall_ns] =
            [0, 1, 2].map(|n| times[n] - old_times[n]);
        let (reads, old_reads) = (now.reads(), before.reads());
        let latency = [0, 1].map(|n| self.latency_ps[n].checked_div(self.timed[n]).unwrap_or(0));
        (self.latency_ps, self.timed) = ([0; 2], [0; 2]);
        let samples = self.sampler.is_on().then(|| self.by_page(space, layout));
        self.samples.clear();
        PeriodCounters {
            elapsed_ns,
            migration_stall_ns,
            slow_stall_ns,
            references: now.counts.references,
            reads: [0, 1].map(|n| reads[n] - old_reads[n]),
            read_latency_ps: latency,
            samples,
            reads_per_sample: self.sampler.period(),
        }
    }

    fn by_page(&self, space: SpaceId, layout: &Layout) -> Arc<[u16]> {
        let mut of_page = vec![0u16; layout.pages()];
        for (&address, &samples) in &self.samples {
            if let Some(page) = layout.index(space, address) {
                let samples = u16::try_from(samples).unwrap_or(u16::MAX);
                of_page[page] = of_page[page].saturating_add(samples);
            }
        }
        of_page.into()
    }
}
