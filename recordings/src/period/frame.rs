//! The frames of a period recording as values and as bytes. Encoder and decoder keep, for each
//! group, the scan before, relative to which the next is stored.

use std::sync::Arc;

use terrace_core::bits::PageBits;
use terrace_core::counts::AccessCounts;
use terrace_core::operations::OperationSize;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{
    Decision, Direction, Exchange, Failure, FailureReason, Features, Outcome, Plan,
};
use terrace_core::scan::{Budget, PeriodCounters, Scan};

use crate::codec::{
    Cursor, Malformed, RangeReader, RangeWriter, put_bits, put_number, put_signed, put_text,
};

const LOST: u8 = 1;
const SCAN: u8 = 2;
const BUDGET: u8 = 3;
const DECISION: u8 = 4;
const OUTCOME: u8 = 5;
const ENDED: u8 = 6;

/// The layout follows.
const WITH_LAYOUT: u8 = 1;
/// The bits are the changes since the scan before.
const CHANGED_BITS: u8 = 2;
/// The frames follow.
const WITH_FRAMES: u8 = 4;
/// The frames are those of the scan before.
const SAME_FRAMES: u8 = 8;
/// Counters follow.
const WITH_COUNTERS: u8 = 16;
/// The pages on the kernel's active lists follow.
const WITH_ACTIVE: u8 = 32;
/// The numbers of samples with accessed bits set follow.
const WITH_COUNTS: u8 = 64;

/// A decision read back: the name of the applied policy is owned, not static.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedDecision {
    /// The moves.
    pub plan: Plan,
    /// Name of the policy that made the plan.
    pub applied: String,
    /// The figures of the scan.
    pub features: Features,
}

/// One entry of a period recording. `group` is the position in the header's list.
#[derive(Debug, Clone)]
pub enum Frame {
    /// The tracker lost periods.
    Lost {
        /// Number of the group.
        group: usize,
        /// Number of periods lost.
        periods: u32,
        /// The reason, for people.
        reason: String,
    },
    /// The scan of a period.
    Scan {
        /// Number of the group.
        group: usize,
        /// The scan; its layout is the same `Arc` as in the scan before when nothing changed.
        scan: Scan,
    },
    /// The budget of the plan.
    Budget {
        /// Number of the group.
        group: usize,
        /// Number of the period.
        period: u64,
        /// The budget.
        budget: Budget,
    },
    /// The decision of the policy.
    Decision {
        /// Number of the group.
        group: usize,
        /// Number of the period.
        period: u64,
        /// The decision.
        decision: RecordedDecision,
    },
    /// The outcome of the plan.
    Outcome {
        /// Number of the group.
        group: usize,
        /// Number of the period.
        period: u64,
        /// The outcome.
        outcome: Outcome,
    },
    /// The group ended.
    Ended {
        /// Number of the group.
        group: usize,
    },
}

impl Frame {
    /// Number of its group.
    pub fn group(&self) -> usize {
        match self {
            Frame::Lost { group, .. }
            | Frame::Scan { group, .. }
            | Frame::Budget { group, .. }
            | Frame::Decision { group, .. }
            | Frame::Outcome { group, .. }
            | Frame::Ended { group } => *group,
        }
    }
}

/// The scan before, of one group.
#[derive(Debug, Clone)]
struct Before {
    layout: Arc<Layout>,
    accessed: PageBits,
    fast: PageBits,
    frames: Option<Arc<[u64]>>,
    active: Option<PageBits>,
}

fn frame_head(out: &mut Vec<u8>, code: u8, group: usize, numbers: &[u64]) {
    out.push(code);
    put_number(out, group as u64);
    numbers.iter().for_each(|&n| put_number(out, n));
}

/// Turns frames into bytes.
pub(super) struct Encoder {
    before: Vec<Option<Before>>,
}

impl Encoder {
    pub(super) fn new(groups: usize) -> Self {
        Encoder { before: vec![None; groups] }
    }

    /// What follows does not depend on earlier frames.
    pub(super) fn begin_chunk(&mut self) {
        self.before.fill(None);
    }

    pub(super) fn lost(&self, out: &mut Vec<u8>, group: usize, periods: u32, reason: &str) {
        frame_head(out, LOST, group, &[periods.into()]);
        put_text(out, reason);
    }

