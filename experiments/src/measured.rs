//! The measured part of a live run: marks for external counters and for the programs' requests; and
//! the processor time of kernel threads meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use terrace_core::{InputError, refuse};
use terrace_linux::bystanders;
use terrace_linux::kernel_threads::KernelThreads;
use terrace_linux::roots::Roots;
use terrace_linux::tiers::Topology;
use terrace_recorder::nodes::{Mark, mark};
use terrace_results::KernelThreadRow;
use terrace_workloads::session::{Session, SessionError};

use crate::file::Experiment;

/// The measured part of a run. Threads are read outside of it, because reading takes time.
pub(crate) struct Measured {
    roots: Roots,
    warm_up_periods: u64,
    periods: u64,
    period: Duration,
    /// Periods that are over.
    over: u64,
    /// When what is measured after a warm-up began.
    begun: Option<Instant>,
    has_ended: bool,
    begin: Option<KernelThreads>,
    end: Option<KernelThreads>,
}

impl Measured {
    /// Begins at once, without a warm-up.
    pub fn of(experiment: &Experiment) -> Self {
        Self::below(Roots::default(), experiment)
    }

    fn below(roots: Roots, experiment: &Experiment) -> Self {
        let Experiment { periods, warm_up_periods, .. } = *experiment;
        let mut measured = Self {
            roots,
            warm_up_periods,
            periods,
            period: Duration::from_millis(experiment.period_ms),
            over: 0,
            begun: None,
            has_ended: false,
            begin: None,
            end: None,
        };
        measured.begin = measured.threads();
        measured
    }

    /// A kernel that does not report them gives no rows: nothing else of a run depends on them.
    fn threads(&self) -> Option<KernelThreads> {
        KernelThreads::read(&self.roots).ok()
    }

    /// Whether another period belongs to the run. After a warm-up as much time is measured as its
    /// periods should take: moves may make the last one before late, and those that follow short. It
    /// is no more than twice as many periods.
    pub fn goes_on(&self) -> bool {
        if self.warm_up_periods == 0 {
            return self.over < self.periods;
        }
        !self.has_ended
    }

    /// Whether what is measured after a warm-up begins once so many periods are over.
    pub fn begins_after(&self, over: u64) -> bool {
        self.warm_up_periods > 0 && over == self.warm_up_periods
    }

    /// Whether that is so now.
    pub fn is_measuring(&self) -> bool {
        self.begun.is_some() && !self.has_ended
    }

    /// Whether so much has been measured.
    fn is_enough(&self) -> bool {
        let Some(begun) = self.begun else { return false };
        let wanted = self.periods - self.warm_up_periods;
        let measured = self.over.saturating_sub(self.warm_up_periods);
        let length = self.period * u32::try_from(wanted).unwrap_or(u32::MAX);
        begun.elapsed() + self.period / 2 >= length || measured >= 2 * wanted
    }

