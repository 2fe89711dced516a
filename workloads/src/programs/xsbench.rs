//! Macroscopic neutron cross sections, looked up as XSBench does it (Tramm et al., PHYSOR 2014):
//! a binary search in a unionized energy grid, then, for every nuclide of a random material, two
//! rows of that nuclide's own grid.
//!
//! Represents XSBench of the Radiant paper (table 2), of the granularity paper (table 2) and of the
//! rack paper (table II). The index of the unionized grid is nearly the whole footprint and is read
//! one random row at a time, almost without reuse; the nuclides' grids are small and warm.
//!
//! Sizes and shares (355 or 68 nuclides, 12 materials, how many nuclides and how likely each
//! is) are XSBench's; energies, cross sections and compositions are random from the seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, fold};
use super::parameters::in_range;
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};
use crate::memory::checked::mix;

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "xsbench",
    summary: "neutron cross-section look-ups in a unionized energy grid",
    stands_for: "Radiant table 2, granularity table 2, rack table II: XSBench: random rows of one huge index, hardly reused, beside small warm grids",
    operation: "look-ups",
    threads: true,
    parameters: &[
        ParameterDoc {
            name: "lookups",
            default: "0",
            meaning: "number of look-ups; 0: one for each KB of footprint",
        },
        ParameterDoc {
            name: "nuclides",
            default: "0",
            meaning: "68 (XSBench 'small') or 355 ('large'); 0: large from 1 GB of footprint on",
        },
    ],
    run: Run::of::<XsBench>(),
};

#[derive(Deserialize, Default)]
#[serde(default, deny_unknown_fields)]
struct Options {
    lookups: usize,
    nuclides: usize,
}

/// Share of the look-ups for each material, in thousandths, and its number of nuclides; for the
/// first one, the fuel, in a small and in a large problem.
const MATERIALS: [(u32, usize); 12] = [
    (140, 0),
    (52, 5),
    (275, 4),
    (134, 4),
    (154, 27),
    (64, 21),
    (66, 21),
    (55, 21),
    (8, 21),
    (15, 21),
    (25, 9),
    (12, 9),
];
const FUEL_NUCLIDES: [(usize, usize); 2] = [(68, 34), (355, 321)];
/// Total, elastic, absorption, fission, nu-fission.
const SECTIONS: usize = 5;
/// A row of a nuclide's grid: an energy and the cross sections.
const ROW: usize = 1 + SECTIONS;

/// The nuclear data, as functions of the seed.
struct Data {
    seed: u64,
    nuclides: usize,
    /// Rows of each nuclide's grid.
    rows: usize,
    /// Nuclides and concentrations of each material.
    materials: Vec<Vec<(usize, f64)>>,
}

impl Data {
    fn new(seed: u64, nuclides: usize, rows: usize, fuel: usize) -> Data {
        let material = |number: usize, count: usize| {
            let mut words = random::Words::of(!seed, number as u64);
            let mut all: Vec<usize> = (0..nuclides).collect();
            for i in 0..count {
                let j = i + words.below(nuclides - i);
                all.swap(i, j);
            }
            all[..count].iter().map(|&n| (n, words.unit())).collect()
        };
        let counts = MATERIALS.iter().map(|&(_, count)| if count == 0 { fuel } else { count });
        let materials = counts.enumerate().map(|(i, count)| material(i, count)).collect();
        Data { seed, nuclides, rows, materials }
    }

    /// Energies ascend: row k is somewhere in the k-th of equal parts of 0 to 1.
    fn energy(&self, nuclide: usize, row: usize) -> f64 {
        let word = random::at(self.seed, ((nuclide * self.rows + row) * ROW) as u64);
        (row as f64 + random::unit(word)) / self.rows as f64
    }

    fn section(&self, nuclide: usize, row: usize, section: usize) -> f64 {
        let index = (nuclide * self.rows + row) * ROW + 1 + section;
        random::unit(random::at(self.seed, index as u64))
    }

    fn random_material(&self, word: u64) -> usize {
        let mut left = random::below(word, 1000) as u32;
        let chosen = MATERIALS.iter().position(|&(share, _)| match left.checked_sub(share) {
            None => true,
            Some(rest) => {
                left = rest;
                false
            }
        });
        chosen.expect("the shares add up to 1000")
    }
}

