//! Run time at interval fidelity: a program as the intervals of its profile, played under the
//! placement of its pages.
//!
//! The time of each interval is the time with all memory fast mixed with the time with all of it
//! slow, by the share of its reads that are fast now ([`Interval::time_ps`]). So the slower memory
//! is, the less work fits into a period, as on real machines. Moves cost the time of their steps in
//! the operating-system model: the program stops for shootdowns, and for pages under way that it
//! touches. While the program is stopped it accesses nothing; moves take a limited share of time,
//! so that the program is never stopped for ever.

use std::fs::File;
use std::io::BufReader;

use terrace_core::bits::PageBits;
use terrace_core::operations::region_bytes;
use terrace_core::page::{Layout, PageSize, VirtualRange};
use terrace_core::plan::{Direction, Exchange, Failure, FailureReason, Outcome, Plan};
use terrace_core::remap::Remap;
use terrace_core::scan::PeriodCounters;
use terrace_hardware::error::ConfigError;
use terrace_os::OsConfig;
use terrace_os::config::ShootdownPer;
use terrace_os::costs::CostTable;
use terrace_recordings::profile::{Interval, ProfileReader};
use terrace_recordings::source::{PeriodAccesses, SourceError};

use crate::meter::{Meter, Sampling};
use crate::reference::{MOST_OPERATION_BYTES, Options};

/// Yields the intervals of one program.
pub trait IntervalSource: Send {
    /// The next interval, or `None` when the program has ended.
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError>;
}

impl IntervalSource for ProfileReader<BufReader<File>> {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        ProfileReader::next_interval(self).map_err(|e| SourceError(e.to_string()))
    }
}

/// A program played by its intervals.
pub(crate) struct Timed {
    source: Box<dyn IntervalSource>,
    costs: MoveCosts,
    period_ps: u64,
    /// The program's current time, and its time with all memory fast.
    clock_ps: u64,
    fast_ps: u64,
    /// Of the time between the end of the last period and the clock, the part in which the program
    /// is stopped for moves. The rest is of an interval that began before.
    still_ps: u64,
    /// Time of moves beyond their share of the periods so far, charged to later periods.
    owed_ps: f64,
    /// Periods completed.
    periods: u64,
    /// The latest interval, whose layout and reads are the latest known.
    last: Option<Interval>,
    ended: bool,
    /// Counters of the period.
    meter: Meter,
}

impl Timed {
    pub(crate) fn new(
        source: Box<dyn IntervalSource>,
        os: &OsConfig,
        period_ms: u64,
        sampling: Sampling,
    ) -> Result<Self, ConfigError> {
        Ok(Timed {
            source,
            costs: MoveCosts::new(os)?,
            period_ps: period_ms * 1_000_000_000,
            clock_ps: 0,
            fast_ps: 0,
            still_ps: 0,
            owed_ps: 0.0,
            periods: 0,
            last: None,
            ended: false,
            meter: Meter::new(sampling),
        })
    }

    /// Run time of the program, once it has ended, and its run time with all memory fast.
    pub(crate) fn duration_ps(&self) -> Option<(u64, u64)> {
        self.ended.then_some(self.so_far_ps())
    }

    /// [`Self::duration_ps`] for the part that has run so far.
    pub(crate) fn so_far_ps(&self) -> (u64, u64) {
        (self.clock_ps, self.fast_ps)
    }

