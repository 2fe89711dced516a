//! Lines over two axes: with bands of uncertainty, a target to stay below, and marked points.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::picture::{AXIS_WORDS, Fault, Ground, LABEL, picture, px, stroke, words};
use super::theme::{AXIS, Colour, GRID, INK, WRONG};

const WIDTH: f64 = 540.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 20.0;
const AXIS_ROOM: f64 = 44.0;
const TOP: f64 = 12.0;

/// One line.
pub(super) struct Curve {
    /// Its colour.
    pub(super) colour: Colour,
    /// Its points, by the first coordinate.
    pub(super) points: Vec<(f64, f64)>,
    /// Lower and upper ends at first coordinates; empty for no band.
    pub(super) band: Vec<(f64, f64, f64)>,
    /// Whether the points are joined.
    pub(super) joined: bool,
    /// Whether the points are dots.
    pub(super) dots: bool,
}

/// The options of a chart.
pub(super) struct Axes {
    /// The picture in words.
    pub(super) label: String,
    /// The ends of the axis to the right.
    pub(super) x: (f64, f64),
    /// The ends of the axis upwards.
    pub(super) y: (f64, f64),
    /// Name of the horizontal axis and format of its numbers.
    pub(super) x_title: String,
    pub(super) x_number: fn(f64) -> String,
    /// Format of the numbers on the vertical axis.
    pub(super) y_number: fn(f64) -> String,
    /// A level to stay below, and its name.
    pub(super) target: Option<(f64, String)>,
    /// Marked points, each with a word.
    pub(super) marks: Vec<(f64, f64, String)>,
}

/// A range around finite values that is not empty: from 0, with room above.
pub(super) fn range_from_zero(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let most = values.filter(|v| v.is_finite()).fold(0.0, f64::max);
    (0.0, if most > 0.0 { most * 1.08 } else { 1.0 })
}

/// A range around finite values that is not empty, with room on both sides.
pub(super) fn range_around(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    values.filter(|v| v.is_finite()).for_each(|v| (low, high) = (low.min(v), high.max(v)));
    if low > high {
        return (0.0, 1.0);
    }
    let room = if high > low { 0.06 * (high - low) } else { 0.5 * high.abs().max(1e-9) };
    (low - room, high + room)
}

/// Draws the lines.
pub(super) fn chart(curves: &[Curve], axes: &Axes) -> String {
    picture((WIDTH as u32, HEIGHT as u32), &axes.label, |ground| {
        draw(ground, curves, axes).map(|()| String::new())
    })
}

fn draw(ground: &Ground, curves: &[Curve], axes: &Axes) -> Result<(), Fault> {
    let (x, y) = (axes.x, axes.y);
    let mut chart = ChartBuilder::on(ground)
        .margin_top(px(TOP))
        .margin_right(px(RIGHT))
        .y_label_area_size(px(LEFT))
        .x_label_area_size(px(AXIS_ROOM))
        .build_cartesian_2d(x.0..x.1, y.0..y.1)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(6)
        .y_labels(6)
        .y_max_light_lines(1)
        .bold_line_style(stroke(GRID, 1.0))
        .light_line_style(TRANSPARENT)
        .axis_style(TRANSPARENT)
        .x_label_style(AXIS_WORDS.style(HPos::Center, VPos::Top))
        .y_label_style(AXIS_WORDS.style(HPos::Right, VPos::Center))
        .x_label_formatter(&|v| (axes.x_number)(*v))
        .y_label_formatter(&|v| (axes.y_number)(*v))
        .draw()?;
    let base = PathElement::new(vec![(x.0, y.0), (x.1, y.0)], stroke(AXIS, 1.0));
    chart.plotting_area().draw(&base)?;
    let finite = |p: &(f64, f64)| p.0.is_finite() && p.1.is_finite();
    let within = |p: (f64, f64)| (p.0.clamp(x.0, x.1), p.1.clamp(y.0, y.1));
    for curve in curves.iter().filter(|c| c.band.len() > 1) {
        let upper = curve.band.iter().map(|b| (b.0, b.2));
        let lower = curve.band.iter().rev().map(|b| (b.0, b.1));
        let around: Vec<_> = upper.chain(lower).filter(finite).map(within).collect();
        chart.draw_series([Polygon::new(around, curve.colour.light.mix(0.16))])?;
    }
    if let Some((level, _)) = &axes.target {
        let line = [(x.0, *level), (x.1, *level)];
        chart.draw_series(DashedLineSeries::new(line, px(5.0), px(4.0), stroke(WRONG, 1.25)))?;
    }
    for curve in curves {
        let points: Vec<_> = curve.points.iter().copied().filter(finite).map(within).collect();
        if curve.joined {
            let path = PathElement::new(points.clone(), stroke(curve.colour, 1.75));
            chart.plotting_area().draw(&path)?;
        }
        for &point in points.iter().filter(|_| curve.dots) {
            let dot = Circle::new(point, px(2.6), curve.colour.light.filled());
            chart.plotting_area().draw(&dot)?;
        }
    }
    // Place of a value of the axes, in shown pixels.
    let place = |p: (f64, f64)| {
        let along = (p.0 - x.0) / (x.1 - x.0);
        let up = (p.1 - y.0) / (y.1 - y.0);
        (
            LEFT + along * (WIDTH - LEFT - RIGHT),
            HEIGHT - AXIS_ROOM - up * (HEIGHT - AXIS_ROOM - TOP),
        )
    };
    if let Some((level, name)) = &axes.target {
        let (left, height) = place(within((x.0, *level)));
        words(ground, (left + 4.0, height - 8.0), name, AXIS_WORDS, HPos::Left)?;
    }
    for (at_x, at_y, text) in &axes.marks {
        let point = within((*at_x, *at_y));
        let ring = Circle::new(point, px(5.5), stroke(INK, 1.75));
        chart.plotting_area().draw(&ring)?;
        let (left, height) = place(point);
        let (shift, side) = match left > WIDTH * 0.6 {
            true => (-10.0, HPos::Right),
            false => (10.0, HPos::Left),
        };
        let height = if height < 30.0 { height + 14.0 } else { height - 13.0 };
        words(ground, (left + shift, height), text, LABEL, side)?;
    }
    let middle = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 9.0);
    words(ground, middle, &axes.x_title, AXIS_WORDS, HPos::Center)
}

#[cfg(test)]
mod tests {
    use super::super::theme::MUTED;
    use super::*;

    #[test]
    fn lines_of_nothing_and_of_nonsense_can_be_drawn() {
        for points in [vec![], vec![(0.5, 0.5)], vec![(f64::NAN, 1.0), (2.0, f64::INFINITY)]] {
            let band = points.iter().map(|p| (p.0, p.1 - 1.0, p.1 + 1.0)).collect();
            let y = range_from_zero(points.iter().map(|p| p.1));
            let curve = Curve { colour: MUTED, points, band, joined: true, dots: true };
            let axes = Axes {
                label: "<x>".to_owned(),
                x: range_around(std::iter::empty()),
                y,
                x_title: "a & b".to_owned(),
                x_number: |v| format!("{v:.1}"),
                y_number: |v| format!("{v:.1}"),
                target: Some((0.3, "target".to_owned())),
                marks: vec![(0.9, 0.9, "<mark>".to_owned())],
            };
            let svg = chart(&[curve], &axes);
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"), "{svg}");
            assert!(svg.contains("&lt;mark&gt;") && !svg.contains("<mark>"), "{svg}");
        }
    }
}
