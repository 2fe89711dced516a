//! The report of the rack: slowdowns by scheme, time and place of misses, nodes over time, load of
//! the switch's ports, and the paper's claims.

mod charts;

use std::collections::BTreeMap;

use minijinja::{Value, context};
use terrace_results::{RackPortRow, RackRunRow, RackSampleRow};

use crate::html::ReportMeta;
use crate::html::bars::{Bar, BarPanel, Scale, bars};
use crate::html::picture::chip;
use crate::html::rack::charts::{Line, Panel, Stack, curves, over_time, stacks};
use crate::html::theme::{Colour, HEAT, MUTED, series};
use crate::rack::RackResults;

/// The name, in place of a scheme, of runs with all memory local, the base of every slowdown.
const BASE: &str = "local";

/// The schemes in the order of the paper, and the colour of each.
const SCHEMES: [(&str, usize); 9] = [
    (BASE, 0),
    ("PAGE", 10),
    ("BLOCK", 1),
    ("OTF", 3),
    ("E25", 4),
    ("E100", 7),
    ("PB", 2),
    ("CPM", 6),
    ("APM", 5),
];

fn colour(scheme: &str) -> Colour {
    SCHEMES.iter().find(|s| s.0 == scheme).map_or(MUTED, |s| series(s.1))
}

/// Parts of a read.
const LOCAL: (&str, Colour) = ("local reads", series(5));
const PARTS: [(&str, &str, Colour); 5] = [
    ("nic", "interfaces", series(2)),
    ("switch", "switch and page buffers", series(4)),
    ("queue", "waiting in queues", series(6)),
    ("dram", "pool DRAM", series(3)),
    ("rest", "propagation and the rest", series(1)),
];
/// Runs of which distributions and timelines are shown.
const MOST_PICTURES: usize = 12;

/// Values in the order of their first appearance.
fn distinct<T, K: PartialEq>(rows: &[T], key: impl Fn(&T) -> K) -> Vec<K> {
    let mut seen = Vec::new();
    for row in rows {
        let key = key(row);
        if !seen.contains(&key) {
            seen.push(key);
        }
    }
    seen
}

/// Which node of which run: variant, scheme, workload and node.
type Who = (String, String, String, u64);

fn who(r: &RackRunRow) -> Who {
    (r.variant.clone(), r.scheme.clone(), r.workload.clone(), r.node)
}

fn name(r: &RackRunRow) -> String {
    if r.nodes > 1 { format!("{} (node {})", r.workload, r.node) } else { r.workload.clone() }
}

