//! Run time at period depth: a program as the intervals of its profile, played under the placement
//! that its pages have.
//!
//! Each interval takes what it took with all memory fast and with all of it slow, mixed by the share
//! of its reads that are fast now ([`Interval::time_ps`]). So a period holds less work the slower
//! memory is, as in life. Moves cost what the operating-system model says their steps cost: the
//! program stands still for shootdowns, and for pages under way that it touches.

use std::fs::File;
use std::io::BufReader;

use terrace_core::bits::PageBits;
use terrace_core::carry::Carry;
use terrace_core::page::{Layout, PageSize, VirtualRange};
use terrace_core::plan::{Direction, Exchange, Failure, FailureReason, Outcome, Plan};
use terrace_core::scan::Measures;
use terrace_hardware::error::ConfigError;
use terrace_os::OsConfig;
use terrace_os::costs::CostTable;
use terrace_recordings::profile::{Interval, ProfileReader};
use terrace_recordings::source::{PeriodAccesses, SourceError};

use crate::meter::{Meter, Sampling};
use crate::reference::Options;

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
    /// Where the program stands, and what it would have taken with all memory fast.
    clock_ps: u64,
    fast_ps: u64,
    /// Periods that are over.
    periods: u64,
    /// The latest interval, whose layout and reads are the latest known.
    last: Option<Interval>,
    ended: bool,
    /// What counters show of the period.
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
            periods: 0,
            last: None,
            ended: false,
            meter: Meter::new(sampling),
        })
    }

    /// How long the program took, once it has ended, and what it would have taken with all
    /// memory fast.
    pub(crate) fn duration_ps(&self) -> Option<(u64, u64)> {
        self.ended.then_some((self.clock_ps, self.fast_ps))
    }

    /// What the program accesses until the period is over. `place` brings its pages up to an
    /// interval's layout and says which are fast.
    pub(crate) fn next_period<E: From<SourceError>>(
        &mut self,
        mut place: impl FnMut(&Interval) -> Result<PageBits, E>,
    ) -> Result<Option<PeriodAccesses>, E> {
        if self.ended {
            return Ok(None);
        }
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
                    let mut all = Carry::between(&before.layout, &layout).bits(&before.accessed);
                    all.or_with(&interval.accessed);
                    all
                }
            };
            period = Some(PeriodAccesses { layout, accessed, lost_periods: 0 });
            self.last = Some(interval);
        }
        // Accessed bits are read and cleared; the program walks anew.
        self.clock_ps += self.last.as_ref().map_or(0, |last| last.scan_ps);
        // A period in the midst of a long interval: nothing new is known of it.
        let idle = || {
            let last = self.last.as_ref()?;
            let accessed = last.accessed.clone();
            Some(PeriodAccesses { layout: last.layout.clone(), accessed, lost_periods: 0 })
        };
        Ok(if self.ended { period } else { period.or_else(idle) })
    }

    /// The part of a plan that there is time for in a period, and what is left of it, which fails:
    /// moves are begun in the order in which they are done, until their time is spent.
    pub(crate) fn in_time(&self, plan: &Plan, page_size: PageSize) -> (Plan, Vec<Failure>) {
        let spend_ps = self.period_ps as f64 * Options::default().move_share;
        let page_ps = |exchange| self.costs.under_way_ps(1024, page_size, exchange) / 1024.0;
        let mut left = spend_ps;
        let mut cut = Plan { operation_sizes: plan.operation_sizes.clone(), ..Plan::default() };
        let mut late = Vec::new();
        for range in &plan.demotions {
            let (now, later) = split(*range, page_size, &mut left, page_ps(false));
            cut.demotions.extend(now);
            late.extend(later.map(|range| late_failure(range, Direction::Demotion)));
        }
        for Exchange { up, down } in &plan.exchanges {
            let (now, later) = split(*up, page_size, &mut left, 2.0 * page_ps(true));
            let kept = now.map_or(0, |range| range.size_bytes);
            if let Some(up) = now {
                cut.exchanges
                    .push(Exchange { up, down: VirtualRange { size_bytes: kept, ..*down } });
            }
            if let Some(up) = later {
                let (start, size_bytes) = (down.start + kept, up.size_bytes);
                let down = VirtualRange { start, size_bytes, ..*down };
                late.push(late_failure(down, Direction::Demotion));
                late.push(late_failure(up, Direction::Promotion));
            }
        }
        for range in &plan.promotions {
            let (now, later) = split(*range, page_size, &mut left, page_ps(false));
            cut.promotions.extend(now);
            late.extend(later.map(|range| late_failure(range, Direction::Promotion)));
        }
        (cut, late)
    }

    /// The program pays for moves.
    pub(crate) fn pay(&mut self, outcome: &Outcome, page_size: PageSize) {
        // How often an accessed page is touched.
        let rate = self.last.as_ref().map_or(0.0, |last| {
            let pages = last.accessed.count().max(1) as f64;
            last.references as f64 / pages / last.fast_ps.max(1) as f64
        });
        let delay_ps = self.costs.delay_ps(outcome, page_size, rate) as u64;
        self.clock_ps += delay_ps;
        self.meter.moving_ps += delay_ps;
    }

    /// What was measured since the last call.
    pub(crate) fn measures(&mut self, layout: &Layout) -> Measures {
        self.meter.read(self.clock_ps, layout)
    }
}

