//! The report of a plan: the answer in words, the curves it follows from, its price, its dependence
//! on latency.

use std::collections::BTreeMap;
use std::path::Path;

use terrace_results::{HeatRow, PlanAnswerRow, PlanFrontRow, PlanPointRow, PlanSensitivityRow};

use super::chart::{Axes, Curve, chart, range_around, range_from_zero};
use super::heat::{HeatMap, raster_max};
use super::page::{Entry, Finding, Page, Picture, Section, Sheet, Term, columns, render, row};
use super::picture::chip;
use super::theme::{HEAT, MUTED, PLACE, Palette};
use super::{ReportMeta, write_page};
use crate::error::ReportError;
use crate::format::{MISSING, axis_number, bytes, clean, percent, percent_round};

/// Panels of curves that are drawn: the tables hold the others.
const PANELS_MAX: usize = 24;

/// Rows of the table of the front.
const FRONT_MAX: usize = 60;

/// The result of a plan, for its report.
#[derive(Debug, Clone, Default)]
pub struct PlanPage {
    /// The answer, sentence by sentence, the first the most important.
    pub answer: Vec<String>,
    /// Its basis and its weaknesses.
    pub remarks: Vec<String>,
    /// A line below the title: programs, target.
    pub subtitle: String,
    /// Run time allowed over that with all memory fast.
    pub target: f64,
    /// Every point of every curve.
    pub points: Vec<PlanPointRow>,
    /// The least fast memory by program, machine and policy.
    pub answers: Vec<PlanAnswerRow>,
    /// The Pareto front.
    pub front: Vec<PlanFrontRow>,
    /// The dependence of the answer on latency.
    pub sensitivity: Vec<PlanSensitivityRow>,
    /// Heat maps of the recommended runs: run is the policy, group the program.
    pub heat: Vec<HeatRow>,
    /// Runs at trace fidelity: program, policy, round, share, predicted, measured.
    pub checked: Vec<(String, String, u64, f64, f64, f64)>,
    /// Variants at trace fidelity: program, variant, run time in ms, part of it that is saved.
    pub what_if: Vec<(String, String, f64, f64)>,
    /// The configuration of the daemon.
    pub configuration: String,
    /// Sources and settings of the plan: name and value.
    pub facts: Vec<(String, String)>,
}

/// The report of a plan as one HTML file that needs nothing else.
pub fn plan_html(plan: &PlanPage, meta: &ReportMeta) -> String {
    let names = plan.answers.iter().map(|a| a.policy.as_str());
    let palette = Palette::of_names(names);
    let mut page = Page { subtitle: plan.subtitle.clone(), ..Page::default() };
    let kind = |n: usize| if n == 0 { "good" } else { "plain" };
    let finding = |(n, text): (usize, &String)| Finding { kind: kind(n), text: text.clone() };
    page.findings.extend(plan.answer.iter().enumerate().map(finding));
    page.findings.extend(plan.remarks.iter().map(|r| Finding { kind: "note", text: r.clone() }));
    page.sections.push(curves(plan, &palette));
    page.sections.push(Section {
        title: "Least fast memory by policy and machine".to_owned(),
        tables: vec![answers(plan)],
        ..Section::default()
    });
    if !plan.front.is_empty() {
        page.sections.push(prices(plan, &palette));
    }
    if !plan.checked.is_empty() {
        page.sections.push(checked(plan));
    }
    if !plan.what_if.is_empty() {
        page.sections.push(what_if(plan));
    }
    if plan.sensitivity.len() > 1 {
        page.sections.push(sensitivity(plan, &palette));
    }
    page.sections.extend(heat(plan));
    page.sections.push(errors(plan));
    page.sections.push(Section {
        title: "Configuration of terraced".to_owned(),
        text: plan.configuration.clone(),
        ..Section::default()
    });
    page.sections.push(Section {
        title: "What was planned from".to_owned(),
        tables: vec![Sheet {
            columns: columns(&["what", "value"]),
            rows: plan.facts.iter().map(|(n, v)| row([n.clone(), v.clone()], false)).collect(),
            ..Sheet::default()
        }],
        ..Section::default()
    });
    page.sections.push(how_to_read());
    render(&page, meta)
}

