//! Reads a host's samples and gives each group those of its pages.
//!
//! One source serves the whole host, so one hub reads it for all groups, whichever of them calls.
//! Its work is bounded: samples beyond [`MOST_PER_S`] a second are read and dropped. Each unused
//! sample is counted by reason.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use terrace_core::bits::PageBits;
use terrace_core::page::Layout;
use terrace_core::scan::PeriodCounters;
use terrace_recordings::perf_record::{MemoryLevel, RecordCounts};

use super::base_pages::BasePages;
use super::frames::FrameMap;
use super::member::Member;
use super::pace::{Bound, MOST_PER_S};
use super::{SampleError, SampleReads, SampleSource};
use crate::files::{self, FileError};
use crate::refiner::{BaseRates, Observed};
use crate::roots::Roots;

/// Most instructions whose samples are counted.
const INSTRUCTIONS: usize = 1024;
/// Shortest interval between reads of the source.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Counts of samples by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SampleCounts {
    /// Of pages of the groups.
    pub of_groups: u64,
    /// Of other memory.
    pub outside: u64,
    /// Served by a cache, or by a source that the processor does not report.
    pub cached: u64,
    /// Of the kernel.
    pub kernel: u64,
    /// Beyond the bound on samples a second.
    pub over_bound: u64,
    /// Lost before they could be read.
    pub lost: u64,
    /// Times that the source was throttled.
    pub throttled: u64,
    /// Places in the stream without a valid record.
    pub malformed: u64,
}

impl SampleCounts {
    /// A summary in one line.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{} samples of the groups' pages; left out: {} outside of them, {} from caches, {} of the \
             kernel, {} beyond {MOST_PER_S} a second; {} lost, throttled {} times, {} malformed",
            self.of_groups,
            self.outside,
            self.cached,
            self.kernel,
            self.over_bound,
            self.lost,
            self.throttled,
            self.malformed
        )
    }
}

/// Samples of all groups of a host.
pub struct SampleHub {
    roots: Roots,
    /// Period of the processor's clock, the unit of latencies in samples; 0 if unknown.
    cycle_ps: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    source: Box<dyn SampleSource>,
    /// Accesses that a sample stands for, by the last one that had it.
    accesses_per_sample: u32,
    members: BTreeMap<u32, Member>,
    counts: SampleCounts,
    by_memory: [u64; 2],
    by_instruction: BTreeMap<u64, u64>,
    bound: Bound,
    polled: Option<Instant>,
    /// Time since it was opened.
    clock: Clock,
}

type Clock = Box<dyn Fn() -> Duration + Send>;

impl Inner {
    fn poll(&mut self) -> std::io::Result<()> {
        let now = (self.clock)();
        for base_pages in self.members.values_mut().filter_map(|m| m.base_pages.as_mut()) {
            base_pages.at(now);
        }
        self.bound.fill(now);
        let (counts, members, bound) = (&mut self.counts, &mut self.members, &mut self.bound);
        let (by_memory, by_instruction) = (&mut self.by_memory, &mut self.by_instruction);
        let accesses_per_sample = &mut self.accesses_per_sample;
        self.source.read(&mut |sample| {
            let memory = sample.source.memory();
            if sample.kernel {
                counts.kernel += 1;
            } else if let Some(memory) = memory
                && bound.passes()
            {
                by_memory[usize::from(memory == MemoryLevel::Remote)] += 1;
                let known = |at: &u64| by_instruction.contains_key(at);
                if let Some(at) = sample.instruction
                    && (by_instruction.len() < INSTRUCTIONS || known(&at))
                {
                    *by_instruction.entry(at).or_default() += 1;
                }
                let found = members.values_mut().find_map(|m| m.page(sample).map(|page| (m, page)));
                let Some((member, page)) = found else {
                    counts.outside += 1;
                    return;
                };
                counts.of_groups += 1;
                if let Ok(accesses) = u32::try_from(sample.accesses)
                    && accesses > 0
                {
                    *accesses_per_sample = accesses;
                }
                member.add(page, sample, *accesses_per_sample);
            } else if memory.is_some() {
                counts.over_bound += 1;
            } else {
                counts.cached += 1;
            }
        })?;
        let RecordCounts { lost, throttled, malformed, .. } = self.source.counts();
        (counts.lost, counts.throttled, counts.malformed) = (lost, throttled, malformed);
        Ok(())
    }
}

