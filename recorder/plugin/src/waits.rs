//! Loops in which the kernel of an emulated machine waits as it boots, where the clock counts
//! instructions.
//!
//! QEMU leaves its own loop at each PAUSE, which its clock counts as a nanosecond. A kernel that waits
//! for 100 ms in such a loop, to calibrate a timer, takes near half of a boot's time for that. Here
//! PAUSE takes as long as on hardware (`pause_ns` of the machine, 40 ns), and there are as many fewer.
//! That ends with the first code of a program: from then on an instruction is a nanosecond.

use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

use crate::clock::QemuClock;
use crate::qemu::{self, Block, Id};

const PAUSE: [u8; 2] = [0xf3, 0x90];

static CLOCK: AtomicPtr<QemuClock> = AtomicPtr::new(ptr::null_mut());
/// 0 where the boot is over.
static PAUSE_NS: AtomicI64 = AtomicI64::new(0);
/// Where programs and their libraries are. The firmware and the kernel's beginning are below: there is
/// less memory.
const PROGRAMS: Range<u64> = 1 << 32..1 << 63;

/// From now on a PAUSE takes so long.
pub fn begin(clock: QemuClock, pause_ns: u64) {
    PAUSE_NS.store(pause_ns as i64, Ordering::Relaxed);
    // Never freed.
    CLOCK.store(Box::into_raw(Box::new(clock)), Ordering::Release);
}

/// Called for each block that QEMU translates, where nothing else is.
pub extern "C" fn on_translate(_id: Id, block: *mut Block) {
    // SAFETY: QEMU's block is valid during this call.
    unsafe { follow(block) };
}

/// Registers for the waits of a block.
///
/// # Safety
/// While QEMU translates the block.
pub unsafe fn follow(block: *mut Block) {
    if PAUSE_NS.load(Ordering::Relaxed) == 0 {
        return;
    }
    // SAFETY: QEMU's block, its instructions and their bytes are valid (the caller's promise); what is
    // registered has no data.
    unsafe {
        if PROGRAMS.contains(&qemu::qemu_plugin_tb_vaddr(block)) {
            return PAUSE_NS.store(0, Ordering::Relaxed);
        }
        for at in 0..qemu::qemu_plugin_tb_n_insns(block) {
            let instruction = qemu::qemu_plugin_tb_get_insn(block, at);
            let mut bytes = [0; 16];
            let size = qemu::copy_bytes(instruction, &mut bytes);
            if bytes[..size] == PAUSE {
                let (flags, none) = (qemu::NO_REGISTERS, ptr::null_mut());
                qemu::qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_pause, flags, none);
            }
        }
    }
}

/// A processor waits: QEMU leaves its loop here, and finds timers that are due.
extern "C" fn on_pause(_index: c_uint, _data: *mut c_void) {
    // SAFETY: made in `begin` and never freed.
    if let Some(clock) = unsafe { CLOCK.load(Ordering::Acquire).as_ref() } {
        clock.add(PAUSE_NS.load(Ordering::Relaxed));
    }
}
