//! Fourier transforms of short lines that are in the caches: Stockham's algorithm for lengths
//! with the factors 2, 3 and 5.

/// A complex number.
pub type Complex = (f64, f64);

fn times(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

fn plus(a: Complex, b: Complex) -> Complex {
    (a.0 + b.0, a.1 + b.1)
}

fn minus(a: Complex, b: Complex) -> Complex {
    (a.0 - b.0, a.1 - b.1)
}

/// Precomputed data for transforms of one length.
pub struct Plan {
    factors: Vec<usize>,
    /// Roots of unity, exp(-2 pi i k / n).
    roots: Vec<Complex>,
}

/// Lengths below `end` that have no factors but 2, 3 and 5, ascending.
pub fn lengths(end: usize) -> Vec<usize> {
    (1..end).filter(|&n| Plan::factors(n).is_some()).collect()
}

impl Plan {
    fn factors(mut n: usize) -> Option<Vec<usize>> {
        let mut factors = Vec::new();
        for p in [5, 3, 4, 2] {
            while n.is_multiple_of(p) {
                factors.push(p);
                n /= p;
            }
        }
        (n == 1).then_some(factors)
    }

    /// A plan for a length.
    ///
    /// # Panics
    /// When the length has other factors than 2, 3 and 5.
    pub fn new(length: usize) -> Plan {
        let factors = Self::factors(length).expect("a length with the factors 2, 3 and 5");
        let root = |k: usize| {
            let angle = -2.0 * std::f64::consts::PI * k as f64 / length as f64;
            (libm::cos(angle), libm::sin(angle))
        };
        Plan { factors, roots: (0..length).map(root).collect() }
    }

    /// Approximate instructions of one transform.
    pub fn work(&self) -> u32 {
        let per_point: usize = self.factors.iter().map(|p| 7 * p + 30).sum();
        ((per_point + 30) * self.roots.len()) as u32
    }

    /// A root of unity, exp(-2 pi i k / n).
    pub fn root(&self, k: usize) -> Complex {
        self.roots[k % self.roots.len()]
    }

    /// Transforms a line in place, without scaling; `backwards` with the conjugate roots.
    pub fn transform(&self, line: &mut [Complex], scratch: &mut Vec<Complex>, backwards: bool) {
        let n = self.roots.len();
        scratch.resize(n, (0.0, 0.0));
        if backwards {
            conjugate(line);
        }
        let (mut from, mut to) = (&mut line[..n], &mut scratch[..n]);
        let mut stride = 1;
        for &p in &self.factors {
            match p {
                2 => self.stage(from, to, stride, |[a, b]| [plus(a, b), minus(a, b)]),
                4 => self.stage(from, to, stride, |[a, b, c, d]| {
                    let (even, odd) = (plus(a, c), plus(b, d));
                    let (front, back) = (minus(a, c), minus(b, d));
                    let turned = (back.1, -back.0);
                    [plus(even, odd), plus(front, turned), minus(even, odd), minus(front, turned)]
                }),
                3 => self.stage(from, to, stride, self.defined::<3>()),
                _ => self.stage(from, to, stride, self.defined::<5>()),
            }
            stride *= p;
            (from, to) = (to, from);
        }
        if self.factors.len() % 2 == 1 {
            to.copy_from_slice(from);
        }
        if backwards {
            conjugate(line);
        }
    }

    /// The transform of `P` values by the sum that defines it.
    fn defined<const P: usize>(&self) -> impl Fn([Complex; P]) -> [Complex; P] {
        let roots: [Complex; P] = std::array::from_fn(|k| self.roots[k * self.roots.len() / P]);
        move |values| {
            std::array::from_fn(|k| {
                (1..P).fold(values[0], |sum, r| plus(sum, times(values[r], roots[r * k % P])))
            })
        }
    }

    /// One stage: `P` lines of the transform so far become one.
    #[inline(always)]
    fn stage<const P: usize>(
        &self,
        from: &[Complex],
        to: &mut [Complex],
        stride: usize,
        small: impl Fn([Complex; P]) -> [Complex; P],
    ) {
        let apart = self.roots.len() / P;
        for (j, to) in to.chunks_exact_mut(P * stride).enumerate() {
            let twists: [Complex; P] = std::array::from_fn(|k| self.roots[j * k * stride]);
            let parts: [&[Complex]; P] =
                std::array::from_fn(|r| &from[stride * j + r * apart..][..stride]);
            for q in 0..stride {
                let values = small(std::array::from_fn(|r| parts[r][q]));
                to[q] = values[0];
                for k in 1..P {
                    to[q + stride * k] = times(values[k], twists[k]);
                }
            }
        }
    }
}

fn conjugate(line: &mut [Complex]) {
    for value in line {
        value.1 = -value.1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::{at, unit};
    use super::*;

    #[test]
    fn transforms_equal_the_sum_that_defines_them() {
        for n in [1, 2, 3, 4, 5, 6, 8, 12, 30, 45, 64, 90] {
            let plan = Plan::new(n);
            let line: Vec<Complex> =
                (0..n as u64).map(|i| (unit(at(1, i)), unit(at(2, i)))).collect();
            let mut got = line.clone();
            plan.transform(&mut got, &mut Vec::new(), false);
            for (k, value) in got.iter().enumerate() {
                let expected = line.iter().enumerate().fold((0.0, 0.0), |sum, (j, &x)| {
                    let term = times(x, plan.root(j * k));
                    (sum.0 + term.0, sum.1 + term.1)
                });
                let error = (value.0 - expected.0).hypot(value.1 - expected.1);
                assert!(error < 1e-12 * n as f64, "length {n}, place {k}: {error}");
            }
            plan.transform(&mut got, &mut Vec::new(), true);
            for (a, b) in got.iter().zip(&line) {
                assert!((a.0 / n as f64 - b.0).abs() < 1e-13);
            }
        }
    }

    #[test]
    fn lengths_have_small_factors() {
        assert_eq!(lengths(17), [1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16]);
    }
}
