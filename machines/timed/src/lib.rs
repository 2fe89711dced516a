//! A virtual machine whose clock knows the memory: what instructions and accesses of an emulated
//! machine take, and the clock that shows it to the guest.
//!
//! **Knows** the hardware parts of trace-driven simulation, x86-64 instructions, and how an emulator counts
//! instructions. **Must not know** QEMU: its plug-in (`recorder/plugin`) says what the emulated
//! processors do, and moves the emulator's clock by what is computed here. Nothing here is `unsafe`.
//!
//! - [`config`]: what a timed machine is made of;
//! - [`clock`]: the clock's arithmetic;
//! - [`decode`] and [`flow`]: which loads need which, from instruction bytes;
//! - [`tables`]: translations, as far as an emulator without registers tells them;
//! - [`machine`]: the processors in time;
//! - [`figures`]: what they counted.

pub mod clock;
pub mod config;
pub mod decode;
pub mod figures;
pub mod flow;
pub mod machine;
pub mod tables;
