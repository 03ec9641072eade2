//! Games on the CPU: learning a decoder over observations from whole sequences, a row for each step.
//!
//! One thread takes a game from the first layer to the last and back. Games are distributed over partial gradients,
//! whose number does not depend on that of the threads, and which are summed in a fixed order, so that any number of
//! threads gives the same bytes.

use super::backward::ForwardRecord;
use super::weights::Weights;
use super::{Activations, Attend, Piece, Pool, Prefix, Retention, Scratch, Tape};
use crate::nn::DecoderParams;
use crate::nn::arch::{DecoderShape, LinearLayout};
use crate::nn::ops::Parallelism;
use crate::nn::ops::attention::sequence::{self, Heads};
use rayon::prelude::*;

/// Parameters summed by one thread at a time.
const SUM_CHUNK: usize = 1 << 12;

/// Sequences of some games, time-major, as [`Model::sequence`](crate::model::Model::sequence) takes them.
#[derive(Clone, Debug)]
pub struct Sequences {
    /// Games.
    pub games: usize,
    /// `[num_steps, games, num_features]`.
    pub obs: Vec<f32>,
    /// `[num_steps, games]`: 1 where an episode starts.
    pub starts: Vec<f32>,
    /// `[games, memory_size]`; empty if nothing is remembered.
    pub memory: Vec<f32>,
}

/// A decoder over observations that learns from sequences; several may be in progress at a time.
#[derive(Clone, Debug)]
pub struct SequenceLearner {
    weights: Weights,
    retention: Retention,
    passes: Pool<Vec<Game>>,
    scratches: Pool<Scratch>,
    gradients: Pool<Vec<f32>>,
}

/// The forward pass of a game, as the backward pass needs it.
#[derive(Debug, Default)]
struct Game {
    obs: Vec<f32>,
    piece: Option<Piece>,
    tape: Tape,
    logits: Vec<f32>,
}

/// Attention over a game's own steps and those remembered before.
struct Remembered<'a> {
    piece: &'a Piece,
    keys_values: [Vec<f32>; 2],
}

impl Attend for Remembered<'_> {
    fn attend(
        &mut self,
        weights: &Weights,
        layer: usize,
        activations: &mut Activations,
        scratch: &mut sequence::Scratch,
    ) {
        let shape = weights.shape.head_shape();
        let Activations { heads, attended, log_totals, .. } = activations;
        self.piece.gather(layer, heads, shape.kv_size(), &mut self.keys_values);
        let [keys, values] = &self.keys_values;
        let of = Heads { queries: &heads[0], keys, values };
        let mask = self.piece.mask(weights, layer);
        sequence::forward(&shape, of, &mask, [attended, log_totals], scratch);
    }
}

impl SequenceLearner {
    /// A learner of decoders of this shape, without parameters yet. With `checkpointing` the forward pass keeps only the
    /// stream before each layer, and the backward pass recomputes the layers: a third more work, and the same gradient
    /// to the last bit.
    pub fn new(shape: &DecoderShape, checkpointing: bool) -> Self {
        let params = DecoderParams::default();
        Self {
            weights: Weights::new(shape.clone(), params, Parallelism::Sequential),
            retention: match checkpointing {
                true => Retention::Inputs,
                false => Retention::All,
            },
            passes: Pool::default(),
            scratches: Pool::default(),
            gradients: Pool::default(),
        }
    }

    /// Takes parameters, in the order of [`flatten`](crate::model::flatten), for all that follows.
    ///
    /// # Panics
    /// If their number is not that of the shape.
    pub fn set_params(&mut self, params: Vec<f32>) {
        assert_eq!(params.len(), self.weights.shape.num_params(), "params: [num_params]");
        self.weights.params = params.into();
        self.weights.repack();
    }

    /// Logits of sequences: `[num_steps, games, num_actions]`.
    ///
    /// # Panics
    /// If there are no parameters yet, or lengths do not belong together.
    pub fn logits(&self, of: &Sequences) -> Vec<f32> {
        self.passes.with(|games| self.forward(of, games, of.games))
    }

