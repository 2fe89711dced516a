//! The report's colours, for light and for dark.
//!
//! Pictures are drawn in the light colours. The dark ones are put in their place by style rules
//! that match on the very colour (`[fill="#2A78D6"]`), so each role has a colour of its own and
//! one file serves both, without scripts and without drawing anything twice.

use std::collections::BTreeMap;
use std::fmt::Write;

use plotters::style::{Color, RGBColor, ShapeStyle};

use crate::results::Results;

/// A colour in the light and in the dark theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Colour {
    pub(super) light: RGBColor,
    dark: RGBColor,
}

const fn colour(light: u32, dark: u32) -> Colour {
    const fn rgb(hex: u32) -> RGBColor {
        RGBColor((hex >> 16) as u8, (hex >> 8) as u8, hex as u8)
    }
    Colour { light: rgb(light), dark: rgb(dark) }
}

impl Colour {
    /// As written by the drawing library, for attributes.
    pub(super) fn hex(self) -> String {
        hex(self.light)
    }

    /// Filled with it.
    pub(super) fn light_fill(self) -> ShapeStyle {
        self.light.filled()
    }
}

/// The colour of a series: a policy's own, or by its place.
pub(super) fn series_colour(name: &str, index: usize) -> Colour {
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    known.map_or(OTHERS[index % OTHERS.len()], |(_, colour)| *colour)
}

fn hex(RGBColor(r, g, b): RGBColor) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

/// Words and numbers.
pub(super) const INK: Colour = colour(0x1C2330, 0xE4E8EF);
/// Words of less weight: axes, units.
pub(super) const MUTED: Colour = colour(0x5A6373, 0x9DA7B6);
/// Lines to read a value by.
pub(super) const GRID: Colour = colour(0xE5E8EC, 0x2A303A);
/// Axes.
pub(super) const AXIS: Colour = colour(0xA9B0BB, 0x5A6373);
/// The ground of a heat map: nothing accessed, nothing in fast memory.
pub(super) const GROUND: Colour = colour(0xF6F7F9, 0x1D222A);
/// The page itself, to cover the layers beneath.
pub(super) const PAGE: Colour = colour(0xFFFFFF, 0x14181E);
/// Outlines of what a paper prints, where what came out here is filled.
pub(super) const PAPER: Colour = colour(0x10151F, 0xF3F6FA);
/// What came out here, beside what a paper prints.
pub(super) const HERE: Colour = KNOWN[2].1;
/// Lost periods and failures.
pub(super) const WRONG: Colour = colour(0xC92A3B, 0xFF7A85);

/// The policies that have a colour of their own in every report, so that two reports can be put
/// side by side: the two that never move a page in greys and browns, the rest in full colours.
const KNOWN: [(&str, Colour); 7] = [
    ("first-touch", colour(0x868E99, 0x8D96A3)),
    ("interleave", colour(0xA98467, 0xB8967C)),
    ("lru", colour(0x2A78D6, 0x4A97F0)),
    ("lfu", colour(0xE38A12, 0xE9A23B)),
    ("random", colour(0xA64FB8, 0xC77DD8)),
    ("lists", colour(0x16917A, 0x2DB598)),
    ("amp", colour(0xD6293E, 0xFA5F6E)),
];

/// Colours for all other policies, in the order of their names, and for the series of charts. They
/// differ in lightness too: they differ in a print without colours.
const OTHERS: [Colour; 8] = [
    colour(0x2E2A78, 0x8F86F2),
    colour(0x22A0B8, 0x3DB8D6),
    colour(0x7A3B12, 0xB98A62),
    colour(0xDC90BC, 0xF2B8D8),
    colour(0xA02C6A, 0xD9568F),
    colour(0x4E8F2F, 0x8FBF4A),
    colour(0x3D6FB5, 0x7FA3D1),
    colour(0xD6BF45, 0xD8C45A),
];

/// The colour of this number, for series other than policies.
pub(super) const fn series(number: usize) -> Colour {
    if number < KNOWN.len() {
        KNOWN[number].1
    } else {
        OTHERS[(number - KNOWN.len()) % OTHERS.len()]
    }
}

/// Which policy is drawn in which colour.
pub(super) struct Palette(BTreeMap<String, Colour>);

impl Palette {
    /// Gives every policy of the results, run or chosen, its colour.
    pub(super) fn new(results: &Results) -> Palette {
        let of_runs = results.runs.iter().flat_map(|r| [&r.policy, &r.applied_main]);
        let of_periods = results.periods.iter().flat_map(|p| [&p.policy, &p.applied]);
        Palette::of_names(of_runs.chain(of_periods).map(String::as_str))
    }

    /// Gives every one of these names its colour.
    pub(super) fn of_names<'a>(names: impl Iterator<Item = &'a str>) -> Palette {
        let mut colours: BTreeMap<String, Colour> =
            names.map(|name| (name.to_owned(), MUTED)).collect();
        let mut others = 0;
        for (name, colour) in &mut colours {
            let plain = name.to_lowercase().replace(['_', ' '], "-");
            match KNOWN.iter().find(|(known, _)| *known == plain) {
                Some((_, known)) => *colour = *known,
                None => {
                    *colour = OTHERS[others % OTHERS.len()];
                    others += 1;
                }
            }
        }
        Palette(colours)
    }

    /// A policy's colour.
    pub(super) fn of(&self, policy: &str) -> Colour {
        self.0.get(policy).copied().unwrap_or(MUTED)
    }
}

