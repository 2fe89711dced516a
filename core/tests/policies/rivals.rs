//! What a user would notice of the rivals: TPP, MEMTIS-like, Colloid-like, and the offline optimum.

use std::sync::Arc;

use crate::model::Model;
use serde_json::json;
use terrace_core::bits::PageBits;
use terrace_core::oracle::{OracleTrace, Span};
use terrace_core::page::{Extent, Layout, PageSize, SpaceId};
use terrace_core::plan::{Decision, Plan};
use terrace_core::policy::{Policy, build};
use terrace_core::scan::{Budget, PeriodCounters, Scan};

fn places(model: &Model) -> Vec<usize> {
    model.fast.iter_ones().collect()
}

#[test]
fn tpp_promotes_on_the_second_access_within_the_threshold() {
    let mut model = Model::new("tpp", 100, 50);
    // Page 80 twice running, page 81 every third period.
    let accessed = |t: usize, page: usize| match page {
        80 => (10..12).contains(&t),
        81 => t.is_multiple_of(3),
        _ => page < 40,
    };
    for t in 0..11 {
        model.period(|page| accessed(t, page));
        assert!(!model.fast.get(80), "period {t}: one access is not enough");
    }
    model.period(|page| accessed(11, page));
    assert!(model.fast.get(80) && !model.fast.get(81));
}

#[test]
fn tpp_counts_lost_periods_between_two_accesses() {
    let mut model = Model::new("tpp", 100, 50);
    model.period(|page| page < 40);
    model.period(|page| page < 40 || page == 80);
    model.lost_periods = 3;
    model.period(|page| page < 40 || page == 80);
    assert!(!model.fast.get(80), "the second access came four periods after the first");
    model.lost_periods = 0;
    model.period(|page| page < 40 || page == 80);
    assert!(model.fast.get(80));
}

#[test]
fn tpp_keeps_a_part_of_fast_memory_free_and_never_demotes_what_is_in_use() {
    let mut model = Model::new("tpp", 200, 100);
    model.policy = build("tpp", &json!({"watermark_ratio": 0.1}), 1).unwrap();
    for _ in 0..10 {
        model.period(|page| page < 70);
    }
    assert_eq!(model.resident(), 90);
    assert!((0..70).all(|page| model.fast.get(page)));
    // All in use: nothing to demote, so the headroom that promotion uses is not won back.
    for _ in 0..30 {
        model.period(|page| page < 150);
    }
    assert_eq!(model.resident(), 100);
}

#[test]
fn tpp_holds_promotions_at_their_limit() {
    let mut model = Model::new("tpp", 200, 100);
    model.policy = build("tpp", &json!({"promote_limit_pages": 5}), 1).unwrap();
    for _ in 0..10 {
        let (up, _) = model.period(|page| page >= 100).plan.pages(PageSize::Huge);
        assert!(up <= 5, "{up}");
    }
    assert!(model.fast.count_range(100..200) > 30);
}

#[test]
fn memtis_promotes_the_bins_that_fit_and_leaves_warm_pages_alone() {
    // 30 pages are read always, 100 every fourth period: the first fit into 50, all do not.
    let mut model = Model::new("memtis", 200, 50);
    for t in 0..60 {
        model.period(|page| match page {
            170.. => true,
            70..170 => (page + t) % 4 == 0,
            _ => false,
        });
    }
    assert_eq!(model.fast.count_range(170..200), 30);
    let others = places(&model).iter().filter(|p| (70..170).contains(*p)).count();
    assert_eq!(others, 0, "a bin that does not fit is not promoted");
}

fn sampled(layout: &Arc<Layout>, fast: &PageBits, number: u64, samples: &[u16]) -> Scan {
    let accessed = samples.iter().map(|&s| s > 0).collect();
    let counters = PeriodCounters {
        samples: Some(samples.into()),
        reads_per_sample: 100,
        ..PeriodCounters::default()
    };
    Scan::new(number, layout.clone(), accessed, fast.clone()).with_counters(Arc::new(counters))
}

