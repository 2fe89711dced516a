//! A request and its answer: curves for every program, machine and policy, the least fast memory
//! for the target, and the recommendation.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;
use serde_json::Value;
use terrace_core::InputError;
use terrace_core::policy;
use terrace_results::HeatRow;

use crate::memory::Machine;
use crate::play::{Setup, play};
use crate::player::{COARSE_GRID, CurvePoint, Fixed, Player, Wanted, position_of_least};
use crate::price::{self, Choice};
use crate::recording::Recording;
use terrace_core::refuse;

/// Shares that every curve has.
const GRID: [f64; 10] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/// Slow latencies evaluated beside the recommended machine's, over it.
const LATENCY_FACTORS: [f64; 4] = [0.75, 1.0, 1.5, 2.0];

/// Policies where the request names none: the two that never choose and the two that do best in the
/// papers.
pub const DEFAULT_POLICIES: [&str; 4] = ["first-touch", "lru", "lfu", "amp"];

/// The request.
pub struct Request {
    /// The programs, all to be on one machine.
    pub recordings: Vec<Recording>,
    /// Target: run time over that with all memory fast, 1.05 for 5 %.
    pub target: f64,
    /// Policies to compare.
    pub policies: Vec<String>,
    /// Machines to compare.
    pub machines: Vec<Machine>,
    /// Share of each footprint that may be fast, at most.
    pub fast_at_most: f64,
    /// Seeds that policies are tried with.
    pub seeds: u64,
    /// Length of a period; the recording's own if `None`.
    pub period_ms: Option<u64>,
    /// Pages moved in a period at most; as the recording's experiment has it if `None`.
    pub moved_pages: Option<u64>,
    /// Periods at the beginning of each recording that are played and not counted: a program that
    /// has run for long is past them.
    pub settle_periods: u64,
    /// Resolution of the least share.
    pub resolution: f64,
    /// Number of runs at the same time. It does not change the answer.
    pub jobs: usize,
}

/// The result for a program on a machine under a policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// Position of the program.
    pub program: usize,
    /// Position of the machine.
    pub machine: usize,
    /// Name of the policy.
    pub policy: String,
    /// Its points, by share.
    pub points: Vec<CurvePoint>,
    /// Position of the point with the least share that meets the target.
    pub least: Option<usize>,
    /// The same for the upper ends of the intervals: the safe share.
    pub safe: Option<usize>,
}

impl Curve {
    /// The point with the least share that meets the target.
    pub fn least_point(&self) -> Option<&CurvePoint> {
        self.points.get(self.least?)
    }
}

/// The recommendation for a program.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recommended {
    /// Position of the program.
    pub program: String,
    /// Position of its curve.
    pub curve: usize,
    /// Name of the policy.
    pub policy: String,
    /// The point of the curve.
    pub point: CurvePoint,
    /// Fast memory in bytes.
    pub fast_bytes: u64,
    /// Safe share of fast memory, where there is one.
    pub safe_share: Option<f64>,
}

/// The least share of fast memory at another slow latency.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sensitivity {
    /// Position of the program.
    pub program: String,
    /// Name of the policy.
    pub policy: String,
    /// Latency of the slow tier in ns.
    pub slow_latency_ns: f64,
    /// The least share that meets the target.
    pub share: Option<f64>,
    /// Slowdown with the recommended share.
    pub slowdown: f64,
}

impl Sensitivity {
    /// At the latency that was planned for: what was recommended.
    fn as_planned(chosen: &Recommended, slow_latency_ns: f64) -> Self {
        Sensitivity {
            program: chosen.program.clone(),
            policy: chosen.policy.clone(),
            slow_latency_ns,
            share: Some(chosen.point.share),
            slowdown: chosen.point.slowdown,
        }
    }
}

