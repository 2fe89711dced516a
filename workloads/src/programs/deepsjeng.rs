//! Game-tree search with a transposition table: the pattern of SPEC's deepsjeng, on the game of
//! Connect Four.
//!
//! Represents deepsjeng of the adaptive-policy paper (SPEC CPU 2017, section 3.2). Every position
//! is looked up and entered at a hashed place of one table that fills the memory; the rest fits in
//! the caches. No page is hotter than another.
//!
//! An entry is two words, of which the second is combined into the first, following Hyatt and Mann
//! (ICGA Journal 25, 2002): an entry torn by two threads, or damaged, is one of another position.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::check;
use super::parameters::in_range;
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};
use crate::memory::checked::mix;

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "deepsjeng",
    summary: "game-tree search with a transposition table (deepsjeng-like)",
    stands_for: "adaptive policy section 3.2: deepsjeng: a hash table of positions read and written at random",
    operation: "positions",
    threads: true,
    parameters: &[
        ParameterDoc {
            name: "depth",
            default: "10",
            meaning: "half-moves that a search looks ahead",
        },
        ParameterDoc {
            name: "searches",
            default: "0",
            meaning: "number of searches; 0: one for each 128 KB of table",
        },
    ],
    run: Run::of::<DeepSjeng>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    depth: u32,
    searches: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { depth: 10, searches: 0 }
    }
}

const COLUMNS: u32 = 7;
const ROWS: u32 = 6;
/// Bits of a column: its rows and one that stays empty, so that lines do not wrap around.
const COLUMN_BITS: u32 = ROWS + 1;
/// The middle first, where moves are better: so alpha-beta cuts more.
const ORDER: [u32; COLUMNS as usize] = [3, 2, 4, 1, 5, 0, 6];
/// Half-moves that are made at random before a search.
const OPENING: u64 = 6;
/// Searches per repetition without the table, and the maximum number of repetitions.
const SAMPLE: usize = 64;
const SAMPLES: usize = 4;
/// More than any score.
const WIN: i32 = 100;

/// A position for the player to move: own stones and all stones, a bit a field.
#[derive(Clone, Copy)]
struct Position {
    own: u64,
    all: u64,
}

impl Position {
    fn can_play(self, column: u32) -> bool {
        self.all & (1 << (column * COLUMN_BITS + ROWS - 1)) == 0
    }

    /// The position after a move, for the other player.
    fn play(self, column: u32) -> Position {
        let all = self.all | (self.all + (1 << (column * COLUMN_BITS)));
        Position { own: self.own ^ self.all, all }
    }

    /// Whether the player who has just moved has four in a line.
    fn is_lost(self) -> bool {
        let stones = self.own ^ self.all;
        [1, COLUMN_BITS - 1, COLUMN_BITS, COLUMN_BITS + 1].into_iter().any(|step| {
            let pairs = stones & (stones >> step);
            pairs & (pairs >> (2 * step)) != 0
        })
    }

    /// A different number for every position: from the column heights and the owners of the stones.
    fn key(self) -> u64 {
        const BOTTOM: u64 = 0x0002_0408_1020_4081 & ((1 << (COLUMNS * COLUMN_BITS)) - 1);
        self.own + self.all + BOTTOM
    }

    /// A rough worth of a quiet position: own fields near the middle less the other's.
    fn worth(self) -> i32 {
        const MIDDLE: u64 = 0x3f << (3 * COLUMN_BITS);
        const INNER: u64 = 0x3f << (2 * COLUMN_BITS) | 0x3f << (4 * COLUMN_BITS);
        let of = |stones: u64| {
            2 * (stones & MIDDLE).count_ones() as i32 + (stones & INNER).count_ones() as i32
        };
        of(self.own) - of(self.own ^ self.all)
    }
}

/// Instructions of one position, about, beside those of its look-up.
const POSITION_WORK: u32 = 120;

/// The bound that a score is on the true one.
#[derive(Clone, Copy, PartialEq)]
enum Bound {
    Exact = 1,
    Lower = 2,
    Upper = 3,
}

struct Table {
    words: Array<u64>,
}

impl Table {
    fn place(&self, key: u64) -> usize {
        2 * random::below(mix(key), self.words.len() / 2)
    }

    /// The table's result for a position at exactly this depth. Deeper results would be better ones
    /// of another search, and the outcome would depend on their order.
    fn find<M: Memory>(&self, m: &mut M, key: u64, depth: u32) -> Option<(i32, u64)> {
        m.work(30);
        let place = self.place(key);
        let data = m.get(&self.words, place + 1);
        let here = m.get(&self.words, place) ^ data == key && data >> 32 == u64::from(depth) + 1;
        here.then_some(((data >> 8 & 0xff) as i32 - WIN, data & 0xff))
    }

