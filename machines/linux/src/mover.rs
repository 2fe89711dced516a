//! Moves pages: with `move_pages(2)`, or the calls of the Terrace kernel.
//!
//! Properties of `move_pages` (mm/migrate.c, Linux 6.12) and their consequences:
//! - each call drains every processor's LRU caches first, so a call should carry many pages; but a
//!   program that touches a page under migration waits for it. So pages go in batches whose size
//!   follows the measured time per page ([`crate::batch_size`]).
//! - one address names a whole folio. Several addresses of one huge page would be refused as busy,
//!   because the first of them takes it off its list.
//! - when a page fails to move, the call ends early and leaves `status` unwritten for the pages of
//!   that stretch, the moved ones too. So `status` is filled with a value that the kernel never
//!   writes, pages that the kernel did not reach are tried again, and the place of every page is
//!   read back: only a page found in the target tier counts as moved.
//! - the pages of one operation of the policy are moved by one call: each call ends with one
//!   shootdown for its pages.
//! - the target node is exact (`__GFP_THISNODE`), and the kernel reclaims on it to make room, from
//!   page cache first. [`crate::numa::room`] computes that room. Beyond it a page is promoted only
//!   in another page's place ([`exchanges`]).
//!
//! Before each call the process is checked ([`target`]): it may have ended, another may have its
//! identifier, its cpuset may have changed, and the run may be about to stop.
//!
//! [`batches`] moves pages in one direction, [`account`] counts their results, [`backoff`] leaves out
//! those that could not be moved.

mod account;
mod backoff;
mod batches;
mod exchanges;
pub(crate) mod target;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use terrace_core::interfaces::{Headroom, MachineError, Mover};
use terrace_core::operations::{OperationSize, region_bytes};
use terrace_core::page::{PageSize, SpaceId, VirtualRange};
use terrace_core::plan::{Direction, FailureReason, Outcome, Plan};
use terrace_core::scan::Scan;

use crate::batch_size::BatchSizer;
use crate::costs::{Costs, thread_cpu_ns};
use crate::free_lists::{Emptied, FreeLists};
use crate::kernel::PageKernel;
use crate::process::Process;
use crate::refiner::Refiner;

use account::Account;
use backoff::Backoff;

/// A status that the kernel never writes.
const UNWRITTEN: i32 = i32::MIN;
/// Longest wait of a mover between two checks of the stop flag.
const SLICE: Duration = Duration::from_millis(200);

/// Bounds of a mover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoverOptions {
    /// Longest time for which the pages of one call should be unmapped: a program that touches one
    /// of them waits for so long (Katalyst chose 20 ms after stalls of minutes: katalyst-core issue
    /// 477).
    pub stall: Duration,
    /// Time for the moves of one plan; the rest then fails as `OutOfTime`.
    pub total: Duration,
}

impl MoverOptions {
    /// This share of a period, in calls that unmap pages for no longer than `stall`, and than an
    /// eighth of the period: the time of two such calls before and after the end of a period is
    /// kept free of moves, so that half of it is left however short it is.
    pub fn in_period(period: Duration, share: f64, stall: Duration) -> Self {
        MoverOptions { stall: stall.min(period / 8), total: period.mul_f64(share) }
    }
}

/// The nodes of the two tiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierNodes {
    /// Targets of promotions.
    pub fast: Vec<u32>,
    /// Targets of demotions, the best first.
    pub slow: Vec<u32>,
}

impl TierNodes {
    /// Whether a status names a fast node.
    pub fn is_fast(&self, status: i32) -> bool {
        u32::try_from(status).is_ok_and(|node| self.fast.contains(&node))
    }

    /// Whether a status names a slow node.
    pub fn is_slow(&self, status: i32) -> bool {
        u32::try_from(status).is_ok_and(|node| self.slow.contains(&node))
    }

    /// Target nodes of this direction.
    pub fn targets(&self, direction: Direction) -> &[u32] {
        match direction {
            Direction::Promotion => &self.fast,
            Direction::Demotion => &self.slow,
        }
    }
}

/// State of a group's tracker that its mover reads.
#[derive(Debug, Default)]
pub struct TrackerState {
    /// The present processes of the group: the mover touches no others.
    pub members: Vec<Process>,
    /// The end of the current period, on the clock of [`PageKernel::now`], and the length of a
    /// period. A page under migration at that moment would look unused.
    pub boundary: Option<(Duration, Duration)>,
}

