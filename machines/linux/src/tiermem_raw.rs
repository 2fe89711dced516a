//! The ioctls of `/dev/tiermem` (`include/uapi/linux/tiermem.h` of the series in `kernel/`).
//!
//! Arguments have the kernel's layout; the functions translate errors and do nothing else.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `struct tm_info`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Info {
    pub size: u32,
    pub abi: u32,
    pub features: u64,
    pub nr_nodes: u32,
    pub max_count: u32,
}

/// `struct tm_pt_policy`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct PtPolicy {
    pub size: u32,
    pub pidfd: i32,
    pub flags: u32,
    pub mode: u32,
    pub levels: u32,
    pub node: i32,
}

/// `struct tm_pt_stat`.
#[repr(C)]
#[derive(Debug, Default)]
struct PtStat {
    size: u32,
    pidfd: i32,
    start: u64,
    len: u64,
    counts: u64,
    nr_nodes: u32,
    reserved: u32,
}

/// `struct tm_migrate`.
#[repr(C)]
#[derive(Debug, Default)]
struct Migrate {
    size: u32,
    pidfd: i32,
    count: u32,
    node: i32,
    addrs: u64,
    status: u64,
    flags: u32,
    moved: u32,
    reserved: u32,
    reserved2: u32,
}

/// `struct tm_exchange`.
#[repr(C)]
#[derive(Debug, Default)]
struct Exchange {
    size: u32,
    pidfd: i32,
    count: u32,
    flags: u32,
    a: u64,
    b: u64,
    status: u64,
    exchanged: u32,
    reserved: u32,
}

/// `struct tm_scan_entry`: state of 2 MB of addresses.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScanEntry {
    /// The first address.
    pub addr: u64,
    /// Base pages that are mapped.
    pub present: u16,
    /// Of those, accessed.
    pub accessed: u16,
    /// Of those mapped, in the top tier.
    pub fast: u16,
    /// `SCAN_HUGE`, `SCAN_UNKNOWN`.
    pub flags: u16,
    /// Accessed pages of each 64 KB.
    pub by_64k: [u8; 32],
    /// Accessed pages, a bit each.
    pub bits: [u64; 8],
    /// Pages on an active list of the kernel's, a bit each.
    pub active: [u64; 8],
}

// `TM_SCAN_ENTRY_SIZE_VER0` of the header.
const _: () = assert!(size_of::<ScanEntry>() == 176);

/// `struct tm_scan`.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Scan {
    pub size: u32,
    pub pidfd: i32,
    pub start: u64,
    pub len: u64,
    pub entries: u64,
    pub nr_entries: u32,
    pub flags: u32,
    pub next: u64,
    pub filled: u32,
    pub entry_size: u32,
}

/// An argument of the device: a C structure of integers that begins with its size.
///
/// # Safety
/// The type has the layout of the kernel's structure for `COMMAND`, begins with `size: u32`, and
/// the memory that its pointers name is valid for what the kernel does with it.
unsafe trait Argument {
    const NUMBER: libc::c_ulong;
    fn size(&mut self) -> &mut u32;
}

macro_rules! arguments {
    ($($name:ident = $number:literal, $bytes:literal;)*) => { $(
        // The layouts have no padding between fields; `kernel/tests` checks these sizes against the
        // header.
        const _: () = assert!(size_of::<$name>() == $bytes);
        // SAFETY: as in the header. Pointers are set by the functions below, each from a slice that
        // it borrows for the length of the call.
        unsafe impl Argument for $name {
            const NUMBER: libc::c_ulong = $number;
            fn size(&mut self) -> &mut u32 {
                &mut self.size
            }
        }
    )* };
}

arguments! {
    Info = 0, 24;
    PtPolicy = 1, 24;
    PtStat = 2, 40;
    Migrate = 4, 48;
    Exchange = 5, 48;
    Scan = 6, 56;
}

