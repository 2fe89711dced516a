//! What the kernel of a timed machine runs for: reports where its functions begin, return and switch
//! between tasks.

use std::ffi::{c_uint, c_void};

use terrace_timed::causes::{self, Addresses, Cause, Role, Switch};

use crate::qemu::{self, MemInfo};
use crate::timed::with;

/// Registers for what a block of the kernel does to the cause of its time: the first push of a
/// function, returns, and a switch between tasks.
///
/// # Safety
/// While QEMU translates the block.
pub(crate) unsafe fn follow(
    addresses: &Addresses,
    block: *mut qemu::Block,
    start: u64,
    code: &[([u8; 16], usize)],
    role: Role,
) {
    let register = |at: usize, call: qemu::OnMemory, data: usize| {
        let (flags, kinds) = (qemu::NO_REGISTERS, qemu::LOADS_AND_STORES);
        // SAFETY: QEMU's block is valid (the caller's promise); what is registered is a number.
        unsafe {
            let instruction = qemu::qemu_plugin_tb_get_insn(block, at);
            let data = data as *mut c_void;
            qemu::qemu_plugin_register_vcpu_mem_cb(instruction, call, flags, kinds, data);
        }
    };
    if let Role::Function(cause) = role {
        let bytes = code.iter().map(|(bytes, size)| &bytes[..*size]);
        if let Some(push) = causes::first_push(bytes) {
            register(push, on_call, cause as usize);
        }
    }
    let mut address = start;
    for (at, (bytes, size)) in code.iter().enumerate() {
        let bytes = &bytes[..*size];
        if causes::is_return(bytes) {
            register(at, on_return, 0);
        }
        match addresses.switch(address, bytes) {
            Some(Switch::From) => register(at, on_switch, 0),
            Some(Switch::To) => register(at, on_switch, 1),
            None => {}
        }
        address += *size as u64;
    }
}

extern "C" fn on_call(index: c_uint, _info: MemInfo, address: u64, cause: *mut c_void) {
    let Some(cause) = Cause::ALL.get(cause as usize) else { return };
    with(index, |machine, _, cpu| machine.kernel_calls(cpu, *cause, address));
}

extern "C" fn on_return(index: c_uint, _info: MemInfo, address: u64, _data: *mut c_void) {
    with(index, |machine, _, cpu| machine.kernel_returns(cpu, address));
}

extern "C" fn on_switch(index: c_uint, _info: MemInfo, address: u64, which: *mut c_void) {
    let switch = if which as usize == 0 { Switch::From } else { Switch::To };
    with(index, |machine, _, cpu| machine.kernel_switches(cpu, switch, address));
}
