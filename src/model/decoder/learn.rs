//! Whole sequences on the CPU, forward and backward by hand, for learning: what autodiff makes of
//! [`Decoder`](super::Decoder), in a fraction of the time.
//!
//! A game's sequence is worked off by one thread from the first layer to the last. The games are shared out
//! among partial gradients, whose number does not depend on that of the threads, and which are summed in a fixed
//! order, so that any number of threads gives the same bytes.

use super::attention::{Found, Heads, Room, Sight, backward, forward};
use super::layers::{Normed, Slots, bias_gradient, gate, gate_backward, norm_backward, turn};
use super::product::{Packed, Target, View, product, product_packed};
use super::rope::Turns;
use super::shape::DecoderShape;
use rayon::prelude::*;
use std::ops::Range;

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
    /// `[games, memory_size]`, or what all games have in memory, `[1, memory_size]`.
    pub memory: Vec<f32>,
}

/// Learns a decoder's parameters from sequences.
#[derive(Clone, Debug)]
pub struct SequenceLearner {
    shape: DecoderShape,
    slots: Slots,
    turns: Turns,
    /// The parameters that were packed last, and the matrices as products read them: for the way forward, and with
    /// rows and columns exchanged.
    packed: Vec<f32>,
    matrices: Matrices,
    exchanged: Matrices,
    games: Vec<Game>,
    shards: Vec<Shard>,
    /// Whether layers are computed anew on the way back, instead of kept.
    checkpointing: bool,
}

/// What a forward pass over a game leaves for the backward one.
#[derive(Clone, Debug, Default)]
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
#[derive(Clone, Debug, Default)]
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

/// What one thread works with: a partial gradient and room.
#[derive(Clone, Debug, Default)]
struct Shard {
    gradient: Vec<f32>,
    room: Room,
    /// A layer that is computed anew.
    layer: Layer,
    stream: Vec<f32>,
    wide: [Vec<f32>; 2],
    normed: Vec<f32>,
    found: Vec<f32>,
    heads: [Vec<f32>; 3],
}

/// The matrices of a decoder, packed.
#[derive(Clone, Debug, Default)]
struct Matrices {
    input: Packed,
    layers: Vec<LayerMatrices>,
    head: Packed,
}

/// The matrices of a layer, packed.
#[derive(Clone, Debug, Default)]
struct LayerMatrices {
    /// Of queries, keys and values.
    projections: [Packed; 3],
    /// Of what attention found.
    found: Packed,
    gate: Packed,
    up: Packed,
    down: Packed,
}

impl Matrices {
    /// Packs all matrices, where `exchanged` with rows and columns exchanged.
    fn pack(&mut self, slots: &Slots, params: &[f32], exchanged: bool) {
        let pack = |slot: &Range<usize>, outputs: usize, packed: &mut Packed| {
            let (view, inputs) = (View::rows(&params[slot.clone()], outputs), slot.len() / outputs);
            match exchanged {
                true => packed.pack(view.transposed(), outputs, inputs),
                false => packed.pack(view, inputs, outputs),
            }
        };
        let size = slots.norm.len();
        self.layers.resize_with(slots.layers.len(), LayerMatrices::default);
        self.layers.par_iter_mut().zip(&slots.layers).for_each(|(to, layer)| {
            for (linear, to) in layer.projections.iter().zip(&mut to.projections) {
                pack(&linear.weight, linear.weight.len() / size, to);
            }
            pack(&layer.found, size, &mut to.found);
            pack(&layer.gate, layer.gate.len() / size, &mut to.gate);
            pack(&layer.up, layer.up.len() / size, &mut to.up);
            pack(&layer.down, size, &mut to.down);
        });
        pack(&slots.input.weight, size, &mut self.input);
        pack(&slots.head, slots.head.len() / size, &mut self.head);
    }
}

/// `y = x w`, rows without gaps.
fn apply(x: &[f32], weight: &Packed, y: &mut [f32], add: bool) {
    let target = Target { values: y, row: weight.columns(), add };
    product_packed(
        View::rows(x, weight.inner()),
        weight.strips(),
        target,
        x.len() / weight.inner(),
    );
}

/// `gradient += x^T dy`, that of a weight.
fn weigh(x: &[f32], dy: &[f32], inputs: usize, gradient: &mut [f32]) {
    let outputs = gradient.len() / inputs;
    let target = Target { values: gradient, row: outputs, add: true };
    let sizes = [inputs, x.len() / inputs, outputs];
    product(View::rows(x, inputs).transposed(), View::rows(dy, outputs), target, sizes);
}

impl SequenceLearner {
    /// The learner of decoders of this shape. With `checkpointing` it keeps only the stream before each
    /// layer on the way forward and computes the layers anew on the way back: a third more work, and the
    /// same gradient to the last bit.
    pub fn new(shape: &DecoderShape, checkpointing: bool) -> Self {
        Self {
            slots: Slots::new(shape),
            turns: Turns::new(shape),
            shape: shape.clone(),
            packed: Vec::new(),
            matrices: Matrices::default(),
            exchanged: Matrices::default(),
            games: Vec::new(),
            shards: Vec::new(),
            checkpointing,
        }
    }

