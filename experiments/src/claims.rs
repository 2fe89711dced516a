//! Claims of a paper as statements that can be checked: a measure, or the ratio of two of its
//! values, is in a range. They are in an experiment's file; a run prints the paper's statement,
//! the measured value, and whether the two agree.
//!
//! ```toml
//! [[claims]]
//! says = "CPM performs 10 to 100 % better than PAGE"
//! source = "abstract"
//! measure = "slowdown"
//! of = { scheme = "PAGE" }         # this value ...
//! over = { scheme = "CPM" }        # ... over this one; the value itself, if left out
//! at_least = 1.1                   # one end at least
//! at_most = 2.0
//! only = { variant = "100/400" }   # rows that are meant; all, if left out
//! take = "each"                    # or "mean": the geometric mean of all
//! # A number that a reader remembers: the geometric mean is compared with it (see [`crate::verdict`]).
//! headline = "C.b"                 # its name
//! paper = [1.1, 2.0]               # the paper's number, or its range
//! neutral = 1.0                    # without the effect; by default 1 with `over`, else 0
//! calibrated = false               # whether it was fitted to the paper
//! ```
//!
//! A claim with `paper` needs no `at_least` and no `at_most`: a value then holds if it agrees with
//! the paper in size or in direction.
//!
//! `of`, `over` and `only` choose rows by their dimensions: a name, or a list of names. Rows of `of` and
//! `over` are paired that agree in all dimensions which neither of the two names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use terrace_core::{InputError, refuse};

use crate::verdict::{Comparison, PaperNumber, VerdictKind};

/// A row to check claims against: dimensions and measured values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fact {
    /// What identifies the row, such as workload and scheme.
    pub dimensions: BTreeMap<&'static str, String>,
    /// Measured values by name.
    pub measures: BTreeMap<&'static str, f64>,
}

/// One name or several.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Some(Vec<String>),
}

impl Names {
    fn all(&self) -> &[String] {
        match self {
            Names::One(name) => std::slice::from_ref(name),
            Names::Some(names) => names,
        }
    }
}

/// Rows by their dimensions.
type Choice = BTreeMap<String, Names>;

/// Which of its values a claim is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
enum Take {
    /// Each of them.
    #[default]
    Each,
    /// Their geometric mean.
    Mean,
}

/// A claim.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The paper's statement, in our words.
    pub says: String,
    /// Place in the paper.
    pub source: String,
    measure: String,
    of: Choice,
    #[serde(default)]
    over: Choice,
    at_least: Option<f64>,
    at_most: Option<f64>,
    #[serde(default)]
    only: Choice,
    #[serde(default)]
    take: Take,
    /// Its name, for a number that readers of the paper remember.
    pub headline: Option<String>,
    paper: Option<PaperNumber>,
    neutral: Option<f64>,
    #[serde(default)]
    calibrated: bool,
}

/// Whether a claim holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Agreement {
    /// In all cases.
    Agrees,
    /// In some.
    Partly,
    /// In none.
    Differs,
    /// Its rows were not run.
    NotMeasured,
}

impl Agreement {
    /// In words.
    pub fn word(self) -> &'static str {
        match self {
            Agreement::Agrees => "agrees",
            Agreement::Partly => "partly",
            Agreement::Differs => "differs",
            Agreement::NotMeasured => "not measured",
        }
    }
}

/// The result of a claim.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The paper's statement.
    pub says: String,
    /// Place in the paper.
    pub source: String,
    /// The measure and its range, in words.
    pub expected: String,
    /// The measured values, in words.
    pub here: String,
    /// Whether the two agree.
    pub agreement: Agreement,
    /// Number of cases that hold.
    pub holds: usize,
    /// Number of cases.
    pub cases: usize,
    /// Its name, for a number that readers of the paper remember.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headline: Option<String>,
    /// How the mean of the measured values compares with the paper's number, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<VerdictKind>,
}

impl Verdict {
    /// The result in words: agreement, and comparison with the paper's number.
    pub fn words(&self) -> String {
        match self.verdict {
            Some(kind) => format!("{}, {}", self.agreement.word(), kind.word()),
            None => self.agreement.word().to_owned(),
        }
    }
}

