//! The gated recurrent network (Cho et al. 2014), as a Burn module.

use crate::math::Activation;
use crate::model::registry::mlp::{HEAD_GAIN, HIDDEN_GAIN, forward_hidden};
use crate::model::{Model, PolicyConfig};
use crate::nn::orthogonal::{linear_with_weight, orthogonal_linear, orthogonal_matrix};
use crate::nn::tensors::activation::tanh;
use crate::nn::tensors::products::ProductPrecision;
use crate::rng::draw;
use burn::module::{Module, Param};
use burn::nn::Linear;
use burn::tensor::{Device, Tensor, TensorData, activation};

/// The hidden layers of a perceptron, the last one recurrent, then action logits.
///
/// With the input `x` of the recurrent layer and its memory `h` (PyTorch's `torch.nn.GRU`, where the
/// reset gate is applied after the matrix product):
///
/// ```text
/// r = sigmoid(W_ir x + b_ir + W_hr h + b_hr)
/// z = sigmoid(W_iz x + b_iz + W_hz h + b_hz)
/// n = tanh(W_in x + b_in + r * (W_hn h + b_hn))
/// h' = (1 - z) * n + z * h
/// ```
#[derive(Module, Debug)]
pub struct Gru {
    encoder: Vec<Linear>,
    /// Input weights of the gates `r`, `z` and `n`, side by side.
    input_gates: Linear,
    /// Memory weights of the gates, in the same order.
    memory_gates: Linear,
    head: Linear,
    #[module(skip)]
    activation: Activation,
}

/// The longest time constant of a fresh network's neurons, in steps.
const MAX_TIME_CONSTANT: f64 = 64.0;

impl Gru {
    /// A network with fresh weights on `device`, the same for the same `key`: orthogonal, each gate by itself, with
    /// the gains of [`Mlp`](crate::model::Mlp) and 1 in the gates. Biases are 0, but for those of `z`, which give
    /// the neurons time constants of up to 64 steps (the "chrono initialization" of Tallec and Ollivier 2018, evenly
    /// spaced instead of drawn).
    pub fn new(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self {
        let widths = config.widths(num_features, num_actions);
        let num_encoder_layers = widths.len() - 3;
        let [inputs, size] = [widths[num_encoder_layers], widths[num_encoder_layers + 1]];
        let encoder = widths.windows(2).take(num_encoder_layers).enumerate().map(|(i, pair)| {
            orthogonal_linear(pair[0], pair[1], HIDDEN_GAIN, draw(key, i as u32), device)
        });
        let new_gates = |inputs: usize, key: u32| {
            let gates = [0, 1, 2].map(|gate| orthogonal_matrix(inputs, size, 1.0, draw(key, gate)));
            let rows = (0..inputs).flat_map(|i| {
                gates.iter().flat_map(move |gate| gate[i * size..(i + 1) * size].iter().copied())
            });
            linear_with_weight(rows.collect(), 3 * size, device)
        };
        let mut input_gates = new_gates(inputs, draw(key, num_encoder_layers as u32));
        let mut bias = vec![0.0; 3 * size];
        for (j, bias) in bias[size..2 * size].iter_mut().enumerate() {
            let time_constant = (j as f64 + 0.5) / size as f64 * MAX_TIME_CONSTANT;
            *bias = time_constant.max(1.0).ln() as f32;
        }
        let bias = TensorData::new(bias, [3 * size]);
        input_gates.bias = Some(Param::from_data(bias, device));
        Self {
            encoder: encoder.collect(),
            input_gates,
            memory_gates: new_gates(size, draw(key, num_encoder_layers as u32 + 1)),
            head: orthogonal_linear(
                size,
                num_actions,
                HEAD_GAIN,
                draw(key, num_encoder_layers as u32 + 2),
                device,
            ),
            activation: config.activation,
        }
    }

    /// The activation of the layers before the recurrent one.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Floats of memory for each game.
    pub fn memory_size(&self) -> usize {
        self.memory_gates.weight.dims()[0]
    }

    /// The widths of its layers, features and actions included.
    pub fn widths(&self) -> Vec<usize> {
        let inputs = self.encoder.iter().map(|layer| layer.weight.dims()[0]);
        let [input, _] = self.input_gates.weight.dims();
        let [size, actions] = self.head.weight.dims();
        inputs.chain([input, size, actions]).collect()
    }

    /// The recurrent layer's input, `[batch, inputs]`, of observations.
    fn encode(&self, obs: Tensor<2>) -> Tensor<2> {
        forward_hidden(&self.encoder, self.activation, obs)
    }

    /// The weights of the recurrent layer, gate by gate.
    fn cell(&self) -> Cell {
        let size = self.memory_size();
        let part = |layer: &Linear, gate: usize| {
            let bias = layer.bias.as_ref().expect("all layers have biases").val();
            Affine {
                weight: layer.weight.val().narrow(1, gate * size, size),
                bias: bias.narrow(0, gate * size, size).reshape([1, size]),
            }
        };
        Cell {
            input_weights: [0, 1, 2].map(|gate| part(&self.input_gates, gate)),
            memory_weights: [0, 1, 2].map(|gate| part(&self.memory_gates, gate)),
        }
    }
}

/// Weights `[inputs, memory_size]` and biases `[1, memory_size]` of a gate.
struct Affine {
    weight: Tensor<2>,
    bias: Tensor<2>,
}

/// The recurrent layer with its weights split by gate: once for a sequence, so that the backward pass does not
/// concatenate the gates at every step.
struct Cell {
    /// The gates' weights of the input, in the order `r`, `z`, `n`.
    input_weights: [Affine; 3],
    /// Memory weights of the gates, in the same order.
    memory_weights: [Affine; 3],
}

impl Cell {
    /// The memory after a step with input `x`.
    fn step(&self, x: Tensor<2>, memory: Tensor<2>) -> Tensor<2> {
        let product = |input: &Tensor<2>, layer: &Affine| {
            ProductPrecision::default().matmul(input.clone(), layer.weight.clone())
                + layer.bias.clone()
        };
        let products = |gate: usize| {
            (product(&x, &self.input_weights[gate]), product(&memory, &self.memory_weights[gate]))
        };
        let gate = |gate: usize| {
            let (of_input, of_memory) = products(gate);
            activation::sigmoid(of_input + of_memory)
        };
        let (reset, update) = (gate(0), gate(1));
        let (of_input, of_memory) = products(2);
        let new = tanh(of_input + reset * of_memory);
        (memory - new.clone()) * update + new
    }
}

impl Model for Gru {
    /// `[batch, memory_size]`.
    type Memory = Tensor<2>;

