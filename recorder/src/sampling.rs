//! Which references of a stream are sampled: at irregular distances with the right mean, so that a
//! loop cannot keep in step.

/// The positions that one stream samples. They depend on nothing but the stream's number and how
/// many references one stands for.
///
/// Distances are uniform. The first is what remains of a distance at a place drawn at random: so
/// each reference is as likely to be sampled as any other, those of short streams too.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sampler {
    /// References until the next sample; 0 before the first reference.
    until: u64,
    random: u64,
}

impl Sampler {
    /// Whether the next reference is sampled. `stream` gives the stream's number, and is called at
    /// the first reference.
    #[inline]
    pub fn takes(&mut self, one_in: u64, stream: impl FnOnce() -> u32) -> bool {
        if self.until == 0 {
            self.begin(one_in, stream());
        }
        self.until -= 1;
        if self.until > 0 {
            return false;
        }
        self.until = 1 + self.below(2 * one_in - 1);
        true
    }

    #[cold]
    fn begin(&mut self, one_in: u64, stream: u32) {
        self.random = mixed(stream.into()).max(1);
        // The distance of two different numbers below 2n is k with chance (2n - k) / (n (2n - 1)):
        // that of k references being left of a distance between 1 and 2n - 1.
        let one = self.below(2 * one_in);
        let other = self.below(2 * one_in - 1);
        self.until = one.abs_diff(other + u64::from(other >= one));
    }

    /// A random number below this bound: a xorshift generator (Marsaglia, "Xorshift RNGs", 2003).
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }
}

/// Spreads small numbers over all bits: the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast
/// splittable pseudorandom number generators", 2014).
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The positions that a stream samples among its first references.
    fn positions(stream: u32, one_in: u64, references: usize) -> Vec<usize> {
        let mut sampler = Sampler::default();
        (0..references).filter(|_| sampler.takes(one_in, || stream)).collect()
    }

    #[test]
    fn each_stream_samples_its_own_positions_again_and_again() {
        let one = positions(3, 100, 100_000);
        assert_eq!(one, positions(3, 100, 100_000));
        let other = positions(4, 100, 100_000);
        let both = one.iter().filter(|at| other.contains(at)).count();
        // By chance one in a hundred.
        assert!(both * 20 < one.len(), "{both} of {}", one.len());
    }

    #[test]
    fn a_short_stream_is_sampled_as_often_as_a_long_one() {
        for (one_in, references) in [(10, 1), (10, 5), (10, 100), (1000, 100)] {
            let streams = 200_000 / references as u32;
            let sampled: usize =
                (0..streams).map(|stream| positions(stream, one_in, references).len()).sum();
            let expected = f64::from(streams) * references as f64 / one_in as f64;
            // Five standard deviations of a Poisson number, which has more spread.
            let off = (sampled as f64 - expected).abs();
            assert!(off < 5.0 * expected.sqrt(), "1 in {one_in}: {sampled}, not {expected}");
        }
    }

    #[test]
    fn one_in_one_is_every_reference() {
        assert_eq!(positions(0, 1, 10).len(), 10);
    }
}
