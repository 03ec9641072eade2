//! The phases of GRPO for a language model.

use super::scored::{RolloutSeconds, ScoredCompletions};
use super::{
    CompletionRecord, HeldOutPart, LanguageConfig, LanguageEngine, LanguageTrainError,
    TrainingStage, advantages, record,
};
use crate::learner::learning_rate;
use crate::learner::text::{Group, LanguageMeans};
use crate::metrics::{EvaluationRecord, IterationRecord, PhaseSeconds};
use crate::parallel::{Shards, Team, TeamError};
use crate::text::Arithmetic;
use crate::trainer::engine::{Engine, IterationPhases};
use crate::trainer::{may_enter_pool, run_in_pool_if, run_phases};
use burn::tensor::Device;
use std::borrow::Cow;

/// The completions from which an iteration learns, by the stage of training.
pub(in crate::trainer) enum LanguageRollout {
    /// Solutions to imitate, in SFT.
    Demonstrations(Vec<Group>),
    /// Completions of the policy, in GRPO, with their iteration, counted from 0.
    Completions { iteration: u32, scored: ScoredCompletions },
}

impl LanguageRollout {
    /// Number of tokens learnt from.
    fn num_tokens(&self) -> usize {
        match self {
            Self::Demonstrations(groups) => {
                let samples = groups.iter().flat_map(|group| &group.samples);
                samples.map(|sample| sample.tokens.len()).sum()
            }
            Self::Completions { scored, .. } => scored.num_tokens(),
        }
    }
}

/// Totals of an iteration.
pub(in crate::trainer) struct LanguageTotals {
    record: IterationRecord,
    learnt_tokens: u64,
    seconds: RolloutSeconds,
}

impl LanguageEngine {
    /// The stage of training that an iteration belongs to.
    fn stage(&self, iteration: u32) -> TrainingStage {
        if self.config.is_sft_only() || iteration < self.config.fit.iterations {
            TrainingStage::Sft
        } else {
            TrainingStage::Grpo
        }
    }

    /// Performs the update of an iteration.
    fn learn(&mut self, groups: &[Group], iteration: u32) -> Result<LanguageMeans, TeamError> {
        let stage = self.stage(iteration);
        let config = &self.config;
        let steps = config.optimizer_steps_per_iteration() as u64;
        let first = u64::from(iteration) * steps;
        let rates: Vec<f64> = (first..first + steps).map(|step| self.learning_rate(step)).collect();
        let settings = config.update_settings(stage);
        let is_pooled = self.device.is_none() && may_enter_pool(&self.team);
        let learner = &mut self.learner;
        run_in_pool_if(is_pooled, || learner.update(&settings, groups, iteration, &rates))
    }

    /// Checks that the device has room for each group that passes through the decoder or the reference. Groups without
    /// a gradient do not pass through the decoder.
    fn check_groups(&self, groups: &[Group]) -> Result<(), LanguageTrainError> {
        let loss_params = self.config.update_settings(TrainingStage::Grpo).loss_params();
        let has_reference = self.config.loss.kl_coef > 0.0;
        let passes = |group: &&Group| has_reference || group.has_gradient(&loss_params);
        let mut passing = groups.iter().filter(passes);
        let advice = "lower generation.group_size or generation.max_new_tokens";
        passing.try_for_each(|group| self.check_group(group, advice))
    }

    /// Learning rate of an optimizer step: the constant rate of SFT, then the rate of the schedule. Steps are counted
    /// as if every iteration took all of its steps.
    fn learning_rate(&self, step: u64) -> f64 {
        let LanguageConfig { fit, iterations, .. } = &self.config;
        let steps = self.config.optimizer_steps_per_iteration() as u64;
        let sft_steps = u64::from(fit.iterations) * steps;
        if step < sft_steps {
            return fit.learning_rate;
        }
        let grpo_steps = (u64::from(*iterations) * steps).saturating_sub(sft_steps);
        learning_rate(&self.config.optimizer, step - sft_steps, grpo_steps)
    }
}

impl IterationPhases for LanguageEngine {
    type Trajectory = LanguageRollout;
    type Advantages = Vec<Vec<f32>>;
    type Stats = LanguageMeans;
    type Totals = LanguageTotals;
    type Error = LanguageTrainError;

    fn roll_out(&mut self, iteration: u32) -> Result<LanguageRollout, LanguageTrainError> {
        Ok(match self.stage(iteration) {
            TrainingStage::Sft => LanguageRollout::Demonstrations(self.take_demonstrations()?),
            TrainingStage::Grpo => {
                LanguageRollout::Completions { iteration, scored: self.complete_prompts()? }
            }
        })
    }

