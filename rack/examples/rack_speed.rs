//! Runs workloads of an experiment under some schemes and prints the results, the parts of their
//! time, and the speed. The text of SET, as TOML, is laid over the experiment's `[rack]`; where
//! FULL is set, its full size is run.
//! `cargo run --release -p terrace-rack --example rack_speed -- FILE VARIANT WORKLOADS SCHEMES`
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::time::Instant;

use terrace_rack::experiment::Experiment;
use terrace_rack::outcome::NodeOutcome;
use terrace_rack::simulate::run;

fn overlay(base: &mut toml::Table, over: &toml::Table) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(toml::Value::Table(b)), toml::Value::Table(o)) => overlay(b, o),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let list = |n: usize| -> Vec<String> {
        let names = arguments.get(n).map_or("", String::as_str).split(',');
        names.filter(|s| !s.is_empty()).map(str::to_owned).collect()
    };
    let mut file: toml::Table = std::fs::read_to_string(&arguments[0])?.parse()?;
    if let Ok(set) = std::env::var("SET") {
        let set: toml::Table = set.replace(';', "\n").parse()?;
        let over = toml::Table::from_iter([("rack".to_owned(), set.into())]);
        overlay(&mut file, &over);
        overlay(&mut file, &toml::Table::from_iter([("full".to_owned(), over.into())]));
    }
    let mut experiment =
        Experiment::from_toml(&toml::to_string(&file)?, std::env::var("FULL").is_ok(), &list(3))?;
    let variant = arguments.get(1).map_or("", String::as_str);
    experiment.variants.retain(|v| v.name == variant || variant.is_empty());
    let wanted = list(2);
    experiment.workloads.retain(|w| wanted.is_empty() || wanted.contains(&w.name));
    // By their number in the plan: several workloads have several.
    let mut bases: BTreeMap<usize, Vec<NodeOutcome>> = BTreeMap::new();
    for (number, planned) in experiment.plan().into_iter().enumerate() {
        let (rack, scheme, workloads) = experiment.rack_of(&planned);
        let start = Instant::now();
        let o = run(&rack, scheme, &workloads, 1)?;
        let host = start.elapsed().as_secs_f64();
        let name = planned.scheme.map_or("local", |s| s.name);
        if planned.scheme.is_none() {
            bases.insert(number, o.nodes.clone());
        }
        for (n, base) in o.nodes.iter().zip(bases.get(&planned.base).ok_or("no base")?) {
            let c = &n.counts;
            let ns = |ps: u64, count: u64| ps as f64 / 1e3 / count.max(1) as f64;
            let share = |n: u64| 100.0 * n as f64 / c.reads().max(1) as f64;
            let l = &c.remote_latency;
            let parts: Vec<String> =
                l.sums[1..].iter().map(|&s| format!("{:.0}", ns(s, l.total.count()))).collect();
            println!(
                "{:9} {:6} slowdown {:6.3} cost {:5.2} local {:5.1} remote {:6.1} ({}) ns | \
                 {:4.1} mpki local {:4.1}% migrated {:4.1}% buffer {:4.1}% | in {} out {} batches {} npm {} \
                 score {} stall {:4.1}% thr {} ask {} refused {} held {} | move {:.0} page {:.0} block {:.0} hit {:.0} ns | \
                 {:.0} us {:.2} Minstr/s",
                n.workload,
                name,
                n.time as f64 / base.time as f64,
                c.access_ns() / base.counts.access_ns(),
                ns(c.local_ps, c.local_reads),
                ns(c.remote_ps, c.remote_reads),
                parts.join(" "),
                c.reads() as f64 * 1e3 / n.instructions as f64,
                share(c.local_reads),
                share(c.migrated_reads),
                share(c.buffer_reads),
                c.pages_in,
                c.pages_out,
                c.migrations,
                n.npm,
                n.score,
                100.0 * c.stall_ps as f64 / n.time as f64,
                n.threshold
                    .map_or("-".into(), |t| format!("{}/{:.1}", t.count, t.frequency_per_us)),
                n.controller.pages,
                n.controller.pages_refused,
                n.controller.held_back,
                ns(c.page_move_ps, c.pages_in),
                ns(n.controller.fetch_ps, n.controller.fetches),
                ns(c.remote_ps - c.buffer_ps, c.remote_reads - c.buffer_reads),
                ns(c.buffer_hit_ps, c.buffer_hits),
                n.time as f64 / 1e6,
                n.instructions as f64 / host / 1e6,
            );
        }
    }
    Ok(())
}
