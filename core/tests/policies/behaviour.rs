//! What a user would notice of each policy: which pages are in fast memory after a while, and
//! that pages do not move without reason.

use std::collections::BTreeSet;

use crate::model::{Model, policies};
use serde_json::json;
use terrace_core::page::{Extent, Layout, PageSize, SpaceId};
use terrace_core::policies::REGISTRY;
use terrace_core::policy::{Allocation, build};
use terrace_core::scan::Budget;

/// Pages that moved, up and down, in each of the periods.
fn moves(model: &mut Model, periods: usize, accessed: impl Fn(usize, usize) -> bool) -> Vec<u64> {
    (0..periods)
        .map(|t| {
            let plan = model.period(|page| accessed(t, page)).plan;
            crate::model::moved(&plan, PageSize::Huge)
        })
        .collect()
}

#[test]
fn the_registry_names_every_policy_and_its_true_defaults() {
    let names: BTreeSet<_> = REGISTRY.iter().map(|kind| kind.name).collect();
    assert_eq!(names.len(), REGISTRY.len(), "a name is there twice");
    for kind in REGISTRY {
        let mut documented = serde_json::Map::new();
        for p in kind.parameters {
            documented.insert(p.name.into(), serde_json::from_str(p.default).unwrap());
        }
        let built = (kind.build)(&documented.into(), 0).unwrap();
        assert_eq!(built.name(), kind.name);
    }
}

/// The range that is documented is the one that is checked.
#[test]
fn a_number_beyond_its_documented_range_is_refused_by_name() {
    let mut ranges = 0;
    for kind in REGISTRY {
        for p in kind.parameters {
            let Some((_, range)) = p.meaning.rsplit_once(" (") else { continue };
            let Some((_, most)) = range.trim_end_matches(')').split_once(" to ") else { continue };
            let most: f64 = most.parse().unwrap_or_else(|e| panic!("{}: {e}", p.meaning));
            let beyond = match p.default.contains('.') {
                true => json!(most * 2.0 + 1.0),
                false => json!(most as u64 * 2 + 1),
            };
            let message = (kind.build)(&json!({ p.name: beyond }), 0).err().unwrap().to_string();
            assert!(message.contains(kind.name) && message.contains(p.name), "{message}");
            ranges += 1;
        }
    }
    assert!(ranges > 30, "{ranges} ranges are documented");
}

#[test]
fn unknown_parameters_and_impossible_values_are_one_line_errors() {
    let refuse = |name: &str, value: serde_json::Value| {
        let message = build(name, &value, 0).err().expect("an error").to_string();
        assert!(!message.contains('\n'));
        message
    };
    for name in policies() {
        let error = crate::model::build(name, &json!({"no_such_thing": 1})).err();
        let message = error.expect("an error").to_string();
        assert!(message.contains(name) && message.contains("no_such_thing"), "{message}");
    }
    assert!(refuse("mru", json!(null)).contains("first-touch, interleave, lru"));
    assert!(refuse("lru", json!({"resident_bonus": -1})).contains("-1"));
    assert!(refuse("amp", json!({"window_periods": 0})).contains("expected 1 to 100000"));
    assert!(refuse("amp", json!({"random_margin": 1.5})).contains("1.5"));
    assert!(
        refuse("granularity", json!({"granularity": "5K"})).contains("'5K'; expected \"dynamic\"")
    );
    assert!(refuse("granularity", json!({"granularity": "0"})).contains("multiple of 4 KB"));
    assert!(refuse("granularity-64k", json!({"granularity": "4K"})).contains("unknown"));
    assert!(refuse("granularity-2m", json!({"scan_pages": 0})).contains("scan_pages is 0"));
    assert!(refuse("physical-4k", json!({"scans_per_period": 0})).contains("expected 1 to"));
    assert!(refuse("lists", json!({"active_scan_ratio": 1.01})).contains("1.01"));
}

#[test]
fn equally_hot_pages_stay_where_they_are() {
    for name in policies() {
        for accessed in [true, false] {
            let mut model = Model::new(name, 200, 100);
            let moved = moves(&mut model, 150, |_, _| accessed);
            assert_eq!(moved[100..], [0; 50], "{name}, accessed {accessed}");
        }
    }
}

