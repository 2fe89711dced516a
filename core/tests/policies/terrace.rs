//! What a user would notice of Terrace's own policy: it follows a new phase sooner than AMP, does
//! not lose against staying put, and moves what pays.

use std::sync::Arc;

use crate::model::{Model, check};
use serde_json::json;
use terrace_core::bits::PageBits;
use terrace_core::page::{Layout, PageSize};
use terrace_core::policy::build;
use terrace_core::scan::{Budget, PeriodCounters, Scan};

const PAGES: usize = 256;
const FAST_PAGES: u64 = 128;
const PHASE: usize = 150;

/// Four sets in turn, four periods each: AMP's LRU-favor.
fn strided(t: usize, page: usize) -> bool {
    page * 4 / PAGES == t / 4 % 4
}

/// AMP's LFU-favor.
fn hot_and_cold(t: usize, page: usize) -> bool {
    let (hot, rank) = (page % 2 == 1, page / 2);
    if hot { !(rank + t).is_multiple_of(8) } else { rank * 16 / (PAGES / 2) == t % 16 }
}

/// AMP's Random-favor.
fn everywhere(_: usize, _: usize) -> bool {
    true
}

type Pattern = fn(usize, usize) -> bool;

/// Part of the accesses that are hits, in each period of the second phase.
fn second_phase(policy: &str, first: Pattern, second: Pattern) -> Vec<f64> {
    let mut model = Model::new(policy, PAGES, FAST_PAGES);
    (0..2 * PHASE)
        .map(|t| {
            let of = if t < PHASE { first } else { second };
            model.period(|page| of(t, page)).features.hit_ratio
        })
        .skip(PHASE)
        .collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Periods until a turn of 16 has as many hits as the phase settles at, but for 5 %.
fn delay(hits: &[f64]) -> usize {
    let settled = mean(&hits[PHASE - 48..]);
    (0..PHASE - 16).find(|&t| mean(&hits[t..t + 16]) >= 0.95 * settled).unwrap_or(PHASE)
}

#[test]
fn it_follows_a_new_phase_sooner_than_amp() {
    let mixes: [(Pattern, Pattern); 6] = [
        (strided, hot_and_cold),
        (hot_and_cold, strided),
        (strided, everywhere),
        (everywhere, strided),
        (hot_and_cold, everywhere),
        (everywhere, hot_and_cold),
    ];
    let mut sums = [0, 0];
    for (number, (first, second)) in mixes.into_iter().enumerate() {
        let hits = ["amp", "terrace"].map(|policy| second_phase(policy, first, second));
        let [amp, own] = [delay(&hits[0]), delay(&hits[1])];
        eprintln!("mix {}: amp {amp} periods, terrace {own}", number + 1);
        eprintln!("  hits amp {:.3} terrace {:.3}", mean(&hits[0]), mean(&hits[1]));
        sums[0] += amp;
        sums[1] += own;
        assert!(own <= amp + 2, "mix {}: {own} periods, AMP {amp}", number + 1);
    }
    assert!(sums[1] < sums[0], "{sums:?}");
}

#[test]
fn what_moves_cost_more_than_they_bring_is_bounded() {
    // Sets that change as soon as they could have been promoted: every move is lost.
    let mut model = Model::new("terrace", PAGES, FAST_PAGES);
    let initial = model.fast.clone();
    let (mut cost, mut lost, mut all) = (0.0, 0.0, 0.0);
    for t in 0..400usize {
        let accessed = |page: usize| page * 8 / PAGES == (t * 5) % 8;
        let hits = |fast: &PageBits| (0..PAGES).filter(|&p| accessed(p) && fast.get(p)).count();
        lost += hits(&initial) as f64 - hits(&model.fast) as f64;
        all += (PAGES / 8) as f64;
        let (up, down) = model.period(accessed).plan.pages(PageSize::Huge);
        cost += up.max(down) as f64 * 1.2;
    }
    assert!(lost + cost <= 0.02 * all + 2.0 * PAGES as f64 / 8.0, "{lost} {cost} of {all}");
}

#[test]
fn measured_costs_decide_whether_pages_move() {
    // 32 pages in slow memory have 20 samples a period, the others none. A period is 1 ms.
    let layout = Arc::new(Layout::contiguous(PageSize::Base, 256));
    let run = |slow_stall_ns: u64| {
        let mut policy = build("terrace", &json!(null), 1).unwrap();
        let mut fast: PageBits = (0..256).map(|page| page < 64).collect();
        let samples: Vec<u16> = (0..256).map(|page| if page >= 224 { 20 } else { 0 }).collect();
        for number in 0..60 {
            let slow = (224..256).filter(|&p| !fast.get(p)).count() as u64;
            let counters = PeriodCounters {
                elapsed_ns: 1_000_000,
                slow_stall_ns: slow_stall_ns * slow / 32,
                read_latency_ps: [80_000, 300_000],
                samples: Some(samples[..].into()),
                reads_per_sample: 16,
                ..PeriodCounters::default()
            };
            let accessed = samples.iter().map(|&s| s > 0).collect();
            let scan = Scan::new(number, layout.clone(), accessed, fast.clone())
                .with_counters(Arc::new(counters));
            policy.decide(&scan, &Budget::fast(64)).plan.apply(&layout, &mut fast);
        }
        fast.count_range(224..256)
    };
    assert_eq!(run(300_000), 32, "they cost a third of the time");
    assert_eq!(run(300), 0, "they cost next to nothing");
}

/// Of 32 slow pages that are read, how many are fast after 200 periods of 1 ms, where there are
/// as many further pages as `extra` gives for each third period. A move pays after some 14 periods.
fn moved_where_memory_comes_and_goes(extra: impl Fn(u64) -> usize) -> usize {
    const PAGES: usize = 4096;
    let mut policy = build("terrace", &json!(null), 1).unwrap();
    let mut fast: PageBits = (0..PAGES).map(|page| page < 64).collect();
    let mut layout = Arc::new(Layout::contiguous(PageSize::Base, PAGES as u64));
    for number in 0..200 {
        if number % 3 == 0 {
            layout = Arc::new(Layout::contiguous(PageSize::Base, (PAGES + extra(number)) as u64));
        }
        let pages = layout.pages();
        // Further pages come in slow memory.
        fast = (0..pages).map(|page| page < fast.len() && fast.get(page)).collect();
        let read = |page: usize| (224..256).contains(&page);
        let samples: Vec<u16> = (0..pages).map(|page| if read(page) { 20 } else { 0 }).collect();
        let slow = (224..256).filter(|&page| !fast.get(page)).count() as u64;
        let counters = PeriodCounters {
            elapsed_ns: 1_000_000,
            slow_stall_ns: 30_000 * slow / 32,
            read_latency_ps: [80_000, 300_000],
            samples: Some(samples[..].into()),
            reads_per_sample: 16,
            ..PeriodCounters::default()
        };
        let accessed = samples.iter().map(|&s| s > 0).collect();
        let scan = Scan::new(number, layout.clone(), accessed, fast.clone())
            .with_counters(Arc::new(counters));
        policy.decide(&scan, &Budget::fast(64)).plan.apply(&layout, &mut fast);
    }
    fast.count_range(224..256)
}

#[test]
fn a_page_that_comes_or_goes_does_not_keep_others_from_moving() {
    assert_eq!(moved_where_memory_comes_and_goes(|_| 0), 32);
    let one = moved_where_memory_comes_and_goes(|number| (number / 3 % 2) as usize);
    assert_eq!(one, 32, "a page comes or goes every three periods");
    // A 32nd is another matter: the program is still setting itself up.
    let much = moved_where_memory_comes_and_goes(|number| (number / 3 % 2) as usize * 128);
    assert_eq!(much, 0, "it allocates in quantity");
}

#[test]
fn whether_to_exchange_is_measured() {
    let layout = Arc::new(Layout::contiguous(PageSize::Base, 512));
    for (exchange_ns, two_moves_ns, expected) in [(5_000, 9_000, true), (9_000, 5_000, false)] {
        let mut policy = build("terrace", &json!(null), 1).unwrap();
        let mut fast: PageBits = (0..512).map(|page| page < 128).collect();
        let (mut migration_stall_ns, mut exchanged) = (0, Vec::new());
        for number in 0..40u64 {
            // Ever other pages are read, for long enough to pay.
            let hot = |page: usize| page / 64 == 2 + (number as usize / 10) % 4;
            let samples: Vec<u16> = (0..512).map(|page| if hot(page) { 50 } else { 0 }).collect();
            let counters = PeriodCounters {
                elapsed_ns: 5_000_000,
                migration_stall_ns,
                slow_stall_ns: 3_000_000,
                read_latency_ps: [80_000, 300_000],
                samples: Some(samples[..].into()),
                reads_per_sample: 16,
                ..PeriodCounters::default()
            };
            let accessed = samples.iter().map(|&s| s > 0).collect();
            let scan = Scan::new(number, layout.clone(), accessed, fast.clone())
                .with_counters(Arc::new(counters));
            let budget = Budget { fast_pages: 128, moved_pages: 16 };
            let plan = policy.decide(&scan, &budget).plan;
            let pairs = plan.pages(PageSize::Base).0;
            let exchanges = !plan.exchanges.is_empty();
            migration_stall_ns = pairs * if exchanges { exchange_ns } else { two_moves_ns };
            if pairs > 0 {
                exchanged.push(exchanges);
            }
            plan.apply(&layout, &mut fast);
        }
        assert!(exchanged.len() > 6, "{exchanged:?}");
        assert!(exchanged[4..].iter().all(|&e| e == expected), "{exchanged:?}");
    }
}

/// A program that reads what it has just allocated, for a while, and then turns to what it had
/// first: how many pages have been moved, and how much the moves and what follows from them lose.
fn set_up_then_run(parameters: &serde_json::Value) -> (u64, f64) {
    const COST_NS: u64 = 9_000;
    let mut policy = build("terrace", parameters, 1).unwrap();
    let layout = |pages| Arc::new(Layout::contiguous(PageSize::Base, pages));
    let mut fast: PageBits = (0..1024).map(|page| page < 700).collect();
    let (mut migration_stall_ns, mut moved, mut lost_ns) = (0, 0, 0.0);
    for number in 0..60u64 {
        let layout = layout(1024);
        let setting_up = number < 10;
        // While it sets itself up it reads a few pages much; then all of the first ones.
        let reads = |page: usize| match page {
            _ if number == 0 => 1,
            700..1000 if setting_up => 3,
            0..700 if !setting_up => 8,
            _ => 0u16,
        };
        let samples: Vec<u16> = (0..1024).map(reads).collect();
        let slow: u64 = (0..1024).filter(|&p| !fast.get(p)).map(|p| u64::from(samples[p])).sum();
        let initially: u64 = (700..1024).map(|p| u64::from(samples[p])).sum();
        let each_ns = 400;
        lost_ns += each_ns as f64 * (slow as f64 - initially as f64) + migration_stall_ns as f64;
        let counters = PeriodCounters {
            elapsed_ns: 1_000_000 + migration_stall_ns,
            migration_stall_ns,
            slow_stall_ns: slow * each_ns * 4 / 3,
            read_latency_ps: [80_000, 320_000],
            samples: Some(samples[..].into()),
            reads_per_sample: 16,
            ..PeriodCounters::default()
        };
        let accessed = samples.iter().map(|&s| s > 0).collect();
        let scan = Scan::new(number, layout.clone(), accessed, fast.clone())
            .with_counters(Arc::new(counters));
        let budget = Budget { fast_pages: 700, moved_pages: 32 };
        let plan = policy.decide(&scan, &budget).plan;
        let pairs = plan.pages(PageSize::Base).0;
        migration_stall_ns = pairs * COST_NS;
        moved += pairs;
        plan.apply(&layout, &mut fast);
    }
    (moved, lost_ns / 60e6)
}

#[test]
fn what_a_program_does_to_set_itself_up_moves_little() {
    let (moved, lost) = set_up_then_run(&json!(null));
    assert!(lost < 0.02, "{moved} pairs moved, {lost} of the time lost");
    // Without these two parts it loses.
    let (more, worse) =
        set_up_then_run(&json!({"phase_age_factor": 1e6, "return_cost_share": 0.0}));
    assert!(worse > 0.03, "{more} pairs moved, {worse} of the time lost");
}

/// Two halves of memory are read in turn. Slow reads of the first half, which is in fast memory,
/// cost nothing until much of it is slow, and then all at once: so moves seem to pay. How many of
/// the first pages are fast at the end, and at the least.
fn deceived(parameters: &serde_json::Value) -> (usize, usize) {
    let mut policy = build("terrace", parameters, 1).unwrap();
    let layout = Arc::new(Layout::contiguous(PageSize::Base, 512));
    let mut fast: PageBits = (0..512).map(|page| page < 256).collect();
    let (mut least, mut migration_stall_ns) = (256, 0);
    for number in 0..1200u64 {
        let first = number / 10 % 2 == 0;
        let read = |page: usize| (page < 256) == first;
        let samples: Vec<u16> = (0..512).map(|page| if read(page) { 2 } else { 0 }).collect();
        let samples: Vec<u16> = samples
            .iter()
            .enumerate()
            .map(|(page, &s)| if page >= 256 && page % 2 == 0 { s * 2 } else { s })
            .collect();
        let slow: u64 = (0..512).filter(|&p| !fast.get(p)).map(|p| u64::from(samples[p])).sum();
        // A slow read of the first half costs much; of the second half all cost the same, however
        // much of it is slow.
        let cost_ns = if first { slow * 3_000 } else { 400_000 };
        let counters = PeriodCounters {
            elapsed_ns: 1_000_000 + cost_ns + migration_stall_ns,
            migration_stall_ns,
            slow_stall_ns: cost_ns * 4 / 3,
            read_latency_ps: [80_000, 320_000],
            samples: Some(samples[..].into()),
            reads_per_sample: 16,
            ..PeriodCounters::default()
        };
        let accessed = samples.iter().map(|&s| s > 0).collect();
        let scan = Scan::new(number, layout.clone(), accessed, fast.clone())
            .with_counters(Arc::new(counters));
        let plan = policy.decide(&scan, &Budget { fast_pages: 256, moved_pages: 32 }).plan;
        migration_stall_ns = plan.pages(PageSize::Base).0 * 7_000;
        plan.apply(&layout, &mut fast);
        least = least.min(fast.count_range(0..256));
    }
    (fast.count_range(0..256), least)
}

#[test]
fn a_placement_that_goes_on_losing_is_left() {
    let (at_end, least) = deceived(&json!(null));
    eprintln!("{at_end} {least}");
    assert!(least < 250, "it was not deceived: {least}");
    assert!(at_end > 250, "{at_end} of 256 pages are back, {least} were left");
    let (at_end, _) = deceived(&json!({"retreat": false}));
    assert!(at_end < 250, "{at_end}");
}

/// Of the first half of memory, which is fast, one part is read a hundred times in every other
/// period, the other never; the second half is read once in each. Nothing samples reads, so the
/// second half seems busiest. Returns the part of the time that is lost against staying, and how
/// many of the first part's 192 pages are fast at the end.
fn misled(parameters: &serde_json::Value) -> (f64, usize) {
    let mut policy = build("terrace", parameters, 1).unwrap();
    let layout = Arc::new(Layout::contiguous(PageSize::Base, 512));
    let mut fast: PageBits = (0..512).map(|page| page < 256).collect();
    let (mut migration_stall_ns, mut lost_ns, mut elapsed_ns) = (0, 0.0, 0.0);
    for number in 0..600u64 {
        let read = |page: usize| match page {
            0..192 if (number + page as u64).is_multiple_of(2) => 100u64,
            0..256 => 0,
            _ => 1,
        };
        let reads_of = |want: bool| (0..512).filter(|&p| fast.get(p) == want).map(read).sum();
        let reads: [u64; 2] = [reads_of(true), reads_of(false)];
        let stall_ns = reads[1] * 400;
        lost_ns += stall_ns as f64 - 256.0 * 400.0 + migration_stall_ns as f64;
        let counters = PeriodCounters {
            elapsed_ns: 2_000_000 + stall_ns + migration_stall_ns,
            migration_stall_ns,
            slow_stall_ns: stall_ns * 4 / 3,
            reads,
            read_latency_ps: [80_000, 320_000],
            ..PeriodCounters::default()
        };
        elapsed_ns += counters.elapsed_ns as f64;
        let accessed = (0..512).map(|page| read(page) > 0).collect();
        let scan = Scan::new(number, layout.clone(), accessed, fast.clone())
            .with_counters(Arc::new(counters));
        let plan = policy.decide(&scan, &Budget { fast_pages: 256, moved_pages: 32 }).plan;
        migration_stall_ns = plan.pages(PageSize::Base).0 * 7_000;
        plan.apply(&layout, &mut fast);
    }
    (lost_ns / elapsed_ns, fast.count_range(0..192))
}

#[test]
fn counts_of_reads_contradict_bits_that_mislead() {
    let (lost, left) = misled(&json!(null));
    assert!(lost < 0.01, "{lost} of the time lost, {left} of 192 pages are where they were");
    assert!(left > 180, "{left} of 192 pages, {lost} lost");
    let (worse, left) = misled(&json!({"count_reads": false}));
    assert!(worse > 0.1, "{worse}, with counts {lost}; {left} pages");
}

/// 128 pages that are fast at first have five samples a period, 32 slow ones ten. From the period
/// `shrinks` on the limit is 64 pages. How many of the 32 are fast after 200 periods. Every plan is
/// checked against the limit.
fn above_its_limit(parameters: &serde_json::Value, shrinks: u64, moved_pages: u64) -> usize {
    let mut policy = build("terrace", parameters, 1).unwrap();
    let layout = Arc::new(Layout::contiguous(PageSize::Base, 160));
    let mut fast: PageBits = (0..160).map(|page| page < 128).collect();
    let samples: Vec<u16> = (0..160).map(|page| if page < 128 { 5 } else { 10 }).collect();
    let mut migration_stall_ns = 0;
    for number in 0..200 {
        let slow: u64 = (0..160).filter(|&p| !fast.get(p)).map(|p| u64::from(samples[p])).sum();
        let counters = PeriodCounters {
            elapsed_ns: 1_000_000 + slow * 400 + migration_stall_ns,
            migration_stall_ns,
            slow_stall_ns: slow * 400 * 4 / 3,
            read_latency_ps: [80_000, 320_000],
            samples: Some(samples[..].into()),
            reads_per_sample: 16,
            ..PeriodCounters::default()
        };
        let scan = Scan::new(number, layout.clone(), PageBits::ones(160), fast.clone())
            .with_counters(Arc::new(counters));
        let fast_pages = if number < shrinks { 128 } else { 64 };
        let budget = Budget { fast_pages, moved_pages };
        let decision = policy.decide(&scan, &budget);
        check(&decision, &scan, &budget);
        let (up, down) = decision.plan.pages(PageSize::Base);
        migration_stall_ns = up.max(down) * 7_000;
        decision.plan.apply(&layout, &mut fast);
    }
    fast.count_range(128..160)
}

#[test]
fn a_group_above_its_limit_moves_what_pays_within_it() {
    for shrinks in [0, 100] {
        for moved_pages in [u64::MAX, 16] {
            for parameters in [json!(null), json!({"retreat": false})] {
                let up = above_its_limit(&parameters, shrinks, moved_pages);
                let case = format!("{parameters}, from period {shrinks} on, {moved_pages} moves");
                assert_eq!(up, 32, "{case}");
            }
        }
    }
}

#[test]
fn what_others_move_is_no_loss_that_keeps_pages_from_moving() {
    let mut policy = build("terrace", &json!(null), 1).unwrap();
    let layout = Arc::new(Layout::contiguous(PageSize::Base, 256));
    let mut fast: PageBits = (0..256).map(|page| page < 128).collect();
    // Samples without times, as a live machine has them. The first pages are read most.
    let samples: Vec<u16> = (0..256).map(|page| if page < 32 { 20 } else { 1 }).collect();
    for number in 0..100 {
        if number == 50 {
            // The kernel demotes them by itself, and promotes others.
            (0..32).for_each(|page| fast.set(page, false));
            (128..160).for_each(|page| fast.set(page, true));
        }
        let counters =
            PeriodCounters { samples: Some(samples[..].into()), ..PeriodCounters::default() };
        let scan = Scan::new(number, layout.clone(), PageBits::ones(256), fast.clone())
            .with_counters(Arc::new(counters));
        let plan = policy.decide(&scan, &Budget { fast_pages: 128, moved_pages: 64 }).plan;
        plan.apply(&layout, &mut fast);
    }
    assert_eq!(fast.count_range(0..32), 32, "those that are read most are back");
}

/// Of 32 slow pages that are accessed most, how many are fast four periods after the period
/// `first`, where no move succeeds before it.
fn moved_where_moves_fail_before(first: u64) -> usize {
    let mut policy = build("terrace", &json!(null), 1).unwrap();
    let layout = Arc::new(Layout::contiguous(PageSize::Base, 256));
    let mut fast: PageBits = (0..256).map(|page| page < 128).collect();
    for number in 0..first + 4 {
        let hot = |page: u64| (128..160).contains(&page) || (page + number).is_multiple_of(8);
        let scan = Scan::new(number, layout.clone(), (0..256).map(hot).collect(), fast.clone());
        let plan = policy.decide(&scan, &Budget { fast_pages: 128, moved_pages: 64 }).plan;
        if number >= first {
            plan.apply(&layout, &mut fast);
        }
    }
    fast.count_range(128..160)
}

#[test]
fn moves_that_fail_cost_nothing_where_costs_are_a_guess() {
    assert_eq!(moved_where_moves_fail_before(20), 32);
    assert_eq!(moved_where_moves_fail_before(100), 32, "the first hundred plans failed");
}