/// A number of things, in words.
fn counted(n: u64, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

/// How many of a thing the racks have, from the smallest to the largest; the runs that are the base
/// of every slowdown are of one node alone and do not count where there are others.
fn span(runs: &[RackRunRow], thing: &str, of: impl Fn(&RackRunRow) -> u64) -> String {
    let alone = runs.iter().all(|r| r.scheme == BASE);
    let numbers = || runs.iter().filter(|r| alone || r.scheme != BASE).map(&of);
    match (numbers().min().unwrap_or(0), numbers().max().unwrap_or(0)) {
        (least, most) if least == most => counted(most, thing),
        (least, most) => format!("{least} to {}", counted(most, thing)),
    }
}

/// How many runs there were: each has a first node.
fn number_of_runs(runs: &[RackRunRow]) -> usize {
    runs.iter().filter(|r| r.node == 0).count()
}

/// A variant's name, if the experiment gave it one: without that it is the only one.
fn named(variant: &str) -> Option<&str> {
    (variant != "-").then_some(variant)
}

/// A text about a variant.
fn of_variant(text: &str, variant: &str) -> String {
    named(variant).map_or_else(|| text.to_owned(), |name| format!("{text}, {name}"))
}

/// A cell's shade at a share of 0 to 1.
fn shade(share: f64) -> String {
    let [r, g, b, a] = HEAT.at(share * 0.6);
    format!("background:rgba({r},{g},{b},{:.2})", f64::from(a) / 255.0)
}

fn matrices(results: &RackResults) -> Vec<Value> {
    let variants = distinct(&results.runs, |r| r.variant.clone());
    let one = |variant: &String| {
        let rows: Vec<&RackRunRow> =
            results.runs.iter().filter(|r| r.variant == *variant && r.scheme != BASE).collect();
        let schemes = distinct(&rows, |r| r.scheme.clone());
        let names = distinct(&rows, |r| name(r));
        let most = rows.iter().map(|r| r.slowdown).fold(1.0, f64::max);
        let table: Vec<Value> = names
            .iter()
            .map(|of| {
                let of: Vec<&&RackRunRow> = rows.iter().filter(|r| name(r) == *of).collect();
                let best = of.iter().map(|r| r.slowdown).fold(f64::INFINITY, f64::min);
                let cells: Vec<Value> = schemes
                    .iter()
                    .map(|s| match of.iter().find(|r| r.scheme == *s) {
                        None => context! { text => "" },
                        Some(r) => context! {
                            text => format!("{:.2}", r.slowdown),
                            best => r.slowdown <= best * 1.0005,
                            style => shade((r.slowdown - 1.0) / (most - 1.0).max(1.0)),
                        },
                    })
                    .collect();
                context! { name => of.first().map(|r| name(r)), cells }
            })
            .collect();
        context! { title => named(variant), schemes, rows => table }
    };
    variants.iter().map(one).collect()
}

fn slowdown_bars(results: &RackResults) -> Vec<Value> {
    let variants = distinct(&results.runs, |r| r.variant.clone());
    let one = |variant: &String| {
        let rows: Vec<&RackRunRow> =
            results.runs.iter().filter(|r| r.variant == *variant && r.scheme != BASE).collect();
        let panels: Vec<BarPanel> = distinct(&rows, |r| name(r))
            .into_iter()
            .map(|title| {
                let bar = |r: &&&RackRunRow| Bar {
                    name: r.scheme.clone(),
                    colour: colour(&r.scheme),
                    value: Some(r.slowdown),
                    label: format!("{:.2}", r.slowdown),
                    opposite: None,
                };
                BarPanel {
                    bars: rows.iter().filter(|r| name(r) == title).map(|r| bar(&r)).collect(),
                    title,
                }
            })
            .collect();
        let scale = Scale {
            label: of_variant("slowdown by scheme", variant),
            end: None,
            number: crate::format::axis_number,
        };
        context! { title => of_variant("Slowdown", variant), note => "1 is all memory local", svg => bars(&panels, &scale) }
    };
    variants.iter().map(one).collect()
}

fn latency(results: &RackResults) -> Vec<Value> {
    // On one scale for all variants of a workload: another workload's outlier would flatten them.
    let most = |of: &str| {
        let same = results.runs.iter().filter(|r| name(r) == of);
        same.map(|r| r.access_ns).fold(0.0, f64::max)
    };
    let mut figures = Vec::new();
    for variant in distinct(&results.runs, |r| r.variant.clone()) {
        let rows: Vec<&RackRunRow> = results.runs.iter().filter(|r| r.variant == variant).collect();
        for title in distinct(&rows, |r| name(r)) {
            let stack = |r: &&RackRunRow| {
                let reads = (r.local_reads + r.remote_reads).max(1) as f64;
                let (local, remote) = (r.local_reads as f64 / reads, r.remote_reads as f64 / reads);
                let known =
                    [r.remote_nic_ns, r.remote_switch_ns, r.remote_queue_ns, r.remote_dram_ns];
                let rest = (r.remote_ns - known.iter().sum::<f64>()).max(0.0);
                let mut parts = vec![(local * r.local_ns, LOCAL.1)];
                let remotes = known.into_iter().chain([rest]).zip(PARTS);
                parts.extend(remotes.map(|(ns, part)| (ns * remote, part.2)));
                Stack { name: r.scheme.clone(), parts }
            };
            let all: Vec<Stack> =
                rows.iter().filter(|r| name(r) == title && r.access_ns > 0.0).map(stack).collect();
            let label = of_variant(&format!("mean time of a miss of {title}"), &variant);
            let note = match named(&variant) {
                Some(variant) => format!("{variant}, mean ns a miss"),
                None => "mean ns a miss".to_owned(),
            };
            let svg = stacks(&label, &all, most(&title));
            figures.push(context! { title, note, svg });
        }
    }
    figures
}

/// The runs with pictures of their own: the last scheme of the paper that was run, in
/// the first variant, each node; then others.
fn pictured(results: &RackResults) -> (Vec<&RackRunRow>, usize) {
    let mut runs: Vec<&RackRunRow> = results.runs.iter().filter(|r| r.scheme != BASE).collect();
    let variants = distinct(&results.runs, |r| r.variant.clone());
    let rank = |r: &&RackRunRow| {
        let preferred = ["CPM", "APM", "PB", "BLOCK"];
        let scheme = preferred.iter().position(|s| *s == r.scheme).unwrap_or(preferred.len());
        (scheme, variants.iter().position(|v| *v == r.variant))
    };
    runs.sort_by_key(rank);
    let left_out = runs.len().saturating_sub(MOST_PICTURES);
    runs.truncate(MOST_PICTURES);
    (runs, left_out)
}

fn title(r: &RackRunRow) -> String {
    of_variant(&format!("{} under {}", name(r), r.scheme), &r.variant)
}

/// Bins of a quarter of an octave, with a lower bound in nanoseconds and a count each, as the share of
/// all that took at most so long.
fn cumulative(bins: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let all: f64 = bins.iter().map(|b| b.1).sum();
    let mut sum = 0.0;
    let mut points = Vec::new();
    for &(from, count) in bins {
        points.push((from, sum / all));
        sum += count;
        points.push((from + from.log2().floor().exp2() / 4.0, sum / all));
    }
    points
}

fn distributions(results: &RackResults, runs: &[&RackRunRow]) -> Vec<Value> {
    let mut by: BTreeMap<(Who, &str), Vec<(f64, f64)>> = BTreeMap::new();
    for l in &results.latencies {
        let who = (l.variant.clone(), l.scheme.clone(), l.workload.clone(), l.node);
        by.entry((who, &l.part)).or_default().push((l.from_ns, l.reads as f64));
    }
    let of = |r: &RackRunRow, part: &'static str, colour: Colour| {
        let bins = by.get(&(who(r), part)).map_or(&[][..], |v| &v[..]);
        Line { name: part.to_owned(), colour, points: cumulative(bins) }
    };
    runs.iter()
        .map(|r| {
            let mut lines = vec![of(r, "local", LOCAL.1), of(r, "remote", series(0))];
            lines.extend(PARTS[..4].iter().map(|p| of(r, p.0, p.2)));
            context! { title => title(r), svg => curves(&title(r), &lines) }
        })
        .collect()
}

