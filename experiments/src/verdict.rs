//! How a measured number compares with a paper's.
//!
//! An *effect* is the distance of a number from its value without the mechanism, the *neutral*
//! value: 0 for a gain ("11 % faster"), 1 for a ratio ("15x"). The two agree in *size* when the
//! effect here is between 2/3 and 3/2 of the paper's, and in *direction* when it has the same sign.
//! Two verdicts count as neither: a number of which the value was fitted to the paper is
//! *calibrated*, and an effect too small to have a sign is a *tie*.

use serde::{Deserialize, Serialize};

use terrace_core::{InputError, refuse};

/// Least and greatest share of the paper's effect that agree with it in size.
const SIZE: (f64, f64) = (2.0 / 3.0, 3.0 / 2.0);

/// Result of a comparison with a paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// The paper's sign, and its size within a factor of 3/2.
    Size,
    /// The paper's sign, another size.
    Direction,
    /// The other sign.
    No,
    /// Fitted to the paper: never counts as agreement.
    Calibrated,
    /// Too small to have a sign: no agreement.
    Tie,
    /// Its rows were not run.
    NotRun,
}

impl VerdictKind {
    /// All of them.
    pub const ALL: [VerdictKind; 6] = [
        VerdictKind::Size,
        VerdictKind::Direction,
        VerdictKind::No,
        VerdictKind::Calibrated,
        VerdictKind::Tie,
        VerdictKind::NotRun,
    ];

    /// In words.
    pub fn word(self) -> &'static str {
        match self {
            VerdictKind::Size => "size",
            VerdictKind::Direction => "direction",
            VerdictKind::No => "no",
            VerdictKind::Calibrated => "calibrated",
            VerdictKind::Tie => "tie",
            VerdictKind::NotRun => "not run",
        }
    }

    /// Whether the paper agrees: in size or in direction. `None` where that was not decided.
    pub fn agrees(self) -> Option<bool> {
        match self {
            VerdictKind::Size | VerdictKind::Direction => Some(true),
            VerdictKind::No | VerdictKind::Calibrated | VerdictKind::Tie => Some(false),
            VerdictKind::NotRun => None,
        }
    }
}

/// The paper's number, or the range of its numbers: `0.11` or `[0.05, 0.35]`.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum PaperNumber {
    /// One number.
    One(f64),
    /// From the first to the second.
    Range([f64; 2]),
}

/// A paper's number with the rules of comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// The paper's number.
    pub paper: PaperNumber,
    /// The number without the effect.
    pub neutral: f64,
    /// Distance from neutral within which a number is a tie.
    pub tie: f64,
    /// Whether the number was fitted to the paper.
    pub calibrated: bool,
}

impl Comparison {
    /// Half a percent of a quantity that is 1 when nothing is changed.
    pub const TIE: f64 = 0.005;

    /// Refuses a comparison that could not be made, in one line.
    pub fn check(&self) -> Result<(), InputError> {
        let [low, high] = self.effects();
        let same_sign = low <= high && (low > 0.0 || high < 0.0);
        if !(same_sign && high.is_finite() && low.is_finite()) {
            return Err(refuse!(
                "a paper's number of {:?} with a neutral value of {}: expected a number, or a range \
                 from low to high, all on one side of the neutral value",
                self.paper,
                self.neutral
            ));
        }
        if !(self.tie >= 0.0 && self.tie.is_finite()) {
            return Err(refuse!("tie = {}: expected 0 or more", self.tie));
        }
        Ok(())
    }

    /// The paper's effects: the least and the greatest number less the neutral value.
    fn effects(&self) -> [f64; 2] {
        match self.paper {
            PaperNumber::One(number) => [number - self.neutral; 2],
            PaperNumber::Range(range) => range.map(|number| number - self.neutral),
        }
    }

