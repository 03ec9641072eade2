//! The multi-layer perceptron on the CPU's vector units.

use super::Mlp;
use crate::math::Activation;
use crate::model::dense::{Dense, MlpScratch, forward_stack};
use crate::model::{Actor, Lanes, PolicySizes};
use crate::nn::parameters::{flatten, to_vec_async};
use burn::cubecl::future::block_on;

/// A copy of an [`Mlp`]'s weights for evaluation on the CPU.
#[derive(Clone, Debug)]
pub struct NativeMlp {
    layers: Vec<Dense>,
    activation: Activation,
}

impl NativeMlp {
    /// Copies the weights. On a device this reads them back and waits for them.
    pub fn new(mlp: &Mlp) -> Self {
        let params = block_on(to_vec_async(flatten(mlp)));
        Self::from_params(&mlp.widths(), mlp.activation(), &params)
    }

    /// The network of these widths, features and actions included, with parameters in the order of
    /// [`flatten`](crate::model::flatten): layer by layer weights `[inputs, outputs]`, then biases.
    ///
    /// # Panics
    /// If the number of parameters differs.
    pub fn from_params(widths: &[usize], activation: Activation, params: &[f32]) -> Self {
        let mut rest = params;
        let layers = widths.windows(2).map(|pair| Dense::take(&mut rest, pair[0], pair[1]));
        let layers = layers.collect();
        assert!(rest.is_empty(), "params: [num_params]");
        Self { layers, activation }
    }
}

impl Actor for NativeMlp {
    type Scratch = MlpScratch;

    fn sizes(&self) -> PolicySizes {
        PolicySizes {
            num_features: self.layers[0].inputs,
            num_actions: self.layers[self.layers.len() - 1].outputs,
            memory_size: 0,
        }
    }

    fn new_scratch(&self) -> MlpScratch {
        MlpScratch::new(&self.layers)
    }

    fn active_features<'a>(&self, scratch: &'a MlpScratch) -> Option<&'a [usize]> {
        scratch.active_features.as_deref()
    }

    fn compute_logits<'a>(
        &self,
        obs: &[Lanes],
        _memory: &mut [Lanes],
        scratch: &'a mut MlpScratch,
    ) -> &'a [Lanes] {
        assert_eq!(obs.len(), self.num_features(), "obs: [num_features][LANES]");
        forward_stack(&self.layers, self.activation, obs, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LANES;

    #[test]
    fn skipped_zeros_make_no_difference() {
        let params: Vec<f32> =
            (0..70 * 21 + 21 + 21 * 3 + 3).map(|i| (i as f32 * 0.71).sin()).collect();
        let policy = NativeMlp::from_params(&[70, 21, 3], Activation::Tanh, &params);
        let mut scratch = policy.new_scratch();
        for cells in [&[][..], &[0], &[3, 4, 66], &[69]] {
            let mut obs = vec![[0.0; LANES]; 70];
            for (lane, cell) in cells.iter().enumerate() {
                obs[*cell][5 * lane] = 1.5 - lane as f32;
            }
            let got = policy.compute_logits(&obs, &mut [], &mut scratch).to_vec();
            assert_eq!(policy.active_features(&scratch), Some(cells));
            // The active rows of the first layer are a policy of fewer features.
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
            let mut scratch = fewer.new_scratch();
            assert_eq!(fewer.compute_logits(&obs, &mut [], &mut scratch), got);
            assert_eq!(fewer.active_features(&scratch), None);
        }
    }
}
