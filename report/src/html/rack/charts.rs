//! Pictures of the rack: stacked bars, curves, and panels of lines over time.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use crate::format::{axis_number, shorten};
use crate::html::picture::{AXIS_WORDS, Fault, Ground, LABEL, TITLE, picture, px, stroke, words};
use crate::html::theme::{AXIS, Colour, GRID};

/// A line of a panel, or a part of a curve.
pub(super) struct Line {
    /// Its name in the legend.
    pub(super) name: String,
    /// Its colour.
    pub(super) colour: Colour,
    /// Its points.
    pub(super) points: Vec<(f64, f64)>,
}

/// Lines on one scale.
pub(super) struct Panel {
    /// Their quantity and unit.
    pub(super) title: String,
    /// The lines.
    pub(super) lines: Vec<Line>,
}

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 16.0;
const PANEL: f64 = 104.0;
const PANEL_TITLE: f64 = 22.0;
const AXIS_ROOM: f64 = 34.0;

/// Panels below one another on one axis of time.
pub(super) fn over_time(label: &str, panels: &[Panel], unit: &str) -> String {
    let height = panels.len() as f64 * PANEL + AXIS_ROOM;
    let end = panels
        .iter()
        .flat_map(|p| &p.lines)
        .flat_map(|l| &l.points)
        .map(|p| p.0)
        .fold(0.0, f64::max)
        .max(1e-9);
    picture((WIDTH as u32, height as u32), label, |ground| {
        for (n, panel) in panels.iter().enumerate() {
            let last = n + 1 == panels.len();
            draw_panel(ground, panel, n as f64 * PANEL, height, end, last)?;
        }
        words(ground, (WIDTH - RIGHT, height - 7.0), unit, AXIS_WORDS, HPos::Right)?;
        Ok(String::new())
    })
}

fn draw_panel(
    ground: &Ground,
    panel: &Panel,
    top: f64,
    height: f64,
    end: f64,
    last: bool,
) -> Result<(), Fault> {
    let values = || panel.lines.iter().flat_map(|l| &l.points).map(|p| p.1);
    let most = values().fold(0.0, f64::max);
    let least = values().fold(0.0, f64::min);
    let most = if most > least { most + (most - least) * 0.06 } else { least + 1.0 };
    let bottom = top + PANEL;
    words(ground, (LEFT, top + PANEL_TITLE * 0.6), &panel.title, TITLE, HPos::Left)?;
    // The legend, from the right.
    let mut x = WIDTH - RIGHT;
    for line in panel.lines.iter().rev() {
        words(ground, (x, top + PANEL_TITLE * 0.6), &line.name, LABEL, HPos::Right)?;
        x -= line.name.chars().count() as f64 * 6.7 + 6.0;
        let y = top + PANEL_TITLE * 0.6;
        let chip = [(px(x - 12.0), px(y - 2.0)), (px(x), px(y + 2.0))];
        ground.draw(&Rectangle::new(chip, line.colour.light.filled()))?;
        x -= 28.0;
    }
    let below = if last { AXIS_ROOM } else { 6.0 };
    let mut chart = ChartBuilder::on(ground)
        .margin_left(px(LEFT))
        .margin_right(px(RIGHT))
        .margin_top(px(top + PANEL_TITLE))
        .margin_bottom(
            px(height - bottom - if last { AXIS_ROOM } else { 0.0 }) + px(6.0) * i32::from(!last),
        )
        .x_label_area_size(if last { px(below) } else { 0 })
        .build_cartesian_2d(0.0..end, least..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_y_axis()
        .x_labels(12)
        .y_labels(3)
        .y_max_light_lines(1)
        .bold_line_style(stroke(GRID, 1.0))
        .light_line_style(TRANSPARENT)
        .axis_style(stroke(AXIS, 1.0))
        .x_label_style(AXIS_WORDS.style(HPos::Center, VPos::Top))
        .x_label_formatter(&|v| axis_number(*v))
        .draw()?;
    for value in [least, (least + most) / 2.0, most] {
        let plot = bottom - top - PANEL_TITLE - if last { 0.0 } else { 6.0 };
        let y = top + PANEL_TITLE + (most - value) / (most - least) * plot;
        words(
            ground,
            (LEFT - 6.0, y.min(bottom - 6.0)),
            &axis_number(round(value)),
            AXIS_WORDS,
            HPos::Right,
        )?;
    }
    for line in &panel.lines {
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), stroke(line.colour, 1.5)))?;
    }
    Ok(())
}

