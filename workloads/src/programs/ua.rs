//! Heat around a moving source on a mesh that follows it: the pattern of NPB's UA
//! (unstructured adaptive).
//!
//! Represents `ua` (NAS, class C) of the granularity paper (table 2). Heat flows over a list of
//! faces, each of which gathers from and scatters to two cells through indices; every few steps
//! cells near the source are split and far ones joined, and the lists are made anew by walking
//! through the trees of cells.
//!
//! Finite volumes on a forest of octrees instead of NPB's spectral elements; heat is conserved
//! exactly, and the program checks that.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, check_error, fold};
use super::parameters::in_range;
use super::shared::grid::{self, Size};
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "ua",
    summary: "heat around a moving source on an adaptive mesh (UA-like)",
    stands_for: "granularity table 2: ua: gathers and scatters through index lists that are rebuilt as the mesh adapts",
    operation: "face updates",
    threads: false,
    parameters: &[
        ParameterDoc { name: "iterations", default: "50", meaning: "time steps" },
        ParameterDoc {
            name: "steps_per_adaptation",
            default: "5",
            meaning: "time steps between two adaptations of the mesh (NPB: 5)",
        },
    ],
    run: Run::of::<Ua>(),
};

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    iterations: u64,
    steps_per_adaptation: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { iterations: 50, steps_per_adaptation: 5 }
    }
}

/// Times that a cell of the base mesh can be split.
const LEVELS: u32 = 2;
/// Words of a cell's topology: first child or 0, level, and its place in units of its level.
const TREE_WORDS: usize = 5;
const CHILD: usize = 0;
const LEVEL: usize = 1;
const PLACE: usize = 2;
/// Words of a cell's state: temperature and the heat that flows in this step.
const STATE_WORDS: usize = 2;
/// Room for faces, per cell that there is room for.
const FACES_PER_CELL: f64 = 3.3;
/// Cells for each cell of the base mesh. 3 more for each: 0.375 splits.
const CELLS_PER_ROOT: f64 = 4.0;
/// Shares of the volume that are split once and twice: together 0.13 + 8 * 0.028 splits for
/// each cell of the base mesh.
const SPLIT_SHARES: [f64; 2] = [0.13, 0.028];
/// Heat of the source in each step, and temperature elsewhere at the start.
const SOURCE: f64 = 1.0;

struct Mesh {
    /// Cells of the base mesh; they are the first ones.
    roots: Size,
    tree: Array<u32>,
    state: Array<f64>,
    /// Numbers of the leaves.
    leaves: Array<u32>,
    /// The two cells of each face, and its conductance.
    sides: Array<u32>,
    conductance: Array<f64>,
    /// First cells of eight that are free.
    free: Array<u32>,
    free_count: usize,
    leaf_count: usize,
    face_count: usize,
    /// Faces for which there was no room: insulated, which is crude but conserves.
    lost_faces: usize,
}

struct Ua;

impl Kernel for Ua {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 30)?;
        let every = in_range("steps_per_adaptation", options.steps_per_adaptation, 1, 1 << 30)?;
        let cell_bytes =
            4.0 * TREE_WORDS as f64 + 8.0 * STATE_WORDS as f64 + 4.5 + 16.0 * FACES_PER_CELL;
        let roots = grid::near_cube(params.footprint_bytes as f64 / cell_bytes / CELLS_PER_ROOT);
        in_range("cells that fit the footprint", grid::points(roots), 27, 1 << 29)?;
        let seed = params.seed;

        let mesh = &mut m.phase(phase::INIT, 0, |m| Mesh::new(m, roots, seed))?;
        let before = m.quietly(|m| mesh.heat(m));

        let mut faces = 0;
        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    let source = source(seed, iteration);
                    if iteration % every == 0 {
                        m.phase("adapt", iteration / every, |m| mesh.adapt(m, source));
                    }
                    mesh.step(m, source);
                    faces += mesh.face_count as u64;
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let after = mesh.heat(m);
                let expected = before.heat + iterations as f64 * SOURCE;
                let off = (after.heat - expected).abs() / expected;
                let checksum = fold(fold(after.checksum, faces), mesh.leaf_count as u64);
                let checks = vec![
                    check_error("heat is off what was there and came by", off, 1e-9),
                    check_error("volume is off the box by", (after.volume - 1.0).abs(), 1e-9),
                    // Conduction makes no cell colder than the coldest was, nor hotter than one
                    // with all the heat.
                    check(after.coldest >= before.coldest, format!("coldest {}", after.coldest)),
                    check(mesh.lost_faces == 0, format!("{} faces without room", mesh.lost_faces)),
                ];
                Ok(Outcome { checksum, operations: faces, checks })
            })
        })
    }
}

