//! Language tasks: prompts, and verifiers that compute rewards for completions.
//!
//! A [`Task`] is to a language model what an environment is to a policy. A level is a prompt, a group
//! consists of several completions of one prompt, and the reward comes at the end. Tasks are
//! independent of models and learners: text goes in, numbers come out.
//!
//! Prompts are numbered. Prompt `i` of a [`Split`] is the same in every run and on every machine, so a
//! checkpoint can store the position in the data as one number. A reward consists of named, weighted
//! parts ([`RewardPart`]), as in TRL, so that metrics can report each of them.
//!
//! ```
//! use grove::task::{Completion, Sort, Split, Task};
//!
//! let task = Sort::default();
//! let prompt = task.prompt(Split::Train, 0)?;
//! let text = task.solution(&prompt).expect("sorting has a solution");
//! let rewards = task.verify(&[Completion::new(&prompt, &text)])?;
//! assert_eq!(rewards[0].score(task.reward_parts()), 1.0);
//! # Ok::<(), grove::task::TaskError>(())
//! ```

mod audit;
#[cfg(not(target_family = "wasm"))]
pub(crate) mod cache;
#[cfg(not(target_family = "wasm"))]
mod data;
mod error;
mod expression;
#[cfg(not(target_family = "wasm"))]
pub(crate) mod external;
#[cfg(test)]
mod fake;
mod generated;
mod json;
mod judge;
mod message;
#[cfg(not(target_family = "wasm"))]
mod numbers;
#[cfg(unix)]
pub mod ocaml;
#[cfg(not(target_family = "wasm"))]
mod parallel;
#[cfg(not(target_family = "wasm"))]
mod process;
mod prompt_set;
#[cfg(not(target_family = "wasm"))]
mod records;
mod registry;
#[cfg(unix)]
pub mod sandbox;
mod scoring;
mod settings;
mod split;
mod weights;

pub use audit::{AnswerKind, AuditResult, audit_solutions, audit_with_attacks};
#[cfg(not(target_family = "wasm"))]
pub use data::{DEFAULT_MAX_NEW_TOKENS, DataSettings, DataTask, read_prompts};
pub use error::{TaskError, TemplateValuesError};
pub use expression::{Expression, Rational};
#[cfg(not(target_family = "wasm"))]
pub use external::{Verifier, VerifierOptions, VerifierSandbox};
pub use json::{Json, Object};
pub use judge::judge;
pub use message::{Content, Message};
pub use prompt_set::PromptSet;
pub use registry::{
    Add, Countdown, PYTHON, RegisteredTask, Reverse, Sort, TASKS, find, joined_names,
};
pub use settings::TaskSettings;
pub use split::Split;
pub use weights::reweight_parts;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// A source of prompts with a verifier for their completions.
///
/// The built-in tasks are listed in [`TASKS`]. A task of your own implements the required methods, and
/// [`LanguageTrainer::for_task`](crate::trainer::text::LanguageTrainer::for_task) trains it. The program's commands
/// take tasks of your own by `--task-data` and `--verifier` alone.
///
/// ```
/// use grove::task::{Completion, Prompt, RewardPart, Rewards, Split, Task, TaskError};
///
/// /// Answer with as many `a`s as the prompt asks for.
/// struct Count {
///     parts: Vec<RewardPart>,
/// }
///
/// impl Task for Count {
///     fn name(&self) -> &str {
///         "count"
///     }
///
///     fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
///         // Odd numbers are held out for testing, so that no prompt is in both splits.
///         let number = 2 * (index % 10) + u64::from(split == Split::Test);
///         Ok(Prompt { text: format!("{number}>"), ..Prompt::default() })
///     }
///
///     fn reward_parts(&self) -> &[RewardPart] {
///         &self.parts
///     }
///
///     fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
///         let is_right = |completion: &Completion| {
///             let number: usize = completion.prompt.text.trim_end_matches('>').parse().unwrap();
///             completion.text == "a".repeat(number)
///         };
///         let reward = |completion| Rewards::new(vec![f64::from(u8::from(is_right(completion)))]);
///         Ok(completions.iter().map(reward).collect())
///     }
///
///     fn max_new_tokens(&self) -> usize {
///         20
///     }
/// }
///
/// let task = Count { parts: vec![RewardPart::new("exact", 1.0)] };
/// let prompt = task.prompt(Split::Train, 1)?;
/// let rewards = task.verify(&[Completion::new(&prompt, "aa"), Completion::new(&prompt, "a")])?;
/// assert_eq!((rewards[0].values[0], rewards[1].values[0]), (1.0, 0.0));
/// # Ok::<(), TaskError>(())
/// ```
pub trait Task: Send + Sync {
    /// The task's name in commands, settings and checkpoints.
    fn name(&self) -> &str;

