//! A paper's numbers beside those that came out here: a pair of bars for each, the paper's as an
//! outline, the one here filled, so that they differ without colours.

use plotters::style::text_anchor::HPos;

use super::picture::{AXIS_WORDS, Fault, Ground, LABEL, TITLE, stroke, words};
use super::plots::{WIDTH, outline, path, rectangle};
use super::theme::{AXIS, HERE, PAPER};
use crate::format::shorten;

/// Room above the first pair, and between the groups of two units.
const HEAD: f64 = 44.0;
const GAP: f64 = 12.0;
const PAIR: f64 = 36.0;
const BAR: f64 = 11.0;
/// Characters in a line of a pair's words, and of the words at the end of a bar.
const LINE_CHARS: usize = 54;
const END_CHARS: usize = 44;
/// Where bars may begin and end, and the room for a character.
const LEFT: f64 = 372.0;
const RIGHT: f64 = WIDTH - 8.0;
const CHAR: f64 = 6.2;

/// A number of a paper and the one here.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// What it is.
    pub says: String,
    /// The paper's number: from the first to the second.
    pub paper: [f64; 2],
    /// The paper's number in its words.
    pub paper_words: String,
    /// The number here, where there is one.
    pub here: Option<f64>,
    /// The number here in words.
    pub here_words: String,
    /// What both are counted in; pairs of one unit have one scale.
    pub unit: String,
}

/// The height of the part of a picture that has these pairs.
pub(super) fn height(pairs: &[Pair]) -> f64 {
    if pairs.is_empty() {
        return 0.0;
    }
    HEAD + pairs.len() as f64 * PAIR + units(pairs).len() as f64 * GAP
}

/// The units, in the order of their first pairs.
fn units(pairs: &[Pair]) -> Vec<&str> {
    let mut units: Vec<&str> = Vec::new();
    for pair in pairs {
        if !units.contains(&pair.unit.as_str()) {
            units.push(&pair.unit);
        }
    }
    units
}

/// In words, for those who do not see the picture.
pub(super) fn in_words(pairs: &[Pair]) -> String {
    let one = |p: &Pair| format!(". {}: paper {}, here {}", p.says, p.paper_words, p.here_words);
    pairs.iter().map(one).collect()
}

/// Draws the pairs below a height.
pub(super) fn draw(ground: &Ground, above: f64, pairs: &[Pair]) -> Result<(), Fault> {
    if pairs.is_empty() {
        return Ok(());
    }
    let y = above + 24.0;
    words(ground, (4.0, y), "Numbers that the paper prints", TITLE, HPos::Left)?;
    outline(ground, [(LEFT, y - 5.0), (LEFT + 10.0, y + 5.0)])?;
    words(ground, (LEFT + 15.0, y), "paper", AXIS_WORDS, HPos::Left)?;
    rectangle(ground, [(LEFT + 70.0, y - 5.0), (LEFT + 80.0, y + 5.0)], HERE)?;
    words(ground, (LEFT + 85.0, y), "here", AXIS_WORDS, HPos::Left)?;
    let mut y = above + HEAD;
    for unit in units(pairs) {
        let group: Vec<&Pair> = pairs.iter().filter(|p| p.unit == unit).collect();
        let scale = Scale::of(&group);
        let top = y;
        for pair in group {
            one(ground, y, pair, &scale)?;
            y += PAIR;
        }
        let zero = scale.x(0.0);
        path(ground, [(zero, top), (zero, y - 4.0)], stroke(AXIS, 1.0))?;
        y += GAP;
    }
    Ok(())
}