/// Where the source is: on a circle well inside the box.
fn source(seed: u64, iteration: u64) -> [f64; 3] {
    let turn = random::unit(random::at(seed, 0)) + iteration as f64 / 200.0;
    let angle = 2.0 * std::f64::consts::PI * turn;
    [0.5 + 0.15 * libm::cos(angle), 0.5 + 0.15 * libm::sin(angle), 0.5]
}

/// Totals of the heat.
struct Heat {
    heat: f64,
    volume: f64,
    coldest: f64,
    checksum: u64,
}

/// A cell decoded from its words.
#[derive(Clone, Copy)]
struct Cell {
    child: usize,
    level: u32,
    place: [u32; 3],
}

impl Mesh {
    fn new<M: Memory>(m: &mut M, roots: Size, seed: u64) -> Result<Mesh, ProgramError> {
        let count = grid::points(roots);
        let blocks = (count as f64 * (CELLS_PER_ROOT - 1.0) / 8.0) as usize;
        let cells = count + 8 * blocks;
        let faces = (cells as f64 * FACES_PER_CELL) as usize;
        let mut mesh = Mesh {
            roots,
            tree: m.array("tree", cells * TREE_WORDS)?,
            state: m.array("state", cells * STATE_WORDS)?,
            leaves: m.array("leaves", cells)?,
            sides: m.array("sides", 2 * faces)?,
            conductance: m.array("conductance", faces)?,
            free: m.array("free", blocks)?,
            free_count: blocks,
            leaf_count: 0,
            face_count: 0,
            lost_faces: 0,
        };
        for root in 0..count {
            m.work(random::AT_WORK + 10);
            let place = grid::place(roots, root).map(|p| p as u32);
            mesh.set_cell(m, root, 0, place);
            let temperature = 1.0 + 0.1 * random::unit(random::at(seed, root as u64));
            m.set(&mesh.state, root * STATE_WORDS, temperature);
        }
        // The lowest blocks are allocated first.
        for i in 0..blocks {
            m.work(10);
            m.set(&mesh.free, i, (count + 8 * (blocks - 1 - i)) as u32);
        }
        mesh.list(m);
        Ok(mesh)
    }

    fn cell<M: Memory>(&self, m: &mut M, cell: usize) -> Cell {
        let mut word = |k: usize| m.get(&self.tree, cell * TREE_WORDS + k);
        Cell {
            child: word(CHILD) as usize,
            level: word(LEVEL),
            place: [word(PLACE), word(PLACE + 1), word(PLACE + 2)],
        }
    }

    fn set_cell<M: Memory>(&self, m: &mut M, cell: usize, level: u32, place: [u32; 3]) {
        m.set(&self.tree, cell * TREE_WORDS + CHILD, 0);
        m.set(&self.tree, cell * TREE_WORDS + LEVEL, level);
        for (k, p) in place.into_iter().enumerate() {
            m.set(&self.tree, cell * TREE_WORDS + PLACE + k, p);
        }
    }

    fn temperature<M: Memory>(&self, m: &mut M, cell: usize) -> f64 {
        m.get(&self.state, cell * STATE_WORDS)
    }

    /// Edge lengths of cells of a level; the whole box is 1.
    fn edges(&self, level: u32) -> [f64; 3] {
        self.roots.map(|side| 1.0 / (side << level) as f64)
    }

    fn volume(&self, level: u32) -> f64 {
        self.edges(level).iter().product()
    }

    /// The number of splits that a cell should have for a source there.
    fn wanted(&self, cell: Cell, source: [f64; 3]) -> u32 {
        // Of the root, so that the eight parts of a cell agree.
        let edges = self.edges(0);
        let square: f64 = (0..3)
            .map(|d| ((cell.place[d] >> cell.level) as f64 + 0.5) * edges[d] - source[d])
            .map(|d| d * d)
            .sum();
        let radius = |share: f64| libm::cbrt(share * 3.0 / (4.0 * std::f64::consts::PI));
        SPLIT_SHARES.iter().filter(|&&share| square < radius(share).powi(2)).count() as u32
    }

