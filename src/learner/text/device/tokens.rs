//! The tokens of a loss, in the order in which a device processes them.

use crate::device::upload_indices;
use crate::learner::text::differentiation::TokenGrads;
use crate::learner::text::group::{Group, Sample, TokenIndex};
use crate::text::CompletionIndex;
use burn::tensor::{Device, Int, Tensor};
use std::ops::Range;

/// Maximum number of logits in memory at a time.
const MAX_LOGITS: usize = 1 << 24;

/// The tokens of some groups, in the order of the rows that predict them.
pub(super) struct LossTokens<'a> {
    /// The samples of all groups.
    pub samples: Vec<&'a Sample>,
    indices: Vec<TokenIndex>,
    /// The row that predicts each token.
    pub rows: Vec<i32>,
}

impl<'a> LossTokens<'a> {
    /// Lists the tokens of all samples, which have these completions, that `selects` chooses by their index.
    /// `prediction` returns the row that predicts a token of a completion.
    pub fn new(
        groups: &[&'a Group],
        completions: &[CompletionIndex],
        prediction: impl Fn(CompletionIndex, usize) -> usize,
        selects: impl Fn(&Sample, usize) -> bool,
    ) -> Self {
        let samples: Vec<&Sample> = groups.iter().flat_map(|group| &group.samples).collect();
        let mut tokens = Vec::new();
        for (i, (sample, completion)) in samples.iter().zip(completions).enumerate() {
            let selected = (0..sample.tokens.len()).filter(|token| selects(sample, *token));
            tokens.extend(selected.map(|token| {
                let index = TokenIndex { sample: i, token };
                (prediction(*completion, token) as i32, index)
            }));
        }
        tokens.sort_by_key(|(row, _)| *row);
        let (rows, indices) = tokens.into_iter().unzip();
        Self { samples, indices, rows }
    }

    /// Splits the tokens into parts of at most [`MAX_LOGITS`] logits, which pass through the head one after the other.
    pub fn split_into_parts(
        &self,
        vocabulary: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let (count, max_tokens) = (self.indices.len(), (MAX_LOGITS / vocabulary).max(1));
        (0..count).step_by(max_tokens).map(move |start| start..(start + max_tokens).min(count))
    }

    /// Uploads the tokens themselves: `[count]`.
    pub fn token_tensor(&self, device: &Device) -> Tensor<1, Int> {
        let token = |index: &TokenIndex| self.samples[index.sample].tokens[index.token] as i32;
        let tokens: Vec<i32> = self.indices.iter().map(token).collect();
        upload_indices(&tokens, device)
    }

    /// Uploads the rows: `[count]`.
    pub fn row_tensor(&self, device: &Device) -> Tensor<1, Int> {
        upload_indices(&self.rows, device)
    }

    /// The candidates of each token of a part.
    pub fn candidates(&self, part: Range<usize>) -> impl Iterator<Item = &[u32]> + Clone {
        self.indices[part].iter().map(|index| self.samples[index.sample].candidates(index.token))
    }

    /// Splits values of the tokens by sample; 0 for tokens that are not listed.
    pub fn split_by_sample(&self, values: Vec<f32>) -> Vec<Vec<f32>> {
        let mut sample_values: Vec<Vec<f32>> =
            self.samples.iter().map(|sample| vec![0.0; sample.tokens.len()]).collect();
        for (index, value) in self.indices.iter().zip(values) {
            sample_values[index.sample][index.token] = value;
        }
        sample_values
    }

    /// Gathers the gradients of all samples in the order of the tokens.
    pub fn gather_by_token(&self, samples: &[TokenGrads]) -> TokenGrads {
        let gather = |values: fn(&TokenGrads) -> &[f32]| {
            self.indices.iter().map(|index| values(&samples[index.sample])[index.token]).collect()
        };
        TokenGrads {
            d_logprobs: gather(|grads| &grads.d_logprobs),
            entropy_weights: gather(|grads| &grads.entropy_weights),
        }
    }
}