/// Shared by a group's tracker and mover.
pub type SharedTrackerState = Arc<RwLock<TrackerState>>;

/// A page to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    space: SpaceId,
    address: u64,
}

/// Result of a page.
type PageResult = Result<(), FailureReason>;

/// Moves the pages of one group.
pub struct PageMover {
    kernel: Box<dyn PageKernel>,
    nodes: TierNodes,
    page_size: PageSize,
    options: MoverOptions,
    tracker_state: SharedTrackerState,
    costs: Costs,
    batch_sizer: BatchSizer,
    stop: Option<Arc<AtomicBool>>,
    free_lists: Option<FreeLists>,
    refiner: Option<Refiner>,
    backoff: Backoff,
}

/// State during one plan.
#[derive(Default)]
struct MigrationContext {
    /// Time at which moves have to end.
    deadline: Duration,
    /// Room of nodes that may be filled, in bytes, as of a few calls ago.
    room: BTreeMap<u32, u64>,
    calls: u32,
    /// Sizes of operations in the plan.
    operation_sizes: Vec<OperationSize>,
    /// Calls that moved some page.
    operations: u64,
    /// A node, and the bytes of it that pages of the plan have just left for those that replace them.
    /// They are room although the node may have none: a node filled by other programs is below the
    /// watermark from which room is counted, and stays as far below it.
    freed: Option<(u32, u64)>,
    /// A page was demoted and the page that was to replace it found no room: another program took
    /// the memory. More such pairs would only shrink the group's fast memory.
    places_are_lost: bool,
}

impl MigrationContext {
    fn new(plan: &Plan, deadline: Duration) -> Self {
        let operation_sizes = plan.operation_sizes.clone();
        MigrationContext { deadline, operation_sizes, ..MigrationContext::default() }
    }

