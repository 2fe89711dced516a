//! Sampling windows: stretches of instructions in detail, between stretches in which instructions
//! are only counted and take what they took in detail before.
//!
//! A cycle is a warm-up, in which what is under way fills again, a window, and a plain stretch of a
//! random length. In plain stretches caches and TLBs follow the accesses, but no time is modelled. What
//! the warm-up took beyond the window's rate is taken back from the plain stretch, so that run time
//! holds no warm-up. The first warm-up is the program's own beginning with
//! cold caches, and counts. Estimates are ratios of the windows' time to their instructions, of
//! programs and of the kernel apart; their errors are those of a ratio estimator (Cochran, Sampling
//! Techniques, 6.3).

use serde::{Deserialize, Serialize};
use terrace_core::confidence::half_interval_95;
use terrace_hardware::random::Random;

use crate::config::TimedError;
use crate::figures::Figures;

/// Lengths of sampling windows, in instructions of all processors together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowPlan {
    /// Of a window.
    pub window_instructions: u64,
    /// Of the warm-up before it.
    pub warm_up_instructions: u64,
    /// From window to window, in the mean.
    pub interval_instructions: u64,
    /// Seed of the plain stretches' lengths.
    pub seed: u64,
}

/// Fewest instructions of a window.
pub const LEAST_INSTRUCTIONS: u64 = 1000;

impl WindowPlan {
    /// Reports an impossible plan.
    pub fn check(&self) -> Result<(), TimedError> {
        if self.window_instructions < LEAST_INSTRUCTIONS {
            return Err(TimedError(format!(
                "sampling windows of {} instructions; expected {LEAST_INSTRUCTIONS} or more",
                self.window_instructions
            )));
        }
        let detailed = self.window_instructions.saturating_add(self.warm_up_instructions);
        if self.interval_instructions < detailed.saturating_mul(2) {
            return Err(TimedError(format!(
                "a sampling window every {} instructions; expected at least {}, twice a window with \
                 its warm-up",
                self.interval_instructions,
                detailed.saturating_mul(2)
            )));
        }
        Ok(())
    }
}

/// Sums over windows, of programs or of the kernel: of instructions n and time t in ps.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct WindowSums {
    /// Number of windows.
    pub windows: f64,
    /// Sum of n.
    pub n: f64,
    /// Sum of t.
    pub t: f64,
    /// Sum of n².
    pub nn: f64,
    /// Sum of t².
    pub tt: f64,
    /// Sum of n t.
    pub nt: f64,
    /// Instructions beside the windows, whose time is estimated.
    pub estimated: f64,
}

impl WindowSums {
    fn add(&mut self, n: u64, t: u64) {
        let (n, t) = (n as f64, t as f64);
        let more =
            WindowSums { windows: 1.0, n, t, nn: n * n, tt: t * t, nt: n * t, estimated: 0.0 };
        *self = self.map(&more, |a, b| a + b);
    }

    fn map(&self, other: &Self, of: impl Fn(f64, f64) -> f64) -> Self {
        WindowSums {
            windows: of(self.windows, other.windows),
            n: of(self.n, other.n),
            t: of(self.t, other.t),
            nn: of(self.nn, other.nn),
            tt: of(self.tt, other.tt),
            nt: of(self.nt, other.nt),
            estimated: of(self.estimated, other.estimated),
        }
    }

    /// Half the 95 % confidence interval of the estimated instructions' time, in ps. `None` with
    /// fewer than two windows.
    fn error_ps(&self) -> Option<f64> {
        if self.estimated <= 0.0 {
            return Some(0.0);
        }
        let count = self.windows.round();
        if count < 2.0 || self.n <= 0.0 {
            return None;
        }
        let ratio = self.t / self.n;
        let squares = self.tt - 2.0 * ratio * self.nt + ratio * ratio * self.nn;
        let of_window = half_interval_95(count as u64, squares)?;
        Some(of_window / (self.n / count) * self.estimated)
    }
}

/// What windows are and what they counted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WindowFigures {
    /// Of programs and of the kernel.
    pub sums: [WindowSums; 2],
    /// The counters of windows alone.
    pub counted: Box<Figures>,
}

