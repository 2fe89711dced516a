//! The lab: a virtual machine with two memory tiers, from one call.
//!
//! **Knows** QEMU, initramfs archives, Debian packages, and how to tell a guest that works from
//! one that hangs or panics. **Must not know** policies, trackers or what the program inside is
//! for: it carries a command, programs and files in, and an exit code, output and results back.
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
//! - [`machine`]: the machine that is wanted, as QEMU arguments;
//! - [`job`]: what shall run in it, and what comes back;
//! - [`cache`], [`apt`], [`packages`]: Debian packages, of the host's suite or another, fetched
//!   once and never installed;
//! - [`kernel`], [`qemu`]: what the machine boots and what emulates it;
//! - [`closure`]: the shared libraries that a program needs;
//! - [`initramfs`]: the guest's root file system, as an archive (its first process is `init.sh`, which
//!   runs the command by `serve.sh`);
//! - `root`: a root file system and an init of its own instead, on a disk (`root.sh`);
//! - [`accesses`]: what went to which node, counted while software emulates;
//! - [`timed`]: a clock that knows the memory, and what it has counted;
//! - [`accel`]: whether KVM really works here;
//! - [`guest`]: one running guest, from start to end;
//! - [`lab`]: the call that puts these together;
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
pub mod machine;
pub mod packages;
pub mod qemu;
pub mod requirements;
mod root;
mod spawn;
pub mod timed;
mod vmlinux;

pub use accel::{Accel, AccelChoice};
pub use accesses::{AccessCounts, CountedCaches, FastShares, Window};
pub use apt::Suite;
pub use error::{LabError, Phase};
pub use job::{Event, GuestFile, GuestJob, GuestResult, Program};
pub use kernel::{Kernel, Series};
pub use lab::{Lab, LabConfig};
pub use machine::{Machine, QemuVersion, TcgThreads};
pub use qemu::{Qemu, QemuProgram};
pub use requirements::{MissingRequirement, find_program, missing_requirements};
pub use timed::ClockFigures;
