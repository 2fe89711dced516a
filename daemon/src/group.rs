//! One group, managed by a thread of its own: the engine's loop over it, its throttle, its
//! history, and what it shows of itself.
//!
//! A thread a group, because groups come, go and fail each by itself, and their periods differ.
//! The thread owns everything that decides; others see a [`View`] and leave an [`Orders`].

mod figures;
mod shared;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use terrace_core::curve::HitCurve;
use terrace_core::features::FeatureCounter;
use terrace_core::heat::Heat as HeatMap;
use terrace_core::hotness::{HISTORY_PERIODS, Hotness};
use terrace_core::interfaces::MachineError;
use terrace_core::page::SpaceId;
use terrace_core::plan::FailureReason;
use terrace_core::policy::{self, Policy};
use terrace_core::scan::Scan;
use terrace_engine::{Cpu, Engine, FastLimit, Group, Observer, Options, PeriodReport};
use terrace_external::Patience;
use terrace_linux::costs::{CostSnapshot, Costs, thread_cpu_ns};

pub use shared::{Shared, View};

use figures::{
    add_refined, by_heat, cpu_percent, moved_pages, no_room_bytes, processes, take_whole, untracked,
};
use shared::{Orders, lock};

use crate::config::{GroupLimit, Settings};
use crate::history::{History, Identity};
use crate::machine::{Attached, Probe};
use crate::slowdown::{self, Assumed, Facts};
use crate::status::{FailureCount, GroupStatus};
use crate::throttle::cpu_budget::CpuBudget;
use crate::throttle::page_budget::PageBudget;
use crate::throttle::pressure::{HitWorth, StallClock};
use crate::throttle::{Bounds, SharedPolicy, Throttle, ThrottledPolicy};

/// Failed moves that are remembered, for explanations.
const REMEMBERED_FAILURES: usize = 256;

/// What outlives a group's thread: handed to the next one of the same group.
#[derive(Default)]
pub struct Carryover {
    /// The last scans.
    pub history: History,
    /// The policy, with what settings it was built.
    policy: Option<(Settings, SharedPolicy)>,
    throttle: Option<Arc<Mutex<Throttle>>>,
    /// Counters of its status.
    status: Option<GroupStatus>,
    heat: Option<Arc<Mutex<HeatMap>>>,
}

impl Carryover {
    /// Of a history that was kept on disk.
    pub fn of_history(history: History) -> Self {
        Carryover { history, ..Carryover::default() }
    }
}

/// How a group's thread ended.
pub struct Finished {
    /// Why, where it was not asked to and the group has not simply gone.
    pub error: Option<String>,
    /// What is left of it.
    pub carryover: Carryover,
}

/// A managed group.
pub struct Running {
    /// Shared with its thread.
    pub shared: Arc<Shared>,
    /// Its settings.
    pub settings: Settings,
    /// For [`crate::machine::Machine::release`].
    pub slot: u32,
    thread: JoinHandle<Finished>,
}

impl Running {
    /// Starts the thread.
    #[expect(clippy::too_many_arguments, reason = "called in one place, by the service")]
    pub fn start(
        name: String,
        cgroup: String,
        settings: Settings,
        assumed: Option<Assumed>,
        attached: Attached,
        shared: Arc<Shared>,
        carryover: Carryover,
        identity: Identity,
    ) -> std::io::Result<Running> {
        let slot = attached.slot;
        let theirs = (Arc::clone(&shared), settings.clone());
        let thread = std::thread::Builder::new().name("group".to_owned()).spawn(move || {
            let (shared, settings) = theirs;
            let keeper =
                Keeper::new(name, cgroup, &settings, assumed, &attached, &shared, identity);
            keeper.run(settings, attached, carryover)
        })?;
        Ok(Running { shared, settings, slot, thread })
    }

    /// Whether its thread has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Asks it to end.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for its end.
    pub fn join(self) -> Finished {
        self.thread.join().unwrap_or_else(|_| Finished {
            error: Some(
                "its thread panicked; this is a defect of terraced, please report it".into(),
            ),
            carryover: Carryover::default(),
        })
    }
}

