//! The gated recurrent network on the CPU's vector units, for acting.

use super::learn::step_cell;
use crate::math::Activation;
use crate::model::dense::{self, Dense, forward_stack};
use crate::model::{Actor, LANES, Lanes, PolicySizes};
use multiversion::multiversion;

/// A copy of a [`Gru`](super::Gru)'s weights for acting on the CPU.
#[derive(Clone, Debug)]
pub struct NativeGru {
    /// The layers before the recurrent one, then the input weights of its gates.
    layers: Vec<Dense>,
    memory_gates: Dense,
    head: Dense,
    activation: Activation,
}

/// Activations of one thread.
#[derive(Clone, Debug)]
pub struct GruScratch {
    layers: dense::MlpScratch,
    /// The products of memory and the gates' weights, then the logits.
    memory_products: Vec<Lanes>,
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
        let mut layers: Vec<Dense> =
            encoder.windows(2).map(|pair| Dense::take(&mut rest, pair[0], pair[1])).collect();
        layers.push(Dense::take(&mut rest, widths[encoder.len() - 1], 3 * size));
        let network = Self {
            layers,
            memory_gates: Dense::take(&mut rest, *size, 3 * size),
            head: Dense::take(&mut rest, *size, *actions),
            activation,
        };
        assert!(rest.is_empty(), "params: [num_params]");
        network
    }
}

impl Actor for NativeGru {
    type Scratch = GruScratch;

    fn sizes(&self) -> PolicySizes {
        PolicySizes {
            num_features: self.layers[0].inputs,
            num_actions: self.head.outputs,
            memory_size: self.memory_gates.inputs,
        }
    }

    fn new_scratch(&self) -> GruScratch {
        let widest = self.memory_gates.outputs.max(self.head.outputs);
        GruScratch {
            layers: dense::MlpScratch::new(&self.layers),
            memory_products: vec![[0.0; LANES]; widest],
        }
    }

    fn compute_logits<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut GruScratch,
    ) -> &'a [Lanes] {
        assert_eq!(obs.len(), self.num_features(), "obs: [num_features][LANES]");
        assert_eq!(memory.len(), self.memory_size(), "memory: [memory_size][LANES]");
        let GruScratch { layers, memory_products } = scratch;
        let inputs = forward_stack(&self.layers, self.activation, obs, layers);
        let gates = &mut memory_products[..self.memory_gates.outputs];
        self.memory_gates.apply(memory, gates);
        remember(inputs, gates, memory);
        let logits = &mut memory_products[..self.head.outputs];
        self.head.apply(memory, logits);
        logits
    }
}

/// Computes the memory after a step from the gates' products with input and memory (see [`Gru`](super::Gru)).
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn remember(inputs: &[Lanes], memory_products: &[Lanes], memory: &mut [Lanes]) {
    let size = memory.len();
    for (j, memory) in memory.iter_mut().enumerate() {
        let (ir, iz, i_new) = (inputs[j], inputs[size + j], inputs[2 * size + j]);
        let (hr, hz, h_new) =
            (memory_products[j], memory_products[size + j], memory_products[2 * size + j]);
        for lane in 0..LANES {
            let gates = [ir[lane] + hr[lane], iz[lane] + hz[lane], i_new[lane]];
            [.., memory[lane]] = step_cell(gates, h_new[lane], memory[lane]);
        }
    }
}