#[test]
fn pages_that_are_all_accessed_in_every_period_are_distinguished_by_samples() {
    const PAGES: usize = 120;
    let hot = |page: usize| page % 3 == 2;
    // Of 20 samples the hot ones are in 11 to 17, the others in 2 to 8.
    let count = |period: usize, page: usize| {
        let chance = (page * 7 + period * 13 + page * period) % 7;
        (if hot(page) { 11 } else { 2 }) + chance as u8
    };
    for name in ["lfu", "amp", "memtis", "terrace"] {
        let mut model = Model::new(name, PAGES, 40);
        let mut promoted = 0;
        let mut hit_ratio = 0.0;
        for period in 0..60 {
            let decision = model.sampled_period(20, |page| count(period, page));
            if period >= 10 {
                promoted += decision.plan.pages(PageSize::Huge).0;
            }
            hit_ratio = decision.features.hit_ratio;
        }
        let fast = (0..PAGES).filter(|&page| hot(page) && model.fast.get(page)).count();
        assert!(fast >= 38, "{name}: {fast} of 40 hot pages in fast memory");
        assert!(promoted <= 40, "{name}: {promoted} moves of pages that go on as they did");
        // A share of the accesses, not of the pages.
        assert!((0.5..0.7).contains(&hit_ratio), "{name}: {hit_ratio}");
    }
    // Bits alone show nothing.
    let mut model = Model::new("lfu", PAGES, 40);
    assert_eq!(moves(&mut model, 60, |_, _| true), [0; 60]);
}

/// In ranges of base pages a sample is of one page: where a range is accessed here and there, few of
/// a period's samples find anything. Others are accessed everywhere, and found by each.
#[test]
fn ranges_that_samples_seldom_find_come_up_beside_ones_that_are_always_found() {
    const PAGES: usize = 100;
    // The first two are always found, and fast. Ten slow ones are found in one period of ten, the
    // rest in one of a hundred.
    let hot = |page: usize| page >= 40 && page.is_multiple_of(6);
    let count = |period: usize, page: usize| match page {
        0 | 1 => 20,
        _ if hot(page) => u8::from((period * 3 + page / 6).is_multiple_of(10)),
        _ => u8::from((period * 37 + page * 29).is_multiple_of(100)),
    };
    let promoted = ["lfu", "amp", "terrace"].map(|name| {
        let mut model = Model::new(name, PAGES, 30);
        let promoted: u64 = (0..300)
            .map(|period| model.sampled_period(20, |page| count(period, page)))
            .map(|decision| decision.plan.pages(PageSize::Huge).0)
            .sum();
        let fast = (0..PAGES).filter(|&page| hot(page) && model.fast.get(page)).count();
        assert_eq!(fast, 10, "{name}: of 10 ranges that are found often");
        promoted
    });
    // Which of the others is found more often is chance. What does not pay is not moved for it.
    let [lfu, _, terrace] = promoted;
    assert!(terrace * 2 <= lfu, "{promoted:?} moves");
}

#[test]
fn two_pages_accessed_in_turn_do_not_trade_one_place_for_ever() {
    // Those of the migration-granularity paper use one scan back and no further.
    let looks_back = |name: &&str| !name.starts_with("granularity") && *name != "physical-4k";
    for name in policies().filter(looks_back) {
        let mut model = Model::new(name, 2, 1);
        let moved = moves(&mut model, 300, |t, page| t % 2 == page);
        assert_eq!(moved[10..], [0; 290], "{name}");
    }
}

#[test]
fn a_fixed_set_of_hot_pages_settles_in_fast_memory() {
    // 60 hot pages, in slow memory at first; fast memory holds 100.
    for name in ["lru", "lfu", "lists", "amp", "granularity", "granularity-4k", "physical-4k"] {
        let mut model = Model::new(name, 300, 100);
        let hot = |page: usize| page % 5 == 4;
        let moved = moves(&mut model, 100, |_, page| hot(page));
        assert_eq!(moved[20..], [0; 80], "{name}");
        assert!((0..300).filter(|&p| hot(p)).all(|p| model.fast.get(p)), "{name}");
    }
}

