//! The service: finds groups, starts and ends their threads, partitions fast memory, reloads,
//! stores histories, ends in order.
//!
//! A single thread does all of it, so there is no lock order: groups' threads, the control socket
//! and the metrics endpoint only read the board and send orders.

mod failures;
mod stored;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use terrace_core::partitioning::{self, FastMemoryClaim};

use crate::board::Board;
use crate::config::{Config, GroupConfig, GroupLimit, Settings};
use crate::control::{Order, Request};
use crate::discover::{self, Pattern, Wanted, distinct, shown};
use crate::group::{Carryover, Finished, Running, Shared};
use crate::history::History;
use crate::machine::Machine;
use crate::notify::Notifier;
use crate::slowdown::Assumed;
use crate::status::{SharingStatus, UnmanagedStatus};
use failures::Failures;
use stored::folder;

/// Longest wait of an order or a signal.
const SLICE: Duration = Duration::from_millis(200);
/// Longest delay until the end of a group's thread is noticed by whoever waits for it.
const JOIN_SLICE: Duration = Duration::from_millis(5);
/// Interval of updates of the machine's free memory.
const STATUS_EVERY: Duration = Duration::from_secs(2);
/// Interval of writing histories.
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// Unmanaged groups that are reported.
const MOST_UNMANAGED: usize = 200;

/// The service on a machine.
pub struct Service<M: Machine> {
    machine: M,
    path: PathBuf,
    config: Config,
    board: Arc<Board>,
    running: BTreeMap<String, Running>,
    /// Groups that are to start anew: with other pages or periods, or after a failure.
    waiting: BTreeMap<String, Carryover>,
    failures: Failures,
    /// The state folder that was freed of histories of groups that are gone.
    swept: Option<PathBuf>,
    targets: BTreeMap<String, u64>,
    next_discovery: Instant,
    next_partitioning: Instant,
    next_save: Instant,
    next_status: Instant,
    sharing: SharingStatus,
    /// Nothing is moved, whatever a configuration says.
    dry_run: bool,
    notifier: Notifier,
}

impl<M: Machine> Service<M> {
    /// A service that has not started.
    pub fn new(machine: M, path: &Path, config: Config, board: Arc<Board>) -> Self {
        let now = Instant::now();
        Service {
            machine,
            path: path.to_owned(),
            dry_run: false,
            notifier: Notifier::default(),
            config,
            board,
            running: BTreeMap::new(),
            waiting: BTreeMap::new(),
            failures: Failures::default(),
            swept: None,
            targets: BTreeMap::new(),
            next_discovery: now,
            next_partitioning: now,
            next_save: now + SAVE_EVERY,
            next_status: now,
            sharing: SharingStatus::default(),
        }
    }

    /// Moves nothing, whatever this or a later configuration says.
    pub fn dry(mut self) -> Self {
        self.dry_run = true;
        self.config.daemon.dry_run = true;
        self
    }

    /// Notifies the service manager: after the first round that the service is ready, and from then
    /// on that it is alive.
    pub fn notifying(mut self, notifier: Notifier) -> Self {
        self.notifier = notifier;
        self
    }