    pub(super) fn scan(&mut self, out: &mut Vec<u8>, group: usize, scan: &Scan) {
        frame_head(out, SCAN, group, &[scan.period, scan.lost_periods.into()]);
        let before = self.before[group].as_ref();
        let same =
            before.filter(|b| Arc::ptr_eq(&b.layout, &scan.layout) || b.layout == scan.layout);
        let frames = match (&scan.frames, same.and_then(|b| b.frames.as_ref())) {
            (None, _) => 0,
            (Some(now), Some(before)) if Arc::ptr_eq(now, before) || now == before => SAME_FRAMES,
            (Some(_), _) => WITH_FRAMES,
        };
        let counters = if scan.counters.is_some() { WITH_COUNTERS } else { 0 };
        let active = if scan.active.is_some() { WITH_ACTIVE } else { 0 };
        let counts = if scan.counts.is_some() { WITH_COUNTS } else { 0 };
        let bits = if same.is_some() { CHANGED_BITS } else { WITH_LAYOUT };
        out.push(counts | active | counters | frames | bits);
        if same.is_none() {
            put_layout(out, &scan.layout);
        }
        put_bits(out, &scan.accessed, same.map(|b| &b.accessed));
        put_bits(out, &scan.fast, same.map(|b| &b.fast));
        if frames == WITH_FRAMES {
            put_frames(out, scan.frames.as_deref().unwrap_or_default());
        }
        if let Some(active) = &scan.active {
            put_bits(out, active, same.and_then(|b| b.active.as_ref()));
        }
        if let Some(counts) = &scan.counts {
            put_counts(out, counts, &scan.accessed);
        }
        if let Some(counters) = &scan.counters {
            put_counters(out, counters);
        }
        self.before[group] = Some(Before {
            layout: scan.layout.clone(),
            accessed: scan.accessed.clone(),
            fast: scan.fast.clone(),
            frames: scan.frames.clone(),
            active: scan.active.clone(),
        });
    }

    pub(super) fn budget(&self, out: &mut Vec<u8>, group: usize, period: u64, budget: &Budget) {
        frame_head(out, BUDGET, group, &[period, budget.fast_pages, budget.moved_pages]);
    }

    pub(super) fn decision(
        &self,
        out: &mut Vec<u8>,
        group: usize,
        period: u64,
        decision: &Decision,
    ) {
        frame_head(out, DECISION, group, &[period]);
        put_text(out, decision.applied);
        put_features(out, &decision.features);
        let plan = &decision.plan;
        put_ranges(out, plan.promotions.len(), plan.promotions.iter());
        put_ranges(out, plan.demotions.len(), plan.demotions.iter());
        put_ranges(out, plan.exchanges.len(), plan.exchanges.iter().map(|e| &e.up));
        put_ranges(out, plan.exchanges.len(), plan.exchanges.iter().map(|e| &e.down));
        put_number(out, plan.operation_sizes.len() as u64);
        for OperationSize { space, promotion_bytes, demotion_bytes } in &plan.operation_sizes {
            put_number(out, space.0.into());
            put_number(out, *promotion_bytes);
            put_number(out, *demotion_bytes);
        }
    }

    pub(super) fn outcome(&self, out: &mut Vec<u8>, group: usize, period: u64, outcome: &Outcome) {
        let Outcome {
            promoted_pages, demoted_pages, exchanged_pairs, operations, failures, ..
        } = outcome;
        let numbers = [period, *promoted_pages, *demoted_pages, *exchanged_pairs, *operations];
        frame_head(out, OUTCOME, group, &numbers);
        put_ranges(out, failures.len(), failures.iter().map(|f| &f.range));
        for failure in failures {
            out.push((failure.direction == Direction::Demotion).into());
            put_text(out, failure.reason.name());
        }
    }

    pub(super) fn ended(&self, out: &mut Vec<u8>, group: usize) {
        frame_head(out, ENDED, group, &[]);
    }
}

/// A layout as its extents.
pub(crate) fn put_layout(out: &mut Vec<u8>, layout: &Layout) {
    put_number(out, layout.extents().len() as u64);
    let mut writer = RangeWriter::new();
    for e in layout.extents() {
        let size_bytes = e.pages * layout.page_size().bytes();
        writer.put(out, &VirtualRange { space: e.space, start: e.start, size_bytes });
    }
}

/// Neighbours in virtual memory are often neighbours in physical memory: these take one byte.
fn put_frames(out: &mut Vec<u8>, frames: &[u64]) {
    let mut next = 0u64;
    for &frame in frames {
        put_signed(out, frame.wrapping_sub(next) as i64);
        next = frame.wrapping_add(1);
    }
}

