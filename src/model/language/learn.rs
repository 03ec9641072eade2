//! Groups of completions on their way through a decoder and back.
//!
//! A prompt goes forward once and back once, whatever the number of its completions: what those find in it
//! is what generation finds, and on the way back the gradients of its keys and values are added up.

use super::cache::Cache;
use super::matrix::Kind;
use super::rows::{Keep, Layer, PROJECTIONS, Pass, Row, TokenDecoder};
use crate::model::decoder::attention::{Found, Heads, Room, Sight, backward};
use crate::model::decoder::layers::{Normed, bias_gradient, gate_backward, norm_backward, turn};
use rayon::prelude::*;
use std::ops::Range;

/// A prompt and its completions, as tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text<'a> {
    /// One token or more.
    pub prompt: &'a [u32],
    /// One token or more each.
    pub completions: Vec<&'a [u32]>,
}

/// Texts that went through a decoder, with what the way back needs.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    prompts: Pass,
    completions: Pass,
    prompt_caches: Vec<Cache>,
    completion_caches: Vec<Cache>,
    /// The rows of each prompt in its pass.
    prompt_pieces: Vec<Piece>,
    /// The rows of each completion in its pass, and which of them is the first of each text.
    completion_pieces: Vec<Piece>,
    first_pieces: Vec<usize>,
    /// The normed streams that tokens follow from: of each prompt's last token, then of the completions'
    /// tokens but the last ones: `[predictions, hidden_size]`.
    hidden: Vec<f32>,
}

/// The rows of a piece of text in its pass, and the prompt that it follows.
#[derive(Clone, Debug)]
struct Piece {
    rows: Range<usize>,
    prompt: Option<usize>,
}

impl Reading {
    /// The normed streams that tokens follow from: `[predictions, hidden_size]`.
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Which of [`Reading::hidden`] token number `at` of a completion of a text follows from.
    pub fn prediction(&self, [text, completion]: [usize; 2], at: usize) -> usize {
        let Piece { rows, .. } = &self.completion_pieces[self.first_pieces[text] + completion];
        match at {
            0 => text,
            _ => self.prompt_pieces.len() + rows.start + at - 1,
        }
    }
}

impl TokenDecoder {
    /// Sends texts through all layers.
    ///
    /// # Panics
    /// If a prompt or a completion has no token.
    pub fn read(&self, texts: &[Text], keep: Keep, reading: &mut Reading) {
        let (shape, size) = (self.shape(), self.shape().hidden_size);
        let [mut prompts, mut completions] = [Vec::new(), Vec::new()];
        reading.prompt_pieces.clear();
        reading.completion_pieces.clear();
        reading.first_pieces.clear();
        reading.prompt_caches.resize_with(texts.len(), Cache::default);
        let count = texts.iter().map(|text| text.completions.len()).sum();
        reading.completion_caches.resize_with(count, Cache::default);
        for (number, text) in texts.iter().enumerate() {
            let rows = |tokens: &[u32], cache: usize| -> Vec<Row> {
                let tokens = tokens.iter().enumerate();
                tokens.map(|(at, token)| Row { token: *token, cache, at }).collect()
            };
            reading.first_pieces.push(reading.completion_pieces.len());
            let start = prompts.len();
            prompts.extend(rows(text.prompt, number));
            let layers = shape.num_layers;
            reading.prompt_caches[number].begin(shape, layers, text.prompt.len(), None);
            reading.prompt_pieces.push(Piece { rows: start..prompts.len(), prompt: None });
            for tokens in &text.completions {
                let (start, cache) = (completions.len(), reading.completion_pieces.len());
                completions.extend(rows(&tokens[..tokens.len() - 1], cache));
                let before = Some((number, text.prompt.len()));
                // Nobody but the same layer looks back to these.
                reading.completion_caches[cache].begin(shape, 1, tokens.len(), before);
                let piece = Piece { rows: start..completions.len(), prompt: Some(number) };
                reading.completion_pieces.push(piece);
            }
        }
        self.forward(&prompts, &mut reading.prompt_caches, &[], keep, &mut reading.prompts);
        let (caches, before) = (&mut reading.completion_caches, &reading.prompt_caches);
        self.forward(&completions, caches, before, keep, &mut reading.completions);
        reading.hidden.clear();
        for Piece { rows, .. } in &reading.prompt_pieces {
            let last = &reading.prompts.hidden()[(rows.end - 1) * size..rows.end * size];
            reading.hidden.extend_from_slice(last);
        }
        reading.hidden.extend_from_slice(reading.completions.hidden());
    }

