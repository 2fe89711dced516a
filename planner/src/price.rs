//! The price of memory, and the Pareto front of choices.

use serde::Serialize;

use crate::memory::Machine;

/// Bytes of a GB, as memory is sold.
pub const GB: f64 = (1u64 << 30) as f64;

/// Price of a footprint on a machine with a share of it fast, in the prices' currency; `None` where
/// a price that is needed is not known.
pub fn cost(machine: &Machine, footprint_bytes: u64, fast_share: f64) -> Option<f64> {
    let gb = footprint_bytes as f64 / GB;
    let part = |share: f64, price: Option<f64>| match share {
        0.0 => Some(0.0),
        share => Some(gb * share * price?),
    };
    Some(part(fast_share, machine.price_fast)? + part(1.0 - fast_share, machine.price_slow)?)
}

/// A choice with a price and a slowdown.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Choice {
    /// Price of its memory.
    pub cost: f64,
    /// Run time over that with all memory fast.
    pub slowdown: f64,
}

/// Positions of the choices that no other one is better than in both ways: the Pareto front, from
/// the cheapest to the dearest. Of equals the first.
pub fn front(choices: &[Choice]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..choices.len()).collect();
    order.sort_by(|&a, &b| {
        let (x, y) = (choices[a], choices[b]);
        x.cost.total_cmp(&y.cost).then(x.slowdown.total_cmp(&y.slowdown)).then(a.cmp(&b))
    });
    let mut best = f64::INFINITY;
    order.retain(|&i| {
        let better = choices[i].slowdown < best;
        best = best.min(choices[i].slowdown);
        better
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;
    use proptest::prelude::*;

    #[test]
    fn a_footprint_costs_its_parts() {
        let memory = |latency_ns| Memory { name: "m".into(), latency_ns, gb_per_s: 10.0 };
        let machine = Machine {
            name: "m".into(),
            fast: memory(80.0),
            slow: memory(200.0),
            price_fast: Some(4.0),
            price_slow: Some(1.5),
        };
        assert_eq!(cost(&machine, 100 << 30, 0.25), Some(25.0 * 4.0 + 75.0 * 1.5));
        let unknown = Machine { price_slow: None, ..machine };
        assert_eq!(cost(&unknown, 1 << 30, 0.5), None);
        assert_eq!(cost(&unknown, 1 << 30, 1.0), Some(4.0));
    }

    proptest! {
        #[test]
        fn the_front_is_what_nothing_beats(
            pairs in prop::collection::vec((0u8..20, 0u8..20), 0..40),
        ) {
            let choices: Vec<_> = pairs
                .iter()
                .map(|&(c, s)| Choice { cost: f64::from(c), slowdown: f64::from(s) })
                .collect();
            let front = front(&choices);
            let beats = |a: &Choice, b: &Choice| {
                a.cost <= b.cost && a.slowdown <= b.slowdown && a != b
            };
            for (i, choice) in choices.iter().enumerate() {
                let beaten = choices.iter().any(|other| beats(other, choice));
                let first = choices.iter().position(|c| c == choice) == Some(i);
                prop_assert_eq!(front.contains(&i), !beaten && first);
            }
            let costs: Vec<_> = front.iter().map(|&i| choices[i].cost).collect();
            prop_assert!(costs.windows(2).all(|w| w[0] < w[1]));
        }
    }
}