    /// Whether equal completions of a prompt are passed to [`verify`](Task::verify) once, since their rewards are
    /// equal.
    fn verifies_duplicates_once(&self) -> bool {
        true
    }

    /// Number of prompts in a split; `None` if unlimited.
    fn num_prompts(&self, _split: Split) -> Option<u64> {
        None
    }

    /// Returns prompt number `index` of a split. The same arguments always give the same prompt, and no
    /// prompt is in both splits. If [`num_prompts`](Task::num_prompts) is finite, higher indices start
    /// further passes over the prompts, for training in a different order each.
    ///
    /// # Errors
    /// If the split has no prompt.
    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError>;

    /// The parts of a reward, in the order of [`Rewards::values`]. The best completion has a reward equal
    /// to the sum of the positive weights.
    fn reward_parts(&self) -> &[RewardPart];

    /// Computes the rewards of completions, in their order. The rewards of a completion depend on itself and its prompt
    /// alone, not on the other completions or on timing. A run calls this on the thread that calls
    /// [`Trainer::iterate`](crate::trainer::Trainer::iterate) or
    /// [`Trainer::validate`](crate::trainer::Trainer::validate), unless
    /// [`num_verifier_threads`](Task::num_verifier_threads) permits others.
    ///
    /// # Errors
    /// If no completion can be verified any more, for instance because the verifier does not start. A
    /// failure that concerns a single completion is reported in its [`Rewards::problem`] instead.
    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError>;

    /// Number of threads of a run that may call [`verify`](Task::verify) at the same time, with a single completion in
    /// each call, while it is still generating others. With 0, the default, a run calls it once per batch, after
    /// generation.
    fn num_verifier_threads(&self) -> usize {
        0
    }

    /// A completion with the maximum reward, for supervised fine-tuning, if known. By default the string in the field
    /// `solution` of the prompt ([`Prompt::fields`]).
    fn solution(&self, prompt: &Prompt) -> Option<String> {
        prompt.fields.get("solution")?.as_str().map(str::to_string)
    }

    /// All characters that occur in prompts and solutions, each once, for models whose tokens are
    /// characters; `None` if any character may occur.
    fn alphabet(&self) -> Option<String> {
        None
    }

    /// Default maximum number of tokens of a completion, 1 or more. Must suffice for any solution if tokens are
    /// characters and there is an [`alphabet`](Task::alphabet).
    fn max_new_tokens(&self) -> usize;

    /// Default maximum number of tokens of a pretrained model's completion, which may reason before it answers where a
    /// verifier accepts that.
    fn max_new_tokens_of_pretrained(&self) -> usize {
        self.max_new_tokens()
    }

    /// Notes to print when a run starts, a sentence each: for instance, limits that this machine cannot
    /// enforce.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The input of a language model, with data for the verifier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// The text that models without a chat template continue.
    pub text: String,
    /// The conversation for models with a chat template; if empty, they continue `text` as well.
    #[serde(default)]
    pub messages: Vec<Message>,
    /// Values of the chat template's own variables ([`parse_template_values`]), such as `enable_thinking` or `tools`.
    #[serde(default)]
    pub template_values: Object,
    /// Data for the verifier, and the solution if known. Not part of the model's input.
    #[serde(default)]
    pub fields: Map<String, Value>,
}

impl Prompt {
    /// A prompt with different wordings: `text` for base models, and `question`, as one user message,
    /// for chat models.
    pub fn new(text: String, question: String, fields: Map<String, Value>) -> Self {
        Self { text, messages: vec![Message::user(question)], fields, ..Self::default() }
    }

    /// Creates a prompt, as [`Prompt::new`], with a `solution` as its only field.
    fn with_solution(text: String, question: String, solution: &str) -> Self {
        let fields = Map::from_iter([("solution".to_string(), solution.into())]);
        Self::new(text, question, fields)
    }
}

