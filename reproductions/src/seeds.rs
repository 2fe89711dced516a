//! A figure under several seeds: how far a claim's number and its verdict depend on chance.
//!
//! The verdict is that of the figure's own seed, whatever the others come to.

use std::collections::BTreeMap;

use terrace_experiments::verdict::VerdictKind;

use crate::claims::Verdict;
use crate::data::Data;
use crate::figure::Figure;

/// What a claim comes to under one seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnderSeed {
    /// The number here.
    pub here: String,
    /// How it compares with the paper's.
    pub kind: VerdictKind,
}

/// A figure's verdicts with what they come to under each seed, of which the first is the figure's own.
/// They are left as they are where there is one alone.
pub fn joined(figure: &Figure, all: &[Data]) -> Result<Vec<Verdict>, String> {
    let mut of_seeds = Vec::new();
    for data in all {
        let verdicts = crate::claims::check(&figure.claims, data)
            .map_err(|e| format!("figure '{}': {e}", figure.name))?;
        of_seeds.push(verdicts);
    }
    let mut own = of_seeds.first().cloned().unwrap_or_default();
    if of_seeds.len() > 1 {
        for (number, verdict) in own.iter_mut().enumerate() {
            let seen = of_seeds.iter().map(|verdicts| &verdicts[number]);
            verdict.seeds =
                seen.map(|v| UnderSeed { here: v.here.clone(), kind: v.kind }).collect();
        }
    }
    Ok(own)
}

/// The number at the beginning of a text such as "+11.5 %" or "4 of 13".
fn number(text: &str) -> Option<f64> {
    let is_part = |c: char| c.is_ascii_digit() || "+-.e".contains(c);
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The spread of a claim's number over the seeds, and verdicts that are not the figure's own; `None` of
/// one seed.
pub fn spread(verdict: &Verdict) -> Option<String> {
    let first = verdict.seeds.first()?;
    let numbers: Option<Vec<(f64, &str)>> =
        verdict.seeds.iter().map(|seen| Some((number(&seen.here)?, &seen.here[..]))).collect();
    let mut text = match numbers {
        _ if verdict.seeds.iter().all(|seen| seen.here == first.here) => "the same".to_owned(),
        Some(mut numbers) => {
            numbers.sort_by(|a, b| a.0.total_cmp(&b.0));
            format!("{} to {}", numbers[0].1, numbers[numbers.len() - 1].1)
        }
        None => {
            let texts: Vec<&str> = verdict.seeds.iter().map(|seen| &seen.here[..]).collect();
            texts.join(", ")
        }
    };
    let mut others: BTreeMap<VerdictKind, usize> = BTreeMap::new();
    let different = verdict.seeds.iter().filter(|seen| seen.kind != verdict.kind);
    different.for_each(|seen| *others.entry(seen.kind).or_default() += 1);
    for (kind, count) in others {
        text += &format!("; {} with {count}", kind.word());
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(seen: &[(&str, VerdictKind)]) -> Verdict {
        let seeds =
            seen.iter().map(|(here, kind)| UnderSeed { here: (*here).to_owned(), kind: *kind });
        Verdict {
            says: "x".to_owned(),
            paper: "y".to_owned(),
            here: seen[0].0.to_owned(),
            headline: None,
            kind: seen[0].1,
            controls: Vec::new(),
            seeds: seeds.collect(),
        }
    }

    #[test]
    fn a_spread_is_from_the_least_to_the_most_with_verdicts_that_differ() {
        use VerdictKind::{Direction, No, Size};
        let words = |seen: &[(&str, VerdictKind)]| spread(&verdict(seen)).unwrap();
        assert_eq!(
            words(&[("+9.8 %", Size), ("+11.5 %", Size), ("-2.0 %", No)]),
            "-2.0 % to +11.5 %; no with 1"
        );
        assert_eq!(
            words(&[("4 of 13", Direction), ("10 of 13", Size)]),
            "4 of 13 to 10 of 13; size with 1"
        );
        assert_eq!(words(&[("512x", Size), ("512x", Size)]), "the same");
        assert_eq!(words(&[("lru", Direction), ("lfu", No)]), "lru, lfu; no with 1");
        let mut alone = verdict(&[("1", Size)]);
        assert!(alone.json()["seeds"][0]["verdict"] == "size");
        alone.seeds.clear();
        assert_eq!(spread(&alone), None);
        assert!(alone.json()["seeds"].is_null());
    }
}
