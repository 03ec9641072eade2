//! Linear layers and activations on the CPU's vector units.
//!
//! A layer processes [`LANES`] games side by side, one in each lane. A lane's result depends on its own inputs alone,
//! so neither the order of the games nor the number of threads changes it. The loops are compiled for several
//! instruction sets, of which the best is chosen at run time.

use super::lanes::{LANES, Lanes};
use crate::math::Activation;
use crate::math::activation::{self, for_activation};
use crate::math::has_nonzero;
#[cfg(not(target_family = "wasm"))]
use crate::math::{at_least, mul_add};
use multiversion::multiversion;

/// A linear layer: weights `[inputs, outputs]`, row-major.
#[derive(Clone, Debug)]
pub(super) struct Dense {
    pub inputs: usize,
    pub outputs: usize,
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
}

impl Dense {
    /// Takes a layer off the front of `params`: weights, then biases.
    pub fn take(params: &mut &[f32], inputs: usize, outputs: usize) -> Self {
        let mut take = |count: usize| {
            let (taken, rest) = params.split_at(count);
            *params = rest;
            taken.to_vec()
        };
        Self { inputs, outputs, weight: take(inputs * outputs), bias: take(outputs) }
    }

    /// Fills `output` as [`apply_dense`].
    pub fn apply(&self, input: &[Lanes], output: &mut [Lanes]) {
        apply_dense(&self.weight, &self.bias, input, output, NO_FLOOR);
    }
}

/// The floor of outputs that are not rectified.
const NO_FLOOR: f32 = f32::NEG_INFINITY;

/// The number of features from which on zeros are skipped: an observation as long as this is probably a board, with
/// mostly empty cells.
pub(crate) const MIN_SPARSE_FEATURES: usize = 64;

/// Activations of one thread.
#[derive(Clone, Debug)]
pub struct MlpScratch {
    front: Vec<Lanes>,
    back: Vec<Lanes>,
    /// Features of the last observations that were not 0 in some lane; `None` if zeros are not skipped.
    pub(super) active_features: Option<Vec<usize>>,
}

impl MlpScratch {
    /// Allocates buffers for the results of these layers.
    pub(super) fn new(layers: &[Dense]) -> Self {
        let widest = layers.iter().map(|layer| layer.outputs).max().unwrap_or(0);
        let zeros = || vec![[0.0; LANES]; widest];
        let active_features = (layers[0].inputs >= MIN_SPARSE_FEATURES).then(Vec::new);
        Self { front: zeros(), back: zeros(), active_features }
    }
}

/// Forward pass through a stack of layers, with an activation after each but the last one.
pub(super) fn forward_stack<'a>(
    layers: &[Dense],
    activation: Activation,
    obs: &[Lanes],
    scratch: &'a mut MlpScratch,
) -> &'a [Lanes] {
    let MlpScratch { front, back, active_features } = scratch;
    let last = layers.len() - 1;
    for (i, layer) in layers.iter().enumerate() {
        let Dense { weight, bias, inputs, outputs } = layer;
        let output = &mut front[..*outputs];
        let floor = if i < last && activation == Activation::Relu { 0.0 } else { NO_FLOOR };
        match active_features {
            Some(active) if i == 0 => {
                find_active(obs, active);
                apply_sparse(weight, bias, obs, active, output, floor);
            }
            _ => {
                let input = if i == 0 { obs } else { &back[..*inputs] };
                apply_dense(weight, bias, input, output, floor);
            }
        }
        if i < last {
            activate(activation, output);
        }
        std::mem::swap(front, back);
    }
    &back[..layers[last].outputs]
}

/// Computes `output[j] = bias[j] + sum over i of weight[i, j] * input[i]`, summed in the order of `i` and clamped at
/// `floor`: at 0 by a ReLU.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn apply_dense(weight: &[f32], bias: &[f32], input: &[Lanes], output: &mut [Lanes], floor: f32) {
    let outputs = output.len();
    fill_output(bias, output, floor, || input.iter().zip(weight.chunks_exact(outputs)));
}

/// Computes [`apply_dense`] over the `active` inputs alone; all others are 0.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn apply_sparse(
    weight: &[f32],
    bias: &[f32],
    input: &[Lanes],
    active: &[usize],
    output: &mut [Lanes],
    floor: f32,
) {
    let outputs = output.len();
    let row = |i: &usize| (&input[*i], &weight[i * outputs..(i + 1) * outputs]);
    fill_output(bias, output, floor, || active.iter().map(row));
}

