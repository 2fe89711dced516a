//! Sparse symmetric matrices in compressed rows and the conjugate gradients that solve with
//! them: the matrix is read from end to end in every iteration, the vector at random columns.

use super::super::ProgramError;
use super::super::memory::{Array, Memory};
use super::adjacency::Adjacency;
use super::random;

/// A matrix.
pub struct Matrix {
    /// Columns of every row.
    pub rows: Adjacency,
    /// The value of every entry.
    pub values: Array<f64>,
}

/// Vectors of conjugate gradients beside the matrix and the right side.
pub struct Vectors {
    /// The solution.
    pub x: Array<f64>,
    /// Residual.
    pub r: Array<f64>,
    /// Direction.
    pub p: Array<f64>,
    /// The matrix times the direction.
    pub q: Array<f64>,
}

impl Vectors {
    /// Bytes for each row.
    pub const BYTES_PER_ROW: u64 = 32;

    /// Vectors of `n` zeros.
    pub fn new<M: Memory>(m: &mut M, n: usize) -> Result<Vectors, ProgramError> {
        Ok(Vectors {
            x: m.array("x", n)?,
            r: m.array("r", n)?,
            p: m.array("p", n)?,
            q: m.array("q", n)?,
        })
    }
}

/// The scalar product.
pub fn dot<M: Memory>(m: &mut M, a: &Array<f64>, b: &Array<f64>) -> f64 {
    m.sum(a.len(), |m, i| {
        m.work(9);
        m.get(a, i) * m.get(b, i)
    })
}

impl Matrix {
    /// A row times a vector.
    #[inline]
    fn row_times<M: Memory>(&self, m: &mut M, row: usize, x: &Array<f64>) -> f64 {
        let mut sum = 0.0;
        for entry in self.rows.row(m, row) {
            m.work(12);
            let column = m.get(&self.rows.columns, entry) as usize;
            sum += m.get(&self.values, entry) * m.get(x, column);
        }
        sum
    }

    /// `y = A x`.
    pub fn multiply<M: Memory>(&self, m: &mut M, x: &Array<f64>, y: &Array<f64>) {
        m.each(self.rows.rows(), |m, row| {
            m.work(12);
            let value = self.row_times(m, row, x);
            m.set(y, row, value);
        });
    }

    /// Solves `A x = b` from `x = 0`. Stops after so many iterations, or earlier when the residual
    /// is below `tolerance` times the norm of `b`. Returns the iterations done and the norm of the
    /// residual by the recurrence.
    pub fn conjugate_gradients<M: Memory>(
        &self,
        m: &mut M,
        b: &Array<f64>,
        v: &Vectors,
        iterations: u64,
        tolerance: f64,
    ) -> (u64, f64) {
        m.each(b.len(), |m, i| {
            m.work(6);
            let value = m.get(b, i);
            m.set(&v.x, i, 0.0);
            m.set(&v.r, i, value);
            m.set(&v.p, i, value);
        });
        let mut rho = dot(m, &v.r, &v.r);
        let limit = rho * tolerance * tolerance;
        for done in 0..iterations {
            if rho <= limit {
                return (done, rho.sqrt());
            }
            self.multiply(m, &v.p, &v.q);
            let alpha = rho / dot(m, &v.p, &v.q);
            let before = rho;
            rho = m.sum(b.len(), |m, i| {
                m.work(17);
                let x = m.get(&v.x, i) + alpha * m.get(&v.p, i);
                m.set(&v.x, i, x);
                let r = m.get(&v.r, i) - alpha * m.get(&v.q, i);
                m.set(&v.r, i, r);
                r * r
            });
            let beta = rho / before;
            m.each(b.len(), |m, i| {
                m.work(9);
                let p = m.get(&v.r, i) + beta * m.get(&v.p, i);
                m.set(&v.p, i, p);
            });
        }
        (iterations, rho.sqrt())
    }

    /// Norm of `b - A x`, from the matrix itself.
    pub fn residual<M: Memory>(&self, m: &mut M, b: &Array<f64>, x: &Array<f64>) -> f64 {
        m.sum(b.len(), |m, row| {
            let r = m.get(b, row) - self.row_times(m, row, x);
            r * r
        })
        .sqrt()
    }

    /// How far the matrix is from symmetric: |x'Ay - y'Ax| / |x'Ay| for random x and y.
    pub fn asymmetry<M: Memory>(&self, m: &mut M, seed: u64) -> f64 {
        let x = |i: usize| random::unit(random::at(seed, i as u64));
        let y = |i: usize| random::unit(random::at(!seed, i as u64));
        let (mut xay, mut yax) = (0.0, 0.0);
        for row in 0..self.rows.rows() {
            let (mut ax, mut ay) = (0.0, 0.0);
            for entry in self.rows.row(m, row) {
                let column = m.get(&self.rows.columns, entry) as usize;
                let value = m.get(&self.values, entry);
                ax += value * x(column);
                ay += value * y(column);
            }
            xay += x(row) * ay;
            yax += y(row) * ax;
        }
        ((xay - yax) / xay).abs()
    }
}
