//! Carrying out a plan: page by page the rules of a real move, range by range the bookkeeping.
//!
//! All demotions come first, then exchanges, then promotions. An exchange needs no free page; a
//! pair that cannot be exchanged, because one side is not where the plan assumes it, falls back to
//! two moves (nimble paper, section 3.2.3). A move fails for want of room (`NoRoom`: the tier is
//! full, or the group would exceed its budget of fast memory), because the page has gone
//! (`Absent`), because it was drawn as held by another (`Busy`), or because it is already there,
//! which only a wrong plan requests (`Unsupported`).
//!
//! Moves are counted in operations of the plan's granularity, each with its shootdown.

use rand_core::RngCore;
use rand_pcg::Pcg64;
use terrace_core::operations::OperationCounter;
use terrace_core::page::{SpaceId, VirtualRange};
use terrace_core::plan::{Direction, Exchange, Failure, FailureReason, Outcome, Plan};

use crate::placement::Placement;
use crate::tiers::Tiers;

/// Decides at random which pages are held by another when they are to be moved.
#[derive(Debug, Clone)]
pub(crate) struct BusyPages {
    /// The busy rate, of 2^32.
    threshold: u64,
    random: Pcg64,
}

impl BusyPages {
    /// `rate` is 0 to 1.
    pub(crate) fn new(rate: f64, random: Pcg64) -> Self {
        BusyPages { threshold: (rate * 4_294_967_296.0) as u64, random }
    }

    /// Of a run of this many movable pages: the length of its first part that is all free or all
    /// busy, and whether that part is busy.
    fn first_part(&mut self, pages: u64) -> (u64, bool) {
        if self.threshold == 0 {
            return (pages, false);
        }
        (1, u64::from(self.random.next_u32()) < self.threshold)
    }
}

/// The place of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Absent,
    /// In one tier or the other, with its index.
    Present {
        fast: bool,
        index: usize,
    },
}

/// One plan being carried out for one group.
pub(crate) struct Migration<'a> {
    placement: &'a mut Placement,
    tiers: &'a mut Tiers,
    /// Fast memory left in the group's budget.
    budget_left: i64,
    busy: &'a mut BusyPages,
    plan: &'a Plan,
    /// Pairs move at once; else they move down and up as other pages do.
    exchanges: bool,
    operations: OperationCounter<'a>,
}

impl<'a> Migration<'a> {
    /// `budget_pages` is the group's budget of fast memory; `exchanges` is whether the operating
    /// system exchanges pages.
    pub(crate) fn new(
        placement: &'a mut Placement,
        tiers: &'a mut Tiers,
        budget_pages: u64,
        busy: &'a mut BusyPages,
        plan: &'a Plan,
        exchanges: bool,
    ) -> Self {
        let budget = i64::try_from(budget_pages).unwrap_or(i64::MAX);
        let budget_left = budget - placement.fast_pages() as i64;
        let operations = OperationCounter::new(plan, placement.layout.page_size());
        Migration { placement, tiers, budget_left, busy, plan, exchanges, operations }
    }

    pub(crate) fn run(mut self) -> Outcome {
        let (mut outcome, plan) = (Outcome::default(), self.plan);
        for range in &plan.demotions {
            self.one_way(*range, Direction::Demotion, &mut outcome);
        }
        for pair in &plan.exchanges {
            self.exchange(*pair, &mut outcome);
        }
        for range in &plan.promotions {
            self.one_way(*range, Direction::Promotion, &mut outcome);
        }
        outcome.operations = self.operations.operations();
        outcome
    }

    fn page_bytes(&self) -> u64 {
        self.placement.layout.page_size().bytes()
    }

    /// The place of the first page of the range, and how many pages (at least 1) from there on are
    /// adjacent in the same place.
    fn first_place(&self, range: VirtualRange) -> (Place, u64) {
        let layout = &self.placement.layout;
        let pages = range.pages(layout.page_size());
        let Some(index) = layout.index(range.space, range.start) else {
            return (Place::Absent, self.absent_pages(range.space, range.start).min(pages));
        };
        let extent =
            layout.extents().partition_point(|e| (e.space, e.start) <= (range.space, range.start));
        let present = (layout.first_index(extent) - index) as u64;
        let look = pages.min(present).min(64) as usize;
        let bits = self.placement.fast.bits_at(index, look);
        let fast = bits & 1 != 0;
        let same = if fast { bits.trailing_ones() } else { bits.trailing_zeros() };
        (Place::Present { fast, index }, u64::from(same).min(look as u64))
    }

    /// Pages from `address` on that are in no extent.
    fn absent_pages(&self, space: SpaceId, address: u64) -> u64 {
        let extents = self.placement.layout.extents();
        let next = extents.partition_point(|e| (e.space, e.start) <= (space, address));
        match extents.get(next).filter(|e| e.space == space) {
            Some(e) => (e.start - address) / self.page_bytes(),
            None => u64::MAX,
        }
    }

