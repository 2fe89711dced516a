//! Reads accessed bits with DAMON, whose records come through a trace instance of our own.
//!
//! Setting up means off, configure, on: `commit` would wait for the end of an interval and stretch
//! old regions over new ranges (`damon_commit_target_regions`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_core::counts::AccessCounts;
use terrace_core::page::Layout;

use crate::collect::{Accesses, Collector, PeriodEnd, Regions};
use crate::damon::Kdamond;
use crate::files::{self, FileError};
use crate::numa;
use crate::process;
use crate::ring::Record;
use crate::roots::Roots;
use crate::sampler::{Observed, Sampler, StepError, Waited};
use crate::sampling::{Samples, Sampling};
use crate::session::Session;
use crate::trace::TraceInstance;

/// The longest sleep between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(200);

/// Interval of checks for processors that are online.
const CPU_CHECK: Duration = Duration::from_millis(100);

/// One of DAMON's kernel threads.
pub(crate) struct DamonSampler {
    roots: Roots,
    period: Duration,
    sampling: Sampling,
    number: usize,
    kdamond: Kdamond,
    /// Declared before the session, so that its files are closed when the session removes it.
    trace: Option<TraceInstance>,
    collector: Option<Collector>,
    layout: Option<Layout>,
    /// The kernel thread was turned on, or an attempt was made.
    is_on: bool,
    /// When the thread was last turned on, until that was asked for.
    begun: Option<Instant>,
    records: Vec<Record>,
    /// Processor time of kernel threads that have ended.
    ended_ns: u64,
    session: Arc<Session>,
}

impl DamonSampler {
    /// Uses the kernel thread of this number, which is ready.
    pub(crate) fn new(
        roots: &Roots,
        session: Arc<Session>,
        number: usize,
        period: Duration,
        samples: Samples,
    ) -> Self {
        DamonSampler {
            roots: roots.clone(),
            period,
            sampling: Sampling::new(period, samples),
            number,
            kdamond: Kdamond::new(roots, number),
            trace: None,
            collector: None,
            layout: None,
            is_on: false,
            begun: None,
            records: Vec::new(),
            ended_ns: 0,
            session,
        }
    }
}

impl DamonSampler {
    fn begin(&mut self, layout: &Layout) -> Result<(), StepError> {
        self.sampling.set_pages(layout.pages());
        let regions = Regions::new(layout, self.sampling.parts());
        self.layout = Some(layout.clone());
        self.turn_on(regions)
    }

    /// Does not write to threads that another program has taken.
    fn check_ours(&self) -> Result<(), StepError> {
        if self.session.has_kdamonds()? { Ok(()) } else { Err(StepError::DamonTaken) }
    }

    fn turn_on(&mut self, regions: Regions) -> Result<(), StepError> {
        let online = numa::online_cpus(&self.roots)?;
        if let Some(trace) = &mut self.trace {
            trace.follow_cpus(&online)?;
        } else {
            self.trace = Some(self.open_trace(&online)?);
        }
        let Some(trace) = &mut self.trace else { return Err(StepError::NoTrace) };
        trace.reserve(regions.count())?;
        let (interval, samples) = (self.sampling.interval(), self.sampling.samples());
        self.kdamond.configure(&regions.targets, regions.region_bytes, interval, samples)?;
        // Records written as the thread was turned off belong to no whole period.
        self.records.clear();
        trace.drain(&mut self.records)?;
        self.is_on = true;
        let pid = self.kdamond.on()?;
        self.begun = Some(Instant::now());
        // Early enough: the first record comes a period later.
        let name = files::read(&self.roots.process(pid).join("comm")).ok().flatten();
        trace.follow(pid, name.as_deref().map(str::trim))?;
        let period_ns = self.period.as_nanos() as u64;
        self.collector = Some(Collector::new(regions, pid, period_ns, samples));
        Ok(())
    }

    /// Continues with the same layout and another interval.
    fn resample(&mut self) -> Result<(), StepError> {
        let (Some(collector), Some(layout)) = (self.collector.take(), self.layout.take()) else {
            return Ok(());
        };
        self.ended_ns += process::cpu_ns(&self.roots, collector.pid()).unwrap_or(0);
        tracing::debug!(
            group = self.number,
            interval_us = self.sampling.interval().as_micros() as u64,
            parts = self.sampling.parts(),
            "the interval between samples changes"
        );
        self.stop()?;
        self.check_ours()?;
        let begun = self.begin(&layout);
        if begun.is_err() {
            self.stop()?;
        }
        begun
    }

