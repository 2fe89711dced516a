//! Claims as expressions over a figure's values, in the expression language of the template
//! library (minijinja): numbers, comparisons, `and`, `or`, lists, filters as `max` and `min`.
//!
//! | call | is |
//! |---|---|
//! | `value(row, column)` | one value |
//! | `mean(column)`, `geomean(column)`, `max_of(column)`, `min_of(column)`, `sum_of(column)` | over the rows |
//! | `gain(a, b)` | geometric mean over the rows of column `a` over column `b`, less one |
//! | `rows_where(text)` | in how many rows an expression holds, in which `c` has the row's values by column, and `lowest(measure, columns)` is the one among columns with the row's lowest value of a measure |
//! | `favours(row, column)` | the row's value in that column over the best of its others, less one |
//! | `lowest_of(row, columns)` | the one among columns with the row's lowest value |
//! | `mean_size(column)` | the mean over the rows of how far the values are from zero |
//! | `spread()` | the largest of the rows' best value over their worst |
//! | `best_columns()`, `least_columns()` | how many columns are the highest, or the lowest, of a row |
//! | `least(row, column)` | the row's value in that column over the lowest of its others, less one |
//! | `most(a, b)` | the largest of the rows' values in column `a` over those in `b`, less one |
//! | `correlation(measure)` | Pearson's, between how far a cell's measure is from its row's best cell's, and its value over that cell's |
//! | `rows` | how many rows there are |
//! | `percent(x)`, `times(x)`, `number(x)` | a number as text |
//!
//! A minus sign before a call is taken for a part of its name; write `0 - gain(a, b)`.
//!
//! Each takes the name of a measure as a last argument; without it, the figure's first measure is
//! used. A row that was not run is left out; a missing value makes the claim undecided.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use minijinja::value::Rest;
use minijinja::{Environment, Error, ErrorKind, Value};
use terrace_experiments::verdict::{PaperNumber, VerdictKind};
use terrace_report::plots::Pair;

use crate::data::{Data, number};
use crate::figure::Claim;
use crate::seeds::UnderSeed;

/// A function over a column's values.
type OverRows = fn(&[f64]) -> f64;

/// The result of a claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The claim.
    pub says: String,
    /// The paper's number.
    pub paper: String,
    /// The number here.
    pub here: String,
    /// Its name, where it is a number that a reader of the paper remembers.
    pub headline: Option<String>,
    /// How the two compare.
    pub kind: VerdictKind,
    /// What its controls come to: how each differs, and the number.
    pub controls: Vec<(String, String)>,
    /// What it comes to under each seed, the figure's own first; empty of one alone.
    pub seeds: Vec<UnderSeed>,
}

impl Verdict {
    /// It as JSON.
    pub fn json(&self) -> serde_json::Value {
        let mut all = serde_json::json!({
            "says": self.says, "paper": self.paper, "here": self.here,
            "headline": self.headline, "verdict": self.kind, "agrees": self.kind.agrees(),
        });
        if !self.controls.is_empty() {
            let one =
                |(says, here): &(String, String)| serde_json::json!({ "says": says, "here": here });
            all["controls"] = self.controls.iter().map(one).collect();
        }
        if !self.seeds.is_empty() {
            let one = |s: &UnderSeed| serde_json::json!({ "here": s.here, "verdict": s.kind });
            all["seeds"] = self.seeds.iter().map(one).collect();
        }
        all
    }
}

/// Checks a figure's claims. The error is for an expression that makes no sense.
pub fn check(claims: &[Claim], data: &Data) -> Result<Vec<Verdict>, String> {
    let environment = environment(data);
    claims
        .iter()
        .map(|claim| {
            let mut here = evaluate(&environment, &claim.here, data)?;
            let mut kind = judge(&environment, claim, data)?;
            if claim.of_rows.is_some_and(|rows| data.rows.len() < rows) {
                (here, kind) = (None, VerdictKind::NotRun);
            }
            let here = text_of(here);
            let controls = claim.controls.iter().map(|control| {
                let here = evaluate(&environment, &control.here, data)?;
                Ok::<_, String>((control.says.clone(), text_of(here)))
            });
            Ok(Verdict {
                says: claim.says.clone(),
                paper: claim.paper.clone(),
                here,
                headline: claim.headline.clone(),
                kind,
                controls: controls.collect::<Result<_, _>>()?,
                seeds: Vec::new(),
            })
        })
        .collect()
}

