//! Exchanges: a page is promoted, and another demoted in its place.
//!
//! The page to be promoted is checked first: if it cannot be moved, or is fast already, the other
//! keeps its place. If the kernel exchanges pages (`TM_EXCHANGE`), a pair of one process is
//! exchanged in one step and needs no free memory. Pairs that it refuses, and all pairs on a stock
//! kernel, become two moves, the demotion first.
//!
//! The memory of a demoted page is room for its partner whatever the node's watermarks are: on a
//! node filled by other programs there is no other room.
//!
//! On a full node other programs may take the freed memory before the promotion. Then no further
//! pair of the plan is tried: the group would lose a page with each.

use std::collections::BTreeMap;

use terrace_core::page::SpaceId;
use terrace_core::plan::{Direction, FailureReason, Plan};

use super::account::{Account, of_call, of_page};
use super::{MigrationContext, Page, PageMover, PageResult, UNWRITTEN};

/// A page to be demoted and one to be promoted.
#[derive(Debug, Clone, Copy)]
struct Pair {
    down: Page,
    up: Page,
    /// The node whose memory the demotion frees; none before it was located.
    frees: Option<u32>,
    /// The plan does not request the demotion.
    is_victim: bool,
}

impl Pair {
    fn settle(&self, account: &mut Account, up: PageResult, down: Option<PageResult>) {
        account.page(Direction::Promotion, self.up, up);
        match down {
            Some(Ok(())) => {
                account.page(Direction::Demotion, self.down, Ok(()));
                account.outcome.victim_pages += u64::from(self.is_victim);
            }
            // A victim that stays is no failure.
            _ if self.is_victim => {}
            Some(Err(reason)) => account.page(Direction::Demotion, self.down, Err(reason)),
            None => account.outcome.kept_pages += 1,
        }
    }
}

impl PageMover {
    /// Carries out exchanges of the plan: a few demotions, then as many promotions in their place,
    /// so that at most a batch of fast memory is empty and a deadline in between leaves it full.
    pub(super) fn exchange(
        &mut self,
        downs: &[Page],
        ups: &[Page],
        context: &mut MigrationContext,
        account: &mut Account,
    ) {
        let pair = |(&down, &up): (&Page, &Page)| Pair { down, up, frees: None, is_victim: false };
        let pairs: Vec<Pair> = downs.iter().zip(ups).map(pair).collect();
        self.exchange_pairs(&pairs, context, account);
        // Both ranges of a pair should have the same length; if not, the rest is still accounted
        // for.
        for &page in &downs[pairs.len()..] {
            account.page(Direction::Demotion, page, Err(FailureReason::Unsupported));
        }
        for &page in &ups[pairs.len()..] {
            account.page(Direction::Promotion, page, Err(FailureReason::Unsupported));
        }
    }

    /// Completes promotions of a plan; those that found no room replace their victims. Those
    /// without a victim stay.
    pub(super) fn replace_victims(
        &mut self,
        plan: &Plan,
        promotions: &[Page],
        results: &[PageResult],
        context: &mut MigrationContext,
        account: &mut Account,
    ) {
        let downs = self.pages(plan.victims.iter().map(|v| v.down));
        let ups = self.pages(plan.victims.iter().map(|v| v.up));
        let place_of: BTreeMap<(SpaceId, u64), Page> =
            ups.iter().zip(downs).map(|(up, down)| ((up.space, up.address), down)).collect();
        let mut pairs = Vec::new();
        for (&up, &result) in promotions.iter().zip(results) {
            match place_of.get(&(up.space, up.address)) {
                Some(&down) if result == Err(FailureReason::NoRoom) => {
                    pairs.push(Pair { down, up, frees: None, is_victim: true });
                }
                _ => {
                    if result == Err(FailureReason::NoRoom) {
                        tracing::debug!(page = ?up, victims = plan.victims.len(), "no victim");
                    }
                    account.page(Direction::Promotion, up, result);
                }
            }
        }
        // A victim that is slow already has no place to give.
        let downs: Vec<Page> = pairs.iter().map(|p| p.down).collect();
        let mut places = self.locate_pages(&downs).into_iter();
        pairs.retain(|pair| {
            let is_fast = places.next().and_then(Result::ok).is_some_and(|n| self.nodes.is_fast(n));
            if !is_fast {
                tracing::debug!(page = ?pair.up, victim = ?pair.down, "the victim is in slow memory");
                account.page(Direction::Promotion, pair.up, Err(FailureReason::NoRoom));
            }
            is_fast
        });
        self.exchange_pairs(&pairs, context, account);
    }

