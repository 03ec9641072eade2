//! The module of a page that trains a language model in a worker.

use grove::metrics::IterationRecord;
use grove::model::policy_file::{Header, PolicyFileError, read_header, read_params, write_params};
use grove::run::Schedule;
use grove::settings::overlay;
use grove::task;
use grove::text::LanguageModel;
use grove::text::generate::Sampling;
use grove::trainer::text::{
    CollapseMonitor, CompletionRecord, LanguageConfig, LanguageSettings, LanguageTrainer, TINY,
    join_language_settings, read_settings, split_language_settings,
};
use grove_web_base::Saved;
use serde::Serialize;
use serde_json::json;
use toml::{Table, Value};
use wasm_bindgen::prelude::*;

/// Number of held-out prompts whose sample completions are shown during SFT, which generates none itself.
const SAMPLE_PROMPTS: u64 = 8;
/// Number of sample completions of each of these prompts.
const SAMPLES_PER_PROMPT: usize = 4;

/// A training run of a language model, with the interface of the training of games where both have a function.
#[wasm_bindgen]
pub struct Training {
    trainer: LanguageTrainer,
    settings: String,
    collapse_monitor: CollapseMonitor,
}

/// The result of an iteration.
#[derive(Serialize)]
struct IterationResult {
    record: IterationRecord,
    completions: Vec<CompletionRecord>,
}

/// The task that the settings name, TOML, and the defaults of its run with these changes. `model` replaces the sizes
/// of the model.
fn settings(
    changes: &str,
    model: Option<Value>,
) -> Result<(String, Table, LanguageConfig), JsError> {
    let mut changes = overlay::parse("the settings", changes)?;
    let name = changes.get("task").and_then(Value::as_str).unwrap_or_default().to_string();
    let task_settings = (task::find(&name)?.defaults)();
    let mut table = join_language_settings(&name, &task_settings, &LanguageConfig::for_model(TINY));
    if let Some(model) = model {
        changes.insert("model".to_string(), model);
    }
    overlay::lay_over(&mut table, changes)?;
    let split = split_language_settings(table)?;
    let LanguageSettings { task_name: name, task_settings: own, mut config } = split;
    config.fit.iterations = config.fit.iterations.min(config.iterations);
    config.validate()?;
    Ok((name, own, config))
}

impl Training {
    fn new(trainer: LanguageTrainer, settings: Table) -> Self {
        let (collapse_monitor, text) =
            (CollapseMonitor::new(trainer.reward_parts()), settings.to_string());
        Self { collapse_monitor, trainer: trainer.with_settings(settings), settings: text }
    }

    fn schedule(&self) -> Schedule {
        self.trainer.config().into()
    }

    /// A run of a fresh model.
    fn fresh(changes: &str) -> Result<Self, JsError> {
        let (name, own, config) = settings(changes, None)?;
        let settings = join_language_settings(&name, &own, &config);
        let task = (task::find(&name)?.open)(own)?;
        Ok(Self::new(LanguageTrainer::for_task(task, config, None)?, settings))
    }

    /// A run of the model in a file, without SFT.
    fn from_file(changes: &str, file: &[u8]) -> Result<Self, JsError> {
        let config = match read_header(file) {
            Err(PolicyFileError::NoHeader) => {
                return Err(JsError::new(
                    "the file has no settings; load a model that was saved by this page",
                ));
            }
            header => header?.config,
        };
        let header = overlay::parse("the file's settings", &config)?;
        let Some(model) = header.get("model") else {
            return Err(JsError::new("the file holds a policy for games, not a language model"));
        };
        let (name, own, mut config) = settings(changes, Some(model.clone()))?;
        config.fit.iterations = 0;
        let settings = join_language_settings(&name, &own, &config);
        let task = (task::find(&name)?.open)(own)?;
        let alphabet = task.alphabet().unwrap_or_default();
        let mut model = LanguageModel::with_fresh_weights(&config.tiny_shape(), &alphabet, 0);
        model.params = read_params(file, &model.shape.parameters())?.into();
        Ok(Self::new(LanguageTrainer::for_task(task, config, Some(model))?, settings))
    }
}