    /// The places in [`TokenDecoder::trained`] at which the layers begin, in order, and before them 0 unless the first
    /// layer begins there: a gradient is whole from one of these on as soon as [`TokenDecoder::learn`] has left that
    /// layer.
    pub fn starts(&self) -> Vec<usize> {
        let layers = self.shape().num_layers;
        let mut starts = vec![0];
        starts.extend((0..layers).map(|layer| match &self.adapters {
            Some(adapters) => adapters.params.len() / layers * layer,
            None => self.slots.layers[layer].first.start,
        }));
        starts.dedup();
        starts
    }

    /// Adds the gradient of the parameters, from that of [`Reading::hidden`], to `gradient`. From the last layer to the
    /// first, `done` hears from which of [`TokenDecoder::starts`] on nothing more is added.
    pub fn learn(
        &self,
        reading: &mut Reading,
        of_hidden: &[f32],
        gradient: &mut [f32],
        mut done: impl FnMut(&[f32], usize),
    ) {
        let (shape, size) = (self.shape(), self.shape().hidden_size);
        let Reading { prompts, completions, prompt_pieces, completion_pieces, .. } = reading;
        let (of_last, of_completions) = of_hidden.split_at(prompt_pieces.len() * size);
        let mut of_prompts = vec![0.0; prompts.rows.len() * size];
        for (Piece { rows, .. }, of) in prompt_pieces.iter().zip(of_last.chunks(size)) {
            of_prompts[(rows.end - 1) * size..rows.end * size].copy_from_slice(of);
        }
        let [of_keys_values, gates] = Default::default();
        let mut back = Back { decoder: self, gradient, of_keys_values, gates };
        let mut of_completions = back.last_norm(completions, of_completions);
        let mut of_prompts = back.last_norm(prompts, &of_prompts);
        let starts = self.starts();
        let first = starts.len() - shape.num_layers;
        for number in (0..shape.num_layers).rev() {
            let before =
                Before { pass: prompts, caches: &reading.prompt_caches, pieces: prompt_pieces };
            let of_prompt = prompts.rows.len() * shape.kv_size();
            back.of_keys_values = [(); 2].map(|()| vec![0.0; of_prompt]);
            let caches = &mut reading.completion_caches;
            let through = (&*completions, &mut caches[..], &completion_pieces[..]);
            back.layer(number, through, Some(before), &mut of_completions);
            let through = (&*prompts, &mut reading.prompt_caches[..], &prompt_pieces[..]);
            back.layer(number, through, None, &mut of_prompts);
            done(back.gradient, starts[first + number]);
        }
        back.table(completions, &of_completions);
        back.table(prompts, &of_prompts);
    }

    /// The gradient of normed vectors from that of their logits; adds that of the head to `gradient`.
    pub fn learn_logits(
        &self,
        hidden: &[f32],
        of_logits: &[f32],
        of_hidden: &mut [f32],
        gradient: &mut [f32],
    ) {
        self.back(&self.matrices.head, [hidden, of_logits], (of_hidden, false), gradient);
    }
}

/// Gradients of the keys and of the values of prompts: `[rows, kv_size]` each.
type OfKeysValues = [Vec<f32>; 2];

/// The prompts that completions follow.
#[derive(Clone, Copy)]
struct Before<'a> {
    pass: &'a Pass,
    caches: &'a [Cache],
    pieces: &'a [Piece],
}

/// The way back, which adds to a gradient.
struct Back<'a> {
    decoder: &'a TokenDecoder,
    gradient: &'a mut [f32],
    /// What completions add to the gradients of their prompts' keys and values, in the layer that is gone through.
    of_keys_values: OfKeysValues,
    /// Room for the gradients of the gates and of what they let through.
    gates: [Vec<f32>; 2],
}

/// Gradients of a piece's queries, and of all keys and values that they were compared with.
struct OfPiece {
    queries: Vec<f32>,
    keys_values: [Vec<f32>; 2],
}

