//! The behaviour of the generators for a user: their parameters, their timetable, their
//! determinism.

use std::sync::Arc;

use serde_json::json;
use terrace_core::bits::PageBits;
use terrace_recordings::source::PeriodAccesses;

use super::*;

const SECOND: Timing = Timing { page_size: PageSize::Huge, period_ms: 1000, seed: 1 };

/// Parameters with which a generator can be built: `mix` has no defaults.
fn minimal(kind: &GeneratorKind) -> Value {
    match kind.name {
        "mix" => json!({"parts": [{"generator": "scan"}]}),
        _ => Value::Null,
    }
}

fn periods(name: &str, parameters: &Value, timing: Timing, count: usize) -> Vec<PeriodAccesses> {
    let mut source = build(name, parameters, timing).unwrap();
    std::iter::from_fn(|| source.next_period().unwrap()).take(count).collect()
}

fn error(name: &str, parameters: Value) -> String {
    let e = build(name, &parameters, SECOND).err().expect("an error").to_string();
    assert!(!e.contains('\n'));
    e
}

#[test]
fn every_documented_parameter_exists_and_no_other() {
    for kind in REGISTRY {
        let mut parameters = minimal(kind);
        if parameters.is_null() {
            parameters = json!({});
        }
        assert!((kind.build)(&parameters, SECOND).is_ok());
        parameters["no_such"] = json!(1);
        let e = error(kind.name, parameters);
        let common = if kind.name == "mix" { &[] } else { COMMON_PARAMETERS };
        for parameter in kind.parameters.iter().chain(common) {
            assert!(e.contains(parameter.name), "{e} lacks {}", parameter.name);
        }
        let known = e.matches('`').count() / 2 - 1;
        assert_eq!(known, kind.parameters.len(), "{e}");
    }
}

#[test]
fn impossible_values_are_refused_in_one_line() {
    let message = "generator 'lru-favor': ";
    assert_eq!(
        error("lru", Value::Null),
        format!(
            "no generator is named 'lru'; expected one of {}; did you mean 'lru-favor'?",
            REGISTRY.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
        )
    );
    assert_eq!(
        error("lru-favor", json!({"sets": 0})),
        format!("{message}sets is 0, expected at least 1")
    );
    assert_eq!(
        error("lru-favor", json!({"footprint_mib": 6, "sets": 4})),
        format!("{message}sets is 4, expected at most the 3 pages")
    );
    assert_eq!(
        error("lru-favor", json!({"footprint_mib": 7})),
        format!("{message}footprint_mib is 7, expected a multiple of 2 for pages of 2097152 bytes")
    );
    assert!(error("lru-favor", json!({"dwell_ms": -4})).contains("dwell_ms: got integer `-4`"));
    assert!(error("lru-favor", json!([1])).contains("expected an object"));
    assert!(error("scan", json!({"footprint_mib": 0})).contains("footprint_mib is 0"));
    assert!(error("scan", json!({"footprint_mib": u64::MAX})).contains("expected 1 to"));
    assert!(error("scan", json!({"sweep_ms": 0})).contains("sweep_ms is 0"));
    assert!(error("lfu-favor", json!({"footprint_mib": 32})).contains("subsets is 16"));
    assert!(error("lfu-favor", json!({"subset_ms": u64::MAX})).contains("subset_ms"));
    assert!(error("zipf", json!({"exponent": -1.0})).contains("exponent is -1"));
    assert!(error("hotcold", json!({"hot_ratio": 1.5})).contains("hot_ratio is 1.5"));
    assert!(error("mix", Value::Null).contains("missing field `parts`"));
    assert!(error("mix", json!({"parts": []})).contains("parts is empty"));
    let parts = json!({"parts": [{"generator": "scan"}, {"generator": "uniform"}]});
    assert!(error("mix", parts).contains("part 1 ('scan') has no duration_ms"));
    let parts = json!({"parts": [{"generator": "mix", "parameters": {"parts": []}}]});
    assert!(error("mix", parts).contains("put its parts in its place"));
    let zero = build("scan", &Value::Null, Timing { period_ms: 0, ..SECOND }).err().unwrap();
    assert!(zero.to_string().contains("period_ms is 0"));
}

