//! This host as a machine for the engine: opened once, groups attached, everything as it was at
//! the end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use terrace_core::page::PageSize;

use crate::backend::{Backend, Mechanisms};
use crate::cgroup::Cgroup;
use crate::conflicts::{self, Conflict, Intent, PagemapScan, Severity};
use crate::costs::Costs;
use crate::files::FileError;
use crate::filler;
use crate::flush::FlushBudget;
use crate::group_layout::{LayoutReader, Source};
use crate::guard::GuardCommand;
use crate::kernel::PageKernel;
use crate::mover::{MoverOptions, PageMover, SharedTrackerState, TierNodes};
use crate::numa;
use crate::page_tables::{self, Inherited, TableKeeper};
use crate::ranges::{PagemapFolios, RangeKernel};
use crate::roots::Roots;
use crate::samples::SampleError;
use crate::samples::hub::{SampleCounts, SampleHub};
use crate::sampling::Samples;
use crate::session::{GuardHealth, Session, SessionError};
use crate::shared_memory::SharedMemory;
use crate::tiermem::{TablePolicy, TiermemError};
use crate::tiers::{self, Topology};
use crate::tracker::{GroupTracker, TrackerOptions};

/// How to open a host.
#[derive(Debug, Clone)]
pub struct HostOptions {
    /// Where the kernel's files stand.
    pub roots: Roots,
    /// How to start the guard. Without one, a run that is killed is taken back at the next start.
    pub guard: Option<GuardCommand>,
    /// What the groups will be, as far as conflicts hang on it.
    pub intent: Intent,
    /// Leave to change settings that conflict, and take them back at the end. Without it such a
    /// setting is a reason not to start.
    pub fix_conflicts: bool,
    /// Start although settings conflict that were not changed.
    pub accept_conflicts: bool,
    /// Nothing on the host is changed but what only tracking itself needs: DAMON's threads and
    /// trace instances. Settings that conflict stay as they are, whatever leave there is.
    pub dry_run: bool,
    /// Groups are tracked and never moved: one tier is enough, and of the settings that conflict only
    /// those are changed that keep anybody from tracking.
    pub observe_only: bool,
    /// Fast and slow nodes, where the firmware says nothing or the wrong thing.
    pub nodes: Option<(Vec<u32>, Vec<u32>)>,
    /// By what pages are tracked and moved.
    pub mechanisms: Mechanisms,
    /// Of the accesses that miss the last level, one in so many is sampled where the host can; 0: none.
    pub sample_reads: u32,
    /// Most groups at the same time; with DAMON each has a kernel thread kept ready.
    pub max_groups: u32,
    /// Ends all groups when it is set: see [`crate::signals::stop_flag`].
    pub stop: Option<Arc<AtomicBool>>,
}

impl HostOptions {
    /// Options for a run with these page sizes; settings are not changed.
    pub fn new(intent: Intent) -> Self {
        HostOptions {
            roots: Roots::default(),
            guard: None,
            intent,
            fix_conflicts: false,
            accept_conflicts: false,
            dry_run: false,
            observe_only: false,
            nodes: None,
            mechanisms: Mechanisms::Auto,
            sample_reads: 0,
            max_groups: 8,
            stop: None,
        }
    }
}

/// A group to be managed.
#[derive(Debug, Clone)]
pub struct GroupSpec {
    /// Its name, for messages.
    pub name: String,
    /// Its processes.
    pub source: Source,
    /// Size of the pages that are tracked and moved; memory in pages of the other size is counted
    /// as untracked.
    pub page_size: PageSize,
    /// Ranges of 2 MB are tracked and moved as pages, whatever maps them: huge or base pages.
    /// `page_size` is 2 MB then.
    pub by_range: bool,
    /// Length of a period.
    pub period_ms: u64,
    /// Most pages that are tracked. A region of DAMON costs 3.4 KB of kernel memory and about a
    /// millisecond to set up.
    pub cap_pages: u64,
    /// Time that one call that moves pages should not exceed.
    pub stall_ms: u64,
    /// Share of a period that its moves may take.
    pub move_share: f64,
    /// Whether the group goes on when it has no process.
    pub keep_empty: bool,
    /// Whether translations are flushed as each period begins: costs one move of a base page for
    /// each process, and without it pages that stay in a TLB look unused. All groups together make
    /// a bounded number of flushes a second.
    pub flush: bool,
    /// How often a page's accessed bit is sampled in a period.
    pub samples: Samples,
    /// Where its page tables go, on the Terrace kernel.
    pub tables: Option<TablePolicy>,
    /// Ends this group alone when it is set; the host's own flag where it is `None`.
    pub stop: Option<Arc<AtomicBool>>,
}

