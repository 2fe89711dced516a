//! QEMU's buffer of translated code, which must not fill up with some versions.
//!
//! When it is full, QEMU discards all translated code, and the lists of callbacks with it. Before
//! 8.0 a processor may keep a pointer to such a list, and follows it with the next access that QEMU
//! makes for it: with several processors QEMU then ends itself (`plugins/core.c`: code that should
//! not be reached).

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::clock::symbol;

type GetSize = unsafe extern "C" fn() -> usize;

/// Bytes kept free, more than any block takes.
const SPARE_BYTES: usize = 1 << 20;
/// The size is read once in so many blocks.
const BLOCKS: u32 = 32;

/// QEMU's buffer of translated code.
#[derive(Debug)]
pub struct CodeBuffer {
    size: GetSize,
    capacity: GetSize,
    blocks: AtomicU32,
}

impl CodeBuffer {
    /// Finds QEMU's functions.
    pub fn find() -> Result<Self, String> {
        use std::mem::transmute;
        // SAFETY: functions of QEMU without arguments, the same in 4.2 to 10.0.
        let (size, capacity) = unsafe {
            (
                transmute::<*mut c_void, GetSize>(symbol(c"tcg_code_size")?),
                transmute::<*mut c_void, GetSize>(symbol(c"tcg_code_capacity")?),
            )
        };
        Ok(CodeBuffer { size, capacity, blocks: AtomicU32::new(0) })
    }

    /// Before another block is translated: the buffer's size if that block, or one of the next,
    /// could fill it.
    pub fn nearly_full(&self) -> Option<usize> {
        // A single thread translates.
        let blocks = self.blocks.load(Ordering::Relaxed).wrapping_add(1);
        self.blocks.store(blocks, Ordering::Relaxed);
        if blocks % BLOCKS != 1 {
            return None;
        }
        // SAFETY: QEMU's own functions, in the thread that translates; they read counters.
        let (size, capacity) = unsafe { ((self.size)(), (self.capacity)()) };
        (size + SPARE_BYTES > capacity).then_some(capacity)
    }
}
