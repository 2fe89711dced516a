//! Experiments on the simulated machine from the command line to the tables: the synthetic
//! workloads of the adaptive-migration-policy paper (section 6.6), recordings that decide alike
//! again, and the same bytes from the same seed.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{Place, Printed, SMALL, tree, with_results};
use serde_json::Value;
use terrace_core::plan::Decision;
use terrace_core::policies::REGISTRY;
use terrace_experiments::Experiment;
use terrace_recordings::period::{Header, PeriodReader, PeriodRecord, PeriodWriter, Record};
use terrace_results::{PeriodRow, RunRow, read};

/// The policies that AMP chooses among.
const AMONG: &str = "lru,lfu,random";

/// Runs an experiment of the tree; the results are in `out`.
fn example(command: &str, name: &str) -> (Place, Value) {
    let place = Place::new();
    let file = tree(&format!("examples/amp/{name}.toml"));
    let printed =
        place.run(&format!("{command} {} --out out --format json", file.display())).good();
    let json = printed.json();
    (place, json)
}

fn periods(place: &Place) -> Vec<PeriodRow> {
    read(&place.path("out")).unwrap()
}

fn runs(place: &Place) -> Vec<RunRow> {
    read(&place.path("out")).unwrap()
}

/// The share of a group's periods in which this policy was applied, without those in which the
/// program still fills its memory and AMP has no information.
fn share_of(periods: &[PeriodRow], group: &str, policy: &str) -> f64 {
    let warm: Vec<_> = periods.iter().filter(|p| p.group == group && p.period >= 5).collect();
    assert_eq!(warm.len(), 195, "periods of {group}");
    warm.iter().filter(|p| p.applied == policy).count() as f64 / warm.len() as f64
}

#[test]
fn the_synthetic_workloads_choose_lru_lfu_and_random() {
    for policy in ["lru", "lfu", "random"] {
        let name = format!("{policy}-favor");
        let (place, json) = example("run", &name);
        let share = share_of(&periods(&place), &name, policy);
        assert!(share >= 0.95, "{name}: {policy} in {share} of the periods");
        let run = &json["runs"][0];
        assert_eq!((&run["policy"], &run["applied"]["policy"]), (&"amp".into(), &policy.into()));
        assert!(run["applied"]["share"].as_f64().unwrap() >= 0.95, "{run:#}");
    }
}

#[test]
fn in_the_six_mixes_each_group_has_its_own_policy() {
    let mut alone: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    for mix in 1..=6 {
        let (place, json) = example("run", &format!("mix-{mix}"));
        let periods = periods(&place);
        let groups: Vec<_> =
            json["runs"].as_array().unwrap().iter().map(|r| r["group"].as_str().unwrap()).collect();
        assert_eq!(groups.len(), 2, "mix-{mix}");
        for group in groups {
            let (_, preferred) = group.split_once('-').unwrap();
            let share = share_of(&periods, group, preferred);
            assert!(share >= 0.95, "mix-{mix}: {preferred} in {share} of the periods of {group}");
            // Its state is its own: beside another neighbour the result is the same.
            let own = periods.iter().filter(|p| p.group == group);
            let own: Vec<_> = own.map(|p| (p.fast_accessed_pages, p.promoted_pages)).collect();
            let before = alone.entry(preferred.to_owned()).or_insert_with(|| own.clone());
            assert_eq!(*before, own, "mix-{mix}: {group}");
        }
    }
    assert_eq!(alone.len(), 3);
}

#[test]
fn each_workload_is_served_best_by_the_policy_it_is_named_for() {
    let everything = REGISTRY.iter().map(|k| k.name).collect::<Vec<_>>().join(",");
    for favoured in ["lru", "lfu", "random"] {
        let command = format!("compare --policies {everything}");
        let (place, json) = example(&command, &format!("{favoured}-favor"));
        let rows = runs(&place);
        assert_eq!(json["runs"].as_array().unwrap().len(), rows.len());
        assert_eq!(
            rows.iter().map(|r| r.policy.as_str()).collect::<Vec<_>>().join(","),
            everything
        );
        let of = |policy: &str| rows.iter().find(|r| r.policy == policy).unwrap();
        let moves = |policy: &str| of(policy).promoted_pages + of(policy).demoted_pages;
        let best = of(favoured).hit_ratio;
        for policy in AMONG.split(',').chain(["first-touch", "interleave"]) {
            let got = of(policy).hit_ratio;
            assert!(got <= best + 0.002, "{favoured}-favor: {policy} {got}, {favoured} {best}");
        }
        assert!(of("amp").hit_ratio >= best - 0.01, "{favoured}-favor: {:?}", of("amp"));
        assert_eq!((moves("first-touch"), moves("interleave"), moves("random")), (0, 0, 0));
        match favoured {
            // The others cannot gain, and some lose by trying.
            "random" => assert!(moves("amp") == 0 && moves("lfu") > 0),
            // Where the favoured policy is better, it is by a wide margin.
            _ => assert!(best > of("first-touch").hit_ratio + 0.2, "{favoured}: {best}"),
        }
        assert!(rows.iter().all(|r| r.pages_max == 512 && r.fast_ratio == 0.5));
    }
}

