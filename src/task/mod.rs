//! Language tasks: prompts, and verifiers that say what a completion is worth.
//!
//! A [`Task`] is to a language model what an environment is to a policy: its level is a prompt, the
//! members of a group are completions of one prompt, and the reward comes at the end. A task knows no
//! model and no learner: text goes in, numbers come out.
//!
//! Prompts have numbers. Prompt `i` of a [`Split`] is the same in every run and on every machine, so
//! that a trainer remembers a place in the data as one number. Rewards have parts with names and weights
//! ([`Part`]), as in TRL, so that a metric can show each by itself.
//!
//! ```
//! use grove::task::{Completion, Sort, Split, Task};
//!
//! let task = Sort::default();
//! let prompt = task.prompt(Split::Train, 0)?;
//! let text = task.solution(&prompt).expect("sorting has a solution");
//! let rewards = task.verify(&[Completion::new(&prompt, &text)])?;
//! assert_eq!(rewards[0].total(task.parts()), 1.0);
//! # Ok::<(), grove::task::TaskError>(())
//! ```

mod add;
mod countdown;
#[cfg(not(target_family = "wasm"))]
mod data;
mod error;
mod expression;
#[cfg(not(target_family = "wasm"))]
mod external;
#[cfg(unix)]
pub mod ocaml;
#[cfg(not(target_family = "wasm"))]
mod parallel;
#[cfg(not(target_family = "wasm"))]
mod process;
mod registry;
mod reverse;
#[cfg(unix)]
pub mod sandbox;
mod set;
mod sort;
mod split;
mod text;
mod weighted;

pub use add::Add;
pub use countdown::Countdown;
#[cfg(not(target_family = "wasm"))]
pub use data::{DataSettings, DataTask, read_prompts};
pub use error::TaskError;
pub use expression::{Expression, Rational};
#[cfg(not(target_family = "wasm"))]
pub use external::{Verifier, VerifierOptions};
pub use registry::{BuiltIn, TASKS, TaskSettings, find, names};
pub use reverse::Reverse;
pub use set::PromptSet;
pub use sort::Sort;
pub use split::Split;
pub use weighted::weighted;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A source of prompts that says what completions of them are worth.
pub trait Task: Send + Sync {
    /// The name on the command line, in settings and in checkpoints.
    fn name(&self) -> &str;

    /// The prompts of a split; `None` where they never end.
    fn num_prompts(&self, _split: Split) -> Option<u64> {
        None
    }

    /// Prompt number `index` of a split: always the same one, and none of the other split's. Where
    /// there are [`num_prompts`](Task::num_prompts), numbers beyond go through them again, each time in
    /// another order.
    ///
    /// # Errors
    /// One sentence where the split has no prompt.
    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError>;

    /// The parts of a reward, in the order of [`Rewards::parts`]. A completion that could not be better
    /// is worth the sum of their positive weights.
    fn parts(&self) -> &[Part];

    /// What completions are worth, in their order. A completion's rewards depend on itself and its
    /// prompt alone: not on its neighbours, nor on their order, nor on how long any of them takes.
    ///
    /// # Errors
    /// Where nothing can be verified any more, for instance because the verifier does not start. What
    /// goes wrong with one completion is its [`Rewards::problem`], and costs the others nothing.
    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError>;

    /// A completion that earns all there is to earn, to fit a model to.
    fn solution(&self, prompt: &Prompt) -> Option<String> {
        prompt.fields.get("solution")?.as_str().map(str::to_string)
    }

    /// Every character of prompts and solutions, each once, for models whose tokens are characters; `None`
    /// where any character may occur.
    fn alphabet(&self) -> Option<String> {
        None
    }

    /// The tokens that a completion may have where the settings say nothing else; enough for any solution
    /// where tokens are characters and there is an [`alphabet`](Task::alphabet).
    fn max_new_tokens(&self) -> usize;

