//! Moves pages: with `move_pages(2)`, or the calls that the Terrace kernel has instead.
//!
//! What `move_pages` is like (mm/migrate.c, Linux 6.12) and what follows from it:
//! - each call drains every processor's LRU caches first, so a call should carry many pages; but
//!   whoever touches a page that is being moved waits for it to arrive. So pages go in batches
//!   whose size follows the measured time per page ([`crate::batch_size`]).
//! - one address names a whole folio. Base addresses of one huge page would be refused as busy,
//!   because the first of them took it off its list.
//! - when a page fails to move, the call ends early and leaves `status` unwritten for the pages
//!   of that stretch, the moved ones too. So `status` is filled with a value that the kernel
//!   never writes, pages the kernel did not come to are tried again, and the place of every page
//!   is read back: only a page found in the tier it was sent to counts as moved.
//! - what the policy wants moved in one operation goes in a call of its own: each call ends with
//!   the shootdowns of its pages put together.
//! - the target node is exact (`__GFP_THISNODE`) and allocation may reclaim on it. So a node is
//!   filled only down to the kernel's own reserve.

mod exchanges;

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use terrace_core::operations::{OperationSize, region_bytes};
use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{Direction, Failure, FailureReason, Outcome, Plan};
use terrace_core::seams::{MachineError, Mover};

use crate::batch_size::BatchSizer;
use crate::costs::{Costs, thread_cpu_ns};
use crate::kernel::PageKernel;
use crate::process::Process;

/// A status that the kernel never writes.
const UNWRITTEN: i32 = i32::MIN;
/// How often the pages of one batch that the kernel did not come to are tried again.
const ATTEMPTS: usize = 3;

/// Bounds of a mover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoverOptions {
    /// Time for which the pages of one call should be away at most: what a program waits that
    /// touches one of them (Katalyst settled on 20 ms after stalls of minutes: katalyst-core issue 477).
    pub stall: Duration,
    /// Time that the moves of one plan may take; what is left then fails as `OutOfTime`.
    pub total: Duration,
}

/// The nodes of the two tiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierNodes {
    /// Where promotions go.
    pub fast: Vec<u32>,
    /// Where demotions go, the best first.
    pub slow: Vec<u32>,
}

impl TierNodes {
    /// Whether a status names a fast node.
    pub fn is_fast(&self, status: i32) -> bool {
        u32::try_from(status).is_ok_and(|node| self.fast.contains(&node))
    }
}

/// What the tracker of a group lets its mover know.
#[derive(Debug, Default)]
pub struct TrackerState {
    /// The processes that the group has now: the mover touches no other.
    pub members: Vec<Process>,
    /// The end of the period that runs, on the clock of [`PageKernel::now`], and the length of a
    /// period. A page on the way at that moment would look unused.
    pub boundary: Option<(Duration, Duration)>,
}

/// Shared by a group's tracker and mover.
pub type SharedTrackerState = Arc<RwLock<TrackerState>>;

/// A page on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    space: SpaceId,
    address: u64,
}

/// Moves the pages of one group.
pub struct PageMover {
    kernel: Box<dyn PageKernel>,
    nodes: TierNodes,
    page_size: PageSize,
    options: MoverOptions,
    tracker_state: SharedTrackerState,
    costs: Costs,
    batch_sizer: BatchSizer,
}

/// What is known while one plan is carried out, so that it is asked once and not per call.
#[derive(Default)]
struct MigrationContext {
    /// For each process: may it be touched, and which nodes may it use.
    processes: BTreeMap<u32, Option<TargetCheck>>,
    /// Free bytes of nodes that may be filled, as of a few calls ago.
    room: BTreeMap<u32, u64>,
    calls: u32,
    /// What the plan says of the size of operations.
    operation_sizes: Vec<OperationSize>,
    /// Calls that moved some page.
    operations: u64,
}

impl MigrationContext {
    fn new(plan: &Plan) -> Self {
        MigrationContext {
            operation_sizes: plan.operation_sizes.clone(),
            ..MigrationContext::default()
        }
    }

    /// The region of a page that an operation keeps to; all memory where the plan says nothing.
    fn region(&self, direction: Direction, page: Page, page_size: PageSize) -> u64 {
        let size = self.operation_sizes.iter().find(|o| o.space == page.space);
        size.map_or(0, |o| page.address / region_bytes(Some(o.bytes(direction)), page_size))
    }
}

#[derive(Clone)]
struct TargetCheck {
    /// `None` when that cannot be known.
    nodes: Option<Vec<u32>>,
}

/// Calls after which the free memory of nodes is asked anew: others allocate too.
const ROOM_CALLS: u32 = 16;

