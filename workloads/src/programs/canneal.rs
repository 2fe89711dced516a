//! Simulated annealing of the placement of a netlist's elements: PARSEC's canneal.
//!
//! Represents `can` of the granularity paper (table 2, PARSEC canneal, native). A move picks two
//! random elements and reads all their neighbours in the netlist and the locations of those: chains
//! of random accesses to small pieces of a large heap.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, fold};
use super::parameters::in_range;
use super::shared::adjacency::Adjacency;
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "canneal",
    summary: "simulated annealing of a netlist (canneal)",
    stands_for: "granularity table 2: canneal: chains of random accesses to the neighbours of random elements",
    operation: "moves",
    threads: false,
    parameters: &[
        ParameterDoc {
            name: "moves_per_element",
            default: "2",
            meaning: "moves tried for each element, over all temperatures",
        },
        ParameterDoc {
            name: "temperatures",
            default: "16",
            meaning: "temperature steps, each two thirds of the one before",
        },
    ],
    run: Run::of::<Canneal>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    moves_per_element: f64,
    temperatures: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { moves_per_element: 2.0, temperatures: 16 }
    }
}

/// An element is 64 bytes: its location, how often it moved, and its name.
const ELEMENT_WORDS: usize = 8;
const LOCATION: usize = 0;
const MOVES: usize = 1;
/// Nets for two elements (PARSEC's generator: about 5 inputs an element).
const NETS_PER_TWO: usize = 5;
/// Half of the nets go to one of so many next elements, the others anywhere.
const NEAR: usize = 1000;

struct Netlist {
    elements: Array<u64>,
    /// Coordinates of every location.
    locations: Array<u32>,
    nets: Adjacency,
}

struct Canneal;

impl Kernel for Canneal {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let per_element = in_range("moves_per_element", options.moves_per_element, 0.0, 1e6)?;
        let temperatures = in_range("temperatures", options.temperatures, 1, 1000)?;
        let bytes = 8 * ELEMENT_WORDS as u64
            + 8
            + Adjacency::BYTES_PER_ROW
            + NETS_PER_TWO as u64 * Adjacency::BYTES_PER_ENTRY;
        let n = (params.footprint_bytes / bytes) as usize;
        let n = in_range("elements that fit the footprint", n, 2 * NEAR, u32::MAX as usize)?;
        let moves = (n as f64 * per_element) as u64;
        let seed = params.seed;

        let (netlist, before) = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let netlist = Netlist::new(m, n, seed)?;
            let before = netlist.wire_length(m);
            Ok((netlist, before))
        })?;

        let (mut length, mut accepted) = (*before, 0);
        m.phase(phase::MAIN, 0, |m| {
            // Hot enough to accept most moves at first, as in PARSEC.
            let mut temperature = (n as f64).sqrt();
            let mut words = random::Words::of(!seed, 0);
            for step in 0..temperatures {
                m.phase(phase::ITERATION, step.into(), |m| {
                    let of_step = |s: u32| moves * u64::from(s) / u64::from(temperatures);
                    for _ in of_step(step)..of_step(step + 1) {
                        m.work(4 * random::AT_WORK);
                        let a = words.below(n);
                        let b = (a + 1 + words.below(n - 1)) % n;
                        let change = netlist.change_of_swap(m, a, b);
                        let chance = libm::exp(-change as f64 / temperature);
                        if change < 0 || words.unit() < chance {
                            netlist.swap(m, a, b);
                            length += change;
                            accepted += 1;
                        }
                    }
                    temperature /= 1.5;
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let after = netlist.wire_length(m);
                let mut used = vec![false; n];
                let (mut moved, mut wrong, mut checksum) = (0, 0, length as u64);
                for element in 0..n {
                    let here = [0, 1].map(|k| m.get(&netlist.locations, 2 * element + k));
                    wrong += usize::from(here != location(n, element));
                    let location = m.get(&netlist.elements, element * ELEMENT_WORDS + LOCATION);
                    if let Some(used) = used.get_mut(location as usize) {
                        *used = true;
                    }
                    moved += m.get(&netlist.elements, element * ELEMENT_WORDS + MOVES);
                    checksum = fold(checksum, location);
                }
                let empty = used.iter().filter(|u| !**u).count();
                let checks = vec![
                    check(wrong == 0, format!("{wrong} of {n} locations wrong")),
                    check(after == length, format!("wires of {after}, {length} by the moves")),
                    check(empty == 0, format!("{empty} of {n} locations empty")),
                    check(moved == 2 * accepted, format!("{moved} elements in {accepted} swaps")),
                ];
                Ok(Outcome { checksum, operations: moves, checks })
            })
        })
    }
}