/// What an expression comes to, as text.
fn text_of(value: Option<Value>) -> String {
    value.map_or("not run".to_owned(), |v| {
        f64::try_from(v.clone()).map_or_else(|_| v.to_string(), number)
    })
}

/// The numbers of claims that are drawn beside the paper's. `words` are the numbers here as each claim's
/// verdict has them.
pub fn pairs(claims: &[Claim], words: &[String], data: &Data) -> Result<Vec<Pair>, String> {
    let environment = environment(data);
    let mut pairs = Vec::new();
    for (claim, words) in claims.iter().zip(words) {
        let numbers = match (&claim.beside, &claim.effect, claim.expected) {
            (Some(beside), ..) => Some((beside.paper, &beside.here)),
            (None, Some(effect), Some(paper)) => Some((paper, effect)),
            _ => None,
        };
        let Some((paper, here)) = numbers else { continue };
        let here = evaluate(&environment, here, data)?.and_then(|v| f64::try_from(v).ok());
        let paper = match paper {
            PaperNumber::One(one) => [one; 2],
            PaperNumber::Range(range) => range,
        };
        let unit = match words.chars().last() {
            Some(unit @ ('%' | 'x')) => unit.to_string(),
            _ => String::new(),
        };
        let fitted = if claim.calibrated { ", calibrated" } else { "" };
        pairs.push(Pair {
            says: claim.says.clone(),
            paper,
            paper_words: claim.paper.clone(),
            here,
            here_words: format!("{words}{fitted}"),
            unit,
        });
    }
    Ok(pairs)
}

/// How a claim compares: its number with the paper's, or whether its statement holds.
fn judge(environment: &Environment<'_>, claim: &Claim, data: &Data) -> Result<VerdictKind, String> {
    if let (Some(effect), Some(comparison)) = (&claim.effect, claim.comparison()) {
        let Some(value) = evaluate(environment, effect, data)? else {
            return Ok(VerdictKind::NotRun);
        };
        let number = f64::try_from(value.clone()).map_err(|_| {
            format!("claim '{effect}': got {value}; expected a number to compare with the paper's")
        })?;
        return Ok(comparison.judge(number));
    }
    let truth = |text: &Option<String>| {
        let text = text.as_deref().unwrap_or("false");
        Ok::<_, String>(evaluate(environment, text, data)?.map(|v| v.is_true()))
    };
    Ok(match truth(&claim.holds)? {
        None => VerdictKind::NotRun,
        Some(_) if claim.calibrated => VerdictKind::Calibrated,
        Some(_) if truth(&claim.tied)? == Some(true) => VerdictKind::Tie,
        Some(true) => VerdictKind::Direction,
        Some(false) => VerdictKind::No,
    })
}

fn evaluate(
    environment: &Environment<'_>,
    text: &str,
    data: &Data,
) -> Result<Option<Value>, String> {
    let expression = environment
        .compile_expression(text)
        .map_err(|e| format!("claim '{text}': {e}; expected an expression"))?;
    let context = BTreeMap::from([("rows", data.rows.len())]);
    match expression.eval(context) {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == ErrorKind::NonKey => Ok(None),
        Err(e) => Err(format!("claim '{text}': {e}")),
    }
}

/// The error that means "was not run".
fn missing(what: &str) -> Error {
    Error::new(ErrorKind::NonKey, format!("no value of {what}"))
}

fn unknown(kind: &str, name: &str, there: &[String]) -> Error {
    let message = format!("no {kind} '{name}'; there are {}", there.join(", "));
    Error::new(ErrorKind::InvalidOperation, message)
}

