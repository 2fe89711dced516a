//! Which base pages should leave the tier of their range: a range of 2 MB is placed as a whole, by the
//! sum of its accesses, and programs mix small objects of all kinds in one. Where the rates of base pages
//! are known, those that are accessed most in slow ranges take the places of those that are accessed
//! least in fast ones.
//!
//! Pages go in pairs, so that the fast memory of a group stays what the policy has made of it. A page
//! goes only if its rate is surely above that of the one which gives up its place, and at most half of
//! a range's pages are away from it, so that a range is somewhere.

/// Between which rates of accesses a page is taken to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PageRate {
    /// Accesses a second, at least.
    pub least_per_s: f32,
    /// Accesses a second, at most.
    pub most_per_s: f32,
}

/// A base page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BasePage {
    /// Whether it is in fast memory.
    pub is_fast: bool,
    /// Its rate, where it is known.
    pub rate: Option<PageRate>,
}

/// The base pages of a range.
#[derive(Debug, Clone, PartialEq)]
pub struct RangePages {
    /// Whether the range is placed in fast memory.
    pub is_fast: bool,
    /// Those that are present.
    pub pages: Vec<BasePage>,
}

/// A page by the number of its range and its own in the range.
pub type PageIndex = (usize, usize);

/// A page that comes to fast memory, and the one that makes place for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swap {
    /// From slow to fast memory.
    pub up: PageIndex,
    /// From fast to slow memory.
    pub down: PageIndex,
}

/// A page comes to fast memory if it has more accesses a second than so many times those of the page
/// that makes place: rates of a few observations are off by about as much.
const TIMES: f32 = 2.0;
/// And only with so many accesses a second: each gains some 100 ns, two moves cost some 10 us, and
/// within a minute they should have paid.
const LEAST_PER_S: f32 = 2.0;

/// The swaps that are worth it, the best first, at most so many.
pub fn swaps(ranges: &[RangePages], most: usize) -> Vec<Swap> {
    let mut away: Vec<usize> = ranges.iter().map(away).collect();
    let (mut ups, mut downs) = (Vec::new(), Vec::new());
    for (nth, range) in ranges.iter().enumerate() {
        for (page, BasePage { is_fast, rate }) in range.pages.iter().enumerate() {
            let Some(rate) = rate else { continue };
            if *is_fast {
                downs.push((rate.most_per_s, (nth, page)));
            } else if rate.least_per_s >= LEAST_PER_S {
                ups.push((rate.least_per_s, (nth, page)));
            }
        }
    }
    ups.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    downs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut swaps = Vec::new();
    let mut downs = downs.into_iter();
    for (hot_per_s, up) in ups {
        if swaps.len() >= most {
            break;
        }
        if !may_leave(ranges, &mut away, up) {
            continue;
        }
        let place = downs.find(|(cold_per_s, down)| {
            hot_per_s < TIMES * cold_per_s || may_leave(ranges, &mut away, *down)
        });
        match place {
            Some((cold_per_s, down)) if hot_per_s >= TIMES * cold_per_s => {
                swaps.push(Swap { up, down });
            }
            // All others are accessed less, and places are of pages that are accessed more.
            _ => break,
        }
    }
    swaps
}

/// Pages that are not where their range is.
fn away(range: &RangePages) -> usize {
    range.pages.iter().filter(|page| page.is_fast != range.is_fast).count()
}

