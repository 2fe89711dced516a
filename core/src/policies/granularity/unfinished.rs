//! What becomes of candidates that did not move before the next scan.
//!
//! The paper scans 4,096 pages in 100 microseconds, in which its shootdowns alone let some eight pages
//! move (migration-granularity paper, sections 3 and 5). It does not say that what a scan found is given
//! up with the next one. Of a program that streams most scans find nothing and the others hundreds of
//! pages, so nearly all of them would be.

use serde::Deserialize;

use super::choose::Granule;
use super::scan::Tier;
use crate::bits::PageBits;

/// What becomes of candidates that did not move before the next scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::policies) enum Leftover {
    /// They are dropped: the next scan of their memory finds them again, if they are still used.
    #[default]
    Drop,
    /// They are planned again by scans that find nothing to promote, as used as they were found.
    Continue,
}

/// Candidates that may not have moved yet.
#[derive(Debug, Default)]
pub(in crate::policies) struct Unfinished {
    ups: Vec<Granule>,
    downs: Vec<Granule>,
}

impl Unfinished {
    /// The candidates of a scan, or what is left of the last ones where it found none to promote.
    pub fn candidates(
        &mut self,
        leftover: Leftover,
        fast: &PageBits,
        ups: Vec<Granule>,
        downs: Vec<Granule>,
    ) -> (Vec<Granule>, Vec<Granule>) {
        if leftover == Leftover::Drop {
            return (ups, downs);
        }
        if ups.is_empty() {
            let left = |tier: Tier<'_>, granules: &mut Vec<Granule>| {
                for granule in granules.iter_mut() {
                    granule.in_tier = tier.count(granule.pages.clone());
                }
                granules.retain(|granule| granule.in_tier > 0);
            };
            left(Tier::slow(fast), &mut self.ups);
            left(Tier::fast(fast), &mut self.downs);
        } else {
            (self.ups, self.downs) = (ups, downs);
        }
        (self.ups.clone(), self.downs.clone())
    }

    /// Pages have other numbers now.
    pub fn forget(&mut self) {
        *self = Unfinished::default();
    }

    /// Memory of it, in bytes.
    pub fn size_bytes(&self) -> usize {
        (self.ups.capacity() + self.downs.capacity()) * size_of::<Granule>()
    }
}
