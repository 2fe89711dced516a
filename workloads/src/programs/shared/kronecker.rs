//! Kronecker graphs, as graph500 defines them: power-law degrees, scrambled vertex numbers.

use super::super::ProgramError;
use super::super::memory::{Array, Memory};
use super::adjacency::Adjacency;
use super::random::Words;
use crate::memory::checked::mix;

/// Probabilities of the four quadrants (graph500 specification: A 0.57, B 0.19, C 0.19).
const A: f64 = 0.57;
const B: f64 = 0.19;
const C: f64 = 0.19;

/// A graph: its list of edges and the neighbours of every vertex.
pub struct Graph {
    /// Both ends of every edge, self-loops included.
    pub edges: Array<u32>,
    /// Neighbours; self-loops left out.
    pub neighbours: Adjacency,
}

/// Sizes of a graph that fits a footprint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Binary logarithm of the number of vertices.
    pub scale: u32,
    /// Number of edges.
    pub edges: usize,
}

impl Size {
    /// The graph of 11 to 23 edges a vertex (graph500: 16) that fills the footprint when the
    /// program has so many bytes a vertex of its own.
    pub fn fit(footprint_bytes: u64, own_bytes_per_vertex: u64) -> Result<Size, ProgramError> {
        let per_vertex = own_bytes_per_vertex + Adjacency::BYTES_PER_ROW;
        let per_edge = 8 + 2 * Adjacency::BYTES_PER_ENTRY;
        let scale = (footprint_bytes / (per_vertex + 11 * per_edge)).max(2).ilog2();
        if scale > 31 {
            return Err(ProgramError::BadParameter(format!(
                "a footprint of {footprint_bytes} bytes is a graph of 2^{scale} vertices: expected 2^31 at most"
            )));
        }
        let vertices_bytes = per_vertex << scale;
        Ok(Size { scale, edges: ((footprint_bytes - vertices_bytes) / per_edge) as usize })
    }
}

/// A bijection of the vertex numbers, so that high degrees are not neighbours in memory.
fn scramble(vertex: u32, scale: u32, seed: u64) -> u32 {
    let mask = (1u64 << scale) - 1;
    let mut v = u64::from(vertex);
    for round in 0..3 {
        // Adding, multiplying by odd numbers and folding down are bijections of `scale` bits.
        v = (v.wrapping_mul(mix(seed ^ round) | 1) + (mix(!seed ^ round) & mask)) & mask;
        v ^= v >> (scale / 2).max(1);
    }
    v as u32
}

impl Graph {
    /// Makes the graph of a seed.
    pub fn build<M: Memory>(m: &mut M, size: Size, seed: u64) -> Result<Graph, ProgramError> {
        let Size { scale, edges: count } = size;
        let edges = m.array::<u32>("edges", 2 * count)?;
        m.each(count, |m, e| {
            let mut words = Words::of(seed, e as u64);
            let (mut a, mut b) = (0u32, 0u32);
            for _ in 0..scale {
                let x = words.unit();
                a = a << 1 | u32::from(x >= A + B);
                b = b << 1 | u32::from((A..A + B).contains(&x) || x >= A + B + C);
            }
            m.work(20 * scale + 40);
            m.set(&edges, 2 * e, scramble(a, scale, seed));
            m.set(&edges, 2 * e + 1, scramble(b, scale, seed));
        });
        let pair = |m: &mut M, e: usize| {
            let ends = (m.get(&edges, 2 * e), m.get(&edges, 2 * e + 1));
            (ends.0 != ends.1).then_some(ends)
        };
        let rows = 1 << scale;
        let neighbours = Adjacency::build(m, rows, 2 * count, count, pair, |_, _, _| {})?;
        Ok(Graph { edges, neighbours })
    }

    /// Number of vertices.
    pub fn vertices(&self) -> usize {
        self.neighbours.rows()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrambling_is_a_bijection() {
        for scale in [1, 2, 5, 12] {
            let mut seen = vec![false; 1 << scale];
            for v in 0..1u32 << scale {
                seen[scramble(v, scale, 9) as usize] = true;
            }
            assert!(seen.into_iter().all(|s| s), "{scale}");
        }
    }

    #[test]
    fn sizes_fill_the_footprint() {
        for bytes in [3 << 20, 100 << 20, 5 << 30, 400u64 << 30] {
            let size = Size::fit(bytes, 10).unwrap();
            let used = (18 << size.scale) + 16 * size.edges as u64;
            assert!(used <= bytes && used + 16 > bytes);
            let degree = size.edges as f64 / f64::from(size.scale).exp2();
            assert!((10.5..24.0).contains(&degree), "{degree}");
        }
        assert!(Size::fit(1 << 45, 10).is_err());
    }
}
