//! The migration throttle between a group's policy and its mover: the moves allowed in this period,
//! and why not more. Pure: no clock, no I/O; periods are its only time.
//!
//! # What throttles moves
//! - **Budgets**: pages per period that bandwidth and processor time allow. The budget of a
//!   policy holds the number, so it asks for its best moves first.
//! - **Failures**: when half of the moves of a period fail, the number is halved, and doubled
//!   again with each period in which nine in ten succeed.
//! - **Not beneficial**: moves that yield too little. See below.
//! - **Memory pressure**: when the group or the host waits for memory longer than moves gain, the
//!   number is halved ([`pressure`]).
//! - **Unmovable**: pages that failed again and again are left out for a while
//!   (`terrace_core::unmovable`), and the policy sees them in such a way that it chooses others.
//! - **Dry run**: everything; planned moves are counted.
//!
//! # Without room
//! On a full node a promotion finds no room although the group is below its limit. So each is
//! paired with the demotion of the group's coldest page ([`Coldness`]), if that page was unused for
//! longer, or is accessed less often where bits are sampled.
//!
//! # Is moving worth it?
//! Compared with doing nothing, and measured, not modelled. A *shadow* placement is frozen every `2
//! * settle_periods` periods: the placement without moves from then on. Each period gives the hits
//!   of the real placement and those of the shadow. The difference, summed, is the *gain*: pages,
//!   each once for every time that it was found accessed. With one sample a period that is once a
//!   period; with several it is once a sample, so that the yield of a page hardly depends on how
//!   often it is sampled. The *cost* is the promotions of the first `settle_periods` periods, each
//!   worth `payback_periods` of hits (later ones have had no time to yield; their hits count
//!   nevertheless, in favour of moving). When the gain is below the cost, moving pauses: first for
//!   `pause_periods`, then twice as long each time, until it pays again. In a pause the group is
//!   still brought back within its limit, and free room is still filled.
//!
//! Pages that are promoted and demoted within one such span are counted as thrashed.

pub mod cpu_budget;
pub mod page_budget;
pub mod pressure;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use terrace_core::bits::PageBits;
use terrace_core::coldness::Coldness;
use terrace_core::page::{PageSize, VirtualRange};
use terrace_core::plan::FailureReason::OutOfTime;
use terrace_core::plan::{Decision, Exchange, Outcome, Plan};
use terrace_core::policy::{ExternalReport, Policy};
use terrace_core::remap::LayoutFollower;
use terrace_core::scan::{Budget, Scan};
use terrace_core::unmovable::Unmovable;

use crate::config::ThrottleConfig;

use pressure::{HitWorth, Stall};

/// Moves in a period below which failures count as chance.
const FEW: u64 = 8;

/// Why moves were throttled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThrottleReason {
    /// Nothing is moved at all.
    DryRun,
    /// Migration yielded less than its cost.
    NotBeneficial,
    /// Many moves failed.
    Failures,
    /// The budget of bandwidth.
    Bandwidth,
    /// The budget of processor time.
    Cpu,
    /// The pages could not be moved in earlier periods.
    Unmovable,
    /// The group or the host waited for memory.
    MemoryPressure,
}

/// Number of reasons.
pub const REASONS: usize = 7;

impl ThrottleReason {
    /// Every reason.
    pub const ALL: [ThrottleReason; REASONS] = [
        ThrottleReason::DryRun,
        ThrottleReason::NotBeneficial,
        ThrottleReason::Failures,
        ThrottleReason::Bandwidth,
        ThrottleReason::Cpu,
        ThrottleReason::Unmovable,
        ThrottleReason::MemoryPressure,
    ];

    /// Its name in status and metrics.
    pub fn name(self) -> &'static str {
        match self {
            ThrottleReason::DryRun => "dry_run",
            ThrottleReason::NotBeneficial => "not_beneficial",
            ThrottleReason::Failures => "failures",
            ThrottleReason::Bandwidth => "bandwidth",
            ThrottleReason::Cpu => "cpu",
            ThrottleReason::Unmovable => "unmovable",
            ThrottleReason::MemoryPressure => "memory_pressure",
        }
    }
}