    /// Compares a measured number.
    pub fn judge(&self, here: f64) -> VerdictKind {
        if !here.is_finite() {
            return VerdictKind::NotRun;
        }
        if self.calibrated {
            return VerdictKind::Calibrated;
        }
        let effect = here - self.neutral;
        if effect.abs() <= self.tie {
            return VerdictKind::Tie;
        }
        let [low, high] = self.effects();
        if (effect > 0.0) != (high > 0.0) {
            return VerdictKind::No;
        }
        let (near, far) = (low.abs().min(high.abs()), low.abs().max(high.abs()));
        // Rounding of a quotient decides nothing.
        let rounding = 1.0 + 1e-12;
        if effect.abs() * rounding >= SIZE.0 * near && effect.abs() <= SIZE.1 * far * rounding {
            VerdictKind::Size
        } else {
            VerdictKind::Direction
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(paper: PaperNumber, neutral: f64) -> Comparison {
        Comparison { paper, neutral, tie: Comparison::TIE, calibrated: false }
    }

    #[test]
    fn size_is_two_thirds_to_three_halves_of_the_papers_effect() {
        let gain = to(PaperNumber::One(0.12), 0.0);
        for (here, kind) in [
            (0.12, VerdictKind::Size),
            (0.08, VerdictKind::Size),
            (0.18, VerdictKind::Size),
            (0.079, VerdictKind::Direction),
            (0.181, VerdictKind::Direction),
            (0.006, VerdictKind::Direction),
            (0.004, VerdictKind::Tie),
            (-0.005, VerdictKind::Tie),
            (-0.006, VerdictKind::No),
            (f64::NAN, VerdictKind::NotRun),
        ] {
            assert_eq!(gain.judge(here), kind, "{here}");
        }
    }

    #[test]
    fn a_ratio_has_its_effect_from_one_and_a_loss_its_sign() {
        // An access cost of 1.25 of local is an effect of 0.25.
        let cost = to(PaperNumber::One(1.25), 1.0);
        assert_eq!(cost.judge(1.2), VerdictKind::Size);
        assert_eq!(cost.judge(1.73), VerdictKind::Direction);
        assert_eq!(cost.judge(0.9), VerdictKind::No);
        let loss = to(PaperNumber::Range([-0.1, -0.05]), 0.0);
        assert_eq!(loss.judge(-0.15), VerdictKind::Size);
        assert_eq!(loss.judge(-0.034), VerdictKind::Size);
        assert_eq!(loss.judge(-0.41), VerdictKind::Direction);
        assert_eq!(loss.judge(0.05), VerdictKind::No);
    }

    #[test]
    fn a_range_agrees_from_two_thirds_of_its_low_end_to_three_halves_of_its_high_one() {
        let range = to(PaperNumber::Range([0.06, 0.3]), 0.0);
        assert_eq!(range.judge(0.04), VerdictKind::Size);
        assert_eq!(range.judge(0.45), VerdictKind::Size);
        assert_eq!(range.judge(0.46), VerdictKind::Direction);
        assert_eq!(range.judge(0.03), VerdictKind::Direction);
    }

    #[test]
    fn calibrated_and_tie_are_no_agreement() {
        let fitted = Comparison { calibrated: true, ..to(PaperNumber::One(15.0), 1.0) };
        assert_eq!(fitted.judge(15.0), VerdictKind::Calibrated);
        let counted: Vec<_> =
            VerdictKind::ALL.into_iter().filter(|k| k.agrees() == Some(true)).collect();
        assert_eq!(counted, [VerdictKind::Size, VerdictKind::Direction]);
    }

    #[test]
    fn comparisons_that_could_not_be_made_are_refused_in_one_line() {
        for (paper, neutral) in [
            (PaperNumber::One(1.0), 1.0),
            (PaperNumber::Range([0.3, 0.1]), 0.0),
            (PaperNumber::Range([-0.1, 0.1]), 0.0),
            (PaperNumber::One(f64::NAN), 0.0),
        ] {
            let error = to(paper, neutral).check().unwrap_err().to_string();
            assert!(error.contains("expected a number") && !error.contains('\n'), "{error}");
        }
        let bad = Comparison { tie: -1.0, ..to(PaperNumber::One(1.0), 0.0) };
        assert!(bad.check().unwrap_err().to_string().contains("tie = -1"));
        assert!(to(PaperNumber::Range([0.1, 0.3]), 0.0).check().is_ok());
    }
}
