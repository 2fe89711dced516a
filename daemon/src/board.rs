//! The published status: the service writes it, the control socket and the metrics read it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use terrace_linux::roots::Roots;

use crate::group::Shared;
use crate::status::Status;

/// The published status.
#[derive(Debug)]
pub struct Board {
    began: Instant,
    /// Everything but the groups.
    frame: Mutex<Status>,
    /// Groups by control group.
    groups: Mutex<BTreeMap<String, Arc<Shared>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Board {
    fn default() -> Self {
        Board { began: Instant::now(), frame: Default::default(), groups: Default::default() }
    }
}

impl Board {
    /// Everything but the groups, for writing.
    pub fn frame(&self) -> MutexGuard<'_, Status> {
        lock(&self.frame)
    }

    /// Adds a group.
    pub fn add(&self, cgroup: &str, group: Arc<Shared>) {
        lock(&self.groups).insert(cgroup.to_owned(), group);
    }

    /// Removes a group.
    pub fn remove(&self, cgroup: &str) {
        lock(&self.groups).remove(cgroup);
    }

    /// The whole status.
    pub fn status(&self) -> Status {
        let mut status = self.frame().clone();
        let groups: Vec<Arc<Shared>> = lock(&self.groups).values().cloned().collect();
        status.groups = groups.iter().map(|g| g.view().status.clone()).collect();
        for group in &mut status.groups {
            group.freed_fast_bytes = group.freed_bytes();
            group.why_not_better = group.why_not(&status.machine);
        }
        status.uptime_s = self.began.elapsed().as_secs_f64();
        status.pid = std::process::id();
        status.version = terrace_identity::build().description.to_owned();
        (status.cpu_ns, status.rss_bytes) = own_costs(&Roots::default());
        status
    }

    /// A group by its name, its control group, or the end of either where that is unique.
    pub fn group(&self, name: &str) -> Result<Arc<Shared>, String> {
        let groups = lock(&self.groups);
        let named: Vec<(String, &Arc<Shared>)> =
            groups.values().map(|g| (g.view().status.name.clone(), g)).collect();
        if let Some(group) = groups.get(name) {
            return Ok(Arc::clone(group));
        }
        if let Some((_, group)) = named.iter().find(|(n, _)| n == name) {
            return Ok(Arc::clone(group));
        }
        let ends: Vec<_> = named.iter().filter(|(n, _)| n.ends_with(name)).collect();
        match ends.as_slice() {
            [(_, group)] if !name.is_empty() => Ok(Arc::clone(group)),
            _ => {
                let names: Vec<&str> = named.iter().map(|(n, _)| n.as_str()).take(20).collect();
                Err(format!(
                    "no group is named '{}'; expected one of: {}",
                    crate::discover::shown(name),
                    if names.is_empty() { "(none is managed)".into() } else { names.join(", ") }
                ))
            }
        }
    }
}

/// Processor time and memory of this process.
fn own_costs(roots: &Roots) -> (u64, u64) {
    let text = |name: &str| {
        let path = roots.proc.join("self").join(name);
        terrace_linux::files::read(&path).ok().flatten().unwrap_or_default()
    };
    let pages: u64 =
        text("statm").split_whitespace().nth(1).and_then(|w| w.parse().ok()).unwrap_or(0);
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu_ns = (time.tv_sec as u64).saturating_mul(1_000_000_000) + time.tv_nsec as u64;
    (cpu_ns, pages * 4096)
}
