//! Finds out which pages of a group are used, period after period.
//!
//! What reads accessed bits is a [`Sampler`]: DAMON on a stock kernel, the Terrace kernel's own
//! scan where there is one. The tracker gives it the layout of the group and makes scans of its answers.
//!
//! One round of [`GroupTracker::observe`]: wait for the period to end; ask where the pages are;
//! look whether the group's pages have changed and, if that is worth it, set the sampler up anew
//! at once, so that the time in which nothing is observed is at the beginning of a period and is
//! short.
//!
//! What is not observed is reported: records that are missing, periods that did not come, time spent on
//! setting up. Nothing is guessed.
//!
//! Then the programs' translations are flushed (see [`crate::flush`]), or pages that stay in a TLB
//! would look unused.
//!
//! A page that is being moved at the very moment when its accessed bit is cleared or read looks
//! unused. So a scan is handed out, and with it the leave to move, only once the sampler has done
//! its work, and a mover keeps its moves well within the period.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use terrace_core::bits::PageBits;
use terrace_core::interfaces::{MachineError, Observation, Tracker};
use terrace_core::page::{Layout, PageSize, SpaceId};
use terrace_core::scan::Scan;

use crate::costs::{Costs, thread_cpu_ns};
use crate::files::FileError;
use crate::flush::{FlushBudget, Flusher};
use crate::group_layout::{GroupLayout, LayoutReader, Source, difference};
use crate::kernel::PageKernel;
use crate::mover::{SharedTrackerState, TierNodes};
use crate::pace::CheckPace;
use crate::page_tables::TableKeeper;
use crate::process;
use crate::ranges::{self, RangeTiers};
use crate::roots::Roots;
use crate::sampler::{Observed, Sampler, StepError, Waited};
use crate::samples::hub::GroupPages;
use crate::shared_memory::Member;
use crate::signals::GroupSignal;
use crate::untracked::Measured;

/// Memory that is not tracked is counted by walking page tables this rarely.
const COUNT_EVERY: u32 = 8;
/// How often starting DAMON is tried when processes come and go meanwhile.
const START_ATTEMPTS: u32 = 3;
/// The longest sleep between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(200);

/// How one group is tracked.
pub struct TrackerOptions {
    /// Length of a period.
    pub period: Duration,
    /// Size of the pages that are tracked.
    pub page_size: PageSize,
    /// Ranges of 2 MB are tracked as pages, whatever maps them.
    pub by_range: bool,
    /// Most pages that are tracked; with DAMON a region costs 3.4 KB of kernel memory.
    pub cap_pages: u64,
    /// Whether the group goes on when it has no process.
    pub keep_empty: bool,
    /// Flushes of translations that may be made as periods begin; none where it is `None`.
    pub flush: Option<FlushBudget>,
    /// Signals beside accessed bits, those that are wanted and that the host has.
    pub(crate) signals: Vec<Box<dyn GroupSignal>>,
    /// Its part in memory that several groups map.
    pub(crate) shared_memory: Member,
    /// Places the page tables of its processes, if they are to be placed.
    pub(crate) tables: Option<TableKeeper>,
    /// Ends the group when it is set.
    pub stop: Option<Arc<AtomicBool>>,
}

/// Tracks one group.
pub struct GroupTracker {
    roots: Roots,
    options: TrackerOptions,
    layout_reader: LayoutReader,
    sampler: Box<dyn Sampler>,
    watch: Option<Watch>,
    kernel: Box<dyn PageKernel>,
    flusher: Flusher,
    nodes: TierNodes,
    range_tiers: RangeTiers,
    tracker_state: SharedTrackerState,
    costs: Costs,
    /// Number of the next period.
    period: u64,
    /// Periods lost since the last scan.
    lost: u32,
    /// A loss that is still to be reported.
    unreported: Option<(u32, String)>,
    check: CheckPace,
    rebuild_took: Option<Duration>,
    /// Pages that went unseen since the layout was right, summed over periods.
    missed_page_periods: f64,
    counted: u32,
    /// What the last look at the group has found beside its layout.
    measured: Measured,
    /// Shared memory in its layout that other groups move.
    of_others_bytes: u64,
    own_ns: u64,
}

/// The sampler at work on one layout.
struct Watch {
    group: GroupLayout,
    /// When the period that runs now began.
    since: Instant,
}

