//! Statistics over the few runs of an experiment, which differ in their seeds alone.
//!
//! The interquartile mean and percentile bootstrap intervals, which Agarwal et al. 2021 ("Deep Reinforcement Learning
//! at the Edge of the Statistical Precipice", the package `rliable`) recommend. Their stratified bootstrap draws runs
//! within each task; here there is a single task.

use crate::rng;

/// Number of bootstrap resamples.
const NUM_RESAMPLES: u32 = 2000;
/// Key of all draws, so that tables and pictures are reproducible.
const KEY: u32 = 0x5eed_b007;
/// Fraction of the resamples below and above a 95 % interval.
const TAIL: f64 = 0.025;

/// Mean; NaN without values.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Interquartile mean: the mean without the lowest and the highest quarter of the values, each rounded down, as
/// `scipy.stats.trim_mean(values, 0.25)`.
pub fn interquartile_mean(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = sorted.len() / 4;
    mean(&sorted[cut..sorted.len() - cut])
}

/// The 95 % percentile bootstrap interval, `[low, high]`, of a statistic of some runs (Efron 1979); `None` for fewer
/// than two, which say nothing about their spread.
pub fn bootstrap_interval(values: &[f64], statistic: impl Fn(&[f64]) -> f64) -> Option<[f64; 2]> {
    if values.len() < 2 {
        return None;
    }
    let count = values.len();
    let resample = |i: u32| {
        let key = rng::draw(KEY, i);
        let index = |j: usize| f64::from(rng::uniform(rng::draw(key, j as u32))) * count as f64;
        let drawn = (0..count).map(|j| values[index(j) as usize]);
        statistic(&drawn.collect::<Vec<_>>())
    };
    let mut resampled: Vec<f64> = (0..NUM_RESAMPLES).map(resample).collect();
    resampled.sort_by(f64::total_cmp);
    let last = (NUM_RESAMPLES - 1) as f64;
    Some([TAIL, 1.0 - TAIL].map(|share| resampled[(share * last).round() as usize]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interquartile_mean_leaves_the_outer_quarters_out() {
        assert_eq!(interquartile_mean(&[100.0, 1.0, 2.0, 3.0, -50.0]), 2.0);
        assert_eq!(interquartile_mean(&[1.0, 2.0, 6.0]), 3.0);
        assert_eq!(interquartile_mean(&[7.0]), 7.0);
        let values: Vec<f64> = (0..8).map(f64::from).collect();
        assert_eq!(interquartile_mean(&values), 3.5);
    }

    /// The interval of the mean of many values is 1.96 standard errors to each side, by the central limit theorem.
    #[test]
    fn an_interval_has_the_width_of_the_theory() {
        let values: Vec<f64> = (0..400).map(|i| f64::from(rng::uniform(rng::draw(9, i)))).collect();
        let [low, high] = bootstrap_interval(&values, mean).unwrap();
        let expected = 2.0 * 1.96 * (1.0f64 / 12.0 / 400.0).sqrt();
        assert!(((high - low) / expected - 1.0).abs() < 0.1, "{low} {high} {expected}");
        assert!(low < mean(&values) && mean(&values) < high);
        assert_eq!(
            bootstrap_interval(&values, mean),
            Some([low, high]),
            "the draws are the same each time"
        );
        assert_eq!(bootstrap_interval(&[3.0], mean), None);
        assert_eq!(bootstrap_interval(&[3.0, 3.0], interquartile_mean), Some([3.0, 3.0]));
    }
}
