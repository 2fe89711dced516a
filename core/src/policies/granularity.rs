//! Migration granularity (migration-granularity paper, section 4; `docs/coverage.md`, G1 to G3):
//! contiguous virtual memory is scanned and moved, and how much of it moves in one operation is
//! adapted to how densely it is used.
//!
//! Each period, and for each address space by itself, two scans read virtual memory: the
//! *move-in* scan over pages in slow memory and the *move-out* scan over pages in fast memory. Each
//! continues where the one before ended and reads 4,096 pages of its tier. The move-out scan lowers
//! the granularity when it finds sparsely used regions, the move-in scan raises it when it finds
//! densely used ones (`thresholds`). Then regions of that size with an accessed page in slow
//! memory go up, for regions with idle pages in fast memory (`choose`).
//!
//! - An accessed bit stays set until a scan reads and clears it, as in a page table.
//! - The paper's scan begins at a page *frame* after the last one, finds its virtual page and goes
//!   on from there in virtual memory. A policy has the whole of a group's virtual memory, so the
//!   scan begins at the virtual page after the last one.
//! - The paper's two scans are threads of their own; here the move-out scan comes first, and both
//!   ways move by what the move-in scan leaves. So densely used slow memory decides. The
//!   other way round, a program that streams would be at 4 KB for as long as fast memory holds what
//!   the stream has left there, and the paper's figure 11 shows such programs at 2 MB.
//! - A region at the end of a scan is judged by the pages that this scan read.
//! - An address space begins at 4 KB.

mod choose;
mod regions;
mod scan;
mod thresholds;
mod unfinished;

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::Value;

use crate::bits::PageBits;
use crate::declare_parameters;
use crate::features::FeatureCounter;
use crate::operations::{OperationSize, region_bytes};
use crate::page::SpaceId;
use crate::plan::Decision;
use crate::policy::{Policy, PolicyError, PolicyKind, parameters};
use crate::scan::{Budget, Scan};

pub(super) use choose::{Granule, Trade, plan};
use regions::Space;
use scan::{Scanned, Tier};
use thresholds::{Level, Thresholds};
pub(super) use unfinished::{Due, Leftover, Unfinished};

const SOURCE: &str = "migration-granularity paper, section 4";

pub(super) const DYNAMIC: PolicyKind = PolicyKind {
    name: "granularity",
    summary: "moves contiguous virtual memory in steps of 4 KB, 64 KB or 2 MB, as densely as it is used",
    advice: "to study how much to move at once; behind amp in the means of docs/policies.md",
    source: SOURCE,
    parameters: Parameters::DOCS,
    build: |value, _seed| {
        let p: Parameters = parameters(DYNAMIC.name, value)?;
        let fixed = match p.granularity.as_str() {
            "dynamic" => None,
            size => Some(size_bytes(size).ok_or_else(|| PolicyError::BadParameter {
                policy: DYNAMIC.name,
                message: format!(
                    "granularity is '{size}'; expected \"dynamic\" or a multiple of 4 KB, as in \"64K\""
                ),
            })?),
        };
        let scans = Scans { scan_pages: p.scan_pages, scans_per_period: p.scans_per_period };
        Ok(Box::new(Granularity::new(
            DYNAMIC.name,
            fixed,
            scans,
            p.trade,
            p.leftover,
            p.thresholds(),
        )))
    },
};

pub(super) const STATIC_4K: PolicyKind = PolicyKind {
    name: "granularity-4k",
    summary: "scans contiguous virtual memory and moves always 4 KB at once",
    advice: "beside granularity, to see what adapting adds to small moves",
    source: SOURCE,
    parameters: StaticParameters::DOCS,
    build: |value, _seed| always(STATIC_4K.name, Level::Base, value),
};

pub(super) const STATIC_64K: PolicyKind = PolicyKind {
    name: "granularity-64k",
    summary: "scans contiguous virtual memory and moves always 64 KB at once",
    advice: "beside granularity, to see what adapting adds to middling moves",
    source: SOURCE,
    parameters: StaticParameters::DOCS,
    build: |value, _seed| always(STATIC_64K.name, Level::Medium, value),
};

