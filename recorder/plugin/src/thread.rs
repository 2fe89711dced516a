//! What is kept per thread, and the path that each reference takes.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use terrace_recorder::cache::{self, NO_LINE, PrivateCache, SharedCache};
use terrace_recorder::filter::{self, Behind, Counts, First, Front, Missed, USUAL_LINE_BYTES};
use terrace_recorder::shared::{Content, SLOT_BYTES, Shared, SlotStart};
use terrace_recordings::reference::block::{Encoder, MAX_RECORD_BYTES};
use terrace_recordings::reference::{Event, Filter, Level, Reference, WriteBack};

/// Threads of one process that are recorded at one time; QEMU numbers them from 0 and uses
/// numbers again.
const THREADS: usize = 4096;
const NO_PROCESS: u32 = u32::MAX;

/// What all threads of a process use.
pub struct Process {
    /// The memory shared with the launcher.
    pub shared: Shared,
    filter: Filter,
    /// [`Thread::access_usual`] serves.
    pub is_usual: bool,
    llc: SharedCache,
    number: AtomicU32,
    /// Whether its first map was written.
    pub mapped: AtomicBool,
    /// Begun by a fork.
    pub forked: AtomicBool,
    /// Where the heap begins and ends; zeros when unknown.
    pub heap: [AtomicU64; 2],
    /// An address in the first thread's stack: that of its first reference, which every program
    /// makes there.
    pub stack: AtomicU64,
}

static PROCESS: OnceLock<Process> = OnceLock::new();
static TABLE: [AtomicPtr<Thread>; THREADS] = [const { AtomicPtr::new(ptr::null_mut()) }; THREADS];

impl Process {
    /// Sets this process's recording up; false when it cannot be.
    pub fn begin(shared: Shared) -> bool {
        let Some(filter) = shared.filter() else { return false };
        let sets = terrace_recorder::cache::sets("llc", filter.llc, filter.line_bytes);
        let Ok(sets) = sets else { return false };
        let process = Process {
            shared,
            llc: SharedCache::new(sets, filter.llc.ways, filter.line_bytes),
            is_usual: Thread::is_usual(&filter),
            filter,
            number: AtomicU32::new(shared.new_process(std::process::id()).unwrap_or(NO_PROCESS)),
            mapped: AtomicBool::new(false),
            forked: AtomicBool::new(false),
            heap: Default::default(),
            stack: AtomicU64::new(0),
        };
        PROCESS.set(process).is_ok()
    }

    /// The running process.
    pub fn get() -> Option<&'static Process> {
        PROCESS.get()
    }

    /// Its number; nothing when it is not recorded.
    pub fn number(&self) -> Option<u32> {
        Some(self.number.load(Ordering::Relaxed)).filter(|n| *n != NO_PROCESS)
    }

    /// Says whether it ends here, all handed over.
    pub fn set_ended(&self, ended: bool) {
        if let Some(number) = self.number() {
            self.shared.set_ended(number, ended);
        }
    }

    /// Sends bytes that are no records, cut at ends of lines where one slot does not hold them.
    pub fn send(&self, content: Content, time: u64, bytes: &[u8]) {
        let Some(process) = self.number() else { return };
        let start = SlotStart { process, stream: 0, time, instructions: 0 };
        let kept = if bytes.len() <= SLOT_BYTES {
            bytes.len()
        } else {
            bytes[..SLOT_BYTES].iter().rposition(|b| *b == b'\n').map_or(SLOT_BYTES, |n| n + 1)
        };
        if let Some(slot) = self.shared.take(content, start) {
            // SAFETY: taken just now.
            unsafe { self.shared.fill(slot, &bytes[..kept]) };
            self.shared.hand_over(slot, 0, Counts::default());
        }
    }
}

/// References that wait to be filtered, at most. None wait during a system call; a thread that
/// is killed between system calls loses those that do.
const UNFILTERED: usize = 512;
/// References that wait for the last level, at most.
const PENDING: usize = 32;

