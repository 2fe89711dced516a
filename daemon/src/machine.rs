//! The machine under the service, as a trait: this host, or one made up by a test.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use terrace_core::interfaces::{Mover, Tracker};
use terrace_core::page::SpaceId;
use terrace_linux::cgroup_tree::Survey;
use terrace_linux::costs::Costs;

use crate::config::{Config, Settings};
use crate::discover::Wanted;
use crate::history::Identity;
use crate::status::MachineStatus;

/// Tracker and mover of a group.
pub struct Attached {
    /// For [`Machine::release`].
    pub slot: u32,
    /// Scans its pages.
    pub tracker: Box<dyn Tracker + Send>,
    /// Moves them.
    pub mover: Box<dyn Mover + Send>,
    /// Costs of both.
    pub costs: Costs,
    /// Facts about the group, for its own thread.
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

    /// Total time in which some task of the group waited for memory, and in which all tasks of the
    /// host did; `None` if the kernel does not report it.
    fn stalls_us(&mut self) -> Option<(u64, u64)> {
        None
    }

    /// Why the group cannot be managed at present, such as for its many processes; `None` if it
    /// can. Checked before each scan: a group grows after it was found.
    fn refusal(&mut self) -> Option<String> {
        None
    }

    /// The processes with these identifiers at present, with their start times.
    fn identity(&mut self, spaces: &[SpaceId]) -> Vec<(u32, u64)>;
}

/// A machine with control groups.
pub trait Machine {
    /// Its control groups that have processes, in themselves or below, as far as the patterns can
    /// match them.
    fn groups(&mut self, wanted: &[Wanted]) -> Result<Survey, String>;

    /// Begins to manage a group. `stop` ends it.
    fn attach(
        &mut self,
        cgroup: &str,
        settings: &Settings,
        stop: Arc<AtomicBool>,
    ) -> Result<Attached, String>;

    /// Frees the resources of a group whose tracker and mover have been dropped.
    fn release(&mut self, slot: u32);

    /// Its description, with present amounts of free memory.
    fn status(&mut self) -> MachineStatus;

    /// Checks what may change at run time, such as its guard and its nodes; called repeatedly.
    /// Returns the reason if all groups have to be attached anew.
    fn watch(&mut self) -> Option<String> {
        None
    }

    /// Ends a dry run: makes the changes that it omitted.
    fn end_dry_run(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Makes the changes that groups of a new configuration need. What prevents them is in words.
    fn prepare(&mut self, _config: &Config) -> Result<(), String> {
        Ok(())
    }

    /// The present boot, which addresses of processes are valid in.
    fn boot(&mut self) -> String;

    /// Identifies a history, without its processes.
    fn identity(&mut self, cgroup: &str, period_ms: u64) -> Identity;
}