fn timelines(results: &RackResults, runs: &[&RackRunRow]) -> Vec<Value> {
    let mut by: BTreeMap<Who, Vec<&RackSampleRow>> = BTreeMap::new();
    for s in &results.samples {
        let who = (s.variant.clone(), s.scheme.clone(), s.workload.clone(), s.node);
        by.entry(who).or_default().push(s);
    }
    let one = |r: &&RackRunRow| {
        let samples = by.get(&who(r)).map_or(&[][..], |v| &v[..]);
        let us = |s: &RackSampleRow| ((s.to_ns - s.from_ns) / 1000.0).max(1e-9);
        let line = |name: &str, colour: usize, value: &dyn Fn(&RackSampleRow) -> f64| Line {
            name: name.to_owned(),
            colour: series(colour),
            points: samples.iter().map(|s| (s.to_ns / 1e6, value(s))).collect(),
        };
        let panels = [
            Panel {
                title: "reads a microsecond".into(),
                lines: vec![
                    line("local", 5, &|s| s.local_reads as f64 / us(s)),
                    line("of them to migrated pages", 2, &|s| s.migrated_reads as f64 / us(s)),
                    line("remote", 6, &|s| s.remote_reads as f64 / us(s)),
                    line("of them from page buffers", 3, &|s| s.buffer_reads as f64 / us(s)),
                ],
            },
            Panel {
                title: "pages a microsecond".into(),
                lines: vec![
                    line("in", 2, &|s| s.pages_in as f64 / us(s)),
                    line("out", 3, &|s| s.pages_out as f64 / us(s)),
                ],
            },
            Panel {
                title: "waiting".into(),
                lines: vec![
                    line("misses under way", 5, &|s| s.misses as f64),
                    line("regular block queue", 6, &|s| s.block_queue as f64),
                    line("pending queues", 4, &|s| s.pending as f64),
                    line("KB in the interface", 1, &|s| s.nic_bytes as f64 / 1024.0),
                ],
            },
            Panel {
                title: "pages in buffers, NPM".into(),
                lines: vec![
                    line("buffered", 2, &|s| s.buffered as f64),
                    line("NPM", 6, &|s| s.npm as f64),
                ],
            },
            Panel { title: "score, percent".into(), lines: vec![line("score", 4, &|s| s.score)] },
            Panel {
                title: "instructions a nanosecond".into(),
                lines: vec![line("all cores", 0, &|s| s.instructions as f64 / us(s) / 1000.0)],
            },
        ];
        let note =
            format!("slowdown {:.2}, {} batches, {} pages in", r.slowdown, r.batches, r.pages_in);
        context! { title => title(r), note, svg => over_time(&title(r), &panels, "ms") }
    };
    runs.iter().map(one).collect()
}