/// Writes it, whole or not at all.
pub fn write_plan_html(path: &Path, plan: &PlanPage, meta: &ReportMeta) -> Result<(), ReportError> {
    write_page(path, &plan_html(plan, meta))
}

/// A price, with more places where it is small.
fn money(cost: f64) -> String {
    if cost == 0.0 || cost.abs() >= 1.0 { format!("{cost:.2}") } else { format!("{cost:.4}") }
}

fn over(slowdown: f64) -> String {
    format!("{:.1} %", 100.0 * (slowdown - 1.0))
}

/// Curves by program and machine.
fn panels(points: &[PlanPointRow]) -> BTreeMap<(String, String), Vec<&PlanPointRow>> {
    let mut panels: BTreeMap<_, Vec<&PlanPointRow>> = BTreeMap::new();
    for p in points {
        panels.entry((p.program.clone(), p.machine.clone())).or_default().push(p);
    }
    panels
}

fn curves(plan: &PlanPage, palette: &Palette) -> Section {
    let mut figures = Vec::new();
    for ((program, machine), points) in panels(&plan.points).into_iter().take(PANELS_MAX) {
        let mut by_policy: BTreeMap<&str, Vec<&PlanPointRow>> = BTreeMap::new();
        points.iter().for_each(|p| by_policy.entry(&p.policy).or_default().push(p));
        let here = |a: &&PlanAnswerRow| a.program == program && a.machine == machine;
        let chosen = plan.answers.iter().filter(here).find(|a| a.recommended);
        // One band: of the recommendation, else of the policy that needs least.
        let least = plan.answers.iter().filter(here).min_by(|a, b| {
            let share = |r: &PlanAnswerRow| r.fast_share.unwrap_or(2.0);
            share(a).total_cmp(&share(b))
        });
        let banded = chosen.or(least).map(|a| a.policy.as_str());
        let lines: Vec<Curve> = by_policy
            .iter()
            .map(|(policy, points)| Curve {
                colour: palette.of(policy),
                points: points.iter().map(|p| (p.fast_share, p.slowdown - 1.0)).collect(),
                band: match banded == Some(*policy) {
                    true => {
                        points.iter().map(|p| (p.fast_share, p.low - 1.0, p.high - 1.0)).collect()
                    }
                    false => Vec::new(),
                },
                joined: true,
                dots: true,
            })
            .collect();
        let highest = points.iter().map(|p| p.high - 1.0).chain([1.3 * (plan.target - 1.0)]);
        let marks = chosen.and_then(|a| {
            let (share, slowdown) = (a.fast_share?, a.slowdown?);
            Some((share, slowdown - 1.0, format!("{}: {}", a.policy, percent(share))))
        });
        let axes = Axes {
            label: format!("Slowdown of {} against fast memory", clean(&program)),
            x: (0.0, 1.0),
            y: range_from_zero(highest),
            x_title: "fast memory, of the footprint".to_owned(),
            x_number: percent_round,
            y_number: percent_round,
            target: Some((plan.target - 1.0, format!("target {}", over(plan.target)))),
            marks: marks.into_iter().collect(),
        };
        let entry = |policy: &&str| Entry { chip: chip(palette.of(policy)), name: clean(policy) };
        figures.push(Picture {
            title: format!("{}, {}", clean(&program), clean(&machine)),
            note: format!("band: about 95 % of cases, {}", clean(banded.unwrap_or_default())),
            legend: by_policy.keys().map(entry).collect(),
            svg: chart(&lines, &axes),
        });
    }
    let all = panels(&plan.points).len();
    let more = match all.saturating_sub(PANELS_MAX) {
        0 => String::new(),
        n => format!(" {n} more are in plan_points.parquet."),
    };
    Section {
        title: "Slowdown against fast memory".to_owned(),
        note: format!(
            "Upwards: extra run time over all memory fast. To the right: share of the program's \
             memory that is fast. Less is better on both; the dashed line is the target, the ring \
             the answer.{more}"
        ),
        figures,
        ..Section::default()
    }
}

fn or_missing<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or(MISSING.to_owned(), show)
}

