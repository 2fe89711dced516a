//! Finds out which pages of a group are used, with DAMON.
//!
//! One round of [`DamonTracker::observe`]: wait for the records of the period that ends; ask where
//! the pages lie; look whether the group's pages have changed and, if that is worth it, set DAMON
//! up anew at once, so that the time in which nothing is seen lies at the beginning of a period
//! and is short. Setting up means off, configure, on: `commit` would wait for the end of an
//! interval and stretch old regions over new ranges (`damon_commit_target_regions`).
//!
//! What is not seen is told: records that are missing, periods that did not come, time spent on
//! setting up. Nothing is guessed.
//!
//! Then the programs' translations are flushed (see [`crate::flush`]), or pages that stay in a TLB
//! would look unused.
//!
//! A page that is being moved at the very moment when DAMON clears or reads its accessed bit
//! looks unused. So a scan is handed out, and with it the leave to move, only once the kernel
//! thread sleeps, and a mover keeps its moves well within the period.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize, SpaceId};
use terrace_core::scan::Scan;
use terrace_core::seams::{MachineError, Observation, Tracker};

use crate::collect::{Collector, PeriodEnd, Regions};
use crate::costs::{Costs, thread_cpu_ns};
use crate::damon::Kdamond;
use crate::files::FileError;
use crate::flush::Flusher;
use crate::kernel::PageKernel;
use crate::mover::{Notices, TierNodes};
use crate::numa;
use crate::process;
use crate::ring::Record;
use crate::roots::Roots;
use crate::session::{Session, SessionError};
use crate::shape::{Shape, Shaper, Source, difference};
use crate::trace::TraceInstance;

/// Time that looking for changes may take, as a share of the period.
const CHECK_SHARE: f64 = 0.02;
/// Checks are left out for at most this many periods.
const MOST_SKIPPED: u32 = 8;
/// Memory that is not tracked is counted by walking page tables this rarely.
const COUNT_EVERY: u32 = 8;
/// How often starting DAMON is tried when processes come and go meanwhile.
const START_ATTEMPTS: u32 = 3;
/// The longest sleep between two looks at the stop flag.
const SLICE: Duration = Duration::from_millis(200);

/// How one group is tracked.
#[derive(Debug, Clone)]
pub struct TrackerOptions {
    /// Length of a period.
    pub period: Duration,
    /// Size of the pages that are tracked.
    pub page_size: PageSize,
    /// Most pages that are tracked; a region of DAMON costs 3.4 KB of kernel memory.
    pub cap_pages: u64,
    /// Whether the group goes on when it has no process.
    pub keep_empty: bool,
    /// Whether translations are flushed as each period begins.
    pub flush: bool,
    /// Ends the group when it is set.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Tracks one group.
pub struct DamonTracker {
    roots: Roots,
    options: TrackerOptions,
    shaper: Shaper,
    kdamond: Kdamond,
    number: usize,
    /// Before the session in this order, so that its files are closed when the session removes it.
    trace: Option<TraceInstance>,
    watch: Option<Watch>,
    records: Vec<Record>,
    kernel: Box<dyn PageKernel>,
    flusher: Flusher,
    nodes: TierNodes,
    notices: Notices,
    costs: Costs,
    /// Number of the next period.
    period: u64,
    /// Periods lost since the last scan.
    lost: u32,
    /// A loss that is still to be told.
    untold: Option<(u32, String)>,
    check: CheckPace,
    rebuild_took: Option<Duration>,
    /// Pages that went unseen since the layout was right, summed over periods.
    missed_page_periods: f64,
    counted: u32,
    /// Processor time of kernel threads that have ended.
    ended_kdamonds_ns: u64,
    own_ns: u64,
    session: Arc<Session>,
}

/// DAMON at work on one shape.
struct Watch {
    shape: Shape,
    collector: Collector,
    /// When the period that runs now began.
    since: Instant,
}

/// How often to look for changes, from what a look costs.
#[derive(Debug, Default)]
struct CheckPace {
    /// Periods from the last check to the next.
    every: u32,
    /// Periods until the next check.
    left: u32,
}

impl CheckPace {
    fn due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    fn took(&mut self, time: Duration, period: Duration) {
        let share = time.as_secs_f64() / (period.as_secs_f64() * CHECK_SHARE);
        self.every = (share.ceil() as u32).clamp(1, MOST_SKIPPED);
        self.left = self.every;
    }