    /// What somebody who starts a run should know, a sentence each: for instance which limits this
    /// machine cannot enforce.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What a model is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// What a model without a chat template goes on from.
    pub text: String,
    /// What a model with a chat template is asked; where there are none, it goes on from `text` too.
    #[serde(default)]
    pub messages: Vec<Message>,
    /// What the verifier is told besides, and the solution where one is known. No model sees it.
    #[serde(default)]
    pub fields: Map<String, Value>,
}

impl Prompt {
    /// A prompt that is put to a chat model as one message of a user's, in other words than to others.
    pub fn new(text: String, question: String, fields: Map<String, Value>) -> Self {
        Self { text, messages: vec![Message::user(question)], fields }
    }
}

/// A message of a conversation, as chat templates take it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks: `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl Message {
    /// What a user says.
    pub fn user(content: String) -> Self {
        Self { role: "user".to_string(), content }
    }
}

/// A model's answer to a prompt, to be verified.
#[derive(Clone, Copy, Debug)]
pub struct Completion<'a> {
    /// What was asked.
    pub prompt: &'a Prompt,
    /// What was answered: without special tokens, and without what ended it.
    pub text: &'a str,
    /// The tokens that the answer took, the one that ended it included.
    pub num_tokens: usize,
    /// Whether the answer was cut off at the greatest number of tokens.
    pub truncated: bool,
}

impl<'a> Completion<'a> {
    /// A completion that ended by itself, with a token for each character and one for the end.
    pub fn new(prompt: &'a Prompt, text: &'a str) -> Self {
        Self { prompt, text, num_tokens: text.chars().count() + 1, truncated: false }
    }
}

/// A part of a reward (TRL: a reward function).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What it is called in metrics.
    pub name: String,
    /// What it is multiplied by in the sum (TRL: `reward_weights`).
    pub weight: f64,
}

impl Part {
    /// A part of this name and weight.
    pub fn new(name: &str, weight: f64) -> Self {
        Self { name: name.to_string(), weight }
    }

    /// The parts of a text such as `exact=0.8,format=0.2`; a part without a number has weight 1.
    ///
    /// # Errors
    /// One sentence about the part that is wrong.
    pub fn list(text: &str) -> Result<Vec<Self>, TaskError> {
        let wrong = |message: String| Err(TaskError::Setting(message));
        let mut parts: Vec<Self> = Vec::new();
        for piece in text.split(',') {
            let (name, weight) = piece.split_once('=').unwrap_or((piece, "1"));
            let name = name.trim();
            let weight = weight.trim().parse().ok().filter(|weight: &f64| weight.is_finite());
            let Some(weight) = weight.filter(|_| !name.is_empty()) else {
                return wrong(format!("`{piece}` is no part of a reward; write name=weight"));
            };
            if parts.iter().any(|part| part.name == name) {
                return wrong(format!("the part `{name}` of the reward is named twice"));
            }
            parts.push(Self::new(name, weight));
        }
        Ok(parts)
    }
}

/// What a completion is worth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rewards {
    /// One finite number for each of [`Task::parts`], without its weight; 1 is the best there is where
    /// a task says nothing else.
    pub parts: Vec<f64>,
    /// Why nothing is known of the completion, in one sentence. All parts are 0 then.
    #[serde(default)]
    pub problem: Option<String>,
}

impl Rewards {
    /// The rewards of a completion that was verified.
    pub fn new(parts: Vec<f64>) -> Self {
        Self { parts, problem: None }
    }

    /// The rewards of a completion of which nothing is known.
    pub fn unknown(num_parts: usize, problem: String) -> Self {
        Self { parts: vec![0.0; num_parts], problem: Some(problem) }
    }

    /// The weighted sum, which is learnt from.
    ///
    /// # Panics
    /// Where `parts` are not those of the task that gave the rewards.
    pub fn total(&self, parts: &[Part]) -> f64 {
        assert_eq!(self.parts.len(), parts.len(), "rewards of another task");
        self.parts.iter().zip(parts).map(|(reward, part)| reward * part.weight).sum()
    }
}
