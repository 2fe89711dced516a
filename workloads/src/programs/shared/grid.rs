//! Boxes of points in three dimensions, and the choice of a box that fills a footprint.

/// Points along x (contiguous in memory), y and z.
pub type Size = [usize; 3];

/// The nearly cubic box of about so many points. Its relative error is at most half of one layer
/// more or less.
pub fn near_cube(points: f64) -> Size {
    let side = (libm::cbrt(points).round() as usize).max(1);
    let depth = ((points / (side * side) as f64).round() as usize).max(1);
    [side, side, depth]
}

/// The box nearest to so many points whose sides are all among `sides`, and near each other.
pub fn with_sides(points: f64, sides: &[usize]) -> Size {
    let cube = libm::cbrt(points);
    let near: Vec<usize> =
        sides.iter().copied().filter(|&s| (cube / 2.0..cube * 2.0).contains(&(s as f64))).collect();
    let mut best = ([1, 1, 1], f64::INFINITY);
    for (i, &x) in near.iter().enumerate() {
        for (j, &y) in near.iter().enumerate().skip(i) {
            for &z in &near[j..] {
                let ratio = (x * y * z) as f64 / points;
                let error = ratio.max(1.0 / ratio);
                // Of equally good ones the most cubic, which comes last.
                if error <= best.1 {
                    best = ([x, y, z], error);
                }
            }
        }
    }
    best.0
}

/// Number of points of a box.
pub fn points(size: Size) -> usize {
    size.iter().product()
}

/// Number of a point.
#[inline(always)]
pub fn index(size: Size, [x, y, z]: [usize; 3]) -> usize {
    (z * size[1] + y) * size[0] + x
}

/// Coordinates of a point.
#[inline(always)]
pub fn place(size: Size, index: usize) -> [usize; 3] {
    [index % size[0], index / size[0] % size[1], index / (size[0] * size[1])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_have_about_the_points_asked_for() {
        for wanted in [1000.0, 12_345.0, 7e6, 3.3e9] {
            let off = |size| (points(size) as f64 / wanted - 1.0).abs();
            assert!(off(near_cube(wanted)) < 0.06, "{wanted}");
            let sides: Vec<usize> =
                (0..14).map(|k| 1 << k).chain((0..12).map(|k| 3 << k)).collect();
            assert!(off(with_sides(wanted, &sides)) < 0.35, "{wanted}");
        }
    }

    #[test]
    fn places_and_numbers_are_inverse() {
        let size = [3, 5, 7];
        for i in 0..points(size) {
            assert_eq!(index(size, place(size, i)), i);
        }
    }
}
