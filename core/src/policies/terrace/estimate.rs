//! How often pages are read, where no read is sampled: from accessed bits, and from counts of reads
//! by tier where there are any.
//!
//! A bit shows that a page was read, not how often. The counts of a period's reads from fast and
//! from slow memory show how often the accessed pages of each were read together. So each page has
//! a weight, its reads to those of other pages that were accessed in the same period. The weights
//! of the accessed pages predict which share of all reads each tier had; the counters correct them,
//! a part in each period. As other pages are accessed, and pages change their places, the weights
//! become those of the pages. When a page that is read often has been moved to slow memory, the
//! next period's count shows it.
//! Otherwise the reads of a period sum up to the number of accessed pages, as from bits alone.
//!
//! Where accessed bits were sampled several times in the period, the samples show how often each
//! page was accessed, and no weight is needed: a unit is an access that a sample finds, if it finds
//! one. Shares of the number of accessed pages would be of no use. In a range of 2 MB of base pages a
//! sample is of one page; of a range that is accessed here and there it seldom finds anything, of one
//! that is accessed everywhere always. The first is what moves are about, and its share would be
//! below the smallest rate that differs from none.

use crate::remap::Remap;
use crate::scan::Scan;

/// How far weights follow a correction: its exponent. With 0.05 to 0.2 results hardly differ, with
/// more the weights follow reads that are not theirs.
const FOLLOW: f32 = 0.1;
/// A tier's reads are not taken to be predicted more wrongly than by this factor in one period.
const MOST_WRONG: f64 = 16.0;
/// Weights stay within this factor of the mean.
const MOST_WEIGHT: f32 = 16.0;

/// The weights of pages.
#[derive(Debug, Default)]
pub struct Estimate {
    weights: Vec<f32>,
}

impl Estimate {
    /// Applies a change of layout.
    pub fn remap(&mut self, remap: &Remap) {
        if !self.weights.is_empty() {
            self.weights = remap.values(&self.weights, 1.0, remap.new_pages());
        }
    }

    /// Units of reads of each page in the period.
    pub fn reads(&mut self, scan: &Scan, count_reads: bool) -> Vec<f32> {
        let mut reads = vec![0.0; scan.pages()];
        if let Some(counts) = &scan.counts {
            let accesses = counts.accesses_per_sample();
            let samples = f32::from(counts.samples);
            for page in scan.accessed.iter_ones() {
                let count = usize::from(counts.counts[page].min(counts.samples));
                reads[page] = accesses[count] * samples;
            }
            return reads;
        }
        let counted = scan.counters.as_ref().map(|m| m.reads).filter(|r| r[0] + r[1] > 0);
        let Some(counted) = counted.filter(|_| count_reads) else {
            scan.accessed.iter_ones().for_each(|page| reads[page] = 1.0);
            return reads;
        };
        self.weights.resize(scan.pages(), 1.0);
        let (mut of_tier, mut accessed) = ([0.0f64; 2], 0.0f64);
        for page in scan.accessed.iter_ones() {
            of_tier[usize::from(!scan.fast.get(page))] += f64::from(self.weights[page]);
            accessed += 1.0;
        }
        // The factor of each weight by which the accessed pages have as many reads as
        // were counted, in units.
        let all = (counted[0] + counted[1]) as f64;
        let unit = [0, 1].map(|tier: usize| {
            let units = counted[tier] as f64 / all * accessed;
            if of_tier[tier] > 0.0 { units / of_tier[tier] } else { 1.0 }
        });
        let predicted = accessed / (of_tier[0] + of_tier[1]).max(1e-9);
        let correct = unit.map(|unit| {
            let wrong = (unit / predicted).clamp(1.0 / MOST_WRONG, MOST_WRONG);
            (wrong as f32).powf(FOLLOW)
        });
        for page in scan.accessed.iter_ones() {
            let tier = usize::from(!scan.fast.get(page));
            let weight = &mut self.weights[page];
            reads[page] = *weight * unit[tier] as f32;
            *weight = (*weight * correct[tier]).clamp(1.0 / MOST_WEIGHT, MOST_WEIGHT);
        }
        reads
    }

    /// Bytes of memory held.
    pub fn size_bytes(&self) -> usize {
        self.weights.capacity() * size_of::<f32>()
    }
}
