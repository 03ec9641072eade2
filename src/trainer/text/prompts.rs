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
        if tokens.len().saturating_add(completion) > context {
            let (start, prompt) = (start_of(text), tokens.len());
            return Err(LanguageTrainError::TooLong { start, prompt, completion, context });
        }
        let (count, max_tokens) = (tokens.len(), self.limits.prompt);
        if count > max_tokens {
            let start = start_of(text);
            return Err(LanguageTrainError::Settings(format!(
                "a prompt (it begins with {start:?}) has {count} tokens, but the device's buffers hold {max_tokens} \
                 of them at a time: leave such prompts out, or use the CPU"
            )));
        }
        Ok(tokens)
    }
}

impl LanguageTrainer {
    /// Whether the task lists conversations whose roles and tools the model does not see, since it has no chat
    /// template.
    pub fn loses_roles(&self) -> bool {
        self.engine.model.template.is_none() && has_conversations(&*self.engine.task)
    }

    /// Prompt after which the context has no room for as many tokens as the task's completions may have, if that is why
    /// they have fewer.
    pub fn limiting_prompt(&self) -> Option<LongestPrompt> {
        let LanguageEngine { task, model, config, .. } = &self.engine;
        let limit = config.generation.max_new_tokens;
        if config.is_sft_only() || limit >= max_new_tokens_of(&**task, model) {
            return None;
        }
        let longest = find_longest_prompt(&**task, model).ok()??;
        (longest.num_tokens + limit >= model.shape.context).then_some(longest)
    }
}

/// The start of a prompt, which names it in messages.
fn start_of(text: &str) -> String {
    text.chars().take(40).collect()
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

/// The longest prompt of a task.
pub struct LongestPrompt {
    /// The start of its text.
    pub start: String,
    /// Number of its tokens.
    pub num_tokens: usize,
}

/// The task's own maximum number of tokens of a completion by a model.
pub(super) fn max_new_tokens_of(task: &dyn Task, model: &LanguageModel) -> usize {
    if model.is_fresh() { task.max_new_tokens() } else { task.max_new_tokens_of_pretrained() }
}

/// Finds the longest prompt of a task that lists its prompts.
pub(super) fn find_longest_prompt(
    task: &dyn Task,
    model: &LanguageModel,
) -> Result<Option<LongestPrompt>, LanguageTrainError> {
    let mut longest: Option<LongestPrompt> = None;
    for split in [Split::Train, Split::Test] {
        for index in 0..task.num_prompts(split).unwrap_or(0) {
            let Prompt { text, messages, template_values, .. } = task.prompt(split, index)?;
            let tokens = model.tokenize_prompt_with(&text, &messages, &template_values)?;
            let num_tokens = tokens.len();
            if longest.as_ref().is_none_or(|longest| num_tokens > longest.num_tokens) {
                longest = Some(LongestPrompt { start: start_of(&text), num_tokens });
            }
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
