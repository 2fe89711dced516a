//! Hint faults: the kernel's NUMA balancing makes pages fault at their next access, and the time until
//! they do shows how often they are accessed. It is used here as a signal alone: the kernel's bound on
//! promotions is 0 meanwhile, so that it moves nothing.
//!
//! Accessed bits of a range of 2 MB are sampled a few of 512 at a time. Where nearly all of a range's
//! accesses go to a few base pages, as those of counters, queues or buffers do, samples miss them. Hint
//! faults come from the very pages: [`latency`] makes rates of their times, by which the counts of a
//! period are raised, and by which base pages leave the tier of their range ([`crate::refiner`]).
//!
//! They cost each page that is accessed a fault, of some 2 microseconds, so they are bounded: a short
//! phase in which all memory of the groups is scanned a few times, then a pause that is as much longer
//! as the bound on processor time asks for. In a pause nothing differs from a host without them.
//!
//! What the kernel would do beside is kept from it: it promotes whatever the bound where a fast node has
//! much free memory, so no phase begins there and one that runs ends; a promotion that is counted all
//! the same ends them for good. Where several nodes have processors, the mode that also moves pages
//! between them is not used, and only pages of slow memory fault.

mod events;
mod latency;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use terrace_core::counts::AccessCounts;
use terrace_core::page::{Layout, PageSize};

use crate::files::{self, FileError};
use crate::journal::Change;
use crate::numa;
use crate::refiner::{BaseRates, Observed};
use crate::roots::Roots;
use crate::session::{Session, SessionError};
use events::{Event, Events};
use latency::Latencies;

/// Of one processor's time, what faults may take in the long run.
const CPU_SHARE: f64 = 0.005;
/// What a fault takes.
const FAULT: Duration = Duration::from_micros(2);
/// Each page of the groups is scanned so often in a phase.
const SCANS: u64 = 4;
/// A phase's length, at least and at most: the kernel scans a process about once a second of its own
/// processor time.
const PHASE: [Duration; 2] = [Duration::from_millis(2500), Duration::from_secs(20)];
/// A pause's length, at least and at most.
const PAUSE: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(600)];
/// How often the kernel's own numbers are read while a phase runs.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// From this much free memory of a node on, or this part of it if that is more, the kernel promotes
/// without bound (`pgdat_free_space_enough` in kernel/sched/fair.c). Here three quarters are the bound.
const FREE_BYTES: u64 = 1 << 30;
const FREE_PART: u64 = 16;
/// From so many scans of all memory on, most pages have two observations: what is known is given out
/// anew after each.
const SCANS_TO_KNOW: u64 = 3;
/// Ranges of which what is known of base pages is kept, 4 KB for each: of 4 GB of memory.
const MOST_RANGES: usize = 2048;
/// Base pages of a range, each with an accessed bit.
const BITS: u32 = (PageSize::Huge.bytes() / PageSize::Base.bytes()) as u32;

/// What became of hint faults so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct HintCounts {
    /// Phases that began.
    pub phases: u64,
    /// Scans of a piece of memory of the groups.
    pub scans: u64,
    /// Memory that was scanned, each time that it was.
    pub scanned_bytes: u64,
    /// Faults of pages of the groups.
    pub faults: u64,
    /// Faults of others while a phase ran.
    pub outside: u64,
    /// Events that there was no room for.
    pub lost: u64,
    /// Pages that the kernel promoted meanwhile: 0, or phases ended for good.
    pub promoted: u64,
}

/// Hint faults of a host, for all of its groups.
pub struct HintHub {
    roots: Roots,
    session: Arc<Session>,
    fast_nodes: Vec<u32>,
    inner: Mutex<Inner>,
}

struct Inner {
    state: State,
    /// The pages of each group.
    members: BTreeMap<u32, Arc<Layout>>,
    processes: BTreeMap<u32, Latencies>,
    counts: HintCounts,
    newest_ns: u64,
    read: Vec<Event>,
    /// Ranges that are kept, of all processes.
    ranges: usize,
    /// How often more became known of base pages.
    version: u64,
}

