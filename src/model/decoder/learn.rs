//! Whole sequences on the CPU, forward and backward by hand, for learning: what autodiff makes of
//! [`Decoder`](super::Decoder), in a fraction of the time.
//!
//! A game's sequence is worked off by one thread from the first layer to the last. The games are shared out
//! among partial gradients, whose number does not depend on that of the threads, and which are summed in a fixed
//! order, so that any number of threads gives the same bytes.

use super::attention::{self, Found, Heads, Sight, backward, forward};
use super::layers::{Normed, Slots, bias_gradient, gate, gate_backward, norm_backward, turn};
use super::matrices::{Matrices, apply, weigh};
use super::rope::Turns;
use super::shape::DecoderShape;
use rayon::prelude::*;
use std::mem;
use std::sync::{Mutex, PoisonError};

/// The parameters that are summed up by one thread at a time.
const SUM_CHUNK: usize = 1 << 12;

/// Sequences of some games, time-major, as [`Model::sequence`](crate::model::Model::sequence) takes them.
#[derive(Clone, Debug)]
pub struct Sequences {
    /// Games.
    pub games: usize,
    /// `[num_steps, games, num_features]`.
    pub obs: Vec<f32>,
    /// `[num_steps, games]`.
    pub starts: Vec<f32>,
    /// `[games, memory_size]`; empty where nothing was before.
    pub memory: Vec<f32>,
}

/// Learns a decoder's parameters from sequences, of which several may be worked off at a time.
#[derive(Clone, Debug)]
pub struct SequenceLearner {
    shape: DecoderShape,
    slots: Slots,
    turns: Turns,
    /// Whether layers are computed anew on the way back, instead of kept.
    checkpointing: bool,
    /// The parameters, and their matrices as products read them: for the way forward, and with rows and columns
    /// exchanged.
    params: Vec<f32>,
    matrices: Matrices,
    exchanged: Matrices,
    passes: Pool<Vec<Game>>,
    rooms: Pool<Room>,
    gradients: Pool<Vec<f32>>,
}

/// Things that whoever needs one takes for a while, so that there are as many as are needed at a time. A copy of a
/// pool has none.
#[derive(Debug, Default)]
struct Pool<T>(Mutex<Vec<T>>);

impl<T: Default> Pool<T> {
    /// One that nobody else has.
    fn take(&self) -> T {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        last.unwrap_or_default()
    }

    /// Puts one back, for whoever needs one next.
    fn put(&self, one: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    }

    /// Does something with one.
    fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mut one = self.take();
        let done = work(&mut one);
        self.put(one);
        done
    }
}

impl<T: Default> Clone for Pool<T> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What a forward pass over a game leaves for the backward one.
#[derive(Debug, Default)]
struct Game {
    steps: usize,
    obs: Vec<f32>,
    sight: Sight,
    /// Cosines and sines: `[num_steps, head_dim / 2]`.
    turns: Vec<[f32; 2]>,
    /// Keys and values of each layer that were there before: `[before, kv_size]`.
    before: Vec<[Vec<f32>; 2]>,
    /// Every layer, unless they are computed anew: then the stream before each of them.
    layers: Vec<Layer>,
    streams: Vec<Vec<f32>>,
    last: Normed,
    logits: Vec<f32>,
}

/// A layer of a game.
#[derive(Debug, Default)]
struct Layer {
    first: Normed,
    queries: Vec<f32>,
    /// Those of memory, and the sequence's own.
    keys: Vec<f32>,
    values: Vec<f32>,
    found: Vec<f32>,
    totals: Vec<f32>,
    second: Normed,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// `silu(gate) * up`.
    inner: Vec<f32>,
}

/// What a thread needs while it takes a game forward or back.
#[derive(Debug, Default)]
struct Room {
    attention: attention::Room,
    stream: Vec<f32>,
    /// A layer that is not kept, and its stream when it is computed again.
    layer: Layer,
    again: Vec<f32>,
    wide: [Vec<f32>; 2],
    normed: Vec<f32>,
    found: Vec<f32>,
    heads: [Vec<f32>; 3],
}

