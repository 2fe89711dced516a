//! `lfu-favor`: frequently used pages are used again, whatever was used in between.
//!
//! Two working sets of the same size. The hot one is walked over once in `hot_sweep_ms`. The cold
//! one is divided into subsets, one of which is walked over in each `subset_ms`: a stride through
//! the cold set at a low frequency. The hot set must not be touched whole in every period: it would
//! then always be the youngest, and LRU as good as LFU. At the defaults a period touches a third of
//! the hot set and a sixteenth of the cold one, so that a hot page waits three periods for its next
//! touch, in which cold pages as large as 3/16 of the hot set come in: with fast memory for half
//! the pages LRU evicts hot pages just before they are needed, while LFU counts 21 of 64 periods
//! against 4 and keeps them all.
//!
//! The cold set is first in memory and is touched first: a policy that leaves pages at their
//! initial placement must not do well by luck.

use serde::Deserialize;
use terrace_core::bits::PageBits;
use terrace_core::parameters::ParameterDoc;

use super::GeneratorKind;
use super::program::{self, Pattern, Span};
use super::walk::{Walk, at_least_1};

const NAME: &str = "lfu-favor";

pub(super) const KIND: GeneratorKind = GeneratorKind {
    name: NAME,
    summary: "a hot half walked over often, a cold half walked over in subsets, seldom",
    stands_for: "LFU-favor of the adaptive-migration-policy paper, section 6.6 (A4, A8)",
    parameters: &[
        ParameterDoc {
            name: "hot_sweep_ms",
            default: "3 units (a unit is 1 s, or a period where that is longer)",
            meaning: "time for one walk over the hot set (at least 1)",
        },
        ParameterDoc {
            name: "subsets",
            default: "16",
            meaning: "subsets of the cold set, of the same size but for rounding (at least 1)",
        },
        ParameterDoc {
            name: "subset_ms",
            default: "1 unit",
            meaning: "time for one walk over a subset, after which comes the next (at least 1)",
        },
    ],
    build: |parameters, timing| {
        program::build(NAME, parameters, timing, |p: Parameters, pages| {
            let unit_ms = timing.unit_ms();
            let hot_sweep_ms = at_least_1("hot_sweep_ms", p.hot_sweep_ms.unwrap_or(3 * unit_ms))?;
            let subset_ms = at_least_1("subset_ms", p.subset_ms.unwrap_or(unit_ms))?;
            let subsets = at_least_1("subsets", p.subsets)?;
            let cold_pages = pages / 2;
            if subsets > cold_pages as u64 {
                return Err(format!(
                    "subsets is {subsets}, expected at most the {cold_pages} pages of the cold set"
                ));
            }
            // Walking over the subsets one after the other, each in the same time, is one walk over
            // the cold set.
            let cold_sweep_ms = subsets.checked_mul(subset_ms).ok_or_else(|| {
                format!("subset_ms is {subset_ms}, expected less than 2^64 / subsets")
            })?;
            Ok(Box::new(HotAndCold {
                cold: Walk::new(0..cold_pages, cold_sweep_ms, 1),
                hot: Walk::new(cold_pages..pages, hot_sweep_ms, 1),
            }))
        })
    },
    footprint_bytes: |parameters| program::footprint_bytes(NAME, parameters),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    hot_sweep_ms: Option<u64>,
    subsets: u64,
    subset_ms: Option<u64>,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters { hot_sweep_ms: None, subsets: 16, subset_ms: None }
    }
}

struct HotAndCold {
    cold: Walk,
    hot: Walk,
}

impl Pattern for HotAndCold {
    fn touch(&mut self, span: Span, accessed: &mut PageBits) {
        self.hot.touch(span, accessed);
        self.cold.touch(span, accessed);
    }
}