    /// Runs until `stop` is set or a client stops it; SIGHUP sets `reload`. Returns the machine,
    /// with no group left.
    pub fn run(mut self, orders: &Receiver<Order>, stop: &AtomicBool, reload: &AtomicBool) -> M {
        let mut is_ready = false;
        while !stop.load(Ordering::Relaxed) {
            self.round();
            if !is_ready {
                self.notifier.ready();
                is_ready = true;
            }
            self.notifier.alive();
            match orders.recv_timeout(SLICE) {
                Ok(order) => {
                    if order.request == (Request::Stop {}) {
                        let _ = order.answer.send(Ok(json!("ending")));
                        break;
                    }
                    let answer = self.carry_out(&order.request);
                    let _ = order.answer.send(answer);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(SLICE),
            }
            if reload.swap(false, Ordering::Relaxed)
                && let Err(error) = self.reload()
            {
                tracing::error!(error, "the configuration was not reloaded");
            }
        }
        self.notifier.stopping();
        self.end()
    }

    /// Waits for the end of a group's thread, which may be in a long set-up, and notifies the
    /// service manager meanwhile.
    fn join(&mut self, running: Running) -> Finished {
        while !running.is_finished() {
            self.notifier.alive();
            std::thread::sleep(JOIN_SLICE);
        }
        running.join()
    }

    /// Does what is due.
    pub fn round(&mut self) {
        self.reap();
        let now = Instant::now();
        if now >= self.next_discovery {
            self.next_discovery = now + Duration::from_millis(self.config.daemon.discover_ms);
            self.discover();
            self.limit();
        }
        if let Some(change) = self.machine.watch() {
            tracing::warn!(change, "all groups are restarted");
            self.failures.clear();
            let all: Vec<String> = self.running.keys().cloned().collect();
            self.begin_anew(all);
            self.next_discovery = now;
        }
        self.share(now);
        if now >= self.next_save {
            self.next_save = now + SAVE_EVERY;
            self.save();
        }
        // Free memory changes all the time, and reading it takes the kernel a while.
        let machine = (now >= self.next_status).then(|| self.machine.status());
        let mut frame = self.board.frame();
        if let Some(mut machine) = machine {
            self.next_status = now + STATUS_EVERY;
            let managed: u64 =
                self.running.values().map(|r| r.shared.view().status.all_fast()).sum();
            let used = machine.fast_bytes.saturating_sub(machine.fast_free_bytes);
            machine.unmanaged_fast_bytes = used.saturating_sub(managed);
            frame.machine = machine;
        }
        frame.config = self.path.display().to_string();
        let has_share = |r: &Running| matches!(r.settings.limit, GroupLimit::Partitioned { .. });
        frame.sharing = self.running.values().any(has_share).then(|| self.sharing.clone());
    }

    fn carry_out(&mut self, request: &Request) -> Result<Value, String> {
        match request {
            Request::Reload {} => self.reload().map(|notes| json!(notes)),
            Request::Save {} => {
                self.save();
                Ok(json!("histories are written at the end of each group's period"))
            }
            _ => Err("this is not a change".to_owned()),
        }
    }

    /// Joins threads that have ended, and restarts those that are due.
    fn reap(&mut self) {
        let ended: Vec<String> = self
            .running
            .iter()
            .filter(|(_, r)| r.is_finished())
            .map(|(cgroup, _)| cgroup.clone())
            .collect();
        for cgroup in ended {
            let Some(running) = self.running.remove(&cgroup) else { continue };
            let slot = running.slot;
            let finished = self.join(running);
            self.machine.release(slot);
            self.board.remove(&cgroup);
            match finished.error {
                Some(reason) => {
                    tracing::warn!(group = shown(&cgroup), reason, "no longer managed");
                    self.failures.note(&cgroup, reason, Instant::now());
                    // Its history is kept for the next attempt, while the group exists.
                    self.waiting.insert(cgroup, finished.carryover);
                }
                None => {
                    tracing::info!(group = shown(&cgroup), "ended");
                    if !self.waiting.contains_key(&cgroup) {
                        self.forget(&cgroup);
                    }
                }
            }
        }
    }

    fn wanted(config: &Config) -> Vec<Wanted> {
        // They were checked when the configuration was read.
        let pattern = |text: &String| Pattern::new(text).ok();
        let wanted = |g: &GroupConfig| {
            let exclude = g.exclude.iter().filter_map(pattern).collect();
            pattern(&g.cgroup).map(|cgroup| Wanted { cgroup, exclude })
        };
        config.groups.iter().filter_map(|g| wanted(g.get_ref())).collect()
    }

    /// Finds groups and starts new ones.
    fn discover(&mut self) {
        let wanted = Self::wanted(&self.config);
        let survey = match self.machine.groups(&wanted) {
            Ok(survey) => survey,
            Err(error) => {
                tracing::warn!(error, "control groups cannot be listed");
                return;
            }
        };
        if survey.unvisited > 0 && self.board.frame().unvisited_groups == 0 {
            tracing::warn!(
                "there are more than {} control groups where groups are looked for: {} or more are \
                 not visited; name cgroup paths more narrowly",
                survey.visited,
                survey.unvisited
            );
        }
        self.board.frame().unvisited_groups = survey.unvisited as u64;
        let paths = survey.populated;
        self.drop_gone(&paths, survey.unvisited);
        let now = Instant::now();
        let held: Vec<String> = self.running.keys().cloned().collect();
        let most = self.config.daemon.max_groups as usize;
        // Groups that have failed take no other's place until they are tried again.
        let has_failed = |path: &String| self.failures.reason(path, now).is_some();
        let (failed, paths): (Vec<String>, Vec<String>) = paths.into_iter().partition(has_failed);
        let (chosen, refused) = discover::choose(&paths, &wanted, &held, most);
        let names: Vec<String> =
            self.config.groups.iter().map(|g| g.get_ref().name.clone()).collect();
        let entry = |index: usize| names[index].clone();
        let mut unmanaged: Vec<UnmanagedStatus> = refused
            .iter()
            .take(MOST_UNMANAGED)
            .map(|l| UnmanagedStatus {
                cgroup: shown(&l.path),
                entry: entry(l.entry),
                reason: l.reason.clone(),
            })
            .collect();
        for cgroup in &failed {
            let Some(reason) = self.failures.reason(cgroup, now) else { continue };
            let Some(index) = wanted.iter().position(|w| w.matches(cgroup)) else { continue };
            let (entry, reason) = (entry(index), reason.to_owned());
            unmanaged.push(UnmanagedStatus { cgroup: shown(cgroup), entry, reason });
        }
        for (cgroup, index) in chosen {
            if self.running.contains_key(&cgroup) {
                continue;
            }
            if let Err(reason) = self.start(&cgroup, index) {
                tracing::warn!(group = shown(&cgroup), reason, "not managed");
                let entry = entry(index);
                unmanaged.push(UnmanagedStatus {
                    cgroup: shown(&cgroup),
                    entry,
                    reason: reason.clone(),
                });
                self.failures.note(&cgroup, reason, Instant::now());
            }
        }
        self.board.frame().unmanaged = unmanaged;
    }

    fn start(&mut self, cgroup: &str, index: usize) -> Result<(), String> {
        let entry = self.config.groups[index].get_ref();
        let settings = self.config.settings(entry);
        let is_pattern = entry.cgroup.contains(['*', '?', '[', '{', '\\']);
        let name = if is_pattern { format!("{}:{cgroup}", entry.name) } else { entry.name.clone() };
        let name = distinct(&name);
        let shared = Arc::new(Shared::default());
        self.limit_one(&shared, self.running.len() + 1);
        let identity = self.machine.identity(cgroup, settings.period_ms);
        let carryover = match self.waiting.remove(cgroup) {
            Some(carryover) => carryover,
            None => {
                let kept = folder(&self.config)
                    .map(|folder| History::load(&folder, &identity, settings.page_size));
                match kept {
                    Some(Ok(Some(history))) => Carryover::of_history(history),
                    Some(Err(error)) => {
                        tracing::warn!(error, "a stored history cannot be used");
                        Carryover::default()
                    }
                    _ => Carryover::default(),
                }
            }
        };
        let attached = match self.machine.attach(cgroup, &settings, Arc::clone(&shared.stop)) {
            Ok(attached) => attached,
            Err(reason) => {
                // What is known of it is for the next attempt.
                self.waiting.insert(cgroup.to_owned(), carryover);
                return Err(reason);
            }
        };
        let slot = attached.slot;
        let assumed = self.assumed();
        let started = Running::start(
            name.clone(),
            cgroup.to_owned(),
            settings,
            assumed,
            attached,
            Arc::clone(&shared),
            carryover,
            identity,
        );
        match started {
            Ok(running) => {
                tracing::info!(group = name, "managed");
                self.board.add(cgroup, shared);
                self.running.insert(cgroup.to_owned(), running);
                Ok(())
            }
            Err(e) => {
                self.machine.release(slot);
                Err(format!("no thread for it: {e}"))
            }
        }
    }

    fn assumed(&mut self) -> Option<Assumed> {
        let d = &self.config.daemon;
        let latency_ratio = self.machine.status().latency_ratio?;
        let (memory_share, memory_share_error) = (d.memory_share, d.memory_share_error);
        Some(Assumed { latency_ratio, memory_share, memory_share_error })
    }

    /// Gives each group its part of the daemon's budgets.
    fn limit(&self) {
        for running in self.running.values() {
            self.limit_one(&running.shared, self.running.len());
        }
    }

    /// Gives a group its part of the daemon's budgets, as one of so many.
    fn limit_one(&self, group: &Shared, groups: usize) {
        let d = &self.config.daemon;
        let groups = groups.max(1) as u64;
        group.limit(
            Some(d.bandwidth.0).filter(|b| *b > 0).map(|b| (b / groups).max(1)),
            d.cpu_percent.map(|p| p / groups as f64),
        );
    }

    /// Partitions fast memory between the groups with a share, when that is due, and lets them grow
    /// into free memory.
    fn share(&mut self, now: Instant) {
        let mut names = Vec::new();
        let mut claims = Vec::new();
        let mut used = Vec::new();
        let mut granted = Vec::new();
        let mut fixed = 0u64;
        let mut newcomer = false;
        for (cgroup, running) in &self.running {
            let view = running.shared.view();
            let s = &view.status;
            match running.settings.limit {
                GroupLimit::Ratio(ratio) => fixed += (s.bytes as f64 * ratio) as u64,
                GroupLimit::Bytes(bytes) => fixed += bytes.min(s.bytes),
                GroupLimit::Partitioned { min_bytes, max_bytes, weight } => {
                    // Until its first scan a group is unknown, and moves nothing.
                    if view.scan.is_none() {
                        continue;
                    }
                    let before = running.shared.granted();
                    newcomer |= before.is_none();
                    names.push(cgroup.clone());
                    let curve = view.curve.clone();
                    claims.push(FastMemoryClaim { curve, min_bytes, max_bytes, weight });
                    used.push(s.fast_bytes);
                    granted.push(before.unwrap_or(s.fast_bytes));
                }
            }
        }
        if names.is_empty() {
            return;
        }
        if newcomer || now >= self.next_partitioning {
            let machine = self.machine.status();
            let configured = self.config.sharing.fast.of(machine.fast_bytes).saturating_sub(fixed);
            // Fast memory of other programs cannot be granted.
            let there = machine.fast_free_bytes.saturating_add(used.iter().sum());
            let total = configured.min(there);
            self.next_partitioning = now + Duration::from_millis(self.config.sharing.every_ms);
            let max_loss = self.config.sharing.max_loss;
            let partitioning = partitioning::partition(total, &claims, max_loss);
            self.targets.clear();
            for (name, share) in names.iter().zip(&partitioning.shares) {
                self.targets.insert(name.clone(), share.bytes);
                if let Some(running) = self.running.get(name) {
                    let mut view = running.shared.view();
                    view.status.entitled_bytes = Some(share.entitled_bytes);
                    view.status.loss = Some(share.loss);
                }
            }
            let losses = partitioning.shares.iter().map(|s| s.loss);
            self.sharing = SharingStatus {
                total_bytes: total,
                partitionings: self.sharing.partitionings + 1,
                minimums_cut: partitioning.minimums_cut,
                largest_loss: losses.fold(0.0, f64::max),
                max_loss,
            };
        }
        let target = |name: &String| self.targets.get(name).copied().unwrap_or(0);
        let targets: Vec<u64> = names.iter().map(target).collect();
        let next = partitioning::phase_in(self.sharing.total_bytes, &targets, &granted, &used);
        for (name, bytes) in names.iter().zip(next) {
            if let Some(running) = self.running.get(name) {
                running.shared.grant(bytes);
            }
        }
    }

    fn save(&self) {
        if let Some(folder) = folder(&self.config) {
            self.running.values().for_each(|r| r.shared.save(folder.clone()));
        }
    }

    /// Reads the configuration again. Groups keep their state; returns the keys that need a
    /// restart.
    fn reload(&mut self) -> Result<Vec<String>, String> {
        let new = match Config::read(&self.path) {
            Ok(new) => new,
            Err(e) => {
                let mut frame = self.board.frame();
                frame.failed_reloads += 1;
                frame.reload_error = Some(e.to_string());
                return Err(e.to_string());
            }
        };
        let mut notes = Vec::new();
        let (old, mut new) = (self.config.clone(), new);
        let mut fixed = |key: &str, same: bool| {
            if !same {
                notes.push(format!("{key} takes effect at the next start"));
            }
        };
        fixed("daemon.control", old.daemon.control == new.daemon.control);
        fixed("daemon.control_group", old.daemon.control_group == new.daemon.control_group);
        fixed("daemon.metrics", old.daemon.metrics == new.daemon.metrics);
        fixed("daemon.max_groups", old.daemon.max_groups == new.daemon.max_groups);
        fixed("daemon.max_processes", old.daemon.max_processes == new.daemon.max_processes);
        fixed("daemon.sample_reads", old.daemon.sample_reads == new.daemon.sample_reads);
        fixed("daemon.hint_faults", old.daemon.hint_faults == new.daemon.hint_faults);
        fixed("daemon.fix_conflicts", old.daemon.fix_conflicts == new.daemon.fix_conflicts);
        let nodes = |c: &Config| (c.daemon.fast_nodes.clone(), c.daemon.slow_nodes.clone());
        fixed("daemon.fast_nodes", nodes(&old) == nodes(&new));
        fixed("daemon.latency_ratio", old.daemon.latency_ratio == new.daemon.latency_ratio);
        // Kernel threads for so many groups were taken at the start.
        new.daemon.max_groups = old.daemon.max_groups;
        new.daemon.dry_run |= self.dry_run;
        if !new.is_dry()
            && let Err(error) = self.machine.end_dry_run()
        {
            notes.push(format!("it stays a dry run: {error}"));
            new.daemon.dry_run = true;
        }
        if new.is_dry() && !old.is_dry() {
            notes.push(
                "nothing is moved from now on; kernel settings stay changed until the end"
                    .to_owned(),
            );
        }
        if let Err(error) = self.machine.prepare(&new) {
            notes.push(format!("groups of other pages than before: {error}"));
        }
        self.config = new;
        self.failures.clear();
        self.apply();
        self.next_discovery = Instant::now();
        self.next_partitioning = Instant::now();
        let mut frame = self.board.frame();
        frame.reloads += 1;
        frame.reload_error = None;
        tracing::info!(config = %self.path.display(), "reloaded");
        notes.insert(0, "reloaded".to_owned());
        Ok(notes)
    }

    /// Adapts the running groups to the configuration.
    fn apply(&mut self) {
        let held: Vec<String> = self.running.keys().cloned().collect();
        let (chosen, _) = discover::choose(&held, &Self::wanted(&self.config), &[], held.len());
        let chosen: BTreeMap<String, usize> = chosen.into_iter().collect();
        let assumed = self.assumed();
        self.running.values().for_each(|running| running.shared.assume(assumed));
        let mut anew: Vec<String> = Vec::new();
        for (cgroup, running) in &mut self.running {
            let Some(&index) = chosen.get(cgroup) else {
                running.stop();
                continue;
            };
            let settings: Settings = self.config.settings(self.config.groups[index].get_ref());
            let same_name = settings.entry == running.settings.entry;
            if settings.tracks_like(&running.settings) && same_name {
                if settings != running.settings {
                    running.settings = settings.clone();
                    running.shared.configure(settings);
                }
            } else {
                running.stop();
                anew.push(cgroup.clone());
            }
        }
        // Another period, page size or name.
        self.begin_anew(anew);
    }

    /// Ends the threads of groups; new threads continue with their state.
    fn begin_anew(&mut self, groups: Vec<String>) {
        groups.iter().filter_map(|g| self.running.get(g)).for_each(Running::stop);
        for cgroup in groups {
            let Some(running) = self.running.remove(&cgroup) else { continue };
            let slot = running.slot;
            let finished = self.join(running);
            self.machine.release(slot);
            self.board.remove(&cgroup);
            self.waiting.insert(cgroup, finished.carryover);
        }
    }

    /// Ends all groups and stores their histories.
    fn end(mut self) -> M {
        self.running.values().for_each(Running::stop);
        for (cgroup, running) in std::mem::take(&mut self.running) {
            let (slot, period_ms) = (running.slot, running.settings.period_ms);
            let identity = self.machine.identity(&cgroup, period_ms);
            let finished = self.join(running);
            self.machine.release(slot);
            self.board.remove(&cgroup);
            if let Some(folder) = folder(&self.config)
                && let Err(error) = finished.carryover.history.save(&folder, &identity)
            {
                tracing::warn!(error, "a history was not stored");
            }
        }
        self.machine
    }
}
