//! What the granularity paper's rules make of random accesses, at a size that keeps how often a page is
//! touched between two looks at it.

use terrace_experiments::run::Quiet;
use terrace_experiments::verdict::VerdictKind;
use terrace_reproductions::{Figure, RunCache, Size, library, reproduce};
use toml::{Table, Value};

fn figure(name: &str) -> Figure {
    library::find(&[name.to_owned()]).unwrap().remove(0)
}

#[test]
fn a_program_that_reaches_memory_at_random_stays_at_4_kb_at_the_papers_rate_of_looks() {
    let mut figure = figure("granularity/lambda");
    figure.measures =
        ["duration_ms", "lambda", "operations_granularity-4k_share"].map(str::to_owned).to_vec();
    figure.claims.clear();
    let rows = ["gups, 0.1 ms", "gups, 0.4 ms"];
    figure.rows.retain(|row| rows.contains(&row.name.as_str()));
    figure.quick.rows = None;
    let smaller: Table =
        toml::from_str("fast = '5M'\nworkload = { kind = 'program', footprint_mib = 24 }").unwrap();
    let Some(Value::Array(groups)) = figure.experiment.get_mut("groups") else {
        panic!("the figure has no groups")
    };
    for group in groups.iter_mut().filter_map(Value::as_table_mut) {
        group.extend(smaller.clone());
    }
    let place = tempfile::tempdir().unwrap();
    let cache = RunCache::open(place.path()).unwrap();
    let data = reproduce(&figure, Size::Quick, &cache, 2, &mut Quiet).unwrap().data;
    let of = |row: &str, column: &str, measure: &str| data.get(row, column, measure).unwrap();
    let lambda = of("gups, 0.1 ms", "dynamic", "lambda");
    assert!((0.3..0.79).contains(&lambda), "{lambda} touches between two looks");
    let share = |row| of(row, "dynamic", "operations_granularity-4k_share");
    let near = of("gups, 0.1 ms", "dynamic", "duration_ms")
        / of("gups, 0.1 ms", "physical", "duration_ms");
    let far = of("gups, 0.4 ms", "dynamic", "duration_ms")
        / of("gups, 0.4 ms", "physical", "duration_ms");
    let all = [share("gups, 0.1 ms"), share("gups, 0.4 ms"), near, far];
    assert!(share("gups, 0.1 ms") > 0.8 && near < 1.05, "shares of 4 KB, then times: {all:?}");
    assert!(share("gups, 0.4 ms") < 0.6 && far > 1.1, "shares of 4 KB, then times: {all:?}");
}

#[test]
fn shootdowns_of_contiguous_memory_agree_with_the_paper_in_size() {
    let place = tempfile::tempdir().unwrap();
    let cache = RunCache::open(place.path()).unwrap();
    let figure = figure("granularity/fig1");
    let outcome = reproduce(&figure, Size::Quick, &cache, 1, &mut Quiet).unwrap();
    let of = |name: &str| outcome.verdicts.iter().find(|v| v.headline.as_deref() == Some(name));
    assert_eq!(of("G.g").map(|v| v.kind), Some(VerdictKind::Size));
}
