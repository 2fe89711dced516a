//! Colloid-like: pages are placed so that both tiers answer equally fast ("Tiered Memory Management:
//! Access Latency is the Key!", Vuppalapati and Agarwal, SOSP 2024, section 3).
//!
//! The tier with the smaller latency *as loaded* should serve more: `p` is the share of reads that
//! fast memory serves. While fast memory answers sooner, hot pages are promoted; while a loaded
//! fast tier answers later than the slow one, hot pages are demoted. How much `p` should change
//! follows the paper's algorithm 2: two bounds close in on the balance, half of the way at a time,
//! and one of them opens again when they have met and the latencies still differ. Latencies that
//! are within `balance_ratio` of each other are balanced. Which pages: the hottest, by counts of
//! samples that cool, as in HeMem, the first of the systems that the paper puts Colloid on.
//!
//! Latencies come with the scan ([`PeriodCounters::read_latency_ps`]). **Without them** the policy takes
//! fast memory to be the faster one and promotes all that is hotter than what fast memory holds;
//! decisions then name `colloid-unmeasured`.
//!
//! What is simplified:
//! - The paper measures latency as queue occupancy over rate at the caching and home agents, with
//!   moving averages; a machine of Terrace reports the mean of the period, averaged here.
//! - Counts are of sampled reads, or of accessed bits where reads are not sampled.
//! - The paper bounds migration by a fraction of the bandwidth; here it is the budget's moves.

use super::sampled::{BINS, SampleCounts, bin};
use crate::bits::PageBits;
use crate::builder::PlanBuilder;
use crate::declare_parameters;
use crate::features::FeatureCounter;
use crate::plan::{Decision, Plan};
use crate::policy::{Policy, PolicyKind, parameters};
use crate::scan::{Budget, PeriodCounters, Scan};
use crate::select::KeyCounts;

declare_parameters! {
    struct Parameters {
        cooling_samples_per_page: u32 = 8, from 1 to 1000000
            => "samples after which counts are halved, by page";
        balance_ratio: f64 = 0.05, from 0 to 1 => "latencies that differ by less are balanced";
        bound_gap: f64 = 0.01, from 0 to 1
            => "bounds of the share of reads that are nearer than this have met";
        resident_bonus: u8 = 1, from 0 to 255
            => "doublings of its count by which a page in fast memory counts as hotter";
    }
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "colloid",
    summary: "shifts hot pages until both tiers, as loaded, answer equally fast",
    advice: "where fast memory is so loaded that it is no faster; needs measured latencies, else it promotes what is hot",
    source: "Colloid, SOSP 2024, section 3",
    parameters: Parameters::DOCS,
    build: |value, _seed| Ok(Box::new(Colloid::new(parameters(KIND.name, value)?))),
};

/// The change that the latencies call for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shift {
    /// This much of all reads should come to fast memory.
    Up(f64),
    /// This much should leave fast memory.
    Down(f64),
    /// The tiers are balanced.
    Stay,
}

/// The bounds that close in on the balance.
#[derive(Debug)]
struct Balance {
    low: f64,
    high: f64,
    /// Moving averages of the latencies.
    latency_ps: [f64; 2],
}

impl Balance {
    fn new() -> Self {
        Balance { low: 0.0, high: 1.0, latency_ps: [0.0; 2] }
    }

    /// `None` where the latencies are not known.
    fn shift(&mut self, counters: Option<&PeriodCounters>, p: &Parameters) -> Option<Shift> {
        let counters = counters?;
        for (average, &now) in self.latency_ps.iter_mut().zip(&counters.read_latency_ps) {
            if now > 0 {
                let first = *average == 0.0;
                *average = if first { now as f64 } else { (*average + now as f64) / 2.0 };
            }
        }
        let [fast, slow] = self.latency_ps;
        if fast == 0.0 || slow == 0.0 {
            return None;
        }
        let reads = (counters.reads[0] + counters.reads[1]).max(1) as f64;
        let share = counters.reads[0] as f64 / reads;
        if (fast - slow).abs() <= p.balance_ratio * fast.min(slow) {
            return Some(Shift::Stay);
        }
        let up = fast < slow;
        if up {
            self.low = share;
        } else {
            self.high = share;
        }
        if self.high - self.low <= p.bound_gap {
            // They have met and the balance is elsewhere: load has changed.
            if up {
                self.high = 1.0;
            } else {
                self.low = 0.0;
            }
        }
        // Where fast memory is faster even when idle there is no balance to close in on: the
        // whole way is open.
        let target = if up && self.high >= 1.0 { 1.0 } else { (self.low + self.high) / 2.0 };
        let by = (target - share).abs();
        Some(if up { Shift::Up(by) } else { Shift::Down(by) })
    }
}

