//! The policy `terrace` with samples of reads and no measured time, as on live machines.

use std::ops::Range;
use std::sync::Arc;

use serde_json::json;
use terrace_core::bits::PageBits;
use terrace_core::counts::AccessCounts;
use terrace_core::page::{Layout, PageSize};
use terrace_core::policy::build;
use terrace_core::scan::{Budget, PeriodCounters, Scan};

/// Of 64 ranges of 2 MB four slow ones have most samples, and chance decides which of the others have
/// more. Samples have these latencies, and no time is measured. How many of the four are fast after
/// 100 periods, and how many ranges went up. `by_bits`: every other period has no samples, and bits that
/// find these ranges accessed all the time.
fn moved_by_samples_without_times(
    read_latency_ps: [u64; 2],
    by_bits: Option<Range<usize>>,
) -> (usize, u64) {
    let mut policy = build("terrace", &json!(null), 1).unwrap();
    let layout = Arc::new(Layout::contiguous(PageSize::Huge, 64));
    let mut fast: PageBits = (0..64).map(|page| page < 32).collect();
    let mut chance = 1u64;
    let mut went_up = 0;
    for number in 0..100 {
        let samples: Vec<u16> = (0..64)
            .map(|page| {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if (60..64).contains(&page) { 60 } else { 4 + (chance >> 60) as u16 }
            })
            .collect();
        let of_tier = |is_fast: bool| {
            let pages = (0..64).filter(|&page| fast.get(page) == is_fast);
            400 * pages.map(|page| u64::from(samples[page])).sum::<u64>()
        };
        let counters = PeriodCounters {
            reads: [of_tier(true), of_tier(false)],
            read_latency_ps,
            samples: Some(samples[..].into()),
            reads_per_sample: 400,
            ..PeriodCounters::default()
        };
        let scan = Scan::new(number, layout.clone(), PageBits::ones(64), fast.clone());
        let scan = match &by_bits {
            Some(ranges) if number % 2 == 1 => {
                let counts = (0..64).map(|page| if ranges.contains(&page) { 20 } else { 1 });
                let counts = counts.collect();
                scan.with_counts(AccessCounts { samples: 20, interval_us: 5000, counts })
            }
            _ => scan.with_counters(Arc::new(counters)),
        };
        let plan = policy.decide(&scan, &Budget { fast_pages: 32, moved_pages: 64 }).plan;
        went_up += plan.pages(PageSize::Huge).0;
        plan.apply(&layout, &mut fast);
    }
    (fast.count_range(60..64), went_up)
}

#[test]
fn latencies_of_samples_say_what_a_move_must_save() {
    let (hot, few) = moved_by_samples_without_times([85_000, 191_000], None);
    let (_, many) = moved_by_samples_without_times([0, 0], None);
    assert_eq!(hot, 4);
    assert!(few <= 16 && many >= 4 * few, "{few} ranges went up, {many} without latencies");
}

#[test]
fn bits_say_nothing_in_periods_without_samples() {
    let moved = |ranges| moved_by_samples_without_times([85_000, 191_000], Some(ranges));
    let (hot, went_up) = moved(32..60);
    assert_eq!(hot, 4);
    assert_eq!(moved(0..32), (hot, went_up), "whatever the bits are");
}

/// Of 64 ranges half are fast, and from the hundredth period on one of eight parts of the others is read
/// in each period: parts of a round, by chance. No time is measured.
#[test]
fn parts_of_a_round_are_no_phases_where_no_time_is_measured() {
    let mut policy = build("terrace", &json!({}), 1).unwrap();
    let layout = Arc::new(Layout::contiguous(PageSize::Huge, 64));
    let mut chance = 9u64;
    let mut fast: PageBits = (0..64).map(|page| page < 32).collect();
    for number in 0..200 {
        let read = match number {
            0..100 => 0..4,
            _ => {
                // One of eight parts of 4 ranges.
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let part = (chance >> 61) as usize;
                32 + 4 * part..36 + 4 * part
            }
        };
        let samples: Vec<u16> =
            (0..64).map(|page| if read.contains(&page) { 12 } else { 0 }).collect();
        let counters = PeriodCounters {
            reads: [400 * 32, 400 * 32],
            read_latency_ps: [85_000, 191_000],
            samples: Some(samples[..].into()),
            reads_per_sample: 400,
            ..PeriodCounters::default()
        };
        let scan = Scan::new(number, layout.clone(), PageBits::ones(64), fast.clone())
            .with_counters(Arc::new(counters));
        let plan = policy.decide(&scan, &Budget { fast_pages: 32, moved_pages: 64 }).plan;
        plan.apply(&layout, &mut fast);
        if number == 140 {
            assert!(fast.count_range(32..64) >= 16, "{}", fast.count_range(32..64));
        }
    }
    assert!(fast.count_range(32..64) >= 28, "{}", fast.count_range(32..64));
}

/// After how many periods four slow ranges that are read most are fast. In the first 60 periods others
/// are read most, in so many samples of 400 reads. Then each sample stands for `then` reads, or there are
/// none and bits are all there is.
fn fast_after_samples_change(then: Option<u32>) -> Option<u64> {
    // What was counted before is not dropped for a new phase.
    let mut policy = build("terrace", &json!({ "follow_phases": false }), 1).unwrap();
    let layout = Arc::new(Layout::contiguous(PageSize::Huge, 64));
    let mut fast: PageBits = (0..64).map(|page| page < 8).collect();
    for number in 0..200 {
        let hot = if number < 60 { 56..60 } else { 60..64 };
        let reads_per_sample = if number < 60 { Some(400) } else { then };
        let scan = Scan::new(number, layout.clone(), PageBits::ones(64), fast.clone());
        let scan = match reads_per_sample {
            Some(reads_per_sample) => {
                let reads = |page| if hot.contains(&page) { 160_000 } else { 6_400 };
                let samples: Vec<u16> =
                    (0..64).map(|page| (reads(page) / reads_per_sample) as u16).collect();
                let counters = PeriodCounters {
                    reads: [1_000_000; 2],
                    read_latency_ps: [85_000, 191_000],
                    samples: Some(samples[..].into()),
                    reads_per_sample,
                    ..PeriodCounters::default()
                };
                scan.with_counters(Arc::new(counters))
            }
            None => {
                let counts = (0..64).map(|page| if hot.contains(&page) { 20 } else { 1 }).collect();
                scan.with_counts(AccessCounts { samples: 20, interval_us: 5000, counts })
            }
        };
        let plan = policy.decide(&scan, &Budget { fast_pages: 8, moved_pages: 64 }).plan;
        plan.apply(&layout, &mut fast);
        if number == 59 {
            assert_eq!(fast.count_range(56..60), 4, "those that were read most until now");
        }
        if number >= 60 && fast.count_range(60..64) == 4 {
            return Some(number - 60);
        }
    }
    None
}

#[test]
fn samples_may_stand_for_more_reads_or_end_and_pages_are_ranked_on() {
    let as_before = fast_after_samples_change(Some(400)).expect("they are fast in the end");
    for then in [3200, 100] {
        let now = fast_after_samples_change(Some(then)).expect("they are fast in the end");
        assert!(now.abs_diff(as_before) <= 1, "{now} periods by {then} reads, {as_before} by 400");
    }
    let by_bits = fast_after_samples_change(None).expect("they are fast in the end");
    assert!(by_bits < 60, "{by_bits} periods");
}
