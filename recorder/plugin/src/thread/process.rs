//! The recorded process: what all of its threads share.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use terrace_recorder::cache::SharedCache;
use terrace_recorder::filter::Counts;
use terrace_recorder::shared::{Content, SLOT_BYTES, Shared, SlotStart};
use terrace_recorder::system_process::SystemProcess;
use terrace_recordings::reference::Filter;

use crate::thread::Thread;

pub(super) const NO_PROCESS: u32 = u32::MAX;

/// Data that all threads of a process use.
pub struct Process {
    /// The memory shared with the launcher.
    pub shared: Shared,
    pub(super) filter: Filter,
    /// Whether [`Thread::access_usual`] handles the filter.
    pub is_usual: bool,
    pub(super) llc: SharedCache,
    pub(super) number: AtomicU32,
    /// Whether its first map was written.
    pub mapped: AtomicBool,
    /// Begun by a fork.
    pub forked: AtomicBool,
    /// First and last address of the heap; zeros when unknown.
    pub heap: [AtomicU64; 2],
    /// An address in the first thread's stack: that of its first reference, which every program
    /// makes there.
    pub stack: AtomicU64,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

impl Process {
    /// Sets up the recording of this process; false when that is impossible.
    pub fn begin(shared: Shared) -> bool {
        let Some(filter) = shared.filter() else { return false };
        let sets = terrace_recorder::cache::sets("llc", filter.llc, filter.line_bytes);
        let Ok(sets) = sets else { return false };
        let process = Process {
            shared,
            llc: SharedCache::new(sets, filter.llc.ways, filter.line_bytes),
            is_usual: Thread::is_usual(&filter),
            filter,
            number: AtomicU32::new(shared.new_process(SystemProcess::own()).unwrap_or(NO_PROCESS)),
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

    /// Its number; `None` if it is not recorded.
    pub fn number(&self) -> Option<u32> {
        Some(self.number.load(Ordering::Relaxed)).filter(|n| *n != NO_PROCESS)
    }

    /// The number of a thread's stream, a new one if it has none.
    pub(super) fn stream(&self, stream: &mut Option<u32>) -> u32 {
        *stream.get_or_insert_with(|| self.shared.new_stream())
    }

    /// Sets whether it ends here, with all its data handed over.
    pub fn set_ended(&self, ended: bool) {
        if let Some(number) = self.number() {
            self.shared.set_ended(number, ended);
        }
    }

    /// Sends bytes that are no records, cut at line ends where one slot is too small.
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
