//! Sample completions of a run's policy, for display.

use super::advantages::compute_advantages;
use super::{CompletionRecord, LanguageEngine, LanguageTrainError, LanguageTrainer};
use crate::task::Split;
use crate::text::generate::{Completion, CompletionRequest, Generator, Sampling};

/// A sample completion of a user's prompt, which no verifier judges.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SampleCompletion {
    /// Text of the completion.
    pub completion: String,
    /// Log-probability of each token.
    pub logprobs: Vec<f32>,
    /// Whether it was cut off.
    pub is_truncated: bool,
}

impl LanguageTrainer {
    /// Generates and scores `completions` sample completions of each of the first `count` held-out prompts.
    ///
    /// # Errors
    /// If the task fails, or another rank fails or does not respond.
    pub fn sample_held_out(
        &self,
        count: u64,
        completions: usize,
    ) -> Result<Vec<CompletionRecord>, LanguageTrainError> {
        let indices: Vec<u64> = (0..count).collect();
        let scored =
            self.engine.complete_and_score(Split::Test, &indices, completions, &self.sampling())?;
        let advantages =
            compute_advantages(&scored.learnt_rewards(), self.engine.config.reward.scale_rewards);
        let LanguageEngine { reward_parts, model, .. } = &self.engine;
        Ok(CompletionRecord::from_iteration(
            self.iterations_done,
            &scored,
            &advantages,
            reward_parts,
            model,
        ))
    }

    /// Generates `count` sample completions of a user's prompt.
    ///
    /// # Errors
    /// If the text cannot be tokenized, or is too long.
    pub fn complete_text(
        &self,
        text: &str,
        count: usize,
        sampling: &Sampling,
    ) -> Result<Vec<SampleCompletion>, LanguageTrainError> {
        let tokens = self.engine.model.tokenizer.encode_whole(text)?;
        let (prompt_tokens, context) = (tokens.len(), self.engine.model.shape.context);
        if tokens.is_empty() || prompt_tokens.saturating_add(sampling.max_new_tokens) > context {
            return Err(LanguageTrainError::Settings(format!(
                "a text of {prompt_tokens} tokens cannot be answered: it must have at least one, and with {} for \
                 the answer no more than the model's context of {context}",
                sampling.max_new_tokens
            )));
        }
        let generator = Generator {
            decoder: &self.engine.learner.decoder,
            sampling,
            num_slots: count.max(1),
            stop: None,
            listener: None,
        };
        // A fixed key, so that a prompt gets the same draws in every iteration.
        let request = CompletionRequest { tokens, num_completions: count, key: 1 };
        let generated = generator.generate(&[request]);
        let sample = |completion: Completion| SampleCompletion {
            completion: self.engine.model.decode_completion(&completion.tokens),
            is_truncated: !completion.has_stopped,
            logprobs: completion.logprobs,
        };
        Ok(generated.into_iter().flatten().map(sample).collect())
    }
}
