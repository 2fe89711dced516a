//! The memory clock of a virtual machine: the modelled time of its instructions and accesses, and
//! the clock that shows it to the guest.
//!
//! **Knows** the hardware parts of trace-driven simulation, x86-64 instructions, and how an
//! emulator counts instructions. **Must not know** QEMU: its plug-in (`recorder/plugin`) reports
//! the events of the emulated processors, and moves the emulator's clock by the time computed here.
//! Nothing here is `unsafe`.
//!
//! - [`config`]: configuration of a timed machine;
//! - [`clock`]: the clock's arithmetic;
//! - [`decode`] and [`flow`]: dependences between loads, from instruction bytes;
//! - [`causes`]: what the kernel's time is for;
//! - [`tables`]: translations, as far as an emulator without register access reports them;
//! - [`full_speed`]: time before anything is modelled;
//! - [`machine`]: the processors in time, and samples before time is modelled;
//! - [`samples`]: sampled accesses, as a processor and Linux would give them;
//! - [`windows`]: sampling windows in detail, and counting between them;
//! - [`work`]: what a program has executed, and the time of each part of it;
//! - [`figures`]: its counters.

pub mod causes;
pub mod clock;
pub mod config;
pub mod decode;
pub mod figures;
pub mod flow;
pub mod full_speed;
pub mod machine;
pub mod samples;
pub mod tables;
pub mod windows;
pub mod work;
