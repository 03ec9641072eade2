//! The multi-layer perceptron on the CPU's vector units.
//!
//! [`LANES`] games go through the network side by side, one in each lane. A lane's result depends on
//! nothing but its own observation, so neither the order of the games nor the number of threads
//! changes it. Plain loops are compiled for several instruction sets, and the best that the machine
//! has is taken at run time.

use super::Mlp;
use super::math::{any, at_least, exp, ln, mul_add, tanh};
use crate::config::Activation;
use burn::cubecl::future::block_on;
use burn::module::Param;
use burn::tensor::Tensor;
use multiversion::multiversion;

/// Games that go through the network together.
pub const LANES: usize = 16;

/// One number for each of [`LANES`] games.
pub type Lanes = [f32; LANES];

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
    active: Option<Vec<usize>>,
}

/// So many features are probably a board, most of whose cells are empty: what is 0 is left out.
pub(crate) const MANY_FEATURES: usize = 64;

impl Scratch {
    /// The features that were not 0 in some lane of the last observations, in ascending order; `None`
    /// for a policy of few features, where nobody looks.
    pub fn active(&self) -> Option<&[usize]> {
        self.active.as_deref()
    }
}

impl NativeMlp {
    /// Copies the weights. On a device this reads them back and waits for them.
    pub fn new(mlp: &Mlp) -> Self {
        block_on(Self::new_async(mlp))
    }

    /// As [`NativeMlp::new`], where nothing can be waited for.
    ///
    /// # Panics
    /// If the device fails.
    pub async fn new_async(mlp: &Mlp) -> Self {
        async fn floats<const D: usize>(param: &Param<Tensor<D>>) -> Vec<f32> {
            let data = param.val().without_autodiff().into_data_async().await;
            let data = data.unwrap_or_else(|error| panic!("the device failed: {error:?}"));
            data.try_into_vec().expect("policies hold f32 parameters")
        }
        let mut layers = Vec::new();
        for linear in mlp.layers() {
            let [inputs, outputs] = linear.weight.dims();
            let bias = match &linear.bias {
                Some(bias) => floats(bias).await,
                None => vec![0.0; outputs],
            };
            layers.push(Dense { inputs, outputs, weight: floats(&linear.weight).await, bias });
        }
        Self { layers, activation: mlp.activation() }
    }

    /// From the layers' widths, features and actions included, and parameters in the order of
    /// [`flatten`](super::flatten): layer by layer weights `[inputs, outputs]`, then biases.
    ///
    /// # Panics
    /// If the number of parameters is another.
    pub fn from_params(widths: &[usize], activation: Activation, params: &[f32]) -> Self {
        let mut rest = params;
        let mut take = |count: usize| {
            let (taken, left) = rest.split_at(count);
            rest = left;
            taken.to_vec()
        };
        let layers = widths.windows(2).map(|pair| {
            let (inputs, outputs) = (pair[0], pair[1]);
            Dense { inputs, outputs, weight: take(inputs * outputs), bias: take(outputs) }
        });
        let layers = layers.collect();
        assert!(rest.is_empty(), "params: [num_params]");
        Self { layers, activation }
    }

    /// The number of features.
    pub fn num_features(&self) -> usize {
        self.layers[0].inputs
    }

    /// The number of actions.
    pub fn num_actions(&self) -> usize {
        self.layers[self.layers.len() - 1].outputs
    }

    /// The number of parameters.
    pub fn num_params(&self) -> usize {
        self.layers.iter().map(|layer| layer.weight.len() + layer.bias.len()).sum()
    }

    /// Room for the activations of one thread.
    pub fn scratch(&self) -> Scratch {
        let widest = self.layers.iter().map(|l| l.outputs).max().unwrap_or(0);
        let room = || vec![[0.0; LANES]; widest];
        let active = (self.num_features() >= MANY_FEATURES).then(Vec::new);
        Scratch { front: room(), back: room(), active }
    }

    /// Logits, `num_actions` lanes, of observations, `num_features` lanes.
    pub fn logits<'a>(&self, obs: &[Lanes], scratch: &'a mut Scratch) -> &'a [Lanes] {
        assert_eq!(obs.len(), self.num_features(), "obs: [num_features][LANES]");
        let Scratch { front, back, active } = scratch;
        let last = self.layers.len() - 1;
        for (i, layer) in self.layers.iter().enumerate() {
            let Dense { weight, bias, .. } = layer;
            let output = &mut front[..layer.outputs];
            let rectified = i < last && self.activation == Activation::Relu;
            match active {
                Some(active) if i == 0 => {
                    find_active(obs, active);
                    sparse(weight, bias, obs, active, output, rectified);
                }
                _ => {
                    let input = if i == 0 { obs } else { &back[..layer.inputs] };
                    dense(weight, bias, input, output, rectified);
                }
            }
            if i < last {
                activate(self.activation, output);
            }
            std::mem::swap(front, back);
        }
        &back[..self.num_actions()]
    }
}