fn one(ground: &Ground, y: f64, pair: &Pair, scale: &Scale) -> Result<(), Fault> {
    let lines = wrapped(&pair.says);
    let middle = y + PAIR / 2.0 - 2.0;
    let first = middle - (lines.len() as f64 - 1.0) * 7.0;
    for (index, line) in lines.iter().enumerate() {
        words(ground, (4.0, first + index as f64 * 14.0), line, LABEL, HPos::Left)?;
    }
    let [low, high] = pair.paper;
    let ends = [scale.x(0.0), scale.x(if low.abs() > high.abs() { low } else { high })];
    let upper = middle - BAR - 1.0;
    outline(ground, [(ends[0].min(ends[1]), upper), (ends[0].max(ends[1]), upper + BAR)])?;
    if low != high {
        // Where the paper's range begins.
        let nearer = scale.x(if low.abs() > high.abs() { high } else { low });
        path(ground, [(nearer, upper), (nearer, upper + BAR)], stroke(PAPER, 1.25))?;
    }
    let text = shorten(&pair.paper_words, END_CHARS);
    beyond(ground, ends, upper + BAR / 2.0, &text)?;
    let lower = middle + 1.0;
    let here = pair.here.filter(|v| v.is_finite()).unwrap_or(0.0);
    let ends = [scale.x(0.0), scale.x(here)];
    rectangle(ground, [(ends[0].min(ends[1]), lower), (ends[0].max(ends[1]), lower + BAR)], HERE)?;
    beyond(ground, ends, lower + BAR / 2.0, &shorten(&pair.here_words, END_CHARS))
}

/// Words at the far end of a bar.
fn beyond(ground: &Ground, ends: [f64; 2], y: f64, text: &str) -> Result<(), Fault> {
    match ends[1] < ends[0] {
        true => words(ground, (ends[1] - 5.0, y), text, AXIS_WORDS, HPos::Right),
        false => words(ground, (ends[1] + 5.0, y), text, AXIS_WORDS, HPos::Left),
    }
}

/// Where the values of a unit are.
struct Scale {
    low: f64,
    high: f64,
    left: f64,
    right: f64,
}

impl Scale {
    fn of(pairs: &[&Pair]) -> Self {
        let (mut low, mut high) = (0.0_f64, 0.0_f64);
        let (mut before, mut after) = (0, 0);
        for pair in pairs {
            let paper = pair.paper.map(|v| (v, shorten(&pair.paper_words, END_CHARS)));
            let here = (pair.here.unwrap_or(0.0), shorten(&pair.here_words, END_CHARS));
            for (value, text) in paper.into_iter().chain([here]).filter(|v| v.0.is_finite()) {
                (low, high) = (low.min(value), high.max(value));
                let room = if value < 0.0 { &mut before } else { &mut after };
                *room = text.chars().count().max(*room);
            }
        }
        let room = |chars: usize| if chars > 0 { chars as f64 * CHAR + 8.0 } else { 0.0 };
        Scale { low, high, left: LEFT + room(before), right: RIGHT - room(after) }
    }

    fn x(&self, value: f64) -> f64 {
        let span = self.high - self.low;
        let along = if span > 0.0 { (value - self.low) / span } else { 0.0 };
        self.left + along.clamp(0.0, 1.0) * (self.right - self.left)
    }
}

/// A text in at most two lines.
fn wrapped(text: &str) -> Vec<String> {
    let (mut first, mut second) = (String::new(), String::new());
    for word in text.split_whitespace() {
        let fits = first.chars().count() + word.chars().count() < LINE_CHARS;
        let line = if second.is_empty() && fits { &mut first } else { &mut second };
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let lines = [first, shorten(&second, LINE_CHARS)];
    lines.into_iter().filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_wrapped_and_lose_nothing_that_fits() {
        let text = "programs in which the policy that the paper names is chosen in more than 80 %";
        let lines = wrapped(text);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines.join(" "), text);
        assert_eq!(wrapped("short"), ["short"]);
    }

    #[test]
    fn bars_to_both_sides_keep_their_words_inside_the_picture() {
        let pair = |paper: f64, here: f64| Pair {
            says: "x".to_owned(),
            paper: [paper; 2],
            paper_words: "paper's words".to_owned(),
            here: Some(here),
            here_words: "here's".to_owned(),
            unit: "%".to_owned(),
        };
        let pairs = [pair(0.1, -0.2), pair(-0.3, 0.4)];
        let scale = Scale::of(&pairs.iter().collect::<Vec<_>>());
        assert!(scale.left > LEFT + 13.0 * CHAR && scale.right < RIGHT - 13.0 * CHAR);
        assert!(scale.x(-0.3) < scale.x(0.0) && scale.x(0.0) < scale.x(0.4));
        assert_eq!((scale.x(-0.3), scale.x(0.4)), (scale.left, scale.right));
    }
}
