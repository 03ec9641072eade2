//! Language models: generation, and training with reward functions of Python.

use super::session::{Session, detached, interruptible};
use super::{value_error, warn};
use grove::rng::Stream;
use grove::run::{
    FoundCheckpoint, LanguageRun, ModelPlace, RunError, RunFolder, find_language_model, load_model,
};
use grove::settings::{GenerationConfig, overlay};
use grove::task::{
    self, Completion, DEFAULT_MAX_NEW_TOKENS, Json, Message, PYTHON, PromptSet, RewardPart,
    Rewards, Split, Task, TaskError, parse_template_values,
};
use grove::text::fastest_precision;
use grove::text::generate::{self, Generator, Sampling, stop};
use grove::trainer::text::{
    LanguageConfig, LanguageSettings, LanguageTrainer, TINY, join_language_settings,
    load_language_model, split_language_settings,
};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Prompts that are completed between two looks at whether the user has interrupted: those that wait would all be
/// prefilled.
const PROMPTS_PER_PORTION: usize = 256;

/// A language model.
#[pyclass(module = "grove_rl._native")]
pub struct LanguageModel {
    model: grove::text::LanguageModel,
    /// The folder of the run or the model, or the file, that the path has led to.
    #[pyo3(get)]
    path: PathBuf,
}

/// Settings of a generation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    max_new_tokens: usize,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    completions: usize,
    seed: u64,
    stop: Vec<String>,
    chat_template_kwargs: Option<Json>,
    tools: Option<Json>,
}

impl Options {
    /// Checks the ranges, which are those of `grove generate`.
    fn check(&self) -> PyResult<()> {
        let (temperature, top_p) = (self.temperature, self.top_p);
        let is_temperature = temperature == 0.0 || (1e-6..=f32::MAX).contains(&temperature);
        for (name, is_valid, range) in [
            ("temperature", is_temperature, "0, or 1e-6 or more"),
            ("top_p", top_p > 0.0 && top_p <= 1.0, "above 0, at most 1"),
            ("min_p", (0.0..1.0).contains(&self.min_p), "0 to below 1"),
            ("stop", self.stop.iter().all(|text| !text.is_empty()), "non-empty strings"),
        ] {
            if !is_valid {
                return Err(value_error(format!("`{name}` is out of range: must be {range}")));
            }
        }
        Ok(())
    }
}

/// Loads the model that a path names, like `grove generate`, with warnings for the user.
fn load(path: &Path) -> PyResult<(grove::text::LanguageModel, Vec<String>)> {
    match find_language_model(path).map_err(value_error)? {
        ModelPlace::Folder(path) => Ok((load_model(&path).map_err(value_error)?, Vec::new())),
        ModelPlace::Checkpoint(FoundCheckpoint { checkpoint, warnings }) => {
            Ok((load_language_model(&checkpoint, None).map_err(value_error)?, warnings))
        }
    }
}

/// Loads the model with which a run begins, and returns its setting `model.path`: the folder of the run that a path
/// names, of which the exported model is taken, or else the path itself.
fn load_initial_model(path: &str) -> PyResult<(grove::text::LanguageModel, String)> {
    let Ok(run) = RunFolder::find(path.as_ref()) else {
        return Ok((load_model(path.as_ref()).map_err(value_error)?, path.to_string()));
    };
    let setting = run.path().to_str().unwrap_or(path).to_string();
    if !run.has_language_model() {
        return Err(value_error(RunError::NoLanguageModel(run.path().to_path_buf())));
    }
    if let Some(warning) = run.unfinished_model_warning() {
        Python::attach(|py| warn(py, &warning))?;
    }
    Ok((load_model(&run.model_path()).map_err(value_error)?, setting))
}

#[pymethods]
impl LanguageModel {
    #[new]
    fn new(py: Python, path: PathBuf) -> PyResult<Self> {
        let (loaded, warnings) = detached(py, || {
            // The run's folder, if the path is the name of a run in `runs` alone.
            let run = RunFolder::find(&path).map(|run| run.path().to_path_buf());
            let path = run.unwrap_or(path);
            let (model, warnings) = load(&path)?;
            Ok((Self { model, path }, warnings))
        })?;
        for warning in warnings {
            warn(py, &warning)?;
        }
        Ok(loaded)
    }

