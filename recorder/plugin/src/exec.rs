//! Continues a recording in a program that the process executes.
//!
//! QEMU would let the kernel execute the new program itself, which ends the recording. So before
//! that the process executes QEMU again, with the new program as its argument. Where that is
//! impossible (no such file, not x86-64), QEMU goes on as without a recorder.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::{iter, ptr};

use terrace_recorder::{libraries, program};
use terrace_recordings::reference::Event;

use crate::thread::Thread;
use crate::{maps, qemu};

/// Longest argument that Linux accepts (`MAX_ARG_STRLEN`).
const LONGEST: usize = 128 << 10;
/// Arguments, at most.
const MOST: usize = 1 << 20;
const AT_FDCWD: i32 = -100;

/// The arguments of the system call; addresses are the program's, which are this process's too.
pub struct Call {
    /// execveat's folder and flags.
    pub folder: Option<(u64, u64)>,
    /// Address of the path.
    pub path: u64,
    /// Address of the arguments.
    pub argv: u64,
    /// Address of the environment.
    pub envp: u64,
}

/// Executes the program under QEMU; returns only where that is impossible.
pub fn execute(thread: &mut Thread, call: Call) {
    let Some(prepared) = prepare(&call) else { return };
    thread.event(Event::Exec);
    maps::send(thread);
    thread.hand_over();
    thread.process().set_ended(true);
    let [argv, envp] = [&prepared.argv, &prepared.envp].map(|texts| {
        texts.iter().map(|t| t.as_ptr()).chain(iter::once(ptr::null())).collect::<Vec<_>>()
    });
    // SAFETY: a path and two lists, each text ended by a zero, each list by a null.
    unsafe { libc::execve(prepared.qemu.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    thread.process().set_ended(false);
}

struct Prepared {
    qemu: CString,
    argv: Vec<CString>,
    envp: Vec<CString>,
}

fn prepare(call: &Call) -> Option<Prepared> {
    let path = path(call)?;
    is_executable(&path)?;
    let program = program::resolve(&path).ok()?;
    let given = texts(call.argv)?;
    let (mut argv, _) = maps::arguments();
    let mut push = |text: &OsStr| argv.push(text.as_bytes().to_vec());
    let first = given.first().map_or_else(|| path.clone().into_os_string(), |a| os(a));
    push(program.before.first().unwrap_or(&first));
    push(program.path.as_os_str());
    program.before.iter().skip(1).for_each(|a| push(a));
    given.iter().skip(1).for_each(|a| push(&os(a)));
    let mut envp: Vec<_> = texts(call.envp)?.into_iter().map(CString::into_bytes).collect();
    let of_qemu = std::env::var_os(libraries::VARIABLE);
    libraries::carry_over(&mut argv, &mut envp, of_qemu.as_deref());
    let qemu = std::fs::read_link("/proc/self/exe").ok()?;
    Some(Prepared {
        qemu: CString::new(qemu.into_os_string().into_vec()).ok()?,
        argv: argv.into_iter().map(|a| CString::new(a).ok()).collect::<Option<_>>()?,
        envp: envp.into_iter().map(|e| CString::new(e).ok()).collect::<Option<_>>()?,
    })
}

fn os(text: &CStr) -> OsString {
    OsString::from_vec(text.to_bytes().to_vec())
}

fn is_executable(path: &std::path::Path) -> Option<()> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: a text ended by a zero.
    (unsafe { libc::access(path.as_ptr(), libc::X_OK) } == 0).then_some(())
}

fn path(call: &Call) -> Option<PathBuf> {
    let text = text(call.path)?;
    let path = PathBuf::from(os(&text));
    if let Some((folder, flags)) = call.folder {
        let folder = folder as i32;
        if text.is_empty() && flags & libc::AT_EMPTY_PATH as u64 != 0 {
            return std::fs::read_link(format!("/proc/self/fd/{folder}")).ok();
        }
        if folder != AT_FDCWD && path.is_relative() {
            return Some(PathBuf::from(format!("/proc/self/fd/{folder}")).join(path));
        }
    }
    // This is QEMU's file here; the program means its own.
    if path.as_os_str() == "/proc/self/exe" {
        // SAFETY: a text ended by a zero, made for the caller, or null.
        let own = unsafe {
            let own = qemu::qemu_plugin_path_to_binary();
            if own.is_null() {
                return None;
            }
            CStr::from_ptr(own)
        };
        return std::fs::canonicalize(os(own)).ok();
    }
    Some(path)
}

/// A list of strings, ended by a null. A null list is an empty one, as for Linux.
fn texts(list: u64) -> Option<Vec<CString>> {
    let mut texts = Vec::new();
    if list == 0 {
        return Some(texts);
    }
    for i in 0..MOST as u64 {
        let mut address = [0; 8];
        if read(list.checked_add(8 * i)?, &mut address) < 8 {
            return None;
        }
        match u64::from_le_bytes(address) {
            0 => return Some(texts),
            address => texts.push(text(address)?),
        }
    }
    None
}

fn text(address: u64) -> Option<CString> {
    let mut bytes = Vec::new();
    let mut piece = [0; 256];
    while bytes.len() <= LONGEST {
        let got = read(address.checked_add(bytes.len() as u64)?, &mut piece);
        if let Some(end) = piece[..got].iter().position(|b| *b == 0) {
            bytes.extend_from_slice(&piece[..end]);
            return CString::new(bytes).ok();
        }
        if got == 0 {
            return None;
        }
        bytes.extend_from_slice(&piece[..got]);
    }
    None
}

/// Reads the program's memory as far as it is mapped: a bad address is the program's error, and the
/// kernel's to report.
fn read(address: u64, into: &mut [u8]) -> usize {
    const PAGE: u64 = 4096;
    let length = into.len().min((PAGE - address % PAGE) as usize);
    let copy = |address: u64, into: &mut [u8]| {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: into.len() };
        // SAFETY: the kernel writes into `into` only, and checks the other address itself.
        let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
        usize::try_from(got).unwrap_or(0)
    };
    let got = copy(address, &mut into[..length]);
    if got == length && length < into.len() {
        return got + copy(address + length as u64, &mut into[length..]);
    }
    got
}