#[derive(Debug)]
struct Colloid {
    parameters: Parameters,
    features: FeatureCounter,
    samples: SampleCounts,
    balance: Balance,
    keys: Vec<u8>,
}

/// The key of pages without a sample.
const COLDEST: u8 = BINS as u8 - 1;

impl Colloid {
    fn new(parameters: Parameters) -> Self {
        let p = &parameters;
        Colloid {
            features: FeatureCounter::default(),
            samples: SampleCounts::new(p.cooling_samples_per_page),
            balance: Balance::new(),
            keys: Vec::new(),
            parameters,
        }
    }

    /// How many of the hottest pages of one tier have this share of all counts.
    fn hottest(&self, scan: &Scan, fast: bool, share: f64) -> u64 {
        let mut bins = [(0u64, 0u64); BINS];
        let mut all = 0;
        for (page, &count) in self.samples.counts().iter().enumerate() {
            all += u64::from(count);
            if scan.fast.get(page) == fast {
                let (pages, sum) = &mut bins[bin(count)];
                *pages += 1;
                *sum += u64::from(count);
            }
        }
        let mut wanted = share * all as f64;
        let mut number = 0;
        for (pages, sum) in bins.into_iter().skip(1).rev() {
            if wanted <= 0.0 {
                break;
            }
            let part = (wanted / (sum as f64).max(1.0)).min(1.0);
            number += (pages as f64 * part).ceil() as u64;
            wanted -= sum as f64;
        }
        number
    }
}

impl Colloid {
    /// Demotes this many pages of fast memory, the hottest first, so that few have to move.
    fn hottest_down(&self, scan: &Scan, pages: u64) -> Plan {
        let mut pages_of = [const { Vec::new() }; BINS];
        for page in scan.fast.iter_ones() {
            pages_of[usize::from(self.keys[page])].push(page);
        }
        let mut downs = PageBits::new(scan.pages());
        let hottest = pages_of[..usize::from(COLDEST)].iter().flatten();
        hottest.take(pages as usize).for_each(|&page| downs.set(page, true));
        PlanBuilder::apart(&scan.layout, &PageBits::new(scan.pages()), &downs)
    }
}

impl Policy for Colloid {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.features.follow(scan) {
            self.samples.remap(&remap);
        }
        let (features, resident) = self.features.count(scan);
        self.samples.observe(scan);
        let shift = self.balance.shift(scan.counters.as_deref(), &self.parameters);
        let due = resident.saturating_sub(budget.fast_pages).min(budget.moved_pages);
        let (pairs, downs) = match shift {
            None => (u64::MAX, 0),
            Some(Shift::Up(by)) => (self.hottest(scan, false, by), 0),
            Some(Shift::Down(by)) => (0, self.hottest(scan, true, by)),
            Some(Shift::Stay) => (0, 0),
        };

        self.keys.clear();
        self.keys.extend(self.samples.counts().iter().map(|&count| COLDEST - bin(count) as u8));
        self.keys.resize(scan.pages().next_multiple_of(64), COLDEST);
        let fast = scan.fast.words();
        if downs > 0 && due == 0 {
            let plan = self.hottest_down(scan, downs.min(budget.moved_pages));
            return Decision { plan, applied: KIND.name, features };
        }
        // Into free room one move does what a pair does.
        let into_room = pairs.min(budget.fast_pages.saturating_sub(resident));
        let moves = into_room.saturating_add((pairs - into_room).saturating_mul(2));
        let moved_pages = due.saturating_add(moves).min(budget.moved_pages);
        let mut counts = KeyCounts::new();
        for (keys, &fast) in self.keys.as_chunks::<64>().0.iter().zip(fast) {
            counts.count(keys, fast);
        }
        let allowed = Budget { moved_pages, ..*budget };
        let selection = counts.select(COLDEST, &allowed, self.parameters.resident_bonus);
        let plan = PlanBuilder::selected(&scan.layout, &selection, &self.keys, fast);
        let applied = if shift.is_none() { "colloid-unmeasured" } else { KIND.name };
        Decision { plan, applied, features }
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes() + self.samples.size_bytes() + self.keys.capacity()
    }
}
