//! Tasks whose prompts are drawn at random together with their solutions.

use super::split::{RandomStream, generate_in_split};
use super::{Completion, Prompt, RewardPart, Rewards, Split, Task, TaskError, TaskSettings};
use crate::schema::Settings;
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;

/// A task whose prompts are drawn at random; its settings are the task itself.
pub(super) trait GeneratedTask:
    Settings + Default + Serialize + DeserializeOwned + Copy + Send + Sync + 'static
{
    const NAME: &'static str;
    const FIT_ITERATIONS: u32 = 100;
    /// The parts of a reward.
    const PARTS: &'static [RewardPart];

    /// Draws a prompt with its identity, which determines its split; `None` if the draws give no valid prompt.
    fn draw(&self, random: &mut RandomStream) -> Option<(String, Prompt)>;

    /// Scores an answer: a number for each part.
    fn score(&self, completion: &Completion) -> Vec<f64>;

    /// The characters of prompts and solutions, each once.
    fn characters(&self) -> String;

    /// Number of characters of the longest solution.
    fn max_solution_chars(&self) -> usize;
}

impl<T: GeneratedTask> TaskSettings for T {
    const NAME: &'static str = T::NAME;
    const FIT_ITERATIONS: u32 = T::FIT_ITERATIONS;

    fn open(self) -> Result<Arc<dyn Task>, TaskError> {
        Ok(Arc::new(self))
    }
}

impl<T: GeneratedTask> Task for T {
    fn name(&self) -> &str {
        T::NAME
    }

    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        generate_in_split(T::NAME, split, index, |random| self.draw(random))
    }

    fn reward_parts(&self) -> &[RewardPart] {
        T::PARTS
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        Ok(completions.iter().map(|completion| Rewards::new(self.score(completion))).collect())
    }

    fn alphabet(&self) -> Option<String> {
        Some(self.characters())
    }

    fn max_new_tokens(&self) -> usize {
        self.max_solution_chars() + 1
    }
}

/// Scores an answer to a prompt with these fields.
#[cfg(test)]
pub(super) fn score_answer(
    task: &impl GeneratedTask,
    fields: serde_json::Value,
    answer: &str,
) -> Vec<f64> {
    let fields = fields.as_object().unwrap().clone();
    let prompt = Prompt::new(String::new(), String::new(), fields);
    task.verify(&[Completion::new(&prompt, answer)]).unwrap().remove(0).values
}
