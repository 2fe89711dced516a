//! Counts the accesses of a whole emulated machine by memory node, in the shared memory that
//! `terrace_recorder::nodes` lays out.
//!
//! The plug-in interface has no processes and no privilege: programs and kernel are distinguished
//! by the halves of the address space, and a guest marks when to count. Addresses are physical as
//! far as QEMU 7.2 reports them: a block of memory's place among all blocks, plus its place in the
//! region around it.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use terrace_recorder::cache::{self, NO_LINE, PrivateCache, SharedCache};
use terrace_recorder::filter::{self, First, Missed};
use terrace_recorder::nodes::{
    APART, Domain, ELSEWHERE, Kind, Mark, NODES, NodeCounts, NodeRange, PLACES, PROCESSORS,
};
use terrace_recordings::reference::Filter;

use crate::qemu::{self, Block, Id, MemInfo};

const BASE_PAGE_LOG2: u32 = 12;
/// Base pages in a huge page.
const BASE_PAGES: usize = 512;

static COUNTING: AtomicBool = AtomicBool::new(false);
/// Whether counting has begun and not ended.
static BEGUN: AtomicBool = AtomicBool::new(false);
static MACHINE: OnceLock<Machine> = OnceLock::new();
static TABLE: [AtomicPtr<Processor>; PROCESSORS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; PROCESSORS];

struct Machine {
    counts: NodeCounts,
    nodes: [NodeRange; NODES],
    filter: Filter,
    line_shift: u32,
    llc: SharedCache,
    /// By domain and node, a bit for each page touched since the last mark.
    touched: [[Vec<AtomicU64>; NODES]; 2],
    pages: Option<Pages>,
    apart: Option<Apart>,
    /// Marks of periods left before counting begins.
    left_out: AtomicU64,
}

/// Loads and stores of the first two nodes by base page of the mappings in [`APART`], since the last
/// mark, and the file that gets a line of them at each mark.
struct Apart {
    file: File,
    pages: Mutex<BTreeMap<u64, [u64; 2]>>,
}

/// Loads and stores of programs by huge page of a node since the last mark, and the file that
/// gets a line of them at each mark.
struct Pages {
    file: File,
    accesses: [Vec<AtomicU64>; NODES],
}

struct Processor {
    first: First,
    second: PrivateCache,
}

/// Joins the memory of the starter of the machine; false if it is of another kind. A file of
/// `pages` gets a line at each mark with the accesses by huge page; a file of `apart` those of
/// programs with the compatible layout, by base page of their addresses. The first `left_out`
/// windows are not counted, and take less time.
pub fn begin(counts: NodeCounts, pages: Option<File>, apart: Option<File>, left_out: u64) -> bool {
    let Some((nodes, filter)) = counts.join() else { return false };
    let Ok(sets) = cache::sets("llc", filter.llc, filter.line_bytes) else { return false };
    let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
    let huge_pages =
        nodes.map(|node| (node.bytes >> BASE_PAGE_LOG2).div_ceil(BASE_PAGES as u64) as usize);
    let touched = std::array::from_fn(|_| huge_pages.map(|pages| zeros(pages * BASE_PAGES / 64)));
    let pages = pages.map(|file| Pages { file, accesses: huge_pages.map(zeros) });
    let apart = apart.map(|file| Apart { file, pages: Mutex::default() });
    let machine = Machine {
        apart,
        left_out: AtomicU64::new(left_out),
        counts,
        nodes,
        line_shift: filter.line_bytes.trailing_zeros(),
        llc: SharedCache::new(sets, filter.llc.ways, filter.line_bytes),
        filter,
        touched,
        pages,
    };
    MACHINE.set(machine).is_ok()
}

/// Called for each block that QEMU translates.
pub extern "C" fn on_translate(_id: Id, block: *mut Block) {
    // SAFETY: QEMU's block is valid during this call, and so are its instructions and their
    // bytes; what is registered is a number, not an address.
    unsafe {
        for i in 0..qemu::qemu_plugin_tb_n_insns(block) {
            let instruction = qemu::qemu_plugin_tb_get_insn(block, i);
            let (flags, kinds) = (qemu::NO_REGISTERS, qemu::LOADS_AND_STORES);
            let none = ptr::null_mut();
            qemu::qemu_plugin_register_vcpu_mem_cb(instruction, on_access, flags, kinds, none);
            let mut bytes = [0; 16];
            if qemu::copy_bytes(instruction, &mut bytes) != 8 {
                continue;
            }
            if let Some(mark) = Mark::of(&bytes[..8]) {
                let mark = mark as usize as *mut c_void;
                qemu::qemu_plugin_register_vcpu_insn_exec_cb(instruction, on_mark, flags, mark);
            }
        }
    }
}