/// Turns reports of the engine into a view.
struct Keeper {
    shared: Arc<Shared>,
    throttle: Arc<Mutex<Throttle>>,
    /// Asked for what it has to say of itself.
    policy: Option<SharedPolicy>,
    status: GroupStatus,
    failed: BTreeMap<FailureReason, u64>,
    features: FeatureCounter,
    hotness: Hotness,
    history: History,
    heat: Arc<Mutex<HeatMap>>,
    costs: Costs,
    costs_before: CostSnapshot,
    settings: Settings,
    assumed: Option<Assumed>,
    identity: Identity,
    cpu: CpuBudget,
    bandwidth: PageBudget,
    stall_clock: StallClock,
    /// Lost periods that were reported by themselves since the last scan, which has them as well.
    lost_since_scan: u32,
    /// Accesses, and those to fast memory, that are not counted yet: parts of page-periods.
    accesses: [f64; 2],
}

/// An observer of the engine that asks the keeper, and can be had from it between periods.
struct Watching<'a> {
    keeper: &'a mut Keeper,
    probe: &'a mut dyn Probe,
}

impl Keeper {
    fn new(
        name: String,
        cgroup: String,
        settings: &Settings,
        assumed: Option<Assumed>,
        attached: &Attached,
        shared: &Arc<Shared>,
        identity: Identity,
    ) -> Self {
        let status = GroupStatus { name, cgroup, state: "starting".into(), ..Default::default() };
        Keeper {
            shared: Arc::clone(shared),
            throttle: Arc::new(Mutex::new(Throttle::new(settings.throttle, settings.dry_run))),
            policy: None,
            status,
            failed: BTreeMap::new(),
            features: FeatureCounter::default(),
            hotness: Hotness::new(),
            history: History::default(),
            heat: Arc::new(Mutex::new(HeatMap::new(settings.page_size))),
            costs: attached.costs.clone(),
            costs_before: Default::default(),
            settings: settings.clone(),
            assumed,
            identity,
            cpu: CpuBudget::default(),
            bandwidth: PageBudget::default(),
            lost_since_scan: 0,
            stall_clock: StallClock::default(),
            accesses: [0.0; 2],
        }
    }

    fn run(mut self, settings: Settings, attached: Attached, carryover: Carryover) -> Finished {
        let Attached { tracker, mover, mut probe, .. } = attached;
        let policy = match self.take_over(carryover) {
            Ok(policy) => policy,
            Err(error) => {
                let carryover = Carryover::default();
                return Finished { error: Some(error), carryover };
            }
        };
        self.policy = Some(Arc::clone(&policy));
        let gated =
            ThrottledPolicy { policy: Arc::clone(&policy), throttle: Arc::clone(&self.throttle) };
        let group = Group {
            name: self.status.name.clone(),
            tracker,
            policy: Box::new(gated),
            mover,
            share: FastLimit::Bytes(0),
            moved_pages: u64::MAX,
        };
        let options = Options { cpu_clock: || Some(thread_cpu_ns()), ..Options::default() };
        let mut engine = Engine::new(vec![group], options);
        self.settings = settings;
        self.publish(None);
        let error = loop {
            if self.shared.stop.load(Ordering::Relaxed) {
                break None;
            }
            if let Err(error) = self.follow_orders(&policy, probe.as_mut()) {
                tracing::error!(group = self.status.name, error, "an order was not carried out");
                self.status.error = Some(error);
            }
            if let Some(group) = engine.group_mut(0) {
                // Before the first partitioning a group with a share moves nothing: what it may have
                // is not known.
                let (share, moved_pages) = match self.settings.limit {
                    GroupLimit::Ratio(ratio) => (FastLimit::Ratio(ratio), u64::MAX),
                    GroupLimit::Bytes(bytes) => (FastLimit::Bytes(bytes), u64::MAX),
                    GroupLimit::Partitioned { .. } => match self.shared.granted() {
                        Some(bytes) => (FastLimit::Bytes(bytes), u64::MAX),
                        None => (FastLimit::Bytes(u64::MAX), 0),
                    },
                };
                group.share = share;
                group.moved_pages = moved_pages;
            }
            if let Some(reason) = probe.refusal() {
                break Some(reason);
            }
            let bounds = self.bounds(probe.as_mut());
            lock(&self.throttle).bound(bounds);
            let mut watching = Watching { keeper: &mut self, probe: probe.as_mut() };
            match engine.step(&mut watching) {
                Ok(true) => {}
                Ok(false) => break None,
                Err(e) => break Some(e.to_string()),
            }
        };
        self.status.state = "ended".into();
        self.status.error = error.clone().or(self.status.error.take());
        self.publish(None);
        // The identity that a history is kept under is that of the processes it saw.
        self.note_processes(probe.as_mut());
        drop(engine);
        Finished {
            error,
            carryover: Carryover {
                history: self.history,
                policy: Some((self.settings, policy)),
                throttle: Some(self.throttle),
                status: Some(self.status),
                heat: Some(self.heat),
            },
        }
    }

