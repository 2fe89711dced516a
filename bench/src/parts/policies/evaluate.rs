//! One workload under one policy with one share of fast memory, at period depth, from intervals that
//! are kept in memory.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use terrace_core::foresight::{Outlook, Purpose};
use terrace_core::page::PageSize;
use terrace_core::policy::Policy;
use terrace_core::seams::MachineError;
use terrace_engine::{Engine, FastShare, Group, Observer, Options, PeriodReport};
use terrace_recordings::profile::{Interval, ProfileReader};
use terrace_recordings::source::SourceError;
use terrace_simulated::os::OsConfig;
use terrace_simulated::timed::IntervalSource;
use terrace_simulated::{GroupConfig, Machine, MachineConfig, Sampling, future};

/// What holds for all runs.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub period_ms: u64,
    /// Pages that may be moved in a period.
    pub moved_pages: u64,
    /// Of so many reads one is sampled; 0: none.
    pub reads_per_sample: u32,
    pub seed: u64,
}

/// A profile in memory.
pub struct Workload {
    pub name: String,
    page_size: PageSize,
    footprint_bytes: u64,
    intervals: Arc<Vec<Interval>>,
}

impl Workload {
    pub fn read(name: &str, path: &Path) -> anyhow::Result<Self> {
        let mut reader = ProfileReader::open(path)?;
        let page_size = reader.header().page_size;
        let mut intervals = Vec::new();
        while let Some(interval) = reader.next_interval()? {
            intervals.push(interval);
        }
        let pages = intervals.iter().map(|i| i.layout.pages() as u64).max().unwrap_or(0);
        let footprint_bytes = reader.header().footprint_bytes.unwrap_or(pages * page_size.bytes());
        let intervals = Arc::new(intervals);
        Ok(Workload { name: name.to_owned(), page_size, footprint_bytes, intervals })
    }

    /// Time with all memory fast, and with all of it slow, in ps.
    pub fn times_ps(&self) -> (u64, u64) {
        let sum = |of: fn(&Interval) -> u64| self.intervals.iter().map(of).sum();
        (sum(|i| i.fast_ps), sum(|i| i.slow_ps))
    }

    fn source(&self) -> Played {
        Played { intervals: self.intervals.clone(), next: 0 }
    }

    /// The slowdown that no policy can be below.
    pub fn bound(&self, ratio: f64, setup: &Setup) -> anyhow::Result<f64> {
        let foresight = self.future(setup)?;
        let pages = self.footprint_bytes.div_ceil(self.page_size.bytes());
        let fast_pages = (pages as f64 * ratio).floor() as u64;
        let outlook = Outlook::solve(&foresight, fast_pages, Purpose::Bound);
        Ok(1.0 + outlook.bound_ns() / (self.times_ps().0 as f64 / 1000.0))
    }

    fn future(&self, setup: &Setup) -> anyhow::Result<terrace_core::foresight::Foresight> {
        let os = OsConfig::default();
        let batch = setup.moved_pages / 2;
        future::of_intervals(&mut self.source(), &os, self.page_size, batch, setup.period_ms)
            .map_err(|e| anyhow!("{e}"))
    }

    /// Runs it to its end: its slowdown.
    pub fn run(
        &self,
        mut policy: Box<dyn Policy>,
        ratio: f64,
        setup: &Setup,
    ) -> anyhow::Result<f64> {
        let sampling = Sampling {
            reads_per_sample: setup.reads_per_sample,
            seed: setup.seed,
            ..Sampling::default()
        };
        let config = MachineConfig::new(1 << 60, 1 << 60, setup.period_ms);
        let machine = Machine::new(MachineConfig { sampling, ..config })?;
        let share = FastShare::Ratio(ratio).of_whole(self.page_size, self.footprint_bytes);
        let group = GroupConfig {
            name: self.name.clone(),
            page_size: self.page_size,
            allocation: policy.allocation(),
            fast_budget: Box::new(move |layout| share.pages(layout)),
            initial: None,
        };
        let os = OsConfig::default();
        if policy.needs_future() {
            policy.foresee(Arc::new(self.future(setup)?));
        }
        let (mut tracker, mover) = machine.add_timed_group(group, Box::new(self.source()), &os)?;
        if policy.needs_frames() {
            tracker.tell_frames();
        }
        let groups = vec![Group {
            name: self.name.clone(),
            tracker: Box::new(tracker),
            policy,
            mover: Box::new(mover),
            share,
            moved_pages: setup.moved_pages,
        }];
        Engine::new(groups, Options::default()).run(&mut Nobody, || false)?;
        let (took, fast) = machine.duration_ps(0).context("it has not ended")?;
        Ok(took as f64 / fast as f64)
    }
}

/// Looks at nothing on the way.
struct Nobody;

impl Observer for Nobody {
    fn period(&mut self, _: &PeriodReport<'_>) -> Result<(), MachineError> {
        Ok(())
    }

    fn lost(&mut self, _: usize, _: u32, _: &str) -> Result<(), MachineError> {
        Ok(())
    }
}

struct Played {
    intervals: Arc<Vec<Interval>>,
    next: usize,
}

impl IntervalSource for Played {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        self.next += 1;
        Ok(self.intervals.get(self.next - 1).cloned())
    }
}