fn maps(results: &RackResults) -> Vec<Value> {
    let one = |variant: &String| {
        let rows: Vec<&RackPortRow> =
            results.ports.iter().filter(|p| p.variant == *variant && p.scheme != BASE).collect();
        let ports = distinct(&rows, |p| p.port.clone());
        let table: Vec<Value> = distinct(&rows, |p| (p.workload.clone(), p.scheme.clone()))
            .into_iter()
            .map(|(workload, scheme)| {
                let mut cells = Vec::new();
                for port in &ports {
                    let row = rows
                        .iter()
                        .find(|p| p.port == *port && p.workload == workload && p.scheme == scheme);
                    let shares = row.map_or([None; 3], |p| {
                        let pages = p.down_page_bytes as f64 / p.down_bytes.max(1) as f64;
                        [
                            Some(p.up_utilisation),
                            Some(p.down_utilisation.max(p.in_utilisation)),
                            Some(pages),
                        ]
                    });
                    cells.extend(shares.into_iter().enumerate().map(|(n, share)| match share {
                        None => context! { text => "" },
                        Some(share) => context! {
                            text => format!("{:.0} %", 100.0 * share),
                            style => if n < 2 { shade(share) } else { String::new() },
                        },
                    }));
                }
                context! { name => format!("{workload} {scheme}"), cells }
            })
            .collect();
        context! { title => named(variant), ports, rows => table }
    };
    distinct(&results.ports, |p| p.variant.clone()).iter().map(one).collect()
}

/// All values of the template.
pub(super) fn content(results: &RackResults, meta: &ReportMeta) -> Value {
    let claims: Vec<Value> = results
        .claims
        .iter()
        .map(|c| {
            let (word, class) = match c.agreement.as_str() {
                "agrees" => ("agrees", ""),
                "differs" => ("differs", "wrong"),
                "partly" => ("partly", ""),
                _ => ("not measured", "nil"),
            };
            context! { says => c.says, source => c.source, expected => c.expected, here => c.here, word, class }
        })
        .collect();
    let (runs, left_out) = pictured(results);
    let left = |what: &str| match left_out {
        0 => String::new(),
        n => format!("{what} of {n} more runs are in the tables."),
    };
    let legend = |name: &str, colour: Colour| context! { name, chip => chip(colour) };
    let mut parts = vec![legend(LOCAL.0, LOCAL.1)];
    parts.extend(PARTS.iter().map(|p| legend(p.1, p.2)));
    let mut distribution_parts = vec![legend("local", LOCAL.1), legend("remote", series(0))];
    distribution_parts.extend(PARTS[..4].iter().map(|p| legend(p.1, p.2)));
    context! {
        title => meta.title,
        subtitle => format!(
            "{} runs on racks of {} and {}",
            number_of_runs(&results.runs),
            span(&results.runs, "node", |r| r.nodes),
            span(&results.runs, "pool", |r| r.pools),
        ),
        command => meta.command,
        version => meta.generated_by_version,
        css => crate::html::css(),
        claims,
        matrices => matrices(results),
        bars => slowdown_bars(results),
        parts,
        latency => latency(results),
        distribution_parts,
        distributions => distributions(results, &runs),
        distributions_left_out => left("Distributions"),
        timelines => timelines(results, &runs),
        timelines_left_out => left("Timelines"),
        maps => maps(results),
    }
}

#[cfg(test)]
mod tests {
    use terrace_results::RackLatencyRow;

    use super::*;
    use crate::rack::ClaimRow;