#[test]
fn the_same_seed_gives_the_same_periods() {
    for kind in REGISTRY {
        let run = |seed| {
            let timing = Timing { seed, ..SECOND };
            let periods = periods(kind.name, &minimal(kind), timing, 20);
            periods.into_iter().map(|p| p.accessed).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1), "{}", kind.name);
        let random = ["random-favor", "zipf", "hotcold", "uniform"].contains(&kind.name);
        assert_eq!(run(1) != run(2), random, "{}", kind.name);
    }
}

#[test]
fn the_start_touches_all_memory_in_order() {
    for kind in REGISTRY.iter().filter(|k| k.name != "mix") {
        let parameters = json!({"footprint_mib": 200, "startup_ms": 2500});
        let periods = periods(kind.name, &parameters, SECOND, 5);
        let pages: Vec<_> = periods.iter().map(|p| p.layout.pages()).collect();
        assert_eq!(pages, [40, 80, 100, 100, 100]);
        let first_two: Vec<Vec<_>> =
            periods[..2].iter().map(|p| p.accessed.iter_ones().collect()).collect();
        assert_eq!(first_two, [(0..40).collect::<Vec<_>>(), (40..80).collect()]);
        assert_eq!(periods[2].accessed.count_range(80..100), 20, "and goes on with its own");
        assert!(Arc::ptr_eq(&periods[3].layout, &periods[4].layout));
        assert_eq!(footprint_bytes(kind.name, &parameters).unwrap(), 200 << 20);
    }
    let periods = periods("scan", &json!({"startup_ms": 0}), SECOND, 1);
    assert_eq!((periods[0].layout.pages(), periods[0].accessed.count()), (512, 52));
}

#[test]
fn a_program_ends_after_its_duration() {
    let count =
        |duration_ms| periods("scan", &json!({"duration_ms": duration_ms}), SECOND, 100).len();
    assert_eq!([count(0), count(1), count(1000), count(1001), count(60_000)], [0, 1, 1, 2, 60]);
}

#[test]
fn a_timetable_does_not_depend_on_the_period() {
    for (name, own) in [
        ("lru-favor", json!({"dwell_ms": 1300, "sweep_ms": 900, "stride_pages": 7})),
        ("lfu-favor", json!({"hot_sweep_ms": 2100, "subset_ms": 700})),
        ("scan", json!({"sweep_ms": 3333, "stride_pages": 3})),
    ] {
        let mut parameters = own;
        parameters["startup_ms"] = json!(0);
        let long = periods(name, &parameters, Timing { period_ms: 1000, ..SECOND }, 20);
        let short = periods(name, &parameters, Timing { period_ms: 250, ..SECOND }, 80);
        for (long, short) in long.iter().zip(short.chunks(4)) {
            let together: PageBits = (0..long.accessed.len())
                .map(|page| short.iter().any(|p| p.accessed.get(page)))
                .collect();
            assert_eq!(together, long.accessed, "{name}");
        }
    }
}

/// Accessed pages of each of `parts` equal parts of the memory, over its size, by period.
fn shares(name: &str, period_ms: u64, parts: usize, count: usize) -> Vec<Vec<f64>> {
    let timing = Timing { period_ms, ..SECOND };
    let parameters = json!({"startup_ms": 0, "footprint_mib": 1920});
    periods(name, &parameters, timing, count)
        .iter()
        .map(|p| {
            let size = p.accessed.len() / parts;
            let share = |i| p.accessed.count_range(i * size..(i + 1) * size) as f64 / size as f64;
            (0..parts).map(share).collect()
        })
        .collect()
}

#[test]
fn lru_favor_dwells_four_periods_on_each_of_four_sets() {
    for period_ms in [1000, 5000] {
        for (period, shares) in shares("lru-favor", period_ms, 4, 40).iter().enumerate() {
            let mut expected = [0.0; 4];
            expected[period / 4 % 4] = 1.0;
            assert_eq!(shares[..], expected, "period {period}");
        }
    }
    // The paper's four seconds with periods of two: two periods on each.
    let parameters = json!({"startup_ms": 0, "dwell_ms": 4000});
    let periods = periods("lru-favor", &parameters, Timing { period_ms: 2000, ..SECOND }, 8);
    for (period, accesses) in periods.iter().enumerate() {
        let set = period / 2 % 4;
        let expected: Vec<_> = (set * 128..(set + 1) * 128).collect();
        assert_eq!(accesses.accessed.iter_ones().collect::<Vec<_>>(), expected);
    }
}

