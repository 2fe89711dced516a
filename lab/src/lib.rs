//! The lab: a virtual machine with two memory tiers, from one call.
//!
//! **Knows** QEMU, initramfs archives, Debian packages, and how to tell a guest that works from one
//! that hangs or panics. **Must not know** policies, trackers or what the program inside is for: a
//! command, programs and files go in; exit code, output and results come back.
//!
//! ```no_run
//! use terrace_lab::{GuestJob, Lab, LabConfig};
//! let lab = Lab::new(LabConfig::default())?;
//! let job = GuestJob::new("uname").args(["-r"]);
//! let result = lab.run(&job, |event| eprintln!("{event:?}"))?;
//! assert_eq!(result.exit_code, 0);
//! # Ok::<(), terrace_lab::LabError>(())
//! ```
//!
//! A run goes through these files, in this order:
//! - [`machine`]: the requested machine, as QEMU arguments;
//! - [`job`]: the command, its files and its results;
//! - [`cache`], [`apt`], [`packages`]: Debian packages, of the host's suite or another, fetched
//!   once and never installed;
//! - [`kernel`], [`qemu`]: what the machine boots and what emulates it;
//! - [`closure`]: the shared libraries that a program needs;
//! - [`whole`]: all files of a package and of those that it depends on;
//! - [`initramfs`]: the guest's root file system, as an archive (its first process is `init.sh`, which
//!   runs the command by `serve.sh`);
//! - `loaded`: what a guest is given of a program, without its symbols;
//! - `root`: a root file system and an init of its own instead, on a disk (`root.sh`);
//! - [`accesses`]: accesses by node, counted under software emulation;
//! - [`timed`]: the memory clock, which models the time of accesses, and its figures;
//! - [`accel`]: KVM or software emulation;
//! - [`guest`]: one running guest, from start to end;
//! - [`temporary`]: folders that are gone when the process is;
//! - `terminal`: a terminal of the guest, where a job has one;
//! - [`lab`]: runs a job;
//! - [`requirements`]: what the host must have, with the remedy for what it lacks.

pub mod accel;
pub mod accesses;
pub mod apt;
pub mod cache;
pub mod closure;
pub mod error;
pub mod guest;
pub mod initramfs;
pub mod job;
pub mod kernel;
pub mod lab;
mod lines;
mod loaded;
pub mod machine;
pub mod packages;
pub mod qemu;
pub mod requirements;
mod root;
mod spawn;
mod symbols;
pub mod temporary;
mod terminal;
pub mod timed;
mod vmlinux;
pub mod whole;

pub use accel::{Accel, AccelChoice};
pub use accesses::{AccessCounts, CountedCaches, FastShares, Window};
pub use apt::Suite;
pub use error::{LabError, Phase};
pub use job::{Event, GuestFile, GuestJob, GuestResult, Program};
pub use kernel::{Kernel, Series};
pub use lab::{Lab, LabConfig};
pub use machine::{GuestMachine, QemuVersion, TcgThreads};
pub use qemu::{Qemu, QemuProgram, user_emulator};
pub use requirements::{MissingRequirement, find_program, missing_requirements};
pub use temporary::TemporaryFolder;
pub use timed::ClockFigures;
