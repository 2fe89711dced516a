//! Rows of a symmetric sparse structure (the neighbours of a graph's vertices, the columns of a
//! matrix's rows), built from pairs by counting and scattering, like graph and matrix packages: two
//! passes over the pairs, each with a random access for each end.

use super::super::ProgramError;
use super::super::memory::{Array, Memory};

/// Row `i` has its entries at `offsets[i]..offsets[i + 1]`.
pub struct Adjacency {
    /// Start of each row and the end of the last: one more than there are rows.
    pub offsets: Array<u64>,
    /// The other end of each entry.
    pub columns: Array<u32>,
}

impl Adjacency {
    /// Bytes of the offsets for each row, and of the columns for each entry.
    pub const BYTES_PER_ROW: u64 = 8;
    /// See [`Self::BYTES_PER_ROW`].
    pub const BYTES_PER_ENTRY: u64 = 4;

    /// Enters each pair in the rows of both its ends; a pair of one row with itself once; none
    /// where `pair` returns none. `room` is the number of entries to allocate. `placed` gets the
    /// positions of a pair's entries. Entries of a row are in the reverse order of their pairs.
    /// Done by one thread, so that the order does not depend on the number of threads.
    pub fn build<M: Memory>(
        m: &mut M,
        rows: usize,
        room: usize,
        pairs: usize,
        pair: impl Fn(&mut M, usize) -> Option<(u32, u32)>,
        mut placed: impl FnMut(&mut M, usize, usize),
    ) -> Result<Adjacency, ProgramError> {
        let offsets = m.array::<u64>("offsets", rows + 1)?;
        let columns = m.array::<u32>("columns", room)?;
        for e in 0..pairs {
            if let Some((a, b)) = pair(m, e) {
                m.work(8);
                bump(m, &offsets, a);
                if a != b {
                    bump(m, &offsets, b);
                }
            }
        }
        let mut sum = 0;
        for row in 0..rows {
            m.work(8);
            sum += m.get(&offsets, row);
            m.set(&offsets, row, sum);
        }
        m.set(&offsets, rows, sum);
        // Each offset is the end of its row now, and goes down to its start.
        let place = |m: &mut M, row: u32, column: u32| {
            let position = m.get(&offsets, row as usize) - 1;
            m.set(&offsets, row as usize, position);
            m.set(&columns, position as usize, column);
            position as usize
        };
        for e in 0..pairs {
            if let Some((a, b)) = pair(m, e) {
                m.work(12);
                let position = place(m, a, b);
                placed(m, e, position);
                if a != b {
                    let position = place(m, b, a);
                    placed(m, e, position);
                }
            }
        }
        Ok(Adjacency { offsets, columns })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The positions of a row's entries.
    #[inline]
    pub fn row<M: Memory>(&self, m: &mut M, row: usize) -> std::ops::Range<usize> {
        let start = m.get(&self.offsets, row) as usize;
        start..m.get(&self.offsets, row + 1) as usize
    }
}

fn bump<M: Memory>(m: &mut M, counts: &Array<u64>, row: u32) {
    let count = m.get(counts, row as usize);
    m.set(counts, row as usize, count + 1);
}
