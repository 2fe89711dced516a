//! Page tables of groups on the Terrace kernel: their placement by policy, and counts.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cgroup::Cgroup;
use crate::group_layout::Source;
use crate::process::Process;
use crate::roots::Roots;
use crate::tiermem::{self, Device, Levels, TablePlace, TablePolicy, Target, TiermemError};

/// Placement of a group's page tables in a configuration (Radiant paper, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupTables {
    /// BHi: every level but the leaf in fast memory.
    Fast,
    /// Mig: leaf tables follow the data that they map.
    Follow,
    /// Both.
    FastFollow,
}

impl From<GroupTables> for TablePolicy {
    fn from(wanted: GroupTables) -> Self {
        let place = match wanted {
            GroupTables::Follow => TablePlace::Default,
            GroupTables::Fast | GroupTables::FastFollow => TablePlace::Fast,
        };
        let follow = wanted != GroupTables::Fast;
        Self { place, levels: Levels::UPPER, hard: false, follow }
    }
}

/// Why this kernel cannot place page tables so; `None` if it can.
pub(crate) fn conflict(device: Option<&Device>, policy: TablePolicy) -> Option<String> {
    let Some(device) = device else {
        return Some(
            "its page tables are to be placed, expected the Terrace kernel's /dev/tiermem: boot \
             that kernel ('make kernel'), do not ask for stock mechanisms, or leave 'tables' out"
                .to_owned(),
        );
    };
    let features = device.features();
    let lacking = |option| {
        Some(format!(
            "its page tables are to be placed, and this kernel was built without {option}: build \
             it with that, or leave 'tables' out"
        ))
    };
    match () {
        () if !features.page_table_policy() => lacking("CONFIG_TIERMEM_PT_POLICY"),
        () if policy.follow && !features.page_table_migration() => {
            lacking("CONFIG_TIERMEM_PT_MIGRATE")
        }
        () => None,
    }
}

/// Sets the policy of a group's processes, each once: their children inherit it.
#[derive(Debug)]
pub(crate) struct TableKeeper {
    device: Arc<Device>,
    policy: TablePolicy,
    set: BTreeSet<(u32, u64)>,
}

impl TableKeeper {
    pub(crate) fn new(device: Arc<Device>, policy: TablePolicy) -> Self {
        Self { device, policy, set: BTreeSet::new() }
    }

    /// Sets the policy for those of these processes that are new. One that ends meanwhile has no
    /// tables.
    pub(crate) fn keep(&mut self, processes: &[Process]) {
        let now: BTreeSet<_> = processes.iter().map(|p| (p.pid, p.start_ticks)).collect();
        for &(pid, _) in now.difference(&self.set) {
            let Ok(pidfd) = tiermem::process(pid) else { continue };
            let target = Target::Process(pidfd.as_fd());
            if let Err(error) = self.device.set_table_policy(target, self.policy) {
                tracing::warn!(pid, %error, "its page tables stay where they are");
            }
        }
        self.set = now;
    }
}

/// The policy of the calling process, until this is dropped: processes started meanwhile have it
/// from their first page table on.
pub struct Inherited {
    device: Arc<Device>,
    before: TablePolicy,
}

impl Inherited {
    pub(crate) fn new(device: Arc<Device>, policy: TablePolicy) -> Result<Self, TiermemError> {
        let before = device.table_policy(Target::This)?;
        device.set_table_policy(Target::This, policy)?;
        Ok(Self { device, before })
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        if let Err(error) = self.device.set_table_policy(Target::This, self.before) {
            tracing::warn!(%error, "this process keeps a group's policy for page tables");
        }
    }
}

/// Page-table pages of all processes of a group: by level, from the one that maps base pages, and
/// by node. A process that ends meanwhile has none.
pub(crate) fn count(device: &Device, roots: &Roots, source: &Source) -> [Vec<u64>; 5] {
    let pids = match source {
        Source::Cgroup(path) => cgroup_pids(roots, path),
        Source::Pids(pids) => pids.clone(),
    };
    let mut sum: [Vec<u64>; 5] = Default::default();
    for pid in pids {
        let Ok(pidfd) = tiermem::process(pid) else { continue };
        let Ok(counts) = device.table_pages(Target::Process(pidfd.as_fd())) else { continue };
        for (sum, level) in sum.iter_mut().zip(counts) {
            sum.resize(sum.len().max(level.len()), 0);
            sum.iter_mut().zip(level).for_each(|(sum, pages)| *sum += pages);
        }
    }
    sum
}

fn cgroup_pids(roots: &Roots, path: &Path) -> Vec<u32> {
    Cgroup::new(roots, path).processes().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_is_a_policy_of_radiants() {
        let of = |wanted| {
            let TablePolicy { place, levels, hard, follow } = TablePolicy::from(wanted);
            assert!(!hard && levels == Levels::UPPER);
            (place, follow)
        };
        assert_eq!(of(GroupTables::Fast), (TablePlace::Fast, false));
        assert_eq!(of(GroupTables::Follow), (TablePlace::Default, true));
        assert_eq!(of(GroupTables::FastFollow), (TablePlace::Fast, true));
    }

    #[test]
    fn without_the_device_it_is_refused_in_a_line() {
        let message = conflict(None, GroupTables::Fast.into()).expect("refused");
        assert!(message.contains("/dev/tiermem") && !message.contains('\n'), "{message}");
    }
}
