//! The decoder in all its forms against a slow one in f64, written number by number.

use super::{Decoder, DecoderConfig};
use crate::model::sequence_model::tests::assert_agrees_with_autodiff;
use crate::model::{Model, PolicyConfig, reset, to_vec};
use crate::nn::cpu::Sequences;
use crate::nn::ops::check::{doubles, wave};
use crate::nn::{DecoderInput, DecoderShape, flatten, named_parameters, unflatten};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::HashMap;
use std::ops::Range;

/// A small decoder for 3 features and 4 actions.
fn shape(num_layers: usize, heads: [usize; 2], context: usize, qkv_bias: bool) -> DecoderShape {
    DecoderShape {
        input: DecoderInput::Observations { num_features: 3 },
        num_outputs: 4,
        hidden_size: 8,
        num_layers,
        num_heads: heads[0],
        num_kv_heads: heads[1],
        head_dim: 8 / heads[0],
        intermediate_size: 6,
        context,
        qkv_bias,
        rope_theta: 100.0,
        rms_norm_eps: 1e-3,
        ..DecoderShape::default()
    }
}

/// Shapes with each switch on and off: layers, shared heads of keys, windows shorter than episodes, biases.
fn shapes() -> Vec<DecoderShape> {
    vec![
        shape(1, [1, 1], 16, false),
        shape(2, [2, 1], 4, true),
        shape(2, [4, 2], 5, false),
        shape(3, [4, 4], 1, true),
        shape(2, [2, 2], 16, false),
    ]
}

/// A decoder whose weights are all different, those of norms and biases too.
fn decoder(shape: &DecoderShape, device: &Device) -> Decoder {
    let decoder = Decoder::from_shape(shape.clone(), 1, device);
    let params = flatten(&decoder);
    let count = params.dims()[0];
    let waves = Tensor::<1>::from_data(TensorData::new(wave(count, 0.77), [count]), device);
    unflatten(decoder, &(params + waves * 0.3))
}

/// The formulas of a decoder, one game and one step at a time.
struct Reference<'a> {
    shape: &'a DecoderShape,
    params: &'a [f64],
    /// The place of each parameter.
    places: HashMap<String, Range<usize>>,
}

/// The keys and values of an episode's steps so far, layer by layer.
#[derive(Clone)]
struct KvCache(Vec<Vec<[Vec<f64>; 2]>>);

impl<'a> Reference<'a> {
    fn new(shape: &'a DecoderShape, params: &'a [f64]) -> Self {
        let mut offset = 0;
        let places = shape.parameters().into_iter().map(|parameter| {
            let start = offset;
            offset += parameter.shape.iter().product::<usize>();
            (parameter.name, start..offset)
        });
        Self { shape, params, places: places.collect() }
    }

    fn empty_cache(&self) -> KvCache {
        KvCache(vec![Vec::new(); self.shape.num_layers])
    }

    /// The values of a parameter, if it exists.
    fn parameter(&self, name: &str) -> Option<&[f64]> {
        self.places.get(name).map(|place| &self.params[place.clone()])
    }

    fn linear(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.parameter(&format!("{name}.weight")).unwrap();
        let bias = self.parameter(&format!("{name}.bias"));
        let outputs = weight.len() / x.len();
        let output = |j: usize| {
            let products = x.iter().enumerate().map(|(i, x)| x * weight[i * outputs + j]);
            products.sum::<f64>() + bias.map_or(0.0, |bias| bias[j])
        };
        (0..outputs).map(output).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.parameter(&format!("{name}.weight")).unwrap();
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let root = (mean + f64::from(self.shape.rms_norm_eps)).sqrt();
        x.iter().zip(weight).map(|(x, w)| x / root * w).collect()
    }

    /// Rotates every head by the angles of a position.
    fn rotate(&self, x: &[f64], position: usize) -> Vec<f64> {
        let (dim, half) = (self.shape.head_dim, self.shape.head_dim / 2);
        let rotated = |at: usize| {
            let (head, i) = (at / dim * dim, at % dim);
            let frequency = self.shape.rope_theta.powf(-2.0 * (i % half) as f64 / dim as f64);
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            if i < half {
                x[head + i] * cos - x[head + i + half] * sin
            } else {
                x[head + i] * cos + x[head + i - half] * sin
            }
        };
        (0..x.len()).map(rotated).collect()
    }

