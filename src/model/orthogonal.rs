//! First weights: orthogonal matrices from counter-based draws.

use crate::rng::{draw, uniform};
use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Device, TensorData};

/// A layer with orthogonal weights of norm `gain`, and biases of 0.
pub(super) fn linear(
    inputs: usize,
    outputs: usize,
    gain: f64,
    key: u32,
    device: &Device,
) -> Linear {
    layer(orthogonal(inputs, outputs, gain, key), outputs, device)
}

/// A layer of these weights, `[inputs, outputs]`, and biases of 0.
pub(super) fn layer(weight: Vec<f32>, outputs: usize, device: &Device) -> Linear {
    let inputs = weight.len() / outputs;
    let bias = vec![0.0f32; outputs];
    Linear {
        weight: Param::from_data(TensorData::new(weight, [inputs, outputs]), device),
        bias: Some(Param::from_data(TensorData::new(bias, [outputs]), device)),
    }
}

/// A `[inputs, outputs]` matrix, row-major, whose rows or columns (the fewer) are orthogonal with
/// norm `gain`: normal draws made orthogonal by the modified Gram-Schmidt process.
pub(super) fn orthogonal(inputs: usize, outputs: usize, gain: f64, key: u32) -> Vec<f32> {
    let (count, len) = (inputs.min(outputs), inputs.max(outputs));
    let mut counter = 0;
    let mut normal = || {
        // Box-Muller; 1 - u keeps the logarithm finite.
        let u1 = 1.0 - f64::from(uniform(draw(key, counter)));
        let u2 = f64::from(uniform(draw(key, counter + 1)));
        counter += 2;
        (-2.0 * u1.ln()).sqrt() * (std::f64::consts::TAU * u2).cos()
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    while vectors.len() < count {
        let mut v: Vec<f64> = (0..len).map(|_| normal()).collect();
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
    (0..inputs * outputs)
        .map(|i| {
            let (row, column) = (i / outputs, i % outputs);
            let x = if inputs <= outputs { vectors[row][column] } else { vectors[column][row] };
            (gain * x) as f32
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_orthogonal_for_every_shape() {
        for (inputs, outputs) in [(5, 64), (64, 3), (17, 17), (1, 4), (128, 64)] {
            let gain = 1.7;
            let w = orthogonal(inputs, outputs, gain, 42);
            let at = |i: usize, j: usize| f64::from(w[i * outputs + j]);
            let small = inputs.min(outputs);
            for a in 0..small {
                for b in 0..small {
                    let dot: f64 = if inputs <= outputs {
                        (0..outputs).map(|j| at(a, j) * at(b, j)).sum()
                    } else {
                        (0..inputs).map(|i| at(i, a) * at(i, b)).sum()
                    };
                    let expected = if a == b { gain * gain } else { 0.0 };
                    assert!((dot - expected).abs() < 1e-5, "{inputs}x{outputs} {a} {b}: {dot}");
                }
            }
        }
    }
}
