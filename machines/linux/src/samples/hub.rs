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
use terrace_recordings::perf_record::{MemoryLevel, MemorySample, RecordCounts};

use super::base_pages::BasePages;
use super::frames::FrameMap;
pub use super::member::GroupPages;
use super::member::{LEAST_RECENT, Member, Place};
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
    /// Recent samples from which on a group has samples.
    least_recent: f64,
    inner: Mutex<Inner>,
}

struct Inner {
    source: Box<dyn SampleSource>,
    /// Accesses that a sample stands for, by the last one that had it.
    accesses_per_sample: u32,
    members: BTreeMap<u32, Member>,
    /// Groups that take samples; without any none are taken.
    groups: i32,
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
    /// A group has come or gone: accesses are sampled as long as there is one.
    fn groups_change(&mut self, by: i32) {
        let before = self.groups > 0;
        self.groups += by;
        let now = self.groups > 0;
        if now != before
            && let Err(error) = self.source.sample(now)
        {
            tracing::warn!(%error, "samples of reads: cannot be switched");
        }
    }

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
                if let Ok(accesses) = u32::try_from(sample.accesses)
                    && accesses > 0
                {
                    *accesses_per_sample = accesses;
                }
                by_memory[usize::from(memory == MemoryLevel::Remote)] += 1;
                let known = |at: &u64| by_instruction.contains_key(at);
                if let Some(at) = sample.instruction
                    && (by_instruction.len() < INSTRUCTIONS || known(&at))
                {
                    *by_instruction.entry(at).or_default() += 1;
                }
                let find = |by: fn(&Member, &MemorySample) -> Option<Place>| {
                    members.iter().find_map(|(slot, m)| by(m, sample).map(|place| (*slot, place)))
                };
                let found = find(Member::by_address).or_else(|| find(Member::by_frame));
                let Some((slot, place)) = found else {
                    counts.outside += 1;
                    return;
                };
                counts.of_groups += 1;
                if let Some(member) = members.get_mut(&slot) {
                    member.add(place, sample, *accesses_per_sample);
                }
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
            groups: 0,
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
            least_recent: LEAST_RECENT,
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
    #[cfg(test)]
    pub(super) fn accesses_per_sample(&self) -> u32 {
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
        self.inner().groups_change(1);
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
    /// 0 while the group has no samples: others know more then.
    fn version(&self) -> u64 {
        let inner = self.hub.inner();
        let member = inner.members.get(&self.slot).filter(|member| member.has_samples());
        member.and_then(|member| member.base_pages.as_ref()).map_or(0, BasePages::version)
    }

    fn of_range(&self, pid: u32, start: u64) -> Option<Vec<Observed>> {
        let inner = self.hub.inner();
        let member = inner.members.get(&self.slot).filter(|member| member.has_samples())?;
        member.base_pages.as_ref()?.of_range(pid, start, inner.accesses_per_sample)
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

    /// Sets the group's pages and reads their frames: to be called when pages have been moved.
    /// Earlier samples belong to the frames before.
    pub fn follow(&self, pages: GroupPages<'_>) -> Result<(), FileError> {
        let knows_processes = {
            let mut inner = self.hub.inner();
            if let Err(error) = inner.poll() {
                tracing::debug!(%error, "no samples");
            }
            inner.source.knows_processes()
        };
        // Memory that several processes map is in a layout once, so accesses of the others are found by
        // frame. Other groups continue meanwhile.
        let frames = match knows_processes && pages.processes.len() < 2 {
            true => FrameMap::default(),
            false => FrameMap::read(&self.hub.roots, pages.layout)?,
        };
        if frames.left_out() > 0 {
            let left_out = frames.left_out();
            tracing::debug!(left_out, "base pages whose samples are not known");
        }
        let mut inner = self.hub.inner();
        let before = inner.members.remove(&self.slot);
        let member = Member::follow(before, pages, frames, self.by_range);
        inner.members.insert(self.slot, member);
        Ok(())
    }

    /// The samples of a finished period, if they belong to the pages of this layout; `fast` are
    /// those in fast memory. `None` while the group has no samples, which says nothing about the pages.
    pub fn take(&self, layout: &Arc<Layout>, fast: &PageBits) -> Option<PeriodCounters> {
        let mut inner = self.hub.inner();
        if let Err(error) = inner.poll() {
            tracing::debug!(%error, "no samples");
        }
        let now = inner.accesses_per_sample;
        let member = inner.members.get_mut(&self.slot)?;
        if !Arc::ptr_eq(&member.layout, layout) {
            return None;
        }
        if !member.count_recent(self.hub.least_recent) {
            member.end_period();
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
        let mut inner = self.hub.inner();
        inner.members.remove(&self.slot);
        inner.groups_change(-1);
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
mod tests;
