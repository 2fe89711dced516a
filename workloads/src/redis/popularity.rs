//! Which key the next operation is for: Zipfian popularity, the placement of the popular keys, a
//! batch scan beside it, and hot spots that move.

use rand_core::{RngCore, SeedableRng};
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64Mcg;

use super::ClientError;
use super::value::MAX_KEYS;
use crate::memory::checked::mix;

/// How popularity is distributed over the keys in the order of their insertion, which is their
/// order in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Order {
    /// Neighbours in popularity are neighbours in memory: recent orders, one tenant.
    Clustered,
    /// Popularity is independent of place: user names.
    Scrambled,
}

/// From this moment on the most popular key is another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shift {
    /// Time from the start of the run.
    pub at_ms: u64,
    /// Begin of the hot spot then, as a share of all keys.
    pub to: f64,
}

impl std::str::FromStr for Shift {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text
            .split_once(':')
            .and_then(|(at, to)| Some(Shift { at_ms: at.parse().ok()?, to: to.parse().ok()? }));
        parsed
            .filter(|s| (0.0..1.0).contains(&s.to))
            .ok_or_else(|| format!("got '{text}', expected AT_MS:SHARE with 0 <= SHARE < 1"))
    }
}

/// The parameters of the sequence of operations.
#[derive(Debug, Clone)]
pub struct Mix {
    /// Number of keys.
    pub keys: u64,
    /// Exponent of the Zipfian law; 0 makes all keys alike.
    pub theta: f64,
    /// Share of the operations that write, 0 to 1. The batch scan never writes.
    pub write_share: f64,
    /// How popularity is distributed over the keys.
    pub order: Order,
    /// Where the most popular key is, as a share of all keys.
    pub hot_start: f64,
    /// Moves of the hot spot, by time.
    pub shifts: Vec<Shift>,
    /// Share of the operations that belong to a batch scan, 0 to 1.
    pub sweep_share: f64,
    /// The scan reads every so manieth key in order of insertion, and starts again at the end.
    pub sweep_step: u64,
    /// End of the scan, from the start of the run; then all operations go by popularity.
    pub sweep_until_ms: Option<u64>,
    /// Seed of the sequence.
    pub seed: u64,
}

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The key.
    pub key: u64,
    /// The kind of operation.
    pub kind: OperationKind,
}

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationKind {
    /// A read by popularity.
    Read,
    /// A write by popularity.
    Write,
    /// A read of the batch scan.
    Sweep,
}

/// The sequence of operations. The same mix gives the same sequence for the same times.
pub struct Sequence {
    mix: Mix,
    zipf: Zipf<f64>,
    random: Pcg64Mcg,
    sweep_key: u64,
}

impl Sequence {
    /// Checks the mix and starts its sequence.
    pub fn new(mix: Mix) -> Result<Sequence, ClientError> {
        let bad = |what: String| Err(ClientError::BadParameter(what));
        if !(1..=MAX_KEYS).contains(&mix.keys) {
            return bad(format!("{} keys: expected 1 to {MAX_KEYS}", mix.keys));
        }
        if !(0.0..=10.0).contains(&mix.theta) {
            return bad(format!("theta {}: expected 0 to 10", mix.theta));
        }
        for (name, share) in [("write share", mix.write_share), ("sweep share", mix.sweep_share)] {
            if !(0.0..=1.0).contains(&share) {
                return bad(format!("{name} {share}: expected 0 to 1"));
            }
        }
        let starts = mix.shifts.iter().map(|s| s.to).chain([mix.hot_start]);
        for start in starts {
            if !(0.0..1.0).contains(&start) {
                return bad(format!("hot start {start}: expected 0 or more and less than 1"));
            }
        }
        if mix.sweep_step == 0 {
            return bad("sweep step 0: expected 1 or more".into());
        }
        if mix.shifts.windows(2).any(|w| w[0].at_ms >= w[1].at_ms) {
            return bad("shifts are not in order of time; give the earliest first".into());
        }
        let zipf = Zipf::new(mix.keys as f64, mix.theta)
            .map_err(|e| ClientError::BadParameter(format!("theta {}: {e}", mix.theta)))?;
        let random = Pcg64Mcg::seed_from_u64(mix.seed);
        Ok(Sequence { mix, zipf, random, sweep_key: 0 })
    }