/// A reference on its way to a level.
#[derive(Clone, Copy)]
struct Waiting {
    /// What the next level is asked. Of one that waits for [`Behind`], what left the front is
    /// `left`, and `line` says nothing.
    missed: Missed,
    address: u64,
    /// `instructions << 5 | second << 4 | size_log2 << 1 | store`. `second` where it spans two
    /// lines and the first is before it on the same way: both make one miss.
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

#[inline(always)]
fn reference(address: u64, what: u64) -> Reference {
    Reference { address, size_log2: (what >> 1 & 7) as u8, store: what & 1 != 0 }
}

/// Instructions that the translated code itself counts, while there is one thread: those of
/// the process's only thread. Blocks that are translated later, for several threads, call.
pub static COUNTED_INLINE: AtomicU64 = AtomicU64::new(0);
static NONE_COUNTED: AtomicU64 = AtomicU64::new(0);
/// Whether the process has begun a second thread, ever.
pub static SEVERAL_THREADS: AtomicBool = AtomicBool::new(false);

/// One thread. What each reference needs comes first.
#[repr(C)]
pub struct Thread {
    /// Loads and stores.
    accesses: [u64; 2],
    line_shift: u32,
    /// Every reference is recorded, none is filtered.
    all: bool,
    waiting: usize,
    /// Instructions executed, the block under way included, but for those counted inline.
    pub instructions: u64,
    counted_inline: &'static AtomicU64,
    /// References that the callback could not answer. The program's own misses overlap only while
    /// what is done between them is short, so they are only noted when they are made.
    unfiltered: Box<[Waiting; UNFILTERED]>,
    /// The first level, where it is of the usual shape,
    front: Front,
    behind: Behind,
    /// Whether the reference before, with its first line, missed it,
    missed_first: bool,
    /// and where it is of another.
    first: First,
    process: &'static Process,
    /// What time is ahead of instructions.
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
    /// References on their way to the last level, whose set is being fetched meanwhile: its sets
    /// are seldom in the processor's caches, and waiting for each took half of the run time.
    pending: [Waiting; PENDING],
    pushed: usize,
    popped: usize,
    /// References until the next that is kept.
    until_sample: u64,
    random: u64,
    /// Arguments of the system call under way.
    pub arguments: [u64; 4],
}

/// A thread by QEMU's number. It is used by the one host thread that runs it.
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

/// The same, unless this is the first that is heard of it.
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
        until_sample: 1,
        random: 0,
        arguments: [0; 4],
    }));
    place.store(thread, Ordering::Relaxed);
    // SAFETY: made just now, and known to this host thread only.
    Some(unsafe { &mut *thread })
}

/// A level that is not asked for is not simulated.
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

/// Hands over what all threads hold. Nothing may run in them.
pub fn end_all() {
    (0..THREADS as u32).for_each(end_thread);
    if let Some(process) = Process::get() {
        process.set_ended(true);
    }
}

/// In the child of a fork: its own process, its own streams. Slots are the parent's.
pub fn forked() {
    let Some(process) = Process::get() else { return };
    let number = process.shared.new_process(std::process::id()).unwrap_or(NO_PROCESS);
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
        }
    }
    COUNTED_INLINE.store(0, Ordering::Relaxed);
}

impl Thread {
    /// What its process is.
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

    /// A load or store, made `before_end` instructions before the end of the block under way, of
    /// a filter that [`Self::is_usual`].
    #[inline(always)]
    pub fn access_usual(&mut self, address: u64, size_log2: u8, store: bool, before_end: u64) {
        self.accesses[usize::from(store)] += 1;
        let last = address.wrapping_add((1 << size_log2) - 1);
        if address ^ last >= USUAL_LINE_BYTES {
            return self.access_usual_two(address, size_log2, store, before_end);
        }
        if let Some(left) = self.front.use_line(address, store) {
            let what = self.what(size_log2, store, before_end);
            self.wait(Waiting { missed: Missed { line: NO_LINE, left }, address, what });
        }
    }