/// The tables in memory.
struct Tables {
    /// Rows of all nuclides, nuclide by nuclide.
    grid: Array<f64>,
    /// All energies, ascending.
    energies: Array<f64>,
    /// For each of them and each nuclide the nuclide's row at or below that energy.
    index: Array<u32>,
}

struct XsBench;

impl Kernel for XsBench {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let large = params.footprint_bytes >= 1 << 30;
        let nuclides = match options.nuclides {
            0 => FUEL_NUCLIDES[usize::from(large)].0,
            n => n,
        };
        let Some(&(_, fuel)) = FUEL_NUCLIDES.iter().find(|(n, _)| *n == nuclides) else {
            let what = format!("nuclides {nuclides}: expected 68 or 355");
            return Err(ProgramError::BadParameter(what));
        };
        let bytes_per_point = (8 * ROW + 8 + 4 * nuclides) as u64;
        let rows = (params.footprint_bytes / (bytes_per_point * nuclides as u64)) as usize;
        let rows = in_range("rows for each nuclide that fit the footprint", rows, 8, 1 << 32)?;
        let lookups = match options.lookups {
            0 => (params.footprint_bytes >> 10) as usize,
            n => n,
        };
        let data = &Data::new(params.seed, nuclides, rows, fuel);

        let tables =
            &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> { Tables::build(m, data) })?;

        let start = |_| (0u64, 0u64);
        let body = |m: &mut M, (sum, wrong): &mut (u64, u64), range: std::ops::Range<usize>| {
            for i in range {
                let mut words = random::Words::of(mix(data.seed), i as u64);
                let energy = words.unit();
                let material = data.random_material(words.word());
                m.work(4 * random::AT_WORK);
                let sections = tables.look_up(m, data, energy, material);
                if i % 64 == 0 {
                    *wrong += u64::from(sections != recompute(data, energy, material));
                }
                // As XSBench verifies: the largest cross section of each look-up.
                let largest =
                    (1..SECTIONS).fold(0, |a, b| if sections[b] > sections[a] { b } else { a });
                *sum = sum.wrapping_add(mix(i as u64 ^ sections[largest].to_bits()));
            }
        };
        let found = m.phase(phase::MAIN, 0, |m| m.parallel(lookups, 1, start, body));

        Ok(m.phase(phase::VERIFY, 0, |m| {
            let wrong_rows = m.quietly(|m| tables.wrong_rows(m, data));
            let sum = found.iter().fold(0u64, |a, f| a.wrapping_add(f.0));
            let wrong: u64 = found.iter().map(|f| f.1).sum();
            let looked = lookups.div_ceil(64);
            let checks = vec![
                check(wrong == 0, format!("{wrong} of {looked} recomputed look-ups wrong")),
                check(wrong_rows == 0, format!("{wrong_rows} wrong table entries")),
            ];
            Outcome { checksum: fold(sum, rows as u64), operations: lookups as u64, checks }
        }))
    }
}

/// A cross section between two rows.
fn interpolate(energy: f64, (e0, s0): (f64, f64), (e1, s1): (f64, f64)) -> f64 {
    s0 + (energy - e0) / (e1 - e0) * (s1 - s0)
}

