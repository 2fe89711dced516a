//! The clock of QEMU: a count of instructions plus a bias, in memory for which QEMU has no
//! function.
//!
//! Both are words of `timers_state`, whose layout differs between versions. They are found by their
//! effect: a word is the bias if adding to it adds to the clock and not to the count, and the count
//! if it adds to both. A QEMU in which not exactly one word behaves so is refused by name.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI64, Ordering};

/// Added to a word to see its effect.
const PROBE: i64 = 4096;

type GetTime = unsafe extern "C" fn() -> i64;
type ToTime = unsafe extern "C" fn(i64) -> i64;
type GetProcessor = unsafe extern "C" fn(c_int) -> *mut c_void;
type OfProcessor = unsafe extern "C" fn(*mut c_void);

/// QEMU's clock and the functions around it.
#[derive(Clone, Copy)]
pub struct QemuClock {
    bias: &'static AtomicI64,
    count: &'static AtomicI64,
    get: GetTime,
    to_time: ToTime,
    uses_count: *const c_int,
    processor: GetProcessor,
    exit: OfProcessor,
}

/// An entry of a symbol table, as in `elf.h`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

unsafe extern "C" {
    fn dladdr1(
        address: *const c_void,
        info: *mut libc::Dl_info,
        extra: *mut *mut c_void,
        flags: c_int,
    ) -> c_int;
}
const RTLD_DL_SYMENT: c_int = 1;

/// A function or an object of QEMU.
pub(crate) fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a name ended by a zero; the program that loaded this plug-in is searched.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        return Err(format!(
            "this QEMU does not export {}; expected one built with modules, as Debian's",
            name.to_string_lossy()
        ));
    }
    Ok(found)
}

/// Words of an object.
fn words(object: *mut c_void) -> Result<&'static [AtomicI64], String> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    let mut entry: *mut c_void = ptr::null_mut();
    // SAFETY: both are written to only; the entry is one of a mapped symbol table.
    let size = unsafe {
        let found = dladdr1(object, &mut info, &mut entry, RTLD_DL_SYMENT);
        if found == 0 || entry.is_null() || info.dli_saddr != object {
            return Err("the size of this QEMU's timers_state is not known".to_owned());
        }
        (*entry.cast::<Symbol>()).size
    };
    if !object.cast::<AtomicI64>().is_aligned() || size > 4096 {
        return Err(format!("this QEMU's timers_state is odd: {size} bytes at {object:?}"));
    }
    // SAFETY: an object of so many bytes for as long as QEMU runs; QEMU uses its words atomically
    // where threads share them, and any bits are a word.
    Ok(unsafe { std::slice::from_raw_parts(object.cast(), size as usize / 8) })
}

impl QemuClock {
    /// Finds the clock. To be called while QEMU has one thread that uses its clock: when it loads
    /// plug-ins.
    pub fn find() -> Result<Self, String> {
        let words = words(symbol(c"timers_state")?)?;
        // SAFETY: functions and an object of QEMU with these signatures, the same in 6.0 to 10.0.
        let (get, raw, to_time, processor, exit) = unsafe {
            use std::mem::transmute;
            (
                transmute::<*mut c_void, GetTime>(symbol(c"icount_get")?),
                transmute::<*mut c_void, GetTime>(symbol(c"icount_get_raw")?),
                transmute::<*mut c_void, ToTime>(symbol(c"icount_to_ns")?),
                transmute::<*mut c_void, GetProcessor>(symbol(c"qemu_get_cpu")?),
                transmute::<*mut c_void, OfProcessor>(symbol(c"cpu_exit")?),
            )
        };
        let uses_count = symbol(c"use_icount")?.cast_const().cast();
        // SAFETY: they read the clock.
        let now = || unsafe { (get(), raw()) };
        let mut found: [Vec<&'static AtomicI64>; 2] = [Vec::new(), Vec::new()];
        for word in words {
            let before = now();
            let value = word.load(Ordering::SeqCst);
            word.store(value.wrapping_add(PROBE), Ordering::SeqCst);
            let after = now();
            word.store(value, Ordering::SeqCst);
            match (after.0 - before.0, after.1 - before.1) {
                (PROBE, 0) => found[0].push(word),
                (PROBE, PROBE) => found[1].push(word),
                _ => {}
            }
        }
        let ([bias], [count]) = (&found[0][..], &found[1][..]) else {
            return Err(format!(
                "{} words of this QEMU's timers_state act as the bias of its clock and {} as its \
                 count; expected one of each, as in Debian's 7.2",
                found[0].len(),
                found[1].len()
            ));
        };
        Ok(QemuClock { bias, count, get, to_time, uses_count, processor, exit })
    }

    /// Whether the clock counts instructions, one a nanosecond.
    pub fn counts_instructions(&self) -> bool {
        // SAFETY: an integer of QEMU's that is written before processors run; a function of a
        // number.
        unsafe { *self.uses_count == 1 && (self.to_time)(1) == 1 }
    }

    /// The time of the clock. Only while no processor is inside a block.
    pub fn now_ns(&self) -> u64 {
        // SAFETY: no block runs (the caller's promise).
        unsafe { (self.get)() as u64 }
    }

    /// The time of the clock when the running processor's slice began.
    #[inline]
    pub fn at_slice_ns(&self) -> u64 {
        let (count, bias) = (self.count.load(Ordering::Relaxed), self.bias.load(Ordering::Relaxed));
        count.wrapping_add(bias) as u64
    }

    /// What distinguishes the running processor's slice from the one before.
    #[inline]
    pub fn slice(&self) -> i64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Advances the clock. Called in the thread that runs all processors; other threads change the
    /// bias only while that one waits.
    #[inline]
    pub fn add(&self, ns: i64) {
        self.bias.store(self.bias.load(Ordering::Relaxed).wrapping_add(ns), Ordering::Relaxed);
    }

    /// The processor of this number, or null.
    pub fn processor(&self, index: u32) -> *mut c_void {
        // SAFETY: a function of QEMU's that walks its list of processors.
        unsafe { (self.processor)(index as c_int) }
    }

    /// Ends the running processor's slice after the block.
    pub fn end_slice(&self, index: u32) {
        let processor = self.processor(index);
        if !processor.is_null() {
            // SAFETY: a processor, in the thread that runs it, as its own instructions do.
            unsafe { (self.exit)(processor) };
        }
    }

    /// Ends the slices of all processors before they begin. In the thread that runs them.
    pub fn end_slices(&self) {
        for index in 0.. {
            let processor = self.processor(index);
            if processor.is_null() {
                break;
            }
            // SAFETY: a processor, in the thread that runs it (the caller's promise).
            unsafe { (self.exit)(processor) };
        }
    }
}