/// Collects the inputs that are not 0 in some lane into `active`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn find_active(input: &[Lanes], active: &mut Vec<usize>) {
    active.clear();
    for (i, lanes) in input.iter().enumerate() {
        if has_nonzero(lanes) {
            active.push(i);
        }
    }
}

/// Fills `output` from `rows`: pairs of an input and its weights `[outputs]`.
#[inline(always)]
fn fill_output<'a, I>(bias: &[f32], output: &mut [Lanes], floor: f32, rows: impl Fn() -> I)
where
    I: Iterator<Item = (&'a Lanes, &'a [f32])>,
{
    // As many independent sums as fit in 16 registers hide the latency of a multiply-add. A register of
    // WebAssembly has four numbers.
    #[cfg(not(target_family = "wasm"))]
    let j = {
        let j = fill_tiles::<6, I>(bias, output, floor, 0, &rows);
        let j = fill_tiles::<4, I>(bias, output, floor, j, &rows);
        fill_tiles::<3, I>(bias, output, floor, j, &rows)
    };
    #[cfg(target_family = "wasm")]
    let j = 0;
    let j = fill_tiles::<2, I>(bias, output, floor, j, &rows);
    fill_tiles::<1, I>(bias, output, floor, j, &rows);
}

/// Computes outputs from `j` on in tiles of `N`, clamped at `floor`; returns the index of the first one left over.
#[inline(always)]
fn fill_tiles<'a, const N: usize, I>(
    bias: &[f32],
    output: &mut [Lanes],
    floor: f32,
    mut j: usize,
    rows: &impl Fn() -> I,
) -> usize
where
    I: Iterator<Item = (&'a Lanes, &'a [f32])>,
{
    let outputs = output.len();
    while outputs - j >= N {
        // Arrays of constant length need no bounds checks.
        let at = |row: &'a [f32]| row[j..].first_chunk::<N>().expect("N outputs are left");
        let bias = bias[j..].first_chunk::<N>().expect("N outputs are left");
        let output = output[j..].first_chunk_mut::<N>().expect("N outputs are left");
        fill_tile::<N>(bias, output, floor, rows().map(|(x, row)| (x, at(row))));
        j += N;
    }
    j
}

/// Computes a tile: `N` outputs from rows of `N` weights.
#[cfg(not(target_family = "wasm"))]
#[inline(always)]
fn fill_tile<'a, const N: usize>(
    bias: &[f32; N],
    output: &mut [Lanes; N],
    floor: f32,
    rows: impl Iterator<Item = (&'a Lanes, &'a [f32; N])>,
) {
    let mut sums = [[0.0f32; LANES]; N];
    for (sum, b) in sums.iter_mut().zip(bias) {
        *sum = [*b; LANES];
    }
    for (x, row) in rows {
        for (sum, w) in sums.iter_mut().zip(row) {
            for (s, x) in sum.iter_mut().zip(x) {
                *s = mul_add(*w, *x, *s);
            }
        }
    }
    for (output, sum) in output.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
        *output = at_least(floor, *sum);
    }
}

/// Computes a tile with explicit vectors for WebAssembly.
#[cfg(target_family = "wasm")]
#[inline(always)]
fn fill_tile<'a, const N: usize>(
    bias: &[f32; N],
    output: &mut [Lanes; N],
    floor: f32,
    rows: impl Iterator<Item = (&'a Lanes, &'a [f32; N])>,
) {
    use crate::math::quads::{QUAD, Quad, at_least, load, mul_add, splat, store};
    const QUADS: usize = LANES / QUAD;
    let mut sums: [[Quad; QUADS]; N] = std::array::from_fn(|n| [splat(bias[n]); QUADS]);
    for (x, row) in rows {
        let x: [Quad; QUADS] = std::array::from_fn(|q| load(&x[q * QUAD..]));
        for (sums, w) in sums.iter_mut().zip(row) {
            let w = splat(*w);
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = mul_add(w, x, *sum);
            }
        }
    }
    let quads = output.as_flattened_mut().chunks_exact_mut(QUAD);
    for (output, sum) in quads.zip(sums.as_flattened()) {
        store(at_least(floor, *sum), output);
    }
}

/// Applies the activation in place.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn activate(kind: Activation, values: &mut [Lanes]) {
    // `apply_dense` has applied the ReLU.
    if kind == Activation::Relu {
        return;
    }
    for_activation!(kind, KNOWN => {
        values.as_flattened_mut().iter_mut().for_each(|x| *x = activation::activate(*x, KNOWN));
    });
}
