//! A workload program of the papers as a source: its traced form produces the references.

use std::ops::ControlFlow;

use terrace_core::page::PageSize;
use terrace_recordings::source::SourceError;
use terrace_workloads::programs::memory::{Edge, phase};
use terrace_workloads::programs::sink::{Mark, Reference, Region, Sink};
use terrace_workloads::programs::{self, Params, ProgramError};

use super::source::{Access, AccessKind, Closed, Pipe, Piped, Step};

/// Passes a program's reports to a pipe.
struct ToPipe<'a> {
    pipe: &'a mut Pipe,
    dependent: bool,
}

impl Sink for ToPipe<'_> {
    fn reference(&mut self, reference: &Reference) -> ControlFlow<()> {
        self.references(std::slice::from_ref(reference))
    }

    fn references(&mut self, block: &[Reference]) -> ControlFlow<()> {
        for r in block {
            let access = Access {
                address: r.address,
                instructions: r.gap.saturating_add(1),
                thread: r.thread,
                size: r.size,
                kind: AccessKind::new(r.is_store, self.dependent),
            };
            if let Err(Closed) = self.pipe.access(access) {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    // When the receiver is gone, the next reference ends the program.
    fn region(&mut self, region: &Region) {
        let base = PageSize::Base.bytes();
        let end = (region.start + region.size_bytes).next_multiple_of(base);
        let start = region.start / base * base;
        let _ = self.pipe.step(Step::Map {
            start,
            size_bytes: end - start,
            huge_eligible: region.huge_eligible,
        });
    }

    fn mark(&mut self, mark: &Mark) {
        let _ = self.pipe.step(Step::Barrier);
        if mark.phase == phase::MAIN && mark.edge == Edge::Begin {
            let _ = self.pipe.step(Step::MainBegins);
        }
    }
}

/// The program of this name. `dependent`: every load takes its address from the load before, as in
/// pointer chasing.
pub fn program(name: &str, params: &Params, dependent: bool) -> Result<Piped, ProgramError> {
    programs::check(name, params)?;
    let (threads, footprint) = (params.threads, params.footprint_bytes);
    let (name, params) = (name.to_owned(), params.clone());
    Ok(Piped::start(threads, Some(footprint), move |pipe| {
        let mut sink = ToPipe { pipe, dependent };
        match programs::trace(&name, &params, &mut sink) {
            Ok(Some(result)) if !result.verified => Err(SourceError(format!(
                "program '{name}': its result is wrong; this is a defect of the program"
            ))),
            Ok(_) => Ok(()),
            Err(e) => Err(SourceError(e.to_string())),
        }
    }))
}