#[wasm_bindgen]
impl Training {
    /// Starts a run by `settings`: TOML with `task`, and changes of that task's defaults. The model is a fresh one, or
    /// the one in a file from [`Training::file`], which skips SFT and keeps its sizes.
    pub fn create(settings: &str, file: Option<Vec<u8>>) -> Result<Training, JsError> {
        match file {
            None => Self::fresh(settings),
            Some(file) => Self::from_file(settings, &file),
        }
    }

    /// Resumes a run from [`Training::save`].
    pub fn resume(saved: Saved) -> Result<Training, JsError> {
        let table = read_settings(&saved.0)?;
        let split = split_language_settings(table.clone())?;
        let LanguageSettings { task_name: name, task_settings: own, config } = split;
        let task = (task::find(&name)?.open)(own)?;
        let trainer = LanguageTrainer::for_task(task, config, None)?.with_checkpoint(&saved.0)?;
        Ok(Self::new(trainer, table))
    }

    /// The rank of this worker: 0, as a language model is trained by one worker.
    pub fn rank(&self) -> usize {
        0
    }

    /// Broadcasts a command to the workers that share the run, of which there are none.
    pub fn next(&self, command: u8) -> u8 {
        command
    }

    /// A checkpoint of the run.
    pub async fn save(&self) -> Result<Saved, JsError> {
        Ok(Saved(self.trainer.snapshot_async().await?))
    }

    /// Whether the run is over.
    pub fn is_done(&self) -> bool {
        self.schedule().end_reason(self.trainer.iterations_done(), self.trainer.best()).is_some()
    }

    /// Runs one iteration; returns its record, with an evaluation if one is due, and completions, as JSON:
    /// `{record, completions}`. During SFT the completions are samples for held-out prompts.
    pub async fn iterate(&mut self) -> Result<String, JsError> {
        let mut record = self.trainer.iterate_async().await?;
        let mut completions = self.trainer.take_completions();
        let warning = self.collapse_monitor.observe(&record);
        if let Some(text) = &mut record.text {
            text.warning = warning;
            if text.is_sft {
                completions = self.trainer.sample_held_out(SAMPLE_PROMPTS, SAMPLES_PER_PROMPT)?;
            }
        }
        if self.schedule().due_work(record.iteration, false).evaluate {
            record.evaluation = Some(self.trainer.validate_async().await?.evaluation);
        }
        Ok(serde_json::to_string(&IterationResult { record, completions })?)
    }

    /// Completions of a prompt, as JSON: the greedy one, then `drawn` sampled ones.
    pub fn answer(&self, prompt: &str, drawn: usize) -> Result<String, JsError> {
        let sampling = self.trainer.sampling();
        let greedy = Sampling { temperature: 0.0, ..sampling.clone() };
        // One token for each digit, and one for the end.
        let max_new_tokens = prompt.chars().count().max(sampling.max_new_tokens);
        let greedy = Sampling { max_new_tokens, ..greedy };
        let sampling = Sampling { max_new_tokens, ..sampling };
        let mut completions = self.trainer.complete_text(prompt, 1, &greedy)?;
        completions.extend(self.trainer.complete_text(prompt, drawn, &sampling)?);
        Ok(serde_json::to_string(&completions)?)
    }

    /// The current model as a file of named tensors, with its settings in the header.
    pub fn file(&self) -> Vec<u8> {
        let model = self.trainer.model();
        let iteration = self.trainer.iterations_done().into();
        let header = Header { iteration, config: self.settings.clone(), dataset: None };
        write_params(&model.shape.parameters(), model.params.values(), Some(&header))
    }

    /// The names of the reward's parts and the number of the model's parameters: `{parts, parameters}`, as JSON.
    pub fn about(&self) -> String {
        let parts: Vec<&str> = self.trainer.reward_parts().iter().map(|part| &*part.name).collect();
        json!({ "parts": parts, "parameters": self.trainer.model().params.len() }).to_string()
    }
}
