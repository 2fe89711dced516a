//! Exact LRU: for each set, its ways in the order of their last use.
//!
//! Empty ways are last, so that they are filled before any line is evicted.

use crate::host::array::Array;
use crate::host::prefetch::prefetch;

/// The order of the ways of each set.
#[derive(Debug, Clone)]
pub(crate) enum Recency {
    /// Up to 16 ways: four bits each, the way used last in the lowest, in one number.
    Packed(PackedRecency),
    /// More: a list for each set, the way used last first.
    Listed {
        /// `ways` numbers for each set.
        orders: Vec<u16>,
        /// Ways of a set.
        ways: usize,
    },
}

/// The order of up to 16 ways of each set.
#[derive(Debug, Clone)]
pub(crate) struct PackedRecency {
    /// One number for each set.
    orders: Array<u64>,
    /// Bits up to the oldest way's.
    oldest_shift: u32,
}

impl PackedRecency {
    /// The order of a set, to be read and changed.
    #[inline(always)]
    pub(crate) fn order(&mut self, set: usize) -> PackedOrder<'_> {
        PackedOrder { order: &mut self.orders[set], oldest_shift: self.oldest_shift }
    }

    /// Prefetches the order of a set on the host.
    #[inline(always)]
    pub(crate) fn prefetch(&self, set: usize) {
        prefetch(&self.orders, set);
    }

    /// The way of a set that was not used for longest.
    #[inline(always)]
    pub(crate) fn oldest(&self, set: usize) -> usize {
        ((self.orders[set] >> self.oldest_shift) & 15) as usize
    }

    /// Records that a way is empty: it is moved to the end.
    fn retire(&mut self, set: usize, way: usize) {
        let order = self.orders[set];
        let before = (1u64 << position(order, way)) - 1;
        let after = (order >> 4) & !before;
        self.orders[set] = (order & before) | after | ((way as u64) << self.oldest_shift);
    }
}

/// The order of one set.
#[derive(Debug)]
pub(crate) struct PackedOrder<'a> {
    order: &'a mut u64,
    oldest_shift: u32,
}

impl PackedOrder<'_> {
    /// The way used last.
    #[inline(always)]
    pub(crate) fn newest(&self) -> usize {
        (*self.order & 15) as usize
    }

    /// A way is used.
    #[inline(always)]
    pub(crate) fn touch(self, way: usize) {
        let order = *self.order;
        // Everything before the way's position moves one place up, and the way to the front.
        let upto = (16u64 << position(order, way)).wrapping_sub(1);
        *self.order = (order & !upto) | ((order << 4) & upto) | way as u64;
    }

    /// The way not used for longest, which is used now.
    #[inline(always)]
    pub(crate) fn reuse_oldest(self) -> usize {
        let order = *self.order;
        let way = (order >> self.oldest_shift) & 15;
        let all = (16u64 << self.oldest_shift).wrapping_sub(1);
        *self.order = ((order << 4) & all) | way;
        way as usize
    }
}

const ONES: u64 = 0x1111_1111_1111_1111;
const TOPS: u64 = 0x8888_8888_8888_8888;

impl Recency {
    pub(crate) fn new(sets: usize, ways: usize) -> Self {
        if ways <= 16 {
            let order = (0..ways as u64).fold(0, |order, way| order | way << (4 * way));
            let oldest_shift = 4 * (ways as u32 - 1);
            Recency::Packed(PackedRecency { orders: Array::new(sets, order), oldest_shift })
        } else {
            let order: Vec<u16> = (0..ways as u16).collect();
            Recency::Listed { orders: order.repeat(sets), ways }
        }
    }

    /// The way used last.
    #[cfg(test)]
    pub(crate) fn newest(&self, set: usize) -> usize {
        match self {
            Recency::Packed(packed) => (packed.orders[set] & 15) as usize,
            Recency::Listed { orders, ways } => usize::from(orders[set * ways]),
        }
    }

    /// A way is used.
    #[inline(always)]
    pub(crate) fn touch(&mut self, set: usize, way: usize) {
        match self {
            Recency::Packed(packed) => packed.order(set).touch(way),
            Recency::Listed { orders, ways } => {
                let order = &mut orders[set * *ways..][..*ways];
                let at = order.iter().position(|&w| usize::from(w) == way).unwrap_or(0);
                order.copy_within(..at, 1);
                order[0] = way as u16;
            }
        }
    }

    /// The way not used for longest, which is used now.
    #[inline(always)]
    pub(crate) fn reuse_oldest(&mut self, set: usize) -> usize {
        match self {
            Recency::Packed(packed) => packed.order(set).reuse_oldest(),
            Recency::Listed { orders, ways } => {
                let order = &mut orders[set * *ways..][..*ways];
                let way = order[*ways - 1];
                order.copy_within(..*ways - 1, 1);
                order[0] = way;
                usize::from(way)
            }
        }
    }

    /// Records that a way is empty: it is moved to the end.
    pub(crate) fn retire(&mut self, set: usize, way: usize) {
        match self {
            Recency::Packed(packed) => packed.retire(set, way),
            Recency::Listed { orders, ways } => {
                let order = &mut orders[set * *ways..][..*ways];
                if let Some(at) = order.iter().position(|&w| usize::from(w) == way) {
                    order[at..].rotate_left(1);
                }
            }
        }
    }
}

/// The lowest place of four bits that hold `way`, in bits.
#[inline(always)]
fn position(order: u64, way: usize) -> u32 {
    // Four zero bits at its position; borrowing changes only positions above the lowest of them.
    let x = order ^ (ONES * way as u64);
    (x.wrapping_sub(ONES) & !x & TOPS).trailing_zeros() & !3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn both_forms_are_the_list_they_stand_for() {
        for ways in [1usize, 2, 3, 8, 11, 15, 16, 17, 20, 64] {
            let mut r = Recency::new(3, ways);
            let mut list: Vec<usize> = (0..ways).collect();
            let mut random = Random::new(ways as u64);
            for _ in 0..5_000 {
                let way = random.below(ways as u64) as usize;
                match random.below(4) {
                    0 => {
                        let oldest = list.pop().unwrap();
                        list.insert(0, oldest);
                        assert_eq!(r.reuse_oldest(1), oldest);
                    }
                    1 => {
                        list.retain(|&w| w != way);
                        list.push(way);
                        r.retire(1, way);
                    }
                    _ => {
                        list.retain(|&w| w != way);
                        list.insert(0, way);
                        r.touch(1, way);
                    }
                }
                assert_eq!(r.newest(1), list[0]);
            }
            // Its neighbours are as they were.
            assert_eq!((r.newest(0), r.newest(2)), (0, 0));
        }
    }
}