/// Numbers, then the samples: of each page that has some its distance from the one before.
fn put_counters(out: &mut Vec<u8>, counters: &PeriodCounters) {
    let PeriodCounters {
        elapsed_ns,
        migration_stall_ns,
        slow_stall_ns,
        references,
        reads,
        read_latency_ps,
        samples,
        reads_per_sample,
    } = counters;
    for number in [*elapsed_ns, *migration_stall_ns, *slow_stall_ns, *references] {
        put_number(out, number);
    }
    for number in reads.iter().chain(read_latency_ps) {
        put_number(out, *number);
    }
    put_number(out, (*reads_per_sample).into());
    out.push(samples.is_some().into());
    let Some(samples) = samples else { return };
    put_number(out, samples.iter().filter(|&&count| count > 0).count() as u64);
    let mut next = 0;
    for (page, &count) in samples.iter().enumerate().filter(|(_, count)| **count > 0) {
        put_number(out, (page - next) as u64);
        put_number(out, count.into());
        next = page + 1;
    }
}

fn take_counters(from: &mut Cursor<'_>, pages: usize) -> Result<PeriodCounters, Malformed> {
    let mut counters = PeriodCounters {
        elapsed_ns: from.number()?,
        migration_stall_ns: from.number()?,
        slow_stall_ns: from.number()?,
        references: from.number()?,
        reads: [from.number()?, from.number()?],
        read_latency_ps: [from.number()?, from.number()?],
        samples: None,
        reads_per_sample: from.number_below(1 << 32, "reads for each sample")? as u32,
    };
    if from.byte()? == 0 {
        return Ok(counters);
    }
    let mut samples = vec![0u16; pages];
    let mut next = 0usize;
    for _ in 0..from.count("sampled pages")? {
        let gap = from.number_below(pages.saturating_sub(next) as u64, "sampled page")?;
        let page = next + gap as usize;
        samples[page] = from.number_below(1 << 16, "samples of a page")? as u16;
        next = page + 1;
    }
    counters.samples = Some(samples.into());
    Ok(counters)
}

/// The counts of the accessed pages; the others have none.
fn put_counts(out: &mut Vec<u8>, counts: &AccessCounts, accessed: &PageBits) {
    put_number(out, counts.samples.into());
    put_number(out, counts.interval_us.into());
    out.extend(accessed.iter_ones().map(|page| counts.counts[page]));
}

fn take_counts(from: &mut Cursor<'_>, accessed: &PageBits) -> Result<AccessCounts, Malformed> {
    let samples = from.number_below(1 << 8, "samples of a period")? as u8;
    let interval_us = from.number_below(1 << 32, "interval of samples")? as u32;
    let mut counts = vec![0u8; accessed.len()];
    for page in accessed.iter_ones() {
        let count = from.byte()?;
        if count == 0 || count > samples {
            return Err(Malformed(format!(
                "an accessed page in {count} of {samples} samples, expected 1 to {samples}"
            )));
        }
        counts[page] = count;
    }
    Ok(AccessCounts { samples, interval_us, counts: counts.into() })
}

fn put_ranges<'a>(out: &mut Vec<u8>, count: usize, ranges: impl Iterator<Item = &'a VirtualRange>) {
    put_number(out, count as u64);
    let mut writer = RangeWriter::new();
    ranges.for_each(|r| writer.put(out, r));
}

