//! A labelled time series with planted patterns, and the accuracy of the optimal classifier.
//!
//! Three sensors record noise, with occasional patterns of eight rows. Three of four patterns are labelled at
//! their last row.
//!
//! The patterns are orthogonal and of the same norm, so the optimal classifier picks the pattern with the
//! largest inner product with the eight rows (a matched filter). The products with the wrong patterns are normal
//! around 0, that with the right one around [`SIGNAL_TO_NOISE`], all with variance 1. The classifier is right if
//! the last one is the largest, with a probability of the integral of `phi(x - SIGNAL_TO_NOISE) Phi(x)^2`.

use grove::rng::{below, draw, uniform};
use std::fmt::Write;

/// The patterns by row; inverted for the second sensor.
pub const PATTERNS: [(&str, [f64; ROWS]); 3] = [
    ("fall", [1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0]),
    ("dip", [1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0]),
    ("ripple", [1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0]),
];
/// Number of rows of a pattern.
pub const ROWS: usize = 8;
/// Name, baseline, standard deviation of the noise, and sign of each sensor.
const SENSORS: [(&str, f64, f64, f64); 3] =
    [("pressure", 1013.0, 12.0, 1.0), ("flow", 0.35, 0.02, -1.0), ("heat", 68.0, 4.0, 1.0)];
/// Signal-to-noise ratio: the inner product of a pattern with itself, divided by its standard deviation.
const SIGNAL_TO_NOISE: f64 = 2.5;

/// A generated series with its statistics.
pub struct Series {
    /// The table in CSV format: time, sensors, label.
    pub csv: String,
    /// The row of each label, and whether the optimal classifier is right about it.
    pub marks: Vec<(usize, bool)>,
    /// Number of rows.
    pub rows: usize,
}

impl Series {
    /// Generates a series with `patterns` patterns and up to eight rows in between, seeded by `seed`.
    pub fn new(patterns: u32, seed: u32) -> Self {
        let names: Vec<_> = SENSORS.iter().map(|(name, ..)| *name).collect();
        let mut this =
            Self { csv: format!("time,{},mark\n", names.join(",")), marks: Vec::new(), rows: 0 };
        for i in 0..patterns {
            let key = draw(seed, i);
            for _ in 0..below(draw(key, 0), 9) {
                this.row(seed, 0.0, "");
            }
            let which = below(draw(key, 1), 3) as usize;
            let (name, planted) = PATTERNS[which];
            let mut products = [0.0; 3];
            for (t, level) in planted.iter().enumerate() {
                let is_marked = t + 1 == ROWS && below(draw(key, 2), 4) > 0;
                let seen = this.row(seed, *level, if is_marked { name } else { "" });
                for (product, (_, pattern)) in products.iter_mut().zip(PATTERNS) {
                    *product += pattern[t] * seen;
                }
                if is_marked {
                    let right = products.iter().all(|p| *p <= products[which]);
                    this.marks.push((this.rows - 1, right));
                }
            }
        }
        this
    }

    /// Writes a row with the pattern at `level`, and returns the sum of the normalized sensors.
    fn row(&mut self, seed: u32, level: f64, mark: &str) -> f64 {
        let _ = write!(self.csv, "{}", self.rows);
        let key = draw(draw(seed, 0x5e1f), self.rows as u32);
        let height = SIGNAL_TO_NOISE / ((ROWS * SENSORS.len()) as f64).sqrt();
        let mut sum = 0.0;
        for (i, (_, offset, unit, sign)) in SENSORS.iter().enumerate() {
            let x = sign * level * height + normal(draw(key, i as u32));
            let _ = write!(self.csv, ",{:.6}", offset + unit * x);
            sum += sign * x;
        }
        let _ = writeln!(self.csv, ",{mark}");
        self.rows += 1;
        sum
    }

    /// Accuracy of the optimal classifier on the labels from `row` on.
    pub fn optimal_accuracy_from(&self, row: usize) -> f64 {
        let marks = self.marks.iter().filter(|(at, _)| *at >= row);
        let rights: Vec<f64> = marks.map(|(_, right)| f64::from(*right)).collect();
        rights.iter().sum::<f64>() / rights.len() as f64
    }
}

/// Expected accuracy of the optimal classifier.
pub fn optimum() -> f64 {
    let phi = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    // Both integrals by the trapezoidal rule, over a range with negligible tails.
    let (low, high, n) = (-8.0, SIGNAL_TO_NOISE + 8.0, 100_000);
    let step = (high - low) / f64::from(n);
    let (mut below, mut sum) = (0.0, 0.0);
    for i in 0..n {
        let x = low + step * f64::from(i);
        sum += phi(x - SIGNAL_TO_NOISE) * below * below * step;
        below += 0.5 * (phi(x) + phi(x + step)) * step;
    }
    sum
}

/// A standard normal random number (Box & Muller 1958).
fn normal(key: u32) -> f64 {
    let [a, b] = [0, 1].map(|i| f64::from(uniform(draw(key, i))));
    (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}
