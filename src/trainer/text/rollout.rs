//! The rollout of a language model: completions of an iteration's prompts, and their rewards. Ranks that share a run
//! generate a part each and exchange the results.

use super::advantages::{has_zero_variance, overlong_penalty};
use super::exchange::{self, CompletionGroup};
use super::scored::{RolloutSeconds, ScoredCompletions, ScoredGroup};
use super::verification::{Generation, Verification};
use super::{GenerationConfig, LanguageEngine, LanguageTrainError};
use crate::rng::{Stream, draw};
use crate::task::{Prompt, Rewards, Split};
use crate::text::generate::{self, Completion, Generator, Sampling, stop};
use web_time::Instant;

/// Minimum number of completions that an evaluation may decode at a time.
const MIN_EVALUATION_SLOTS: usize = 64;

impl LanguageEngine {
    /// Generates and scores completions of the next prompts. Groups without variance are replaced, up to
    /// `generation.resample` times.
    pub(super) fn complete_prompts(&mut self) -> Result<ScoredCompletions, LanguageTrainError> {
        let mut kept = ScoredCompletions::default();
        let GenerationConfig { num_prompts, group_size, resample, .. } = self.config.generation;
        let sampling = self.sampling();
        for round in 0..=resample {
            let missing = num_prompts - kept.groups.len();
            let indices: Vec<u64> = (self.next_prompt..).take(missing).collect();
            self.next_prompt += missing as u64;
            let mut scored =
                self.complete_and_score(Split::Train, &indices, group_size, &sampling)?;
            if round < resample {
                scored.retain_groups(|rewards| !has_zero_variance(rewards));
            }
            kept.append(scored);
            if kept.groups.len() == num_prompts {
                break;
            }
        }
        Ok(kept)
    }

    /// Generates and scores `num_completions` completions of each prompt at `indices`. All ranks must call this.
    pub(super) fn complete_and_score(
        &self,
        split: Split,
        indices: &[u64],
        num_completions: usize,
        sampling: &Sampling,
    ) -> Result<ScoredCompletions, LanguageTrainError> {
        if indices.is_empty() {
            return Ok(ScoredCompletions::default());
        }
        let prompts = indices.iter().map(|index| self.task.prompt(split, *index));
        let prompts = prompts.collect::<Result<Vec<Prompt>, _>>()?;
        let stream = if split == Split::Train { Stream::TrainAction } else { Stream::Validation };
        let key = stream.key(self.config.seed);
        let mut requests = Vec::with_capacity(prompts.len());
        for (prompt, index) in prompts.iter().zip(indices) {
            let tokens = self.tokenize_prompt(prompt, sampling.max_new_tokens)?;
            let key = draw(draw(key, *index as u32), (*index >> 32) as u32);
            requests.push(generate::CompletionRequest { tokens, num_completions, key });
        }
        let shards = self.team.cut_into_shards(indices.len(), self.config.update.num_shards);
        let own = shards.own_items();
        let mut seconds = RolloutSeconds::default();
        let ours =
            self.complete_and_verify(&prompts[own.clone()], &requests[own], sampling, &mut seconds);
        let score_group = |((prompt, request), group): ((_, generate::CompletionRequest), _)| {
            let learnt_rewards = self.compute_learnt_rewards(&group, sampling.max_new_tokens);
            let CompletionGroup { completions, texts, rewards } = group;
            let tokens = request.tokens;
            ScoredGroup { prompt, tokens, completions, texts, rewards, learnt_rewards }
        };
        let groups =
            prompts.into_iter().zip(requests).zip(exchange::gather_completions(&self.team, ours)?);
        Ok(ScoredCompletions {
            groups: groups.map(score_group).collect(),
            seconds,
            ..ScoredCompletions::default()
        })
    }

    /// Generates the completions of this rank's prompts, and has the task verify them.
    fn complete_and_verify(
        &self,
        prompts: &[Prompt],
        requests: &[generate::CompletionRequest],
        sampling: &Sampling,
        seconds: &mut RolloutSeconds,
    ) -> Result<Vec<CompletionGroup>, LanguageTrainError> {
        let started = Instant::now();
        let stops = &self.config.generation.stop;
        let decode = |tokens: &[u32]| {
            let text = self.model.decode_completion(tokens);
            stop::text_before(&text, stops).map(str::to_string).unwrap_or(text)
        };
        let verification = Verification::new(&*self.task, prompts, &decode);
        let must_stop = |tokens: &[u32]| {
            let decode = |tokens: &[u32]| self.model.decode_completion(tokens);
            verification.has_failed() || stop::is_reached(decode, tokens, stops)
        };
        let generator = Generator {
            decoder: &self.learner.decoder,
            sampling,
            num_slots: self.slots(),
            stop: Some(&must_stop),
            listener: None,
        };
        let Generation { completions, cache, seconds: generation_seconds } =
            verification.generate(generator, requests)?;
        let texts = verification.decode_all(&completions);
        let rewards = verification.collect_rewards(&completions, &texts, cache)?;
        let groups = completions
            .into_iter()
            .zip(texts)
            .zip(rewards)
            .map(|((completions, texts), rewards)| CompletionGroup { completions, texts, rewards })
            .collect();
        seconds.generation += generation_seconds;
        seconds.verification += started.elapsed().as_secs_f64() - generation_seconds;
        Ok(groups)
    }

    /// Number of completions decoded at a time. On the CPU, an evaluation of a large decoder uses no more than an
    /// iteration, since the KV caches would need more memory than training.
    fn slots(&self) -> usize {
        let GenerationConfig { num_prompts, group_size, slots, .. } = self.config.generation;
        if self.device.is_some() || self.learner.decoder.is_sequential() {
            slots
        } else {
            slots.min(num_prompts.saturating_mul(group_size).max(MIN_EVALUATION_SLOTS))
        }
    }

    /// Computes the reward of each completion of a prompt that is learnt from, with a length penalty relative to
    /// `limit` tokens; NaN if the verifier could not judge it.
    fn compute_learnt_rewards(&self, group: &CompletionGroup, limit: usize) -> Vec<f64> {
        let buffer = self.config.reward.overlong_buffer;
        let learnt_reward = |(completion, rewards): (&Completion, &Rewards)| {
            let penalty = overlong_penalty(completion.tokens.len(), limit, buffer);
            match rewards.problem {
                None => rewards.score(&self.reward_parts) - penalty,
                Some(_) => f64::NAN,
            }
        };
        group.completions.iter().zip(&group.rewards).map(learnt_reward).collect()
    }
}