/// The pages of a range that there is time for, and those that there is not. A move that has begun
/// is finished.
fn split(
    range: VirtualRange,
    page_size: PageSize,
    left_ps: &mut f64,
    page_ps: f64,
) -> (Option<VirtualRange>, Option<VirtualRange>) {
    let pages = range.pages(page_size);
    let fit = if *left_ps <= 0.0 { 0 } else { pages.min((*left_ps / page_ps).ceil() as u64) };
    *left_ps -= fit as f64 * page_ps;
    let bytes = fit * page_size.bytes();
    let now = VirtualRange { size_bytes: bytes, ..range };
    let later =
        VirtualRange { start: range.start + bytes, size_bytes: range.size_bytes - bytes, ..range };
    let some = |range: VirtualRange| (range.size_bytes > 0).then_some(range);
    (some(now), some(later))
}

fn late_failure(range: VirtualRange, direction: Direction) -> Failure {
    Failure { range, direction, reason: FailureReason::OutOfTime }
}

/// What moves cost the program that owns the pages.
pub(crate) struct MoveCosts {
    table: CostTable,
    os: OsConfig,
}

impl MoveCosts {
    pub(crate) fn new(os: &OsConfig) -> Result<Self, ConfigError> {
        Ok(MoveCosts { table: os.costs.table()?, os: os.clone() })
    }

    /// What the promotion and the demotion of a page cost a busy program, in ns, when so many are
    /// moved together.
    pub(crate) fn page_ns(&self, page_size: PageSize, pages: u64) -> (f64, f64) {
        let n = pages.clamp(1, self.batch(page_size)) as f64;
        // The program touches the first page of the batch at once.
        let promotion = self.batches(n as u64, page_size, 1.0, false);
        let demotion = self.batches(n as u64, page_size, 0.0, false);
        (promotion / n / 1000.0, demotion / n / 1000.0)
    }

    /// Time that the program loses. `rate` is how often a page in use is touched, per ps.
    fn delay_ps(&self, outcome: &Outcome, page_size: PageSize, rate: f64) -> f64 {
        let pairs = outcome.exchanged_pairs;
        // Pages go up because they are used, and down because they are not.
        self.batches(outcome.promoted_pages - pairs, page_size, rate, false)
            + self.batches(outcome.demoted_pages - pairs, page_size, 0.0, false)
            + self.batches(2 * pairs, page_size, rate / 2.0, true)
    }

    fn batches(&self, pages: u64, page_size: PageSize, rate: f64, exchange: bool) -> f64 {
        if pages == 0 {
            return 0.0;
        }
        let batch = self.batch(page_size).min(pages);
        let batches = pages.div_ceil(batch) as f64;
        let n = batch as f64;
        let under_way_ps = self.under_way_ps(batch, page_size, exchange);
        // The program runs on until it touches a page of the batch, and waits then.
        let touches = rate * n;
        let runs_ps = if touches * under_way_ps < 1e-6 {
            under_way_ps
        } else {
            (1.0 - (-touches * under_way_ps).exp()) / touches
        };
        let t = &self.table;
        let interrupts_ps = 1000.0 * n * (t.shootdown_interrupt_ns + t.invlpg_ns) as f64;
        batches * (under_way_ps - runs_ps + interrupts_ps)
    }

    /// Pages that are under way at once.
    fn batch(&self, page_size: PageSize) -> u64 {
        let m = &self.os.migration;
        u64::from(match page_size {
            PageSize::Base => m.batch_base_pages.max(1),
            PageSize::Huge => m.batch_huge_pages.max(1),
        })
    }

    /// From the first unmapping of so many pages to their last mapping.
    fn under_way_ps(&self, pages: u64, page_size: PageSize, exchange: bool) -> f64 {
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
        let n = pages as f64;
        let threads = f64::from(self.os.migration.threads.max(1));
        let copy_ns = n * page_size.bytes() as f64 / (gb_per_s * threads).max(1e-6);
        let shootdown_ns = (t.shootdown_ns + t.shootdown_wait_ns + t.invlpg_ns) as f64;
        1000.0 * (n * (steps_ns as f64 + shootdown_ns) + copy_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> MoveCosts {
        let os = OsConfig::default();
        MoveCosts { table: os.costs.table().unwrap(), os }
    }

    fn moved(pages: u64, pairs: u64) -> Outcome {
        Outcome {
            promoted_pages: pages + pairs,
            demoted_pages: pairs,
            exchanged_pairs: pairs,
            ..Outcome::default()
        }
    }

    #[test]
    fn a_page_that_nobody_touches_costs_its_interrupts_only() {
        let t = costs().table;
        let idle = costs().delay_ps(&moved(1, 0), PageSize::Huge, 0.0);
        assert_eq!(idle, 1000.0 * (t.shootdown_interrupt_ns + t.invlpg_ns) as f64);
        let busy = costs().delay_ps(&moved(1, 0), PageSize::Huge, 1e-3);
        // 2 MB at 2.54 GB/s: 826 us, waited for nearly from the beginning.
        assert!((800e6..950e6).contains(&busy), "{busy} ps");
        assert!(costs().delay_ps(&moved(0, 0), PageSize::Huge, 1e-3) == 0.0);
    }

    #[test]
    fn more_pages_and_fewer_threads_cost_more() {
        let mut fast = costs();
        fast.os.migration.threads = 4;
        let slow = costs().delay_ps(&moved(8, 0), PageSize::Huge, 1e-6);
        assert!(fast.delay_ps(&moved(8, 0), PageSize::Huge, 1e-6) < 0.5 * slow);
        assert!(costs().delay_ps(&moved(16, 0), PageSize::Huge, 1e-6) > 1.9 * slow);
        let exchange = costs().delay_ps(&moved(0, 4), PageSize::Huge, 1e-6);
        assert!(exchange < slow, "an exchange allocates nothing: {exchange} {slow}");
    }
}
