//! The user-defined task: prompts from a file of JSON lines, verified by a command or against solutions.

use super::external::{Verifier, VerifierOptions, VerifierSandbox};
use super::text::indicator;
use super::{
    Completion, Message, Part, Prompt, PromptSet, Rewards, Split, Task, TaskError, TaskSettings,
};
use crate::schema::settings;
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

settings! {
    /// Settings of a user-defined task.
    pub struct DataSettings {
        /// The file of prompts.
        path: String;
        /// SHA-256 of that file, by which a resumed run knows it at another place; written by --task-data.
        digest: String;
        /// Shell command of the verifier; if empty, completions are compared with solutions.
        verifier: String;
        /// Working directory of the command; if empty, that of the program.
        folder: String;
        /// Parts of a reward with their weights (TRL: `reward_weights`), for instance
        /// `exact=0.8,brief=0.2`; if empty, the command returns a single number.
        reward_weights: String;
        /// Number of verifier processes; 0 for one per core.
        workers: usize = 0, in whole(0..=1024);
        /// Time limit per completion in seconds.
        timeout: f64 = 10.0, in above(0.0).at_most(86_400.0);
        /// Runs the verifier in a sandbox: without a network, and with nothing to read but the system's programs,
        /// `folder`, and what the command names.
        sandbox: bool = true;
        /// Further paths that the sandboxed verifier may read.
        readable: Vec<String>;
        /// Permits the network to the sandboxed verifier.
        network: bool;
    }
}

impl TaskSettings for DataSettings {
    const NAME: &'static str = DataTask::NAME;

    fn open(self) -> Result<Arc<dyn Task>, TaskError> {
        let Self { path, verifier, folder, reward_weights, workers, timeout, .. } = self;
        let readable = self.readable.iter().map(|path| Path::new(&folder).join(path)).collect();
        let sandbox = VerifierSandbox { is_on: self.sandbox, readable, network: self.network };
        let setting = |message: &str| Err(TaskError::Setting(message.to_string()));
        let verifier = match (verifier.as_str(), reward_weights.as_str()) {
            _ if path.is_empty() => {
                return setting(
                    "`data.path` is empty; give a file of prompts by --task-data FILE.jsonl",
                );
            }
            ("", "") => None,
            ("", _) => {
                return setting("`data.reward_weights` needs a verifier; give one by --verifier");
            }
            (command, "") => Some(VerifierOptions::new(command)),
            (command, parts) => Some(VerifierOptions::new(command).with_parts(parts)?),
        };
        let folder = (!folder.is_empty()).then(|| PathBuf::from(folder));
        let verifier = verifier.map(|options| VerifierOptions {
            workers,
            timeout,
            folder,
            sandbox,
            ..options
        });
        Ok(Arc::new(DataTask::open(Path::new(&path), verifier)?))
    }
}

/// A task with prompts from a file.
pub struct DataTask {
    prompts: PromptSet,
    verifier: Option<Verifier>,
    parts: Vec<Part>,
    max_new_tokens: usize,
}

impl DataTask {
    /// The task's name in settings.
    pub const NAME: &str = "data";

    /// Reads the prompts of `path` ([`read_prompts`]), starts the verifier and tests it on one of them.
    /// Without a verifier, a completion is right if it equals the `solution` of its prompt, or its
    /// `completion` if there is no solution, except for surrounding white space.
    ///
    /// # Errors
    /// If the file is malformed, the verifier does not start or answer, or there is neither a verifier nor
    /// a solution for every prompt.
    pub fn open(path: &Path, verifier: Option<VerifierOptions>) -> Result<Self, TaskError> {
        let prompts = read_prompts(path)?;
        let parts = match &verifier {
            Some(options) => options.parts.clone(),
            None => vec![Part::new("exact", 1.0)],
        };
        let all = prompts.train.iter().chain(&prompts.test);
        if verifier.is_none()
            && let Some(prompt) = all.clone().find(|prompt| reference(prompt).is_none())
        {
            let start: String = prompt.text.chars().take(40).collect();
            return Err(TaskError::Setting(format!(
                "completions of {} cannot be verified: give every line a `solution` or a `completion`, or \
                 give a command by --verifier (the prompt that starts with {start:?} has no solution)",
                path.display()
            )));
        }
        // A token is rarely shorter than a character. Without solutions, a default for short answers.
        let longest =
            all.clone().filter_map(demonstration).map(|text| text.chars().count() + 1).max();
        let verifier = verifier.map(Verifier::start).transpose()?;
        if let (Some(verifier), Some(prompt)) = (&verifier, all.clone().next()) {
            verifier.check(&Completion::new(prompt, demonstration(prompt).unwrap_or_default()))?;
        }
        Ok(Self { prompts, verifier, parts, max_new_tokens: longest.unwrap_or(256) })
    }
}

impl Task for DataTask {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn num_prompts(&self, split: Split) -> Option<u64> {
        Some(self.prompts.of(split).len() as u64)
    }

    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        let advice =
            "give some lines of the file a `\"split\": \"train\"` or `\"split\": \"test\"`";
        self.prompts.prompt(Self::NAME, split, index, advice)
    }

    fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        let exact = |completion: &Completion| {
            let expected = reference(completion.prompt).map(str::trim);
            Rewards::new(vec![indicator(Some(completion.text.trim()) == expected)])
        };
        match &self.verifier {
            Some(verifier) => verifier.verify(completions),
            None => Ok(completions.iter().map(exact).collect()),
        }
    }

    fn solution(&self, prompt: &Prompt) -> Option<String> {
        demonstration(prompt).map(str::to_string)
    }

    /// The characters of the file, if every prompt has a solution.
    fn alphabet(&self) -> Option<String> {
        let mut characters = BTreeSet::new();
        for prompt in self.prompts.train.iter().chain(&self.prompts.test) {
            let texts = [prompt.text.as_str(), demonstration(prompt)?, reference(prompt)?];
            characters.extend(texts.iter().flat_map(|text| text.chars()));
        }
        Some(characters.into_iter().collect())
    }

    fn max_new_tokens(&self) -> usize {
        self.max_new_tokens
    }
}

