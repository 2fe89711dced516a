//! The measured part of a live run: marks for external counters and for the programs' requests; and
//! the processor time of kernel threads meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use terrace_core::{InputError, refuse};
use terrace_linux::bystanders;
use terrace_linux::cpu_times;
use terrace_linux::kernel_threads::KernelThreads;
use terrace_linux::roots::Roots;
use terrace_linux::tiers::Topology;
use terrace_recorder::nodes::{Mark, mark};
use terrace_results::KernelThreadRow;
use terrace_workloads::session::{Session, SessionError};

use crate::file::Experiment;
use crate::slowdown;

/// A warm-up is no longer than its periods should take times this, however little the programs run.
const LONGEST_WARM_UP: u32 = 2;

/// The work of programs that have processors to themselves, from which they are measured: by the time
/// that these processors spend in programs.
pub(crate) struct WarmUpWork {
    roots: Roots,
    cpus: Vec<u32>,
    /// At the beginning.
    before: Duration,
    /// Time after which they are measured.
    wanted: Duration,
}

impl WarmUpWork {
    /// Marks that it begins now, for external counters, too. `None` where systems are not compared over the
    /// same work, and on a kernel that does not report it.
    pub fn begin(experiment: &Experiment) -> Option<Self> {
        mark(Mark::Period);
        Self::below(Roots::default(), experiment)
    }

    fn below(roots: Roots, experiment: &Experiment) -> Option<Self> {
        let (cpus, wanted) = slowdown::before_measured(experiment)?;
        let before = cpu_times::in_programs(&roots, cpus).ok()?;
        Some(WarmUpWork { roots, cpus: cpus.to_vec(), before, wanted })
    }

    /// Whether less than a period is left, or it is not known. Linux samples these times, so that they
    /// are off by a percent: programs that have done more than wanted could not be compared.
    fn is_nearly_done(&self, period: Duration) -> bool {
        let Ok(now) = cpu_times::in_programs(&self.roots, &self.cpus) else { return true };
        now.saturating_sub(self.before) + period + self.wanted / 50 >= self.wanted
    }
}

/// The measured part of a run. Threads are read outside of it, because reading takes time.
pub(crate) struct Measured {
    roots: Roots,
    warm_up_periods: u64,
    periods: u64,
    period: Duration,
    /// Periods that are over, and those of them in the warm-up.
    over: u64,
    over_in_warm_up: u64,
    since: Instant,
    /// The warm-up is over, and what is measured has not begun.
    begins: bool,
    /// When what is measured after a warm-up began.
    begun: Option<Instant>,
    has_ended: bool,
    begin: Option<KernelThreads>,
    end: Option<KernelThreads>,
    work: Option<WarmUpWork>,
}

impl Measured {
    /// Begins at once, without a warm-up. With one, the programs are to have done this work before.
    pub fn of(experiment: &Experiment, work: Option<WarmUpWork>) -> Self {
        Measured { work, ..Self::below(Roots::default(), experiment) }
    }

