//! The memory that the plug-in, in every recorded process, shares with the launcher.
//!
//! A head with the filter and a few counters, then slots. A thread takes a free slot, writes
//! records into it and publishes its progress with each; it hands a full slot over and takes
//! another. No locks and no file descriptors: a fork inherits the mapping, a program that closes
//! every descriptor closes none of ours, and the records of a killed program are still there. When
//! no slot is free a thread waits for the launcher.
//!
//! All `unsafe` of this memory is here, except for its mapping (`mapping.rs`).

use std::fs::File;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use std::{io, ptr};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use rustix::thread::futex;
use terrace_recordings::reference::block::MAX_RECORD_BYTES;
use terrace_recordings::reference::{CacheShape, Filter, Level};

use crate::filter::Counts;
use crate::mapping;
use crate::system_process::SystemProcess;

/// Bytes of records in a slot.
pub const SLOT_BYTES: usize = 128 << 10;
/// Slots; threads that are alive at one time, at most.
pub const SLOTS: usize = 2048;
/// Processes in a recording, at most; those beyond run unrecorded.
pub const PROCESSES: usize = 1 << 16;

const MAGIC: u64 = u64::from_le_bytes(*b"TERRREC4");
const FREE: u32 = 0;
const OWNED: u32 = 1;
const FULL: u32 = 2;

/// The contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Records of a stream.
    Records,
    /// Lines of the process's map.
    Maps,
    /// The process's command line, arguments terminated by zeros.
    Command,
}

#[repr(C)]
struct Head {
    magic: AtomicU64,
    filter: [AtomicU64; 9],
    processes: AtomicU32,
    streams: AtomicU32,
    filled: AtomicU32,
    freed: AtomicU32,
    waiting: AtomicU32,
    closed: AtomicU32,
    launcher: AtomicU32,
    launcher_start_ticks: AtomicU64,
    tickets: AtomicU64,
    latest: AtomicU64,
    system_ids: [AtomicU32; PROCESSES],
    start_ticks: [AtomicU64; PROCESSES],
    /// 1 for a process that ended by itself, or executed another program.
    ended: [AtomicU8; PROCESSES],
}

#[repr(C, align(128))]
struct SlotHead {
    state: AtomicU32,
    content: AtomicU32,
    process: AtomicU32,
    stream: AtomicU32,
    ticket: AtomicU64,
    time: AtomicU64,
    instructions: AtomicU64,
    /// Records in the upper, bytes in the lower half.
    progress: AtomicU64,
    end_instructions: AtomicU64,
    counts: [AtomicU64; Counts::LEN],
}

#[repr(C, align(4096))]
struct Layout {
    head: Head,
    slots: [SlotHead; SLOTS],
    bytes: [[u8; SLOT_BYTES]; SLOTS],
}

/// Owner and beginning of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotStart {
    /// Number of the process.
    pub process: u32,
    /// Number of the stream.
    pub stream: u32,
    /// Time.
    pub time: u64,
    /// Instructions of the stream.
    pub instructions: u64,
}

/// A slot that was handed over, or that its owner left behind.
#[derive(Debug, Clone, Copy)]
pub struct Handed {
    /// Number of the slot.
    pub slot: usize,
    /// The kind of contents.
    pub content: Content,
    /// Where it begins.
    pub start: SlotStart,
    /// References in it.
    pub references: u64,
    /// Instructions of the stream when the slot was last written.
    pub end_instructions: u64,
    /// The stream's counts when it last published them; zeros if it never did.
    pub counts: Counts,
    length: usize,
}

/// The shared memory.
#[derive(Debug, Clone, Copy)]
pub struct Shared {
    memory: *const Layout,
}