    /// One that spans two lines.
    #[cold]
    #[inline(never)]
    fn access_usual_two(&mut self, address: u64, size_log2: u8, store: bool, before_end: u64) {
        let what = self.what(size_log2, store, before_end);
        let mut second = 0;
        if let Some(left) = self.front.use_line(address, store) {
            self.wait(Waiting { missed: Missed { line: NO_LINE, left }, address, what });
            second = SECOND;
        }
        let last = address.wrapping_add((1 << size_log2) - 1);
        if let Some(left) = self.front.use_line(last, store) {
            // Which line it is stands in place of `line`.
            let missed = Missed { line: last, left };
            self.wait(Waiting { missed, address, what: what | second });
        }
    }

    /// Whether [`Self::access_usual`] serves this filter.
    pub fn is_usual(filter: &Filter) -> bool {
        filter.level > Level::None && First::is_usual(filter)
    }

    #[inline(always)]
    fn what(&self, size_log2: u8, store: bool, before_end: u64) -> u64 {
        let instructions = self.executed().wrapping_sub(before_end);
        instructions << 5 | u64::from(size_log2) << 1 | u64::from(store)
    }

    /// A load or store, of any other filter.
    #[inline]
    pub fn access(&mut self, address: u64, size_log2: u8, store: bool, before_end: u64) {
        self.accesses[usize::from(store)] += 1;
        let line = address >> self.line_shift;
        let last = address.wrapping_add((1 << size_log2) - 1) >> self.line_shift;
        let mut missed = Missed { line: NO_LINE, left: NO_LINE };
        if !self.all {
            match self.first.use_line(line, store) {
                Some(line) => missed = line,
                None if line == last => return,
                None => {}
            }
        }
        let what = self.what(size_log2, store, before_end);
        if line == last || self.all {
            self.wait(Waiting { missed, address, what });
        } else {
            self.access_two(last, Waiting { missed, address, what });
        }
    }

    /// Goes on with a reference that spans two lines.
    #[cold]
    fn access_two(&mut self, last: u64, mut waiting: Waiting) {
        if waiting.missed.line != NO_LINE {
            self.wait(waiting);
            waiting.what |= SECOND;
        }
        if let Some(missed) = self.first.use_line(last, waiting.what & 1 != 0) {
            self.wait(Waiting { missed, ..waiting });
        }
    }

    #[inline(always)]
    fn wait(&mut self, waiting: Waiting) {
        self.unfiltered[self.waiting % UNFILTERED] = waiting;
        self.waiting += 1;
        if self.waiting >= UNFILTERED {
            self.filter_all();
        }
    }

    /// Asks the rest of a first level of the usual shape for all that wait; those that missed it
    /// are left. Returns how many.
    fn filter_first(&mut self, count: usize) -> usize {
        let mut left = 0;
        for i in 0..count.min(UNFILTERED) {
            let mut waiting = self.unfiltered[i];
            let Missed { line, left: gone } = waiting.missed;
            let address = if line == NO_LINE { waiting.address } else { line };
            let missed = self.behind.use_line(address, gone);
            // Its first line may have been there.
            if !self.missed_first {
                waiting.what &= !SECOND;
            }
            self.missed_first = missed.is_some();
            if let Some(missed) = missed {
                self.second.prefetch(missed.line);
                self.unfiltered[left] = Waiting { missed, ..waiting };
                left += 1;
            }
        }
        left
    }

