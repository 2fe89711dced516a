//! The throttle over sequences of periods.

use super::*;
use proptest::prelude::*;
use terrace_core::counts::AccessCounts;
use terrace_core::page::{Layout, SpaceId};
use terrace_core::plan::{Direction, Failure, FailureReason};

const HUGE: u64 = PageSize::Huge.bytes();

fn small_spans() -> ThrottleConfig {
    ThrottleConfig {
        settle_periods: 2,
        pause_periods: 3,
        longest_pause_periods: 12,
        ..Default::default()
    }
}

fn scan(layout: &Arc<Layout>, accessed: impl Fn(usize) -> bool, fast: &PageBits) -> Scan {
    let accessed = (0..layout.pages()).map(accessed).collect();
    Scan::new(0, Arc::clone(layout), accessed, fast.clone())
}

fn layout(pages: u64) -> Arc<Layout> {
    Arc::new(Layout::contiguous(PageSize::Huge, pages))
}

fn range(page: u64, pages: u64) -> VirtualRange {
    VirtualRange { space: SpaceId(0), start: page * HUGE, size_bytes: pages * HUGE }
}

/// Runs periods in which `place` is whether a page is fast and `accessed` whether it is used.
fn periods(
    throttle: &mut Throttle,
    number: u64,
    place: impl Fn(u64, usize) -> bool,
    accessed: impl Fn(u64, usize) -> bool,
) {
    let layout = layout(8);
    for period in 0..number {
        let fast = (0..8).map(|p| place(period, p)).collect();
        throttle.before(&scan(&layout, |p| accessed(period, p), &fast), &Budget::fast(4));
    }
}

#[test]
fn moves_that_yield_go_on_and_moves_that_do_not_pause_for_longer_each_time() {
    // Pages 4 to 7 are used throughout and are promoted after the first period.
    let mut throttle = Throttle::new(small_spans(), false);
    periods(&mut throttle, 4, |t, p| if t == 0 { p < 4 } else { p >= 4 }, |_, p| p >= 4);
    assert_eq!((throttle.status().pause_left, throttle.status().gain), (0, 12));
    assert_eq!(throttle.status().cost, 4.0);

    // They are promoted and not used.
    let mut throttle = Throttle::new(small_spans(), false);
    let mut pauses = Vec::new();
    for _ in 0..4 {
        periods(&mut throttle, 4, |t, p| if t == 0 { p < 4 } else { p >= 4 }, |_, p| p < 4);
        pauses.push(throttle.status().pause_left);
    }
    assert!(throttle.status().message.is_some());
    assert_eq!(pauses, [3, 6, 12, 12]);
    assert!((throttle.status().gain as f64) < throttle.status().cost);
    // Once migration pays, the next pause is short again.
    periods(&mut throttle, 4, |t, p| (t == 0) == (p >= 4), |_, p| p < 4);
    assert_eq!(throttle.next_pause, 3);
}

/// Pages 4 to 7 are promoted after the first period, and each is accessed twice a second from then
/// on.
#[test]
fn what_moves_yield_does_not_depend_on_how_often_bits_are_sampled() {
    let layout = layout(8);
    let gain = |samples: u8| {
        let mut throttle = Throttle::new(small_spans(), false);
        for period in 0..4 {
            let fast = (0..8).map(|p| (p < 4) == (period == 0)).collect();
            let at = scan(&layout, |p| p >= 4, &fast);
            let found = samples.min(2);
            let counts = (0..8).map(|p| if p >= 4 { found } else { 0 }).collect();
            let interval_us = 1_000_000 / u32::from(samples);
            let counts = AccessCounts { samples, interval_us, counts };
            throttle.before(&at.with_counts(counts), &Budget::fast(4));
        }
        (throttle.status().gain, throttle.status().pause_left)
    };
    assert_eq!([gain(2), gain(20), gain(200)], [(24, 0); 3]);
    assert_eq!(gain(1), (12, 0));
}

#[test]
fn few_moves_are_not_judged_and_pages_to_and_fro_are_counted() {
    let mut throttle = Throttle::new(ThrottleConfig { least_moved: 0.5, ..small_spans() }, false);
    // One of four resident pages is replaced again and again without being used.
    periods(&mut throttle, 4, |t, p| p < 3 || p == 3 + (t % 2) as usize, |_, _| false);
    assert_eq!(throttle.status().pause_left, 0);
    assert_eq!(throttle.status().thrashed_pages, 4);
}