impl SequenceLearner {
    /// The learner of decoders of this shape, without parameters yet. With `checkpointing` it keeps only the stream
    /// before each layer on the way forward and computes the layers anew on the way back: a third more work, and the
    /// same gradient to the last bit.
    pub fn new(shape: &DecoderShape, checkpointing: bool) -> Self {
        Self {
            slots: Slots::new(shape),
            turns: Turns::new(shape),
            shape: shape.clone(),
            checkpointing,
            params: Vec::new(),
            matrices: Matrices::default(),
            exchanged: Matrices::default(),
            passes: Pool::default(),
            rooms: Pool::default(),
            gradients: Pool::default(),
        }
    }

    /// Takes parameters, in the order of [`flatten`](crate::model::flatten), for all that follows.
    pub fn set_params(&mut self, params: Vec<f32>) {
        self.matrices.pack(&self.slots, &params, false);
        self.exchanged.pack(&self.slots, &params, true);
        self.params = params;
    }

    /// Logits of sequences: `[num_steps, games, num_actions]`.
    ///
    /// # Panics
    /// If there are no parameters yet, or lengths do not belong together.
    pub fn logits(&self, of: &Sequences) -> Vec<f32> {
        self.passes.with(|games| self.forward(of, games, of.games))
    }

    /// The gradient of all parameters, as the sum of so many partial ones at most, which are worked off at a time;
    /// `slopes` gives that of the logits, which it is given.
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
            let of_logits = slopes(self.forward(of, games, partials));
            self.backward(games, &of_logits, partials)
        })
    }

    /// Takes back the memory of a gradient, for the next one.
    pub fn give_back(&self, gradient: Vec<f32>) {
        self.gradients.put(gradient);
    }

    /// Takes all games forward, so many parts of them at a time.
    fn forward(&self, of: &Sequences, all: &mut Vec<Game>, parts: usize) -> Vec<f32> {
        let (games, actions) = (of.games, self.shape.num_actions);
        let steps = of.starts.len() / games;
        let rows = of.memory.len() / self.shape.memory_size();
        assert!(!self.params.is_empty(), "parameters");
        assert!(rows == 0 || rows == games, "memory: [games, memory_size], or nothing");
        let features = steps * games * self.shape.num_features;
        assert_eq!(of.obs.len(), features, "obs: [steps, games, features]");
        all.resize_with(games, Game::default);
        let share = games.div_ceil(parts);
        all.par_chunks_mut(share).enumerate().for_each(|(number, part)| {
            self.rooms.with(|room| {
                for (i, game) in part.iter_mut().enumerate() {
                    self.begin(of, number * share + i, game);
                    self.look(game, room);
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
    fn backward(&self, all: &[Game], of_logits: &[f32], partials: usize) -> Vec<f32> {
        let (games, actions) = (all.len(), self.shape.num_actions);
        let share = games.div_ceil(partials);
        let partial = |(number, part): (usize, &[Game])| {
            let mut gradient = self.gradients.take();
            gradient.clear();
            gradient.resize(self.params.len(), 0.0);
            self.rooms.with(|room| {
                for (i, game) in part.iter().enumerate() {
                    let at = |t: usize| ((t * games) + number * share + i) * actions;
                    let rows = (0..game.steps).flat_map(|t| &of_logits[at(t)..at(t) + actions]);
                    self.learn(game, &rows.copied().collect::<Vec<f32>>(), &mut gradient, room);
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

    /// Goes forward over a game.
    fn look(&self, game: &mut Game, room: &mut Room) {
        let (shape, params) = (&self.shape, &self.params);
        let (mut layers, mut streams) = (mem::take(&mut game.layers), mem::take(&mut game.streams));
        let kept = if self.checkpointing { 0 } else { shape.num_layers };
        layers.resize_with(kept, Layer::default);
        streams.resize_with(shape.num_layers - kept, Vec::new);
        let Room { attention, layer: anew, stream, .. } = room;
        stream.resize(game.steps * shape.hidden_size, 0.0);
        apply(&game.obs, &self.matrices.input, stream, false);
        self.slots.input.add_bias(params, stream);
        for number in 0..shape.num_layers {
            if let Some(kept) = streams.get_mut(number) {
                kept.clone_from(stream);
            }
            let layer = layers.get_mut(number).unwrap_or(anew);
            self.layer(number, game, stream, layer, attention);
        }
        (game.layers, game.streams) = (layers, streams);
        game.last.forward(stream, &params[self.slots.norm.clone()], shape.rms_norm_eps);
        game.logits.resize(game.steps * shape.num_actions, 0.0);
        apply(&game.last.normed, &self.matrices.head, &mut game.logits, false);
    }

    /// Takes the stream through a layer.
    fn layer(
        &self,
        number: usize,
        game: &Game,
        stream: &mut [f32],
        layer: &mut Layer,
        room: &mut attention::Room,
    ) {
        let (shape, params) = (&self.shape, &self.params);
        let (slot, matrices) = (&self.slots.layers[number], &self.matrices.layers[number]);
        let (size, kv, eps) = (shape.hidden_size, shape.kv_size(), shape.rms_norm_eps);
        let (steps, before) = (game.steps, game.sight.before);
        layer.first.forward(stream, &params[slot.first.clone()], eps);
        layer.queries.resize(steps * size, 0.0);
        layer.found.resize(steps * size, 0.0);
        layer.totals.resize(steps * shape.num_heads, 0.0);
        let all = [&mut layer.keys, &mut layer.values];
        for (all, before) in all.into_iter().zip(&game.before[number]) {
            all.clear();
            all.extend_from_slice(before);
            all.resize(before.len() + steps * kv, 0.0);
        }
        let normed = &layer.first.normed;
        let own = before * kv;
        let outputs = [&mut layer.queries[..], &mut layer.keys[own..], &mut layer.values[own..]];
        let linear = slot.projections.iter().zip(&matrices.projections);
        for ((linear, matrix), output) in linear.zip(outputs) {
            apply(normed, matrix, output, false);
            linear.add_bias(params, output);
        }
        turn(&mut layer.queries, shape.head_dim, &game.turns, 1.0);
        turn(&mut layer.keys[own..], shape.head_dim, &game.turns, 1.0);
        let Layer { queries, keys, values, found, totals, .. } = layer;
        let heads = Heads { queries, keys, values };
        forward(shape, heads, &game.sight, [found, totals], room);
        apply(found, &matrices.found, stream, true);
        layer.second.forward(stream, &params[slot.second.clone()], eps);
        let inner = steps * shape.intermediate_size;
        for (output, matrix) in [(&mut layer.gate, &matrices.gate), (&mut layer.up, &matrices.up)] {
            output.resize(inner, 0.0);
            apply(&layer.second.normed, matrix, output, false);
        }
        layer.inner.resize(inner, 0.0);
        gate(&layer.gate, &layer.up, &mut layer.inner);
        apply(&layer.inner, &matrices.down, stream, true);
    }

    /// Puts what does not depend on parameters into game `i`.
    fn begin(&self, of: &Sequences, i: usize, game: &mut Game) {
        let (shape, games) = (&self.shape, of.games);
        let memory = of.memory.chunks_exact(shape.memory_size()).nth(i);
        let seen = memory.map_or(0, |memory| memory[0] as usize);
        let steps = of.starts.len() / games;
        game.steps = steps;
        let (features, context) = (shape.num_features, shape.context);
        let row = |t: usize| &of.obs[(t * games + i) * features..][..features];
        game.obs.clear();
        (0..steps).for_each(|t| game.obs.extend_from_slice(row(t)));
        let starts = |t: usize| of.starts[t * games + i] == 1.0;
        let before = if starts(0) { 0 } else { seen.min(context - 1) };
        game.sight.before = before;
        game.sight.first.clear();
        game.turns.clear();
        let (mut first, mut position) = (0, seen);
        for t in 0..steps {
            if starts(t) {
                (first, position) = (before + t, 0);
            }
            game.sight.first.push(first.max((before + t + 1).saturating_sub(context)));
            game.turns.extend(self.turns.at(position));
            position += 1;
        }
        // What the first steps see of memory, the oldest first.
        let kv = shape.kv_size();
        let rows = |cache: &[f32]| {
            let rows = (seen - before..seen).map(|step| step % context);
            rows.flat_map(|row| &cache[row * kv..][..kv]).copied().collect::<Vec<f32>>()
        };
        let caches = |number: usize| {
            let Some(memory) = memory else { return Default::default() };
            let caches = &memory[shape.cache_start(number)..][..2 * shape.cache_size()];
            let (keys, values) = caches.split_at(shape.cache_size());
            [rows(keys), rows(values)]
        };
        game.before = (0..shape.num_layers).map(caches).collect();
    }

    /// Adds the gradient of a game, from that of its logits, to `g`.
    fn learn(&self, game: &Game, of_logits: &[f32], g: &mut [f32], room: &mut Room) {
        let Self { shape, slots, params, exchanged, .. } = self;
        let (size, kv, inner) = (shape.hidden_size, shape.kv_size(), shape.intermediate_size);
        let (steps, own) = (game.steps, game.sight.before * shape.kv_size());
        let Room { attention, stream, layer: anew, again, wide, normed, found, heads } = room;
        for (room, count) in [(&mut *stream, size), (&mut *normed, size), (&mut *found, size)] {
            room.resize(steps * count, 0.0);
        }
        let [d_inner, d_up] = wide;
        d_inner.resize(steps * inner, 0.0);
        d_up.resize(steps * inner, 0.0);
        weigh(&game.last.normed, of_logits, size, &mut g[slots.head.clone()]);
        apply(of_logits, &exchanged.head, normed, false);
        stream.fill(0.0);
        let Normed { stream: x, scale, .. } = &game.last;
        let norm_slot = slots.norm.clone();
        norm_backward(x, &params[norm_slot.clone()], scale, normed, [stream, &mut g[norm_slot]]);
        for number in (0..shape.num_layers).rev() {
            let (slot, exchanged) = (&slots.layers[number], &exchanged.layers[number]);
            if let Some(kept) = game.streams.get(number) {
                again.clone_from(kept);
                self.layer(number, game, again, anew, attention);
            }
            let layer = game.layers.get(number).unwrap_or(anew);
            // The gated network: `normed` is the gradient of what it was given.
            weigh(&layer.inner, stream, inner, &mut g[slot.down.clone()]);
            apply(stream, &exchanged.down, d_inner, false);
            gate_backward(&layer.gate, &layer.up, d_inner, d_up);
            weigh(&layer.second.normed, d_inner, size, &mut g[slot.gate.clone()]);
            weigh(&layer.second.normed, d_up, size, &mut g[slot.up.clone()]);
            apply(d_inner, &exchanged.gate, normed, false);
            apply(d_up, &exchanged.up, normed, true);
            let Normed { stream: x, scale, .. } = &layer.second;
            let weight = &params[slot.second.clone()];
            norm_backward(x, weight, scale, normed, [stream, &mut g[slot.second.clone()]]);
            // Attention.
            weigh(&layer.found, stream, size, &mut g[slot.found.clone()]);
            apply(stream, &exchanged.found, found, false);
            let [d_queries, d_keys, d_values] = heads;
            d_queries.resize(steps * size, 0.0);
            for d in [&mut *d_keys, &mut *d_values] {
                d.clear();
                d.resize(own + steps * kv, 0.0);
            }
            let Layer { queries, keys, values, totals, .. } = layer;
            let of = Found { found: &layer.found, totals, gradient: found };
            let to = [&mut d_queries[..], &mut d_keys[..], &mut d_values[..]];
            backward(shape, Heads { queries, keys, values }, &game.sight, of, to, attention);
            turn(d_queries, shape.head_dim, &game.turns, -1.0);
            turn(&mut d_keys[own..], shape.head_dim, &game.turns, -1.0);
            let outputs = [&d_queries[..], &d_keys[own..], &d_values[own..]];
            for (i, (linear, d)) in slot.projections.iter().zip(outputs).enumerate() {
                weigh(&layer.first.normed, d, size, &mut g[linear.weight.clone()]);
                bias_gradient(d, &mut g[linear.bias.clone()]);
                apply(d, &exchanged.projections[i], normed, i > 0);
            }
            let Normed { stream: x, scale, .. } = &layer.first;
            let weight = &params[slot.first.clone()];
            norm_backward(x, weight, scale, normed, [stream, &mut g[slot.first.clone()]]);
        }
        weigh(&game.obs, stream, shape.num_features, &mut g[slots.input.weight.clone()]);
        bias_gradient(stream, &mut g[slots.input.bias.clone()]);
    }
}
