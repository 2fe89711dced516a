//! Accesses of a whole emulated machine by memory node: what the plug-in in the machine counts, and
//! the memory that it shares with the starter of the machine.
//!
//! The starter gives the address ranges of the nodes, as this QEMU reports addresses, and the
//! caches in front of memory. A guest marks when to count with [`mark`]. All data are numbers that
//! one side writes and the other reads, so the counts of a machine that is killed are not lost.
//!
//! All `unsafe` here is the use of the mapped memory.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_recordings::reference::{CacheShape, Filter, Level};

use crate::mapping;

/// Nodes of a machine, at most.
pub const NODES: usize = 4;
/// Targets of accesses: the nodes, and memory that is in none of them.
pub const PLACES: usize = NODES + 1;
/// Index of memory that is in no node: firmware.
pub const ELSEWHERE: usize = NODES;
/// Virtual processors, at most.
pub const PROCESSORS: usize = 256;
/// Marks that are kept.
pub const MARKS: usize = 4096;

/// Where Linux puts the mappings of a program with the compatible layout (`setarch -L`): from a
/// third of the address space upwards, and no other program's (`mmap_legacy_base` in its
/// arch/x86/mm/mmap.c, the random part of at most a terabyte included). So the plug-in, which sees
/// no processes, can distinguish such a program's accesses from all others.
pub const APART: Range<u64> = 0x2aaa_0000_0000..0x4000_0000_0000;

const MAGIC: u64 = u64::from_le_bytes(*b"TERRNOD2");

/// Counts of the accesses to one place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Loads.
    pub loads: u64,
    /// Stores; an atomic update is one.
    pub stores: u64,
    /// Accesses that missed the first level.
    pub l1_misses: u64,
    /// Of these, accesses that missed the second level.
    pub l2_misses: u64,
    /// Loads that missed the last level and read memory.
    pub memory_loads: u64,
    /// Stores that missed the last level.
    pub memory_stores: u64,
    /// Dirty lines written back to memory.
    pub write_backs: u64,
}

impl Accesses {
    /// Number of counts.
    pub const LEN: usize = 7;

    /// The counts as an array.
    pub fn to_array(self) -> [u64; Self::LEN] {
        let Accesses {
            loads,
            stores,
            l1_misses,
            l2_misses,
            memory_loads,
            memory_stores,
            write_backs,
        } = self;
        [loads, stores, l1_misses, l2_misses, memory_loads, memory_stores, write_backs]
    }

    /// The counts of an array.
    pub fn from_array(numbers: [u64; Self::LEN]) -> Self {
        let [loads, stores, l1_misses, l2_misses, memory_loads, memory_stores, write_backs] =
            numbers;
        Accesses { loads, stores, l1_misses, l2_misses, memory_loads, memory_stores, write_backs }
    }

    /// The difference to earlier counts.
    #[must_use]
    pub fn since(self, before: Accesses) -> Accesses {
        let (mut numbers, before) = (self.to_array(), before.to_array());
        numbers.iter_mut().zip(before).for_each(|(n, before)| *n = n.saturating_sub(before));
        Accesses::from_array(numbers)
    }

    /// Loads and stores.
    #[must_use]
    pub fn all(self) -> u64 {
        self.loads + self.stores
    }
}

/// Index of a count of [`Accesses`].
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// `loads`; the one after it is `stores`.
    Loads = 0,
    /// `l1_misses`.
    L1Misses = 2,
    /// `l2_misses`.
    L2Misses = 3,
    /// `memory_loads`; the one after it is `memory_stores`.
    MemoryLoads = 4,
    /// `write_backs`.
    WriteBacks = 6,
}

/// Originator of an access, by the half of the address space: a plug-in sees no privilege level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Domain {
    /// Programs.
    User = 0,
    /// The kernel.
    Kernel = 1,
}

impl Domain {
    /// Of a virtual address.
    #[inline]
    pub fn of(address: u64) -> Self {
        if address >> 63 == 0 { Domain::User } else { Domain::Kernel }
    }
}

/// A mark that a guest makes by an instruction without another effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mark {
    /// Counting ends.
    End = 0,
    /// Counting begins.
    Begin = 1,
    /// A period ends and another begins.
    Period = 2,
    /// Accesses are sampled from now on, before counting begins.
    Sample = 3,
}

impl Mark {
    /// The instruction: a no-operation of eight bytes with a displacement that no compiler chooses.
    pub const fn instruction(self) -> [u8; 8] {
        [0x0f, 0x1f, 0x84, 0x00, self as u8, b'T', b'E', b'R']
    }

