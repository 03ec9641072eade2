//! Supervised fine-tuning on solutions, and the negative log-likelihood of held-out ones.

use super::{HeldOutPart, LanguageEngine, LanguageTrainError, exchange};
use crate::learner::text::{Group, Sample, compute_logprobs};
use crate::task::{Prompt, Split};
use std::ops::Range;

/// Number of held-out solutions per evaluation of a task with unlimited prompts.
const DEFAULT_HELD_OUT_SOLUTIONS: u64 = 256;
/// Maximum number of held-out solutions per evaluation of a task that lists its prompts.
const MAX_HELD_OUT_SOLUTIONS: u64 = 2048;

/// Rewords an error about the room for a completion as one about a solution, whose length no setting determines.
fn reword_for_solution(error: LanguageTrainError) -> LanguageTrainError {
    match error {
        LanguageTrainError::TooLong { start, prompt, completion: solution, context } => {
            LanguageTrainError::LongSolution { start, prompt, solution, context }
        }
        other => other,
    }
}

impl LanguageEngine {
    /// Takes the next prompts with their solutions, as texts to learn from: `num_prompts` of them if the run is SFT
    /// alone, otherwise as many as GRPO has completions.
    pub(super) fn take_demonstrations(&mut self) -> Result<Vec<Group>, LanguageTrainError> {
        let generation = &self.config.generation;
        let factor = if self.config.is_sft_only() { 1 } else { generation.group_size };
        let count = (generation.num_prompts * factor) as u64;
        let indices = self.next_prompt..self.next_prompt + count;
        self.next_prompt += count;
        let prompts = indices.map(|index| self.task.prompt(Split::Train, index));
        prompts.map(|prompt| self.tokenize_demonstration(&prompt?)).collect()
    }

    /// Tokenizes a prompt with its solution, as a text to learn from.
    pub(super) fn tokenize_demonstration(
        &self,
        prompt: &Prompt,
    ) -> Result<Group, LanguageTrainError> {
        let missing = || LanguageTrainError::NoSolution(self.task.name().to_string());
        let solution = self.task.solution(prompt).ok_or_else(missing)?;
        // In a conversation a completion is a message. A solution is what the verifier expects, without a template's
        // additions.
        let Prompt { text, messages, template_values, .. } = prompt;
        let tokens = if prompt.fields.contains_key("completion") {
            self.model.tokenize_answer(text, messages, &solution, template_values)?
        } else {
            self.model.tokenize_plain_answer(text, messages, &solution)?
        };
        let prompt = self.tokenize_prompt(prompt, tokens.len()).map_err(reword_for_solution)?;
        let [logprobs, advantages] = [0.0, 1.0].map(|x| vec![x; tokens.len()]);
        let mask = vec![true; tokens.len()];
        let sample = Sample { tokens, logprobs, advantages, mask, ..Sample::default() };
        let group = Group { prompt, samples: vec![sample] };
        self.check_group(&group, "leave such prompts out")?;
        Ok(group)
    }

    /// Maximum number of held-out solutions per evaluation.
    pub(super) fn max_held_out_solutions(&self) -> u64 {
        match self.task.num_prompts(Split::Test) {
            None => DEFAULT_HELD_OUT_SOLUTIONS,
            Some(_) => MAX_HELD_OUT_SOLUTIONS,
        }
    }

    /// Computes the mean negative log-likelihood per token of the held-out solutions of a part, nats. All ranks must
    /// call this.
    pub(super) fn compute_held_out_loss(
        &self,
        part: HeldOutPart,
    ) -> Result<f64, LanguageTrainError> {
        let indices = self.held_out_prompts(part, self.max_held_out_solutions());
        let count = (indices.end - indices.start) as usize;
        if count == 0 {
            return Ok(0.0);
        }
        let items = self.team.cut_into_shards(count, self.config.update.num_shards).own_items();
        let own_indices = indices.start + items.start as u64..indices.start + items.end as u64;
        let ours = self.compute_held_out_logprobs(own_indices);
        let ours = ours.map(|logprobs| bytemuck::cast_slice(&logprobs).to_vec());
        let bytes = exchange::gather_bytes(&self.team, ours)?.concat();
        let logprobs: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes);
        Ok(-logprobs.iter().copied().map(f64::from).sum::<f64>() / logprobs.len().max(1) as f64)
    }

    /// Computes the log-probabilities of the tokens of the solutions to the held-out prompts at `indices`.
    fn compute_held_out_logprobs(
        &self,
        indices: Range<u64>,
    ) -> Result<Vec<f32>, LanguageTrainError> {
        let demonstration =
            |index| self.tokenize_demonstration(&self.task.prompt(Split::Test, index)?);
        let groups: Result<Vec<Group>, LanguageTrainError> = indices.map(demonstration).collect();
        Ok(compute_logprobs(&self.learner.decoder, &groups?, 1.0).concat().concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task;
    use crate::trainer::text::{LanguageConfig, LanguageTrainer, TINY};

    #[test]
    fn a_long_solution_is_not_blamed_on_a_setting() {
        let found = task::find("sort").unwrap();
        let task = (found.open)((found.defaults)()).unwrap();
        let config = LanguageConfig::for_model(TINY);
        let mut trainer = LanguageTrainer::for_task(task, config, None).unwrap();
        let prompt = trainer.engine.task.prompt(Split::Train, 0).unwrap();
        let demonstration = trainer.engine.tokenize_demonstration(&prompt).unwrap();
        trainer.engine.model.shape.context = demonstration.prompt.len() + 1;
        let error = trainer.engine.tokenize_demonstration(&prompt).unwrap_err().to_string();
        assert!(error.contains(" and its solution of "), "{error}");
        assert!(error.ends_with("; leave such prompts out"), "{error}");
    }
}
