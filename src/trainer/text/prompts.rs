//! Tokenized prompts of a task.

use super::{LanguageConfig, LanguageEngine, LanguageTrainError, LanguageTrainer};
use crate::task::{Prompt, Split, Task};
use crate::text::LanguageModel;

/// Number of prompts per split that are checked before a run where a task generates them.
const NUM_CHECKED_PROMPTS: u64 = 32;

impl LanguageEngine {
    /// Checks that the model can process the task's prompts: all of them if it lists them, otherwise the
    /// first ones of each split.
    pub(super) fn check_prompts(&self) -> Result<(), LanguageTrainError> {
        let LanguageConfig { fit, generation, checkpoint, .. } = &self.config;
        let is_sft_only = self.config.is_sft_only();
        for split in [Split::Train, Split::Test] {
            for index in 0..self.task.num_prompts(split).unwrap_or(NUM_CHECKED_PROMPTS).max(1) {
                let prompt = self.task.prompt(split, index)?;
                if !is_sft_only || checkpoint.eval_episodes > 0 {
                    self.tokenize_prompt(&prompt, generation.max_new_tokens)?;
                }
                if is_sft_only || (split == Split::Train && fit.iterations > 0) {
                    self.tokenize_demonstration(&prompt)?;
                }
            }
        }
        Ok(())
    }

    /// Tokenizes a prompt as [`LanguageTrainer::tokenize_prompt`] does.
    pub(super) fn tokenize_prompt(
        &self,
        prompt: &Prompt,
        completion: usize,
    ) -> Result<Vec<u32>, LanguageTrainError> {
        let Prompt { text, messages, template_values, .. } = prompt;
        let tokens = self.model.tokenize_prompt_with(text, messages, template_values)?;
        let context = self.model.shape.context;
        let start = || text.chars().take(40).collect::<String>();
        if tokens.len().saturating_add(completion) > context {
            let (start, prompt) = (start(), tokens.len());
            return Err(LanguageTrainError::TooLong { start, prompt, completion, context });
        }
        let (count, max_tokens) = (tokens.len(), self.limits.prompt);
        if count > max_tokens {
            let start = start();
            return Err(LanguageTrainError::Settings(format!(
                "a prompt (it begins with {start:?}) has {count} tokens, but the device's buffers hold {max_tokens} \
                 of them at a time: leave such prompts out, or use the CPU"
            )));
        }
        Ok(tokens)
    }
}

impl LanguageTrainer {
    /// Whether the task lists conversations whose roles and tools the model does not see, since it has no chat template.
    pub fn loses_roles(&self) -> bool {
        self.engine.model.template.is_none() && has_conversations(&*self.engine.task)
    }
}

/// Whether a task lists prompts of which their contents do not say all: messages of more than one, or of another role
/// than the user, or values for a chat template. Questions of built-in tasks have another wording for such models.
fn has_conversations(task: &dyn Task) -> bool {
    let is_conversation = |prompt: Prompt| match &prompt.messages[..] {
        [] => false,
        [message] => message.role != "user" || !prompt.template_values.0.is_empty(),
        _ => true,
    };
    [Split::Train, Split::Test].into_iter().any(|split| {
        let mut prompts = 0..task.num_prompts(split).unwrap_or(0);
        prompts.any(|index| task.prompt(split, index).is_ok_and(is_conversation))
    })
}

/// Number of tokens of the longest prompt of a task that lists its prompts.
pub(super) fn longest_prompt_tokens(
    task: &dyn Task,
    model: &LanguageModel,
) -> Result<Option<usize>, LanguageTrainError> {
    let mut longest = None;
    for split in [Split::Train, Split::Test] {
        for index in 0..task.num_prompts(split).unwrap_or(0) {
            let Prompt { text, messages, template_values, .. } = task.prompt(split, index)?;
            let tokens = model.tokenize_prompt_with(&text, &messages, &template_values)?;
            longest = longest.max(Some(tokens.len()));
        }
    }
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{self, DataTask};

    #[test]
    fn a_model_without_a_template_is_said_to_see_no_roles() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("prompts.jsonl");
        let user = r#"{"role": "user", "content": "2 + 2"}"#;
        let is_warned = |prompt: &str, more: &str| {
            let line = format!(r#"{{"prompt": {prompt}, "solution": "4"{more}, "split": "test"}}"#);
            std::fs::write(&path, line).unwrap();
            has_conversations(&DataTask::open(&path, None).unwrap())
        };
        assert!(!is_warned(r#""2 + 2""#, "") && !is_warned(&format!("[{user}]"), ""));
        assert!(is_warned(&format!(r#"[{{"role": "system", "content": "Add."}}, {user}]"#), ""));
        assert!(is_warned(&format!("[{user}]"), r#", "tools": [{"name": "add"}]"#));
        let sort = task::find("sort").unwrap();
        assert!(!has_conversations(&*(sort.open)((sort.defaults)()).unwrap()));
    }
}
