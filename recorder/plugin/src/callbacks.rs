//! The functions that QEMU calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::{File, OpenOptions};
use std::sync::atomic::Ordering;

use terrace_recorder::nodes::NodeCounts;
use terrace_recorder::places::INTERFACE_MARK;
use terrace_recorder::shared::Shared;
use terrace_timed::config::ClockPlan;

use crate::nodes;
use crate::qemu::{self, Block, Id, Info, MemInfo};
use crate::system_calls;
use crate::thread::{
    COUNTED_INLINE, Process, SEVERAL_THREADS, end_all, forked, known_thread, thread,
};
use crate::timed;

/// The version of the plug-in interface, as QEMU looks for it, and words by which the number is
/// found in the file: no number suits old and new QEMUs alike, so a new one gets a copy with its
/// own number (`terrace_recorder::places::for_interface`).
#[unsafe(no_mangle)]
pub static qemu_plugin_version: Version = Version(1, INTERFACE_MARK);

/// QEMU reads the number only.
#[repr(C)]
pub struct Version(c_int, [u8; 28]);

/// Called by QEMU once, before it loads the program.
#[unsafe(no_mangle)]
pub extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let arguments = (0..argc.max(0) as usize).map(|i| {
        // SAFETY: QEMU gives `argc` arguments, each ended by a zero, that stay where they are.
        unsafe { CStr::from_ptr(*argv.add(i)) }.to_string_lossy()
    });
    // SAFETY: QEMU gives a valid description; its first field is a text ended by a zero.
    let target = unsafe { CStr::from_ptr((*info).target_name) };
    // SAFETY: as above; the interface's versions follow.
    qemu::set_interface(unsafe { (*info).interface });
    let arguments: Vec<_> = arguments.collect();
    let path = |name| arguments.iter().find_map(|a| a.strip_prefix(name)).map(str::to_owned);
    let installed = match (path("clock="), path("counts=")) {
        (Some(clock), _) => {
            let files = [path("results="), path("samples=")];
            install_clock(id, target, &clock, files, path("once=").is_some())
        }
        (_, Some(counts)) => {
            let left_out = path("after=").and_then(|n| n.parse().ok()).unwrap_or(0);
            install_counts(id, target, &counts, [path("pages="), path("apart=")], left_out)
        }
        _ if qemu::has_registers() => Err("only old QEMUs record, expected 6.0 to 8.2".to_owned()),
        _ => install(id, target, path("memory=")),
    };
    match installed {
        Ok(()) => 0,
        Err(message) => {
            eprintln!("terrace recorder: {message}");
            1
        }
    }
}

fn check(target: &CStr) -> Result<(), String> {
    if target != c"x86_64" {
        return Err(format!("the target is {target:?}, expected x86_64"));
    }
    if !qemu::knows_kinds() {
        return Err(
            "this QEMU encodes the kinds of accesses otherwise, expected 6.0 to 10.0".to_owned()
        );
    }
    Ok(())
}

/// In a whole emulated machine: counts its accesses.
fn install_counts(
    id: Id,
    target: &CStr,
    path: &str,
    files: [Option<String>; 2],
    left_out: u64,
) -> Result<(), String> {
    check(target)?;
    let file = OpenOptions::new().read(true).write(true).open(path);
    let counts = file.and_then(|f| NodeCounts::map(&f)).map_err(|e| format!("{path}: {e}"))?;
    let create = |path: String| File::create(&path).map_err(|e| format!("{path}: {e}"));
    let [pages, apart] = files.map(|path| path.map(create).transpose());
    if !nodes::begin(counts, pages?, apart?, left_out) {
        return Err(format!("{path} is not the memory of counts; start it with 'terrace lab'"));
    }
    // SAFETY: a function of QEMU with the signature that it documents.
    unsafe { qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, nodes::on_translate) };
    Ok(())
}

/// In a whole emulated machine: drives the memory clock. `once`: QEMU must not discard translated
/// code.
fn install_clock(
    id: Id,
    target: &CStr,
    path: &str,
    [results, samples]: [Option<String>; 2],
    once: bool,
) -> Result<(), String> {
    check(target)?;
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let plan = ClockPlan::from_toml(&text).map_err(|e| format!("{path}: {e}"))?;
    let results = results.ok_or("no results=PATH; start it with 'terrace lab --clock memory'")?;
    let file = OpenOptions::new().append(true).create(true).open(&results);
    let file = file.map_err(|e| format!("{results}: {e}"))?;
    timed::begin(id, plan, file, samples.map(Into::into), once)?;
    // SAFETY: a function of QEMU with the signature that it documents.
    unsafe { qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, timed::on_translate) };
    Ok(())
}