fn answers(plan: &PlanPage) -> Sheet {
    let priced = plan.answers.iter().any(|a| a.cost.is_some());
    let measured = plan.answers.iter().any(|a| a.measured_slowdown.is_some());
    let mut names = vec![
        "program",
        "machine",
        ">slow tier",
        "policy",
        ">fast memory",
        ">share",
        ">slowdown",
        ">from",
        ">to",
        ">safe share",
    ];
    if measured {
        names.push(">measured");
    }
    if priced {
        names.push(">cost");
    }
    let one = |a: &PlanAnswerRow| {
        let mut cells = vec![
            clean(&a.program),
            clean(&a.machine),
            format!("{:.0} ns, {:.0} GB/s", a.slow_latency_ns, a.slow_gb_per_s),
            clean(&a.policy),
            or_missing(a.fast_bytes, |b| bytes(b as f64)),
            or_missing(a.fast_share, percent),
            or_missing(a.slowdown, over),
            or_missing(a.low, over),
            or_missing(a.high, over),
            or_missing(a.safe_fast_share, percent),
        ];
        if measured {
            cells.push(or_missing(a.measured_slowdown, over));
        }
        if priced {
            cells.push(or_missing(a.cost, money));
        }
        row(cells, a.recommended)
    };
    Sheet {
        columns: columns(&names),
        rows: plan.answers.iter().map(one).collect(),
        note:
            "Bold: what is recommended. Safe share: even the upper end of the interval meets the \
               target. A dash: not reached."
                .to_owned(),
        ..Sheet::default()
    }
}

fn prices(plan: &PlanPage, palette: &Palette) -> Section {
    let programs: std::collections::BTreeSet<&str> =
        plan.front.iter().map(|f| f.program.as_str()).collect();
    let mut figures = Vec::new();
    for program in programs.into_iter().take(PANELS_MAX) {
        let all: Vec<(f64, f64)> = plan
            .points
            .iter()
            .filter(|p| p.program == program)
            .filter_map(|p| Some((p.cost?, p.slowdown - 1.0)))
            .collect();
        let front: Vec<_> = plan.front.iter().filter(|f| f.program == program).collect();
        let mut lines = vec![Curve {
            colour: MUTED,
            points: all.clone(),
            band: Vec::new(),
            joined: false,
            dots: true,
        }];
        let best = front.iter().map(|f| (f.cost, f.slowdown - 1.0)).collect();
        let colour = front.first().map_or(MUTED, |f| palette.of(&f.policy));
        lines.push(Curve { colour, points: best, band: Vec::new(), joined: true, dots: true });
        let chosen = plan.answers.iter().find(|a| a.recommended && a.program == program);
        let mark = chosen.and_then(|a| {
            let (cost, slowdown) = (a.cost?, a.slowdown?);
            Some((cost, slowdown - 1.0, format!("{}: {}", money(cost), a.policy)))
        });
        let axes = Axes {
            label: format!("Cost of memory against slowdown of {}", clean(program)),
            x: range_around(all.iter().map(|p| p.0)),
            y: range_from_zero(all.iter().map(|p| p.1)),
            x_title: "cost of the memory".to_owned(),
            x_number: axis_number,
            y_number: percent_round,
            target: Some((plan.target - 1.0, format!("target {}", over(plan.target)))),
            marks: mark.into_iter().collect(),
        };
        figures.push(Picture {
            title: clean(program),
            note: "line: choices that nothing beats; dots: all others".to_owned(),
            legend: Vec::new(),
            svg: chart(&lines, &axes),
        });
    }
    let one = |f: &PlanFrontRow| {
        row(
            [
                clean(&f.program),
                clean(&f.machine),
                clean(&f.policy),
                percent(f.fast_share),
                money(f.cost),
                over(f.slowdown),
            ],
            f.slowdown <= plan.target + 1e-6,
        )
    };
    Section {
        title: "Cost against slowdown".to_owned(),
        note: "Upwards: extra run time. To the right: what fast and slow memory cost together, in \
               the currency of the prices given."
            .to_owned(),
        figures,
        tables: vec![Sheet {
            title: "Choices that nothing beats".to_owned(),
            columns: columns(&["program", "machine", "policy", ">share", ">cost", ">slowdown"]),
            rows: plan.front.iter().take(FRONT_MAX).map(one).collect(),
            note: "Bold: within the target. All are in plan_front.parquet.".to_owned(),
        }],
        ..Section::default()
    }
}

