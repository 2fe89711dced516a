//! What is taken for the rates of pages in fast memory that do not fault: pages that came by their rates
//! keep these for a while, and the others of a range share what is left of its accesses.

use std::collections::BTreeMap;

use super::Page;

/// The rate of a page that came counts half after so many times that more was known: programs change.
const HALF_LIFE: i32 = 4;
/// And nothing is known of it any more after so many.
const FORGOTTEN: u64 = 64;
/// Pages that came and are kept in mind.
const MOST_BROUGHT: usize = 1 << 18;

/// Pages that came to fast memory by their rates, where they have none: process and address, accesses a
/// second, and the version of what is known at that time.
#[derive(Debug, Default)]
pub(super) struct Brought(BTreeMap<(u32, u64), (f32, u64)>);

impl Brought {
    pub(super) fn add(&mut self, page: Page, version: u64) {
        // One that only returns, after another did not come, came by no rate.
        if page.per_s > 0.0 && self.0.len() < MOST_BROUGHT {
            self.0.insert((page.pid, page.address), (page.per_s, version));
        }
    }

    pub(super) fn remove(&mut self, page: Page) {
        self.0.remove(&(page.pid, page.address));
    }

    /// Its accesses a second, as far as they are to be believed in now.
    pub(super) fn per_s(&self, pid: u32, address: u64, version: u64) -> Option<f32> {
        let (per_s, since) = self.0.get(&(pid, address))?;
        let age = i32::try_from(version.saturating_sub(*since)).unwrap_or(i32::MAX);
        Some(per_s * 0.5_f32.powi(age / HALF_LIFE))
    }

    pub(super) fn forget_old(&mut self, version: u64) {
        self.0.retain(|_, (_, since)| version.saturating_sub(*since) <= FORGOTTEN);
    }
}

/// How often samples found pages of a range accessed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampled {
    /// Share of the samples.
    pub(super) share: f32,
    /// Samples, and the time between two of a page.
    pub(super) samples: f32,
    pub(super) interval_s: f32,
}

impl Sampled {
    /// The share of samples that find a page accessed which is so many times a second.
    pub(super) fn share_at(&self, per_s: f32) -> f32 {
        1.0 - (-per_s * self.interval_s).exp()
    }

    /// Accesses a second of each of the other pages of a range of so many, of which some have these.
    /// Samples tell neither none nor very many apart, so half a sample is taken to differ.
    pub(super) fn of_others(&self, pages: usize, known_per_s: impl Iterator<Item = f32>) -> f32 {
        let (mut others, mut left) = (pages, self.share * pages as f32);
        for per_s in known_per_s {
            others -= 1;
            left -= self.share_at(per_s);
        }
        let least = 0.5 / self.samples.max(1.0);
        let share = (left / others.max(1) as f32).clamp(least, 1.0 - least);
        -(1.0 - share).ln() / self.interval_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 7;
    const SLOW: u64 = 9 << 21;
    const FAST: u64 = 4 << 21;

    #[test]
    fn others_have_what_is_left_of_a_ranges_accesses() {
        let sampled = Sampled { share: 0.3, samples: 1000.0, interval_s: 0.005 };
        let per_s = sampled.of_others(100, std::iter::empty());
        assert!((sampled.share_at(per_s) - 0.3).abs() < 1e-3);
        // Twenty of a hundred are accessed at nearly every sample; the others have a tenth left of 0.8.
        let others = sampled.of_others(100, std::iter::repeat_n(2000.0, 20));
        assert!((sampled.share_at(others) - 0.125).abs() < 1e-3, "{others}");
        // More cannot be left than there is, and what no sample has found is not nothing.
        let none = sampled.of_others(100, std::iter::repeat_n(2000.0, 99));
        assert!(none > 0.0 && none < 0.2, "{none}");
        let all = Sampled { share: 1.0, samples: 10.0, interval_s: 0.01 };
        assert!(all.of_others(10, std::iter::empty()) < 300.0);
    }

    #[test]
    fn what_is_known_of_pages_that_came_fades() {
        let mut brought = Brought::default();
        let page = Page { pid: PID, address: SLOW, is_of_fast: false, per_s: 80.0 };
        brought.add(page, 10);
        brought.add(Page { address: FAST, per_s: 0.0, ..page }, 10);
        let per_s = |brought: &Brought, version| brought.per_s(PID, SLOW, version);
        assert_eq!((per_s(&brought, 10), per_s(&brought, 18)), (Some(80.0), Some(20.0)));
        assert_eq!(brought.per_s(PID, FAST, 10), None);
        brought.forget_old(74);
        assert!(per_s(&brought, 74).is_some());
        brought.forget_old(75);
        assert_eq!(per_s(&brought, 75), None);
    }
}