#[test]
fn a_pause_lets_pass_what_brings_a_group_into_its_share_and_what_fills_room() {
    let layout = layout(8);
    let plan = Plan {
        promotions: vec![range(6, 2)],
        demotions: vec![range(0, 1), range(2, 2)],
        exchanges: vec![Exchange { up: range(4, 1), down: range(1, 1) }],
        ..Plan::default()
    };
    let mut throttle = Throttle::new(small_spans(), false);
    throttle.status.pause_left = 5;
    let fast = (0..8).map(|p| p < 4).collect();
    let at = scan(&layout, |_| true, &fast);
    let passed = throttle.pass(plan.clone(), &at, &Budget::fast(2));
    assert_eq!(passed.demotions, [range(0, 1), range(2, 1)]);
    assert!(passed.promotions.is_empty() && passed.exchanges.is_empty());
    let passed = throttle.pass(plan.clone(), &at, &Budget::fast(5));
    assert_eq!((passed.promotions.clone(), passed.demotions.len()), (vec![range(6, 1)], 0));
    assert_eq!(throttle.status().throttled_pages[ThrottleReason::NotBeneficial as usize], 5 + 6);

    throttle.configure(small_spans(), true);
    assert!(throttle.pass(plan.clone(), &at, &Budget::fast(2)).is_empty());
    assert_eq!(throttle.status().throttled_pages[ThrottleReason::DryRun as usize], 7);
    throttle.configure(small_spans(), false);
    throttle.status.pause_left = 0;
    assert_eq!(throttle.pass(plan.clone(), &at, &Budget::fast(2)), plan);
}

#[test]
fn nothing_moves_beside_plans_in_a_dry_run_and_in_a_pause() {
    let layout = layout(8);
    let fast = (0..8).map(|p| p < 4).collect();
    let at = scan(&layout, |_| true, &fast);
    let throttle = Arc::new(Mutex::new(Throttle::new(small_spans(), true)));
    let policy = terrace_core::policy::build("lru", &serde_json::Value::Null, 1).unwrap();
    let policy: SharedPolicy = Arc::new(Mutex::new(policy));
    let mut policy = ThrottledPolicy { policy, throttle: Arc::clone(&throttle) };
    let mut most = |moved_pages: u64| {
        let budget = Budget { moved_pages, ..Budget::fast(4) };
        policy.decide(&at, &budget);
        policy.most_moved_pages(&budget)
    };
    assert_eq!(most(6), 0, "a dry run");
    lock(&throttle).configure(small_spans(), false);
    assert_eq!(most(6), 6);
    lock(&throttle).bound(Bounds { bandwidth_pages: Some(2), ..Bounds::default() });
    assert_eq!(most(6), 2);
    lock(&throttle).status.pause_left = 5;
    assert_eq!(most(6), 0, "a pause");
}

#[test]
fn promotions_that_may_find_no_room_go_with_a_colder_page_of_the_groups_own() {
    // Pages 0 to 3 are in fast memory, of which 2 and 3 go unused; 6 and 7 are hot and slow.
    let layout = layout(8);
    let fast = (0..8).map(|p| p < 4).collect();
    let at = scan(&layout, |p| !(2..=5).contains(&p), &fast);
    let mut throttle = Throttle::new(small_spans(), false);
    throttle.before(&at, &Budget::fast(6));
    let plan = Plan { promotions: vec![range(5, 3)], ..Plan::default() };
    let passed = throttle.pass(plan.clone(), &at, &Budget::fast(6));
    let pair = |up, down| Exchange { up: range(up, 1), down: range(down, 1) };
    assert_eq!(passed.victims, [pair(6, 2), pair(7, 3)]);
    assert_eq!(Plan { victims: Vec::new(), ..passed }, plan);
    // A pause moves nothing.
    throttle.status.pause_left = 5;
    assert!(throttle.pass(plan, &at, &Budget::fast(6)).victims.is_empty());
}