    /// Moves the pages of a range, part by part.
    fn one_way(&mut self, mut range: VirtualRange, direction: Direction, outcome: &mut Outcome) {
        while range.size_bytes > 0 {
            let (place, pages) = self.first_place(range);
            match place {
                Place::Absent => {
                    let part = self.split_off(&mut range, pages);
                    fail(outcome, part, direction, FailureReason::Absent);
                }
                Place::Present { fast, .. } if fast == (direction == Direction::Promotion) => {
                    let part = self.split_off(&mut range, pages);
                    fail(outcome, part, direction, FailureReason::Unsupported);
                }
                Place::Present { index, .. } => {
                    let (pages, busy) = self.busy.first_part(pages);
                    let mut part = self.split_off(&mut range, pages);
                    if busy {
                        fail(outcome, part, direction, FailureReason::Busy);
                        continue;
                    }
                    let moved = pages.min(self.room(direction));
                    self.place(index, moved, direction);
                    *moved_pages(outcome, direction) += moved;
                    let moved = self.split_off(&mut part, moved);
                    self.operations.moved(direction, &moved);
                    if part.size_bytes > 0 {
                        fail(outcome, part, direction, FailureReason::NoRoom);
                    }
                }
            }
        }
    }

    /// Swaps the pages of two ranges, part by part.
    fn exchange(&mut self, pair: Exchange, outcome: &mut Outcome) {
        let Exchange { mut up, mut down } = pair;
        while up.size_bytes > 0 && down.size_bytes > 0 {
            let (up_place, up_pages) = self.first_place(up);
            let (down_place, down_pages) = self.first_place(down);
            let pages = up_pages.min(down_pages);
            if let (
                Place::Present { fast: false, index: slow },
                Place::Present { fast: true, index: fast },
            ) = (up_place, down_place)
                && self.exchanges
            {
                let (pages, busy) = self.busy.first_part(pages);
                let (up_part, down_part) =
                    (self.split_off(&mut up, pages), self.split_off(&mut down, pages));
                if busy {
                    fail(outcome, down_part, Direction::Demotion, FailureReason::Busy);
                    fail(outcome, up_part, Direction::Promotion, FailureReason::Busy);
                    continue;
                }
                let bits = &mut self.placement.fast;
                bits.set_range(slow..slow + pages as usize, true);
                bits.set_range(fast..fast + pages as usize, false);
                self.operations.moved(Direction::Demotion, &down_part);
                self.operations.moved(Direction::Promotion, &up_part);
                outcome.promoted_pages += pages;
                outcome.demoted_pages += pages;
                outcome.exchanged_pairs += pages;
            } else {
                let down_part = self.split_off(&mut down, pages);
                self.one_way(down_part, Direction::Demotion, outcome);
                let up_part = self.split_off(&mut up, pages);
                self.one_way(up_part, Direction::Promotion, outcome);
            }
        }
        self.one_way(down, Direction::Demotion, outcome);
        self.one_way(up, Direction::Promotion, outcome);
    }

    /// Pages that can move in this direction now.
    fn room(&self, direction: Direction) -> u64 {
        let page_size = self.placement.layout.page_size();
        match direction {
            Direction::Demotion => self.tiers.slow.free_pages(page_size),
            Direction::Promotion => {
                self.tiers.fast.free_pages(page_size).min(self.budget_left.max(0) as u64)
            }
        }
    }

    /// Places pages of the other tier in the destination tier, from `index` on.
    fn place(&mut self, index: usize, pages: u64, direction: Direction) {
        let page_size = self.placement.layout.page_size();
        let up = direction == Direction::Promotion;
        let Tiers { fast, slow } = self.tiers;
        let (to, from) = if up { (fast, slow) } else { (slow, fast) };
        to.take(pages, page_size);
        from.give_back(pages, page_size);
        self.budget_left -= if up { pages as i64 } else { -(pages as i64) };
        self.placement.fast.set_range(index..index + pages as usize, up);
    }

    /// Splits the first pages off a range.
    fn split_off(&self, range: &mut VirtualRange, pages: u64) -> VirtualRange {
        let size_bytes = pages * self.page_bytes();
        let first = VirtualRange { size_bytes, ..*range };
        range.start += size_bytes;
        range.size_bytes -= size_bytes;
        first
    }
}

fn moved_pages(outcome: &mut Outcome, direction: Direction) -> &mut u64 {
    match direction {
        Direction::Promotion => &mut outcome.promoted_pages,
        Direction::Demotion => &mut outcome.demoted_pages,
    }
}

/// Records a failure, joined to the failure before if adjacent.
fn fail(outcome: &mut Outcome, range: VirtualRange, direction: Direction, reason: FailureReason) {
    if let Some(last) = outcome.failures.last_mut()
        && (last.direction, last.reason) == (direction, reason)
        && (last.range.space, last.range.end()) == (range.space, range.start)
    {
        last.range.size_bytes += range.size_bytes;
        return;
    }
    outcome.failures.push(Failure { range, direction, reason });
}
