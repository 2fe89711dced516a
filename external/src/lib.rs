//! Policies that decide in a process of their own, in Python, while pages of running programs are
//! moved by what they say.
//!
//! # The problem
//! A policy is pure and runs inside Terrace: it can do no more than decide badly. A policy of a user
//! is a program: it can be slow, wait for ever, die, use up memory, or do anything that its user may.
//! The loop that it decides for must go on, in time, whatever it does.
//!
//! # The approach
//! [`External`] is a policy like others to the engine. It holds a *fallback*, one of Terrace's own
//! policies, which sees every scan, and a handle on a process to which each scan is sent. Where the
//! answer is there within the deadline and makes sense, it is the plan; else the fallback's is, and
//! why is counted ([`Lapse`]), logged when it changes, and reported
//! ([`terrace_core::policy::ExternalReport`]).
//!
//! - *Time*: an answer is waited for a part of the period. A late one is dropped, and no scan is sent
//!   until it came; after some periods without one the process is ended.
//! - *Privileges*: the process runs as a user without any, without a way to have more processes or
//!   files, and with bounded memory (`process`; the bounds are set by `terrace.serve` before the
//!   policy is read).
//! - *Sense*: what comes back is bounded in length, parsed as untrusted ([`protocol`]) and checked
//!   against the scan and the budget ([`Moves::check`]).
//! - *Failure*: a process that died is started anew after waits that double, and given up after so
//!   many in a row.
//!
//! The text of the policy goes to the process by its pipe: its user need not be able to read the
//! file, and what was checked when the configuration was read is what runs.
//!
//! - [`config`]: how such a policy is written; [`policy`]: asking and falling back;
//! - [`process`]: the process; [`protocol`]: messages; [`moves`]: answers.
//!
//! **Depends on** the core, and the coding of scans in recordings. **Must not depend on** machines,
//! the engine, or what a policy is written in, but for the command that starts it.

pub mod config;
pub mod moves;
pub mod policy;
pub mod process;
pub mod protocol;

pub use config::{ExternalPolicy, is_external};
pub use moves::Moves;
pub use policy::{External, Lapse, Patience};
