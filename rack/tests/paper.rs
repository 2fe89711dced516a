//! The rack paper's numbers at the size of a test: unloaded latencies, and which scheme is ahead in
//! five of figure 7's classes. Simulations are exact, so that a change of the mechanism or of its
//! memory shows here; `docs/rack.md` has the full size.

use std::collections::BTreeMap;
use std::path::Path;

use terrace_rack::experiment::Experiment;
use terrace_rack::outcome::NodeOutcome;

/// Runs an example over the faster network; outcomes by workload and scheme, "local" for the base.
fn run(
    file: &str,
    schemes: &[&str],
    workloads: &[&str],
) -> BTreeMap<(String, &'static str), NodeOutcome> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/rack").join(file);
    let schemes: Vec<String> = schemes.iter().map(|&s| s.to_owned()).collect();
    let text = std::fs::read_to_string(file).unwrap();
    let mut experiment = Experiment::from_toml(&text, false, &schemes).unwrap();
    experiment.variants.retain(|v| v.name == "100/400");
    experiment.workloads.retain(|w| workloads.contains(&w.name.as_str()));
    let finished = experiment.run(2, |_| {}).unwrap();
    let outcome = |mut f: terrace_rack::experiment::Finished| {
        let node = f.outcome.nodes.remove(0);
        ((node.workload.clone(), f.planned.scheme.map_or("local", |s| s.name)), node)
    };
    finished.into_iter().map(outcome).collect()
}

fn mean_ns(ps: u64, count: u64) -> f64 {
    assert!(count > 0);
    ps as f64 / 1000.0 / count as f64
}

#[test]
fn a_page_and_a_buffer_hit_take_as_long_beside_a_block_as_the_paper_says() {
    let runs = run("latency.toml", &[], &["probe"]);
    let counts = |scheme| &runs[&("probe".to_owned(), scheme)].counts;
    let (block, otf, cpm) = (counts("BLOCK"), counts("OTF"), counts("CPM"));
    let block_ns = mean_ns(block.remote_ps, block.remote_reads);
    let page_ns = mean_ns(otf.page_move_ps, otf.pages_in);
    let hit_ns = mean_ns(cpm.buffer_hit_ps, cpm.buffer_hits);
    assert!((1200.0..1500.0).contains(&page_ns), "a page takes {page_ns} ns");
    assert!((5.0..7.0).contains(&(page_ns / block_ns)), "{page_ns} ns, a block {block_ns}");
    assert!(hit_ns < 0.5 * block_ns, "a buffer hit takes {hit_ns} ns, a block {block_ns}");
}

#[test]
fn the_order_of_schemes_in_five_classes_is_that_of_the_document() {
    let classes = ["minife", "lulesh", "bt", "dc", "ft"];
    let runs = run("fig7.toml", &["BLOCK", "PB", "CPM"], &classes);
    let node = |class: &str, scheme| &runs[&(class.to_owned(), scheme)];
    let gain = |scheme| -> BTreeMap<&str, f64> {
        let time = |class, scheme| node(class, scheme).time as f64;
        classes.map(|class| (class, time(class, "BLOCK") / time(class, scheme) - 1.0)).into()
    };
    let (cpm, pb) = (gain("CPM"), gain("PB"));
    // The paper: CPM 5 to 35 % ahead of BLOCK, PB between the two.
    for class in ["minife", "lulesh", "bt", "dc"] {
        assert!((0.05..0.35).contains(&cpm[class]), "CPM over BLOCK: {cpm:?}");
        assert!(pb[class] > 0.0 && pb[class] < cpm[class], "PB over BLOCK: {pb:?}, CPM {cpm:?}");
    }
    // Deviates: a line of a transform reads a page in one burst, which waits for page blocks.
    assert!(cpm["ft"] < 0.0 && pb["ft"] < cpm["ft"], "{cpm:?} {pb:?}");
    // The paper: miniFE misses more than programs of high locality.
    let misses = |class| node(class, "local").counts.reads();
    for class in ["bt", "dc"] {
        assert!(misses(class) < misses("ft") && misses("ft") < misses("minife"), "{class}");
    }
    // An access costs less under CPM than under BLOCK, and more than 1.25 times a local one.
    for class in ["minife", "lulesh", "bt", "dc"] {
        let cost = |scheme| {
            node(class, scheme).counts.access_ns() / node(class, "local").counts.access_ns()
        };
        let (cpm, block) = (cost("CPM"), cost("BLOCK"));
        assert!(1.25 < cpm && cpm < block, "{class}: {cpm} under CPM, {block} under BLOCK");
    }
}