enum State {
    Pause {
        until: Instant,
    },
    Phase(Box<Phase>),
    /// For good, and why.
    Ended(String),
}

struct Phase {
    since: Instant,
    next_check: Instant,
    events: Events,
    /// The settings that it has changed, to be put back in reverse order.
    settings: Vec<Change>,
    faults: u64,
    scanned_bytes: u64,
    /// Whole scans that were given out.
    scans_known: u64,
    promoted_before: u64,
}

/// A range with pages that fault soon after they were scanned.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct HotRange {
    /// Its process.
    pub pid: u32,
    /// Where it begins.
    pub address: u64,
    /// Accesses a second to those of its pages.
    pub accesses_per_s: f32,
    /// How many pages they are.
    pub pages: u32,
}

impl HintCounts {
    /// In a line.
    pub fn line(&self) -> String {
        let HintCounts { phases, scans, scanned_bytes, faults, outside, lost, promoted } = self;
        format!(
            "{faults} hint faults after {scans} scans of {scanned_bytes} bytes in {phases} phases; {outside} of others, {lost} lost, {promoted} pages promoted by the kernel"
        )
    }
}

impl HintHub {
    /// Hint faults of this host, whose settings this session may change; the first phase begins with the
    /// first group.
    pub(crate) fn new(roots: &Roots, session: Arc<Session>, fast_nodes: Vec<u32>) -> Arc<Self> {
        let inner = Inner {
            state: State::Pause { until: Instant::now() },
            members: BTreeMap::new(),
            processes: BTreeMap::new(),
            counts: HintCounts::default(),
            newest_ns: 0,
            read: Vec::new(),
            ranges: 0,
            version: 0,
        };
        let inner = Mutex::new(inner);
        Arc::new(HintHub { roots: roots.clone(), session, fast_nodes, inner })
    }

    /// Whether this host can have them, or why not: events are opened and closed again.
    pub fn probe(roots: &Roots) -> Result<(), String> {
        for path in [roots.numa_balancing(), roots.promotion_limit()] {
            if files::read(&path).ok().flatten().is_none() {
                let path = path.display();
                return Err(format!(
                    "{path} is absent; expected Linux 6.1 or later with CONFIG_NUMA_BALANCING"
                ));
            }
        }
        Events::open(roots).map(drop).map_err(|error| error.to_string())
    }

    /// A group's part of it.
    pub(crate) fn group(self: &Arc<Self>, slot: u32) -> GroupHints {
        GroupHints { hub: Arc::clone(self), slot }
    }

    /// What became of them so far.
    pub fn counts(&self) -> HintCounts {
        self.inner().counts
    }

    /// The ranges of 2 MB with the most accesses a second to pages that fault soon, at most so many.
    pub fn hottest(&self, most: usize) -> Vec<HotRange> {
        let mut inner = self.inner();
        let mut ranges: Vec<HotRange> = inner
            .processes
            .iter_mut()
            .flat_map(|(&pid, process)| {
                let of = move |(address, (accesses_per_s, pages))| HotRange {
                    pid,
                    address,
                    accesses_per_s,
                    pages,
                };
                process.often_between(0..u64::MAX).map(of)
            })
            .collect();
        ranges.sort_by(|a, b| b.accesses_per_s.total_cmp(&a.accesses_per_s));
        ranges.truncate(most);
        ranges
    }

