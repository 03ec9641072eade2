//! Initial weights: orthogonal matrices from counter-based draws.

use crate::math::mul_add;
use crate::rng::{draw, uniform};
use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{Device, TensorData};
use multiversion::multiversion;
use rayon::prelude::*;

/// A layer with orthogonal weights of norm `gain`, and biases of 0.
pub(crate) fn orthogonal_linear(
    inputs: usize,
    outputs: usize,
    gain: f64,
    key: u32,
    device: &Device,
) -> Linear {
    linear_with_weight(orthogonal_matrix(inputs, outputs, gain, key), outputs, device)
}

/// A layer of these weights, `[inputs, outputs]`, and biases of 0.
pub(crate) fn linear_with_weight(weight: Vec<f32>, outputs: usize, device: &Device) -> Linear {
    let inputs = weight.len() / outputs;
    let bias = vec![0.0f32; outputs];
    Linear {
        weight: Param::from_data(TensorData::new(weight, [inputs, outputs]), device),
        bias: Some(Param::from_data(TensorData::new(bias, [outputs]), device)),
    }
}

/// The largest number of vectors made by Gram-Schmidt, one after the other; more are made by reflections.
const MAX_GRAM_SCHMIDT: usize = 256;

/// A `[inputs, outputs]` matrix, row-major, whose rows or columns (the fewer) are orthogonal with
/// norm `gain`, and otherwise random: uniformly distributed.
pub(crate) fn orthogonal_matrix(inputs: usize, outputs: usize, gain: f64, key: u32) -> Vec<f32> {
    let (count, len) = (inputs.min(outputs), inputs.max(outputs));
    // Gives element `i` of a vector by `at(vector, i)`.
    let arrange = |at: &(dyn Fn(usize, usize) -> f64 + Sync)| -> Vec<f32> {
        let rows = (0..inputs).into_par_iter().flat_map_iter(|row| {
            (0..outputs).map(move |column| {
                let x = if inputs <= outputs { at(row, column) } else { at(column, row) };
                (gain * x) as f32
            })
        });
        rows.collect()
    };
    if count <= MAX_GRAM_SCHMIDT {
        let vectors = gram_schmidt(count, len, key);
        arrange(&|vector, i| vectors[vector][i])
    } else {
        let vectors = reflect_unit_vectors(count, len, key);
        arrange(&|vector, i| {
            f64::from(vectors[vector / VECTORS_PER_THREAD][i][vector % VECTORS_PER_THREAD])
        })
    }
}

/// The normal draw of a key and a counter (Box and Muller 1958).
pub(crate) fn normal_draw(key: u32, counter: u32) -> f64 {
    // 1 - u keeps the logarithm finite.
    let u1 = 1.0 - f64::from(uniform(draw(key, 2 * counter)));
    let u2 = f64::from(uniform(draw(key, 2 * counter + 1)));
    (-2.0 * u1.ln()).sqrt() * (std::f64::consts::TAU * u2).cos()
}