/// Reads the claims of a file. The names that they may use are known before anything runs:
/// dimensions with their values, and measures.
pub fn read(
    tables: &[toml::Table],
    dimensions: &BTreeMap<&'static str, Vec<String>>,
    measures: &[&str],
) -> Result<Vec<Claim>, InputError> {
    let one = |(n, table): (usize, &toml::Table)| -> Result<Claim, InputError> {
        let claim: Claim = table
            .clone()
            .try_into()
            .map_err(|e: toml::de::Error| refuse!("claim {}: {}", n + 1, e.message()))?;
        let bad = |what: String| refuse!("claim {} ({:?}): {what}", n + 1, claim.says);
        if !measures.contains(&claim.measure.as_str()) {
            let known = measures.join(", ");
            return Err(bad(format!("no measure {:?}; expected one of {known}", claim.measure)));
        }
        match claim.comparison() {
            Some(comparison) => comparison.check().map_err(|e| bad(e.to_string()))?,
            None if claim.headline.is_some() || claim.neutral.is_some() || claim.calibrated => {
                return Err(bad(
                    "headline, neutral and calibrated: expected paper with them".into()
                ));
            }
            None if claim.at_least.is_none() && claim.at_most.is_none() => {
                return Err(bad("expected at_least, at_most or both, or paper".into()));
            }
            None => {}
        }
        for (dimension, names) in claim.of.iter().chain(&claim.over).chain(&claim.only) {
            let Some(known) = dimensions.get(dimension.as_str()) else {
                let known: Vec<_> = dimensions.keys().copied().collect();
                let known = known.join(", ");
                return Err(bad(format!("no {dimension:?}; expected one of {known}")));
            };
            if let Some(name) = names.all().iter().find(|n| !known.contains(n)) {
                let known = known.join(", ");
                return Err(bad(format!("no {dimension} {name:?}; expected one of {known}")));
            }
        }
        Ok(claim)
    };
    tables.iter().enumerate().map(one).collect()
}

fn chosen(fact: &Fact, choice: &Choice) -> bool {
    choice.iter().all(|(dimension, names)| {
        fact.dimensions.get(dimension.as_str()).is_some_and(|value| names.all().contains(value))
    })
}