fn environment(data: &Data) -> Environment<'static> {
    let data = Arc::new(data.clone());
    let mut environment = Environment::new();
    let shared = data.clone();
    environment.add_function(
        "value",
        move |row: String, column: String, measure: Rest<String>| -> Result<f64, Error> {
            let measure = measure_of(&shared, &measure)?;
            shared.get(&row, &column, &measure).ok_or_else(|| missing(&format!("{row}, {column}")))
        },
    );
    let over_rows: [(&str, OverRows); 6] = [
        ("mean_size", |v| v.iter().map(|x| x.abs()).sum::<f64>() / v.len() as f64),
        ("mean", |v| v.iter().sum::<f64>() / v.len() as f64),
        ("geomean", geomean),
        ("max_of", |v| v.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
        ("min_of", |v| v.iter().copied().fold(f64::INFINITY, f64::min)),
        ("sum_of", |v| v.iter().sum()),
    ];
    for (name, of) in over_rows {
        let shared = data.clone();
        environment.add_function(
            name,
            move |column: String, measure: Rest<String>| -> Result<f64, Error> {
                let measure = measure_of(&shared, &measure)?;
                let values = shared.column(&column, &measure);
                if values.is_empty() { Err(missing(&column)) } else { Ok(of(&values)) }
            },
        );
    }
    let shared = data.clone();
    environment.add_function(
        "gain",
        move |a: String, b: String, measure: Rest<String>| -> Result<f64, Error> {
            let measure = measure_of(&shared, &measure)?;
            let ratio = |row: &String| {
                Some(shared.get(row, &a, &measure)? / shared.get(row, &b, &measure)?)
            };
            let ratios: Vec<f64> = shared.rows.iter().filter_map(ratio).collect();
            if ratios.is_empty() { Err(missing(&a)) } else { Ok(geomean(&ratios) - 1.0) }
        },
    );
    of_rows(&mut environment, &data);
    of_columns(&mut environment, &data);
    of_extremes(&mut environment, &data);
    environment.add_function("percent", |x: f64| format!("{:+.1} %", x * 100.0));
    environment.add_function("times", |x: f64| format!("{}x", number(x)));
    environment.add_function("number", number);
    environment
}

/// Functions that count rows by a condition.
fn of_rows(environment: &mut Environment<'static>, data: &Arc<Data>) {
    let shared = data.clone();
    environment.add_function(
        "rows_where",
        move |text: String, measure: Rest<String>| -> Result<u64, Error> {
            let measure = measure_of(&shared, &measure)?;
            let mut count = 0;
            for row in &shared.rows {
                let mut inner = Environment::new();
                let (own, of) = (shared.clone(), row.clone());
                inner.add_function(
                    "lowest",
                    move |measure: String, columns: Vec<String>| -> Result<String, Error> {
                        let measure = measure_of(&own, &Rest(vec![measure]))?;
                        lowest(&own, &of, &columns, &measure)
                    },
                );
                let expression = inner.compile_expression(&text)?;
                let values: BTreeMap<&str, f64> = shared
                    .columns
                    .iter()
                    .filter_map(|c| Some((c.as_str(), shared.get(row, c, &measure)?)))
                    .collect();
                // A run that did not end leaves no value: the row is undecided.
                if values.len() < shared.columns.len() {
                    continue;
                }
                let context = minijinja::context! { c => values, row => row };
                count += u64::from(expression.eval(context)?.is_true());
            }
            Ok(count)
        },
    );
}

/// Functions that compare the columns of rows.
fn of_columns(environment: &mut Environment<'static>, data: &Arc<Data>) {
    let shared = data.clone();
    environment.add_function(
        "lowest_of",
        move |row: String, columns: Vec<String>, measure: Rest<String>| -> Result<String, Error> {
            let measure = measure_of(&shared, &measure)?;
            lowest(&shared, &row, &columns, &measure)
        },
    );
    let shared = data.clone();
    environment.add_function(
        "favours",
        move |row: String, column: String, measure: Rest<String>| -> Result<f64, Error> {
            let measure = measure_of(&shared, &measure)?;
            beside(&shared, &row, &column, &measure, f64::max)
        },
    );
    let shared = data.clone();
    environment.add_function(
        "least",
        move |row: String, column: String, measure: Rest<String>| -> Result<f64, Error> {
            let measure = measure_of(&shared, &measure)?;
            beside(&shared, &row, &column, &measure, f64::min)
        },
    );
    let shared = data.clone();
    environment.add_function(
        "most",
        move |a: String, b: String, measure: Rest<String>| -> Result<f64, Error> {
            let measure = measure_of(&shared, &measure)?;
            let ratio = |row: &String| {
                Some(shared.get(row, &a, &measure)? / shared.get(row, &b, &measure)?)
            };
            shared
                .rows
                .iter()
                .filter_map(ratio)
                .reduce(f64::max)
                .map(|r| r - 1.0)
                .ok_or_else(|| missing(&a))
        },
    );
}

