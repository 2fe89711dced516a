//! Moves pages in one direction, in batches that are short enough.

use std::time::Duration;

use terrace_core::plan::{Direction, FailureReason};

use super::account::{of_call, of_page};
use super::{MigrationContext, Page, PageMover, PageResult, UNWRITTEN};

/// How often the pages of a batch that the kernel did not reach are tried again.
pub(super) const ATTEMPTS: usize = 3;
/// A batch that takes so many times what it should is dear: more than its attempts take.
const DEAR: u32 = 4;

/// The pages of one call in one direction, by index, and their target.
struct Batch<'a> {
    pid: u32,
    direction: Direction,
    nodes: &'a [u32],
    indices: &'a [usize],
}

impl PageMover {
    /// Moves these pages in one direction until the deadline. Returns the result of each.
    pub(super) fn migrate_pages(
        &mut self,
        direction: Direction,
        pages: &[Page],
        context: &mut MigrationContext,
    ) -> Vec<PageResult> {
        let mut done = Vec::with_capacity(pages.len());
        while let Some(first) = pages.get(done.len()) {
            let rest = &pages[done.len()..];
            let same_space = rest.iter().take_while(|p| p.space == first.space).count();
            let pages = &rest[..same_space];
            // Pages that are not reached keep this result.
            let mut results = vec![Err(FailureReason::OutOfTime); pages.len()];
            if self.may_go_on(context) {
                self.migrate_in_space(direction, pages, context, &mut results);
            }
            done.extend(results);
        }
        done
    }

    /// Moves pages of one process.
    fn migrate_in_space(
        &mut self,
        direction: Direction,
        pages: &[Page],
        context: &mut MigrationContext,
        results: &mut [PageResult],
    ) {
        let Some(pid) = pages.first().map(|p| p.space.0) else { return };
        let Some(target) = self.check_target(pid, direction) else {
            return results.fill(Err(FailureReason::ProcessGone));
        };
        let addresses: Vec<u64> = pages.iter().map(|p| p.address).collect();
        let mut status = vec![UNWRITTEN; pages.len()];
        if let Err(e) = self.kernel.locate(pid, &addresses, &mut status) {
            return results.fill(Err(of_call(&e)));
        }
        let tier = self.nodes.targets(direction);
        let mut going = Vec::with_capacity(pages.len());
        let now = self.kernel.now();
        for (index, &s) in status.iter().enumerate() {
            match s {
                s if u32::try_from(s).is_ok_and(|n| tier.contains(&n)) => {
                    results[index] = Ok(());
                    self.costs.already_there_pages().add(1);
                }
                s if s < 0 => results[index] = Err(of_page(s)),
                _ if self.backoff.waits(pid, addresses[index], now) => {
                    results[index] = Err(FailureReason::Busy);
                }
                _ => going.push(index),
            }
        }
        let mut going = going.as_slice();
        let mut fresh = Some(target);
        while !going.is_empty() {
            if !self.may_go_on(context) {
                return;
            }
            let region = |index: usize| context.region(direction, pages[index], self.page_size);
            let first = region(going[0]);
            let size = self.batch_sizer.batch();
            let batch = going.iter().take(size).take_while(|&&i| region(i) == first).count();
            let (indices, rest) = going.split_at(batch);
            let Some(target) = fresh.take().or_else(|| self.check_target(pid, direction)) else {
                going.iter().for_each(|&i| results[i] = Err(FailureReason::ProcessGone));
                return;
            };
            let batch = Batch { pid, direction, nodes: &target.nodes, indices };
            self.migrate_batch(&batch, &addresses, context, results);
            going = rest;
        }
    }

    /// Moves the pages of a batch, none of which is on the target yet.
    fn migrate_batch(
        &mut self,
        batch: &Batch<'_>,
        addresses: &[u64],
        context: &mut MigrationContext,
        results: &mut [PageResult],
    ) {
        let page_bytes = self.page_size.bytes();
        let wanted = batch.indices.len() as u64 * page_bytes;
        let Some((node, room)) = self.choose_node(batch.nodes, wanted, context) else {
            batch.indices.iter().for_each(|&i| results[i] = Err(FailureReason::NotAllowed));
            return;
        };
        let most = batch.indices.len().min((room / page_bytes) as usize);
        let (fit, over) = batch.indices.split_at(most);
        over.iter().for_each(|&i| results[i] = Err(FailureReason::NoRoom));
        let taken = fit.len() as u64 * page_bytes;
        context.room.insert(node, room - taken);
        if let Some((_, freed)) = context.freed.as_mut().filter(|(left, _)| *left == node) {
            *freed = freed.saturating_sub(taken);
        }

        let tier = self.nodes.targets(batch.direction).to_vec();
        let mut left = fit.to_vec();
        let begin = self.kernel.now();
        for _ in 0..ATTEMPTS {
            if left.is_empty() {
                break;
            }
            let sent: Vec<u64> = left.iter().map(|&i| addresses[i]).collect();
            let (reported, answer) = self.call(batch.pid, node, &sent);
            let mut place = vec![UNWRITTEN; left.len()];
            let located = self.kernel.locate(batch.pid, &sent, &mut place);
            let (mut again, mut moved) = (Vec::new(), false);
            for ((&index, &reported), &place) in left.iter().zip(&reported).zip(&place) {
                let arrived = u32::try_from(place).is_ok_and(|n| tier.contains(&n));
                moved |= arrived && located.is_ok();
                results[index] = match (&located, &answer) {
                    (Err(e), _) => Err(of_call(e)),
                    _ if arrived => Ok(()),
                    _ if place < 0 => Err(of_page(place)),
                    // Reported as moved, and found elsewhere.
                    _ if reported >= 0 => Err(FailureReason::StayedPut),
                    _ if reported != UNWRITTEN => Err(of_page(reported)),
                    (_, Err(e)) => Err(of_call(e)),
                    (_, Ok(_)) => {
                        again.push(index);
                        Err(FailureReason::Busy)
                    }
                };
            }
            context.operations += u64::from(moved);
            // Reversed, so that pages behind the one that ended the call come first. A single page
            // has no others behind it.
            again.reverse();
            left = if left.len() == 1 { Vec::new() } else { again };
        }
        let now = self.kernel.now();
        let took = now.saturating_sub(begin);
        for &index in fit {
            let page = (batch.pid, addresses[index]);
            let is_dear = took >= DEAR * self.options.stall;
            self.backoff.note(page, &results[index], is_dear, took, now);
        }
    }

    /// One call, timed.
    fn call(&mut self, pid: u32, node: u32, sent: &[u64]) -> (Vec<i32>, std::io::Result<u64>) {
        let mut reported = vec![UNWRITTEN; sent.len()];
        let begin = self.kernel.now();
        let answer = self.kernel.migrate(pid, sent, node, &mut reported);
        self.timed(sent.len(), begin);
        (reported, answer)
    }

    /// Accounts for a call that moved so many pages.
    pub(super) fn timed(&mut self, pages: usize, begin: Duration) {
        let took = self.kernel.now().saturating_sub(begin);
        let took_ns = took.as_nanos() as u64;
        self.costs.move_calls().add(1);
        self.costs.move_ns().add(took_ns);
        self.costs.longest_move_ns().raise_to(took_ns);
        self.batch_sizer.took(pages, took);
    }
}
