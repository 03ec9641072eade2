//! The multi-layer perceptron on the CPU's vector units.
//!
//! [`LANES`] games go through the network side by side, one in each lane. A lane's result depends on
//! nothing but its own observation, so neither the order of the games nor the number of threads
//! changes it. Plain loops are compiled for several instruction sets, and the best that the machine
//! has is taken at run time.

use super::{Mlp, Sampled, sample};
use crate::config::Activation;
use multiversion::multiversion;

/// Games that go through the network together.
pub const LANES: usize = 16;

/// One number for each of [`LANES`] games.
pub type Lanes = [f32; LANES];

/// Outputs that are summed up at a time: as many independent sums as hide the latency of a
/// multiply-add.
const TILE: usize = 4;

/// A copy of an [`Mlp`]'s weights for evaluation on the CPU.
#[derive(Clone, Debug)]
pub struct NativeMlp {
    layers: Vec<Dense>,
    activation: Activation,
}

/// A layer: weights `[inputs, outputs]`, row-major.
#[derive(Clone, Debug)]
struct Dense {
    inputs: usize,
    outputs: usize,
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// Room for the activations of one thread.
#[derive(Clone, Debug)]
pub struct Scratch {
    front: Vec<Lanes>,
    back: Vec<Lanes>,
}

impl NativeMlp {
    /// Copies the weights. On a device this reads them back.
    pub fn new(mlp: &Mlp) -> Self {
        let floats = |data: burn::tensor::TensorData| {
            data.try_into_vec::<f32>().expect("policies hold f32 parameters")
        };
        let layers = mlp
            .layers()
            .iter()
            .map(|linear| {
                let [inputs, outputs] = linear.weight.dims();
                let bias = linear.bias.as_ref().map_or(vec![0.0; outputs], |bias| {
                    floats(bias.val().without_autodiff().into_data())
                });
                let weight = floats(linear.weight.val().without_autodiff().into_data());
                Dense { inputs, outputs, weight, bias }
            })
            .collect();
        Self { layers, activation: mlp.activation() }
    }

    /// The number of features.
    pub fn num_features(&self) -> usize {
        self.layers[0].inputs
    }

    /// The number of actions.
    pub fn num_actions(&self) -> usize {
        self.layers[self.layers.len() - 1].outputs
    }

    /// Room for the activations of one thread.
    pub fn scratch(&self) -> Scratch {
        let widest = self.layers.iter().map(|l| l.outputs).max().unwrap_or(0);
        Scratch { front: vec![[0.0; LANES]; widest], back: vec![[0.0; LANES]; widest] }
    }

    /// Logits, `num_actions` lanes, of observations, `num_features` lanes.
    pub fn logits<'a>(&self, obs: &[Lanes], scratch: &'a mut Scratch) -> &'a [Lanes] {
        assert_eq!(obs.len(), self.num_features(), "obs: [num_features][LANES]");
        let Scratch { front, back } = scratch;
        let last = self.layers.len() - 1;
        for (i, layer) in self.layers.iter().enumerate() {
            let input = if i == 0 { obs } else { &back[..layer.inputs] };
            let output = &mut front[..layer.outputs];
            dense(&layer.weight, &layer.bias, input, output);
            if i < last {
                activate(self.activation, output);
            }
            std::mem::swap(front, back);
        }
        &back[..self.num_actions()]
    }
}

/// Draws the action of one lane; see [`sample`].
pub(crate) fn sample_lane(logits: &[Lanes], lane: usize, u: f32) -> Sampled {
    sample(logits.iter().map(|l| l[lane]), u)
}

/// The most likely action of one lane, the first of equals.
pub(crate) fn argmax_lane(logits: &[Lanes], lane: usize) -> u32 {
    let mut best = 0;
    for (action, logit) in logits.iter().enumerate() {
        if logit[lane] > logits[best][lane] {
            best = action;
        }
    }
    best as u32
}

/// `a * b + c`, in one rounding where the instruction set has that: where it hasn't, the standard
/// library's `mul_add` would be a slow call.
#[inline(always)]
pub(crate) fn mul_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// `output[j] = bias[j] + sum over i of weight[i, j] * input[i]`, summed in the order of `i`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn dense(weight: &[f32], bias: &[f32], input: &[Lanes], output: &mut [Lanes]) {
    let outputs = output.len();
    let tiles = outputs / TILE;
    for tile in 0..tiles {
        let j = tile * TILE;
        let mut sums = [[0.0f32; LANES]; TILE];
        for (sum, b) in sums.iter_mut().zip(&bias[j..j + TILE]) {
            *sum = [*b; LANES];
        }
        for (x, row) in input.iter().zip(weight.chunks_exact(outputs)) {
            for (sum, w) in sums.iter_mut().zip(&row[j..j + TILE]) {
                for (s, x) in sum.iter_mut().zip(x) {
                    *s = mul_add(*w, *x, *s);
                }
            }
        }
        output[j..j + TILE].copy_from_slice(&sums);
    }
    for j in tiles * TILE..outputs {
        let mut sum = [bias[j]; LANES];
        for (x, row) in input.iter().zip(weight.chunks_exact(outputs)) {
            for (s, x) in sum.iter_mut().zip(x) {
                *s = mul_add(row[j], *x, *s);
            }
        }
        output[j] = sum;
    }
}

