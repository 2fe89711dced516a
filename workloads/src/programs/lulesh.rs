//! A blast wave on a mesh of hexahedra that moves with the material: the computation of LULESH
//! (Karlin et al., 2013), Sedov's problem.
//!
//! Represents `lul` of the granularity paper (table 2, CORAL LULESH), and Lulesh and Pennant of the
//! rack paper (table II). Some forty arrays are streamed side by side; elements gather from their
//! eight nodes and nodes from their eight elements through index lists that are nearly in order.
//!
//! Forces are gradients of the elements' volumes, and elements lose the work of their forces, so
//! that energy is conserved to rounding (Caramana et al., J. Comput. Phys. 146, 1998); the program
//! checks that, and the symmetry of the blast, as LULESH does.

use serde::Deserialize;
use terrace_core::parameters::ParameterDoc;

use super::memory::{Array, Memory, phase};
use super::outcome::{check, check_error, fold};
use super::parameters::in_range;
use super::shared::grid;
use super::shared::random;
use super::{Kernel, Outcome, Params, ProgramError, ProgramKind, Run};

pub(super) const KIND: ProgramKind = ProgramKind {
    name: "lulesh",
    summary: "a blast wave on a moving mesh of hexahedra (LULESH)",
    stands_for: "granularity table 2: lulesh; rack table II: Lulesh, Pennant: many arrays streamed side by side, gathers through nearly ordered lists",
    operation: "element updates",
    threads: true,
    parameters: &[ParameterDoc { name: "iterations", default: "10", meaning: "time steps" }],
    run: Run::of::<Lulesh>(),
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

type Vector = [f64; 3];

/// Ratio of the specific heats.
const GAMMA: f64 = 5.0 / 3.0;
/// Energy per mass outside the blast.
const COLD: f64 = 1e-3;
/// Linear and quadratic artificial viscosity.
const VISCOSITY: (f64, f64) = (0.5, 1.0);
/// Damping of motions that change no volume.
const HOURGLASS: f64 = 0.05;
/// Share of the stable time step, and how much it may grow in a step.
const COURANT: f64 = 0.3;
const GROWTH: f64 = 1.1;

/// Corners of an element, as bits of x, y and z, by face, counterclockwise from outside.
const FACES: [[usize; 4]; 6] =
    [[0, 4, 6, 2], [1, 3, 7, 5], [0, 1, 5, 4], [2, 6, 7, 3], [0, 2, 3, 1], [4, 5, 7, 6]];
/// The four patterns in which corners move without changing the volume, by bits of the corner
/// whose signs are multiplied.
const MODES: [usize; 4] = [0b011, 0b101, 0b110, 0b111];

fn cross(a: Vector, b: Vector) -> Vector {
    [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
}

fn dot(a: Vector, b: Vector) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn add(to: &mut Vector, what: Vector, factor: f64) {
    for d in 0..3 {
        to[d] += factor * what[d];
    }
}

/// The volume of a hexahedron whose faces are four triangles around their middle, and its
/// gradient by each corner.
fn volume(corners: &[Vector; 8]) -> (f64, [Vector; 8]) {
    let mut gradient = [[0.0; 3]; 8];
    let mut volume = 0.0;
    for face in FACES {
        let mut middle = [0.0; 3];
        for corner in face {
            add(&mut middle, corners[corner], 0.25);
        }
        let mut by_middle = [0.0; 3];
        for k in 0..4 {
            let (i, j) = (face[k], face[(k + 1) % 4]);
            let (a, b) = (corners[i], corners[j]);
            let normal = cross(a, b);
            volume += dot(normal, middle) / 6.0;
            add(&mut by_middle, normal, 1.0 / 6.0);
            add(&mut gradient[i], cross(b, middle), 1.0 / 6.0);
            add(&mut gradient[j], cross(middle, a), 1.0 / 6.0);
        }
        for corner in face {
            add(&mut gradient[corner], by_middle, 0.25);
        }
    }
    (volume, gradient)
}

/// Approximate instructions of [`volume`].
const VOLUME_WORK: u32 = 3400;

/// Three arrays, one for each coordinate.
struct Triple([Array<f64>; 3]);

impl Triple {
    fn new<M: Memory>(
        m: &mut M,
        names: [&'static str; 3],
        len: usize,
    ) -> Result<Triple, ProgramError> {
        let [x, y, z] = names;
        Ok(Triple([m.array(x, len)?, m.array(y, len)?, m.array(z, len)?]))
    }

    #[inline]
    fn get<M: Memory>(&self, m: &mut M, i: usize) -> Vector {
        [m.get(&self.0[0], i), m.get(&self.0[1], i), m.get(&self.0[2], i)]
    }

    #[inline]
    fn set<M: Memory>(&self, m: &mut M, i: usize, value: Vector) {
        for (array, part) in self.0.iter().zip(value) {
            m.set(array, i, part);
        }
    }
}

struct Mesh {
    /// Elements along each edge.
    side: usize,
    // By element.
    nodes: Array<u32>,
    energy: Array<f64>,
    pressure: Array<f64>,
    viscosity: Array<f64>,
    volume: Array<f64>,
    sound: Array<f64>,
    mass: Array<f64>,
    /// Forces of each element on each of its corners.
    corner_forces: Triple,
    // By node.
    position: Triple,
    velocity: Triple,
    /// Displacement in the last step.
    moved: Triple,
    node_mass: Array<f64>,
    /// First corner of each node in `corners`, which has element and corner.
    starts: Array<u32>,
    corners: Array<u32>,
}

/// Bytes of an element, and of a node.
const ELEMENT_BYTES: f64 = 8.0 * 4.0 + 6.0 * 8.0 + 24.0 * 8.0 + 8.0 * 4.0;
const NODE_BYTES: f64 = 10.0 * 8.0 + 4.0;

struct Lulesh;

impl Kernel for Lulesh {
    fn run<M: Memory>(m: &mut M, params: &Params) -> Result<Outcome, ProgramError> {
        let options: Options = params.options()?;
        let iterations = in_range("iterations", options.iterations, 1, 1 << 30)?;
        let bytes = |side: usize| {
            (side as f64).powi(3) * ELEMENT_BYTES + (side as f64 + 1.0).powi(3) * NODE_BYTES
        };
        let wanted = params.footprint_bytes as f64;
        let guess = libm::cbrt(wanted / (ELEMENT_BYTES + NODE_BYTES)) as usize;
        let off = |side: usize| (bytes(side) - wanted).abs();
        let side = (guess.saturating_sub(2)..guess + 2)
            .min_by(|&a, &b| off(a).total_cmp(&off(b)))
            .unwrap_or(guess);
        // Corners are numbered in 32 bits.
        let side = in_range("elements along an edge that fit the footprint", side, 3, 812)?;
        // Different blasts for different seeds.
        let blast = 1.0 + random::unit(random::at(params.seed, 0));

        let mesh = &m.phase(phase::INIT, 0, |m| Mesh::new(m, side, blast))?;
        let before = m.quietly(|m| mesh.total_energy(m));

        let mut time = 0.0;
        m.phase(phase::MAIN, 0, |m| {
            let mut dt = f64::INFINITY;
            for iteration in 0..iterations {
                m.phase(phase::ITERATION, iteration, |m| {
                    dt = mesh.time_step(m).min(GROWTH * dt);
                    mesh.forces(m);
                    mesh.move_nodes(m, dt);
                    mesh.update(m, dt);
                    time += dt;
                });
            }
        });

        m.phase(phase::VERIFY, 0, |m| {
            m.quietly(|m| {
                let after = mesh.total_energy(m);
                let size = [side; 3];
                let (mut asymmetry, mut largest, mut least) = (0.0f64, 0.0f64, f64::INFINITY);
                let (mut bent, mut checksum) = (0.0f64, 0);
                for element in 0..side.pow(3) {
                    let energy = m.get(&mesh.energy, element);
                    let [x, y, z] = grid::place(size, element);
                    for other in [[y, x, z], [x, z, y]] {
                        let mirrored = m.get(&mesh.energy, grid::index(size, other));
                        let error = (energy - mirrored).abs();
                        asymmetry = if error <= asymmetry { asymmetry } else { error };
                    }
                    largest = largest.max(energy);
                    let at = mesh.gather(m, element, &mesh.position);
                    let kept = m.get(&mesh.volume, element);
                    let error = (volume(&at).0 / kept - 1.0).abs();
                    bent = if error <= bent { bent } else { error };
                    least = least.min(kept);
                    checksum = fold(checksum, energy.to_bits());
                }
                let off = ((after - before) / before).abs();
                let checks = vec![
                    check_error("energy changed by", off, 1e-9),
                    check_error("energies are asymmetric by", asymmetry / largest, 1e-8),
                    check_error("volumes are off those of the nodes by", bent, 1e-13),
                    check(least > 0.0, format!("least volume {least:.3e} at {time:.3e}")),
                ];
                let operations = iterations * side.pow(3) as u64;
                Ok(Outcome { checksum, operations, checks })
            })
        })
    }
}

impl Mesh {
    fn new<M: Memory>(m: &mut M, side: usize, blast: f64) -> Result<Mesh, ProgramError> {
        let elements = side.pow(3);
        let points = [side + 1; 3];
        let nodes = grid::points(points);
        let mesh = Mesh {
            side,
            nodes: m.array("nodes", 8 * elements)?,
            energy: m.array("energy", elements)?,
            pressure: m.array("pressure", elements)?,
            viscosity: m.array("viscosity", elements)?,
            volume: m.array("volume", elements)?,
            sound: m.array("sound", elements)?,
            mass: m.array("mass", elements)?,
            corner_forces: Triple::new(m, ["force x", "force y", "force z"], 8 * elements)?,
            position: Triple::new(m, ["x", "y", "z"], nodes)?,
            velocity: Triple::new(m, ["velocity x", "velocity y", "velocity z"], nodes)?,
            moved: Triple::new(m, ["moved x", "moved y", "moved z"], nodes)?,
            node_mass: m.array("node mass", nodes)?,
            starts: m.array("starts", nodes + 1)?,
            corners: m.array("corners", 8 * elements)?,
        };
        let edge = 1.0 / side as f64;
        m.each(nodes, |m, node| {
            m.work(22);
            let place = grid::place(points, node);
            mesh.position.set(m, node, place.map(|p| p as f64 * edge));
            mesh.velocity.set(m, node, [0.0; 3]);
        });
        m.each(elements, |m, element| {
            m.work(VOLUME_WORK);
            let low = grid::place([side; 3], element);
            for corner in 0..8 {
                let place = [0, 1, 2].map(|d| low[d] + (corner >> d & 1));
                m.set(&mesh.nodes, 8 * element + corner, grid::index(points, place) as u32);
            }
            let at = mesh.gather(m, element, &mesh.position);
            let volume = volume(&at).0;
            m.set(&mesh.volume, element, volume);
            // Density 1.
            m.set(&mesh.mass, element, volume);
            // All the blast in the element at the origin.
            let energy = if element == 0 { blast / volume } else { COLD };
            mesh.set_state(m, element, energy, volume, 0.0);
        });
        // Corners of each node, by counting and scattering.
        for i in 0..8 * elements {
            m.work(4);
            let node = m.get(&mesh.nodes, i) as usize;
            let count = m.get(&mesh.starts, node);
            m.set(&mesh.starts, node, count + 1);
        }
        let mut sum = 0;
        for node in 0..nodes {
            m.work(7);
            sum += m.get(&mesh.starts, node);
            m.set(&mesh.starts, node, sum);
        }
        m.set(&mesh.starts, nodes, sum);
        for i in (0..8 * elements).rev() {
            m.work(18);
            let node = m.get(&mesh.nodes, i) as usize;
            let place = m.get(&mesh.starts, node) - 1;
            m.set(&mesh.starts, node, place);
            m.set(&mesh.corners, place as usize, i as u32);
            let mass = m.get(&mesh.node_mass, node) + m.get(&mesh.mass, i / 8) / 8.0;
            m.set(&mesh.node_mass, node, mass);
        }
        Ok(mesh)
    }

    /// Values at the eight nodes of an element.
    fn gather<M: Memory>(&self, m: &mut M, element: usize, of: &Triple) -> [Vector; 8] {
        std::array::from_fn(|corner| {
            let node = m.get(&self.nodes, 8 * element + corner) as usize;
            of.get(m, node)
        })
    }

    /// Pressure, viscosity and speed of sound for an energy and a volume.
    fn set_state<M: Memory>(
        &self,
        m: &mut M,
        element: usize,
        energy: f64,
        volume: f64,
        viscosity: f64,
    ) {
        let density = m.get(&self.mass, element) / volume;
        let pressure = ((GAMMA - 1.0) * density * energy).max(0.0);
        m.set(&self.energy, element, energy);
        m.set(&self.pressure, element, pressure);
        m.set(&self.viscosity, element, viscosity);
        m.set(&self.sound, element, (GAMMA * pressure / density).sqrt());
    }

    /// The longest stable step.
    fn time_step<M: Memory>(&self, m: &mut M) -> f64 {
        let steps = m.parallel(
            self.side.pow(3),
            64,
            |_| f64::INFINITY,
            |m, least, range| {
                for element in range {
                    m.work(89);
                    let density = m.get(&self.mass, element) / m.get(&self.volume, element);
                    let push = m.get(&self.viscosity, element) / density;
                    let speed = (m.get(&self.sound, element).powi(2) + 4.0 * push).sqrt();
                    let length = libm::cbrt(m.get(&self.volume, element));
                    *least = least.min(COURANT * length / speed);
                }
            },
        );
        steps.into_iter().fold(f64::INFINITY, f64::min)
    }

    /// Forces of every element on its corners.
    fn forces<M: Memory>(&self, m: &mut M) {
        m.each(self.side.pow(3), |m, element| {
            m.work(VOLUME_WORK + 300);
            let at = self.gather(m, element, &self.position);
            let velocity = self.gather(m, element, &self.velocity);
            let push = m.get(&self.pressure, element) + m.get(&self.viscosity, element);
            let (volume, gradient) = volume(&at);
            let mut force = gradient.map(|g| g.map(|g| push * g));
            let density = m.get(&self.mass, element) / volume;
            let damping =
                HOURGLASS * density * m.get(&self.sound, element) * libm::cbrt(volume).powi(2);
            for mode in MODES {
                let sign = |corner: usize| [1.0, -1.0][(corner & mode).count_ones() as usize % 2];
                let mut speed = [0.0; 3];
                for (corner, v) in velocity.iter().enumerate() {
                    add(&mut speed, *v, sign(corner) / 8.0);
                }
                for (corner, force) in force.iter_mut().enumerate() {
                    add(force, speed, -damping * sign(corner));
                }
            }
            for (corner, force) in force.into_iter().enumerate() {
                self.corner_forces.set(m, 8 * element + corner, force);
            }
        });
    }

    fn move_nodes<M: Memory>(&self, m: &mut M, dt: f64) {
        let points = [self.side + 1; 3];
        m.each(grid::points(points), |m, node| {
            m.work(89);
            let mut force = [0.0; 3];
            let start = m.get(&self.starts, node) as usize;
            for i in start..m.get(&self.starts, node + 1) as usize {
                m.work(11);
                let corner = m.get(&self.corners, i) as usize;
                add(&mut force, self.corner_forces.get(m, corner), 1.0);
            }
            // Planes of symmetry through the origin.
            let place = grid::place(points, node);
            for d in 0..3 {
                if place[d] == 0 {
                    force[d] = 0.0;
                }
            }
            let before = self.velocity.get(m, node);
            let mut after = before;
            add(&mut after, force, dt / m.get(&self.node_mass, node));
            // The mean velocity does the work, so that energy is conserved.
            let moved = [0, 1, 2].map(|d| 0.5 * dt * (before[d] + after[d]));
            let mut position = self.position.get(m, node);
            add(&mut position, moved, 1.0);
            self.velocity.set(m, node, after);
            self.moved.set(m, node, moved);
            self.position.set(m, node, position);
        });
    }

    /// Energy, volume and state of every element after the move.
    fn update<M: Memory>(&self, m: &mut M, dt: f64) {
        m.each(self.side.pow(3), |m, element| {
            m.work(VOLUME_WORK + 150);
            let moved = self.gather(m, element, &self.moved);
            let mut work = 0.0;
            for (corner, moved) in moved.into_iter().enumerate() {
                work += dot(self.corner_forces.get(m, 8 * element + corner), moved);
            }
            let at = self.gather(m, element, &self.position);
            let volume = volume(&at).0;
            let before = m.get(&self.volume, element);
            let mass = m.get(&self.mass, element);
            let energy = m.get(&self.energy, element) - work / mass;
            let closing = (1.0 - volume / before) / dt * libm::cbrt(volume);
            let (linear, quadratic) = VISCOSITY;
            let viscosity = if closing > 0.0 {
                let sound = m.get(&self.sound, element);
                mass / volume * closing * (linear * sound + quadratic * closing)
            } else {
                0.0
            };
            m.set(&self.volume, element, volume);
            self.set_state(m, element, energy, volume, viscosity);
        });
    }

    fn total_energy<M: Memory>(&self, m: &mut M) -> f64 {
        let inner = m.sum(self.side.pow(3), |m, element| {
            m.get(&self.mass, element) * m.get(&self.energy, element)
        });
        let motion = m.sum((self.side + 1).pow(3), |m, node| {
            let velocity = self.velocity.get(m, node);
            0.5 * m.get(&self.node_mass, node) * dot(velocity, velocity)
        });
        inner + motion
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_of_a_sheared_box_and_its_gradient_are_right() {
        let corner = |i: usize| {
            let [x, y, z] = [0, 1, 2].map(|d| (i >> d & 1) as f64);
            [2.0 * x + 0.5 * y, 3.0 * y + 0.25 * z, 4.0 * z]
        };
        let corners: [Vector; 8] = std::array::from_fn(corner);
        let (v, gradient) = volume(&corners);
        assert!((v - 24.0).abs() < 1e-12, "{v}");
        for i in 0..8 {
            for d in 0..3 {
                let mut moved = corners;
                moved[i][d] += 1e-6;
                let slope = (volume(&moved).0 - v) / 1e-6;
                assert!((slope - gradient[i][d]).abs() < 1e-6, "corner {i}, axis {d}");
            }
        }
    }
}
