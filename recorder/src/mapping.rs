//! Shared memory from a file. `unsafe` because of `mmap`.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Maps a file that holds a `T`, for the rest of the process's life. Its bits need not be a valid
/// `T`: the caller must not read more than it knows to be valid.
pub(crate) fn map<T>(file: &File) -> io::Result<*const T> {
    let bytes = size_of::<T>();
    if file.metadata()?.len() != bytes as u64 {
        return Err(io::Error::other("its size is not that of this version's memory"));
    }
    let (read_write, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping, at an address that the kernel chooses; the file is as long.
    let memory = unsafe { mmap(ptr::null_mut(), bytes, read_write, shared, file.as_fd(), 0)? };
    Ok(memory.cast_const().cast())
}