/// A program of the plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Path of the recording.
    pub recording: String,
    /// Kind of the recording.
    pub format: &'static str,
    /// Basis of the slowdowns.
    pub evidence: crate::recording::Evidence,
    /// The machine that it was recorded on.
    pub recorded_on: String,
    /// Its memory, in bytes.
    pub footprint_bytes: u64,
    /// Size of its pages.
    pub page_size_bytes: u64,
    /// Length of a period.
    pub period_ms: u64,
    /// Pages moved in a period at most; `None` without bound.
    pub moved_pages_per_period: Option<u64>,
    /// Slowdown with all of its memory slow, on each machine, under the first requested policy.
    pub all_slow: f64,
    /// Share of time that it was assumed to wait for memory.
    pub assumed_waiting: Option<f64>,
}

/// One choice of the Pareto front: a policy for each program, at a share that they all have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FrontPoint {
    /// Position of the machine.
    pub machine: usize,
    /// The program.
    pub program: usize,
    /// Name of the policy.
    pub policy: String,
    /// Share of fast memory.
    pub share: f64,
    /// Price of its memory.
    pub cost: f64,
    /// Run time over that with all memory fast.
    pub slowdown: f64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Run time allowed, over that with all memory fast.
    pub target: f64,
    /// The programs.
    pub programs: Vec<Program>,
    /// The machines compared.
    pub machines: Vec<Machine>,
    /// Every curve, by program, machine and policy in the order of the request.
    pub curves: Vec<Curve>,
    /// Position of the recommended machine.
    pub machine: usize,
    /// The recommendation for each program on it.
    pub recommended: Vec<Recommended>,
    /// Price of all memory then, where prices are known.
    pub cost: Option<f64>,
    /// Price with all memory fast.
    pub all_fast_cost: Option<f64>,
    /// Choices of price and slowdown on the Pareto front, by program; empty without prices.
    pub front: Vec<FrontPoint>,
    /// The dependence of the answer on latency.
    pub sensitivity: Vec<Sensitivity>,
    /// Notes for people, a sentence each.
    pub warnings: Vec<String>,
    /// Heat maps of the recommended runs.
    #[serde(skip)]
    pub heat: Vec<HeatRow>,
    /// By how much a check has corrected the slowdown of each program's recommendation.
    #[serde(skip)]
    pub(crate) corrections: Vec<f64>,
}

impl Plan {
    /// Takes a corrected recommendation over where something follows from it: prices, the answer at
    /// other latencies, heat maps.
    pub(crate) fn follow(&mut self, request: &Request, program: usize) -> anyhow::Result<()> {
        let machine = &self.machines[self.machine];
        let point = &mut self.recommended[program].point;
        point.cost = price::cost(machine, self.programs[program].footprint_bytes, point.share);
        self.cost = self.recommended.iter().map(|r| r.point.cost).sum();
        let fixed = fixed(request);
        let Recommended { policy, point, .. } = &self.recommended[program];
        self.corrections[program] = 0.0;
        if point.share < 1.0 {
            let (recording, machine) =
                (&request.recordings[program], &request.machines[self.machine]);
            let mut player = Player::new(recording, machine, policy, &fixed[program], 1);
            let predicted = player.probe(point.share, false)?.played.slowdown;
            self.corrections[program] = point.slowdown - predicted;
        }
        let corrections = &self.corrections;
        self.sensitivity =
            sensitivity(request, &fixed, self.machine, &self.recommended, corrections)?;
        self.heat = heat(request, &fixed, self.machine, &self.recommended)?;
        Ok(())
    }
}

/// Answers a request. `done` receives how many of how many curves there are.
pub fn plan(request: &Request, done: &(dyn Fn(usize, usize) + Sync)) -> anyhow::Result<Plan> {
    check(request)?;
    let fixed = fixed(request);
    let curves = all_curves(request, &fixed, done)?;
    answer(request, &fixed, curves)
}

/// Every curve of a request, by program, machine and policy in its order, and no choice among them:
/// for answers that are put together from many programs.
///
/// # Errors
/// As of [`plan`]; a target that no policy meets is none.
pub fn curves(
    request: &Request,
    done: &(dyn Fn(usize, usize) + Sync),
) -> anyhow::Result<Vec<Curve>> {
    check(request)?;
    all_curves(request, &fixed(request), done)
}

fn fixed(request: &Request) -> Vec<Fixed> {
    request.recordings.iter().map(|r| Fixed::of(r, request)).collect()
}

