//! This host as a machine for the engine: opened once, groups attached, everything restored at the
//! end.

mod attach;
mod options;

use std::path::Path;
use std::sync::Arc;

use crate::backend::Backend;
use crate::cgroup::Cgroup;
use crate::conflicts::{self, Conflict, Intent, PagemapScan, Severity};
use crate::files::FileError;
use crate::filler;
use crate::flush::FlushBudget;
use crate::free_lists::FreeLists;
use crate::group_layout::Source;
pub use crate::host::options::{AttachedGroup, GroupSpec, HostOptions, MOST_PAGES};
use crate::page_tables::{self, Inherited};
use crate::samples::SampleError;
use crate::session::{GuardHealth, Session, SessionError};
use crate::shared_memory::SharedMemory;
use crate::signals::{self, OpenSignals, Opening, SIGNALS, SignalReport};
use crate::tiermem::{TablePolicy, TiermemError};
use crate::tiers::{self, Topology};

/// Why a host cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Conflicts, all in one line.
    #[error("{}", one_line(.0))]
    Conflicts(Vec<Conflict>),
    /// The session could not be opened, or a change failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A kernel file could not be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Given nodes do not exist.
    #[error("{0}")]
    Nodes(String),
    /// Requested mechanisms are missing.
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
    /// A setting could not be restored; it stays in the journal.
    #[error("not restored: {0}; the next start or 'terrace restore' tries again")]
    Restore(FileError),
}

impl HostError {
    /// Whether a new start fails likewise until the configuration or the host is changed. Another
    /// run, or another user of DAMON, may end by itself.
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

/// Removes conflicts, until the end of the run.
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
    /// For each kernel thread, whether a group uses it.
    slots: Vec<bool>,
    /// Flushes shared by all groups.
    flushes: FlushBudget,
    /// The processors' lists of free pages, shared by all groups.
    free_lists: FreeLists,
    /// Signals beside accessed bits, those that are wanted and can be had.
    signals: OpenSignals,
    /// Memory that several groups map.
    shared_memory: Arc<SharedMemory>,
    /// Whether the kernel threads were taken and the settings of the mechanisms made.
    taken: bool,
}

impl Host {
    /// Finds tiers and conflicts of this host, without changing anything.
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

    /// Opens the host: restores what an earlier run left changed, finds conflicts and fixes them if
    /// permitted; changes nothing if one remains.
    pub fn open(options: HostOptions) -> Result<Self, HostError> {
        let lacking = conflicts::privileges(&options.roots)?;
        if lacking.iter().any(|c| c.severity == Severity::Fatal) {
            return Err(HostError::Conflicts(lacking));
        }
        let session = Arc::new(Session::open(&options.roots, options.guard.clone())?);
        let backend = Backend::find(&options.roots, options.mechanisms)?;
        let (topology, conflicts) = Self::examine(&options, &backend)?;
        let has_leave = Self::judge(&options, &conflicts)?;
        // Before anything is changed: a host that cannot have a signal keeps its settings.
        let opening = Opening { options: &options, session: &session, topology: &topology };
        let signals = signals::open(&opening)?;
        if has_leave {
            fix(&session, &conflicts)?;
        }
        let slots = vec![false; options.max_groups as usize];
        let flushes = FlushBudget::default();
        let free_lists = FreeLists::new(&options.roots, Arc::clone(&session));
        Ok(Host {
            options,
            topology,
            backend,
            conflicts,
            session,
            slots,
            flushes,
            free_lists,
            signals,
            shared_memory: Arc::default(),
            taken: false,
        })
    }

    /// Refuses what [`Self::open`] would refuse of a host with these conflicts, without changing
    /// anything.
    pub fn check_start(options: &HostOptions, conflicts: &[Conflict]) -> Result<(), HostError> {
        Self::judge(options, conflicts)?;
        signals::check(options)
    }

    /// Whether the conflicts that can be fixed are to be fixed. An error if one remains that prevents
    /// the run.
    fn judge(options: &HostOptions, conflicts: &[Conflict]) -> Result<bool, HostError> {
        let refuse_any = |is_refused: &dyn Fn(&Conflict) -> bool| {
            let refused: Vec<Conflict> =
                conflicts.iter().filter(|c| is_refused(c)).cloned().collect();
            match refused.is_empty() {
                true => Ok(()),
                false => Err(HostError::Conflicts(refused)),
            }
        };
        let is_fixable = |c: &Conflict| matches!(c.severity, Severity::Fixable(_));
        refuse_any(&|c| c.severity == Severity::Fatal)?;
        if options.dry_run {
            refuse_any(&|c| is_fixable(c) && c.prevents_tracking())?;
            return Ok(false);
        }
        let has_leave = options.fix_conflicts || options.observe_only;
        refuse_any(&|c| is_fixable(c) && !has_leave && !options.accept_conflicts)?;
        Ok(has_leave)
    }

    /// Ends a dry run: makes the changes that it omitted, and opens the signals that need some, for
    /// groups that are attached from now on. Without effect if there is none.
    pub fn end_dry_run(&mut self) -> Result<(), HostError> {
        if !std::mem::take(&mut self.options.dry_run) {
            return Ok(());
        }
        let changed = self.change();
        // Tried again at the next call.
        self.options.dry_run = changed.is_err();
        changed
    }

