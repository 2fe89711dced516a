//! Stored histories of groups that are gone: they are removed, and the folder has those of the groups
//! that are managed.

use std::path::PathBuf;

use crate::config::Config;
use crate::history::History;
use crate::machine::Machine;

use super::Service;

impl<M: Machine> Service<M> {
    /// Its processes have gone: nothing known of it is valid any more.
    pub(super) fn forget(&mut self, cgroup: &str) {
        self.failures.forget(cgroup);
        self.forget_history(cgroup);
    }

    fn forget_history(&mut self, cgroup: &str) {
        self.targets.remove(cgroup);
        if let Some(folder) = folder(&self.config) {
            History::forget(&folder, cgroup);
        }
    }

    /// Of the groups that are to start anew, drops those that have no processes any more. Once for
    /// each state folder, drops the histories of groups that ended while no daemon ran, or in another
    /// boot. A search that did not visit all groups does not show which are gone.
    pub(super) fn drop_gone(&mut self, populated: &[String], unvisited: usize) {
        let gone = self.waiting.keys().filter(|cgroup| !populated.contains(cgroup));
        for cgroup in gone.cloned().collect::<Vec<_>>() {
            self.waiting.remove(&cgroup);
            self.forget_history(&cgroup);
        }
        let state = folder(&self.config);
        if unvisited > 0 || state == self.swept {
            return;
        }
        if let Some(folder) = &state {
            let removed = History::sweep(folder, &self.machine.boot(), populated);
            tracing::debug!(removed, "histories of groups that are gone");
        }
        self.swept = state;
    }
}

/// The folder of histories, if they are to be stored.
pub(super) fn folder(config: &Config) -> Option<PathBuf> {
    let folder = &config.daemon.state;
    (!folder.as_os_str().is_empty()).then(|| folder.clone())
}
