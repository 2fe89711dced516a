//! AMP chooses as the paper says (adaptive-migration-policy paper, section 4.2, algorithm 1, and
//! section 6.6), on small patterns made by hand.

use crate::model::Model;
use serde_json::json;
use terrace_core::policy::build;
use terrace_core::scan::Budget;

const PAGES: usize = 256;
const FAST_PAGES: u64 = 128;

/// Four sets of equal size, each accessed for four periods in turn: favours LRU.
fn strided(t: usize, page: usize) -> bool {
    page * 4 / PAGES == t / 4 % 4
}

/// Half the pages hot, each left out in one period of eight; of the other half one sixteenth in
/// turn: favours LFU.
fn hot_and_cold(t: usize, page: usize) -> bool {
    let (hot, rank) = (page % 2 == 1, page / 2);
    if hot { !(rank + t).is_multiple_of(8) } else { rank * 16 / (PAGES / 2) == t % 16 }
}

/// What was applied in each period.
fn applied(model: &mut Model, periods: usize, f: impl Fn(usize, usize) -> bool) -> Vec<String> {
    (0..periods).map(|t| model.period(|page| f(t, page)).applied.to_owned()).collect()
}

fn share(applied: &[String], name: &str) -> f64 {
    applied.iter().filter(|a| *a == name).count() as f64 / applied.len() as f64
}

fn amp() -> Model {
    Model::new("amp", PAGES, FAST_PAGES)
}

#[test]
fn it_starts_with_random() {
    let applied = applied(&mut amp(), 10, strided);
    assert!(applied[..3].iter().all(|a| a == "random"));
    assert_ne!(applied[3], "random");
}

#[test]
fn strides_choose_lru() {
    let applied = applied(&mut amp(), 200, strided);
    assert!(share(&applied[20..], "lru") > 0.99, "{applied:?}");
}

#[test]
fn a_hot_and_a_cold_half_choose_lfu() {
    let applied = applied(&mut amp(), 200, hot_and_cold);
    assert!(share(&applied[20..], "lfu") > 0.99, "{applied:?}");
}

#[test]
fn accesses_all_over_choose_random() {
    let applied = applied(&mut amp(), 50, |_, _| true);
    assert!(share(&applied, "random") == 1.0);
}

#[test]
fn random_is_chosen_beyond_twenty_points_over_the_fast_memory_ratio() {
    // Fast memory is 50 %: 70 % of the pages is the last share that is not too much.
    for (accessed, expected) in [(179, "lfu"), (180, "random")] {
        let applied = applied(&mut amp(), 20, |_, page| page < accessed);
        assert_eq!(applied[19], expected, "{accessed} of {PAGES} pages");
    }
    // Fast memory for all pages: never.
    let mut model = amp();
    model.budget = Budget::fast(2 * PAGES as u64);
    assert_eq!(applied(&mut model, 20, |_, _| true)[19], "lfu");
}

#[test]
fn it_follows_a_change_of_phase() {
    let mut model = amp();
    let phase = |t: usize, page: usize| match t / 150 {
        0 => hot_and_cold(t, page),
        1 => true,
        _ => strided(t, page),
    };
    let applied = applied(&mut model, 600, phase);
    assert_eq!(applied[149], "lfu");
    assert_eq!(applied[150..300], vec!["random"; 150]);
    assert_eq!(applied[599], "lru");
}

#[test]
fn shadows_move_as_the_real_pages_would_and_move_none() {
    for pattern in [strided, hot_and_cold] {
        // Random is applied; both others are emulated.
        let mut amp = amp();
        amp.policy = build("amp", &json!({"warmup_periods": 1000}), 1).unwrap();
        let mut alone = ["lru", "lfu"].map(|name| Model::new(name, PAGES, FAST_PAGES));
        let mut hits = [Vec::new(), Vec::new()];
        for t in 0..200 {
            let decision = amp.period(|page| pattern(t, page));
            assert!(decision.plan.is_empty());
            for (model, hits) in alone.iter_mut().zip(&mut hits) {
                hits.push(model.period(|page| pattern(t, page)).features.hit_ratio_of_all);
            }
            let mean = |hits: &[f64]| {
                let window = &hits[hits.len().saturating_sub(36)..];
                window.iter().sum::<f64>() / window.len() as f64
            };
            assert_eq!(decision.features.lru_hit_average, Some(mean(&hits[0])), "period {t}");
            assert_eq!(decision.features.lfu_hit_average, Some(mean(&hits[1])), "period {t}");
        }
    }
}

#[test]
fn the_applied_policy_is_measured_where_pages_really_are() {
    // LFU is applied, but no move ever succeeds: its average shows it, and the shadow of LRU,
    // whose moves do succeed, overtakes it.
    let mut model = amp();
    let hot = |page: usize| page >= PAGES - 64;
    let mut averages = (0.0, 0.0);
    let mut chosen = Vec::new();
    for _ in 0..60 {
        let decision = model.observe(hot);
        let f = decision.features;
        averages = (f.lru_hit_average.unwrap(), f.lfu_hit_average.unwrap());
        chosen.push(decision.applied);
    }
    assert!(chosen.contains(&"lru") && chosen.contains(&"lfu"), "{chosen:?}");
    assert!(averages.0 < 0.25 && averages.1 < 0.25, "{averages:?}");
}