fn put_features(out: &mut Vec<u8>, features: &Features) {
    let Features {
        hit_ratio,
        hit_ratio_of_all,
        stability,
        accessed_ratio,
        lru_hit_average,
        lfu_hit_average,
    } = *features;
    out.push(u8::from(lru_hit_average.is_some()) | u8::from(lfu_hit_average.is_some()) << 1);
    let always = [hit_ratio, hit_ratio_of_all, stability, accessed_ratio];
    for value in always.into_iter().chain(lru_hit_average).chain(lfu_hit_average) {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

/// Turns bytes into frames.
#[derive(Debug)]
pub(super) struct Decoder {
    page_sizes: Vec<PageSize>,
    /// Version of the content.
    version: u32,
    before: Vec<Option<Before>>,
    /// Whether `before` belongs to the chunk being read: bits may then be relative to it.
    in_chunk: Vec<bool>,
}

impl Decoder {
    pub(super) fn new(page_sizes: Vec<PageSize>, version: u32) -> Self {
        let groups = page_sizes.len();
        Decoder { page_sizes, version, before: vec![None; groups], in_chunk: vec![false; groups] }
    }

    pub(super) fn begin_chunk(&mut self) {
        self.in_chunk.fill(false);
    }

    pub(super) fn frame(&mut self, from: &mut Cursor<'_>) -> Result<Frame, Malformed> {
        let code = from.byte()?;
        let group = from.number_below(self.page_sizes.len() as u64, "group")? as usize;
        let frame = match code {
            LOST => Frame::Lost { group, periods: small(from)?, reason: from.text()? },
            SCAN => Frame::Scan { group, scan: self.scan(from, group)? },
            BUDGET => {
                let (period, fast_pages, moved_pages) =
                    (from.number()?, from.number()?, from.number()?);
                Frame::Budget { group, period, budget: Budget { fast_pages, moved_pages } }
            }
            DECISION => {
                let (period, decision) = (from.number()?, take_decision(from, self.version)?);
                Frame::Decision { group, period, decision }
            }
            OUTCOME => {
                let (period, outcome) = (from.number()?, take_outcome(from, self.version)?);
                Frame::Outcome { group, period, outcome }
            }
            ENDED => Frame::Ended { group },
            other => {
                return Err(Malformed(format!("frame code {other}, expected {LOST} to {ENDED}")));
            }
        };
        Ok(frame)
    }

    fn scan(&mut self, from: &mut Cursor<'_>, group: usize) -> Result<Scan, Malformed> {
        let period = from.number()?;
        let lost_periods = small(from)?;
        let before = self.before[group].as_ref();
        let flags = from.byte()?;
        let frames = flags & (WITH_FRAMES | SAME_FRAMES);
        let (counters, active) = (flags & WITH_COUNTERS, flags & WITH_ACTIVE);
        let counts = flags & WITH_COUNTS;
        let before_here = before.filter(|_| self.in_chunk[group]);
        let (layout, base) = match (flags & !frames & !counters & !active & !counts, before_here) {
            (CHANGED_BITS, Some(before)) => (before.layout.clone(), Some(before)),
            (WITH_LAYOUT, _) => {
                let layout = take_layout(from, self.page_sizes[group])?;
                let same = before.map(|b| &b.layout).filter(|l| ***l == layout);
                (same.cloned().unwrap_or_else(|| Arc::new(layout)), None)
            }
            _ => {
                return Err(Malformed(format!(
                    "scan flags {flags}, expected {WITH_LAYOUT}, or {CHANGED_BITS} after a scan of the same group"
                )));
            }
        };
        let accessed = from.bits(layout.pages(), base.map(|b| &b.accessed))?;
        let fast = from.bits(layout.pages(), base.map(|b| &b.fast))?;
        let frames = match (frames, base.and_then(|b| b.frames.as_ref())) {
            (0, _) => None,
            (WITH_FRAMES, _) => Some(take_frames(from, layout.pages())?),
            (SAME_FRAMES, Some(frames)) => Some(frames.clone()),
            _ => {
                return Err(Malformed(format!(
                    "scan flags {flags}, expected frames, or those of a scan before them"
                )));
            }
        };
        let active = match active {
            0 => None,
            _ => {
                let base = base.and_then(|b| b.active.as_ref());
                Some(from.bits(layout.pages(), base)?)
            }
        };
        let counts = match counts {
            0 => None,
            _ => Some(take_counts(from, &accessed)?),
        };
        let counters = match counters {
            0 => None,
            _ => Some(Arc::new(take_counters(from, layout.pages())?)),
        };
        self.in_chunk[group] = true;
        self.before[group] = Some(Before {
            layout: layout.clone(),
            accessed: accessed.clone(),
            fast: fast.clone(),
            frames: frames.clone(),
            active: active.clone(),
        });
        let scan = Scan::new(period, layout, accessed, fast);
        Ok(Scan { lost_periods, frames, active, counts, counters, ..scan })
    }
}

fn take_frames(from: &mut Cursor<'_>, pages: usize) -> Result<Arc<[u64]>, Malformed> {
    // Each takes at least a byte: never more memory than the bytes at hand can fill.
    let mut frames = Vec::with_capacity(pages.min(from.remaining()));
    let mut next = 0u64;
    for _ in 0..pages {
        let frame = next.wrapping_add(from.signed()? as u64);
        frames.push(frame);
        next = frame.wrapping_add(1);
    }
    Ok(frames.into())
}

fn take_operation_sizes(from: &mut Cursor<'_>) -> Result<Vec<OperationSize>, Malformed> {
    let count = from.count("operation sizes")?;
    let mut sizes: Vec<OperationSize> = Vec::new();
    for _ in 0..count {
        let space = SpaceId(from.number_below(1 << 32, "address space")? as u32);
        let (promotion_bytes, demotion_bytes) = (from.number()?, from.number()?);
        let sorted = sizes.last().is_none_or(|last| last.space < space);
        if promotion_bytes == 0 || demotion_bytes == 0 || !sorted {
            return Err(Malformed(format!(
                "operations of {promotion_bytes} and {demotion_bytes} bytes in space {}, expected some, and spaces ascending",
                space.0
            )));
        }
        sizes.push(OperationSize { space, promotion_bytes, demotion_bytes });
    }
    Ok(sizes)
}

fn small(from: &mut Cursor<'_>) -> Result<u32, Malformed> {
    Ok(from.number_below(1 << 32, "number of lost periods")? as u32)
}

/// The counterpart of [`put_layout`].
pub(crate) fn take_layout(from: &mut Cursor<'_>, page_size: PageSize) -> Result<Layout, Malformed> {
    let count = from.count("extents")?;
    let mut reader = RangeReader::new();
    let mut extents = Vec::new();
    for _ in 0..count {
        let VirtualRange { space, start, size_bytes } = reader.take(from)?;
        if size_bytes % page_size.bytes() != 0 {
            let size = page_size.bytes();
            return Err(Malformed(format!("an extent of {size_bytes} bytes in pages of {size}")));
        }
        extents.push(Extent {
            space: SpaceId(space.0),
            start,
            pages: size_bytes / page_size.bytes(),
        });
    }
    Layout::new(page_size, extents).map_err(|e| Malformed(e.to_string()))
}

fn take_ranges(from: &mut Cursor<'_>) -> Result<Vec<VirtualRange>, Malformed> {
    let count = from.count("ranges")?;
    let mut reader = RangeReader::new();
    (0..count).map(|_| reader.take(from)).collect()
}

fn take_features(from: &mut Cursor<'_>) -> Result<Features, Malformed> {
    let averages = from.byte()?;
    if averages > 3 {
        return Err(Malformed(format!("feature flags {averages}, expected 0 to 3")));
    }
    let mut features = Features {
        hit_ratio: from.float()?,
        hit_ratio_of_all: from.float()?,
        stability: from.float()?,
        accessed_ratio: from.float()?,
        ..Features::default()
    };
    if averages & 1 != 0 {
        features.lru_hit_average = Some(from.float()?);
    }
    if averages & 2 != 0 {
        features.lfu_hit_average = Some(from.float()?);
    }
    Ok(features)
}

fn take_decision(from: &mut Cursor<'_>, version: u32) -> Result<RecordedDecision, Malformed> {
    let applied = from.text()?;
    let features = take_features(from)?;
    let (promotions, demotions) = (take_ranges(from)?, take_ranges(from)?);
    let (up, down) = (take_ranges(from)?, take_ranges(from)?);
    if up.len() != down.len() {
        return Err(Malformed(format!("exchanges of {} with {} ranges", up.len(), down.len())));
    }
    let exchanges = up.into_iter().zip(down).map(|(up, down)| Exchange { up, down }).collect();
    let operation_sizes = if version >= 2 { take_operation_sizes(from)? } else { Vec::new() };
    let plan = Plan { promotions, demotions, exchanges, operation_sizes, ..Plan::default() };
    Ok(RecordedDecision { plan, applied, features })
}

fn take_outcome(from: &mut Cursor<'_>, version: u32) -> Result<Outcome, Malformed> {
    let (promoted_pages, demoted_pages) = (from.number()?, from.number()?);
    let exchanged_pairs = from.number()?;
    let operations = if version >= 2 { from.number()? } else { 0 };
    let mut failures = Vec::new();
    for range in take_ranges(from)? {
        let direction = match from.byte()? {
            0 => Direction::Promotion,
            1 => Direction::Demotion,
            other => return Err(Malformed(format!("direction {other}, expected 0 or 1"))),
        };
        let name = from.text()?;
        let reason = FailureReason::ALL
            .into_iter()
            .find(|r| r.name() == name)
            .ok_or_else(|| Malformed(format!("failure reason '{name}' is not known")))?;
        failures.push(Failure { range, direction, reason });
    }
    Ok(Outcome {
        promoted_pages,
        demoted_pages,
        exchanged_pairs,
        operations,
        failures,
        ..Outcome::default()
    })
}
