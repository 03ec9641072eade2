//! A language model in training, in a worker.

use grove::config::{ConfigError, overlay};
use grove::metrics::IterationRecord;
use grove::model::language::LanguageModel;
use grove::model::saved::{Header, read_header, read_params, write_params};
use grove::rollout::generate::Sampling;
use grove::run::Schedule;
use grove::task;
use grove::trainer::language::{
    CompletionRecord, Health, LanguageConfig, LanguageTrainer, TINY, language_settings,
    load_language_settings, saved_language_settings,
};
use grove_web_base::Saved;
use serde::Serialize;
use toml::{Table, Value};
use wasm_bindgen::prelude::*;

/// Prompts that are answered while solutions are imitated, and answers to each: there are none to learn from.
const EXAMPLES: (u64, usize) = (8, 4);

/// A run of a language model that begins from nothing.
#[wasm_bindgen]
pub struct TextTraining {
    trainer: LanguageTrainer,
    settings: String,
    health: Health,
}

/// What is trained, for people.
#[derive(Serialize)]
struct About<'a> {
    task: &'a str,
    parts: Vec<&'a str>,
    parameters: usize,
    iterations: u32,
    version: &'static str,
}

/// What an iteration has made.
#[derive(Serialize)]
struct News {
    record: IterationRecord,
    completions: Vec<CompletionRecord>,
}

/// The task that settings name, TOML, and the defaults of a run of it with those laid over. `model`: the sizes
/// of the model, which are others then.
fn settings(asked: &str, model: Option<Value>) -> Result<(String, Table, LanguageConfig), JsError> {
    let mut asked = overlay::parse("the settings", asked)?;
    let name = asked.get("task").and_then(Value::as_str).unwrap_or_default().to_string();
    let own = (task::find(&name)?.defaults)();
    let mut table = language_settings(&name, &own, &LanguageConfig::for_model(TINY));
    if let Some(model) = model {
        asked.insert("model".to_string(), model);
    }
    overlay::lay_over(&mut table, asked)?;
    let (name, own, mut config) = load_language_settings(table)?;
    config.fit.iterations = config.fit.iterations.min(config.iterations);
    config.validate().map_err(ConfigError::OutOfRange)?;
    Ok((name, own, config))
}

impl TextTraining {
    fn of(trainer: LanguageTrainer, settings: String) -> Self {
        Self { health: Health::new(trainer.task().parts()), trainer, settings }
    }

    fn schedule(&self) -> Schedule {
        self.trainer.config().into()
    }
}

#[wasm_bindgen]
impl TextTraining {
    /// A run of a fresh model, by settings as TOML: `task`, and whatever differs from that one's defaults.
    #[wasm_bindgen(constructor)]
    pub fn new(asked: &str) -> Result<TextTraining, JsError> {
        let (name, own, config) = settings(asked, None)?;
        let settings = language_settings(&name, &own, &config).to_string();
        let task = (task::find(&name)?.open)(own)?;
        Ok(Self::of(LanguageTrainer::new(task, config, None)?, settings))
    }

    /// A run that goes on with the model in a file that [`TextTraining::file`] gave, by these settings but the
    /// model's sizes; it imitates nothing any more.
    pub fn from_file(file: &[u8], asked: &str) -> Result<TextTraining, JsError> {
        let header = overlay::parse("the file's settings", &read_header(file)?.config)?;
        let Some(model) = header.get("model") else {
            return Err(JsError::new("it holds a policy for games, no language model"));
        };
        let (name, own, mut config) = settings(asked, Some(model.clone()))?;
        config.fit.iterations = 0;
        let settings = language_settings(&name, &own, &config).to_string();
        let task = (task::find(&name)?.open)(own)?;
        let alphabet = task.alphabet().unwrap_or_default();
        let mut model = LanguageModel::tiny(&config.tiny_shape(), &alphabet, 0);
        model.params = read_params(file, &model.shape.parameters())?.into();
        Ok(Self::of(LanguageTrainer::new(task, config, Some(model))?, settings))
    }

    /// A run that goes on from where it was saved.
    pub fn resume(saved: Saved) -> Result<TextTraining, JsError> {
        let table = saved_language_settings(&saved.0)?;
        let settings = table.to_string();
        let (name, own, config) = load_language_settings(table)?;
        let task = (task::find(&name)?.open)(own)?;
        let trainer = LanguageTrainer::new(task, config, None)?.restored(&saved.0)?;
        Ok(Self::of(trainer, settings))
    }

    /// All that the run needs to go on.
    pub fn save(&self) -> Result<Saved, JsError> {
        Ok(Saved(self.trainer.snapshot(&overlay::parse("the settings", &self.settings)?)))
    }

    /// Whether the run is over.
    pub fn is_done(&self) -> bool {
        let best = self.trainer.best().map(|(_, iteration)| iteration);
        self.schedule().end(self.trainer.iteration(), best).is_some()
    }

    /// One iteration; gives its record, with an evaluation where one is due, and completions, as JSON. While
    /// solutions are imitated, these are of prompts that are never learnt from.
    pub fn iterate(&mut self) -> Result<String, JsError> {
        let (mut record, mut completions) = self.trainer.iterate()?;
        let warning = self.health.observe(&record);
        if let Some(text) = &mut record.text {
            text.warning = warning;
            if text.fit {
                completions = self.trainer.examples(EXAMPLES.0, EXAMPLES.1)?;
            }
        }
        if self.schedule().due(record.iteration, false).evaluation {
            record.evaluation = Some(self.trainer.measure()?.0);
        }
        Ok(serde_json::to_string(&News { record, completions })?)
    }

    /// Answers to a prompt, as JSON: first of the likeliest tokens, then `drawn` others.
    pub fn answer(&self, prompt: &str, drawn: usize) -> Result<String, JsError> {
        let sampling = self.trainer.sampling();
        let greedy = Sampling { temperature: 0.0, ..sampling.clone() };
        // As many as there are digits, and the end.
        let longest = prompt.chars().count().max(sampling.max_new_tokens);
        let room = |sampling| Sampling { max_new_tokens: longest, ..sampling };
        let mut answers = self.trainer.answers(prompt, 1, &room(greedy))?;
        answers.extend(self.trainer.answers(prompt, drawn, &room(sampling))?);
        Ok(serde_json::to_string(&answers)?)
    }

    /// The model as it is, as a file of named tensors whose header has its settings.
    pub fn file(&self) -> Vec<u8> {
        let model = self.trainer.model();
        let iteration = self.trainer.iteration().into();
        let header = Header { iteration, config: self.settings.clone() };
        write_params(&model.shape.parameters(), &model.params, Some(&header))
    }

    /// What is trained, as JSON.
    pub fn about(&self) -> Result<String, JsError> {
        let task = self.trainer.task();
        let about = About {
            task: task.name(),
            parts: task.parts().iter().map(|part| part.name.as_str()).collect(),
            parameters: self.trainer.model().params.len(),
            iterations: self.trainer.config().iterations,
            version: env!("CARGO_PKG_VERSION"),
        };
        Ok(serde_json::to_string(&about)?)
    }
}
