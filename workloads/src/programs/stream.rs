//! Sustained bandwidth, as McCalpin's STREAM measures it: copy, scale, add and triad over three
//! arrays.
//!
//! Represents `str` of the granularity paper (table 2, HPC Challenge STREAM). Three sequential
//! streams that use every page once a pass; nothing is reused before everything else was used.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Memory, phase};
use super::outcome::{check_error, fold};
use super::parameters::in_range;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "stream",
    summary: "copy, scale, add and triad over three arrays",
    stands_for: "granularity table 2: stream (HPC Challenge): sequential passes over arrays that are used up before they are reused",
    operation: "bytes",
    threads: true,
    parameters: &[ParameterDoc {
        name: "iterations",
        default: "10",
        meaning: "turns of the four kernels (STREAM: 10)",
    }],
    run: Run::of::<Stream>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 10 }
    }
}

const SCALAR: f64 = 3.0;

struct Stream;

impl Kernel for Stream {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1_000_000)?;
        let n = (params.footprint_bytes / 24) as usize;
        // The seed moves the start value, so that different seeds give different checksums.
        let start = 1.0 + (params.seed % 1024) as f64 / 1024.0;

        let (a, b, c) = m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let (a, b, c) = (m.array::<f64>("a", n)?, m.array("b", n)?, m.array("c", n)?);
            m.each(n, |m, i| {
                m.work(10);
                m.set(&a, i, start);
                m.set(&b, i, 2.0);
                m.set(&c, i, 0.0);
            });
            Ok((a, b, c))
        })?;

        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    m.each(n, |m, i| {
                        m.work(10);
                        let value = m.get(&a, i);
                        m.set(&c, i, value);
                    });
                    m.each(n, |m, i| {
                        m.work(15);
                        let value = SCALAR * m.get(&c, i);
                        m.set(&b, i, value);
                    });
                    m.each(n, |m, i| {
                        m.work(15);
                        let value = m.get(&a, i) + m.get(&b, i);
                        m.set(&c, i, value);
                    });
                    m.each(n, |m, i| {
                        m.work(20);
                        let value = m.get(&b, i) + SCALAR * m.get(&c, i);
                        m.set(&a, i, value);
                    });
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let mut expected = [start, 2.0, 0.0];
                for _ in 0..iterations {
                    let [a, b, c] = &mut expected;
                    *c = *a;
                    *b = SCALAR * *c;
                    *c = *a + *b;
                    *a = *b + SCALAR * *c;
                }
                let mut checksum = 0;
                let mut worst = [0.0f64; 3];
                for i in 0..n {
                    for (k, array) in [&a, &b, &c].into_iter().enumerate() {
                        let value = m.get(array, i);
                        checksum = fold(checksum, value.to_bits());
                        let error = ((value - expected[k]) / expected[k]).abs();
                        worst[k] = if error <= worst[k] { worst[k] } else { error };
                    }
                }
                let names = ["relative error of a", "of b", "of c"];
                let checks =
                    names.iter().zip(worst).map(|(w, e)| check_error(w, e, 1e-13)).collect();
                // Copy and scale move two words an element, add and triad three.
                Ok(Outcome { checksum, operations: iterations * 80 * n as u64, checks })
            })
        })
    }
}
