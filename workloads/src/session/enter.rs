//! The child process's work between fork and exec: enters its control group, sets its processors, its
//! memory policy, its layout of addresses and the size of its pages. Owns the unsafe lines of the session.

use std::os::unix::process::CommandExt;
use std::process::Command;

use super::process::Place;

/// The mode of `set_mempolicy(2)` that takes nodes in turn.
const MPOL_INTERLEAVE: libc::c_long = 3;
/// The flag of `personality(2)` by which mappings are from a third of the address space upwards.
const ADDR_COMPAT_LAYOUT: libc::c_ulong = 0x020_0000;

/// Makes the child what `place` says. All before the program is executed, so that its first page is
/// already placed and counted right.
pub(super) fn before_exec(command: &mut Command, place: Place) {
    let Place { cgroup_procs, interleave_mask, apart, base_pages, cpus, .. } = place;
    let enter = move || {
        if let Some(procs) = &cgroup_procs {
            // 0 is the process that writes.
            rustix::io::write(procs, b"0")?;
        }
        if let Some(cpus) = &cpus {
            rustix::thread::sched_setaffinity(None, cpus)?;
        }
        if let Some(mask) = interleave_mask {
            // The kernel reads one bit less than it is passed.
            let bits = u64::from(u64::BITS) + 1;
            // SAFETY: the call reads one word at a valid address that outlives it.
            let answer = unsafe {
                libc::syscall(libc::SYS_set_mempolicy, MPOL_INTERLEAVE, &raw const mask, bits)
            };
            if answer != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        if apart {
            // SAFETY: the call changes a flag of this process that takes effect with exec.
            if unsafe { libc::personality(ADDR_COMPAT_LAYOUT) } < 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        if base_pages {
            let (yes, none) = (1 as libc::c_ulong, 0 as libc::c_ulong);
            // SAFETY: the call changes a flag of this process's memory that lasts beyond exec.
            if unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, yes, none, none, none) } != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes five system calls on values that it owns;
    // it neither allocates nor takes a lock, on success and on failure.
    unsafe { command.pre_exec(enter) };
}