/// The style rules for the dark theme.
pub(super) fn dark_css() -> String {
    dark_css_of(|_| true)
}

/// The rules for some of the colours.
fn dark_css_of(wanted: impl Fn(Colour) -> bool) -> String {
    let roles = [INK, MUTED, GRID, AXIS, GROUND, PAGE, PAPER, WRONG];
    let policies = KNOWN.iter().map(|(_, c)| *c).chain(OTHERS);
    let mut css = String::new();
    for Colour { light, dark } in roles.into_iter().chain(policies).filter(|c| wanted(*c)) {
        let (light, dark) = (hex(light), hex(dark));
        // Writing to a string cannot fail.
        let _ = writeln!(
            css,
            "svg [fill=\"{light}\"]{{fill:{dark}}}svg [stroke=\"{light}\"]{{stroke:{dark}}}"
        );
    }
    css
}

/// A picture as a file of its own: on white, and on the dark ground where the reader's screen is dark.
/// On paper the light colours hold.
pub(super) fn file(picture: &str) -> String {
    let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" font-family=\"sans-serif\" ";
    let style = format!(
        "<style>svg{{background:{}}}@media screen and (prefers-color-scheme:dark){{svg{{background:{}}}\n{}}}</style>",
        hex(PAGE.light),
        hex(PAGE.dark),
        dark_css_of(|colour| picture.contains(&colour.hex()))
    );
    let picture = picture.replacen("<svg ", head, 1);
    match picture.split_once('>') {
        Some((start, rest)) => format!("{start}>{style}{rest}\n"),
        None => picture,
    }
}

/// A ramp from transparent to a full colour, so that it works on a light and a dark ground: it
/// begins at the ground's own colour and ends in one that contrasts with both.
pub(super) struct Ramp(&'static [(u8, u8, u8, u8)]);

/// Accessed share.
pub(super) const HEAT: Ramp =
    Ramp(&[(255, 184, 77, 0), (252, 140, 40, 150), (240, 84, 32, 215), (222, 26, 52, 255)]);
/// Share in fast memory.
pub(super) const PLACE: Ramp = Ramp(&[(70, 130, 220, 0), (58, 124, 218, 128), (42, 112, 214, 255)]);

impl Ramp {
    /// Red, green, blue and opacity at a share from 0 to 1.
    pub(super) fn at(&self, share: f64) -> [u8; 4] {
        let steps = self.0.len() - 1;
        let along = share.clamp(0.0, 1.0) * steps as f64;
        let from = (along as usize).min(steps - 1);
        let part = along - from as f64;
        let (a, b) = (self.0[from], self.0[from + 1]);
        let mix = |a: u8, b: u8| (f64::from(a) * (1.0 - part) + f64::from(b) * part).round() as u8;
        [mix(a.0, b.0), mix(a.1, b.1), mix(a.2, b.2), mix(a.3, b.3)]
    }

    /// As a CSS gradient.
    pub(super) fn css(&self) -> String {
        let stops: Vec<String> = self
            .0
            .iter()
            .map(|(r, g, b, a)| format!("rgba({r},{g},{b},{:.3})", f64::from(*a) / 255.0))
            .collect();
        format!("linear-gradient(to right,{})", stops.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_results::RunRow;

    #[test]
    fn every_role_has_a_colour_of_its_own() {
        let roles = [INK, MUTED, GRID, AXIS, GROUND, PAGE, PAPER, WRONG];
        let policies = KNOWN.iter().map(|(_, c)| *c).chain(OTHERS);
        let mut all: Vec<String> = roles.into_iter().chain(policies).map(Colour::hex).collect();
        let before = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), before, "the dark theme could not tell two roles apart");
    }

    /// Lightness as it is perceived, 0 to 100 (CIE 1976).
    fn lightness(RGBColor(r, g, b): RGBColor) -> f64 {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
        };
        let light = 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
        116.0 * light.cbrt() - 16.0
    }

    #[test]
    fn eight_series_differ_in_a_print_without_colours() {
        let names: Vec<String> = (0..8).map(|n| format!("series {n}")).collect();
        let of = |n: usize| lightness(series_colour(&names[n], n).light);
        for (a, b) in (0..8).flat_map(|a| (0..a).map(move |b| (a, b))) {
            let apart = (of(a) - of(b)).abs();
            assert!(apart >= 5.0, "series {a} and {b} are {apart:.1} steps of lightness apart");
        }
        assert!((0..8).all(|n| of(n) < 80.0), "too pale for white paper");
    }

    #[test]
    fn a_policy_keeps_its_colour_whoever_is_beside_it() {
        let run = |policy: &str| RunRow { policy: policy.to_owned(), ..RunRow::default() };
        let results = |names: &[&str]| Results {
            runs: names.iter().map(|n| run(n)).collect(),
            ..Results::default()
        };
        let (few, many) = (results(&["amp"]), results(&["zz", "amp", "aa", "first_touch"]));
        assert_eq!(Palette::new(&few).of("amp"), Palette::new(&many).of("amp"));
        let palette = Palette::new(&many);
        assert_ne!(palette.of("aa"), palette.of("zz"));
        assert_eq!(palette.of("first_touch"), KNOWN[0].1);
    }
}
