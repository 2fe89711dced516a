//! Registers and memory of an emulated machine, where QEMU lets a plug-in read them (9.0 and
//! later): the guest's page tables.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::clock::symbol;
use crate::qemu;

/// GLib's array, of pointers or of bytes.
#[repr(C)]
struct Array {
    data: *mut u8,
    len: u32,
}

/// A register as QEMU lists it.
#[repr(C)]
struct Descriptor {
    handle: *mut c_void,
    name: *const c_char,
    feature: *const c_char,
}

type GetRegisters = unsafe extern "C" fn() -> *mut Array;
type ReadRegister = unsafe extern "C" fn(*mut c_void, *mut Array) -> c_int;
type ReadMemory = unsafe extern "C" fn(u64, *mut Array, usize) -> bool;
type NewBytes = unsafe extern "C" fn() -> *mut Array;
type SetSize = unsafe extern "C" fn(*mut Array, u32) -> *mut Array;

/// QEMU's number for the register with the root of the page tables, the same for all processors.
static ROOT: OnceLock<usize> = OnceLock::new();

/// Reads the guest's page tables.
#[derive(Debug)]
pub struct Registers {
    read_register: ReadRegister,
    read_memory: ReadMemory,
    set_size: SetSize,
    /// GLib's array for answers.
    bytes: *mut Array,
}

/// Address bits of a page-table entry: bits 12 to 51.
const ADDRESS: u64 = 0x000F_FFFF_FFFF_F000;
const PRESENT: u64 = 1;
/// The entry maps a page larger than the smallest.
const LARGE: u64 = 1 << 7;

impl Registers {
    /// Finds QEMU's functions, and registers for the list of a processor's registers.
    pub fn find(id: qemu::Id) -> Result<Self, String> {
        use std::mem::transmute;
        // SAFETY: functions of QEMU (9.0 to 10.0) and GLib with these signatures; the array is GLib's
        // own and never freed; the callback lives as long as QEMU.
        unsafe {
            let new_bytes = transmute::<*mut c_void, NewBytes>(symbol(c"g_byte_array_new")?);
            let found = Registers {
                read_register: transmute::<*mut c_void, ReadRegister>(symbol(
                    c"qemu_plugin_read_register",
                )?),
                read_memory: transmute::<*mut c_void, ReadMemory>(symbol(
                    c"qemu_plugin_read_memory_vaddr",
                )?),
                set_size: transmute::<*mut c_void, SetSize>(symbol(c"g_byte_array_set_size")?),
                bytes: new_bytes(),
            };
            symbol(c"qemu_plugin_get_registers")?;
            qemu::qemu_plugin_register_vcpu_init_cb(id, on_processor);
            Ok(found)
        }
    }

    fn take<const N: usize>(&self) -> Option<[u8; N]> {
        // SAFETY: GLib's array has so many bytes.
        let bytes = unsafe {
            let array = &*self.bytes;
            std::slice::from_raw_parts(array.data, array.len as usize)
        };
        bytes.try_into().ok()
    }

    /// The running processor's root of page tables. In a callback of that processor only.
    fn root(&self) -> Option<u64> {
        let handle = *ROOT.get()? as *mut c_void;
        // SAFETY: a register that QEMU listed, in a callback of a processor (the caller's promise).
        unsafe {
            (self.set_size)(self.bytes, 0);
            (self.read_register)(handle, self.bytes);
        }
        Some(u64::from_le_bytes(self.take()?) & ADDRESS)
    }

    fn entry(&self, address: u64) -> Option<u64> {
        // SAFETY: in a callback of a processor (the caller's promise); the answer is as long.
        let read = unsafe { (self.read_memory)(address, self.bytes, 8) };
        if read { Some(u64::from_le_bytes(self.take()?)) } else { None }
    }

    /// The physical addresses of the page-table pages that lead to an address, from the leaf's
    /// upwards, and the level of the leaf. `direct_map`: start of the kernel's direct map. `None`
    /// where no page is mapped. In a callback of the processor that made the access only.
    pub fn walk(&self, address: u64, direct_map: u64, levels: usize) -> Option<([u64; 5], usize)> {
        let mut tables = [0; 5];
        let mut table = self.root()?;
        for level in (0..levels.min(5)).rev() {
            tables[level] = table;
            let index = address >> (12 + 9 * level) & 511;
            let entry = self.entry(direct_map.wrapping_add(table + 8 * index))?;
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 0 || (entry & LARGE != 0 && level < 3) {
                return Some((tables, level));
            }
            table = entry & ADDRESS;
        }
        None
    }
}

extern "C" fn on_processor(_id: qemu::Id, _index: u32) {
    let Ok(list) = symbol(c"qemu_plugin_get_registers") else { return };
    // SAFETY: QEMU's function, called where it has to be: when a processor begins. The list's entries
    // and their names live as long as it does, which is never freed.
    unsafe {
        let list = std::mem::transmute::<*mut c_void, GetRegisters>(list)();
        if list.is_null() {
            return;
        }
        let registers = std::slice::from_raw_parts(
            (*list).data.cast_const().cast::<Descriptor>(),
            (*list).len as usize,
        );
        let root = registers.iter().find(|register| CStr::from_ptr(register.name) == c"cr3");
        if let Some(root) = root {
            let _ = ROOT.set(root.handle as usize);
        }
    }
}
