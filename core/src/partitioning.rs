//! Fast memory divided between groups by what it is worth to each (`docs/coverage.md`, B4).
//!
//! # The problem
//! Each group has a [`HitCurve`], a weight, and guarantees: it gets at least `min_bytes`, as far
//! as it has pages to fill them, and never more than `max_bytes`. Of all partitionings within the
//! guarantees the partitioning has the largest sum of weighted hits.
//!
//! # The one primitive
//! What is left beyond the minimums is cut into at most [`CHUNKS`] equal chunks, and dynamic
//! programming over groups finds the best number of chunks for each: exact at that grain for
//! any curves, concave or not, in `groups * CHUNKS * CHUNKS` steps. Chunks that are worth
//! nothing to anybody go by weight, so that a group which has just come has room to show what it
//! does.
//!
//! # Fairness
//! The largest sum may take everything from one group. So each has an *entitlement*, what it
//! would get by weight alone within the guarantees, and its *loss* is its hit ratio there minus
//! its hit ratio with what it got. `max_loss` bounds every group's loss: minimums are raised to
//! what keeps it. That is always possible, because entitlements together fit.
//!
//! # Applying it
//! A group that shrinks gives its memory back a period later at the earliest. [`phase_in`] raises
//! others only as far as memory has really come free, so that the sum stays within the total.

use crate::curve::HitCurve;

/// Most chunks that memory beyond the minimums is cut into.
pub const CHUNKS: u64 = 256;

/// Chunks are multiples of this: a huge page.
const GRAIN_BYTES: u64 = 2 << 20;

/// The claim of one group.
#[derive(Debug, Clone, PartialEq)]
pub struct FastMemoryClaim {
    /// Hits by size of fast memory.
    pub curve: HitCurve,
    /// It gets at least this, as far as it has pages.
    pub min_bytes: u64,
    /// It gets no more than this.
    pub max_bytes: u64,
    /// Weight of one of its hits beside another group's; above 0.
    pub weight: f64,
}

/// The part of one group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Partition {
    /// Its fast memory, in bytes.
    pub bytes: u64,
    /// Its fast memory by weight alone, in bytes.
    pub entitled_bytes: u64,
    /// Its hit ratio with the entitlement minus that with its share, 0 where it gained.
    pub loss: f64,
}

/// A partitioning.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Partitioning {
    /// In the order of the claims.
    pub shares: Vec<Partition>,
    /// Minimums did not fit into the total and were cut in proportion.
    pub minimums_cut: bool,
}

/// Divides. The shares together are at most `total_bytes`.
pub fn partition(total_bytes: u64, claims: &[FastMemoryClaim], max_loss: f64) -> Partitioning {
    let highs: Vec<u64> =
        claims.iter().map(|c| c.max_bytes.min(whole_grains(c.curve.footprint_bytes()))).collect();
    let mut lows: Vec<u64> =
        claims.iter().zip(&highs).map(|(c, &high)| c.min_bytes.min(high)).collect();
    let wanted: u128 = lows.iter().map(|&b| u128::from(b)).sum();
    let minimums_cut = wanted > u128::from(total_bytes);
    if minimums_cut {
        for low in &mut lows {
            *low = (u128::from(*low) * u128::from(total_bytes) / wanted) as u64;
        }
    }
    let entitled = by_weight(total_bytes, claims, &lows, &highs);
    for ((low, claim), &entitled) in lows.iter_mut().zip(claims).zip(&entitled) {
        let curve = &claim.curve;
        let kept = curve.hits(entitled) - max_loss.max(0.0) * curve.most();
        *low = (*low).max(curve.least_bytes(kept).min(entitled));
    }

    let room = total_bytes - lows.iter().sum::<u64>().min(total_bytes);
    let chunk = whole_grains(room.div_ceil(CHUNKS)).max(GRAIN_BYTES);
    let mut bytes = best(claims, &lows, &highs, chunk, (room / chunk) as usize);
    // Memory that no curve values goes to the group furthest below its weight; the last bit
    // included.
    let mut left = total_bytes.saturating_sub(bytes.iter().sum());
    while left > 0 {
        let below = |&i: &usize| bytes[i] < highs[i];
        let level = |&i: &usize| bytes[i] as f64 / claims[i].weight;
        let poorest = (0..claims.len()).filter(below).min_by(|a, b| level(a).total_cmp(&level(b)));
        let Some(poorest) = poorest else { break };
        let more = chunk.min(left).min(highs[poorest] - bytes[poorest]);
        bytes[poorest] += more;
        left -= more;
    }
    let share = |((bytes, entitled_bytes), claim): ((u64, u64), &FastMemoryClaim)| Partition {
        bytes,
        entitled_bytes,
        loss: (claim.curve.hit_ratio(entitled_bytes) - claim.curve.hit_ratio(bytes)).max(0.0),
    };
    let shares = bytes.into_iter().zip(entitled).zip(claims).map(share).collect();
    Partitioning { shares, minimums_cut }
}

