//! Giga updates per second, as HPC Challenge RandomAccess defines it: exclusive-or random
//! words into random places of a table that fills the memory.
//!
//! Represents `gups` of the granularity paper (table 2, HPC Challenge). Every access is to an
//! unpredictable place; no page is hotter than another.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{GRAIN, Memory, phase};
use super::outcome::{check, fold};
use super::parameters::in_range;
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "gups",
    summary: "random exclusive-or updates of a table",
    stands_for: "granularity table 2: gups (HPC Challenge RandomAccess): independent updates of uniformly random words",
    operation: "updates",
    threads: true,
    parameters: &[ParameterDoc {
        name: "updates_per_word",
        default: "4",
        meaning: "updates for each word of the table (HPC Challenge: 4)",
    }],
    run: Run::of::<Gups>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    updates_per_word: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { updates_per_word: 4.0 }
    }
}

struct Gups;

impl Kernel for Gups {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let per_word = in_range("updates_per_word", options.updates_per_word, 0.0, 1e6)?;
        let words = (params.footprint_bytes / 8) as usize;
        let updates = (words as f64 * per_word) as usize;
        let sequence = random::Sequence::of(params.seed);

        let table = m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let table = m.array::<u64>("table", words)?;
            m.each(words, |m, i| {
                m.work(2);
                m.set(&table, i, i as u64);
            });
            Ok(table)
        })?;

        let update = |m: &mut M| {
            m.parallel(
                updates,
                GRAIN,
                |_| (),
                |m, (), range| {
                    // Copies of outer variables: the compiler cannot know that no update of the
                    // table changes them.
                    let (sequence, words) = (sequence, words);
                    for i in range {
                        let word = sequence.at(i as u64);
                        m.work(18);
                        m.xor(&table, random::below(word, words), word);
                    }
                },
            );
        };
        m.phase(phase::MAIN, 0, update);

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let mut checksum = 0;
                for i in 0..words {
                    checksum = fold(checksum, m.get(&table, i));
                }
                // The same updates done again undo themselves.
                update(m);
                let wrong = (0..words).filter(|&i| m.get(&table, i) != i as u64).count();
                let checks = vec![check(wrong == 0, format!("{wrong} of {words} words wrong"))];
                Ok(Outcome { checksum, operations: updates as u64, checks })
            })
        })
    }
}
