//! Settings of a run of a language model: in files, and converted for the model, the sampler and the learner.

use crate::learner::text::LanguageUpdateSettings;
use crate::model::DecoderShape;
use crate::settings::{
    ConfigError, GenerationConfig, LanguageConfig, LossConfig, LossType, UpdateConfig, overlay,
};
use crate::text::generate::Sampling;
use toml::{Table, Value};

pub use crate::trainer::snapshot::read_settings;

/// The parts of the settings of a run that trains a language model.
#[derive(Clone, Debug)]
pub struct LanguageSettings {
    /// The task's name.
    pub task_name: String,
    /// The task's own settings.
    pub task_settings: Table,
    /// The settings of the run.
    pub config: LanguageConfig,
}

/// The settings of a run in the form that is saved and displayed: the name of the task, the settings of the run, and
/// the task's own settings, `task`, under its name.
pub fn join_language_settings(name: &str, task: &Table, config: &LanguageConfig) -> Table {
    let mut table = Table::new();
    table.insert("task".to_string(), name.into());
    table.extend(overlay::to_table(config));
    table.insert(name.to_string(), task.clone().into());
    table
}

/// Splits a table made by [`join_language_settings`] into its parts.
///
/// # Errors
/// If something is missing, or of another type.
pub fn split_language_settings(mut table: Table) -> Result<LanguageSettings, ConfigError> {
    let Some(Value::String(task_name)) = table.remove("task") else {
        return Err(ConfigError::OtherKind("the settings name no task".to_string()));
    };
    let task_settings = match table.remove(&task_name) {
        Some(Value::Table(task)) => task,
        _ => Table::new(),
    };
    Ok(LanguageSettings { task_name, task_settings, config: overlay::from_table(table)? })
}

/// Stages of a language model's training, whose losses differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainingStage {
    /// Supervised fine-tuning on solutions.
    Sft,
    /// GRPO on scored completions.
    Grpo,
}

impl LanguageConfig {
    /// Shape of a new model, in Qwen2's architecture.
    pub fn tiny_shape(&self) -> DecoderShape {
        self.model.tiny.to_shape(DecoderShape::qwen2())
    }

    /// Sampling settings of completions, which end with one of the model's `stop_tokens`.
    pub fn sampling(&self, stop_tokens: &[u32]) -> Sampling {
        let GenerationConfig { temperature, top_k, top_p, min_p, max_new_tokens, .. } =
            self.generation;
        let stop_tokens = stop_tokens.to_vec();
        Sampling { temperature, top_k, top_p, min_p, max_new_tokens, stop_tokens }
    }

    /// Settings of the learner's updates in a stage. SFT has no entropy bonus; before GRPO it has no KL penalty either,
    /// since the reference is the policy at its end.
    pub fn update_settings(&self, stage: TrainingStage) -> LanguageUpdateSettings {
        let is_sft = stage == TrainingStage::Sft;
        let loss_type = if is_sft { LossType::Nll } else { self.loss.loss_type };
        let entropy_coef = if is_sft { 0.0 } else { self.loss.entropy_coef };
        let kl_coef = if is_sft && !self.is_sft_only() { 0.0 } else { self.loss.kl_coef };
        // Demonstrations have no behaviour policy to diverge from.
        let target_kl = if is_sft { 0.0 } else { self.update.target_kl };
        LanguageUpdateSettings {
            loss: LossConfig { loss_type, entropy_coef, kl_coef, ..self.loss.clone() },
            update: UpdateConfig { target_kl, ..self.update.clone() },
            optimizer: self.optimizer.clone(),
            temperature: if is_sft { 1.0 } else { self.generation.temperature },
            max_new_tokens: self.generation.max_new_tokens,
        }
    }

    /// Whether the loss has had a KL penalty by the end of `iteration`, counted from 0.
    pub fn has_reference(&self, iteration: u32) -> bool {
        let first = if self.is_sft_only() { 0 } else { self.fit.iterations };
        self.loss.kl_coef > 0.0 && iteration >= first
    }

    /// Number of optimizer steps per iteration.
    pub fn optimizer_steps_per_iteration(&self) -> usize {
        self.update.update_epochs * self.update.num_minibatches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_another_kind_of_run_are_rejected() {
        let error = split_language_settings(Table::new()).unwrap_err();
        assert!(matches!(error, ConfigError::OtherKind(_)), "{error}");
    }
}