    /// The logits of the episode's next step.
    fn step(&self, obs: &[f64], cache: &mut KvCache) -> Vec<f64> {
        let (shape, dim) = (self.shape, self.shape.head_dim);
        let mut x = self.linear("input", obs);
        for (i, steps) in cache.0.iter_mut().enumerate() {
            let full_name = |name: &str| format!("layers.{i}.{name}");
            let normed = self.norm(&full_name("input_layernorm"), &x);
            let position = steps.len();
            let query =
                self.rotate(&self.linear(&full_name("self_attn.q_proj"), &normed), position);
            let key = self.rotate(&self.linear(&full_name("self_attn.k_proj"), &normed), position);
            steps.push([key, self.linear(&full_name("self_attn.v_proj"), &normed)]);
            let near = &steps[steps.len().saturating_sub(shape.context)..];
            let mut attended = Vec::new();
            for (head, query) in query.chunks(dim).enumerate() {
                let own = head / shape.head_shape().heads_per_kv_head() * dim;
                let weights: Vec<f64> = near
                    .iter()
                    .map(|[key, _]| {
                        let score: f64 = query.iter().zip(&key[own..]).map(|(q, k)| q * k).sum();
                        (score / (dim as f64).sqrt()).exp()
                    })
                    .collect();
                let total: f64 = weights.iter().sum();
                for j in 0..dim {
                    let sum: f64 =
                        near.iter().zip(&weights).map(|(kv, w)| w * kv[1][own + j]).sum();
                    attended.push(sum / total);
                }
            }
            let added = self.linear(&full_name("self_attn.o_proj"), &attended);
            x.iter_mut().zip(added).for_each(|(x, y)| *x += y);
            let normed = self.norm(&full_name("post_attention_layernorm"), &x);
            let gate = self.linear(&full_name("mlp.gate_proj"), &normed);
            let up = self.linear(&full_name("mlp.up_proj"), &normed);
            let inner: Vec<f64> =
                gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let added = self.linear(&full_name("mlp.down_proj"), &inner);
            x.iter_mut().zip(added).for_each(|(x, y)| *x += y);
        }
        self.linear("lm_head", &self.norm("norm", &x))
    }

    /// The logits of sequences, `[num_steps, games, num_actions]`, that continue from these caches.
    fn sequence(&self, games: &Games, from: usize, caches: &[KvCache]) -> Vec<f64> {
        let mut caches = caches.to_vec();
        let mut logits = Vec::new();
        for t in from..games.steps {
            for (game, cache) in caches.iter_mut().enumerate() {
                if games.starts[t * GAMES + game] == 1.0 {
                    *cache = self.empty_cache();
                }
                let obs = &games.obs[(t * GAMES + game) * 3..][..3];
                logits.extend(
                    self.step(&obs.iter().map(|x| f64::from(*x)).collect::<Vec<_>>(), cache),
                );
            }
        }
        logits
    }
}

const GAMES: usize = 3;

/// Observations, `[steps, GAMES, 3]`, and where episodes start, `[steps, GAMES]`.
struct Games {
    steps: usize,
    obs: Vec<f32>,
    starts: Vec<f32>,
}

impl Games {
    /// Episodes of very different lengths, one of which starts with step `memory`.
    fn new(steps: usize, memory: usize) -> Self {
        let obs = (0..steps * GAMES * 3).map(|i| (i as f32 * 1.3).cos()).collect();
        let mut starts = vec![0.0; steps * GAMES];
        for (t, game) in
            [(0, 0), (0, 1), (0, 2), (2, 1), (memory, 1), (memory + 3, 2), (memory + 4, 2)]
        {
            starts[t * GAMES + game] = 1.0;
        }
        Self { steps, obs, starts }
    }

    fn obs(&self, steps: Range<usize>, device: &Device) -> Tensor<3> {
        let obs = self.obs[steps.start * GAMES * 3..steps.end * GAMES * 3].to_vec();
        Tensor::from_data(TensorData::new(obs, [steps.len(), GAMES, 3]), device)
    }

    fn starts(&self, steps: Range<usize>, device: &Device) -> Tensor<2> {
        let starts = self.starts[steps.start * GAMES..steps.end * GAMES].to_vec();
        Tensor::from_data(TensorData::new(starts, [steps.len(), GAMES]), device)
    }

