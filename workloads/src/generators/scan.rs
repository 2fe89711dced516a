//! `scan`: one walk over the whole memory after the other. The page used last is the last to be
//! used again: the worst case for LRU when the walk is longer than fast memory.

use serde::Deserialize;
use terrace_core::bits::PageBits;
use terrace_core::parameters::ParameterDoc;

use super::GeneratorKind;
use super::program::{self, Pattern, Span};
use super::walk::{Walk, at_least_1};

const NAME: &str = "scan";

pub(super) const KIND: GeneratorKind = GeneratorKind {
    name: NAME,
    summary: "walks over the whole memory, one after the other",
    stands_for: "loops over an array; the case in which LRU fails (adaptive-migration-policy paper, section 2.3)",
    parameters: &[
        ParameterDoc {
            name: "sweep_ms",
            default: "10 units (a unit is 1 s, or a period where that is longer)",
            meaning: "time for one walk over the memory (at least 1)",
        },
        ParameterDoc {
            name: "stride_pages",
            default: "1",
            meaning: "distance between one page of the walk and the next (at least 1)",
        },
    ],
    build: |parameters, timing| {
        program::build(NAME, parameters, timing, |p: Parameters, pages| {
            let sweep_ms = at_least_1("sweep_ms", p.sweep_ms.unwrap_or(10 * timing.unit_ms()))?;
            let stride = at_least_1("stride_pages", p.stride_pages)? as usize;
            Ok(Box::new(Scan(Walk::new(0..pages, sweep_ms, stride))))
        })
    },
    footprint_bytes: |parameters| program::footprint_bytes(NAME, parameters),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    sweep_ms: Option<u64>,
    stride_pages: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters { sweep_ms: None, stride_pages: 1 }
    }
}

struct Scan(Walk);

impl Pattern for Scan {
    fn touch(&mut self, span: Span, accessed: &mut PageBits) {
        self.0.touch(span, accessed);
    }
}