    /// The program's accesses until the period is over. `place` brings its pages up to an
    /// interval's layout and returns which are fast.
    pub(crate) fn next_period<E: From<SourceError>>(
        &mut self,
        mut place: impl FnMut(&Interval) -> Result<PageBits, E>,
    ) -> Result<Option<PeriodAccesses>, E> {
        if self.ended {
            return Ok(None);
        }
        // The time stopped for moves comes first: moves began at the end of the period before.
        let ahead_ps = self.clock_ps - self.clock_ps.min(self.periods * self.period_ps);
        let still_ps = self.still_ps.min(self.period_ps);
        let rest_ps = ahead_ps.min(self.period_ps).saturating_sub(still_ps);
        self.still_ps -= still_ps;
        self.owed_ps = (self.owed_ps - self.move_share_ps()).max(0.0);
        self.periods += 1;
        let end = self.periods * self.period_ps;
        let mut period: Option<PeriodAccesses> = None;
        while self.clock_ps < end {
            let Some(interval) = self.source.next_interval()? else {
                self.ended = true;
                break;
            };
            let fast = place(&interval)?;
            let took_ps = interval.time_ps(&fast);
            self.clock_ps += took_ps;
            self.fast_ps += interval.fast_ps;
            self.meter.interval(&interval, &fast, took_ps);
            let layout = interval.layout.clone();
            let accessed = match period.take() {
                None => interval.accessed.clone(),
                Some(before) => {
                    let mut all = Remap::between(&before.layout, &layout).bits(&before.accessed);
                    all.or_with(&interval.accessed);
                    all
                }
            };
            period = Some(PeriodAccesses { layout, accessed, lost_periods: 0 });
            self.last = Some(interval);
        }
        // Accessed bits are read and cleared; a program that runs walks anew. That takes half of a
        // period at most: a longer interval's pages are not all touched in each of its periods.
        if period.is_some() || rest_ps > 0 {
            let scan_ps = self.last.as_ref().map_or(0, |last| last.scan_ps);
            self.clock_ps += scan_ps.min(self.period_ps / 2);
        }
        // A period within a long interval: which of its pages were accessed in it is not known, so
        // all of them. A period in which the program was stopped: none.
        let none_began = || {
            let last = self.last.as_ref()?;
            let accessed = match rest_ps {
                0 => PageBits::new(last.accessed.len()),
                _ => last.accessed.clone(),
            };
            Some(PeriodAccesses { layout: last.layout.clone(), accessed, lost_periods: 0 })
        };
        Ok(if self.ended { period } else { period.or_else(none_began) })
    }

    /// The time that moves may take of a period, in ps.
    fn move_share_ps(&self) -> f64 {
        self.period_ps as f64 * Options::default().move_share
    }

    /// Splits a plan into the part that there is time for in a period, and the rest, which fails:
    /// operations are begun in order, until their time is spent. An operation that has begun is
    /// finished; its excess time is charged to later periods, so that over many periods moves take
    /// no more than their share however large operations are.
    pub(crate) fn in_time(&self, plan: &Plan, page_size: PageSize) -> (Plan, Vec<Failure>) {
        let mut time = MoveTime {
            costs: &self.costs,
            page_size,
            left_ps: self.move_share_ps() - self.owed_ps,
            room_pages: 0,
        };
        let mut cut = Plan { operation_sizes: plan.operation_sizes.clone(), ..Plan::default() };
        let mut late = Vec::new();
        let most = |range: &VirtualRange, direction| {
            let bytes = region_bytes(plan.operation_bytes(range.space, direction), page_size);
            bytes.min((self.costs.batch(page_size) * page_size.bytes()).max(MOST_OPERATION_BYTES))
        };
        let mut one_way = |ranges: &[VirtualRange], direction, time: &mut MoveTime<'_>| {
            time.room_pages = 0;
            let mut now = Vec::new();
            for range in ranges {
                let (begun, later) = time.split(*range, most(range, direction), false);
                now.extend(begun);
                late.extend(later.map(|range| late_failure(range, direction)));
            }
            now
        };
        cut.demotions = one_way(&plan.demotions, Direction::Demotion, &mut time);
        let mut late_pairs = Vec::new();
        time.room_pages = 0;
        for Exchange { up, down } in &plan.exchanges {
            let operation = most(up, Direction::Promotion).min(most(down, Direction::Demotion));
            let (now, later) = time.split(*up, operation, true);
            let kept = now.map_or(0, |range| range.size_bytes);
            if let Some(up) = now {
                cut.exchanges
                    .push(Exchange { up, down: VirtualRange { size_bytes: kept, ..*down } });
            }
            if let Some(up) = later {
                let (start, size_bytes) = (down.start + kept, up.size_bytes);
                let down = VirtualRange { start, size_bytes, ..*down };
                late_pairs.push(late_failure(down, Direction::Demotion));
                late_pairs.push(late_failure(up, Direction::Promotion));
            }
        }
        cut.promotions = one_way(&plan.promotions, Direction::Promotion, &mut time);
        late.extend(late_pairs);
        (cut, late)
    }

    /// Whether the operating system exchanges pages.
    pub(crate) fn exchanges(&self) -> bool {
        self.costs.os.migration.exchange
    }

    /// Charges the program for moves, unless it has ended.
    pub(crate) fn pay(&mut self, outcome: &Outcome, page_size: PageSize) {
        if self.ended {
            return;
        }
        // How often an accessed page is touched.
        let rate = self.last.as_ref().map_or(0.0, |last| {
            let pages = last.accessed.count().max(1) as f64;
            last.references as f64 / pages / last.fast_ps.max(1) as f64
        });
        let delay_ps = self.costs.delay_ps(outcome, page_size, rate) as u64;
        self.clock_ps += delay_ps;
        self.still_ps += delay_ps;
        self.owed_ps += self.costs.moving_ps(outcome, page_size);
        self.meter.moving_ps += delay_ps;
    }

    /// The counters since the last call.
    pub(crate) fn counters(&mut self, layout: &Layout) -> PeriodCounters {
        self.meter.read(self.clock_ps, layout)
    }
}