/// Parses TRL's columns `chat_template_kwargs` and `tools` to variables of a chat template. `tools` may be a string
/// of JSON.
///
/// # Errors
/// If `chat_template_kwargs` is not an object, `tools` is in both, or a value that must be a list of objects is not
/// one.
pub fn parse_template_values(
    kwargs: Option<Json>,
    tools: Option<Json>,
) -> Result<Object, TemplateValuesError> {
    let error = |message: String| Err(TemplateValuesError(message));
    let mut values = match kwargs {
        None => Object::default(),
        Some(Json::Object(values)) => values,
        Some(other) => {
            return error(format!(
                "`chat_template_kwargs` is {other}, but must be an object such as {{\"enable_thinking\": false}}"
            ));
        }
    };
    let tools: Option<Json> = match tools {
        Some(Json::Scalar(Value::String(text))) => {
            serde_json::from_str(&text).map_err(|cause| {
                TemplateValuesError(format!("`tools` is a string that is not valid JSON: {cause}"))
            })?
        }
        tools => tools,
    };
    if let Some(tools) = tools {
        if values.get("tools").is_some() {
            return error("`tools` is in `chat_template_kwargs`, too; keep one".to_string());
        }
        values.insert("tools".to_string(), tools);
    }
    for key in ["tools", "documents"] {
        let is_valid = match values.get(key) {
            None | Some(Json::Scalar(Value::Null)) => true,
            Some(Json::List(items)) => items.iter().all(|item| matches!(item, Json::Object(_))),
            Some(_) => false,
        };
        if !is_valid {
            return error(format!(
                "`{key}` must be a list of objects, as chat templates expect; rename the key if it is meant for the verifier"
            ));
        }
    }
    Ok(values)
}

/// A model's completion of a prompt, to be verified.
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a> {
    /// The prompt that was completed.
    pub prompt: &'a Prompt,
    /// The generated text, without special tokens or the end token.
    pub text: &'a str,
    /// Number of generated tokens, including the end token.
    pub num_tokens: usize,
    /// Whether the completion was cut off at the maximum number of tokens.
    pub is_truncated: bool,
}

impl<'a> Completion<'a> {
    /// A completion that is not truncated, with one token per character and an end token.
    pub fn new(prompt: &'a Prompt, text: &'a str) -> Self {
        Self { prompt, text, num_tokens: text.chars().count() + 1, is_truncated: false }
    }
}

/// Largest difference of equal scores and rewards, by rounding.
pub(crate) const SCORE_TOLERANCE: f64 = 1e-9;

/// Largest absolute value of a part of a reward. Squares of much larger ones overflow, so that nothing would be learnt.
pub(crate) const MAX_REWARD_PART: f64 = 1e15;

/// A part of a reward (TRL: a reward function).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardPart {
    /// The name in metrics.
    pub name: Cow<'static, str>,
    /// The weight in the sum (TRL: `reward_weights`).
    pub weight: f64,
}

impl RewardPart {
    /// A part with the given name and weight.
    pub fn new(name: &str, weight: f64) -> Self {
        Self { name: Cow::Owned(name.to_string()), weight }
    }

    /// A part whose name is known when the program is compiled, for tables of constants.
    pub const fn named(name: &'static str, weight: f64) -> Self {
        Self { name: Cow::Borrowed(name), weight }
    }

    /// The highest score of a completion: the sum of the positive weights.
    pub fn highest_score(parts: &[Self]) -> f64 {
        parts.iter().map(|part| part.weight.max(0.0)).sum()
    }

    /// Whether `reward`, times the weight, is at most what this part contributes to [`RewardPart::highest_score`]: a
    /// reward of 1 for a positive weight, 0 for a negative one.
    pub fn is_within_scale(&self, reward: f64) -> bool {
        reward * self.weight <= self.weight.max(0.0) + SCORE_TOLERANCE
    }