    /// Sends the references that wait on to the next level.
    #[inline(never)]
    fn filter_all(&mut self) {
        [self.counts.loads, self.counts.stores] = self.accesses;
        let mut count = std::mem::take(&mut self.waiting);
        if self.process.is_usual {
            count = self.filter_first(count);
        }
        match self.process.filter.level {
            Level::None => self.each_waiting(count, |thread, waiting| {
                thread.keep(waiting);
            }),
            Level::L1 => self.each_waiting(count, |thread, waiting| {
                if !waiting.is_second() {
                    thread.counts.l1_misses += 1;
                    thread.keep(waiting);
                }
                thread.write_back(waiting.missed.left, waiting.instructions());
            }),
            Level::L2 => self.each_waiting(count, |thread, waiting| {
                let beyond = thread.second(waiting);
                if beyond.miss && !(waiting.is_second() && thread.missed_before[0]) {
                    thread.keep(waiting);
                }
                thread.missed_before[0] = beyond.miss;
                for left in beyond.left {
                    thread.write_back(left, waiting.instructions());
                }
            }),
            Level::Llc => self.each_waiting(count, |thread, mut waiting| {
                let beyond = thread.second(waiting);
                let [left, passed] = beyond.left;
                if passed != NO_LINE {
                    let missed = Missed { line: NO_LINE, left: passed };
                    thread.push(Waiting { missed, ..waiting });
                }
                if beyond.miss && !thread.missed_before[0] {
                    waiting.what &= !SECOND;
                }
                thread.missed_before[0] = beyond.miss;
                let line = if beyond.miss { waiting.missed.line } else { NO_LINE };
                if beyond.miss || left != NO_LINE {
                    thread.push(Waiting { missed: Missed { line, left }, ..waiting });
                }
            }),
        }
        if let Some(slot) = self.slot {
            self.process.shared.publish(slot, self.executed(), self.counts);
        }
    }

    #[inline(always)]
    fn each_waiting(&mut self, count: usize, mut each: impl FnMut(&mut Thread, Waiting)) {
        for i in 0..count.min(UNFILTERED) {
            let waiting = self.unfiltered[i];
            each(self, waiting);
        }
    }

    /// Asks the second level, and counts.
    #[inline(always)]
    fn second(&mut self, waiting: Waiting) -> filter::Beyond {
        let beyond = filter::second(&mut self.second, waiting.missed);
        let again = waiting.is_second();
        self.counts.l1_misses += u64::from(!again);
        self.counts.l2_misses += u64::from(beyond.miss && !(again && self.missed_before[0]));
        beyond
    }

    #[inline]
    fn push(&mut self, waiting: Waiting) {
        for line in [waiting.missed.line, waiting.missed.left] {
            if line != NO_LINE {
                self.process.llc.prefetch(line);
            }
        }
        if self.pushed - self.popped == PENDING {
            self.judge_oldest();
        }
        self.pending[self.pushed % PENDING] = waiting;
        self.pushed += 1;
    }

    /// Looks the last level up for what waited while its set was fetched.
    #[inline]
    fn judge_oldest(&mut self) {
        let waiting = self.pending[self.popped % PENDING];
        self.popped += 1;
        let beyond = filter::last(&self.process.llc, waiting.missed);
        if waiting.missed.line != NO_LINE {
            if beyond.miss && !(waiting.is_second() && self.missed_before[1]) {
                self.counts.llc_misses += 1;
                self.keep(waiting);
            }
            self.missed_before[1] = beyond.miss;
        }
        for left in beyond.left {
            self.write_back(left, waiting.instructions());
        }
    }

    fn judge_all(&mut self) {
        while self.popped < self.pushed {
            self.judge_oldest();
        }
    }

    /// Sends all that waits through all caches.
    pub fn drain(&mut self) {
        self.filter_all();
        self.judge_all();
    }

    /// Whether this one is among those kept, where only some are sampled.
    #[inline]
    fn is_sampled(&mut self) -> bool {
        let one_in = self.process.filter.sample_one_in;
        if one_in > 1 {
            self.until_sample -= 1;
            if self.until_sample > 0 {
                return false;
            }
            self.until_sample = self.gap(one_in);
        }
        true
    }

    /// Makes room for one record in the slot.
    #[inline]
    fn has_room(&mut self, instructions: u64) -> Option<usize> {
        if self.length + MAX_RECORD_BYTES > SLOT_BYTES && !self.next_slot(instructions) {
            return None;
        }
        self.slot
    }

