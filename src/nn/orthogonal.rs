//! Initial weights: orthogonal matrices from counter-based draws.

use crate::rng::{draw, uniform};
use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Device, TensorData};

/// A layer with orthogonal weights of norm `gain`, and biases of 0.
pub(crate) fn linear(
    inputs: usize,
    outputs: usize,
    gain: f64,
    key: u32,
    device: &Device,
) -> Linear {
    layer(orthogonal(inputs, outputs, gain, key), outputs, device)
}

/// A layer of these weights, `[inputs, outputs]`, and biases of 0.
pub(crate) fn layer(weight: Vec<f32>, outputs: usize, device: &Device) -> Linear {
    let inputs = weight.len() / outputs;
    let bias = vec![0.0f32; outputs];
    Linear {
        weight: Param::from_data(TensorData::new(weight, [inputs, outputs]), device),
        bias: Some(Param::from_data(TensorData::new(bias, [outputs]), device)),
    }
}

/// A `[inputs, outputs]` matrix, row-major, whose rows or columns (the fewer) are orthogonal with
/// norm `gain`, and otherwise random: uniformly distributed.
pub(crate) fn orthogonal(inputs: usize, outputs: usize, gain: f64, key: u32) -> Vec<f32> {
    let (count, len) = (inputs.min(outputs), inputs.max(outputs));
    let vectors = gram_schmidt(count, len, key);
    let at = |row: usize, column: usize| match inputs <= outputs {
        true => vectors[row][column],
        false => vectors[column][row],
    };
    let rows = (0..inputs).flat_map(|row| (0..outputs).map(move |column| (row, column)));
    rows.map(|(row, column)| (gain * at(row, column)) as f32).collect()
}

/// The normal draw number `number` of a key (Box and Muller 1958).
pub(crate) fn normal(key: u32, number: u32) -> f64 {
    // 1 - u keeps the logarithm finite.
    let u1 = 1.0 - f64::from(uniform(draw(key, 2 * number)));
    let u2 = f64::from(uniform(draw(key, 2 * number + 1)));
    (-2.0 * u1.ln()).sqrt() * (std::f64::consts::TAU * u2).cos()
}

/// `count` orthonormal vectors `[len]`, by the modified Gram-Schmidt process from normal draws.
fn gram_schmidt(count: usize, len: usize, key: u32) -> Vec<Vec<f64>> {
    let mut drawn = 0;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    while vectors.len() < count {
        let mut v: Vec<f64> = (drawn..drawn + len as u32).map(|i| normal(key, i)).collect();
        drawn += len as u32;
        // Twice is enough for orthogonality to working precision (Kahan; Parlett 1980).
        for _ in 0..2 {
            for u in &vectors {
                let projection = dot(&v, u);
                v.iter_mut().zip(u).for_each(|(x, y)| *x -= projection * y);
            }
        }
        let norm = dot(&v, &v).sqrt();
        if norm > 1e-6 {
            vectors.push(v.into_iter().map(|x| x / norm).collect());
        }
    }
    vectors
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error of a dot product of two rows or columns, relative to the squared norm.
    fn error(inputs: usize, outputs: usize, w: &[f32], gain: f64) -> f64 {
        let at = |i: usize, j: usize| f64::from(w[i * outputs + j]);
        let (count, len) = (inputs.min(outputs), inputs.max(outputs));
        let number = |v: usize, i: usize| if inputs <= outputs { at(v, i) } else { at(i, v) };
        let errors = (0..count * count).map(|pair| {
            let (a, b) = (pair / count, pair % count);
            let dot: f64 = (0..len).map(|i| number(a, i) * number(b, i)).sum();
            (dot / (gain * gain) - if a == b { 1.0 } else { 0.0 }).abs()
        });
        errors.fold(0.0, f64::max)
    }

    #[test]
    fn weights_are_orthogonal_for_every_shape() {
        for (inputs, outputs) in [(5, 64), (64, 3), (17, 17), (1, 4), (128, 64), (301, 260)] {
            let gain = 1.7;
            let w = orthogonal(inputs, outputs, gain, 42);
            assert_eq!(w.len(), inputs * outputs);
            let error = error(inputs, outputs, &w, gain);
            assert!(error < 4e-6, "{inputs}x{outputs}: {error}");
            assert_ne!(w, orthogonal(inputs, outputs, gain, 43));
        }
    }

    #[test]
    fn small_matrices_have_known_bits() {
        let bits: Vec<u32> = orthogonal(3, 2, 1.0, 7).iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, [0xbea6d462, 0x3e9a2743, 0x3f6dfe91, 0xbd900532, 0xbe30075e, 0xbf7374e1]);
    }
}