    fn results() -> RackResults {
        let run = |scheme: &str, slowdown: f64| RackRunRow {
            variant: "100/400".into(),
            scheme: scheme.into(),
            workload: "a<b".into(),
            nodes: 1,
            pools: 1,
            slowdown,
            access_ns: 60.0,
            local_reads: 10,
            remote_reads: 10,
            local_ns: 40.0,
            remote_ns: 120.0,
            remote_nic_ns: 50.0,
            ..RackRunRow::default()
        };
        let sample = |n: u64| RackSampleRow {
            variant: "100/400".into(),
            scheme: "CPM".into(),
            workload: "a<b".into(),
            from_ns: n as f64 * 20e3,
            to_ns: (n + 1) as f64 * 20e3,
            local_reads: 100 * n,
            npm: 25,
            ..RackSampleRow::default()
        };
        RackResults {
            runs: vec![run("local", 1.0), run("BLOCK", 1.5), run("CPM", 1.25)],
            samples: (0..5).map(sample).collect(),
            ports: vec![RackPortRow {
                variant: "100/400".into(),
                scheme: "CPM".into(),
                workload: "a<b".into(),
                port: "pool 0".into(),
                up_utilisation: 0.42,
                ..RackPortRow::default()
            }],
            latencies: [40.0, 80.0, 160.0]
                .map(|from_ns| RackLatencyRow {
                    variant: "100/400".into(),
                    scheme: "CPM".into(),
                    workload: "a<b".into(),
                    part: "remote".into(),
                    from_ns,
                    reads: 5,
                    ..RackLatencyRow::default()
                })
                .into(),
            claims: vec![ClaimRow {
                says: "CPM is least".into(),
                agreement: "differs".into(),
                ..ClaimRow::default()
            }],
        }
    }

    #[test]
    fn the_racks_are_named_and_not_the_node_that_is_their_base() {
        let mut runs = results().runs;
        for (run, nodes, pools) in [(1, 8, 2), (2, 8, 4)] {
            (runs[run].nodes, runs[run].pools) = (nodes, pools);
        }
        assert_eq!(span(&runs, "node", |r| r.nodes), "8 nodes");
        assert_eq!(span(&runs, "pool", |r| r.pools), "2 to 4 pools");
        assert_eq!(span(&runs[..1], "pool", |r| r.pools), "1 pool");
    }

    #[test]
    fn runs_are_counted_and_not_their_nodes() {
        // Two workloads, each alone on the nodes of a rack under each scheme.
        let node = |workload: &str, node: u64, run: &RackRunRow| RackRunRow {
            workload: workload.into(),
            nodes: 2,
            node,
            ..run.clone()
        };
        let all = ["a", "b"].iter().flat_map(|w| [0, 1].map(|n| (*w, n)));
        let all = all.flat_map(|(w, n)| results().runs.into_iter().map(move |r| node(w, n, &r)));
        let results = RackResults { runs: all.collect(), ..results() };
        let page = crate::rack_html(&results, &ReportMeta::default());
        assert!(page.contains("6 runs on racks of 2 nodes and 1 pool"), "{page}");
        // Two workloads side by side on one rack.
        let beside = [node("a", 0, &results.runs[1]), node("b", 1, &results.runs[1])];
        assert_eq!(number_of_runs(&beside), 1);
    }

    #[test]
    fn shares_grow_from_nothing_to_all_within_their_bins() {
        let points = cumulative(&[(1.0, 1.0), (96.0, 2.0), (128.0, 1.0)]);
        let expected =
            [(1.0, 0.0), (1.25, 0.25), (96.0, 0.25), (112.0, 0.75), (128.0, 0.75), (160.0, 1.0)];
        assert_eq!(points, expected);
        assert!(cumulative(&[]).is_empty());
    }

    #[test]
    fn the_page_shows_slowdowns_claims_ports_and_time_and_escapes_names() {
        let page = crate::rack_html(&results(), &ReportMeta::default());
        for wanted in
            ["<td class=\"n best\"", "1.25", "42 %", "CPM is least", "differs", "pending queues"]
        {
            assert!(page.contains(wanted), "{wanted}");
        }
        assert!(page.contains("a&lt;b under CPM, 100/400") && !page.contains("a<b"));
        assert!(!page.contains("could not be"), "{page}");
        assert!(
            !page.contains("<script") && !page.contains("http://") && !page.contains("https://")
        );
        assert_eq!(page, crate::rack_html(&results(), &ReportMeta::default()));
    }

    #[test]
    fn the_only_variant_is_not_named() {
        let mut results = results();
        let names = results.runs.iter_mut().map(|r| &mut r.variant);
        let names = names.chain(results.samples.iter_mut().map(|s| &mut s.variant));
        let names = names.chain(results.ports.iter_mut().map(|p| &mut p.variant));
        names
            .chain(results.latencies.iter_mut().map(|l| &mut l.variant))
            .for_each(|v| *v = "-".into());
        let page = crate::rack_html(&results, &ReportMeta::default());
        assert!(page.contains("a&lt;b under CPM") && page.contains("pending queues"));
        assert!(
            page.contains("<b>Slowdown</b>")
                && !page.contains(", -")
                && !page.contains("<h3></h3>")
        );
    }
}
