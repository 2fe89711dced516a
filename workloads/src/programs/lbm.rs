//! A fluid by the lattice Boltzmann method: 19 directions in three dimensions (D3Q19), collided
//! and pushed from one grid into another.
//!
//! Represents lbm of the adaptive-policy paper (SPEC CPU 2017, section 3.2) and the lbm of the
//! Nimble paper (SPEC ACCEL, figure 12). Two grids are swept alternately, cell after cell of 160
//! bytes; all pages are used equally often and equally recently.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check_error, fold};
use super::parameters::in_range;
use super::shared::grid::{self, Size};
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "lbm",
    summary: "lattice Boltzmann flow around obstacles (D3Q19)",
    stands_for: "adaptive policy section 3.2: lbm; Nimble figure 12: SPEC ACCEL lbm: two grids swept in turn, all pages alike",
    operation: "cell updates",
    threads: true,
    parameters: &[ParameterDoc { name: "iterations", default: "10", meaning: "time steps" }],
    run: Run::of::<Lbm>(),
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

const DIRECTIONS: usize = 19;
/// The directions and whether the cell is solid.
const CELL: usize = DIRECTIONS + 1;
const SOLID: usize = DIRECTIONS;
/// Relaxation rate.
const OMEGA: f64 = 1.6;
/// Largest speed at the start.
const SPEED: f64 = 0.05;
/// One cell in so many is the centre of an obstacle of 7 cells.
const CELLS_PER_OBSTACLE: u64 = 400;

/// The directions: rest, then pairs of opposites.
const C: [[i32; 3]; DIRECTIONS] = [
    [0, 0, 0],
    [1, 0, 0],
    [-1, 0, 0],
    [0, 1, 0],
    [0, -1, 0],
    [0, 0, 1],
    [0, 0, -1],
    [1, 1, 0],
    [-1, -1, 0],
    [1, -1, 0],
    [-1, 1, 0],
    [1, 0, 1],
    [-1, 0, -1],
    [1, 0, -1],
    [-1, 0, 1],
    [0, 1, 1],
    [0, -1, -1],
    [0, 1, -1],
    [0, -1, 1],
];

fn opposite(direction: usize) -> usize {
    if direction == 0 { 0 } else { ((direction - 1) ^ 1) + 1 }
}

/// Number of pairs of opposite directions.
const PAIRS: usize = DIRECTIONS / 2;
const REST_WEIGHT: f64 = 1.0 / 3.0;

/// Weight of both directions of a pair: along the axes, and between two of them.
const fn weight(pair: usize) -> f64 {
    if pair < 3 { 1.0 / 18.0 } else { 1.0 / 36.0 }
}

/// The scalar product with the first direction of a pair.
#[inline(always)]
fn along(pair: usize, v: [f64; 3]) -> f64 {
    let [x, y, z] = v;
    [x, y, z, x + y, x - y, x + z, x - z, y + z, y - z][pair]
}

/// The equilibrium distribution of a fluid of this density and velocity in each direction.
#[inline(always)]
fn equilibrium(density: f64, velocity: [f64; 3]) -> [f64; DIRECTIONS] {
    let square: f64 = velocity.iter().map(|v| v * v).sum();
    let still = 1.0 - 1.5 * square;
    let mut f = [REST_WEIGHT * density * still; DIRECTIONS];
    for pair in 0..PAIRS {
        let along = along(pair, velocity);
        let share = weight(pair) * density;
        let (even, odd) = (share * (still + 4.5 * along * along), share * 3.0 * along);
        f[2 * pair + 1] = even + odd;
        f[2 * pair + 2] = even - odd;
    }
    f
}

/// Density and momentum of a cell.
#[inline(always)]
fn moments(f: &[f64; DIRECTIONS]) -> (f64, [f64; 3]) {
    let density = f.iter().sum();
    let d: [f64; PAIRS] = std::array::from_fn(|pair| f[2 * pair + 1] - f[2 * pair + 2]);
    let momentum = [
        d[0] + d[3] + d[4] + d[5] + d[6],
        d[1] + d[3] - d[4] + d[7] + d[8],
        d[2] + d[5] - d[6] + d[7] - d[8],
    ];
    (density, momentum)
}

struct Lbm;