    fn compute_advantages(
        &mut self,
        rollout: &LanguageRollout,
    ) -> Result<Vec<Vec<f32>>, LanguageTrainError> {
        let LanguageRollout::Completions { scored, .. } = rollout else { return Ok(Vec::new()) };
        let scale = self.config.reward.scale_rewards;
        Ok(advantages::compute_advantages(&scored.learnt_rewards(), scale))
    }

    fn update(
        &mut self,
        rollout: &LanguageRollout,
        advantages: &Vec<Vec<f32>>,
        iteration: u32,
    ) -> Result<LanguageMeans, LanguageTrainError> {
        Ok(match rollout {
            LanguageRollout::Demonstrations(groups) => self.learn(groups, iteration)?,
            LanguageRollout::Completions { scored, .. } => {
                let reward = &self.config.reward;
                let groups = advantages::to_learner_groups(scored, advantages, reward);
                self.check_groups(&groups)?;
                self.learn(&groups, iteration)?
            }
        })
    }

    async fn read_totals(
        &mut self,
        rollout: LanguageRollout,
        advantages: Vec<Vec<f32>>,
        means: LanguageMeans,
        _next_iteration: Option<u32>,
    ) -> Result<LanguageTotals, LanguageTrainError> {
        let (parts, model) = (&self.reward_parts[..], &self.model);
        let (mut record, seconds, completions) = match &rollout {
            LanguageRollout::Demonstrations(_) => {
                (record::new_sft_record(), RolloutSeconds::default(), Vec::new())
            }
            LanguageRollout::Completions { iteration, scored } => (
                record::new_grpo_record(scored, parts),
                scored.seconds,
                CompletionRecord::from_iteration(iteration + 1, scored, &advantages, parts, model),
            ),
        };
        record::write_language_means(&mut record, &means);
        self.completions = completions;
        Ok(LanguageTotals { record, learnt_tokens: rollout.num_tokens() as u64, seconds })
    }
}

impl Engine for LanguageEngine {
    type Config = LanguageConfig;
    type Error = LanguageTrainError;

    fn config(&self) -> &LanguageConfig {
        &self.config
    }

    fn iterations(&self) -> u32 {
        self.config.iterations
    }

    fn env_steps(&self) -> u64 {
        self.env_steps
    }

    fn team(&self) -> &Team {
        &self.team
    }

    fn shards(&self) -> Shards {
        self.team.cut_into_shards(self.config.generation.num_prompts, self.config.update.num_shards)
    }

    fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    fn describe(&self) -> String {
        let precision = self.config.precision;
        let Some(device) = &self.device else {
            let native = "native generation, native updates";
            return match self.learner.decoder.arithmetic() {
                Arithmetic::F32 => native.to_string(),
                Arithmetic::Bf16(kernel) => format!("{native}, {precision} by {}", kernel.name()),
            };
        };
        let work = if crate::device::has_kernels(device) {
            "generation and updates in kernels"
        } else {
            "generation by tensor operations, updates by autodiff"
        };
        format!("{work}, {precision}")
    }

    fn runs_in_pool(&self) -> bool {
        // Generation and the update enter the pool themselves; verifiers stay on the caller's thread.
        false
    }

    async fn train_iteration(
        &mut self,
        iteration: u32,
        next_iteration: Option<u32>,
    ) -> Result<IterationRecord, LanguageTrainError> {
        let (totals, phases) = run_phases(self, iteration, next_iteration).await?;
        let LanguageTotals { mut record, learnt_tokens, seconds } = totals;
        let text = record.text.get_or_insert_default();
        let steps = if text.is_sft { learnt_tokens } else { text.num_tokens };
        let PhaseSeconds { rollout, advantage, update, .. } = phases.unwrap_or_default();
        text.generated_tokens_per_second = text.num_tokens as f64 / seconds.generation.max(1e-9);
        text.learnt_tokens_per_second = learnt_tokens as f64 / update.max(1e-9);
        let RolloutSeconds { generation, verification } = seconds;
        let advantage = advantage + (rollout - generation - verification).max(0.0);
        let verify = Some(verification);
        record.seconds.phases =
            Some(PhaseSeconds { rollout: generation, advantage, update, verify });
        self.env_steps += steps;
        let steps_per_iteration = self.config.optimizer_steps_per_iteration() as u64;
        record.learning_rate =
            self.learning_rate(u64::from(iteration + 1) * steps_per_iteration - 1);
        Ok(record)
    }

    async fn evaluate_on_validation(&self) -> Result<EvaluationRecord, LanguageTrainError> {
        self.evaluate_part(HeldOutPart::Validation, self.config.checkpoint.eval_episodes)
    }

    async fn params(&self) -> Cow<'_, [f32]> {
        Cow::Borrowed(self.learner.decoder.trainable())
    }
}