    /// The operation that is due at this moment of the run.
    pub fn next(&mut self, due_ms: u64) -> Operation {
        let sweeps = self.mix.sweep_until_ms.is_none_or(|until_ms| due_ms < until_ms);
        if sweeps && self.chance(self.mix.sweep_share) {
            let key = self.sweep_key;
            let next = key.saturating_add(self.mix.sweep_step);
            // The next walk starts one key later, so that in the end it has read all of them.
            self.sweep_key = if next < self.mix.keys {
                next
            } else {
                (key % self.mix.sweep_step + 1) % self.mix.sweep_step.min(self.mix.keys)
            };
            return Operation { key, kind: OperationKind::Sweep };
        }
        let rank = (self.zipf.sample(&mut self.random) as u64).clamp(1, self.mix.keys) - 1;
        let kind = if self.chance(self.mix.write_share) {
            OperationKind::Write
        } else {
            OperationKind::Read
        };
        Operation { key: self.key(rank, due_ms), kind }
    }

    /// The key of this popularity, 0 being the most popular.
    fn key(&self, rank: u64, due_ms: u64) -> u64 {
        let passed = self.mix.shifts.iter().rev().find(|s| s.at_ms <= due_ms);
        let start = passed.map_or(self.mix.hot_start, |s| s.to);
        let place = match self.mix.order {
            Order::Clustered => rank,
            Order::Scrambled => scramble(rank, self.mix.keys, self.mix.seed),
        };
        (place + (start * self.mix.keys as f64) as u64) % self.mix.keys
    }