pub(super) const STATIC_2M: PolicyKind = PolicyKind {
    name: "granularity-2m",
    summary: "scans contiguous virtual memory and moves always 2 MB at once",
    advice: "beside granularity, to see what adapting adds to large moves",
    source: SOURCE,
    parameters: StaticParameters::DOCS,
    build: |value, _seed| always(STATIC_2M.name, Level::Large, value),
};

fn always(name: &'static str, level: Level, value: &Value) -> Result<Box<dyn Policy>, PolicyError> {
    let p: StaticParameters = parameters(name, value)?;
    let scans = Scans { scan_pages: p.scan_pages, scans_per_period: p.scans_per_period };
    let bytes = Some(level.bytes());
    let policy = Granularity::new(name, bytes, scans, p.trade, p.leftover, Thresholds::default());
    Ok(Box::new(policy))
}

/// A size: a multiple of 4 KB, with K, M or G of powers of 1024 or in bytes.
fn size_bytes(text: &str) -> Option<u64> {
    let unit = text.chars().last()?.to_ascii_uppercase();
    let (digits, shift) = match "KMG".find(unit) {
        Some(power) => (&text[..text.len() - 1], 10 * (power as u32 + 1)),
        None => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    (bytes > 0 && bytes.is_multiple_of(4096)).then_some(bytes)
}

/// How much is scanned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scans {
    pub scan_pages: u32,
    pub scans_per_period: u32,
}

declare_parameters! {
    /// Of a static granularity.
    struct StaticParameters {
        scan_pages: u32 = 4096, from 1 to 4294967295u32 => "pages of its tier that one scan sees";
        scans_per_period: u32 = 1, from 1 to 1000000
            => "scans of each tier in a period; each counts its regions anew";
        trade: Trade = Trade::MoreUsed, written "\"more-used\""
            => "\"more-used\": a region goes up for one that is used less; \"any\": for any with idle \
                pages";
        leftover: Leftover = Leftover::Drop, written "\"drop\""
            => "what did not move before the next scan: \"drop\" it; \"continue\" with it while scans find \
                nothing to promote; \"finish\" it, and scan a tier again only then";
    }
}

declare_parameters! {
    struct Parameters {
        granularity: String = "dynamic".to_owned(), written "\"dynamic\""
            => "\"dynamic\", or always this much: a multiple of 4 KB, as in \"64K\"";
        scan_pages: u32 = 4096, from 1 to 4294967295u32 => "pages of its tier that one scan sees";
        scans_per_period: u32 = 1, from 1 to 1000000
            => "scans of each tier in a period; each counts its regions anew";
        trade: Trade = Trade::MoreUsed, written "\"more-used\""
            => "\"more-used\": a region goes up for one that is used less; \"any\": for any with idle \
                pages";
        leftover: Leftover = Leftover::Drop, written "\"drop\""
            => "what did not move before the next scan: \"drop\" it; \"continue\" with it while scans find \
                nothing to promote; \"finish\" it, and scan a tier again only then";
        thr_high_2mb: u32 = 480
            => "a 2 MB region in slow memory with more accessed 4 KB pages is dense";
        thr_high_64kb: u32 = 10
            => "a 64 KB region in slow memory with more accessed 4 KB pages is dense";
        thr_high_num_reg_2mb: u32 = 3 => "more dense 2 MB regions in a scan set 2 MB";
        thr_high_num_reg_64kb: u32 = 3 => "else more dense 64 KB regions in a scan raise to 64 KB";
        thr_low_2mb: u32 = 480
            => "a 2 MB region in fast memory with fewer accessed 4 KB pages is sparse";
        thr_low_64kb: u32 = 10
            => "a 64 KB region in fast memory with fewer accessed 4 KB pages is sparse";
        thr_low_num_reg_2mb: u32 = 3
            => "more sparse 2 MB regions in a scan lower it, to 4 KB or from 2 MB to 64 KB";
        thr_low_num_reg_64kb: u32 = 3
            => "more sparse 64 KB regions lower it to 4 KB, fewer from 2 MB to 64 KB";
        keep_dense_2mb: bool = true
            => "lowering from 2 MB to 64 KB takes sparse 2 MB regions too; false: as the paper \
                words it";
    }
}

