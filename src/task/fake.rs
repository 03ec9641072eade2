//! A task for tests of what becomes of a verifier's rewards.

use super::{Completion, Prompt, RewardPart, Rewards, Split, Task, TaskError};

/// A task with a verifier of a test's own, whose prompts ask for their numbers.
pub struct FakeTask<V> {
    pub parts: Vec<RewardPart>,
    pub verify: V,
}

impl<V: Fn(&[Completion]) -> Vec<Rewards> + Send + Sync> Task for FakeTask<V> {
    fn name(&self) -> &str {
        "fake"
    }

    fn prompt(&self, _: Split, index: u64) -> Result<Prompt, TaskError> {
        let text = format!("Say {index}.");
        Ok(Prompt::with_solution(text.clone(), text, &index.to_string()))
    }

    fn reward_parts(&self) -> &[RewardPart] {
        &self.parts
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        Ok((self.verify)(completions))
    }

    fn max_new_tokens(&self) -> usize {
        8
    }
}