    /// The gradient of all parameters, the sum of at most `partials` partial ones, which are computed in parallel;
    /// `slopes` returns the gradient of the logits that it is given.
    ///
    /// # Panics
    /// If there are no parameters yet, or lengths do not belong together.
    pub fn gradient(
        &self,
        of: &Sequences,
        partials: usize,
        slopes: impl FnOnce(Vec<f32>) -> Vec<f32>,
    ) -> Vec<f32> {
        self.passes.with(|games| {
            let d_logits = slopes(self.forward(of, games, partials));
            self.backward(games, &d_logits, partials)
        })
    }

    /// Takes back the memory of a gradient, for the next one.
    pub fn give_back(&self, gradient: Vec<f32>) {
        self.gradients.put(gradient);
    }

    /// Takes all games forward, in so many parts side by side.
    fn forward(&self, of: &Sequences, all: &mut Vec<Game>, parts: usize) -> Vec<f32> {
        let (shape, games) = (&self.weights.shape, of.games);
        let (steps, actions) = (of.starts.len() / games, shape.num_actions);
        let rows = of.memory.len() / shape.memory_size();
        assert!(!self.weights.params.is_empty(), "parameters");
        assert!(rows == 0 || rows == games, "memory: [games, memory_size], or nothing");
        assert_eq!(
            of.obs.len(),
            steps * games * shape.num_features,
            "obs: [steps, games, features]"
        );
        all.resize_with(games, Game::default);
        let share = games.div_ceil(parts);
        all.par_chunks_mut(share).enumerate().for_each(|(number, part)| {
            self.scratches.with(|scratch| {
                for (i, game) in part.iter_mut().enumerate() {
                    let piece = self.begin(of, number * share + i, game);
                    self.game_forward(game, &piece, scratch);
                    game.piece = Some(piece);
                }
            });
        });
        let mut logits = vec![0.0; steps * games * actions];
        for (slot, to) in logits.chunks_exact_mut(actions).enumerate() {
            to.copy_from_slice(&all[slot % games].logits[slot / games * actions..][..actions]);
        }
        logits
    }