#[test]
fn pages_that_cannot_be_moved_are_left_out_for_longer_each_time_and_others_come() {
    let layout = layout(32);
    let fast = PageBits::new(32);
    // All are hot; of the 32 the first 8 cannot be moved. A policy that takes the first ones.
    let hot = scan(&layout, |_| true, &fast);
    struct First;
    impl Policy for First {
        fn name(&self) -> &'static str {
            "first"
        }
        fn metadata_bytes(&self) -> usize {
            0
        }
        fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
            let used = scan.accessed.iter_ones().filter(|&p| !scan.fast.get(p));
            let promotions = scan.layout.ranges(used.take(budget.moved_pages as usize));
            let plan = Plan { promotions, ..Plan::default() };
            Decision { plan, applied: "first", features: Default::default() }
        }
    }
    let throttle = Arc::new(Mutex::new(Throttle::new(small_spans(), false)));
    let policy: SharedPolicy = Arc::new(Mutex::new(Box::new(First)));
    let mut policy = ThrottledPolicy { policy, throttle: Arc::clone(&throttle) };
    let budget = Budget { moved_pages: 8, ..Budget::fast(32) };
    let mut stuck_asked = Vec::new();
    let mut others = 0;
    for period in 0..40 {
        let plan = policy.decide(&hot, &budget).plan;
        let asked: u64 = plan.promotions.iter().map(|r| r.pages(PageSize::Huge)).sum();
        assert!(asked <= 8, "period {period}: {asked} pages of 8");
        let stuck = |r: &&VirtualRange| r.start < 8 * HUGE;
        let failed: Vec<VirtualRange> = plan.promotions.iter().filter(stuck).copied().collect();
        let reason = FailureReason::Busy;
        let direction = Direction::Promotion;
        let failure = |range: &VirtualRange| {
            let size_bytes = range.size_bytes.min(8 * HUGE - range.start);
            Failure { range: VirtualRange { size_bytes, ..*range }, direction, reason }
        };
        let failures: Vec<Failure> = failed.iter().map(failure).collect();
        let pages: u64 = failures.iter().map(|f| f.range.pages(PageSize::Huge)).sum();
        if pages > 0 {
            stuck_asked.push(period);
        }
        others += asked - pages;
        let outcome = Outcome { promoted_pages: asked - pages, failures, ..Outcome::default() };
        lock(&throttle).outcome(&outcome, PageSize::Huge);
    }
    // Tried twice, then after 4, 8 and 16 periods.
    assert_eq!(stuck_asked, [0, 1, 5, 13, 29]);
    assert_eq!(others, 8 * 35);
    let status = lock(&throttle).status().clone();
    assert_eq!(status.unmovable_pages, 8);
}

#[test]
fn pages_that_cannot_come_are_counted_where_a_policy_asks_for_them_all_the_same() {
    let layout = layout(16);
    let at = scan(&layout, |_| true, &PageBits::new(16));
    let mut throttle = Throttle::new(small_spans(), false);
    let failures = vec![Failure {
        range: range(2, 2),
        direction: Direction::Promotion,
        reason: FailureReason::Busy,
    }];
    for _ in 0..2 {
        throttle.before(&at, &Budget::fast(16));
        throttle
            .outcome(&Outcome { failures: failures.clone(), ..Outcome::default() }, PageSize::Huge);
    }
    let budget = throttle.before(&at, &Budget::fast(16));
    let exchanges = vec![Exchange { up: range(1, 2), down: range(10, 2) }];
    let plan = Plan { promotions: vec![range(3, 3)], exchanges, ..Plan::default() };
    let passed = throttle.pass(plan, &at, &budget);
    assert_eq!(passed.promotions, [range(4, 2)]);
    assert_eq!(passed.exchanges, [Exchange { up: range(1, 1), down: range(10, 1) }]);
    let counted = throttle.status().throttled_pages[ThrottleReason::Unmovable as usize];
    assert_eq!(counted, 1 + 2);
}

#[test]
fn waiting_for_memory_beyond_the_gain_halves_moves() {
    let layout = layout(100);
    let at = scan(&layout, |_| true, &PageBits::new(100));
    let mut throttle = Throttle::new(small_spans(), false);
    let mut period = |stall: f64, moved: u64| {
        throttle.outcome(&Outcome { promoted_pages: moved, ..Outcome::default() }, PageSize::Huge);
        let stall = Some(Stall { group: stall, host: 0.0 });
        throttle.bound(Bounds { stall, ..Bounds::default() });
        let pages = throttle.before(&at, &Budget::fast(100)).moved_pages;
        (pages, throttle.status().message.clone())
    };
    assert_eq!(period(0.0, 64), (u64::MAX, None));
    let (pages, message) = period(0.4, 64);
    assert_eq!(pages, 32);
    assert!(message.is_some_and(|m| m.contains("wait for memory 40 %")));
    assert_eq!(period(0.4, 32).0, 16);
    assert_eq!(period(0.0, 16).0, 32);
    assert_eq!(period(0.0, 2).0, u64::MAX);
}

#[test]
fn the_bound_by_pressure_is_let_go_where_pressure_can_no_longer_be_read() {
    let layout = layout(100);
    let at = scan(&layout, |_| true, &PageBits::new(100));
    let mut throttle = Throttle::new(small_spans(), false);
    let mut period = |stall: Option<f64>, moved: u64| {
        throttle.outcome(&Outcome { promoted_pages: moved, ..Outcome::default() }, PageSize::Huge);
        let stall = stall.map(|group| Stall { group, host: 0.0 });
        throttle.bound(Bounds { stall, ..Bounds::default() });
        throttle.before(&at, &Budget::fast(100)).moved_pages
    };
    assert_eq!(period(Some(0.4), 64), 32);
    assert_eq!(period(None, 32), 64);
    assert_eq!(period(None, 2), u64::MAX);
}