impl WindowFigures {
    /// The counts since an earlier mark.
    #[must_use]
    pub fn since(&self, before: &WindowFigures) -> WindowFigures {
        let sums = |side: usize| self.sums[side].map(&before.sums[side], |now, then| now - then);
        WindowFigures {
            sums: std::array::from_fn(sums),
            counted: Box::new(self.counted.since(&before.counted)),
        }
    }

    /// Half the 95 % confidence interval of the processors' busy time, in ns. `None` with fewer
    /// than two windows.
    #[must_use]
    pub fn error_ns(&self) -> Option<f64> {
        let [programs, kernel] = [self.sums[0].error_ps()?, self.sums[1].error_ps()?];
        Some(programs.hypot(kernel) / 1000.0)
    }

    /// Instructions whose time is estimated over those of windows: what windows counted happened so
    /// much more often beside them. 0 without windows.
    #[must_use]
    pub fn more_often(&self) -> f64 {
        let all = |of: fn(&WindowSums) -> f64| self.sums.iter().map(of).sum::<f64>();
        let windows = all(|sums| sums.n);
        if windows > 0.0 { all(|sums| sums.estimated) / windows } else { 0.0 }
    }
}

/// A stretch of instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stretch {
    /// The first warm-up, which counts.
    Beginning,
    WarmUp,
    Window,
    Plain,
}

/// Instructions and time in ps of a processor, in programs and in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Spent {
    pub instructions: [u64; 2],
    pub busy_ps: [u64; 2],
}

impl Spent {
    fn since(&self, before: &Spent) -> Spent {
        let sub = |a: [u64; 2], b: [u64; 2]| [a[0] - b[0], a[1] - b[1]];
        Spent {
            instructions: sub(self.instructions, before.instructions),
            busy_ps: sub(self.busy_ps, before.busy_ps),
        }
    }
}

/// The windows of a machine.
#[derive(Debug, Clone)]
pub(crate) struct Windows {
    plan: WindowPlan,
    random: Random,
    stretch: Stretch,
    /// At the start of the stretch, by processor; and the counters.
    before: Vec<Spent>,
    counters: Figures,
    /// In the last warm-up.
    warm_up: Vec<Spent>,
    /// Counters of warm-ups and of plain stretches, in which caches and TLBs count.
    left_out: Figures,
    found: WindowFigures,
    /// ps an instruction of programs and of the kernel.
    rates: [f64; 2],
    /// By processor: time in ps that plain stretches have yet to take back.
    debt_ps: Vec<[f64; 2]>,
    /// A part of a ps that plain blocks have not taken yet.
    rest_ps: f64,
}

impl Windows {
    /// The first stretch. `rate_ps`: what an instruction takes without stalls.
    pub fn new(plan: WindowPlan, processors: usize, rate_ps: f64) -> Self {
        Windows {
            random: Random::new(plan.seed),
            plan,
            stretch: Stretch::Beginning,
            before: vec![Spent::default(); processors],
            counters: Figures::default(),
            warm_up: vec![Spent::default(); processors],
            left_out: Figures::default(),
            found: WindowFigures::default(),
            rates: [rate_ps; 2],
            debt_ps: vec![[0.0; 2]; processors],
            rest_ps: 0.0,
        }
    }

    /// Instructions of the first stretch.
    pub fn first(&self) -> u64 {
        self.plan.interval_instructions
    }

    /// Whether instructions are only counted.
    pub fn is_plain(&self) -> bool {
        self.stretch == Stretch::Plain
    }

    /// Time in ps of a plain block.
    #[inline]
    pub fn plain_ps(&mut self, cpu: usize, side: usize, instructions: u64) -> u64 {
        let due = self.rates[side] * instructions as f64;
        let debt = &mut self.debt_ps[cpu][side];
        // Time goes on meanwhile, at half the speed at least.
        let back = debt.min(due / 2.0);
        *debt -= back;
        let due = due - back + self.rest_ps;
        let whole = due.max(0.0).floor();
        self.rest_ps = due - whole;
        whole as u64
    }