/// Functions of the best and the worst column of each row.
fn of_extremes(environment: &mut Environment<'static>, data: &Arc<Data>) {
    let shared = data.clone();
    environment.add_function("spread", move |measure: Rest<String>| -> Result<f64, Error> {
        let measure = measure_of(&shared, &measure)?;
        let spread = |row: &String| {
            let (_, best, worst) = extremes(&shared, row, &measure)?;
            Some(best / worst)
        };
        Ok(shared.rows.iter().filter_map(spread).fold(0.0, f64::max))
    });
    let shared = data.clone();
    environment.add_function(
        "best_columns",
        move |measure: Rest<String>| -> Result<usize, Error> {
            let measure = measure_of(&shared, &measure)?;
            let best = |row: &String| Some(extremes(&shared, row, &measure)?.0);
            Ok(shared.rows.iter().filter_map(best).collect::<BTreeSet<_>>().len())
        },
    );
    let shared = data.clone();
    environment.add_function(
        "least_columns",
        move |measure: Rest<String>| -> Result<usize, Error> {
            let measure = measure_of(&shared, &measure)?;
            let least = |row: &String| {
                let of_row = |c: &String| Some((c.clone(), shared.get(row, c, &measure)?));
                let values = shared.columns.iter().filter_map(of_row);
                values.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(column, _)| column)
            };
            Ok(shared.rows.iter().filter_map(least).collect::<BTreeSet<_>>().len())
        },
    );
    let shared = data.clone();
    environment.add_function("correlation", move |measure: String| -> Result<f64, Error> {
        let values = measure_of(&shared, &Rest(Vec::new()))?;
        let feature = measure_of(&shared, &Rest(vec![measure]))?;
        pearson(&gaps(&shared, &values, &feature)).ok_or_else(|| missing(&feature))
    });
}

fn measure_of(data: &Data, given: &Rest<String>) -> Result<String, Error> {
    match given.first() {
        Some(name) if data.measures.contains(name) => Ok(name.clone()),
        Some(name) => Err(unknown("measure", name, &data.measures)),
        None => data.measures.first().cloned().ok_or_else(|| missing("any measure")),
    }
}

/// The one among columns with a row's lowest value, where all of them have one.
fn lowest(data: &Data, row: &str, columns: &[String], measure: &str) -> Result<String, Error> {
    let mut values = Vec::new();
    for column in columns {
        values.push((column, data.get(row, column, measure).ok_or_else(|| missing(row))?));
    }
    let lowest = values.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
    lowest.map(|(column, _)| column.clone()).ok_or_else(|| missing(row))
}

/// A row's value in a column over the one among its others that `pick` chooses, less one.
fn beside(
    data: &Data,
    row: &str,
    column: &str,
    measure: &str,
    pick: fn(f64, f64) -> f64,
) -> Result<f64, Error> {
    let own = data.get(row, column, measure).ok_or_else(|| missing(row))?;
    let others = data.columns.iter().filter(|c| *c != column);
    let other = others.filter_map(|c| data.get(row, c, measure)).reduce(pick);
    other.map(|other| own / other - 1.0).ok_or_else(|| missing(row))
}

/// The column of a row's highest value, that value, and its lowest.
fn extremes<'a>(data: &'a Data, row: &str, measure: &str) -> Option<(&'a str, f64, f64)> {
    let values = data.columns.iter().filter_map(|c| Some((c.as_str(), data.get(row, c, measure)?)));
    let values: Vec<(&str, f64)> = values.collect();
    let (best, high) = values.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let low = values.iter().map(|v| v.1).fold(f64::INFINITY, f64::min);
    Some((best, high, low))
}

