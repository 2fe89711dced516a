//! Charts of any table of values: groups of bars, lines, and stacked bars, each a self-contained
//! SVG. The caller names the rows and the series.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::picture::{AXIS_WORDS, Fault, Ground, LABEL, picture, px, stroke, upward, words};
use super::theme::{AXIS, Colour, GRID, INK, series_colour};
use crate::format::{axis_number, shorten};

/// Size of a chart in shown pixels.
const WIDTH: f64 = 860.0;
const PLOT: f64 = 250.0;
/// Room to the left for numbers and the axis's name.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 14.0;
const LEGEND_LINE: f64 = 20.0;
const CHAR: f64 = 6.9;
/// Width of a digit of a number above a bar, and height of a line of it.
const DIGIT: f64 = 6.2;
const NUMBER_LINE: f64 = 10.0;

/// The options common to all charts.
pub struct Chart<'a> {
    /// The picture in words.
    pub label: &'a str,
    /// Name of the horizontal axis.
    pub x: &'a str,
    /// Name of the vertical axis.
    pub y: &'a str,
    /// Whether the horizontal axis of lines is logarithmic.
    pub log_x: bool,
    /// A value to compare with, drawn across.
    pub line: Option<f64>,
    /// Format of a value above a bar.
    pub number: fn(f64) -> String,
}

/// One series: a value for each row, where there is one.
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its values, in the order of rows.
    pub values: Vec<Option<f64>>,
}

/// A group of bars for each row, one for each series.
pub fn bars(chart: &Chart<'_>, rows: &[String], series: &[Series]) -> String {
    let top = highest(chart, series.iter().flat_map(|s| s.values.iter().flatten().copied()));
    // Room for a number along the highest bar.
    let top = top * 1.06;
    upright(chart, rows, series, top, |ground, frame| {
        let group = frame.width() / rows.len().max(1) as f64;
        let bar = (group * 0.84 / series.len().max(1) as f64).min(34.0);
        for row in 0..rows.len() {
            let middle = frame.left + group * (row as f64 + 0.5);
            let mut x = middle - bar * series.len() as f64 / 2.0;
            for (index, one) in series.iter().enumerate() {
                if let Some(value) = one.values.get(row).copied().flatten() {
                    let ends = [(x + 0.5, frame.y(value, top)), (x + bar - 0.5, frame.bottom)];
                    rectangle(ground, ends, series_colour(&one.name, index))?;
                    let text = (chart.number)(value);
                    let wide = DIGIT * text.chars().count() as f64;
                    let above = frame.y(value, top);
                    if bar > wide + 4.0 {
                        let at = (x + bar / 2.0, above - 8.0);
                        words(ground, at, &text, AXIS_WORDS, HPos::Center)?;
                    } else if bar >= NUMBER_LINE {
                        // Along the bar: numbers of neighbours do not touch.
                        upward(ground, (x + bar / 2.0, above - 4.0), &text, AXIS_WORDS)?;
                    }
                }
                x += bar;
            }
        }
        Ok(())
    })
}

/// A bar for each row, in which the series are stacked.
pub fn stacks(chart: &Chart<'_>, rows: &[String], series: &[Series]) -> String {
    let of = |row: usize| {
        series.iter().filter_map(move |s| s.values.get(row).copied().flatten()).sum::<f64>()
    };
    let top = highest(chart, (0..rows.len()).map(of));
    upright(chart, rows, series, top, |ground, frame| {
        let group = frame.width() / rows.len().max(1) as f64;
        let bar = (group * 0.6).min(60.0);
        for row in 0..rows.len() {
            let x = frame.left + group * (row as f64 + 0.5) - bar / 2.0;
            let mut below = 0.0;
            for (index, one) in series.iter().enumerate() {
                let value = one.values.get(row).copied().flatten().unwrap_or(0.0).max(0.0);
                let ends = [(x, frame.y(below + value, top)), (x + bar, frame.y(below, top))];
                rectangle(ground, ends, series_colour(&one.name, index))?;
                below += value;
            }
            let at = (x + bar / 2.0, frame.y(below, top) - 8.0);
            words(ground, at, &(chart.number)(below), AXIS_WORDS, HPos::Center)?;
        }
        Ok(())
    })
}

