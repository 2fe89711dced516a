//! A measure against the share of fast memory, a line per policy: how much fast memory is
//! enough. Drawn where the runs differ in that share.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::picture::{AXIS_WORDS, Fault, Ground, picture, px, stroke, words};
use super::theme::{AXIS, Colour, GRID, MUTED};
use crate::format::percent_round;

const WIDTH: f64 = 540.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 16.0;
const AXIS_ROOM: f64 = 44.0;

/// The hit ratios of one policy: share of fast memory, hit ratio.
pub(super) struct Line {
    /// Its colour.
    pub(super) colour: Colour,
    /// Its points, by share of fast memory.
    pub(super) points: Vec<(f64, f64)>,
}

/// Draws the lines.
pub(super) fn sweep(lines: &[Line], label: &str) -> String {
    picture((WIDTH as u32, HEIGHT as u32), label, |ground| {
        draw(ground, lines).map(|()| String::new())
    })
}

fn draw(ground: &Ground, lines: &[Line]) -> Result<(), Fault> {
    let mut chart = ChartBuilder::on(ground)
        .margin_top(px(8.0))
        .margin_right(px(RIGHT))
        .y_label_area_size(px(LEFT))
        .x_label_area_size(px(AXIS_ROOM))
        .build_cartesian_2d(0.0..1.0, 0.0..1.0)?;
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
        .x_label_formatter(&|v| percent_round(*v))
        .y_label_formatter(&|v| percent_round(*v))
        .draw()?;
    let base = PathElement::new(vec![(0.0, 0.0), (1.0, 0.0)], stroke(AXIS, 1.0));
    chart.plotting_area().draw(&base)?;
    let chance = [(0.0, 0.0), (1.0, 1.0)];
    chart.draw_series(DashedLineSeries::new(chance, px(2.0), px(4.0), stroke(MUTED, 1.0)))?;
    for line in lines {
        let path = PathElement::new(line.points.clone(), stroke(line.colour, 1.75));
        chart.plotting_area().draw(&path)?;
        for point in &line.points {
            let dot = Circle::new(*point, px(3.0), line.colour.light.filled());
            chart.plotting_area().draw(&dot)?;
        }
    }
    let middle = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 9.0);
    words(ground, middle, "fast memory, of the footprint", AXIS_WORDS, HPos::Center)
}
