//! `zipf`: pages at random with the popularity 1 / rank^exponent, ranks assigned to pages at
//! random.

use rand_pcg::Pcg64;
use serde::Deserialize;
use terrace_core::bits::PageBits;
use terrace_core::parameters::ParameterDoc;

use super::GeneratorKind;
use super::chance::{Chance, below};
use super::program::{self, Pattern, Span};

const NAME: &str = "zipf";

pub(super) const KIND: GeneratorKind = GeneratorKind {
    name: NAME,
    summary: "pages at random, the page of rank r touched in proportion to 1 / r^exponent",
    stands_for: "key-value stores under YCSB-like loads; ranks are of pages, so keys scattered over pages are flatter",
    parameters: &[
        ParameterDoc {
            name: "exponent",
            default: "0.99",
            meaning: "how much more popular the first ranks are; 0 is uniform (0 to 10)",
        },
        ParameterDoc {
            name: "interval_ms",
            default: "1 unit (1 s, or a period where that is longer)",
            meaning: "time between two touches of one page, averaged over all pages (at least 1)",
        },
    ],
    build: |parameters, timing| {
        program::build(NAME, parameters, timing, |p: Parameters, pages| {
            if !(0.0..=10.0).contains(&p.exponent) {
                return Err(format!("exponent is {}, expected 0 to 10", p.exponent));
            }
            let interval_ms = p.interval_ms.unwrap_or(timing.unit_ms());
            let interval_ms = super::walk::at_least_1("interval_ms", interval_ms)?;
            Ok(Box::new(Zipf::new(pages, p.exponent, interval_ms, timing.seed)))
        })
    },
    footprint_bytes: |parameters| program::footprint_bytes(NAME, parameters),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    exponent: f64,
    interval_ms: Option<u64>,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters { exponent: 0.99, interval_ms: None }
    }
}

struct Zipf {
    /// Rank of each page, from 0.
    ranks: Vec<u32>,
    exponent: f64,
    /// Touches of all pages together in a ms, over the sum of all popularities.
    touches_per_ms: f64,
    random: Pcg64,
    /// By page, for a span of this length.
    chances: (u64, Vec<Chance>),
}

fn popularity(rank: u32, exponent: f64) -> f64 {
    libm::pow(f64::from(rank) + 1.0, -exponent)
}

impl Zipf {
    fn new(pages: usize, exponent: f64, interval_ms: u64, seed: u64) -> Self {
        let mut random = Pcg64::new(seed.into(), 0);
        // Pages are at most 2^34: ranks above 2^32 would not fit, and their popularity is almost 0.
        let mut ranks: Vec<u32> =
            (0..pages).map(|i| u32::try_from(i).unwrap_or(u32::MAX)).collect();
        for last in (1..pages).rev() {
            ranks.swap(last, below(last as u64 + 1, &mut random) as usize);
        }
        let sum: f64 = (0..pages as u64)
            .map(|rank| popularity(u32::try_from(rank).unwrap_or(u32::MAX), exponent))
            .sum();
        let touches_per_ms = pages as f64 / interval_ms as f64 / sum;
        Zipf { ranks, exponent, touches_per_ms, random, chances: (0, Vec::new()) }
    }
}

impl Pattern for Zipf {
    fn touch(&mut self, span: Span, accessed: &mut PageBits) {
        if self.chances.0 != span.length_ms() {
            let touches = self.touches_per_ms * span.length_ms() as f64;
            let chance = |&rank: &u32| Chance::of_touch(touches * popularity(rank, self.exponent));
            self.chances = (span.length_ms(), self.ranks.iter().map(chance).collect());
        }
        for (page, chance) in self.chances.1.iter().enumerate() {
            if chance.happens(&mut self.random) {
                accessed.set(page, true);
            }
        }
    }
}