fn checked(plan: &PlanPage) -> Section {
    let rows = plan.checked.iter().map(|(program, policy, round, share, predicted, measured)| {
        row(
            [
                clean(program),
                clean(policy),
                round.to_string(),
                percent(*share),
                over(*predicted),
                over(*measured),
                format!("{:+.1}", 100.0 * (measured - predicted)),
                format!("{:+.1}", 100.0 * (measured - plan.target)),
            ],
            false,
        )
    });
    Section {
        title: "Checked by running it".to_owned(),
        note: "The answer run at trace fidelity, where every load and store is simulated. A round \
               after the first is the answer corrected by the one before."
            .to_owned(),
        tables: vec![Sheet {
            columns: columns(&[
                "program",
                "policy",
                ">round",
                ">share",
                ">predicted",
                ">measured",
                ">off prediction, points",
                ">off target, points",
            ]),
            rows: rows.collect(),
            ..Sheet::default()
        }],
        ..Section::default()
    }
}

fn what_if(plan: &PlanPage) -> Section {
    let rows = plan.what_if.iter().map(|(program, variant, ms, gain)| {
        let gain =
            if gain.abs() < 5e-4 { "0.0 %".to_owned() } else { format!("{:+.1} %", 100.0 * gain) };
        row([clean(program), variant.clone(), format!("{ms:.2}"), gain], false)
    });
    Section {
        title: "Page tables and huge pages".to_owned(),
        note:
            "The answer run at trace fidelity with its page tables elsewhere, and with huge pages."
                .to_owned(),
        tables: vec![Sheet {
            columns: columns(&["program", "variant", ">run time, ms", ">run time saved"]),
            rows: rows.collect(),
            ..Sheet::default()
        }],
        ..Section::default()
    }
}

fn sensitivity(plan: &PlanPage, palette: &Palette) -> Section {
    let mut programs: BTreeMap<&str, Vec<&PlanSensitivityRow>> = BTreeMap::new();
    plan.sensitivity.iter().for_each(|s| programs.entry(&s.program).or_default().push(s));
    let figure = |(program, rows): (&&str, &Vec<&PlanSensitivityRow>)| {
        let colour = rows.first().map_or(MUTED, |r| palette.of(&r.policy));
        let points: Vec<_> =
            rows.iter().filter_map(|r| Some((r.slow_latency_ns, r.fast_share?))).collect();
        let axes = Axes {
            label: format!("Least fast memory of {} against latency", clean(program)),
            x: range_around(rows.iter().map(|r| r.slow_latency_ns)),
            y: (0.0, 1.0),
            x_title: "latency of slow memory, ns".to_owned(),
            x_number: |v| format!("{v:.0}"),
            y_number: percent_round,
            target: None,
            marks: Vec::new(),
        };
        let lines = [Curve { colour, points, band: Vec::new(), joined: true, dots: true }];
        Picture {
            title: clean(program),
            note: "least share of fast memory for the target".to_owned(),
            legend: Vec::new(),
            svg: chart(&lines, &axes),
        }
    };
    let one = |s: &PlanSensitivityRow| {
        row(
            [
                clean(&s.program),
                clean(&s.policy),
                format!("{:.0} ns", s.slow_latency_ns),
                or_missing(s.fast_share, percent),
                over(s.slowdown_as_recommended),
            ],
            false,
        )
    };
    Section {
        title: "What the answer hangs on: latency".to_owned(),
        note: "The recommended policy beside slow memory of other latencies.".to_owned(),
        figures: programs.iter().map(figure).take(PANELS_MAX).collect(),
        tables: vec![Sheet {
            columns: columns(&[
                "program",
                "policy",
                ">slow latency",
                ">least share",
                ">slowdown as recommended",
            ]),
            rows: plan.sensitivity.iter().map(one).collect(),
            ..Sheet::default()
        }],
        ..Section::default()
    }
}

