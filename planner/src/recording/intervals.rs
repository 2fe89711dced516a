//! The intervals of a recording: kept or read again, summed, and made of periods by the latency
//! model.

use std::path::Path;
use std::sync::Arc;

use terrace_core::{InputError, refuse};
use terrace_recordings::period::RecordingSource;
use terrace_recordings::profile::Interval;
use terrace_recordings::source::{PeriodSource, SourceError};
use terrace_simulated::timed::IntervalSource;

use crate::memory::Machine;
use crate::recording::{Stored, Waiting};

/// Bytes of intervals that are kept in memory; larger recordings are read anew for each run.
pub(super) const KEPT_BYTES: u64 = 768 << 20;

/// Intervals in memory.
pub(super) struct Kept {
    pub(super) all: Arc<[Interval]>,
    pub(super) next: usize,
}

impl IntervalSource for Kept {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        let interval = self.all.get(self.next).cloned();
        self.next += 1;
        Ok(interval)
    }
}

/// Intervals with their times on another machine.
pub(super) struct Retimed {
    pub(super) source: Box<dyn IntervalSource>,
    pub(super) recorded: Machine,
    pub(super) machine: Machine,
    pub(super) lines_per_read: f64,
    pub(super) in_proportion: bool,
}

impl IntervalSource for Retimed {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        let interval = self.source.next_interval()?;
        Ok(interval.map(|interval| {
            let mut interval = self.machine.retime(interval, &self.recorded, self.lines_per_read);
            if self.in_proportion {
                interval.mixed.clear();
            }
            interval
        }))
    }
}

/// Sums over the intervals of a recording, which are kept on the way if they are few enough.
#[derive(Default)]
pub(super) struct Survey {
    pub(super) kept: Vec<Interval>,
    pub(super) bytes: u64,
    pub(super) intervals: u64,
    pub(super) fast_ps: u64,
    pub(super) slow_ps: u64,
    pub(super) pages: usize,
}

impl Survey {
    pub(super) fn of(source: &mut dyn IntervalSource) -> anyhow::Result<Self> {
        let mut survey = Survey::default();
        while let Some(interval) = source.next_interval().map_err(InputError::new)? {
            survey.add(interval);
        }
        Ok(survey)
    }

    pub(super) fn add(&mut self, interval: Interval) {
        self.intervals += 1;
        self.fast_ps = self.fast_ps.saturating_add(interval.fast_ps);
        self.slow_ps = self.slow_ps.saturating_add(interval.slow_ps);
        self.pages = self.pages.max(interval.layout.pages());
        self.bytes += 9 * interval.layout.pages() as u64;
        if self.bytes <= KEPT_BYTES {
            self.kept.push(interval);
        } else {
            self.kept = Vec::new();
        }
    }

    /// The intervals, or where to read them again.
    pub(super) fn stored(&mut self, otherwise: Stored) -> Stored {
        match std::mem::take(&mut self.kept) {
            kept if self.bytes <= KEPT_BYTES => Stored::Kept(kept.into()),
            _ => otherwise,
        }
    }

    pub(super) fn check(&self, path: &Path) -> Result<(), InputError> {
        if self.intervals == 0 || self.fast_ps == 0 || self.pages == 0 {
            return Err(refuse!(
                "{}: nothing was recorded; expected a program that used memory, record it again",
                path.display()
            ));
        }
        Ok(())
    }
}

/// Periods of accessed pages as intervals of a stated latency model.
pub(super) struct PeriodIntervals {
    source: RecordingSource<std::io::BufReader<std::fs::File>>,
    period_ps: u64,
    waiting: Waiting,
    machine: Machine,
}

impl PeriodIntervals {
    pub(super) fn open(
        path: &Path,
        group: &str,
        waiting: Waiting,
        machine: &Machine,
    ) -> Result<Self, InputError> {
        let source = RecordingSource::open(path, group).map_err(InputError::new)?;
        let period_ps = source.header().period_ms.max(1).saturating_mul(1_000_000_000);
        Ok(PeriodIntervals { source, period_ps, waiting, machine: machine.clone() })
    }
}

/// The time of an interval with all memory slow, by the latency model.
pub(super) fn modelled_slow_ps(fast_ps: u64, waiting: Waiting, machine: &Machine) -> u64 {
    let growth = machine.slow.latency_ns / machine.fast.latency_ns.max(1e-9) - 1.0;
    (fast_ps as f64 * (1.0 + waiting.share * growth)).round() as u64
}

impl IntervalSource for PeriodIntervals {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        let Some(period) = self.source.next_period()? else { return Ok(None) };
        let fast_ps = self.period_ps;
        let slow_ps = modelled_slow_ps(fast_ps, self.waiting, &self.machine);
        let pages = period.layout.pages();
        let reads = (0..pages).map(|page| u64::from(period.accessed.get(page))).collect();
        Ok(Some(Interval {
            // Once a microsecond for each: a move of a page in use is taken to delay the program.
            references: (period.accessed.count() as u64).saturating_mul(fast_ps / 1_000_000),
            fast_ps,
            slow_ps,
            mixed: Vec::new(),
            scan_ps: 0,
            layout: period.layout,
            accessed: period.accessed,
            fresh: Vec::new(),
            reads,
        }))
    }
}
