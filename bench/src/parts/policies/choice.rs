//! Which piece of the experiment is run: all of it, unless variables select parts, as lists with
//! commas.
//!
//! `TERRACE_SETS`: sets; `TERRACE_PROGRAMS`: programs; `TERRACE_SHARES`: percents of fast memory;
//! `TERRACE_SIGNALS`: the signals that policies get, of samples, counters and bits; `TERRACE_POLICIES`: policies,
//! and the bound. With less than samples only Terrace's policy is run where no policies are named.

use super::evaluate::Signals;
use super::{BOUND, POLICIES, RATIOS, SETS};
use crate::variables::list;

/// The selection; `None`: everything.
pub struct Choice {
    sets: Option<Vec<String>>,
    programs: Option<Vec<String>>,
    shares: Option<Vec<f64>>,
    signals: Option<Vec<Signals>>,
    policies: Option<Vec<String>>,
}

impl Choice {
    pub fn from_environment() -> anyhow::Result<Self> {
        let programs = SETS.iter().flat_map(|set| set.3.iter().map(|program| program.0));
        let signals =
            |name: String| Signals::ALL.into_iter().find(|signals| signals.name() == name);
        let share = |text: String| Some(text.parse::<f64>().ok()? / 100.0);
        Ok(Choice {
            sets: list("TERRACE_SETS", SETS.iter().map(|set| set.0.to_owned()))?,
            programs: list("TERRACE_PROGRAMS", programs.map(str::to_owned))?,
            shares: list("TERRACE_SHARES", RATIOS.map(|r| format!("{:.0}", r * 100.0)))?
                .map(|shares| shares.into_iter().filter_map(share).collect()),
            signals: list(
                "TERRACE_SIGNALS",
                Signals::ALL.map(|signals| signals.name().to_owned()),
            )?
            .map(|names| names.into_iter().filter_map(signals).collect()),
            policies: list(
                "TERRACE_POLICIES",
                POLICIES.into_iter().chain([BOUND]).map(str::to_owned),
            )?,
        })
    }

    pub fn has_set(&self, name: &str) -> bool {
        has(&self.sets, name)
    }

    pub fn has_program(&self, name: &str) -> bool {
        has(&self.programs, name)
    }

    pub fn has_share(&self, ratio: f64) -> bool {
        let near = |share: &f64| (share - ratio).abs() < 1e-6;
        self.shares.as_ref().is_none_or(|shares| shares.iter().any(near))
    }

    /// Whether a policy is run with these signals. The policy that moves nothing is run with every
    /// selection: losses are counted from it.
    pub fn has(&self, policy: &str, signals: Signals) -> bool {
        let chosen = match &self.policies {
            None => signals == Signals::Samples || policy == "terrace",
            Some(_) => has(&self.policies, policy),
        };
        let with = self.signals.as_ref().is_none_or(|all| all.contains(&signals));
        policy == "first-touch" || (chosen && with)
    }
}

fn has(chosen: &Option<Vec<String>>, name: &str) -> bool {
    chosen.as_ref().is_none_or(|names| names.iter().any(|n| n == name))
}
