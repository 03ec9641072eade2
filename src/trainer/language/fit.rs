//! What a model is shown instead of rewarded: texts to imitate, and how well it tells those held out.

use super::{LanguageTrainError, LanguageTrainer};
use crate::learner::language::{Group, Sample, logprobs};
use crate::task::{Prompt, Split};
use rayon::prelude::*;

/// Texts held out of a task whose prompts never end, and of any other at most.
const HELD_OUT: [u64; 2] = [256, 2048];

impl LanguageTrainer {
    /// The next prompts with their solutions: an optimiser step's of a run that imitates, else as many texts
    /// as there would be completions.
    pub(super) fn shown(&mut self) -> Result<Vec<Group>, LanguageTrainError> {
        let generation = &self.config.generation;
        let members = if self.config.imitates() { 1 } else { generation.group_size };
        let count = (generation.num_prompts * members) as u64;
        let numbers = self.next_prompt..self.next_prompt + count;
        self.next_prompt += count;
        numbers.map(|number| self.text(&self.task.prompt(Split::Train, number)?)).collect()
    }

    /// A prompt with its solution.
    pub(super) fn text(&self, prompt: &Prompt) -> Result<Group, LanguageTrainError> {
        let none = || LanguageTrainError::NoSolution(self.task.name().to_string());
        let solution = self.task.solution(prompt).ok_or_else(none)?;
        let mut tokens = self.model.tokenizer.encode(&solution, false)?;
        tokens.extend(self.model.stop_tokens.first());
        let prompt = self.tokens(prompt, tokens.len())?;
        let (logprobs, mask) = (vec![0.0; tokens.len()], vec![true; tokens.len()]);
        let sample = Sample { tokens, logprobs, advantage: 1.0, mask };
        Ok(Group { prompt, samples: vec![sample] })
    }

    /// The mean negative log-likelihood of a token of the solutions that are held out, nats.
    ///
    /// # Errors
    /// As [`LanguageTrainer::iterate`].
    pub fn held_out(&self) -> Result<f64, LanguageTrainError> {
        let [some, most] = HELD_OUT;
        let count = self.task.num_prompts(Split::Test).unwrap_or(some).min(most);
        let text = |number| self.text(&self.task.prompt(Split::Test, number)?);
        let groups: Result<Vec<Group>, LanguageTrainError> = (0..count).map(text).collect();
        let decoder = &self.learner.decoder;
        let of = |group: &Group| logprobs(decoder, group, 1.0).concat();
        let groups = groups?;
        let all: Vec<Vec<f32>> = match decoder.is_small() {
            true => groups.par_iter().map(of).collect(),
            false => groups.iter().map(of).collect(),
        };
        let tokens = all.iter().map(Vec::len).sum::<usize>();
        let sum: f64 = all.iter().flatten().map(|logprob| f64::from(*logprob)).sum();
        Ok(-sum / tokens.max(1) as f64)
    }

    /// Whether there is nothing left to do: all iterations are done, or so many evaluations of a run that
    /// imitates have found nothing better that it is to end.
    pub fn is_done(&self) -> bool {
        let config = &self.config;
        let wait = u64::from(config.fit.patience) * u64::from(config.checkpoint.eval_every);
        let best = self.best.map_or(0, |(_, iteration)| iteration);
        let is_patience_out = u64::from(self.iteration.saturating_sub(best)) >= wait;
        self.iteration >= config.iterations || (config.imitates() && wait > 0 && is_patience_out)
    }
}