impl Kernel for Lbm {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 30)?;
        let size = grid::near_cube(params.footprint_bytes as f64 / (2 * CELL * 8) as f64);
        let n = grid::points(size);
        let seed = params.seed;

        let grids = &m.phase(phase::INIT, 0, |m| -> Result<_, ProgramError> {
            let grids = [m.array::<f64>("even", n * CELL)?, m.array::<f64>("odd", n * CELL)?];
            m.each(n, |m, cell| {
                let here = grid::place(size, cell);
                m.work(403);
                let solid = is_solid(size, here, seed);
                let f = equilibrium(1.0, if solid { [0.0; 3] } else { start(size, here, seed) });
                for (i, value) in f.into_iter().enumerate() {
                    m.set(&grids[0], cell * CELL + i, value);
                }
                for grid in &grids {
                    m.set(grid, cell * CELL + SOLID, f64::from(u8::from(solid)));
                }
            });
            Ok(grids)
        })?;
        let before = m.quietly(|m| totals(m, &grids[0], n));

        m.phase(phase::MAIN, 0, |m| {
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    let turn = (iteration % 2) as usize;
                    step(m, size, &grids[turn], &grids[1 - turn]);
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let last = &grids[(iterations % 2) as usize];
                let after = totals(m, last, n);
                let mut checksum = 0;
                let mut wrong_flags = 0;
                for i in 0..n * CELL {
                    let value = m.get(last, i);
                    checksum = fold(checksum, value.to_bits());
                    if i % CELL == SOLID {
                        let solid = is_solid(size, grid::place(size, i / CELL), seed);
                        wrong_flags += u32::from(value != f64::from(u8::from(solid)));
                    }
                }
                let mass = (after.mass / before.mass - 1.0).abs();
                let checks = vec![
                    check_error("mass changed by", mass, 1e-10),
                    // Obstacles and viscosity only slow the fluid down. Speed of sound is 0.58.
                    check_error(
                        "kinetic energy, of what it was",
                        after.energy / before.energy,
                        1.0,
                    ),
                    check_error("largest speed", after.speed, 0.3),
                    check_error("wrong flags", wrong_flags.into(), 0.0),
                ];
                Ok(Outcome { checksum, operations: iterations * n as u64, checks })
            })
        })
    }
}

/// Whether a cell belongs to an obstacle: its own or a face neighbour's.
fn is_solid(size: Size, here: [usize; 3], seed: u64) -> bool {
    (0..7).any(|i| {
        let centre = grid::index(size, neighbour(size, here, C[i]));
        random::at(seed, centre as u64).is_multiple_of(CELLS_PER_OBSTACLE)
    })
}

/// Velocity at the start: two crossing shear waves.
fn start(size: Size, here: [usize; 3], seed: u64) -> [f64; 3] {
    let shift = (seed % 1000) as f64 / 1000.0;
    let wave = |d: usize| {
        libm::sin(2.0 * std::f64::consts::PI * (here[d] as f64 / size[d] as f64 + shift))
    };
    [SPEED * wave(1), 0.0, SPEED * wave(0)]
}

fn neighbour(size: Size, here: [usize; 3], step: [i32; 3]) -> [usize; 3] {
    // Steps of one cell in a periodic box.
    std::array::from_fn(|d| match step[d] {
        1 if here[d] + 1 == size[d] => 0,
        -1 if here[d] == 0 => size[d] - 1,
        s => here[d].wrapping_add_signed(s as isize),
    })
}

/// Collides every cell and pushes the result to its neighbours. Each place of the target is
/// written by one cell only.
fn step<M: Memory>(m: &mut M, size: Size, from: &Array<f64>, to: &Array<f64>) {
    let before = |at: usize, side: usize| if at == 0 { side - 1 } else { at - 1 };
    let after = |at: usize, side: usize| if at + 1 == side { 0 } else { at + 1 };
    let around = |at: usize, side: usize| [before(at, side), at, after(at, side)];
    let body = |m: &mut M, (): &mut (), rows: std::ops::Range<usize>| {
        for row in rows {
            let ys = around(row % size[1], size[1]);
            let zs = around(row / size[1], size[2]);
            // The target of each direction from x = 0, and its stride along x.
            let targets: [usize; DIRECTIONS] = std::array::from_fn(|i| {
                let [_, dy, dz] = C[i].map(|c| (c + 1) as usize);
                grid::index(size, [0, ys[dy], zs[dz]]) * CELL + i
            });
            for x in 0..size[0] {
                m.work(725);
                let base = targets[0] + x * CELL;
                let mut f: [f64; DIRECTIONS] = std::array::from_fn(|i| m.get(from, base + i));
                if m.get(from, base + SOLID) != 0.0 {
                    // Populations that arrive at an obstacle go back.
                    f = std::array::from_fn(|i| f[opposite(i)]);
                } else {
                    let (density, momentum) = moments(&f);
                    let rest = equilibrium(density, momentum.map(|p| p / density));
                    for (value, target) in f.iter_mut().zip(rest) {
                        *value += OMEGA * (target - *value);
                    }
                }
                let xs = around(x, size[0]).map(|x| x * CELL);
                for (i, value) in f.into_iter().enumerate() {
                    m.set(to, targets[i] + xs[(C[i][0] + 1) as usize], value);
                }
            }
        }
    };
    m.parallel(size[1] * size[2], 1, |_| (), body);
}

struct Totals {
    mass: f64,
    energy: f64,
    speed: f64,
}

fn totals<M: Memory>(m: &mut M, from: &Array<f64>, n: usize) -> Totals {
    let of_cell = |m: &mut M, cell: usize| {
        let f = std::array::from_fn(|i| m.get(from, cell * CELL + i));
        let (density, momentum) = moments(&f);
        let fluid = m.get(from, cell * CELL + SOLID) == 0.0;
        let square = if fluid { momentum.iter().map(|p| p * p).sum() } else { 0.0f64 };
        (density, square)
    };
    let mass = m.sum(n, |m, cell| of_cell(m, cell).0);
    let energy = m.sum(n, |m, cell| {
        let (density, square) = of_cell(m, cell);
        square / density
    });
    let mut speed = 0.0f64;
    for cell in 0..n {
        let (density, square) = of_cell(m, cell);
        let here = square.sqrt() / density;
        speed = if here <= speed { speed } else { here };
    }
    Totals { mass, energy, speed }
}
