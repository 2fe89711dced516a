//! A figure's file: its subject, how its data is made, how it is drawn, and the paper's claims on
//! it.

use serde::{Deserialize, Deserializer};
use terrace_core::parameters::in_plain_words;
use terrace_experiments::verdict::{Comparison, PaperNumber};
use toml::{Table, Value};

use crate::kinds;
use crate::merge::merge;

/// A figure or table of a paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Its name, PAPER/FIGURE: "amp/fig10".
    #[serde(skip)]
    pub name: String,
    /// The subject, as a title.
    pub title: String,
    /// How the paper shows it, and how it is shown here.
    pub description: String,
    /// The scale of the paper's sizes and times: one factor, stated.
    pub scale: String,
    /// How its data is made: a kind of [`kinds::KINDS`].
    pub kind: String,
    /// A word for the rows in tables and pictures ("workload").
    pub row: String,
    /// A word for the columns ("policy").
    pub column: String,
    /// Measures; the first is drawn and is the default of claims.
    pub measures: Vec<String>,
    /// The experiment that rows and columns change, or the kind's own settings.
    #[serde(default)]
    pub experiment: Table,
    /// At interval fidelity: workloads that are programs are profiled on the experiment's machine
    /// first.
    pub profile: Option<Profile>,
    /// Its rows, in order.
    pub rows: Vec<Part>,
    /// Its columns, in order.
    pub columns: Vec<Part>,
    /// Changes of a quick run.
    #[serde(default)]
    pub quick: Change,
    /// Changes of a full-size run.
    #[serde(default)]
    pub full: Change,
    /// How it is drawn.
    pub picture: Picture,
    /// What the paper prints of single values of the measure that is drawn.
    #[serde(default)]
    pub printed: Vec<Printed>,
    /// The paper's statements on it.
    pub claims: Vec<Claim>,
    /// The causes of deviations from the paper, as measured.
    #[serde(default)]
    pub deviations: Option<String>,
}

/// A row or a column.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The name in tables and claims.
    pub name: String,
    /// Changes to the experiment.
    #[serde(default)]
    pub set: Table,
    /// Further changes in a quick run.
    #[serde(default)]
    pub quick: Table,
    /// Further changes in a full-size run.
    #[serde(default)]
    pub full: Table,
}

/// Changes of a quick or a full-size run.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// The rows that are run; all by default.
    pub rows: Option<Vec<String>>,
    /// The columns that are run; all by default.
    pub columns: Option<Vec<String>>,
    /// Changes to the experiment.
    #[serde(default)]
    pub set: Table,
}

/// How workloads are profiled.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Loads and stores in an interval.
    pub interval_references: u64,
}

/// How a figure is drawn.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Picture {
    /// "bars": a group of bars for each row; "lines": a line for each column over rows that are
    /// numbers; "stack": a bar for each row and column, of the measures.
    pub kind: PictureKind,
    /// Label of the value axis.
    pub y: String,
    /// Whether rows are on a logarithmic axis.
    #[serde(default)]
    pub log_x: bool,
    /// Whether a geometric mean of the rows is drawn too.
    #[serde(default)]
    pub geomean: bool,
    /// A reference value for comparison.
    pub line: Option<f64>,
    /// What that value is, in the legend; begins with "paper" where it is the paper's.
    pub line_name: Option<String>,
    /// The columns that bars and lines are drawn of; all by default. There are eight colours.
    #[serde(default)]
    pub columns: Vec<String>,
    /// The measures of a stacked bar; all by default.
    #[serde(default)]
    pub parts: Vec<String>,
}

/// The kind of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PictureKind {
    /// Groups of bars.
    Bars,
    /// Lines.
    Lines,
    /// Stacked bars.
    Stack,
}

/// A value that the paper prints, drawn beside the one here.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Printed {
    /// Its row; "geomean" for the geometric mean that is drawn of all.
    pub row: String,
    /// Its column.
    pub column: String,
    /// The number, in the unit of the measure.
    pub value: f64,
    /// Where the paper prints it: "table 2".
    pub place: String,
}

/// Two numbers that are drawn beside each other.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// The paper's number, or its range.
    pub paper: PaperNumber,
    /// An expression for the number here.
    pub here: String,
}

