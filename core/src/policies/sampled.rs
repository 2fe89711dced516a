//! Counts of sampled accesses with cooling: what MEMTIS and, under Colloid, HeMem rank pages by.
//!
//! Where the machine samples reads, they are counted; else each accessed bit is one sample, several a
//! period where bits are sampled several times. After
//! a number of samples a page all counts are halved, so that hot pages cool.

use super::access_unit::AccessUnit;
use crate::features::ratio;
use crate::remap::Remap;
use crate::scan::Scan;

/// Bins of counts: a page with a count of 2^n to 2^(n+1) is in bin n, one without any in bin 0.
pub(super) const BINS: usize = 16;

/// Increment of a count by a sample: it keeps some bits through coolings.
const SAMPLE: u16 = 8;

/// The counts of a group's pages, 2 bytes a page.
#[derive(Debug)]
pub(super) struct SampleCounts {
    counts: Vec<u16>,
    cooling_samples_per_page: u32,
    since_cooling: u64,
    unit: AccessUnit,
    /// Of the last period of which they were known.
    last: Sampled,
}

/// The sums of a period's samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sampled {
    /// Of them, the part in fast memory; 0 where there are none.
    pub hit_ratio: f64,
}

/// The bin of a count.
pub(super) fn bin(count: u16) -> usize {
    (BINS as u32 - 1).saturating_sub(count.leading_zeros()) as usize
}

impl SampleCounts {
    pub fn new(cooling_samples_per_page: u32) -> Self {
        SampleCounts {
            counts: Vec::new(),
            cooling_samples_per_page,
            since_cooling: 0,
            unit: AccessUnit::default(),
            last: Sampled { hit_ratio: 0.0 },
        }
    }

    pub fn remap(&mut self, remap: &Remap) {
        self.counts = remap.values(&self.counts, 0, remap.new_pages());
    }

    /// Adds a period, and cools when it is time.
    pub fn observe(&mut self, scan: &Scan) -> Sampled {
        let (mut all, mut hits) = (0u64, 0u64);
        if !self.follow_unit(scan) {
            return self.last;
        }
        let samples = scan.samples();
        for page in scan.accessed.iter_ones() {
            let here = match (samples, &scan.counts) {
                (Some(samples), _) => samples[page],
                (None, Some(counts)) => counts.counts[page].into(),
                (None, None) => 1,
            };
            let count = &mut self.counts[page];
            *count = count.saturating_add(here.saturating_mul(SAMPLE));
            all += u64::from(here);
            hits += u64::from(here) * u64::from(scan.fast.get(page));
        }
        self.since_cooling += all;
        let cooling = u64::from(self.cooling_samples_per_page) * scan.pages() as u64;
        if cooling > 0 && self.since_cooling >= cooling {
            self.since_cooling = 0;
            self.counts.iter_mut().for_each(|count| *count /= 2);
        }
        self.last = Sampled { hit_ratio: ratio(hits, all) };
        self.last
    }

    /// Brings the counts to the unit of this period. Returns whether its accesses are known.
    fn follow_unit(&mut self, scan: &Scan) -> bool {
        let unit = self.unit.follow(scan);
        if unit.is_new {
            self.counts.fill(0);
            self.since_cooling = 0;
        } else if unit.factor != 1.0 {
            for count in &mut self.counts {
                // Beyond the largest it stays at that.
                *count = (f32::from(*count) * unit.factor) as u16;
            }
            self.since_cooling = (self.since_cooling as f64 * f64::from(unit.factor)) as u64;
        }
        unit.known
    }

    /// The count of each page.
    pub fn counts(&self) -> &[u16] {
        &self.counts
    }

    pub fn size_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u16>()
    }
}
