//! The report of a fleet: the answer in words, what hosts and services need, what another slow memory
//! changes, pairs to keep apart, the rollout.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use terrace_results::{
    FleetClassRow, FleetHostRow, FleetLeftOutRow, FleetPairRow, FleetServiceRow,
};

use super::bars::{Bar, BarPanel, Scale, bars};
use super::chart::{Axes, Curve, chart};
use super::page::{Entry, Finding, Page, Picture, Section, Sheet, Term, columns, render, row};
use super::picture::chip;
use super::theme::series;
use super::{ReportMeta, write_page};
use crate::error::ReportError;
use crate::format::{MISSING, bytes, clean, count, number, percent, percent_round};

/// Classes that are drawn, rows of long tables, and bars of services.
const CLASSES_MAX: usize = 24;
const ROWS_MAX: usize = 400;
const BARS_MAX: usize = 30;
/// Points of a line over hosts.
const POINTS_MAX: usize = 240;

/// The answer for a fleet, for its report.
#[derive(Debug, Clone, Default)]
pub struct FleetPage {
    /// The answer, sentence by sentence, the first the most important.
    pub answer: Vec<String>,
    /// Its basis and its weaknesses.
    pub remarks: Vec<String>,
    /// Part of the hosts of a class that the answer is enough for.
    pub quantile: f64,
    /// Host classes, by latency.
    pub classes: Vec<FleetClassRow>,
    /// Services, by class and latency.
    pub services: Vec<FleetServiceRow>,
    /// Hosts, by latency.
    pub hosts: Vec<FleetHostRow>,
    /// Pairs of services that collide.
    pub pairs: Vec<FleetPairRow>,
    /// What was left out.
    pub left_out: Vec<FleetLeftOutRow>,
    /// Metrics to watch in the rollout: name, what it shows, when to stop.
    pub watch: Vec<(String, String, String)>,
}

/// The report of a fleet as one HTML file that needs nothing else.
pub fn fleet_html(fleet: &FleetPage, meta: &ReportMeta) -> String {
    let mut page = Page {
        subtitle: format!(
            "Fast memory that is enough for {} of the hosts of each class.",
            percent_round(fleet.quantile)
        ),
        ..Page::default()
    };
    let finding = |kind, text: &String| Finding { kind, text: text.clone() };
    page.findings.extend(fleet.answer.iter().map(|text| finding("plain", text)));
    page.findings.extend(fleet.remarks.iter().map(|text| finding("note", text)));
    page.sections.push(classes(fleet));
    page.sections.push(services(fleet));
    page.sections.push(pairs(fleet));
    page.sections.push(rollout(fleet));
    if !fleet.left_out.is_empty() {
        page.sections.push(left_out(fleet));
    }
    page.sections.push(how_to_read(fleet));
    render(&page, meta)
}

/// Writes it, whole or not at all.
///
/// # Errors
/// What prevents the file from being written.
pub fn write_fleet_html(
    path: &Path,
    fleet: &FleetPage,
    meta: &ReportMeta,
) -> Result<(), ReportError> {
    write_page(path, &fleet_html(fleet, meta))
}

fn or_missing<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or(MISSING.to_owned(), show)
}

/// Both ends of an interval, or that there is none.
fn ends(low: Option<f64>, high: Option<f64>) -> String {
    match (low, high) {
        (Some(low), Some(high)) => format!("{} to {}", percent(low), percent(high)),
        _ => "too few hosts".to_owned(),
    }
}

fn latency(ns: f64) -> String {
    format!("{ns:.0} ns")
}

fn classes(fleet: &FleetPage) -> Section {
    let own = fleet.classes.iter().filter(|c| c.own_latency);
    let names: Vec<&str> = own.map(|c| c.class.as_str()).collect();
    let figures = names.iter().take(CLASSES_MAX).map(|class| hosts_within(fleet, class)).collect();
    Section {
        title: "Host classes".to_owned(),
        note:
            "Upwards: share of hosts whose services all stay within their slowdowns. To the right: \
               fast memory of a host, of its memory. Rings are the answers; the line across is the \
               share of hosts that the answer is to be enough for."
                .to_owned(),
        figures,
        tables: std::iter::once(class_table(fleet)).chain(money_table(fleet)).collect(),
        ..Section::default()
    }
}

