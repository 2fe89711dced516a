//! Data of a thread, and the table of threads.

mod filtering;
mod process;
mod records;

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use terrace_recorder::cache::{self, NO_LINE, PrivateCache};
use terrace_recorder::filter::{Behind, Counts, First, Front, Missed};
use terrace_recorder::sampling::Sampler;
use terrace_recorder::shared::SLOT_BYTES;
use terrace_recorder::system_process::SystemProcess;
use terrace_recordings::reference::block::Encoder;
use terrace_recordings::reference::{Filter, Level};

use crate::thread::process::NO_PROCESS;
pub use crate::thread::process::Process;

/// Most threads of one process that are recorded at a time; QEMU numbers them from 0 and reuses
/// numbers.
const THREADS: usize = 4096;

static TABLE: [AtomicPtr<Thread>; THREADS] = [const { AtomicPtr::new(ptr::null_mut()) }; THREADS];

/// References that wait to be filtered, at most. None wait during a system call; a thread that
/// is killed between system calls loses those that do.
const UNFILTERED: usize = 512;
/// References that wait for the last level, at most.
const PENDING: usize = 32;

/// A reference on its way to a level.
#[derive(Clone, Copy)]
struct Waiting {
    /// The request to the next level. While the reference waits for [`Behind`], `left` is the entry
    /// that moved out of the front, and `line` is unused.
    missed: Missed,
    address: u64,
    /// `instructions << 5 | second << 4 | size_log2 << 1 | store`. `second` marks the second line
    /// of a reference that spans two, after its first in the same queue: both count as one miss.
    what: u64,
}

const SECOND: u64 = 1 << 4;
const NOTHING: Waiting =
    Waiting { missed: Missed { line: NO_LINE, left: NO_LINE }, address: 0, what: 0 };

impl Waiting {
    fn is_second(&self) -> bool {
        self.what & SECOND != 0
    }

    fn instructions(&self) -> u64 {
        self.what >> 5
    }
}

/// Instructions that the translated code itself counts while the process has one thread. Blocks
/// that are translated later, for several threads, call instead.
pub static COUNTED_INLINE: AtomicU64 = AtomicU64::new(0);
static NONE_COUNTED: AtomicU64 = AtomicU64::new(0);
/// Whether the process has begun a second thread, ever.
pub static SEVERAL_THREADS: AtomicBool = AtomicBool::new(false);

/// One thread. The fields used by each reference come first.
#[repr(C)]
pub struct Thread {
    /// Loads and stores.
    accesses: [u64; 2],
    line_shift: u32,
    /// Every reference is recorded, none is filtered.
    all: bool,
    waiting: usize,
    /// Instructions executed, the block under way included, without those counted inline.
    pub instructions: u64,
    counted_inline: &'static AtomicU64,
    /// References that the callback could not resolve. They are only noted when they are made: the
    /// program's own misses overlap only while little is done between them.
    unfiltered: Box<[Waiting; UNFILTERED]>,
    /// The first level, if it is of the usual shape.
    front: Front,
    behind: Behind,
    /// Whether the reference before, with its first line, missed the first level.
    missed_first: bool,
    /// The first level, if it is of another shape.
    first: First,
    process: &'static Process,
    /// Time minus instructions.
    ahead: u64,
    second: PrivateCache,
    /// Whether the reference before, with its first line, missed the second and the last level.
    missed_before: [bool; 2],
    counts: Counts,
    encoder: Encoder,
    stream: Option<u32>,
    slot: Option<usize>,
    /// Bytes used of the slot; its size when there is none.
    length: usize,
    references: u64,
    /// References on their way to the last level, whose set is prefetched meanwhile: its sets are
    /// seldom in the processor's caches, and waiting for each took half of the run time.
    pending: [Waiting; PENDING],
    pushed: usize,
    popped: usize,
    sampler: Sampler,
    /// Arguments of the system call under way.
    pub arguments: [u64; 4],
}

/// The thread of QEMU's number. It is used by the one host thread that runs it.
#[inline]
pub fn thread(index: u32) -> Option<&'static mut Thread> {
    let place = &TABLE[index as usize % THREADS];
    let thread = place.load(Ordering::Relaxed);
    if thread.is_null() {
        return new_thread(index, place);
    }
    // SAFETY: made by `new_thread`, freed by `end_thread` only, after which nothing runs in it.
    // QEMU calls back in the host thread that runs the virtual CPU, one call at a time.
    Some(unsafe { &mut *thread })
}

