//! Properties of every program of the registry.

use super::fault::Faulty;
use super::sink::{Counter, Hasher};
use super::*;
use serde_json::{Value, json};

/// A program at the size of a test.
struct Case {
    name: &'static str,
    /// Options that keep it short.
    options: Value,
    /// Arrays of which a damaged store must be detected: in the main phase, or in the phase before
    /// a colon. After a question mark, one of several: data that an iteration corrects by itself,
    /// or that is never read again, need not be detected.
    guarded: &'static [&'static str],
}

const FOOTPRINT_BYTES: u64 = 4 << 20;

fn params(case: &Case) -> Params {
    Params { options: case.options.clone(), ..Params::new(FOOTPRINT_BYTES, 42) }
}

fn native_verifies_itself(case: &Case) {
    let result = run_native(case.name, &params(case)).unwrap();
    assert!(result.verified, "{:#?}", result.checks);
    assert!(result.operations > 0);
    let ratio = result.footprint_bytes as f64 / FOOTPRINT_BYTES as f64;
    assert!((0.9..=1.1).contains(&ratio), "footprint is {ratio} of what was asked");
    let again = run_native(case.name, &Params { seed: 43, ..params(case) }).unwrap();
    assert!(again.verified, "{:#?}", again.checks);
    assert_ne!(again.checksum, result.checksum, "another seed, other data");
}

fn traced_computes_the_same_and_reports_it(case: &Case) {
    let native = run_native(case.name, &params(case)).unwrap();
    let mut counter = Counter::default();
    let traced = trace(case.name, &params(case), &mut counter).unwrap().unwrap();
    assert_eq!(traced.checksum, native.checksum);
    assert_eq!(traced.checks, native.checks);
    assert_eq!(counter.region_bytes, traced.footprint_bytes);
    assert!(counter.loads > 0 && counter.stores > 0 && counter.marks >= 4, "{counter:?}");
    assert!(counter.instructions > counter.loads + counter.stores);
}

fn traces_are_deterministic(case: &Case) {
    for threads in if threaded(case) { 1..=3 } else { 1..=1 } {
        let hash = || {
            let mut hasher = Hasher::stop_after(3_000_000);
            trace(case.name, &Params { threads, ..params(case) }, &mut hasher).unwrap();
            hasher.hash()
        };
        assert_eq!(hash(), hash(), "{threads} threads");
    }
}

fn threads_do_not_change_the_result(case: &Case) {
    if !threaded(case) {
        let refused = run_native(case.name, &Params { threads: 2, ..params(case) });
        assert!(refused.unwrap_err().to_string().contains("expected 1 to 1"));
        return;
    }
    let one = run_native(case.name, &params(case)).unwrap();
    let three = Params { threads: 3, ..params(case) };
    let native = run_native(case.name, &three).unwrap();
    assert!(native.verified, "{:#?}", native.checks);
    assert_eq!(native.checksum, one.checksum);
    let traced = trace(case.name, &three, &mut Counter::default()).unwrap().unwrap();
    assert_eq!(traced.checksum, one.checksum);
}

/// The negative control: a fault at each of a few places must not pass as verified.
fn faults_are_seen(case: &Case) {
    let kind = kind(case.name).unwrap();
    for guarded in case.guarded {
        let every = !guarded.starts_with('?');
        let guarded = guarded.trim_start_matches('?');
        let (phase, array) = guarded.split_once(':').unwrap_or((memory::phase::MAIN, guarded));
        let mut counting = Faulty::new(phase, array, u64::MAX);
        (kind.run.faulty)(&mut counting, &params(case)).unwrap();
        let stores = counting.stores();
        assert!(stores > 0, "no store to '{array}' in {phase}");
        let places: Vec<u64> = match every {
            true => vec![stores - 1, stores - 1 - stores / 64],
            false => (0..12).map(|k| stores * (2 * k + 1) / 24).collect(),
        };
        let mut seen = 0;
        for &damaged in &places {
            // A damaged index may also end the program, which counts as detected.
            let run = catch_unwind(AssertUnwindSafe(|| {
                (kind.run.faulty)(&mut Faulty::new(phase, array, damaged), &params(case)).unwrap()
            }));
            let passed = run.as_ref().is_ok_and(|o| o.checks.iter().all(|c| c.passed));
            assert!(!(passed && every), "store {damaged} of {stores} to '{array}': {run:#?}");
            seen += u32::from(!passed);
        }
        assert!(seen > 0, "stores {places:?} of {stores} to '{array}'");
    }
}