#[test]
fn every_period_has_the_features_of_the_paper() {
    let (place, _) = example(&format!("compare --policies {AMONG}"), "lru-favor");
    let periods = periods(&place);
    for run in AMONG.split(',') {
        let mut before = 0;
        for p in periods.iter().filter(|p| p.run == run) {
            let ratio = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
            assert_eq!(p.hit_ratio, ratio(p.fast_accessed_pages, p.accessed_pages), "{p:?}");
            assert_eq!(p.accessed_ratio, ratio(p.accessed_pages, p.pages), "{p:?}");
            // Pages that moved at the end of the period before did not stay; pages that are new did
            // not change their place.
            assert_eq!(p.stability, 1.0 - ratio(before, p.pages), "{p:?}");
            assert!(p.fast_pages <= 256 && p.fast_accessed_pages <= p.fast_pages, "{p:?}");
            assert_eq!(p.time_ms, p.period * 1000);
            before = p.promoted_pages + p.demoted_pages;
        }
    }
}

/// The experiment with more text, and keys of its group.
fn small(group: &str, more: &str) -> String {
    SMALL.replace("policy = \"amp\"", &format!("policy = \"amp\"\n{group}")) + more
}

#[test]
fn new_pages_fill_fast_memory_first_and_stay_under_first_touch() {
    let place = Place::new();
    let text = small("", "startup_ms = 4000\n").replace("fast_ratio = 0.5", "fast = \"40M\"");
    place.write("e.toml", text.replace("footprint_mib = 64", "footprint_mib = 128"));
    place.run("compare e.toml --policies first-touch --out out").good();
    let periods = periods(&place);
    let pages: Vec<_> = periods.iter().take(5).map(|p| p.pages).collect();
    assert_eq!(pages, [16, 32, 48, 64, 64]);
    for p in periods {
        assert_eq!(p.fast_pages, p.pages.min(20), "period {}", p.period);
        assert_eq!((p.planned_promotions, p.planned_demotions, p.stability), (0, 0, 1.0));
    }
}

#[test]
fn lists_work_at_both_page_sizes_and_obey_their_scan_shares() {
    let place = Place::new();
    let mut scanned = Vec::new();
    for size in ["2M", "4K"] {
        for share in [0.0, 0.1, 1.0] {
            let shares = format!("active_scan_ratio = {share}\ninactive_scan_ratio = {share}");
            let lists = format!("[policies.lists]\n{shares}\n");
            let text = small(&format!("page_size = \"{size}\""), &lists);
            place.write("e.toml", text.replace("lru-favor", "hotcold").replace("= 20", "= 60"));
            place.run("compare e.toml --policies lists --out out --force").good();
            let run = &runs(&place)[0];
            assert_eq!(run.pages_max, if size == "2M" { 32 } else { 16384 }, "{run:?}");
            assert!(run.parameters.contains("active_scan_ratio"), "{run:?}");
            scanned.push((run.hit_ratio, run.promoted_pages));
        }
    }
    // Lists that are never scanned contain no hot page.
    assert_eq!((scanned[0].1, scanned[3].1), (0, 0), "{scanned:?}");
    for sizes in scanned.chunks(3) {
        assert!(sizes[1..].iter().all(|s| s.0 > sizes[0].0 + 0.02), "{scanned:?}");
        // The more is scanned, the more pages are found to move.
        assert!(sizes[2].1 > sizes[1].1, "{scanned:?}");
    }
}

