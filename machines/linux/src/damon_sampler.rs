//! Reads accessed bits with DAMON, whose records come through a trace instance of our own.
//!
//! Setting up means off, configure, on: `commit` would wait for the end of an interval and stretch
//! old regions over new ranges (`damon_commit_target_regions`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_core::page::Layout;

use crate::collect::{Collector, PeriodEnd, Regions};
use crate::damon::Kdamond;
use crate::files::FileError;
use crate::numa;
use crate::process;
use crate::ring::Record;
use crate::roots::Roots;
use crate::sampler::{Observed, Sampler, StepError, Waited};
use crate::session::Session;
use crate::trace::TraceInstance;

/// The longest sleep between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(200);

/// One of DAMON's kernel threads.
pub(crate) struct DamonSampler {
    roots: Roots,
    period: Duration,
    number: usize,
    kdamond: Kdamond,
    /// Before the session in this order, so that its files are closed when the session removes it.
    trace: Option<TraceInstance>,
    collector: Option<Collector>,
    records: Vec<Record>,
    /// Processor time of kernel threads that have ended.
    ended_ns: u64,
    session: Arc<Session>,
}

impl DamonSampler {
    /// With the kernel thread of this number, which is ready.
    pub(crate) fn new(
        roots: &Roots,
        session: Arc<Session>,
        number: usize,
        period: Duration,
    ) -> Self {
        DamonSampler {
            roots: roots.clone(),
            period,
            number,
            kdamond: Kdamond::new(roots, number),
            trace: None,
            collector: None,
            records: Vec::new(),
            ended_ns: 0,
            session,
        }
    }
}

impl Sampler for DamonSampler {
    fn name(&self) -> &'static str {
        "damon"
    }

    fn start(&mut self, layout: &Layout) -> Result<(), StepError> {
        let regions = Regions::new(layout);
        if self.trace.is_none() {
            let name = format!("terrace-{}-{}", std::process::id(), self.number);
            let path = self.session.make_trace_instance(&name)?;
            self.trace = Some(TraceInstance::open(&path, &numa::online_cpus(&self.roots)?)?);
        }
        let Some(trace) = &mut self.trace else { return Err(StepError::NoTrace) };
        trace.reserve(regions.count())?;
        self.kdamond.configure(&regions.targets, regions.region_bytes, self.period)?;
        // What the thread told as it was turned off is of no whole period.
        self.records.clear();
        trace.drain(&mut self.records)?;
        let pid = self.kdamond.on()?;
        // In time: the first record comes a period later.
        trace.follow(pid)?;
        self.collector = Some(Collector::new(regions, pid, self.period.as_nanos() as u64));
        Ok(())
    }

    fn wait(&mut self, since: Instant, stopped: &dyn Fn() -> bool) -> Result<Waited, StepError> {
        let period = self.period;
        let (Some(collector), Some(trace)) = (&mut self.collector, &mut self.trace) else {
            return Ok(Waited::Stopped);
        };
        let expected = collector.expected();
        // Reading and clearing bits takes time of its own, more on an emulated machine.
        let work = Duration::from_micros(200).saturating_mul(expected as u32);
        let due = since + period;
        let deadline = due + period / 2 + work + Duration::from_secs(2);
        let mut newest = None;
        let mut superseded = 0u32;
        let mut missed = false;
        loop {
            self.records.clear();
            let drained = trace.drain(&mut self.records)?;
            missed |= drained.missed;
            if drained.malformed {
                tracing::warn!(
                    group = self.number,
                    "a page of the trace buffer was not understood"
                );
            }
            for record in &self.records {
                match collector.take(record) {
                    Some(PeriodEnd::Complete(bits)) => {
                        superseded += u32::from(newest.replace(bits).is_some());
                    }
                    Some(PeriodEnd::Incomplete { told, expected }) => {
                        tracing::warn!(told, expected, missed, "records of a period are missing");
                        superseded += 1;
                    }
                    None => {}
                }
            }
            if let Some(accessed) = newest {
                let observed = Observed { accessed, active: None };
                return Ok(Waited::Complete { observed, superseded });
            }
            if stopped() {
                return Ok(Waited::Stopped);
            }
            let now = Instant::now();
            let over = now > due && !self.kdamond.is_on()?;
            if over || now > deadline {
                let told = collector.told();
                let waited = now - since;
                let periods = (waited.as_secs_f64() / period.as_secs_f64()).round().max(1.0) as u32;
                let reason = match () {
                    () if over => "DAMON stopped: the group's processes ended".to_owned(),
                    () if collector.foreign() > 0 => format!(
                        "{} of DAMON's records were about other regions than it was given",
                        collector.foreign()
                    ),
                    () => format!(
                        "{told} of {expected} records came within {} ms{}",
                        waited.as_millis(),
                        if missed { "; others were overwritten" } else { "" }
                    ),
                };
                // A thread that tells of other regions has to be set up anew.
                let is_over = over || collector.foreign() > 0;
                let _ = collector.give_up();
                return Ok(Waited::Lost { periods, reason, is_over });
            }
            if collector.told() > 0 {
                // Records come in a burst: give it time instead of waking for each.
                std::thread::sleep(Duration::from_millis(2));
            } else if now < due {
                trace.wait(SLICE.min(due - now));
            } else {
                trace.wait(Duration::from_millis(20));
            }
        }
    }

    /// Until the kernel thread has cleared all accessed bits and sleeps.
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
            self.kdamond.off()?;
        }
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
        // Its files are closed by this; the next group with this kernel thread makes it anew.
        if let Some(trace) = self.trace.take() {
            let path = trace.path().to_owned();
            drop(trace);
            if let Err(error) = self.session.remove_trace_instance(&path) {
                tracing::warn!(%error, "the trace instance stays until the end");
            }
        }
    }
}
