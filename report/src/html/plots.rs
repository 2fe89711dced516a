//! Charts of any table of values: groups of bars, lines, and stacked bars, each a self-contained
//! SVG. The caller names the rows and the series. What a paper prints is drawn as an outline beside
//! what came out here, which is filled.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::beside;
pub use super::beside::Pair;
use super::picture::{AXIS_WORDS, Fault, Ground, LABEL, picture, px, stroke, upward, words};
use super::theme::{AXIS, Colour, GRID, INK, PAGE, PAPER, series_colour};
use crate::format::{axis_number, shorten};

/// Size of a chart in shown pixels.
pub(super) const WIDTH: f64 = 860.0;
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
    /// What that value is, for the legend.
    pub line_name: Option<&'a str>,
    /// Where the paper prints the values that series have of it: "table 2".
    pub printed_in: &'a str,
    /// A paper's numbers and those here, drawn below as pairs of bars.
    pub pairs: &'a [Pair],
    /// Format of a value above a bar.
    pub number: fn(f64) -> String,
}

/// One series: a value for each row, where there is one.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its values, in the order of rows.
    pub values: Vec<Option<f64>>,
    /// What the paper prints for the rows, in their order; may be empty.
    pub paper: Vec<Option<f64>>,
}

impl Series {
    /// Everything that is drawn of it.
    fn all(&self) -> impl Iterator<Item = f64> {
        self.values.iter().chain(&self.paper).flatten().copied()
    }

    /// A row's value here, and the paper's.
    fn at(&self, row: usize) -> [Option<f64>; 2] {
        [&self.values, &self.paper].map(|of| of.get(row).copied().flatten())
    }
}

/// A picture as an SVG file, for light and dark screens and for paper.
pub fn file(picture: &str) -> String {
    super::theme::file(picture)
}

/// A group of bars for each row, one for each series, and one for what the paper prints of it.
pub fn bars(chart: &Chart<'_>, rows: &[String], series: &[Series]) -> String {
    let top = highest(chart, series.iter().flat_map(Series::all));
    // Room for a number along the highest bar.
    let top = top * 1.06;
    let of_row = |row: usize| {
        let each = series.iter().enumerate();
        each.flat_map(move |(index, one)| {
            let [here, paper] = one.at(row);
            let colour = series_colour(&one.name, index);
            // A place for each series, and one more where the paper prints a number.
            std::iter::once((here, Some(colour)))
                .chain(paper.map(|value| (Some(value), None)))
                .collect::<Vec<_>>()
        })
        .collect::<Vec<_>>()
    };
    let most = (0..rows.len()).map(|row| of_row(row).len()).max().unwrap_or(1);
    upright(chart, rows, series, top, |ground, frame| {
        let group = frame.width() / rows.len().max(1) as f64;
        let bar = (group * 0.84 / most.max(1) as f64).min(34.0);
        let mut numbers = Vec::new();
        for row in 0..rows.len() {
            let middle = frame.left + group * (row as f64 + 0.5);
            let of_row = of_row(row);
            let mut x = middle - bar * of_row.len() as f64 / 2.0;
            for (value, colour) in of_row {
                if let Some(value) = value {
                    let ends = [(x + 0.5, frame.y(value, top)), (x + bar - 0.5, frame.bottom)];
                    match colour {
                        Some(colour) => rectangle(ground, ends, colour)?,
                        None => outline(ground, ends)?,
                    }
                    let text = (chart.number)(value);
                    let wide = DIGIT * text.chars().count() as f64;
                    let above = frame.y(value, top);
                    if bar > wide + 4.0 {
                        numbers.push(Number { x: x + bar / 2.0, y: above - 8.0, text, up: false });
                    } else if bar >= NUMBER_LINE {
                        // Along the bar: numbers of neighbours do not touch.
                        numbers.push(Number { x: x + bar / 2.0, y: above - 4.0, text, up: true });
                    }
                }
                x += bar;
            }
        }
        Ok(numbers)
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
        let mut numbers = Vec::new();
        for row in 0..rows.len() {
            let x = frame.left + group * (row as f64 + 0.5) - bar / 2.0;
            let mut below = 0.0;
            for (index, one) in series.iter().enumerate() {
                let value = one.values.get(row).copied().flatten().unwrap_or(0.0).max(0.0);
                let ends = [(x, frame.y(below + value, top)), (x + bar, frame.y(below, top))];
                rectangle(ground, ends, series_colour(&one.name, index))?;
                below += value;
            }
            let (x, y) = (x + bar / 2.0, frame.y(below, top) - 8.0);
            numbers.push(Number { x, y, text: (chart.number)(below), up: false });
        }
        Ok(numbers)
    })
}

