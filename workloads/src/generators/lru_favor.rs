//! `lru-favor`: recently used pages are used next.
//!
//! Several working sets of the same size, one after the other: each is walked over, again and again
//! with a stride, for its dwell, then the next. Within a dwell of k periods LRU misses the first
//! and hits k - 1; over a whole round every page has been used equally often, so LFU has no
//! information and, like pages left in place, hits the fast part of the memory. At the defaults (4
//! sets, dwell of 4 periods, half the memory fast): 75 % against 50 %. See the module's
//! documentation for why the dwell is not four seconds at every period.

use serde::Deserialize;
use terrace_core::bits::PageBits;
use terrace_core::parameters::ParameterDoc;

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
            meaning: "working sets, of the same size but for rounding (at least 1)",
        },
        ParameterDoc {
            name: "run_pages",
            default: "none",
            meaning: "the sets are dealt runs of so many pages in turn: 16 base pages are 64 KB; none: each set is one run (at least 1)",
        },
        ParameterDoc {
            name: "dwell_ms",
            default: "4 units (a unit is 1 s, or a period where that is longer)",
            meaning: "time that a working set is used for before the next one is (at least 1)",
        },
        ParameterDoc {
            name: "sweep_ms",
            default: "half a unit",
            meaning: "time for one walk over a working set (at least 1)",
        },
        ParameterDoc {
            name: "stride_pages",
            default: "1",
            meaning: "distance between one page of the walk and the next (at least 1)",
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
            let turns = Turns { sets, dwell_ms };
            let Some(run_pages) = p.run_pages else { return Ok(Box::new(turns)) };
            let run_pages = at_least_1("run_pages", run_pages)? as usize;
            let number = turns.sets.len();
            if !pages.is_multiple_of(run_pages.saturating_mul(number)) {
                return Err(format!(
                    "run_pages is {run_pages}, expected as many runs for each of {number} sets of {pages} pages"
                ));
            }
            Ok(Box::new(Dealt { turns, run_pages, sets: number }))
        })
    },
    footprint_bytes: |parameters| program::footprint_bytes(NAME, parameters),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    sets: u64,
    run_pages: Option<u64>,
    dwell_ms: Option<u64>,
    sweep_ms: Option<u64>,
    stride_pages: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters { sets: 4, run_pages: None, dwell_ms: None, sweep_ms: None, stride_pages: 1 }
    }
}

struct Turns {
    sets: Vec<Walk>,
    dwell_ms: u64,
}

impl Pattern for Turns {
    fn touch(&mut self, span: Span, accessed: &mut PageBits) {
        let first = span.from_ms / self.dwell_ms;
        // After one round every set has been touched as far as it ever will be.
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

/// Working sets that are interleaved, run by run.
struct Dealt {
    turns: Turns,
    run_pages: usize,
    sets: usize,
}

impl Dealt {
    /// The interleaved place of a page that would be at this place if each set were one run.
    fn page(&self, place: usize, pages: usize) -> usize {
        let set_pages = pages / self.sets;
        let (set, nth) = (place / set_pages, place % set_pages);
        let run = nth / self.run_pages * self.sets + set;
        run * self.run_pages + nth % self.run_pages
    }
}

impl Pattern for Dealt {
    fn touch(&mut self, span: Span, accessed: &mut PageBits) {
        let pages = accessed.len();
        let mut apart = PageBits::new(pages);
        self.turns.touch(span, &mut apart);
        apart.iter_ones().for_each(|place| accessed.set(self.page(place, pages), true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_dealt_to_the_sets_in_turn() {
        let dealt = |run_pages| {
            let dealt =
                Dealt { turns: Turns { sets: Vec::new(), dwell_ms: 1 }, run_pages, sets: 3 };
            (0..12).map(|place| dealt.page(place, 12)).collect::<Vec<_>>()
        };
        assert_eq!(dealt(2), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
        assert_eq!(dealt(4), (0..12).collect::<Vec<_>>());
    }
}