// SAFETY: the memory stays mapped for good, and everything in it is atomic or, the bytes of a slot,
// used by the holder of the slot only.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Size of the shared memory's file in bytes.
    pub const SIZE_BYTES: usize = size_of::<Layout>();

    /// Maps the file for the rest of the process's life: a recording's memory, all zeros or
    /// initialised by [`Self::begin`].
    pub fn map(file: &File) -> io::Result<Self> {
        Ok(Shared { memory: mapping::map(file)? })
    }

    fn head(&self) -> &Head {
        // SAFETY: mapped for good, aligned to a page; all fields are atomics, any bits are valid.
        unsafe { &(*self.memory).head }
    }

    fn slot(&self, slot: usize) -> &SlotHead {
        // SAFETY: as for the head; the modulus keeps it inside.
        unsafe { &(*self.memory).slots[slot % SLOTS] }
    }

    fn bytes(&self, slot: usize) -> *mut u8 {
        // SAFETY: an address inside the mapping, no reference is made.
        unsafe { (&raw const (*self.memory).bytes[slot % SLOTS]).cast_mut().cast() }
    }

    /// For the launcher: initialises fresh memory.
    pub fn begin(&self, filter: &Filter) {
        let numbers = [
            filter.level as u64,
            filter.line_bytes.into(),
            filter.l1.size_bytes,
            filter.l1.ways.into(),
            filter.l2.size_bytes,
            filter.l2.ways.into(),
            filter.llc.size_bytes,
            filter.llc.ways.into(),
            filter.sample_one_in,
        ];
        for (to, number) in self.head().filter.iter().zip(numbers) {
            to.store(number, Ordering::Relaxed);
        }
        let own = SystemProcess::own();
        self.head().launcher.store(own.id, Ordering::Relaxed);
        self.head().launcher_start_ticks.store(own.start_ticks, Ordering::Relaxed);
        self.head().magic.store(MAGIC, Ordering::Release);
    }

    /// For the plug-in: the filter; `None` if the memory is of another kind.
    pub fn filter(&self) -> Option<Filter> {
        if self.head().magic.load(Ordering::Acquire) != MAGIC {
            return None;
        }
        let n = |i: usize| self.head().filter[i].load(Ordering::Relaxed);
        let shape = |i| CacheShape { size_bytes: n(i), ways: n(i + 1) as u32 };
        let levels = [Level::None, Level::L1, Level::L2, Level::Llc];
        Some(Filter {
            level: *levels.get(n(0) as usize)?,
            line_bytes: n(1) as u32,
            l1: shape(2),
            l2: shape(4),
            llc: shape(6),
            sample_one_in: n(8).max(1),
        })
    }

    /// For the plug-in: a number for a new process; `None` when there are too many, or the
    /// recording has ended.
    pub fn new_process(&self, own: SystemProcess) -> Option<u32> {
        if self.head().closed.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let process = self.head().processes.fetch_add(1, Ordering::AcqRel);
        let place = process as usize;
        self.head().start_ticks.get(place)?.store(own.start_ticks, Ordering::Relaxed);
        self.head().system_ids.get(place)?.store(own.id, Ordering::Release);
        Some(process)
    }

    /// For the plug-in: sets whether a process has handed everything over and ends.
    pub fn set_ended(&self, process: u32, ended: bool) {
        if let Some(place) = self.head().ended.get(process as usize) {
            place.store(ended.into(), Ordering::Release);
        }
    }

    /// For the launcher: processes that did not report their end.
    pub fn unended(&self) -> u32 {
        let count = self.head().processes.load(Ordering::Acquire) as usize;
        let ended = self.head().ended.iter().take(count);
        ended.filter(|ended| ended.load(Ordering::Acquire) == 0).count() as u32
    }

    /// A number for a new stream.
    pub fn new_stream(&self) -> u32 {
        self.head().streams.fetch_add(1, Ordering::Relaxed)
    }

    /// Streams so far.
    pub fn streams(&self) -> u32 {
        self.head().streams.load(Ordering::Relaxed)
    }

    /// The processes so far, by their numbers.
    pub fn system_processes(&self) -> impl Iterator<Item = SystemProcess> + '_ {
        let head = self.head();
        let count = head.processes.load(Ordering::Acquire) as usize;
        head.system_ids.iter().zip(&head.start_ticks).take(count).map(|(id, start_ticks)| {
            SystemProcess {
                id: id.load(Ordering::Acquire),
                start_ticks: start_ticks.load(Ordering::Relaxed),
            }
        })
    }

    /// Whether the launcher was killed, or another process has its id.
    fn launcher_is_gone(&self) -> bool {
        let head = self.head();
        let launcher = SystemProcess {
            id: head.launcher.load(Ordering::Relaxed),
            start_ticks: head.launcher_start_ticks.load(Ordering::Relaxed),
        };
        Pid::from_raw(launcher.id as i32)
            .is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH) || launcher.is_replaced())
    }

    /// Publishes a stream's time.
    pub fn publish_time(&self, time: u64) {
        self.head().latest.fetch_max(time, Ordering::Relaxed);
    }

    /// The latest published time.
    pub fn latest_time(&self) -> u64 {
        self.head().latest.load(Ordering::Relaxed)
    }

    /// For the plug-in: takes a free slot, waiting for one if necessary; `None` when the launcher
    /// has ended the recording.
    pub fn take(&self, content: Content, start: SlotStart) -> Option<usize> {
        let head = self.head();
        loop {
            if head.closed.load(Ordering::Relaxed) != 0 {
                return None;
            }
            let freed = head.freed.load(Ordering::Acquire);
            let owned = (0..SLOTS).find(|slot| {
                let state = &self.slot(*slot).state;
                state.load(Ordering::Relaxed) == FREE
                    && state
                        .compare_exchange(FREE, OWNED, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok()
            });
            if let Some(slot) = owned {
                let to = self.slot(slot);
                to.content.store(content as u32, Ordering::Relaxed);
                to.process.store(start.process, Ordering::Relaxed);
                to.stream.store(start.stream, Ordering::Relaxed);
                to.time.store(start.time, Ordering::Relaxed);
                to.instructions.store(start.instructions, Ordering::Relaxed);
                to.end_instructions.store(start.instructions, Ordering::Relaxed);
                to.counts.iter().for_each(|c| c.store(0, Ordering::Relaxed));
                to.progress.store(0, Ordering::Release);
                return Some(slot);
            }
            head.waiting.fetch_add(1, Ordering::AcqRel);
            let timeout = futex_time(Duration::from_millis(20));
            let _ = futex::wait(&head.freed, futex::Flags::empty(), freed, Some(&timeout));
            head.waiting.fetch_sub(1, Ordering::AcqRel);
            // A launcher that was killed frees no slot: the program goes on unrecorded.
            if self.launcher_is_gone() {
                self.close();
            }
        }
    }

    /// For the plug-in: writes one record into a slot it has taken, at `length`, and publishes it.
    /// `encode` returns the record's length. Returns the new length.
    ///
    /// # Safety
    /// The caller took the slot and has not handed it over; nobody else writes to it.
    #[inline]
    pub unsafe fn append(
        &self,
        slot: usize,
        length: usize,
        references: u64,
        encode: impl FnOnce(&mut [u8; MAX_RECORD_BYTES]) -> usize,
    ) -> usize {
        let at = length.min(SLOT_BYTES - MAX_RECORD_BYTES);
        // SAFETY: inside the slot, which is the caller's alone.
        let record = unsafe { &mut *self.bytes(slot).add(at).cast::<[u8; MAX_RECORD_BYTES]>() };
        let length = at + encode(record).min(MAX_RECORD_BYTES);
        self.slot(slot).progress.store(references << 32 | length as u64, Ordering::Release);
        length
    }

    /// For the plug-in: fills a slot it has taken with bytes, as many as fit; returns how many.
    ///
    /// # Safety
    /// As for [`Self::append`].
    pub unsafe fn fill(&self, slot: usize, bytes: &[u8]) -> usize {
        let length = bytes.len().min(SLOT_BYTES);
        // SAFETY: inside the slot, which is the caller's alone.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.bytes(slot), length) };
        self.slot(slot).progress.store(length as u64, Ordering::Release);
        length
    }

    /// For the plug-in: publishes the progress of the stream that took the slot, in case it is
    /// killed before it hands the slot over.
    pub fn publish(&self, slot: usize, instructions: u64, counts: Counts) {
        let to = self.slot(slot);
        to.end_instructions.store(instructions, Ordering::Relaxed);
        for (to, count) in to.counts.iter().zip(counts.to_array()) {
            to.store(count, Ordering::Relaxed);
        }
    }

    /// For the plug-in: hands a slot over.
    pub fn hand_over(&self, slot: usize, end_instructions: u64, counts: Counts) {
        let (head, to) = (self.head(), self.slot(slot));
        self.publish(slot, end_instructions, counts);
        to.ticket.store(head.tickets.fetch_add(1, Ordering::AcqRel), Ordering::Relaxed);
        to.state.store(FULL, Ordering::Release);
        head.filled.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&head.filled, futex::Flags::empty(), 1);
    }

    /// For the launcher: slots that were handed over, each stream's in its order.
    pub fn handed(&self) -> Vec<Handed> {
        // Only those whose ticket was drawn before this load: a slot that precedes one of them in
        // its stream was handed over before that ticket was drawn, so it is visible too.
        let drawn = self.head().tickets.load(Ordering::Acquire);
        let mut handed: Vec<(u64, Handed)> = (0..SLOTS)
            .filter(|slot| self.slot(*slot).state.load(Ordering::Acquire) == FULL)
            .map(|slot| (self.slot(slot).ticket.load(Ordering::Relaxed), self.read_slot(slot)))
            .filter(|(ticket, _)| *ticket < drawn)
            .collect();
        handed.sort_unstable_by_key(|(ticket, _)| *ticket);
        handed.into_iter().map(|(_, handed)| handed).collect()
    }

    /// For the launcher: slots not handed over, of processes for which `is_dead`.
    pub fn left_behind(&self, mut is_dead: impl FnMut(u32) -> bool) -> Vec<Handed> {
        let mut left: Vec<Handed> = (0..SLOTS)
            .filter(|slot| self.slot(*slot).state.load(Ordering::Acquire) == OWNED)
            .map(|slot| self.read_slot(slot))
            .filter(|handed| is_dead(handed.start.process))
            .collect();
        left.sort_unstable_by_key(|handed| handed.start.stream);
        left
    }

    fn read_slot(&self, slot: usize) -> Handed {
        let from = self.slot(slot);
        let progress = from.progress.load(Ordering::Acquire);
        let counts = std::array::from_fn(|i| from.counts[i].load(Ordering::Relaxed));
        Handed {
            slot,
            content: match from.content.load(Ordering::Relaxed) {
                1 => Content::Maps,
                2 => Content::Command,
                _ => Content::Records,
            },
            start: SlotStart {
                process: from.process.load(Ordering::Relaxed),
                stream: from.stream.load(Ordering::Relaxed),
                time: from.time.load(Ordering::Relaxed),
                instructions: from.instructions.load(Ordering::Relaxed),
            },
            references: progress >> 32,
            end_instructions: from.end_instructions.load(Ordering::Relaxed),
            counts: Counts::from_array(counts),
            length: (progress as u32 as usize).min(SLOT_BYTES),
        }
    }

    /// For the launcher: copies a slot's bytes out and frees the slot.
    pub fn receive(&self, handed: &Handed, into: &mut Vec<u8>) {
        into.clear();
        into.resize(handed.length, 0);
        // SAFETY: the slot was handed over or its owner is dead, so nobody writes to it; the length
        // was bounded when it was read.
        unsafe { ptr::copy_nonoverlapping(self.bytes(handed.slot), into.as_mut_ptr(), into.len()) };
        self.slot(handed.slot).state.store(FREE, Ordering::Release);
        self.head().freed.fetch_add(1, Ordering::Release);
        if self.head().waiting.load(Ordering::Acquire) > 0 {
            let _ = futex::wake(&self.head().freed, futex::Flags::empty(), u32::MAX >> 1);
        }
    }

    /// For the launcher: waits until a slot is handed over after the first `seen`, or for this
    /// long; returns how many were.
    pub fn wait_handed(&self, seen: u32, timeout: Duration) -> u32 {
        let timeout = futex_time(timeout);
        let _ = futex::wait(&self.head().filled, futex::Flags::empty(), seen, Some(&timeout));
        self.head().filled.load(Ordering::Acquire)
    }

    /// For the launcher: accepts nothing more; waiting threads go on unrecorded.
    pub fn close(&self) {
        self.head().closed.store(1, Ordering::Release);
        self.head().freed.fetch_add(1, Ordering::Release);
        let _ = futex::wake(&self.head().freed, futex::Flags::empty(), u32::MAX >> 1);
    }
}

fn futex_time(duration: Duration) -> futex::Timespec {
    futex::Timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
