//! A virtual machine of KVM whose memory is an arena, and whose one processor reads pages of it on
//! request: accesses that set bits in the machine's own page tables and not in this process's.
//!
//! The machine runs a few instructions without firmware or an operating system: it goes through a
//! list of addresses, reads a byte at each and halts. It writes nothing to the arena.
//! The numbers and layouts are those of include/uapi/linux/kvm.h and arch/x86/include/uapi/asm/kvm.h.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::arena::Arena;

const KVM_CREATE_VM: libc::c_ulong = 0xae01;
const KVM_GET_VCPU_MMAP_SIZE: libc::c_ulong = 0xae04;
const KVM_CREATE_VCPU: libc::c_ulong = 0xae41;
const KVM_SET_USER_MEMORY_REGION: libc::c_ulong = 0x4020_ae46;
const KVM_RUN: libc::c_ulong = 0xae80;
const KVM_SET_REGS: libc::c_ulong = 0x4090_ae82;
const KVM_GET_SREGS: libc::c_ulong = 0x8138_ae83;
const KVM_SET_SREGS: libc::c_ulong = 0x4138_ae84;
const EXIT_HLT: u32 = 5;
/// Offset of `exit_reason` in `struct kvm_run`.
const EXIT_REASON: usize = 8;

/// The arena's address in the machine; the machine's program and the list are at 0.
const ARENA_AT: u64 = 1 << 28;
const LIST_AT: usize = 4096;
/// Size of the program's own memory: a list of 16,000 addresses.
const OWN_BYTES: usize = 64 << 10;
/// 32-bit code: load the list's address; next: load a word; end at 0; read a byte there; go on; halt.
const PROGRAM: [u8; 15] =
    [0xbe, 0, 0x10, 0, 0, 0xad, 0x85, 0xc0, 0x74, 4, 0x8a, 0x18, 0xeb, 0xf7, 0xf4];

#[repr(C)]
struct MemoryRegion {
    slot: u32,
    flags: u32,
    guest_address: u64,
    size_bytes: u64,
    address: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Segment {
    base: u64,
    limit: u32,
    selector: u16,
    kind: u8,
    present: u8,
    dpl: u8,
    db: u8,
    s: u8,
    l: u8,
    g: u8,
    avl: u8,
    unusable: u8,
    padding: u8,
}

/// `struct kvm_sregs`; what is not set here stays as the kernel gave it.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct SpecialRegisters {
    /// cs, ds, es, fs, gs, ss, tr, ldt.
    segments: [Segment; 8],
    tables: [u64; 4],
    cr0: u64,
    others: [u64; 6],
    interrupts: [u64; 4],
}

/// `struct kvm_regs`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Registers {
    general: [u64; 16],
    rip: u64,
    rflags: u64,
}

/// A mapping of this process for this use alone.
struct Mapping(*mut std::ffi::c_void, usize);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping that was made for this; nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.0, self.1) };
    }
}

/// The machine. Its files are closed, and the arena is released, when it is dropped.
pub(super) struct Guest {
    arena: Rc<Arena>,
    processor: OwnedFd,
    run: Mapping,
    own: Mapping,
    _machine: OwnedFd,
}

/// A call on one of KVM's files with a number as its argument.
fn call(file: &impl AsRawFd, request: libc::c_ulong, argument: u64) -> Result<i32, Errno> {
    // SAFETY: the requests passed here take a number or nothing.
    done(unsafe { libc::ioctl(file.as_raw_fd(), request, argument) })
}

/// A call with a structure as its argument, which the kernel reads or writes.
fn call_with<T>(
    file: &impl AsRawFd,
    request: libc::c_ulong,
    argument: &mut T,
) -> Result<(), Errno> {
    // SAFETY: `T` is the structure of the request, of the size that the request's number states.
    done(unsafe { libc::ioctl(file.as_raw_fd(), request, std::ptr::from_mut(argument)) }).map(drop)
}

fn done(answer: i32) -> Result<i32, Errno> {
    let error = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    if answer < 0 { Err(error()) } else { Ok(answer) }
}