    /// Goes on where another thread of the same group, or the daemon before, stopped.
    fn take_over(&mut self, carryover: Carryover) -> Result<SharedPolicy, String> {
        let Carryover { history, policy, throttle, status, heat } = carryover;
        if let Some(throttle) = throttle {
            lock(&throttle).configure(self.settings.throttle, self.settings.dry_run);
            self.throttle = throttle;
        }
        if let Some(old) = status {
            let (name, cgroup) = (self.status.name.clone(), self.status.cgroup.clone());
            self.failed = old
                .failed
                .iter()
                .filter_map(|f| {
                    let reason = FailureReason::ALL.iter().find(|r| r.name() == f.reason)?;
                    Some((*reason, f.pages))
                })
                .collect();
            self.status =
                GroupStatus { name, cgroup, state: "starting".into(), error: None, ..old };
        }
        let same_pages =
            history.scans().last().is_none_or(|s| s.layout.page_size() == self.settings.page_size);
        if !same_pages {
            // Pages of another size: what is known of the old ones does not tell of these.
            return Ok(Arc::new(Mutex::new(self.build()?)));
        }
        // The bins of a heat map are of periods of one length.
        let same_periods =
            policy.as_ref().is_some_and(|(old, _)| old.period_ms == self.settings.period_ms);
        if let Some(heat) = heat.filter(|_| same_periods) {
            lock(&heat).resume();
            self.heat = heat;
        }
        self.status.restored_scans += history.len() as u64;
        for scan in history.scans() {
            self.learn(scan);
        }
        self.history = history;
        match policy {
            Some((settings, policy)) if settings.decides_like(&self.settings) => Ok(policy),
            _ => Ok(Arc::new(Mutex::new(self.build()?))),
        }
    }

    /// A new policy that starts from the history.
    fn build(&self) -> Result<Box<dyn Policy>, String> {
        let s = &self.settings;
        let mut policy = match &s.external {
            Some(external) => external.fallback(s.seed).map_err(|e| e.to_string())?,
            None => policy::build(&s.policy, &s.parameters, s.seed).map_err(|e| e.to_string())?,
        };
        self.history.teach(policy.as_mut());
        match &s.external {
            // What it learns from the past is its fallback's: its process may take long over a scan.
            Some(external) => {
                let patience = Patience::Live { period_ms: s.period_ms };
                Ok(Box::new(external.policy(s.seed, patience, policy)))
            }
            None => Ok(policy),
        }
    }

    fn learn(&mut self, scan: &Scan) -> terrace_core::plan::Features {
        if let Some(remap) = self.features.follow(scan) {
            self.hotness.remap(&remap);
        }
        self.hotness.observe(scan);
        self.features.count(scan).0
    }

    /// Adds a period to the histories and to the throttle, and takes its moves from the budgets: also
    /// those of so many base pages that moved alone.
    fn account(&mut self, report: &PeriodReport<'_>, base_pages: u64) {
        let (scan, outcome) = (report.scan, report.outcome);
        let size = scan.layout.page_size();
        self.history.push(scan, report.budget);
        lock(&self.heat).add(scan);
        lock(&self.throttle).outcome(outcome, size);
        for failure in &outcome.failures {
            *self.failed.entry(failure.reason).or_default() += failure.range.pages(size);
        }
        let moved = moved_pages(outcome, base_pages, size);
        let Cpu { tracker_ns, policy_ns, mover_ns } = report.cpu;
        self.bandwidth.spend(moved);
        self.cpu.took(
            1 + u64::from(scan.lost_periods),
            tracker_ns.unwrap_or(0) + policy_ns.unwrap_or(0),
            moved,
            mover_ns.unwrap_or(0),
        );
    }

