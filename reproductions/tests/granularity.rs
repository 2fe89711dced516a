//! What the granularity paper's rules make of random accesses, at a size that keeps how often a page is
//! touched between two looks at it.

use terrace_experiments::run::Quiet;
use terrace_experiments::verdict::VerdictKind;
use terrace_reproductions::{Figure, RunCache, Size, library, reproduce};
use toml::{Table, Value};

fn figure(name: &str) -> Figure {
    library::find(&[name.to_owned()]).unwrap().remove(0)
}

/// Gives the groups of a figure these keys.
fn shrink(figure: &mut Figure, smaller: &str) {
    let smaller: Table = toml::from_str(smaller).unwrap();
    let Some(Value::Array(groups)) = figure.experiment.get_mut("groups") else {
        panic!("the figure has no groups")
    };
    for group in groups.iter_mut().filter_map(Value::as_table_mut) {
        group.extend(smaller.clone());
    }
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
    shrink(&mut figure, "fast = '5M'\nworkload = { kind = 'program', footprint_mib = 24 }");
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

/// In the paper the baseline has as many shootdowns as the static 4 KB (section 6). At three quarters of
/// the figure's size; at half of it the control differs little.
#[test]
fn a_program_that_streams_needs_moves_that_go_on_for_as_many_shootdowns_as_in_the_paper() {
    let mut figure = figure("granularity/threads");
    figure.measures = ["shootdowns", "reference_hit_ratio"].map(str::to_owned).to_vec();
    figure.claims.clear();
    for row in &mut figure.rows {
        let stream = "[[groups]]\nworkload = { name = 'stream', footprint_mib = 52, options = { iterations = 1 } }";
        row.set.extend(toml::from_str::<Table>(stream).unwrap());
    }
    figure.quick.rows = None;
    figure.columns.retain(|column| ["physical", "4 KB"].contains(&column.name.as_str()));
    shrink(&mut figure, "fast = '19M'");
    let place = tempfile::tempdir().unwrap();
    let cache = RunCache::open(place.path()).unwrap();
    let data = reproduce(&figure, Size::Quick, &cache, 2, &mut Quiet).unwrap().data;
    let of = |row: &str, column: &str| data.get(row, column, "shootdowns").unwrap();
    let ratio = |row: &str| of(row, "physical") / of(row, "4 KB");
    let (goes_on, dropped) = (ratio("stream 1:16"), ratio("stream 1:16, dropped"));
    assert!((0.8..1.25).contains(&goes_on), "{goes_on}");
    assert!(dropped < 0.8, "the control: {dropped}");
    let hits = data.get("stream 1:16", "4 KB", "reference_hit_ratio").unwrap();
    assert!((0.1..1.0).contains(&hits), "of the whole run: {hits}");
}

/// What is accessed now and then is in every scan. Where the next scan does not wait, the first such
/// pages of each are all that moves, and what is used most does not come up. At half of the figure's
/// size, as at a quarter a scan finds few enough pages for most to move, and with exchanges: else, while
/// the program fills its memory, a new page takes the place of one that goes down before the other of
/// its pair comes up, and the run is too short for more.
#[test]
fn a_program_at_random_needs_scans_that_wait_for_a_hit_ratio_as_of_the_baseline() {
    let hits = |leftover: &str| {
        let mut figure = figure("granularity/interval");
        figure.measures = vec!["reference_hit_ratio".to_owned()];
        figure.claims.clear();
        figure.rows.retain(|row| row.name == "xsbench");
        let smaller = format!(
            "policies = {{ physical-4k = {{ leftover = '{leftover}' }}, granularity-4k = {{ leftover = \
             '{leftover}' }} }}\nmachine.os.migration = {{ exchange = true, mapped = 'together' \
             }}\n[[groups]]\nfast = '9216K'\nworkload = {{ name = 'xsbench', footprint_mib = 132, \
             threads = 4, options = {{ nuclides = 355, lookups = 16000 }} }}"
        );
        figure.rows[0].set.extend(toml::from_str::<Table>(&smaller).unwrap());
        figure.quick.rows = None;
        figure.columns.retain(|column| ["physical", "4 KB"].contains(&column.name.as_str()));
        let place = tempfile::tempdir().unwrap();
        let cache = RunCache::open(place.path()).unwrap();
        let data = reproduce(&figure, Size::Quick, &cache, 2, &mut Quiet).unwrap().data;
        ["physical", "4 KB"]
            .map(|column| data.get("xsbench", column, "reference_hit_ratio").unwrap())
    };
    let [waits, goes_on] = ["finish", "continue"].map(hits);
    assert!(waits[0] > 0.5 && waits[1] > 0.8 * waits[0], "{waits:?}");
    // The same bound, which it misses: 0.40 of the baseline's, where scans that wait have 1.07.
    assert!(goes_on[0] > 0.5 && goes_on[1] < 0.8 * goes_on[0], "the control: {goes_on:?}");
}

#[test]
fn a_command_that_was_interrupted_goes_on_after_the_runs_that_had_ended() {
    let mut figure = figure("granularity/interval");
    figure.measures = vec!["duration_ms".to_owned()];
    figure.claims.clear();
    figure.rows.retain(|row| row.name == "ua");
    let smaller = "[[groups]]\nfast = '2M'\nworkload = { name = 'ua', footprint_mib = 4, threads = 1, \
                   options = { iterations = 1 } }";
    figure.rows[0].set.extend(toml::from_str::<Table>(smaller).unwrap());
    figure.quick.rows = None;
    let mut both = figure.clone();
    figure.columns.retain(|column| column.name == "physical");
    both.columns.retain(|column| ["physical", "4 KB"].contains(&column.name.as_str()));
    let place = tempfile::tempdir().unwrap();
    let run = |figure: &Figure| {
        let cache = RunCache::open(place.path()).unwrap();
        reproduce(figure, Size::Quick, &cache, 1, &mut Quiet).unwrap().data
    };
    let path = place.path().join("granularity/interval/runs/ua/physical/runs.parquet");
    let written = || std::fs::metadata(&path).unwrap().modified().unwrap();
    // The first command got as far as one of two.
    run(&figure);
    let before = written();
    let data = run(&both);
    assert_eq!(written(), before);
    assert!(data.get("ua", "4 KB", "duration_ms").unwrap() > 0.0);
    // Another experiment is run.
    shrink(&mut both, "moved_pages_per_period = 1");
    run(&both);
    assert_ne!(written(), before);
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