    /// Begins anew, unless a process has ended since: then the layout has to be read again.
    fn resample_those_alive(&mut self) -> Result<Option<Waited>, StepError> {
        match self.resample() {
            Err(StepError::File(e)) if matches!(e.errno(), Some(libc::EINVAL | libc::ESRCH)) => {
                let reason =
                    "a process ended as it was to be sampled at another interval".to_owned();
                Ok(Some(Waited::Lost { periods: 1, reason, is_over: true }))
            }
            begun => begun.map(|()| None),
        }
    }

    /// Opens a trace instance; one that cannot be opened is removed.
    fn open_trace(&self, online: &[u32]) -> Result<TraceInstance, StepError> {
        let name = format!("terrace-{}-{}", std::process::id(), self.number);
        let path = self.session.make_trace_instance(&name)?;
        TraceInstance::open(&path, online).map_err(|error| {
            if let Err(error) = self.session.remove_trace_instance(&path) {
                tracing::warn!(%error, "the trace instance stays until the next attempt");
            }
            error.into()
        })
    }
}

impl Sampler for DamonSampler {
    fn name(&self) -> &'static str {
        "damon"
    }

    fn start(&mut self, layout: &Layout) -> Result<(), StepError> {
        self.stop()?;
        self.check_ours()?;
        // The thread may be on since a failed attempt, of this sampler or of the one before it.
        self.kdamond.off()?;
        let begun = self.begin(layout);
        if begun.is_err()
            && let Err(error) = self.stop()
        {
            tracing::warn!(%error, "DAMON stays on until the next attempt");
        }
        begun
    }

    fn wait(
        &mut self,
        since: Instant,
        stopped: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, StepError> {
        let period = self.period;
        let slice = SLICE.min(self.sampling.interval());
        let (Some(collector), Some(trace)) = (&mut self.collector, &mut self.trace) else {
            return Ok(Waited::Stopped);
        };
        let expected = collector.expected();
        // Reading and clearing bits takes extra time, more on an emulated machine.
        let work = Duration::from_micros(200).saturating_mul(expected as u32);
        let due = since + period;
        let deadline = due + period / 2 + work + Duration::from_secs(2);
        let mut newest = None;
        let mut superseded = 0u32;
        let mut missed = false;
        let mut next_check = since;
        loop {
            self.records.clear();
            missed |= drain(trace, &mut self.records, &self.roots, &mut next_check, self.number)?;
            for record in &self.records {
                match collector.take(record) {
                    Some(PeriodEnd::Complete(accesses)) => {
                        superseded += u32::from(newest.replace(accesses).is_some());
                    }
                    Some(PeriodEnd::Incomplete { reported, expected }) => {
                        tracing::warn!(
                            reported,
                            expected,
                            missed,
                            "records of a period are missing"
                        );
                        superseded += 1;
                    }
                    None => {}
                }
            }
            if let Some(Accesses { accessed, counts }) = newest {
                let samples = self.sampling.samples_in_all();
                let interval_us = self.sampling.interval().as_micros() as u32;
                if self.sampling.follow(&counts, samples)
                    && let Some(lost) = self.resample_those_alive()?
                {
                    return Ok(lost);
                }
                let counts = (samples > 1).then(|| AccessCounts {
                    samples,
                    interval_us,
                    counts: counts.into(),
                });
                let observed = Observed { accessed, counts, active: None };
                return Ok(Waited::Complete { observed, superseded });
            }
            if stopped() {
                return Ok(Waited::Stopped);
            }
            let now = Instant::now();
            let over = now > due && !self.kdamond.runs_as(collector.pid())?;
            if over || now > deadline {
                let waited = now - since;
                let periods = (waited.as_secs_f64() / period.as_secs_f64()).round().max(1.0) as u32;
                let reason = collector.why_lost(over, waited, missed);
                // A thread that reports other regions has to be set up again.
                let is_over = over || collector.foreign() > 0;
                let _ = collector.give_up();
                return Ok(Waited::Lost { periods, reason, is_over });
            }
            if collector.reported() > 0 {
                // Records come in a burst: wait a little instead of waking for each.
                std::thread::sleep(Duration::from_millis(2));
            } else if now < due {
                trace.wait(slice.min(due - now));
            } else {
                trace.wait(Duration::from_millis(20));
            }
        }
    }

    fn begun(&mut self) -> Option<Instant> {
        self.begun.take()
    }

    fn interval(&self) -> Duration {
        self.sampling.interval()
    }

    /// Waits until the kernel thread has cleared all accessed bits and sleeps.
    fn settle(&mut self) {
        let Some(collector) = &self.collector else { return };
        let begin = Instant::now();
        let limit = self.period / 10;
        while begin.elapsed() < limit {
            match process::stat(&self.roots, collector.pid()) {
                Ok(Some(stat)) if stat.state != 'I' => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => return,
            }
        }
    }

    fn stop(&mut self) -> Result<(), FileError> {
        if let Some(collector) = self.collector.take() {
            self.ended_ns += process::cpu_ns(&self.roots, collector.pid()).unwrap_or(0);
        }
        if self.is_on {
            // A thread that another program has taken is not changed.
            if self.session.has_kdamonds()? {
                self.kdamond.off()?;
            }
            self.is_on = false;
        }
        self.trace.iter_mut().for_each(TraceInstance::unfollow);
        Ok(())
    }

    fn kernel_ns(&self) -> u64 {
        let running = self
            .collector
            .as_ref()
            .map_or(0, |c| process::cpu_ns(&self.roots, c.pid()).unwrap_or(0));
        self.ended_ns + running
    }
}