    /// The mark of an instruction, if it is one.
    pub fn of(instruction: &[u8]) -> Option<Mark> {
        let marks = [Mark::End, Mark::Begin, Mark::Period, Mark::Sample];
        marks.into_iter().find(|mark| mark.instruction() == *instruction)
    }

    /// The mark of this number.
    pub fn of_number(number: u64) -> Mark {
        match number {
            0 => Mark::End,
            1 => Mark::Begin,
            2 => Mark::Period,
            _ => Mark::Sample,
        }
    }

    /// A program for Linux on x86-64 that executes the instruction and exits.
    pub fn program(self) -> Vec<u8> {
        const BASE: u64 = 0x40_0000;
        const HEAD: usize = 64 + 56;
        let mut code = self.instruction().to_vec();
        // xor %edi,%edi; mov $60,%eax; syscall
        code.extend([0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05]);
        let size = (HEAD + code.len()) as u64;
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        // Executable, x86-64, version 1.
        file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        for number in [BASE + HEAD as u64, 64, 0] {
            file.extend(number.to_le_bytes());
        }
        // Flags; sizes of this header, of a program header, and one of those; no sections.
        file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        // To be loaded, readable and executable.
        file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
        for number in [0, BASE, BASE, size, size, 4096] {
            file.extend(number.to_le_bytes());
        }
        file.extend(code);
        file
    }
}

/// Makes a mark for the plug-in, if there is one: executes the mark's instruction.
#[inline(never)]
pub fn mark(mark: Mark) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an instruction that changes no register, flag or memory.
    unsafe {
        use std::arch::asm;
        match mark {
            Mark::End => asm!(".byte 0x0f,0x1f,0x84,0x00,0,0x54,0x45,0x52"),
            Mark::Begin => asm!(".byte 0x0f,0x1f,0x84,0x00,1,0x54,0x45,0x52"),
            Mark::Period => asm!(".byte 0x0f,0x1f,0x84,0x00,2,0x54,0x45,0x52"),
            Mark::Sample => asm!(".byte 0x0f,0x1f,0x84,0x00,3,0x54,0x45,0x52"),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = mark;
}

/// Address range of a node, as QEMU's plug-in interface reports addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeRange {
    /// Its first address.
    pub start: u64,
    /// Its bytes.
    pub bytes: u64,
}

type Numbers = [AtomicU64; Accesses::LEN];

#[repr(C)]
struct MarkEntry {
    mark: AtomicU64,
    /// By domain and place, since the machine began.
    accesses: [[Numbers; PLACES]; 2],
    /// Pages of 4 KiB touched since the mark before, by domain and place.
    base_pages: [[AtomicU64; PLACES]; 2],
    /// Pages of 2 MiB, likewise.
    huge_pages: [[AtomicU64; PLACES]; 2],
    /// By place, since the machine began: accesses of programs with the compatible layout.
    apart: [AtomicU64; PLACES],
    devices: AtomicU64,
}

#[repr(C, align(4096))]
struct Layout {
    magic: AtomicU64,
    nodes: [[AtomicU64; 2]; NODES],
    shapes: [AtomicU64; 7],
    /// Whether a plug-in has begun.
    begun: AtomicU64,
    marks: AtomicU64,
    /// Accesses to devices.
    devices: [AtomicU64; PROCESSORS],
    accesses: [[[Numbers; PLACES]; 2]; PROCESSORS],
    /// Loads and stores of mappings in [`APART`].
    apart: [[AtomicU64; PLACES]; PROCESSORS],
    entries: [MarkEntry; MARKS],
}

/// The shared memory.
#[derive(Debug, Clone, Copy)]
pub struct NodeCounts {
    memory: *const Layout,
}

// SAFETY: the memory stays mapped for good, and everything in it is atomic.
unsafe impl Send for NodeCounts {}
// SAFETY: as above.
unsafe impl Sync for NodeCounts {}

/// Counts at a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// The kind of mark.
    pub mark: Mark,
    /// By domain and place, since the machine began.
    pub accesses: [[Accesses; PLACES]; 2],
    /// Pages of 4 KiB that were touched since the mark before, by domain and place.
    pub base_pages: [[u64; PLACES]; 2],
    /// Pages of 2 MiB, likewise.
    pub huge_pages: [[u64; PLACES]; 2],
    /// Loads and stores of mappings in [`APART`] by place, since the machine began.
    pub apart: [u64; PLACES],
    /// Accesses to devices, since the machine began.
    pub devices: u64,
}