    #[getter]
    fn num_params(&self) -> usize {
        self.model.shape.num_params()
    }

    #[getter]
    fn context(&self) -> usize {
        self.model.shape.context
    }

    /// Completes prompts: pairs of a string and, as JSON, the messages for a chat template. Signals end it.
    fn generate(
        &self,
        py: Python,
        prompts: Vec<(String, String)>,
        options: &str,
    ) -> PyResult<Vec<Vec<String>>> {
        let options: Options = serde_json::from_str(options).map_err(value_error)?;
        options.check()?;
        let values =
            parse_template_values(options.chat_template_kwargs.clone(), options.tools.clone())
                .map_err(value_error)?;
        let key = Stream::Evaluation.key(options.seed);
        let mut batch = Vec::with_capacity(prompts.len());
        for (at, (text, messages)) in prompts.iter().enumerate() {
            let messages: Vec<Message> = serde_json::from_str(messages).map_err(value_error)?;
            let tokens =
                self.model.tokenize_prompt_with(text, &messages, &values).map_err(value_error)?;
            let (count, new) = (tokens.len(), options.max_new_tokens);
            if count.saturating_add(new) > self.model.shape.context {
                return Err(value_error(format!(
                    "a prompt of {count} tokens and {new} new ones do not fit in the model's context of {}",
                    self.model.shape.context
                )));
            }
            // The first has the draws of `grove generate`.
            let key = if at == 0 { key } else { grove::rng::draw(key, at as u32) };
            batch.push(generate::CompletionRequest {
                tokens,
                num_completions: options.completions,
                key,
            });
        }
        let sampling = Sampling {
            temperature: options.temperature,
            top_k: options.top_k,
            top_p: options.top_p,
            min_p: options.min_p,
            max_new_tokens: options.max_new_tokens,
            stop_tokens: self.model.stop_tokens.clone(),
        };
        let (model, stops) = (&self.model, &options.stop);
        let work = |is_interrupted: &AtomicBool| -> Vec<Vec<String>> {
            let decoder = model.new_decoder();
            let is_interrupted = || is_interrupted.load(Ordering::Relaxed);
            let is_stopped = |tokens: &[u32]| {
                let decode = |tokens: &[u32]| model.decode_completion(tokens);
                is_interrupted() || stop::is_reached(decode, tokens, stops)
            };
            let wanted = options.completions * batch.len().min(16);
            let generator = Generator {
                decoder: &decoder,
                sampling: &sampling,
                num_slots: wanted.min(GenerationConfig::default().slots),
                stop: Some(&is_stopped),
                listener: None,
            };
            let text = |tokens: &[u32]| {
                let text = model.decode_completion(tokens);
                stop::text_before(&text, stops).map(str::to_string).unwrap_or(text)
            };
            // A completion depends on nothing but its prompt, so that portions do not change it.
            let portions = batch.chunks(PROMPTS_PER_PORTION).take_while(|_| !is_interrupted());
            let completions = portions.flat_map(|prompts| generator.generate(prompts));
            completions
                .map(|group| group.iter().map(|completion| text(&completion.tokens)).collect())
                .collect()
        };
        detached(py, || interruptible(work))
    }
}

/// A task whose prompts and reward functions are Python's.
struct PythonTask {
    prompts: PromptSet,
    parts: Vec<RewardPart>,
    /// A function of a list of completions and a list of prompts as JSON. It returns the parts of each completion's
    /// reward, `None` for a completion that was not judged.
    reward: Py<PyAny>,
    alphabet: Option<String>,
    max_new_tokens: usize,
}

impl Task for PythonTask {
    fn name(&self) -> &str {
        PYTHON
    }

    /// A reward function may compare the completions of a prompt, so it gets all of them, as from TRL.
    fn verifies_duplicates_once(&self) -> bool {
        false
    }

    fn num_prompts(&self, split: Split) -> Option<u64> {
        Some(self.prompts.in_split(split).len() as u64)
    }

    fn prompt(&self, split: Split, index: u64) -> Result<task::Prompt, TaskError> {
        self.prompts.prompt(PYTHON, split, index, "give train() at least one")
    }