/// The time that moves may take of a period.
struct MoveTime<'a> {
    costs: &'a MoveCosts,
    page_size: PageSize,
    left_ps: f64,
    /// Pages that may still join the last batch.
    room_pages: u64,
}

impl MoveTime<'_> {
    /// The operations of a range that there is time for, and those that there is not. A range is
    /// cut at the ends of regions of `operation_bytes`.
    fn split(
        &mut self,
        range: VirtualRange,
        operation_bytes: u64,
        exchange: bool,
    ) -> (Option<VirtualRange>, Option<VirtualRange>) {
        let mut bytes = 0;
        while bytes < range.size_bytes && self.left_ps > 0.0 {
            let in_region = operation_bytes - (range.start + bytes) % operation_bytes;
            let operation = in_region.min(range.size_bytes - bytes);
            // An exchange has two sides.
            let pages = operation / self.page_size.bytes() * (1 + u64::from(exchange));
            if self.room_pages < pages {
                self.left_ps -= self.costs.call_ps();
                self.room_pages = self.costs.batch(self.page_size).max(pages);
            }
            self.room_pages -= pages;
            self.left_ps -= self.costs.operation_ps(pages, self.page_size, exchange);
            bytes += operation;
        }
        let (start, left) = (range.start + bytes, range.size_bytes - bytes);
        let now = VirtualRange { size_bytes: bytes, ..range };
        let later = VirtualRange { start, size_bytes: left, ..range };
        let some = |range: VirtualRange| (range.size_bytes > 0).then_some(range);
        (some(now), some(later))
    }
}

fn late_failure(range: VirtualRange, direction: Direction) -> Failure {
    Failure { range, direction, reason: FailureReason::OutOfTime }
}

/// The cost of moves for the program that owns the pages.
pub(crate) struct MoveCosts {
    table: CostTable,
    os: OsConfig,
}

impl MoveCosts {
    pub(crate) fn new(os: &OsConfig) -> Result<Self, ConfigError> {
        Ok(MoveCosts { table: os.costs.table()?, os: os.clone() })
    }

    /// The cost of a page's promotion and demotion for a busy program, in ns, when so many are
    /// moved together.
    pub(crate) fn page_ns(&self, page_size: PageSize, pages: u64) -> (f64, f64) {
        let n = pages.clamp(1, self.batch(page_size)) as f64;
        // The program touches the first page of the batch at once.
        let promotion = self.batches(n as u64, 1.0, page_size, 1.0, false);
        let demotion = self.batches(n as u64, 1.0, page_size, 0.0, false);
        (promotion / n / 1000.0, demotion / n / 1000.0)
    }

    /// Time that the program loses. `rate` is how often a page in use is touched, per ps.
    fn delay_ps(&self, outcome: &Outcome, page_size: PageSize, rate: f64) -> f64 {
        let (pairs, each) = (outcome.exchanged_pairs, self.pages_per_shootdown(outcome, page_size));
        // Pages are promoted because they are used, and demoted because they are not.
        self.batches(outcome.promoted_pages - pairs, each, page_size, rate, false)
            + self.batches(outcome.demoted_pages - pairs, each, page_size, 0.0, false)
            + self.batches(2 * pairs, each, page_size, rate / 2.0, true)
    }

    /// Time that moving takes: calls, and pages under way.
    fn moving_ps(&self, outcome: &Outcome, page_size: PageSize) -> f64 {
        let each = self.pages_per_shootdown(outcome, page_size);
        let pairs = outcome.exchanged_pairs;
        let (up, down) = (outcome.promoted_pages - pairs, outcome.demoted_pages - pairs);
        let of = |pages: u64, exchange| {
            let calls = (pages as f64 / self.batch_of(each, page_size)).ceil();
            calls * self.call_ps() + self.under_way_ps(pages as f64, each, page_size, exchange)
        };
        of(up, false) + of(down, false) + of(2 * pairs, true)
    }