    fn below(roots: Roots, experiment: &Experiment) -> Self {
        let Experiment { periods, warm_up_periods, .. } = *experiment;
        let mut measured = Self {
            roots,
            warm_up_periods,
            periods,
            period: Duration::from_millis(experiment.period_ms),
            over: 0,
            over_in_warm_up: 0,
            since: Instant::now(),
            begins: false,
            begun: None,
            has_ended: false,
            begin: None,
            end: None,
            work: None,
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

    /// Whether what is measured after a warm-up begins now: it does once the warm-up's periods should
    /// have taken their time. A tracker loses periods where memory changes; if each of them made
    /// a warm-up longer, systems would be measured at different places of a program's work. Programs whose
    /// work is known are given time until little of it is left: a virtual machine's clock stops for the
    /// rest, in which no tracker and no scanner acts.
    pub fn begins(&mut self) -> bool {
        if self.warm_up_periods == 0 || self.begun.is_some() {
            self.begins = false;
            return false;
        }
        let (now, length) =
            (self.since.elapsed() + self.period / 2, self.length(self.warm_up_periods));
        let has_worked = || self.work.as_ref().is_none_or(|work| work.is_nearly_done(self.period));
        self.begins = now >= length && (now >= length * LONGEST_WARM_UP || has_worked());
        self.begins
    }

    /// The time that so many periods should take.
    fn length(&self, periods: u64) -> Duration {
        self.period * u32::try_from(periods).unwrap_or(u32::MAX)
    }

    /// Whether it has begun, and has not ended.
    pub fn is_measuring(&self) -> bool {
        self.begun.is_some() && !self.has_ended
    }

    /// Whether so much has been measured.
    fn is_enough(&self) -> bool {
        let Some(begun) = self.begun else { return false };
        let wanted = self.periods - self.warm_up_periods;
        let measured = self.over - self.over_in_warm_up;
        begun.elapsed() + self.period / 2 >= self.length(wanted) || measured >= 2 * wanted
    }

    /// Marks the end of so many periods, and the begin of what is measured where it begins now.
    pub fn between_periods<'a>(
        &mut self,
        over: u64,
        topology: &Topology,
        sessions: impl Iterator<Item = &'a Session>,
    ) -> Result<(), SessionError> {
        self.over = self.over.max(over);
        let sessions: Vec<&Session> = sessions.collect();
        let mut sessions = sessions.into_iter();
        if self.begins {
            let drives = sessions.clone().filter_map(Session::drive_pid);
            drives.for_each(|pid| bystanders::bring_to_fast(topology, pid));
            self.begin = self.threads();
            mark(Mark::Begin);
            (self.begins, self.over_in_warm_up) = (false, self.over);
            self.begun = Some(Instant::now());
            return sessions.try_for_each(Session::mark);
        }
        if self.is_enough() {
            self.has_ended = true;
            // The programs end when they get the mark. The clock of a virtual machine goes on at
            // another speed after the end, so all of them have taken theirs before.
            sessions.clone().try_for_each(Session::mark)?;
            sessions.try_for_each(Session::measured)?;
            mark(Mark::End);
            self.end = self.threads();
        } else {
            mark(Mark::Period);
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
        if warm_up > 0 && self.begun.is_none() {
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

    /// So much of the run's time passes.
    fn passes(measured: &mut Measured, time: Duration) {
        measured.since = measured.since.checked_sub(time).unwrap();
        measured.begun = measured.begun.map(|begun| begun.checked_sub(time).unwrap());
    }

    fn experiment(periods: &str) -> Experiment {
        let text = format!(
            "name = \"e\"\nperiod_ms = 10000\n{periods}\n[[groups]]\nname = \"a\"\n\
             fast_ratio = 0.5\nworkload = {{ kind = \"zipf\" }}\n"
        );
        Experiment::parse(&text, PathBuf::from(".")).unwrap()
    }

    /// Lets periods of these times pass until the run is over. The last time is that of all others. The
    /// number of periods in the warm-up, and of all.
    fn run(measured: &mut Measured, times_ms: &[u64]) -> (u64, u64) {
        let topology = Topology { tiers: Vec::new(), source: TierSource::Given };
        let mut over = 0;
        while measured.goes_on() {
            let last = times_ms.len() - 1;
            passes(measured, Duration::from_millis(times_ms[last.min(over as usize)]));
            over += 1;
            let begins = measured.begins();
            measured.between_periods(over, &topology, std::iter::empty()).unwrap();
            assert!(!begins || measured.is_measuring());
        }
        (measured.over_in_warm_up, over)
    }

    #[test]
    fn as_much_time_is_measured_as_the_periods_should_take() {
        let experiment = experiment("periods = 6\nwarm_up_periods = 4");
        let host = tempfile::tempdir().unwrap();
        // The time of each period behind the warm-up, and how many there are.
        for (ms, periods) in [(10_000, 2), (9000, 2), (1000, 4), (5000, 3), (30_000, 1)] {
            let mut measured = Measured::below(Roots::below(host.path()), &experiment);
            let (in_warm_up, over) = run(&mut measured, &[10_000, 10_000, 10_000, 10_000, ms]);
            assert_eq!((in_warm_up, over), (4, 4 + periods), "periods of {ms} ms");
        }
    }

    #[test]
    fn a_warm_up_takes_its_time_whatever_is_lost_in_it() {
        let experiment = experiment("periods = 6\nwarm_up_periods = 4");
        let host = tempfile::tempdir().unwrap();
        // With each period, others that were lost.
        for (times_ms, in_warm_up) in
            [(&[20_000, 10_000][..], 3), (&[40_000, 10_000], 1), (&[1000, 10_000], 5)]
        {
            let mut measured = Measured::below(Roots::below(host.path()), &experiment);
            assert_eq!(run(&mut measured, times_ms), (in_warm_up, in_warm_up + 2));
            measured.end().unwrap();
        }
    }

    #[test]
    fn programs_whose_work_is_known_are_measured_once_little_of_it_is_left() {
        let text = "name = \"e\"\nperiod_ms = 10000\nperiods = 22\nwarm_up_periods = 20\n[[groups]]\n\
                    name = \"a\"\nfast_ratio = 0.5\ncpus = [1]\nworkload = { kind = \"command\", \
                    command = [\"true\"] }\n";
        let experiment = Experiment::parse(text, PathBuf::from(".")).unwrap();
        let host = tempfile::tempdir().unwrap();
        let put = |ms: u64| {
            std::fs::create_dir_all(host.path().join("proc")).unwrap();
            let text = format!("cpu 0 0 0\ncpu0 9 9 9\ncpu1 {} 0 77\n", 300 + ms / 10);
            std::fs::write(host.path().join("proc/stat"), text).unwrap();
        };
        // It is in the program for so much of each period. 22 periods of work are measured behind.
        let topology = Topology { tiers: Vec::new(), source: TierSource::Given };
        for (ms, in_warm_up) in [(10_000, 21), (9000, 23), (7000, 30), (1000, 40)] {
            put(0);
            let work = WarmUpWork::below(Roots::below(host.path()), &experiment);
            assert!(work.is_some());
            let measured = Measured::below(Roots::below(host.path()), &experiment);
            let mut measured = Measured { work, ..measured };
            let mut over = 0;
            while measured.begun.is_none() {
                passes(&mut measured, Duration::from_secs(10));
                over += 1;
                put(over * ms);
                measured.begins();
                measured.between_periods(over, &topology, std::iter::empty()).unwrap();
            }
            assert_eq!(over, in_warm_up, "{ms} ms of a period");
            assert!(!measured.begins());
        }
        // Not of programs that share processors, and not where the kernel does not report it.
        let shared = experiment.clone();
        let groups =
            shared.groups.iter().map(|g| crate::file::GroupSpec { cpus: vec![], ..g.clone() });
        let shared = Experiment { groups: groups.collect(), ..experiment.clone() };
        assert!(WarmUpWork::below(Roots::below(host.path()), &shared).is_none());
        std::fs::remove_file(host.path().join("proc/stat")).unwrap();
        assert!(WarmUpWork::below(Roots::below(host.path()), &experiment).is_none());
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
            let experiment =
                experiment(&format!("periods = 6\nwarm_up_periods = {warm_up_periods}"));
            put(1_000_000);
            let mut measured = Measured::below(Roots::below(host.path()), &experiment);
            let topology = Topology { tiers: Vec::new(), source: TierSource::Given };
            for over in 1..=6 {
                put(1_000_000 * (over + 1));
                assert!(measured.goes_on());
                passes(&mut measured, Duration::from_secs(10));
                measured.begins();
                measured.between_periods(over, &topology, std::iter::empty()).unwrap();
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
        let experiment = experiment("periods = 6\nwarm_up_periods = 4");
        let host = tempfile::tempdir().unwrap();
        let mut measured = Measured::below(Roots::below(host.path()), &experiment);
        let topology = Topology { tiers: Vec::new(), source: TierSource::Given };
        let period = |measured: &mut Measured, over| {
            passes(measured, Duration::from_secs(10));
            measured.begins();
            measured.between_periods(over, &topology, std::iter::empty()).unwrap();
        };
        (1..=3).for_each(|number| period(&mut measured, number));
        let error = measured.end().unwrap_err().to_string();
        assert!(error.contains("after 3 periods, in the warm-up of 4"), "{error}");
        period(&mut measured, 4);
        measured.end().unwrap();
    }
}