fn whole_grains(bytes: u64) -> u64 {
    bytes.div_ceil(GRAIN_BYTES).saturating_mul(GRAIN_BYTES)
}

/// The part of each in proportion to its weight, within its bounds: the level at which it fits.
fn by_weight(
    total_bytes: u64,
    claims: &[FastMemoryClaim],
    lows: &[u64],
    highs: &[u64],
) -> Vec<u64> {
    let at = |level: f64| -> Vec<u64> {
        let bounds = lows.iter().zip(highs);
        let share = |(claim, (&low, &high)): (&FastMemoryClaim, (&u64, &u64))| {
            ((level * claim.weight) as u64).clamp(low, high.max(low))
        };
        claims.iter().zip(bounds).map(share).collect()
    };
    let fits = |shares: &[u64]| {
        shares.iter().map(|&b| u128::from(b)).sum::<u128>() <= u128::from(total_bytes)
    };
    let lightest = claims.iter().map(|c| c.weight).fold(f64::INFINITY, f64::min);
    let (mut low, mut high) = (0.0, total_bytes as f64 / lightest.clamp(1e-9, 1e9) + 1.0);
    for _ in 0..128 {
        let middle = (low + high) / 2.0;
        if fits(&at(middle)) { low = middle } else { high = middle }
    }
    at(low)
}

/// Beyond the low bounds, the number of chunks for each with the largest sum of weighted hits.
fn best(
    claims: &[FastMemoryClaim],
    lows: &[u64],
    highs: &[u64],
    chunk: u64,
    chunks: usize,
) -> Vec<u64> {
    let size = |i: usize, k: usize| lows[i].saturating_add(k as u64 * chunk).min(highs[i]);
    // worth[n]: the best sum with n chunks for the groups so far; taken[i][n]: chunks that group i
    // has in it.
    let mut worth = vec![0.0f64; chunks + 1];
    let mut taken: Vec<Vec<u16>> = Vec::with_capacity(claims.len());
    for (i, claim) in claims.iter().enumerate() {
        let most = (highs[i].saturating_sub(lows[i])).div_ceil(chunk).min(chunks as u64) as usize;
        let base = claim.curve.hits(size(i, 0));
        let gains: Vec<f64> =
            (0..=most).map(|k| claim.weight * (claim.curve.hits(size(i, k)) - base)).collect();
        let mut next = worth.clone();
        let mut with = vec![0u16; chunks + 1];
        for n in 0..=chunks {
            for (k, gain) in gains.iter().enumerate().take(n + 1).skip(1) {
                let sum = worth[n - k] + gain;
                // Fewer chunks where more are worth no more: noise in sums of floats has no value.
                if sum > next[n] * (1.0 + 1e-12) + 1e-12 {
                    next[n] = sum;
                    with[n] = k as u16;
                }
            }
        }
        worth = next;
        taken.push(with);
    }
    let mut left = chunks;
    let mut bytes = vec![0; claims.len()];
    for i in (0..claims.len()).rev() {
        let k = usize::from(taken[i][left]);
        bytes[i] = size(i, k);
        left -= k;
    }
    bytes
}