    fn every(&self) -> u32 {
        self.every.max(1)
    }
}

enum Waited {
    Complete(PageBits),
    Lost { periods: u32, reason: String, is_over: bool },
    Stopped,
}

impl DamonTracker {
    /// A tracker for one group, with the kernel thread of this number.
    #[expect(clippy::too_many_arguments, reason = "made in one place, by the host")]
    pub(crate) fn new(
        roots: &Roots,
        session: Arc<Session>,
        source: Source,
        options: TrackerOptions,
        number: usize,
        kernel: Box<dyn PageKernel>,
        nodes: TierNodes,
        notices: Notices,
        costs: Costs,
    ) -> Self {
        let shaper = Shaper::new(roots.clone(), source, options.page_size, options.cap_pages);
        DamonTracker {
            roots: roots.clone(),
            shaper,
            kdamond: Kdamond::new(roots, number),
            number,
            trace: None,
            watch: None,
            records: Vec::new(),
            kernel,
            flusher: Flusher::default(),
            nodes,
            notices,
            costs,
            period: 0,
            lost: 0,
            untold: None,
            check: CheckPace::default(),
            rebuild_took: None,
            missed_page_periods: 0.0,
            counted: 0,
            ended_kdamonds_ns: 0,
            own_ns: 0,
            options,
            session,
        }
    }

    fn stopped(&self) -> bool {
        self.options.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
    }

    fn step(&mut self) -> Result<Observation, StepError> {
        if let Some((periods, reason)) = self.untold.take() {
            return Ok(Observation::Lost { periods, reason });
        }
        if self.stopped() {
            return Ok(self.end()?);
        }
        if self.watch.is_none() {
            let shape = self.shaper.shape(None)?;
            if shape.processes.is_empty() && !self.options.keep_empty {
                return Ok(self.end()?);
            }
            if shape.layout.pages() == 0 {
                return self.empty_period(shape);
            }
            self.start(shape)?;
            if self.watch.is_none() {
                return self.lose(1, "the group's processes ended while DAMON was set up".into());
            }
        }
        match self.wait()? {
            Waited::Stopped => Ok(self.end()?),
            Waited::Lost { periods, reason, is_over } => {
                if is_over {
                    self.turn_off()?;
                }
                self.lose(periods, reason)
            }
            Waited::Complete(accessed) => self.scan(accessed),
        }
    }

