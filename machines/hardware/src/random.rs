//! Random numbers that are the same on every machine: integer arithmetic and the four IEEE
//! operations only, no library logarithm whose last bit differs between systems.

use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A seeded source of random numbers.
#[derive(Debug, Clone)]
pub struct Random(Pcg64Mcg);

impl Random {
    /// From a seed; every part has its own, so that adding one part does not shift the others.
    pub fn new(seed: u64) -> Self {
        Random(Pcg64Mcg::seed_from_u64(seed))
    }

    /// A number below `bound`, which is not 0. Multiply-shift: the bias is below `bound / 2^64`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in [0, 1) with 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed with mean 1: the gaps of a Poisson process.
    pub fn exponential(&mut self) -> f64 {
        -natural_logarithm(1.0 - self.unit())
    }
}

/// ln of a number in (0, 1], by ln(m 2^e) = 2 artanh((m-1)/(m+1)) + e ln 2 with m in [1, 2).
fn natural_logarithm(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let m = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    let z = (m - 1.0) / (m + 1.0);
    let square = z * z;
    // |z| <= 1/3: 17 odd terms leave less than the last bit.
    let mut series = 0.0;
    let mut n = 33;
    while n > 0 {
        series = series * square + 1.0 / f64::from(n);
        n -= 2;
    }
    2.0 * z * series + exponent as f64 * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_agrees_with_the_library() {
        for x in [1.0, 0.999, 0.75, 0.5, 0.1, 1e-3, 1e-9, 1.0 / (1u64 << 53) as f64] {
            assert!((natural_logarithm(x) - f64::ln(x)).abs() < 1e-13, "{x}");
        }
    }

    #[test]
    fn gaps_have_mean_one() {
        let mut random = Random::new(7);
        let mean = (0..100_000).map(|_| random.exponential()).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
    }
}