#[test]
fn lfu_favor_touches_a_third_of_the_hot_set_and_a_sixteenth_of_the_cold_one() {
    for period_ms in [1000, 5000] {
        let shares = shares("lfu-favor", period_ms, 2, 48);
        for share in &shares {
            assert!((share[0] - 1.0 / 16.0).abs() < 0.01 && (share[1] - 1.0 / 3.0).abs() < 0.01);
        }
    }
}

#[test]
fn random_favor_touches_nearly_everything_in_every_period() {
    for period_ms in [100, 1000, 5000] {
        for share in shares("random-favor", period_ms, 1, 20) {
            assert!((0.95..1.0).contains(&share[0]), "{share:?}");
        }
    }
}

/// In how many of `count` periods each page was accessed, most first.
fn popularity(name: &str, parameters: &Value, count: usize) -> Vec<usize> {
    let periods = periods(name, parameters, SECOND, count);
    let mut touched = vec![0; periods[0].accessed.len()];
    for period in &periods {
        period.accessed.iter_ones().for_each(|page| touched[page] += 1);
    }
    touched.sort_by(|a, b| b.cmp(a));
    touched
}

#[test]
fn zipf_is_as_skewed_as_its_exponent() {
    let touched = |exponent| {
        let parameters = json!({"startup_ms": 0, "exponent": exponent, "interval_ms": 10_000});
        popularity("zipf", &parameters, 1000)
    };
    // A tenth of a touch per page and period on average: 95 of 1000 periods for a page of
    // average popularity.
    let (flat, zipf) = (touched(0.0), touched(0.99));
    assert!((60..140).contains(&flat[0]) && flat[511] > 60, "{} {}", flat[0], flat[511]);
    assert!(zipf[0] > 990 && zipf[20] < 400 && zipf[511] < 40, "{zipf:?}");
}

#[test]
fn hotcold_has_the_hot_pages_asked_for() {
    let parameters = json!({"startup_ms": 0, "hot_ratio": 0.25});
    let touched = popularity("hotcold", &parameters, 200);
    assert!(touched[127] > 150 && touched[128] < 30, "{} {}", touched[127], touched[128]);
}

#[test]
fn a_mix_runs_one_program_after_the_other() {
    let parts = json!([
        {"generator": "scan", "parameters": {"footprint_mib": 100, "duration_ms": 3000}},
        {"generator": "random-favor", "parameters": {"footprint_mib": 60, "duration_ms": 3000}},
    ]);
    let parameters = json!({"parts": parts});
    let separate = periods("mix", &parameters, SECOND, 100);
    let seen: Vec<_> =
        separate.iter().map(|p| (p.layout.extents()[0].space.0, p.layout.pages())).collect();
    assert_eq!(seen, [(0, 25), (0, 50), (0, 50), (1, 15), (1, 30), (1, 30)]);
    assert_eq!(footprint_bytes("mix", &parameters).unwrap(), 100 << 20);

    let together = periods("mix", &json!({"parts": parts, "same_memory": true}), SECOND, 100);
    let seen: Vec<_> =
        together.iter().map(|p| (p.layout.extents()[0].space.0, p.layout.pages())).collect();
    assert_eq!(seen, [(0, 25), (0, 50), (0, 50), (0, 30), (0, 30), (0, 30)]);
    let parts_of = |mix: &[PeriodAccesses], range: std::ops::Range<usize>| {
        mix[range].iter().map(|p| p.accessed.clone()).collect::<Vec<_>>()
    };
    let alone = periods("scan", &json!({"footprint_mib": 100, "duration_ms": 3000}), SECOND, 100);
    assert_eq!(parts_of(&separate, 0..3), parts_of(&alone, 0..3));
}

#[test]
fn the_six_mixes_are_all_ordered_pairs_of_the_three() {
    let mut mixes = MIXES.to_vec();
    mixes.sort();
    mixes.dedup();
    assert_eq!(mixes.len(), 6);
    assert!(mixes.iter().all(|[a, b]| a != b && kind(a).is_ok() && kind(b).is_ok()));
}
