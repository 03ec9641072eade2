//! Games on the CPU: a decoder over observations learns from whole sequences, a row for each step, and acts on the
//! current step of some games, a row for each game.
//!
//! One thread runs the whole forward and backward pass of a game. Acting runs the code of learning, so that both give
//! the same logits to the last bit.

use super::backward::SegmentedTape;
use super::sequences::{PolicySizes, SequenceModel, Sequences};
use super::weights::DecoderWeights;
use super::{
    Activations, Attend, DecoderTape, KeysValues, Pool, Prefix, Retention, Scratch, Segment,
    SegmentScratch,
};
use crate::math::{LANES, Lanes};
use crate::nn::arch::{DecoderShape, LinearLayout};
use crate::nn::ops::attention::AttentionOutput;
use crate::nn::ops::attention::sequence::{self, AttentionInputs, AttentionMask};
use crate::nn::ops::linear::Arithmetic;
use crate::nn::ops::{Parallelism, WriteMode};
use std::ops::Range;

/// A decoder over observations that learns from sequences, and acts.
#[derive(Clone, Debug)]
pub struct DecoderSequenceModel {
    weights: DecoderWeights,
    retention: Retention,
    scratches: Pool<GameScratch>,
}

/// Buffers of a pass over a game, for reuse.
#[derive(Debug, Default)]
struct GameScratch {
    /// The stream, or its gradient: `[rows, hidden_size]`.
    stream: Vec<f32>,
    attention: SegmentScratch,
    layers: Scratch,
}

/// The activations of a game for the backward pass, or of a step of some games.
#[derive(Debug, Default)]
pub struct GameTape {
    obs: Vec<f32>,
    segment: Option<Segment>,
    tape: DecoderTape,
    logits: Vec<f32>,
}

/// Attention over a game's own steps and the earlier ones in its memory.
struct SequenceAttention<'a> {
    segment: &'a Segment,
    scratch: &'a mut SegmentScratch,
}

impl Attend for SequenceAttention<'_> {
    fn attend(&mut self, weights: &DecoderWeights, layer: usize, activations: &mut Activations) {
        let shape = weights.shape.head_shape();
        let Activations { heads, attended, log_sum_exps, .. } = activations;
        let SegmentScratch { attention, keys_values } = &mut *self.scratch;
        self.segment.gather(layer, heads, shape.kv_size(), keys_values);
        let [keys, values] = &*keys_values;
        let inputs = AttentionInputs { queries: &heads[0], keys, values };
        let mask = self.segment.mask(weights, layer);
        let results = AttentionOutput { output: attended, log_sum_exps };
        sequence::forward(&shape, inputs, &mask, results, attention);
    }
}

/// Attention of the current step of [`LANES`] games over their memory, to which the step is appended.
struct StepAttention<'a> {
    memory: &'a mut [Lanes],
    scratch: &'a mut SegmentScratch,
}

impl Attend for StepAttention<'_> {
    /// Attends game by game, since the numbers of their past steps differ.
    fn attend(&mut self, weights: &DecoderWeights, layer: usize, activations: &mut Activations) {
        let (shape, head_shape) = (&weights.shape, weights.shape.head_shape());
        let (size, kv_size) = (head_shape.query_size(), head_shape.kv_size());
        let Activations { heads, attended, log_sum_exps, .. } = activations;
        let SegmentScratch { attention, keys_values } = &mut *self.scratch;
        let (counts, caches) = self.memory.split_at_mut(shape.cache_start(layer));
        for lane in 0..LANES {
            let past_steps = counts[0][lane] as usize;
            let prefix_len = past_steps.min(shape.context - 1);
            let caches = caches.chunks_exact_mut(shape.cache_size());
            for ((cache, new), rows) in caches.zip(&heads[1..]).zip(&mut *keys_values) {
                let new = &new[lane * kv_size..][..kv_size];
                rows.clear();
                for step in past_steps - prefix_len..past_steps {
                    let row = &cache[step % shape.context * kv_size..][..kv_size];
                    rows.extend(row.iter().map(|lanes| lanes[lane]));
                }
                rows.extend_from_slice(new);
                let row = &mut cache[past_steps % shape.context * kv_size..][..kv_size];
                row.iter_mut().zip(new).for_each(|(lanes, x)| lanes[lane] = *x);
            }
            let [keys, values] = &*keys_values;
            let inputs =
                AttentionInputs { queries: &heads[0][lane * size..][..size], keys, values };
            let mask =
                AttentionMask { rows: 1, prefix_len, starts: &[], window: shape.window(layer) };
            let count = head_shape.heads;
            let results = AttentionOutput {
                output: &mut attended[lane * size..][..size],
                log_sum_exps: &mut log_sum_exps[lane * count..][..count],
            };
            sequence::forward(&head_shape, inputs, &mask, results, attention);
        }
    }
}

