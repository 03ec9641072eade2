//! A series with planted patterns and marks, and how well the marks can be told at best.
//!
//! Three sensors are read at every time: noise, and now and then a pattern of eight rows under it. Somebody
//! has marked three of four patterns at their last row, and left the others alone.
//!
//! The patterns are orthogonal and of the same size, so the best guess is the pattern that has the largest
//! product with the eight rows (a matched filter). Its products with the others are normal around 0, that
//! with the right one around [`SIZE`], all of variance 1; it is right if the last is the largest:
//! the integral of `phi(x - SIZE) Phi(x)^2`.

use grove::rng::{below, draw, uniform};
use std::fmt::Write;

/// The patterns, row by row; of the second sensor upside down.
pub const PATTERNS: [(&str, [f64; ROWS]); 3] = [
    ("fall", [1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0]),
    ("dip", [1.0, 1.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0]),
    ("ripple", [1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0]),
];
/// Rows of a pattern.
pub const ROWS: usize = 8;
/// What the sensors read where there is nothing, and how much a unit of noise is.
const SENSORS: [(&str, f64, f64, f64); 3] =
    [("pressure", 1013.0, 12.0, 1.0), ("flow", 0.35, 0.02, -1.0), ("heat", 68.0, 4.0, 1.0)];
/// How far the patterns stand out of the noise: their product with themselves, by its noise.
const SIZE: f64 = 2.5;

/// A series, and what is known of it.
pub struct Series {
    /// A table: time, the sensors, and the mark.
    pub csv: String,
    /// Of each mark, its row and whether the best guess is right.
    pub marks: Vec<(usize, bool)>,
    /// Rows.
    pub rows: usize,
}

impl Series {
    /// So many patterns with up to eight rows between them; every number is a hash of `seed`.
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
            let (name, pattern) = PATTERNS[which];
            let mut products = [0.0; 3];
            for (t, level) in pattern.iter().enumerate() {
                let is_marked = t + 1 == ROWS && below(draw(key, 2), 4) > 0;
                let seen = this.row(seed, *level, if is_marked { name } else { "" });
                products.iter_mut().zip(PATTERNS).for_each(|(p, (_, of))| *p += of[t] * seen);
                if is_marked {
                    let right = products.iter().all(|p| *p <= products[which]);
                    this.marks.push((this.rows - 1, right));
                }
            }
        }
        this
    }

    /// Writes a row in which the pattern is at `level`, and gives the sum of its sensors without offset,
    /// unit and sign.
    fn row(&mut self, seed: u32, level: f64, mark: &str) -> f64 {
        let _ = write!(self.csv, "{}", self.rows);
        let key = draw(draw(seed, 0x5e1f), self.rows as u32);
        let height = SIZE / ((ROWS * SENSORS.len()) as f64).sqrt();
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

    /// The share of the marks in the rows from `row` on that the best guess tells right.
    pub fn best_from(&self, row: usize) -> f64 {
        let marks = self.marks.iter().filter(|(at, _)| *at >= row);
        let rights: Vec<f64> = marks.map(|(_, right)| f64::from(*right)).collect();
        rights.iter().sum::<f64>() / rights.len() as f64
    }
}

/// The share of all marks that there might be that the best guess tells right.
pub fn optimum() -> f64 {
    let phi = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    // Both integrals by the trapezoid rule, from where nothing is missing.
    let (low, high, n) = (-8.0, SIZE + 8.0, 100_000);
    let step = (high - low) / f64::from(n);
    let (mut below, mut sum) = (0.0, 0.0);
    for i in 0..n {
        let x = low + step * f64::from(i);
        sum += phi(x - SIZE) * below * below * step;
        below += 0.5 * (phi(x) + phi(x + step)) * step;
    }
    sum
}

/// A normal number of mean 0 and variance 1 (Box & Muller 1958).
fn normal(key: u32) -> f64 {
    let [a, b] = [0, 1].map(|i| f64::from(uniform(draw(key, i))));
    (-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}
