//! Bars: a measure per run, a row for each, the panels below one another on one scale.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::picture::{AXIS_WORDS, Fault, Ground, LABEL, TITLE, picture, px, stroke, words};
use super::theme::{AXIS, Colour, GRID, PAGE};
use crate::format::shorten;

/// Width of one picture of bars; two fit beside each other where there is room.
const WIDTH: f64 = 540.0;
const ROW: f64 = 24.0;
const BAR: f64 = 13.0;
/// Room above a panel's rows for its title.
const PANEL_TITLE: f64 = 26.0;
/// Room below for the axis.
const AXIS_ROOM: f64 = 26.0;
/// Longest name shown beside a bar, and the room for a character of it.
const NAME_CHARS: usize = 26;
const CHAR: f64 = 6.7;

/// One bar.
pub(super) struct Bar {
    /// The name beside it.
    pub(super) name: String,
    /// Its colour.
    pub(super) colour: Colour,
    /// Its length; none where it was not measured.
    pub(super) value: Option<f64>,
    /// The value in words, at its end.
    pub(super) label: String,
    /// A bar to the left of the axis, with its value in words.
    pub(super) opposite: Option<(f64, String)>,
}

/// The bars of one panel.
pub(super) struct BarPanel {
    /// Its title; empty when there is only one.
    pub(super) title: String,
    /// Its bars.
    pub(super) bars: Vec<Bar>,
}

/// The options common to all bars of a picture.
pub(super) struct Scale {
    /// The picture in words.
    pub(super) label: String,
    /// End of the axis, if that is known without the values.
    pub(super) end: Option<f64>,
    /// Format of the axis's numbers.
    pub(super) number: fn(f64) -> String,
}

/// Draws the bars.
pub(super) fn bars(panels: &[BarPanel], scale: &Scale) -> String {
    let titled = panels.iter().any(|p| !p.title.is_empty());
    let rows: usize = panels.iter().map(|p| p.bars.len()).sum();
    let titles = if titled { panels.len() as f64 * PANEL_TITLE } else { 4.0 };
    let height = titles + rows as f64 * ROW + AXIS_ROOM;
    picture((WIDTH as u32, height.ceil() as u32), &scale.label, |ground| {
        draw(ground, panels, titled, height, scale).map(|()| String::new())
    })
}

/// Places and ends of a picture's parts.
struct Layout {
    /// Room for the names.
    names: f64,
    /// Ends of the axis.
    left: f64,
    right: f64,
    /// Ends of the plot.
    plot_left: f64,
    plot_right: f64,
}

impl Layout {
    fn of(panels: &[BarPanel], scale: &Scale) -> Self {
        let all = || panels.iter().flat_map(|p| &p.bars);
        let longest = all().map(|b| b.name.chars().count().min(NAME_CHARS)).max().unwrap_or(0);
        let names = (longest as f64 * CHAR + 14.0).max(50.0);
        let diverging = all().any(|b| b.opposite.is_some());

        let most_right = all().filter_map(|b| b.value).map(finite).fold(0.0, f64::max);
        let most_left =
            all().filter_map(|b| b.opposite.as_ref()).map(|o| finite(o.0)).fold(0.0, f64::max);
        let right = scale.end.unwrap_or(if most_right > 0.0 { most_right } else { 1.0 });
        let left = if diverging && most_left == 0.0 { right * 0.02 } else { most_left };
        // Room for the values in words at the ends of the bars.
        let room = |labels: usize| labels as f64 * CHAR + 14.0;
        let right_room = room(all().map(|b| b.label.chars().count()).max().unwrap_or(0));
        let left_labels = all().filter_map(|b| b.opposite.as_ref()).map(|o| o.1.chars().count());
        let left_room = if diverging { room(left_labels.max().unwrap_or(0)) } else { 0.0 };

        let (plot_left, plot_right) = (names + left_room, WIDTH - right_room);
        Layout { names, left, right, plot_left, plot_right }
    }
}

fn finite(v: f64) -> f64 {
    if v.is_finite() { v.max(0.0) } else { 0.0 }
}

