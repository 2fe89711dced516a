//! `lru-favor`: what was used last is used next.
//!
//! Several working sets of the same size, one after the other: each is walked over, again and
//! again with a stride, for its dwell, then the next. Within a dwell of k periods LRU misses the
//! first and hits k - 1; over a whole round every page has been used equally often, so LFU has
//! nothing to go by and, like pages left in place, hits what part of the memory is fast. At the
//! defaults (4 sets, dwell of 4 periods, half the memory fast): 75 % against 50 %. See the
//! module's documentation for why the dwell is not four seconds at every period.

use serde::Deserialize;
use terrace_core::bits::PageBits;
use terrace_core::policy::ParameterDoc;

use super::GeneratorKind;
use super::program::{self, Pattern, Span};
use super::walk::{Walk, at_least_1};

const NAME: &str = "lru-favor";

pub(super) const KIND: GeneratorKind = GeneratorKind {
    name: NAME,
    summary: "working sets in turn, each walked over with a stride for its dwell",
    stands_for: "LRU-favor of the adaptive-migration-policy paper, section 6.6 (A4, A8)",
    parameters: &[
        ParameterDoc {
            name: "sets",
            default: "4",
            meaning: "working sets, of the same size but for rounding",
        },
        ParameterDoc {
            name: "dwell_ms",
            default: "4 units (a unit is 1 s, or a period where that is longer)",
            meaning: "time that a working set is used for before the next one is",
        },
        ParameterDoc {
            name: "sweep_ms",
            default: "half a unit",
            meaning: "time for one walk over a working set",
        },
        ParameterDoc {
            name: "stride_pages",
            default: "1",
            meaning: "distance between one page of the walk and the next",
        },
    ],
    build: |parameters, timing| {
        program::build(NAME, parameters, timing, |p: Parameters, pages| {
            let unit_ms = timing.unit_ms();
            let sets = at_least_1("sets", p.sets)? as usize;
            let dwell_ms = at_least_1("dwell_ms", p.dwell_ms.unwrap_or(4 * unit_ms))?;
            let sweep_ms = at_least_1("sweep_ms", p.sweep_ms.unwrap_or(unit_ms / 2))?;
            let stride = at_least_1("stride_pages", p.stride_pages)? as usize;
            if sets > pages {
                return Err(format!("sets is {sets}, expected at most the {pages} pages"));
            }
            let sets = (0..sets)
                .map(|i| Walk::new(i * pages / sets..(i + 1) * pages / sets, sweep_ms, stride))
                .collect();
            Ok(Box::new(Turns { sets, dwell_ms }))
        })
    },
    footprint_bytes: |parameters| program::footprint_bytes(NAME, parameters),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    sets: u64,
    dwell_ms: Option<u64>,
    sweep_ms: Option<u64>,
    stride_pages: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters { sets: 4, dwell_ms: None, sweep_ms: None, stride_pages: 1 }
    }
}

struct Turns {
    sets: Vec<Walk>,
    dwell_ms: u64,
}

impl Pattern for Turns {
    fn touch(&mut self, span: Span, accessed: &mut PageBits) {
        let first = span.from_ms / self.dwell_ms;
        // After one round every set has been touched as far as it will be.
        let last = ((span.to_ms - 1) / self.dwell_ms).min(first + self.sets.len() as u64);
        for turn in first..=last {
            let begin = turn * self.dwell_ms;
            let within = Span {
                from_ms: span.from_ms.max(begin) - begin,
                to_ms: span.to_ms.min(begin + self.dwell_ms) - begin,
            };
            self.sets[(turn % self.sets.len() as u64) as usize].touch(within, accessed);
        }
    }
}