/// A line for each series over rows that are numbers.
pub fn lines(chart: &Chart<'_>, rows: &[f64], series: &[Series]) -> String {
    let top = highest(chart, series.iter().flat_map(|s| s.values.iter().flatten().copied()));
    let place = |value: f64| if chart.log_x { value.max(f64::MIN_POSITIVE).log2() } else { value };
    let (first, last) = rows
        .iter()
        .map(|&r| place(r))
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), r| (a.min(r), b.max(r)));
    let span = if last > first { last - first } else { 1.0 };
    let names: Vec<String> = rows.iter().map(|r| axis_number(*r)).collect();
    framed(chart, series, PLOT + 46.0, top, |ground, frame| {
        let x =
            |value: f64| frame.left + 16.0 + (place(value) - first) / span * (frame.width() - 32.0);
        // Names that would touch the one before are left out.
        let mut free = f64::NEG_INFINITY;
        for (row, name) in rows.iter().zip(&names) {
            let half = name.chars().count() as f64 * CHAR / 2.0;
            if x(*row) - half > free {
                words(ground, (x(*row), frame.bottom + 12.0), name, AXIS_WORDS, HPos::Center)?;
                free = x(*row) + half + 6.0;
            }
        }
        let at = (frame.left + frame.width() / 2.0, frame.bottom + 30.0);
        words(ground, at, chart.x, LABEL, HPos::Center)?;
        for (index, one) in series.iter().enumerate() {
            let colour = series_colour(&one.name, index);
            let points: Vec<(i32, i32)> = rows
                .iter()
                .zip(&one.values)
                .filter_map(|(row, value)| Some((px(x(*row)), px(frame.y((*value)?, top)))))
                .collect();
            ground.draw(&PathElement::new(points.clone(), stroke(colour, 2.0)))?;
            if points.len() <= 40 {
                for point in points {
                    ground.draw(&Circle::new(point, px(3.0), colour.light_fill()))?;
                }
            }
        }
        Ok(())
    })
}

/// Where values are drawn, in shown pixels.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    fn width(&self) -> f64 {
        self.right - self.left
    }

    fn y(&self, value: f64, top: f64) -> f64 {
        self.bottom - (value / top).clamp(0.0, 1.0) * (self.bottom - self.top)
    }
}

/// The end of the vertical axis.
fn highest(chart: &Chart<'_>, values: impl Iterator<Item = f64>) -> f64 {
    let most = values.filter(|v| v.is_finite()).fold(chart.line.unwrap_or(0.0), f64::max);
    if most > 0.0 { most * 1.1 } else { 1.0 }
}

/// A chart whose rows are names below it.
fn upright(
    chart: &Chart<'_>,
    rows: &[String],
    series: &[Series],
    top: f64,
    paint: impl FnOnce(&Ground, &Frame) -> Result<(), Fault>,
) -> String {
    let group = (WIDTH - LEFT - RIGHT) / rows.len().max(1) as f64;
    let longest = rows.iter().map(|r| r.chars().count()).max().unwrap_or(0).min(22);
    // Names that do not fit side by side are set at a slant, in steps.
    let steps = ((longest as f64 * CHAR + 8.0) / group).ceil().max(1.0);
    framed(chart, series, PLOT + 14.0 + steps * 15.0, top, |ground, frame| {
        for (index, row) in rows.iter().enumerate() {
            let x = frame.left + group * (index as f64 + 0.5);
            let y = frame.bottom + 12.0 + (index as f64 % steps) * 15.0;
            words(ground, (x, y), &shorten(row, 22), AXIS_WORDS, HPos::Center)?;
        }
        paint(ground, frame)
    })
}