impl Parameters {
    fn thresholds(&self) -> Thresholds {
        Thresholds {
            thr_high_2mb: self.thr_high_2mb,
            thr_high_64kb: self.thr_high_64kb,
            thr_high_num_reg_2mb: self.thr_high_num_reg_2mb,
            thr_high_num_reg_64kb: self.thr_high_num_reg_64kb,
            thr_low_2mb: self.thr_low_2mb,
            thr_low_64kb: self.thr_low_64kb,
            thr_low_num_reg_2mb: self.thr_low_num_reg_2mb,
            thr_low_num_reg_64kb: self.thr_low_num_reg_64kb,
            keep_dense_2mb: self.keep_dense_2mb,
        }
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Parameters::default().thresholds()
    }
}

/// Data of one address space.
#[derive(Debug, Clone, Copy)]
struct State {
    level: Level,
    /// Addresses at which the next scans begin.
    move_in: u64,
    move_out: u64,
}

#[derive(Debug)]
struct Granularity {
    name: &'static str,
    /// The granularity of a static one.
    fixed_bytes: Option<u64>,
    scans: Scans,
    trade: Trade,
    leftover: Leftover,
    unfinished: Unfinished,
    thresholds: Thresholds,
    features: FeatureCounter,
    /// Accessed since a scan last read the page.
    accessed: PageBits,
    spaces: Vec<Space>,
    states: BTreeMap<SpaceId, State>,
}

/// The result of the scans of one period in one space.
struct Found {
    size: OperationSize,
    level: Level,
    ups: Vec<Granule>,
    downs: Vec<Granule>,
    /// What was read of slow and of fast memory.
    spans: [Vec<Range<usize>>; 2],
}

impl Granularity {
    fn new(
        name: &'static str,
        fixed_bytes: Option<u64>,
        scans: Scans,
        trade: Trade,
        leftover: Leftover,
        thresholds: Thresholds,
    ) -> Self {
        Granularity {
            name,
            fixed_bytes,
            scans,
            trade,
            leftover,
            unfinished: Unfinished::default(),
            thresholds,
            features: FeatureCounter::default(),
            accessed: PageBits::default(),
            spaces: Vec::new(),
            states: BTreeMap::new(),
        }
    }

    /// Scans one space as is due, adapts its granularity, and returns the pages that may move, with
    /// those that were read, whose accessed bits are to be cleared.
    fn space(&mut self, number: usize, scan: &Scan, due: Due) -> Found {
        let (space, fast) = (&self.spaces[number], &scan.fast);
        let start = State { level: Level::Base, move_in: 0, move_out: 0 };
        let mut state = self.states.get(&space.id).copied().unwrap_or(start);
        let (slow, fast) = (Tier::slow(fast), Tier::fast(fast));
        let count =
            |due: bool, tier: Tier<'_>| if due { tier.count(space.pages.clone()) } else { 0 };
        let mut left = [count(due.slow, slow), count(due.fast, fast)];
        let mut spans: [Vec<Range<usize>>; 2] = Default::default();
        for _ in 0..self.scans.scans_per_period {
            if left == [0, 0] {
                break;
            }
            let one = |tier, from, left: &mut u64, spans: &mut Vec<Range<usize>>| -> Scanned {
                let budget = u64::from(self.scans.scan_pages).min(*left);
                let from = Some(space.at_or_above(from)).filter(|&page| page < space.pages.end);
                let from = from.unwrap_or(space.pages.start);
                let found = scan::scan(space, tier, &self.accessed, &self.thresholds, from, budget);
                *left -= found.pages;
                spans.extend(found.spans.iter().cloned());
                found
            };
            if due.fast {
                let found = one(fast, state.move_out, &mut left[1], &mut spans[1]);
                state.level = self.thresholds.moving_out(state.level, &found.regions);
                state.move_out = address_of(space, found.next);
            }
            if due.slow {
                let found = one(slow, state.move_in, &mut left[0], &mut spans[0]);
                state.level = self.thresholds.moving_in(state.level, &found.regions);
                state.move_in = address_of(space, found.next);
            }
        }
        let bytes = self.fixed_bytes.unwrap_or(state.level.bytes());
        let region_bytes = region_bytes(Some(bytes), scan.layout.page_size());
        for spans in &mut spans {
            spans.sort_unstable_by_key(|span| span.start);
        }
        let of = |tier, spans| granules(space, tier, &self.accessed, spans, region_bytes);
        let (mut ups, mut downs) = (of(slow, &spans[0]), of(fast, &spans[1]));
        ups.retain(|granule| granule.share > 0);
        downs.retain(|granule| u64::from(granule.share) < choose::SHARES);
        self.states.insert(space.id, state);
        let size = OperationSize::both_ways(space.id, bytes);
        Found { size, level: state.level, ups, downs, spans }
    }
}

