//! Numbers that follow Zipf's law: of few ranks from a table, of many by inversion and rejection.
//! The powers are `libm`'s, which gives the same bits on every machine: with the platform's, the
//! same seed might give other addresses elsewhere.

use super::super::ProgramError;
use super::super::parameters::in_range;
use super::random::Words;

/// Draws ranks from 0 on with probabilities in proportion to (rank + 1) ^ -theta.
pub struct Zipf {
    theta: f64,
    ranks: usize,
    draw: Draw,
}

enum Draw {
    /// Sums of the weights up to each rank.
    Table(Vec<f64>),
    /// Area under the envelope: 1 up to 1, then x ^ -theta up to the number of ranks.
    Envelope(f64),
}

/// Ranks for which there is a table: few enough to stay in the caches.
const TABLE_RANKS: usize = 4096;

impl Zipf {
    /// The law of so many ranks. Theta is 0 or more and at most 10.
    pub fn new(ranks: usize, theta: f64) -> Result<Zipf, ProgramError> {
        in_range("theta", theta, 0.0, 10.0)?;
        let n = ranks as f64;
        let draw = if ranks <= TABLE_RANKS {
            let weights = (0..ranks).map(|rank| libm::pow(rank as f64 + 1.0, -theta));
            let sum = |sum: &mut f64, weight| {
                *sum += weight;
                Some(*sum)
            };
            Draw::Table(weights.scan(0.0, sum).collect())
        } else if theta == 1.0 {
            Draw::Envelope(1.0 + libm::log(n))
        } else {
            Draw::Envelope((libm::pow(n, 1.0 - theta) - theta) / (1.0 - theta))
        };
        Ok(Zipf { theta, ranks, draw })
    }

    /// Draws one.
    pub fn draw(&self, words: &mut Words) -> usize {
        match &self.draw {
            Draw::Table(sums) => {
                let at = words.unit() * sums[sums.len() - 1];
                sums.partition_point(|&sum| sum <= at)
            }
            Draw::Envelope(area) => self.reject(words, *area),
        }
    }

    fn reject(&self, words: &mut Words, whole: f64) -> usize {
        loop {
            // A point under the envelope, by its inverse ...
            let area = words.unit() * whole;
            let x = if area <= 1.0 {
                area
            } else if self.theta == 1.0 {
                libm::exp(area - 1.0)
            } else {
                let inverse = 1.0 / (1.0 - self.theta);
                libm::pow(area * (1.0 - self.theta) + self.theta, inverse)
            };
            let rank = (x as usize).min(self.ranks - 1);
            if rank == 0 {
                return rank;
            }
            // ... is kept when it is under the step of its rank, too. The first always is.
            let step = libm::pow(rank as f64 + 1.0, -self.theta);
            if words.unit() * libm::pow(x, -self.theta) < step {
                return rank;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_follow_the_law() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.5] {
            // With the table, and without.
            for ranks in [500, 2 * TABLE_RANKS] {
                let draws = 200_000;
                let zipf = Zipf::new(ranks, theta).unwrap();
                let mut words = Words::of(3, 0);
                let mut counts = vec![0.0; ranks];
                (0..draws).for_each(|_| counts[zipf.draw(&mut words)] += 1.0);
                let weight = |rank: usize| (rank as f64 + 1.0).powf(-theta);
                let total: f64 = (0..ranks).map(weight).sum();
                for range in [0..1, 1..2, 2..10, 10..100, 100..ranks] {
                    let sum: f64 = range.clone().map(weight).sum();
                    let expected = sum / total * f64::from(draws);
                    let got: f64 = counts[range.clone()].iter().sum();
                    // Five standard deviations of a Poisson count.
                    let off = (got - expected).abs();
                    let what = format!("theta {theta}, {range:?} of {ranks}");
                    assert!(off < 5.0 * expected.sqrt(), "{what}: {got}, expected {expected}");
                }
            }
        }
        assert!(Zipf::new(10, -1.0).is_err() && Zipf::new(10, f64::NAN).is_err());
    }
}