fn threaded(case: &Case) -> bool {
    kind(case.name).unwrap().threads
}

macro_rules! programs {
    ($($name:ident: $options:expr, $guarded:expr;)*) => {
        $(mod $name {
            use super::*;

            fn case() -> Case {
                let json = $options;
                Case { name: stringify!($name), options: json, guarded: &$guarded }
            }

            #[test]
            fn native_verifies_itself() {
                super::native_verifies_itself(&case());
            }

            #[test]
            fn traced_computes_the_same_and_reports_it() {
                super::traced_computes_the_same_and_reports_it(&case());
            }

            #[test]
            fn traces_are_deterministic() {
                super::traces_are_deterministic(&case());
            }

            #[test]
            fn threads_do_not_change_the_result() {
                super::threads_do_not_change_the_result(&case());
            }

            #[test]
            fn faults_are_seen() {
                super::faults_are_seen(&case());
            }
        })*

        #[test]
        fn every_program_is_tested() {
            let tested = [$(stringify!($name)),*];
            for kind in REGISTRY {
                assert!(tested.contains(&kind.name), "{}", kind.name);
            }
            assert_eq!(tested.len(), REGISTRY.len());
        }
    };
}

programs! {
    bfs: json!({"searches": 2}), ["parents", "queue", "levels"];
    cg: json!({"iterations": 2}), ["x", "?r", "q", "b", "init:values", "init:columns"];
    ft: json!({"iterations": 2}), ["waves", "field"];
    is: json!({"iterations": 2}), ["keys", "bucketed", "ranks"];
    lbm: json!({"iterations": 5}), ["even", "odd", "init:odd"];
    mg: json!({"iterations": 2}), ["residual"];
    minife: json!({}), ["x", "?r", "?values", "b", "?init:columns"];
    als: json!({"iterations": 2, "ratings_per_user": 50}), ["factors"];
    bwaves: json!({"iterations": 2, "sweeps": 10}), ["state", "x", "?r"];
    bt: json!({"iterations": 3}), ["u", "?rhs"];
    dc: json!({"views": 3}), ["nodes", "init:tuples"];
    cactus: json!({"iterations": 3}), ["field 0", "field 23", "?speed"];
    deepsjeng: json!({"depth": 7}), ["?table"];
    canneal: json!({}), ["elements", "init:locations", "init:columns"];
    freqmine: json!({}), ["?stack", "?init:tree"];
    lu: json!({"iterations": 4}), ["solution"];
    lulesh: json!({"iterations": 5}), ["energy", "?velocity x", "volume"];
    mcf: json!({"pivots_per_node": 1}), ["nodes", "arcs"];
    ua: json!({"iterations": 11}), ["?state", "?tree", "?leaves"];
    btree: json!({}), ["init:nodes"];
    hashjoin: json!({}), ["buckets", "nodes", "init:inner", "init:outer"];
    kv: json!({}), ["?items", "?init:items", "init:buckets"];
    pagerank: json!({}), ["ranks", "shares", "init:columns"];
    xsbench: json!({}), ["init:grid", "init:energies", "init:index"];
    gups: json!({"updates_per_word": 1}), ["table"];
    stream: json!({"iterations": 2}), ["a", "b", "c"];
}

#[test]
fn bad_parameters_are_refused() {
    let refused = |name: &str, change: fn(&mut Params)| {
        let mut params = Params::new(FOOTPRINT_BYTES, 1);
        change(&mut params);
        run_native(name, &params).unwrap_err().to_string()
    };
    let none = |_: &mut Params| {};
    assert!(refused("nosuch", none).contains("expected one of"), "{}", refused("nosuch", none));
    for message in [
        refused("gups", |p| p.threads = 0),
        refused("gups", |p| p.threads = MOST_THREADS + 1),
        refused("gups", |p| p.footprint_bytes = 4096),
        refused("gups", |p| p.footprint_bytes = u64::MAX),
        refused("gups", |p| p.options = json!({"updates": 1})),
        refused("gups", |p| p.options = json!({"updates_per_word": -1})),
        refused("gups", |p| p.options = json!({"updates_per_word": "many"})),
        refused("gups", |p| p.options = json!([1])),
    ] {
        assert!(message.starts_with("gups: ") && message.contains("expected"), "{message}");
    }
}

#[test]
fn a_sink_can_end_the_program() {
    let mut hasher = Hasher::stop_after(1000);
    let ended = trace("gups", &Params::new(FOOTPRINT_BYTES, 1), &mut hasher).unwrap();
    assert_eq!(ended, None);
}
