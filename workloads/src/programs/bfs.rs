//! Breadth-first searches of a Kronecker graph from random roots, each validated, as in graph500.
//!
//! Represents graph500 of the Nimble, granularity (table 2) and adaptive-policy papers, and BFS on
//! an rMat graph of the Radiant paper (table 2). Neighbours of a vertex are contiguous, but which
//! vertex comes next is random, and so is every read of a parent; vertices of high degree are read
//! again and again. Validation scans the whole graph after each search, which is why graph500
//! favours LFU (adaptive-policy paper, section 3.2); it belongs to the program and is traced.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{Check, check, fold};
use super::parameters::in_range;
use super::shared::kronecker::{Graph, Size};
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};
use crate::memory::checked::mix;

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "bfs",
    summary: "validated breadth-first searches of a Kronecker graph (graph500)",
    stands_for: "Nimble figure 12, granularity table 2, adaptive policy section 3: graph500; Radiant table 2: BFS: random vertices, hot hubs, whole-graph validation",
    operation: "traversed edges",
    threads: true,
    parameters: &[ParameterDoc {
        name: "searches",
        default: "8",
        meaning: "number of searches (graph500: 64)",
    }],
    run: Run::of::<Bfs>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    searches: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { searches: 8 }
    }
}

const NONE: u32 = u32::MAX;
const NO_LEVEL: u8 = u8::MAX;
/// Vertices that a thread finds before it appends them to the queue.
const BATCH: usize = 64;

/// Memory of a search beside the graph: 10 bytes a vertex.
struct Search {
    parents: Array<u32>,
    queue: Array<u32>,
    levels: Array<u8>,
    /// Whether the edge to the parent was found in the list of edges.
    joined: Array<u8>,
    /// Length of the queue.
    tail: Array<u64>,
}

struct Bfs;

impl Kernel for Bfs {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let searches = in_range("searches", options.searches, 1, 1 << 20)?;
        let size = Size::fit(params.footprint_bytes, 10)?;
        let (graph, search) = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let graph = Graph::build(m, size, params.seed)?;
            let n = graph.vertices();
            let search = Search {
                parents: m.array("parents", n)?,
                queue: m.array("queue", n)?,
                levels: m.array("levels", n)?,
                joined: m.array("joined", n)?,
                tail: m.array("tail", 1)?,
            };
            Ok((graph, search))
        })?;

        let mut checks = Vec::new();
        let (mut checksum, mut operations) = (0, 0);
        m.phase(phase::MAIN, 0, |m| {
            for number in 0..searches {
                m.phase(phase::ITERATION, number, |m| {
                    let root = random_root(m, graph, !params.seed, number);
                    let reached = m.phase("search", number, |m| search.run(m, graph, root));
                    let validated =
                        m.phase("validate", number, |m| search.validate(m, graph, root, reached));
                    checksum = fold(checksum, validated.checksum);
                    operations += validated.edges;
                    checks.push(validated.check);
                });
            }
        });
        let checks = match checks.iter().find(|c| !c.passed) {
            Some(failed) => vec![failed.clone()],
            None => vec![check(true, format!("{searches} searches valid"))],
        };
        Ok(Outcome { checksum, operations, checks })
    }
}

/// A vertex that has neighbours.
fn random_root<M: Memory>(m: &mut M, graph: &Graph, seed: u64, number: u64) -> usize {
    let mut words = random::Words::of(seed, number);
    loop {
        let vertex = words.below(graph.vertices());
        if !graph.neighbours.row(m, vertex).is_empty() {
            return vertex;
        }
    }
}

struct Validated {
    check: Check,
    checksum: u64,
    edges: u64,
}

impl Search {
    /// Searches level by level; returns the number of vertices reached.
    fn run<M: Memory>(&self, m: &mut M, graph: &Graph, root: usize) -> usize {
        m.each(graph.vertices(), |m, v| {
            m.work(10);
            m.set(&self.parents, v, NONE);
        });
        m.set(&self.parents, root, root as u32);
        m.set(&self.queue, 0, root as u32);
        m.set(&self.tail, 0, 1);
        let (mut from, mut to) = (0, 1);
        while from < to {
            let found = m.parallel(
                to - from,
                16,
                |_| Vec::new(),
                |m, found, range| {
                    for i in range {
                        let vertex = m.get(&self.queue, from + i) as usize;
                        m.work(21);
                        for entry in graph.neighbours.row(m, vertex) {
                            m.work(21);
                            let neighbour = m.get(&graph.neighbours.columns, entry);
                            if m.get(&self.parents, neighbour as usize) == NONE
                                && m.claim(&self.parents, neighbour as usize, NONE, vertex as u32)
                            {
                                found.push(neighbour);
                                if found.len() == BATCH {
                                    self.append(m, found);
                                }
                            }
                        }
                    }
                },
            );
            for mut rest in found {
                self.append(m, &mut rest);
            }
            from = to;
            to = m.get(&self.tail, 0) as usize;
        }
        to
    }