/// The grants of the next period: `granted` so far, `used` at the moment, `targets` of the new
/// partitioning. Those that shrink are cut at once; the others grow into what has come free. The
/// larger of grant and use, summed over groups, is at most `total_bytes`, or where more is in use
/// already, not more than before.
pub fn phase_in(total_bytes: u64, targets: &[u64], granted: &[u64], used: &[u64]) -> Vec<u64> {
    let now = targets.iter().zip(granted).zip(used);
    let mut next: Vec<u64> =
        now.clone().map(|((&target, &granted), _)| target.min(granted)).collect();
    let kept = next.iter().zip(used).fold(0u64, |sum, (&n, &u)| sum.saturating_add(n.max(u)));
    let mut room = total_bytes.saturating_sub(kept);
    for (next, ((&target, _), &used)) in next.iter_mut().zip(now) {
        // Up to what it uses already costs nothing: that is counted.
        let free = used.min(target).max(*next);
        let more = (target - free).min(room);
        *next = free + more;
        room -= more;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn claim(points: &[(u64, f64)]) -> FastMemoryClaim {
        let curve = HitCurve::through(points.iter().map(|&(m, h)| (m * MIB, h)).collect());
        FastMemoryClaim { curve, min_bytes: 0, max_bytes: u64::MAX, weight: 1.0 }
    }

    fn bytes(partitioning: &Partitioning) -> Vec<u64> {
        partitioning.shares.iter().map(|s| (s.bytes + MIB / 2) / MIB).collect()
    }

    #[test]
    fn memory_goes_where_it_is_worth_most() {
        let hot = claim(&[(100, 1000.0), (400, 1100.0)]);
        let warm = claim(&[(200, 400.0), (400, 500.0)]);
        // 100 MB are worth 10 a MB to the first, then 1/3; 2 a MB to the second for 200, then 1/2.
        let partitioning = partition(300 * MIB, &[hot.clone(), warm.clone()], 1.0);
        assert_eq!(bytes(&partitioning), [100, 200]);
        assert_eq!(bytes(&partition(500 * MIB, &[hot, warm], 1.0)), [100, 400]);
    }

    #[test]
    fn guarantees_weights_and_the_bound_on_losses_hold() {
        let hot = claim(&[(400, 4000.0)]);
        let warm = claim(&[(400, 400.0)]);
        let of = |hot: &FastMemoryClaim, warm: &FastMemoryClaim, loss| {
            bytes(&partition(400 * MIB, &[hot.clone(), warm.clone()], loss))
        };
        assert_eq!(of(&hot, &warm, 1.0), [400, 0]);
        assert_eq!(
            of(&hot, &FastMemoryClaim { min_bytes: 150 * MIB, ..warm.clone() }, 1.0),
            [250, 150]
        );
        assert_eq!(
            of(&FastMemoryClaim { max_bytes: 90 * MIB, ..hot.clone() }, &warm, 1.0),
            [90, 310]
        );
        assert_eq!(of(&hot, &FastMemoryClaim { weight: 100.0, ..warm.clone() }, 1.0), [0, 400]);
        // By weight each would have 200 MB, a hit ratio of 50 %: at most 10 points may be lost.
        assert_eq!(of(&hot, &warm, 0.1), [240, 160]);
        assert_eq!(of(&hot, &warm, 0.0), [200, 200]);
    }

    #[test]
    fn what_nobody_wants_goes_by_weight_and_never_beyond_a_footprint() {
        let idle = claim(&[(300, 0.0)]);
        let heavy = FastMemoryClaim { weight: 2.0, ..idle.clone() };
        assert_eq!(bytes(&partition(300 * MIB, &[idle.clone(), heavy], 1.0)), [100, 200]);
        assert_eq!(bytes(&partition(900 * MIB, &[idle.clone(), idle], 1.0)), [300, 300]);
        assert_eq!(partition(5, &[], 1.0), Partitioning::default());
    }

    #[test]
    fn minimums_that_do_not_fit_are_cut_alike_and_that_is_reported() {
        let wants = |mib| FastMemoryClaim { min_bytes: mib * MIB, ..claim(&[(1000, 1.0)]) };
        let partitioning = partition(300 * MIB, &[wants(400), wants(200)], 1.0);
        assert!(partitioning.minimums_cut);
        assert_eq!(bytes(&partitioning), [200, 100]);
    }

    #[test]
    fn others_grow_only_into_what_has_come_free() {
        // The first is to shrink from 300 to 100 and uses 300 still.
        assert_eq!(phase_in(400, &[100, 300], &[300, 100], &[300, 100]), [100, 100]);
        assert_eq!(phase_in(400, &[100, 300], &[100, 100], &[180, 100]), [100, 220]);
        assert_eq!(phase_in(400, &[100, 300], &[100, 220], &[100, 220]), [100, 300]);
        // One that has come and uses memory already.
        assert_eq!(phase_in(400, &[200], &[0], &[400]), [200]);
    }

    fn any_claim(footprint_chunks: std::ops::Range<u64>) -> impl Strategy<Value = FastMemoryClaim> {
        let points = prop::collection::vec((footprint_chunks, 0.0f64..1000.0), 1..6);
        (points, 0u64..12, 0u64..40, 0.1f64..10.0).prop_map(|(points, min, max, weight)| {
            FastMemoryClaim {
                curve: HitCurve::through(
                    points.into_iter().map(|(c, h)| (c * GRAIN_BYTES, h)).collect(),
                ),
                min_bytes: min * GRAIN_BYTES,
                max_bytes: (min + max) * GRAIN_BYTES,
                weight,
            }
        })
    }

    /// The best sum there is over whole grains, by trying all.
    fn brute(claims: &[FastMemoryClaim], grains: u64) -> f64 {
        let Some((claim, rest)) = claims.split_first() else { return 0.0 };
        let high = claim.max_bytes.min(whole_grains(claim.curve.footprint_bytes())) / GRAIN_BYTES;
        let low = (claim.min_bytes / GRAIN_BYTES).min(high);
        (low..=high.min(grains))
            .map(|n| claim.weight * claim.curve.hits(n * GRAIN_BYTES) + brute(rest, grains - n))
            .fold(f64::NEG_INFINITY, f64::max)
    }

    fn worth(claims: &[FastMemoryClaim], partitioning: &Partitioning) -> f64 {
        let worth = |(c, s): (&FastMemoryClaim, &Partition)| c.weight * c.curve.hits(s.bytes);
        claims.iter().zip(&partitioning.shares).map(worth).sum()
    }

    proptest! {
        #[test]
        fn a_partitioning_fits_and_keeps_guarantees_and_losses_within_bounds(
            claims in prop::collection::vec(any_claim(1..2000), 0..6),
            total in 0u64..4000 * GRAIN_BYTES,
            max_loss in 0.0f64..1.0,
        ) {
            let partitioning = partition(total, &claims, max_loss);
            prop_assert!(partitioning.shares.iter().map(|s| s.bytes).sum::<u64>() <= total);
            for (claim, share) in claims.iter().zip(&partitioning.shares) {
                prop_assert!(share.bytes <= claim.max_bytes);
                let able = claim.min_bytes.min(claim.curve.footprint_bytes());
                prop_assert!(partitioning.minimums_cut || share.bytes >= able);
                prop_assert!(share.loss <= max_loss + 1e-6, "{share:?}");
            }
        }

        #[test]
        fn it_is_as_good_as_the_best_found_by_trying_all(
            claims in prop::collection::vec(any_claim(1..24), 1..4),
            grains in 1u64..40,
        ) {
            let partitioning = partition(grains * GRAIN_BYTES, &claims, 1.0);
            prop_assume!(!partitioning.minimums_cut);
            let (got, best) = (worth(&claims, &partitioning), brute(&claims, grains));
            prop_assert!(got >= 0.95 * best - 1e-6, "{got} of {best}: {partitioning:?}");
        }

        #[test]
        fn grants_and_use_never_pass_the_total_by_more_than_they_did(
            groups in prop::collection::vec((0u64..100, 0u64..100, 0u64..100), 0..6),
            total in 0u64..400,
        ) {
            let pick = |f: fn(&(u64, u64, u64)) -> u64| groups.iter().map(f).collect::<Vec<_>>();
            let (targets, granted, used) = (pick(|g| g.0), pick(|g| g.1), pick(|g| g.2));
            prop_assume!(targets.iter().sum::<u64>() <= total);
            let next = phase_in(total, &targets, &granted, &used);
            let sum = |a: &[u64]| a.iter().zip(&used).map(|(a, u)| a.max(u)).sum::<u64>();
            prop_assert!(sum(&next) <= total.max(sum(&granted)).max(used.iter().sum()));
            prop_assert!(next.iter().zip(&targets).all(|(n, t)| n <= t));
            // When all is as granted, the target is reached in one step more.
            let settled = phase_in(total, &targets, &next, &next);
            let there = phase_in(total, &targets, &settled, &settled);
            prop_assert_eq!(there, targets);
        }
    }
}