impl GroupTracker {
    /// A tracker for one group.
    #[expect(clippy::too_many_arguments, reason = "made in one place, by the host")]
    pub(crate) fn new(
        roots: &Roots,
        source: Source,
        options: TrackerOptions,
        sampler: Box<dyn Sampler>,
        kernel: Box<dyn PageKernel>,
        nodes: TierNodes,
        range_tiers: RangeTiers,
        tracker_state: SharedTrackerState,
        costs: Costs,
    ) -> Self {
        let layout_reader =
            LayoutReader::new(roots.clone(), source, options.page_size, options.cap_pages)
                .by_range(options.by_range);
        GroupTracker {
            roots: roots.clone(),
            layout_reader,
            sampler,
            watch: None,
            kernel,
            flusher: Flusher::default(),
            nodes,
            range_tiers,
            tracker_state,
            costs,
            period: 0,
            lost: 0,
            unreported: None,
            check: CheckPace::default(),
            rebuild_took: None,
            missed_page_periods: 0.0,
            counted: 0,
            measured: Measured::default(),
            of_others_bytes: 0,
            own_ns: 0,
            options,
        }
    }

    fn stopped(&self) -> bool {
        self.options.stop.as_ref().is_some_and(|s| s.load(Ordering::Relaxed))
    }

    fn step(&mut self) -> Result<Observation, StepError> {
        if let Some((periods, reason)) = self.unreported.take() {
            return Ok(Observation::Lost { periods, reason });
        }
        if self.stopped() {
            return Ok(self.end()?);
        }
        if self.watch.is_none() {
            let group = self.layout_reader.read(None)?;
            self.measured = Measured::of_layout(&group);
            if group.processes.is_empty() && !self.options.keep_empty {
                return Ok(self.end()?);
            }
            if group.layout.pages() == 0 {
                return self.empty_period(group);
            }
            let end = Instant::now() + self.options.period;
            self.start(group)?;
            if self.watch.is_none() {
                if let Ok(mut state) = self.tracker_state.write() {
                    state.boundary = None;
                }
                // Where processes come and go all the time, the next attempt waits for its period.
                self.rest(end);
                let reason = "the group's processes ended as it was begun with";
                return self.lose(1, reason.into());
            }
        }
        let Some(watch) = &mut self.watch else { return Ok(self.end()?) };
        // Moves of the last plan are made.
        let moved = self.costs.snapshot().move_calls;
        let processes: Vec<u32> = watch.group.processes.iter().map(|process| process.pid).collect();
        let pages = GroupPages { layout: &watch.group.layout, processes: &processes, moved };
        for signal in &mut self.options.signals {
            signal.begin(pages, self.options.period)?;
        }
        let (stop, interval) = (self.options.stop.as_ref(), self.sampler.interval());
        let mut flushed = Instant::now();
        let mut tick = || {
            self.options.signals.iter().for_each(|signal| signal.poll());
            // Once a sample, or pages that stay in a TLB would look unused in all but the first.
            if interval < self.options.period && flushed.elapsed() >= interval {
                flushed = Instant::now();
                if let Some(budget) = &self.options.flush {
                    let processes = &watch.group.processes;
                    let made = self.flusher.flush(
                        &self.roots,
                        self.kernel.as_mut(),
                        &self.nodes,
                        budget,
                        processes,
                    );
                    self.costs.failed_flushes().add(made.failed);
                    self.costs.skipped_flushes().add(made.skipped);
                }
            }
            stop.is_some_and(|s| s.load(Ordering::Relaxed))
        };
        let before = watch.since;
        let waited = self.sampler.wait(before, &mut tick)?;
        let begun = self.sampler.begun();
        watch.since = begun.unwrap_or_else(Instant::now);
        match waited {
            Waited::Stopped => Ok(self.end()?),
            Waited::Lost { periods, reason, is_over } => {
                if is_over {
                    self.turn_off()?;
                }
                self.lose(periods, reason)
            }
            Waited::Complete { observed, superseded } => {
                let observation = self.newest(observed, superseded)?;
                // A sampler that was set up for another interval observed nothing meanwhile.
                if let Some(begun) = begun {
                    self.unseen(before + self.options.period * (superseded + 1), begun);
                }
                Ok(observation)
            }
        }
    }

    /// A scan of what was observed last: so many before have no place any more, and count as lost.
    fn newest(&mut self, observed: Observed, superseded: u32) -> Result<Observation, StepError> {
        self.lost += superseded;
        self.period += u64::from(superseded);
        self.costs.lost_periods().add(superseded.into());
        self.scan(observed)
    }

