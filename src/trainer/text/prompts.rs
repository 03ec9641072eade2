//! Prompts of a task as tokens.

use super::{LanguageConfig, LanguageTrainError, TextEngine};
use crate::task::{Prompt, Split, Task, TaskError};
use crate::text::LanguageModel;
use serde_json::{Map, Value};

impl TextEngine {
    /// Checks that the model can take the prompts: all of them if they are listed, else one of each split.
    pub(super) fn check_prompts(&self) -> Result<(), LanguageTrainError> {
        let LanguageConfig { fit, generation, checkpoint, .. } = &self.config;
        let imitates = self.config.imitates();
        for split in [Split::Train, Split::Test] {
            for number in 0..self.task.num_prompts(split).unwrap_or(1).max(1) {
                let prompt = self.task.prompt(split, number)?;
                if !imitates || checkpoint.eval_episodes > 0 {
                    self.tokens(&prompt, generation.max_new_tokens)?;
                }
                if imitates || (split == Split::Train && fit.iterations > 0) {
                    self.text(&prompt)?;
                }
            }
        }
        Ok(())
    }

    /// The tokens of a prompt, if they leave room for a completion of so many.
    ///
    /// # Errors
    /// If they do not, or the prompt cannot be tokenized.
    pub(super) fn tokens(
        &self,
        prompt: &Prompt,
        completion: usize,
    ) -> Result<Vec<u32>, LanguageTrainError> {
        self.tokens_with(prompt, &template_values(&self.model, prompt)?, completion)
    }

    /// The tokens of a prompt with its [`template_values`], as [`TextEngine::tokens`].
    pub(super) fn tokens_with(
        &self,
        prompt: &Prompt,
        values: &Map<String, Value>,
        completion: usize,
    ) -> Result<Vec<u32>, LanguageTrainError> {
        let tokens = self.model.prompt_with(&prompt.text, &prompt.messages, values)?;
        let context = self.model.shape.context;
        if tokens.len() + completion > context {
            let start = prompt.text.chars().take(40).collect();
            let prompt = tokens.len();
            return Err(LanguageTrainError::TooLong { start, prompt, completion, context });
        }
        let (count, most) = (tokens.len(), self.room.prompt);
        if count > most {
            let start: String = prompt.text.chars().take(40).collect();
            return Err(LanguageTrainError::Settings(format!(
                "a prompt (it begins with {start:?}) has {count} tokens, but the device's buffers hold {most} of them at \
                 a time: leave such prompts out, or use the CPU"
            )));
        }
        Ok(tokens)
    }
}

/// The values that a prompt has for the model's chat template; none without one.
pub(super) fn template_values(
    model: &LanguageModel,
    prompt: &Prompt,
) -> Result<Map<String, Value>, TaskError> {
    match model.template {
        Some(_) => prompt.template_values(),
        None => Ok(Map::new()),
    }
}

/// The tokens of the longest prompt of a task that lists them.
pub(super) fn longest_prompt(
    task: &dyn Task,
    model: &LanguageModel,
) -> Result<Option<usize>, LanguageTrainError> {
    let mut longest = None;
    for split in [Split::Train, Split::Test] {
        for number in 0..task.num_prompts(split).unwrap_or(0) {
            let prompt = task.prompt(split, number)?;
            let values = template_values(model, &prompt)?;
            let tokens = model.prompt_with(&prompt.text, &prompt.messages, &values)?;
            longest = longest.max(Some(tokens.len()));
        }
    }
    Ok(longest)
}