/// Four sets of pages, each accessed for four periods in turn (section 6.6 of the paper: the
/// strided pattern that favours LRU).
fn strided(t: usize, page: usize) -> bool {
    page / 64 == t / 4 % 4
}

#[test]
fn lru_follows_a_working_set_that_rotates() {
    let mut model = Model::new("lru", 256, 128);
    for t in 0..64 {
        let decision = model.period(|page| strided(t, page));
        // A new set is promoted in its first period and hit from the second on.
        let expected = if t % 4 == 0 { 0.0 } else { 1.0 };
        if t > 8 {
            assert_eq!(decision.features.hit_ratio, expected, "period {t}");
        }
    }
}

#[test]
fn lfu_keeps_what_is_frequent_and_lru_what_is_recent() {
    // Pages 0..8: every other period for 60 periods. Pages 8..16: only in the four after them.
    let pattern = |t: usize, page: usize| match page {
        0..8 => t < 60 && t % 2 == 1,
        _ => t >= 60,
    };
    for (name, kept) in [("lru", 8..16), ("lfu", 0..8)] {
        let mut model = Model::new(name, 16, 8);
        moves(&mut model, 64, pattern);
        assert_eq!(model.fast.iter_ones().collect::<Vec<_>>(), kept.collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn free_room_is_filled_with_accessed_pages_only() {
    for name in ["lru", "lfu"] {
        let mut model = Model::new(name, 100, 0);
        model.budget = Budget::fast(50);
        moves(&mut model, 5, |_, page| page < 10);
        assert_eq!(model.fast.iter_ones().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn the_most_valuable_moves_come_first() {
    // Pages 0..4 in fast memory, idle; 4 was accessed long ago, 5 lately, 6 and 7 just now.
    for name in ["lru", "lfu"] {
        let mut model = Model::new(name, 8, 4);
        model.budget.moved_pages = 0;
        moves(&mut model, 8, |t, page| match page {
            4 => t == 0,
            5 => (5..7).contains(&t),
            6 | 7 => t >= 4,
            _ => false,
        });
        model.budget.moved_pages = 5;
        let plan = model.period(|page| page >= 6).plan;
        assert_eq!(
            crate::model::moved(&plan, PageSize::Huge),
            4,
            "two pairs and half a pair: {name}"
        );
        assert_eq!(model.fast.iter_ones().collect::<Vec<_>>(), [2, 3, 6, 7], "{name}");
    }
}

#[test]
fn random_fills_fast_memory_then_stays_and_refills_what_is_freed() {
    let mut model = Model::new("random", 100, 0);
    model.budget = Budget::fast(40);
    assert_eq!(moves(&mut model, 5, |t, page| page % 7 == t), [40, 0, 0, 0, 0]);
    let chosen: Vec<_> = model.fast.iter_ones().collect();
    assert_ne!(chosen, (0..40).collect::<Vec<_>>());
    // 10 pages of fast memory are freed: others take their room.
    for &page in &chosen[..10] {
        model.fast.set(page, false);
    }
    assert_eq!(moves(&mut model, 3, |_, _| true), [10, 0, 0]);
    assert!(chosen[10..].iter().all(|&page| model.fast.get(page)));
    model.budget = Budget::fast(15);
    assert_eq!(moves(&mut model, 3, |_, _| true), [25, 0, 0]);
}

#[test]
fn first_touch_demotes_the_latest_arrivals_over_budget() {
    let size = PageSize::Huge.bytes();
    let e = |page: u64, pages| Extent { space: SpaceId(0), start: page * size, pages };
    let layout = |v| Layout::new(PageSize::Huge, v).unwrap();
    // Pages 50..60 come first, then 0..10 below them, then 80..90.
    let all = vec![e(0, 10), e(50, 10), e(80, 10)];
    let mut model = Model::placed(
        "first-touch",
        layout(vec![e(50, 10)]),
        (0..10).map(|_| true).collect(),
        Budget::fast(30),
    );
    model.period(|_| true);
    model.layout = layout(all[..2].to_vec()).into();
    model.fast = (0..20).map(|_| true).collect();
    model.period(|_| true);
    model.layout = layout(all.clone()).into();
    model.fast = (0..30).map(|_| true).collect();
    assert_eq!(model.period(|page| page % 2 == 0).plan.pages(PageSize::Huge), (0, 0));
    model.budget = Budget { fast_pages: 13, moved_pages: 12 };
    let demoted = |model: &mut Model| {
        let before = model.fast.clone();
        model.period(|_| false);
        before.iter_ones().filter(|&p| !model.fast.get(p)).collect::<Vec<_>>()
    };
    // Index 0..10 came second, 10..20 first, 20..30 last.
    assert_eq!(demoted(&mut model), [8, 9, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]);
    assert_eq!(demoted(&mut model), [3, 4, 5, 6, 7]);
    assert!(demoted(&mut model).is_empty());
}

#[test]
fn interleave_alternates_in_proportion_and_leaves_alternating_pages_alone() {
    let mut model = Model::new("interleave", 300, 100);
    assert_eq!(model.policy.allocation(), Allocation::Interleave);
    let moved = moves(&mut model, 3, |t, page| t == page);
    assert!(moved[0] > 100 && moved[1..] == [0, 0], "{moved:?}");
    for first in (0..=270).step_by(30) {
        let fast = model.fast.count_range(first..first + 30);
        assert!((9..=11).contains(&fast), "{fast} of pages {first} to {}", first + 29);
    }
    // The group grows by a tenth with pages that alternate too: few move.
    let before = model.fast.clone();
    model.layout = Layout::contiguous(PageSize::Huge, 330).into();
    model.fast = (0..330).map(|p| if p < 300 { before.get(p) } else { p % 3 == 0 }).collect();
    model.budget = Budget::fast(110);
    assert!(moves(&mut model, 1, |_, _| false)[0] <= 2);
    // Alternating, but beginning a page late: nothing is misplaced.
    let mut late = Model::new("interleave", 300, 100);
    late.fast = (0..300).map(|page| page >= 4 && page % 3 == 1).collect();
    assert_eq!(moves(&mut late, 1, |_, _| false), [0]);
}

#[test]
fn metadata_is_within_16_bytes_a_page() {
    for name in policies() {
        let pages = 1 << 18;
        let mut model = Model::new(name, pages, pages as u64 / 2);
        model.observe(|page| page % 3 == 0);
        let bytes = model.policy.metadata_bytes() as f64 / pages as f64;
        assert!(bytes <= 16.0, "{name}: {bytes} bytes a page");
        assert!(bytes >= 0.125, "{name} keeps the placement before");
    }
}

#[test]
fn a_page_keeps_its_history_when_the_group_changes() {
    // Hot pages in fast memory stay there while pages below them come and go.
    for name in ["lru", "lfu", "lists", "amp"] {
        let size = PageSize::Huge.bytes();
        let layout = |low: u64| {
            let mut extents = vec![Extent { space: SpaceId(1), start: 1 << 40, pages: 100 }];
            if low > 0 {
                extents.insert(0, Extent { space: SpaceId(1), start: 4 * size, pages: low });
            }
            Layout::new(PageSize::Huge, extents).unwrap()
        };
        let mut model =
            Model::placed(name, layout(0), (0..100).map(|p| p < 30).collect(), Budget::fast(30));
        let hot = |page: usize| page % 5 == 1;
        moves(&mut model, 80, |_, page| hot(page));
        let settled = model.fast.clone();
        assert!((0..100).filter(|&p| hot(p)).all(|p| settled.get(p)), "{name}");
        for low in [7, 70, 0, 64] {
            model.layout = layout(low).into();
            let old = |page: usize| page.checked_sub(low as usize);
            model.fast = (0..100 + low as usize)
                .map(|page| old(page).is_some_and(|page| settled.get(page)))
                .collect();
            let moved = moves(&mut model, 1, |_, page| old(page).is_some_and(hot));
            // On the lists a new page is active; it takes the place of an inactive one.
            assert!(moved == [0] || name == "lists", "{name} with {low} pages below");
            let stayed = |page| !old(page).is_some_and(hot) || model.fast.get(page);
            assert!((0..100 + low as usize).all(stayed), "{name} with {low} pages below");
        }
    }
}
