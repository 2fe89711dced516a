//! Builds a plan from the pages to promote and the pages to demote.

use std::collections::VecDeque;
use std::ops::Range;

use crate::bits::PageBits;
use crate::page::{Layout, VirtualRange};
use crate::plan::{Exchange, Plan};
use crate::select::Selection;

/// Collects pages in ascending order, joins them to ranges, and pairs the first page to promote
/// with the first page to demote, and so on, so that as much as possible is exchanged. Pages that
/// are adjacent on both sides are exchanged as one range. Linear in the pages; keeps no more than
/// the plan itself.
#[derive(Debug)]
pub struct PlanBuilder<'a> {
    layout: &'a Layout,
    /// The extents of the pages added last, up and down.
    extents: [usize; 2],
    /// Ranges of the one side that is ahead, waiting for their pairs; the other is empty.
    waiting: [VecDeque<VirtualRange>; 2],
    exchanges: Vec<Exchange>,
}

/// The two directions, as indices.
const UP: usize = 0;
const DOWN: usize = 1;

impl<'a> PlanBuilder<'a> {
    /// An empty plan for pages of this layout.
    pub fn new(layout: &'a Layout) -> Self {
        let waiting = [VecDeque::new(), VecDeque::new()];
        PlanBuilder { layout, extents: [0; 2], waiting, exchanges: Vec::new() }
    }

    /// Adds pages `64 * word` and on: the bits of pages to promote and of pages to demote. Words
    /// must come in ascending order, and no page may move both ways.
    pub fn word(&mut self, word: usize, up: u64, down: u64) {
        debug_assert_eq!(up & down, 0);
        for (way, mut bits) in [(UP, up), (DOWN, down)] {
            while bits != 0 {
                let start = bits.trailing_zeros();
                let pages = (bits >> start).trailing_ones();
                self.run(way, 64 * word + start as usize, pages as usize);
                bits &= !(!0 >> (64 - pages) << start);
            }
        }
    }

    /// Adds adjacent pages to promote. They must come in ascending order; pages to demote may come
    /// before or after them.
    pub fn promote(&mut self, pages: Range<usize>) {
        self.run(UP, pages.start, pages.len());
    }

    /// The same for pages to demote.
    pub fn demote(&mut self, pages: Range<usize>) {
        self.run(DOWN, pages.start, pages.len());
    }

    /// The plan: pairs of ranges of equal size to exchange, and what remains of the longer side to
    /// promote or demote.
    pub fn finish(self) -> Plan {
        let [ups, downs] = self.waiting;
        Plan {
            promotions: ups.into(),
            demotions: downs.into(),
            exchanges: self.exchanges,
            operation_sizes: Vec::new(),
            victims: Vec::new(),
        }
    }

    /// A plan of these pages without exchanges: demotions first, then promotions.
    pub fn apart(layout: &Layout, ups: &PageBits, downs: &PageBits) -> Plan {
        let (mut up, mut down) = (PlanBuilder::new(layout), PlanBuilder::new(layout));
        let words = ups.words().iter().zip(downs.words()).enumerate();
        for (word, (&ups, &downs)) in words {
            up.word(word, ups, 0);
            down.word(word, 0, downs);
        }
        Plan { promotions: up.finish().promotions, ..down.finish() }
    }

    /// The plan of a selection, without exchanges: see [`PlanBuilder::apart`].
    pub fn selected(layout: &Layout, selection: &Selection, keys: &[u8], fast: &[u64]) -> Plan {
        let (mut ups, mut downs) = (PageBits::new(layout.pages()), PageBits::new(layout.pages()));
        selection.moves(keys, fast, |word, up, down| {
            ups.words_mut()[word] = up;
            downs.words_mut()[word] = down;
        });
        Self::apart(layout, &ups, &downs)
    }

    /// Adds pages with adjacent indices, one range for each extent that they are in.
    fn run(&mut self, way: usize, mut first: usize, mut pages: usize) {
        let size = self.layout.page_size().bytes();
        while pages > 0 {
            let mut number = self.extents[way];
            while self.layout.first_index(number + 1) <= first {
                number += 1;
            }
            self.extents[way] = number;
            let extent = &self.layout.extents()[number];
            let here = pages.min(self.layout.first_index(number + 1) - first);
            let start = extent.start + (first - self.layout.first_index(number)) as u64 * size;
            let size_bytes = here as u64 * size;
            self.range(way, VirtualRange { space: extent.space, start, size_bytes });
            first += here;
            pages -= here;
        }
    }

