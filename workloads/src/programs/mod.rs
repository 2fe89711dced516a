//! Programs that do the real computation on real memory: the workload classes of the papers'
//! tables, sized by a footprint, seeded, each checking its own result.
//!
//! One implementation serves three uses:
//! - natively ([`run_native`]): plain loads and stores at full speed;
//! - recorded: the native program under an emulator, which needs no code here;
//! - traced ([`trace`], or pulled with [`pull::events`]): every load and store of its arrays is reported
//!   to a [`sink::Sink`], at the same addresses on every machine, without an emulator.
//!
//! A kernel is generic over [`memory::Memory`], whose documentation describes arrays, threads and
//! phases. To add a program: write its file beside these, name it here, add its row to
//! [`REGISTRY`].
//!
//! **Knows** arrays, numbers and phases. **Must not know** the use of the references.

pub mod cli;
#[cfg(test)]
mod fault;
pub mod memory;
mod native;
mod outcome;
mod parameters;
pub mod pull;
mod shared;
pub mod sink;
mod traced;

mod als;
mod bfs;
mod bt;
mod btree;
mod bwaves;
mod cactus;
mod canneal;
mod cg;
mod dc;
mod deepsjeng;
mod freqmine;
mod ft;
mod gups;
mod hashjoin;
mod is;
mod kv;
mod lbm;
mod lu;
mod lulesh;
mod mcf;
mod mg;
mod minife;
mod pagerank;
mod stream;
mod ua;
mod xsbench;

#[cfg(test)]
mod measure;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use terrace_core::parameters::ParameterDoc;

use memory::Memory;
use native::{MarkListener, Native};
pub use outcome::{Check, Outcome, ProgramResult};
pub use parameters::{LEAST_FOOTPRINT_BYTES, MOST_THREADS, Params, ProgramError};
use sink::Sink;
use traced::{Stopped, Traced};

/// Every program there is.
pub static REGISTRY: &[ProgramKind] = &[
    als::KIND,
    bfs::KIND,
    bt::KIND,
    btree::KIND,
    bwaves::KIND,
    cactus::KIND,
    canneal::KIND,
    cg::KIND,
    dc::KIND,
    deepsjeng::KIND,
    freqmine::KIND,
    ft::KIND,
    gups::KIND,
    hashjoin::KIND,
    is::KIND,
    kv::KIND,
    lbm::KIND,
    lu::KIND,
    lulesh::KIND,
    mcf::KIND,
    mg::KIND,
    minife::KIND,
    pagerank::KIND,
    stream::KIND,
    ua::KIND,
    xsbench::KIND,
];

/// One program: a row of the registry.
pub struct ProgramKind {
    /// Name on the command line.
    pub name: &'static str,
    /// Summary of the computation, in one line.
    pub summary: &'static str,
    /// The papers' workloads that it represents, and why its accesses are like theirs.
    pub stands_for: &'static str,
    /// The operation that it counts, in the plural.
    pub operation: &'static str,
    /// Whether it can use several threads.
    pub threads: bool,
    /// Its own parameters.
    pub parameters: &'static [ParameterDoc],
    /// Its kernel, compiled for each memory.
    pub run: Run,
}

/// A kernel: the computation, whatever the memory.
pub trait Kernel {
    /// Computes and checks the result.
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError>;
}

/// A kernel compiled for each memory.
pub struct Run {
    native: fn(&mut Native<'_>, &Params) -> Result<Outcome, ProgramError>,
    traced: fn(&mut Traced<'_>, &Params) -> Result<Outcome, ProgramError>,
    #[cfg(test)]
    faulty: fn(&mut fault::Faulty, &Params) -> Result<Outcome, ProgramError>,
}

impl Run {
    /// Compiles a kernel.
    pub const fn of<K: Kernel>() -> Run {
        Run {
            native: |m, p| K::run(m, p),
            traced: |m, p| K::run(m, p),
            #[cfg(test)]
            faulty: |m, p| K::run(m, p),
        }
    }
}

/// The program of this name, if it accepts the parameters.
fn find(name: &str, params: &Params) -> Result<&'static ProgramKind, ProgramError> {
    let kind = kind(name)?;
    let bad = |what: String| Err(ProgramError::BadParameter(format!("{name}: {what}")));
    let most_threads = if kind.threads { MOST_THREADS } else { 1 };
    if !(1..=most_threads).contains(&params.threads) {
        return bad(format!("{} threads: expected 1 to {most_threads}", params.threads));
    }
    let bytes = params.footprint_bytes;
    if !(LEAST_FOOTPRINT_BYTES..=1 << 46).contains(&bytes) {
        return bad(format!(
            "a footprint of {bytes} bytes: expected {LEAST_FOOTPRINT_BYTES} to {}",
            1u64 << 46
        ));
    }
    Ok(kind)
}

/// Rejects a name that no program has, and parameters that it cannot accept whatever its options.
pub fn check(name: &str, params: &Params) -> Result<(), ProgramError> {
    find(name, params).map(|_| ())
}

/// The program of this name.
pub fn kind(name: &str) -> Result<&'static ProgramKind, ProgramError> {
    REGISTRY.iter().find(|k| k.name == name).ok_or_else(|| ProgramError::Unknown {
        got: name.to_owned(),
        expected: terrace_core::names::expected(name, REGISTRY.iter().map(|k| k.name)),
    })
}

/// Adds the program's name to a parameter error.
fn named(name: &str) -> impl Fn(ProgramError) -> ProgramError + '_ {
    move |error| match error {
        ProgramError::BadParameter(what) => ProgramError::BadParameter(format!("{name}: {what}")),
        other => other,
    }
}

/// Runs a program at full speed.
pub fn run_native(name: &str, params: &Params) -> Result<ProgramResult, ProgramError> {
    run_listening(name, params, None)
}

/// Runs a program at full speed; `listener` gets its marks as they come.
pub fn run_listening(
    name: &str,
    params: &Params,
    listener: Option<Box<MarkListener<'_>>>,
) -> Result<ProgramResult, ProgramError> {
    let kind = find(name, params)?;
    let mut memory = Native::new(params.threads, listener);
    let outcome = (kind.run.native)(&mut memory, params).map_err(named(name))?;
    Ok(ProgramResult::new(kind, outcome, memory.footprint_bytes(), memory.clock()))
}

/// Runs a program and reports every load and store of its arrays. `None` when the sink ended it.
pub fn trace(
    name: &str,
    params: &Params,
    sink: &mut impl Sink,
) -> Result<Option<ProgramResult>, ProgramError> {
    let kind = find(name, params)?;
    let mut memory = Traced::new(params.threads, sink);
    let run = catch_unwind(AssertUnwindSafe(|| {
        let outcome = (kind.run.traced)(&mut memory, params);
        memory.flush();
        outcome
    }));
    match run {
        Ok(outcome) => {
            let outcome = outcome.map_err(named(name))?;
            let (bytes, clock) = (memory.footprint_bytes(), memory.clock());
            Ok(Some(ProgramResult::new(kind, outcome, bytes, clock)))
        }
        Err(payload) if payload.is::<Stopped>() => Ok(None),
        Err(payload) => resume_unwind(payload),
    }
}