    fn reward_parts(&self) -> &[RewardPart] {
        &self.parts
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        let texts: Vec<&str> = completions.iter().map(|completion| completion.text).collect();
        let json = |completion: &Completion| {
            serde_json::to_string(completion.prompt).expect("prompts are JSON")
        };
        let prompts: Vec<String> = completions.iter().map(json).collect();
        let judged = Python::attach(|py| {
            let answer = self.reward.call1(py, (texts, prompts))?;
            answer.extract::<Vec<Vec<Option<f64>>>>(py)
        });
        let judged = judged.map_err(|error| TaskError::Verifier(error.to_string()))?;
        let rewards = judged.into_iter().map(|parts| {
            if parts.iter().all(Option::is_none) {
                return Rewards::unjudged(self.parts.len(), "no reward function judged it".into());
            }
            Rewards::from_options(&parts)
        });
        Ok(rewards.collect())
    }

    fn alphabet(&self) -> Option<String> {
        self.alphabet.clone()
    }

    fn max_new_tokens(&self) -> usize {
        self.max_new_tokens
    }

    fn max_new_tokens_of_pretrained(&self) -> usize {
        self.max_new_tokens.max(DEFAULT_MAX_NEW_TOKENS)
    }
}

/// A prompt, as the package's Python half writes it.
#[derive(Deserialize)]
struct Record {
    text: String,
    messages: Vec<Message>,
    fields: Map<String, Value>,
    chat_template_kwargs: Option<Json>,
    tools: Option<Json>,
}

impl Record {
    fn prompt(self) -> PyResult<task::Prompt> {
        let Self { text, messages, fields, chat_template_kwargs, tools } = self;
        let values = parse_template_values(chat_template_kwargs, tools).map_err(value_error)?;
        Ok(task::Prompt { text, messages, template_values: values, fields })
    }
}

/// Prompts and names of reward functions, as the package's Python half writes them.
#[derive(Deserialize)]
struct Request {
    train: Vec<Record>,
    test: Vec<Record>,
    parts: Vec<RewardPart>,
    alphabet: Option<String>,
    max_new_tokens: usize,
}

/// Trains a language model with a reward function of Python. Returns the report as JSON.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "a setting of Python each")]
pub fn train_text(
    py: Python,
    request: &str,
    reward: Py<PyAny>,
    model: &str,
    settings: &str,
    device: &str,
    run_dir: Option<PathBuf>,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    detached(py, || {
        let request: Request = serde_json::from_str(request).map_err(value_error)?;
        let Request { train, test, parts, alphabet, max_new_tokens } = request;
        let prompts = |records: Vec<Record>| -> PyResult<Vec<task::Prompt>> {
            records.into_iter().map(Record::prompt).collect()
        };
        let prompts = PromptSet { train: prompts(train)?, test: prompts(test)? };
        let task = PythonTask { prompts, parts, reward, alphabet, max_new_tokens };
        let initial = (model != TINY).then(|| load_initial_model(model)).transpose()?;
        let session = Session::new(device, run_dir, callback)?;
        let defaults = match &initial {
            Some((model, setting)) => {
                let precision = fastest_precision(&session.chosen.info.name);
                LanguageConfig::for_pretrained(setting, model.shape.num_params(), precision)
            }
            None => LanguageConfig::for_model(model),
        };
        let loaded = initial.map(|(model, _)| model);
        let own = toml::Table::new();
        let changes: toml::Table = serde_json::from_str(settings).map_err(value_error)?;
        let mut table = join_language_settings(PYTHON, &own, &defaults);
        overlay::lay_over(&mut table, changes).map_err(value_error)?;
        let LanguageSettings { mut config, .. } =
            split_language_settings(table).map_err(value_error)?;
        config.fit.iterations = config.fit.iterations.min(config.iterations);
        config.validate().map_err(value_error)?;
        if let Some(adapters) = loaded.as_ref().and_then(|model| model.adapters.as_ref()) {
            config.lora.adopt(adapters.config()).map_err(value_error)?;
        }
        let settings = join_language_settings(PYTHON, &own, &config);
        let trainer = LanguageTrainer::for_task(Arc::new(task), config, loaded);
        let trainer = trainer.map_err(value_error)?.with_settings(settings.clone());
        let device = session.chosen.language_device();
        let mut run = LanguageRun::new(trainer.with_device(device).map_err(value_error)?);
        session.train(&mut run, PYTHON, &settings.to_string())
    })
}