fn all_curves(
    request: &Request,
    fixed: &[Fixed],
    done: &(dyn Fn(usize, usize) + Sync),
) -> anyhow::Result<Vec<Curve>> {
    let wanted = Wanted {
        target: request.target,
        fast_at_most: request.fast_at_most,
        resolution: request.resolution,
        closely: true,
    };
    let mut tasks = Vec::new();
    for program in 0..request.recordings.len() {
        for machine in 0..request.machines.len() {
            tasks.extend(request.policies.iter().map(|policy| (program, machine, policy)));
        }
    }
    let ended = AtomicUsize::new(0);
    let curves = terrace_jobs::all(&tasks, request.jobs, |&(program, machine, policy)| {
        let recording = &request.recordings[program];
        let mut player = Player::new(
            recording,
            &request.machines[machine],
            policy,
            &fixed[program],
            request.seeds,
        );
        let points = player.curve(&GRID, &wanted)?;
        done(1 + ended.fetch_add(1, Ordering::Relaxed), tasks.len());
        Ok(Curve {
            program,
            machine,
            policy: policy.clone(),
            least: position_of_least(&points, request.target, |p| p.slowdown),
            safe: position_of_least(&points, request.target, |p| p.high),
            points,
        })
    });
    curves.into_iter().collect()
}

fn check(request: &Request) -> Result<(), InputError> {
    let target = request.target;
    if !target.is_finite() || !(1.0..=100.0).contains(&target) {
        return Err(refuse!(
            "a slowdown of {:.1} %: expected 0 % (as fast as with all memory fast) to 9900 %",
            100.0 * (target - 1.0)
        ));
    }
    if !(0.0..=1.0).contains(&request.fast_at_most) {
        return Err(refuse!(
            "at most {:.1} % of memory fast: expected 0 % to 100 %",
            100.0 * request.fast_at_most
        ));
    }
    Recording::check_alike(&request.recordings)?;
    if request.policies.is_empty() || request.machines.is_empty() {
        return Err(refuse!("no policies or no machines: expected at least one of each"));
    }
    for (index, name) in request.policies.iter().enumerate() {
        let policy = policy::build(name, &Value::Null, 1).map_err(InputError::new)?;
        if policy.needs_oracle() {
            return Err(refuse!(
                "policy '{name}' needs an oracle trace: expected one that can be used"
            ));
        }
        if request.policies[..index].contains(name) {
            return Err(refuse!("policy '{name}' is named twice: expected each once"));
        }
    }
    for machine in &request.machines {
        let (fast, slow) = (&machine.fast, &machine.slow);
        for (what, value) in [
            ("latency of the fast tier", fast.latency_ns),
            ("latency of the slow tier", slow.latency_ns),
            ("bandwidth of the fast tier", fast.gb_per_s),
            ("bandwidth of the slow tier", slow.gb_per_s),
        ] {
            if !(0.1..=1e6).contains(&value) {
                return Err(refuse!("{what} is {value}: expected 0.1 to 1000000"));
            }
        }
        if slow.latency_ns < fast.latency_ns {
            return Err(refuse!(
                "machine '{}': slow memory of {:.0} ns and fast memory of {:.0} ns; expected slow \
                 memory to be the slower one",
                machine.name,
                slow.latency_ns,
                fast.latency_ns
            ));
        }
        for price in [machine.price_fast, machine.price_slow].into_iter().flatten() {
            if !(price.is_finite() && price >= 0.0) {
                return Err(refuse!("a price of {price} per GB: expected 0 or more"));
            }
        }
    }
    Ok(())
}

/// The better of two curves that meet the target: less fast memory; within the resolution the one
/// that moves less; then the one requested first.
fn better<'a>(a: &'a Curve, b: &'a Curve, resolution: f64) -> &'a Curve {
    let (Some(x), Some(y)) = (a.least_point(), b.least_point()) else {
        return if a.least.is_some() { a } else { b };
    };
    let apart = (x.share - y.share).abs() > 2.0 * resolution;
    let b_is_better = match apart {
        true => y.share < x.share,
        false => y.moved_pages < x.moved_pages,
    };
    if b_is_better { b } else { a }
}