/// What a claim's number comes to without the mechanism, or where that has nothing to do: what the
/// control shows as well is not the mechanism's.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// How it differs: "with all memory fast".
    pub says: String,
    /// An expression for the number then, as text.
    pub here: String,
}

/// One control, or a list of them.
fn one_or_several<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Control>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrSeveral {
        One(Control),
        Several(Vec<Control>),
    }
    Ok(match OneOrSeveral::deserialize(value)? {
        OneOrSeveral::One(control) => vec![control],
        OneOrSeveral::Several(controls) => controls,
    })
}

/// A claim of the paper, as a statement that can be checked: `holds`, or a number (`effect`) that is
/// compared with the paper's (`expected`).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim in words.
    pub says: String,
    /// The paper's number, or its words.
    pub paper: String,
    /// An expression for the number here, as text; see [`crate::claims`].
    pub here: String,
    /// An expression that holds when the two agree in direction.
    pub holds: Option<String>,
    /// With `holds`: an expression that is true where what is compared is too even to say so.
    pub tied: Option<String>,
    /// Its name, where it is a number that a reader of the paper remembers: "G.a".
    pub headline: Option<String>,
    /// The number of rows that it is about. A run of fewer says nothing of it.
    pub of_rows: Option<usize>,
    /// An expression for the number that is compared; see [`terrace_experiments::verdict`].
    pub effect: Option<String>,
    /// The paper's number, or its range.
    pub expected: Option<PaperNumber>,
    /// What the number would be without the effect.
    #[serde(default)]
    pub neutral: f64,
    /// How near to neutral it is a tie; half a percent by default.
    pub tie: Option<f64>,
    /// Whether it was fitted to the paper.
    #[serde(default)]
    pub calibrated: bool,
    /// Its controls: `control = { ... }`, or several in a list.
    #[serde(default, rename = "control", deserialize_with = "one_or_several")]
    pub controls: Vec<Control>,
    /// The numbers that are drawn beside each other; `effect` and `expected` without it.
    pub beside: Option<Beside>,
}

impl Claim {
    /// The comparison with the paper's number, where it has one.
    pub fn comparison(&self) -> Option<Comparison> {
        let tie = self.tie.unwrap_or(Comparison::TIE);
        let (neutral, calibrated) = (self.neutral, self.calibrated);
        self.expected.map(|paper| Comparison { paper, neutral, tie, calibrated })
    }

    fn check(&self) -> Result<(), String> {
        let bad = |what: &str| format!("claim '{}': {what}", self.says);
        match (&self.holds, &self.effect, self.comparison()) {
            (Some(_), None, None) if self.neutral == 0.0 && self.tie.is_none() => Ok(()),
            (None, Some(_), Some(comparison)) if self.tied.is_none() => {
                comparison.check().map_err(|e| bad(&e.to_string()))
            }
            _ => Err(bad("expected either holds (and tied), or effect and expected")),
        }
    }
}

/// Name of the row of geometric means in pictures.
pub const GEOMEAN: &str = "geomean";

/// Keys that a figure inherits from the one that it is `like`, where it has none of its own; its
/// experiment is laid over the other's.
const SHARED: [&str; 11] = [
    "scale",
    "kind",
    "row",
    "column",
    "measures",
    "experiment",
    "profile",
    "rows",
    "columns",
    "quick",
    "full",
];

impl Figure {
    /// Reads and checks a figure's file. `other` returns the text of the figure that it is `like`.
    pub fn parse(
        name: &str,
        text: &str,
        other: &dyn Fn(&str) -> Option<&'static str>,
    ) -> Result<Self, String> {
        let plain = |e: toml::de::Error, text: &str| {
            let line = e.span().map(|s| 1 + text[..s.start.min(text.len())].matches('\n').count());
            let place = line.map(|l| format!("line {l}: ")).unwrap_or_default();
            format!("figure '{name}': {place}{}", in_plain_words(e.message()))
        };
        let table = whole(name, text, other, 0, &plain)?;
        let mut figure: Figure = if text.contains("like = ") {
            Figure::deserialize(table).map_err(|e| plain(e, ""))?
        } else {
            // From the text itself, so that an error has its line.
            toml::from_str(text).map_err(|e| plain(e, text))?
        };
        figure.name = name.to_owned();
        figure.check().map_err(|e| format!("figure '{name}': {e}"))?;
        Ok(figure)
    }

