//! The system call and the mapping for sampling by the processor. Everything unsafe of it is here.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// `struct perf_event_attr`, as far as Linux 3.19 had it (`PERF_ATTR_SIZE_VER4`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attributes {
    /// Type of the event: the number of its unit.
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup: u32,
    pub breakpoint: u32,
    pub config1: u64,
    pub config2: u64,
    pub branch_sample_type: u64,
    pub sample_regs_user: u64,
    pub sample_stack_user: u32,
    pub clockid: i32,
    /// Registers that a sample has, of the moment in which it was taken.
    pub sample_regs_intr: u64,
}

/// Bits of `flags`: an event counts at once, but for those that are disabled.
pub(super) const DISABLED: u64 = 1 << 0;
pub(super) const EXCLUDE_GUEST: u64 = 1 << 20;
pub(super) const EXCLUDE_KERNEL: u64 = 1 << 5;
pub(super) const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
/// The two bits of `precise_ip`, of which 1 selects the processor's own samples.
pub(super) const PRECISE: u64 = 1 << 15;

/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// Opens an event of all processes on this processor, or of one process on all processors, in a group
/// with another where one is given.
pub(crate) fn open(
    attributes: &Attributes,
    pid: Option<u32>,
    cpu: Option<u32>,
    leader: Option<&OwnedFd>,
) -> io::Result<OwnedFd> {
    let attributes = Attributes { size: size_of::<Attributes>() as u32, ..*attributes };
    let number = |n: Option<u32>| n.map_or(-1, |n| n as libc::c_int);
    let leader = leader.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: the attributes live for the length of the call and are as large as they say; the kernel
    // writes at most their size.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            number(pid),
            number(cpu),
            leader,
            CLOSE_ON_EXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel has just made and nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Opens a probe at the beginning of a function of the kernel, of all processes on this processor.
pub(crate) fn open_probe(
    attributes: &Attributes,
    function: &std::ffi::CStr,
    cpu: u32,
) -> io::Result<OwnedFd> {
    // `kprobe_func`, and an offset of 0 in `config2`. The kernel copies the name within the call.
    let config1 = function.as_ptr().expose_provenance() as u64;
    open(&Attributes { config1, config2: 0, ..*attributes }, None, Some(cpu), None)
}

/// `PERF_EVENT_IOC_ENABLE` and `_DISABLE`, and `PERF_IOC_FLAG_GROUP`.
const ENABLE: libc::Ioctl = 0x2400;
const DISABLE: libc::Ioctl = 0x2401;
const GROUP: libc::c_ulong = 1;
/// `PERF_EVENT_IOC_PERIOD`.
const SET_PERIOD: libc::Ioctl = 0x4008_2404;

/// Offsets in `struct perf_event_mmap_page`, the ring's first page.
const HEAD: usize = 1024;
const TAIL: usize = 1032;
const PAGE: usize = 4096;

/// The ring of an event, mapped.
pub(crate) struct Ring {
    map: *mut u8,
    /// Bytes behind the first page: a power of two.
    bytes: usize,
    /// Closed after the mapping.
    event: OwnedFd,
}

// SAFETY: the mapping belongs to the ring alone, and goes to another thread whole.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps a ring of so many pages, a power of two, for an event.
    pub(crate) fn map(event: OwnedFd, pages: usize) -> io::Result<Self> {
        let bytes = pages.next_power_of_two() * PAGE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE + bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring { map: map.cast(), bytes, event })
    }

    /// Counts from now on, or no more, with the events that it leads or is led by.
    pub(super) fn enable(&self, on: bool) -> io::Result<()> {
        let request = if on { ENABLE } else { DISABLE };
        // SAFETY: the request takes flags and no memory.
        let set = unsafe { libc::ioctl(self.event.as_raw_fd(), request, GROUP) };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// From now on one sample in so many events.
    pub(super) fn set_period(&self, events: u64) -> io::Result<()> {
        // SAFETY: the kernel reads the number, which lives for the length of the call.
        let set = unsafe { libc::ioctl(self.event.as_raw_fd(), SET_PERIOD, &raw const events) };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the first page, which is mapped as long as this lives; the kernel
        // accesses it atomically.
        unsafe { &*self.map.add(offset).cast::<AtomicU64>() }
    }

    /// Passes on the bytes that the kernel has written since the last call, in one or two pieces,
    /// and then lets the kernel overwrite them.
    pub(crate) fn take(&mut self, mut piece: impl FnMut(&[u8])) {
        let head = self.word(HEAD).load(Ordering::Acquire);
        let tail = self.word(TAIL).load(Ordering::Relaxed);
        let count = (head.wrapping_sub(tail) as usize).min(self.bytes);
        let from = tail as usize & (self.bytes - 1);
        let first = count.min(self.bytes - from);
        for (at, bytes) in [(from, first), (0, count - first)] {
            if bytes > 0 {
                // SAFETY: within the mapping; between tail and head the kernel writes nothing until
                // the tail is moved, below.
                piece(unsafe { std::slice::from_raw_parts(self.map.add(PAGE + at), bytes) });
            }
        }
        self.word(TAIL).store(head, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: what `map` mapped, which nobody uses any more.
        unsafe { libc::munmap(self.map.cast(), PAGE + self.bytes) };
    }
}