impl GroupSpec {
    /// A group with the usual bounds: 65,536 huge pages (128 GB) or 16,384 base pages (64 MB),
    /// stalls of 20 ms, half of the period for moves.
    pub fn new(name: &str, source: Source, page_size: PageSize, period_ms: u64) -> Self {
        let cap_pages = match page_size {
            PageSize::Huge => 65_536,
            PageSize::Base => 16_384,
        };
        GroupSpec {
            name: name.to_owned(),
            source,
            page_size,
            by_range: false,
            period_ms,
            cap_pages,
            stall_ms: 20,
            move_share: 0.5,
            keep_empty: false,
            flush: true,
            samples: Samples::One,
            tables: None,
            stop: None,
        }
    }
}

/// A managed group. Tracker and mover may go to a thread of their own.
pub struct AttachedGroup {
    /// Its name.
    pub name: String,
    /// Its place among the groups, for [`Host::release`].
    pub slot: u32,
    /// Sees its pages.
    pub tracker: GroupTracker,
    /// Moves them.
    pub mover: PageMover,
    /// What both cost.
    pub costs: Costs,
}

/// Why a host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Something stands in the way. All of it, in one line.
    #[error("{}", one_line(.0))]
    Conflicts(Vec<Conflict>),
    /// The host could not be had or changed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A kernel file could not be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The nodes that were given are not there.
    #[error("{0}")]
    Nodes(String),
    /// The mechanisms that were asked for are not there.
    #[error(transparent)]
    Mechanisms(#[from] TiermemError),
    /// Reads cannot be sampled here.
    #[error("sample_reads: {0}; expected 0 here, or a host that samples ('terrace signals')")]
    Samples(#[from] SampleError),
    /// A group cannot be managed.
    #[error("group '{name}': {message}")]
    Group {
        /// Its name.
        name: String,
        /// What was got, what was expected, what to do.
        message: String,
    },
    /// Something could not be put back; it stays in the journal.
    #[error("not restored: {0}; the next start or 'terrace restore' tries again")]
    Restore(FileError),
}

impl HostError {
    /// Whether a new start fails likewise until somebody changes the configuration or the host.
    /// Another run or another user of DAMON may go away by itself.
    pub fn is_permanent(&self) -> bool {
        match self {
            HostError::Conflicts(conflicts) => conflicts.iter().any(|c| c.name != "damon_user"),
            HostError::Nodes(_)
            | HostError::Mechanisms(_)
            | HostError::Samples(_)
            | HostError::Group { .. } => true,
            HostError::Session(_) | HostError::File(_) | HostError::Restore(_) => false,
        }
    }
}

/// Changes what conflicts, until the end of the run.
pub(crate) fn fix(session: &Session, conflicts: &[Conflict]) -> Result<(), HostError> {
    for conflict in conflicts {
        if let Severity::Fixable(fix) = &conflict.severity {
            tracing::info!(conflict = %conflict.found, "changed until the end of the run");
            fix.apply(session)?;
        }
    }
    Ok(())
}

fn one_line(conflicts: &[Conflict]) -> String {
    conflicts.iter().map(Conflict::to_string).collect::<Vec<_>>().join("; ")
}

/// This host.
pub struct Host {
    options: HostOptions,
    topology: Topology,
    backend: Backend,
    conflicts: Vec<Conflict>,
    session: Arc<Session>,
    /// For each kernel thread, whether a group has it.
    slots: Vec<bool>,
    /// Flushes that all groups together may make.
    flushes: FlushBudget,
    /// Samples of reads, where they are wanted.
    samples: Option<Arc<SampleHub>>,
    /// Memory that several groups map.
    shared_memory: Arc<SharedMemory>,
    /// Whether what groups share was taken and set.
    taken: bool,
}

impl Host {
    /// Finds out what this host is and what stands in the way, without changing anything.
    pub fn inspect(options: &HostOptions) -> Result<(Topology, Vec<Conflict>), HostError> {
        Self::examine(options, &Backend::find(&options.roots, options.mechanisms)?)
    }

    fn examine(
        options: &HostOptions,
        backend: &Backend,
    ) -> Result<(Topology, Vec<Conflict>), HostError> {
        let roots = &options.roots;
        let topology = match &options.nodes {
            Some((fast, slow)) => tiers::given(roots, fast, slow).map_err(HostError::Nodes)?,
            None => tiers::discover(roots)?,
        };
        let probe = PagemapScan::probe(roots);
        let mut conflicts = conflicts::find(roots, &topology, options.intent, probe)?;
        if options.observe_only {
            conflicts.retain(Conflict::concerns_tracking);
        }
        Ok((topology, backend.conflicts_among(conflicts)))
    }

    /// Opens the host: what an earlier run left behind is taken back, conflicts are found and
    /// fixed if there is leave to, and nothing is changed when one remains.
    pub fn open(options: HostOptions) -> Result<Self, HostError> {
        let lacking = conflicts::privileges(&options.roots)?;
        if lacking.iter().any(|c| c.severity == Severity::Fatal) {
            return Err(HostError::Conflicts(lacking));
        }
        let session = Arc::new(Session::open(&options.roots, options.guard.clone())?);
        let backend = Backend::find(&options.roots, options.mechanisms)?;
        let (topology, conflicts) = Self::examine(&options, &backend)?;
        let fatal: Vec<Conflict> =
            conflicts.iter().filter(|c| c.severity == Severity::Fatal).cloned().collect();
        if !fatal.is_empty() {
            return Err(HostError::Conflicts(fatal));
        }
        let fixable: Vec<&Conflict> =
            conflicts.iter().filter(|c| matches!(c.severity, Severity::Fixable(_))).collect();
        if options.dry_run {
            let needed: Vec<Conflict> =
                fixable.into_iter().filter(|c| c.prevents_tracking()).cloned().collect();
            if !needed.is_empty() {
                return Err(HostError::Conflicts(needed));
            }
        } else if options.fix_conflicts || options.observe_only {
            fix(&session, &conflicts)?;
        } else if !fixable.is_empty() && !options.accept_conflicts {
            return Err(HostError::Conflicts(fixable.into_iter().cloned().collect()));
        }
        let slots = vec![false; options.max_groups as usize];
        let flushes = FlushBudget::default();
        let samples = match options.sample_reads {
            0 => None,
            reads => Some(SampleHub::open(&options.roots, reads)?),
        };
        Ok(Host {
            options,
            topology,
            backend,
            conflicts,
            session,
            slots,
            flushes,
            samples,
            shared_memory: Arc::default(),
            taken: false,
        })
    }

    /// Ends a dry run: changes what the start would have changed. Nothing where it is none.
    pub fn end_dry_run(&mut self) -> Result<(), HostError> {
        if !std::mem::take(&mut self.options.dry_run) {
            return Ok(());
        }
        let changed = self.change();
        // Tried anew at the next call.
        self.options.dry_run = changed.is_err();
        changed
    }

    fn change(&mut self) -> Result<(), HostError> {
        let (_, conflicts) = Self::examine(&self.options, &self.backend)?;
        // DAMON's threads are ours by now.
        let conflicts: Vec<Conflict> =
            conflicts.into_iter().filter(|c| c.name != "damon_user").collect();
        if self.options.fix_conflicts {
            fix(&self.session, &conflicts)?;
        } else if !self.options.accept_conflicts {
            let fixable = |c: &&Conflict| matches!(c.severity, Severity::Fixable(_));
            let fixable: Vec<Conflict> = conflicts.iter().filter(fixable).cloned().collect();
            if !fixable.is_empty() {
                return Err(HostError::Conflicts(fixable));
            }
        }
        self.conflicts = conflicts;
        if self.taken {
            self.backend.set_up(&self.options.roots, &self.session)?;
        }
        Ok(())
    }

    /// Whether nothing is to be changed.
    pub fn is_dry_run(&self) -> bool {
        self.options.dry_run
    }

    /// By what pages are tracked and moved, and why, in a line.
    pub fn mechanism(&self) -> &str {
        self.backend.reason()
    }

    /// Where samples of reads come from, and what became of them; nothing where none are wanted.
    pub fn samples(&self) -> Option<(String, SampleCounts)> {
        self.samples.as_ref().map(|hub| (hub.source(), hub.counts()))
    }

    /// Whether what was changed is guarded; a guard that has died is replaced. To be called again
    /// and again.
    pub fn watch_guard(&self) -> GuardHealth {
        self.session.watch_guard()
    }

    /// Finds the tiers anew, for memory comes and goes. Where they have changed, gives how: groups
    /// that are attached have the old ones and are to be attached anew.
    pub fn follow_nodes(&mut self) -> Result<Option<String>, HostError> {
        let roots = &self.options.roots;
        let found = match &self.options.nodes {
            Some((fast, slow)) => {
                let present = numa::nodes_with_memory(roots)?;
                let of = |nodes: &[u32]| -> Vec<u32> {
                    nodes.iter().copied().filter(|n| present.contains(n)).collect()
                };
                tiers::given(roots, &of(fast), &of(slow)).or_else(|_| tiers::discover(roots))?
            }
            None => tiers::discover(roots)?,
        };
        let nodes = |t: &Topology| (t.fast_nodes(), t.slow_nodes());
        let (old, new) = (nodes(&self.topology), nodes(&found));
        self.topology = found;
        Ok((old != new).then(|| {
            format!(
                "nodes with memory have changed: fast {:?}, slow {:?}, before {:?} and {:?}",
                new.0, new.1, old.0, old.1
            )
        }))
    }

    /// The tiers.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// What was found in the way at the start, fixed or not.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// Makes a control group that lasts as long as the run.
    pub fn make_cgroup(&self, name: &Path) -> Result<Cgroup, HostError> {
        Ok(self.session.make_cgroup(name)?)
    }

    /// Takes all fast memory but this much from everybody, until the end of the run.
    pub fn leave_free(&self, bytes: u64) -> Result<(), HostError> {
        let nodes = self.topology.fast_nodes();
        filler::leave_free(&self.options.roots, &self.session, &nodes, bytes)
    }

    /// Begins to manage groups. Tracking starts with the first call of each tracker's
    /// `observe`.
    pub fn attach(&mut self, groups: Vec<GroupSpec>) -> Result<Vec<AttachedGroup>, HostError> {
        for group in &groups {
            self.check(group)?;
        }
        if !self.topology.is_tiered() && !self.options.observe_only {
            return Err(HostError::Group {
                name: groups.first().map_or_else(String::new, |g| g.name.clone()),
                message: format!(
                    "all memory nodes ({:?}) are of one tier now, expected two or more: bring the memory of the other back",
                    self.topology.fast_nodes()
                ),
            });
        }
        let wanted = self.attached() + groups.len() as u32;
        if wanted > self.options.max_groups {
            return Err(HostError::Group {
                name: groups.last().map_or_else(String::new, |g| g.name.clone()),
                message: format!(
                    "it would be group {wanted}, expected at most {}: raise max_groups",
                    self.options.max_groups
                ),
            });
        }
        if self.backend.needs_damon() {
            // Each time: somebody else may have had them meanwhile.
            self.session.take_kdamonds(self.options.max_groups)?;
        }
        if !self.taken {
            if !self.options.dry_run && !self.options.observe_only {
                self.backend.set_up(&self.options.roots, &self.session)?;
            }
            self.taken = true;
        }
        let move_shared = conflicts::may_move_shared(&self.options.roots);
        let nodes =
            TierNodes { fast: self.topology.fast_nodes(), slow: self.topology.slow_nodes() };
        let mut attached = Vec::with_capacity(groups.len());
        for group in groups {
            let Some(slot) = self.slots.iter().position(|taken| !taken) else { break };
            let roots = &self.options.roots;
            let kernel = || self.backend.kernel(roots, move_shared);
            let tracker_state = SharedTrackerState::default();
            let costs = Costs::default();
            let period = Duration::from_millis(group.period_ms);
            let stop = group.stop.or_else(|| self.options.stop.clone());
            let samples = match group.samples {
                Samples::Several if group.by_range => Samples::OfParts,
                samples => samples,
            };
            let tracker = GroupTracker::new(
                roots,
                group.source,
                TrackerOptions {
                    period,
                    page_size: group.page_size,
                    by_range: group.by_range,
                    cap_pages: group.cap_pages,
                    keep_empty: group.keep_empty,
                    flush: group.flush.then(|| self.flushes.clone()),
                    samples: self.samples.as_ref().map(|hub| hub.join(slot as u32)),
                    shared_memory: self.shared_memory.join(),
                    tables: group
                        .tables
                        .zip(self.backend.device())
                        .map(|(policy, device)| TableKeeper::new(Arc::clone(device), policy)),
                    stop: stop.clone(),
                },
                self.backend.sampler(roots, &self.session, slot, period, samples),
                kernel(),
                nodes.clone(),
                Arc::clone(&tracker_state),
                costs.clone(),
            );
            let stall = Duration::from_millis(group.stall_ms);
            let bounds = MoverOptions::in_period(period, group.move_share, stall);
            let mover_kernel: Box<dyn PageKernel> = match group.by_range {
                true => Box::new(RangeKernel::new(
                    kernel(),
                    Box::new(PagemapFolios::new(roots.clone())),
                )),
                false => kernel(),
            };
            let mover = PageMover::new(
                mover_kernel,
                nodes.clone(),
                group.page_size,
                bounds,
                tracker_state,
                costs.clone(),
            )
            .stopping(stop);
            let (name, number) = (group.name, slot as u32);
            attached.push(AttachedGroup { name, slot: number, tracker, mover, costs });
            self.slots[slot] = true;
        }
        Ok(attached)
    }

    /// Lets what is started while the answer lives place its page tables so. Fails where the kernel
    /// cannot.
    pub fn tables_of_children(
        &self,
        name: &str,
        policy: TablePolicy,
    ) -> Result<Inherited, HostError> {
        let refuse = |message| HostError::Group { name: name.to_owned(), message };
        let device = self.backend.device();
        if let Some(message) = page_tables::conflict(device.map(AsRef::as_ref), policy) {
            return Err(refuse(message));
        }
        let device = device.ok_or(TiermemError::Absent)?;
        Ok(Inherited::new(Arc::clone(device), policy)?)
    }

    /// Page-table pages of a group by level, from the one that maps base pages, and by node; nothing
    /// where the kernel does not count them.
    pub fn table_pages(&self, source: &Source) -> Option<[Vec<u64>; 5]> {
        let device = self.backend.device().filter(|d| d.features().page_table_policy())?;
        Some(page_tables::count(device, &self.options.roots, source))
    }

    /// Groups that have a kernel thread.
    fn attached(&self) -> u32 {
        self.slots.iter().filter(|taken| **taken).count() as u32
    }

    /// Gives the kernel thread of a group to the next. Its tracker must have been dropped.
    pub fn release(&mut self, slot: u32) {
        if let Some(taken) = self.slots.get_mut(slot as usize) {
            *taken = false;
        }
    }

    fn check(&self, group: &GroupSpec) -> Result<(), HostError> {
        let refuse = |message: String| HostError::Group { name: group.name.clone(), message };
        if !(50..=3_600_000).contains(&group.period_ms) {
            return Err(refuse(format!(
                "a period of {} ms, expected 50 to 3600000: correct period_ms",
                group.period_ms
            )));
        }
        // DAMON keeps the regions of a process in one array of 16 bytes each, and the kernel
        // allocates no more than 4 MB at once.
        if !(1..=262_144).contains(&group.cap_pages) {
            return Err(refuse(format!(
                "at most {} pages tracked, expected 1 to 262144: correct cap_pages",
                group.cap_pages
            )));
        }
        if !(0.0..=1.0).contains(&group.move_share) {
            return Err(refuse(format!(
                "a share of {} for moves, expected 0 to 1: correct move_share",
                group.move_share
            )));
        }
        if let Some(policy) = group.tables {
            let device = self.backend.device().map(AsRef::as_ref);
            if let Some(message) = page_tables::conflict(device, policy) {
                return Err(refuse(message));
            }
        }
        let roots = &self.options.roots;
        match &group.source {
            Source::Cgroup(path) => {
                let cgroup = Cgroup::new(roots, path);
                if !cgroup.exists() {
                    return Err(refuse(format!(
                        "{} does not exist, expected a control group of version 2: create it or correct its name",
                        cgroup.path().display()
                    )));
                }
            }
            Source::Pids(pids) => {
                let source = group.source.clone();
                let mut layout_reader =
                    LayoutReader::new(roots.clone(), source, group.page_size, 1);
                if layout_reader.processes()?.is_empty() && !group.keep_empty {
                    return Err(refuse(format!(
                        "none of the processes {pids:?} lives, expected at least one: correct the list"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Ends the run: everything is put back. Trackers must have been dropped; without this call
    /// the host is put back when the last of them and the host itself are dropped.
    pub fn close(self) -> Result<(), HostError> {
        match self.session.restore().into_iter().next() {
            Some(error) => Err(HostError::Restore(error)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