#[test]
fn groups_of_both_page_sizes_and_with_a_size_of_fast_memory_run_at_once() {
    let place = Place::new();
    let second = "\n[[groups]]\nname = \"base\"\npolicy = \"lfu\"\nfast = \"16M\"\n\
                  page_size = \"4K\"\n[groups.workload]\nkind = \"zipf\"\nfootprint_mib = 48\n";
    place.write("e.toml", small("", second).replace("fast_ratio = 0.5", "fast = \"24M\""));
    let printed = place.run("run e.toml --out out").good();
    let rows = runs(&place);
    assert_eq!(rows.iter().map(|r| r.run.as_str()).collect::<Vec<_>>(), ["as-written"; 2]);
    assert_eq!((rows[0].page_size_bytes, rows[1].page_size_bytes), (2 << 20, 4 << 10));
    assert_eq!((rows[0].pages_max, rows[1].pages_max), (32, 12288));
    // A size is reported as the share that it is, in the table and to people.
    assert_eq!((rows[0].fast_ratio, rows[1].fast_ratio), (0.375, 1.0 / 3.0));
    assert!(printed.out.contains("37.5 %") && printed.out.contains("33.3 %"), "{printed}");
    for p in periods(&place) {
        let bound = if p.group == "base" { 4096 } else { 12 };
        assert!(p.fast_pages <= bound, "{p:?}");
    }
    let replayed = place.run("replay out/recordings/as-written.trec --placement").good();
    assert!(replayed.out.contains("under amp, lfu: 0 decisions differ"), "{replayed}");
    assert!(replayed.out.contains("'base': 0 of 20 periods differ"), "{replayed}");
}

#[test]
fn a_limit_of_more_than_a_group_has_is_all_of_its_memory() {
    let place = Place::new();
    place.write("e.toml", small("", "").replace("fast_ratio = 0.5", "fast = \"1G\""));
    let printed = place.run("run e.toml --out out").good();
    assert_eq!(runs(&place)[0].fast_ratio, 1.0);
    assert!(printed.out.contains("fast memory 100 %"), "{printed}");
}

#[test]
fn moves_are_bounded_where_the_experiment_says_so() {
    let place = Place::new();
    let text = small("moved_pages_per_period = 4", "").replace("= 20", "= 60");
    place.write("e.toml", text.replace("policy = \"amp\"", "policy = \"lru\""));
    place.run("run e.toml --out out").good();
    let moved: Vec<_> =
        periods(&place).iter().map(|p| p.promoted_pages + p.demoted_pages).collect();
    assert_eq!(moved.iter().max(), Some(&4), "{moved:?}");
}

