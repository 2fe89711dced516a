//! MEMTIS-like: a histogram of accesses decides how hot is hot enough ("MEMTIS: Efficient Memory
//! Tiering with Dynamic Page Classification and Page Size Determination", Lee et al., SOSP 2023,
//! sections 4.2 and 4.3).
//!
//! - Every page has a count of sampled accesses. A histogram of exponential bins (a page with a
//!   count of 2^n to 2^(n+1) is in bin n) holds how many pages are how hot.
//! - The *hot threshold* is the lowest bin from which on all pages fit in fast memory. Where they
//!   leave much of it unused, the bin below is *warm*; what is lower is *cold*.
//! - Hot pages of slow memory are promoted: into free room, else for cold pages of fast memory, else
//!   for warm ones. Warm pages stay where they are.
//! - *Cooling*: after so many samples all counts are halved, and the histogram moves by a bin.
//! - *Huge pages are split by skew.* When the hit ratio that base pages would reach (the hottest
//!   pages, as many as fast memory has room for) exceeds the real one by 5 points, the regions whose
//!   accesses are most skewed are split.
//!
//! What is simplified:
//! - Samples are those of the scan, where the machine samples reads ([`Scan::samples`]; MEMTIS has
//!   PEBS). Without them each accessed bit counts as one sample, so that counts reach no further
//!   than the number of periods, and the skew within a period is not observed.
//! - MEMTIS counts cooling in samples (2 million) and adapts its threshold every 100,000; here
//!   cooling comes after so many samples a page, and the threshold is adapted every period.
//! - A plan moves pages of the layout's size, so only a layout of base pages can be split. There,
//!   with `huge_region_bytes` set, each aligned region counts as one huge page, by the mean of
//!   its pages' counts, until it is split; then each page counts by itself. By default there are
//!   no such regions. What is split is not collapsed again.
//! - How many regions are split at once is the missing hit ratio times the regions; the paper
//!   derives it from samples a huge page.

use super::sampled::{BINS, SampleCounts, bin};
use crate::bits::PageBits;
use crate::builder::PlanBuilder;
use crate::declare_parameters;
use crate::features::FeatureCounter;
use crate::plan::Decision;
use crate::policy::{Policy, PolicyError, PolicyKind, parameters};
use crate::scan::{Budget, Scan};
use crate::select::KeyCounts;

declare_parameters! {
    struct Parameters {
        cooling_samples_per_page: u32 = 8, from 1 to 1000000
            => "samples after which counts are halved, by page";
        warm_below_ratio: f64 = 0.9, from 0 to 1
            => "when hot pages fill less of fast memory than this, the next bin is warm";
        huge_region_bytes: u64 = 0
            => "base pages of aligned regions of this size count as one huge page until it is split; \
                0: no regions";
        split_gain: f64 = 0.05, from 0 to 1 => "hit ratio that splitting must promise";
    }
}

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "memtis",
    summary: "promotes what a histogram of sampled accesses shows to fit in fast memory",
    advice: "where reads are sampled, and a few pages get most of them; with accessed bits alone it knows little",
    source: "MEMTIS, SOSP 2023, section 4",
    parameters: Parameters::DOCS,
    build: |value, _seed| Ok(Box::new(Memtis::new(parameters(KIND.name, value)?)?)),
};

/// Keys of the selection: hot pages of slow memory by bin, then what never moves for others, then
/// warm and cold pages of fast memory.
const STAYS: u8 = 0;
const WARM: u8 = 64;
const COLDEST: u8 = 127;

#[derive(Debug)]
struct Memtis {
    parameters: Parameters,
    features: FeatureCounter,
    samples: SampleCounts,
    /// Pages of regions that were split.
    split: PageBits,
    keys: Vec<u8>,
}

/// The hot and the warm threshold.
struct Thresholds {
    hot: usize,
    warm: usize,
}

impl Memtis {
    fn new(parameters: Parameters) -> Result<Self, PolicyError> {
        let bad = |message: String| PolicyError::BadParameter { policy: KIND.name, message };
        let p = &parameters;
        if !p.huge_region_bytes.is_multiple_of(4096) {
            let got = p.huge_region_bytes;
            return Err(bad(format!("huge_region_bytes is {got}; expected a multiple of 4096")));
        }
        Ok(Memtis {
            features: FeatureCounter::default(),
            samples: SampleCounts::new(p.cooling_samples_per_page),
            split: PageBits::default(),
            keys: Vec::new(),
            parameters,
        })
    }

    /// Calls `each` with every region that is whole: its pages, all of one extent.
    fn regions(&self, scan: &Scan, each: impl FnMut(std::ops::Range<usize>)) {
        let bytes = self.parameters.huge_region_bytes;
        if bytes > scan.layout.page_size().bytes() {
            scan.layout.regions(bytes, each);
        }
    }

