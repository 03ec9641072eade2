//! The input of an update of a language model: prompts with their completions.

use crate::objective::LossParams;
use crate::text::{CompletionIndex, PromptWithCompletions};
use std::collections::HashMap;

/// A completion to learn from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The tokens of the completion, at least one.
    pub tokens: Vec<u32>,
    /// Log-probability of each token under the behaviour policy.
    pub logprobs: Vec<f32>,
    /// Entropy of the behaviour policy at each token, which stands for the policy's in a group without a gradient;
    /// empty if unknown.
    pub entropies: Vec<f32>,
    /// Advantage of each token.
    pub advantages: Vec<f32>,
    /// Whether each token counts in the loss.
    pub mask: Vec<bool>,
    /// Whether the policy's term and the entropy bonus act on each token; the KL divergence acts on all. Empty for all.
    pub selected: Vec<bool>,
    /// The tokens that each token was drawn from, over which its probability is normalized. An empty or missing list
    /// stands for the whole vocabulary.
    pub candidates: Vec<Vec<u32>>,
}

impl Sample {
    /// Whether the policy's term and the entropy bonus act on the token at `index`.
    pub(super) fn is_selected(&self, index: usize) -> bool {
        self.mask[index] && self.selected.get(index).is_none_or(|selected| *selected)
    }

    /// The tokens that the token at `index` was drawn from; empty for all.
    pub(super) fn candidates(&self, index: usize) -> &[u32] {
        self.candidates.get(index).map_or(&[], |candidates| candidates)
    }
}

/// A prompt with the completions to learn from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// The tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// The completions of the prompt.
    pub samples: Vec<Sample>,
}

impl Group {
    /// Number of tokens that count in the loss.
    pub(super) fn num_counted(&self) -> usize {
        let count = |sample: &Sample| sample.mask.iter().filter(|m| **m).count();
        self.samples.iter().map(count).sum()
    }

    /// Whether the group's gradient is not 0: without entropy bonus and KL, equal rewards give none.
    pub(crate) fn has_gradient(&self, loss_params: &LossParams) -> bool {
        let has_other_terms = loss_params.entropy_coef != 0.0 || loss_params.kl_coef != 0.0;
        let has_advantage = |sample: &Sample| {
            let mut advantages = sample.advantages.iter().enumerate();
            advantages.any(|(at, advantage)| *advantage != 0.0 && sample.is_selected(at))
        };
        self.num_counted() > 0 && (has_other_terms || self.samples.iter().any(has_advantage))
    }

    /// Number of counted tokens whose entropy under the behaviour policy is known, and the sum of these entropies.
    pub(super) fn sum_entropies(&self) -> (f64, f64) {
        let entropies = self.samples.iter().flat_map(|sample| {
            sample.entropies.iter().zip(&sample.mask).filter(|(_, m)| **m).map(|(x, _)| *x)
        });
        entropies.fold((0.0, 0.0), |(count, sum), x| (count + 1.0, sum + f64::from(x)))
    }

    /// Number of tokens that the entropy bonus acts on.
    pub(super) fn num_selected(&self) -> usize {
        let count =
            |sample: &Sample| (0..sample.tokens.len()).filter(|at| sample.is_selected(*at)).count();
        self.samples.iter().map(count).sum()
    }

    /// Returns the prompt with its distinct completions, and the index of each sample's completion. Equal samples pass
    /// through the decoder once; their gradients are summed.
    pub(super) fn deduplicate_text(&self) -> (PromptWithCompletions<'_>, Vec<usize>) {
        let (mut completions, mut indices) = (Vec::new(), HashMap::new());
        let sample_indices = self.samples.iter().map(|sample| {
            *indices.entry(&sample.tokens[..]).or_insert_with(|| {
                completions.push(&sample.tokens[..]);
                completions.len() - 1
            })
        });
        let sample_indices = sample_indices.collect();
        (PromptWithCompletions { prompt: &self.prompt, completions }, sample_indices)
    }

    /// Number of tokens that pass through the decoder.
    pub(crate) fn num_forward_tokens(&self) -> usize {
        let (text, _) = self.deduplicate_text();
        text.prompt.len() + text.completions.iter().map(|tokens| tokens.len()).sum::<usize>()
    }
}

/// The place of a token among the samples of some groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenIndex {
    pub sample: usize,
    /// Index among the sample's tokens.
    pub token: usize,
}

/// The prompts of some groups, each with its distinct completions, and the completion of each sample among them.
pub(super) fn deduplicate_texts<'a>(
    groups: &[&'a Group],
) -> (Vec<PromptWithCompletions<'a>>, Vec<CompletionIndex>) {
    let (mut prompts, mut indices) = (Vec::new(), Vec::new());
    for (index, group) in groups.iter().enumerate() {
        let (prompt, completions) = group.deduplicate_text();
        prompts.push(prompt);
        let completion_index = |completion| CompletionIndex { prompt: index, completion };
        indices.extend(completions.into_iter().map(completion_index));
    }
    (prompts, indices)
}
