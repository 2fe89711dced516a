//! The plug-in that QEMU calls while it executes the recorded program.
//!
//! **Knows** QEMU's plug-in interface, the filter, the shared memory. **Must not know** files:
//! the launcher writes them.
//!
//! Everything here runs inside the recorded program's process. So it starts no threads (a fork
//! would lose them), keeps no file open (the program may close it), takes no lock, and does not
//! panic.
//!
//! - [`qemu`]: QEMU's functions;
//! - [`thread`]: data of a thread, and the path of each reference;
//! - [`callbacks`]: the functions that QEMU calls;
//! - [`nodes`]: in a whole emulated machine instead, accesses by memory node;
//! - [`timed`]: the memory clock of a whole emulated machine; [`clock`]: QEMU's clock;
//!   [`code_buffer`]: its buffer of translated code; [`registers`]: page tables with newer QEMUs;
//!   [`samples`]: samples of accesses;
//! - [`system_calls`]: events from system calls;
//! - [`exec`]: continues in a program that the process executes;
//! - [`maps`]: the process's memory map and command line.

mod callbacks;
mod clock;
mod code_buffer;
mod exec;
mod host;
mod kernel;
mod maps;
mod nodes;
mod qemu;
mod registers;
mod samples;
mod system_calls;
mod thread;
mod timed;
mod turns;