impl SampleHub {
    /// Samples of these reads of this host.
    pub fn open(roots: &Roots, reads: SampleReads) -> Result<Arc<Self>, SampleError> {
        let source = super::open(roots, reads)?;
        Ok(Self::of(roots, source, reads.or(0)))
    }

    /// Samples of this source, which stand for so many accesses each where they do not say it.
    pub fn of(roots: &Roots, source: Box<dyn SampleSource>, accesses_per_sample: u32) -> Arc<Self> {
        let since = Instant::now();
        Self::by_clock(roots, source, accesses_per_sample, Box::new(move || since.elapsed()))
    }

    fn by_clock(
        roots: &Roots,
        source: Box<dyn SampleSource>,
        accesses_per_sample: u32,
        clock: Clock,
    ) -> Arc<Self> {
        let accesses_per_sample = source.accesses_per_sample().unwrap_or(accesses_per_sample);
        let (members, counts) = (BTreeMap::new(), SampleCounts::default());
        let inner = Inner {
            source,
            accesses_per_sample,
            members,
            counts,
            by_memory: [0; 2],
            by_instruction: BTreeMap::new(),
            bound: Bound::new(clock()),
            polled: None,
            clock,
        };
        Arc::new(SampleHub {
            roots: roots.clone(),
            cycle_ps: cycle_ps(roots).unwrap_or(0),
            inner: Mutex::new(inner),
        })
    }

    /// Addresses of the instructions with the most samples, and how many each has: where the source
    /// knows them.
    pub fn by_instruction(&self, most: usize) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = self.inner().by_instruction.iter().map(|(a, n)| (*a, *n)).collect();
        all.sort_by_key(|(address, samples)| (std::cmp::Reverse(*samples), *address));
        all.truncate(most);
        all
    }

    /// Accesses that a sample stands for now.
    pub fn accesses_per_sample(&self) -> u32 {
        self.inner().accesses_per_sample
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The source's name.
    pub fn source(&self) -> String {
        self.inner().source.name().to_owned()
    }

    /// Counts so far.
    pub fn counts(&self) -> SampleCounts {
        self.inner().counts
    }

    /// Samples served by memory near their processor, and by other memory, as they report it.
    pub fn by_memory(&self) -> [u64; 2] {
        self.inner().by_memory
    }

    /// Reads the samples that have arrived, unless that was just done.
    pub fn poll(&self) {
        let mut inner = self.inner();
        if inner.polled.is_some_and(|at| at.elapsed() < POLL_EVERY) {
            return;
        }
        if let Err(error) = inner.poll() {
            tracing::debug!(%error, "no samples");
        }
        inner.polled = Some(Instant::now());
    }

    /// Adds a group; its pages are ranges, or as they are mapped.
    pub fn group(self: &Arc<Self>, slot: u32, by_range: bool) -> GroupSamples {
        GroupSamples { hub: Arc::clone(self), slot, by_range }
    }

    /// Rates of the base pages of a group whose pages are ranges.
    pub(crate) fn rates(self: &Arc<Self>, slot: u32) -> SampledRates {
        SampledRates { hub: Arc::clone(self), slot }
    }
}

/// Rates of a group's base pages.
pub(crate) struct SampledRates {
    hub: Arc<SampleHub>,
    slot: u32,
}

impl BaseRates for SampledRates {
    fn version(&self) -> u64 {
        let inner = self.hub.inner();
        let pages = inner.members.get(&self.slot).and_then(|member| member.base_pages.as_ref());
        pages.map_or(0, BasePages::version)
    }

