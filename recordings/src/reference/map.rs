//! A process's memory map: the lines of /proc/PID/maps.

use super::{Header, Level};

/// The kind of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// The program's heap (brk).
    Heap,
    /// A stack that the kernel or the emulator set up.
    Stack,
    /// A file.
    File,
    /// Memory without a file.
    Anonymous,
}

/// One region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// First address of the region.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// May be written.
    pub writable: bool,
    /// Shared with other processes; else private.
    pub shared: bool,
    /// Kind of the region.
    pub kind: RegionKind,
    /// The file, or the name in brackets, or nothing.
    pub name: String,
}

impl Region {
    /// Bytes that Linux may back with huge pages of this size: those of private anonymous memory
    /// in whole aligned huge pages (Linux, `admin-guide/mm/transhuge.rst`).
    pub fn huge_page_bytes(&self, huge_page_bytes: u64) -> u64 {
        if self.shared || self.kind == RegionKind::File || huge_page_bytes == 0 {
            return 0;
        }
        let first = self.start.div_ceil(huge_page_bytes);
        (self.end / huge_page_bytes).saturating_sub(first).saturating_mul(huge_page_bytes)
    }
}

/// The map of one process at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapSnapshot {
    /// Number of the process.
    pub process: u32,
    /// Time, as in references.
    pub time: u64,
    /// Its regions in ascending order.
    pub regions: Vec<Region>,
}

/// Reads lines of /proc/PID/maps; those that are none are left out.
pub fn parse_maps(text: &str) -> Vec<Region> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Region> {
    let mut rest = line;
    let mut field = || {
        rest = rest.trim_start();
        let (field, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        field
    };
    let (start, end) = field().split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok().filter(|end| *end > start)?;
    let permissions = field().as_bytes();
    let (_offset, _device, inode) = (field(), field(), field());
    let name = rest.trim().to_owned();
    let kind = match name.as_str() {
        "[heap]" => RegionKind::Heap,
        "[stack]" => RegionKind::Stack,
        _ if inode != "0" => RegionKind::File,
        _ => RegionKind::Anonymous,
    };
    let (writable, shared) = (permissions.get(1) == Some(&b'w'), permissions.get(3) == Some(&b's'));
    Some(Region { start, end, writable, shared, kind, name })
}

impl Level {
    /// Its name, as in options and headers.
    pub fn name(self) -> &'static str {
        match self {
            Level::None => "none",
            Level::L1 => "l1",
            Level::L2 => "l2",
            Level::Llc => "llc",
        }
    }
}

/// A header's `executed_by` where instructions were not counted.
pub const IN_NANOSECONDS: &str = "time in nanoseconds";

impl Header {
    /// Whether numbers of instructions are counted; samples have nanoseconds in their place.
    pub fn counts_instructions(&self) -> bool {
        !self.executed_by.contains(IN_NANOSECONDS)
    }
}