    /// True with this probability.
    fn chance(&mut self, probability: f64) -> bool {
        if probability <= 0.0 {
            return false;
        }
        // 53 random bits are a uniform number below 1.
        ((self.random.next_u64() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

/// A permutation of `0..n`: four rounds of a Feistel network over the next even number of bits,
/// walked until it lands below `n` (Black and Rogaway, CT-RSA 2002).
fn scramble(value: u64, n: u64, seed: u64) -> u64 {
    let half_bits = (64 - (n - 1).leading_zeros()).div_ceil(2).max(1);
    let mask = (1u64 << half_bits) - 1;
    let mut x = value;
    loop {
        let (mut left, mut right) = (x >> half_bits, x & mask);
        for round in 0..4u64 {
            (left, right) = (right, left ^ (mix(right ^ mix(seed ^ round)) & mask));
        }
        x = left << half_bits | right;
        if x < n {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mix_of(keys: u64) -> Mix {
        Mix {
            keys,
            theta: 1.2,
            write_share: 0.1,
            order: Order::Clustered,
            hot_start: 0.0,
            shifts: Vec::new(),
            sweep_share: 0.0,
            sweep_step: 1,
            sweep_until_ms: None,
            seed: 1,
        }
    }

    fn counts(mix: Mix, operations: usize, due_ms: u64) -> Vec<u64> {
        let mut counts = vec![0; mix.keys as usize];
        let mut sequence = Sequence::new(mix).unwrap();
        (0..operations).for_each(|_| counts[sequence.next(due_ms).key as usize] += 1);
        counts
    }

    #[test]
    fn popularity_follows_the_zipfian_law() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2] {
            let n = 400_000;
            let got = counts(Mix { theta, ..mix_of(1000) }, n, 0);
            let weight = |rank: usize| (rank as f64 + 1.0).powf(-theta);
            let total: f64 = (0..1000).map(weight).sum();
            for ranks in [0..1, 1..2, 2..10, 10..100, 100..1000] {
                let expected: f64 = ranks.clone().map(weight).sum::<f64>() / total * n as f64;
                let got: u64 = got[ranks.clone()].iter().sum();
                // Five standard deviations of a Poisson count.
                let off = (got as f64 - expected).abs();
                assert!(off < 5.0 * expected.sqrt(), "theta {theta} {ranks:?}: {got} {expected}");
            }
        }
    }

    #[test]
    fn a_hundred_million_keys_are_drawn_at_once_and_the_same_for_the_same_seed() {
        let draw = |seed| {
            let mut s = Sequence::new(Mix { seed, ..mix_of(100_000_000) }).unwrap();
            (0..1000).map(|_| s.next(0)).collect::<Vec<_>>()
        };
        let first = draw(1);
        assert_eq!(first, draw(1));
        assert_ne!(first, draw(2));
        assert!(first.iter().any(|o| o.key > 1_000_000), "the tail is reached");
    }

    #[test]
    fn the_hot_spot_is_where_it_was_put_and_moves_on_command() {
        let mix = Mix {
            hot_start: 0.5,
            shifts: vec![Shift { at_ms: 100, to: 0.9 }, Shift { at_ms: 200, to: 0.0 }],
            ..mix_of(1000)
        };
        let hottest = |due_ms| {
            let counts = counts(mix.clone(), 10_000, due_ms);
            (0..1000).max_by_key(|&k| counts[k]).unwrap()
        };
        assert_eq!([0, 99, 100, 199, 200].map(hottest), [500, 500, 900, 900, 0]);
    }

    #[test]
    fn the_sweep_walks_over_all_keys_in_order() {
        let mix = Mix { sweep_share: 1.0, sweep_step: 4, ..mix_of(10) };
        let mut sequence = Sequence::new(mix).unwrap();
        let keys: Vec<u64> = (0..14).map(|_| sequence.next(0).key).collect();
        assert_eq!(keys, [0, 4, 8, 1, 5, 9, 2, 6, 3, 7, 0, 4, 8, 1]);
    }

    #[test]
    fn the_sweep_ends_on_command() {
        let mix = Mix { sweep_share: 1.0, sweep_until_ms: Some(50), ..mix_of(10) };
        let mut sequence = Sequence::new(mix).unwrap();
        assert_eq!(sequence.next(49).kind, OperationKind::Sweep);
        assert_ne!(sequence.next(50).kind, OperationKind::Sweep);
    }

    #[test]
    fn shares_are_kept() {
        let mut s = Sequence::new(Mix { sweep_share: 0.2, ..mix_of(1000) }).unwrap();
        let all: Vec<_> = (0..100_000).map(|_| s.next(0).kind).collect();
        let share = |kind| all.iter().filter(|&&k| k == kind).count() as f64 / 1e5;
        assert!((share(OperationKind::Sweep) - 0.2).abs() < 0.01);
        assert!((share(OperationKind::Write) - 0.08).abs() < 0.01);
    }

    #[test]
    fn impossible_mixes_are_refused() {
        let refused = |change: fn(&mut Mix)| {
            let mut mix = mix_of(10);
            change(&mut mix);
            assert!(Sequence::new(mix).err().unwrap().to_string().contains("expected"));
        };
        refused(|m| m.keys = 0);
        refused(|m| m.theta = -1.0);
        refused(|m| m.theta = f64::NAN);
        refused(|m| m.write_share = 1.5);
        refused(|m| m.hot_start = 1.0);
        refused(|m| m.sweep_step = 0);
        for bad in ["", "5", "5:1", "x:0.5", "5:-1", "5:nan"] {
            assert!(bad.parse::<Shift>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn scrambling_is_a_permutation(n in 1u64..2000, seed: u64) {
            let mut seen = vec![false; n as usize];
            (0..n).for_each(|v| seen[scramble(v, n, seed) as usize] = true);
            prop_assert!(seen.into_iter().all(|s| s));
        }
    }
}
