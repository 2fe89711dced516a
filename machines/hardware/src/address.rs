//! Addresses that must not be mixed: virtual, physical, and cache lines.

use std::fmt;

/// Bits of an address within a base page of 4 KB.
pub const BASE_PAGE_BITS: u32 = 12;
/// Bits of an address within a huge page of 2 MB.
pub const HUGE_PAGE_BITS: u32 = 21;

/// A virtual address of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VirtualAddress(pub u64);

/// An address of physical memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PhysicalAddress(pub u64);

/// The number of a cache line: an address divided by the line size. The caller decides whether the
/// address is virtual or physical; a cache only compares numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LineAddress(pub u64);

impl PhysicalAddress {
    /// The line of the address, for lines of `1 << line_bits` bytes.
    #[inline]
    pub const fn line(self, line_bits: u32) -> LineAddress {
        LineAddress(self.0 >> line_bits)
    }
}

impl LineAddress {
    /// The address of the line's first byte, for lines of `1 << line_bits` bytes.
    #[inline]
    pub const fn first_byte(self, line_bits: u32) -> PhysicalAddress {
        PhysicalAddress(self.0 << line_bits)
    }
}

macro_rules! hex_debug {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    )*};
}
hex_debug!(VirtualAddress PhysicalAddress LineAddress);

/// Whether a reference reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A load, or a line fetched to be written to.
    Read,
    /// A store, or a dirty line written back.
    Write,
}

impl Kind {
    /// Whether the reference writes.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(self, Kind::Write)
    }
}
