//! What the service needs of a machine, as a trait: this host, or one that a test makes up.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use terrace_core::interfaces::{Mover, Tracker};
use terrace_core::page::SpaceId;
use terrace_linux::cgroup_tree::Survey;
use terrace_linux::costs::Costs;

use crate::config::Settings;
use crate::discover::Wanted;
use crate::history::Identity;
use crate::status::MachineStatus;

/// Tracker and mover of a group.
pub struct Attached {
    /// What to give back to [`Machine::release`].
    pub slot: u32,
    /// Sees its pages.
    pub tracker: Box<dyn Tracker + Send>,
    /// Moves them.
    pub mover: Box<dyn Mover + Send>,
    /// What both cost.
    pub costs: Costs,
    /// Answers questions about the group from its own thread.
    pub probe: Box<dyn Probe>,
}

/// Facts about a group beside its scans.
pub trait Probe: Send {
    /// Page tables by node, in bytes; empty where they are not counted.
    fn pagetable_bytes(&mut self) -> Vec<u64>;

    /// Huge pages that khugepaged has made of the group's base pages so far; `None` where that is not
    /// counted.
    fn collapses(&mut self) -> Option<u64> {
        None
    }

    /// Time in which some task of the group waited for memory, and in which all tasks of the host did,
    /// since some moment; `None` where the kernel does not say.
    fn stalls_us(&mut self) -> Option<(u64, u64)> {
        None
    }

    /// Why the group cannot be managed as it is now, such as for its many processes; `None` where it
    /// can. Asked before each scan: a group grows after it was found.
    fn refusal(&mut self) -> Option<String> {
        None
    }

    /// The processes with these identifiers as they are now, with their start times.
    fn identity(&mut self, spaces: &[SpaceId]) -> Vec<(u32, u64)>;
}

/// A machine with groups on it.
pub trait Machine {
    /// Its control groups that have processes, in themselves or below, as far as they can be wanted.
    fn groups(&mut self, wanted: &[Wanted]) -> Result<Survey, String>;

    /// Begins to manage a group. `stop` ends it.
    fn attach(
        &mut self,
        cgroup: &str,
        settings: &Settings,
        stop: Arc<AtomicBool>,
    ) -> Result<Attached, String>;

    /// Takes back what a group had whose tracker and mover have been dropped.
    fn release(&mut self, slot: u32);

    /// What it is, with what is free now.
    fn status(&mut self) -> MachineStatus;

    /// Sees to what may change under a machine's feet, such as its guard and its nodes: called again
    /// and again. Gives why all groups have to be attached anew, if they have to.
    fn watch(&mut self) -> Option<String> {
        None
    }

    /// From now on pages are moved: changes what a dry run has left as it was.
    fn end_dry_run(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// What keeps a history from being taken for another's, the processes left out.
    fn identity(&mut self, cgroup: &str, period_ms: u64) -> Identity;
}
