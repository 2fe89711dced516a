//! Timelines: the runs of a panel period by period, charts below one another on one axis of
//! periods, with the choices of adaptive policies as bands.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use terrace_results::PeriodRow;

use super::picture::{AXIS_WORDS, Fault, Ground, LABEL, TITLE, escape, picture, px, stroke, words};
use super::theme::{AXIS, Colour, GRID, MUTED, Palette, WRONG};
use crate::format::{axis_number, clean, count, number, percent, percent_round, shorten};
use crate::results::Moves;

/// Width of the picture, as of the report.
pub(super) const WIDTH: f64 = 1100.0;
const LEFT: f64 = 96.0;
const RIGHT: f64 = 18.0;
const CHART_TITLE: f64 = 26.0;
const BAND: f64 = 20.0;
const AXIS_ROOM: f64 = 44.0;

/// One run's periods.
pub(super) struct Series<'a> {
    /// Its name in the panel.
    pub(super) name: String,
    /// The policy it ran under.
    pub(super) policy: &'a str,
    /// Which run of this policy in the panel it is: 0 is drawn solid, the others dashed.
    pub(super) repetition: usize,
    /// Its periods, in order.
    pub(super) periods: Vec<&'a PeriodRow>,
}

impl Series<'_> {
    /// Whether the policy applied others than itself.
    fn is_adaptive(&self) -> bool {
        self.periods.iter().any(|p| p.applied != self.policy)
    }

    /// The policies it applied, with the number of periods, most often first.
    pub(super) fn applied(&self) -> Vec<(&str, usize)> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for period in &self.periods {
            *counts.entry(&period.applied).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), *name));
        counts
    }
}

/// The input of a timeline.
pub(super) struct Timeline<'a> {
    /// The picture in words.
    pub(super) label: String,
    /// The runs.
    pub(super) series: Vec<Series<'a>>,
    /// Fast memory over memory, where it is the same for all.
    pub(super) fast_ratio: Option<f64>,
    /// Length of a period in words.
    pub(super) period: String,
    /// Most points that a line may have.
    pub(super) points_max: usize,
}

/// A point of a line: a period, or the mean of some.
#[derive(Clone)]
struct Point {
    /// First period.
    first: u64,
    hit_ratio: f64,
    stability: f64,
    moved: f64,
    failed: u64,
    lost: u64,
    applied: String,
}

impl Timeline<'_> {
    /// How many periods make a point.
    pub(super) fn periods_per_point(&self) -> u64 {
        let Some((first, last)) = self.extent() else { return 1 };
        ((last - first).saturating_add(1)).div_ceil(self.points_max.max(1) as u64).max(1)
    }

    fn extent(&self) -> Option<(u64, u64)> {
        let all = || self.series.iter().flat_map(|s| &s.periods).map(|p| p.period);
        Some((all().min()?, all().max()?))
    }

    /// Draws it; empty where there are no periods.
    pub(super) fn draw(&self, palette: &Palette) -> String {
        let Some((first, last)) = self.extent() else { return String::new() };
        let step = self.periods_per_point();
        let points: Vec<Vec<Point>> =
            self.series.iter().map(|s| points(&s.periods, first, step)).collect();
        let bands: Vec<usize> =
            (0..self.series.len()).filter(|i| self.series[*i].is_adaptive()).collect();

        // Linux's own mechanisms have no tracker: nobody knows their hit ratio.
        let is_known =
            |value: fn(&Point) -> f64| points.iter().flatten().any(|p| value(p).is_finite());
        let room = |is_known, height| if is_known { height } else { 0.0 };
        let (knows_hits, knows_stability) = (is_known(|p| p.hit_ratio), is_known(|p| p.stability));

        let hits = 0.0..room(knows_hits, CHART_TITLE + 230.0);
        let bands_height = if bands.is_empty() { 0.0 } else { bands.len() as f64 * BAND + 12.0 };
        let stability = hits.end + bands_height
            ..hits.end + bands_height + room(knows_stability, CHART_TITLE + 96.0);
        let moves = stability.end + 8.0..stability.end + 8.0 + CHART_TITLE + 120.0;
        let height = moves.end + AXIS_ROOM;

        picture((WIDTH as u32, height as u32), &self.label, |ground| {
            let x = first as f64 - 0.5..last as f64 + 0.5;
            let most = points.iter().flatten().map(|p| p.moved).fold(0.0, f64::max);
            let plot =
                Plot { ground, x: x.clone(), points: &points, timeline: self, palette, step };
            if knows_hits {
                let title = "Fast-memory hit ratio";
                plot.lines(hits.clone(), 0.0..1.0, &SHARES, title, &|p| p.hit_ratio)?;
            }
            plot.bands(hits.end + 8.0, &bands)?;
            let least = points.iter().flatten().map(|p| p.stability).fold(1.0, f64::min);
            // Most pages stay where they are: from 0 all lines would be at the top.
            let floor = ((least * 10.0).floor() / 10.0).clamp(0.0, 0.9);
            let title = match floor {
                0.0 => "Stability".to_owned(),
                floor => format!("Stability (axis begins at {})", percent_round(floor)),
            };
            if knows_stability {
                plot.lines(stability, floor..1.0, &SHARES_FEW, &title, &|p| p.stability)?;
            }
            let top = if most > 0.0 { most * 1.05 } else { 1.0 };
            plot.lines(moves.clone(), 0.0..top, &COUNTS, "Pages moved per period", &|p| p.moved)?;
            plot.axis(moves.end)?;
            Ok(plot.tooltips(moves.end))
        })
    }
}