/// Coordinates of a location on a nearly square board.
fn location(n: usize, i: usize) -> [u32; 2] {
    let width = (n as f64).sqrt().ceil() as usize;
    [(i % width) as u32, (i / width) as u32]
}

impl Netlist {
    fn new<M: Memory>(m: &mut M, n: usize, seed: u64) -> Result<Netlist, ProgramError> {
        let elements = m.array::<u64>("elements", n * ELEMENT_WORDS)?;
        let locations = m.array::<u32>("locations", 2 * n)?;
        for i in 0..n {
            m.work(8 * random::AT_WORK);
            let [x, y] = location(n, i);
            m.set(&locations, 2 * i, x);
            m.set(&locations, 2 * i + 1, y);
            m.set(&elements, i * ELEMENT_WORDS + LOCATION, i as u64);
            m.set(&elements, i * ELEMENT_WORDS + MOVES, 0);
            let mut words = random::Words::of(seed, i as u64);
            for w in MOVES + 1..ELEMENT_WORDS {
                m.set(&elements, i * ELEMENT_WORDS + w, words.word());
            }
        }
        // A random initial placement.
        for i in (1..n).rev() {
            m.work(random::AT_WORK + 4);
            let j = random::below(random::at(seed ^ 1, i as u64), i + 1);
            let (a, b) = (i * ELEMENT_WORDS + LOCATION, j * ELEMENT_WORDS + LOCATION);
            let (of_a, of_b) = (m.get(&elements, a), m.get(&elements, b));
            m.set(&elements, a, of_b);
            m.set(&elements, b, of_a);
        }
        let pairs = n * NETS_PER_TWO / 2;
        let pair = |m: &mut M, e: usize| {
            m.work(3 * random::AT_WORK);
            let mut words = random::Words::of(seed ^ 2, e as u64);
            let a = words.below(n);
            let reach = if words.word() & 1 == 0 { NEAR } else { n - 1 };
            Some((a as u32, ((a + 1 + words.below(reach)) % n) as u32))
        };
        let nets = Adjacency::build(m, n, 2 * pairs, pairs, pair, |_, _, _| {})?;
        Ok(Netlist { elements, locations, nets })
    }

    fn place<M: Memory>(&self, m: &mut M, element: usize) -> (u32, u32) {
        let location = m.get(&self.elements, element * ELEMENT_WORDS + LOCATION) as usize;
        (m.get(&self.locations, 2 * location), m.get(&self.locations, 2 * location + 1))
    }

    /// How much longer the wires get when two elements change places.
    fn change_of_swap<M: Memory>(&self, m: &mut M, a: usize, b: usize) -> i64 {
        let (of_a, of_b) = (self.place(m, a), self.place(m, b));
        let mut change = 0;
        for (element, other, from, to) in [(a, b, of_a, of_b), (b, a, of_b, of_a)] {
            for entry in self.nets.row(m, element) {
                m.work(58);
                let neighbour = m.get(&self.nets.columns, entry) as usize;
                // A wire between the two stays as long as it is.
                if neighbour != other {
                    let there = self.place(m, neighbour);
                    change += distance(to, there) - distance(from, there);
                }
            }
        }
        change
    }

    fn swap<M: Memory>(&self, m: &mut M, a: usize, b: usize) {
        let (a, b) = (a * ELEMENT_WORDS, b * ELEMENT_WORDS);
        let of_a = m.get(&self.elements, a + LOCATION);
        let of_b = m.get(&self.elements, b + LOCATION);
        m.set(&self.elements, a + LOCATION, of_b);
        m.set(&self.elements, b + LOCATION, of_a);
        for element in [a, b] {
            let moves = m.get(&self.elements, element + MOVES);
            m.set(&self.elements, element + MOVES, moves + 1);
        }
    }

    /// Length of all wires.
    fn wire_length<M: Memory>(&self, m: &mut M) -> i64 {
        let mut length = 0;
        for element in 0..self.nets.rows() {
            let here = self.place(m, element);
            for entry in self.nets.row(m, element) {
                m.work(30);
                let neighbour = m.get(&self.nets.columns, entry) as usize;
                length += distance(here, self.place(m, neighbour));
            }
        }
        // Each wire was counted from both ends.
        length / 2
    }
}

fn distance(a: (u32, u32), b: (u32, u32)) -> i64 {
    i64::from(a.0.abs_diff(b.0)) + i64::from(a.1.abs_diff(b.1))
}
