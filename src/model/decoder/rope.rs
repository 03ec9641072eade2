//! Rotary positions (Su et al. 2021): queries and keys are turned by angles that grow with the position,
//! so that their products depend on how far they are apart.
//!
//! Number `i` of a head and number `i + head_dim / 2` are the two coordinates that turn together (Hugging
//! Face's order). A sine of a large angle is worth little on some devices, so that none is computed there:
//! a position is `high * PARTS + low`, and the turns of both come from tables of the host.

use super::shape::{DecoderShape, RopeScaling};

/// Low parts of a position, and high ones: positions repeat after a million.
pub(super) const PARTS: usize = 1024;

/// The turns of positions, on the host: pairs of a cosine and a sine, `[PARTS, head_dim / 2]`.
#[derive(Clone, Debug)]
pub struct Turns {
    pub(super) low: Vec<[f32; 2]>,
    pub(super) high: Vec<[f32; 2]>,
    pub(super) half: usize,
}

impl Turns {
    /// Those of a decoder's heads.
    pub fn new(shape: &DecoderShape) -> Self {
        let half = shape.head_dim / 2;
        let frequencies: Vec<f64> = (0..half).map(|i| frequency(shape, i)).collect();
        let turns = |step: usize| {
            let turn = |position: usize, frequency: &f64| {
                let (sin, cos) = ((position * step) as f64 * frequency).sin_cos();
                [cos as f32, sin as f32]
            };
            let parts = 0..PARTS;
            parts.flat_map(|position| frequencies.iter().map(move |f| turn(position, f))).collect()
        };
        Self { low: turns(1), high: turns(PARTS), half }
    }

    /// Cosines and sines of a position, one pair for each pair of a head's coordinates.
    pub fn at(&self, position: usize) -> impl Iterator<Item = [f32; 2]> {
        let low = &self.low[position % PARTS * self.half..][..self.half];
        let high = &self.high[position / PARTS % PARTS * self.half..][..self.half];
        low.iter().zip(high).map(|([cl, sl], [ch, sh])| [ch * cl - sh * sl, sh * cl + ch * sl])
    }
}

/// By how much pair number `i` of a head turns from position to position, in radians.
pub(super) fn frequency(shape: &DecoderShape, i: usize) -> f64 {
    let plain = shape.rope_theta.powf(-(2.0 * i as f64) / shape.head_dim as f64);
    let Some(scaling) = shape.rope_scaling else { return plain };
    let RopeScaling { factor, low_freq_factor, high_freq_factor, .. } = scaling;
    let turns = scaling.original_max_position_embeddings * plain / std::f64::consts::TAU;
    let fast = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
    plain * fast + plain / factor * (1.0 - fast)
}