    /// Joins and splits cells, and lists leaves and faces anew.
    fn adapt<M: Memory>(&mut self, m: &mut M, source: [f64; 3]) {
        for root in 0..grid::points(self.roots) {
            self.join(m, root, source);
        }
        for root in 0..grid::points(self.roots) {
            self.split(m, root, source);
        }
        self.list(m);
    }

    /// Joins the eight parts of a cell where the split is not needed, the smallest first.
    fn join<M: Memory>(&mut self, m: &mut M, number: usize, source: [f64; 3]) {
        m.work(143);
        let cell = self.cell(m, number);
        if cell.child == 0 {
            return;
        }
        let mut leaves = true;
        for part in cell.child..cell.child + 8 {
            self.join(m, part, source);
            leaves &= m.get(&self.tree, part * TREE_WORDS + CHILD) == 0;
        }
        if leaves && self.wanted(cell, source) <= cell.level {
            let parts = cell.child..cell.child + 8;
            let mean = parts.map(|part| self.temperature(m, part)).sum::<f64>() / 8.0;
            m.set(&self.state, number * STATE_WORDS, mean);
            m.set(&self.tree, number * TREE_WORDS + CHILD, 0);
            m.set(&self.free, self.free_count, cell.child as u32);
            self.free_count += 1;
        }
    }

    /// Splits a cell as often as needed, while there is room.
    fn split<M: Memory>(&mut self, m: &mut M, number: usize, source: [f64; 3]) {
        m.work(143);
        let mut cell = self.cell(m, number);
        if cell.level >= self.wanted(cell, source) {
            return;
        }
        if cell.child == 0 {
            if self.free_count == 0 {
                return;
            }
            self.free_count -= 1;
            cell.child = m.get(&self.free, self.free_count) as usize;
            m.set(&self.tree, number * TREE_WORDS + CHILD, cell.child as u32);
            let temperature = self.temperature(m, number);
            for part in 0..8 {
                let place = [0, 1, 2].map(|d| 2 * cell.place[d] + (part >> d & 1) as u32);
                self.set_cell(m, cell.child + part, cell.level + 1, place);
                m.set(&self.state, (cell.child + part) * STATE_WORDS, temperature);
            }
        }
        for part in cell.child..cell.child + 8 {
            self.split(m, part, source);
        }
    }

    /// Lists the leaves, and the faces between them.
    fn list<M: Memory>(&mut self, m: &mut M) {
        self.leaf_count = 0;
        self.face_count = 0;
        let mut path = Vec::new();
        for root in 0..grid::points(self.roots) {
            path.push(root);
            while let Some(number) = path.pop() {
                assert!(path.len() < 8 * LEVELS as usize, "cell {number} is below itself");
                m.work(48);
                let child = m.get(&self.tree, number * TREE_WORDS + CHILD) as usize;
                if child == 0 {
                    m.set(&self.leaves, self.leaf_count, number as u32);
                    m.set(&self.state, number * STATE_WORDS + 1, 0.0);
                    self.leaf_count += 1;
                } else {
                    path.extend((child..child + 8).rev());
                }
            }
        }
        for i in 0..self.leaf_count {
            let number = m.get(&self.leaves, i) as usize;
            let cell = self.cell(m, number);
            for direction in 0..6 {
                m.work(95);
                if let Some((other, level)) = self.beside(m, cell, direction) {
                    self.add_face(m, (number, cell.level), (other, level), direction / 2);
                }
            }
        }
    }

    /// The leaf on the other side of a face that belongs to this cell: it is larger, or of the
    /// same size and further up. Faces to smaller leaves belong to those.
    fn beside<M: Memory>(&self, m: &mut M, cell: Cell, direction: usize) -> Option<(usize, u32)> {
        let (d, up) = (direction / 2, direction % 2 == 1);
        let mut place = cell.place;
        if up {
            place[d] += 1;
            if place[d] as usize == self.roots[d] << cell.level {
                return None;
            }
        } else {
            place[d] = place[d].checked_sub(1)?;
        }
        let mut number = grid::index(self.roots, place.map(|p| (p >> cell.level) as usize));
        for level in 0..=cell.level {
            m.work(38);
            let child = m.get(&self.tree, number * TREE_WORDS + CHILD) as usize;
            if child == 0 {
                return (level < cell.level || up).then_some((number, level));
            }
            let bit = |d: usize| (place[d] >> (cell.level.max(level + 1) - level - 1) & 1) as usize;
            number = child + (bit(0) | bit(1) << 1 | bit(2) << 2);
        }
        None
    }