/// [`thread`] for one that exists already; `None` for an unknown number.
#[inline(always)]
pub fn known_thread(index: u32) -> Option<&'static mut Thread> {
    let thread = TABLE[index as usize % THREADS].load(Ordering::Relaxed);
    // SAFETY: as in `thread`.
    unsafe { thread.as_mut() }
}

#[cold]
fn new_thread(index: u32, place: &AtomicPtr<Thread>) -> Option<&'static mut Thread> {
    let process = Process::get()?;
    let first = index == 0 && !SEVERAL_THREADS.load(Ordering::Relaxed);
    let thread = Box::into_raw(Box::new(Thread {
        accesses: [0; 2],
        line_shift: process.filter.line_bytes.trailing_zeros(),
        all: process.filter.level == Level::None,
        process,
        instructions: 0,
        counted_inline: if first { &COUNTED_INLINE } else { &NONE_COUNTED },
        front: Front::default(),
        behind: Behind::default(),
        missed_first: false,
        first: First::new(&process.filter).ok()?,
        ahead: process.shared.latest_time(),
        second: second_level(&process.filter)?,
        missed_before: [false; 2],
        counts: Counts::default(),
        encoder: Encoder::new(0),
        stream: None,
        slot: None,
        length: SLOT_BYTES,
        references: 0,
        unfiltered: Box::new([NOTHING; UNFILTERED]),
        waiting: 0,
        pending: [NOTHING; PENDING],
        pushed: 0,
        popped: 0,
        sampler: Sampler::default(),
        arguments: [0; 4],
    }));
    place.store(thread, Ordering::Relaxed);
    // SAFETY: made just now, and known to this host thread only.
    Some(unsafe { &mut *thread })
}

/// A level that is not needed is not simulated.
fn second_level(filter: &Filter) -> Option<PrivateCache> {
    let asked = filter.level >= Level::L2;
    let sets = if asked { cache::sets("l2", filter.l2, filter.line_bytes).ok()? } else { 1 };
    Some(PrivateCache::new(sets, filter.l2.ways, filter.line_bytes))
}

/// Hands a thread's slot over and forgets the thread.
pub fn end_thread(index: u32) {
    let thread = TABLE[index as usize % THREADS].swap(ptr::null_mut(), Ordering::Relaxed);
    if !thread.is_null() {
        // SAFETY: made by `new_thread`, taken from the table, so this is its only owner.
        let mut thread = unsafe { Box::from_raw(thread) };
        thread.hand_over();
    }
}

/// Hands over the slots of all threads. None of them may run.
pub fn end_all() {
    (0..THREADS as u32).for_each(end_thread);
    if let Some(process) = Process::get() {
        process.set_ended(true);
    }
}

/// Called in the child of a fork: it has its own process number and streams. The slots remain the
/// parent's.
pub fn forked() {
    let Some(process) = Process::get() else { return };
    let number = process.shared.new_process(SystemProcess::own()).unwrap_or(NO_PROCESS);
    process.number.store(number, Ordering::Relaxed);
    process.mapped.store(false, Ordering::Relaxed);
    process.forked.store(true, Ordering::Relaxed);
    for place in &TABLE {
        let thread = place.load(Ordering::Relaxed);
        if !thread.is_null() {
            // SAFETY: the child has one host thread, this one.
            let thread = unsafe { &mut *thread };
            thread.ahead = thread.time();
            thread.instructions = 0;
            thread.accesses = [0; 2];
            thread.counts = Counts::default();
            (thread.popped, thread.waiting) = (thread.pushed, 0);
            (thread.slot, thread.stream, thread.length) = (None, None, SLOT_BYTES);
            thread.sampler = Sampler::default();
        }
    }
    COUNTED_INLINE.store(0, Ordering::Relaxed);
}

impl Thread {
    /// The recorded process.
    pub fn process(&self) -> &'static Process {
        self.process
    }

    /// Its time.
    pub fn time(&self) -> u64 {
        self.executed().wrapping_add(self.ahead)
    }

    /// Instructions executed, the block under way included.
    #[inline]
    fn executed(&self) -> u64 {
        self.instructions.wrapping_add(self.counted_inline.load(Ordering::Relaxed))
    }
}