/// Puts the periods of a run together into points: means of measures, the policy applied most.
fn points(periods: &[&PeriodRow], first: u64, step: u64) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    let mut bins: BTreeMap<u64, Vec<&PeriodRow>> = BTreeMap::new();
    for period in periods {
        bins.entry((period.period - first) / step).or_default().push(period);
    }
    for (bin, periods) in bins {
        let mean = |value: &dyn Fn(&PeriodRow) -> f64| {
            let known: Vec<f64> =
                periods.iter().map(|p| value(p)).filter(|v| v.is_finite()).collect();
            // No period with a value gives NaN: a gap in the line.
            known.iter().sum::<f64>() / known.len() as f64
        };
        let sum = |value: &dyn Fn(&PeriodRow) -> u64| {
            periods.iter().map(|p| value(p)).fold(0, u64::saturating_add)
        };
        let mut applied: Vec<(usize, &str)> = Vec::new();
        for period in &periods {
            match applied.iter_mut().find(|(_, name)| *name == period.applied) {
                Some((n, _)) => *n += 1,
                None => applied.push((1, &period.applied)),
            }
        }
        // Of those applied equally often the first, so that the order of the file decides.
        let most = applied.iter().rev().max_by_key(|(n, _)| *n).map_or("", |(_, name)| *name);
        points.push(Point {
            first: first + bin * step,
            // A period without accesses has no hit ratio; its row has 0.
            hit_ratio: mean(&|p| if p.accessed_pages > 0 { p.hit_ratio } else { f64::NAN }),
            stability: mean(&|p| p.stability),
            moved: mean(&|p| p.moved_pages() as f64),
            failed: sum(&|p| p.failed_pages()),
            lost: sum(&|p| p.lost_periods),
            applied: most.to_owned(),
        });
    }
    points
}

/// Format of the axis of a measure.
struct Measure {
    labels: usize,
    write: fn(f64) -> String,
    /// Whether the expected value without any policy is drawn: the share of fast memory.
    reference: bool,
}

const SHARES: Measure = Measure { labels: 6, write: percent_round, reference: true };
const SHARES_FEW: Measure = Measure { labels: 3, write: percent_round, reference: false };
const COUNTS: Measure = Measure { labels: 5, write: axis_number, reference: false };

struct Plot<'p, 'g> {
    ground: &'p Ground<'g>,
    x: Range<f64>,
    points: &'p [Vec<Point>],
    timeline: &'p Timeline<'p>,
    palette: &'p Palette,
    step: u64,
}

impl Plot<'_, '_> {
    /// The place of a period on the picture.
    fn place(&self, period: f64) -> f64 {
        LEFT + (period - self.x.start) / (self.x.end - self.x.start) * (WIDTH - LEFT - RIGHT)
    }

    /// The middle of a point's periods.
    fn middle(&self, point: &Point) -> f64 {
        point.first as f64 + (self.step - 1) as f64 / 2.0
    }