    fn follow_orders(
        &mut self,
        policy: &SharedPolicy,
        probe: &mut dyn Probe,
    ) -> Result<(), String> {
        let Orders { settings, save, assumed } = std::mem::take(&mut *lock(&self.shared.orders));
        if let Some(assumed) = assumed {
            self.assumed = assumed;
        }
        if let Some(settings) = settings {
            let same_policy = settings.decides_like(&self.settings);
            self.settings = settings;
            lock(&self.throttle).configure(self.settings.throttle, self.settings.dry_run);
            if !same_policy {
                *lock(policy) = self.build()?;
            }
        }
        if let Some(folder) = save {
            self.note_processes(probe);
            self.history.save(&folder, &self.identity)?;
        }
        Ok(())
    }

    /// Notes which processes the history is about.
    fn note_processes(&mut self, probe: &mut dyn Probe) {
        if let Some(scan) = self.history.scans().last() {
            let mut spaces: Vec<SpaceId> = scan.layout.extents().iter().map(|e| e.space).collect();
            spaces.dedup();
            self.identity.processes = probe.identity(&spaces);
        }
        self.identity.period_ms = self.settings.period_ms;
    }

    /// What moves in the next period are bound by.
    fn bounds(&mut self, probe: &mut dyn Probe) -> Bounds {
        let period_s = self.settings.period_ms as f64 / 1000.0;
        let least = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(f64::min(a, b)),
            (a, b) => a.or(b),
        };
        let of = |cell: &AtomicU64| Some(cell.load(Ordering::Relaxed) as f64).filter(|v| *v > 0.0);
        let bandwidth = least(
            self.settings.bandwidth_bytes_per_s.map(|b| b as f64),
            of(&self.shared.bandwidth_bytes_per_s),
        );
        let percent = least(
            self.settings.cpu_percent,
            of(&self.shared.cpu_milli_percent).map(|milli| milli / 1000.0),
        );
        let page_bytes = self.settings.page_size.bytes() as f64;
        Bounds {
            bandwidth_pages: bandwidth.map(|b| self.bandwidth.pages(b * period_s / page_bytes)),
            cpu_pages: percent.map(|percent| self.cpu.pages(percent / 100.0 * period_s * 1e9)),
            stall: self.stall_clock.since_last(Instant::now(), probe.stalls_us()),
            hit_worth: self.assumed.as_ref().map_or_else(HitWorth::default, |assumed| HitWorth {
                memory_share: assumed.memory_share,
                latency_ratio: assumed.latency_ratio,
            }),
        }
    }

    fn publish(&mut self, seen: Option<(&PeriodReport<'_>, HitCurve)>) {
        let throttle = lock(&self.throttle).status().clone();
        let status = &mut self.status;
        status.throttle = throttle;
        status.policy = self.settings.policy.clone();
        status.external = self.policy.as_ref().and_then(|policy| lock(policy).external());
        status.dry_run = self.settings.dry_run;
        status.page_size_bytes = self.settings.page_size.bytes();
        status.period_ms = self.settings.period_ms;
        status.limit = match self.settings.limit {
            GroupLimit::Ratio(_) => "ratio",
            GroupLimit::Bytes(_) => "fixed",
            GroupLimit::Partitioned { .. } => "share",
        }
        .to_owned();
        status.failed = self
            .failed
            .iter()
            .map(|(reason, &pages)| FailureCount { reason: reason.name().to_owned(), pages })
            .collect();
        let mut view = self.shared.view();
        // The service writes these two.
        let (entitled, loss) = (view.status.entitled_bytes, view.status.loss);
        view.status = self.status.clone();
        (view.status.entitled_bytes, view.status.loss) = (entitled, loss);
        if let Some((report, curve)) = seen {
            view.scan = Some(report.scan.clone());
            view.hotness.clone_from(&self.hotness);
            view.curve = curve;
            view.budget_pages = report.budget.fast_pages;
            view.failures = report
                .outcome
                .failures
                .iter()
                .take(REMEMBERED_FAILURES)
                .map(|f| (f.range, f.direction, f.reason))
                .collect();
            view.heat = Some(Arc::clone(&self.heat));
        }
    }
}