/// Draws an action for each lane by the numbers `u`, as [`sample`](super::sample) does; gives their
/// log-probabilities too.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
pub(crate) fn sample_lanes(
    logits: &[Lanes],
    u: &Lanes,
    actions: &mut [u32; LANES],
    logprobs: &mut Lanes,
) {
    let mut max = logits[0];
    for logits in &logits[1..] {
        for (max, z) in max.iter_mut().zip(logits) {
            *max = max.max(*z);
        }
    }
    let mut total = [0.0f32; LANES];
    for logits in logits {
        for lane in 0..LANES {
            total[lane] += exp(logits[lane] - max[lane]);
        }
    }
    let mut sum = [0.0f32; LANES];
    *actions = [0; LANES];
    for logits in logits {
        for lane in 0..LANES {
            sum[lane] += exp(logits[lane] - max[lane]);
            actions[lane] += u32::from(sum[lane] <= u[lane] * total[lane]);
        }
    }
    let last = logits.len() as u32 - 1;
    let mut chosen = [0.0f32; LANES];
    for (action, logits) in logits.iter().enumerate() {
        // A copy, so that it is read whether it is chosen or not.
        let logits = *logits;
        for lane in 0..LANES {
            let hit = actions[lane].min(last) == action as u32;
            chosen[lane] = if hit { logits[lane] } else { chosen[lane] };
        }
    }
    for lane in 0..LANES {
        actions[lane] = actions[lane].min(last);
        logprobs[lane] = chosen[lane] - max[lane] - ln(total[lane]);
    }
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

/// `output[j] = bias[j] + sum over i of weight[i, j] * input[i]`, summed in the order of `i`; 0 where
/// it would be negative, if it shall be `rectified`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn dense(weight: &[f32], bias: &[f32], input: &[Lanes], output: &mut [Lanes], rectified: bool) {
    let outputs = output.len();
    all_tiles(bias, output, rectified, || input.iter().zip(weight.chunks_exact(outputs)));
}

/// As [`dense`], of those inputs alone that are `active`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn sparse(
    weight: &[f32],
    bias: &[f32],
    input: &[Lanes],
    active: &[usize],
    output: &mut [Lanes],
    rectified: bool,
) {
    let outputs = output.len();
    let row = |i: &usize| (&input[*i], &weight[i * outputs..(i + 1) * outputs]);
    all_tiles(bias, output, rectified, || active.iter().map(row));
}

/// Puts the inputs that are not 0 in some lane into `active`.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn find_active(input: &[Lanes], active: &mut Vec<usize>) {
    active.clear();
    for (i, lanes) in input.iter().enumerate() {
        if any(lanes) {
            active.push(i);
        }
    }
}

/// Fills `output` from the inputs that `rows` gives, each with its weights `[outputs]`.
#[inline(always)]
fn all_tiles<'a, I>(bias: &[f32], output: &mut [Lanes], rectified: bool, rows: impl Fn() -> I)
where
    I: Iterator<Item = (&'a Lanes, &'a [f32])>,
{
    let floor = if rectified { 0.0 } else { f32::NEG_INFINITY };
    // As many independent sums as 16 registers hold hide the latency of a multiply-add.
    let j = tiles::<6, I>(bias, output, floor, 0, &rows);
    let j = tiles::<4, I>(bias, output, floor, j, &rows);
    let j = tiles::<3, I>(bias, output, floor, j, &rows);
    let j = tiles::<2, I>(bias, output, floor, j, &rows);
    tiles::<1, I>(bias, output, floor, j, &rows);
}

/// The outputs from `j` on, `floor` at least, `N` at a time; gives the first that is left.
#[inline(always)]
fn tiles<'a, const N: usize, I>(
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
        let mut sums = [[0.0f32; LANES]; N];
        for (sum, b) in sums.iter_mut().zip(&bias[j..j + N]) {
            *sum = [*b; LANES];
        }
        for (x, row) in rows() {
            for (sum, w) in sums.iter_mut().zip(&row[j..j + N]) {
                for (s, x) in sum.iter_mut().zip(x) {
                    *s = mul_add(*w, *x, *s);
                }
            }
        }
        for (output, sum) in output[j..j + N].as_flattened_mut().iter_mut().zip(sums.as_flattened())
        {
            *output = at_least(floor, *sum);
        }
        j += N;
    }
    j
}

