//! Plays one program on one machine under one policy, share by share: the points of a curve, their
//! errors, and the least share that meets a target.

use serde::Serialize;
use serde_json::Value;
use terrace_simulated::os::OsConfig;

use crate::memory::Machine;
use crate::plan::Request;
use crate::play::{Played, Setup, play};
use crate::price;
use crate::recording::Recording;
use crate::search::{self, Point};
use crate::uncertainty::{Uncertainty, model_error, waiting_error};

/// Shares of the curves that only show how the answer depends on latency.
pub(crate) const COARSE_GRID: [f64; 5] = [0.0, 0.2, 0.4, 0.6, 0.8];

/// A slowdown may exceed the target by this much: sums of times are rounded.
const ROUNDING: f64 = 1e-6;

/// One point of a curve.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Share of the footprint that is fast.
    pub share: f64,
    /// Expected run time over that with all memory fast.
    pub slowdown: f64,
    /// Causes of its error.
    pub uncertainty: Uncertainty,
    /// Lower end of its interval.
    pub low: f64,
    /// Upper end of its interval.
    pub high: f64,
    /// Accessed pages that were fast, over accessed pages.
    pub hit_ratio: f64,
    /// Pages moved, either way.
    pub moved_pages: u64,
    /// Periods it took.
    pub periods: u64,
    /// Price of the memory, where prices are known.
    pub cost: Option<f64>,
}

/// The values that are the same in all runs of a program.
pub(crate) struct Fixed {
    pub(crate) period_ms: u64,
    pub(crate) moved_pages: u64,
    pub(crate) settle_periods: u64,
    pub(crate) os: OsConfig,
}

impl Fixed {
    pub(crate) fn of(recording: &Recording, request: &Request) -> Self {
        let group = recording.experiment.as_ref().and_then(|e| e.groups.first());
        let os = recording.experiment.as_ref().and_then(|e| e.machine.os.clone());
        let limit = request.moved_pages.or(group.and_then(|g| g.moved_pages_per_period));
        // A hundred periods where no source gives their length.
        let derived = (recording.fast_ps / 100_000_000_000).clamp(1, 5_000);
        Fixed {
            period_ms: request.period_ms.or(recording.period_ms).unwrap_or(derived).max(1),
            moved_pages: limit.unwrap_or(u64::MAX),
            settle_periods: request.settle_periods,
            os: os.unwrap_or_default(),
        }
    }
}

/// A point before its error is known.
pub(crate) struct Probe {
    pub(crate) played: Played,
    spread: f64,
    /// Slowdown by the rule in proportion, where it was requested.
    in_proportion: Option<f64>,
}

/// Plays one program on one machine under one policy.
pub(crate) struct Player<'a> {
    recording: &'a Recording,
    machine: &'a Machine,
    policy: &'a str,
    parameters: Value,
    fixed: &'a Fixed,
    seeds: u64,
    pub(crate) first_seed: u64,
    /// Whether seeds make a difference, once it is known.
    seeds_matter: Option<bool>,
}

impl<'a> Player<'a> {
    pub(crate) fn new(
        recording: &'a Recording,
        machine: &'a Machine,
        policy: &'a str,
        fixed: &'a Fixed,
        seeds: u64,
    ) -> Self {
        let experiment = recording.experiment.as_ref();
        Player {
            recording,
            machine,
            policy,
            parameters: experiment.map_or(Value::Null, |e| e.parameters_of(policy)),
            fixed,
            seeds: seeds.max(1),
            first_seed: experiment.map_or(1, |e| e.seed),
            seeds_matter: None,
        }
    }