impl PageMover {
    /// A mover for one group.
    pub fn new(
        kernel: Box<dyn PageKernel>,
        nodes: TierNodes,
        page_size: PageSize,
        options: MoverOptions,
        tracker_state: SharedTrackerState,
        costs: Costs,
    ) -> Self {
        // Small at first: 2 MB or 32 KB; at most 128 MB or 16 MB.
        let (first, most) = match page_size {
            PageSize::Huge => (1, 64),
            PageSize::Base => (8, 4096),
        };
        let batch_sizer = BatchSizer::new(options.stall, first, most);
        PageMover { kernel, nodes, page_size, options, tracker_state, costs, batch_sizer }
    }

    /// Moves these pages one way until the deadline. Says what became of each.
    fn migrate_pages(
        &mut self,
        direction: Direction,
        pages: &[Page],
        deadline: Duration,
        context: &mut MigrationContext,
        account: &mut Account,
    ) -> Vec<Result<(), FailureReason>> {
        let mut done = Vec::with_capacity(pages.len());
        while let Some(first) = pages.get(done.len()) {
            let rest = &pages[done.len()..];
            let same_space = rest.iter().take_while(|p| p.space == first.space).count();
            let pages = &rest[..same_space];
            let mut results = vec![Err(FailureReason::OutOfTime); pages.len()];
            if self.kernel.now() < deadline {
                self.migrate_in_space(
                    first.space.0,
                    direction,
                    pages,
                    deadline,
                    context,
                    &mut results,
                );
            }
            for (page, result) in pages.iter().zip(&results) {
                account.page(direction, *page, *result);
            }
            done.extend(results);
        }
        done
    }

    /// Moves pages of one process.
    fn migrate_in_space(
        &mut self,
        pid: u32,
        direction: Direction,
        pages: &[Page],
        deadline: Duration,
        context: &mut MigrationContext,
        results: &mut [Result<(), FailureReason>],
    ) {
        let Some(target) = self.check_target(pid, context) else {
            return results.fill(Err(FailureReason::ProcessGone));
        };
        let addresses: Vec<u64> = pages.iter().map(|p| p.address).collect();
        let mut status = vec![UNWRITTEN; pages.len()];
        if let Err(e) = self.kernel.locate(pid, &addresses, &mut status) {
            return results.fill(Err(of_call(&e)));
        }
        let goal = match direction {
            Direction::Promotion => self.nodes.fast.clone(),
            Direction::Demotion => self.nodes.slow.clone(),
        };
        let there = |status: i32| u32::try_from(status).is_ok_and(|n| goal.contains(&n));
        let mut going = Vec::with_capacity(pages.len());
        for (index, &s) in status.iter().enumerate() {
            match s {
                s if there(s) => {
                    results[index] = Ok(());
                    self.costs.already_there_pages().add(1);
                }
                s if s < 0 => results[index] = Err(of_page(s)),
                _ => going.push(index),
            }
        }
        let may = |n: &&u32| target.nodes.as_ref().is_none_or(|a| a.contains(n));
        let goal: Vec<u32> = goal.iter().filter(may).copied().collect();
        let mut going = going.as_slice();
        while !going.is_empty() {
            if self.kernel.now() >= deadline {
                // These were set to `OutOfTime` at the start.
                return;
            }
            let region = |index: usize| context.region(direction, pages[index], self.page_size);
            let first = region(going[0]);
            let batch =
                going.iter().take(self.batch_sizer.batch()).take_while(|&&i| region(i) == first);
            let (batch, rest) = going.split_at(batch.count());
            self.migrate_batch(pid, &goal, &addresses, batch, context, results);
            going = rest;
        }
    }

    /// Whether a process may be touched: it lives and is the one that the tracker means. Another
    /// may have got its identifier since the scan.
    fn check_target(&mut self, pid: u32, context: &mut MigrationContext) -> Option<TargetCheck> {
        if let Some(known) = context.processes.get(&pid) {
            return known.clone();
        }
        let process = self.kernel.alive(pid);
        let member = process
            .is_some_and(|p| self.tracker_state.read().is_ok_and(|n| n.members.contains(&p)));
        let target = member.then(|| TargetCheck { nodes: self.kernel.allowed_nodes(pid) });
        context.processes.insert(pid, target.clone());
        target
    }

