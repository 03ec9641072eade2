//! What a run shows of its policy: answers to prompts that it does not learn from.

use super::advantages::advantages;
use super::{CompletionRecord, LanguageSeconds, LanguageTrainError, LanguageTrainer};
use crate::rollout::generate::{Completion, Generator, Prompt, Sampling};
use crate::task::Split;

/// An answer to somebody's prompt, of which nobody says what it is worth.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Answer {
    /// Its text.
    pub completion: String,
    /// The log-probability of each of its tokens.
    pub logprobs: Vec<f32>,
    /// Whether it was cut off.
    pub truncated: bool,
}

impl LanguageTrainer {
    /// Answers to the first `count` prompts that are never trained on, `members` to each, with what they are
    /// worth.
    ///
    /// # Errors
    /// As [`LanguageTrainer::iterate`].
    pub fn examples(
        &self,
        count: u64,
        members: usize,
    ) -> Result<Vec<CompletionRecord>, LanguageTrainError> {
        let numbers: Vec<u64> = (0..count).collect();
        let (sampling, mut seconds) = (self.sampling(), LanguageSeconds::default());
        let answers = self.answer((Split::Test, &numbers), members, &sampling, &mut seconds)?;
        let advantages = advantages(&answers.totals, self.config.reward.scale_rewards);
        let of = (self.task.parts(), &self.model);
        Ok(CompletionRecord::all(&answers, &advantages, of, self.iteration))
    }

    /// Answers to a text of somebody's: `count` of them, as `sampling` says.
    ///
    /// # Errors
    /// If the text cannot be put to the model.
    pub fn answers(
        &self,
        text: &str,
        count: usize,
        sampling: &Sampling,
    ) -> Result<Vec<Answer>, LanguageTrainError> {
        let tokens = self.model.tokenizer.encode(text, true)?;
        let (asked, context) = (tokens.len(), self.model.shape.context);
        if tokens.is_empty() || asked + sampling.max_new_tokens > context {
            return Err(LanguageTrainError::Settings(format!(
                "a text of {asked} tokens cannot be answered: it must have one at least, and with {} for \
                 the answer no more than the model's context of {context}",
                sampling.max_new_tokens
            )));
        }
        let generator = Generator {
            decoder: &self.learner.decoder,
            sampling,
            slots: count.max(1),
            stop: None,
            listener: None,
        };
        // A prompt of its own gets the same draws in each iteration.
        let made = generator.generate(&[Prompt { tokens, completions: count, key: 1 }]);
        let answer = |one: Completion| Answer {
            completion: self.model.text(&one.tokens),
            truncated: !one.ended,
            logprobs: one.logprobs,
        };
        Ok(made.into_iter().flatten().map(answer).collect())
    }
}
