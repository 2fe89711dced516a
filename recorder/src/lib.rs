//! The recorder: runs a program under QEMU's user emulation and writes its loads and stores.
//!
//! **Knows** the recording format, QEMU's command line, the memory it shares with its plug-in.
//! **Must not know** who uses a recording, or for what.
//!
//! Two parts. The *plug-in* (`plugin/`) runs inside QEMU, inside each process of the recorded
//! program: it sends every reference through the caches and writes those that miss, encoded, into
//! slots of shared memory. The *launcher* ([`Recorder`]) starts the program, takes full slots,
//! compresses them and writes the file. So the file has one writer however many processes there
//! are, compression uses another core, and the records of a program that is killed are not lost:
//! they are in memory that the launcher holds.
//!
//! The plug-in is Rust too: it shares the record format and the memory layout with the launcher
//! as code, and both are tested without QEMU.
//!
//! - [`cache`]: the caches of the filter;
//! - [`filter`]: the path of a reference through them;
//! - [`nodes`]: accesses of a whole emulated machine by memory node;
//! - [`program`]: kinds of executable files, and interpreters of scripts;
//! - [`libraries`]: those of a QEMU that does not run with the host's own;
//! - [`places`]: paths of QEMU and the plug-in;
//! - [`sampling`]: which references of a stream are sampled;
//! - [`system_process`]: processes whose ids others may get;
//! - [`shared`]: the memory between plug-in and launcher;
//! - [`Signals`]: signals that end a recording;
//! - [`launch`]: the launcher.

pub mod cache;
pub mod filter;
mod huge;
pub mod launch;
pub mod libraries;
mod mapping;
pub mod nodes;
pub mod places;
mod prefetch;
pub mod program;
pub mod sampling;
pub mod shared;
mod signals;
pub mod system_process;

pub use launch::{Options, Progress, RecordError, Recorder, Summary};
pub use signals::Signals;