#[test]
fn memtis_splits_skewed_regions_and_moves_uniform_ones_whole() {
    let pages = 64usize;
    let layout = Arc::new(Layout::contiguous(PageSize::Base, pages as u64));
    let mut policy = build("memtis", &json!({"huge_region_bytes": 65536}), 1).unwrap();
    // Region 2 (pages 32 to 47) is read all over, region 3 in two pages only.
    let samples: Vec<u16> = (0..pages)
        .map(|page| match page {
            32..48 => 6,
            50 | 61 => 40,
            _ => 0,
        })
        .collect();
    let mut fast: PageBits = (0..pages).map(|page| page < 20).collect();
    for number in 0..30 {
        let scan = sampled(&layout, &fast, number, &samples);
        policy.decide(&scan, &Budget::fast(20)).plan.apply(&layout, &mut fast);
    }
    assert!(fast.get(50) && fast.get(61), "the two hot pages of the skewed region");
    assert!(!fast.get(51) && !fast.get(60), "and no others of it");
    assert_eq!(fast.count_range(32..48), 16, "the uniform region is there as a whole");
}

#[test]
fn memtis_keeps_a_region_split_when_pages_come_before_its_first() {
    let extent = |first: u64, pages| Extent { space: SpaceId(0), start: first * 4096, pages };
    let layout_of = |extents| Arc::new(Layout::new(PageSize::Base, extents).unwrap());
    // Region 3 begins with page 52 at first, then with page 48. Two of its pages are read.
    let small = layout_of(vec![extent(0, 48), extent(52, 12)]);
    let large = layout_of(vec![extent(0, 64)]);
    let mut policy = build("memtis", &json!({"huge_region_bytes": 65536}), 1).unwrap();
    let samples = |page: u64| match page {
        32..48 => 6,
        53 | 61 => 200,
        _ => 0,
    };
    let mut fast: Vec<bool> = (0..64).map(|page| page < 20).collect();
    for number in 0..60 {
        let layout = if number < 30 { &small } else { &large };
        let page_of = |index| layout.address(index).1 / 4096;
        let read: Vec<u16> = (0..layout.pages()).map(|index| samples(page_of(index))).collect();
        let places = (0..layout.pages()).map(|index| fast[page_of(index) as usize]);
        let mut bits: PageBits = places.collect();
        let scan = sampled(layout, &bits, number, &read);
        policy.decide(&scan, &Budget::fast(20)).plan.apply(layout, &mut bits);
        (0..layout.pages()).for_each(|index| fast[page_of(index) as usize] = bits.get(index));
        let places: Vec<usize> = (48..64).filter(|&page| fast[page]).collect();
        if number >= 29 {
            assert_eq!(places, [53, 61], "the pages that are read, in period {number}");
        }
    }
}

/// What Colloid does with 100 pages, the first 40 fast and all of them read, at these latencies.
fn colloid(latency_ps: [u64; 2]) -> (Decision, PageBits) {
    let layout = Arc::new(Layout::contiguous(PageSize::Huge, 100));
    let fast: PageBits = (0..100).map(|page| page < 40).collect();
    let mut policy: Box<dyn Policy> = build("colloid", &json!(null), 1).unwrap();
    let samples: Vec<u16> = (0..100).map(|page| if page % 2 == 0 { 20 } else { 1 }).collect();
    let reads = |fast: bool| -> u64 {
        (0..100).filter(|&p| (p < 40) == fast).map(|p: usize| u64::from(samples[p])).sum()
    };
    let mut decision = None;
    for number in 0..4 {
        let counters = PeriodCounters {
            samples: Some(samples[..].into()),
            reads: [reads(true), reads(false)],
            read_latency_ps: latency_ps,
            ..PeriodCounters::default()
        };
        let accessed = PageBits::ones(100);
        let scan = Scan::new(number, layout.clone(), accessed, fast.clone())
            .with_counters(Arc::new(counters));
        decision = Some(policy.decide(&scan, &Budget::fast(40)));
    }
    (decision.unwrap(), fast)
}

