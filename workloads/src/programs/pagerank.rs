//! PageRank of a Kronecker graph, by pulling along every edge until the turns are done.
//!
//! Represents Graph-analytics of the adaptive-policy paper (CloudSuite, section 3.2): the
//! neighbours are scanned in order, again and again, and with each a random word of the ranks is
//! read; those of vertices with many neighbours are the hot data that scans must not evict.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, check_error, fold};
use super::parameters::in_range;
use super::shared::kronecker::{Graph, Size};
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "pagerank",
    summary: "PageRank of a Kronecker graph",
    stands_for: "adaptive policy section 3.2: Graph-analytics (PageRank): scans over the edges with random reads of ranks, hubs hot",
    operation: "edges",
    threads: true,
    parameters: &[ParameterDoc {
        name: "iterations",
        default: "10",
        meaning: "turns over all edges",
    }],
    run: Run::of::<PageRank>(),
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

const DAMPING: f64 = 0.85;

struct PageRank;

impl Kernel for PageRank {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 20)?;
        let size = Size::fit(params.footprint_bytes, 16)?;
        let (graph, ranks, shares) = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let graph = Graph::build(m, size, params.seed)?;
            let n = graph.vertices();
            let (ranks, shares) = (m.array::<f64>("ranks", n)?, m.array::<f64>("shares", n)?);
            m.each(n, |m, v| {
                m.work(9);
                m.set(&ranks, v, 1.0 / n as f64);
            });
            Ok((graph, ranks, shares))
        })?;
        let n = graph.vertices();

        // Rank of the vertices without neighbours, which is distributed to all alike; and the
        // change of the ranks in the first and in the last turn.
        let (mut loose, mut moved) = (0.0, (0.0, 0.0));
        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    loose = m.sum(n, |m, v| {
                        m.work(37);
                        let rank = m.get(ranks, v);
                        let degree = graph.neighbours.row(m, v).len();
                        m.set(shares, v, if degree == 0 { 0.0 } else { rank / degree as f64 });
                        if degree == 0 { rank } else { 0.0 }
                    });
                    let base = (1.0 - DAMPING + DAMPING * loose) / n as f64;
                    let distance = m.sum(n, |m, v| {
                        m.work(37);
                        let mut sum = 0.0;
                        for entry in graph.neighbours.row(m, v) {
                            m.work(9);
                            let neighbour = m.get(&graph.neighbours.columns, entry);
                            sum += m.get(shares, neighbour as usize);
                        }
                        let rank = base + DAMPING * sum;
                        let before = m.get(ranks, v);
                        m.set(ranks, v, rank);
                        (rank - before).abs()
                    });
                    moved = (if iteration == 0 { distance } else { moved.0 }, distance);
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                // The last turn repeated, pushed along the list of edges instead of pulled.
                let base = (1.0 - DAMPING + DAMPING * loose) / n as f64;
                let pushed = pushed(m, graph, shares);
                let (mut total, mut worst, mut checksum) = (0.0, 0.0f64, 0);
                for (v, sum) in pushed.iter().enumerate() {
                    let rank = m.get(ranks, v);
                    let expected = base + DAMPING * sum;
                    let error = ((rank - expected) / expected).abs();
                    worst = if error <= worst { worst } else { error };
                    total += rank;
                    checksum = fold(checksum, rank.to_bits());
                }
                let (first, last) = moved;
                let shrink = DAMPING.powi(iterations as i32 - 1) * first * (1.0 + 1e-9);
                let checks = vec![
                    check_error("ranks pushed instead of pulled differ by", worst, 1e-10),
                    check_error("sum of the ranks is off 1 by", (total - 1.0f64).abs(), 1e-9),
                    // The damped step is a contraction in this norm.
                    check(
                        last <= shrink,
                        format!("last turn moved ranks by {last:.3e}, at most {shrink:.3e}"),
                    ),
                ];
                let edges = m.get(&graph.neighbours.offsets, n);
                Ok(Outcome { checksum, operations: iterations * edges, checks })
            })
        })
    }
}

/// Sums of shares, pushed along the list of edges.
fn pushed<M: Memory>(m: &mut M, graph: &Graph, shares: &Array<f64>) -> Vec<f64> {
    let mut pushed = vec![0.0; graph.vertices()];
    for e in 0..graph.edges.len() / 2 {
        let a = m.get(&graph.edges, 2 * e) as usize;
        let b = m.get(&graph.edges, 2 * e + 1) as usize;
        if a != b {
            pushed[a] += m.get(shares, b);
            pushed[b] += m.get(shares, a);
        }
    }
    pushed
}
