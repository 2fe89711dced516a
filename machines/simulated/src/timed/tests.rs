//! What moves and scans cost a program that is played by its intervals.

use super::*;
use terrace_core::operations::OperationSize;

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
    let mut moves_twice = costs();
    moves_twice.os.migration.exchange = false;
    let pair = |costs: &MoveCosts| costs.operation_ps(2, PageSize::Huge, true);
    assert!(pair(&moves_twice) > pair(&costs()), "an exchange that is two moves allocates");
}

#[test]
fn pages_that_move_together_are_shot_down_together() {
    let of = |operations| {
        let outcome = Outcome { operations, ..moved(512, 0) };
        let c = costs();
        [c.delay_ps(&outcome, PageSize::Base, 0.0), c.moving_ps(&outcome, PageSize::Base)]
    };
    let (t, [single, single_way], [whole, whole_way]) = (costs().table, of(512), of(1));
    assert_eq!(single, 512e3 * (t.shootdown_interrupt_ns + t.invlpg_ns) as f64);
    assert_eq!(whole, 1e3 * (t.shootdown_interrupt_ns + t.full_flush_ns) as f64);
    let saved_ns = 511 * (t.shootdown_ns + t.shootdown_wait_ns) + 512 * t.invlpg_ns;
    let expected = 1e3 * (saved_ns - t.full_flush_ns) as f64;
    assert!((single_way - whole_way - expected).abs() < 1e3, "{single_way} {whole_way}");
}

/// Intervals alike, of 1,024 base pages that are all read.
struct Alike {
    interval: Interval,
    left: u64,
}

impl IntervalSource for Alike {
    fn next_interval(&mut self) -> Result<Option<Interval>, SourceError> {
        let more = self.left > 0;
        self.left -= u64::from(more);
        Ok(more.then(|| self.interval.clone()))
    }
}

const PAGES: usize = 1024;
const PERIOD_PS: u64 = 1_000_000_000;

/// A program of so many intervals of so many microseconds, with periods of a millisecond.
fn program(intervals: u64, interval_us: u64) -> Timed {
    let took_ps = interval_us * 1_000_000;
    let interval = Interval {
        references: 100_000,
        fast_ps: took_ps,
        slow_ps: took_ps,
        mixed: Vec::new(),
        scan_ps: 1_000_000,
        layout: Layout::contiguous(PageSize::Base, PAGES as u64).into(),
        accessed: PageBits::ones(PAGES),
        fresh: Vec::new(),
        reads: vec![10; PAGES],
    };
    let source = Box::new(Alike { interval, left: intervals });
    Timed::new(source, &OsConfig::default(), 1, Sampling::default()).unwrap()
}

fn accessed(program: &mut Timed) -> Option<usize> {
    let all_fast = |i: &Interval| Ok::<_, SourceError>(PageBits::ones(i.layout.pages()));
    program.next_period(all_fast).unwrap().map(|period| period.accessed.count())
}

#[test]
fn a_program_that_stops_for_moves_accesses_nothing() {
    let mut program = program(20, 250);
    assert_eq!(accessed(&mut program), Some(PAGES));
    let before = program.clock_ps;
    program.pay(&moved(512, 0), PageSize::Base);
    let still_ps = program.clock_ps - before;
    // 512 base pages take 3.2 ms: three periods have no time for anything else.
    assert!((3 * PERIOD_PS..4 * PERIOD_PS).contains(&still_ps), "{still_ps}");
    for _ in 0..3 {
        assert_eq!(accessed(&mut program), Some(0));
    }
    assert_eq!(accessed(&mut program), Some(PAGES));
}

#[test]
fn an_interval_longer_than_a_period_is_seen_in_all_of_its_periods() {
    let mut program = program(2, 2_500);
    let seen: Vec<_> = std::iter::from_fn(|| accessed(&mut program)).collect();
    assert_eq!(seen, [PAGES; 5], "2.5 ms twice; it has ended in the sixth");
    let (took_ps, fast_ps) = program.duration_ps().unwrap();
    assert_eq!(fast_ps, 5 * PERIOD_PS);
    assert_eq!(took_ps - fast_ps, 6_000_000, "each scan");
}

#[test]
fn operations_are_begun_while_there_is_time_and_finished() {
    let program = program(1, 250);
    let space = terrace_core::page::SpaceId(0);
    let range = |start: u64, pages: u64| VirtualRange {
        space,
        start: start << 12,
        size_bytes: pages << 12,
    };
    let sized = |bytes| vec![OperationSize::both_ways(space, bytes)];
    let promotions = vec![range(256, 1024)];
    let begun = |bytes| {
        let operation_sizes = sized(bytes);
        let plan = Plan { promotions: promotions.clone(), operation_sizes, ..Plan::default() };
        let (cut, late) = program.in_time(&plan, PageSize::Base);
        let late: u64 = late.iter().map(|f| f.range.size_bytes >> 12).sum();
        assert_eq!(late + (cut.promotions[0].size_bytes >> 12), 1024);
        cut.promotions[0].size_bytes >> 12
    };
    // 900 us less a call's 95: at 6.3 us a page; at 5.2 with a shootdown for 16 of them.
    assert_eq!(begun(4 << 10), 128);
    assert_eq!(begun(64 << 10), 160);
    // Half of the first region is in the range, and takes 1.3 ms.
    assert_eq!(begun(2 << 20), 256);
}

#[test]
fn a_program_that_has_ended_pays_for_no_moves() {
    let mut program = program(2, 250);
    assert_eq!(accessed(&mut program), Some(PAGES));
    assert!(program.ended);
    let ended = program.duration_ps();
    program.pay(&moved(512, 0), PageSize::Base);
    assert_eq!(program.duration_ps(), ended);
}

#[test]
fn whatever_moves_the_program_ends() {
    let space = terrace_core::page::SpaceId(0);
    let all = VirtualRange { space, start: 0, size_bytes: (PAGES as u64) << 12 };
    for bytes in [4 << 10, 64 << 10, 2 << 20] {
        let mut program = program(40, 250);
        let operation_sizes = vec![OperationSize::both_ways(space, bytes)];
        let plan = Plan { promotions: vec![all], operation_sizes, ..Plan::default() };
        let mut periods = 0;
        // The program moves the pages that it has, accessed or not.
        while accessed(&mut program).is_some() {
            periods += 1;
            assert!(periods < 200, "10 ms of work at a tenth of the time or more");
            let (cut, _) = program.in_time(&plan, PageSize::Base);
            let mut outcome = moved(cut.pages(PageSize::Base).0, 0);
            outcome.operations = cut.operations(PageSize::Base);
            program.pay(&outcome, PageSize::Base);
        }
        assert!(periods > 40, "it is stopped most of the time: {periods}");
    }
}