    /// The hotness of each page: its count, or the mean of a region that is not split.
    fn hotness(&self, scan: &Scan) -> Vec<u16> {
        let counts = self.samples.counts();
        let mut hotness = counts.to_vec();
        self.regions(scan, |pages| {
            if !self.split.get(pages.start) {
                let sum: u64 = counts[pages.clone()].iter().map(|&c| u64::from(c)).sum();
                hotness[pages.clone()].fill((sum / pages.len() as u64) as u16);
            }
        });
        hotness
    }

    /// Splits the most skewed regions where base pages promise a better hit ratio.
    fn split_skewed(&mut self, scan: &Scan, budget: &Budget, hit_ratio: f64) {
        let mut regions = Vec::new();
        let counts = self.samples.counts();
        self.regions(scan, |pages| {
            let used = counts[pages.clone()].iter().filter(|&&c| c > 0).count() as f64;
            let squares: f64 = counts[pages.clone()].iter().map(|&c| f64::from(c).powi(2)).sum();
            if !self.split.get(pages.start) && used > 0.0 {
                regions.push((squares / (used * used), pages));
            }
        });
        if regions.is_empty() {
            return;
        }
        let mut of_bin = [(0u64, 0u64); BINS];
        for &count in counts {
            let (pages, sum) = &mut of_bin[bin(count)];
            *pages += 1;
            *sum += u64::from(count);
        }
        let all: u64 = of_bin.iter().map(|b| b.1).sum();
        let (mut room, mut best) = (budget.fast_pages as f64, 0.0);
        for (pages, sum) in of_bin.into_iter().rev() {
            let part = (room / (pages as f64).max(1.0)).min(1.0);
            best += sum as f64 * part;
            room -= pages as f64 * part;
        }
        let gain = best / (all as f64).max(1.0) - hit_ratio;
        if gain > self.parameters.split_gain {
            let number = (gain * regions.len() as f64).ceil() as usize;
            regions.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.start.cmp(&b.1.start)));
            for (_, pages) in regions.into_iter().take(number) {
                self.split.set_range(pages, true);
            }
        }
    }

    /// Pages that come to a region that was split belong to it: else it would be whole again where
    /// they come before its others.
    fn keep_split(&mut self, scan: &Scan) {
        let mut split = std::mem::take(&mut self.split);
        self.regions(scan, |pages| {
            if split.count_range(pages.clone()) > 0 {
                split.set_range(pages, true);
            }
        });
        self.split = split;
    }

    fn thresholds(&self, hotness: &[u16], fast_pages: u64) -> Thresholds {
        let mut histogram = [0u64; BINS];
        hotness.iter().for_each(|&count| histogram[bin(count)] += 1);
        let (mut hot, mut pages) = (BINS, 0);
        // The lowest bin holds what was not sampled since long: it is never hot.
        while hot > 1 && pages + histogram[hot - 1] <= fast_pages {
            hot -= 1;
            pages += histogram[hot];
        }
        let full = pages as f64 >= fast_pages as f64 * self.parameters.warm_below_ratio;
        Thresholds { hot, warm: if full { hot } else { hot.saturating_sub(1).max(1) } }
    }
}

impl Policy for Memtis {
    fn name(&self) -> &'static str {
        KIND.name
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        if let Some(remap) = self.features.follow(scan) {
            self.samples.remap(&remap);
            self.split = remap.bits(&self.split);
            self.keep_split(scan);
        }
        let (features, _) = self.features.count(scan);
        let hit_ratio = self.samples.observe(scan).hit_ratio;
        self.split_skewed(scan, budget, hit_ratio);
        let hotness = self.hotness(scan);
        let t = self.thresholds(&hotness, budget.fast_pages);

        self.keys.clear();
        self.keys.extend(hotness.iter().enumerate().map(|(page, &count)| {
            let bin = bin(count);
            match (scan.fast.get(page), bin >= t.hot) {
                (false, true) => (BINS - bin) as u8,
                (false, false) => COLDEST,
                (true, true) => STAYS,
                (true, false) if bin >= t.warm => WARM,
                (true, false) => COLDEST - 1 - bin as u8,
            }
        }));
        self.keys.resize(scan.pages().next_multiple_of(64), COLDEST);
        let fast = scan.fast.words();
        let mut counts = KeyCounts::new();
        for (keys, &fast) in self.keys.as_chunks::<64>().0.iter().zip(fast) {
            counts.count(keys, fast);
        }
        let selection = counts.select(COLDEST, budget, 0);
        let plan = PlanBuilder::selected(&scan.layout, &selection, &self.keys, fast);
        Decision { plan, applied: KIND.name, features }
    }

    fn metadata_bytes(&self) -> usize {
        self.features.size_bytes()
            + self.samples.size_bytes()
            + self.split.size_bytes()
            + self.keys.capacity()
    }
}