/// The contents of all files in a folder and those below.
fn contents(folder: &Path, under: &str, into: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{under}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().unwrap().is_dir() {
            contents(&entry.path(), &name, into);
        } else {
            into.insert(name, std::fs::read(entry.path()).unwrap());
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let results = |seed: u64| {
        let place = Place::new();
        let text = format!("seed = {seed}\n{SMALL}").replace("lru-favor", "zipf");
        place.write("e.toml", text);
        let printed = place.run("compare e.toml --policies amp,random,lists --out out").good();
        let mut files = BTreeMap::from([("output".to_owned(), printed.out.into_bytes())]);
        contents(&place.path("out"), "", &mut files);
        files
    };
    let (one, same, other) = (results(7), results(7), results(8));
    let names: Vec<_> = one.keys().map(String::as_str).collect();
    let recordings = ["/recordings/amp.trec", "/recordings/lists.trec", "/recordings/random.trec"];
    let tables = ["/heat.parquet", "/periods.parquet"];
    assert_eq!(names[..2], tables);
    assert_eq!(names[2..5], recordings);
    assert_eq!(names[5..], ["/report.html", "/runs.parquet", "output"]);
    for (name, bytes) in &one {
        assert!(*bytes == same[name], "{name} differs from one run to the next");
        assert!(*bytes != other[name], "{name} is the same with another seed");
    }
}

#[test]
fn every_policy_decides_again_what_was_recorded() {
    let place = Place::new();
    let policies: Vec<_> = REGISTRY.iter().map(|k| k.name).collect();
    // A program that changes its behaviour, so that every policy has decisions to make.
    let parts = "{generator = \"hotcold\", parameters = {footprint_mib = 64, duration_ms = 25000}}, \
                 {generator = \"lru-favor\", parameters = {footprint_mib = 64, duration_ms = 25000}}, \
                 {generator = \"zipf\", parameters = {footprint_mib = 64}}";
    let text =
        SMALL.replace("footprint_mib = 64", &format!("same_memory = true\nparts = [{parts}]"));
    let text = text.replace("\"lru-favor\"\nsame", "\"mix\"\nsame").replace("= 20", "= 75");
    place.write("e.toml", text);
    place.run(&format!("compare e.toml --policies {} --out out", policies.join(","))).good();
    for policy in policies {
        let arguments = format!("replay out/recordings/{policy}.trec --placement --format json");
        if policy == "optimum" {
            place.run(&arguments).refused(&["'optimum' had an oracle trace"]);
            continue;
        }
        let json = place.run(&arguments).good().json();
        assert_eq!(json["compared_periods"], 75, "{policy}: {json:#}");
        assert_eq!(json["mismatches"], Value::Array(vec![]), "{policy}");
        assert_eq!(json["placements"][0]["differing_periods"], 0, "{policy}: {json:#}");
    }
    let moved = runs(&place).iter().filter(|r| r.promoted_pages > 0).count();
    assert!(moved >= 4, "only {moved} policies moved a page, so that little was compared");
}

/// Copies a recording of one group, with its header and periods changed.
fn tampered(
    from: &Path,
    to: &Path,
    header: impl Fn(&mut Header),
    period: impl Fn(&mut PeriodRecord),
) {
    let reader = PeriodReader::open(from).unwrap();
    let mut changed = reader.header().clone();
    header(&mut changed);
    let mut writer = PeriodWriter::create(to, changed).unwrap();
    for record in reader.records() {
        let Record::Period(mut record) = record.unwrap() else { continue };
        period(&mut record);
        let decision = record.decision.unwrap();
        let known = REGISTRY.iter().map(|k| k.name).find(|&name| name == decision.applied);
        let decision =
            Decision { plan: decision.plan, applied: known.unwrap(), features: decision.features };
        let (budget, outcome) = (record.budget.unwrap(), record.outcome.unwrap());
        writer.period(record.group, &record.scan, &budget, &decision, &outcome).unwrap();
    }
    writer.publish().unwrap();
}

#[test]
fn a_recording_with_other_decisions_is_found_out() {
    let place = Place::new();
    place.write("e.toml", SMALL);
    place.run("compare e.toml --policies lru --out out").good();
    let recording = place.path("out/recordings/lru.trec");
    let differing = |printed: &Printed| {
        assert_eq!(printed.code, Some(1), "{printed}");
        printed.out.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };

    tampered(&recording, &place.path("same.trec"), |_| {}, |_| {});
    place.run("replay same.trec").good();

    // The decisions of LRU as if they were those of LFU.
    let header = |h: &mut Header| h.groups[0].policy = "lfu".to_owned();
    tampered(&recording, &place.path("lfu.trec"), header, |_| {});
    let printed = place.run("replay lfu.trec");
    assert!(differing(&printed).len() >= 10, "{printed}");
    assert!(
        printed.out.contains("under lfu") && !printed.out.contains(" 0 decisions differ"),
        "{printed}"
    );

    // One page of one plan.
    let periods = periods(&place);
    let moving = periods.iter().rfind(|p| p.planned_promotions > 0).unwrap().period;
    let period = |p: &mut PeriodRecord| {
        if p.scan.period == moving {
            let plan = &mut p.decision.as_mut().unwrap().plan;
            let entries = plan.exchanges.len() + plan.promotions.len() + plan.demotions.len();
            assert!(entries > 0, "nothing to change");
            let _ = plan.exchanges.pop();
            let _ = plan.promotions.pop();
        }
    };
    tampered(&recording, &place.path("one.trec"), |_| {}, period);
    let printed = place.run("replay one.trec");
    let lines = differing(&printed);
    assert!(lines.len() == 1 && lines[0].contains(&format!("period {moving}:")), "{printed}");
    let json = place.run("replay one.trec --format json").json();
    assert_eq!(json["mismatches"].as_array().unwrap().len(), 1, "{json:#}");

    // An unknown policy cannot decide.
    let header = |h: &mut Header| h.groups[0].policy = "best".to_owned();
    tampered(&recording, &place.path("best.trec"), header, |_| {});
    place.run("replay best.trec").refused(&["group 'g'", "no policy is named 'best'"]);
}

#[test]
fn one_recording_compares_all_policies() {
    let place = Place::new();
    let file = tree("examples/amp/lfu-favor.toml");
    let direct = format!("compare {} --policies first-touch,lru,lfu --out out", file.display());
    place.run(&direct).good();
    let expected = runs(&place);

    let text = std::fs::read_to_string(&file).unwrap();
    let workload = "kind = \"recording\"\npath = \"out/recordings/first-touch.trec\"";
    let text = text.replace("kind = \"lfu-favor\"\nfootprint_mib = 1024", workload);
    place.write("again.toml", text);
    place.run("compare again.toml --policies first-touch,lru,lfu --out again").good();
    let again: Vec<RunRow> = read(&place.path("again")).unwrap();
    assert_eq!(again.len(), 3);
    for (again, expected) in again.iter().zip(&expected) {
        assert_eq!(again.workload, "recording");
        // The accesses do not depend on the policy under which they were recorded.
        let again = RunRow { workload: expected.workload.clone(), ..again.clone() };
        assert_eq!(again, *expected);
    }
}

#[test]
fn a_run_that_fails_leaves_no_tables() {
    let place = with_results();
    // The needs of a recording are not known before its end.
    let text = SMALL.replace("kind = \"lru-favor\"", "kind = \"recording\"");
    let text = text.replace("footprint_mib = 64", "path = \"good/recordings/amp.trec\"");
    place.write("e.toml", text + "[machine]\nfast = \"16M\"\nslow = \"16M\"\n");
    let printed = place.run("run e.toml --out out");
    assert_eq!(printed.code, Some(1), "{printed}");
    let last = printed.err.lines().last().unwrap();
    let cause = "no memory for 13 pages of 2097152 bytes";
    assert!(
        last.starts_with("terrace: run 'amp'") && last.matches(cause).count() <= 1,
        "{printed}"
    );
    assert!(last.contains("give the machine more slow memory"), "{printed}");
    let mut files = BTreeMap::new();
    contents(&place.path("out"), "", &mut files);
    let files: Vec<_> = files.into_keys().collect();
    assert!(files.iter().all(|f| f.starts_with("/recordings/amp.trec")), "{files:?}");
    place.run("report out").refused(&["runs.parquet: no such file"]);
}

#[test]
fn what_replaces_results_leaves_no_files_of_the_runs_before() {
    let place = Place::new();
    place.write("e.toml", SMALL);
    std::fs::create_dir_all(place.path("out/recordings")).unwrap();
    place.write("out/recordings/mine.trec", "not of a run");
    place.run("compare e.toml --policies first-touch,lru --out out").good();
    // As a live machine leaves it.
    std::fs::create_dir_all(place.path("out/details")).unwrap();
    place.write("out/details/lru.json", "{}");
    place.run("run e.toml --out out --force").good();
    assert!(!place.path("out/details/lru.json").exists());
    let mut files = BTreeMap::new();
    contents(&place.path("out/recordings"), "", &mut files);
    assert_eq!(files.into_keys().collect::<Vec<_>>(), ["/amp.trec", "/mine.trec"]);
}

#[test]
fn runs_are_the_sums_of_their_periods() {
    let (place, _) = example(&format!("compare --policies {AMONG}"), "lfu-favor");
    let periods = periods(&place);
    for run in runs(&place) {
        let own: Vec<_> = periods.iter().filter(|p| p.run == run.run).collect();
        let sum = |column: fn(&PeriodRow) -> u64| own.iter().map(|p| column(p)).sum::<u64>();
        assert_eq!(run.periods, own.len() as u64);
        assert_eq!(run.promoted_pages, sum(|p| p.promoted_pages));
        assert_eq!(run.demoted_pages, sum(|p| p.demoted_pages));
        let hits = sum(|p| p.fast_accessed_pages) as f64 / sum(|p| p.accessed_pages) as f64;
        assert_eq!(run.hit_ratio, hits);
        let stability = own.iter().map(|p| p.stability).sum::<f64>() / own.len() as f64;
        assert!((run.stability - stability).abs() < 1e-9);
    }
}

#[test]
fn every_example_is_a_good_experiment_named_as_its_file() {
    let mut count = 0;
    let mut folders = vec![tree("examples")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "toml") {
                let folder = path.parent().and_then(|p| p.file_name()).and_then(|f| f.to_str());
                let name = match folder {
                    Some("rack") => {
                        terrace_experiments::rack::read(&path, false, &[]).unwrap().name
                    }
                    Some("sweep") => terrace_experiments::sweep::Grid::read(&path).unwrap().name,
                    // The daemon's; a test there checks it with its own reader.
                    _ if path.ends_with("terraced.toml") => continue,
                    _ if path.ends_with("fleet.toml") => {
                        terrace_fleet::Fleet::read(&path).unwrap();
                        continue;
                    }
                    _ => Experiment::read(&path).unwrap().name,
                };
                assert_eq!(path.file_stem().unwrap(), name.as_str());
                count += 1;
            }
        }
    }
    assert!(count >= 10, "only {count} examples");
}
