//! `uniform`: every page is touched at random, all equally often.

use serde::Deserialize;
use terrace_core::bits::PageBits;
use terrace_core::parameters::ParameterDoc;

use rand_pcg::Pcg64;

use super::GeneratorKind;
use super::chance::Chance;
use super::program::{self, Pattern, Span};
use super::walk::at_least_1;

const NAME: &str = "uniform";

pub(super) const KIND: GeneratorKind = GeneratorKind {
    name: NAME,
    summary: "every page at random, all equally often",
    stands_for: "a program without locality, such as a hash table under uniform keys",
    parameters: &[ParameterDoc {
        name: "interval_ms",
        default: "1 unit (1 s, or a period where that is longer)",
        meaning: "time between two touches of one page, on average (at least 1)",
    }],
    build: |parameters, timing| {
        program::build(NAME, parameters, timing, |p: Parameters, _| {
            let interval_ms = p.interval_ms.unwrap_or(timing.unit_ms());
            let interval_ms = at_least_1("interval_ms", interval_ms)?;
            Ok(Box::new(Uniform::new(interval_ms, timing.seed)))
        })
    },
    footprint_bytes: |parameters| program::footprint_bytes(NAME, parameters),
};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Parameters {
    pub(super) interval_ms: Option<u64>,
}

/// Touches of every page, `interval_ms` apart on average.
pub(super) struct Uniform {
    interval_ms: u64,
    random: Pcg64,
}

impl Uniform {
    pub(super) fn new(interval_ms: u64, seed: u64) -> Self {
        Uniform { interval_ms, random: Pcg64::new(seed.into(), 0) }
    }
}

impl Pattern for Uniform {
    fn touch(&mut self, span: Span, accessed: &mut PageBits) {
        let chance = Chance::within(span.length_ms(), self.interval_ms);
        chance.touch(&mut self.random, accessed);
    }
}
