//! Memory that is held in a way that makes it hard or impossible to move, or that puts it to other
//! uses: as device drivers, servers and hypervisors do with the memory of real programs.
//!
//! Holding changes no contents and touches no page's words: a check of them finds no difference.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use rustix::io::Errno;
use rustix::mm::Advice;
use rustix::pipe::{IoSliceRaw, SpliceFlags};
use terrace_core::page::PageSize;

use super::arena::Arena;
use super::guest::Guest;

/// How memory is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldKind {
    /// A pipe holds a reference to each page, as `vmsplice(2)` leaves it: none of them can move.
    Piped,
    /// Registered with io_uring for reads and writes of devices: pinned for long.
    Registered,
    /// Locked in memory (`mlock(2)`): it moves like any other.
    Locked,
    /// Offered to the kernel to be merged with pages of the same contents (`MADV_MERGEABLE`).
    Merged,
    /// Offered to the kernel to be joined to huge pages (`MADV_HUGEPAGE`).
    Joined,
    /// A mapping for each base page: some of a program that protects and gives back memory in small
    /// pieces.
    Cut,
    /// The memory of a virtual machine of KVM, whose processor touches it instead of the program.
    Guest,
}

impl HoldKind {
    fn call(self) -> &'static str {
        match self {
            HoldKind::Piped => "vmsplice",
            HoldKind::Registered => "io_uring_register",
            HoldKind::Locked => "mlock",
            HoldKind::Merged | HoldKind::Joined | HoldKind::Cut => "madvise",
            HoldKind::Guest => "/dev/kvm",
        }
    }
}

/// Memory could not be held.
#[derive(Debug, thiserror::Error)]
#[error("{call} of {size_bytes} bytes: {source}; expected a kernel and rights that allow it")]
pub struct HoldError {
    call: &'static str,
    size_bytes: u64,
    source: Errno,
}

/// An arena whose memory is held until this is dropped.
pub struct Held {
    arena: Rc<Arena>,
    kind: HoldKind,
    /// The files that hold it; closing releases it.
    files: Vec<OwnedFd>,
    guest: Option<Guest>,
}

impl Held {
    /// Holds all pages of the arena.
    pub fn hold(arena: &Rc<Arena>, kind: HoldKind) -> Result<Self, HoldError> {
        let mut held = Held { arena: Rc::clone(arena), kind, files: Vec::new(), guest: None };
        let done = match kind {
            HoldKind::Piped => held.pipe(),
            HoldKind::Registered => held.register(),
            HoldKind::Locked => held.lock(),
            HoldKind::Merged => held.advise(Advice::LinuxMergeable),
            HoldKind::Joined => held.advise(Advice::LinuxHugepage),
            HoldKind::Cut => held.cut(),
            HoldKind::Guest => Guest::new(arena).map(|guest| held.guest = Some(guest)),
        };
        done.map_err(|source| held.error(source)).map(|()| held)
    }

    fn error(&self, source: Errno) -> HoldError {
        HoldError { call: self.kind.call(), size_bytes: self.arena.size_bytes(), source }
    }

    /// Whether the pages are touched by another party than the program while they are held so.
    pub fn is_touching(&self) -> bool {
        self.guest.is_some()
    }

    /// Makes the holder read these pages.
    pub fn touch(&self, pages: &[usize]) -> Result<(), HoldError> {
        let read = self.guest.as_ref().map_or(Ok(()), |guest| guest.read(pages));
        read.map_err(|source| self.error(source))
    }

    fn start(&self) -> *mut std::ffi::c_void {
        self.arena.page(0).as_ptr().cast_mut().cast()
    }

    fn len(&self) -> usize {
        self.arena.size_bytes() as usize
    }

    /// One byte of each page: a reference to the whole of it.
    fn pipe(&mut self) -> Result<(), Errno> {
        let mut page = 0;
        while page < self.arena.pages() {
            let (read, write) = rustix::pipe::pipe()?;
            // A place for each page that goes in; root may have as many.
            let _ = rustix::pipe::fcntl_setpipe_size(&write, 1 << 20);
            let places = rustix::pipe::fcntl_getpipe_size(&write)? / 4096;
            for _ in 0..places.min(self.arena.pages() - page) {
                let words = self.arena.page(page).as_ptr().cast::<u8>();
                // SAFETY: one byte of a page of the arena, which lives as long as `self`.
                let byte = unsafe { std::slice::from_raw_parts(words, 1) };
                // SAFETY: the pipe holds a reference to the page and is never read; the page is not
                // given away (no SPLICE_F_GIFT).
                unsafe {
                    rustix::pipe::vmsplice(
                        &write,
                        &[IoSliceRaw::from_slice(byte)],
                        SpliceFlags::NONBLOCK,
                    )
                }?;
                page += 1;
            }
            self.files.extend([read, write]);
        }
        Ok(())
    }