    /// Computes the logits of the first steps one by one, and the memory after them.
    fn compute_logits(
        &self,
        decoder: &Decoder,
        steps: usize,
        device: &Device,
    ) -> (Vec<f64>, Tensor<2>) {
        let initial = decoder.initial_memory(GAMES, device);
        let (mut memory, mut logits) = (initial.clone(), Vec::new());
        for t in 0..steps {
            let starts = self.starts(t..t + 1, device).reshape([GAMES]);
            let obs = self.obs(t..t + 1, device).reshape([GAMES, 3]);
            let (step, next) = decoder.step(obs, reset(memory, &initial, starts));
            memory = next;
            logits.extend(doubles(step));
        }
        (logits, memory)
    }
}

fn assert_near(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() < 1e-5 * want.abs().max(1.0), "{what} {i}: {got}, not {want}");
    }
}

#[test]
fn parameters_are_those_that_files_hold() {
    let device = Device::flex();
    for shape in shapes() {
        let decoder = Decoder::from_shape(shape.clone(), 1, &device);
        assert_eq!(named_parameters(&decoder), shape.parameters());
        assert_eq!(decoder.initial_memory(2, &device).dims(), [2, shape.memory_size()]);
    }
    let sizes = DecoderConfig { num_layers: 3, ..DecoderConfig::default() };
    let config = PolicyConfig::decoder(sizes);
    let decoder = Decoder::new(5, 2, &config, 1, &device);
    assert_eq!(decoder.shape(), &DecoderShape::new(5, 2, &config));
    assert_eq!(decoder.shape().num_layers, 3);
}

#[test]
fn acting_and_whole_sequences_are_the_formulas() {
    let device = Device::flex();
    for shape in shapes() {
        let decoder = decoder(&shape, &device);
        let params = doubles(flatten(&decoder));
        let reference = Reference::new(&shape, &params);
        for (steps, before) in [(12, 0), (19, 7), (1, 0)] {
            let games = Games::new(steps.max(before + 5), before);
            let steps = games.steps;
            let want = reference.sequence(&games, 0, &vec![reference.empty_cache(); GAMES]);
            let (acted, _) = games.compute_logits(&decoder, steps, &device);
            assert_near(&acted, &want, &format!("{shape:?}, acting"));
            let (_, memory) = games.compute_logits(&decoder, before, &device);
            let (obs, starts) =
                (games.obs(before..steps, &device), games.starts(before..steps, &device));
            let whole = doubles(decoder.sequence(obs, starts, memory));
            let want = &want[before * GAMES * 4..];
            assert_near(&whole, want, &format!("{shape:?}, whole from step {before}"));
        }
    }
}

#[test]
fn long_sequences_are_computed_in_parts() {
    let device = Device::flex();
    let shape = shape(2, [2, 1], 40, false);
    let (decoder, games) = (decoder(&shape, &device), Games::new(300, 50));
    let (acted, _) = games.compute_logits(&decoder, 300, &device);
    let (_, memory) = games.compute_logits(&decoder, 20, &device);
    let (obs, starts) = (games.obs(20..300, &device), games.starts(20..300, &device));
    let whole = doubles(decoder.sequence(obs, starts, memory));
    assert_near(&whole, &acted[20 * GAMES * 4..], "in parts");
}

#[test]
fn sequences_by_hand_are_those_of_autodiff() {
    let device = Device::flex();
    let long = DecoderShape {
        hidden_size: 96,
        head_dim: 32,
        intermediate_size: 80,
        ..shape(2, [3, 3], 70, true)
    };
    let cases = shapes().into_iter().zip([(7, 0), (9, 6), (7, 3), (8, 2), (20, 5)]);
    for (shape, (steps, before)) in cases.chain([(long, (160, 20))]) {
        let (decoder, games) = (decoder(&shape, &device), Games::new(before + steps, before));
        let (_, memory) = games.compute_logits(&decoder, before, &device);
        let sequences = Sequences {
            num_games: GAMES,
            obs: games.obs[before * GAMES * 3..].to_vec(),
            starts: games.starts[before * GAMES..].to_vec(),
            memory: to_vec(memory),
        };
        // The order of long sums is that of the processor's vectors.
        assert_agrees_with_autodiff(&decoder.into(), &sequences, &[16], 5e-5);
    }
}
