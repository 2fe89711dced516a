//! `hotcold`: some pages, scattered over the memory, are touched often, the others seldom.

use rand_pcg::Pcg64;
use serde::Deserialize;
use terrace_core::bits::PageBits;
use terrace_core::policy::ParameterDoc;

use super::GeneratorKind;
use super::chance::{Chance, choose};
use super::program::{self, Pattern, Span};
use super::walk::at_least_1;

const NAME: &str = "hotcold";

pub(super) const KIND: GeneratorKind = GeneratorKind {
    name: NAME,
    summary: "a hot part of the pages, scattered, at random often; the others at random seldom",
    stands_for: "a program with a known hot set: the simplest test of a tracker and a policy",
    parameters: &[
        ParameterDoc {
            name: "hot_ratio",
            default: "0.2",
            meaning: "hot pages over all pages, 0 to 1",
        },
        ParameterDoc {
            name: "hot_interval_ms",
            default: "half a unit (a unit is 1 s, or a period where that is longer)",
            meaning: "time between two touches of one hot page, on average",
        },
        ParameterDoc {
            name: "cold_interval_ms",
            default: "20 units",
            meaning: "time between two touches of one cold page, on average",
        },
    ],
    build: |parameters, timing| {
        program::build(NAME, parameters, timing, |p: Parameters, pages| {
            let unit_ms = timing.unit_ms();
            if !(0.0..=1.0).contains(&p.hot_ratio) {
                return Err(format!("hot_ratio is {}, expected 0 to 1", p.hot_ratio));
            }
            let hot_interval_ms = p.hot_interval_ms.unwrap_or(unit_ms / 2);
            let cold_interval_ms = p.cold_interval_ms.unwrap_or(20 * unit_ms);
            let mut random = Pcg64::new(timing.seed.into(), 0);
            let hot_pages = (p.hot_ratio * pages as f64).round() as usize;
            let hot = choose(hot_pages, pages, &mut random);
            let cold = PageBits::from_words(hot.words().iter().map(|w| !w).collect(), pages);
            Ok(Box::new(HotCold {
                classes: [
                    (hot, at_least_1("hot_interval_ms", hot_interval_ms)?),
                    (cold, at_least_1("cold_interval_ms", cold_interval_ms)?),
                ],
                random,
            }))
        })
    },
    footprint_bytes: |parameters| program::footprint_bytes(NAME, parameters),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    hot_ratio: f64,
    hot_interval_ms: Option<u64>,
    cold_interval_ms: Option<u64>,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters { hot_ratio: 0.2, hot_interval_ms: None, cold_interval_ms: None }
    }
}

/// Classes of pages, each with the mean interval of its pages' touches.
struct HotCold {
    classes: [(PageBits, u64); 2],
    random: Pcg64,
}

impl Pattern for HotCold {
    fn touch(&mut self, span: Span, accessed: &mut PageBits) {
        for (pages, interval_ms) in &self.classes {
            Chance::within(span.length_ms(), *interval_ms).touch_of(
                pages,
                &mut self.random,
                accessed,
            );
        }
    }
}