/// How many hosts of a class have enough, over fast memory, a line for each latency.
fn hosts_within(fleet: &FleetPage, class: &str) -> Picture {
    let rows = fleet.classes.iter().filter(|c| c.class == class);
    let (mut lines, mut legend, mut marks) = (Vec::new(), Vec::new(), Vec::new());
    let (mut least, mut most) = (1.0f64, 0.0f64);
    for (index, answer) in rows.enumerate() {
        let of_row = |h: &&FleetHostRow| {
            h.whole && h.class == class && h.slow_latency_ns == answer.slow_latency_ns
        };
        let mut needs: Vec<f64> = fleet.hosts.iter().filter(of_row).map(|h| h.fast_share).collect();
        needs.sort_by(f64::total_cmp);
        let all = needs.len().max(1) as f64;
        let step = needs.len().div_ceil(POINTS_MAX).max(1);
        let last = needs.len().saturating_sub(1);
        // Steps: a host more has enough at its need, and none between two.
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (n, need) in needs.iter().enumerate().filter(|(n, _)| n % step == 0 || *n == last) {
            points.push((*need, points.last().map_or(0.0, |p| p.1)));
            points.push((*need, (n + 1) as f64 / all));
        }
        least = needs.first().copied().unwrap_or(1.0).min(least);
        most = needs.last().copied().unwrap_or(0.0).max(answer.high.unwrap_or(0.0)).max(most);
        let colour = series(2 + index);
        // The interval of the answer, over the whole height.
        let band = match (answer.low, answer.high) {
            (Some(low), Some(high)) => vec![(low, 0.0, 1.0), (high, 0.0, 1.0)],
            _ => Vec::new(),
        };
        lines.push(Curve { colour, points, band, joined: true, dots: false });
        let name = format!("{}: {}", latency(answer.slow_latency_ns), percent(answer.fast_share));
        legend.push(Entry { chip: chip(colour), name });
        marks.push((answer.fast_share, fleet.quantile, String::new()));
    }
    let room = (0.08 * (most - least)).max(0.01);
    let axes = Axes {
        label: format!("Share of hosts of {} that have enough fast memory", clean(class)),
        x: ((least - room).max(0.0), (most + room).min(1.0)),
        y: (0.0, 1.0),
        x_title: "fast memory, of the memory of a host".to_owned(),
        x_number: percent_round,
        y_number: percent_round,
        target: Some((fleet.quantile, String::new())),
        marks,
    };
    Picture {
        title: clean(class),
        note: "band: the interval of the answer".to_owned(),
        legend,
        svg: chart(&lines, &axes),
    }
}

fn class_table(fleet: &FleetPage) -> Sheet {
    let names = [
        "class",
        ">slow latency",
        ">hosts",
        ">memory",
        ">fast memory",
        ">share",
        ">interval",
        ">safe share",
        ">waits less",
        ">waits more",
        ">overrun",
        ">overrun as bought",
    ];
    let one = |c: &FleetClassRow| {
        let cells = [
            clean(&c.class),
            latency(c.slow_latency_ns),
            count(c.hosts),
            bytes(c.memory_bytes as f64),
            bytes(c.fast_bytes as f64),
            percent(c.fast_share),
            ends(c.low, c.high),
            percent(c.safe_fast_share),
            percent(c.waits_less_fast_share),
            percent(c.waits_more_fast_share),
            percent(c.overrun_share),
            percent(c.overrun_as_bought_share),
        ];
        row(cells, c.own_latency)
    };
    Sheet {
        columns: columns(&names),
        rows: fleet.classes.iter().take(ROWS_MAX).map(one).collect(),
        note: "Bold: the class's own latency.".to_owned(),
        ..Sheet::default()
    }
}