/// `count` orthonormal vectors `[len]`, by the modified Gram-Schmidt process from normal draws.
fn gram_schmidt(count: usize, len: usize, key: u32) -> Vec<Vec<f64>> {
    let mut drawn = 0;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let mut vectors: Vec<Vec<f64>> = Vec::with_capacity(count);
    while vectors.len() < count {
        let mut v: Vec<f64> = (drawn..drawn + len as u32).map(|i| normal_draw(key, i)).collect();
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

/// Vectors that one thread makes side by side.
const VECTORS_PER_THREAD: usize = 16;
/// Reflections that are applied as one block.
const BLOCK_REFLECTIONS: usize = 8;

/// `count` orthonormal vectors `[len]`, [`VECTORS_PER_THREAD`] of them in each `[len][VECTORS_PER_THREAD]`: the first
/// columns of a product of random reflections (Stewart 1980, "The efficient generation of random orthogonal matrices").
/// Costs a third of Gram-Schmidt with its second pass, and runs on all threads.
fn reflect_unit_vectors(count: usize, len: usize, key: u32) -> Vec<Vec<[f32; VECTORS_PER_THREAD]>> {
    let firsts: Vec<usize> = (0..count).step_by(BLOCK_REFLECTIONS).collect();
    let blocks: Vec<Reflections> = firsts
        .into_par_iter()
        .map(|first| Reflections::new(first, BLOCK_REFLECTIONS.min(count - first), len, key))
        .collect();
    let firsts: Vec<usize> = (0..count).step_by(VECTORS_PER_THREAD).collect();
    let vectors = firsts.into_par_iter().map(|first| {
        let mut vectors = vec![[0.0; VECTORS_PER_THREAD]; len];
        for (lane, column) in (first..count).take(VECTORS_PER_THREAD).enumerate() {
            vectors[column][lane] =
                blocks[column / BLOCK_REFLECTIONS].signs[column % BLOCK_REFLECTIONS];
        }
        // Later blocks leave these unit vectors unchanged.
        let blocks = blocks.iter().take_while(|block| block.first < first + VECTORS_PER_THREAD);
        for Reflections { first, v, t, .. } in blocks.collect::<Vec<_>>().into_iter().rev() {
            reflect(v, t, &mut vectors[*first..]);
        }
        vectors
    });
    vectors.collect()
}

/// A block of reflections `H = I - v v^T`; their product is `I - V T V^T` (Schreiber and Van Loan 1989).
struct Reflections {
    /// Index of the first reflection; the block leaves the elements of a vector before it unchanged.
    first: usize,
    /// `V`, from element `first` on, the reflections side by side.
    v: Vec<[f32; BLOCK_REFLECTIONS]>,
    /// `T`, upper triangular.
    t: [[f32; BLOCK_REFLECTIONS]; BLOCK_REFLECTIONS],
    /// The signs that make the column of each uniformly distributed.
    signs: [f32; BLOCK_REFLECTIONS],
}

impl Reflections {
    /// A block of `count` reflections from index `first` on, of vectors `[len]`.
    fn new(first: usize, count: usize, len: usize, key: u32) -> Self {
        let mut v = vec![[0.0; BLOCK_REFLECTIONS]; len - first];
        let mut signs = [1.0; BLOCK_REFLECTIONS];
        for i in 0..count {
            let key = draw(key, (first + i) as u32);
            let mut x: Vec<f64> =
                (0..len - first - i).map(|n| normal_draw(key, n as u32)).collect();
            let norm = x.iter().map(|x| x * x).sum::<f64>().sqrt();
            // The sign of `x[0]`, so that no subtraction cancels digits.
            let sign = if x[0] < 0.0 { -1.0 } else { 1.0 };
            x[0] += sign * norm;
            // Scales `v` to a norm of sqrt(2); a vector of zeros, which is never drawn, is left alone.
            let scale = 1.0 / (norm * x[0].abs()).sqrt().max(f64::MIN_POSITIVE);
            for (v, x) in v[i..].iter_mut().zip(&x) {
                v[i] = (scale * x) as f32;
            }
            signs[i] = -sign as f32;
        }
        let dot =
            |a: usize, b: usize| v.iter().map(|v| f64::from(v[a]) * f64::from(v[b])).sum::<f64>();
        let mut t = [[0.0f64; BLOCK_REFLECTIONS]; BLOCK_REFLECTIONS];
        for i in 0..count {
            t[i][i] = 2.0 / dot(i, i);
            for j in 0..i {
                let sum: f64 = (j..i).map(|k| t[j][k] * dot(k, i)).sum();
                t[j][i] = -t[i][i] * sum;
            }
        }
        Self { first, v, t: t.map(|row| row.map(|x| x as f32)), signs }
    }
}

/// Applies a block of reflections to `vectors`, from element `first` on.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn reflect(
    v: &[[f32; BLOCK_REFLECTIONS]],
    t: &[[f32; BLOCK_REFLECTIONS]; BLOCK_REFLECTIONS],
    vectors: &mut [[f32; VECTORS_PER_THREAD]],
) {
    let mut dots = [[0.0f32; VECTORS_PER_THREAD]; BLOCK_REFLECTIONS];
    for (v, x) in v.iter().zip(vectors.iter()) {
        // This loop order keeps the sums in registers.
        for (lane, x) in x.iter().enumerate() {
            for (dots, v) in dots.iter_mut().zip(v) {
                dots[lane] = mul_add(*v, *x, dots[lane]);
            }
        }
    }
    let mut parts = [[0.0f32; VECTORS_PER_THREAD]; BLOCK_REFLECTIONS];
    for (parts, t) in parts.iter_mut().zip(t) {
        for (t, dots) in t.iter().zip(&dots) {
            for (part, dot) in parts.iter_mut().zip(dots) {
                *part = mul_add(-*t, *dot, *part);
            }
        }
    }
    for (v, x) in v.iter().zip(vectors) {
        for (lane, x) in x.iter_mut().enumerate() {
            *x = v.iter().zip(&parts).fold(*x, |x, (v, parts)| mul_add(*v, parts[lane], x));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest error of a dot product of two rows or columns, relative to the squared norm.
    fn error(inputs: usize, outputs: usize, w: &[f32], gain: f64) -> f64 {
        let at = |i: usize, j: usize| f64::from(w[i * outputs + j]);
        let (count, len) = (inputs.min(outputs), inputs.max(outputs));
        let element = |v: usize, i: usize| if inputs <= outputs { at(v, i) } else { at(i, v) };
        let errors = (0..count * count).into_par_iter().map(|pair| {
            let (a, b) = (pair / count, pair % count);
            let dot: f64 = (0..len).map(|i| element(a, i) * element(b, i)).sum();
            (dot / (gain * gain) - if a == b { 1.0 } else { 0.0 }).abs()
        });
        errors.reduce(|| 0.0, f64::max)
    }

    #[test]
    fn weights_are_orthogonal_for_every_shape() {
        let few = [(5, 64), (64, 3), (17, 17), (1, 4), (128, 64)];
        let many = [(257, 257), (301, 260), (257, 400)];
        for (inputs, outputs) in few.into_iter().chain(many) {
            let gain = 1.7;
            let w = orthogonal_matrix(inputs, outputs, gain, 42);
            assert_eq!(w.len(), inputs * outputs);
            let error = error(inputs, outputs, &w, gain);
            assert!(error < 4e-6, "{inputs}x{outputs}: {error}");
            assert_ne!(w, orthogonal_matrix(inputs, outputs, gain, 43));
        }
    }

    #[test]
    fn small_matrices_have_known_bits() {
        let bits: Vec<u32> = orthogonal_matrix(3, 2, 1.0, 7).iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, [0xbea6d462, 0x3e9a2743, 0x3f6dfe91, 0xbd900532, 0xbe30075e, 0xbf7374e1]);
    }

    #[test]
    fn many_vectors_are_uniform_and_independent_of_the_number_of_threads() {
        let n = 300;
        let w = orthogonal_matrix(n, n, 1.0, 5);
        // Entries of a uniformly distributed orthogonal matrix: mean 0, variance 1 / n, fourth moment
        // 3 / (n (n + 2)); the diagonal is not an exception.
        let moment = |values: &mut dyn Iterator<Item = f32>, power: i32| {
            let powers: Vec<f64> = values.map(|x| f64::from(x).powi(power)).collect();
            powers.iter().sum::<f64>() / powers.len() as f64
        };
        let size = n as f64;
        assert!(moment(&mut w.iter().copied(), 1).abs() * size < 0.02);
        assert!((moment(&mut w.iter().copied(), 2) * size - 1.0).abs() < 1e-5);
        let fourth = moment(&mut w.iter().copied(), 4) * size * (size + 2.0);
        assert!((fourth - 3.0).abs() < 0.06, "{fourth}");
        let mut diagonal = w.iter().copied().step_by(n + 1);
        let second = moment(&mut diagonal, 2) * size;
        assert!((second - 1.0).abs() < 0.35, "{second}");
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert!(pool.install(|| orthogonal_matrix(n, n, 1.0, 5)) == w, "{threads} threads");
        }
    }
}
