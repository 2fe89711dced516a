//! `random-favor`: all pages at random, so often that nearly all are touched in every period.
//!
//! No policy can predict the next access, and every policy hits the fast part of the memory: the
//! best is the one that moves nothing. At the default a page is touched four times a period on
//! average and 98 % of them are touched at least once, far above the fast-memory ratio and 20
//! points, where AMP switches to Random (adaptive-migration-policy paper, section 4.2). The default
//! counts in periods even below a second: with fewer touches in a period the accessed pages would
//! not show that there is no locality.

use terrace_core::parameters::ParameterDoc;

use super::GeneratorKind;
use super::program;
use super::uniform::{Parameters, Uniform};
use super::walk::at_least_1;

const NAME: &str = "random-favor";

pub(super) const KIND: GeneratorKind = GeneratorKind {
    name: NAME,
    summary: "all pages at random, nearly all of them in every period",
    stands_for: "Random-favor of the adaptive-migration-policy paper, section 6.6 (A4, A8)",
    parameters: &[ParameterDoc {
        name: "interval_ms",
        default: "a quarter of a period",
        meaning: "time between two touches of one page, on average (at least 1)",
    }],
    build: |parameters, timing| {
        program::build(NAME, parameters, timing, |p: Parameters, _| {
            let interval_ms = p.interval_ms.unwrap_or((timing.period_ms / 4).max(1));
            let interval_ms = at_least_1("interval_ms", interval_ms)?;
            Ok(Box::new(Uniform::new(interval_ms, timing.seed)))
        })
    },
    footprint_bytes: |parameters| program::footprint_bytes(NAME, parameters),
};