    /// Takes all games back, and adds up their gradients.
    fn backward(&self, all: &[Game], d_logits: &[f32], partials: usize) -> Vec<f32> {
        let (games, actions) = (all.len(), self.weights.shape.num_actions);
        let share = games.div_ceil(partials);
        let partial = |(number, part): (usize, &[Game])| {
            let mut gradient = self.gradients.take();
            gradient.clear();
            gradient.resize(self.weights.params.len(), 0.0);
            self.scratches.with(|scratch| {
                for (i, game) in part.iter().enumerate() {
                    let at = |t: usize| ((t * games) + number * share + i) * actions;
                    let steps = game.logits.len() / actions;
                    let rows = (0..steps).flat_map(|t| &d_logits[at(t)..at(t) + actions]);
                    let d_logits = rows.copied().collect::<Vec<f32>>();
                    self.game_backward(game, &d_logits, &mut gradient, scratch);
                }
            });
            gradient
        };
        let partials: Vec<_> = all.par_chunks(share).enumerate().map(partial).collect();
        let mut partials = partials.into_iter();
        let mut gradient = partials.next().expect("there are games");
        let others: Vec<_> = partials.collect();
        gradient.par_chunks_mut(SUM_CHUNK).enumerate().for_each(|(i, sum)| {
            for other in &others {
                let part = &other[i * SUM_CHUNK..][..sum.len()];
                sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
        });
        others.into_iter().for_each(|other| self.give_back(other));
        gradient
    }

    /// The linear layer of observations.
    fn input(&self) -> &LinearLayout {
        self.weights.layout.input.as_ref().expect("observations enter")
    }

    /// Takes a game forward.
    fn game_forward(&self, game: &mut Game, piece: &Piece, scratch: &mut Scratch) {
        let Weights { shape, layout, .. } = &self.weights;
        let Game { obs, tape, logits, .. } = game;
        let mut stream = std::mem::take(&mut scratch.stream);
        stream.resize(piece.rows.len() * shape.hidden_size, 0.0);
        self.weights.linear(self.input(), obs, &mut stream, false);
        let keys_values = std::mem::take(&mut scratch.keys_values);
        let mut attend = Remembered { piece, keys_values };
        self.weights.forward(&mut stream, self.retention, &mut attend, tape, scratch);
        scratch.keys_values = attend.keys_values;
        scratch.stream = stream;
        logits.resize(piece.rows.len() * shape.num_actions, 0.0);
        self.weights.linear(&layout.head, &tape.hidden, logits, false);
    }

    /// Copies into game `i` all that does not depend on parameters; returns its rows and what they see.
    fn begin(&self, of: &Sequences, i: usize, game: &mut Game) -> Piece {
        let (shape, games) = (&self.weights.shape, of.games);
        let memory = of.memory.chunks_exact(shape.memory_size()).nth(i);
        let seen = memory.map_or(0, |memory| memory[0] as usize);
        let steps = of.starts.len() / games;
        let (features, context) = (shape.num_features, shape.context);
        let row = |t: usize| &of.obs[(t * games + i) * features..][..features];
        game.obs.clear();
        (0..steps).for_each(|t| game.obs.extend_from_slice(row(t)));
        let is_start = |t: usize| of.starts[t * games + i] == 1.0;
        let prefix = if is_start(0) { 0 } else { seen.min(context - 1) };
        let tables = &self.weights.rope;
        game.tape.rotations.resize_with(tables.len(), Vec::new);
        game.tape.rotations.iter_mut().for_each(Vec::clear);
        let (mut start, mut position) = (0, seen);
        let mut starts = Vec::with_capacity(steps);
        for t in 0..steps {
            if is_start(t) {
                (start, position) = (prefix + t, 0);
            }
            starts.push(start);
            for (rotations, table) in game.tape.rotations.iter_mut().zip(tables) {
                rotations.extend(table.at(position));
            }
            position += 1;
        }
        // The remembered steps that the first rows see, the oldest first.
        let kv = shape.kv_size();
        let rows = |cache: &[f32]| {
            let rows = (seen - prefix..seen).map(|step| step % context);
            rows.flat_map(|row| &cache[row * kv..][..kv]).copied().collect::<Vec<f32>>()
        };
        let caches = |layer: usize| {
            let Some(memory) = memory else { return Default::default() };
            let caches = &memory[shape.cache_start(layer)..][..2 * shape.cache_size()];
            let (keys, values) = caches.split_at(shape.cache_size());
            [rows(keys), rows(values)]
        };
        let prefix = Prefix::Memory((0..shape.num_layers).map(caches).collect());
        Piece { rows: 0..steps, prefix, starts }
    }

    /// Adds the gradient of a game's parameters, from that of its logits, to `gradient`.
    fn game_backward(
        &self,
        game: &Game,
        d_logits: &[f32],
        gradient: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let (weights, tape) = (&self.weights, &game.tape);
        let piece = game.piece.as_ref().expect("the game went forward");
        let mut d_normed = std::mem::take(&mut scratch.d_input);
        let mut d_stream = std::mem::take(&mut scratch.d_stream);
        d_normed.resize(tape.hidden.len(), 0.0);
        d_stream.resize(tape.hidden.len(), 0.0);
        let head = [(&weights.layout.head, d_logits)];
        weights.linears_backward(&tape.hidden, head, (&mut d_normed, false), gradient);
        weights.last_norm_backward(tape, &mut d_normed, &mut d_stream, gradient);
        scratch.d_input = d_normed;
        let of = ForwardRecord { tape, pieces: std::slice::from_ref(piece) };
        let mut attend = Remembered { piece, keys_values: Default::default() };
        for number in (0..weights.shape.num_layers).rev() {
            weights.layer_backward(number, &of, &mut attend, &mut d_stream, gradient, scratch);
        }
        weights.weight_grads(&game.obs, [(self.input(), &d_stream[..])], gradient);
        scratch.d_stream = d_stream;
    }
}