    fn check(&self) -> Result<(), String> {
        kinds::find(&self.kind)?;
        let lists = [("rows", &self.rows), ("columns", &self.columns)];
        for (what, parts) in lists {
            if parts.is_empty() {
                return Err(format!("no {what}: expected at least one"));
            }
            for (index, part) in parts.iter().enumerate() {
                if parts[..index].iter().any(|p| p.name == part.name) {
                    return Err(format!(
                        "two {what} are named '{}': expected different names",
                        part.name
                    ));
                }
            }
        }
        if self.measures.is_empty() {
            return Err("no measures: expected at least one".to_owned());
        }
        self.claims.iter().try_for_each(Claim::check)?;
        let rows = self.rows.len();
        if let Some(claim) = self.claims.iter().find(|c| c.of_rows.is_some_and(|of| of > rows)) {
            let (says, of) = (&claim.says, claim.of_rows.unwrap_or_default());
            return Err(format!(
                "claim '{says}': of_rows is {of}; expected at most {rows}, the rows there are"
            ));
        }
        self.check_printed()?;
        for change in [&self.quick, &self.full] {
            let chosen = [(&change.rows, &self.rows), (&change.columns, &self.columns)];
            for (names, parts) in chosen {
                let unknown = names.iter().flatten().find(|n| parts.iter().all(|p| &p.name != *n));
                if let Some(name) = unknown {
                    return Err(format!("'{name}': no row or column of this name"));
                }
            }
        }
        let is_there = |name: &String| self.columns.iter().any(|c| &c.name == name);
        if let Some(name) = self.picture.columns.iter().find(|name| !is_there(name)) {
            return Err(format!("picture: '{name}': no column of this name"));
        }
        if self.picture.kind == PictureKind::Lines {
            let odd = self.rows.iter().find(|r| r.name.parse::<f64>().is_err());
            if let Some(row) = odd {
                return Err(format!(
                    "row '{}': expected a number, as the picture has lines",
                    row.name
                ));
            }
        }
        Ok(())
    }

    fn check_printed(&self) -> Result<(), String> {
        for printed in &self.printed {
            let Printed { row, column, .. } = printed;
            let mean = self.picture.geomean && row == GEOMEAN;
            let there = |parts: &[Part], name: &String| parts.iter().any(|p| &p.name == name);
            if !(mean || there(&self.rows, row)) || !there(&self.columns, column) {
                return Err(format!("printed value of '{row}', '{column}': no such row or column"));
            }
            if self.picture.kind == PictureKind::Stack {
                return Err("printed values: expected a picture of bars or lines".to_owned());
            }
        }
        Ok(())
    }

    /// The paper's short name: the part before the slash.
    pub fn paper(&self) -> &str {
        self.name.split('/').next().unwrap_or(&self.name)
    }
}

/// A figure's table, with the keys inherited from the one that it is `like`.
fn whole(
    name: &str,
    text: &str,
    other: &dyn Fn(&str) -> Option<&'static str>,
    depth: u32,
    plain: &dyn Fn(toml::de::Error, &str) -> String,
) -> Result<Table, String> {
    let mut table: Table = toml::from_str(text).map_err(|e| plain(e, text))?;
    let Some(like) = table.remove("like") else { return Ok(table) };
    let like = like.as_str().unwrap_or_default();
    let from = other(like).filter(|_| depth < 4).ok_or_else(|| {
        format!("figure '{name}': like = '{like}': expected the name of another figure")
    })?;
    let from = whole(name, from, other, depth + 1, plain)?;
    for key in SHARED {
        match (from.get(key), table.get(key)) {
            (Some(value), None) => {
                table.insert(key.to_owned(), value.clone());
            }
            // The experiment is the other's, changed by this one's.
            (Some(Value::Table(value)), Some(Value::Table(own))) if key == "experiment" => {
                let mut both = value.clone();
                merge(&mut both, own);
                table.insert(key.to_owned(), Value::Table(both));
            }
            _ => {}
        }
    }
    Ok(table)
}
