//! Built-in networks with a hand-written backward pass over sequences.

use super::Network;
use crate::nn::cpu::{DynSequenceModel, Retention};
use crate::nn::ops::linear::Arithmetic;
use crate::nn::{Precision, parameters};
use burn::cubecl::future::block_on;

/// Creates the sequence model of a copy of a network on the CPU, which needs no autodiff; `None` if the network has no
/// hand-written backward pass.
pub fn new_sequence_model(
    network: &Network,
    precision: Precision,
    retention: Retention,
) -> Option<Box<dyn DynSequenceModel>> {
    let construct = network.sequence_model_constructor()?;
    let params = block_on(parameters::to_vec_async(network.flatten()));
    Some(construct(params, Arithmetic::for_precision(precision), retention))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::math::Activation;
    use crate::model::{Actor, DecoderConfig, LANES, NativePolicy, PolicyConfig};
    use crate::nn::cpu::{Sequences, to_lanes, to_rows};
    use crate::nn::ops::check::{doubles, wave};
    use burn::tensor::{Device, Tensor, TensorData};

    const STEPS: usize = 19;
    /// Steps that are played before a sequence begins.
    const BEFORE: usize = 7;

    /// A decoder whose context is shorter than some episodes, a GRU, and a perceptron. Derivatives have no jumps,
    /// across which rounding would move some units.
    fn networks() -> [Network; 3] {
        let sizes = DecoderConfig {
            hidden_size: 24,
            num_layers: 2,
            num_heads: 2,
            num_kv_heads: 1,
            intermediate_size: 20,
            context: 5,
        };
        let configs = [
            PolicyConfig::decoder(sizes),
            PolicyConfig::gru(&[13, 9], Activation::Tanh),
            PolicyConfig::mlp(&[37, 70], Activation::Gelu),
        ];
        configs.map(|config| Network::new(3, 4, &config, 1, &Device::flex()))
    }

    fn wavy_model(network: &Network, precision: Precision) -> Box<dyn DynSequenceModel> {
        let mut sequence_model =
            new_sequence_model(network, precision, Retention::All).expect("a backward pass");
        sequence_model.change(&mut |params| {
            let waves = wave(params.len(), 0.77);
            params.iter_mut().zip(waves).for_each(|(x, wave)| *x += wave * 0.3);
        });
        sequence_model
    }

    /// Observations and starts of episodes, from step `from` on.
    fn games(from: usize, memory: Vec<f32>) -> Sequences {
        let starts = (from * LANES..STEPS * LANES).map(|i| f32::from(u8::from(i % 37 == 5)));
        Sequences {
            num_games: LANES,
            obs: wave(STEPS * LANES * 3, 1.3)[from * LANES * 3..].to_vec(),
            starts: starts.collect(),
            memory,
        }
    }

    /// Asserts that the logits of sequences, and the gradient of all parameters of their sum weighted by a wave, are
    /// those of autodiff, with these numbers of partial gradients. Gradients may differ by `tolerance` times the
    /// largest.
    pub fn assert_agrees_with_autodiff(
        network: &Network,
        sequences: &Sequences,
        partials: &[usize],
        tolerance: f64,
    ) {
        let device = Device::flex();
        let (steps, games) = (sequences.num_steps(), sequences.num_games);
        let tensor = |values: &[f32]| {
            let shape = [steps, games, values.len() / (steps * games)];
            Tensor::<3>::from_data(TensorData::new(values.to_vec(), shape), &device)
        };
        let memory = match sequences.memory.len() / games {
            0 => network.initial_memory(games, &device),
            size => {
                let rows = TensorData::new(sequences.memory.clone(), [games, size]);
                Some(Tensor::from_data(rows, &device))
            }
        };
        let leaf = network.flatten().autodiff().require_grad();
        let starts = tensor(&sequences.starts).squeeze_dim::<2>(2);
        let logits = network.unflatten(&leaf).sequence(tensor(&sequences.obs), starts, memory);
        let weights = wave(logits.dims().iter().product(), 0.37);
        let loss = (logits.clone() * tensor(&weights)).sum();
        let want = doubles(leaf.grad_remove(&mut loss.backward()).expect("a gradient"));
        let want_logits = doubles(logits.without_autodiff());

        let [keeping, recomputing] = [Retention::All, Retention::Inputs].map(|retention| {
            new_sequence_model(network, Precision::F32, retention).expect("a backward pass")
        });
        let logits = keeping.logits(sequences);
        assert_near("logits", &logits, &want_logits, 1e-5 * largest(&want_logits).max(1.0));
        for partials in partials {
            let gradient = |model: &dyn DynSequenceModel| {
                model.gradient(sequences, *partials, &mut |_| weights.clone())
            };
            let once = gradient(&*keeping);
            assert_near("gradient", &once, &want, tolerance * largest(&want));
            // Nothing is left of a pass that the next could stumble over.
            assert!(once == gradient(&*keeping));
            assert!(once == gradient(&*recomputing), "recomputed layers");
        }
        assert!(logits == keeping.logits(sequences));
        assert!(logits == recomputing.logits(sequences));
    }

    fn largest(values: &[f64]) -> f64 {
        values.iter().fold(0.0, |largest, x| largest.max(x.abs()))
    }

    fn assert_near(what: &str, got: &[f32], want: &[f64], bound: f64) {
        assert_eq!(got.len(), want.len(), "{what}");
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let off = (f64::from(*got) - want).abs();
            assert!(off < bound, "{what} {i}: {got} instead of {want}");
        }
    }

    #[test]
    fn acting_and_learning_have_the_same_logits_to_the_last_bit() {
        for (network, precision) in
            networks().iter().flat_map(|n| [Precision::F32, Precision::Bf16].map(|p| (n, p)))
        {
            let sequence_model = wavy_model(network, precision);
            let sequences = games(0, Vec::new());
            let actor = NativePolicy::from_sequence_model(sequence_model.clone());
            let mut scratch = actor.new_scratch();
            let mut memory = vec![[0.0; LANES]; actor.memory_size()];
            let (mut logits, mut remembered) = (Vec::new(), Vec::new());
            for t in 0..STEPS {
                if t == BEFORE {
                    remembered = to_rows(&memory);
                }
                for lane in (0..LANES).filter(|lane| sequences.starts[t * LANES + lane] == 1.0) {
                    memory.iter_mut().for_each(|lanes| lanes[lane] = 0.0);
                }
                let mut obs = [[0.0; LANES]; 3];
                to_lanes(&sequences.obs[t * LANES * 3..][..LANES * 3], &mut obs);
                logits.extend(to_rows(actor.compute_logits(&obs, &mut memory, &mut scratch)));
            }
            assert!(logits == sequence_model.logits(&sequences), "{precision}");
            let later = sequence_model.logits(&games(BEFORE, remembered));
            assert!(logits[BEFORE * LANES * 4..] == later, "{precision}: from the middle");
        }
    }

    #[test]
    fn gradients_in_bf16_are_nearly_those_in_single_precision() {
        for network in networks() {
            let gradient = |precision| {
                let d_logits = wave(STEPS * LANES * 4, 0.37);
                let games = games(0, Vec::new());
                wavy_model(&network, precision).gradient(&games, 3, &mut |_| d_logits.clone())
            };
            let [want, got] = [Precision::F32, Precision::Bf16].map(gradient);
            let norm =
                |values: &[f32]| values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
            let apart: Vec<f32> = got.iter().zip(&want).map(|(a, b)| a - b).collect();
            let off = norm(&apart) / norm(&want);
            assert!(off > 0.0 && off < 0.02, "off by {off}");
        }
    }
}