extern "C" fn on_mark(_index: c_uint, mark: *mut c_void) {
    let Some(machine) = MACHINE.get() else { return };
    let mark = Mark::of_number(mark as u64);
    if mark == Mark::Sample || (mark != Mark::Begin && !BEGUN.load(Ordering::Relaxed)) {
        return;
    }
    BEGUN.store(mark != Mark::End, Ordering::Relaxed);
    let (base, huge) = machine.take_pages();
    machine.counts.note(mark, base, huge);
    if let Some(pages) = &machine.pages {
        pages.write();
    }
    if let Some(apart) = &machine.apart {
        apart.write();
    }
    if mark == Mark::Period {
        let left = machine.left_out.load(Ordering::Relaxed);
        machine.left_out.store(left.saturating_sub(1), Ordering::Relaxed);
    }
    let is_due = machine.left_out.load(Ordering::Relaxed) == 0;
    COUNTING.store(mark != Mark::End && is_due, Ordering::Relaxed);
}

extern "C" fn on_access(index: c_uint, info: MemInfo, address: u64, _data: *mut c_void) {
    if !COUNTING.load(Ordering::Relaxed) {
        return;
    }
    let (Some(machine), Some(processor)) = (MACHINE.get(), processor(index)) else { return };
    // SAFETY: asked in the callback of the access, with what QEMU gave it.
    let physical = unsafe {
        let place = qemu::qemu_plugin_get_hwaddr(info, address);
        if place.is_null() || qemu::qemu_plugin_hwaddr_is_io(place) {
            return machine.counts.count_device(index as usize);
        }
        qemu::qemu_plugin_hwaddr_phys_addr(place)
    };
    machine.access(
        processor,
        Access {
            index: index as usize,
            domain: Domain::of(address),
            address,
            physical,
            size_log2: qemu::size_log2(info),
            store: qemu::is_store(info),
        },
    );
}

/// A processor by QEMU's number. It is used by the one host thread that runs it.
fn processor(index: c_uint) -> Option<&'static mut Processor> {
    let place = TABLE.get(index as usize)?;
    let mut processor = place.load(Ordering::Relaxed);
    if processor.is_null() {
        let filter = &MACHINE.get()?.filter;
        let sets = cache::sets("l2", filter.l2, filter.line_bytes).ok()?;
        let second = PrivateCache::new(sets, filter.l2.ways, filter.line_bytes);
        processor = Box::into_raw(Box::new(Processor { first: First::new(filter).ok()?, second }));
        place.store(processor, Ordering::Relaxed);
    }
    // SAFETY: made here and never freed. QEMU calls back in the host thread that runs the virtual
    // CPU, one call at a time.
    Some(unsafe { &mut *processor })
}

struct Access {
    index: usize,
    domain: Domain,
    address: u64,
    physical: u64,
    size_log2: u8,
    store: bool,
}

impl Apart {
    fn count(&self, address: u64, place: usize) {
        let page = (address - APART.start) >> BASE_PAGE_LOG2;
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(accesses) = pages.entry(page).or_default().get_mut(place) {
            *accesses += 1;
        }
    }

    /// Writes a list of pages, each with its number and the accesses to each node; and resets the
    /// counts.
    fn write(&self) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = std::mem::take(&mut *pages).into_iter();
        let pages = pages.map(|(page, [fast, slow])| format!("[{page},{fast},{slow}]"));
        let line = format!("[{}]\n", pages.collect::<Vec<_>>().join(","));
        if let Err(error) = (&self.file).write_all(line.as_bytes()) {
            eprintln!("terrace recorder: counts of a program's pages were not written: {error}");
        }
    }
}