/// The same look-up from the data themselves, nuclide by nuclide, without the tables.
fn recompute(data: &Data, energy: f64, material: usize) -> [f64; SECTIONS] {
    let mut sections = [0.0; SECTIONS];
    for &(nuclide, concentration) in &data.materials[material] {
        let (mut low, mut high) = (0, data.rows);
        while low < high {
            let middle = (low + high) / 2;
            if data.energy(nuclide, middle) <= energy {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let row = low.saturating_sub(1).min(data.rows - 2);
        for (s, sum) in sections.iter_mut().enumerate() {
            let at = |r| (data.energy(nuclide, r), data.section(nuclide, r, s));
            *sum += concentration * interpolate(energy, at(row), at(row + 1));
        }
    }
    sections
}

impl Tables {
    fn build<M: Memory>(m: &mut M, data: &Data) -> Result<Tables, ProgramError> {
        let points = data.nuclides * data.rows;
        let grid = m.array::<f64>("grid", points * ROW)?;
        let energies = m.array::<f64>("energies", points)?;
        let index = m.array::<u32>("index", points * data.nuclides)?;
        m.each(points, |m, point| {
            let (nuclide, row) = (point / data.rows, point % data.rows);
            m.work(ROW as u32 * random::AT_WORK);
            m.set(&grid, point * ROW, data.energy(nuclide, row));
            for s in 0..SECTIONS {
                m.set(&grid, point * ROW + 1 + s, data.section(nuclide, row, s));
            }
        });
        // Merges the nuclides' ascending energies; `rows` are the places reached in each.
        let mut rows = vec![0u32; data.nuclides];
        // Energies are not negative, so that their bits have their order.
        let mut heads: BinaryHeap<_> = (0..data.nuclides)
            .map(|n| Reverse((m.get(&grid, n * data.rows * ROW).to_bits(), n, 0)))
            .collect();
        let mut point = 0;
        while let Some(Reverse((bits, nuclide, row))) = heads.pop() {
            m.work(114);
            m.set(&energies, point, f64::from_bits(bits));
            rows[nuclide] = (row as u32).min(data.rows as u32 - 2);
            for (n, &row) in rows.iter().enumerate() {
                m.work(4);
                m.set(&index, point * data.nuclides + n, row);
            }
            point += 1;
            if row + 1 < data.rows {
                let energy = m.get(&grid, (nuclide * data.rows + row + 1) * ROW);
                heads.push(Reverse((energy.to_bits(), nuclide, row + 1)));
            }
        }
        Ok(Tables { grid, energies, index })
    }

    fn look_up<M: Memory>(
        &self,
        m: &mut M,
        data: &Data,
        energy: f64,
        material: usize,
    ) -> [f64; SECTIONS] {
        // The last point at or below the energy.
        let (mut low, mut high) = (0, self.energies.len());
        while low < high {
            m.work(10);
            let middle = (low + high) / 2;
            if m.get(&self.energies, middle) <= energy {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let point = low.saturating_sub(1);
        let mut sections = [0.0; SECTIONS];
        for &(nuclide, concentration) in &data.materials[material] {
            m.work(27);
            let row = m.get(&self.index, point * data.nuclides + nuclide) as usize;
            let below = (nuclide * data.rows + row) * ROW;
            let (e0, e1) = (m.get(&self.grid, below), m.get(&self.grid, below + ROW));
            for (s, sum) in sections.iter_mut().enumerate() {
                m.work(10);
                let s0 = m.get(&self.grid, below + 1 + s);
                let s1 = m.get(&self.grid, below + ROW + 1 + s);
                *sum += concentration * interpolate(energy, (e0, s0), (e1, s1));
            }
        }
        sections
    }

    /// Checks every entry.
    fn wrong_rows<M: Memory>(&self, m: &mut M, data: &Data) -> usize {
        let points = self.energies.len();
        let mut wrong = 0;
        for point in 0..points {
            let (nuclide, row) = (point / data.rows, point % data.rows);
            let mut right = m.get(&self.grid, point * ROW) == data.energy(nuclide, row);
            for s in 0..SECTIONS {
                right &= m.get(&self.grid, point * ROW + 1 + s) == data.section(nuclide, row, s);
            }
            wrong += usize::from(!right);
        }
        // Each point is one step of one nuclide: so the index is recounted.
        let mut rows = vec![0usize; data.nuclides];
        let mut last = f64::NEG_INFINITY;
        for point in 0..points {
            let energy = m.get(&self.energies, point);
            let ascends = energy >= last;
            last = energy;
            let (mut steps, mut right) = (0, ascends);
            for (n, at) in rows.iter_mut().enumerate() {
                while *at < data.rows && data.energy(n, *at) <= energy {
                    right &= data.energy(n, *at) == energy;
                    *at += 1;
                    steps += 1;
                }
                let expected = at.saturating_sub(1).min(data.rows - 2);
                right &= m.get(&self.index, point * data.nuclides + n) as usize == expected;
            }
            wrong += usize::from(!right || steps != 1);
        }
        wrong
    }
}