    /// Logits `[num_steps, games, num_actions]` of sequences under parameters in the order of
    /// [`flatten`](crate::model::flatten).
    ///
    /// # Panics
    /// If lengths do not belong together.
    pub fn logits(&mut self, params: &[f32], of: &Sequences) -> Vec<f32> {
        let (games, row) = (of.games, self.shape.memory_size());
        let rows = of.memory.len() / row;
        assert!(
            of.memory.len() == rows * row && (rows == 1 || rows == games),
            "memory: [games, memory_size], or one row"
        );
        let (steps, actions) = (of.starts.len() / games, self.shape.num_actions);
        assert_eq!(
            of.obs.len(),
            steps * games * self.shape.num_features,
            "obs: [steps, games, features]"
        );
        let mut all = std::mem::take(&mut self.games);
        all.resize_with(games, Game::default);
        if self.packed != params {
            self.packed.clear();
            self.matrices.pack(&self.slots, params, false);
            self.exchanged.pack(&self.slots, params, true);
            self.packed.extend_from_slice(params);
        }
        all.par_iter_mut().enumerate().for_each(|(i, game)| self.look(params, of, i, game));
        let mut logits = vec![0.0; steps * games * actions];
        for (slot, to) in logits.chunks_exact_mut(actions).enumerate() {
            to.copy_from_slice(&all[slot % games].logits[slot / games * actions..][..actions]);
        }
        self.games = all;
        logits
    }

    /// The gradient of all parameters, from that of the logits that [`SequenceLearner::logits`] gave last, as the sum of
    /// so many partial ones at most.
    ///
    /// # Panics
    /// If lengths do not belong together, or the parameters are others than those of the logits.
    pub fn gradient(&mut self, params: &[f32], of_logits: &[f32], partials: usize) -> Vec<f32> {
        let (games, actions) = (self.games.len(), self.shape.num_actions);
        assert!(self.packed == params, "the parameters are those of the logits");
        let share = games.div_ceil(partials);
        let mut shards = std::mem::take(&mut self.shards);
        shards.resize_with(games.div_ceil(share), Shard::default);
        let numbered = self.games.par_chunks(share).zip(&mut shards).enumerate();
        numbered.for_each(|(number, (part, shard))| {
            shard.gradient.clear();
            shard.gradient.resize(params.len(), 0.0);
            for (i, game) in part.iter().enumerate() {
                let at = |t: usize| ((t * games) + number * share + i) * actions;
                let rows = (0..game.steps).flat_map(|t| &of_logits[at(t)..at(t) + actions]);
                self.learn(params, game, &rows.copied().collect::<Vec<f32>>(), shard);
            }
        });
        let mut gradient = shards[0].gradient.clone();
        gradient.par_chunks_mut(SUM_CHUNK).enumerate().for_each(|(i, sum)| {
            for shard in &shards[1..] {
                let part = &shard.gradient[i * SUM_CHUNK..][..sum.len()];
                sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x);
            }
        });
        self.shards = shards;
        gradient
    }

    /// Goes forward over game `i`.
    fn look(&self, params: &[f32], of: &Sequences, i: usize, game: &mut Game) {
        let shape = &self.shape;
        self.begin(of, i, game);
        let mut stream = vec![0.0; game.steps * shape.hidden_size];
        apply(&game.obs, &self.matrices.input, &mut stream, false);
        self.slots.input.add_bias(params, &mut stream);
        let (mut layers, mut streams) =
            (std::mem::take(&mut game.layers), std::mem::take(&mut game.streams));
        let (mut room, mut anew) = (Room::default(), Layer::default());
        let kept = if self.checkpointing { 0 } else { shape.num_layers };
        layers.resize_with(kept, Layer::default);
        streams.resize_with(shape.num_layers - kept, Vec::new);
        for number in 0..shape.num_layers {
            if let Some(kept) = streams.get_mut(number) {
                kept.clone_from(&stream);
            }
            let layer = layers.get_mut(number).unwrap_or(&mut anew);
            self.layer(params, number, game, &mut stream, layer, &mut room);
        }
        (game.layers, game.streams) = (layers, streams);
        game.last.forward(&stream, &params[self.slots.norm.clone()], shape.rms_norm_eps);
        game.logits.resize(game.steps * shape.num_actions, 0.0);
        apply(&game.last.normed, &self.matrices.head, &mut game.logits, false);
    }

    /// Takes the stream through a layer.
    fn layer(
        &self,
        params: &[f32],
        number: usize,
        game: &Game,
        stream: &mut [f32],
        layer: &mut Layer,
        room: &mut Room,
    ) {
        let shape = &self.shape;
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
        let shape = &self.shape;
        let games = of.games;
        let row = if of.memory.len() == shape.memory_size() { 0 } else { i };
        let memory = &of.memory[row * shape.memory_size()..][..shape.memory_size()];
        let seen = memory[0] as usize;
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
        let caches = (0..shape.num_layers).map(|number| {
            let caches = &memory[shape.cache_start(number)..][..2 * shape.cache_size()];
            let (keys, values) = caches.split_at(shape.cache_size());
            [rows(keys), rows(values)]
        });
        game.before = caches.collect();
    }

    /// Adds the gradient of a game, from that of its logits, to a shard's.
    fn learn(&self, params: &[f32], game: &Game, of_logits: &[f32], shard: &mut Shard) {
        let (shape, slots, exchanged) = (&self.shape, &self.slots, &self.exchanged);
        let (size, kv, inner) = (shape.hidden_size, shape.kv_size(), shape.intermediate_size);
        let (steps, own) = (game.steps, game.sight.before * shape.kv_size());
        let Shard { gradient: g, room, layer: anew, stream, wide, normed, found, heads } = shard;
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
            if let Some(stream) = game.streams.get(number) {
                self.layer(params, number, game, &mut stream.clone(), anew, room);
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
            backward(shape, Heads { queries, keys, values }, &game.sight, of, to, room);
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