fn text<'a>(prompt: &'a Prompt, key: &str) -> Option<&'a str> {
    prompt.fields.get(key)?.as_str()
}

/// The target of supervised fine-tuning. A `completion` may contain the steps to a short `solution`.
fn demonstration(prompt: &Prompt) -> Option<&str> {
    text(prompt, "completion").or_else(|| text(prompt, "solution"))
}

/// The text that a completion must equal if there is no verifier.
fn reference(prompt: &Prompt) -> Option<&str> {
    text(prompt, "solution").or_else(|| text(prompt, "completion"))
}

/// Reads prompts from a file of JSON lines, in TRL's dataset formats.
///
/// Each line is an object with a `prompt` (a string or a list of messages) or `messages`. `split` may be
/// `train` or `test`; without it, a hash of the prompt assigns one in eight to `test`. A `completion` is
/// a string or a list of one assistant message; a final assistant message in `messages` counts as the
/// completion. All other keys become the prompt's fields. Empty lines are skipped.
///
/// # Errors
/// [`TaskError::File`] if the file cannot be read, and [`TaskError::Line`] for the first malformed line,
/// or one whose prompt is also in the other split.
pub fn read_prompts(path: &Path) -> Result<PromptSet, TaskError> {
    let file = |message: String| TaskError::File { path: path.to_path_buf(), message };
    let bytes = fs::read(path).map_err(|e| file(e.to_string()))?;
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
    let mut set = PromptSet::default();
    let mut splits: HashMap<String, (Split, usize)> = HashMap::new();
    for (i, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |message| TaskError::Line { path: path.to_path_buf(), line: i + 1, message };
        let (prompt, split) = parse(line).map_err(wrong)?;
        let (other, first) = *splits.entry(prompt.text.clone()).or_insert((split, i + 1));
        if other != split {
            return Err(wrong(format!(
                "the same prompt is in the split `{}` on line {first}; no prompt may be in both",
                other.name()
            )));
        }
        match split {
            Split::Train => set.train.push(prompt),
            Split::Test => set.test.push(prompt),
        }
    }
    if set == PromptSet::default() {
        return Err(file(
            "the file is empty; write one JSON object with a `prompt` per line".to_string(),
        ));
    }
    Ok(set)
}

/// The role of the model.
const ASSISTANT: &str = "assistant";

/// Parses the prompt of a line, and its split.
fn parse(line: &[u8]) -> Result<(Prompt, Split), String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| format!("invalid JSON: {e}"))?;
    let Value::Object(mut fields) = value else {
        return Err("not a JSON object such as {\"prompt\": \"2+2=\"}".to_string());
    };
    let split = match fields.remove("split") {
        None => None,
        Some(Value::String(name)) if name == "train" => Some(Split::Train),
        Some(Value::String(name)) if name == "test" => Some(Split::Test),
        Some(other) => {
            return Err(format!("`split` is {other}, but must be \"train\" or \"test\""));
        }
    };
    let (text, messages) = take_prompt(&mut fields)?;
    if let Some(value) = fields.get_mut("completion") {
        *value = completion_text(value.take())?.into();
    }
    let split = split.unwrap_or_else(|| Split::of(&text));
    Ok((Prompt { text, messages, fields }, split))
}

/// Removes the prompt from the fields of a line and returns it as text and messages.
fn take_prompt(fields: &mut Map<String, Value>) -> Result<(String, Vec<Message>), String> {
    let (key, value) = match (fields.remove("prompt"), fields.remove("messages")) {
        (Some(_), Some(_)) => return Err("both `prompt` and `messages`; keep one".to_string()),
        (None, None) => return Err("neither `prompt` nor `messages`".to_string()),
        (Some(value), None) => ("prompt", value),
        (None, Some(value)) => ("messages", value),
    };
    if let ("prompt", Value::String(text)) = (key, &value) {
        let empty = text.is_empty();
        return if empty {
            Err("`prompt` is empty".to_string())
        } else {
            Ok((text.clone(), vec![]))
        };
    }
    let mut messages: Vec<Message> = serde_json::from_value(value).map_err(|e| {
        format!("`{key}` is not a list of messages with string `role` and `content`: {e}")
    })?;
    let is_answered = messages.last().is_some_and(|message| message.role == ASSISTANT);
    if is_answered
        && !fields.contains_key("completion")
        && let Some(answer) = messages.pop()
    {
        // A template writes such a key in its own way, which no completion here would match.
        if let Some(other) = answer.rest.keys().find(|key| *key != "name") {
            return Err(format!(
                "the assistant's last message has `{other}`; only `content` is learnt"
            ));
        }
        fields.insert("completion".to_string(), answer.content.into());
    }
    if messages.is_empty() {
        let what =
            if is_answered { "has no message before the answer" } else { "is an empty list" };
        return Err(format!("`{key}` {what}"));
    }
    let contents: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
    Ok((contents.join("\n\n") + "\n\n", messages))
}

/// Converts a `completion` to text.
fn completion_text(value: Value) -> Result<String, String> {
    if let Value::String(text) = value {
        return Ok(text);
    }
    let messages: Vec<Message> = serde_json::from_value(value).unwrap_or_default();
    match <[Message; 1]>::try_from(messages) {
        Ok([message]) if message.role == ASSISTANT => Ok(message.content),
        _ => Err("`completion` is neither a string nor a list of one assistant message".into()),
    }
}