    /// Groups are of other pages from now on: of what conflicts with that, and did not with the pages
    /// before, fixes what it may. Everything else is as it was, also on an error.
    pub fn intend(&mut self, intent: Intent) -> Result<(), HostError> {
        if intent == self.options.intent {
            return Ok(());
        }
        let (_, old) = Self::examine(&self.options, &self.backend)?;
        let before = std::mem::replace(&mut self.options.intent, intent);
        let settled = Self::examine(&self.options, &self.backend).and_then(|(_, mut new)| {
            new.retain(|c| old.iter().all(|o| o.name != c.name));
            self.settle(&new)?;
            self.conflicts.extend(new);
            Ok(())
        });
        if settled.is_err() {
            self.options.intent = before;
        }
        settled
    }

    /// Fixes conflicts of a host that is open, if permitted; changes nothing if one remains.
    fn settle(&self, found: &[Conflict]) -> Result<(), HostError> {
        let is_refused = |c: &&Conflict| match c.severity {
            Severity::Fatal => true,
            Severity::Fixable(_) => {
                let is_left = self.options.accept_conflicts || self.options.dry_run;
                !self.options.fix_conflicts && !is_left
            }
            Severity::Warning => false,
        };
        let refused: Vec<Conflict> = found.iter().filter(is_refused).cloned().collect();
        if !refused.is_empty() {
            return Err(HostError::Conflicts(refused));
        }
        match self.options.fix_conflicts && !self.options.dry_run {
            true => fix(&self.session, found),
            false => Ok(()),
        }
    }

    fn change(&mut self) -> Result<(), HostError> {
        let (_, conflicts) = Self::examine(&self.options, &self.backend)?;
        // DAMON's threads are ours by now.
        let conflicts: Vec<Conflict> =
            conflicts.into_iter().filter(|c| c.name != "damon_user").collect();
        self.settle(&conflicts)?;
        self.conflicts = conflicts;
        if self.taken {
            self.backend.set_up(&self.options.roots, &self.session)?;
        }
        let (options, session, topology) = (&self.options, &self.session, &self.topology);
        let opening = Opening { options, session, topology };
        self.signals = signals::open_missing(SIGNALS, &opening, &self.signals)?;
        Ok(())
    }

    /// Whether nothing is to be changed.
    pub fn is_dry_run(&self) -> bool {
        self.options.dry_run
    }

    /// The mechanism of tracking and migration, and why, in a line.
    pub fn mechanism(&self) -> &str {
        self.backend.reason()
    }

    /// Whether a sample of a range is of one of its pages, and not of all: as DAMON samples.
    pub fn samples_parts(&self) -> bool {
        self.backend.needs_damon()
    }

    /// What became of the signals beside accessed bits.
    pub fn signals(&self) -> Vec<SignalReport> {
        self.signals.iter().map(|(_, signal)| signal.report()).collect()
    }

    /// Whether changes are guarded; a guard that has died is replaced. To be called repeatedly.
    pub fn watch_guard(&self) -> GuardHealth {
        self.session.watch_guard()
    }

    /// Finds the tiers again, because memory can be added and removed. If they have changed,
    /// returns how: attached groups have the old tiers and must be attached again.
    pub fn follow_nodes(&mut self) -> Result<Option<String>, HostError> {
        let roots = &self.options.roots;
        let found = match &self.options.nodes {
            Some((fast, slow)) => {
                tiers::left_of_given(roots, fast, slow).map_err(HostError::Nodes)?
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

    /// Conflicts found at the start or by a new intent, fixed or not.
    pub fn conflicts(&self) -> &[Conflict] {
        &self.conflicts
    }

    /// Makes a control group that lasts as long as the run.
    pub fn make_cgroup(&self, name: &Path) -> Result<Cgroup, HostError> {
        Ok(self.session.make_cgroup(name)?)
    }

    /// Fills fast memory except for this much and the kernel's headroom, until the end of the run.
    pub fn leave_free(&self, bytes: u64) -> Result<(), HostError> {
        let nodes = self.topology.fast_nodes();
        filler::leave_free(&self.options.roots, &self.session, &nodes, bytes, true).map(drop)
    }

    /// Fills fast memory except for what is in use, the kernel's headroom and this much, as far as that is
    /// possible.
    pub fn take_rest(&self, bytes: u64) -> Result<(), HostError> {
        filler::take_rest(&self.options.roots, &self.session, &self.topology.fast_nodes(), bytes)
    }

    /// Sets the policy for page tables of processes started while the returned value lives. Fails
    /// where the kernel cannot.
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

    /// Page-table pages of a group by level, from the one that maps base pages, and by node; `None`
    /// where the kernel does not count them.
    pub fn table_pages(&self, source: &Source) -> Option<[Vec<u64>; 5]> {
        let device = self.backend.device().filter(|d| d.features().page_table_policy())?;
        Some(page_tables::count(device, &self.options.roots, source))
    }

    /// Ends the run and restores everything. Trackers must have been dropped; without this call the
    /// host is restored when the last of them and the host itself are dropped.
    pub fn close(self) -> Result<(), HostError> {
        match self.session.restore().into_iter().next() {
            Some(error) => Err(HostError::Restore(error)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
