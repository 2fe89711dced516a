//! Starts a child that dies with its parent and inherits chosen file descriptors. This file owns
//! the crate's only `unsafe`.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Makes the kernel kill a command's child when the thread that starts it ends (for whatever
/// reason, `SIGKILL` included), and keeps `inherited` open under the same numbers.
pub(crate) fn bind_to_parent(command: &mut Command, inherited: Vec<OwnedFd>) {
    let parent = getpid();
    let child_setup = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the call above; then no signal comes.
        if getppid() != Some(parent) {
            return Err(std::io::ErrorKind::Other.into());
        }
        for fd in &inherited {
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe things may be done. The closure makes
    // three kinds of system calls through rustix's thin wrappers (prctl, getppid, fcntl), takes
    // no lock and allocates nothing: both error values are plain integers.
    unsafe { command.pre_exec(child_setup) };
}