    /// The region to which an operation on this page is limited; all memory if the plan has none.
    fn region(&self, direction: Direction, page: Page, page_size: PageSize) -> u64 {
        let size = self.operation_sizes.iter().find(|o| o.space == page.space);
        size.map_or(0, |o| page.address / region_bytes(Some(o.bytes(direction)), page_size))
    }
}

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
        let stop = None;
        PageMover {
            kernel,
            nodes,
            page_size,
            options,
            tracker_state,
            costs,
            batch_sizer,
            stop,
            free_lists: None,
            refiner: None,
            backoff: Backoff::default(),
        }
    }

    /// Stops in the middle of a plan, between two calls, when this is set.
    #[must_use]
    pub fn stopping(mut self, stop: Option<Arc<AtomicBool>>) -> Self {
        self.stop = stop;
        self
    }

    /// Empties the processors' lists of free pages where headroom is lacking.
    #[must_use]
    pub(crate) fn emptying(mut self, free_lists: Option<FreeLists>) -> Self {
        self.free_lists = free_lists;
        self
    }

    /// Moves base pages of ranges alone, where their rates are known.
    #[must_use]
    pub(crate) fn refining(mut self, refiner: Option<Refiner>) -> Self {
        self.refiner = refiner;
        self
    }

    fn stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Whether another call may be made.
    fn may_go_on(&mut self, context: &MigrationContext) -> bool {
        !self.stopped() && self.kernel.now() < context.deadline
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

    /// Time at which moves have to end. This waits until they may begin.
    fn deadline(&mut self) -> Duration {
        let (begin, end) = self.times_to_move();
        self.wait_until(begin);
        end
    }

    /// Times at which moves may begin and have to end: by the time allowed, and before DAMON reads
    /// accessed bits again. Close to that moment they begin after it.
    fn times_to_move(&mut self) -> (Duration, Duration) {
        let now = self.kernel.now();
        let boundary = self.tracker_state.read().ok().and_then(|n| n.boundary);
        let Some((mut end, period)) = boundary.filter(|(_, period)| !period.is_zero()) else {
            return (now, now + self.options.total);
        };
        let margin = (2 * self.options.stall).max(period / 20);
        // The tracker was not called meanwhile: periods have passed.
        while end + margin < now {
            end += period;
        }
        let mut begin = now;
        if now + margin + self.options.total / 4 > end {
            begin = end + margin;
            end += period;
        }
        (begin, (begin + self.options.total).min(end.saturating_sub(margin)))
    }

    /// Moves base pages by themselves, as many as this and until moves have to end. What needs a time
    /// that begins after the period's end is left for the next one.
    fn refine_now(&mut self, scan: &Scan, pages: u64) {
        if self.refiner.as_mut().is_none_or(|refiner| !refiner.has_work(scan)) {
            return;
        }
        let (begin, deadline) = self.times_to_move();
        if begin > self.kernel.now() {
            return;
        }
        let stop = self.stop.clone();
        if let Some(refiner) = &mut self.refiner {
            let stopped = || stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
            let bytes = pages.saturating_mul(self.page_size.bytes());
            refiner.step(bytes, deadline, &stopped);
        }
    }

    fn wait_until(&mut self, moment: Duration) {
        loop {
            let left = moment.saturating_sub(self.kernel.now());
            if left.is_zero() || self.stopped() {
                return;
            }
            self.kernel.sleep(left.min(SLICE));
        }
    }

    fn run(&mut self, plan: &Plan) -> Outcome {
        if plan.is_empty() {
            return Outcome::default();
        }
        let deadline = self.deadline();
        let mut account = Account::new(self.page_size);
        let mut context = MigrationContext::new(plan, deadline);

        // Demotions come first, so that the freed memory can be filled. With little room, other
        // programs would take it meanwhile: each promotion is then paired with a demotion.
        let mut demotions = self.pages(plan.demotions.iter().copied());
        let promotions = self.pages(plan.promotions.iter().copied());
        let paired = promotions.len().min(demotions.len());
        let paired = if paired > 0 && !self.has_room(promotions.len()) { paired } else { 0 };
        let places = demotions.split_off(demotions.len() - paired);
        let (coming, rest) = promotions.split_at(paired);

        let results = self.migrate_pages(Direction::Demotion, &demotions, &mut context);
        account.pages(Direction::Demotion, &demotions, &results);

        let downs = self.pages(plan.exchanges.iter().map(|e| e.down));
        let ups = self.pages(plan.exchanges.iter().map(|e| e.up));
        self.exchange(&downs, &ups, &mut context, &mut account);
        self.exchange(&places, coming, &mut context, &mut account);

        let results = self.migrate_pages(Direction::Promotion, rest, &mut context);
        self.replace_victims(plan, rest, &results, &mut context, &mut account);
        account.outcome.operations = context.operations;
        account.outcome
    }

    /// Headroom of the fast nodes together.
    fn headroom_now(&mut self) -> Headroom {
        let mut sum = Headroom { room_bytes: Some(0), ..Headroom::default() };
        for &node in &self.nodes.fast {
            let of_node = self.kernel.headroom(node);
            sum.wanted_bytes = sum.wanted_bytes.saturating_add(of_node.wanted_bytes);
            sum.lacking_bytes = sum.lacking_bytes.saturating_add(of_node.lacking_bytes);
            let both = sum.room_bytes.zip(of_node.room_bytes);
            sum.room_bytes = both.map(|(room, more)| room.saturating_add(more));
        }
        sum
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

    fn refine(&mut self, scan: &Scan, pages: u64) -> Result<(), MachineError> {
        if pages > 0 {
            let before = thread_cpu_ns();
            self.refine_now(scan, pages);
            self.costs.mover_cpu_ns().add(thread_cpu_ns().saturating_sub(before));
        }
        Ok(())
    }

    fn headroom(&mut self) -> Headroom {
        let before = thread_cpu_ns();
        let headroom = self.headroom_made();
        self.costs.mover_cpu_ns().add(thread_cpu_ns().saturating_sub(before));
        headroom
    }

    fn cpu_ns(&self) -> Option<u64> {
        Some(self.costs.snapshot().mover_cpu_ns)
    }
}

impl PageMover {
    /// Headroom, after free pages were got back from the processors' lists where it is lacking.
    fn headroom_made(&mut self) -> Headroom {
        let headroom = self.headroom_now();
        let lacking_bytes = headroom.lacking_bytes;
        let (kernel, fast) = (&mut self.kernel, &self.nodes.fast);
        let Some(lists) = self.free_lists.as_ref().filter(|_| lacking_bytes > 0) else {
            return headroom;
        };
        match lists.empty(fast, lacking_bytes, || kernel.now()) {
            Emptied::Now => self.headroom_now(),
            // More pages given up would only be on the lists as well.
            Emptied::Later(bytes) => {
                Headroom { lacking_bytes: lacking_bytes.saturating_sub(bytes), ..headroom }
            }
        }
    }
}