impl Pages {
    /// Writes a list of the nodes' lists, and resets the counts.
    fn write(&self) {
        let list = |node: &Vec<AtomicU64>| {
            let counts = node.iter().map(|n| n.swap(0, Ordering::Relaxed).to_string());
            format!("[{}]", counts.collect::<Vec<_>>().join(","))
        };
        let nodes = self.accesses.iter().filter(|node| !node.is_empty()).map(list);
        let line = format!("[{}]\n", nodes.collect::<Vec<_>>().join(","));
        if let Err(error) = (&self.file).write_all(line.as_bytes()) {
            eprintln!("terrace recorder: counts of pages were not written: {error}");
        }
    }
}

impl Machine {
    fn place(&self, physical: u64) -> usize {
        let holds = |n: &NodeRange| physical.wrapping_sub(n.start) < n.bytes;
        self.nodes.iter().position(holds).unwrap_or(ELSEWHERE)
    }

    fn access(&self, processor: &mut Processor, access: Access) {
        let Access { index, domain, address, physical, size_log2, store } = access;
        let place = self.place(physical);
        self.counts.count(index, domain, place, Kind::Loads, store);
        if APART.contains(&address) {
            self.counts.count_apart(index, place);
            if let Some(apart) = &self.apart {
                apart.count(address, place);
            }
        }
        if let Some(pages) = self.touched[domain as usize].get(place) {
            let page = (physical - self.nodes[place].start) >> BASE_PAGE_LOG2;
            let bit = 1 << (page % 64);
            if let Some(word) = pages.get((page / 64) as usize)
                && word.load(Ordering::Relaxed) & bit == 0
            {
                word.fetch_or(bit, Ordering::Relaxed);
            }
            if let Some(pages) = self.pages.as_ref().filter(|_| domain == Domain::User)
                && let Some(accesses) = pages.accesses[place].get(page as usize / BASE_PAGES)
            {
                accesses.fetch_add(1, Ordering::Relaxed);
            }
        }
        let line = physical >> self.line_shift;
        let misses = self.use_line(processor, &access, line);
        let last = (physical + (1 << size_log2) - 1) >> self.line_shift;
        // The next page may be at any address.
        let in_page =
            physical >> BASE_PAGE_LOG2 == (physical + (1 << size_log2) - 1) >> BASE_PAGE_LOG2;
        let more =
            if line != last && in_page { self.use_line(processor, &access, last) } else { 0 };
        // An access counts one miss, also where it spans two lines.
        for level in 0..misses.max(more) {
            let (kind, next) = match level {
                0 => (Kind::L1Misses, false),
                1 => (Kind::L2Misses, false),
                _ => (Kind::MemoryLoads, store),
            };
            self.counts.count(index, domain, place, kind, next);
        }
    }

    /// Sends a line through the caches; returns the number of levels it missed.
    fn use_line(&self, processor: &mut Processor, access: &Access, line: u64) -> u32 {
        let Some(missed) = processor.first.use_line(line, access.store) else { return 0 };
        let beyond = filter::second(&mut processor.second, missed);
        let [left, passed] = beyond.left;
        if passed != NO_LINE {
            self.last(access, Missed { line: NO_LINE, left: passed });
        }
        if !beyond.miss {
            self.last(access, Missed { line: NO_LINE, left });
            return 1;
        }
        if self.last(access, Missed { line, left }) { 3 } else { 2 }
    }

    fn last(&self, access: &Access, missed: Missed) -> bool {
        if missed.line == NO_LINE && missed.left == NO_LINE {
            return false;
        }
        let beyond = filter::last(&self.llc, missed);
        for left in beyond.left {
            if left != NO_LINE {
                let place = self.place(left << self.line_shift);
                self.counts.count(access.index, access.domain, place, Kind::WriteBacks, false);
            }
        }
        beyond.miss
    }

    /// Pages touched since the last call, by domain and place: base pages, and huge ones.
    fn take_pages(&self) -> ([[u64; PLACES]; 2], [[u64; PLACES]; 2]) {
        let (mut base, mut huge) = ([[0; PLACES]; 2], [[0; PLACES]; 2]);
        for (domain, nodes) in self.touched.iter().enumerate() {
            for (node, pages) in nodes.iter().enumerate() {
                for words in pages.chunks(BASE_PAGES / 64) {
                    let bits = words.iter().map(|w| w.swap(0, Ordering::Relaxed).count_ones());
                    let bits: u32 = bits.sum();
                    base[domain][node] += u64::from(bits);
                    huge[domain][node] += u64::from(bits > 0);
                }
            }
        }
        (base, huge)
    }
}