    fn exchange_pairs(
        &mut self,
        pairs: &[Pair],
        context: &mut MigrationContext,
        account: &mut Account,
    ) {
        let mut rest = pairs;
        while !rest.is_empty() {
            let (batch, after) = rest.split_at(self.batch_sizer.batch().min(rest.len()));
            rest = after;
            if !self.may_go_on(context) {
                for pair in batch {
                    let late = Err(FailureReason::OutOfTime);
                    pair.settle(account, late, Some(late));
                }
                continue;
            }
            if context.places_are_lost {
                for pair in batch {
                    pair.settle(account, Err(FailureReason::NoRoom), None);
                }
                continue;
            }
            let able = self.check_pairs(batch, account);
            let left = self.swap(&able, context, account);
            self.one_by_one(&left, context, account);
        }
    }

    /// Nodes of these pages, or why they are unknown.
    fn locate_pages(&mut self, pages: &[Page]) -> Vec<Result<i32, FailureReason>> {
        let mut places = Vec::with_capacity(pages.len());
        while let Some(first) = pages.get(places.len()) {
            let rest = &pages[places.len()..];
            let same_space = rest.iter().take_while(|p| p.space == first.space).count();
            let addresses: Vec<u64> = rest[..same_space].iter().map(|p| p.address).collect();
            let mut status = vec![UNWRITTEN; same_space];
            match self.kernel.locate(first.space.0, &addresses, &mut status) {
                Ok(()) => {
                    let place = |s: i32| if s < 0 { Err(of_page(s)) } else { Ok(s) };
                    places.extend(status.into_iter().map(place));
                }
                Err(e) => places.extend(std::iter::repeat_n(Err(of_call(&e)), same_space)),
            }
        }
        places
    }

    /// The pairs of which both pages can be moved; completes the others. The page to be promoted is
    /// checked before the other loses its place.
    fn check_pairs(&mut self, pairs: &[Pair], account: &mut Account) -> Vec<Pair> {
        let ups: Vec<Page> = pairs.iter().map(|p| p.up).collect();
        let downs: Vec<Page> = pairs.iter().map(|p| p.down).collect();
        let (up_places, down_places) = (self.locate_pages(&ups), self.locate_pages(&downs));
        let mut able = Vec::with_capacity(pairs.len());
        let mut checked = None;
        let now = self.kernel.now();
        for ((pair, up_place), down_place) in pairs.iter().zip(up_places).zip(down_places) {
            let tried = |page: Page, place: Result<i32, FailureReason>| match place {
                Ok(_) if self.backoff.waits(page.space.0, page.address, now) => {
                    Err(FailureReason::Busy)
                }
                place => place,
            };
            let (up_place, down_place) = (tried(pair.up, up_place), tried(pair.down, down_place));
            let space = pair.up.space;
            let target = match checked {
                Some((known, target)) if known == space => target,
                _ => {
                    let target = match self.check_target(space.0, Direction::Promotion) {
                        None => Err(FailureReason::ProcessGone),
                        Some(target) if target.nodes.is_empty() => Err(FailureReason::NotAllowed),
                        Some(_) => Ok(()),
                    };
                    checked = Some((space, target));
                    target
                }
            };
            match (target.and(up_place), down_place) {
                (Err(reason), _) => pair.settle(account, Err(reason), None),
                (Ok(up), _) if self.nodes.is_fast(up) => {
                    self.costs.already_there_pages().add(1);
                    pair.settle(account, Ok(()), None);
                }
                // Its place is not available: the group would exceed its limit.
                (Ok(_), Err(reason)) => {
                    pair.settle(account, Err(FailureReason::NoRoom), Some(Err(reason)));
                }
                (Ok(_), Ok(down)) => able.push(Pair { frees: u32::try_from(down).ok(), ..*pair }),
            }
        }
        able
    }

    /// Two moves for each of these pairs: those together that free memory of the same node.
    fn one_by_one(
        &mut self,
        pairs: &[Pair],
        context: &mut MigrationContext,
        account: &mut Account,
    ) {
        let mut by_node: BTreeMap<Option<u32>, Vec<Pair>> = BTreeMap::new();
        pairs.iter().for_each(|pair| by_node.entry(pair.frees).or_default().push(*pair));
        for (node, pairs) in by_node {
            self.one_by_one_on(node, &pairs, context, account);
        }
    }