/// In the emulation of a process: records it.
fn install(id: Id, target: &CStr, memory: Option<String>) -> Result<(), String> {
    check(target)?;
    let path = memory.ok_or("no memory=PATH; start it with 'terrace record'")?;
    let file = OpenOptions::new().read(true).write(true).open(&path);
    let shared = file.and_then(|file| Shared::map(&file)).map_err(|e| format!("{path}: {e}"))?;
    if !Process::begin(shared) {
        return Err(format!(
            "{path} is not the memory of a recording; start it with 'terrace record'"
        ));
    }
    // SAFETY: functions of the C library and of QEMU with the signatures that they document;
    // the callbacks live as long as the process.
    unsafe {
        libc::pthread_atfork(None, None, Some(after_fork));
        qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
        qemu::qemu_plugin_register_vcpu_syscall_cb(id, on_system_call);
        qemu::qemu_plugin_register_vcpu_syscall_ret_cb(id, on_system_call_return);
        qemu::qemu_plugin_register_atexit_cb(id, on_exit, std::ptr::null_mut());
    }
    Ok(())
}

extern "C" fn after_fork() {
    forked();
}

extern "C" fn on_translate(_id: Id, block: *mut Block) {
    // SAFETY: QEMU's block is valid during this call, and so are its instructions; what is
    // registered is a number, not an address.
    unsafe {
        let count = qemu::qemu_plugin_tb_n_insns(block);
        let usual = Process::get().is_some_and(|process| process.is_usual);
        let on_access = if usual { on_usual_memory } else { on_memory };
        let number = |n: usize| n as *mut c_void;
        let flags = qemu::NO_REGISTERS;
        if SEVERAL_THREADS.load(Ordering::Relaxed) {
            qemu::qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, flags, number(count));
        } else {
            // No call: three instructions in the translated code, without an atomic addition. When
            // the first second thread starts, QEMU discards all translated code (`do_fork` in its
            // linux-user/syscall.c) and translates every block again.
            let counter = COUNTED_INLINE.as_ptr().cast();
            qemu::register_block_counter(block, counter, count as u64);
        }
        for i in 0..count {
            let instruction = qemu::qemu_plugin_tb_get_insn(block, i);
            let left = number(count - i);
            qemu::qemu_plugin_register_vcpu_mem_cb(
                instruction,
                on_access,
                flags,
                qemu::LOADS_AND_STORES,
                left,
            );
        }
    }
}

extern "C" fn on_block(index: c_uint, instructions: *mut c_void) {
    if let Some(thread) = thread(index) {
        thread.instructions = thread.instructions.wrapping_add(instructions as u64);
    }
}

extern "C" fn on_memory(index: c_uint, info: MemInfo, address: u64, before_end: *mut c_void) {
    if let Some(thread) = thread(index) {
        thread.access(address, qemu::size_log2(info), qemu::is_store(info), before_end as u64);
    }
}

extern "C" fn on_usual_memory(index: c_uint, info: MemInfo, address: u64, before_end: *mut c_void) {
    let Some(thread) = known_thread(index) else {
        return first_memory(index, info, address, before_end);
    };
    let (size_log2, store) = (qemu::size_log2(info), qemu::is_store(info));
    thread.access_usual(address, size_log2, store, before_end as u64);
}

/// A separate function, so that the path of each access needs no stack.
#[cold]
#[inline(never)]
extern "C" fn first_memory(index: c_uint, info: MemInfo, address: u64, before_end: *mut c_void) {
    if let Some(thread) = thread(index) {
        let (size_log2, store) = (qemu::size_log2(info), qemu::is_store(info));
        thread.access_usual(address, size_log2, store, before_end as u64);
    }
}

extern "C" fn on_system_call(
    _id: Id,
    index: c_uint,
    number: i64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    _f: u64,
    _g: u64,
    _h: u64,
) {
    system_calls::enter(index, number, [a, b, c, d, e]);
}

extern "C" fn on_system_call_return(_id: Id, index: c_uint, number: i64, result: i64) {
    system_calls::leave(index, number, result);
}

extern "C" fn on_exit(_id: Id, _data: *mut c_void) {
    end_all();
}