    /// Parses a list such as `exact=0.8,format=0.2`; the default weight is 1.
    ///
    /// # Errors
    /// If a part has no name or an invalid weight, or occurs twice.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, TaskError> {
        let wrong = |message: String| Err(TaskError::Setting(message));
        let mut parts: Vec<Self> = Vec::new();
        for piece in text.split(',') {
            let (name, weight) = piece.split_once('=').unwrap_or((piece, "1"));
            let name = name.trim();
            let weight = weight.trim().parse().ok().filter(|weight: &f64| weight.is_finite());
            let Some(weight) = weight.filter(|_| !name.is_empty()) else {
                return wrong(format!("`{piece}` is not a reward part; write name=weight"));
            };
            if parts.iter().any(|part| part.name == name) {
                return wrong(format!("the reward part `{name}` is listed twice"));
            }
            parts.push(Self::new(name, weight));
        }
        Ok(parts)
    }

    /// Checks that a part has a positive weight; without one a reward of 0 would be the highest.
    ///
    /// # Errors
    /// If none has one; the error quotes the list of them, `text`.
    pub fn require_positive(parts: &[Self], text: &str) -> Result<(), TaskError> {
        if parts.iter().any(|part| part.weight > 0.0) {
            return Ok(());
        }
        let message = format!("the reward weights {text} leave no part with a positive weight");
        Err(TaskError::Setting(message))
    }
}

/// The rewards of a completion.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rewards {
    /// One number for each of [`Task::reward_parts`], unweighted; the maximum is 1 unless a task
    /// documents otherwise. Another number of them is an error of the task, and a number that is not
    /// finite, or beyond 1e15 in size, counts as a [`problem`](Rewards::problem) ([`judge()`]).
    #[serde(rename = "parts")]
    pub values: Vec<f64>,
    /// The reason why the completion could not be judged, as one sentence. All values are 0 then.
    #[serde(default)]
    pub problem: Option<String>,
    /// Indices of the parts that do not apply to the completion. They are 0, and in no mean.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_applicable: Vec<usize>,
}

impl Rewards {
    /// The rewards of a verified completion.
    pub fn new(values: Vec<f64>) -> Self {
        Self { values, problem: None, not_applicable: Vec::new() }
    }

    /// The rewards of a verified completion, with `None` for the parts that do not apply to it.
    pub fn from_options(values: &[Option<f64>]) -> Self {
        let missing = values.iter().enumerate().filter(|(_, value)| value.is_none());
        Self {
            not_applicable: missing.map(|(i, _)| i).collect(),
            ..Self::new(values.iter().map(|value| value.unwrap_or(0.0)).collect())
        }
    }

    /// The rewards of a completion that could not be judged.
    pub fn unjudged(num_parts: usize, problem: String) -> Self {
        Self { problem: Some(problem), ..Self::new(vec![0.0; num_parts]) }
    }

    /// The reward of a part, unweighted; `None` if it does not apply to the completion.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn part(&self, index: usize) -> Option<f64> {
        (!self.not_applicable.contains(&index)).then(|| self.values[index])
    }

    /// The highest score of the completion: the sum of the positive weights of the parts that apply to it.
    pub fn highest_score(&self, parts: &[RewardPart]) -> f64 {
        let weights = parts.iter().map(|part| part.weight.max(0.0)).enumerate();
        weights.filter(|(i, _)| !self.not_applicable.contains(i)).map(|(_, weight)| weight).sum()
    }

    /// Whether no part is beyond the usual scale of 0 to 1, so that [`Rewards::highest_score`] is the highest that the
    /// verifier gives.
    pub fn is_within_scale(&self, parts: &[RewardPart]) -> bool {
        self.values.iter().zip(parts).all(|(reward, part)| part.is_within_scale(*reward))
    }

    /// The weighted sum of the parts. The learner subtracts the length penalty (`reward.overlong_buffer`).
    ///
    /// # Panics
    /// If the number of `parts` differs.
    pub fn score(&self, parts: &[RewardPart]) -> f64 {
        assert_eq!(self.values.len(), parts.len(), "rewards of another task");
        self.values.iter().zip(parts).map(|(reward, part)| reward * part.weight).sum()
    }
}

/// Prints why a test has checked nothing here; not by `eprintln!`, whose output a test that passes captures.
#[cfg(all(test, unix))]
fn report_not_tested(why: impl std::fmt::Display) {
    use std::io::Write;
    let test = std::thread::current().name().unwrap_or("a test").to_string();
    let _ = writeln!(std::io::stderr(), "NOT TESTED: {why}: {test}");
}