    /// A chart of one measure, a line per run.
    fn lines(
        &self,
        rows: Range<f64>,
        y: Range<f64>,
        measure: &Measure,
        title: &str,
        value: &dyn Fn(&Point) -> f64,
    ) -> Result<(), Fault> {
        words(self.ground, (LEFT, rows.start + CHART_TITLE / 2.0 - 1.0), title, TITLE, HPos::Left)?;
        let (_, height) = self.ground.dim_in_pixel();
        let area = self.ground.clone().margin(
            px(rows.start + CHART_TITLE),
            height as i32 - px(rows.end),
            px(0.0),
            px(RIGHT),
        );
        let mut chart = ChartBuilder::on(&area)
            .y_label_area_size(px(LEFT))
            .build_cartesian_2d(self.x.clone(), y.clone())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .y_labels(measure.labels)
            .y_max_light_lines(1)
            .bold_line_style(stroke(GRID, 1.0))
            .light_line_style(TRANSPARENT)
            .axis_style(TRANSPARENT)
            .x_labels(0)
            .y_label_style(AXIS_WORDS.style(HPos::Right, VPos::Center))
            .y_label_formatter(&|v| (measure.write)(*v))
            .draw()?;
        let plot = chart.plotting_area();
        for strip in self.lost() {
            plot.draw(&Rectangle::new(
                [(strip.start, y.start), (strip.end, y.end)],
                WRONG.light.mix(0.14).filled(),
            ))?;
        }
        let ends = vec![(self.x.start, y.start), (self.x.end, y.start)];
        plot.draw(&PathElement::new(ends, stroke(AXIS, 1.0)))?;
        if let Some(ratio) = self.timeline.fast_ratio.filter(|r| measure.reference && r.is_finite())
        {
            let ends = [(self.x.start, ratio), (self.x.end, ratio)];
            chart.draw_series(DashedLineSeries::new(ends, px(2.0), px(4.0), stroke(MUTED, 1.0)))?;
        }
        // An adaptive policy often does as well as the one it applies: its line is broad and is
        // beneath the others, so that both are visible.
        let all = || self.timeline.series.iter().zip(self.points);
        let adaptive = all().filter(|(series, _)| series.is_adaptive());
        for (series, points) in adaptive.chain(all().filter(|(series, _)| !series.is_adaptive())) {
            let colour = self.palette.of(series.policy);
            let width = if series.is_adaptive() { 3.5 } else { 1.5 };
            for part in self.unbroken(points, value) {
                match part.as_slice() {
                    [(x, y)] => {
                        let dot = Circle::new((*x, *y), px(2.0), colour.light.filled());
                        chart.plotting_area().draw(&dot)?;
                    }
                    _ if series.repetition == 0 => {
                        chart
                            .plotting_area()
                            .draw(&PathElement::new(part, stroke(colour, width)))?;
                    }
                    _ => {
                        let dash = px(3.0 + 3.0 * (series.repetition % 3) as f64);
                        chart.draw_series(DashedLineSeries::new(
                            part,
                            dash,
                            px(3.0),
                            stroke(colour, width),
                        ))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The parts of a line between missing values and missing periods.
    fn unbroken(&self, points: &[Point], value: &dyn Fn(&Point) -> f64) -> Vec<Vec<(f64, f64)>> {
        let mut parts: Vec<Vec<(f64, f64)>> = Vec::new();
        let mut next = None;
        for point in points {
            let y = value(point);
            if !y.is_finite() {
                next = None;
                continue;
            }
            let place = (self.middle(point), y);
            match parts.last_mut() {
                Some(part) if next == Some(point.first) => part.push(place),
                _ => parts.push(vec![place]),
            }
            next = point.first.checked_add(self.step);
        }
        parts
    }

    /// Lost periods of a tracker: the stretch just before the point that has them.
    fn lost(&self) -> Vec<Range<f64>> {
        let mut strips: Vec<(u64, u64)> = Vec::new();
        for point in self.points.iter().flatten().filter(|p| p.lost > 0) {
            strips.push((point.first.saturating_sub(point.lost), point.first));
        }
        strips.sort_unstable();
        strips.dedup();
        strips
            .into_iter()
            .map(|(from, to)| (from as f64 - 0.5).max(self.x.start)..to as f64 - 0.5)
            .filter(|strip| strip.end > strip.start)
            .collect()
    }

    /// A band for each adaptive run: the policies it applied, in their colours.
    fn bands(&self, top: f64, adaptive: &[usize]) -> Result<(), Fault> {
        for (row, &i) in adaptive.iter().enumerate() {
            let series = &self.timeline.series[i];
            let y = top + row as f64 * BAND;
            let name = format!("{} chose", shorten(&series.name, 12));
            words(self.ground, (LEFT - 8.0, y + BAND / 2.0 - 2.0), &name, LABEL, HPos::Right)?;
            let mut stretch: Option<(f64, f64, &str)> = None;
            let draw = |(from, to, applied): (f64, f64, &str)| {
                let (from, to) = (px(self.place(from)), px(self.place(to)));
                let colour = self.palette.of(applied).light;
                let corners = [(from, px(y)), (to, px(y + BAND - 5.0))];
                self.ground.draw(&Rectangle::new(corners, colour.filled()))
            };
            for point in &self.points[i] {
                let from = point.first as f64 - 0.5;
                let to = (from + self.step as f64).min(self.x.end);
                match &mut stretch {
                    Some((_, end, applied)) if *end == from && **applied == *point.applied => {
                        *end = to;
                    }
                    _ => {
                        if let Some(done) = stretch.replace((from, to, &point.applied)) {
                            draw(done)?;
                        }
                    }
                }
            }
            if let Some(last) = stretch {
                draw(last)?;
            }
        }
        Ok(())
    }

    /// The axis of periods, below all charts.
    fn axis(&self, top: f64) -> Result<(), Fault> {
        let area = self.ground.clone().margin(px(top) - 1, 0, px(LEFT), px(RIGHT));
        let mut chart = ChartBuilder::on(&area)
            .x_label_area_size(px(AXIS_ROOM) - 2)
            .build_cartesian_2d(self.x.clone(), 0.0..1.0)?;
        let whole = |v: &f64| if v.fract() == 0.0 { count(*v as u64) } else { String::new() };
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .x_labels(12)
            .axis_style(stroke(AXIS, 1.0))
            .x_label_style(AXIS_WORDS.style(HPos::Center, VPos::Top))
            .x_label_formatter(&whole)
            .draw()?;
        let title = format!("period (each {})", self.timeline.period);
        words(
            self.ground,
            ((LEFT + WIDTH - RIGHT) / 2.0, top + AXIS_ROOM - 9.0),
            &title,
            AXIS_WORDS,
            HPos::Center,
        )
    }

    /// Strips over the charts that name the values of all runs where the pointer rests.
    fn tooltips(&self, bottom: f64) -> String {
        let mut by_period: BTreeMap<u64, Vec<(usize, &Point)>> = BTreeMap::new();
        for (i, points) in self.points.iter().enumerate() {
            for point in points {
                by_period.entry(point.first).or_default().push((i, point));
            }
        }
        let mut out = String::from("<g class=\"tips\">");
        for (period, points) in by_period {
            let from = px(self.place(period as f64 - 0.5));
            let to = px(self.place(period as f64 - 0.5 + self.step as f64));
            let mut tip = format!("period {period}");
            if self.step > 1 {
                let _ = write!(tip, " to {}", period.saturating_add(self.step - 1));
            }
            for (i, point) in points {
                let series = &self.timeline.series[i];
                let _ = write!(
                    tip,
                    "\n{}: {}, {} moved",
                    series.name,
                    percent(point.hit_ratio),
                    number(point.moved)
                );
                if point.failed > 0 {
                    let _ = write!(tip, ", {} failed", count(point.failed));
                }
                if point.applied != series.policy {
                    let _ = write!(tip, " ({})", clean(&point.applied));
                }
            }
            let _ = write!(
                out,
                "<rect x=\"{from}\" y=\"0\" width=\"{}\" height=\"{}\"><title>{}</title></rect>",
                to - from,
                px(bottom),
                escape(&tip)
            );
        }
        out.push_str("</g>");
        out
    }
}

/// The colours of a legend: the policies of the runs and those that were chosen, once each.
pub(super) fn legend(timeline: &Timeline, palette: &Palette) -> Vec<(String, Colour)> {
    let mut names: Vec<&str> = Vec::new();
    let run = timeline.series.iter().map(|s| s.policy);
    let chosen = timeline.series.iter().flat_map(|s| s.applied().into_iter().map(|(name, _)| name));
    for name in run.chain(chosen) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.into_iter().map(|name| (clean(name), palette.of(name))).collect()
}