#[test]
fn colloid_goes_where_latency_is_smaller_and_stays_where_it_is_equal() {
    let moved = |latencies| {
        let (decision, _) = colloid(latencies);
        assert_eq!(decision.applied, "colloid");
        decision.plan.pages(PageSize::Huge)
    };
    let (up, down) = moved([80_000, 300_000]);
    assert!(up > 0 && up == down, "hot pages for cold ones: {up} {down}");
    let (up, down) = moved([400_000, 300_000]);
    assert!(up == 0 && down > 0, "fast memory is overloaded: {up} {down}");
    assert_eq!(moved([300_000, 305_000]), (0, 0));
    let (decision, fast) = colloid([400_000, 300_000]);
    let layout = Layout::contiguous(PageSize::Huge, 100);
    let mut after = fast.clone();
    decision.plan.apply(&layout, &mut after);
    let gone = (0..100).filter(|&p| fast.get(p) && !after.get(p));
    assert!(gone.clone().all(|page| page % 2 == 0), "the hottest go: few have to");
}

#[test]
fn colloid_promotes_no_more_into_free_room_than_it_takes() {
    // The bounds are at 0.9 and 0.3 of the reads: the way to the middle is 0.3, which 30 of the 60
    // pages in slow memory have. There is room for all.
    let layout = Arc::new(Layout::contiguous(PageSize::Huge, 100));
    let fast: PageBits = (0..100).map(|page| page < 40).collect();
    let mut policy = build("colloid", &json!(null), 1).unwrap();
    let mut decide = |number, reads, read_latency_ps| {
        let counters = PeriodCounters { reads, read_latency_ps, ..PeriodCounters::default() };
        let scan = Scan::new(number, layout.clone(), PageBits::ones(100), fast.clone())
            .with_counters(Arc::new(counters));
        policy.decide(&scan, &Budget::fast(100)).plan.pages(PageSize::Huge)
    };
    decide(0, [900, 100], [400_000, 300_000]);
    assert_eq!(decide(1, [300, 700], [80_000, 300_000]), (30, 0));
}

#[test]
fn colloid_says_when_it_knows_no_latencies() {
    let mut model = Model::new("colloid", 100, 40);
    let decision = model.period(|page| page >= 60);
    assert_eq!(decision.applied, "colloid-unmeasured");
    assert!(!decision.plan.is_empty(), "fast memory is taken to be faster");
}

#[test]
fn the_optimum_moves_pages_before_they_are_read_and_not_when_it_does_not_pay() {
    let layout = Arc::new(Layout::contiguous(PageSize::Huge, 20));
    let reads = |t: usize, page: usize| (page < 10) == (t / 10).is_multiple_of(2);
    let spans = (0..60).map(|t| Span {
        end: t as u64 + 1,
        layout: layout.clone(),
        reads: (0..20).filter(|&p| reads(t, p)).map(|p| (p as u32, 1)).collect(),
        fast_ns: 1.0,
        extra_ns: 10.0,
        overlap: 1.0,
    });
    let future = |promotion_ns| OracleTrace {
        spans: spans.clone().collect(),
        promotion_ns,
        demotion_ns: 0.0,
        period_ns: 0.0,
    };
    let hits = |promotion_ns| {
        let mut model = Model::new("optimum", 20, 10);
        model.policy.set_oracle(Arc::new(future(promotion_ns)));
        let mut moved = 0;
        let hits: usize = (0..60)
            .map(|t| {
                let hits = (0..20).filter(|&p| reads(t, p) && model.fast.get(p)).count();
                moved += model.period(|page| reads(t, page)).plan.pages(PageSize::Huge).0;
                hits
            })
            .sum();
        (hits, moved)
    };
    assert_eq!(hits(3.0), (600, 50), "every read is fast; five changes of ten pages");
    assert_eq!(hits(1000.0), (300, 0));
    // Without an oracle trace pages stay.
    let mut model = Model::new("optimum", 20, 10);
    assert_eq!(model.period(|page| page > 10).plan, Plan::default());
}