fn answer(request: &Request, fixed: &[Fixed], curves: Vec<Curve>) -> anyhow::Result<Plan> {
    let programs = programs(request, fixed, &curves);
    let best = |program: usize, machine: usize| {
        curves
            .iter()
            .filter(|c| c.program == program && c.machine == machine)
            .reduce(|a, b| better(a, b, request.resolution))
            .filter(|c| c.least.is_some())
    };
    // Machines on which every program meets the target, with the price.
    let mut machines: Vec<(usize, Option<f64>, f64)> = Vec::new();
    for machine in 0..request.machines.len() {
        let all: Option<Vec<&Curve>> = (0..programs.len()).map(|p| best(p, machine)).collect();
        let Some(all) = all else { continue };
        let points: Vec<_> = all.iter().filter_map(|c| c.least_point()).collect();
        let cost: Option<f64> = points.iter().map(|p| p.cost).sum();
        let fast = points.iter().zip(&programs).map(|(p, q)| p.share * q.footprint_bytes as f64);
        machines.push((machine, cost, fast.sum()));
    }
    let Some(&(machine, cost, _)) = machines.iter().min_by(|a, b| match (a.1, b.1) {
        (Some(x), Some(y)) => x.total_cmp(&y).then(a.2.total_cmp(&b.2)),
        _ => a.2.total_cmp(&b.2),
    }) else {
        return Err(impossible(request, &curves).into());
    };
    let mut recommended = Vec::new();
    for (program, about) in programs.iter().enumerate() {
        let Some(curve) = best(program, machine) else { continue };
        let Some(point) = curve.least_point() else { continue };
        let position = curves.iter().position(|c| std::ptr::eq(c, curve)).unwrap_or_default();
        recommended.push(Recommended {
            program: about.name.clone(),
            curve: position,
            policy: curve.policy.clone(),
            fast_bytes: pages_of(point.share, about),
            point: point.clone(),
            safe_share: curve.safe.and_then(|at| curve.points.get(at)).map(|p| p.share),
        });
    }
    let all_fast_cost = programs
        .iter()
        .map(|p| price::cost(&request.machines[machine], p.footprint_bytes, 1.0))
        .sum();
    let corrections = vec![0.0; recommended.len()];
    let sensitivity = sensitivity(request, fixed, machine, &recommended, &corrections)?;
    let heat = heat(request, fixed, machine, &recommended)?;
    Ok(Plan {
        target: request.target,
        front: front(&curves),
        programs,
        machines: request.machines.clone(),
        curves,
        machine,
        recommended,
        cost,
        all_fast_cost,
        sensitivity,
        warnings: request.recordings.iter().flat_map(|r| r.warnings.clone()).collect(),
        heat,
        corrections,
    })
}

/// Fast memory in bytes: whole pages.
fn pages_of(share: f64, program: &Program) -> u64 {
    let pages = program.footprint_bytes.div_ceil(program.page_size_bytes);
    (pages as f64 * share).floor() as u64 * program.page_size_bytes
}

fn programs(request: &Request, fixed: &[Fixed], curves: &[Curve]) -> Vec<Program> {
    let all = request.recordings.iter().zip(fixed).enumerate();
    all.map(|(number, (r, fixed))| {
        let first = curves.iter().find(|c| c.program == number);
        Program {
            name: r.name.clone(),
            recording: r.path.display().to_string(),
            format: r.format,
            evidence: r.evidence,
            recorded_on: r.recorded_on.clone(),
            footprint_bytes: r.footprint_bytes,
            page_size_bytes: r.page_size.bytes(),
            period_ms: fixed.period_ms,
            moved_pages_per_period: (fixed.moved_pages < u64::MAX).then_some(fixed.moved_pages),
            all_slow: first.and_then(|c| c.points.first()).map_or(1.0, |p| p.slowdown),
            assumed_waiting: r.waiting.map(|w| w.share),
        }
    })
    .collect()
}