/// Counters of the throttle.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ThrottleStatus {
    /// Pages of plans that were throttled, by reason of [`ThrottleReason::ALL`]. Only cuts of
    /// finished plans count, not moves that a policy left out because of its budget.
    #[serde(alias = "held_pages")]
    pub throttled_pages: [u64; REASONS],
    /// Periods in which a budget of pages was in force, by the same reasons.
    pub bound_periods: [u64; REASONS],
    /// Pages promoted and demoted again, or the other way round, within one span.
    pub thrashed_pages: u64,
    /// Gain of the last span over doing nothing, in page-periods.
    pub gain: i64,
    /// Cost of the last span, in page-periods.
    pub cost: f64,
    /// Pauses so far.
    pub pauses: u64,
    /// Periods left of the pause; 0 without one.
    pub pause_left: u32,
    /// Bound on the pages moved in a period because of failures; `None` without a bound.
    pub failure_bound: Option<u64>,
    /// Pages that are remembered as unmovable.
    #[serde(default)]
    pub unmovable_pages: u64,
    /// Bound on the pages moved in a period because of memory pressure; `None` without a bound.
    #[serde(default)]
    pub pressure_bound: Option<u64>,
    /// Share of the last period in which the group or the host waited for memory; 0 to 1.
    #[serde(default)]
    pub stall_share: f64,
    /// The reason in force, in words.
    #[serde(alias = "said")]
    pub message: Option<String>,
}

/// Bounds on the pages moved in a period.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Bounds {
    /// By bandwidth.
    pub bandwidth_pages: Option<u64>,
    /// By processor time.
    pub cpu_pages: Option<u64>,
    /// Times that the group and the host waited for memory in the last period, if known.
    pub stall: Option<Stall>,
    /// Value of a hit to the group.
    pub hit_worth: HitWorth,
}

/// The throttle of one group.
#[derive(Debug)]
pub struct Throttle {
    config: ThrottleConfig,
    dry_run: bool,
    bounds: Bounds,
    status: ThrottleStatus,
    follower: LayoutFollower,
    /// The placement without the moves of this span.
    shadow: PageBits,
    before: PageBits,
    went_up: PageBits,
    went_down: PageBits,
    /// Periods of this span that have passed.
    age: u32,
    gain: f64,
    promoted: u64,
    next_pause: u32,
    /// Pages that may be moved in the present period: none in a dry run and in a pause.
    allowed: u64,
    /// Pages planned in the present period.
    asked: u64,
    /// Pages moved in the last period.
    moved: u64,
    coldness: Coldness,
    unmovable: Unmovable,
    /// Pages of the current scan that are left out.
    left_out: PageBits,
}

impl Throttle {
    /// A throttle with this configuration.
    pub fn new(config: ThrottleConfig, dry_run: bool) -> Self {
        Throttle {
            next_pause: config.pause_periods,
            config,
            dry_run,
            bounds: Bounds::default(),
            status: ThrottleStatus::default(),
            follower: LayoutFollower::default(),
            shadow: PageBits::default(),
            before: PageBits::default(),
            went_up: PageBits::default(),
            went_down: PageBits::default(),
            age: 0,
            gain: 0.0,
            promoted: 0,
            allowed: 0,
            asked: 0,
            moved: 0,
            coldness: Coldness::default(),
            unmovable: Unmovable::default(),
            left_out: PageBits::default(),
        }
    }

    /// Changes the configuration and keeps the counters.
    pub fn configure(&mut self, config: ThrottleConfig, dry_run: bool) {
        if self.config != config {
            self.next_pause = config.pause_periods;
        }
        (self.config, self.dry_run) = (config, dry_run);
    }

