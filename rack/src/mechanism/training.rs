//! Thresholds from observed accesses (section III-G1): pages accessed less than the mean are
//! filtered out, again and again until few are left; the means of the remaining ones make a page
//! hot.

use crate::Time;
use crate::mechanism::tracker::{Threshold, Tracked};

/// Parameters of the filter.
#[derive(Debug, Clone, Copy)]
pub struct Filter {
    /// Filtering goes on while more than this share of the pages is left.
    pub share: f64,
    /// Share of the mean access count that makes a page hot.
    pub count_factor: f64,
    /// Least count, whatever was observed.
    pub count_least: u32,
    /// Share of the mean reuse frequency that makes a page hot.
    pub frequency_factor: f64,
}

/// The threshold from the pages observed in training; `None` if there were none.
pub fn threshold(now: Time, pages: &[Tracked], filter: Filter) -> Option<Threshold> {
    if pages.is_empty() {
        return None;
    }
    let mean =
        |counts: &[u16]| counts.iter().map(|&c| f64::from(c)).sum::<f64>() / counts.len() as f64;
    let mut left: Vec<Tracked> = pages.to_vec();
    while left.len() as f64 > filter.share * pages.len() as f64 {
        let counts: Vec<u16> = left.iter().map(|t| t.count).collect();
        let mean = mean(&counts);
        let before = left.len();
        left.retain(|t| f64::from(t.count) >= mean);
        if left.len() == before {
            break;
        }
    }
    let counts: Vec<u16> = left.iter().map(|t| t.count).collect();
    let frequency = left.iter().map(|t| t.frequency(now)).sum::<f64>() / left.len() as f64;
    let count = (mean(&counts) * filter.count_factor).round().max(f64::from(filter.count_least));
    Some(Threshold {
        count: count.clamp(1.0, f64::from(u16::MAX)) as u16,
        frequency_per_us: frequency * filter.frequency_factor,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILTER: Filter =
        Filter { share: 0.3, count_factor: 1.0, count_least: 1, frequency_factor: 1.0 };

    fn pages(counts: &[u16]) -> Vec<Tracked> {
        counts.iter().map(|&count| Tracked { count, first: 0, blocks: 0, again: 0 }).collect()
    }

    #[test]
    fn pages_below_the_mean_are_filtered_until_few_are_left() {
        // The mean is 13: 40 and 60 stay, fewer than 30 %, and their mean is 50.
        let seen = pages(&[1, 1, 2, 2, 4, 4, 6, 10, 40, 60]);
        let t = threshold(10_000_000, &seen, FILTER).unwrap();
        assert_eq!(t.count, 50);
        // 50 accesses in 10 us.
        assert_eq!(t.frequency_per_us, 5.0);
    }

    #[test]
    fn pages_all_alike_filter_nothing() {
        let t = threshold(1_000_000, &pages(&[7; 20]), FILTER).unwrap();
        assert_eq!((t.count, t.frequency_per_us), (7, 7.0));
    }

    #[test]
    fn a_least_count_holds_whatever_was_seen() {
        let filter = Filter { count_factor: 0.25, count_least: 4, ..FILTER };
        let t = |count| threshold(1_000_000, &pages(&[count; 20]), filter).unwrap().count;
        assert_eq!((t(64), t(8)), (16, 4));
    }

    #[test]
    fn nothing_seen_gives_no_threshold() {
        assert_eq!(threshold(1, &[], FILTER), None);
    }
}