fn impossible(request: &Request, curves: &[Curve]) -> InputError {
    let points = curves.iter().flat_map(|c| c.points.iter().map(move |p| (c, p)));
    let Some((curve, point)) = points.min_by(|a, b| a.1.slowdown.total_cmp(&b.1.slowdown)) else {
        return refuse!("no policy to compare: expected at least one policy");
    };
    refuse!(
        "{}: no policy stays within {:.1} % with at most {:.1} % of its memory fast; the least \
         slowdown is {:.1} % ({}, machine '{}'): allow that, or more fast memory (--fast-at-most)",
        request.recordings[curve.program].name,
        100.0 * (request.target - 1.0),
        100.0 * request.fast_at_most,
        100.0 * (point.slowdown - 1.0),
        curve.policy,
        request.machines[curve.machine].name,
    )
}

fn front(curves: &[Curve]) -> Vec<FrontPoint> {
    let mut all: Vec<FrontPoint> = Vec::new();
    let programs = curves.iter().map(|c| c.program).max().map_or(0, |p| p + 1);
    for program in 0..programs {
        let of_program = curves.iter().filter(|c| c.program == program);
        let points: Vec<_> = of_program
            .flat_map(|c| c.points.iter().filter_map(move |p| Some((c, p, p.cost?))))
            .collect();
        let choices: Vec<_> = points
            .iter()
            .map(|(_, p, cost)| Choice { cost: *cost, slowdown: p.slowdown })
            .collect();
        all.extend(price::front(&choices).into_iter().map(|at| {
            let (curve, point, cost) = points[at];
            FrontPoint {
                machine: curve.machine,
                program,
                policy: curve.policy.clone(),
                share: point.share,
                cost,
                slowdown: point.slowdown,
            }
        }));
    }
    all
}

fn sensitivity(
    request: &Request,
    fixed: &[Fixed],
    machine: usize,
    recommended: &[Recommended],
    corrections: &[f64],
) -> anyhow::Result<Vec<Sensitivity>> {
    let base = &request.machines[machine];
    let mut tasks = Vec::new();
    for (program, chosen) in recommended.iter().enumerate() {
        for factor in LATENCY_FACTORS {
            let latency_ns = base.slow.latency_ns * factor;
            if latency_ns >= base.fast.latency_ns {
                tasks.push((program, chosen, latency_ns));
            }
        }
    }
    let rows = terrace_jobs::all(&tasks, request.jobs, |&(program, chosen, latency_ns)| {
        // Found again on a coarser grid it would differ from the answer.
        if latency_ns == base.slow.latency_ns {
            return Ok(Sensitivity::as_planned(chosen, latency_ns));
        }
        let recording = &request.recordings[program];
        let machine = base.with_slow(Some(latency_ns), None);
        let mut player = Player::new(recording, &machine, &chosen.policy, &fixed[program], 1);
        // A check has found the prediction to be off by this; it is taken to be as far off here.
        let off = corrections[program];
        // With all memory fast nothing is predicted, and any target met.
        let target = (request.target - off).max(1.0);
        let wanted = Wanted {
            target,
            fast_at_most: request.fast_at_most,
            resolution: request.resolution.max(0.01),
            closely: false,
        };
        let points = player.curve(&COARSE_GRID, &wanted)?;
        let least = position_of_least(&points, target, |p| p.slowdown);
        let share = chosen.point.share;
        let slowdown =
            if share >= 1.0 { 1.0 } else { player.probe(share, false)?.played.slowdown + off };
        anyhow::Ok(Sensitivity {
            program: chosen.program.clone(),
            policy: chosen.policy.clone(),
            slow_latency_ns: latency_ns,
            share: least.and_then(|at| points.get(at)).map(|p| p.share),
            slowdown,
        })
    });
    rows.into_iter().collect()
}

fn heat(
    request: &Request,
    fixed: &[Fixed],
    machine: usize,
    recommended: &[Recommended],
) -> anyhow::Result<Vec<HeatRow>> {
    let mut rows = Vec::new();
    for (program, chosen) in recommended.iter().enumerate() {
        let recording = &request.recordings[program];
        let machine = &request.machines[machine];
        let player = Player::new(recording, machine, &chosen.policy, &fixed[program], 1);
        let setup = player.setup(chosen.point.share, player.first_seed, false);
        rows.extend(play(recording, &Setup { heat: true, ..setup })?.heat);
    }
    Ok(rows)
}
