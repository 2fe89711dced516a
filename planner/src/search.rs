//! The least share of fast memory for a target, and the curve of slowdown against it.
//!
//! More fast memory should never be slower, but a policy that chooses otherwise with more of it can
//! make it so. A share meets the target when it does and every larger one that was tried does: the
//! search does not answer with a lucky dip.

/// One point of a curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Point<T> {
    /// Share of fast memory, 0 to 1.
    pub share: f64,
    /// Run time over that with all memory fast.
    pub slowdown: f64,
    /// Further data of the point.
    pub what: T,
}

/// Evaluates the shares of the grid, then halves between the largest that fails and the next, until
/// they are `resolution` apart. `probe` returns the slowdown of shares, all at once so that they can
/// be played side by side. Points come back in the order of their shares.
///
/// # Errors
/// The first error of `probe`.
pub fn curve<T, E>(
    grid: &[f64],
    target: f64,
    resolution: f64,
    mut probe: impl FnMut(&[f64]) -> Result<Vec<(f64, T)>, E>,
) -> Result<Vec<Point<T>>, E> {
    let mut points: Vec<Point<T>> = Vec::new();
    let mut shares = grid.to_vec();
    loop {
        let probes = probe(&shares)?;
        let fresh = shares.iter().zip(probes);
        points.extend(fresh.map(|(&share, (slowdown, what))| Point { share, slowdown, what }));
        points.sort_by(|a, b| a.share.total_cmp(&b.share));
        points.dedup_by(|a, b| a.share == b.share);
        let Some((fails, meets)) = edge(&points, target) else { return Ok(points) };
        if meets - fails <= resolution {
            return Ok(points);
        }
        shares = vec![f64::midpoint(fails, meets)];
    }
}

/// The largest share that fails and the next one, which meets the target as all above it do.
fn edge<T>(points: &[Point<T>], target: f64) -> Option<(f64, f64)> {
    let fails = points.iter().rposition(|p| p.slowdown > target)?;
    let meets = points.get(fails + 1)?;
    Some((points[fails].share, meets.share))
}

/// The least share that meets the target with every larger one; `None` when the largest fails.
pub fn least<T>(points: &[Point<T>], target: f64) -> Option<&Point<T>> {
    let first = points.iter().rposition(|p| p.slowdown > target).map_or(0, |fails| fails + 1);
    points.get(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    const GRID: [f64; 11] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

    fn probe(f: impl Fn(f64) -> f64) -> impl FnMut(&[f64]) -> Result<Vec<(f64, ())>, Infallible> {
        move |shares| Ok(shares.iter().map(|&s| (f(s), ())).collect())
    }

    #[test]
    fn a_straight_line_is_met_where_it_crosses_the_target() {
        let points = curve(&GRID, 1.05, 0.002, probe(|s| 1.5 - 0.5 * s)).unwrap();
        let found = least(&points, 1.05).unwrap();
        assert!((found.share - 0.9).abs() <= 0.002, "{}", found.share);
    }

    #[test]
    fn a_lucky_dip_is_no_answer() {
        let bumpy = |s: f64| if (0.15..0.25).contains(&s) { 1.0 } else { 1.5 - 0.5 * s };
        let points = curve(&GRID, 1.2, 0.01, probe(bumpy)).unwrap();
        let found = least(&points, 1.2).unwrap();
        assert!(found.share > 0.55, "{}", found.share);
        assert!(points.iter().any(|p| p.share == 0.2 && p.slowdown == 1.0), "it is on the curve");
    }

    #[test]
    fn what_cannot_be_met_has_no_answer_and_what_always_is_needs_nothing() {
        let points = curve(&GRID, 1.05, 0.01, probe(|_| 1.3)).unwrap();
        assert_eq!(least(&points, 1.05), None);
        let points = curve(&GRID, 1.05, 0.01, probe(|_| 1.0)).unwrap();
        assert_eq!(least(&points, 1.05).unwrap().share, 0.0);
    }

    proptest! {
        #[test]
        fn the_answer_meets_the_target_and_so_does_all_above(
            heights in prop::collection::vec(1.0f64..2.0, 11), target in 1.0f64..2.0,
        ) {
            let f = |s: f64| {
                let at = (s * 10.0).min(9.999);
                let (low, part) = (at as usize, at.fract());
                heights[low] * (1.0 - part) + heights[low + 1] * part
            };
            let points = curve(&GRID, target, 0.01, probe(f)).unwrap();
            prop_assert!(points.windows(2).all(|w| w[0].share < w[1].share));
            match least(&points, target) {
                Some(found) => {
                    let above = points.iter().filter(|p| p.share >= found.share);
                    prop_assert!(above.clone().all(|p| p.slowdown <= target));
                    // Not much larger than need be: what is right below fails.
                    let below = points.iter().rfind(|p| p.share < found.share);
                    if let Some(below) = below {
                        prop_assert!(below.slowdown > target);
                        prop_assert!(found.share - below.share <= 0.01 + 1e-12);
                    }
                }
                None => prop_assert!(points.last().unwrap().slowdown > target),
            }
        }
    }
}