/// Applies the activation in place.
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn activate(activation: Activation, values: &mut [Lanes]) {
    let values = values.as_flattened_mut();
    match activation {
        // Rectified as it was stored.
        Activation::Relu => {}
        Activation::Tanh => values.iter_mut().for_each(|x| *x = tanh(*x)),
        Activation::Silu => values.iter_mut().for_each(|x| *x /= 1.0 + exp(-*x)),
        Activation::Gelu => values.iter_mut().for_each(|x| {
            // sqrt(2 / pi)
            let inner = 0.797_884_6 * (*x + 0.044_715 * *x * *x * *x);
            *x *= 0.5 * (1.0 + tanh(inner));
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PolicyConfig;
    use crate::model::{Policy, flatten, sample};
    use burn::tensor::{Device, TensorData};

    #[test]
    fn lanes_are_sampled_as_one_by_one() {
        for actions in [1, 2, 3, 7] {
            for round in 0..500 {
                let draw = |i: usize| ((round * 131 + i * 17) as f32 * 0.734).sin() * 4.0;
                let logits: Vec<Lanes> =
                    (0..actions).map(|a| std::array::from_fn(|l| draw(a * LANES + l))).collect();
                let u: Lanes = std::array::from_fn(|l| (draw(900 + l) * 0.125 + 0.5).fract());
                let (mut picked, mut logprobs) = ([0; LANES], [0.0; LANES]);
                sample_lanes(&logits, &u, &mut picked, &mut logprobs);
                for lane in 0..LANES {
                    let alone = sample(logits.iter().map(|l| l[lane]), u[lane]);
                    assert_eq!(picked[lane], alone.action);
                    assert!((logprobs[lane] - alone.logprob).abs() < 1e-5);
                }
            }
        }
    }

    #[test]
    fn features_that_are_0_everywhere_make_no_difference() {
        let params: Vec<f32> =
            (0..70 * 21 + 21 + 21 * 3 + 3).map(|i| (i as f32 * 0.71).sin()).collect();
        let policy = NativeMlp::from_params(&[70, 21, 3], Activation::Tanh, &params);
        let mut scratch = policy.scratch();
        for cells in [&[][..], &[0], &[3, 4, 66], &[69]] {
            let mut obs = vec![[0.0; LANES]; 70];
            for (lane, cell) in cells.iter().enumerate() {
                obs[*cell][5 * lane] = 1.5 - lane as f32;
            }
            let got = policy.logits(&obs, &mut scratch).to_vec();
            assert_eq!(scratch.active(), Some(cells));
            // What is left of the first layer is a policy of fewer features.
            let Dense { outputs, weight, bias, .. } = &policy.layers[0];
            let rows = cells.iter().flat_map(|cell| &weight[cell * outputs..(cell + 1) * outputs]);
            let fewer = Dense {
                inputs: cells.len(),
                outputs: *outputs,
                weight: rows.copied().collect(),
                bias: bias.clone(),
            };
            let fewer = NativeMlp {
                layers: vec![fewer, policy.layers[1].clone()],
                activation: Activation::Tanh,
            };
            let obs: Vec<Lanes> = cells.iter().map(|cell| obs[*cell]).collect();
            let mut scratch = fewer.scratch();
            assert_eq!(fewer.logits(&obs, &mut scratch), got);
            assert_eq!(scratch.active(), None);
        }
    }

    #[test]
    fn native_and_burn_give_the_same_logits() {
        let device = Device::flex();
        for (features, hidden, actions) in [
            (10, vec![64, 64], 3),
            (4, vec![17], 2),
            (7, vec![128, 5], 6),
            (1, vec![1], 1),
            (MANY_FEATURES, vec![19], 3),
        ] {
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
                let widths: Vec<usize> =
                    [features].into_iter().chain(hidden.clone()).chain([actions]).collect();
                let params: Vec<f32> = flatten(&mlp).into_data().try_into_vec().unwrap();
                let same = NativeMlp::from_params(&widths, activation, &params);
                assert_eq!(
                    same.logits(&lanes, &mut same.scratch()),
                    native.logits(&lanes, &mut native.scratch())
                );
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