    fn one_by_one_on(
        &mut self,
        node: Option<u32>,
        pairs: &[Pair],
        context: &mut MigrationContext,
        account: &mut Account,
    ) {
        let downs: Vec<Page> = pairs.iter().map(|p| p.down).collect();
        let went = self.migrate_pages(Direction::Demotion, &downs, context);
        let free: Vec<Page> =
            pairs.iter().zip(&went).filter(|(_, went)| went.is_ok()).map(|(p, _)| p.up).collect();
        let freed_bytes = free.len() as u64 * self.page_size.bytes();
        context.freed = node.map(|node| (node, freed_bytes));
        // Past the deadline too: the places were freed for these. One batch more at most.
        let deadline = context.deadline;
        context.deadline += self.options.stall;
        let mut came = self.migrate_pages(Direction::Promotion, &free, context).into_iter();
        context.deadline = deadline;
        context.freed = None;
        for (pair, went) in pairs.iter().zip(went) {
            let up = match went {
                Ok(()) => came.next().unwrap_or(Err(FailureReason::OutOfTime)),
                Err(FailureReason::OutOfTime) => Err(FailureReason::OutOfTime),
                // Its place was not freed: the group would exceed its limit.
                Err(_) => Err(FailureReason::NoRoom),
            };
            if up.is_err() {
                tracing::debug!(page = ?pair.up, victim = ?pair.down, ?went, ?up, "not exchanged");
            }
            context.places_are_lost |= went.is_ok() && up == Err(FailureReason::NoRoom);
            pair.settle(account, up, Some(went));
        }
    }

    /// Exchanges these pairs in one step, if the kernel can. Returns those that were not exchanged.
    /// Pairs of one process form one call, an operation: their pages are unmapped together. If the
    /// plan bounds operations, a call is limited to one region in each direction.
    fn swap(
        &mut self,
        pairs: &[Pair],
        context: &mut MigrationContext,
        account: &mut Account,
    ) -> Vec<Pair> {
        if !self.kernel.exchanges() {
            return pairs.to_vec();
        }
        let mut left = Vec::new();
        let mut rest = pairs;
        while let Some(first) = rest.first() {
            let space = first.up.space;
            let regions = |p: &Pair| {
                let region = |direction, page| context.region(direction, page, self.page_size);
                (region(Direction::Demotion, p.down), region(Direction::Promotion, p.up))
            };
            let wanted = regions(first);
            let same =
                |p: &&Pair| p.up.space == space && p.down.space == space && regions(p) == wanted;
            // There is no call for a pair of two processes.
            let together = rest.iter().take_while(same).count();
            if together == 0 {
                left.push(*first);
                rest = &rest[1..];
                continue;
            }
            let (batch, after) = rest.split_at(together);
            rest = after;
            let ways = [Direction::Promotion, Direction::Demotion];
            let able = self.may_go_on(context)
                && ways.into_iter().all(|way| {
                    self.check_target(space.0, way).is_some_and(|t| !t.nodes.is_empty())
                });
            if able {
                self.swap_in_space(space.0, batch, context, account, &mut left);
            } else {
                left.extend_from_slice(batch);
            }
        }
        left
    }

    fn swap_in_space(
        &mut self,
        pid: u32,
        pairs: &[Pair],
        context: &mut MigrationContext,
        account: &mut Account,
        left: &mut Vec<Pair>,
    ) {
        // Whether the demoted page is in fast memory and the promoted one in slow, before and
        // after.
        let locate = |mover: &mut Self| -> Vec<(bool, bool)> {
            let all: Vec<u64> = pairs.iter().flat_map(|p| [p.down.address, p.up.address]).collect();
            let mut place = vec![UNWRITTEN; all.len()];
            let answer = mover.kernel.locate(pid, &all, &mut place);
            let nodes = &mover.nodes;
            let of = |p: &[i32]| match answer {
                Ok(()) if nodes.is_fast(p[0]) && nodes.is_slow(p[1]) => (true, false),
                Ok(()) if nodes.is_slow(p[0]) && nodes.is_fast(p[1]) => (false, true),
                _ => (false, false),
            };
            place.chunks_exact(2).map(of).collect()
        };
        let before = locate(self);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for (pair, (wrong_way, _)) in pairs.iter().zip(&before) {
            if *wrong_way {
                a.push(pair.down.address);
                b.push(pair.up.address);
            }
        }
        if !a.is_empty() {
            let begin = self.kernel.now();
            let mut status = vec![UNWRITTEN; a.len()];
            if let Err(error) = self.kernel.exchange(pid, &a, &b, &mut status) {
                tracing::debug!(pid, %error, "an exchange was refused");
            }
            self.timed(2 * a.len(), begin);
        }
        // The present nodes decide.
        let mut exchanged = 0;
        for ((pair, before), after) in pairs.iter().zip(before).zip(locate(self)) {
            if before.0 && after.1 {
                pair.settle(account, Ok(()), Some(Ok(())));
                exchanged += 1;
            } else {
                left.push(*pair);
            }
        }
        account.outcome.exchanged_pairs += exchanged;
        context.operations += u64::from(exchanged > 0);
    }
}
