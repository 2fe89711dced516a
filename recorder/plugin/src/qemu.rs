//! The functions that QEMU gives its plug-ins: plug-in API version 1, as QEMU 6.0 to 8.2 have it; and
//! as much of version 4 (QEMU 9.2 and 10.0) as a whole emulated machine needs.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

/// A plug-in's number.
pub type Id = u64;
/// Kind of an access; read by [`qemu_plugin_mem_size_shift`].
pub type MemInfo = u32;

/// A block under translation.
#[repr(C)]
pub struct Block {
    _opaque: [u8; 0],
}

/// An instruction of it.
#[repr(C)]
pub struct Instruction {
    _opaque: [u8; 0],
}

/// Target of an access.
#[repr(C)]
pub struct Place {
    _opaque: [u8; 0],
}

/// Description of the emulation; its first fields.
#[repr(C)]
pub struct Info {
    /// "x86_64".
    pub target_name: *const c_char,
    /// The oldest version of the interface that QEMU accepts.
    pub oldest_interface: c_int,
    /// The version that it has.
    pub interface: c_int,
}

/// The version of the interface that QEMU has.
static INTERFACE: AtomicI32 = AtomicI32::new(1);
/// Since this version QEMU copies the bytes of an instruction.
const COPIES_BYTES: c_int = 3;

/// Stores QEMU's version of the interface.
pub fn set_interface(version: c_int) {
    INTERFACE.store(version, Ordering::Relaxed);
}

/// Whether QEMU has a version of the interface with registers and memory.
pub fn has_registers() -> bool {
    INTERFACE.load(Ordering::Relaxed) >= COPIES_BYTES
}

/// Copies an instruction's bytes; returns how many.
///
/// # Safety
/// While QEMU translates the instruction's block.
pub unsafe fn copy_bytes(instruction: *const Instruction, to: &mut [u8; 16]) -> usize {
    type Copy = unsafe extern "C" fn(*const Instruction, *mut c_void, usize) -> usize;
    // SAFETY: the instruction is valid (the caller's promise); an x86 one has at most 15 bytes. Since
    // version 3 of the interface the function of this name copies.
    unsafe {
        let size = qemu_plugin_insn_size(instruction).min(to.len());
        if has_registers() {
            let get: unsafe extern "C" fn(*const Instruction) -> *const c_void =
                qemu_plugin_insn_data;
            let copy = std::mem::transmute::<*const (), Copy>(get as *const ());
            copy(instruction, to.as_mut_ptr().cast(), size)
        } else {
            let from = qemu_plugin_insn_data(instruction).cast::<u8>();
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), size);
            size
        }
    }
}

/// Adds a number to a counter when a block begins, without a call. Version 1 of the interface only.
///
/// # Safety
/// While QEMU translates the block; the counter lives as long as QEMU.
pub unsafe fn register_block_counter(block: *mut Block, counter: *mut c_void, number: u64) {
    type Register = unsafe extern "C" fn(*mut Block, c_int, *mut c_void, u64);
    static FOUND: OnceLock<Option<Register>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let found = crate::clock::symbol(c"qemu_plugin_register_vcpu_tb_exec_inline").ok()?;
        // SAFETY: QEMU's function of this name has this signature.
        Some(unsafe { std::mem::transmute::<*mut c_void, Register>(found) })
    });
    if let Some(register) = found {
        // SAFETY: the caller's promise.
        unsafe { register(block, ADD_U64, counter, number) };
    }
}

/// The callback needs no registers.
pub const NO_REGISTERS: c_int = 0;
/// Called for loads and stores. With one kind alone, 7.2 calls for the wrong ones too.
pub const LOADS_AND_STORES: c_int = 3;

/// The only operation without a call.
const ADD_U64: c_int = 0;

/// Called with the number of the virtual CPU and what was registered.
pub type OnExecute = extern "C" fn(c_uint, *mut c_void);
/// Called with the virtual CPU, the kind, the virtual address, and what was registered.
pub type OnMemory = extern "C" fn(c_uint, MemInfo, u64, *mut c_void);

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, cb: extern "C" fn(Id, *mut Block));
    pub fn qemu_plugin_register_vcpu_tb_exec_cb(
        block: *mut Block,
        cb: OnExecute,
        flags: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_init_cb(id: Id, cb: extern "C" fn(Id, c_uint));
    pub fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    /// The virtual address of its first instruction.
    pub fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    /// Removes everything that was registered, discards translated code, and calls back while no
    /// processor runs.
    pub fn qemu_plugin_reset(id: Id, cb: extern "C" fn(Id));
    pub fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    pub fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        cb: OnMemory,
        flags: c_int,
        kinds: c_int,
        data: *mut c_void,
    );
    fn qemu_plugin_insn_data(instruction: *const Instruction) -> *const c_void;
    pub fn qemu_plugin_insn_size(instruction: *const Instruction) -> usize;
    pub fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut Instruction,
        cb: OnExecute,
        flags: c_int,
        data: *mut c_void,
    );
    /// Valid during the callback of the access; null in user emulation.
    pub fn qemu_plugin_get_hwaddr(info: MemInfo, address: u64) -> *mut Place;
    pub fn qemu_plugin_hwaddr_is_io(place: *const Place) -> bool;
    pub fn qemu_plugin_hwaddr_phys_addr(place: *const Place) -> u64;
    pub fn qemu_plugin_mem_size_shift(info: MemInfo) -> c_uint;
    pub fn qemu_plugin_mem_is_store(info: MemInfo) -> bool;
    pub fn qemu_plugin_register_vcpu_syscall_cb(
        id: Id,
        cb: extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64),
    );
    pub fn qemu_plugin_register_vcpu_syscall_ret_cb(
        id: Id,
        cb: extern "C" fn(Id, c_uint, i64, i64),
    );
    pub fn qemu_plugin_register_atexit_cb(
        id: Id,
        cb: extern "C" fn(Id, *mut c_void),
        data: *mut c_void,
    );
    pub fn qemu_plugin_path_to_binary() -> *const c_char;
}

/// log2 of an access's size. The kind is needed with each access, too often to call QEMU;
/// [`knows_kinds`] checks that QEMU agrees.
#[inline(always)]
pub fn size_log2(info: MemInfo) -> u8 {
    (info >> 4 & 7) as u8
}

/// Whether an access is a store.
#[inline(always)]
pub fn is_store(info: MemInfo) -> bool {
    info >> 17 & 1 != 0
}

/// Whether QEMU encodes kinds as the two functions above assume.
pub fn knows_kinds() -> bool {
    (0..1 << 18).step_by(1 << 4).all(|info| {
        // SAFETY: functions of the number alone.
        let (size, store) =
            unsafe { (qemu_plugin_mem_size_shift(info), qemu_plugin_mem_is_store(info)) };
        size == u32::from(size_log2(info)) && store == is_store(info)
    })
}