    fn add_face<M: Memory>(
        &mut self,
        m: &mut M,
        (a, small): (usize, u32),
        (b, large): (usize, u32),
        d: usize,
    ) {
        if self.face_count == self.conductance.len() {
            self.lost_faces += 1;
            return;
        }
        let (edges, other) = (self.edges(small), self.edges(large));
        let area = edges[(d + 1) % 3] * edges[(d + 2) % 3];
        m.set(&self.sides, 2 * self.face_count, a as u32);
        m.set(&self.sides, 2 * self.face_count + 1, b as u32);
        m.set(&self.conductance, self.face_count, area / (0.5 * (edges[d] + other[d])));
        self.face_count += 1;
    }

    /// One step of time: heat over the faces, then the source.
    fn step<M: Memory>(&self, m: &mut M, source: [f64; 3]) {
        // Stable for the smallest cells, which have at most 4 faces a side.
        let least = self.edges(LEVELS);
        let rate: f64 = least.iter().map(|e| 2.0 / (e * e)).sum();
        let dt = 0.4 / rate;
        for face in 0..self.face_count {
            m.work(29);
            let a = m.get(&self.sides, 2 * face) as usize;
            let b = m.get(&self.sides, 2 * face + 1) as usize;
            let drop = self.temperature(m, b) - self.temperature(m, a);
            let flow = dt * m.get(&self.conductance, face) * drop;
            for (cell, change) in [(a, flow), (b, -flow)] {
                let sum = m.get(&self.state, cell * STATE_WORDS + 1) + change;
                m.set(&self.state, cell * STATE_WORDS + 1, sum);
            }
        }
        let hot = self.leaf_at(m, source);
        for i in 0..self.leaf_count {
            m.work(48);
            let cell = m.get(&self.leaves, i) as usize;
            let level = m.get(&self.tree, cell * TREE_WORDS + LEVEL);
            let mut heat = m.get(&self.state, cell * STATE_WORDS + 1);
            if cell == hot {
                heat += SOURCE;
            }
            let temperature = self.temperature(m, cell) + heat / self.volume(level);
            m.set(&self.state, cell * STATE_WORDS, temperature);
            m.set(&self.state, cell * STATE_WORDS + 1, 0.0);
        }
    }

    fn leaf_at<M: Memory>(&self, m: &mut M, at: [f64; 3]) -> usize {
        let place = |level: u32, d: usize| (at[d] * (self.roots[d] << level) as f64) as usize;
        let mut number = grid::index(self.roots, [0, 1, 2].map(|d| place(0, d)));
        for level in 1..=LEVELS + 1 {
            let child = m.get(&self.tree, number * TREE_WORDS + CHILD) as usize;
            if child == 0 {
                break;
            }
            let bit = |d: usize| place(level, d) & 1;
            number = child + (bit(0) | bit(1) << 1 | bit(2) << 2);
        }
        number
    }

    fn heat<M: Memory>(&self, m: &mut M) -> Heat {
        let of_leaf = |m: &mut M, i: usize| {
            let number = m.get(&self.leaves, i) as usize;
            (self.volume(self.cell(m, number).level), self.temperature(m, number))
        };
        let heat = m.sum(self.leaf_count, |m, i| {
            let (volume, temperature) = of_leaf(m, i);
            volume * temperature
        });
        let volume = m.sum(self.leaf_count, |m, i| of_leaf(m, i).0);
        let mut sums = Heat { heat, volume, coldest: f64::INFINITY, checksum: 0 };
        for i in 0..self.leaf_count {
            let temperature = of_leaf(m, i).1;
            sums.coldest = sums.coldest.min(temperature);
            sums.checksum = fold(sums.checksum, temperature.to_bits());
        }
        sums
    }
}
