//! Groups of completions on their way through a decoder and back.
//!
//! A prompt goes forward once and back once, whatever the number of its completions: what those find in it
//! is what generation finds, and on the way back the gradients of its keys and values are added up.

use super::cache::Cache;
use super::matrix::Kind;
use super::rows::{Keep, Layer, PROJECTIONS, Pass, Row, TokenDecoder};
use crate::model::DecoderShape;
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
    /// All rows: those of the prompts, then those of the completions.
    pass: Pass,
    caches: Vec<Cache>,
    /// The prompts, then the completions.
    pieces: Vec<Piece>,
    /// How many prompts there are, and the rows of theirs.
    prompts: usize,
    prompt_rows: usize,
    /// Which piece is the first completion of each text.
    first_pieces: Vec<usize>,
    /// The normed streams that tokens follow from: of each prompt's last token, then of the completions'
    /// tokens but the last ones: `[predictions, hidden_size]`.
    hidden: Vec<f32>,
}

/// The rows of a piece of text, and those of the prompt that it follows: none, if it is a prompt.
#[derive(Clone, Debug)]
struct Piece {
    rows: Range<usize>,
    before: Range<usize>,
}

impl Reading {
    /// The normed streams that tokens follow from: `[predictions, hidden_size]`.
    pub fn hidden(&self) -> &[f32] {
        &self.hidden
    }

    /// Which of [`Reading::hidden`] token number `at` of a completion of a text follows from.
    pub fn prediction(&self, [text, completion]: [usize; 2], at: usize) -> usize {
        let Piece { rows, .. } = &self.pieces[self.first_pieces[text] + completion];
        match at {
            0 => text,
            _ => self.prompts + rows.start - self.prompt_rows + at - 1,
        }
    }

    /// Begins with other texts: their rows.
    fn begin(&mut self, shape: &DecoderShape, texts: &[Text]) -> Vec<Row> {
        let mut all = Vec::new();
        let mut piece = |cache: usize, tokens: &[u32], before: Range<usize>| {
            let start = all.len();
            let tokens = tokens.iter().enumerate();
            all.extend(tokens.map(|(at, token)| Row { token: *token, cache, at }));
            Piece { rows: start..all.len(), before }
        };
        let prompts = texts.iter().enumerate();
        self.pieces = prompts.map(|(number, text)| piece(number, text.prompt, 0..0)).collect();
        self.prompts = texts.len();
        self.prompt_rows = self.pieces.last().map_or(0, |piece| piece.rows.end);
        self.first_pieces.clear();
        let count: usize = texts.iter().map(|text| text.completions.len()).sum();
        self.caches.resize_with(texts.len() + count, Cache::default);
        for (number, text) in texts.iter().enumerate() {
            let rows = self.pieces[number].rows.clone();
            // Nobody but the same layer looks back to what is in the caches.
            self.caches[number].begin(shape, 1, rows.len(), None);
            self.first_pieces.push(self.pieces.len());
            for tokens in &text.completions {
                let cache = self.pieces.len();
                self.caches[cache].begin(shape, 1, tokens.len(), Some((number, rows.len())));
                // From the last token nothing follows.
                self.pieces.push(piece(cache, &tokens[..tokens.len() - 1], rows.clone()));
            }
        }
        all
    }
}

