//! One picture: a drawing of the plotters library made fit for the report.
//!
//! Sizes are in pixels of the report's full width; the drawing library takes whole numbers only,
//! so that everything is drawn larger by [`SCALE`] and shown in its place by the view box.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::theme::Colour;

/// How much larger a picture is drawn than shown.
pub(super) const SCALE: i32 = 2;

/// The ground that is drawn on.
pub(super) type Ground<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Why a picture could not be drawn.
pub(super) type Fault = DrawingAreaErrorKind<std::io::Error>;

/// Shown pixels as drawn pixels.
pub(super) fn px(shown: f64) -> i32 {
    (shown * f64::from(SCALE)).round() as i32
}

/// Draws a picture. `paint` returns SVG that is placed over it: elements that the drawing library
/// does not have (tooltips, images). It must be escaped already. `label` describes the picture
/// in words.
pub(super) fn picture(
    (width, height): (u32, u32),
    label: &str,
    paint: impl FnOnce(&Ground) -> Result<String, Fault>,
) -> String {
    let size = (width * SCALE as u32, height * SCALE as u32);
    let mut drawn = String::new();
    let overlay = {
        let ground = SVGBackend::with_string(&mut drawn, size).into_drawing_area();
        paint(&ground).and_then(|overlay| ground.present().map(|()| overlay))
    };
    let overlay = match overlay {
        Ok(overlay) => overlay,
        // Only an impossible size leads here; the report is worth having without the picture.
        Err(fault) => {
            return format!(
                "<p>This picture could not be drawn: {}.</p>",
                escape(&fault.to_string())
            );
        }
    };
    let body = drawn.split_once('>').map_or("", |(_, rest)| rest);
    let body = body.trim_end().trim_end_matches("</svg>");
    // Names are escaped in the drawing, so that these can be attributes only.
    let body = body
        .replace(" opacity=\"1\"", "")
        .replace(" stroke=\"none\"", "")
        .replace(" font-family=\"sans-serif\"", "")
        .replace("\n</text>", "</text>")
        .replace(" \"/>", "\"/>");
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{body}{overlay}</svg>",
        size.0,
        size.1,
        escape(label),
    )
}

/// Text fit for HTML and SVG, in elements and attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Style of words.
#[derive(Clone, Copy)]
pub(super) struct Lettering {
    pub(super) size: f64,
    pub(super) bold: bool,
    pub(super) colour: Colour,
}

impl Lettering {
    /// The library's style, anchored. It writes sizes as 1/1.24 of the given ones.
    pub(super) fn style(self, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
        let size = self.size * f64::from(SCALE) * 1.24;
        let weight = if self.bold { FontStyle::Bold } else { FontStyle::Normal };
        let mut style = TextStyle::from(("sans-serif", size, weight).into_font());
        style.color = self.colour.light.to_backend_color();
        style.pos = Pos::new(horizontal, vertical);
        style
    }
}

/// Words on axes.
pub(super) const AXIS_WORDS: Lettering =
    Lettering { size: 11.0, bold: false, colour: super::theme::MUTED };
/// Words and numbers beside the things that they name.
pub(super) const LABEL: Lettering =
    Lettering { size: 12.0, bold: false, colour: super::theme::INK };
/// The title of a part of a picture.
pub(super) const TITLE: Lettering = Lettering { size: 12.5, bold: true, colour: super::theme::INK };

/// Puts words at a place, in shown pixels.
pub(super) fn words(
    ground: &Ground,
    (x, y): (f64, f64),
    text: &str,
    lettering: Lettering,
    horizontal: HPos,
) -> Result<(), Fault> {
    ground.draw(&Text::new(
        text.to_owned(),
        (px(x), px(y)),
        lettering.style(horizontal, VPos::Center),
    ))
}

/// Puts words upright, from a place upwards.
pub(super) fn upward(
    ground: &Ground,
    (x, y): (f64, f64),
    text: &str,
    lettering: Lettering,
) -> Result<(), Fault> {
    let style = lettering.style(HPos::Left, VPos::Center).transform(FontTransform::Rotate270);
    ground.draw(&Text::new(text.to_owned(), (px(x), px(y)), style))
}

/// A line of some width in shown pixels.
pub(super) fn stroke(colour: Colour, width: f64) -> ShapeStyle {
    colour.light.stroke_width((width * f64::from(SCALE)).round().max(1.0) as u32)
}

/// A small square of a colour, for legends outside pictures.
pub(super) fn chip(colour: Colour) -> String {
    format!(
        "<svg class=\"chip\" viewBox=\"0 0 10 10\" aria-hidden=\"true\">\
         <rect width=\"10\" height=\"10\" rx=\"2.5\" fill=\"{}\"/></svg>",
        colour.hex()
    )
}
