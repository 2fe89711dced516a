//! The recorder: runs a program under QEMU's user emulation and writes what it loads and stores.
//!
//! **Knows** the recording format, QEMU's command line, the memory it shares with its plug-in.
//! **Must not know** who asks for a recording, or what is done with it.
//!
//! Two parts. The *plug-in* (`plugin/`) runs inside QEMU, inside each process of the recorded
//! program: it sends every reference through the caches and writes what is left, encoded, into
//! slots of shared memory. The *launcher* ([`Recorder`]) starts the program, takes full slots,
//! compresses them and writes the file. So the file has one writer however many processes there
//! are, compression uses another core, and a program that is killed takes nothing with it: what
//! it had recorded is in memory that the launcher holds.
//!
//! The plug-in is Rust too: it shares the record format and the memory layout with the launcher
//! as code, and both are tested without QEMU.
//!
//! - [`cache`]: the caches of the filter;
//! - [`filter`]: the path of a reference through them;
//! - [`nodes`]: accesses of a whole emulated machine by memory node;
//! - [`program`]: what an executable file is, and what runs it;
//! - [`places`]: where QEMU and the plug-in are;
//! - [`shared`]: the memory between plug-in and launcher;
//! - [`Signals`]: what asks for the end;
//! - [`launch`]: the launcher.

pub mod cache;
pub mod filter;
mod huge;
pub mod launch;
pub mod nodes;
pub mod places;
mod prefetch;
pub mod program;
pub mod shared;
mod signals;

pub use launch::{Options, Progress, RecordError, Recorder, Summary};
pub use signals::Signals;