impl Drop for DamonSampler {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::error!(%error, "DAMON was not turned off");
        }
        // Closes its files; the next group with this kernel thread makes another instance.
        if let Some(trace) = self.trace.take() {
            let path = trace.path().to_owned();
            drop(trace);
            if let Err(error) = self.session.remove_trace_instance(&path) {
                tracing::warn!(%error, "the trace instance stays until the end");
            }
        }
    }
}

/// Reads the records that have arrived, from all processors that are online; returns whether
/// others were overwritten.
fn drain(
    trace: &mut TraceInstance,
    records: &mut Vec<Record>,
    roots: &Roots,
    next_check: &mut Instant,
    group: usize,
) -> Result<bool, StepError> {
    let mut drained = trace.drain(records)?;
    let mut missed = drained.missed;
    if Instant::now() >= *next_check {
        *next_check = Instant::now() + CPU_CHECK;
        if trace.follow_cpus(&numa::online_cpus(roots)?)? {
            // The instances that were opened may have records already.
            drained = trace.drain(records)?;
            missed |= drained.missed;
        }
    }
    if drained.malformed {
        tracing::warn!(group, "a page of the trace buffer was not understood");
    }
    Ok(missed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults;
    use crate::ring::tests::{FORMAT, HEADER_PAGE, body, header, page};
    use crate::testing::{folder, put, put_kdamond};
    use std::fs;
    use std::io::Write;
    use std::path::Path;
    use terrace_core::page::{Extent, PageSize, SpaceId};

    const HUGE: u64 = PageSize::Huge.bytes();
    const KDAMOND: u32 = 77;
    const PERIOD: Duration = Duration::from_millis(50);

    /// A kernel with one DAMON thread and two processors, of which the first is online.
    fn kernel() -> (tempfile::TempDir, Roots) {
        let (keep, roots) = folder(&[
            ("sys/devices/system/cpu/online", "0\n"),
            ("sys/kernel/tracing/instances/.keep", ""),
            ("proc/77/comm", "kdamond.0\n"),
            ("proc/77/stat", "77 (kdamond.0) I 2 0 0 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0\n"),
        ]);
        put_kdamond(keep.path(), 3);
        put(keep.path(), "sys/kernel/mm/damon/admin/kdamonds/0/pid", &format!("{KDAMOND}\n"));
        faults::on_new_folder(|path| {
            if path.parent().is_some_and(|p| p.ends_with("instances")) {
                let event = "events/damon/damon_aggregated";
                put(path, &format!("{event}/format"), FORMAT);
                put(path, "events/header_page", HEADER_PAGE);
                for file in ["buffer_size_kb", "trace_clock", "buffer_percent", "tracing_on"] {
                    put(path, file, "");
                }
                for file in ["enable", "filter"] {
                    put(path, &format!("{event}/{file}"), "");
                }
                for cpu in 0..2 {
                    put(path, &format!("per_cpu/cpu{cpu}/trace_pipe_raw"), "");
                    put(path, &format!("per_cpu/cpu{cpu}/buffer_size_kb"), "");
                }
            }
        });
        (keep, roots)
    }

    fn layout() -> Layout {
        let extents = vec![Extent { space: SpaceId(4), start: HUGE, pages: 3 }];
        Layout::new(PageSize::Huge, extents).unwrap()
    }

    fn instances(roots: &Roots) -> Vec<String> {
        let mut names = crate::files::list(&roots.tracing().join("instances")).unwrap();
        names.retain(|name| name != ".keep");
        names
    }

    fn state(roots: &Roots) -> String {
        fs::read_to_string(roots.kdamonds().join("0/state")).unwrap().trim().to_owned()
    }

    /// The records of a period of the three pages of [`layout`], of which the second is accessed,
    /// as a page of a processor's buffer.
    fn put_period(root: &Path, instance: &str, cpu: u32, time_ns: u64) {
        let mut data = Vec::new();
        for nth in 0..3 {
            let start = HUGE * (1 + nth);
            data.extend(header(12, 1));
            let accesses = u64::from(nth == 1);
            let end = start + HUGE;
            data.extend(body(&Record { time_ns, pid: KDAMOND, target: 0, start, end, accesses }));
        }
        let path = format!("sys/kernel/tracing/instances/{instance}/per_cpu/cpu{cpu}");
        let mut pipe =
            fs::File::options().append(true).open(root.join(path).join("trace_pipe_raw")).unwrap();
        pipe.write_all(&page(time_ns, &data, 0)).unwrap();
    }

    #[test]
    fn an_error_of_any_step_leaves_nothing_on_and_the_next_attempt_succeeds() {
        let (_keep, roots) = kernel();
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let new = || DamonSampler::new(&roots, Arc::clone(&session), 0, PERIOD, Samples::One);
        let (steps, begun) = faults::count(|| {
            let mut sampler = new();
            sampler.start(&layout()).map(|()| sampler)
        });
        let mut sampler = begun.unwrap();
        assert_eq!(state(&roots), "on");
        let (stopping, stopped) = faults::count(|| sampler.stop());
        stopped.unwrap();
        drop(sampler);
        assert_eq!((state(&roots).as_str(), instances(&roots).len()), ("off", 0));
        assert!(steps > 20 && stopping > 1, "{steps} and {stopping} steps");
        let mut injected = 0;
        for errno in [libc::EMFILE, libc::ENOMEM, libc::EIO] {
            for at in 0..steps {
                let mut sampler = new();
                let begun = faults::inject(at, errno, || sampler.start(&layout()));
                if begun.is_err() {
                    assert_eq!(state(&roots), "off", "step {at}, error {errno}");
                }
                injected += 1;
                sampler.start(&layout()).unwrap_or_else(|e| panic!("step {at}: {e}"));
                assert_eq!(state(&roots), "on");
                drop(sampler);
                assert_eq!(state(&roots), "off", "step {at}, error {errno}");
                assert_eq!(instances(&roots).len(), 0, "step {at}, error {errno}");
            }
            // If stopping fails the thread stays on, and the next sampler turns it off.
            for at in 0..stopping {
                let mut sampler = new();
                sampler.start(&layout()).unwrap();
                let stopped = faults::inject(at, errno, || sampler.stop());
                assert!(stopped.is_err() || state(&roots) == "off", "step {at}");
                injected += 1;
                // As if its process had ended here.
                std::mem::forget(sampler);
                let mut next = new();
                next.start(&layout()).unwrap_or_else(|e| panic!("step {at}: {e}"));
                next.stop().unwrap();
                assert_eq!(state(&roots), "off", "step {at}, error {errno}");
            }
        }
        assert_eq!(injected, 3 * (steps + stopping));
        assert!(session.restore().is_empty());
        assert_eq!(instances(&roots).len(), 0);
    }

    #[test]
    fn an_error_in_a_period_is_one_and_stopping_turns_the_thread_off() {
        let (_keep, roots) = kernel();
        let session = Arc::new(Session::open(&roots, None).unwrap());
        for errno in [libc::EMFILE, libc::ENOMEM, libc::EIO] {
            let mut sampler =
                DamonSampler::new(&roots, Arc::clone(&session), 0, PERIOD, Samples::One);
            sampler.start(&layout()).unwrap();
            // Reading a processor's buffer, and which processors there are.
            for at in 0..2 {
                let waited =
                    faults::inject(at, errno, || sampler.wait(Instant::now(), &mut || false));
                assert!(waited.is_err(), "step {at}, error {errno}");
            }
            sampler.stop().unwrap();
            assert_eq!(state(&roots), "off");
        }
    }

    #[test]
    fn a_thread_that_somebody_else_has_taken_is_not_touched() {
        let (keep, roots) = kernel();
        let put_number = |number: &str| {
            put(keep.path(), "sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", number);
        };
        put_number("0\n");
        let session = Arc::new(Session::open(&roots, None).unwrap());
        session.take_kdamonds(2).unwrap();
        let mut sampler = DamonSampler::new(&roots, Arc::clone(&session), 0, PERIOD, Samples::One);
        sampler.start(&layout()).unwrap();
        // Another thread with the same number: detected, and not turned off.
        put_number("1\n");
        put(keep.path(), "sys/kernel/mm/damon/admin/kdamonds/0/pid", "99\n");
        match sampler.wait(Instant::now() - 2 * PERIOD, &mut || false).unwrap() {
            Waited::Lost { is_over, reason, .. } => {
                assert!(is_over && reason.contains("another program turned it off"), "{reason}");
            }
            _ => panic!("not lost"),
        }
        let message = sampler.start(&layout()).unwrap_err().to_string();
        assert!(message.contains("DAMON is used by another program"), "{message}");
        assert_eq!(state(&roots), "on");
        drop(sampler);
        assert_eq!(state(&roots), "on");
    }

    #[test]
    fn a_processor_that_comes_online_is_heard_and_one_that_goes_does_no_harm() {
        let (keep, roots) = kernel();
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let mut sampler = DamonSampler::new(&roots, Arc::clone(&session), 0, PERIOD, Samples::One);
        sampler.start(&layout()).unwrap();
        assert!(sampler.begun().is_some() && sampler.begun().is_none());
        let filter = "events/damon/damon_aggregated/filter";
        let filter = roots.tracing().join("instances").join(&instances(&roots)[0]).join(filter);
        assert_eq!(fs::read_to_string(filter).unwrap(), "comm == \"kdamond.0\"");
        let instance = instances(&roots)[0].clone();
        let complete =
            |sampler: &mut DamonSampler| match sampler.wait(Instant::now(), &mut || false).unwrap()
            {
                Waited::Complete { observed, .. } => {
                    assert_eq!(observed.accessed.iter_ones().collect::<Vec<_>>(), [1]);
                }
                Waited::Lost { reason, .. } => panic!("lost: {reason}"),
                Waited::Stopped => panic!("stopped"),
            };
        put_period(keep.path(), &instance, 0, 1_000_000_000);
        complete(&mut sampler);
        // The kernel thread runs on the processor that has just come online.
        put(keep.path(), "sys/devices/system/cpu/online", "0-1\n");
        put_period(keep.path(), &instance, 1, 2_000_000_000);
        complete(&mut sampler);
        // The first processor goes offline.
        put(keep.path(), "sys/devices/system/cpu/online", "1\n");
        sampler.stop().unwrap();
        sampler.start(&layout()).unwrap();
        put_period(keep.path(), &instance, 1, 3_000_000_000);
        complete(&mut sampler);
    }

    #[test]
    fn a_process_that_ends_as_the_interval_changes_costs_a_period_and_no_group() {
        let (keep, roots) = kernel();
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let mut lost = 0;
        // The first steps read the records.
        for at in 3..40 {
            let several = Samples::Several;
            let mut sampler = DamonSampler::new(&roots, Arc::clone(&session), 0, PERIOD, several);
            sampler.start(&layout()).unwrap();
            let instance = instances(&roots)[0].clone();
            put_period(keep.path(), &instance, 0, 1_000_000_000);
            let wait = || sampler.wait(Instant::now(), &mut || false);
            match faults::inject(at, libc::EINVAL, wait).unwrap_or_else(|e| panic!("{at}: {e}")) {
                Waited::Complete { .. } => {}
                Waited::Lost { is_over, reason, .. } => {
                    assert!(is_over && reason.contains("a process ended"), "step {at}: {reason}");
                    lost += 1;
                }
                Waited::Stopped => panic!("step {at}: stopped"),
            }
            sampler.start(&layout()).unwrap_or_else(|e| panic!("step {at}: {e}"));
            sampler.stop().unwrap();
            assert_eq!(state(&roots), "off");
        }
        assert!(lost > 0);
    }
}