/// What it costs; nothing without prices.
fn money_table(fleet: &FleetPage) -> Option<Sheet> {
    let priced = fleet.classes.iter().filter(|c| c.cost.is_some());
    let one = |c: &FleetClassRow| {
        let values = [c.cost, c.all_fast_cost, c.saved, c.saved_low, c.saved_high, c.saved_by_all];
        let cells = [clean(&c.class), latency(c.slow_latency_ns)];
        let cells = cells.into_iter().chain(values.map(|v| or_missing(v, number)));
        row(cells.chain([count(c.count)]), c.own_latency)
    };
    let rows: Vec<_> = priced.take(ROWS_MAX).map(one).collect();
    (!rows.is_empty()).then(|| Sheet {
        title: "Cost of the memory of a host".to_owned(),
        columns: columns(&[
            "class",
            ">slow latency",
            ">cost",
            ">all fast",
            ">saved",
            ">from",
            ">to",
            ">saved by all",
            ">hosts",
        ]),
        rows,
        note: "In the currency of the prices. From, to: at the ends of the interval.".to_owned(),
    })
}

fn services(fleet: &FleetPage) -> Section {
    let all = || fleet.services.iter().filter(|s| s.class == "all");
    let mut own: Vec<&FleetServiceRow> = all().filter(|s| s.own_latency).collect();
    own.sort_by_key(|s| std::cmp::Reverse(s.fast_bytes));
    let others: BTreeSet<u64> =
        all().filter_map(|s| s.slow_latency_ns).map(|ns| ns.round() as u64).collect();
    let bar = |s: &&FleetServiceRow| Bar {
        name: clean(&s.service),
        colour: series(2),
        value: Some(s.fast_share),
        label: match (s.low, s.high) {
            (Some(low), Some(high)) => {
                format!("{} ± {:.1}", percent(s.fast_share), 50.0 * (high - low))
            }
            _ => percent(s.fast_share),
        },
        opposite: None,
    };
    let scale = Scale {
        label: "Share of the memory of each service that needs to be fast".to_owned(),
        end: own.iter().map(|s| s.fast_share).reduce(f64::max).filter(|most| *most > 0.0),
        number: percent_round,
    };
    // Two pictures side by side, the first half of the services in the first.
    let drawn: Vec<Bar> = own.iter().take(BARS_MAX).map(bar).collect();
    let half = drawn.len().div_ceil(2).max(1);
    let mut drawn = drawn.into_iter().peekable();
    let mut figures = Vec::new();
    while drawn.peek().is_some() {
        let part: Vec<Bar> = drawn.by_ref().take(half).collect();
        figures.push(Picture {
            title: "Share that needs to be fast".to_owned(),
            note: if figures.is_empty() { "those with most fast memory" } else { "the next" }
                .to_owned(),
            legend: Vec::new(),
            svg: bars(&[BarPanel { title: String::new(), bars: part }], &scale),
        });
    }
    let more = match own.len().saturating_sub(BARS_MAX) {
        0 => String::new(),
        n => format!(" {n} more services are in the table."),
    };
    Section {
        title: "Services".to_owned(),
        note: format!(
            "What all groups of a service need, over what they have, on all hosts with each \
             class's own latency. Behind ±: half of the interval, in points.{more}"
        ),
        figures,
        tables: vec![service_table(fleet, &own, &others)],
        ..Section::default()
    }
}