#[test]
fn failures_halve_what_is_asked_for_and_success_takes_it_back() {
    let layout = layout(1000);
    let at = scan(&layout, |_| true, &PageBits::new(1000));
    let mut throttle = Throttle::new(small_spans(), false);
    // Other pages each time: those that failed are left out for a while.
    let mut next = 0;
    let mut bound = |throttle: &mut Throttle, asked: u64, failed: u64| {
        let first = next;
        next += asked;
        let plan = Plan { promotions: vec![range(first, asked)], ..Plan::default() };
        throttle.pass(plan, &at, &Budget::fast(100));
        let (reason, range) = (FailureReason::Busy, range(first, failed.max(1)));
        let failure = Failure { range, direction: Direction::Promotion, reason };
        let failures = if failed > 0 { vec![failure] } else { Vec::new() };
        throttle.outcome(&Outcome { failures, ..Outcome::default() }, PageSize::Huge);
        throttle.before(&at, &Budget::fast(100)).moved_pages
    };
    assert_eq!(bound(&mut throttle, 64, 10), u64::MAX);
    assert_eq!(bound(&mut throttle, 64, 40), 32);
    assert_eq!(bound(&mut throttle, 32, 30), 16);
    assert!(throttle.status().message.as_ref().is_some_and(|s| s.contains("16 pages")));
    assert_eq!(bound(&mut throttle, 16, 4), 16);
    assert_eq!(bound(&mut throttle, 16, 0), 32);
    // A few pages prove nothing, and a bound far above the moves is removed.
    assert_eq!(bound(&mut throttle, 4, 4), 32);
    assert_eq!(bound(&mut throttle, 8, 0), u64::MAX);
    assert_eq!(throttle.status().bound_periods[ThrottleReason::Failures as usize], 5);
}

#[test]
fn the_tightest_budget_counts() {
    let layout = layout(8);
    let at = scan(&layout, |_| false, &PageBits::new(8));
    let mut throttle = Throttle::new(small_spans(), false);
    throttle.bound(Bounds { bandwidth_pages: Some(7), cpu_pages: Some(3), ..Bounds::default() });
    assert_eq!(throttle.before(&at, &Budget::fast(8)).moved_pages, 3);
    assert_eq!(throttle.status().bound_periods, [0, 0, 0, 0, 1, 0, 0]);
    let own = Budget { moved_pages: 2, ..Budget::fast(8) };
    assert_eq!(throttle.before(&at, &own).moved_pages, 2);
    assert_eq!(throttle.status().bound_periods, [0, 0, 0, 0, 1, 0, 0]);
}

proptest! {
    #[test]
    fn what_passes_is_part_of_the_plan_and_within_the_share(
        fast in prop::collection::vec(any::<bool>(), 16),
        pause in 0u32..3,
        dry_run in any::<bool>(),
        fast_pages in 0u64..20,
    ) {
        let layout = layout(16);
        let fast: PageBits = fast.into_iter().collect();
        let at = scan(&layout, |_| true, &fast);
        let pages = |value: bool| (0..16u64).filter(|p| at.fast.get(*p as usize) == value).collect::<Vec<_>>();
        let ranges = |value| pages(value).into_iter().map(|p| range(p, 1)).collect::<Vec<_>>();
        let plan = Plan { promotions: ranges(false), demotions: ranges(true), ..Plan::default() };
        let mut throttle = Throttle::new(small_spans(), dry_run);
        throttle.status.pause_left = pause;
        let passed = throttle.pass(plan.clone(), &at, &Budget::fast(fast_pages));
        prop_assert!(passed.promotions.iter().all(|r| plan.promotions.contains(r)));
        prop_assert!(passed.demotions.iter().all(|r| plan.demotions.contains(r)));
        if dry_run {
            prop_assert!(passed.is_empty());
        } else if pause > 0 {
            let resident = at.fast.count() as u64;
            let (up, down) = passed.pages(PageSize::Huge);
            prop_assert!(resident + up - down <= fast_pages.max(resident));
            prop_assert_eq!(down, resident.saturating_sub(fast_pages));
        } else {
            prop_assert_eq!(&Plan { victims: Vec::new(), ..passed }, &plan);
        }
    }

    #[test]
    fn any_life_of_a_group_is_judged_without_fault(
        scans in prop::collection::vec((0u64..40, any::<u64>(), any::<u64>()), 1..60),
    ) {
        let mut throttle = Throttle::new(small_spans(), false);
        for (pages, accessed, fast) in scans {
            let layout = layout(pages);
            let fast = (0..pages).map(|p| fast >> p & 1 != 0).collect();
            let at = scan(&layout, |p| accessed >> p & 1 != 0, &fast);
            throttle.before(&at, &Budget::fast(pages / 2));
            prop_assert!(throttle.status().pause_left <= 12);
        }
    }
}