    pub(crate) fn setup(&self, share: f64, seed: u64, in_proportion: bool) -> Setup<'_> {
        Setup {
            policy: self.policy,
            parameters: &self.parameters,
            share,
            seed,
            period_ms: self.fixed.period_ms,
            moved_pages: self.fixed.moved_pages,
            settle_periods: self.fixed.settle_periods,
            os: &self.fixed.os,
            machine: self.machine,
            in_proportion,
            heat: false,
        }
    }

    /// Plays with this share; with `closely`, also the error of the rule of slow reads.
    pub(crate) fn probe(&mut self, share: f64, closely: bool) -> anyhow::Result<Probe> {
        let first = self.first_seed;
        let mut played = play(self.recording, &self.setup(share, first, false))?;
        let seeds = match self.seeds_matter {
            Some(false) => 1,
            _ => self.seeds,
        };
        let mut all = vec![played.slowdown];
        for seed in first + 1..first + seeds {
            all.push(play(self.recording, &self.setup(share, seed, false))?.slowdown);
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let spread = all.iter().map(|s| (s - mean).abs()).fold(0.0, f64::max);
        // Half of the memory shows whether a policy draws random numbers; with none or all there is
        // no choice.
        if self.seeds_matter.is_none() && seeds > 1 && (0.3..=0.7).contains(&share) {
            self.seeds_matter = Some(spread > 0.0);
        }
        let in_proportion = match closely && self.recording.waiting.is_none() {
            true => Some(play(self.recording, &self.setup(share, first, true))?.slowdown),
            false => None,
        };
        let shift = mean - played.slowdown;
        played.slowdown = mean;
        Ok(Probe { played, spread, in_proportion: in_proportion.map(|s| s + shift) })
    }

    /// The curve over these shares and around the least one for the target.
    pub(crate) fn curve(
        &mut self,
        grid: &[f64],
        request: &Wanted,
    ) -> anyhow::Result<Vec<CurvePoint>> {
        let grid: Vec<f64> = grid.iter().copied().filter(|s| *s <= request.fast_at_most).collect();
        let mut shares = grid;
        // In the middle first: it shows whether the others need several seeds.
        if request.fast_at_most < 1.0 && !shares.contains(&request.fast_at_most) {
            shares.push(request.fast_at_most);
        }
        let middle = shares.iter().position(|s| (0.3..=0.7).contains(s)).unwrap_or(0);
        shares.swap(0, middle);
        if request.fast_at_most >= 1.0 {
            shares.push(1.0);
        }
        let closely = request.closely;
        let points =
            search::curve(&shares, request.target + ROUNDING, request.resolution, |shares| {
                let many = shares.len() > 1;
                let one = |&share: &f64| {
                    // Nothing is slow and nothing is to be managed: the base of all slowdowns.
                    if share >= 1.0 {
                        return Ok((1.0, None));
                    }
                    let probe = self.probe(share, closely && many)?;
                    Ok((probe.played.slowdown, Some(probe)))
                };
                shares.iter().map(one).collect::<anyhow::Result<Vec<_>>>()
            })?;
        Ok(self.with_errors(points))
    }

    fn with_errors(&self, points: Vec<Point<Option<Probe>>>) -> Vec<CurvePoint> {
        let known: Vec<(f64, f64)> = points
            .iter()
            .filter_map(|p| match &p.what {
                None => Some((p.share, 0.0)),
                Some(seen) => Some((p.share, (seen.in_proportion? - p.slowdown).abs())),
            })
            .collect();
        let reads = |share: f64| {
            let above = known.iter().position(|k| k.0 >= share).unwrap_or(known.len());
            match (known.get(above.wrapping_sub(1)), known.get(above)) {
                (Some(low), Some(high)) if high.0 > low.0 => {
                    low.1 + (high.1 - low.1) * (share - low.0) / (high.0 - low.0)
                }
                (low, high) => high.or(low).map_or(0.0, |k| k.1),
            }
        };
        let all_slow = points.first().map_or(1.0, |p| p.slowdown);
        let point = |p: Point<Option<Probe>>| {
            let cost = price::cost(self.machine, self.recording.footprint_bytes, p.share);
            let Some(seen) = p.what else {
                return CurvePoint {
                    share: p.share,
                    slowdown: 1.0,
                    uncertainty: Uncertainty::default(),
                    low: 1.0,
                    high: 1.0,
                    hit_ratio: 1.0,
                    moved_pages: 0,
                    periods: 0,
                    cost,
                };
            };
            let hit_ratio = seen.played.hit_ratio;
            let uncertainty = Uncertainty {
                model: model_error(p.share, p.slowdown, all_slow),
                seeds: seen.spread,
                reads: reads(p.share),
                waiting: waiting_error(self.recording, self.machine, p.slowdown, hit_ratio),
            };
            let half = uncertainty.half();
            CurvePoint {
                share: p.share,
                slowdown: p.slowdown,
                uncertainty,
                low: (p.slowdown - half).max(1.0_f64.min(p.slowdown)),
                high: p.slowdown + half,
                hit_ratio,
                moved_pages: seen.played.moved_pages,
                periods: seen.played.periods,
                cost,
            }
        };
        points.into_iter().map(point).collect()
    }
}

/// Purpose of a curve.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) target: f64,
    pub(crate) fast_at_most: f64,
    pub(crate) resolution: f64,
    /// Whether to compute errors that need runs of their own.
    pub(crate) closely: bool,
}

/// The least share for a target and of at most so much, for a search with another target.
pub(crate) fn least_share(
    player: &mut Player<'_>,
    target: f64,
    fast_at_most: f64,
    resolution: f64,
) -> anyhow::Result<Option<CurvePoint>> {
    let wanted = Wanted { target, fast_at_most, resolution, closely: false };
    let points = player.curve(&COARSE_GRID, &wanted)?;
    let at = position_of_least(&points, target, |p| p.slowdown);
    Ok(at.and_then(|at| points.get(at).cloned()))
}

pub(crate) fn position_of_least(
    points: &[CurvePoint],
    target: f64,
    value: impl Fn(&CurvePoint) -> f64,
) -> Option<usize> {
    let first =
        points.iter().rposition(|p| value(p) > target + ROUNDING).map_or(0, |fails| fails + 1);
    (first < points.len()).then_some(first)
}