fn service_table(fleet: &FleetPage, own: &[&FleetServiceRow], others: &BTreeSet<u64>) -> Sheet {
    let mut names: Vec<String> = [
        "service",
        ">bears",
        ">hosts",
        ">memory",
        ">fast memory",
        ">share",
        ">interval",
        ">upper share",
        ">safe share",
        ">waits less",
        ">waits more",
    ]
    .map(str::to_owned)
    .to_vec();
    names.extend(others.iter().map(|ns| format!(">share at {ns} ns")));
    let priced = own.iter().any(|s| s.saved.is_some());
    if priced {
        names.push(">saved".to_owned());
    }
    let mut at: BTreeMap<(&str, u64), f64> = BTreeMap::new();
    for s in fleet.services.iter().filter(|s| s.class == "all") {
        if let Some(ns) = s.slow_latency_ns {
            at.insert((&s.service, ns.round() as u64), s.fast_share);
        }
    }
    let one = |s: &&FleetServiceRow| {
        let mut cells = vec![
            clean(&s.service),
            percent(s.slowdown - 1.0),
            count(s.hosts),
            bytes(s.footprint_bytes as f64),
            bytes(s.fast_bytes as f64),
            percent(s.fast_share),
            ends(s.low, s.high),
            or_missing(s.upper_fast_share, percent),
            percent(s.safe_fast_share),
            percent(s.waits_less_fast_share),
            percent(s.waits_more_fast_share),
        ];
        let shares = others.iter().map(|ns| at.get(&(s.service.as_str(), *ns)).copied());
        cells.extend(shares.map(|share| or_missing(share, percent)));
        if priced {
            cells.push(or_missing(s.saved, number));
        }
        row(cells, false)
    };
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Sheet {
        columns: columns(&names),
        rows: own.iter().take(ROWS_MAX).map(one).collect(),
        note: "Services by class, and every column at other latencies, are in \
               fleet_services.parquet."
            .to_owned(),
        ..Sheet::default()
    }
}

fn pairs(fleet: &FleetPage) -> Section {
    let one = |p: &FleetPairRow| {
        row(
            [
                clean(&p.first),
                clean(&p.second),
                if p.apart { "keep apart" } else { "can share" }.to_owned(),
                count(p.colliding_hosts),
                count(p.hosts),
                bytes(p.joint_peak_bytes as f64),
                bytes(p.room_bytes as f64),
            ],
            p.apart,
        )
    };
    let tables = match fleet.pairs.is_empty() {
        true => Vec::new(),
        false => vec![Sheet {
            columns: columns(&[
                "service",
                "service",
                "advice",
                ">collide on",
                ">of hosts",
                ">joint peak",
                ">room",
            ]),
            rows: fleet.pairs.iter().take(ROWS_MAX).map(one).collect(),
            note: "Peak and room are medians of the hosts on which they collide. Bold: should not share a host.".to_owned(),
            ..Sheet::default()
        }],
    };
    Section {
        title: "Services that collide".to_owned(),
        note: match fleet.pairs.is_empty() {
            true => "No two services collide on any host.".to_owned(),
            false => {
                "Their working sets peak in the same periods, and together they are more than \
                      the fast memory that the answer leaves for both."
                    .to_owned()
            }
        },
        tables,
        ..Section::default()
    }
}

fn rollout(fleet: &FleetPage) -> Section {
    let own: Vec<&FleetHostRow> = fleet.hosts.iter().filter(|h| h.own_latency).collect();
    let stages: BTreeSet<u64> = own.iter().map(|h| h.stage).filter(|s| *s > 0).collect();
    let names: BTreeSet<&str> = own.iter().map(|h| h.class.as_str()).collect();
    let line = |title: String, stage: u64| {
        let of: Vec<_> = own.iter().filter(|h| h.stage == stage).collect();
        let in_class =
            |class: &&str| count(of.iter().filter(|h| h.class == **class).count() as u64);
        let first: Vec<String> = of.iter().take(3).map(|h| clean(&h.host)).collect();
        let cells = std::iter::once(title).chain(names.iter().map(in_class));
        row(cells.chain([first.join(", ")]), false)
    };
    let mut rows: Vec<_> =
        stages.iter().map(|stage| line(format!("stage {stage}"), *stage)).collect();
    if own.iter().any(|h| h.stage == 0) {
        rows.push(line("look at first".to_owned(), 0));
    }
    let mut header = vec!["when".to_owned()];
    header.extend(names.iter().map(|class| format!(">{}", clean(class))));
    header.push("among them".to_owned());
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let watch = fleet
        .watch
        .iter()
        .map(|(metric, shows, stop)| row([metric.clone(), shows.clone(), stop.clone()], false));
    Section {
        title: "Rollout".to_owned(),
        note:
            "Hosts with most fast memory to spare under the answer go first. All hosts with their \
               stages are in fleet_hosts.parquet."
                .to_owned(),
        tables: vec![
            Sheet { columns: columns(&header), rows, ..Sheet::default() },
            Sheet {
                title: "What to watch".to_owned(),
                columns: columns(&["metric of terraced", "shows", "stop when"]),
                rows: watch.collect(),
                ..Sheet::default()
            },
        ],
        ..Section::default()
    }
}