    /// The stretch is over: `spent` is by processor, `counters` are those of the machine. Returns
    /// the instructions of the next one.
    pub fn next(&mut self, spent: Vec<Spent>, counters: Figures) -> u64 {
        let took: Vec<Spent> =
            spent.iter().zip(&self.before).map(|(now, before)| now.since(before)).collect();
        let counted = counters.since(&self.counters);
        let (stretch, length) = match self.stretch {
            Stretch::Beginning => (Stretch::Window, self.plan.window_instructions),
            Stretch::WarmUp => {
                self.left_out = self.left_out.and(&counted);
                self.estimated(&took);
                self.warm_up = took;
                (Stretch::Window, self.plan.window_instructions)
            }
            Stretch::Window => {
                self.end_window(&took, &counted);
                let detailed = self.plan.window_instructions + self.plan.warm_up_instructions;
                let mean = self.plan.interval_instructions - detailed;
                // Half to one and a half of it.
                (Stretch::Plain, mean / 2 + self.random.below(mean.max(1)))
            }
            Stretch::Plain => {
                self.left_out = self.left_out.and(&counted);
                self.estimated(&took);
                (Stretch::WarmUp, self.plan.warm_up_instructions.max(1))
            }
        };
        (self.stretch, self.before, self.counters) = (stretch, spent, counters);
        length
    }

    fn estimated(&mut self, took: &[Spent]) {
        for spent in took {
            for (sums, n) in self.found.sums.iter_mut().zip(spent.instructions) {
                sums.estimated += n as f64;
            }
        }
    }

    fn end_window(&mut self, took: &[Spent], counted: &Figures) {
        for side in 0..2 {
            let sum = |of: fn(&Spent) -> [u64; 2]| took.iter().map(|s| of(s)[side]).sum::<u64>();
            let (n, t) = (sum(|s| s.instructions), sum(|s| s.busy_ps));
            let sums = &mut self.found.sums[side];
            sums.add(n, t);
            // Of a side that is seldom executed one window says little.
            if n * 2 >= self.plan.window_instructions {
                self.rates[side] = t as f64 / n as f64;
            } else if sums.n > 0.0 {
                self.rates[side] = sums.t / sums.n;
            }
        }
        *self.found.counted = self.found.counted.and(counted);
        for (debt, warm_up) in self.debt_ps.iter_mut().zip(&mut self.warm_up) {
            for (side, debt) in debt.iter_mut().enumerate() {
                let due = self.rates[side] * warm_up.instructions[side] as f64;
                *debt += warm_up.busy_ps[side] as f64 - due;
            }
            *warm_up = Spent::default();
        }
    }

    /// Adds to the machine's figures what windows found, and takes away what warm-ups counted.
    pub fn complete(&self, spent: &[Spent], figures: Figures) -> Figures {
        // Of the stretch that has not ended.
        let mut now = self.clone();
        let took: Vec<Spent> =
            spent.iter().zip(&self.before).map(|(now, before)| now.since(before)).collect();
        match self.stretch {
            Stretch::WarmUp | Stretch::Plain => {
                now.left_out = now.left_out.and(&figures.since(&self.counters));
                now.estimated(&took);
            }
            Stretch::Beginning | Stretch::Window => {}
        }
        let whole = figures.clone();
        Figures { windows: Some(now.found), ..figures.since(&now.left_out).with_time_of(&whole) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_that_of_a_ratio_of_windows() {
        let of = |windows: &[(u64, u64)]| {
            let mut sums = WindowSums { estimated: 1e6, ..WindowSums::default() };
            windows.iter().for_each(|(n, t)| sums.add(*n, *t));
            sums.error_ps()
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(100, 500)]), None);
        assert_eq!(of(&[(100, 500), (200, 1000)]), Some(0.0));
        // The ratio is 5; residuals -100 and 100, so a variance of 20000; t of one degree of freedom.
        let error = of(&[(100, 400), (100, 600)]).unwrap();
        let expected = 12.706 * (20_000.0_f64 / 2.0).sqrt() / 100.0 * 1e6;
        assert!((error / expected - 1.0).abs() < 1e-9, "{error}, expected {expected}");
        let known = WindowSums::default();
        assert_eq!(known.error_ps(), Some(0.0), "nothing is estimated");
    }
}
