//! Turns of emulated processors before the clock begins.
//!
//! One thread of QEMU emulates all processors, and where its clock counts instructions the one that
//! runs goes on until the next timer is due. QEMU before 8.1 calls the others then, with no time left,
//! and begins with the first one again: while it is busy the others do not run. Whatever one processor
//! asks of another (a flush of translations, a thread that is to end) waits for as long, and a warm-up
//! is of little use. So a timer of the machine's own ends turns: all processors are asked to leave. One that
//! is asked before it is called is called anew, when there is time again, instead of the first one.
//!
//! A slice has as many instructions as there are nanoseconds until the next timer. Where several take a
//! nanosecond, the time is not over then, and the next processor has a slice of what is left, and so on.
//! So the first slice is made 200 microseconds long, and a turn as many times as long as instructions take
//! less than a nanosecond. The first processor would have the first, longest slice of each: in every other
//! turn it is asked to leave at once.
//!
//! The asking is left to work that QEMU does between processors: in a timer's function it would come
//! before the call without time, which answers it.
//!
//! Later versions divide the time until a timer is due among processors by themselves.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use terrace_timed::config::TimedConfig;
use terrace_timed::full_speed::instructions_in;

use crate::clock::{QemuClock, symbol};

/// How long a processor goes on at most.
const SLICE_NS: u64 = 200_000;
/// A function of the versions that divide the time.
const DIVIDES: &std::ffi::CStr = c"icount_percpu_budget";
/// QEMU's clock of the machine.
const VIRTUAL: c_int = 1;
/// Words of a timer of QEMU's (six are used), of which it writes all that it reads.
const WORDS: usize = 16;

type Callback = extern "C" fn(*mut c_void);
type Init = unsafe extern "C" fn(
    timer: *mut c_void,
    group: *mut c_void,
    clock: c_int,
    scale: c_int,
    attributes: c_int,
    callback: Callback,
    data: *mut c_void,
);
/// Work that QEMU does between processors.
type Work = extern "C" fn(processor: *mut c_void, data: *mut c_void);
type Queue = unsafe extern "C" fn(processor: *mut c_void, work: Work, data: *mut c_void);
type Set = unsafe extern "C" fn(timer: *mut c_void, at_ns: i64);

/// Set when turns end.
static ENDED: AtomicBool = AtomicBool::new(false);
/// Whether the first processor is to leave this turn to the others at first.
static FIRST_WAITS: AtomicBool = AtomicBool::new(false);
/// The same of the turn after.
static FIRST_WAITS_NEXT: AtomicBool = AtomicBool::new(false);

/// The timer.
pub struct Turns {
    timer: *mut c_void,
    init: Init,
    set: Set,
    queue: Queue,
    clock: QemuClock,
    turn_ns: i64,
}

impl Turns {
    /// Prepares turns of this machine; `None` where this QEMU needs none.
    pub fn find(clock: QemuClock, machine: &TimedConfig) -> Result<Option<Turns>, String> {
        if symbol(DIVIDES).is_ok() {
            return Ok(None);
        }
        use std::mem::transmute;
        // SAFETY: functions of QEMU with these signatures, the same in 5.0 to 10.0; what is given to
        // work is a union of the size of a pointer.
        let (init, set, queue) = unsafe {
            (
                transmute::<*mut c_void, Init>(symbol(c"timer_init_full")?),
                transmute::<*mut c_void, Set>(symbol(c"timer_mod_ns")?),
                transmute::<*mut c_void, Queue>(symbol(c"async_run_on_cpu")?),
            )
        };
        let timer = Box::leak(Box::new([0u64; WORDS])).as_mut_ptr().cast();
        let turn_ns = instructions_in(SLICE_NS, machine).max(SLICE_NS) as i64;
        Ok(Some(Turns { timer, init, set, queue, clock, turn_ns }))
    }

    /// Begins, where there are several processors. In a callback of one, once.
    pub fn begin(self) {
        if self.clock.processor(1).is_null() {
            return;
        }
        let turns: &'static Turns = Box::leak(Box::new(self));
        let data = std::ptr::from_ref(turns).cast_mut().cast();
        // SAFETY: a function of QEMU with this signature, the same in 5.0 to 10.0; the timer is larger
        // than QEMU's, is never freed, and no one else has it. Without a group it is of the machine.
        unsafe { (turns.init)(turns.timer, std::ptr::null_mut(), VIRTUAL, 1, 0, on_turn, data) };
        turns.next();
    }

    /// The next turn begins.
    fn next(&self) {
        // SAFETY: a timer that was initialised; QEMU's own lock is around its list.
        unsafe { (self.set)(self.timer, self.clock.at_slice_ns() as i64 + self.turn_ns) };
    }
}

/// Whether this processor, which begins a block, is to leave.
#[inline]
pub fn is_to_leave(index: u32) -> bool {
    index == 0 && FIRST_WAITS.load(Ordering::Relaxed) && FIRST_WAITS.swap(false, Ordering::Relaxed)
}

/// Ends turns: the clock has slices of its own.
pub fn end() {
    ENDED.store(true, Ordering::Relaxed);
    FIRST_WAITS.store(false, Ordering::Relaxed);
}

extern "C" fn on_turn(data: *mut c_void) {
    if ENDED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: what `begin` gave, which is never freed; there is a first processor.
    unsafe {
        let turns = &*data.cast::<Turns>();
        turns.next();
        let waits = FIRST_WAITS_NEXT.fetch_xor(true, Ordering::Relaxed);
        FIRST_WAITS.store(waits, Ordering::Relaxed);
        (turns.queue)(turns.clock.processor(0), between, data);
    }
}

extern "C" fn between(_processor: *mut c_void, turns: *mut c_void) {
    // SAFETY: what `begin` gave; no processor runs.
    unsafe { (*turns.cast::<Turns>()).clock.end_slices() };
}