    /// Makes a scan of the period that has just ended.
    fn scan(&mut self, observed: Observed) -> Result<Observation, StepError> {
        let Some(watch) = &self.watch else { return Ok(self.end()?) };
        let layout = Arc::clone(&watch.group.layout);
        let (fast, present) = self.locate(&layout);
        let mut scan = Scan::new(self.period, layout, observed.accessed, fast);
        scan.active = observed.active;
        scan.counts = observed.counts;
        self.options.signals.iter().for_each(|signal| signal.add_to(&mut scan));
        let (mut scan, of_others) = self.options.shared_memory.divide(scan);
        self.of_others_bytes = of_others * scan.layout.page_size().bytes();
        let present = present.saturating_sub(of_others);
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

    /// Where the pages are: a bit for each that is in fast memory, and how many there are at all.
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
            let (pid, kernel) = (extent.space.0, self.kernel.as_mut());
            let located = if self.options.by_range {
                ranges::locate(kernel, pid, &addresses, &mut status, self.period, &self.range_tiers)
            } else {
                kernel.locate(pid, &addresses, &mut status)
            };
            if let Err(e) = located {
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

    /// Looks whether the group's pages have changed, and begins anew if that is worth it.
    fn follow_changes(&mut self) -> Result<bool, StepError> {
        let Some(watch) = &mut self.watch else { return Ok(false) };
        let group = self.layout_reader.read(Some(&watch.group))?;
        self.costs.truncated_pages().set(group.truncated_pages);
        self.measured = Measured::of_layout(&group);
        let same_processes = group.processes == watch.group.processes;
        if !same_processes {
            self.options.tables.iter_mut().for_each(|t| t.keep(&group.processes));
            if let Ok(mut state) = self.tracker_state.write() {
                state.members.clone_from(&group.processes);
            }
        }
        if Arc::ptr_eq(&group.layout, &watch.group.layout) && same_processes {
            self.missed_page_periods = 0.0;
            return Ok(false);
        }
        let (added, removed) = difference(&watch.group.layout, &group.layout);
        if added + removed == 0 && same_spaces(&watch.group, &group) {
            // Processes without pages of this size came or went.
            watch.group.processes = group.processes;
            self.missed_page_periods = 0.0;
            return Ok(false);
        }
        // Following a change costs the time that setting up takes, for all pages; not following it
        // costs the changed pages, period after period. Followed when the second has grown to the
        // first: never worse than twice the best choice, whatever comes next.
        self.missed_page_periods += (added + removed) as f64 * f64::from(self.check.every());
        let took = self.rebuild_took.unwrap_or_default().as_secs_f64();
        let pages = group.layout.pages() as f64;
        if self.missed_page_periods < pages * took / self.options.period.as_secs_f64() {
            return Ok(false);
        }
        tracing::debug!(added, removed, "the group's pages changed");
        self.missed_page_periods = 0.0;
        let begin = watch.since;
        self.start(group)?;
        self.costs.rebuilds().add(1);
        self.unseen(begin, self.watch.as_ref().map_or_else(Instant::now, |watch| watch.since));
        Ok(true)
    }

    /// Accounts for a time between two periods in which nothing was observed.
    fn unseen(&mut self, begin: Instant, until: Instant) {
        let took = until.saturating_duration_since(begin);
        self.costs.unseen_ns().add(took.as_nanos() as u64);
        let periods = (took.as_secs_f64() / self.options.period.as_secs_f64()).round() as u32;
        if periods > 0 {
            let reason =
                format!("setting {} up anew took {} ms", self.sampler.name(), took.as_millis());
            self.count_lost(periods);
            let earlier = self.unreported.take().map_or(0, |(periods, _)| periods);
            self.unreported = Some((earlier + periods, reason));
        }
    }

    /// Sets the sampler up for this layout. A group without pages leaves it off, and so does one whose
    /// processes end as often as it is tried.
    fn start(&mut self, group: GroupLayout) -> Result<(), StepError> {
        let begin = Instant::now();
        self.turn_off()?;
        let mut group = group;
        self.options.tables.iter_mut().for_each(|t| t.keep(&group.processes));
        for attempt in 1..=START_ATTEMPTS {
            if let Ok(mut state) = self.tracker_state.write() {
                state.members.clone_from(&group.processes);
            }
            self.options.shared_memory.follow(&self.roots, &group.layout)?;
            if group.layout.pages() == 0 {
                return Ok(());
            }
            match self.sampler.start(&group.layout) {
                Ok(()) => {
                    let since = self.sampler.begun().unwrap_or_else(Instant::now);
                    self.watch = Some(Watch { group, since });
                    self.begin_period()?;
                    self.rebuild_took = Some(since.saturating_duration_since(begin));
                    self.costs.setup_ns().set(begin.elapsed().as_nanos() as u64);
                    return Ok(());
                }
                // A process that ended meanwhile; if none has, something else is refused.
                Err(StepError::File(e))
                    if matches!(e.errno(), Some(libc::EINVAL | libc::ESRCH)) =>
                {
                    let now = self.layout_reader.read(None)?;
                    if attempt == START_ATTEMPTS && now.processes == group.processes {
                        return Err(e.into());
                    }
                    group = now;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn turn_off(&mut self) -> Result<(), FileError> {
        self.watch = None;
        // Without a watch too: an attempt to begin may have failed half-way.
        self.sampler.stop()
    }

    /// A period of a group that has no pages of its size yet.
    fn empty_period(&mut self, group: GroupLayout) -> Result<Observation, StepError> {
        if let Ok(mut state) = self.tracker_state.write() {
            state.members.clone_from(&group.processes);
            state.boundary = None;
        }
        self.rest(Instant::now() + self.options.period);
        if self.stopped() {
            return Ok(self.end()?);
        }
        let none = PageBits::new(0);
        let mut scan = Scan::new(self.period, Arc::clone(&group.layout), none.clone(), none);
        scan.lost_periods = std::mem::take(&mut self.lost);
        self.period += 1;
        self.costs.tracked_pages().set(0);
        self.count_untracked(&scan, 0)?;
        Ok(Observation::Period(scan))
    }

    /// Waits until then, or until the group is to end, with nothing to observe.
    fn rest(&self, end: Instant) {
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|l| !l.is_zero()) {
            if self.stopped() {
                return;
            }
            // What signals have begun ends in time all the same.
            self.options.signals.iter().for_each(|signal| signal.poll());
            std::thread::sleep(left.min(SLICE));
        }
    }

    /// What is to be done when a period has begun: see the module's comment.
    fn begin_period(&mut self) -> Result<(), FileError> {
        self.sampler.settle();
        let Some(watch) = &self.watch else { return Ok(()) };
        if let Ok(mut state) = self.tracker_state.write() {
            let left =
                (watch.since + self.options.period).saturating_duration_since(Instant::now());
            state.boundary = Some((self.kernel.now() + left, self.options.period));
        }
        if let Some(budget) = &self.options.flush {
            let flushed = self.flusher.flush(
                &self.roots,
                self.kernel.as_mut(),
                &self.nodes,
                budget,
                &watch.group.processes,
            );
            self.costs.failed_flushes().add(flushed.failed);
            self.costs.skipped_flushes().add(flushed.skipped);
        }
        Ok(())
    }

    /// Counts the group's memory that is not in the layout, by tier.
    fn count_untracked(&mut self, scan: &Scan, present: u64) -> Result<(), FileError> {
        let per_node = match self.layout_reader.cgroup().map(|g| g.memory()).transpose()?.flatten()
        {
            Some(memory) => {
                let tracked = (!self.options.by_range).then_some(self.options.page_size);
                self.measured = self.measured.with_group(&memory, tracked);
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
                for process in self.layout_reader.processes()? {
                    let nodes = match process::bytes_per_node(&self.roots, process.pid) {
                        // Its layout was not read either: what it has is counted as not readable.
                        Err(e) if matches!(e.errno(), Some(libc::EACCES | libc::EPERM)) => continue,
                        nodes => nodes?,
                    };
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
        let untracked_fast = total(true).saturating_sub(fast * bytes);
        let slow = present.saturating_sub(fast);
        let untracked_slow = total(false).saturating_sub(slow * bytes);
        self.costs.untracked_fast_bytes().set(untracked_fast);
        self.costs.untracked_slow_bytes().set(untracked_slow);
        self.measured.of_others_bytes = self.of_others_bytes;
        self.measured.publish(untracked_fast + untracked_slow, &self.costs);
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
        self.turn_off()?;
        Ok(Observation::Ended)
    }
}

/// Whether the address spaces that have pages belong to the same processes.
fn same_spaces(old: &GroupLayout, new: &GroupLayout) -> bool {
    let spaces = |group: &GroupLayout| -> Vec<SpaceId> {
        let mut spaces: Vec<SpaceId> = group.layout.extents().iter().map(|e| e.space).collect();
        spaces.dedup();
        spaces
    };
    let with_pages = spaces(new);
    let of = |group: &GroupLayout| -> Vec<process::Process> {
        let has = |p: &&process::Process| with_pages.contains(&SpaceId(p.pid));
        group.processes.iter().filter(has).copied().collect()
    };
    spaces(old) == with_pages && of(old) == of(new)
}

impl Tracker for GroupTracker {
    fn name(&self) -> &'static str {
        self.sampler.name()
    }

    fn observe(&mut self) -> Result<Observation, MachineError> {
        let before = thread_cpu_ns();
        let step = self.step();
        self.own_ns += thread_cpu_ns().saturating_sub(before);
        let spent = self.own_ns + self.sampler.kernel_ns();
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

#[cfg(test)]
mod tests;

impl Drop for GroupTracker {
    fn drop(&mut self) {
        if let Err(error) = self.turn_off() {
            tracing::error!(%error, "tracking was not turned off");
        }
    }
}
