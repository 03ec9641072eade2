//! Checkpoints of a language model's run.

use super::LanguageEngine;
use crate::checkpoint::{Checkpoint, Section};
use crate::learner::Moments;
use crate::model::policy_file::{write_params, write_values};
use crate::parallel::TeamError;
use crate::trainer::SnapshotError;
use crate::trainer::snapshot::{
    CONFIG, Counters, FIRST_MOMENT, LanguageCounters, Persistent, REFERENCE, SECOND_MOMENT, STATE,
    WEIGHTS, new_section, read_params, unreadable_error,
};

impl Persistent for LanguageEngine {
    async fn export_sections(
        &self,
        iterations_done: u32,
    ) -> Result<(Vec<Section>, Counters), TeamError> {
        let layout = self.model.trainable_parameters();
        let encode = |values: &[f32]| write_params(&layout, values, None);
        let mut sections = vec![
            new_section(CONFIG, self.settings.to_string().into_bytes()),
            new_section(WEIGHTS, encode(self.learner.decoder.trainable())),
        ];
        let optimizer_steps = self.learner.save_moments(|moments| {
            let named = [FIRST_MOMENT, SECOND_MOMENT].into_iter().zip(moments);
            let moments = named.map(|(name, x)| (name, write_values(&layout, x, None)));
            sections.extend(moments.map(|(name, bytes)| new_section(name, bytes)));
        });
        if let Some(reference) = &self.learner.reference {
            sections.push(new_section(REFERENCE, encode(reference.trainable())));
        }
        #[cfg(on_disk)]
        sections.extend(super::saved_model::encode_model(self));
        let text = LanguageCounters {
            next_prompt: self.next_prompt,
            env_steps: self.env_steps,
            validation_prompts: self.validation_prompts(),
        };
        let text = Some(text);
        Ok((sections, Counters { iterations_done, optimizer_steps, text, ..Counters::default() }))
    }

    fn import_sections(
        &mut self,
        checkpoint: &Checkpoint,
        counters: &Counters,
    ) -> Result<(), SnapshotError> {
        let layout = self.model.trainable_parameters();
        let read = |name: &str| read_params(checkpoint, name, &layout);
        let text =
            counters.text.ok_or_else(|| unreadable_error(STATE, "it has no `next_prompt`"))?;
        let (first_moment, second_moment) = (read(FIRST_MOMENT)?, read(SECOND_MOMENT)?);
        let steps = counters.optimizer_steps;
        let moments = Moments { first_moment, second_moment, steps };
        let weights = read(WEIGHTS)?;
        let has_reference =
            counters.iterations_done > 0 && self.config.has_reference(counters.iterations_done - 1);
        let reference = has_reference.then(|| read(REFERENCE)).transpose()?;
        // Restores only after everything is read, and so nothing from a damaged checkpoint.
        self.learner.restore_moments(moments, self.config.optimizer.moments);
        self.learner.decoder.update(|trained| trained.copy_from_slice(&weights));
        self.learner.reference = None;
        if let Some(reference) = reference {
            self.learner.freeze_reference(&self.config.update, Some(&reference));
        }
        (self.next_prompt, self.env_steps) = (text.next_prompt, text.env_steps);
        // Another restored checkpoint may be older, such as the best one.
        self.past_validation_prompts = self.past_validation_prompts.max(text.validation_prompts);
        Ok(())
    }
}