    /// Pairs a range with the ranges that wait on the other side; the rest of it waits in turn.
    fn range(&mut self, way: usize, mut range: VirtualRange) {
        while let Some(other) = self.waiting[1 - way].front_mut() {
            let size_bytes = range.size_bytes.min(other.size_bytes);
            let (one, two) = (split_off(&mut range, size_bytes), split_off(other, size_bytes));
            if other.size_bytes == 0 {
                self.waiting[1 - way].pop_front();
            }
            self.exchange(if way == UP {
                Exchange { up: one, down: two }
            } else {
                Exchange { up: two, down: one }
            });
            if range.size_bytes == 0 {
                return;
            }
        }
        match self.waiting[way].back_mut() {
            Some(last) if last.space == range.space && last.end() == range.start => {
                last.size_bytes += range.size_bytes;
            }
            _ => self.waiting[way].push_back(range),
        }
    }

    fn exchange(&mut self, pair: Exchange) {
        let joins = |a: &VirtualRange, b: &VirtualRange| a.space == b.space && a.end() == b.start;
        match self.exchanges.last_mut() {
            Some(last) if joins(&last.up, &pair.up) && joins(&last.down, &pair.down) => {
                last.up.size_bytes += pair.up.size_bytes;
                last.down.size_bytes += pair.down.size_bytes;
            }
            _ => self.exchanges.push(pair),
        }
    }
}

/// Takes the first `size_bytes` off a range.
fn split_off(range: &mut VirtualRange, size_bytes: u64) -> VirtualRange {
    let first = VirtualRange { size_bytes, ..*range };
    range.start += size_bytes;
    range.size_bytes -= size_bytes;
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::{Extent, PageSize, SpaceId};
    use proptest::prelude::*;

    fn plan(layout: &Layout, ups: &PageBits, downs: &PageBits) -> Plan {
        let mut builder = PlanBuilder::new(layout);
        for (word, (&up, &down)) in ups.words().iter().zip(downs.words()).enumerate() {
            builder.word(word, up, down);
        }
        builder.finish()
    }

    #[test]
    fn neighbours_join_over_extents_and_unequal_ranges_are_cut_to_pairs() {
        let e = |start, pages| Extent { space: SpaceId(1), start, pages };
        let layout = Layout::new(PageSize::Base, vec![e(0x1000, 70), e(0x47000, 2)]).unwrap();
        let up = (0..72).map(|i| (62..72).contains(&i)).collect();
        let down = (0..72).map(|i| i < 2 || (10..13).contains(&i)).collect();
        let plan = plan(&layout, &up, &down);
        let r = |page: u64, pages: u64| VirtualRange {
            space: SpaceId(1),
            start: 0x1000 + page * 0x1000,
            size_bytes: pages * 0x1000,
        };
        let pair = |up, down| Exchange { up, down };
        assert_eq!(plan.exchanges, [pair(r(62, 2), r(0, 2)), pair(r(64, 3), r(10, 3))]);
        assert_eq!(plan.promotions, [r(67, 5)]);
        assert_eq!(plan.demotions, []);
    }

    proptest! {
        #[test]
        fn every_page_is_in_the_plan_once(
            moves in prop::collection::vec(0u8..4, 1..300), cut in 1u64..200,
        ) {
            let pages = moves.len() as u64;
            let cut = cut.min(pages);
            let e = |start: u64, pages| {
                Extent { space: SpaceId(0), start: start * 4096, pages }
            };
            let mut extents = vec![e(0, cut)];
            if cut < pages {
                extents.push(e(cut + 5, pages - cut));
            }
            let layout = Layout::new(PageSize::Base, extents).unwrap();
            let ups: PageBits = moves.iter().map(|&m| m == 1).collect();
            let downs: PageBits = moves.iter().map(|&m| m == 2).collect();
            let plan = plan(&layout, &ups, &downs);
            prop_assert!(plan.exchanges.iter().all(|x| x.up.size_bytes == x.down.size_bytes));
            prop_assert!(plan.promotions.is_empty() || plan.demotions.is_empty());
            let all = |ranges: Vec<VirtualRange>| {
                let mut pages: Vec<usize> = ranges.iter().flat_map(|r| {
                    let first = layout.index(r.space, r.start).unwrap();
                    first..first + r.pages(PageSize::Base) as usize
                }).collect();
                pages.sort();
                pages
            };
            let up = plan.exchanges.iter().map(|x| x.up).chain(plan.promotions.clone());
            let down = plan.exchanges.iter().map(|x| x.down).chain(plan.demotions.clone());
            prop_assert_eq!(all(up.collect()), ups.iter_ones().collect::<Vec<_>>());
            prop_assert_eq!(all(down.collect()), downs.iter_ones().collect::<Vec<_>>());
        }
    }
}
