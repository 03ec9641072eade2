//! Curves of several seeds aggregated to a mean with an interval.

use super::statistics::{bootstrap_interval, mean};
use std::cmp::Ordering;

/// Number of positions at which curves with different steps are compared.
const NUM_POSITIONS: usize = 200;

/// Mean of several curves at each position, with its 95 % interval.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Band {
    /// Positions on the horizontal axis, ascending.
    pub x: Vec<f64>,
    /// Mean at each position.
    pub mean: Vec<f64>,
    /// The 95 % interval of each mean, `[low, high]`; empty for a single curve.
    pub interval: Vec<[f64; 2]>,
}

impl Band {
    /// Last position with its mean; `None` for an empty band.
    pub fn last(&self) -> Option<(f64, f64)> {
        Some((*self.x.last()?, *self.mean.last()?))
    }
}

/// Aggregates the curves of some seeds, each a list of points with ascending `x`.
///
/// Curves with the same positions keep them. Otherwise values are interpolated linearly over what all curves share.
/// Curves without a point are left out.
pub fn aggregate(curves: &[Vec<(f64, f64)>]) -> Band {
    let curves: Vec<&Vec<(f64, f64)>> = curves.iter().filter(|curve| !curve.is_empty()).collect();
    let Some(first) = curves.first() else { return Band::default() };
    let positions = |curve: &[(f64, f64)]| -> Vec<f64> { curve.iter().map(|(x, _)| *x).collect() };
    let first_positions = positions(first);
    let x = if curves.iter().all(|curve| positions(curve) == first_positions) {
        first_positions
    } else {
        shared_positions(&curves)
    };
    let mut band = Band { x, ..Band::default() };
    for x in &band.x {
        let values: Vec<f64> = curves.iter().map(|curve| value_at(curve, *x)).collect();
        band.mean.push(mean(&values));
        band.interval.extend(bootstrap_interval(&values, mean));
    }
    band
}

/// Evenly spaced positions from the latest start of all curves to their earliest end; none if a curve starts after the
/// end of another.
fn shared_positions(curves: &[&Vec<(f64, f64)>]) -> Vec<f64> {
    let low = curves.iter().map(|curve| curve[0].0).fold(f64::MIN, f64::max);
    let high = curves.iter().map(|curve| curve[curve.len() - 1].0).fold(f64::MAX, f64::min);
    let position = |i: usize| low + (high - low) * i as f64 / (NUM_POSITIONS - 1) as f64;
    match low.total_cmp(&high) {
        Ordering::Less => (0..NUM_POSITIONS).map(position).collect(),
        Ordering::Equal => vec![low],
        Ordering::Greater => Vec::new(),
    }
}

/// Value of a curve at `x`, interpolated linearly, and constant beyond its ends.
fn value_at(curve: &[(f64, f64)], x: f64) -> f64 {
    let after = curve.partition_point(|(position, _)| *position < x);
    let (x1, y1) = curve[after.min(curve.len() - 1)];
    let (x0, y0) = curve[after.saturating_sub(1)];
    if x1 > x0 && x < x1 { y0 + (y1 - y0) * (x - x0) / (x1 - x0) } else { y1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_with_the_same_positions_keep_them() {
        let band = aggregate(&[vec![(1.0, 0.0), (2.0, 4.0)], vec![(1.0, 2.0), (2.0, 4.0)], vec![]]);
        assert_eq!((&band.x[..], &band.mean[..]), (&[1.0, 2.0][..], &[1.0, 4.0][..]));
        assert_eq!(band.interval, [[0.0, 2.0], [4.0, 4.0]]);
        assert_eq!(band.last(), Some((2.0, 4.0)));
        let single = aggregate(&[vec![(1.0, 0.0), (2.0, 4.0)]]);
        assert!(single.mean == [0.0, 4.0] && single.interval.is_empty());
    }

    #[test]
    fn other_curves_are_compared_where_all_are() {
        let band =
            aggregate(&[vec![(0.0, 0.0), (10.0, 10.0)], vec![(2.0, 2.0), (3.0, 3.0), (8.0, 8.0)]]);
        assert_eq!(band.x.len(), NUM_POSITIONS);
        assert_eq!((band.x[0], band.x[NUM_POSITIONS - 1]), (2.0, 8.0));
        assert!(band.x.iter().zip(&band.mean).all(|(x, y)| (x - y).abs() < 1e-9));
        assert_eq!(aggregate(&[]), Band::default());
        let [early, late] = [vec![(0.0, 1.0), (1.0, 2.0)], vec![(2.0, 3.0), (9.0, 4.0)]];
        assert_eq!(aggregate(&[early, late]), Band::default(), "they share no position");
    }

    #[test]
    fn a_curve_is_constant_beyond_its_ends() {
        let curve = [(1.0, 5.0), (2.0, 6.0), (4.0, 0.0)];
        let positions = [0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 9.0];
        assert_eq!(positions.map(|x| value_at(&curve, x)), [5.0, 5.0, 5.5, 6.0, 3.0, 0.0, 0.0]);
    }
}