    /// Records a dirty line that left, unless it is [`NO_LINE`].
    #[inline]
    fn write_back(&mut self, line: u64, instructions: u64) {
        if line == NO_LINE {
            return;
        }
        self.counts.write_backs += 1;
        if !self.is_sampled() {
            return;
        }
        let Some(slot) = self.has_room(instructions) else { return };
        let time = instructions.wrapping_add(self.ahead);
        let write_back = WriteBack { address: line << self.line_shift };
        let encoder = &mut self.encoder;
        // SAFETY: this thread took the slot and has not handed it over.
        self.length = unsafe {
            self.process.shared.append(slot, self.length, self.references, |out| {
                encoder.write_back(out, time, write_back)
            })
        };
    }

    /// Records a reference, or not where only some are sampled.
    #[inline(always)]
    fn keep(&mut self, waiting: Waiting) {
        let Waiting { address, what, .. } = waiting;
        self.keep_this(address, what);
    }

    /// The same in registers: parts that were just stored would be waited for.
    #[inline(never)]
    fn keep_this(&mut self, address: u64, what: u64) {
        let instructions = what >> 5;
        if !self.is_sampled() {
            return;
        }
        if self.length + MAX_RECORD_BYTES > SLOT_BYTES {
            let order = Ordering::Relaxed;
            let _ = self.process.stack.compare_exchange(0, address, order, order);
        }
        let Some(slot) = self.has_room(instructions) else { return };
        let time = instructions.wrapping_add(self.ahead);
        self.references += 1;
        let reference = reference(address, what);
        let encoder = &mut self.encoder;
        // SAFETY: as for a write-back.
        self.length = unsafe {
            self.process.shared.append(slot, self.length, self.references, |out| {
                encoder.reference(out, time, reference)
            })
        };
    }

    /// An event, at the end of the block under way.
    pub fn event(&mut self, event: Event) {
        self.drain();
        let Some(slot) = self.has_room(self.executed()) else { return };
        let time = self.time();
        let encoder = &mut self.encoder;
        // SAFETY: as for a write-back.
        self.length = unsafe {
            self.process
                .shared
                .append(slot, self.length, self.references, |out| encoder.event(out, time, event))
        };
    }

    /// Lets time pass to the latest known.
    pub fn catch_up(&mut self) {
        let behind = self.process.shared.latest_time().saturating_sub(self.time());
        if behind > 0 {
            self.event(Event::Waited { time: behind });
            self.ahead = self.ahead.wrapping_add(behind);
        }
    }

    /// Irregular distances, even on average, so that a loop cannot fall in step: a xorshift
    /// generator (Marsaglia, "Xorshift RNGs", 2003) that begins with the stream's number.
    fn gap(&mut self, one_in: u64) -> u64 {
        if self.random == 0 {
            self.random = u64::from(self.stream.unwrap_or(0)) + 0x9e37_79b9_7f4a_7c15;
        }
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        1 + self.random % (2 * one_in - 1)
    }

    #[cold]
    fn next_slot(&mut self, instructions: u64) -> bool {
        let Some(process) = self.process.number() else { return false };
        self.pass_on();
        let stream = *self.stream.get_or_insert_with(|| self.process.shared.new_stream());
        let time = instructions.wrapping_add(self.ahead);
        let start = SlotStart { process, stream, time, instructions };
        self.slot = self.process.shared.take(Content::Records, start);
        self.encoder = Encoder::new(time);
        (self.length, self.references) = (if self.slot.is_some() { 0 } else { SLOT_BYTES }, 0);
        self.slot.is_some()
    }

    /// Hands its slot over; the next record takes a new one.
    pub fn hand_over(&mut self) {
        self.drain();
        self.pass_on();
    }

    fn pass_on(&mut self) {
        self.process.shared.publish_time(self.time());
        if let Some(slot) = self.slot.take() {
            self.process.shared.hand_over(slot, self.executed(), self.counts);
        }
        self.length = SLOT_BYTES;
    }
}
