//! A process of the system: its id, which the system gives to another once it has ended, and the
//! time of its start, which no other process of that id has.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// A process, whatever becomes of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SystemProcess {
    /// Its id.
    pub id: u32,
    /// When it started, in clock ticks since the system's start; 0 when unknown.
    pub start_ticks: u64,
}

impl SystemProcess {
    /// The calling process.
    pub fn own() -> Self {
        let start_ticks = state_of("self").map_or(0, |(_, start_ticks)| start_ticks);
        SystemProcess { id: std::process::id(), start_ticks }
    }

    /// Whether it exists and is no zombie.
    pub fn is_alive(self) -> bool {
        state_of(&self.id.to_string())
            .is_some_and(|(state, start)| !matches!(state, 'Z' | 'X') && self.started_at(start))
    }

    /// Whether another process has its id.
    pub fn is_replaced(self) -> bool {
        state_of(&self.id.to_string()).is_some_and(|(_, start)| !self.started_at(start))
    }

    /// Sends it a signal; another process that has its id gets none.
    pub fn signal(self, signal: Signal) {
        let Some(pid) = Pid::from_raw(self.id as i32) else { return };
        let descriptor = pidfd_open(pid, PidfdFlags::empty());
        // The descriptor is of the process that has the id now, whichever has it later.
        if !self.is_alive() {
            return;
        }
        let _ = match descriptor {
            Ok(descriptor) => pidfd_send_signal(descriptor, signal),
            Err(Errno::SRCH) => Ok(()),
            // A system without such descriptors.
            Err(_) => kill_process(pid, signal),
        };
    }

    fn started_at(self, start_ticks: u64) -> bool {
        [self.start_ticks, start_ticks].contains(&0) || self.start_ticks == start_ticks
    }
}

/// State and time of the start of the process with this name in `/proc`.
fn state_of(name: &str) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{name}/stat")).ok()?;
    // The program's name, in parentheses, may have spaces and parentheses of its own.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18).and_then(|field| field.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_with_the_id_of_another_is_not_that_one() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let own = SystemProcess::own();
        assert!(own.start_ticks > 0 && own.is_alive() && !own.is_replaced());
        // One that ended long ago, whose id the child has.
        let ended = SystemProcess { id: child.id(), start_ticks: 1 };
        assert!(!ended.is_alive() && ended.is_replaced());
        ended.signal(Signal::KILL);
        assert!(child.try_wait().unwrap().is_none(), "another process was killed");
        let unknown = SystemProcess { id: child.id(), start_ticks: 0 };
        assert!(unknown.is_alive() && !unknown.is_replaced());
        unknown.signal(Signal::KILL);
        assert!(!child.wait().unwrap().success());
        assert!(!unknown.is_alive());
    }
}