impl SequenceModel for DecoderSequenceModel {
    type Tape = Vec<GameTape>;

    fn sizes(&self) -> PolicySizes {
        let shape = &self.weights.shape;
        PolicySizes {
            num_features: shape.num_features(),
            num_actions: shape.num_outputs,
            memory_size: shape.memory_size(),
        }
    }

    fn params(&self) -> &[f32] {
        self.weights.params.values()
    }

    fn params_mut(&mut self) -> &mut [f32] {
        self.weights.params.to_mut()
    }

    fn repack(&mut self) {
        self.weights.repack();
    }

    fn compute_logits(
        &self,
        obs: &[f32],
        memory: &mut [Lanes],
        tapes: &mut Vec<GameTape>,
        logits: &mut [f32],
    ) {
        let size = self.weights.shape.memory_size();
        assert_eq!(memory.len(), size, "memory: [memory_size][LANES]");
        tapes.resize_with(1, GameTape::default);
        let game = &mut tapes[0];
        obs.clone_into(&mut game.obs);
        game.tape.set_rotations(&self.weights.rope, memory[0].iter().map(|count| *count as usize));
        self.scratches.with(|GameScratch { stream, attention, layers }| {
            let mut attention = StepAttention { memory, scratch: attention };
            self.game_forward(game, Retention::Nothing, &mut attention, stream, layers);
        });
        memory[0].iter_mut().for_each(|count| *count += 1.0);
        logits.copy_from_slice(&game.logits);
    }

    /// Computes the forward pass game by game, and reorders the logits to `[steps, games, actions]`.
    fn forward(
        &self,
        sequences: &Sequences,
        games: Range<usize>,
        tapes: &mut Vec<GameTape>,
        logits: &mut [f32],
    ) {
        let (shape, count) = (&self.weights.shape, games.len());
        let (num_memories, actions) =
            (sequences.memory.len() / shape.memory_size(), shape.num_outputs);
        assert!(
            num_memories == 0 || num_memories == sequences.num_games,
            "memory: [games, memory_size], or nothing"
        );
        assert_eq!(sequences.num_features(), shape.num_features(), "obs: [steps, games, features]");
        tapes.resize_with(count, GameTape::default);
        self.scratches.with(|GameScratch { stream, attention, layers }| {
            for (i, game) in games.zip(&mut *tapes) {
                let segment = self.begin_game(sequences, i, game);
                let mut attention = SequenceAttention { segment: &segment, scratch: attention };
                self.game_forward(game, self.retention, &mut attention, stream, layers);
                game.segment = Some(segment);
            }
        });
        for (slot, to) in logits.chunks_exact_mut(actions).enumerate() {
            to.copy_from_slice(&tapes[slot % count].logits[slot / count * actions..][..actions]);
        }
    }

    fn backward(&self, tapes: &mut Vec<GameTape>, d_logits: &[f32], gradient: &mut [f32]) {
        let (games, actions) = (tapes.len(), self.weights.shape.num_outputs);
        self.scratches.with(|scratch| {
            for (i, game) in tapes.iter_mut().enumerate() {
                let rows = d_logits.chunks_exact(actions).skip(i).step_by(games);
                let d_logits = rows.flatten().copied().collect::<Vec<f32>>();
                self.game_backward(game, &d_logits, gradient, scratch);
            }
        });
    }
}

impl DecoderSequenceModel {
    /// Creates a decoder from its parameters, with products in this arithmetic. With [`Retention::Inputs`] the backward
    /// pass recomputes the layers: a third more work, and the same gradient to the last bit.
    ///
    /// # Panics
    /// If the number of parameters differs.
    pub fn new(
        shape: &DecoderShape,
        params: Vec<f32>,
        arithmetic: Arithmetic,
        retention: Retention,
    ) -> Self {
        assert_eq!(params.len(), shape.num_params(), "params: [num_params]");
        let weights = DecoderWeights::new(shape.clone(), params.into(), Parallelism::Sequential);
        Self {
            weights: DecoderWeights { arithmetic, ..weights },
            retention,
            scratches: Pool::default(),
        }
    }

