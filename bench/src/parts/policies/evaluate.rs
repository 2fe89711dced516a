//! One workload under one policy with one share of fast memory, at interval fidelity, from intervals that
//! are kept in memory.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use terrace_core::interfaces::{MachineError, Observation, Tracker};
use terrace_core::oracle::{OracleTrace, Outlook, Purpose};
use terrace_core::page::PageSize;
use terrace_core::policy::Policy;
use terrace_core::scan::Scan;
use terrace_engine::{Engine, FastLimit, Group, Observer, Options, PeriodReport};
use terrace_recordings::profile::{Interval, ProfileReader};
use terrace_recordings::source::SourceError;
use terrace_simulated::os::OsConfig;
use terrace_simulated::timed::IntervalSource;
use terrace_simulated::{GroupConfig, Machine, MachineConfig, Sampling, future};

/// Settings of all runs.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub period_ms: u64,
    /// Pages that may be moved in a period.
    pub moved_pages: u64,
    /// Reads per sample, where policies get samples.
    pub reads_per_sample: u32,
    pub seed: u64,
}

/// The signals that policies get of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signals {
    /// Accessed bits, counters, and sampled reads.
    Samples,
    /// Accessed bits and counters.
    Counters,
    /// Accessed bits alone, as on live Linux.
    Bits,
}

impl Signals {
    pub const ALL: [Signals; 3] = [Signals::Samples, Signals::Counters, Signals::Bits];

    pub fn name(self) -> &'static str {
        match self {
            Signals::Samples => "samples",
            Signals::Counters => "counters",
            Signals::Bits => "bits",
        }
    }
}

/// A tracker that reports only accessed bits.
struct BitsOnly<T>(T);

impl<T: Tracker> Tracker for BitsOnly<T> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn observe(&mut self) -> Result<Observation, MachineError> {
        Ok(match self.0.observe()? {
            Observation::Period(scan) => Observation::Period(Scan { counters: None, ..scan }),
            other => other,
        })
    }
}

/// A loop has at least this share of a program.
const LEAST_LOOP: f64 = 0.1;

/// A profile in memory, and the number of its loop's passes.
pub struct Workload {
    pub name: String,
    page_size: PageSize,
    footprint_bytes: u64,
    intervals: Arc<Vec<Interval>>,
    /// Begin of the loop; it extends to the end.
    loop_from: usize,
    passes: usize,
}

impl Workload {
    pub fn read(name: &str, path: &Path) -> anyhow::Result<Self> {
        let mut reader = ProfileReader::open(path)?;
        let page_size = reader.header().page_size;
        let mut intervals: Vec<Interval> = Vec::new();
        while let Some(mut interval) = reader.next_interval()? {
            // One layout is stored once: it needs no remap to itself.
            if let Some(last) = intervals.last().filter(|last| last.layout == interval.layout) {
                interval.layout = last.layout.clone();
            }
            intervals.push(interval);
        }
        let pages = intervals.iter().map(|i| i.layout.pages() as u64).max().unwrap_or(0);
        let footprint_bytes = reader.header().footprint_bytes.unwrap_or(pages * page_size.bytes());
        // The loop is the part after all memory has been touched.
        let growth = |i: &Interval| i.layout != intervals[intervals.len() - 1].layout;
        let grown = intervals.iter().rposition(|i| growth(i) || !i.fresh.is_empty());
        let loop_from = grown.map_or(0, |last| last + 1);
        // A program whose memory grows until near its end has no loop.
        let sum = |part: &[Interval]| part.iter().map(|i| i.fast_ps).sum::<u64>();
        let loops = sum(&intervals[loop_from..]) as f64 >= LEAST_LOOP * sum(&intervals) as f64;
        let loop_from = if loops { loop_from } else { intervals.len() };
        let intervals = Arc::new(intervals);
        let name = name.to_owned();
        Ok(Workload { name, page_size, footprint_bytes, intervals, loop_from, passes: 1 })
    }

    /// The same program with its loop repeated until it runs at least so long with all memory fast.
    pub fn lengthened(self, least_ms: u64) -> Self {
        let sum = |from: usize| self.intervals[from..].iter().map(|i| i.fast_ps).sum::<u64>();
        let (once, again) = (sum(0), sum(self.loop_from));
        let lacking = (least_ms * 1_000_000_000).saturating_sub(once);
        let passes = 1 + lacking.checked_div(again).map_or(0, |_| lacking.div_ceil(again));
        Workload { passes: passes as usize, ..self }
    }