    fn of_range(&self, pid: u32, start: u64) -> Option<Vec<Observed>> {
        let inner = self.hub.inner();
        let pages = inner.members.get(&self.slot)?.base_pages.as_ref()?;
        pages.of_range(pid, start, inner.accesses_per_sample)
    }
}

/// A group's samples; when it is dropped the group has none.
pub struct GroupSamples {
    hub: Arc<SampleHub>,
    slot: u32,
    by_range: bool,
}

impl GroupSamples {
    /// Reads the samples that have arrived.
    pub fn poll(&self) {
        self.hub.poll();
    }

    /// So many moves have been made, and none is made until the next scan. Where more were made than
    /// when the frames were read, those stay unknown until they are read again.
    pub fn resume(&self, moved: u64) {
        let mut inner = self.hub.inner();
        if let Err(error) = inner.poll() {
            tracing::debug!(%error, "no samples");
        }
        if let Some(member) = inner.members.get_mut(&self.slot) {
            member.resume(moved);
        }
    }

    /// Whether the frames in use are those of these pages.
    pub fn follows(&self, layout: &Arc<Layout>) -> bool {
        let inner = self.hub.inner();
        inner.members.get(&self.slot).is_some_and(|member| Arc::ptr_eq(&member.layout, layout))
    }

    /// Sets the group's pages and reads their frames, after so many moves: to be called when pages
    /// have been moved.
    /// Earlier samples belong to the frames before.
    pub fn follow(&self, layout: &Arc<Layout>, moved: u64) -> Result<(), FileError> {
        let knows_processes = {
            let mut inner = self.hub.inner();
            if let Err(error) = inner.poll() {
                tracing::debug!(%error, "no samples");
            }
            inner.source.knows_processes()
        };
        // Other groups continue meanwhile.
        let frames = match knows_processes {
            true => FrameMap::default(),
            false => FrameMap::read(&self.hub.roots, layout)?,
        };
        if frames.left_out() > 0 {
            let left_out = frames.left_out();
            tracing::debug!(left_out, "base pages whose samples are not known");
        }
        let mut inner = self.hub.inner();
        let before = inner.members.remove(&self.slot);
        let member = Member::follow(before, layout, frames, self.by_range, moved);
        inner.members.insert(self.slot, member);
        Ok(())
    }

    /// The samples of a finished period, if they belong to the pages of this layout; `fast` are
    /// those in fast memory. `None` while the source has given no sample at all, which says nothing
    /// about the pages.
    pub fn take(&self, layout: &Arc<Layout>, fast: &PageBits) -> Option<PeriodCounters> {
        let mut inner = self.hub.inner();
        if let Err(error) = inner.poll() {
            tracing::debug!(%error, "no samples");
        }
        if inner.source.counts().samples == 0 {
            return None;
        }
        let now = inner.accesses_per_sample;
        let member = inner.members.get_mut(&self.slot)?;
        if !Arc::ptr_eq(&member.layout, layout) {
            return None;
        }
        let (mut samples, mut cycles) = ([0u64; 2], [0u64; 2]);
        for (page, (&count, &took)) in member.samples.iter().zip(&member.cycles).enumerate() {
            if count > 0 {
                let tier = usize::from(!fast.get(page));
                samples[tier] += u64::from(count);
                cycles[tier] += took;
            }
        }
        let accesses_per_sample = member.accesses_per_sample(now);
        let counters = PeriodCounters {
            reads: samples.map(|count| count * u64::from(accesses_per_sample)),
            read_latency_ps: std::array::from_fn(|tier| {
                cycles[tier].saturating_mul(self.hub.cycle_ps) / samples[tier].max(1)
            }),
            samples: Some(Arc::from(&member.samples[..])),
            reads_per_sample: accesses_per_sample,
            ..PeriodCounters::default()
        };
        member.end_period();
        Some(counters)
    }
}