fn call<A: Argument>(device: BorrowedFd<'_>, argument: &mut A) -> io::Result<()> {
    *argument.size() = size_of::<A>() as u32;
    // `_IO(TM_TYPE, number)`.
    let command = (0xBB << 8) | A::NUMBER;
    // SAFETY: a live argument of the size that it states; the other memory that the kernel reads
    // and writes is valid, as `Argument` requires. Pages of this process may change frames, which
    // no program can observe.
    let code = unsafe { libc::ioctl(device.as_raw_fd(), command, argument as *mut A) };
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn count(items: usize) -> io::Result<u32> {
    u32::try_from(items).map_err(io::Error::other)
}

/// `TM_INFO`.
pub fn info(device: BorrowedFd<'_>) -> io::Result<Info> {
    let mut argument = Info::default();
    call(device, &mut argument)?;
    Ok(argument)
}

/// `TM_PT_POLICY`.
pub fn pt_policy(device: BorrowedFd<'_>, argument: &mut PtPolicy) -> io::Result<()> {
    call(device, argument)
}

/// `TM_PT_STAT`: `counts` has one row of `nr_nodes` for each of the five levels.
///
/// # Panics
/// When it has not.
pub fn pt_stat(
    device: BorrowedFd<'_>,
    pidfd: i32,
    start: u64,
    len: u64,
    nr_nodes: u32,
    counts: &mut [u64],
) -> io::Result<()> {
    assert_eq!(counts.len(), 5 * nr_nodes as usize, "five levels of a count for each node");
    let counts = counts.as_mut_ptr() as u64;
    call(device, &mut PtStat { pidfd, start, len, counts, nr_nodes, ..PtStat::default() })
}

/// `TM_MIGRATE`. Returns the number of pages that are on the node afterwards; `status` has each
/// result.
///
/// # Panics
/// When the slices differ in length.
pub fn migrate(
    device: BorrowedFd<'_>,
    pidfd: i32,
    addresses: &[u64],
    node: i32,
    flags: u32,
    status: &mut [i32],
) -> io::Result<u32> {
    assert_eq!(addresses.len(), status.len(), "a status for each address");
    let mut argument = Migrate {
        pidfd,
        count: count(addresses.len())?,
        node,
        addrs: addresses.as_ptr() as u64,
        status: status.as_mut_ptr() as u64,
        flags,
        ..Migrate::default()
    };
    call(device, &mut argument)?;
    Ok(argument.moved)
}

/// `TM_EXCHANGE`. Returns the number of exchanged pairs; `status` has each result.
///
/// # Panics
/// When the slices differ in length.
pub fn exchange(
    device: BorrowedFd<'_>,
    pidfd: i32,
    a: &[u64],
    b: &[u64],
    flags: u32,
    status: &mut [i32],
) -> io::Result<u32> {
    assert!(a.len() == b.len() && a.len() == status.len(), "as many of each");
    let mut argument = Exchange {
        pidfd,
        count: count(a.len())?,
        flags,
        a: a.as_ptr() as u64,
        b: b.as_ptr() as u64,
        status: status.as_mut_ptr() as u64,
        ..Exchange::default()
    };
    call(device, &mut argument)?;
    Ok(argument.exchanged)
}

/// `TM_SCAN`: fills `entries` from their beginning. `argument` gets their number, and the address
/// at which to continue.
pub fn scan(
    device: BorrowedFd<'_>,
    argument: &mut Scan,
    entries: &mut [ScanEntry],
) -> io::Result<()> {
    argument.entries = entries.as_mut_ptr() as u64;
    argument.nr_entries = count(entries.len())?;
    argument.entry_size = size_of::<ScanEntry>() as u32;
    let done = call(device, argument);
    argument.entries = 0;
    done
}

/// A descriptor that names a process, from `pidfd_open(2)`.
pub fn pidfd_of(pid: u32) -> io::Result<std::os::fd::OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or(io::Error::from_raw_os_error(libc::ESRCH))?;
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}