    /// Marks the end of so many periods.
    pub fn between_periods<'a>(
        &mut self,
        over: u64,
        topology: &Topology,
        sessions: impl Iterator<Item = &'a Session>,
    ) -> Result<(), SessionError> {
        self.over = self.over.max(over);
        let sessions: Vec<&Session> = sessions.collect();
        let mut sessions = sessions.into_iter();
        match over {
            _ if self.warm_up_periods == 0 => mark(Mark::Period),
            over if self.begins_after(over) => {
                let drives = sessions.clone().filter_map(Session::drive_pid);
                drives.for_each(|pid| bystanders::bring_to_fast(topology, pid));
                self.begin = self.threads();
                mark(Mark::Begin);
                self.begun = Some(Instant::now());
                return sessions.try_for_each(Session::mark);
            }
            _ if self.is_enough() => {
                self.has_ended = true;
                // The programs end when they get the mark. The clock of a virtual machine goes on at
                // another speed after the end, so all of them have taken theirs before.
                sessions.clone().try_for_each(Session::mark)?;
                sessions.try_for_each(Session::measured)?;
                mark(Mark::End);
                self.end = self.threads();
            }
            _ => mark(Mark::Period),
        }
        Ok(())
    }

    /// Marks the end of the last period: all measuring ends here. An error if the programs ended before
    /// anything was measured.
    pub fn end(&mut self) -> Result<(), InputError> {
        if self.is_measuring() {
            // The programs ended before: what comes now is none of theirs.
            self.has_ended = true;
            mark(Mark::End);
        }
        if self.end.is_none() {
            self.end = self.threads();
        }
        let (over, warm_up) = (self.over, self.warm_up_periods);
        if over < warm_up {
            return Err(refuse!(
                "the programs ended after {over} periods, in the warm-up of {warm_up}: expected them \
                 to run on, correct what they execute, or let warm_up_periods be smaller"
            ));
        }
        Ok(())
    }

    /// Processor time of the kernel's own threads.
    pub fn rows(&self, run: &str) -> Vec<KernelThreadRow> {
        let times = self.begin.as_ref().zip(self.end.as_ref());
        let times = times.map_or(BTreeMap::new(), |(begin, end)| end.since(begin));
        let row = |(thread, time_ns)| KernelThreadRow {
            run: run.to_owned(),
            thread,
            time_ms: time_ns as f64 / 1e6,
        };
        times.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use terrace_linux::tiers::TierSource;

    use super::*;

    /// So much of what is measured passes.
    fn passes(measured: &mut Measured, time: Duration) {
        measured.begun = measured.begun.map(|begun| begun.checked_sub(time).unwrap());
    }

    #[test]
    fn as_much_time_is_measured_as_the_periods_should_take() {
        let text = "name = \"e\"\nperiod_ms = 10000\nperiods = 6\nwarm_up_periods = 4\n[[groups]]\n\
                    name = \"a\"\nfast_ratio = 0.5\nworkload = { kind = \"zipf\" }\n";
        let experiment = Experiment::parse(text, PathBuf::from(".")).unwrap();
        let host = tempfile::tempdir().unwrap();
        let topology = Topology { tiers: Vec::new(), source: TierSource::Given };
        // The time of each period behind the warm-up, and how many there are.
        for (ms, periods) in [(10_000, 2), (9000, 2), (1000, 4), (5000, 3), (30_000, 1)] {
            let mut measured = Measured::below(Roots::below(host.path()), &experiment);
            let mut over = 0;
            while measured.goes_on() {
                passes(&mut measured, Duration::from_millis(ms));
                over += 1;
                measured.between_periods(over, &topology, std::iter::empty()).unwrap();
            }
            assert_eq!(over, 4 + periods, "periods of {ms} ms");
        }
    }

    #[test]
    fn threads_are_measured_after_the_warm_up_and_to_the_end() {
        let host = tempfile::tempdir().unwrap();
        let put = |time_ns: u64| {
            let folder = host.path().join("proc/2");
            std::fs::create_dir_all(&folder).unwrap();
            let stat = "2 (kswapd1) S 2 0 0 0 -1 2129984 0 0 0 0 5 6 0 0 20 0 1 0 77 0 0\n";
            std::fs::write(folder.join("stat"), stat).unwrap();
            std::fs::write(folder.join("schedstat"), format!("{time_ns} 0 1\n")).unwrap();
        };
        let rows = |warm_up_periods: u64| {
            let text = format!(
                "name = \"e\"\nperiod_ms = 10000\nperiods = 6\nwarm_up_periods = {warm_up_periods}\n\
                 [[groups]]\nname = \"a\"\nfast_ratio = 0.5\nworkload = {{ kind = \"zipf\" }}\n"
            );
            let experiment = Experiment::parse(&text, PathBuf::from(".")).unwrap();
            put(1_000_000);
            let mut measured = Measured::below(Roots::below(host.path()), &experiment);
            let topology = Topology { tiers: Vec::new(), source: TierSource::Given };
            for over in 1..=6 {
                put(1_000_000 * (over + 1));
                assert!(measured.goes_on());
                measured.between_periods(over, &topology, std::iter::empty()).unwrap();
                passes(&mut measured, Duration::from_secs(10));
            }
            assert!(!measured.goes_on());
            put(20_000_000);
            measured.end().unwrap();
            let rows = measured.rows("lru");
            rows.into_iter().map(|r| (r.run, r.thread, r.time_ms)).collect::<Vec<_>>()
        };
        let of = |time_ms| vec![("lru".to_owned(), "kswapd1".to_owned(), time_ms)];
        assert_eq!(rows(0), of(19.0));
        assert_eq!(rows(2), of(4.0));
    }

    #[test]
    fn programs_that_end_in_the_warm_up_are_an_error_and_no_result() {
        let text = "name = \"e\"\nperiod_ms = 100\nperiods = 6\nwarm_up_periods = 4\n[[groups]]\n\
                    name = \"a\"\nfast_ratio = 0.5\nworkload = { kind = \"zipf\" }\n";
        let experiment = Experiment::parse(text, PathBuf::from(".")).unwrap();
        let host = tempfile::tempdir().unwrap();
        let mut measured = Measured::below(Roots::below(host.path()), &experiment);
        let topology = Topology { tiers: Vec::new(), source: TierSource::Given };
        let mut over = |over| measured.between_periods(over, &topology, std::iter::empty());
        (1..=3).for_each(|number| over(number).unwrap());
        let error = measured.end().unwrap_err().to_string();
        assert!(error.contains("after 3 periods, in the warm-up of 4"), "{error}");
        measured.between_periods(4, &topology, std::iter::empty()).unwrap();
        measured.end().unwrap();
    }
}
