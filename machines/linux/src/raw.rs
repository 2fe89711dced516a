//! The system calls that no safe wrapper exists for: `move_pages(2)` and
//! `migrate_pages(2)`, the `PAGEMAP_SCAN` ioctl, and the guard's own session. Everything unsafe of this crate is in this file.
//!
//! The functions translate arguments and errors and do nothing else.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// `PAGE_IS_FILE` (include/uapi/linux/fs.h): the page is not anonymous.
pub const PAGE_IS_FILE: u64 = 1 << 2;
/// `PAGE_IS_PRESENT`: the page is mapped.
pub const PAGE_IS_PRESENT: u64 = 1 << 3;
/// `PAGE_IS_PFNZERO`: it is the shared page of zeros.
pub const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// `PAGE_IS_HUGE`: it is mapped by one page-middle-directory entry.
pub const PAGE_IS_HUGE: u64 = 1 << 6;

/// Move pages even when other processes map them too; needs CAP_SYS_NICE.
pub const MPOL_MF_MOVE_ALL: i32 = 1 << 2;
/// Move pages that only this process maps.
pub const MPOL_MF_MOVE: i32 = 1 << 1;

/// `struct page_region`: a run of pages with the same categories.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageRegion {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// `PAGE_IS_*`.
    pub categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong =
    (3 << 30) | ((size_of::<ScanArguments>() as libc::c_ulong) << 16) | (0x66 << 8) | 16;

/// The categories of a scan.
#[derive(Debug, Clone, Copy)]
pub struct Categories {
    /// Categories that must be set.
    pub set: u64,
    /// Categories that must not be set.
    pub clear: u64,
    /// Categories that are distinguished in the answer.
    pub reported: u64,
}

/// One call of `PAGEMAP_SCAN` over `start..end`: fills `regions` from its beginning, returns the
/// number filled and the address at which the scan stopped.
pub fn pagemap_scan(
    pagemap: BorrowedFd<'_>,
    start: u64,
    end: u64,
    categories: Categories,
    regions: &mut [PageRegion],
) -> std::io::Result<(usize, u64)> {
    let mut arguments = ScanArguments {
        size: size_of::<ScanArguments>() as u64,
        start,
        end,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        category_inverted: categories.clear,
        category_mask: categories.set | categories.clear,
        return_mask: categories.reported,
        ..ScanArguments::default()
    };
    // SAFETY: `arguments` is a live `pm_scan_arg` of the size that it states, and its `vec` and
    // `vec_len` describe `regions`, which is borrowed mutably for the length of the call and has
    // the layout of `page_region`. The kernel writes to nothing else.
    let filled = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut arguments) };
    if filled < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok((filled as usize, arguments.walk_end))
}

/// `move_pages(2)`: moves the pages at `addresses` of process `pid` to `nodes`, one node for each,
/// or only locates them if `nodes` is `None`. `status` gets a node or a negated errno for each page
/// that the kernel reached. Returns the number of pages that were not moved.
///
/// # Panics
/// When the slices differ in length.
pub fn move_pages(
    pid: u32,
    addresses: &[u64],
    nodes: Option<&[i32]>,
    status: &mut [i32],
    flags: i32,
) -> std::io::Result<u64> {
    assert_eq!(addresses.len(), status.len(), "a status for each address");
    assert!(nodes.is_none_or(|n| n.len() == addresses.len()), "a node for each address");
    let flags = if nodes.is_some() { flags } else { 0 };
    // SAFETY: the three pointers are valid for `addresses.len()` elements of the sizes the kernel
    // expects (pointer-sized addresses on the 64-bit machines this crate is for, C ints), checked
    // above. The kernel reads `addresses` and `nodes` and writes `status`; the addresses belong to
    // the other process and are not dereferenced here.
    let left = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid as libc::c_long,
            addresses.len() as libc::c_ulong,
            addresses.as_ptr(),
            nodes.map_or(std::ptr::null(), <[i32]>::as_ptr),
            status.as_mut_ptr(),
            flags as libc::c_long,
        )
    };
    if left < 0 { Err(std::io::Error::last_os_error()) } else { Ok(left as u64) }
}

/// `migrate_pages(2)`: moves all that the process has on the nodes of one mask to those of the other,
/// as far as there is room. Returns the number of pages that stayed. Needs CAP_SYS_NICE.
pub fn migrate_pages(pid: u32, from: u64, to: u64) -> std::io::Result<u64> {
    // The kernel reads one bit less than this number.
    let bits = u64::BITS + 1;
    // SAFETY: both pointers are to one word, of which the kernel reads 64 bits.
    let left = unsafe {
        libc::syscall(
            libc::SYS_migrate_pages,
            pid as libc::c_long,
            bits as libc::c_ulong,
            &raw const from,
            &raw const to,
        )
    };
    if left < 0 { Err(std::io::Error::last_os_error()) } else { Ok(left as u64) }
}

/// Makes the child of `command` the leader of a session of its own, so that neither a terminal
/// that closes nor a signal to the parent's process group reaches it.
pub fn in_own_session(command: &mut Command) -> &mut Command {
    // SAFETY: the closure runs between fork and exec and makes one async-signal-safe system call.
    unsafe { command.pre_exec(|| Ok(rustix::process::setsid().map(drop)?)) }
}
