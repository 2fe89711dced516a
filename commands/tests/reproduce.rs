//! `terrace reproduce` for a user: figures with claims, files, rejections, the same bytes.

mod common;

use common::Place;
use terrace_results::{FigureRow, read};

#[test]
fn the_list_names_figures_of_each_paper() {
    let place = Place::new();
    let printed = place.run("reproduce list").good();
    for name in ["nimble/fig8", "radiant/fig9", "granularity/fig8", "amp/fig10", "amp/table6"] {
        assert!(printed.out.contains(name), "{}", printed.out);
    }
    // A figure of step costs runs no program.
    let line = printed.out.lines().find(|l| l.contains("nimble/fig8")).unwrap();
    assert!(line.contains("< 1 s"), "{line}");
    let rows = place.run("reproduce list --format json").good().json();
    assert!(rows.as_array().unwrap().iter().all(|r| r["claims"].as_u64().unwrap() > 0));
    let of = |name: &str| {
        let row = rows.as_array().unwrap().iter().find(|r| r["figure"] == name);
        row.unwrap()["quick_processor_s"].as_f64()
    };
    assert!(of("nimble/fig8").is_some_and(|s| s < 1.0), "{rows}");
}

#[test]
fn a_figure_says_what_the_paper_says_and_what_comes_out_here() {
    let place = Place::new();
    let printed =
        place.run("reproduce nimble/table2 --out results --report report --format json").good();
    let shown = printed.json();
    let claims = shown[0]["claims"].as_array().unwrap();
    // The table of step costs was fitted to the paper, so that reading it back is no agreement.
    let fitted = |c: &&serde_json::Value| c["paper"] == "15x" && c["headline"].is_null();
    let fitted = claims.iter().find(fitted).unwrap();
    assert_eq!(fitted["verdict"], "calibrated", "{claims:?}");
    assert_eq!(fitted["agrees"], false);
    // The picture, the values and the claims are in files too.
    let rows: Vec<FigureRow> = read(&place.path("results/nimble/table2")).unwrap();
    let of = |name: &str| rows.iter().find(|r| r.row == name).unwrap().value;
    assert!(of("optimized exchange") / of("base pages") > 12.0);
    let file = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    assert!(file("results/nimble/table2/figure.svg").starts_with("<svg xmlns="));
    assert_eq!(file("results/nimble/table2/figure.csv").lines().count(), rows.len() + 1);
    assert!(file("report/README.md").contains("claims agree"));
    assert!(file("report/nimble-table2.md").contains("| 15x |"));
}

/// What was measured on the kernel's own code is compared, and not read back from a fit.
#[test]
fn what_was_measured_is_among_the_headlines_and_is_not_calibrated() {
    let place = Place::new();
    let shown = place.run("reproduce nimble/kernel --out results --format json").good().json();
    let claims = shown[0]["claims"].as_array().unwrap();
    for name in ["N.a", "N.b", "N.c", "N.d", "N.e"] {
        let claim = claims.iter().find(|c| c["headline"] == name).expect(name);
        assert!(claim["verdict"] == "size" || claim["verdict"] == "direction", "{claim}");
    }
}

#[test]
fn runs_at_the_same_time_change_no_byte() {
    let place = Place::new();
    for jobs in [1, 3] {
        place.run(&format!("reproduce amp/table6 --out r{jobs} --jobs {jobs}")).good();
    }
    for name in ["figure.parquet", "figure.csv", "figure.svg", "claims.json"] {
        let bytes =
            |jobs| std::fs::read(place.path(&format!("r{jobs}/amp/table6/{name}"))).unwrap();
        assert!(!bytes(1).is_empty() && bytes(1) == bytes(3), "{name}");
    }
}

/// A figure of two rows, with a claim that does not hold.
const OWN: &str = r#"
title = "own"
description = "own"
scale = "none"
kind = "steps"
row = "pages"
column = "machine"
measures = ["gb_per_s"]
rows = [{ name = "1", set = { pages = 1 } }, { name = "8", set = { pages = 8 } }]
columns = [{ name = "m" }]
picture = { kind = "lines", y = "GB/s" }
[[claims]]
says = "one page is faster than eight"
paper = "no paper says so"
here = "value('1', 'm')"
holds = "value('1', 'm') > value('8', 'm')"
"#;