impl Observer for Watching<'_> {
    fn period(&mut self, report: &PeriodReport<'_>) -> Result<(), MachineError> {
        let keeper = &mut *self.keeper;
        let scan = report.scan;
        let size = scan.layout.page_size();
        let features = keeper.learn(scan);
        let costs = keeper.costs.snapshot();
        let before = std::mem::replace(&mut keeper.costs_before, costs);
        keeper.account(report, costs.base_pages_moved() - before.base_pages_moved());
        // Whole page-periods are counted, what is left of them with the next period.
        keeper.accesses[0] += scan.accesses();
        keeper.accesses[1] += scan.accesses_in(&scan.fast);
        let (accessed, hits) = take_whole(&mut keeper.accesses);
        let scans = (keeper.history.len() as u32).min(HISTORY_PERIODS as u32);
        let period_s = keeper.settings.period_ms as f64 / 1000.0;
        let curve = HitCurve::of(&keeper.hotness, size, scans, period_s);
        let move_ns = costs.move_ns.saturating_sub(before.move_ns);
        let (fast, slow) = by_heat(scan, &keeper.hotness, scans);
        let s = &mut keeper.status;
        s.state = "tracking".into();
        // What was wrong is over: the counters keep it.
        s.error = None;
        s.applied = report.decision.applied.to_owned();
        s.scans += 1;
        // Of those that a newer one has overtaken only the scan knows.
        let reported = std::mem::take(&mut keeper.lost_since_scan);
        s.lost_periods += u64::from(scan.lost_periods.saturating_sub(reported));
        s.bytes = scan.pages() as u64 * size.bytes();
        s.fast_bytes = scan.fast.count() as u64 * size.bytes();
        s.granted_bytes = report.limit_pages.saturating_mul(size.bytes());
        s.untracked_fast_bytes = costs.untracked_fast_bytes;
        s.untracked_slow_bytes = costs.untracked_slow_bytes;
        s.untracked = untracked(&costs);
        s.truncated_pages = costs.truncated_pages;
        s.collapses = self.probe.collapses();
        s.no_room_bytes = no_room_bytes(s.no_room_bytes, report, size);
        (s.fast, s.slow) = (fast, slow);
        s.hit_ratio = features.hit_ratio;
        s.accessed_ratio = features.accessed_ratio;
        s.stability = features.stability;
        s.accessed_pages += accessed;
        s.hit_pages += hits;
        s.hit_ratio_all =
            if s.accessed_pages > 0 { s.hit_pages as f64 / s.accessed_pages as f64 } else { 0.0 };
        s.promoted_pages += report.outcome.promoted_pages;
        s.demoted_pages += report.outcome.demoted_pages;
        s.operations += report.outcome.operations;
        s.move_ns += move_ns;
        s.longest_move_ns = s.longest_move_ns.max(costs.longest_move_ns);
        add_refined(s, &before, &costs);
        let tracker_ns = report.cpu.tracker_ns.unwrap_or(0);
        let policy_ns = report.cpu.policy_ns.unwrap_or(0);
        let mover_ns = report.cpu.mover_ns.unwrap_or(0);
        s.tracker_cpu_ns += tracker_ns;
        s.policy_cpu_ns += policy_ns;
        s.mover_cpu_ns += mover_ns;
        s.cpu_percent = cpu_percent(tracker_ns + policy_ns + mover_ns, scan.lost_periods, period_s);
        (s.processes, s.process_count) = processes(scan);
        s.pagetable_bytes = self.probe.pagetable_bytes();
        s.metadata_bytes = (keeper.hotness.size_bytes() + keeper.history.size_bytes()) as u64;
        s.slowdown = keeper.assumed.as_ref().and_then(|assumed| {
            let facts = Facts {
                accessed_pages: accessed,
                hit_pages: hits,
                move_ns,
                period_ns: (period_s * 1e9) as u64,
            };
            slowdown::estimate(&facts, assumed)
        });
        keeper.publish(Some((report, curve)));
        Ok(())
    }

    fn lost(&mut self, _: usize, periods: u32, reason: &str) -> Result<(), MachineError> {
        let keeper = &mut *self.keeper;
        keeper.status.lost_periods += u64::from(periods);
        keeper.lost_since_scan += periods;
        keeper.status.state = "lost".into();
        keeper.status.error = Some(reason.to_owned());
        tracing::debug!(group = keeper.status.name, periods, reason, "periods were lost");
        keeper.publish(None);
        // A tracker that keeps failing at once must not spin.
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }
}