/// To three digits.
fn round(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let scale = 10f64.powi(2 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// A bar of parts one after the other.
pub(super) struct Stack {
    /// The name beside it.
    pub(super) name: String,
    /// Its parts.
    pub(super) parts: Vec<(f64, Colour)>,
}

const HALF: f64 = 540.0;
const ROW: f64 = 24.0;
const BAR: f64 = 13.0;
const NAMES: f64 = 70.0;

/// Bars of parts, on a scale that ends at `end`.
pub(super) fn stacks(label: &str, all: &[Stack], end: f64) -> String {
    let height = all.len() as f64 * ROW + 4.0;
    let end = end.max(1e-9);
    picture((HALF as u32, height as u32), label, |ground| {
        for (n, stack) in all.iter().enumerate() {
            let middle = 2.0 + (n as f64 + 0.5) * ROW;
            words(ground, (NAMES - 8.0, middle), &shorten(&stack.name, 10), LABEL, HPos::Right)?;
            let mut from = NAMES;
            for (value, colour) in &stack.parts {
                let to = from + value / end * (HALF - NAMES - 60.0);
                let corners =
                    [(px(from), px(middle - BAR / 2.0)), (px(to), px(middle + BAR / 2.0))];
                ground.draw(&Rectangle::new(corners, colour.light.filled()))?;
                from = to;
            }
            let sum: f64 = stack.parts.iter().map(|p| p.0).sum();
            words(ground, (from + 6.0, middle), &format!("{sum:.0}"), LABEL, HPos::Left)?;
        }
        Ok(String::new())
    })
}

/// Shares of 0 to 1 that grow over a logarithmic axis of nanoseconds.
pub(super) fn curves(label: &str, lines: &[Line]) -> String {
    let height = 190.0;
    let points = || lines.iter().flat_map(|l| &l.points);
    // Without a point the axis must still be finite: the drawing library searches its marks for
    // ever.
    let least = points().map(|p| p.0).fold(1e6, f64::min).max(1.0);
    let end = points().map(|p| p.0).fold(least * 2.0, f64::max);
    picture((HALF as u32, height as u32), label, |ground| {
        let mut chart = ChartBuilder::on(ground)
            .margin_left(px(44.0))
            .margin_right(px(24.0))
            .margin_top(px(8.0))
            .x_label_area_size(px(30.0))
            .build_cartesian_2d(least.log2()..end.log2(), 0.0..1.02)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_y_axis()
            .x_labels(9)
            .y_labels(4)
            .y_max_light_lines(1)
            .bold_line_style(stroke(GRID, 1.0))
            .light_line_style(TRANSPARENT)
            .axis_style(stroke(AXIS, 1.0))
            .x_label_style(AXIS_WORDS.style(HPos::Center, VPos::Top))
            .x_label_formatter(&|v| format!("{} ns", axis_number(round(v.exp2()))))
            .draw()?;
        for share in [0.0, 0.5, 1.0] {
            let y = 8.0 + (1.02 - share) / 1.02 * (height - 38.0);
            let text = format!("{:.0} %", share * 100.0);
            words(ground, (38.0, y), &text, AXIS_WORDS, HPos::Right)?;
        }
        for line in lines.iter().filter(|l| !l.points.is_empty()) {
            let points = line.points.iter().map(|(x, y)| (x.log2(), *y));
            // All of them took at most as long as the longest of any.
            let points = points.chain([(end.log2(), 1.0)]);
            chart.draw_series(LineSeries::new(points, stroke(line.colour, 1.6)))?;
        }
        Ok(String::new())
    })
}