    /// Time with all memory fast, and with all of it slow, in ps.
    pub fn times_ps(&self) -> (u64, u64) {
        let sum = |of: fn(&Interval) -> u64| {
            let part = |from: usize| self.intervals[from..].iter().map(of).sum::<u64>();
            part(0) + (self.passes - 1) as u64 * part(self.loop_from)
        };
        (sum(|i| i.fast_ps), sum(|i| i.slow_ps))
    }

    /// Number of passes of the loop.
    pub fn passes(&self) -> usize {
        self.passes
    }

    fn source(&self) -> Played {
        self.part(0, self.passes)
    }

    /// The program from an interval on, with so many passes of its loop.
    fn part(&self, from: usize, passes: usize) -> Played {
        let (intervals, loop_from) = (self.intervals.clone(), self.loop_from);
        Played { intervals, loop_from, passes, next: from }
    }

    /// A lower bound on the slowdown of every policy. The program is cut before each further pass,
    /// and pages are placed optimally there at no cost: that makes the bound lower, and still
    /// valid.
    pub fn bound(&self, ratio: f64, setup: &Setup) -> anyhow::Result<f64> {
        let pages = self.footprint_bytes.div_ceil(self.page_size.bytes());
        let fast_pages = (pages as f64 * ratio).floor() as u64;
        let of = |from: usize| -> anyhow::Result<f64> {
            let oracle = self.future(&mut self.part(from, 1), setup)?;
            Ok(Outlook::solve(&oracle, fast_pages, Purpose::Bound).bound_ns())
        };
        let again = if self.passes > 1 { of(self.loop_from)? } else { 0.0 };
        let least_ns = of(0)? + (self.passes - 1) as f64 * again;
        Ok(1.0 + least_ns / (self.times_ps().0 as f64 / 1000.0))
    }

    fn future(&self, source: &mut Played, setup: &Setup) -> anyhow::Result<OracleTrace> {
        let os = OsConfig::default();
        let batch = setup.moved_pages / 2;
        future::of_intervals(source, &os, self.page_size, batch, setup.period_ms)
            .map_err(|e| anyhow!("{e}"))
    }

    /// Runs the program to its end; returns its slowdown.
    pub fn run(
        &self,
        mut policy: Box<dyn Policy>,
        ratio: f64,
        setup: &Setup,
        signals: Signals,
    ) -> anyhow::Result<f64> {
        let sampling = Sampling {
            reads_per_sample: if signals == Signals::Samples { setup.reads_per_sample } else { 0 },
            seed: setup.seed,
            ..Sampling::default()
        };
        let config = MachineConfig::new(1 << 60, 1 << 60, setup.period_ms);
        let machine = Machine::new(MachineConfig { sampling, ..config })?;
        let share = FastLimit::Ratio(ratio).of_whole(self.page_size, self.footprint_bytes);
        let group = GroupConfig {
            name: self.name.clone(),
            page_size: self.page_size,
            allocation: policy.allocation(),
            fast_budget: Box::new(move |layout| share.pages(layout)),
            initial: None,
        };
        let os = OsConfig::default();
        if policy.needs_oracle() {
            policy.set_oracle(Arc::new(self.future(&mut self.source(), setup)?));
        }
        let (mut tracker, mover) = machine.add_timed_group(group, Box::new(self.source()), &os)?;
        if policy.needs_frames() {
            tracker.tell_frames();
        }
        let tracker: Box<dyn Tracker> = match signals {
            Signals::Bits => Box::new(BitsOnly(tracker)),
            _ => Box::new(tracker),
        };
        let groups = vec![Group {
            name: self.name.clone(),
            tracker,
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

/// Ignores all events.
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
    loop_from: usize,
    /// Passes of the loop left, including this one.
    passes: usize,
    next: usize,
}

impl IntervalSource for Played {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        if self.next == self.intervals.len() && self.passes > 1 {
            (self.next, self.passes) = (self.loop_from, self.passes - 1);
        }
        self.next += 1;
        Ok(self.intervals.get(self.next - 1).cloned())
    }
}
