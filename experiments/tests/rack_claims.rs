//! The rack paper's numbers at the size of a test: unloaded latencies, and which scheme is ahead in
//! five of figure 7's classes. Simulations are exact, so that a change of the mechanism or of its
//! memory shows here; `docs/rack.md` has the full size.

use std::collections::BTreeMap;
use std::path::Path;

use terrace_experiments::claims::{Agreement, Verdict};
use terrace_experiments::rack;
use terrace_experiments::verdict::VerdictKind;
use terrace_results::RackRunRow;

/// Runs an example over the faster network.
fn run(file: &str, schemes: &[&str], workloads: &[&str]) -> (Vec<RackRunRow>, Vec<Verdict>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/rack").join(file);
    let schemes: Vec<String> = schemes.iter().map(|&s| s.to_owned()).collect();
    let mut experiment = rack::read(&file, false, &schemes).unwrap();
    let claims = std::mem::take(&mut experiment.claims);
    experiment.variants.retain(|v| v.name == "100/400");
    experiment.workloads.retain(|w| workloads.contains(&w.name.as_str()));
    let finished = rack::run(&experiment, 2, |_| {}).unwrap();
    let runs = rack::tables(&experiment, &finished).runs;
    // Claims may name cells that were not run: they are read from the whole file.
    experiment = rack::read(&file, false, &[]).unwrap();
    experiment.claims = claims;
    let verdicts = rack::verdicts(&experiment, &runs).unwrap();
    (runs, verdicts)
}

fn headline<'a>(verdicts: &'a [Verdict], name: &str) -> &'a Verdict {
    let found = verdicts.iter().find(|v| v.headline.as_deref() == Some(name));
    found.unwrap_or_else(|| panic!("no headline {name}"))
}

#[test]
fn a_page_and_a_buffer_hit_take_as_long_beside_a_block_as_the_paper_says() {
    let (runs, verdicts) = run("latency.toml", &[], &["probe"]);
    for (name, kind) in [
        ("C.g", VerdictKind::Calibrated),
        ("C.g, over a block", VerdictKind::Calibrated),
        ("C.h", VerdictKind::Size),
    ] {
        let verdict = headline(&verdicts, name);
        assert_eq!(verdict.agreement, Agreement::Agrees, "{verdict:?}");
        assert_eq!(verdict.verdict, Some(kind), "{verdict:?}");
    }
    // A page that moves alone has a time; a scheme that moves batches has none.
    let moves = |scheme: &str| runs.iter().find(|r| r.scheme == scheme).unwrap().page_move_ns;
    assert!(moves("OTF").is_some() && moves("CPM").is_none() && moves("BLOCK").is_none());
}

#[test]
fn the_order_of_schemes_and_the_verdicts_are_those_of_the_document() {
    let classes = ["minife", "lulesh", "bt", "dc", "ft"];
    let (runs, verdicts) = run("fig7.toml", &["BLOCK", "PB", "CPM"], &classes);
    let slowdown = |workload: &str, scheme: &str| {
        let row = runs.iter().find(|r| r.workload == workload && r.scheme == scheme);
        row.unwrap().slowdown
    };
    let gain = |scheme: &str| -> BTreeMap<&str, f64> {
        classes.map(|w| (w, slowdown(w, "BLOCK") / slowdown(w, scheme) - 1.0)).into()
    };
    let (cpm, pb) = (gain("CPM"), gain("PB"));
    for class in ["minife", "lulesh", "bt", "dc"] {
        assert!((0.05..0.35).contains(&cpm[class]), "CPM over BLOCK: {cpm:?}");
        assert!(pb[class] > 0.0 && pb[class] < cpm[class], "PB over BLOCK: {pb:?}, CPM {cpm:?}");
    }
    // Deviates: a line of a transform reads a page in one burst, which waits for page blocks.
    assert!(cpm["ft"] < 0.0 && pb["ft"] < cpm["ft"], "{cpm:?} {pb:?}");
    assert_eq!(headline(&verdicts, "C.a").verdict, Some(VerdictKind::Calibrated));
    assert_eq!(headline(&verdicts, "C.b").verdict, Some(VerdictKind::NotRun));
    assert_eq!(headline(&verdicts, "C.d at 100/400").verdict, Some(VerdictKind::Direction));
    // As the paper has it, miniFE misses more often than programs of high locality.
    let misses = |workload: &str| {
        let row = runs.iter().find(|r| r.workload == workload && r.scheme == "local");
        row.unwrap().misses_per_1000
    };
    for class in ["bt", "dc"] {
        assert!(misses(class) < misses("ft") && misses("ft") < misses("minife"), "{class}");
    }
}