    /// The first node with room for so many bytes, or the one with the most room.
    fn choose_node(
        &mut self,
        goal: &[u32],
        wanted: u64,
        context: &mut MigrationContext,
    ) -> Option<(u32, u64)> {
        if context.calls.is_multiple_of(ROOM_CALLS) {
            context.room.clear();
        }
        context.calls += 1;
        let mut best: Option<(u32, u64)> = None;
        for &node in goal {
            let room = match context.room.get(&node) {
                Some(room) if *room >= wanted => *room,
                _ => {
                    let room = self.kernel.room_bytes(node);
                    context.room.insert(node, room);
                    room
                }
            };
            if best.is_none_or(|(_, most)| room > most) {
                best = Some((node, room));
            }
            if room >= wanted {
                break;
            }
        }
        best
    }

    /// Moves the pages of these indices, none of which is there yet.
    fn migrate_batch(
        &mut self,
        pid: u32,
        goal: &[u32],
        addresses: &[u64],
        going: &[usize],
        context: &mut MigrationContext,
        results: &mut [Result<(), FailureReason>],
    ) {
        let page_bytes = self.page_size.bytes();
        let wanted = going.len() as u64 * page_bytes;
        let Some((node, room)) = self.choose_node(goal, wanted, context) else {
            going.iter().for_each(|&i| results[i] = Err(FailureReason::NotAllowed));
            return;
        };
        let (fit, over) = going.split_at(going.len().min((room / page_bytes) as usize));
        over.iter().for_each(|&i| results[i] = Err(FailureReason::NoRoom));
        context.room.insert(node, room - fit.len() as u64 * page_bytes);

        let mut left = fit.to_vec();
        for _ in 0..ATTEMPTS {
            if left.is_empty() {
                break;
            }
            let (reported, answer) = self.call(pid, node, addresses, &left);
            let mut place = vec![UNWRITTEN; left.len()];
            let sent: Vec<u64> = left.iter().map(|&i| addresses[i]).collect();
            let located = self.kernel.locate(pid, &sent, &mut place);
            let (mut again, mut moved) = (Vec::new(), false);
            for ((&index, &reported), &place) in left.iter().zip(&reported).zip(&place) {
                let arrived = u32::try_from(place).is_ok_and(|n| goal.contains(&n));
                moved |= arrived && located.is_ok();
                results[index] = match (&located, &answer) {
                    (Err(e), _) => Err(of_call(e)),
                    _ if arrived => Ok(()),
                    _ if place < 0 => Err(of_page(place)),
                    // Said to be moved, and found elsewhere.
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
            // The other way round, so that those behind the page that ended the call come first.
            // A page alone has no other behind it.
            again.reverse();
            left = if left.len() == 1 { Vec::new() } else { again };
        }
    }

    /// One call, timed.
    fn call(
        &mut self,
        pid: u32,
        node: u32,
        addresses: &[u64],
        indices: &[usize],
    ) -> (Vec<i32>, std::io::Result<u64>) {
        let sent: Vec<u64> = indices.iter().map(|&i| addresses[i]).collect();
        let mut reported = vec![UNWRITTEN; sent.len()];
        let begin = self.kernel.now();
        let answer = self.kernel.migrate(pid, &sent, node, &mut reported);
        self.timed(sent.len(), begin);
        (reported, answer)
    }

    /// Accounts for a call that moved so many pages.
    fn timed(&mut self, pages: usize, begin: Duration) {
        let took = self.kernel.now().saturating_sub(begin);
        let took_ns = took.as_nanos() as u64;
        self.costs.move_calls().add(1);
        self.costs.move_ns().add(took_ns);
        self.costs.longest_move_ns().raise_to(took_ns);
        self.batch_sizer.took(pages, took);
    }

    fn pages(&self, ranges: impl IntoIterator<Item = VirtualRange>) -> Vec<Page> {
        let bytes = self.page_size.bytes();
        let mut pages = Vec::new();
        for range in ranges {
            pages.extend(
                (0..range.pages(self.page_size))
                    .map(|nth| Page { space: range.space, address: range.start + nth * bytes }),
            );
        }
        pages
    }

    /// When moves have to end: with the time allowed, and before DAMON looks at accessed bits
    /// again. Close to that moment it is waited for, so that moves have their time after it.
    fn deadline(&mut self) -> Duration {
        let now = self.kernel.now();
        let boundary = self.tracker_state.read().ok().and_then(|n| n.boundary);
        let Some((mut end, period)) = boundary.filter(|(_, period)| !period.is_zero()) else {
            return now + self.options.total;
        };
        let margin = (2 * self.options.stall).max(period / 20);
        // The tracker has not been asked since: periods went on without us.
        while end + margin < now {
            end += period;
        }
        let mut begin = now;
        if now + margin + self.options.total / 4 > end {
            begin = end + margin;
            self.kernel.sleep(begin.saturating_sub(now));
            end += period;
        }
        (begin + self.options.total).min(end.saturating_sub(margin))
    }

    fn run(&mut self, plan: &Plan) -> Outcome {
        if plan.is_empty() {
            return Outcome::default();
        }
        let deadline = self.deadline();
        let mut account = Account::new(self.page_size);
        let mut context = MigrationContext::new(plan);

        let demotions = self.pages(plan.demotions.iter().copied());
        self.migrate_pages(Direction::Demotion, &demotions, deadline, &mut context, &mut account);

        self.exchange(plan, deadline, &mut context, &mut account);

        let promotions = self.pages(plan.promotions.iter().copied());
        self.migrate_pages(Direction::Promotion, &promotions, deadline, &mut context, &mut account);
        account.outcome.operations = context.operations;
        account.outcome
    }
}

impl Mover for PageMover {
    fn name(&self) -> &'static str {
        self.kernel.name()
    }

    fn apply(&mut self, plan: &Plan) -> Result<Outcome, MachineError> {
        let before = thread_cpu_ns();
        let outcome = self.run(plan);
        self.costs.mover_cpu_ns().add(thread_cpu_ns().saturating_sub(before));
        Ok(outcome)
    }

    fn cpu_ns(&self) -> Option<u64> {
        Some(self.costs.snapshot().mover_cpu_ns)
    }
}

/// Counts what became of each page; joins neighbours that failed alike.
struct Account {
    page_bytes: u64,
    outcome: Outcome,
}

impl Account {
    fn new(page_size: PageSize) -> Self {
        Account { page_bytes: page_size.bytes(), outcome: Outcome::default() }
    }