impl std::fmt::Debug for GroupSamples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupSamples").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Drop for GroupSamples {
    fn drop(&mut self) {
        self.hub.inner().members.remove(&self.slot);
    }
}

/// Length of a cycle by the fastest processor's clock: those that have nothing to do are slowed down.
fn cycle_ps(roots: &Roots) -> Option<u64> {
    let text = files::read(&roots.proc.join("cpuinfo")).ok()??;
    let lines = text.lines().filter_map(|line| line.strip_prefix("cpu MHz"));
    let mhz = lines.filter_map(|line| line.split_once(':')?.1.trim().parse::<f64>().ok());
    let mhz = mhz.fold(0.0, f64::max);
    (mhz > 0.0).then(|| (1e6 / mhz).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use terrace_core::page::{Extent, PageSize, SpaceId};
    use terrace_recordings::perf_record::{DataSource, MemorySample};

    /// Returns the samples sent to it.
    struct Sent(mpsc::Receiver<MemorySample>, u64);

    impl SampleSource for Sent {
        fn name(&self) -> &str {
            "sent"
        }
        fn read(&mut self, take: &mut dyn FnMut(&MemorySample)) -> std::io::Result<()> {
            for sample in self.0.try_iter() {
                self.1 += 1;
                take(&sample);
            }
            Ok(())
        }
        fn counts(&self) -> RecordCounts {
            RecordCounts { samples: self.1, lost: 5, throttled: 1, ..RecordCounts::default() }
        }
    }

    fn layout(pid: u32, page: u64, pages: u64) -> Arc<Layout> {
        let extent = Extent { space: SpaceId(pid), start: page * 4096, pages };
        Arc::new(Layout::new(PageSize::Base, vec![extent]).unwrap())
    }

    fn sample(pid: Option<u32>, address: u64, physical: u64) -> MemorySample {
        MemorySample {
            pid,
            address: Some(address),
            physical: Some(physical),
            weight_cycles: 600,
            source: DataSource::of_memory(MemoryLevel::Remote, false),
            ..MemorySample::default()
        }
    }

    fn host() -> (tempfile::TempDir, Roots, mpsc::Sender<MemorySample>, Arc<SampleHub>) {
        let stat =
            |pid: u32| format!("{pid} (a) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 777 0 0\n");
        let (keep, roots) = folder(&[
            ("proc/4/stat", &stat(4)),
            ("proc/6/stat", &stat(6)),
            ("proc/cpuinfo", "cpu MHz\t\t: 800.000\ncpu MHz\t\t: 2000.000\n"),
        ]);
        for (pid, frames) in [(4, 100u64), (6, 200)] {
            let entries = (0..64u64).map(|page| (1 << 63 | (frames + page)).to_ne_bytes());
            let bytes: Vec<u8> = entries.flatten().collect();
            std::fs::write(keep.path().join(format!("proc/{pid}/pagemap")), bytes).unwrap();
        }
        let (send, receive) = mpsc::channel();
        let hub = SampleHub::of(&roots, Box::new(Sent(receive, 0)), 100);
        (keep, roots, send, hub)
    }

    #[test]
    fn each_group_gets_the_samples_of_its_pages_and_the_rest_is_counted_by_reason() {
        let (_keep, _roots, send, hub) = host();
        let (one, other) = (hub.group(0, false), hub.group(1, false));
        let layouts = [layout(4, 8, 4), layout(6, 8, 4)];
        one.follow(&layouts[0], 0).unwrap();
        assert_eq!(one.take(&layouts[0], &PageBits::new(4)), None, "nothing came yet");
        other.follow(&layouts[1], 0).unwrap();
        // By physical address, without a process: page 9 of process 4 is in frame 109.
        send.send(sample(None, 0x1234, 109 * 4096 + 8)).unwrap();
        let instruction = Some(0x40_1000);
        let known = MemorySample { instruction, ..sample(None, 0x1234, 109 * 4096 + 64) };
        send.send(known).unwrap();
        // By process and address, whatever the frame.
        send.send(sample(Some(6), 11 * 4096 + 5, 1)).unwrap();
        send.send(sample(None, 9 * 4096, 300 * 4096)).unwrap();
        send.send(MemorySample { kernel: true, ..sample(None, 0, 109 * 4096) }).unwrap();
        send.send(MemorySample { source: DataSource(0), ..sample(None, 0, 109 * 4096) }).unwrap();
        let mut fast = PageBits::new(4);
        fast.set(1, true);
        let got = one.take(&layouts[0], &fast).unwrap();
        assert_eq!(got.samples.as_deref(), Some(&[0, 2, 0, 0][..]));
        assert_eq!((got.reads, got.reads_per_sample), ([200, 0], 100));
        // 600 cycles of 2 GHz.
        assert_eq!(got.read_latency_ps, [300_000, 0]);
        let got = other.take(&layouts[1], &PageBits::new(4)).unwrap();
        assert_eq!(got.samples.as_deref(), Some(&[0, 0, 0, 1][..]));
        let expected = SampleCounts {
            of_groups: 3,
            outside: 1,
            cached: 1,
            kernel: 1,
            lost: 5,
            throttled: 1,
            ..SampleCounts::default()
        };
        assert_eq!(hub.counts(), expected);
        assert_eq!(hub.by_instruction(8), [(0x40_1000, 1)]);
        // The next period begins with none.
        let next = one.take(&layouts[0], &fast).unwrap();
        assert!(next.samples.unwrap().iter().all(|&count| count == 0));
    }

    #[test]
    fn reads_are_counted_by_what_each_sample_stands_for() {
        let (_keep, _roots, send, hub) = host();
        let group = hub.group(0, false);
        let pages = layout(4, 8, 4);
        group.follow(&pages, 0).unwrap();
        let of = |accesses| MemorySample { accesses, ..sample(Some(4), 9 * 4096, 0) };
        // The source changes its number within the period.
        for accesses in [400, 400, 400, 800, 800] {
            send.send(of(accesses)).unwrap();
        }
        let got = group.take(&pages, &PageBits::new(4)).unwrap();
        assert_eq!((got.reads, got.reads_per_sample), ([0, 2800], 560));
        let none = group.take(&pages, &PageBits::new(4)).unwrap();
        assert_eq!((none.reads, none.reads_per_sample), ([0, 0], 800), "the number of now");
    }

    #[test]
    fn pages_that_moved_are_found_where_they_are_and_counts_go_with_the_layout() {
        let (keep, _roots, send, hub) = host();
        let group = hub.group(0, false);
        let before = layout(4, 8, 4);
        group.follow(&before, 0).unwrap();
        send.send(sample(None, 0, 110 * 4096)).unwrap();
        // Page 10 moves from frame 110 to 500; earlier samples are still of frame 110.
        let path = keep.path().join("proc/4/pagemap");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[80..88].copy_from_slice(&(1u64 << 63 | 500).to_ne_bytes());
        std::fs::write(&path, bytes).unwrap();
        let after = layout(4, 10, 8);
        group.follow(&after, 0).unwrap();
        send.send(sample(None, 0, 500 * 4096)).unwrap();
        send.send(sample(None, 0, 110 * 4096)).unwrap();
        assert_eq!(group.take(&before, &PageBits::new(4)), None, "another layout");
        let got = group.take(&after, &PageBits::new(8)).unwrap();
        assert_eq!(got.samples.as_deref(), Some(&[2, 0, 0, 0, 0, 0, 0, 0][..]));
        assert_eq!(hub.counts().outside, 1);
    }

    #[test]
    fn beyond_the_bound_samples_are_left_out() {
        let (_keep, _roots, send, hub) = host();
        let group = hub.group(0, false);
        let pages = layout(4, 8, 4);
        group.follow(&pages, 0).unwrap();
        for _ in 0..MOST_PER_S + 1000 {
            send.send(sample(None, 0, 109 * 4096)).unwrap();
        }
        group.take(&pages, &PageBits::new(4)).unwrap();
        let counts = hub.counts();
        assert!(counts.over_bound >= 1 && counts.of_groups <= 2 * MOST_PER_S, "{counts:?}");
        assert_eq!(counts.of_groups + counts.over_bound, MOST_PER_S + 1000);
    }

    #[test]
    fn the_bound_leaves_some_samples_to_each_part_of_a_second() {
        let mut bound = Bound::new(Duration::ZERO);
        let mut passed_in = |ms: u64| {
            bound.fill(Duration::from_millis(ms));
            (0..3 * MOST_PER_S).filter(|_| bound.passes()).count() as u64
        };
        assert_eq!(passed_in(0), MOST_PER_S);
        assert_eq!((passed_in(100), passed_in(150)), (MOST_PER_S / 10, MOST_PER_S / 20));
    }

    #[test]
    fn base_pages_of_ranges_are_known_by_process_and_by_frame() {
        let (_keep, roots, _, _) = host();
        let (send, receive) = mpsc::channel();
        let ms = Arc::new(AtomicU64::new(0));
        let now = Arc::clone(&ms);
        let clock: Clock = Box::new(move || Duration::from_millis(now.load(Ordering::Relaxed)));
        let hub = SampleHub::by_clock(&roots, Box::new(Sent(receive, 0)), 100, clock);
        let (group, rates) = (hub.group(0, true), hub.rates(0));
        let extent = Extent { space: SpaceId(4), start: 0, pages: 1 };
        let layout = Arc::new(Layout::new(PageSize::Huge, vec![extent]).unwrap());
        let path = roots.proc.join("4/pagemap");
        let frames: Vec<u8> =
            (0..512u64).flat_map(|page| (1 << 63 | (900 - page)).to_ne_bytes()).collect();
        std::fs::write(path, frames).unwrap();
        group.follow(&layout, 0).unwrap();
        for tenth in 0..20 {
            ms.store(tenth * 100, Ordering::Relaxed);
            // Page 30 by its frame, page 44 by its address.
            send.send(sample(None, 0, 870 * 4096 + 8)).unwrap();
            (0..5).for_each(|_| send.send(sample(Some(4), 44 * 4096 + 8, 1)).unwrap());
            group.take(&layout, &PageBits::new(1)).unwrap();
            // While pages are moved frames are nobody's; addresses are whose they were.
            (0..9).for_each(|_| send.send(sample(None, 0, 860 * 4096)).unwrap());
            group.resume(0);
            if tenth > 10 {
                // A page was moved, and its frame not read again.
                group.resume(1);
                send.send(sample(None, 0, 850 * 4096)).unwrap();
                hub.inner().poll().unwrap();
                group.resume(0);
            }
        }
        assert!(rates.version() >= 3);
        let pages = rates.of_range(4, 0).unwrap();
        let between = |page: usize, per_s: f32| {
            let rate = pages[page].rate.unwrap();
            rate.least_per_s < per_s && per_s < rate.most_per_s
        };
        assert!(between(30, 1000.0) && between(44, 5000.0), "{:?} {:?}", pages[30], pages[44]);
        assert_eq!([31, 40, 50].map(|page: usize| pages[page].rate.unwrap().least_per_s), [0.0; 3]);
        assert_eq!(rates.of_range(4, 1 << 21), None);
    }

    #[test]
    fn a_group_that_leaves_has_no_samples() {
        let (_keep, _roots, send, hub) = host();
        let group = hub.group(0, false);
        group.follow(&layout(4, 8, 4), 0).unwrap();
        drop(group);
        send.send(sample(None, 0, 109 * 4096)).unwrap();
        hub.poll();
        assert_eq!(hub.counts().outside, 1);
    }
}