fn owned(file: i32) -> OwnedFd {
    // SAFETY: a file that a call has just made for this process.
    unsafe { OwnedFd::from_raw_fd(file) }
}

impl Guest {
    pub(super) fn new(arena: &Rc<Arena>) -> Result<Guest, Errno> {
        let open = File::options().read(true).write(true).open("/dev/kvm");
        let kvm = open.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let machine = owned(call(&kvm, KVM_CREATE_VM, 0)?);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let own = unsafe {
            let nowhere = std::ptr::null_mut();
            rustix::mm::mmap_anonymous(nowhere, OWN_BYTES, protection, MapFlags::PRIVATE)
        }?;
        let own = Mapping(own, OWN_BYTES);
        // SAFETY: the program fits into the mapping.
        unsafe { std::ptr::copy_nonoverlapping(PROGRAM.as_ptr(), own.0.cast(), PROGRAM.len()) };
        let regions = [
            (0, 0, OWN_BYTES as u64, own.0 as u64),
            (1, ARENA_AT, arena.size_bytes(), arena.address(0)),
        ];
        for (slot, guest_address, size_bytes, address) in regions {
            let mut region = MemoryRegion { slot, flags: 0, guest_address, size_bytes, address };
            call_with(&machine, KVM_SET_USER_MEMORY_REGION, &mut region)?;
        }
        let processor = owned(call(&machine, KVM_CREATE_VCPU, 0)?);
        let run_bytes = call(&kvm, KVM_GET_VCPU_MMAP_SIZE, 0)? as usize;
        // SAFETY: a new mapping of the processor's file, of the size that the kernel states.
        let run = unsafe {
            let nowhere = std::ptr::null_mut();
            rustix::mm::mmap(nowhere, run_bytes, protection, MapFlags::SHARED, &processor, 0)
        }?;
        let run = Mapping(run, run_bytes);

        // 32-bit protected mode without paging: all segments from 0 to 4 GB.
        let mut special = SpecialRegisters::default();
        call_with(&processor, KVM_GET_SREGS, &mut special)?;
        let flat = |kind| Segment {
            limit: u32::MAX,
            selector: 8,
            kind,
            present: 1,
            db: 1,
            s: 1,
            g: 1,
            ..Segment::default()
        };
        special.segments[0] = flat(11);
        special.segments[1..6].fill(flat(3));
        special.cr0 |= 1;
        call_with(&processor, KVM_SET_SREGS, &mut special)?;
        Ok(Guest { arena: Rc::clone(arena), processor, run, own, _machine: machine })
    }

    /// Makes the machine read these pages of the arena.
    pub(super) fn read(&self, pages: &[usize]) -> Result<(), Errno> {
        for pages in pages.chunks((OWN_BYTES - LIST_AT) / 4 - 1) {
            for (nth, &page) in pages.iter().enumerate() {
                let offset = self.arena.address(page) - self.arena.address(0);
                self.put(nth, (ARENA_AT + offset) as u32);
            }
            self.put(pages.len(), 0);
            // Bit 1 is always set.
            let mut registers = Registers { rflags: 2, ..Registers::default() };
            call_with(&self.processor, KVM_SET_REGS, &mut registers)?;
            loop {
                match call(&self.processor, KVM_RUN, 0) {
                    Err(Errno::INTR | Errno::AGAIN) => {}
                    other => break other.map(drop)?,
                }
            }
            // SAFETY: the field is in the mapping; the kernel wrote it before the call returned.
            let reason =
                unsafe { self.run.0.cast::<u8>().add(EXIT_REASON).cast::<u32>().read_volatile() };
            if reason != EXIT_HLT {
                return Err(Errno::IO);
            }
        }
        Ok(())
    }

    fn put(&self, nth: usize, address: u32) {
        // SAFETY: the list ends within the mapping, by the size of the chunks above.
        unsafe {
            self.own.0.cast::<u8>().add(LIST_AT + 4 * nth).cast::<u32>().write_volatile(address);
        }
    }
}