    fn page(&mut self, direction: Direction, page: Page, result: Result<(), FailureReason>) {
        let reason = match (result, direction) {
            (Ok(()), Direction::Promotion) => return self.outcome.promoted_pages += 1,
            (Ok(()), Direction::Demotion) => return self.outcome.demoted_pages += 1,
            (Err(reason), _) => reason,
        };
        if let Some(last) = self.outcome.failures.last_mut()
            && (last.direction, last.reason) == (direction, reason)
            && last.range.space == page.space
            && last.range.end() == page.address
        {
            last.range.size_bytes += self.page_bytes;
            return;
        }
        let range =
            VirtualRange { space: page.space, start: page.address, size_bytes: self.page_bytes };
        self.outcome.failures.push(Failure { range, direction, reason });
    }
}

/// Why one page failed, from its status.
fn of_page(status: i32) -> FailureReason {
    match -status {
        libc::ENOENT | libc::EFAULT => FailureReason::Absent,
        libc::EBUSY | libc::EAGAIN => FailureReason::Busy,
        libc::EACCES | libc::EPERM => FailureReason::Denied,
        libc::ENOMEM => FailureReason::NoRoom,
        libc::ENODEV | libc::EINVAL => FailureReason::NotAllowed,
        libc::ESRCH => FailureReason::ProcessGone,
        _ => FailureReason::Unsupported,
    }
}

/// Why a whole call failed. The numbers mean other things there than in a page's status: EACCES
/// says that the node is outside the process's cpuset, EINVAL that the process has no memory any
/// more (`find_mm_struct` in mm/migrate.c).
fn of_call(error: &std::io::Error) -> FailureReason {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::ENODEV) => FailureReason::NotAllowed,
        Some(libc::ESRCH | libc::EINVAL) => FailureReason::ProcessGone,
        Some(libc::EPERM) => FailureReason::Denied,
        Some(libc::ENOMEM) => FailureReason::NoRoom,
        Some(libc::EAGAIN | libc::EBUSY | libc::EINTR) => FailureReason::Busy,
        Some(libc::EFAULT | libc::ENOENT) => FailureReason::Absent,
        _ => FailureReason::Unsupported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io;
    use std::sync::Mutex;
    use terrace_core::plan::Exchange;

    const HUGE: u64 = 2 << 20;
    /// Stands for a node in calls that trade.
    const TRADE: u32 = 99;