/// Applies the activation in place.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn activate(activation: Activation, values: &mut [Lanes]) {
    let values = values.as_flattened_mut();
    match activation {
        Activation::Relu => values.iter_mut().for_each(|x| *x = x.max(0.0)),
        Activation::Tanh => values.iter_mut().for_each(|x| *x = tanh(*x)),
        Activation::Silu => values.iter_mut().for_each(|x| *x /= 1.0 + exp(-*x)),
        Activation::Gelu => values.iter_mut().for_each(|x| {
            // sqrt(2 / pi)
            let inner = 0.797_884_6 * (*x + 0.044_715 * *x * *x * *x);
            *x *= 0.5 * (1.0 + tanh(inner));
        }),
    }
}

/// The hyperbolic tangent, by [`exp`].
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// The exponential, within 2 units in the last place over the finite range, in operations that
/// vectorise: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (coefficients of Cephes' `expf`).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    // Adding 1.5 * 2^23 rounds to an integer in the low bits.
    let shifted = x * std::f32::consts::LOG2_E + 12_582_912.0;
    let n = shifted - 12_582_912.0;
    let r = mul_add(n, -0.693_359_4, x);
    let r = mul_add(n, 2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = mul_add(p, r, c);
    }
    let p = mul_add(p * r, r, r) + 1.0;
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// The natural logarithm of a positive, finite, normal number, within 2 units in the last place or
/// 1e-7, in operations that vectorise: the exponent times ln 2, and a polynomial of the mantissa on
/// [sqrt(1/2), sqrt(2)] (coefficients of Cephes' `logf`).
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    // sqrt(1/2) is 0x3f3504f3: with that taken away, the upper bits are the exponent.
    let bits = x.to_bits().wrapping_sub(0x3f35_04f3) as i32;
    let n = (bits >> 23) as f32;
    let r = f32::from_bits(((bits & 0x007f_ffff) + 0x3f35_04f3) as u32) - 1.0;
    let mut p = 7.037_683_6e-2f32;
    for c in [
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_4e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = mul_add(p, r, c);
    }
    let square = r * r;
    let p = mul_add(n, -2.121_944_4e-4, p * r * square);
    let p = mul_add(square, -0.5, p);
    mul_add(n, 0.693_359_4, r + p)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PolicyConfig;
    use crate::policy::Policy;
    use burn::tensor::{Device, Tensor, TensorData};

    #[test]
    fn exp_and_tanh_match_double_precision() {
        for i in -8700..8800 {
            let x = i as f32 * 0.01;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 3e-7, "exp({x})");
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() < 3e-7, "tanh({x})");
        }
    }

    #[test]
    fn ln_matches_double_precision() {
        for i in 1..100_000 {
            let x = i as f32 * 0.001;
            let exact = f64::from(x).ln();
            let error = (f64::from(ln(x)) - exact).abs();
            assert!(error < 1e-7 + 2e-7 * exact.abs(), "ln({x}) is off by {error}");
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn native_and_burn_give_the_same_logits() {
        let device = Device::flex();
        for (features, hidden, actions) in
            [(10, vec![64, 64], 3), (4, vec![17], 2), (7, vec![128, 5], 6), (1, vec![1], 1)]
        {
            for activation in
                [Activation::Relu, Activation::Tanh, Activation::Silu, Activation::Gelu]
            {
                let config = PolicyConfig { hidden: hidden.clone(), activation };
                let mlp = Mlp::new(features, actions, &config, 3, &device);
                let obs: Vec<f32> =
                    (0..LANES * features).map(|i| (i as f32 * 0.37).sin() * 2.0).collect();
                let expected: Vec<f32> = mlp
                    .logits(Tensor::from_data(
                        TensorData::new(obs.clone(), [LANES, features]),
                        &device,
                    ))
                    .into_data()
                    .try_into_vec()
                    .unwrap();
                let lanes: Vec<Lanes> = (0..features)
                    .map(|f| std::array::from_fn(|lane| obs[lane * features + f]))
                    .collect();
                let native = NativeMlp::new(&mlp);
                let mut scratch = native.scratch();
                let logits = native.logits(&lanes, &mut scratch);
                for lane in 0..LANES {
                    for action in 0..actions {
                        let (got, want) = (logits[action][lane], expected[lane * actions + action]);
                        assert!(
                            (got - want).abs() < 1e-6 + 1e-5 * want.abs(),
                            "{hidden:?} {activation:?}: {got} instead of {want}"
                        );
                    }
                }
            }
        }
    }
}