impl Claim {
    /// The measure and its range, in words.
    fn expected(&self) -> String {
        let choice = |c: &Choice| {
            let names: Vec<_> = c.values().map(|n| n.all().join(", ")).collect();
            names.join(" at ")
        };
        let value = match (self.of.is_empty(), self.over.is_empty()) {
            (true, true) => self.measure.clone(),
            (false, true) => format!("{} of {}", self.measure, choice(&self.of)),
            _ => format!("{} of {} over {}", self.measure, choice(&self.of), choice(&self.over)),
        };
        let mean = if self.take == Take::Mean { "mean " } else { "" };
        let range = match (self.at_least, self.at_most) {
            (None, None) => match self.paper {
                Some(PaperNumber::Range([low, high])) => format!("{low} to {high} in the paper"),
                Some(PaperNumber::One(number)) => format!("{number} in the paper"),
                None => "anything".to_owned(),
            },
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, most) => format!("at most {}", most.unwrap_or_default()),
        };
        format!("{mean}{value}: {range}")
    }

    /// The paper's number and how values are compared with it, if there is one.
    fn comparison(&self) -> Option<Comparison> {
        let neutral = self.neutral.unwrap_or(if self.over.is_empty() { 0.0 } else { 1.0 });
        let tie = Comparison::TIE;
        self.paper.map(|paper| Comparison { paper, neutral, tie, calibrated: self.calibrated })
    }

    /// Each of its values, with a description.
    fn values(&self, facts: &[Fact]) -> Vec<(f64, String)> {
        let meant: Vec<&Fact> = facts.iter().filter(|f| chosen(f, &self.only)).collect();
        let value = |f: &Fact| f.measures.get(self.measure.as_str()).copied();
        // A dimension with a single value is left out.
        let names = |dimension: &str| {
            let mut values = meant.iter().filter_map(|f| f.dimensions.get(dimension));
            let first = values.next();
            values.any(|v| Some(v) != first)
        };
        let name = |f: &Fact| {
            let names: Vec<&str> = f
                .dimensions
                .iter()
                .filter(|(d, _)| names(d))
                .map(|(_, value)| value.as_str())
                .collect();
            names.join(" ")
        };
        let mut values = Vec::new();
        for of in meant.iter().filter(|f| chosen(f, &self.of)) {
            let Some(left) = value(of) else { continue };
            if self.over.is_empty() {
                values.push((left, name(of)));
                continue;
            }
            let free = |d: &str| !self.of.contains_key(d) && !self.over.contains_key(d);
            let pair = |over: &&&Fact| {
                chosen(over, &self.over)
                    && of
                        .dimensions
                        .iter()
                        .filter(|(d, _)| free(d))
                        .all(|(d, v)| over.dimensions.get(d) == Some(v))
            };
            values.extend(
                meant.iter().filter(pair).filter_map(|over| Some((left / value(over)?, name(of)))),
            );
        }
        values
    }

    /// Checks it against these rows.
    pub fn check(&self, facts: &[Fact]) -> Verdict {
        let mut values = self.values(facts);
        let sum: f64 = values.iter().map(|v| v.0.ln()).sum();
        // Without values the mean is not a number, and the verdict "not run".
        let mean = (sum / values.len() as f64).exp();
        let comparison = self.comparison();
        let verdict = comparison.map(|comparison| comparison.judge(mean));
        if self.take == Take::Mean && !values.is_empty() {
            values = vec![(mean, "mean".into())];
        }
        let ranged = self.at_least.is_some() || self.at_most.is_some();
        let holds = |value: f64| match comparison {
            Some(comparison) if !ranged => comparison.judge(value).agrees() == Some(true),
            _ => {
                self.at_least.is_none_or(|l| value >= l) && self.at_most.is_none_or(|m| value <= m)
            }
        };
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (cases, held) = (values.len(), values.iter().filter(|v| holds(v.0)).count());
        let here = match &values[..] {
            [] => String::new(),
            [only] => format!("{:.2}", only.0),
            [least, .., most] => {
                format!("{:.2} ({}) to {:.2} ({})", least.0, least.1, most.0, most.1)
            }
        };
        Verdict {
            says: self.says.clone(),
            source: self.source.clone(),
            expected: self.expected(),
            here: if cases > 1 { format!("{held} of {cases}: {here}") } else { here },
            agreement: match (held, cases) {
                (_, 0) => Agreement::NotMeasured,
                (held, cases) if held == cases => Agreement::Agrees,
                (0, _) => Agreement::Differs,
                _ => Agreement::Partly,
            },
            holds: held,
            cases,
            headline: self.headline.clone(),
            verdict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Vec<Fact> {
        let fact = |workload: &str, scheme: &str, slowdown: f64| Fact {
            dimensions: [("workload", workload.to_owned()), ("scheme", scheme.to_owned())].into(),
            measures: [("slowdown", slowdown)].into(),
        };
        vec![
            fact("a", "OLD", 3.0),
            fact("a", "NEW", 1.5),
            fact("b", "OLD", 1.0),
            fact("b", "NEW", 1.25),
            fact("b", "MID", 1.1),
        ]
    }

    fn claim(text: &str) -> Result<Claim, InputError> {
        let table = toml::from_str(&format!("says = 'it'\nsource = 'here'\n{text}")).unwrap();
        let dimensions = BTreeMap::from([
            ("workload", vec!["a".to_owned(), "b".to_owned()]),
            ("scheme", vec!["OLD".to_owned(), "MID".to_owned(), "NEW".to_owned()]),
        ]);
        read(&[table], &dimensions, &["slowdown"]).map(|mut c| c.remove(0))
    }

    fn verdict(text: &str) -> Verdict {
        claim(text).unwrap().check(&facts())
    }

    #[test]
    fn ratios_pair_rows_that_agree_in_everything_else() {
        let v = verdict(
            "measure = 'slowdown'\nof = { scheme = 'OLD' }\nover = { scheme = 'NEW' }\nat_least = 1",
        );
        assert_eq!((v.holds, v.cases, v.agreement), (1, 2, Agreement::Partly));
        assert_eq!(v.here, "1 of 2: 0.80 (OLD b) to 2.00 (OLD a)");
        assert_eq!(v.expected, "slowdown of OLD over NEW: at least 1");
    }

    #[test]
    fn lists_values_alone_means_and_what_was_not_run() {
        let many =
            "measure = 'slowdown'\nof = { scheme = ['OLD', 'MID'] }\nover = { scheme = 'NEW' }";
        let v = verdict(&format!("{many}\nonly = {{ workload = 'b' }}\nat_most = 1"));
        assert_eq!((v.cases, v.agreement), (2, Agreement::Agrees));
        let v = verdict(&format!("{many}\nat_least = 9"));
        assert_eq!((v.holds, v.cases, v.agreement), (0, 3, Agreement::Differs));
        let mean = "measure = 'slowdown'\nof = { scheme = 'OLD' }\ntake = 'mean'";
        let v = verdict(&format!("{mean}\nat_least = 1.73\nat_most = 1.74"));
        assert_eq!((v.here.as_str(), v.agreement), ("1.73", Agreement::Agrees));
        let v = verdict(
            "measure = 'slowdown'\nof = { scheme = 'MID' }\nonly = { workload = 'a' }\nat_most = 1",
        );
        assert_eq!(v.agreement, Agreement::NotMeasured);
    }

    #[test]
    fn a_headline_compares_the_mean_with_the_papers_number() {
        // OLD over NEW: 2 and 0.8, 1.265 in the mean.
        let ratio = "measure = 'slowdown'\nof = { scheme = 'OLD' }\nover = { scheme = 'NEW' }\n\
                     headline = 'X.a'";
        let verdict = |rest: &str| verdict(&format!("{ratio}\n{rest}"));
        for (rest, kind) in [
            ("paper = 1.3", VerdictKind::Size),
            ("paper = [1.3, 2.0]", VerdictKind::Size),
            ("paper = 2.0", VerdictKind::Direction),
            ("paper = 0.5", VerdictKind::No),
            ("paper = 1.3\ncalibrated = true", VerdictKind::Calibrated),
            ("paper = 0.9\nneutral = 0.3", VerdictKind::Direction),
            ("paper = 1.3\nonly = { workload = 'a' }", VerdictKind::Direction),
        ] {
            let v = verdict(rest);
            assert_eq!((v.verdict, v.headline.as_deref()), (Some(kind), Some("X.a")), "{rest}");
        }
        // Without a range, a value holds if it agrees: one of the two.
        let v = verdict("paper = 1.3");
        assert_eq!((v.holds, v.cases, v.words().as_str()), (1, 2, "partly, size"));
        // With a range, the range decides.
        assert_eq!(verdict("paper = 1.3\nat_least = 0.7").holds, 2);
        let none = "paper = 1.3\nonly = { workload = 'a', scheme = 'MID' }";
        assert_eq!(verdict(none).verdict, Some(VerdictKind::NotRun));
    }

    #[test]
    fn claims_that_could_never_be_checked_are_refused() {
        for (text, printed) in [
            ("measure = 'speed'\nof = {}\nat_most = 1", "no measure \"speed\"; expected one of"),
            ("measure = 'slowdown'\nof = {}", "expected at_least, at_most or both"),
            ("measure = 'slowdown'\nof = {}\npaper = 0", "expected a number, or a range"),
            ("measure = 'slowdown'\nof = {}\nat_most = 1\nheadline = 'X'", "expected paper"),
            ("measure = 'slowdown'\nof = { plan = 'x' }\nat_most = 1", "no \"plan\""),
            ("measure = 'slowdown'\nof = { scheme = 'FAST' }\nat_most = 1", "no scheme \"FAST\""),
            ("measure = 'slowdown'\nof = {}\nat_mots = 1", "at_mots"),
        ] {
            let error = claim(text).unwrap_err().to_string();
            assert!(error.contains(printed) && !error.contains('\n'), "{error}");
        }
    }
}