    /// A kernel of two nodes, 0 fast and 1 slow, that behaves as do_pages_move does.
    #[derive(Default)]
    struct World {
        place: BTreeMap<u64, i32>,
        /// Pages whose move fails inside the call, which ends the call early.
        stuck: Vec<u64>,
        /// Pages that are refused with this errno in their status.
        refused: BTreeMap<u64, i32>,
        /// Pages that are said to be moved and are not.
        liars: Vec<u64>,
        room_bytes: BTreeMap<u32, u64>,
        call_error: Option<i32>,
        allowed: Option<Vec<u32>>,
        gone: bool,
        /// Whether pages can trade places; pairs with a refused page cannot.
        trades: bool,
        now: Duration,
        per_page: Duration,
        calls: Vec<(u32, Vec<u64>)>,
    }

    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<World>>);

    impl PageKernel for Fake {
        fn locate(&mut self, _: u32, addresses: &[u64], status: &mut [i32]) -> io::Result<()> {
            let world = self.0.lock().unwrap();
            for (a, s) in addresses.iter().zip(status) {
                *s = world.place.get(a).copied().unwrap_or(-libc::ENOENT);
            }
            Ok(())
        }

        fn migrate(
            &mut self,
            _: u32,
            addresses: &[u64],
            node: u32,
            status: &mut [i32],
        ) -> io::Result<u64> {
            let mut world = self.0.lock().unwrap();
            world.calls.push((node, addresses.to_vec()));
            let time = world.per_page * addresses.len() as u32;
            world.now += time;
            if let Some(errno) = world.call_error {
                return Err(io::Error::from_raw_os_error(errno));
            }
            // Pages gather until one is refused, then they are moved together.
            let mut begin = 0;
            for i in 0..=addresses.len() {
                let refused = addresses.get(i).and_then(|a| world.refused.get(a).copied());
                if i < addresses.len() && refused.is_none() {
                    continue;
                }
                let mut failed = 0;
                for a in &addresses[begin..i] {
                    if world.stuck.contains(a) {
                        failed += 1;
                    } else if !world.liars.contains(a) {
                        world.place.insert(*a, node as i32);
                        let room = world.room_bytes.entry(node).or_insert(u64::MAX);
                        *room = room.saturating_sub(HUGE);
                    }
                }
                if failed > 0 {
                    return Ok(failed + (addresses.len() - i) as u64);
                }
                status[begin..i].fill(node as i32);
                if let Some(errno) = refused {
                    status[i] = -errno;
                }
                begin = i + 1;
            }
            Ok(0)
        }

        fn trades(&self) -> bool {
            self.0.lock().unwrap().trades
        }

        fn trade(&mut self, _: u32, a: &[u64], b: &[u64], status: &mut [i32]) -> io::Result<()> {
            let mut world = self.0.lock().unwrap();
            let world = &mut *world;
            world.calls.push((TRADE, [a, b].concat()));
            world.now += world.per_page * (2 * a.len()) as u32;
            if let Some(errno) = world.call_error {
                return Err(io::Error::from_raw_os_error(errno));
            }
            for ((a, b), status) in a.iter().zip(b).zip(status) {
                let refused = world.refused.get(a).or(world.refused.get(b));
                *status = refused.map_or(0, |errno| -errno);
                if refused.is_none() && !world.stuck.contains(a) && !world.liars.contains(b) {
                    let of_a = world.place[a];
                    let of_b = world.place.insert(*b, of_a).unwrap();
                    world.place.insert(*a, of_b);
                }
            }
            Ok(())
        }

        fn room_bytes(&mut self, node: u32) -> u64 {
            self.0.lock().unwrap().room_bytes.get(&node).copied().unwrap_or(u64::MAX)
        }

        fn allowed_nodes(&mut self, _: u32) -> Option<Vec<u32>> {
            self.0.lock().unwrap().allowed.clone()
        }

        fn alive(&mut self, pid: u32) -> Option<Process> {
            (!self.0.lock().unwrap().gone).then_some(Process { pid, start_ticks: 1 })
        }

        fn now(&mut self) -> Duration {
            self.0.lock().unwrap().now
        }

        fn sleep(&mut self, time: Duration) {
            self.0.lock().unwrap().now += time;
        }
    }

    /// A mover of huge pages over this world, for process 7.
    fn mover(world: World, total: Duration) -> (PageMover, Arc<Mutex<World>>, Costs) {
        let fake = Fake(Arc::new(Mutex::new(world)));
        let shared = Arc::clone(&fake.0);
        let costs = Costs::default();
        let mover = PageMover::new(
            Box::new(fake),
            TierNodes { fast: vec![0], slow: vec![1] },
            PageSize::Huge,
            MoverOptions { stall: Duration::from_millis(20), total },
            Arc::new(RwLock::new(TrackerState {
                members: vec![Process { pid: 7, start_ticks: 1 }],
                boundary: None,
            })),
            costs.clone(),
        );
        (mover, shared, costs)
    }

    fn range(first: u64, pages: u64) -> VirtualRange {
        VirtualRange { space: SpaceId(7), start: first * HUGE, size_bytes: pages * HUGE }
    }

    fn placed(fast: std::ops::Range<u64>, slow: std::ops::Range<u64>) -> BTreeMap<u64, i32> {
        fast.map(|p| (p * HUGE, 0)).chain(slow.map(|p| (p * HUGE, 1))).collect()
    }

    fn failures(outcome: &Outcome) -> Vec<(u64, u64, Direction, FailureReason)> {
        let page =
            |f: &Failure| (f.range.start / HUGE, f.range.size_bytes / HUGE, f.direction, f.reason);
        outcome.failures.iter().map(page).collect()
    }

    #[test]
    fn demotions_go_before_promotions_and_exchanges_pairwise_between() {
        let world = World { place: placed(0..4, 10..14), ..World::default() };
        let (mut mover, world, _) = mover(world, Duration::from_secs(1));
        let plan = Plan {
            promotions: vec![range(10, 1)],
            demotions: vec![range(0, 1)],
            exchanges: vec![Exchange { up: range(11, 3), down: range(1, 3) }],
            ..Plan::default()
        };
        let outcome = mover.apply(&plan).unwrap();
        assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (4, 4));
        assert_eq!((outcome.exchanged_pairs, outcome.failures.len()), (0, 0));
        let world = world.lock().unwrap();
        assert_eq!(world.place, placed(10..14, 0..4));
        let nodes: Vec<u32> = world.calls.iter().map(|(node, _)| *node).collect();
        assert_eq!(nodes, [1, 1, 0, 1, 0, 0]);
    }

    #[test]
    fn each_failure_has_its_reason() {
        let world = World {
            place: placed(0..2, 10..16),
            stuck: vec![10 * HUGE],
            refused: [(11 * HUGE, libc::EACCES)].into(),
            liars: vec![12 * HUGE],
            ..World::default()
        };
        let (mut mover, world, costs) = mover(world, Duration::from_secs(1));
        // Pages 10 to 15 and one that does not exist; 0 is in fast memory already.
        let plan = Plan { promotions: vec![range(10, 7), range(0, 1)], ..Plan::default() };
        let outcome = mover.apply(&plan).unwrap();
        use Direction::Promotion;
        assert_eq!(
            failures(&outcome),
            [
                (10, 1, Promotion, FailureReason::Busy),
                (11, 1, Promotion, FailureReason::Denied),
                (12, 1, Promotion, FailureReason::StayedPut),
                (16, 1, Promotion, FailureReason::Absent),
            ]
        );
        assert_eq!(outcome.promoted_pages, 4);
        assert_eq!(costs.snapshot().already_there_pages, 1);
        assert_eq!(world.lock().unwrap().place[&(15 * HUGE)], 0);
    }

    #[test]
    fn a_page_that_fails_does_not_stop_those_the_kernel_did_not_come_to() {
        let world = World {
            place: placed(0..0, 0..2),
            stuck: vec![0],
            refused: [(HUGE, libc::EBUSY)].into(),
            ..World::default()
        };
        let (mut mover, world, _) = mover(world, Duration::from_secs(1));
        let plan = Plan { promotions: vec![range(0, 2)], ..Plan::default() };
        // Page 0 ends the first call before page 1 is told: page 1 gets its own status later.
        let outcome = mover.apply(&plan).unwrap();
        assert_eq!(failures(&outcome)[0].1, 2);
        assert!(world.lock().unwrap().calls.len() <= ATTEMPTS);
    }

    #[test]
    fn a_full_node_is_not_filled_into_its_reserve() {
        let world = World {
            place: placed(0..0, 0..5),
            room_bytes: [(0, 3 * HUGE + 5)].into(),
            ..World::default()
        };
        let (mut mover, _, _) = mover(world, Duration::from_secs(1));
        let plan = Plan { promotions: vec![range(0, 5)], ..Plan::default() };
        let outcome = mover.apply(&plan).unwrap();
        assert_eq!(outcome.promoted_pages, 3);
        assert_eq!(failures(&outcome), [(3, 2, Direction::Promotion, FailureReason::NoRoom)]);
    }

    #[test]
    fn an_exchange_whose_page_stays_down_there_leaves_its_partner() {
        let world = World { place: placed(0..2, 10..12), stuck: vec![0], ..World::default() };
        let (mut mover, world, _) = mover(world, Duration::from_secs(1));
        let plan = Plan {
            exchanges: vec![Exchange { up: range(10, 2), down: range(0, 2) }],
            ..Plan::default()
        };
        let outcome = mover.apply(&plan).unwrap();
        assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (1, 1));
        let mut got = failures(&outcome);
        got.sort_by_key(|f| f.0);
        assert_eq!(
            got,
            [
                (0, 1, Direction::Demotion, FailureReason::Busy),
                (10, 1, Direction::Promotion, FailureReason::NoRoom)
            ]
        );
        assert_eq!(world.lock().unwrap().place[&(10 * HUGE)], 1);
    }

    #[test]
    fn pairs_trade_places_where_the_kernel_can_and_move_where_it_refuses() {
        let world = World {
            place: placed(0..4, 10..14),
            room_bytes: [(0, 0)].into(),
            refused: [(12 * HUGE, libc::EBUSY)].into(),
            trades: true,
            ..World::default()
        };
        let (mut mover, world, _) = mover(world, Duration::from_secs(1));
        mover.batch_sizer = BatchSizer::new(Duration::from_millis(20), 4, 4);
        let plan = Plan {
            exchanges: vec![Exchange { up: range(10, 4), down: range(0, 4) }],
            ..Plan::default()
        };
        let outcome = mover.apply(&plan).unwrap();
        assert_eq!(outcome.exchanged_pairs, 3);
        // The fourth pair went as two moves, of which that up was refused, too; its partner is
        // down, as it would be on a stock kernel.
        assert_eq!((outcome.promoted_pages, outcome.demoted_pages), (3, 4));
        assert_eq!(failures(&outcome).len(), 1);
        let world = world.lock().unwrap();
        assert_eq!(
            world.calls[0],
            (TRADE, [0, 1, 2, 3, 10, 11, 12, 13].map(|p| p * HUGE).to_vec())
        );
        assert_eq!([0, 1, 3].map(|p| world.place[&(p * HUGE)]), [1; 3]);
        assert_eq!([10, 11, 13].map(|p| world.place[&(p * HUGE)]), [0; 3]);
    }

    #[test]
    fn batches_shrink_to_the_stall_allowed_and_time_runs_out_at_the_bound() {
        let world = World {
            place: placed(0..0, 0..100),
            per_page: Duration::from_millis(7),
            ..World::default()
        };
        let (mut mover, world, costs) = mover(world, Duration::from_millis(300));
        let plan = Plan { promotions: vec![range(0, 100)], ..Plan::default() };
        let outcome = mover.apply(&plan).unwrap();
        assert!(costs.snapshot().longest_move_ns <= 28_000_000);
        assert!(world.lock().unwrap().now <= Duration::from_millis(330));
        let left = 100 - outcome.promoted_pages;
        assert!((50..70).contains(&left), "{left} pages left");
        assert_eq!(
            failures(&outcome),
            [(100 - left, left, Direction::Promotion, FailureReason::OutOfTime)]
        );
    }

    #[test]
    fn a_process_that_went_or_may_not_is_told_apart() {
        let plan = Plan { promotions: vec![range(0, 1)], ..Plan::default() };
        let place = placed(0..0, 0..1);
        let reason = |world: World| {
            let outcome = mover(world, Duration::from_secs(1)).0.apply(&plan).unwrap();
            outcome.failures[0].reason
        };
        let base = || World { place: place.clone(), ..World::default() };
        assert_eq!(reason(World { gone: true, ..base() }), FailureReason::ProcessGone);
        let cpuset = World { allowed: Some(vec![1]), ..base() };
        assert_eq!(reason(cpuset), FailureReason::NotAllowed);
        for (errno, expected) in [
            (libc::EACCES, FailureReason::NotAllowed),
            (libc::EPERM, FailureReason::Denied),
            (libc::ESRCH, FailureReason::ProcessGone),
            (libc::ENOMEM, FailureReason::NoRoom),
        ] {
            assert_eq!(reason(World { call_error: Some(errno), ..base() }), expected);
        }
    }

    #[test]
    fn no_page_is_on_its_way_when_a_period_ends() {
        let ms = Duration::from_millis;
        // The period ends at 100 ms, and the margin is 40 ms: a plan in the early part is cut
        // short, one shortly before or after the end waits.
        for (now, expected) in [(0, 58), (50, 140), (90, 140), (120, 140), (150, 1040)] {
            let world = World {
                place: placed(0..0, 0..40),
                per_page: ms(2),
                now: ms(now),
                ..World::default()
            };
            let (mut mover, world, _) = mover(world, ms(200));
            mover.tracker_state.write().unwrap().boundary = Some((ms(100), ms(800)));
            let plan = Plan { promotions: vec![range(0, 40)], ..Plan::default() };
            let outcome = mover.apply(&plan).unwrap();
            let end = world.lock().unwrap().now;
            if now == 0 {
                assert!(end <= ms(60 + 20), "{end:?}");
                assert!(!outcome.failures.is_empty());
            } else {
                assert_eq!(outcome.promoted_pages, 40);
                let begin = if now == 150 { 150 } else { expected };
                assert_eq!(end, ms(begin + 80), "from {now} ms");
            }
        }
    }

    #[test]
    fn a_stranger_with_a_members_number_is_left_alone() {
        let world = World { place: placed(0..0, 0..1), ..World::default() };
        let (mut mover, world, _) = mover(world, Duration::from_secs(1));
        mover.tracker_state.write().unwrap().members = vec![Process { pid: 7, start_ticks: 99 }];
        let plan = Plan { promotions: vec![range(0, 1)], ..Plan::default() };
        let outcome = mover.apply(&plan).unwrap();
        assert_eq!(outcome.failures[0].reason, FailureReason::ProcessGone);
        assert!(world.lock().unwrap().calls.is_empty());
    }

    proptest! {
        #[test]
        fn every_page_of_a_plan_is_accounted_for_and_placed_as_told(
            slow in prop::collection::btree_set(0u64..40, 0..40),
            stuck in prop::collection::vec(0u64..40, 0..6),
            liars in prop::collection::vec(0u64..40, 0..4),
            refused in prop::collection::btree_map(0u64..40, 1i32..40, 0..6),
            absent in prop::collection::vec(0u64..40, 0..4),
            room in 0u64..40,
            call_error in prop::option::weighted(0.1, 1i32..40),
            total_ms in 0u64..600,
            per_page_ms in 0u32..30,
            pairs in 0u64..10,
            region in 0u64..5,
            trades in any::<bool>(),
        ) {
            let mut place = placed(0..40, 0..0);
            for page in &slow { place.insert(page * HUGE, 1); }
            for page in &absent { place.remove(&(page * HUGE)); }
            let world = World {
                place,
                stuck: stuck.iter().map(|p| p * HUGE).collect(),
                liars: liars.iter().map(|p| p * HUGE).collect(),
                refused: refused.iter().map(|(p, e)| (p * HUGE, *e)).collect(),
                room_bytes: [(0, room * HUGE)].into(),
                call_error,
                per_page: Duration::from_millis(per_page_ms.into()),
                trades,
                ..World::default()
            };
            let (mut mover, world, _) = mover(world, Duration::from_millis(total_ms));
            let mut ups: Vec<u64> = slow.iter().copied().collect();
            let mut downs: Vec<u64> = (0..40).filter(|p| !slow.contains(p)).collect();
            let pairs = pairs.min(ups.len() as u64).min(downs.len() as u64) as usize;
            let exchanges = ups.drain(..pairs).zip(downs.drain(..pairs))
                .map(|(up, down)| Exchange { up: range(up, 1), down: range(down, 1) })
                .collect();
            let plan = Plan {
                promotions: ups.iter().map(|&p| range(p, 1)).collect(),
                demotions: downs.iter().map(|&p| range(p, 1)).collect(),
                exchanges,
                // Without a size, one operation takes what there is.
                operation_sizes: (region > 0)
                    .then(|| OperationSize::both_ways(SpaceId(7), region * HUGE))
                    .into_iter()
                    .collect(),
            };
            let before = world.lock().unwrap().place.clone();
            let outcome = mover.apply(&plan).unwrap();
            let failed = |direction| -> u64 {
                outcome.failures.iter().filter(|f| f.direction == direction)
                    .map(|f| f.range.size_bytes / HUGE).sum()
            };
            let (up, down) = plan.pages(PageSize::Huge);
            prop_assert_eq!(outcome.promoted_pages + failed(Direction::Promotion), up);
            prop_assert_eq!(outcome.demoted_pages + failed(Direction::Demotion), down);
            // What is said to have moved is what lies elsewhere now.
            let after = &world.lock().unwrap().place.clone();
            let went = |to: i32| before.iter().filter(|(a, n)| **n != to && after[*a] == to).count();
            prop_assert_eq!(went(0) as u64, outcome.promoted_pages);
            prop_assert_eq!(went(1) as u64, outcome.demoted_pages);
            // No call leaves a region, and no operation moves nothing.
            let calls = &world.lock().unwrap().calls;
            let region_of = |address: &u64| address.checked_div(region * HUGE);
            for (_, pages) in calls {
                prop_assert!(pages.iter().all(|a| region_of(a) == region_of(&pages[0])));
            }
            let traded = calls.iter().any(|(node, _)| *node == TRADE);
            prop_assert!(outcome.exchanged_pairs == 0 || traded);
            prop_assert!(!traded || trades && region == 0);
            prop_assert!(outcome.exchanged_pairs <= pairs as u64);
            prop_assert!(outcome.operations <= calls.len() as u64);
            prop_assert!(outcome.operations <= outcome.promoted_pages + outcome.demoted_pages);
            prop_assert_eq!(outcome.operations == 0, outcome.promoted_pages + outcome.demoted_pages == 0);
        }
    }
}