fn left_out(fleet: &FleetPage) -> Section {
    let one = |l: &FleetLeftOutRow| {
        row([&l.host, &l.class, &l.path, &l.reason].map(|text| clean(text)), false)
    };
    let note = match fleet.left_out.len().saturating_sub(ROWS_MAX) {
        0 => String::new(),
        n => format!("{n} more are in fleet_left_out.parquet."),
    };
    Section {
        title: format!("Left out ({})", fleet.left_out.len()),
        note: "Histories that could not be used. Their hosts have no part in the answer for the \
               class."
            .to_owned(),
        tables: vec![Sheet {
            columns: columns(&["host", "class", "path", "reason"]),
            rows: fleet.left_out.iter().take(ROWS_MAX).map(one).collect(),
            note,
            ..Sheet::default()
        }],
        ..Section::default()
    }
}

fn how_to_read(fleet: &FleetPage) -> Section {
    let term = |name, meaning: String| Term { name, meaning };
    let plain = |name, meaning: &str| Term { name, meaning: meaning.to_owned() };
    Section {
        title: "How to read this".to_owned(),
        terms: vec![
            term(
                "share of a class",
                format!(
                    "fast memory of a host over its memory, enough for {} of the hosts",
                    percent_round(fleet.quantile)
                ),
            ),
            plain("share of a service", "what all of its groups need over what they have"),
            plain("upper share", "enough for the same part of the hosts of a service"),
            plain(
                "interval",
                "from hosts to hosts: another fleet of as many such hosts would have its answer \
                 there; it says nothing about errors of the model",
            ),
            plain("safe share", "enough at the upper end of the planner's errors too"),
            plain(
                "waits less, waits more",
                "the share where services wait for memory less or more than assumed",
            ),
            plain("overrun", "part of the hosts that need more than the share"),
            plain(
                "overrun as bought",
                "part of the hosts that need more than what is bought for the class's own latency",
            ),
        ],
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_names_escaped_and_says_what_is_missing() {
        let class = FleetClassRow {
            class: "<web>".to_owned(),
            slow_latency_ns: 180.0,
            own_latency: true,
            hosts: 3,
            fast_share: 0.4,
            ..FleetClassRow::default()
        };
        let host = |n: u64| FleetHostRow {
            host: format!("h{n}"),
            class: "<web>".to_owned(),
            slow_latency_ns: 180.0,
            own_latency: true,
            whole: true,
            fast_share: n as f64 / 10.0,
            stage: n,
            ..FleetHostRow::default()
        };
        let left = FleetLeftOutRow { path: "a&b".to_owned(), ..FleetLeftOutRow::default() };
        let page = FleetPage {
            quantile: 0.95,
            classes: vec![class],
            hosts: (0..3).map(host).collect(),
            left_out: vec![left],
            ..FleetPage::default()
        };
        let html = fleet_html(&page, &ReportMeta::default());
        assert!(html.contains("&lt;web&gt;") && !html.contains("<web>"));
        assert!(html.contains("too few hosts") && html.contains("Left out (1)"));
        assert!(html.contains("a&amp;b") && !html.contains("could not be made"));
        assert_eq!(html, fleet_html(&page, &ReportMeta::default()));
        // Nothing at all can be shown too.
        let empty = fleet_html(&FleetPage::default(), &ReportMeta::default());
        assert!(empty.ends_with("</html>\n") || empty.ends_with("</html>"), "{empty}");
    }
}