    fn append<M: Memory>(&self, m: &mut M, found: &mut Vec<u32>) {
        let at = m.add(&self.tail, 0, found.len() as u64) as usize;
        for (i, vertex) in found.drain(..).enumerate() {
            m.work(10);
            m.set(&self.queue, at + i, vertex);
        }
    }

    /// The checks of the graph500 specification: a tree rooted at the root; its edges are edges
    /// of the graph; ends of every edge are a level apart at most, or both outside.
    fn validate<M: Memory>(
        &self,
        m: &mut M,
        graph: &Graph,
        root: usize,
        reached: usize,
    ) -> Validated {
        let n = graph.vertices();
        m.each(n, |m, v| {
            m.work(10);
            m.set(&self.levels, v, NO_LEVEL);
            m.set(&self.joined, v, 0);
        });
        m.set(&self.levels, root, 0);
        let mut orphans = u64::from(m.get(&self.parents, root) != root as u32);
        for i in 1..reached {
            m.work(26);
            let vertex = m.get(&self.queue, i) as usize;
            let parent = m.get(&self.parents, vertex) as usize;
            let level = if parent < n { m.get(&self.levels, parent) } else { NO_LEVEL };
            // A vertex comes after its parent, and once.
            if level >= NO_LEVEL - 1 || m.get(&self.levels, vertex) != NO_LEVEL {
                orphans += 1;
            } else {
                m.set(&self.levels, vertex, level + 1);
            }
        }
        let edges = graph.edges.len() / 2;
        let looked = m.parallel(
            edges,
            64,
            |_| (0u64, 0u64),
            |m, (wrong, within), range| {
                for e in range {
                    m.work(41);
                    let a = m.get(&graph.edges, 2 * e) as usize;
                    let b = m.get(&graph.edges, 2 * e + 1) as usize;
                    let (la, lb) = (m.get(&self.levels, a), m.get(&self.levels, b));
                    *wrong +=
                        u64::from(la.abs_diff(lb) > 1 || (la == NO_LEVEL) != (lb == NO_LEVEL));
                    *within += u64::from(la != NO_LEVEL);
                    for (child, parent, deeper) in [(a, b, la > lb), (b, a, lb > la)] {
                        if m.get(&self.parents, child) == parent as u32 {
                            *wrong += u64::from(!deeper && child != parent);
                            m.set(&self.joined, child, 1);
                        }
                    }
                }
            },
        );
        let wrong: u64 = looked.iter().map(|l| l.0).sum();
        let within = looked.iter().map(|l| l.1).sum();
        let counted = m.parallel(
            n,
            64,
            |_| (0u64, 0u64, 0u64),
            |m, sums, range| {
                for v in range {
                    m.work(21);
                    let level = m.get(&self.levels, v);
                    if level != NO_LEVEL {
                        sums.0 += 1;
                        sums.1 += u64::from(v != root && m.get(&self.joined, v) == 0);
                        sums.2 = sums.2.wrapping_add(mix((v as u64) << 8 | u64::from(level)));
                    }
                }
            },
        );
        let sum = |part: fn(&(u64, u64, u64)) -> u64| {
            counted.iter().fold(0u64, |a, c| a.wrapping_add(part(c)))
        };
        let (in_tree, loose, checksum) = (sum(|c| c.0), sum(|c| c.1), sum(|c| c.2));
        let valid = orphans == 0 && wrong == 0 && loose == 0 && in_tree == reached as u64;
        let what = format!(
            "search from {root}: {reached} vertices reached, {in_tree} in the tree, {orphans} without a level, {loose} without an edge to their parent, {wrong} edges across levels"
        );
        Validated { check: check(valid, what), checksum, edges: within }
    }
}
