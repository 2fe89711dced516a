//! Events from system calls: x86-64 numbers, as in Linux's `syscall_64.tbl`.

use std::sync::atomic::Ordering;

use terrace_recordings::reference::Event;

use crate::thread::{SEVERAL_THREADS, Thread, end_thread, thread};
use crate::{exec, maps};

/// `prctl(MARK, number)` marks a place in the recording; elsewhere Linux refuses it with EINVAL
/// and nothing happens. "TERR".
const MARK: u64 = 0x5445_5252;

const MMAP: i64 = 9;
const MPROTECT: i64 = 10;
const MUNMAP: i64 = 11;
const BRK: i64 = 12;
const RT_SIGRETURN: i64 = 15;
const MREMAP: i64 = 25;
const MADVISE: i64 = 28;
const CLONE: i64 = 56;
const FORK: i64 = 57;
const VFORK: i64 = 58;
const EXECVE: i64 = 59;
const EXIT: i64 = 60;
const PRCTL: i64 = 157;
const EXIT_GROUP: i64 = 231;
const EXECVEAT: i64 = 322;
const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_THREAD: u64 = 0x1_0000;

/// Calls that wait for others: read, poll, select, pause, nanosleep, accept, recvfrom, recvmsg,
/// wait4, rt_sigtimedwait, futex, clock_nanosleep, epoll_wait, waitid, pselect6, ppoll,
/// epoll_pwait, accept4.
const WAITING: [i64; 18] =
    [0, 7, 23, 34, 35, 43, 45, 47, 61, 128, 202, 230, 232, 247, 270, 271, 281, 288];

/// Before a call.
pub fn enter(index: u32, number: i64, arguments: [u64; 5]) {
    let Some(thread) = thread(index) else { return };
    let [a, b, c, d, e] = arguments;
    thread.arguments = [a, b, c, d];
    thread.drain();
    // Publishes the time: a thread that this call wakes or creates starts no earlier.
    thread.process().shared.publish_time(thread.time());
    match number {
        RT_SIGRETURN => thread.event(Event::SignalReturn),
        PRCTL if a == MARK => thread.event(Event::Mark { mark: b }),
        EXIT => {
            thread.event(Event::Exit { code: a, process: false });
            end_thread(index);
        }
        EXIT_GROUP => {
            thread.event(Event::Exit { code: a, process: true });
            maps::send(thread);
        }
        // Calls for which QEMU makes a thread: it treats vfork as a fork.
        CLONE if a & CLONE_VM != 0 && a & CLONE_VFORK == 0 => {
            SEVERAL_THREADS.store(true, Ordering::Relaxed);
        }
        EXECVE => exec::execute(thread, exec::Call { folder: None, path: a, argv: b, envp: c }),
        EXECVEAT => {
            let folder = Some((a, e));
            exec::execute(thread, exec::Call { folder, path: b, argv: c, envp: d });
        }
        _ => {}
    }
}

/// After a call.
pub fn leave(index: u32, number: i64, result: i64) {
    let Some(thread) = thread(index) else { return };
    if WAITING.contains(&number) {
        thread.catch_up();
    }
    if let Some(event) = event(thread, number, result) {
        thread.event(event);
    }
    maps::send_first(thread);
}

fn event(thread: &Thread, number: i64, result: i64) -> Option<Event> {
    let value = u64::try_from(result).ok()?;
    let [a, b, c, d] = thread.arguments;
    Some(match number {
        MMAP => Event::Map { address: value, length_bytes: b, protection: c, flags: d },
        MPROTECT => Event::Protect { address: a, length_bytes: b, protection: c },
        MUNMAP => Event::Unmap { address: a, length_bytes: b },
        MREMAP => {
            Event::Remap { old_address: a, old_length_bytes: b, address: value, length_bytes: c }
        }
        MADVISE => Event::Advise { address: a, length_bytes: b, advice: c },
        BRK => {
            let [start, end] = &thread.process().heap;
            let _ = start.compare_exchange(0, value, Ordering::Relaxed, Ordering::Relaxed);
            end.store(value, Ordering::Relaxed);
            Event::Break { address: value }
        }
        CLONE if value > 0 => Event::Created { system_id: value, thread: a & CLONE_THREAD != 0 },
        FORK | VFORK if value > 0 => Event::Created { system_id: value, thread: false },
        _ => return None,
    })
}