/// Axes, grid and legend, and what is painted among them.
fn framed(
    chart: &Chart<'_>,
    series: &[Series],
    height: f64,
    top: f64,
    paint: impl FnOnce(&Ground, &Frame) -> Result<(), Fault>,
) -> String {
    let legend = legend(series);
    let legend_lines = legend.last().map_or(0.0, |(_, _, line)| *line + 1.0);
    let above = 30.0 + legend_lines * LEGEND_LINE;
    let height = above + height;
    picture((WIDTH as u32, height.ceil() as u32), chart.label, |ground| {
        let frame = Frame { left: LEFT, right: WIDTH - RIGHT, top: above, bottom: above + PLOT };
        words(ground, (4.0, 12.0), chart.y, LABEL, HPos::Left)?;
        for (index, (x, name, line)) in legend.iter().enumerate() {
            let y = 34.0 + line * LEGEND_LINE;
            let colour = series_colour(&series[index].name, index);
            rectangle(ground, [(*x, y - 5.0), (x + 10.0, y + 5.0)], colour)?;
            words(ground, (x + 15.0, y), name, AXIS_WORDS, HPos::Left)?;
        }
        for value in ticks(top) {
            let y = frame.y(value, top);
            let line = vec![(px(frame.left), px(y)), (px(frame.right), px(y))];
            ground.draw(&PathElement::new(line, stroke(GRID, 1.0)))?;
            let style = AXIS_WORDS.style(HPos::Right, VPos::Center);
            let text = Text::new(axis_number(value), (px(frame.left - 8.0), px(y)), style);
            ground.draw(&text)?;
        }
        paint(ground, &frame)?;
        let bottom = vec![(px(frame.left), px(frame.bottom)), (px(frame.right), px(frame.bottom))];
        ground.draw(&PathElement::new(bottom, stroke(AXIS, 1.0)))?;
        if let Some(value) = chart.line {
            let y = px(frame.y(value, top));
            let line = vec![(px(frame.left), y), (px(frame.right), y)];
            ground.draw(&PathElement::new(line, stroke(INK, 1.0)))?;
        }
        Ok(String::new())
    })
}

/// Place of each series' name: from the left, its text, its line.
fn legend(series: &[Series]) -> Vec<(f64, String, f64)> {
    let (mut x, mut line) = (4.0, 0.0);
    let mut places = Vec::new();
    for one in series {
        let name = shorten(&one.name, 34);
        let wide = 30.0 + name.chars().count() as f64 * CHAR;
        if x + wide > WIDTH && x > 4.0 {
            (x, line) = (4.0, line + 1.0);
        }
        places.push((x, name, line));
        x += wide;
    }
    places
}

/// Round numbers from 0 to the end of the axis.
fn ticks(top: f64) -> Vec<f64> {
    let rough = top / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999);
    let step = step.unwrap_or(rough);
    (0..=(top / step).floor() as u64).map(|i| i as f64 * step).collect()
}

fn rectangle(ground: &Ground, ends: [(f64, f64); 2], colour: Colour) -> Result<(), Fault> {
    let ends = ends.map(|(x, y)| (px(x), px(y)));
    ground.draw(&Rectangle::new(ends, colour.light_fill()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(log_x: bool, line: Option<f64>) -> Chart<'static> {
        Chart { label: "<l>", x: "x", y: "y", log_x, line, number: axis_number }
    }

    #[test]
    fn charts_of_nothing_and_of_nonsense_can_be_drawn() {
        for value in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(1e300), Some(2.5)] {
            let series = || vec![Series { name: "<a&b>".to_owned(), values: vec![value] }];
            let rows = vec!["<row>".to_owned()];
            let pictures = [
                bars(&chart(false, None), &rows, &series()),
                stacks(&chart(false, Some(1.0)), &rows, &series()),
                lines(&chart(true, None), &[0.0], &series()),
                bars(&chart(false, None), &[], &[]),
                lines(&chart(false, None), &[], &[]),
            ];
            for svg in pictures {
                assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"), "{svg}");
                assert!(!svg.contains("<a&b>") && !svg.contains("<row>"), "{svg}");
            }
        }
    }

    #[test]
    fn higher_values_have_higher_bars() {
        let series =
            vec![Series { name: "a".to_owned(), values: vec![Some(1.0), Some(2.0), None] }];
        let rows: Vec<String> = ["p", "q", "r"].map(str::to_owned).to_vec();
        let svg = bars(&chart(false, None), &rows, &series);
        let colour = series_colour("a", 0).hex();
        let heights: Vec<u32> = svg
            .split("<rect ")
            .filter(|r| r.contains(&colour))
            .filter_map(|r| r.split("height=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        // The legend's square, then a bar for each value that is there.
        assert_eq!(heights.len(), 3, "{svg}");
        // Up to the rounding of both ends.
        assert!(heights[2].abs_diff(heights[1] * 2) <= 3, "{heights:?}: {svg}");
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(1.1), [0.0, 0.5, 1.0]);
        assert_eq!(ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        for top in [1e-9, 0.3, 7.7, 1e12] {
            assert!((2..=8).contains(&ticks(top).len()), "{top}: {:?}", ticks(top));
        }
    }
}