    /// Why there are none any more, if there are none.
    pub fn ended(&self) -> Option<String> {
        match &self.inner().state {
            State::Ended(reason) => Some(reason.clone()),
            _ => None,
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what has come, and begins and ends phases.
    fn poll(&self) {
        let mut inner = self.inner();
        let now = Instant::now();
        match &inner.state {
            State::Pause { until } if now >= *until && !inner.members.is_empty() => {
                inner.state = match self.begin(now) {
                    Ok(Some(phase)) => {
                        inner.counts.phases += 1;
                        State::Phase(Box::new(phase))
                    }
                    Ok(None) => State::Pause { until: now + PAUSE[0] },
                    Err(reason) => {
                        tracing::warn!(reason, "no hint faults: accessed bits alone");
                        State::Ended(reason)
                    }
                };
            }
            State::Phase(_) => {
                inner.take();
                if inner.is_due(now)
                    && let Some(next) = self.next(&inner, now)
                {
                    self.end(&mut inner, next);
                }
            }
            State::Pause { .. } | State::Ended(_) => {}
        }
    }

    /// Begins a phase, unless a fast node has so much free memory that the kernel would promote.
    fn begin(&self, now: Instant) -> Result<Option<Phase>, String> {
        if self.has_much_free().map_err(|e| e.to_string())? {
            return Ok(None);
        }
        let events = Events::open(&self.roots).map_err(|e| e.to_string())?;
        let promoted_before = self.promoted().map_err(|e| e.to_string())?;
        let of_one_node =
            matches!(numa::nodes_with_cpus(&self.roots), Ok(Some(nodes)) if nodes.len() == 1);
        let mode = if of_one_node { "3" } else { "2" };
        let wanted = [(self.roots.promotion_limit(), "0"), (self.roots.numa_balancing(), mode)];
        let mut settings = self.scan_steadily();
        for (path, value) in wanted {
            match self.session.borrow(&path, value) {
                Ok(change) => settings.extend(change),
                Err(error) => {
                    let _ = self.give_back(&settings);
                    return Err(error.to_string());
                }
            }
        }
        Ok(Some(Phase {
            since: now,
            next_check: now,
            events,
            settings,
            faults: 0,
            scanned_bytes: 0,
            scans_known: 0,
            promoted_before,
        }))
    }

    /// The kernel scans less and less often a program none of whose pages should change its node, down
    /// to once a minute: a phase would be over before its scans. With this it goes on as it begins.
    /// Nothing is set where debugfs is not mounted or may not be written.
    fn scan_steadily(&self) -> Vec<Change> {
        let shortest = files::read(&self.roots.shortest_scan_period()).ok().flatten();
        let Some(shortest) = shortest else { return Vec::new() };
        let longest = self.roots.longest_scan_period();
        self.session.borrow(&longest, shortest.trim()).ok().flatten().into_iter().collect()
    }

    /// What follows the phase, where it is over.
    fn next(&self, inner: &Inner, now: Instant) -> Option<State> {
        let State::Phase(phase) = &inner.state else { return None };
        let length = now.saturating_duration_since(phase.since);
        let bytes = inner.bytes();
        let promoted = self.promoted().map_or(0, |now| now.saturating_sub(phase.promoted_before));
        if promoted > 0 {
            let reason = format!("the kernel promoted {promoted} pages in spite of a bound of 0");
            tracing::warn!(reason, "no more hint faults");
            return Some(State::Ended(reason));
        }
        let is_over = length >= PHASE[1]
            || (length >= PHASE[0] && phase.scanned_bytes >= SCANS * bytes)
            || inner.members.is_empty()
            || self.has_much_free().unwrap_or(true);
        is_over.then(|| State::Pause { until: now + phase.pause() })
    }

    fn end(&self, inner: &mut Inner, next: State) {
        if let State::Phase(phase) = std::mem::replace(&mut inner.state, next) {
            inner.counts.lost += phase.events.lost();
            let promoted =
                self.promoted().map_or(0, |now| now.saturating_sub(phase.promoted_before));
            inner.counts.promoted += promoted;
            if let Err(error) = self.give_back(&phase.settings) {
                tracing::error!(%error, "NUMA balancing stays as hint faults need it until the end");
                inner.state = State::Ended(error.to_string());
            }
        }
        let newest_ns = inner.newest_ns;
        inner.processes.values_mut().for_each(|process| process.age(newest_ns));
        inner.count_ranges();
        inner.version += 1;
    }

    fn give_back(&self, settings: &[Change]) -> Result<(), SessionError> {
        settings.iter().rev().try_for_each(|change| self.session.give_back(change))
    }

    fn has_much_free(&self) -> Result<bool, FileError> {
        for &node in &self.fast_nodes {
            let Some(memory) = numa::memory(&self.roots, node)? else { continue };
            let enough = FREE_BYTES.max(memory.total_bytes / FREE_PART);
            if memory.free_bytes > enough / 4 * 3 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Pages that the kernel has promoted since it runs.
    fn promoted(&self) -> Result<u64, FileError> {
        let text = files::read(&self.roots.proc.join("vmstat"))?.unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("pgpromote_success "));
        Ok(line.and_then(|count| count.trim().parse().ok()).unwrap_or(0))
    }
}

impl Phase {
    /// How long the pause after it is: as the bound on processor time asks for.
    fn pause(&self) -> Duration {
        let spent = FAULT.as_secs_f64() * self.faults as f64;
        Duration::from_secs_f64(spent / CPU_SHARE).clamp(PAUSE[0], PAUSE[1])
    }
}

impl Inner {
    /// Whether the phase's end is to be looked for.
    fn is_due(&mut self, now: Instant) -> bool {
        let State::Phase(phase) = &mut self.state else { return false };
        let is_due = now >= phase.next_check;
        if is_due {
            phase.next_check = now + CHECK_EVERY;
        }
        is_due
    }

    fn take(&mut self) {
        let bytes = self.bytes();
        let State::Phase(phase) = &mut self.state else { return };
        let mut events = std::mem::take(&mut self.read);
        phase.events.read(&mut events);
        for event in events.drain(..) {
            self.newest_ns = self.newest_ns.max(event.time_ns());
            let is_fault = matches!(event, Event::Fault { .. });
            // What they take counts, whoever has them.
            phase.faults += u64::from(is_fault);
            let Some(process) = self.processes.get_mut(&event.pid()) else {
                self.counts.outside += u64::from(is_fault);
                continue;
            };
            match event {
                Event::Scan { thread, time_ns, start, end, .. } => {
                    self.counts.scans += 1;
                    let bytes = end.saturating_sub(start);
                    phase.scanned_bytes += bytes;
                    self.counts.scanned_bytes += bytes;
                    process.scan(thread, start, end, time_ns);
                }
                Event::Resumed { thread, time_ns, .. } => process.resume(thread, time_ns),
                Event::Fault { time_ns, address, .. } => {
                    self.counts.faults += 1;
                    let is_room = self.ranges < MOST_RANGES;
                    self.ranges += usize::from(process.fault(address, time_ns, is_room));
                }
            }
        }
        self.read = events;
        let scans = phase.scanned_bytes.checked_div(bytes).unwrap_or(0);
        if scans >= SCANS_TO_KNOW && scans > phase.scans_known {
            phase.scans_known = scans;
            self.version += 1;
        }
    }

    /// Memory of all groups.
    fn bytes(&self) -> u64 {
        self.members.values().map(|l| l.pages() as u64 * l.page_size().bytes()).sum()
    }

    fn count_ranges(&mut self) {
        self.ranges = self.processes.values().map(Latencies::ranges).sum();
    }

    /// Processes are those of all groups.
    fn follow(&mut self) {
        let wanted: Vec<u32> = self
            .members
            .values()
            .flat_map(|layout| layout.extents().iter().map(|extent| extent.space.0))
            .collect();
        self.processes.retain(|pid, _| wanted.contains(pid));
        for pid in wanted {
            self.processes.entry(pid).or_default();
        }
        self.count_ranges();
    }
}

impl BaseRates for Arc<HintHub> {
    fn version(&self) -> u64 {
        let inner = self.inner();
        // Of phases that have ended for good nothing is known any more: others know better.
        if matches!(inner.state, State::Ended(_)) { 0 } else { inner.version }
    }

    fn of_range(&self, pid: u32, start: u64) -> Option<Vec<Observed>> {
        let inner = self.inner();
        let known = inner.processes.get(&pid).filter(|_| !matches!(inner.state, State::Ended(_)));
        known?.of_range(start)
    }

    fn forget(&self, pid: u32, addresses: &[u64]) {
        if let Some(process) = self.inner().processes.get_mut(&pid) {
            addresses.iter().for_each(|&address| process.forget(address));
        }
    }
}

impl Drop for HintHub {
    fn drop(&mut self) {
        let mut inner = self.inner();
        let next = State::Ended("the run is over".to_owned());
        self.end(&mut inner, next);
    }
}

impl std::fmt::Debug for HintHub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HintHub").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// A group's part of the host's hint faults; without it the group has none.
#[derive(Debug)]
pub(crate) struct GroupHints {
    hub: Arc<HintHub>,
    slot: u32,
}

impl GroupHints {
    /// Takes what has come.
    pub(crate) fn poll(&self) {
        self.hub.poll();
    }

    /// The group has these ranges now.
    pub(crate) fn follow(&self, layout: &Arc<Layout>) {
        let mut inner = self.hub.inner();
        let known = inner.members.get(&self.slot);
        if known.is_none_or(|known| !Arc::ptr_eq(known, layout)) {
            inner.members.insert(self.slot, Arc::clone(layout));
            inner.follow();
        }
    }

    /// Counts of the layout's ranges, raised by what is known of their pages that fault soon.
    pub(crate) fn raise(&self, layout: &Layout, counts: &AccessCounts) -> Option<AccessCounts> {
        const RANGE: u64 = PageSize::Huge.bytes();
        let mut inner = self.hub.inner();
        if matches!(inner.state, State::Ended(_)) {
            // Nothing ages any more.
            return None;
        }
        let mut rates = vec![0.0; layout.pages()];
        let mut any = false;
        for (number, extent) in layout.extents().iter().enumerate() {
            let Some(process) = inner.processes.get_mut(&extent.space.0) else { continue };
            let first = layout.first_index(number);
            let addresses = extent.start..extent.start + extent.pages * RANGE;
            for (address, (rate, _)) in process.often_between(addresses) {
                rates[first + ((address - extent.start) / RANGE) as usize] = rate;
                any = true;
            }
        }
        any.then(|| counts.raised(&rates, BITS))
    }
}

impl Drop for GroupHints {
    fn drop(&mut self) {
        let mut inner = self.hub.inner();
        inner.members.remove(&self.slot);
        inner.follow();
        if inner.members.is_empty() {
            // No group is left that would end the phase in time.
            inner.take();
            if let State::Phase(phase) = &inner.state {
                let next = State::Pause { until: Instant::now() + phase.pause() };
                self.hub.end(&mut inner, next);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::folder;

    #[test]
    fn the_kernel_scans_in_a_phase_as_often_as_it_begins_with() {
        let periods = "sys/kernel/debug/sched/numa_balancing";
        let [shortest, longest] =
            ["min", "max"].map(|which| format!("{periods}/scan_period_{which}_ms"));
        let (host, roots) = folder(&[(&shortest, "1000\n"), (&longest, "60000\n")]);
        let get = || fs::read_to_string(host.path().join(&longest)).unwrap();
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let hub = HintHub::new(&roots, session, vec![0]);
        let settings = hub.scan_steadily();
        assert_eq!((settings.len(), get().trim()), (1, "1000"));
        hub.give_back(&settings).unwrap();
        assert_eq!(get().trim(), "60000");
        // Without debugfs there is nothing to set.
        fs::remove_file(host.path().join(&shortest)).unwrap();
        assert_eq!(hub.scan_steadily(), []);
    }

    #[test]
    fn of_phases_that_have_ended_for_good_no_version_is_left() {
        let (_host, roots) = folder(&[]);
        let session = Arc::new(Session::open(&roots, None).unwrap());
        let hub = HintHub::new(&roots, session, vec![0]);
        let versions = |next: State| {
            hub.end(&mut hub.inner(), next);
            hub.version()
        };
        assert_eq!(versions(State::Pause { until: Instant::now() }), 1);
        assert_eq!(versions(State::Ended("promoted by the kernel".to_owned())), 0);
    }
}