fn load(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn add(number: &AtomicU64, more: u64) {
    // One thread writes it.
    number.store(load(number).wrapping_add(more), Ordering::Relaxed);
}

impl NodeCounts {
    /// Size of the shared memory's file in bytes.
    pub const SIZE_BYTES: usize = size_of::<Layout>();

    /// Maps the file for the rest of the process's life.
    pub fn map(file: &File) -> io::Result<Self> {
        Ok(NodeCounts { memory: mapping::map(file)? })
    }

    fn layout(&self) -> &Layout {
        // SAFETY: mapped for good, aligned to a page; all fields are atomics, any bits are valid.
        unsafe { &*self.memory }
    }

    /// For the starter of the machine: initialises fresh memory.
    pub fn begin(&self, nodes: &[NodeRange], filter: &Filter) {
        let layout = self.layout();
        for (to, node) in layout.nodes.iter().zip(nodes) {
            to[0].store(node.start, Ordering::Relaxed);
            to[1].store(node.bytes, Ordering::Relaxed);
        }
        let shapes = [filter.l1, filter.l2, filter.llc];
        let numbers = shapes.into_iter().flat_map(|s| [s.size_bytes, s.ways.into()]);
        let numbers = std::iter::once(u64::from(filter.line_bytes)).chain(numbers);
        layout.shapes.iter().zip(numbers).for_each(|(to, n)| to.store(n, Ordering::Relaxed));
        layout.magic.store(MAGIC, Ordering::Release);
    }

    /// For the plug-in: begins with all counts at zero; returns the nodes and the caches. `None` if
    /// the memory is of another kind.
    pub fn join(&self) -> Option<([NodeRange; NODES], Filter)> {
        let layout = self.layout();
        if layout.magic.load(Ordering::Acquire) != MAGIC {
            return None;
        }
        // A restarted machine counts from zero.
        let all = layout.accesses.iter().flatten().flatten().flatten().chain(&layout.devices);
        let all = all.chain(layout.apart.iter().flatten());
        all.for_each(|number| number.store(0, Ordering::Relaxed));
        layout.marks.store(0, Ordering::Relaxed);
        let nodes =
            layout.nodes.each_ref().map(|n| NodeRange { start: load(&n[0]), bytes: load(&n[1]) });
        let n = |i: usize| load(&layout.shapes[i]);
        let shape = |i| CacheShape { size_bytes: n(i), ways: n(i + 1) as u32 };
        let filter = Filter {
            level: Level::Llc,
            line_bytes: n(0) as u32,
            l1: shape(1),
            l2: shape(3),
            llc: shape(5),
            sample_one_in: 1,
        };
        layout.begun.store(1, Ordering::Release);
        Some((nodes, filter))
    }

    /// For the plug-in: adds one to a count of a processor; `next` to the count after it.
    #[inline]
    pub fn count(&self, processor: usize, domain: Domain, place: usize, kind: Kind, next: bool) {
        let places = &self.layout().accesses[processor % PROCESSORS][domain as usize];
        add(&places[place % PLACES][kind as usize + usize::from(next)], 1);
    }

    /// For the plug-in: counts an access of a mapping in [`APART`], beside [`Self::count`].
    #[inline]
    pub fn count_apart(&self, processor: usize, place: usize) {
        add(&self.layout().apart[processor % PROCESSORS][place % PLACES], 1);
    }

    /// For the plug-in: counts an access to a device.
    #[inline]
    pub fn count_device(&self, processor: usize) {
        add(&self.layout().devices[processor % PROCESSORS], 1);
    }

    /// For the plug-in: stores the counts so far, and the pages touched since the mark before.
    pub fn note(&self, mark: Mark, base_pages: [[u64; PLACES]; 2], huge_pages: [[u64; PLACES]; 2]) {
        let layout = self.layout();
        let number = layout.marks.load(Ordering::Relaxed);
        if let Some(entry) = layout.entries.get(number as usize) {
            let now = self.now();
            entry.mark.store(mark as u64, Ordering::Relaxed);
            entry.devices.store(now.devices, Ordering::Relaxed);
            for (to, n) in entry.apart.iter().zip(now.apart) {
                to.store(n, Ordering::Relaxed);
            }
            for domain in 0..2 {
                for place in 0..PLACES {
                    let numbers = now.accesses[domain][place].to_array();
                    for (to, n) in entry.accesses[domain][place].iter().zip(numbers) {
                        to.store(n, Ordering::Relaxed);
                    }
                    let (base, huge) = (base_pages[domain][place], huge_pages[domain][place]);
                    entry.base_pages[domain][place].store(base, Ordering::Relaxed);
                    entry.huge_pages[domain][place].store(huge, Ordering::Relaxed);
                }
            }
        }
        layout.marks.store(number + 1, Ordering::Release);
    }

    /// Whether a plug-in has begun.
    pub fn has_begun(&self) -> bool {
        self.layout().begun.load(Ordering::Acquire) != 0
    }

    /// The counts so far; pages are known at marks only.
    pub fn now(&self) -> Marked {
        let layout = self.layout();
        let accesses = std::array::from_fn(|domain| {
            std::array::from_fn(|place| {
                let mut sum = [0; Accesses::LEN];
                for processor in &layout.accesses {
                    let numbers = processor[domain][place].iter();
                    sum.iter_mut().zip(numbers).for_each(|(sum, n)| *sum += load(n));
                }
                Accesses::from_array(sum)
            })
        });
        let devices = layout.devices.iter().map(load).sum();
        let apart = std::array::from_fn(|place| layout.apart.iter().map(|p| load(&p[place])).sum());
        Marked {
            mark: Mark::End,
            accesses,
            base_pages: [[0; PLACES]; 2],
            huge_pages: [[0; PLACES]; 2],
            apart,
            devices,
        }
    }

    /// The marks that were made, the first [`MARKS`] of them; and their number.
    pub fn marks(&self) -> (Vec<Marked>, u64) {
        let layout = self.layout();
        let count = layout.marks.load(Ordering::Acquire);
        let entries = layout.entries.iter().take(count as usize);
        let marked = entries.map(|entry| Marked {
            mark: Mark::of_number(load(&entry.mark)),
            accesses: entry.accesses.each_ref().map(|places| {
                places.each_ref().map(|n| Accesses::from_array(n.each_ref().map(load)))
            }),
            base_pages: entry.base_pages.each_ref().map(|p| p.each_ref().map(load)),
            huge_pages: entry.huge_pages.each_ref().map(|p| p.each_ref().map(load)),
            apart: entry.apart.each_ref().map(load),
            devices: load(&entry.devices),
        });
        (marked.collect(), count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::default_filter;

    #[test]
    fn what_one_side_counts_the_other_reads() {
        let file = tempfile::tempfile().unwrap();
        assert!(NodeCounts::map(&file).is_err(), "of another size");
        file.set_len(NodeCounts::SIZE_BYTES as u64).unwrap();
        let (ours, theirs) = (NodeCounts::map(&file).unwrap(), NodeCounts::map(&file).unwrap());
        assert!(theirs.join().is_none(), "not begun");
        let node = NodeRange { start: 1 << 30, bytes: 1 << 20 };
        ours.begin(&[NodeRange { start: 0, bytes: 1 << 30 }, node], &default_filter());
        let (nodes, filter) = theirs.join().unwrap();
        assert_eq!((nodes[1], nodes[2].bytes, filter), (node, 0, default_filter()));
        theirs.note(Mark::Begin, [[0; PLACES]; 2], [[0; PLACES]; 2]);
        theirs.count(3, Domain::of(u64::MAX), 1, Kind::Loads, true);
        theirs.count(0, Domain::of(0x7fff_ffff_f000), 0, Kind::MemoryLoads, false);
        theirs.count_device(1);
        theirs.count_apart(2, 1);
        let mut pages = [[0; PLACES]; 2];
        pages[0][1] = 7;
        theirs.note(Mark::End, pages, pages);
        let (marks, count) = ours.marks();
        assert_eq!(
            (marks.len(), count, marks[0].mark, marks[1].mark),
            (2, 2, Mark::Begin, Mark::End)
        );
        assert_eq!(marks[1].accesses[1][1], Accesses { stores: 1, ..Accesses::default() });
        assert_eq!(marks[1].accesses[0][0], Accesses { memory_loads: 1, ..Accesses::default() });
        assert_eq!((marks[0].apart[1], marks[1].apart[1]), (0, 1));
        assert_eq!((marks[1].devices, marks[1].base_pages[0][1], marks[0].devices), (1, 7, 0));
        // A restarted machine counts from zero.
        theirs.join().unwrap();
        assert_eq!(ours.marks().1, 0);
        assert_eq!(ours.now().accesses, [[Accesses::default(); PLACES]; 2]);
        assert_eq!(ours.now().apart, [0; PLACES]);
    }

    #[test]
    fn marks_are_instructions_that_do_nothing() {
        for which in [Mark::End, Mark::Begin, Mark::Period] {
            assert_eq!(Mark::of(&which.instruction()), Some(which));
            mark(which);
        }
        assert_eq!(Mark::of(&[0x90]), None);
    }

    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    fn the_program_that_marks_runs_and_ends_well() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        std::fs::write(&path, Mark::Begin.program()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Through a shell: this process's own threads may hold the file open for writing while
        // they start others.
        let status = std::process::Command::new("sh").arg("-c").arg(&path).status().unwrap();
        assert!(status.success(), "{status}");
    }
}