impl TokenDecoder {
    /// Sends texts through all layers.
    ///
    /// # Panics
    /// If a prompt or a completion has no token.
    pub fn read(&self, texts: &[Text], keep: Keep, reading: &mut Reading) {
        let size = self.shape().hidden_size;
        let rows = reading.begin(self.shape(), texts);
        self.forward(&rows, &mut reading.caches, keep, &mut reading.pass);
        let hidden = reading.pass.hidden();
        reading.hidden.clear();
        for Piece { rows, .. } in &reading.pieces[..reading.prompts] {
            reading.hidden.extend_from_slice(&hidden[(rows.end - 1) * size..rows.end * size]);
        }
        reading.hidden.extend_from_slice(&hidden[reading.prompt_rows * size..]);
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
        let size = self.shape().hidden_size;
        let Reading { pass, caches, pieces, .. } = reading;
        let (of_last, of_completions) = of_hidden.split_at(reading.prompts * size);
        let mut of_normed = vec![0.0; reading.prompt_rows * size];
        for (Piece { rows, .. }, of) in pieces.iter().zip(of_last.chunks(size)) {
            of_normed[(rows.end - 1) * size..rows.end * size].copy_from_slice(of);
        }
        of_normed.extend_from_slice(of_completions);
        let mut back = Back { decoder: self, gradient, gates: Default::default() };
        let mut of_stream = vec![0.0; of_normed.len()];
        back.norm(&pass.last, self.slots.norm.clone(), of_normed, &mut of_stream);
        let starts = self.starts();
        let first = starts.len() - self.shape().num_layers;
        for number in (0..self.shape().num_layers).rev() {
            back.layer(number, pass, caches, pieces, &mut of_stream);
            done(back.gradient, starts[first + number]);
        }
        back.table(pass, &of_stream);
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

/// The way back, which adds to a gradient.
struct Back<'a> {
    decoder: &'a TokenDecoder,
    gradient: &'a mut [f32],
    /// Room for the gradients of the gates and of what they let through.
    gates: [Vec<f32>; 2],
}

/// Gradients of a piece's queries, and of all keys and values that they were compared with.
struct OfPiece {
    queries: Vec<f32>,
    keys_values: [Vec<f32>; 2],
}

impl Back<'_> {
    /// Back through a layer: the gradient of the stream after it becomes that before it.
    fn layer(
        &mut self,
        number: usize,
        pass: &Pass,
        caches: &mut [Cache],
        pieces: &[Piece],
        of_stream: &mut [f32],
    ) {
        let decoder = self.decoder;
        let mut again = Layer::default();
        let layer = match pass.streams.get(number) {
            Some(stream) => {
                let mut stream = stream.clone();
                decoder.layer(number, &pass.rows, &pass.turns, caches, &mut stream, &mut again);
                &again
            }
            None => &pass.layers[number],
        };
        let of_found = self.network(number, layer, of_stream);
        let of = self.attention(layer, pieces, &of_found);
        self.projections(number, layer, &pass.turns, of, of_stream);
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
    fn attention(&self, layer: &Layer, pieces: &[Piece], of_found: &[f32]) -> [Vec<f32>; 3] {
        let shape = self.decoder.shape();
        let (width, kv) = (shape.query_size(), shape.kv_size());
        let one = |room: &mut Room, piece: &Piece| self.piece(layer, piece, of_found, room);
        let all: Vec<OfPiece> = match self.decoder.is_small() {
            true => {
                let mut room = Room::default();
                pieces.iter().map(|piece| one(&mut room, piece)).collect()
            }
            false => pieces.par_iter().map_init(Room::default, one).collect(),
        };
        let mut of = layer.projected.each_ref().map(|all| vec![0.0; all.len()]);
        for (Piece { rows, before }, found) in pieces.iter().zip(&all) {
            of[0][rows.start * width..rows.end * width].copy_from_slice(&found.queries);
            for (of, found) in of[1..].iter_mut().zip(&found.keys_values) {
                let (of_prompt, of_own) = found.split_at(before.len() * kv);
                for (rows, found) in [(before, of_prompt), (rows, of_own)] {
                    let sum = &mut of[rows.start * kv..rows.end * kv];
                    sum.iter_mut().zip(found).for_each(|(sum, x)| *sum += x);
                }
            }
        }
        of
    }

    /// Back through a piece's attention to the tokens of its prompt and to its own.
    fn piece(&self, layer: &Layer, piece: &Piece, of_found: &[f32], room: &mut Room) -> OfPiece {
        let shape = self.decoder.shape();
        let kv = shape.kv_size();
        let [keys, values] = [1, 2].map(|which| {
            let of = |rows: &Range<usize>| &layer.projected[which][rows.start * kv..rows.end * kv];
            [of(&piece.before), of(&piece.rows)].concat()
        });
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
        let sight = Sight { first: vec![0; count], before: piece.before.len() };
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