/// Whether the page may go to the other tier; counted if it leaves its range.
fn may_leave(ranges: &[RangePages], away: &mut [usize], (nth, page): PageIndex) -> bool {
    let range = &ranges[nth];
    if range.pages[page].is_fast != range.is_fast {
        // It returns.
        return true;
    }
    let may = 2 * (away[nth] + 1) <= range.pages.len();
    away[nth] += usize::from(may);
    may
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(per_s: f32) -> Option<PageRate> {
        Some(PageRate { least_per_s: per_s, most_per_s: per_s })
    }

    fn range(is_fast: bool, rates: &[f32]) -> RangePages {
        let pages = rates.iter().map(|&per_s| BasePage { is_fast, rate: rate(per_s) }).collect();
        RangePages { is_fast, pages }
    }

    #[test]
    fn the_hottest_of_slow_ranges_take_the_places_of_the_coldest_of_fast_ones() {
        let ranges = [
            range(false, &[1.0, 500.0, 2.0, 90.0]),
            range(true, &[300.0, 0.1, 70.0, 250.0]),
            range(true, &[60.0, 3.0, 800.0, 40.0]),
        ];
        let swap = |up, down| Swap { up, down };
        assert_eq!(
            swaps(&ranges, 9),
            [swap((0, 1), (1, 1)), swap((0, 3), (2, 1))],
            "the best first, and half of a range at most"
        );
        assert_eq!(swaps(&ranges, 1), [swap((0, 1), (1, 1))]);
    }

    #[test]
    fn nothing_goes_for_less_than_it_brings_or_without_knowledge() {
        assert_eq!(swaps(&[range(false, &[90.0; 4]), range(true, &[46.0; 4])], 9), []);
        assert_eq!(swaps(&[range(false, &[1.9; 4]), range(true, &[0.0; 4])], 9), []);
        let mut unknown = range(true, &[0.0; 4]);
        unknown.pages.iter_mut().for_each(|page| page.rate = None);
        assert_eq!(swaps(&[range(false, &[90.0; 4]), unknown], 9), []);
        let unsure = PageRate { least_per_s: 0.0, most_per_s: 80.0 };
        let mut ranges = [range(false, &[90.0; 4]), range(true, &[0.0; 4])];
        ranges[1].pages.iter_mut().for_each(|page| page.rate = Some(unsure));
        assert_eq!(swaps(&ranges, 9), []);
    }

    #[test]
    fn pages_return_to_their_range() {
        // One that was brought to fast memory and cooled, one that was sent away and is hot again.
        let mut ranges = [range(false, &[1.0; 4]), range(true, &[50.0; 4])];
        ranges[0].pages[2].is_fast = true;
        ranges[1].pages[0] = BasePage { is_fast: false, rate: rate(400.0) };
        assert_eq!(swaps(&ranges, 9), [Swap { up: (1, 0), down: (0, 2) }]);
    }

    proptest! {
        /// Each page goes once at most, from the tier that it is in; a range keeps half of its pages;
        /// each swap brings accesses; what is done is not undone by the next call.
        #[test]
        fn swaps_pay_and_come_to_rest(
            given in prop::collection::vec(
                (any::<bool>(), prop::collection::vec((any::<bool>(), 0f32..1000.0), 1..24)),
                1..6,
            ),
            most in 0usize..40,
        ) {
            let mut ranges: Vec<RangePages> = given
                .iter()
                .map(|(is_fast, pages)| RangePages {
                    is_fast: *is_fast,
                    pages: pages
                        .iter()
                        .map(|&(away, per_s)| BasePage { is_fast: is_fast ^ (away && per_s > 900.0), rate: rate(per_s) })
                        .collect(),
                })
                .collect();
            let before: Vec<usize> = ranges.iter().map(away).collect();
            let chosen = swaps(&ranges, most);
            prop_assert!(chosen.len() <= most);
            for Swap { up, down } in &chosen {
                let of = |ranges: &[RangePages], page: PageIndex| ranges[page.0].pages[page.1];
                let (hot, cold) = (of(&ranges, *up), of(&ranges, *down));
                prop_assert!(!hot.is_fast && cold.is_fast);
                prop_assert!(hot.rate.unwrap().least_per_s >= TIMES * cold.rate.unwrap().most_per_s);
                ranges[up.0].pages[up.1].is_fast = true;
                ranges[down.0].pages[down.1].is_fast = false;
            }
            for (range, before) in ranges.iter().zip(before) {
                prop_assert!(away(range) <= before.max(range.pages.len() / 2));
            }
            if chosen.len() < most {
                let again = swaps(&ranges, 100);
                prop_assert!(again.len() <= chosen.len(), "{} then {}", chosen.len(), again.len());
            }
        }
    }
}