    /// Waits for the period to end.
    fn wait(&mut self) -> Result<Waited, StepError> {
        let period = self.options.period;
        let (Some(watch), Some(trace)) = (&mut self.watch, &mut self.trace) else {
            return Ok(Waited::Stopped);
        };
        let expected = watch.collector.expected();
        // Reading and clearing bits takes time of its own, more on an emulated machine.
        let work = Duration::from_micros(200).saturating_mul(expected as u32);
        let due = watch.since + period;
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
                match watch.collector.take(record) {
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
            if let Some(bits) = newest {
                watch.since = Instant::now();
                // A scan of long ago has no place any more; it counts as lost with the newer one.
                self.lost += superseded;
                self.period += u64::from(superseded);
                self.costs.lost_periods().add(superseded.into());
                return Ok(Waited::Complete(bits));
            }
            if self.options.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed)) {
                return Ok(Waited::Stopped);
            }
            let now = Instant::now();
            let over = now > due && !self.kdamond.is_on()?;
            if over || now > deadline {
                let told = watch.collector.told();
                let waited = now - watch.since;
                let periods = (waited.as_secs_f64() / period.as_secs_f64()).round().max(1.0) as u32;
                let reason = match () {
                    () if over => "DAMON stopped: the group's processes ended".to_owned(),
                    () if watch.collector.foreign() > 0 => format!(
                        "{} of DAMON's records were about other regions than it was given",
                        watch.collector.foreign()
                    ),
                    () => format!(
                        "{told} of {expected} records came within {} ms{}",
                        waited.as_millis(),
                        if missed { "; others were overwritten" } else { "" }
                    ),
                };
                watch.since = now;
                // A thread that tells of other regions has to be set up anew.
                let is_over = over || watch.collector.foreign() > 0;
                let _ = watch.collector.give_up();
                return Ok(Waited::Lost { periods, reason, is_over });
            }
            if watch.collector.told() > 0 {
                // Records come in a burst: give it time instead of waking for each.
                std::thread::sleep(Duration::from_millis(2));
            } else if now < due {
                trace.wait(SLICE.min(due - now));
            } else {
                trace.wait(Duration::from_millis(20));
            }
        }
    }

    /// Makes a scan of the period that has just ended.
    fn scan(&mut self, accessed: PageBits) -> Result<Observation, StepError> {
        let Some(watch) = &self.watch else { return Ok(self.end()?) };
        let layout = Arc::clone(&watch.shape.layout);
        let (fast, present) = self.locate(&layout);
        let mut scan = Scan::new(self.period, layout, accessed, fast);
        scan.lost_periods = std::mem::take(&mut self.lost);
        self.period += 1;
        self.costs.tracked_pages().set(present);
        let mut changed = false;
        if self.check.due() {
            let begin = Instant::now();
            changed = self.follow_changes()?;
            self.count_untracked(&scan, present)?;
            if !changed {
                self.check.took(begin.elapsed(), self.options.period);
            }
        }
        // Setting up anew has begun a period already.
        if !changed {
            self.begin_period()?;
        }
        Ok(Observation::Period(scan))
    }

    /// Where the pages lie: a bit for each that is in fast memory, and how many there are at all.
    fn locate(&mut self, layout: &Layout) -> (PageBits, u64) {
        let bytes = layout.page_size().bytes();
        let mut fast = PageBits::new(layout.pages());
        let mut present = 0;
        let mut addresses = Vec::new();
        let mut status = Vec::new();
        for (number, extent) in layout.extents().iter().enumerate() {
            addresses.clear();
            addresses.extend((0..extent.pages).map(|n| extent.start + n * bytes));
            status.clear();
            status.resize(addresses.len(), -libc::ENOENT);
            // A process that has ended has no pages: all stay absent.
            if let Err(e) = self.kernel.locate(extent.space.0, &addresses, &mut status) {
                tracing::debug!(pid = extent.space.0, error = %e, "placement is not known");
                continue;
            }
            let first = layout.first_index(number);
            for (nth, &s) in status.iter().enumerate() {
                present += u64::from(s >= 0);
                if self.nodes.is_fast(s) {
                    fast.set(first + nth, true);
                }
            }
        }
        (fast, present)
    }

    /// Looks whether the group's pages have changed, and sets DAMON up anew if that is worth it.
    fn follow_changes(&mut self) -> Result<bool, StepError> {
        let Some(watch) = &mut self.watch else { return Ok(false) };
        let shape = self.shaper.shape(Some(&watch.shape))?;
        self.costs.truncated_pages().set(shape.truncated_pages);
        let same_processes = shape.processes == watch.shape.processes;
        if !same_processes && let Ok(mut notice) = self.notices.write() {
            notice.members.clone_from(&shape.processes);
        }
        if Arc::ptr_eq(&shape.layout, &watch.shape.layout) && same_processes {
            self.missed_page_periods = 0.0;
            return Ok(false);
        }
        let (added, removed) = difference(&watch.shape.layout, &shape.layout);
        if added + removed == 0 && same_spaces(&watch.shape, &shape) {
            // Processes without pages of this size came or went.
            watch.shape.processes = shape.processes;
            self.missed_page_periods = 0.0;
            return Ok(false);
        }
        // Following a change costs the time that setting up takes, for all pages; not following it
        // costs the changed pages, period after period. Followed when the second has grown to the
        // first: never worse than twice the best choice, whatever comes next.
        self.missed_page_periods += (added + removed) as f64 * f64::from(self.check.every());
        let took = self.rebuild_took.unwrap_or_default().as_secs_f64();
        let pages = shape.layout.pages() as f64;
        if self.missed_page_periods < pages * took / self.options.period.as_secs_f64() {
            return Ok(false);
        }
        tracing::debug!(added, removed, "the group's pages changed");
        self.missed_page_periods = 0.0;
        let begin = watch.since;
        self.start(shape)?;
        self.costs.rebuilds().add(1);
        self.unseen(begin);
        Ok(true)
    }

    /// Accounts for the time since `begin`, in which nothing was seen.
    fn unseen(&mut self, begin: Instant) {
        let took = begin.elapsed();
        self.costs.unseen_ns().add(took.as_nanos() as u64);
        let periods = (took.as_secs_f64() / self.options.period.as_secs_f64()).round() as u32;
        if periods > 0 {
            let reason = format!("setting DAMON up anew took {} ms", took.as_millis());
            self.count_lost(periods);
            self.untold = Some((periods, reason));
        }
    }

    /// Sets DAMON up for this shape and turns it on. A group without pages leaves it off.
    fn start(&mut self, shape: Shape) -> Result<(), StepError> {
        let begin = Instant::now();
        self.turn_off()?;
        let mut shape = shape;
        for attempt in 1.. {
            if let Ok(mut notice) = self.notices.write() {
                notice.members.clone_from(&shape.processes);
            }
            if shape.layout.pages() == 0 {
                return Ok(());
            }
            match self.turn_on(&shape) {
                Ok(collector) => {
                    let since = Instant::now();
                    self.watch = Some(Watch { shape, collector, since });
                    self.begin_period()?;
                    let took = begin.elapsed();
                    self.rebuild_took = Some(took);
                    self.costs.setup_ns().set(took.as_nanos() as u64);
                    return Ok(());
                }
                // A process that ended meanwhile.
                Err(StepError::File(e))
                    if matches!(e.errno(), Some(libc::EINVAL | libc::ESRCH))
                        && attempt < START_ATTEMPTS =>
                {
                    shape = self.shaper.shape(None)?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn turn_on(&mut self, shape: &Shape) -> Result<Collector, StepError> {
        let regions = Regions::new(&shape.layout);
        if self.trace.is_none() {
            let name = format!("terrace-{}-{}", std::process::id(), self.number);
            let path = self.session.make_trace_instance(&name)?;
            self.trace = Some(TraceInstance::open(&path, &numa::online_cpus(&self.roots)?)?);
        }
        let Some(trace) = &mut self.trace else { return Err(StepError::NoTrace) };
        trace.reserve(regions.count())?;
        self.kdamond.configure(&regions.targets, regions.region_bytes, self.options.period)?;
        // What the thread told as it was turned off is of no whole period.
        self.records.clear();
        trace.drain(&mut self.records)?;
        let pid = self.kdamond.on()?;
        // In time: the first record comes a period later.
        trace.follow(pid)?;
        Ok(Collector::new(regions, pid, self.options.period.as_nanos() as u64))
    }

    fn turn_off(&mut self) -> Result<(), StepError> {
        if let Some(watch) = self.watch.take() {
            let pid = watch.collector.pid();
            self.ended_kdamonds_ns += process::cpu_ns(&self.roots, pid).unwrap_or(0);
            self.kdamond.off()?;
        }
        Ok(())
    }

    /// A period of a group that has no pages of its size yet.
    fn empty_period(&mut self, shape: Shape) -> Result<Observation, StepError> {
        if let Ok(mut notice) = self.notices.write() {
            notice.members.clone_from(&shape.processes);
            notice.boundary = None;
        }
        let end = Instant::now() + self.options.period;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
            if self.stopped() {
                return Ok(self.end()?);
            }
            std::thread::sleep(left.min(SLICE));
        }
        let none = PageBits::new(0);
        let mut scan = Scan::new(self.period, Arc::clone(&shape.layout), none.clone(), none);
        scan.lost_periods = std::mem::take(&mut self.lost);
        self.period += 1;
        self.costs.tracked_pages().set(0);
        self.count_untracked(&scan, 0)?;
        Ok(Observation::Period(scan))
    }

    /// What is to be done when DAMON has begun a period: see the module's comment.
    fn begin_period(&mut self) -> Result<(), FileError> {
        self.wait_until_asleep();
        let Some(watch) = &self.watch else { return Ok(()) };
        if let Ok(mut notice) = self.notices.write() {
            let left =
                (watch.since + self.options.period).saturating_duration_since(Instant::now());
            notice.boundary = Some((self.kernel.now() + left, self.options.period));
        }
        if self.options.flush {
            let failed = self.flusher.flush(
                &self.roots,
                self.kernel.as_mut(),
                &self.nodes,
                &watch.shape.processes,
            )?;
            self.costs.failed_flushes().add(failed);
        }
        Ok(())
    }

    /// Waits until the kernel thread has cleared all accessed bits and sleeps, for a short while
    /// at most.
    fn wait_until_asleep(&self) {
        let Some(watch) = &self.watch else { return };
        let pid = watch.collector.pid();
        let begin = Instant::now();
        let limit = self.options.period / 10;
        while begin.elapsed() < limit {
            match process::stat(&self.roots, pid) {
                Ok(Some(stat)) if stat.state != 'I' => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => return,
            }
        }
    }

    /// Counts the group's memory that is not in the layout, by tier.
    fn count_untracked(&mut self, scan: &Scan, present: u64) -> Result<(), FileError> {
        let per_node = match self.shaper.cgroup().map(|g| g.memory()).transpose()?.flatten() {
            Some(memory) => {
                let mut sum = memory.anon_bytes.unwrap_or_default();
                for (node, bytes) in memory.file_bytes.unwrap_or_default().iter().enumerate() {
                    match sum.get_mut(node) {
                        Some(n) => *n += bytes,
                        None => sum.push(*bytes),
                    }
                }
                sum
            }
            None => {
                let due = self.counted.is_multiple_of(COUNT_EVERY);
                self.counted += 1;
                if !due {
                    return Ok(());
                }
                let mut sum: Vec<u64> = Vec::new();
                for process in self.shaper.processes()? {
                    let nodes = process::bytes_per_node(&self.roots, process.pid)?;
                    if sum.len() < nodes.len() {
                        sum.resize(nodes.len(), 0);
                    }
                    sum.iter_mut().zip(&nodes).for_each(|(s, n)| *s += n);
                }
                sum
            }
        };
        let bytes = self.options.page_size.bytes();
        let fast = scan.fast.count() as u64;
        let total = |is_fast: bool| -> u64 {
            let nodes = per_node.iter().enumerate();
            nodes.filter(|(n, _)| self.nodes.is_fast(*n as i32) == is_fast).map(|(_, b)| b).sum()
        };
        self.costs.untracked_fast_bytes().set(total(true).saturating_sub(fast * bytes));
        let slow = present.saturating_sub(fast);
        self.costs.untracked_slow_bytes().set(total(false).saturating_sub(slow * bytes));
        Ok(())
    }

    fn count_lost(&mut self, periods: u32) {
        self.lost += periods;
        self.period += u64::from(periods);
        self.costs.lost_periods().add(periods.into());
    }

    fn lose(&mut self, periods: u32, reason: String) -> Result<Observation, StepError> {
        self.count_lost(periods);
        Ok(Observation::Lost { periods, reason })
    }

    fn end(&mut self) -> Result<Observation, FileError> {
        if let Err(StepError::File(e)) = self.turn_off() {
            return Err(e);
        }
        Ok(Observation::Ended)
    }

    fn kdamond_ns(&self) -> u64 {
        let running = self
            .watch
            .as_ref()
            .map_or(0, |w| process::cpu_ns(&self.roots, w.collector.pid()).unwrap_or(0));
        self.ended_kdamonds_ns + running
    }
}

/// Whether the address spaces that have pages belong to the same processes.
fn same_spaces(old: &Shape, new: &Shape) -> bool {
    let spaces = |shape: &Shape| -> Vec<SpaceId> {
        let mut spaces: Vec<SpaceId> = shape.layout.extents().iter().map(|e| e.space).collect();
        spaces.dedup();
        spaces
    };
    let with_pages = spaces(new);
    let of = |shape: &Shape| -> Vec<process::Process> {
        let has = |p: &&process::Process| with_pages.contains(&SpaceId(p.pid));
        shape.processes.iter().filter(has).copied().collect()
    };
    spaces(old) == with_pages && of(old) == of(new)
}

#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("the trace instance is gone; this is a defect of Terrace, please report it")]
    NoTrace,
}

impl Tracker for DamonTracker {
    fn name(&self) -> &'static str {
        "damon"
    }

    fn observe(&mut self) -> Result<Observation, MachineError> {
        let before = thread_cpu_ns();
        let step = self.step();
        self.own_ns += thread_cpu_ns().saturating_sub(before);
        let spent = self.own_ns + self.kdamond_ns();
        self.costs.tracker_cpu_ns().set(spent);
        step.map_err(|e| MachineError(e.to_string()))
    }

    fn cpu_ns(&self) -> Option<u64> {
        Some(self.costs.snapshot().tracker_cpu_ns)
    }

    fn untracked_bytes(&self) -> Option<u64> {
        let costs = self.costs.snapshot();
        Some(costs.untracked_fast_bytes + costs.untracked_slow_bytes)
    }
}

impl Drop for DamonTracker {
    fn drop(&mut self) {
        if let Err(error) = self.turn_off() {
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
