//! `hotcold`: some pages, scattered over the memory, are touched often, the others seldom.

use rand_pcg::Pcg64;
use serde::Deserialize;
use terrace_core::bits::PageBits;
use terrace_core::parameters::ParameterDoc;

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
            meaning: "hot pages over all pages (0 to 1)",
        },
        ParameterDoc {
            name: "hot_run_pages",
            default: "1",
            meaning: "adjacent hot pages, in aligned runs: 16 base pages are a run of 64 KB (at least 1)",
        },
        ParameterDoc {
            name: "hot_interval_ms",
            default: "half a unit (a unit is 1 s, or a period where that is longer)",
            meaning: "time between two touches of one hot page, on average (at least 1)",
        },
        ParameterDoc {
            name: "cold_interval_ms",
            default: "20 units",
            meaning: "time between two touches of one cold page, on average (at least 1)",
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
            let run_pages = at_least_1("hot_run_pages", p.hot_run_pages)? as usize;
            let runs = pages.div_ceil(run_pages);
            let hot_runs = (p.hot_ratio * runs as f64).round() as usize;
            let hot = in_runs(&choose(hot_runs, runs, &mut random), run_pages, pages);
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
    hot_run_pages: u64,
    hot_interval_ms: Option<u64>,
    cold_interval_ms: Option<u64>,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            hot_ratio: 0.2,
            hot_run_pages: 1,
            hot_interval_ms: None,
            cold_interval_ms: None,
        }
    }
}

/// The pages of the runs whose bit is set.
fn in_runs(runs: &PageBits, run_pages: usize, pages: usize) -> PageBits {
    let mut all = PageBits::new(pages);
    for run in runs.iter_ones() {
        all.set_range(run * run_pages..pages.min((run + 1) * run_pages), true);
    }
    all
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_pages_are_in_aligned_runs_and_the_last_may_be_short() {
        let runs: PageBits = [true, false, true].into_iter().collect();
        let pages = in_runs(&runs, 4, 10);
        assert_eq!(pages.iter_ones().collect::<Vec<_>>(), [0, 1, 2, 3, 8, 9]);
        assert_eq!(in_runs(&runs, 1, 3), runs);
    }
}