    /// The linear layer of observations.
    fn input(&self) -> &LinearLayout {
        self.weights.layout.input.as_ref().expect("this decoder takes observations, not tokens")
    }

    /// Runs the forward pass of the rows of one game, or of a step of some games.
    fn game_forward(
        &self,
        game: &mut GameTape,
        retention: Retention,
        attention: &mut impl Attend,
        stream: &mut Vec<f32>,
        scratch: &mut Scratch,
    ) {
        let DecoderWeights { shape, layout, .. } = &self.weights;
        let GameTape { obs, tape, logits, .. } = game;
        let rows = obs.len() / shape.num_features();
        stream.resize(rows * shape.hidden_size, 0.0);
        self.weights.linear_forward(self.input(), obs, stream, WriteMode::Overwrite);
        self.weights.forward(stream, retention, attention, tape, scratch);
        logits.resize(rows * shape.num_outputs, 0.0);
        self.weights.linear_forward(&layout.head, &tape.hidden, logits, WriteMode::Overwrite);
    }

    /// Copies the inputs of the game at `index` into `game`; returns its rows and the keys that they attend to.
    fn begin_game(&self, sequences: &Sequences, index: usize, game: &mut GameTape) -> Segment {
        let (shape, games) = (&self.weights.shape, sequences.num_games);
        let memory = sequences.memory.chunks_exact(shape.memory_size()).nth(index);
        let past_steps = memory.map_or(0, |memory| memory[0] as usize);
        let steps = sequences.num_steps();
        let context = shape.context;
        sequences.copy_rows(&sequences.obs, index..index + 1, &mut game.obs);
        let is_start = |t: usize| sequences.starts[t * games + index] == 1.0;
        let prefix = if is_start(0) { 0 } else { past_steps.min(context - 1) };
        let (mut start, mut position) = (0, past_steps);
        let (mut starts, mut positions) = (Vec::with_capacity(steps), Vec::with_capacity(steps));
        for t in 0..steps {
            if is_start(t) {
                (start, position) = (prefix + t, 0);
            }
            starts.push(start);
            positions.push(position);
            position += 1;
        }
        game.tape.set_rotations(&self.weights.rope, positions.into_iter());
        // The steps in memory that the first rows attend to, oldest first.
        let kv_size = shape.kv_size();
        let copy_rows = |cache: &[f32]| {
            let rows = (past_steps - prefix..past_steps).map(|step| step % context);
            rows.flat_map(|row| &cache[row * kv_size..][..kv_size]).copied().collect::<Vec<f32>>()
        };
        let copy_caches = |layer: usize| {
            let Some(memory) = memory else { return KeysValues::default() };
            let (start, size) = (shape.cache_start(layer), shape.cache_size());
            [start, start + size].map(|start| copy_rows(&memory[start..][..size]))
        };
        let prefix = Prefix::Memory((0..shape.num_layers).map(copy_caches).collect());
        Segment { rows: 0..steps, prefix, starts }
    }

    /// Adds the gradient of the parameters to `gradient`, from the gradient of a game's logits.
    fn game_backward(
        &self,
        game: &mut GameTape,
        d_logits: &[f32],
        gradient: &mut [f32],
        GameScratch { stream: d, attention, layers }: &mut GameScratch,
    ) {
        let (weights, GameTape { obs, segment, tape, .. }) = (&self.weights, game);
        let segment = segment.as_ref().expect("the game went forward");
        d.resize(tape.hidden.len(), 0.0);
        let head = [(&weights.layout.head, d_logits)];
        weights.linears_backward(&tape.hidden, head, d, gradient);
        let mut segmented_tape = SegmentedTape { tape, segments: std::slice::from_ref(segment) };
        let mut attention = SequenceAttention { segment, scratch: attention };
        weights.backward(&mut segmented_tape, &mut attention, d, gradient, layers, |_, _| {});
        weights.add_weight_grads(obs, [(self.input(), &d[..])], gradient);
    }
}