fn draw(
    ground: &Ground,
    panels: &[BarPanel],
    titled: bool,
    height: f64,
    scale: &Scale,
) -> Result<(), Fault> {
    let Layout { names, left, right, plot_left, plot_right } = Layout::of(panels, scale);
    let titles = if titled { 0.0 } else { 4.0 };
    let mut chart = ChartBuilder::on(ground)
        .margin_left(px(plot_left))
        .margin_right(px(WIDTH - plot_right))
        .margin_top(px(titles))
        .x_label_area_size(px(AXIS_ROOM))
        .build_cartesian_2d(-left..right, height - AXIS_ROOM..titles)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(5)
        .x_max_light_lines(1)
        .bold_line_style(stroke(GRID, 1.0))
        .light_line_style(TRANSPARENT)
        .axis_style(TRANSPARENT)
        .x_label_style(AXIS_WORDS.style(HPos::Center, plotters::style::text_anchor::VPos::Top))
        .x_label_formatter(&|v| (scale.number)(v.abs()))
        .draw()?;
    let x = |value: f64| plot_left + (value + left) / (right + left) * (plot_right - plot_left);

    let mut y = titles;
    for panel in panels {
        if titled {
            let title = shorten(&panel.title, (WIDTH / CHAR) as usize - 4);
            // The lines of the grid end at the title.
            let cover = [(0, px(y)), (px(WIDTH), px(y + PANEL_TITLE))];
            ground.draw(&Rectangle::new(cover, PAGE.light.filled()))?;
            words(ground, (2.0, y + PANEL_TITLE * 0.55), &title, TITLE, HPos::Left)?;
            y += PANEL_TITLE;
        }
        let from = y;
        for bar in &panel.bars {
            let middle = y + ROW / 2.0;
            words(
                ground,
                (names - 10.0, middle),
                &shorten(&bar.name, NAME_CHARS),
                LABEL,
                HPos::Right,
            )?;
            let ends =
                [(bar.value.map(finite), 1.0), (bar.opposite.as_ref().map(|o| finite(o.0)), -1.0)];
            for (value, side) in ends {
                if let Some(value) = value.filter(|v| *v > 0.0) {
                    let along = (value * side).clamp(-left, right);
                    let fill = if side > 0.0 {
                        bar.colour.light.filled()
                    } else {
                        bar.colour.light.mix(0.55).filled()
                    };
                    let (top, bottom) = (middle - BAR / 2.0, middle + BAR / 2.0);
                    chart
                        .plotting_area()
                        .draw(&Rectangle::new([(0.0, top), (along, bottom)], fill))?;
                }
            }
            let end = x(ends[0].0.unwrap_or(0.0).min(right));
            words(ground, (end + 5.0, middle), &bar.label, LABEL, HPos::Left)?;
            if let Some((value, label)) = &bar.opposite {
                words(ground, (x(-finite(*value)) - 5.0, middle), label, LABEL, HPos::Right)?;
            }
            y += ROW;
        }
        let zero = PathElement::new(vec![(0.0, from), (0.0, y)], stroke(AXIS, 1.0));
        chart.plotting_area().draw(&zero)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::theme::MUTED;
    use super::*;
    use crate::format::axis_number;

    #[test]
    fn bars_of_nothing_and_of_nonsense_can_be_drawn() {
        let bar = |value: Option<f64>| Bar {
            name: "<a&b>".to_owned(),
            colour: MUTED,
            value,
            label: "-".to_owned(),
            opposite: value.map(|v| (v, "-".to_owned())),
        };
        for value in [None, Some(0.0), Some(f64::NAN), Some(f64::INFINITY), Some(-3.0), Some(1e300)]
        {
            let scale = Scale { label: "x".to_owned(), end: None, number: axis_number };
            let svg = bars(&[BarPanel { title: String::new(), bars: vec![bar(value)] }], &scale);
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"), "{svg}");
            assert!(svg.contains("&lt;a&amp;b&gt;") && !svg.contains("<a&b>"), "{svg}");
        }
        let scale = Scale { label: "x".to_owned(), end: Some(1.0), number: axis_number };
        assert!(bars(&[], &scale).ends_with("</svg>"));
    }
}