/// A line for each series over rows that are numbers.
pub fn lines(chart: &Chart<'_>, rows: &[f64], series: &[Series]) -> String {
    let top = highest(chart, series.iter().flat_map(Series::all));
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
            for (row, value) in rows.iter().zip(&one.paper) {
                if let Some(value) = value {
                    diamond(ground, (x(*row), frame.y(*value, top)), colour)?;
                }
            }
        }
        Ok(Vec::new())
    })
}

/// A number at a bar: beside the place given, or from it upwards.
struct Number {
    x: f64,
    y: f64,
    text: String,
    up: bool,
}

impl Number {
    /// Draws it; a line across does not go through it.
    fn draw(&self, ground: &Ground, across: Option<f64>) -> Result<(), Fault> {
        let Number { x, y, text, up } = self;
        let wide = DIGIT * text.chars().count() as f64;
        let [(left, above), (right, below)] = match up {
            true => [(x - 5.0, y - wide - 2.0), (x + 5.0, *y)],
            false => [(x - wide / 2.0 - 2.0, y - 6.0), (x + wide / 2.0 + 2.0, y + 6.0)],
        };
        if across.is_some_and(|line| line > above && line < below) {
            rectangle(ground, [(left, above), (right, below)], PAGE)?;
        }
        match up {
            true => upward(ground, (*x, *y), text, AXIS_WORDS),
            false => words(ground, (*x, *y), text, AXIS_WORDS, HPos::Center),
        }
    }
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
    paint: impl FnOnce(&Ground, &Frame) -> Result<Vec<Number>, Fault>,
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
    paint: impl FnOnce(&Ground, &Frame) -> Result<Vec<Number>, Fault>,
) -> String {
    let legend = legend(chart, series);
    let legend_lines = legend.last().map_or(0.0, |entry| entry.line + 1.0);
    let above = 30.0 + legend_lines * LEGEND_LINE;
    let ends = above + height;
    let height = ends + beside::height(chart.pairs);
    let label = format!("{}{}", chart.label, beside::in_words(chart.pairs));
    picture((WIDTH as u32, height.ceil() as u32), &label, |ground| {
        let frame = Frame { left: LEFT, right: WIDTH - RIGHT, top: above, bottom: above + PLOT };
        words(ground, (4.0, 12.0), chart.y, LABEL, HPos::Left)?;
        for Entry { x, line, name, sign } in &legend {
            let y = 34.0 + line * LEGEND_LINE;
            let square = [(*x, y - 5.0), (x + 10.0, y + 5.0)];
            match sign {
                Sign::Here(colour) => rectangle(ground, square, *colour)?,
                Sign::Paper => outline(ground, square)?,
                Sign::Line => path(ground, [(*x, y), (x + 10.0, y)], stroke(INK, 1.0))?,
            }
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
        let numbers = paint(ground, &frame)?;
        let bottom = vec![(px(frame.left), px(frame.bottom)), (px(frame.right), px(frame.bottom))];
        ground.draw(&PathElement::new(bottom, stroke(AXIS, 1.0)))?;
        if let Some(value) = chart.line {
            let y = px(frame.y(value, top));
            let line = vec![(px(frame.left), y), (px(frame.right), y)];
            ground.draw(&PathElement::new(line, stroke(INK, 1.0)))?;
        }
        let across = chart.line.map(|value| frame.y(value, top));
        numbers.iter().try_for_each(|number| number.draw(ground, across))?;
        beside::draw(ground, ends, chart.pairs)?;
        Ok(String::new())
    })
}

/// A name in the legend, its place, and what is drawn before it.
struct Entry {
    x: f64,
    line: f64,
    name: String,
    sign: Sign,
}

/// What is drawn before a name in the legend.
enum Sign {
    Here(Colour),
    Paper,
    Line,
}

/// The legend: the series, then what the paper prints, then the line across.
fn legend(chart: &Chart<'_>, series: &[Series]) -> Vec<Entry> {
    let of_series = series.iter().enumerate();
    let mut signs: Vec<(String, Sign)> = of_series
        .map(|(index, one)| (shorten(&one.name, 34), Sign::Here(series_colour(&one.name, index))))
        .collect();
    if series.iter().any(|s| s.paper.iter().any(Option::is_some)) {
        let place = match chart.printed_in {
            "" => String::new(),
            place => format!(" ({place})"),
        };
        signs.push((format!("outlined: paper{place}, filled: here"), Sign::Paper));
    }
    if let (Some(name), Some(_)) = (chart.line_name, chart.line) {
        signs.push((name.to_owned(), Sign::Line));
    }
    let (mut x, mut line) = (4.0, 0.0);
    let mut places = Vec::new();
    for (name, sign) in signs {
        let wide = 30.0 + name.chars().count() as f64 * CHAR;
        if x + wide > WIDTH && x > 4.0 {
            (x, line) = (4.0, line + 1.0);
        }
        places.push(Entry { x, line, name, sign });
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

pub(super) fn rectangle(
    ground: &Ground,
    ends: [(f64, f64); 2],
    colour: Colour,
) -> Result<(), Fault> {
    let ends = ends.map(|(x, y)| (px(x), px(y)));
    ground.draw(&Rectangle::new(ends, colour.light_fill()))
}

/// A rectangle of the paper's: its line is inside the given ends.
pub(super) fn outline(ground: &Ground, ends: [(f64, f64); 2]) -> Result<(), Fault> {
    let [(left, top), (right, bottom)] = ends;
    let ends = [(left + 0.5, top.min(bottom) + 0.5), (right - 0.5, bottom.max(top) - 0.5)];
    let ends = ends.map(|(x, y)| (px(x), px(y)));
    ground.draw(&Rectangle::new(ends, PAGE.light_fill()))?;
    ground.draw(&Rectangle::new(ends, stroke(PAPER, 1.25)))
}

/// A point of the paper's on a line of a series: in an outline, of the line's colour within.
fn diamond(ground: &Ground, (x, y): (f64, f64), colour: Colour) -> Result<(), Fault> {
    let corners = |size: f64| {
        let of = [(0.0, -size), (size, 0.0), (0.0, size), (-size, 0.0), (0.0, -size)];
        of.map(|(a, b)| (px(x + a), px(y + b))).to_vec()
    };
    ground.draw(&Polygon::new(corners(6.0), PAGE.light_fill()))?;
    ground.draw(&Polygon::new(corners(2.5), colour.light_fill()))?;
    ground.draw(&PathElement::new(corners(6.0), stroke(PAPER, 1.25)))
}

pub(super) fn path(
    ground: &Ground,
    points: [(f64, f64); 2],
    style: ShapeStyle,
) -> Result<(), Fault> {
    let points = points.map(|(x, y)| (px(x), px(y))).to_vec();
    ground.draw(&PathElement::new(points, style))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(log_x: bool, line: Option<f64>) -> Chart<'static> {
        Chart {
            label: "<l>",
            x: "x",
            y: "y",
            log_x,
            line,
            line_name: Some("<line>"),
            printed_in: "<where>",
            pairs: &[],
            number: axis_number,
        }
    }

    #[test]
    fn charts_of_nothing_and_of_nonsense_can_be_drawn() {
        for value in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(1e300), Some(2.5)] {
            let (name, paper) = ("<a&b>".to_owned(), vec![value]);
            let series =
                || vec![Series { name: name.clone(), values: vec![value], paper: paper.clone() }];
            let rows = vec!["<row>".to_owned()];
            let pairs = [Pair {
                says: "<pair>".to_owned(),
                paper: [value.unwrap_or(0.0); 2],
                paper_words: "<p>".to_owned(),
                here: value,
                here_words: "<h>".to_owned(),
                unit: String::new(),
            }];
            let with_pairs = Chart { pairs: &pairs, ..chart(false, Some(1.0)) };
            let pictures = [
                bars(&chart(false, None), &rows, &series()),
                bars(&with_pairs, &rows, &series()),
                stacks(&chart(false, Some(1.0)), &rows, &series()),
                lines(&chart(true, None), &[0.0], &series()),
                bars(&chart(false, None), &[], &[]),
                lines(&chart(false, None), &[], &[]),
            ];
            for svg in pictures {
                assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"), "{svg}");
                assert!(!svg.contains("<a&b>") && !svg.contains("<row>"), "{svg}");
                assert!(!svg.contains("<pair>") && !svg.contains("<p>"), "{svg}");
            }
        }
    }

    #[test]
    fn higher_values_have_higher_bars() {
        let series = vec![Series {
            name: "a".to_owned(),
            values: vec![Some(1.0), Some(2.0), None],
            ..Series::default()
        }];
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
    fn what_a_paper_prints_is_outlined_as_high_as_its_number() {
        let series = vec![Series {
            name: "a".to_owned(),
            values: vec![Some(1.0), Some(1.0)],
            paper: vec![Some(2.0), None],
        }];
        let rows: Vec<String> = ["p", "q"].map(str::to_owned).to_vec();
        let svg = bars(&chart(false, None), &rows, &series);
        let heights = |colour: &str| -> Vec<u32> {
            svg.split("<rect ")
                .filter(|r| r.contains(colour))
                .filter_map(|r| r.split("height=\"").nth(1)?.split('"').next()?.parse().ok())
                .collect()
        };
        // The legend's square, and one bar.
        let outlined = heights(&format!("stroke=\"{}\"", PAPER.hex()));
        assert_eq!(outlined.len(), 2, "{svg}");
        let filled = heights(&series_colour("a", 0).hex());
        assert!(outlined[1].abs_diff(filled[1] * 2) <= 4, "{outlined:?} {filled:?}");
        assert!(svg.contains("outlined: paper (&lt;where&gt;), filled: here"), "{svg}");
        let on_a_line = lines(&chart(false, None), &[1.0, 2.0], &series);
        assert!(on_a_line.contains(&format!("stroke=\"{}\"", PAPER.hex())), "{on_a_line}");
    }

    #[test]
    fn a_picture_of_its_own_is_for_dark_screens_too_and_for_light_paper() {
        let series =
            vec![Series { name: "a".to_owned(), values: vec![Some(1.0)], ..Series::default() }];
        let svg = file(&bars(&chart(false, None), &["p".to_owned()], &series));
        assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>"), "{svg}");
        assert!(svg.contains("@media screen and (prefers-color-scheme:dark)"), "{svg}");
        assert!(svg.contains(&format!("[fill=\"{}\"]", INK.hex())), "{svg}");
    }

    #[test]
    fn a_line_across_does_not_go_through_numbers() {
        let series =
            vec![Series { name: "a".to_owned(), values: vec![Some(0.95)], ..Series::default() }];
        let covers = |line: f64| {
            let svg = bars(&chart(false, Some(line)), &["p".to_owned()], &series);
            svg.matches(&format!("fill=\"{}\"", PAGE.hex())).count()
        };
        assert_eq!((covers(1.0), covers(0.5)), (1, 0));
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