    fn initial_memory(&self, batch: usize, device: &Device) -> Tensor<2> {
        Tensor::zeros([batch, self.memory_size()], device)
    }

    fn step(&self, obs: Tensor<2>, memory: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let memory = self.cell().step(self.encode(obs), memory);
        (ProductPrecision::default().apply_linear(&self.head, memory.clone()), memory)
    }

    /// Steps one by one, and the head for all steps at once. Encoding all steps at once does not pay: the gradient of
    /// a slice costs as much as the gradient of the whole tensor.
    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, mut memory: Tensor<2>) -> Tensor<3> {
        let [num_steps, batch, _] = obs.dims();
        let cell = self.cell();
        let continues = -starts + 1.0;
        let mut memories = Vec::with_capacity(num_steps);
        for t in 0..num_steps {
            let obs = obs.clone().narrow(0, t, 1).squeeze_dim::<2>(0);
            let continues = continues.clone().narrow(0, t, 1).reshape([batch, 1]);
            memory = cell.step(self.encode(obs), memory * continues);
            memories.push(memory.clone());
        }
        let logits = ProductPrecision::default().apply_linear(&self.head, Tensor::cat(memories, 0));
        let num_actions = logits.dims()[1];
        logits.reshape([num_steps, batch, num_actions])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{flatten, reset, unflatten};
    use crate::nn::ops::check::doubles;

    /// A network with two hidden layers, and weights that make its memory move.
    fn gru(device: &Device) -> Gru {
        let config = PolicyConfig::gru(&[7, 5], Activation::Tanh);
        let gru = Gru::new(3, 4, &config, 1, device);
        let count = flatten(&gru).dims()[0];
        let params: Vec<f32> = (0..count).map(|i| (i as f32 * 0.731).sin() * 0.7).collect();
        unflatten(gru, &Tensor::from_data(TensorData::new(params, [count]), device))
    }

    /// Observations, starts and memory of 6 steps of 3 games.
    fn games(device: &Device) -> (Tensor<3>, Tensor<2>, Tensor<2>) {
        let wave = |count: usize, rate: f32| -> Vec<f32> {
            (0..count).map(|i| (i as f32 * rate).cos()).collect()
        };
        let mut starts = vec![0.0f32; 18];
        [0, 4, 8, 11, 13].into_iter().for_each(|i| starts[i] = 1.0);
        (
            Tensor::from_data(TensorData::new(wave(54, 1.3), [6, 3, 3]), device),
            Tensor::from_data(TensorData::new(starts, [6, 3]), device),
            Tensor::from_data(TensorData::new(wave(15, 0.9), [3, 5]), device),
        )
    }

    /// The logits by PyTorch's formula, number by number in f64.
    fn reference(params: &[f64], obs: &[f64], starts: &[f64], memory: &[f64]) -> Vec<f64> {
        let mut rest = params;
        let mut take = |count: usize| {
            let (taken, left) = rest.split_at(count);
            rest = left;
            taken
        };
        let (encoder, encoder_bias) = (take(21), take(7));
        let (input, input_bias) = (take(7 * 15), take(15));
        let (memory_weight, memory_bias) = (take(5 * 15), take(15));
        let (head, head_bias) = (take(20), take(4));
        let product = |weight: &[f64], bias: &[f64], x: &[f64], j: usize| {
            x.iter().enumerate().fold(bias[j], |sum, (i, x)| sum + x * weight[i * bias.len() + j])
        };
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let mut logits = vec![0.0; 6 * 3 * 4];
        for game in 0..3 {
            let mut h = memory[game * 5..][..5].to_vec();
            for t in 0..6 {
                if starts[t * 3 + game] == 1.0 {
                    h = vec![0.0; 5];
                }
                let seen = &obs[(t * 3 + game) * 3..][..3];
                let x: Vec<f64> =
                    (0..7).map(|j| product(encoder, encoder_bias, seen, j).tanh()).collect();
                let next = (0..5).map(|j| {
                    let sums = |j: usize| {
                        (
                            product(input, input_bias, &x, j),
                            product(memory_weight, memory_bias, &h, j),
                        )
                    };
                    let ((ir, hr), (iz, hz)) = (sums(j), sums(5 + j));
                    let (i_new, h_new) = sums(10 + j);
                    let (r, z) = (sigmoid(ir + hr), sigmoid(iz + hz));
                    (1.0 - z) * (i_new + r * h_new).tanh() + z * h[j]
                });
                h = next.collect();
                for a in 0..4 {
                    logits[(t * 3 + game) * 4 + a] = product(head, head_bias, &h, a);
                }
            }
        }
        logits
    }

    #[test]
    fn a_sequence_is_its_steps_and_pytorchs_formula() {
        let device = Device::flex();
        let (gru, (obs, starts, memory)) = (gru(&device), games(&device));
        let whole = gru.sequence(obs.clone(), starts.clone(), memory.clone());
        let (params, initial) = (doubles(flatten(&gru)), gru.initial_memory(3, &device));
        let want = reference(
            &params,
            &doubles(obs.clone()),
            &doubles(starts.clone()),
            &doubles(memory.clone()),
        );
        let mut remembered = memory;
        for (t, want) in want.chunks_exact(12).enumerate() {
            let starts = starts.clone().narrow(0, t, 1).reshape([3]);
            let seen = obs.clone().narrow(0, t, 1).reshape([3, 3]);
            let (logits, next) = gru.step(seen, reset(remembered, &initial, starts));
            remembered = next;
            let at_once = doubles(whole.clone().narrow(0, t, 1));
            for ((step, at_once), want) in doubles(logits).iter().zip(at_once).zip(want) {
                assert!((step - want).abs() < 1e-5, "step {t}: {step} instead of {want}");
                assert!((at_once - want).abs() < 1e-5, "step {t}: {at_once} instead of {want}");
            }
        }
    }
}