    /// Sets the bounds for the following periods.
    pub fn bound(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// The counters so far.
    pub fn status(&self) -> &ThrottleStatus {
        &self.status
    }

    /// Takes a scan, before the policy decides, and returns the budget of its plan.
    pub fn before(&mut self, scan: &Scan, budget: &Budget) -> Budget {
        self.judge(scan);
        self.unmovable.next_period();
        self.left_out = self.unmovable.left_out(scan);
        self.status.unmovable_pages = self.unmovable.remembered() as u64;
        self.watch_pressure(scan);
        let mut moved_pages = budget.moved_pages;
        let mut tightest = None;
        for (reason, bound) in [
            (ThrottleReason::Failures, self.status.failure_bound),
            (ThrottleReason::MemoryPressure, self.status.pressure_bound),
            (ThrottleReason::Bandwidth, self.bounds.bandwidth_pages),
            (ThrottleReason::Cpu, self.bounds.cpu_pages),
        ] {
            if let Some(pages) = bound.filter(|pages| *pages < moved_pages) {
                moved_pages = pages;
                tightest = Some(reason);
            }
        }
        if let Some(reason) = tightest {
            self.status.bound_periods[reason as usize] += 1;
        }
        self.explain(tightest, moved_pages);
        let is_held_back = self.dry_run || self.status.pause_left > 0;
        self.allowed = if is_held_back { 0 } else { moved_pages };
        Budget { moved_pages, ..*budget }
    }

    /// Sets the bound by memory pressure. Where that cannot be read, any more, it is let go.
    fn watch_pressure(&mut self, scan: &Scan) {
        let stall = self.bounds.stall.unwrap_or_default();
        let accessed = scan.accesses();
        let hits = scan.accesses_in(&scan.fast);
        let without = scan.accesses_in(&self.shadow);
        let hit_ratio_gain = if accessed > 0.0 { (hits - without) / accessed } else { 0.0 };
        let gained = pressure::gained_share(hit_ratio_gain, &self.bounds.hit_worth);
        self.status.stall_share = stall.worst();
        self.status.pressure_bound = pressure::next_bound(
            self.status.pressure_bound,
            self.moved,
            stall.worst(),
            gained,
            self.config.stall_share,
            FEW,
        );
    }

    fn explain(&mut self, tightest: Option<ThrottleReason>, pages: u64) {
        let status = &mut self.status;
        status.message = if self.dry_run {
            Some("dry run: nothing is moved".to_owned())
        } else if status.pause_left > 0 {
            Some(format!(
                "paused for {} periods: moves gained {} page-periods and cost {:.0}",
                status.pause_left, status.gain, status.cost
            ))
        } else {
            tightest.map(|reason| match reason {
                ThrottleReason::Failures => {
                    format!("at most {pages} pages a period: many moves failed")
                }
                ThrottleReason::Bandwidth => format!("at most {pages} pages a period: bandwidth"),
                ThrottleReason::MemoryPressure => format!(
                    "at most {pages} pages a period: tasks wait for memory {:.0} % of the time",
                    100.0 * status.stall_share
                ),
                _ => format!("at most {pages} pages a period: processor time"),
            })
        };
    }

    /// Compares with doing nothing.
    fn judge(&mut self, scan: &Scan) {
        if let Some(remap) = self.follower.follow(&scan.layout) {
            // Fresh pages were placed by the kernel, not by migration: the shadow has them in the
            // same place.
            self.shadow = remap.bits_or(&self.shadow, &scan.fast);
            self.before = remap.bits_or(&self.before, &scan.fast);
            self.went_up = remap.bits(&self.went_up);
            self.went_down = remap.bits(&self.went_down);
            self.coldness.remap(&remap);
        }
        self.coldness.observe(scan);
        let samples = scan.counts.as_ref().map_or(1.0, |counts| f64::from(counts.samples));
        self.gain += samples * (scan.accesses_in(&scan.fast) - scan.accesses_in(&self.shadow));
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let places = scan.fast.words().iter().zip(self.before.words());
        let gone = self.went_up.words().iter().zip(self.went_down.words());
        for ((&fast, &before), (&went_up, &went_down)) in places.zip(gone) {
            let (rose, fell) = (fast & !before, before & !fast);
            self.promoted += if self.age < self.config.settle_periods {
                u64::from(rose.count_ones())
            } else {
                0
            };
            let back = (rose & went_down).count_ones() + (fell & went_up).count_ones();
            self.status.thrashed_pages += u64::from(back);
            up.push(went_up | rose);
            down.push(went_down | fell);
        }
        let pages = scan.pages();
        self.went_up = PageBits::from_words(up, pages);
        self.went_down = PageBits::from_words(down, pages);
        self.before = scan.fast.clone();
        self.age += 1;
        self.status.pause_left = self.status.pause_left.saturating_sub(1);
        if self.age >= self.config.settle_periods.saturating_mul(2) {
            self.end_span(scan);
        }
    }

    fn end_span(&mut self, scan: &Scan) {
        let cost = self.promoted as f64 * self.config.payback_periods;
        self.status.gain = self.gain.round() as i64;
        self.status.cost = cost;
        let many = self.config.least_moved * scan.fast.count() as f64;
        let judged = self.promoted > 0 && self.promoted as f64 >= many;
        if judged && self.gain < cost {
            self.status.pause_left = self.next_pause;
            self.status.pauses += u64::from(self.next_pause > 0);
            self.next_pause = self
                .next_pause
                .saturating_mul(2)
                .min(self.config.longest_pause_periods.max(self.config.pause_periods));
        } else if judged {
            self.next_pause = self.config.pause_periods;
        }
        self.shadow = scan.fast.clone();
        let pages = scan.pages();
        (self.went_up, self.went_down) = (PageBits::new(pages), PageBits::new(pages));
        (self.age, self.gain, self.promoted) = (0, 0.0, 0);
    }

    /// The scan and the budget for the policy: unmovable pages look not worth moving, and if the
    /// policy requests them all the same, other pages lose nothing.
    fn masked(&self, scan: &Scan, budget: &Budget) -> Option<(Scan, Budget)> {
        let left_out = self.left_out.count() as u64;
        (left_out > 0).then(|| {
            let moved_pages = budget.moved_pages.saturating_add(left_out);
            (Unmovable::mask(scan, &self.left_out), Budget { moved_pages, ..*budget })
        })
    }

    /// Cuts a plan down to what may be moved.
    pub fn pass(&mut self, plan: Plan, scan: &Scan, budget: &Budget) -> Plan {
        let size = scan.layout.page_size();
        let mut plan = plan;
        let left_out = self.unmovable.take_out(&mut plan, size);
        self.status.throttled_pages[ThrottleReason::Unmovable as usize] += left_out;
        if !self.left_out.is_empty() && self.left_out.count() > 0 {
            cut(&mut plan, budget.moved_pages, size);
        }
        let (up, down) = plan.pages(size);
        self.asked = up + down;
        let passed = if self.dry_run {
            Plan::default()
        } else if self.status.pause_left > 0 {
            let resident = scan.fast.count() as u64;
            let over = resident.saturating_sub(budget.fast_pages);
            let room = budget.fast_pages.saturating_sub(resident);
            Plan {
                demotions: first_pages(&plan.demotions, over, size),
                promotions: first_pages(&plan.promotions, room, size),
                operation_sizes: plan.operation_sizes,
                ..Plan::default()
            }
        } else {
            plan.victims = self.coldness.victims(scan, &plan, &self.left_out);
            return plan;
        };
        let (kept_up, kept_down) = passed.pages(size);
        let reason =
            if self.dry_run { ThrottleReason::DryRun } else { ThrottleReason::NotBeneficial };
        self.status.throttled_pages[reason as usize] += self.asked - kept_up - kept_down;
        self.asked = kept_up + kept_down;
        passed
    }

    /// Takes the outcome of the plan.
    pub fn outcome(&mut self, outcome: &Outcome, page_size: PageSize) {
        self.unmovable.learn(outcome, page_size);
        self.moved = outcome.promoted_pages + outcome.demoted_pages;
        // Moves that were not tried for want of time have not failed; the mover bounds its own
        // time.
        let pages = |late: bool| -> u64 {
            let of = outcome.failures.iter().filter(|f| (f.reason == OutOfTime) == late);
            of.map(|f| f.range.pages(page_size)).sum()
        };
        let failed = pages(false);
        let asked = self.asked.saturating_sub(pages(true));
        if asked < FEW {
            return;
        }
        let bound = &mut self.status.failure_bound;
        if failed * 2 > asked {
            let half = bound.unwrap_or(asked).min(asked) / 2;
            *bound = Some(half.max(FEW));
        } else if failed * 10 <= asked
            && let Some(pages) = *bound
        {
            // Removed when it no longer binds.
            *bound = (asked >= pages / 2).then(|| pages.saturating_mul(2));
        }
    }
}

/// The first pages of these ranges.
fn first_pages(ranges: &[VirtualRange], pages: u64, size: PageSize) -> Vec<VirtualRange> {
    let mut left = pages;
    let mut kept = Vec::new();
    for &range in ranges {
        let taken = range.pages(size).min(left);
        if taken > 0 {
            kept.push(VirtualRange { size_bytes: taken * size.bytes(), ..range });
        }
        left -= taken;
    }
    kept
}

/// Leaves so many moves in a plan: the last promotions are dropped first, then exchanges, then
/// demotions.
fn cut(plan: &mut Plan, moved_pages: u64, size: PageSize) {
    let pages = |ranges: &[VirtualRange]| -> u64 { ranges.iter().map(|r| r.pages(size)).sum() };
    plan.demotions = first_pages(&plan.demotions, moved_pages, size);
    let mut left = (moved_pages - pages(&plan.demotions)) / 2;
    let exchanged = |e: &Exchange| e.up.pages(size);
    let before: u64 = plan.exchanges.iter().map(exchanged).sum();
    let spent = 2 * before.min(left);
    plan.exchanges.retain_mut(|e| {
        let taken = e.up.pages(size).min(left);
        left -= taken;
        (e.up.size_bytes, e.down.size_bytes) = (taken * size.bytes(), taken * size.bytes());
        taken > 0
    });
    let left = moved_pages - pages(&plan.demotions) - spent;
    plan.promotions = first_pages(&plan.promotions, left, size);
}

/// A policy that the engine calls and others replace.
pub type SharedPolicy = Arc<Mutex<Box<dyn Policy>>>;

/// A policy behind a throttle, as the engine sees it.
pub struct ThrottledPolicy {
    /// The policy.
    pub policy: SharedPolicy,
    /// The throttle.
    pub throttle: Arc<Mutex<Throttle>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Policy for ThrottledPolicy {
    fn name(&self) -> &'static str {
        lock(&self.policy).name()
    }

    fn decide(&mut self, scan: &Scan, budget: &Budget) -> Decision {
        let mut throttle = lock(&self.throttle);
        let bounded = throttle.before(scan, budget);
        let mut decision = match throttle.masked(scan, &bounded) {
            Some((masked, wider)) => lock(&self.policy).decide(&masked, &wider),
            None => lock(&self.policy).decide(scan, &bounded),
        };
        decision.plan = throttle.pass(decision.plan, scan, &bounded);
        decision
    }

    /// The throttle gets it with the rest of the period's report.
    fn outcome(&mut self, outcome: &Outcome, page_size: PageSize) {
        lock(&self.policy).outcome(outcome, page_size);
    }

    fn most_moved_pages(&self, budget: &Budget) -> u64 {
        let of_policy = lock(&self.policy).most_moved_pages(budget);
        of_policy.min(lock(&self.throttle).allowed)
    }

    fn external(&self) -> Option<ExternalReport> {
        lock(&self.policy).external()
    }

    fn metadata_bytes(&self) -> usize {
        lock(&self.policy).metadata_bytes()
    }
}

#[cfg(test)]
mod tests;