#[test]
fn a_figure_of_ones_own_is_run_and_a_claim_that_does_not_hold_is_reported() {
    let place = Place::new();
    place.write("own.toml", OWN);
    let printed = place.run("reproduce --file own.toml --out results").good();
    assert!(
        printed.out.contains("DIFFERS") && printed.out.contains("0 of 1 claims agree"),
        "{}",
        printed.out
    );
}

/// A figure whose first number is the seed, and whose second is not of chance.
const SEED: &str = r#"
title = "seed"
description = "own"
scale = "none"
kind = "runs"
row = "workload"
column = "policy"
measures = ["hit_ratio", "seed"]
rows = [{ name = "zipf" }]
columns = [{ name = "random" }]
picture = { kind = "bars", y = "hit ratio" }
[experiment]
seed = 4
period_ms = 100
periods = 4
[[experiment.groups]]
name = "g"
workload = { kind = "zipf", footprint_mib = 16 }
fast_ratio = 0.4
policy = "random"
[[claims]]
says = "seed"
paper = "4"
here = "value('zipf', 'random', 'seed')"
effect = "value('zipf', 'random', 'seed')"
expected = 4
[[claims]]
says = "rows"
paper = "1"
here = "rows"
holds = "rows == 1"
"#;

#[test]
fn what_depends_on_the_seed_has_its_spread_and_the_rest_is_run_once() {
    let place = Place::new();
    place.write("seed.toml", SEED);
    place.write("own.toml", OWN);
    let run = "reproduce --file seed.toml --out results";
    let alone = place.run(&format!("{run} --format json")).good().json();
    let seeds = place.run(&format!("{run} --seeds 3 --format json --report report")).good().json();
    let [alone, seeds] = [&alone[0]["claims"][0], &seeds[0]["claims"][0]];
    assert!(alone["seeds"].is_null(), "{alone}");
    // The number and the verdict are those of the figure's own seed.
    assert_eq!((&seeds["here"], &seeds["verdict"]), (&alone["here"], &alone["verdict"]));
    let here: Vec<&str> =
        seeds["seeds"].as_array().unwrap().iter().map(|s| s["here"].as_str().unwrap()).collect();
    assert_eq!(here, ["4", "5", "6"]);
    // So are they where nothing is run again, and in words.
    let again = place.run("reproduce --file seed.toml --out results --from-results --seeds 3");
    let again = again.good();
    assert!(
        again.out.contains("; 3 seeds)") && again.out.contains("(the same; 3 seeds)"),
        "{again}"
    );
    let page = std::fs::read_to_string(place.path("report/own-seed.md")).unwrap();
    let row = page.lines().find(|l| l.starts_with("| seed |")).unwrap();
    assert!(
        page.contains("| with 3 seeds |") && row.ends_with("| 4 | 4 | size | 4 to 6 |"),
        "{page}"
    );
    assert!(page.contains("| rows | 1 | 1 | direction | the same |"), "{page}");
    // What moving costs has no seed.
    let steps = place.run("reproduce --file own.toml --out results --seeds 3").good();
    assert!(!steps.out.contains("seeds"), "{steps}");
    assert!(!place.path("results/own/own/seed-2").exists());
}

#[test]
fn what_cannot_be_is_refused_in_one_line() {
    let place = Place::new();
    place.write("bad.toml", "title = \"x\"\nkindly = 1\n");
    place.write("three.toml", format!("{OWN}of_rows = 3\n"));
    let drawn = OWN.replace("picture = {", "picture = { columns = [\"none\"],");
    place.write("drawn.toml", drawn);
    for (arguments, words) in [
        ("reproduce nimble/fig99", "figure 'nimble/fig99': expected one of"),
        ("reproduce --file bad.toml", "bad"),
        ("reproduce --file three.toml", "of_rows is 3; expected at most 2"),
        ("reproduce --file drawn.toml", "picture: 'none': no column of this name"),
        ("reproduce --file missing.toml", "expected a figure's file"),
        ("reproduce amp --from-results --out absent", "absent has no results of these figures"),
    ] {
        place.run(arguments).refused(&[words]);
    }
    assert_eq!(place.run("reproduce").code, Some(2));
    assert_eq!(place.run("reproduce --all --quick --full").code, Some(2));
}

#[test]
fn a_folder_that_another_command_works_in_is_refused() {
    let place = Place::new();
    std::fs::create_dir_all(place.path("results")).unwrap();
    let held = std::fs::File::create(place.path("results/.lock")).unwrap();
    held.lock().unwrap();
    let again = "reproduce nimble/table2 --out results";
    place.run(again).refused(&["another command", "--out"]);
    drop(held);
    place.run(again).good();
}