/// The address of a page, or one that no page has where the space has ended.
fn address_of(space: &Space, page: usize) -> u64 {
    if page < space.pages.end { space.address(page) } else { u64::MAX }
}

/// The granules of a tier that the scanned, ascending spans cover.
fn granules(
    space: &Space,
    tier: Tier<'_>,
    accessed: &PageBits,
    spans: &[Range<usize>],
    region_bytes: u64,
) -> Vec<Granule> {
    let mut granules = Vec::new();
    let mut open: Option<(Range<usize>, u64, u64)> = None;
    let mut close = |open: Option<(Range<usize>, u64, u64)>| {
        if let Some((pages, hits, scanned)) = open {
            let in_tier = tier.count(pages.clone());
            granules.push(Granule::new(pages, in_tier, hits, scanned));
        }
    };
    for span in spans {
        let mut at = span.start;
        while let Some(first) = (at < span.end).then(|| tier.first(at..span.end)).flatten() {
            let region = match &open {
                Some((pages, ..)) if pages.contains(&first) => pages.clone(),
                _ => {
                    let (_, region) = space.region(first, region_bytes);
                    close(open.replace((region.clone(), 0, 0)));
                    region
                }
            };
            at = region.end.min(span.end);
            let Some((_, hits, scanned)) = &mut open else { continue };
            tier.stretches(first..at, |pages| {
                *scanned += pages.len() as u64;
                *hits += accessed.count_range(pages) as u64;
            });
        }
    }
    close(open);
    granules
}

impl Policy for Granularity {
    fn name(&self) -> &'static str {
        self.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.features.follow(scan) {
            self.accessed = remap.bits(&self.accessed);
            self.unfinished.forget();
            self.spaces = regions::spaces(&scan.layout);
            let spaces = &self.spaces;
            self.states.retain(|id, _| spaces.binary_search_by_key(id, |s| s.id).is_ok());
        }
        let (features, resident) = self.features.count(scan);
        let words = self.accessed.words_mut().iter_mut().zip(scan.accessed.words());
        words.for_each(|(seen, &now)| *seen |= now);
        let (mut ups, mut downs, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut largest, mut read) = ((0, Level::Base), Vec::new());
        let due = self.unfinished.due(self.leftover, &scan.fast);
        for number in 0..self.spaces.len() {
            let found = self.space(number, scan, due);
            ups.extend(found.ups);
            downs.extend(found.downs);
            sizes.push(found.size);
            read.push(found.spans);
            let pages = self.spaces[number].pages.len();
            if pages > largest.0 {
                largest = (pages, found.level);
            }
        }
        let (ups, downs) = self.unfinished.candidates(self.leftover, due, &scan.fast, ups, downs);
        let mut plan = plan(scan, budget, resident, &self.accessed, ups, downs, self.trade);
        // The plan needs these bits: where the budget shrinks, accessed pages leave last.
        let tiers = [Tier::slow(&scan.fast), Tier::fast(&scan.fast)];
        for (tier, spans) in read.into_iter().flat_map(|spans| tiers.into_iter().zip(spans)) {
            for span in spans {
                tier.stretches(span, |pages| self.accessed.set_range(pages, false));
            }
        }
        if !plan.is_empty() {
            plan.operation_sizes = sizes;
        }
        let applied = if self.fixed_bytes.is_some() { self.name } else { largest.1.policy() };
        Decision { plan, applied, features }
    }

    fn metadata_bytes(&self) -> usize {
        let spaces: usize = self.spaces.iter().map(Space::size_bytes).sum();
        let states = self.states.len() * (size_of::<SpaceId>() + size_of::<State>());
        let unfinished = self.unfinished.size_bytes();
        self.features.size_bytes() + self.accessed.size_bytes() + spaces + states + unfinished
    }
}

#[cfg(test)]
mod tests;