fn heat(plan: &PlanPage) -> Option<Section> {
    let mut maps: BTreeMap<(&str, &str), Vec<&HeatRow>> = BTreeMap::new();
    plan.heat.iter().for_each(|h| maps.entry((&h.group, &h.run)).or_default().push(h));
    let size = raster_max(maps.len());
    let figures: Vec<_> = maps
        .iter()
        .take(PANELS_MAX)
        .filter_map(|((program, policy), bins)| {
            let map = HeatMap::new(bins, size)?;
            let title = format!("{}, as recommended under {}", clean(program), clean(policy));
            Some(Picture { svg: map.draw(&title), title, note: String::new(), legend: Vec::new() })
        })
        .collect();
    let ramp = |ramp: &super::theme::Ramp| {
        format!("<i class=\"ramp\" style=\"background-image:{}\"></i>", ramp.css())
    };
    (!figures.is_empty()).then(|| {
        let mut figures = figures;
        if let Some(first) = figures.first_mut() {
            first.legend = vec![
                Entry { chip: ramp(&HEAT), name: "accessed share, 0 to 100 %".to_owned() },
                Entry { chip: ramp(&PLACE), name: "share in fast memory".to_owned() },
            ];
        }
        Section {
            title: "Page heat and placement".to_owned(),
            note: "Addresses upwards, periods to the right. A good placement makes the right \
                   picture blue wherever the left one is red."
                .to_owned(),
            full: true,
            figures,
            ..Section::default()
        }
    })
}

fn errors(plan: &PlanPage) -> Section {
    let mut rows = Vec::new();
    for a in plan.answers.iter().filter(|a| a.recommended) {
        let near = plan
            .points
            .iter()
            .filter(|p| p.program == a.program && p.machine == a.machine && p.policy == a.policy)
            .min_by(|x, y| {
                let off = |p: &PlanPointRow| (p.fast_share - a.fast_share.unwrap_or(0.0)).abs();
                off(x).total_cmp(&off(y))
            });
        let Some(p) = near else { continue };
        let points = |v: f64| format!("{:.1}", 100.0 * v);
        rows.push(row(
            [
                clean(&a.program),
                percent(p.fast_share),
                points(p.model_error),
                points(p.seed_error),
                points(p.reads_error),
                points(p.waiting_error),
                points(p.high - p.slowdown),
            ],
            false,
        ));
    }
    Section {
        title: "How sure the prediction is".to_owned(),
        note: "Halves of intervals that hold about 95 % of cases, in points of slowdown, at the \
               answer before any check."
            .to_owned(),
        tables: vec![Sheet {
            columns: columns(&[
                "program",
                ">share",
                ">model",
                ">seeds",
                ">reads",
                ">waiting",
                ">all together",
            ]),
            rows,
            ..Sheet::default()
        }],
        terms: vec![
            Term {
                name: "model",
                meaning: "interval simulation against trace-driven simulation, as measured by 'make bench \
                          BENCH=plan'"
                    .to_owned(),
            },
            Term { name: "seeds", meaning: "the policy's spread over seeds".to_owned() },
            Term {
                name: "reads",
                meaning: "the rule by which slow reads make time, where pages are split otherwise \
                          than when the profile was made"
                    .to_owned(),
            },
            Term {
                name: "waiting",
                meaning: "for recordings without costs: the assumed share of time spent waiting \
                          for memory, and the number of samples"
                    .to_owned(),
            },
        ],
        ..Section::default()
    }
}

fn how_to_read() -> Section {
    let term = |name, meaning: &str| Term { name, meaning: meaning.to_owned() };
    Section {
        title: "How to read this".to_owned(),
        terms: vec![
            term(
                "slowdown",
                "run time over that with all memory fast, less 1; 0 % is as fast as can be",
            ),
            term(
                "fast memory",
                "as a share of all memory that the program used while it was recorded",
            ),
            term("policy", "who decides which pages are fast; 'first-touch' moves nothing"),
            term("latency", "of an idle read beyond the processor's caches"),
            term(
                "another machine",
                "waiting for memory grows with its latency (leading-load model), and reads take the \
                 tier's bandwidth at least",
            ),
        ],
        ..Section::default()
    }
}