    fn enter<M: Memory>(&self, m: &mut M, key: u64, depth: u32, score: i32, bound: Bound) {
        m.work(30);
        let place = self.place(key);
        let data = (u64::from(depth) + 1) << 32 | ((score + WIN) as u64) << 8 | bound as u64;
        m.set(&self.words, place, key ^ data);
        m.set(&self.words, place + 1, data);
    }
}

struct DeepSjeng;

impl Kernel for DeepSjeng {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let depth = in_range("depth", options.depth, 1, 42 - OPENING as u32)?;
        let searches = match options.searches {
            0 => (params.footprint_bytes >> 17) as usize,
            n => n,
        };
        let entries = (params.footprint_bytes / 16) as usize;
        let table = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let table = Table { words: m.array("table", 2 * entries)? };
            m.each(2 * entries, |m, i| {
                m.work(10);
                m.set(&table.words, i, 0);
            });
            Ok(table)
        })?;

        let opening = |search: usize| opening(params.seed, search as u64);
        let start = |_| (0u64, 0u64, 0u64);
        let body = |m: &mut M, sums: &mut (u64, u64, u64), range: std::ops::Range<usize>| {
            for search in range {
                let position = opening(search);
                let mut seen = 0;
                let score = negamax(m, Some(table), position, depth, -WIN, WIN, &mut seen);
                sums.0 = sums.0.wrapping_add(mix(search as u64 ^ mix(score as u64)));
                sums.1 += seen;
                if search % SAMPLE == 0 && search < SAMPLE * SAMPLES {
                    let again = m.quietly(|m| negamax(m, None, position, depth, -WIN, WIN, &mut 0));
                    sums.2 += u64::from(again != score);
                }
            }
        };
        let sums = m.phase(phase::MAIN, 0, |m| m.parallel(searches, 1, start, body));

        Ok(m.phase(phase::VERIFY, 0, |m| {
            let wrong: u64 = sums.iter().map(|s| s.2).sum();
            let mut misplaced = 0;
            m.quietly(|m| {
                for place in (0..2 * entries).step_by(2) {
                    let [first, data] = [0, 1].map(|k| m.get(&table.words, place + k));
                    let empty = first == 0 && data == 0;
                    misplaced += u64::from(!empty && table.place(first ^ data) != place);
                }
            });
            let looked = searches.div_ceil(SAMPLE).min(SAMPLES);
            let checks = vec![
                check(wrong == 0, format!("{wrong} of {looked} scores differ without the table")),
                check(misplaced == 0, format!("{misplaced} of {entries} entries misplaced")),
            ];
            Outcome {
                checksum: sums.iter().fold(0u64, |a, s| a.wrapping_add(s.0)),
                operations: sums.iter().map(|s| s.1).sum(),
                checks,
            }
        }))
    }
}

/// A position after some random moves that nobody has won.
fn opening(seed: u64, search: u64) -> Position {
    let mut words = random::Words::of(seed, search);
    loop {
        let mut position = Position { own: 0, all: 0 };
        for _ in 0..OPENING {
            let column = words.below(COLUMNS as usize) as u32;
            if position.can_play(column) {
                position = position.play(column);
            }
        }
        // Either player may have four in a line by now.
        let turned = Position { own: position.own ^ position.all, ..position };
        if !position.is_lost() && !turned.is_lost() {
            return position;
        }
    }
}

/// The worth of a position by alpha-beta: right if between the bounds, else on the right side.
fn negamax<M: Memory>(
    m: &mut M,
    table: Option<&Table>,
    position: Position,
    depth: u32,
    mut alpha: i32,
    mut beta: i32,
    seen: &mut u64,
) -> i32 {
    *seen += 1;
    m.work(POSITION_WORK);
    if position.is_lost() {
        // The sooner the loss, the worse.
        return -(WIN / 2) - depth as i32;
    }
    if depth == 0 || position.all.count_ones() == COLUMNS * ROWS {
        return position.worth();
    }
    if let Some((score, bound)) = table.and_then(|t| t.find(m, position.key(), depth)) {
        match bound {
            b if b == Bound::Exact as u64 => return score,
            b if b == Bound::Lower as u64 => alpha = alpha.max(score),
            _ => beta = beta.min(score),
        }
        if alpha >= beta {
            return score;
        }
    }
    let mut best = -WIN;
    let mut reached = alpha;
    for column in ORDER {
        if position.can_play(column) {
            let next = position.play(column);
            let score = -negamax(m, table, next, depth - 1, -beta, -reached, seen);
            best = best.max(score);
            reached = reached.max(score);
            if reached >= beta {
                break;
            }
        }
    }
    let bound = match best {
        b if b >= beta => Bound::Lower,
        b if b <= alpha => Bound::Upper,
        _ => Bound::Exact,
    };
    if let Some(table) = table {
        table.enter(m, position.key(), depth, best, bound);
    }
    best
}