    /// Time that an operation of so many pages is under way; of an exchange both sides.
    fn operation_ps(&self, pages: u64, page_size: PageSize, exchange: bool) -> f64 {
        let operations = 1 + u64::from(exchange);
        let exchange = exchange && self.os.migration.exchange;
        let alone = Outcome { promoted_pages: pages, operations, ..Outcome::default() };
        let each = self.pages_per_shootdown(&alone, page_size);
        self.under_way_ps(pages as f64, each, page_size, exchange)
    }

    /// Time of a call to move pages for the moving thread.
    fn call_ps(&self) -> f64 {
        self.table.move_call_ns as f64 * 1000.0
    }

    /// Pages of a batch when operations have so many: an operation is not cut.
    fn batch_of(&self, each: f64, page_size: PageSize) -> f64 {
        (self.batch(page_size) as f64).max(each)
    }

    /// Time that the program loses to pages that are moved in batches; each `each` of them have a
    /// shootdown together.
    fn batches(
        &self,
        pages: u64,
        each: f64,
        page_size: PageSize,
        rate: f64,
        exchange: bool,
    ) -> f64 {
        let (pages, most) = (pages as f64, self.batch_of(each, page_size));
        let of = |n: f64| self.one_batch(n, each, page_size, rate, exchange);
        (pages / most).floor() * of(most) + of(pages % most)
    }

    fn one_batch(&self, n: f64, each: f64, page_size: PageSize, rate: f64, exchange: bool) -> f64 {
        if n == 0.0 {
            return 0.0;
        }
        let under_way_ps = self.under_way_ps(n, each, page_size, exchange);
        // The program runs on until it touches a page of the batch, and waits then.
        let touches = rate * n;
        let runs_ps = if touches * under_way_ps < 1e-6 {
            under_way_ps
        } else {
            (1.0 - (-touches * under_way_ps).exp()) / touches
        };
        let interrupt_ns = self.table.shootdown_interrupt_ns as f64 + self.invalidation_ns(each);
        // Interrupts come while pages are under way: the program loses no more than that time.
        (under_way_ps - runs_ps + 1000.0 * n / each * interrupt_ns).min(under_way_ps)
    }

    /// Pages that are under way at once.
    fn batch(&self, page_size: PageSize) -> u64 {
        let m = &self.os.migration;
        u64::from(match page_size {
            PageSize::Base => m.batch_base_pages.max(1),
            PageSize::Huge => m.batch_huge_pages.max(1),
        })
    }

    /// How many pages have a shootdown together, on average.
    fn pages_per_shootdown(&self, outcome: &Outcome, page_size: PageSize) -> f64 {
        let pages = outcome.promoted_pages + outcome.demoted_pages;
        match self.os.migration.shootdown_per {
            ShootdownPer::Page => 1.0,
            // An exchange is two operations. Where no operations are counted, pages move one by
            // one.
            ShootdownPer::Operation => match outcome.operations {
                0 => 1.0,
                operations => (pages as f64 / operations as f64).max(1.0),
            },
            ShootdownPer::Batch => pages.clamp(1, self.batch(page_size)) as f64,
        }
    }

    /// A processor's time to drop so many translations at once, in ns.
    fn invalidation_ns(&self, pages: f64) -> f64 {
        if pages > f64::from(self.os.migration.single_invalidations) {
            self.table.full_flush_ns as f64
        } else {
            pages * self.table.invlpg_ns as f64
        }
    }

    /// From the first unmapping of so many pages to their last mapping, when `each` of them have a
    /// shootdown together.
    fn under_way_ps(&self, pages: f64, each: f64, page_size: PageSize, exchange: bool) -> f64 {
        let t = &self.table;
        let (allocate, free) = match page_size {
            PageSize::Base => (t.move_allocate_base_ns, t.move_free_base_ns),
            PageSize::Huge => (t.move_allocate_huge_ns, t.move_free_huge_ns),
        };
        let (steps_ns, gb_per_s) = if exchange {
            (t.unmap_ns + t.map_ns, t.exchange_gb_per_s)
        } else {
            (t.unmap_ns + t.map_ns + allocate + free, t.copy_gb_per_s)
        };
        let threads = f64::from(self.os.migration.threads.max(1));
        let copy_ns = pages * page_size.bytes() as f64 / (gb_per_s * threads).max(1e-6);
        let shootdown_ns =
            (t.shootdown_ns + t.shootdown_wait_ns) as f64 + self.invalidation_ns(each);
        1000.0 * (pages * steps_ns as f64 + pages / each * shootdown_ns + copy_ns)
    }
}

#[cfg(test)]
mod tests;
