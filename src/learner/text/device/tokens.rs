//! The tokens of a loss, in the order in which a device processes them.

use crate::device::indices;
use crate::learner::text::differentiation::TokenGrads;
use crate::learner::text::{Group, Sample};
use burn::tensor::{Device, Int, Tensor};
use std::ops::Range;

/// Maximum number of logits that exist at once.
const LOGITS: usize = 1 << 24;

/// The tokens of some groups, in the order of the rows that predict them.
pub(super) struct LossTokens<'a> {
    /// The samples of all groups.
    pub samples: Vec<&'a Sample>,
    /// The sample of each token, and the token's number in it.
    places: Vec<[usize; 2]>,
    /// The row that predicts each token.
    pub rows: Vec<i32>,
}

impl<'a> LossTokens<'a> {
    /// Lists the tokens of all samples, or if `counted` those that the masks select. `predict` returns the row that predicts
    /// a token of a completion.
    pub fn new(
        groups: &[&'a Group],
        completions: &[[usize; 2]],
        predict: impl Fn([usize; 2], usize) -> usize,
        counted: bool,
    ) -> Self {
        let samples: Vec<&Sample> = groups.iter().flat_map(|group| &group.samples).collect();
        let mut found = Vec::new();
        for (number, (sample, completion)) in samples.iter().zip(completions).enumerate() {
            let all = 0..sample.tokens.len();
            let some = all.filter(|at| !counted || sample.mask[*at]);
            found.extend(some.map(|at| (predict(*completion, at) as i32, [number, at])));
        }
        found.sort_by_key(|(row, _)| *row);
        let (rows, places) = found.into_iter().unzip();
        Self { samples, places, rows }
    }

    /// Splits the tokens into parts that pass through the head one after the other.
    pub fn parts(&self, vocabulary: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (all, most) = (self.places.len(), (LOGITS / vocabulary).max(1));
        (0..all).step_by(most).map(move |start| start..(start + most).min(all))
    }

    /// Uploads the tokens themselves: `[count]`.
    pub fn tokens(&self, device: &Device) -> Tensor<1, Int> {
        let token = |[sample, at]: &[usize; 2]| self.samples[*sample].tokens[*at] as i32;
        let tokens: Vec<i32> = self.places.iter().map(token).collect();
        indices(&tokens, device)
    }

    /// Uploads the rows: `[count]`.
    pub fn row_tensor(&self, device: &Device) -> Tensor<1, Int> {
        indices(&self.rows, device)
    }

    /// The candidates of each token of a part.
    pub fn candidates(&self, part: Range<usize>) -> impl Iterator<Item = &[u32]> + Clone {
        self.places[part].iter().map(|[sample, at]| self.samples[*sample].candidates(*at))
    }

    /// Groups a number per token by sample; 0 for tokens that are not listed.
    pub fn by_sample(&self, numbers: Vec<f32>) -> Vec<Vec<f32>> {
        let mut all: Vec<Vec<f32>> =
            self.samples.iter().map(|sample| vec![0.0; sample.tokens.len()]).collect();
        for ([sample, at], number) in self.places.iter().zip(numbers) {
            all[*sample][*at] = number;
        }
        all
    }

    /// Gathers the gradients of all samples in the order of the tokens.
    pub fn by_token(&self, samples: &[TokenGrads]) -> TokenGrads {
        let gather = |of: fn(&TokenGrads) -> &[f32]| {
            self.places.iter().map(|[sample, at]| of(&samples[*sample])[*at]).collect()
        };
        TokenGrads {
            d_logprobs: gather(|grads| &grads.d_logprobs),
            entropy_weights: gather(|grads| &grads.entropy_weights),
        }
    }
}