impl Back<'_> {
    /// The gradient of a pass's stream after all layers, from that of the normed one.
    fn last_norm(&mut self, pass: &Pass, of_hidden: &[f32]) -> Vec<f32> {
        let mut of_stream = vec![0.0; of_hidden.len()];
        if !pass.rows.is_empty() {
            let norm = self.decoder.slots.norm.clone();
            self.norm(&pass.last, norm, of_hidden.to_vec(), &mut of_stream);
        }
        of_stream
    }

    /// Back through a layer of a pass: the gradient of its stream.
    fn layer(
        &mut self,
        number: usize,
        (pass, caches, pieces): (&Pass, &mut [Cache], &[Piece]),
        before: Option<Before>,
        of_stream: &mut [f32],
    ) {
        if pass.rows.is_empty() {
            return;
        }
        let decoder = self.decoder;
        let mut again = Layer::default();
        let layer = match pass.streams.get(number) {
            Some(stream) => {
                let caches = (caches, before.map_or(&[][..], |before| before.caches));
                let mut stream = stream.clone();
                decoder.layer(number, &pass.rows, &pass.turns, caches, &mut stream, &mut again);
                &again
            }
            None => &pass.layers[number],
        };
        let of_found = self.network(number, layer, of_stream);
        let found = self.attention(number, layer, pieces, before, &of_found);
        self.projections(number, layer, &pass.turns, found, of_stream);
    }

    /// Back to the vectors of a pass's tokens, where these are learnt.
    fn table(&mut self, pass: &Pass, of_stream: &[f32]) {
        if self.decoder.adapters.is_some() {
            return;
        }
        let table = self.decoder.slots.input.weight.start;
        let size = self.decoder.shape().hidden_size;
        for (row, of) in pass.rows.iter().zip(of_stream.chunks_exact(size)) {
            let sum = &mut self.gradient[table + row.token as usize * size..][..size];
            sum.iter_mut().zip(of).for_each(|(sum, x)| *sum += x);
        }
    }

    /// Adds to the gradients of what was normed and of a norm's weights.
    fn norm(&mut self, of: &Normed, slot: Range<usize>, mut of_normed: Vec<f32>, to: &mut [f32]) {
        let weight = &self.decoder.params()[slot.clone()];
        let mut none = Vec::new();
        let of_weight = match self.decoder.adapters {
            None => &mut self.gradient[slot],
            Some(_) => {
                none.resize(weight.len(), 0.0);
                &mut none[..]
            }
        };
        let to = [to, of_weight];
        norm_backward(&of.stream, weight, &of.scale, &mut of_normed, to);
    }

    /// Back through the gated network; gives the gradient of what attention found.
    fn network(&mut self, number: usize, layer: &Layer, of_stream: &mut [f32]) -> Vec<f32> {
        let decoder = self.decoder;
        let slot = &decoder.slots.layers[number];
        let of = |kind: Kind| decoder.matrices.of(number, kind);
        let [mut of_gate, mut of_up] = std::mem::take(&mut self.gates);
        of_gate.resize(layer.inner.len(), 0.0);
        of_up.resize(layer.inner.len(), 0.0);
        let through = [&layer.inner[..], of_stream];
        decoder.back(of(Kind::Down), through, (&mut of_gate, false), self.gradient);
        gate_backward(&layer.gate, &layer.up, &mut of_gate, &mut of_up);
        let mut of_normed = vec![0.0; of_stream.len()];
        for (i, (dy, kind)) in [(&of_gate, Kind::Gate), (&of_up, Kind::Up)].into_iter().enumerate()
        {
            let through = [&layer.second.normed[..], dy];
            decoder.back(of(kind), through, (&mut of_normed, i > 0), self.gradient);
        }
        self.gates = [of_gate, of_up];
        self.norm(&layer.second, slot.second.clone(), of_normed, of_stream);
        let mut of_found = vec![0.0; layer.found.len()];
        let through = [&layer.found[..], of_stream];
        decoder.back(of(Kind::Found), through, (&mut of_found, false), self.gradient);
        of_found
    }

    /// Back through attention; gives the gradients of the rows' queries, keys and values.
    fn attention(
        &mut self,
        number: usize,
        layer: &Layer,
        pieces: &[Piece],
        before: Option<Before>,
        of_found: &[f32],
    ) -> [Vec<f32>; 3] {
        let decoder = self.decoder;
        let (width, kv) = (decoder.shape().query_size(), decoder.shape().kv_size());
        let again = before.and_then(|before| {
            let stream = before.pass.streams.get(number)?;
            let mut layer = Layer::default();
            decoder.project(number, &before.pass.turns, stream, &mut layer);
            Some(layer)
        });
        let prompts = before.map(|before| match &again {
            Some(layer) => layer,
            None => &before.pass.layers[number],
        });
        let prompt_rows = |piece: &Piece| match (before, piece.prompt) {
            (Some(before), Some(prompt)) => before.pieces[prompt].rows.clone(),
            _ => 0..0,
        };
        let one = |room: &mut Room, piece: &Piece| {
            let rows = prompt_rows(piece);
            let all = |which: usize| {
                let own = &layer.projected[which][piece.rows.start * kv..piece.rows.end * kv];
                let before = prompts.map_or(&[][..], |layer| {
                    &layer.projected[which][rows.start * kv..rows.end * kv]
                });
                [before, own].concat()
            };
            self.piece(layer, piece, rows.len(), [all(1), all(2)], of_found, room)
        };
        let all: Vec<OfPiece> = match decoder.is_small() {
            true => {
                let mut room = Room::default();
                pieces.iter().map(|piece| one(&mut room, piece)).collect()
            }
            false => pieces.par_iter().map_init(Room::default, one).collect(),
        };
        let mut of = [vec![0.0; of_found.len()], Vec::new(), Vec::new()];
        for (i, sum) in self.of_keys_values.iter_mut().enumerate() {
            of[i + 1] = match before {
                Some(_) => vec![0.0; layer.projected[1].len()],
                None => std::mem::take(sum),
            };
        }
        for (piece, found) in pieces.iter().zip(&all) {
            of[0][piece.rows.start * width..piece.rows.end * width].copy_from_slice(&found.queries);
            let rows = prompt_rows(piece);
            for (i, found) in found.keys_values.iter().enumerate() {
                let (of_prompt, of_own) = found.split_at(rows.len() * kv);
                if !of_prompt.is_empty() {
                    let sum = &mut self.of_keys_values[i][rows.start * kv..rows.end * kv];
                    sum.iter_mut().zip(of_prompt).for_each(|(sum, x)| *sum += x);
                }
                let sum = &mut of[i + 1][piece.rows.start * kv..piece.rows.end * kv];
                sum.iter_mut().zip(of_own).for_each(|(sum, x)| *sum += x);
            }
        }
        of
    }

    /// Back through a piece's attention to `before` tokens of its prompt and to its own.
    fn piece(
        &self,
        layer: &Layer,
        piece: &Piece,
        before: usize,
        [keys, values]: [Vec<f32>; 2],
        of_found: &[f32],
        room: &mut Room,
    ) -> OfPiece {
        let shape = self.decoder.shape();
        let (width, heads, count) = (shape.query_size(), shape.num_heads, piece.rows.len());
        let rows = piece.rows.start * width..piece.rows.end * width;
        let totals = &layer.totals[piece.rows.start * heads..piece.rows.end * heads];
        let by_head = |i: usize| totals[i % count * heads + i / count];
        let totals: Vec<f32> = (0..totals.len()).map(by_head).collect();
        let mut of = OfPiece {
            queries: vec![0.0; rows.len()],
            keys_values: [vec![0.0; keys.len()], vec![0.0; values.len()]],
        };
        let (queries, gradient) = (&layer.projected[0][rows.clone()], &of_found[rows.clone()]);
        let of_rows = Found { found: &layer.found[rows], totals: &totals, gradient };
        let sight = Sight { first: vec![0; count], before };
        let [of_keys, of_values] = &mut of.keys_values;
        let to = [&mut of.queries[..], of_keys, of_values];
        let heads = Heads { queries, keys: &keys, values: &values };
        if count > 0 {
            backward(shape, heads, &sight, of_rows, to, room);
        }
        of
    }

    /// Back through the projections and the norm before them.
    fn projections(
        &mut self,
        number: usize,
        layer: &Layer,
        turns: &[[f32; 2]],
        mut of: [Vec<f32>; 3],
        of_stream: &mut [f32],
    ) {
        let decoder = self.decoder;
        let slot = &decoder.slots.layers[number];
        for (of, (normed, slot)) in of.iter_mut().zip(layer.head_norms.iter().zip(&slot.head_norms))
        {
            turn(of, decoder.shape().head_dim, turns, -1.0);
            if !slot.is_empty() {
                let of_normed = std::mem::replace(of, vec![0.0; of.len()]);
                self.norm(normed, slot.clone(), of_normed, of);
            }
        }
        let mut of_normed = vec![0.0; of_stream.len()];
        let linears = PROJECTIONS.iter().zip(&slot.projections).zip(&of);
        for (i, ((kind, linear), dy)) in linears.enumerate() {
            let matrix = decoder.matrices.of(number, *kind);
            let through = [&layer.first.normed[..], dy];
            decoder.back(matrix, through, (&mut of_normed, i > 0), self.gradient);
            if decoder.adapters.is_none() {
                bias_gradient(dy, &mut self.gradient[linear.bias.clone()]);
            }
        }
        self.norm(&layer.first, slot.first.clone(), of_normed, of_stream);
    }
}
