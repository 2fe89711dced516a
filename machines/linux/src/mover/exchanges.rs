//! Exchanges: a page goes up, and another down in its place.
//!
//! Where the kernel lets pages trade places (`TM_EXCHANGE`), a pair of one process goes in one step
//! and needs no free memory. What it refuses, and everything on a stock kernel, goes as two moves,
//! the page down first.

use terrace_core::plan::{Direction, FailureReason, Plan};

use super::{Account, MigrationContext, Page, PageMover, UNWRITTEN};
use std::time::Duration;

impl PageMover {
    /// Carries out the exchanges of a plan: a few go down, as many go up in their place, so that
    /// fast memory is never short of more than a batch and a deadline in between leaves it full.
    pub(super) fn exchange(
        &mut self,
        plan: &Plan,
        deadline: Duration,
        context: &mut MigrationContext,
        account: &mut Account,
    ) {
        let downs = self.pages(plan.exchanges.iter().map(|e| e.down));
        let ups = self.pages(plan.exchanges.iter().map(|e| e.up));
        let mut next = 0;
        let pairs = downs.len().min(ups.len());
        while next < pairs {
            let until = (next + self.batch_sizer.batch()).min(pairs);
            let batch: Vec<(Page, Page)> =
                downs[next..until].iter().copied().zip(ups[next..until].iter().copied()).collect();
            let left = self.trade(batch, deadline, context, account);
            self.one_by_one(&left, deadline, context, account);
            next = until;
        }
        // Ranges of a pair are equally long; should they not be, the rest is still accounted for.
        for &page in &downs[pairs..] {
            account.page(Direction::Demotion, page, Err(FailureReason::Unsupported));
        }
        for &page in &ups[pairs..] {
            account.page(Direction::Promotion, page, Err(FailureReason::Unsupported));
        }
    }

    /// Two moves for each of these pairs.
    fn one_by_one(
        &mut self,
        pairs: &[(Page, Page)],
        deadline: Duration,
        context: &mut MigrationContext,
        account: &mut Account,
    ) {
        let downs: Vec<Page> = pairs.iter().map(|p| p.0).collect();
        let went = self.migrate_pages(Direction::Demotion, &downs, deadline, context, account);
        let mut free = Vec::with_capacity(pairs.len());
        for (&(_, up), went) in pairs.iter().zip(went) {
            match went {
                Ok(()) => free.push(up),
                Err(FailureReason::OutOfTime) => {
                    account.page(Direction::Promotion, up, Err(FailureReason::OutOfTime));
                }
                // Its place was not freed: the group would pass its share.
                Err(_) => account.page(Direction::Promotion, up, Err(FailureReason::NoRoom)),
            }
        }
        // Past the deadline too: the places were freed for these. One batch more at most.
        let deadline = deadline + self.options.stall;
        self.migrate_pages(Direction::Promotion, &free, deadline, context, account);
    }

    /// Lets these pairs trade places, where the kernel can. Gives those that did not. A trade of
    /// the pages of one process is one call, and one operation: its pages are unmapped together.
    fn trade(
        &mut self,
        pairs: Vec<(Page, Page)>,
        deadline: Duration,
        context: &mut MigrationContext,
        account: &mut Account,
    ) -> Vec<(Page, Page)> {
        // An operation of a given size is a move of its own.
        if !self.kernel.trades() || !context.operation_sizes.is_empty() {
            return pairs;
        }
        let mut left = Vec::new();
        let mut rest = pairs.as_slice();
        while let Some(&(first, _)) = rest.first() {
            let same = |p: &&(Page, Page)| p.0.space == first.space && p.1.space == first.space;
            // A pair of two processes has no call.
            let (together, after) = rest.split_at(rest.iter().take_while(same).count());
            if together.is_empty() {
                left.push(rest[0]);
                rest = &rest[1..];
                continue;
            }
            rest = after;
            let in_time = self.kernel.now() < deadline;
            match self.check_target(first.space.0, context) {
                Some(_) if in_time => {
                    self.trade_in_space(first.space.0, together, context, account, &mut left);
                }
                _ => left.extend_from_slice(together),
            }
        }
        left
    }

    fn trade_in_space(
        &mut self,
        pid: u32,
        pairs: &[(Page, Page)],
        context: &mut MigrationContext,
        account: &mut Account,
        left: &mut Vec<(Page, Page)>,
    ) {
        let locate = |mover: &mut Self| -> Vec<(bool, bool)> {
            let all: Vec<u64> =
                pairs.iter().flat_map(|(down, up)| [down.address, up.address]).collect();
            let mut place = vec![UNWRITTEN; all.len()];
            let answer = mover.kernel.locate(pid, &all, &mut place);
            let nodes = &mover.nodes;
            let is_slow = |s: i32| u32::try_from(s).is_ok_and(|node| nodes.slow.contains(&node));
            let of = |p: &[i32]| match answer {
                Ok(()) if nodes.is_fast(p[0]) && is_slow(p[1]) => (true, false),
                Ok(()) if is_slow(p[0]) && nodes.is_fast(p[1]) => (false, true),
                _ => (false, false),
            };
            place.chunks_exact(2).map(of).collect()
        };
        let before = locate(self);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for ((down, up), (wrong_way, _)) in pairs.iter().zip(&before) {
            if *wrong_way {
                a.push(down.address);
                b.push(up.address);
            }
        }
        if !a.is_empty() {
            let begin = self.kernel.now();
            let mut status = vec![UNWRITTEN; a.len()];
            if let Err(error) = self.kernel.trade(pid, &a, &b, &mut status) {
                tracing::debug!(pid, %error, "an exchange was refused");
            }
            self.timed(2 * a.len(), begin);
        }
        // What counts is where the pages lie now.
        let mut traded = 0;
        for ((pair, before), after) in pairs.iter().zip(before).zip(locate(self)) {
            if before.0 && after.1 {
                account.page(Direction::Demotion, pair.0, Ok(()));
                account.page(Direction::Promotion, pair.1, Ok(()));
                traded += 1;
            } else {
                left.push(*pair);
            }
        }
        account.outcome.exchanged_pairs += traded;
        context.operations += u64::from(traded > 0);
    }
}
