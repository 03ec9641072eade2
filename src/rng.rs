//! Counter-based random numbers that are the same on every device.
//!
//! There is no generator state. A draw is a hash of a `key` and a `counter`, and a key is itself a
//! draw, so a path names every draw: run seed, [`Stream`], iteration, level, time, and so on.
//! Results therefore do not depend on the number of threads, the launch shape or the device, and
//! the games of a group can share environment randomness while their actions differ.
//!
//! Every function here runs natively and in kernels from the same source.

use burn::cubecl;
use burn::cubecl::prelude::*;

/// Purpose of a key. Streams of the same seed are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stream {
    /// Training levels.
    TrainLevel = 1,
    /// Levels and actions of final evaluations.
    Evaluation = 2,
    /// Training actions.
    TrainAction = 3,
    /// Levels and actions of evaluations during training.
    Validation = 4,
    /// Initial weights.
    Weights = 5,
    /// Order of samples in an update.
    Shuffle = 6,
    /// Choice of the game from which a group branches.
    Branch = 7,
    /// Levels and actions of demonstrations.
    Demonstration = 8,
}

impl Stream {
    /// Returns the key of this stream for a run with the given seed.
    pub fn key(self, seed: u64) -> u32 {
        let seed = draw(mix(seed as u32), (seed >> 32) as u32);
        draw(seed, self as u32)
    }
}

/// `a * b` modulo 2^32.
///
/// Kernels wrap in any case; natively a plain product would panic under overflow checks.
#[inline(always)]
pub fn wrapping_mul(a: u32, b: u32) -> u32 {
    a.wrapping_mul(b)
}

#[cube]
fn multiply(a: u32, b: u32) -> u32 {
    a * b
}

/// Kernel-side form of [`wrapping_mul()`]: a plain product, which wraps on devices.
pub mod wrapping_mul {
    pub use super::multiply::expand;
}

/// Bijective 32-bit mixer: "lowbias32" from Chris Wellons' hash prospector
/// (<https://nullprogram.com/blog/2018/07/31/>).
#[cube]
#[inline(always)]
pub fn mix(bits: u32) -> u32 {
    let a = wrapping_mul(bits ^ (bits >> 16), 0x7feb_352d);
    let b = wrapping_mul(a ^ (a >> 15), 0x846c_a68b);
    b ^ (b >> 16)
}

/// Returns draw `counter` under `key`: 32 uniform bits that can serve as a key themselves.
#[cube]
#[inline(always)]
pub fn draw(key: u32, counter: u32) -> u32 {
    mix(key ^ mix(counter ^ 0x9e37_79b9))
}

/// Maps the upper 24 bits of a draw to a uniform float in `[0, 1)`.
#[cube]
#[inline(always)]
pub fn uniform(bits: u32) -> f32 {
    (bits >> 8) as f32 * 5.960_464_5e-8 // 2^-24, exact
}

/// Maps the upper 24 bits of a draw to a uniform integer in `0..n`, for `1 <= n <= 256`; the lowest
/// 8 bits remain free for other uses. The bias is below `n / 2^24`.
#[cube]
#[inline(always)]
pub fn below(bits: u32, n: u32) -> u32 {
    ((bits >> 8) * n) >> 24
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform_and_uncorrelated() {
        let n = 1 << 16;
        let key = Stream::TrainLevel.key(7);
        let mut histogram = [0u32; 20];
        let (mut sum, mut product) = (0.0f64, 0.0f64);
        for i in 0..n {
            let bits = draw(key, i);
            histogram[below(bits, 20) as usize] += 1;
            let u = uniform(bits) as f64;
            assert!((0.0..1.0).contains(&u));
            sum += u;
            product += (u - 0.5) * (uniform(draw(key, i + 1)) as f64 - 0.5);
        }
        let n = n as f64;
        // 99.99 % quantile of chi-square with 19 degrees of freedom is 50.8.
        let expected = n / 20.0;
        let chi2: f64 = histogram.iter().map(|&h| (h as f64 - expected).powi(2) / expected).sum();
        assert!(chi2 < 50.8, "chi-square {chi2}");
        assert!((sum / n - 0.5).abs() < 4.0 / (12.0 * n).sqrt());
        assert!((product / n).abs() < 4.0 / 12.0 / n.sqrt());
    }

    #[test]
    fn streams_and_seeds_differ() {
        let mut keys: Vec<u32> = (0..1000u64)
            .flat_map(|seed| {
                [Stream::TrainLevel, Stream::Evaluation, Stream::Weights].map(|s| s.key(seed))
            })
            .chain([Stream::TrainLevel.key(1 << 32), Stream::TrainLevel.key(u64::MAX)])
            .collect();
        let len = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), len);
    }
}