/// Of each cell: the measure of its row's best cell less its own, and its value over that cell's
/// (adaptive-migration-policy paper, section 4.1: feature value gap, normalized performance).
fn gaps(data: &Data, values: &str, feature: &str) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    for row in &data.rows {
        let Some((best, high, _)) = extremes(data, row, values) else { continue };
        let Some(of_best) = data.get(row, best, feature) else { continue };
        all.extend(data.columns.iter().filter_map(|c| {
            Some((of_best - data.get(row, c, feature)?, data.get(row, c, values)? / high))
        }));
    }
    all
}

/// Pearson's correlation coefficient; `None` of fewer than three points or of a constant.
fn pearson(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|p| p.0), mean(|p| p.1));
    let sum =
        |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|p| of(p.0 - x, p.1 - y)).sum::<f64>();
    let spread = (sum(&|x, _| x * x) * sum(&|_, y| y * y)).sqrt();
    (points.len() >= 3 && spread > 0.0).then(|| sum(&|x, y| x * y) / spread)
}

/// The geometric mean of positive numbers; others make it NaN.
pub fn geomean(values: &[f64]) -> f64 {
    (values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use terrace_experiments::verdict::PaperNumber;

    use super::*;
    use crate::figure::Control;

    fn data() -> Data {
        let names = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let mut data =
            Data::new(names(&["cg", "mcf"]), names(&["lru", "amp"]), names(&["speed", "hits"]));
        for (row, column, value) in
            [("cg", "lru", 1.0), ("cg", "amp", 2.0), ("mcf", "lru", 4.0), ("mcf", "amp", 2.0)]
        {
            data.put(row, column, "speed", value);
        }
        data
    }

    #[test]
    fn a_control_is_beside_its_claim_and_changes_no_verdict() {
        let claim = |control: &str| Claim {
            here: "percent(gain('amp', 'lru'))".to_owned(),
            holds: Some("value('cg', 'amp') > value('cg', 'lru')".to_owned()),
            controls: vec![Control { says: "without".to_owned(), here: control.to_owned() }],
            ..Claim::default()
        };
        let of =
            |control: &str, data: &Data| check(&[claim(control)], data).map(|mut v| v.remove(0));
        let same = of("percent(gain('lru', 'lru'))", &data()).unwrap();
        assert_eq!(same.kind, VerdictKind::Direction);
        assert_eq!(same.controls, [("without".to_owned(), "+0.0 %".to_owned())]);
        assert_eq!(
            same.json()["controls"],
            serde_json::json!([{ "says": "without", "here": "+0.0 %" }])
        );
        // One that was not run leaves the claim as it is; one that makes no sense is a mistake.
        let not_run = of(
            "value('ua', 'lru')",
            &Data::new(vec!["cg".into(), "ua".into()], vec!["lru".into()], vec!["speed".into()]),
        );
        assert_eq!(not_run.unwrap().controls[0].1, "not run");
        assert!(of("value('cg', 'lru', 'sped')", &data()).unwrap_err().contains("'sped'"));
    }

    fn verdict(here: &str, holds: &str) -> Result<Verdict, String> {
        let claim = Claim {
            says: "x".to_owned(),
            paper: "y".to_owned(),
            here: here.to_owned(),
            holds: Some(holds.to_owned()),
            ..Claim::default()
        };
        check(&[claim], &data()).map(|mut v| v.remove(0))
    }

    #[test]
    fn expressions_speak_of_values_means_and_rows() {
        for (here, holds, text, agrees) in [
            ("value('cg', 'amp')", "value('cg', 'amp') > value('cg', 'lru')", "2", Some(true)),
            ("geomean('lru')", "geomean('amp') > geomean('lru')", "2", Some(false)),
            ("percent(gain('amp', 'lru'))", "gain('amp', 'lru') >= 0", "+0.0 %", Some(true)),
            ("times(mean('lru'))", "max_of('lru') == 4", "2.500x", Some(true)),
            (
                "rows_where('c.amp >= c.lru')",
                "rows_where('c.amp >= 0.9 * ([c.lru, 1]|max)') == rows",
                "1",
                Some(false),
            ),
            (
                "rows_where('c[lowest(\"speed\", [\"lru\", \"amp\"])] < 2')",
                "rows_where('lowest(\"speed\", [\"lru\"]) == \"lru\"') == rows",
                "1",
                Some(true),
            ),
            (
                "lowest_of('cg', ['amp', 'lru'])",
                "rows_where('lowest(\"speed\", [\"amp\", \"lru\"]) == {\"cg\": \"lru\", \"mcf\": \
                 \"lru\"}[row]') == 1",
                "lru",
                Some(true),
            ),
            ("number(mean_size('amp'))", "mean_size('amp') == 2", "2", Some(true)),
            ("value('cg', 'amp', 'hits')", "value('cg', 'amp', 'hits') > 0", "not run", None),
            ("best_columns()", "least_columns() == 2", "2", Some(true)),
            ("correlation('speed')", "correlation('speed') < -0.5", "-0.905", Some(true)),
            ("value('bfs', 'amp')", "true", "not run", Some(true)),
        ] {
            let got = verdict(here, holds).unwrap();
            assert_eq!((got.here.as_str(), got.kind.agrees()), (text, agrees), "{here}; {holds}");
        }
    }

    #[test]
    fn what_is_too_even_to_favour_anything_is_a_tie_and_no_agreement() {
        let kind = |least: &str| {
            let claim = Claim {
                here: "favours('cg', 'amp')".to_owned(),
                holds: Some(format!("favours('cg', 'amp') > {least}")),
                tied: Some(format!("favours('cg', 'amp') <= {least}")),
                ..Claim::default()
            };
            check(&[claim], &data()).map(|v| v[0].kind)
        };
        assert_eq!(kind("0.5"), Ok(VerdictKind::Direction));
        assert_eq!(kind("1.5"), Ok(VerdictKind::Tie));
    }

    #[test]
    fn a_claim_about_more_rows_than_were_run_is_not_judged() {
        let of = |rows: usize| {
            let claim = Claim {
                here: "geomean('lru')".to_owned(),
                holds: Some("geomean('lru') == 2".to_owned()),
                of_rows: Some(rows),
                ..Claim::default()
            };
            let verdict = check(&[claim], &data()).unwrap().remove(0);
            (verdict.here, verdict.kind)
        };
        assert_eq!(of(2), ("2".to_owned(), VerdictKind::Direction));
        assert_eq!(of(3), ("not run".to_owned(), VerdictKind::NotRun));
    }

    #[test]
    fn an_effect_is_compared_with_the_papers_number() {
        let kind = |effect: &str, expected: f64, calibrated: bool| {
            let claim = Claim {
                here: "1".to_owned(),
                effect: Some(effect.to_owned()),
                expected: Some(PaperNumber::One(expected)),
                neutral: 1.0,
                calibrated,
                ..Claim::default()
            };
            check(&[claim], &data()).map(|v| v[0].kind)
        };
        // 2 over 1: an effect of 1.
        let ratio = "value('cg', 'amp') / value('cg', 'lru')";
        assert_eq!(kind(ratio, 1.9, false), Ok(VerdictKind::Size));
        assert_eq!(kind(ratio, 3.0, false), Ok(VerdictKind::Direction));
        assert_eq!(kind(ratio, 0.5, false), Ok(VerdictKind::No));
        assert_eq!(kind(ratio, 1.9, true), Ok(VerdictKind::Calibrated));
        assert_eq!(kind("gain('amp', 'lru') + 1", 1.2, false), Ok(VerdictKind::Tie));
        assert_eq!(kind("value('bfs', 'amp')", 1.2, false), Ok(VerdictKind::NotRun));
        let error = kind("percent(0.1)", 1.2, false).unwrap_err();
        assert!(error.contains("expected a number"), "{error}");
    }

    #[test]
    fn nonsense_is_an_error_and_not_a_verdict() {
        for bad in ["value(", "value('cg', 'amp', 'misspelt') > 1", "nothing('cg')"] {
            let error = verdict("1", bad).unwrap_err();
            assert!(error.starts_with("claim '"), "{error}");
        }
    }
}
