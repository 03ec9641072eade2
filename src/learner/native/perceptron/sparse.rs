//! Sparse products for observations that are mostly zeros, such as boards.

use super::operands::Rows;
use crate::math::{at_least, has_nonzero, mul_add};
use crate::model::MIN_SPARSE_FEATURES;
use multiversion::multiversion;

/// Minimum number of values for each nonzero one with which sparse products are faster than dense ones.
const MIN_VALUES_PER_NONZERO: usize = 8;

/// Values tested at a time.
const CHUNK: usize = 8;

/// Nonzero values of some observations, sample by sample.
#[derive(Clone, Debug, Default)]
pub struct Nonzeros {
    /// Feature indices and values.
    entries: Vec<(u32, f32)>,
    /// End of each sample's entries.
    ends: Vec<usize>,
    /// Whether sparse products are worthwhile.
    is_worthwhile: bool,
}

impl Nonzeros {
    /// Lists the nonzero values of `obs`, rows of `stride` values, unless there are too many.
    pub fn list(&mut self, obs: Rows, stride: usize) {
        self.entries.clear();
        self.ends.clear();
        self.is_worthwhile = stride >= MIN_SPARSE_FEATURES
            && list_nonzeros(obs, stride, &mut self.entries, &mut self.ends);
    }

    /// Whether the sparse products are faster than dense ones. If false, they must not be used.
    pub fn is_worthwhile(&self) -> bool {
        self.is_worthwhile
    }

    /// Entries of each sample.
    #[inline(always)]
    fn samples(&self) -> impl Iterator<Item = &[(u32, f32)]> {
        debug_assert!(self.is_worthwhile, "not all nonzero values are listed");
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.entries[start..*end])
    }
}

/// Lists the nonzero values of `obs`, and returns whether there are few enough for sparse products.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn list_nonzeros(
    obs: Rows,
    stride: usize,
    entries: &mut Vec<(u32, f32)>,
    ends: &mut Vec<usize>,
) -> bool {
    let max_entries = obs.starts.len() * stride / MIN_VALUES_PER_NONZERO;
    for start in obs.starts {
        let row = &obs.values[*start..*start + stride];
        let mut add = |feature: usize, x: f32| {
            if x != 0.0 {
                entries.push((feature as u32, x));
            }
        };
        let (chunks, rest) = row.as_chunks::<CHUNK>();
        for (c, chunk) in chunks.iter().enumerate() {
            if has_nonzero(chunk) {
                chunk.iter().enumerate().for_each(|(i, x)| add(c * CHUNK + i, *x));
            }
        }
        rest.iter().enumerate().for_each(|(i, x)| add(chunks.len() * CHUNK + i, *x));
        if entries.len() > max_entries {
            return false;
        }
        ends.push(entries.len());
    }
    true
}

/// Computes `outputs = bias + obs weight`, `[samples, columns]`, clamped at 0 if `is_relu`; `weight` is
/// `[features, columns]`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn multiply(obs: &Nonzeros, weight: &[f32], bias: &[f32], outputs: &mut [f32], is_relu: bool) {
    let columns = bias.len();
    for (entries, outputs) in obs.samples().zip(outputs.chunks_exact_mut(columns)) {
        outputs.copy_from_slice(bias);
        for (feature, x) in entries {
            add(*x, &weight[*feature as usize * columns..][..columns], outputs);
        }
        if is_relu {
            outputs.iter_mut().for_each(|x| *x = at_least(0.0, *x));
        }
    }
}

/// Computes `gradient += obs^T d_outputs`, where `gradient` is `[features, columns]` and `d_outputs` `[samples,
/// columns]`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub fn add_gradient(obs: &Nonzeros, d_outputs: &[f32], gradient: &mut [f32], columns: usize) {
    for (entries, d_outputs) in obs.samples().zip(d_outputs.chunks_exact(columns)) {
        for (feature, x) in entries {
            add(*x, d_outputs, &mut gradient[*feature as usize * columns..][..columns]);
        }
    }
}

/// Computes `sums += x * values`.
#[inline(always)]
fn add(x: f32, values: &[f32], sums: &mut [f32]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum = mul_add(x, *value, *sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of 65 values with the given nonzero ones.
    fn board(samples: usize, cells: &[(usize, usize, f32)]) -> Vec<f32> {
        let mut obs = vec![0.0; samples * 65];
        cells.iter().for_each(|(sample, feature, x)| obs[sample * 65 + feature] = *x);
        obs
    }

    #[test]
    fn products_are_those_of_all_numbers() {
        let obs = board(3, &[(0, 0, 2.0), (0, 64, -1.0), (2, 17, 0.5), (2, 16, f32::MIN_POSITIVE)]);
        let mut nonzeros = Nonzeros::default();
        nonzeros.list(Rows { values: &obs, starts: &[0, 65, 130] }, 65);
        assert!(nonzeros.is_worthwhile());
        assert_eq!(nonzeros.samples().map(<[_]>::len).collect::<Vec<_>>(), [2, 0, 2]);
        let noise = |i: usize| (i as f32 * 0.37).sin();
        let weight: Vec<f32> = (0..65 * 16).map(noise).collect();
        let (bias, d_outputs) = (&weight[5..21], &weight[100..148]);
        let mut outputs = vec![f32::NAN; 3 * 16];
        multiply(&nonzeros, &weight, bias, &mut outputs, false);
        let mut rectified = outputs.clone();
        multiply(&nonzeros, &weight, bias, &mut rectified, true);
        let mut gradient = weight.clone();
        add_gradient(&nonzeros, d_outputs, &mut gradient, 16);
        for j in 0..16 {
            for s in 0..3 {
                let sum: f32 = (0..65).map(|i| obs[s * 65 + i] * weight[i * 16 + j]).sum();
                assert!((outputs[s * 16 + j] - bias[j] - sum).abs() < 1e-6);
                assert_eq!(rectified[s * 16 + j], outputs[s * 16 + j].max(0.0));
            }
            for i in 0..65 {
                let sum: f32 = (0..3).map(|s| obs[s * 65 + i] * d_outputs[s * 16 + j]).sum();
                assert!((gradient[i * 16 + j] - weight[i * 16 + j] - sum).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn sparse_products_are_chosen_only_where_they_pay() {
        let is_worthwhile = |obs: &[f32], stride: usize| {
            let mut nonzeros = Nonzeros::default();
            let starts: Vec<usize> = (0..obs.len()).step_by(stride).collect();
            nonzeros.list(Rows { values: obs, starts: &starts }, stride);
            nonzeros.is_worthwhile()
        };
        assert!(!is_worthwhile(&[0.0; 3 * (MIN_SPARSE_FEATURES - 1)], MIN_SPARSE_FEATURES - 1));
        let cells = |count| (0..count).map(|i| (i % 2, 2 * i, 1.0)).collect::<Vec<_>>();
        assert!(is_worthwhile(&board(2, &cells(16)), 65), "16 of 130");
        assert!(!is_worthwhile(&board(2, &cells(17)), 65), "17 of 130");
    }

    #[test]
    fn invalid_numbers_are_listed() {
        let mut nonzeros = Nonzeros::default();
        let obs = board(2, &[(1, 3, f32::NAN)]);
        nonzeros.list(Rows { values: &obs, starts: &[0, 65] }, 65);
        assert_eq!(nonzeros.samples().map(<[_]>::len).collect::<Vec<_>>(), [0, 1]);
    }
}