    fn register(&mut self) -> Result<(), Errno> {
        // struct io_uring_params (include/uapi/linux/io_uring.h).
        let mut parameters = MaybeUninit::<[u32; 30]>::zeroed();
        // SAFETY: zeroed parameters of the size that the kernel reads and writes; 1 entry.
        let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
        if ring < 0 {
            return Err(last_error());
        }
        // SAFETY: a new file that only this owns.
        let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
        // No more than 1 GB in each buffer.
        const MOST: usize = 1 << 30;
        let (start, len) = (self.start(), self.len());
        let buffers: Vec<libc::iovec> = (0..len)
            .step_by(MOST)
            .map(|at| libc::iovec {
                iov_base: start.wrapping_byte_add(at),
                iov_len: MOST.min(len - at),
            })
            .collect();
        const REGISTER_BUFFERS: i32 = 0;
        // SAFETY: the buffers are in the arena, which lives as long as `self`; no operation is ever
        // submitted, so that nothing reads or writes them.
        let done = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                ring.as_raw_fd(),
                REGISTER_BUFFERS,
                buffers.as_ptr(),
                buffers.len(),
            )
        };
        if done < 0 {
            return Err(last_error());
        }
        self.files.push(ring);
        Ok(())
    }

    fn lock(&mut self) -> Result<(), Errno> {
        // SAFETY: the arena's own range; locking changes no contents.
        unsafe { rustix::mm::mlock(self.start(), self.len()) }
    }

    /// Every second base page is not inherited by a child: neighbours differ, and are mappings of
    /// their own.
    fn cut(&mut self) -> Result<(), Errno> {
        let bytes = PageSize::Base.bytes() as usize;
        for at in (0..self.len()).step_by(2 * bytes) {
            let page = self.start().wrapping_byte_add(at);
            // SAFETY: a page of the arena; the advice is about children, which there are none of.
            unsafe { rustix::mm::madvise(page, bytes, Advice::LinuxDontFork) }?;
        }
        Ok(())
    }

    fn advise(&mut self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the arena's own range; the kernel keeps its contents either way.
        unsafe { rustix::mm::madvise(self.start(), self.len(), advice) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = match self.kind {
            HoldKind::Piped | HoldKind::Registered | HoldKind::Guest => Ok(()),
            // SAFETY: as for locking.
            HoldKind::Locked => unsafe { rustix::mm::munlock(self.start(), self.len()) },
            HoldKind::Merged => self.advise(Advice::LinuxUnmergeable),
            HoldKind::Joined => self.advise(Advice::LinuxNoHugepage),
            HoldKind::Cut => self.advise(Advice::LinuxDoFork),
        };
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::super::checked::CheckedArena;
    use super::*;

    #[test]
    fn memory_that_is_cut_is_a_mapping_for_each_page_and_one_again() {
        let arena = Rc::new(Arena::map(PageSize::Base, 100).unwrap());
        let mappings = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let (from, to) = (arena.address(0), arena.address(0) + arena.size_bytes());
            let starts = maps
                .lines()
                .filter_map(|line| u64::from_str_radix(line.split_once('-')?.0, 16).ok());
            starts.filter(|start| (from..to).contains(start)).count()
        };
        let before = mappings();
        let held = Held::hold(&arena, HoldKind::Cut).unwrap();
        assert!((99..=100).contains(&mappings()), "{}", mappings());
        drop(held);
        assert_eq!(mappings(), before);
    }

    #[test]
    fn held_memory_keeps_its_contents_and_comes_free() {
        let mut memory = CheckedArena::fill(Arena::map(PageSize::Base, 300).unwrap(), 3);
        let kinds = [
            HoldKind::Piped,
            HoldKind::Registered,
            HoldKind::Locked,
            HoldKind::Merged,
            HoldKind::Joined,
            HoldKind::Cut,
            HoldKind::Guest,
        ];
        for kind in kinds {
            match Held::hold(memory.arena(), kind) {
                // More pages than a pipe has places for.
                Ok(held) => {
                    assert!(kind != HoldKind::Piped || held.files.len() >= 4);
                    assert_eq!(held.is_touching(), kind == HoldKind::Guest);
                }
                // Where this kernel lacks it, or a container's profile or limit is in the way.
                Err(e) => {
                    let known = [
                        Errno::PERM,
                        Errno::ACCESS,
                        Errno::NOENT,
                        Errno::NOSYS,
                        Errno::INVAL,
                        Errno::NOMEM,
                        Errno::NODEV,
                        Errno::NXIO,
                    ];
                    assert!(known.contains(&e.source), "{e}");
                }
            }
            assert_eq!(memory.touch(7), 0, "{kind:?}");
            assert_eq!(memory.verify(), 0, "{kind:?}");
        }
    }
}
