//! The initial weights of a decoder, the same for the same key.

use super::{DecoderShape, Layout, Projection};
use crate::nn::orthogonal::{normal_draw, orthogonal_matrix};
use crate::rng::draw;

/// The norm of each row of the table of token embeddings, or of each column where it has more rows than columns: small,
/// so that where the table is the head as well the first policy is close to uniform.
const EMBEDDING_NORM: f64 = 0.3;
/// The norm of the bias of the input, as a share of the stream's.
const INPUT_BIAS_NORM: f64 = 0.5;
/// The gain of the head of games.
const HEAD_GAIN: f64 = 0.01;
/// The deviation of the token embeddings and of the head of a language model, as in GPT-2.
const EMBEDDING_DEVIATION: f64 = 0.02;

impl DecoderShape {
    /// Initial weights for reinforcement learning from scratch.
    ///
    /// Matrices are orthogonal. As in GPT-2, those whose results are added to the stream are scaled down by the root of
    /// the number of additions, so that the stream keeps its size (Radford et al. 2019). The input has a bias from the
    /// start, since the norm of a stream of zeros would blow up its gradient. The head is small, so that the first
    /// policy is close to uniform.
    pub fn orthogonal_weights(&self, key: u32) -> Vec<f32> {
        let (layout, mut params) = (Layout::new(self), self.zeros_with_unit_norms());
        let stream_norm = (self.hidden_size as f64).sqrt();
        let residual_gain = 1.0 / (2.0 * self.num_layers as f64).sqrt();
        let mut fill = |place: &std::ops::Range<usize>, rows: usize, gain: f64, key: u32| {
            let weights = orthogonal_matrix(rows, place.len() / rows, gain, key);
            params[place.clone()].copy_from_slice(&weights);
        };
        match &layout.input {
            Some(input) => {
                fill(&input.weight, input.inputs, stream_norm, draw(key, 0));
                fill(&input.bias, 1, INPUT_BIAS_NORM * stream_norm, draw(key, 1));
            }
            None => fill(&layout.embed_tokens, self.num_outputs, EMBEDDING_NORM, draw(key, 0)),
        }
        for (index, layer) in layout.layers.iter().enumerate() {
            let key = draw(key, 3 + index as u32);
            for (linear, projection) in layer.linears.iter().zip(Projection::ALL) {
                let gain = if projection.adds_to_stream() { residual_gain } else { 1.0 };
                fill(&linear.weight, linear.inputs, gain, draw(key, projection as u32));
            }
        }
        if !self.tie_word_embeddings {
            fill(&layout.head.weight, layout.head.inputs, HEAD_GAIN, draw(key, 2));
        }
        params
    }

    /// Initial weights of a language model: normal, with the deviation that keeps the stream's size, and as in GPT-2
    /// smaller where results are added to the stream (Radford et al. 2019). Norms are 1, biases 0.
    pub fn normal_weights(&self, key: u32) -> Vec<f32> {
        let mut params = self.zeros_with_unit_norms();
        let residual_gain = (2.0 * self.num_layers as f64).sqrt().recip();
        let adds_to_stream = |name: &str| {
            Projection::ALL.into_iter().any(|projection| {
                projection.adds_to_stream()
                    && name.ends_with(&format!("{}.weight", projection.name()))
            })
        };
        let mut end = 0;
        for (index, parameter) in self.parameters().iter().enumerate() {
            let start = end;
            end += parameter.num_elements();
            if parameter.shape.len() == 1 {
                continue;
            }
            let unit_deviation = (parameter.shape[0] as f64).sqrt().recip();
            let deviation = match parameter.name.as_str() {
                "embed_tokens.weight" | "lm_head.weight" => EMBEDDING_DEVIATION,
                name if adds_to_stream(name) => unit_deviation * residual_gain,
                _ => unit_deviation,
            };
            let key = draw(key, index as u32);
            for (i, x) in params[start..end].iter_mut().enumerate() {
                *x = (deviation * normal_draw(key, i as u32)) as f32;
            }
        }
        params
    }

    /// Parameters of 0, except for norms, which multiply by 1.
    fn zeros_with_unit_norms(&self) -> Vec<f32> {
        let value =
            |name: &str| if name.ends_with("norm.weight") { 1.0 - self.norm_offset } else { 0.0 };
        let parameters = self.parameters().into_iter();
        parameters.flat_map(|p| std::iter::repeat_n(value(&p.name), p.num_elements())).collect()
    }
}
