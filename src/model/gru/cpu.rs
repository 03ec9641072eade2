//! The gated recurrent network on the CPU's vector units, for acting.
//!
//! [`LANES`] games go through the network side by side, one in each lane. A lane's result depends on its own
//! observations alone.

use crate::math::Activation;
use crate::math::{sigmoid, tanh};
use crate::model::dense::{Dense, activate, dense};
use crate::model::{Actor, LANES, Lanes};
use multiversion::multiversion;

/// A copy of a [`Gru`](super::Gru)'s weights for acting on the CPU.
#[derive(Clone, Debug)]
pub struct NativeGru {
    encoder: Vec<Dense>,
    input_gates: Dense,
    memory_gates: Dense,
    head: Dense,
    activation: Activation,
}

/// Activations of one thread.
#[derive(Clone, Debug)]
pub struct Scratch {
    front: Vec<Lanes>,
    back: Vec<Lanes>,
    own: Vec<Lanes>,
}

impl NativeGru {
    /// The network of these widths, features and actions included, with parameters in the order of
    /// [`flatten`](crate::model::flatten).
    ///
    /// # Panics
    /// If the number of parameters differs, or there is no hidden layer.
    pub fn from_params(widths: &[usize], activation: Activation, params: &[f32]) -> Self {
        let [encoder @ .., size, actions] = widths else {
            panic!("widths: of a hidden layer or more")
        };
        let mut rest = params;
        let encoder: Vec<Dense> =
            encoder.windows(2).map(|pair| Dense::take(&mut rest, pair[0], pair[1])).collect();
        let inputs = widths[encoder.len()];
        let network = Self {
            encoder,
            input_gates: Dense::take(&mut rest, inputs, 3 * size),
            memory_gates: Dense::take(&mut rest, *size, 3 * size),
            head: Dense::take(&mut rest, *size, *actions),
            activation,
        };
        assert!(rest.is_empty(), "params: [num_params]");
        network
    }
}

impl Actor for NativeGru {
    type Scratch = Scratch;

    fn num_features(&self) -> usize {
        self.encoder.first().unwrap_or(&self.input_gates).inputs
    }

    fn num_actions(&self) -> usize {
        self.head.outputs
    }

    fn memory_size(&self) -> usize {
        self.memory_gates.inputs
    }

    fn scratch(&self) -> Scratch {
        let layers = [&self.input_gates, &self.head];
        let widest = self.encoder.iter().chain(layers).map(|layer| layer.outputs).max();
        let room = || vec![[0.0; LANES]; widest.unwrap_or(0)];
        Scratch { front: room(), back: room(), own: room() }
    }

    fn act<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut Scratch,
    ) -> &'a [Lanes] {
        assert_eq!(obs.len(), self.num_features(), "obs: [num_features][LANES]");
        assert_eq!(memory.len(), self.memory_size(), "memory: [memory_size][LANES]");
        let Scratch { front, back, own } = scratch;
        for (i, layer) in self.encoder.iter().enumerate() {
            let input = if i == 0 { obs } else { &back[..layer.inputs] };
            let output = &mut front[..layer.outputs];
            dense(&layer.weight, &layer.bias, input, output, self.activation == Activation::Relu);
            activate(self.activation, output);
            std::mem::swap(front, back);
        }
        let gates = &self.input_gates;
        let input = if self.encoder.is_empty() { obs } else { &back[..gates.inputs] };
        dense(&gates.weight, &gates.bias, input, &mut front[..gates.outputs], false);
        let gates = &self.memory_gates;
        dense(&gates.weight, &gates.bias, memory, &mut own[..gates.outputs], false);
        remember(&front[..gates.outputs], &own[..gates.outputs], memory);
        dense(&self.head.weight, &self.head.bias, memory, &mut back[..self.head.outputs], false);
        &back[..self.head.outputs]
    }
}

/// The memory after a step, from what inputs and memory give to the gates (see [`Gru`](super::Gru)).
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn remember(inputs: &[Lanes], own: &[Lanes], memory: &mut [Lanes]) {
    let size = memory.len();
    for (j, memory) in memory.iter_mut().enumerate() {
        let (ir, iz, i_new) = (inputs[j], inputs[size + j], inputs[2 * size + j]);
        let (hr, hz, h_new) = (own[j], own[size + j], own[2 * size + j]);
        for lane in 0..LANES {
            let reset = sigmoid(ir[lane] + hr[lane]);
            let keep = sigmoid(iz[lane] + hz[lane]);
            let new = tanh(i_new[lane] + reset * h_new[lane]);
            memory[lane] = (memory[lane] - new) * keep + new;
        }
    }
}
