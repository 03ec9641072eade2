//! The user-defined task: prompts from a file of JSON lines, verified by a command or against solutions.

use super::external::{MAX_TIMEOUT_SECONDS, Verifier, VerifierOptions, VerifierSandbox};
use super::message::ASSISTANT;
use super::scoring::indicator;
use super::{
    Completion, Json, Message, Prompt, PromptSet, RewardPart, Rewards, Split, Task, TaskError,
    TaskSettings, parse_template_values,
};
use super::{numbers, records};
use crate::schema::settings;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Default limit on the tokens of a completion whose length no solution shows.
pub const DEFAULT_MAX_NEW_TOKENS: usize = 256;

settings! {
    /// Settings of a user-defined task.
    pub struct DataSettings {
        /// The file of prompts.
        path: String;
        /// SHA-256 of that file, whose content must not change; not checked if empty. Set when a run begins.
        digest: String;
        /// Shell command of the verifier; if empty, completions are compared with solutions.
        verifier: String;
        /// Working directory of the command; if empty, that of the program.
        folder: String;
        /// Parts of a reward with their weights (TRL: `reward_weights`), for instance
        /// `exact=0.8,brief=0.2`; if empty, the command returns a single number.
        reward_weights: String;
        /// Number of verifier processes; 0 for one per core.
        workers: usize = 0, in integer(0..=1024);
        /// Time limit per completion in seconds.
        timeout: f64 = 10.0, in above(0.0).at_most(MAX_TIMEOUT_SECONDS);
        /// Run the verifier in a sandbox: without a network, and with nothing to read but the system's programs,
        /// `folder`, and what the command names.
        sandbox: bool = true;
        /// Further paths that the sandboxed verifier may read.
        readable: Vec<String>;
        /// Permit the network to the sandboxed verifier.
        network: bool;
    }
}

impl TaskSettings for DataSettings {
    const NAME: &'static str = DataTask::NAME;
    const PATH_SETTING: Option<&'static str> = Some("path");

    /// Opens the file of prompts, with the verifier that the settings name.
    fn open(self) -> Result<Arc<dyn Task>, TaskError> {
        let Self { path, digest, verifier, folder, reward_weights, workers, timeout, .. } = self;
        let readable = self.readable.into_iter().map(PathBuf::from).collect();
        let sandbox = VerifierSandbox {
            is_on: self.sandbox,
            readable,
            has_network: self.network,
            ..VerifierSandbox::default()
        };
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
        records::check_digest(Path::new(&path), &digest)?;
        let folder = (!folder.is_empty()).then(|| PathBuf::from(folder));
        let verifier = verifier.map(|options| VerifierOptions {
            workers,
            timeout_seconds: timeout,
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
    parts: Vec<RewardPart>,
    max_new_tokens: usize,
}

impl DataTask {
    /// The task's name in settings.
    pub const NAME: &str = "data";

    /// Reads the prompts of `path` ([`read_prompts`]), starts the verifier and tests it on one of them.
    /// A sandboxed verifier finds the file empty unless it names it. Without a verifier, a completion is right if it
    /// equals the `solution` of its prompt, or its `completion` if there is no solution, except for surrounding white
    /// space.
    ///
    /// # Errors
    /// If the file is malformed, the verifier does not start or answer, or there is neither a verifier nor
    /// a solution for every prompt.
    pub fn open(path: &Path, verifier: Option<VerifierOptions>) -> Result<Self, TaskError> {
        let prompts = read_prompts(path)?;
        let parts = match &verifier {
            Some(options) => options.parts.clone(),
            None => vec![RewardPart::new("exact", 1.0)],
        };
        if verifier.is_none()
            && let Some(prompt) = prompts.iter().find(|prompt| expected_text(prompt).is_none())
        {
            let start: String = prompt.text.chars().take(40).collect();
            let kind = |kind: &str| format!("has {kind} for a solution, not a text or a number");
            let solution = match (prompt.fields.get("solution"), prompt.messages.last()) {
                (None | Some(Value::Null), Some(Message { role, .. })) if role != "user" => {
                    format!(
                        "has no solution, as its last message is of the role `{role}`, not `{ASSISTANT}`"
                    )
                }
                (None | Some(Value::Null), _) => "has no solution".to_string(),
                (Some(Value::Bool(_)), _) => kind("true or false"),
                (Some(Value::Array(_)), _) => kind("a list"),
                (Some(_), _) => kind("an object"),
            };
            return Err(TaskError::Setting(format!(
                "completions of {} cannot be verified: give every line a `solution` or a `completion`, or \
                 give a command by --verifier (the prompt that starts with {start:?} {solution})",
                path.display()
            )));
        }
        // A token is rarely shorter than a character. Without solutions, a default for short answers.
        let longest =
            prompts.iter().filter_map(demonstration).map(|text| text.chars().count() + 1).max();
        let verifier = verifier.map(|mut options| {
            // A program that the verifier runs could copy the solutions.
            options.sandbox.hidden_paths.extend(path.canonicalize());
            Verifier::start(options)
        });
        let verifier = verifier.transpose()?;
        if let (Some(verifier), Some(prompt)) = (&verifier, prompts.iter().next()) {
            let solution = demonstration(prompt).unwrap_or_default();
            verifier.check(&Completion::new(prompt, &solution))?;
        }
        let max_new_tokens = longest.unwrap_or(DEFAULT_MAX_NEW_TOKENS);
        Ok(Self { prompts, verifier, parts, max_new_tokens })
    }
}

impl Task for DataTask {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn num_prompts(&self, split: Split) -> Option<u64> {
        Some(self.prompts.in_split(split).len() as u64)
    }

    fn prompt(&self, split: Split, index: u64) -> Result<Prompt, TaskError> {
        let advice =
            "give some lines of the file a `\"split\": \"train\"` or `\"split\": \"test\"`";
        self.prompts.prompt(Self::NAME, split, index, advice)
    }

    fn reward_parts(&self) -> &[RewardPart] {
        &self.parts
    }

    fn verify(&self, completions: &[Completion]) -> Result<Vec<Rewards>, TaskError> {
        let exact = |completion: &Completion| {
            let expected = expected_text(completion.prompt);
            let is_right = expected.is_some_and(|text| text.trim() == completion.text.trim());
            Rewards::new(vec![indicator(is_right)])
        };
        match &self.verifier {
            Some(verifier) => verifier.verify(completions),
            None => Ok(completions.iter().map(exact).collect()),
        }
    }

    /// Threads of the verifier; none for a comparison, which is not worth one.
    fn num_verifier_threads(&self) -> usize {
        self.verifier.as_ref().map_or(0, Verifier::num_workers)
    }

    fn solution(&self, prompt: &Prompt) -> Option<String> {
        demonstration(prompt).map(Cow::into_owned)
    }

    /// The characters of the file, if every prompt has a solution.
    fn alphabet(&self) -> Option<String> {
        let mut characters = BTreeSet::new();
        for prompt in self.prompts.iter() {
            let (completion, expected) = (demonstration(prompt)?, expected_text(prompt)?);
            let texts = [&prompt.text[..], &completion, &expected];
            characters.extend(texts.iter().flat_map(|text| text.chars()));
        }
        Some(characters.into_iter().collect())
    }

    fn max_new_tokens(&self) -> usize {
        self.max_new_tokens
    }

    fn max_new_tokens_of_pretrained(&self) -> usize {
        // Without a verifier an answer must equal the solution.
        let least = if self.verifier.is_some() { DEFAULT_MAX_NEW_TOKENS } else { 0 };
        self.max_new_tokens.max(least)
    }
}

fn field_text<'a>(prompt: &'a Prompt, key: &str) -> Option<Cow<'a, str>> {
    numbers::value_text(prompt.fields.get(key)?)
}

/// The target of supervised fine-tuning. A `completion` may contain the steps to a short `solution`.
fn demonstration(prompt: &Prompt) -> Option<Cow<'_, str>> {
    field_text(prompt, "completion").or_else(|| field_text(prompt, "solution"))
}

/// The text that a completion must equal if there is no verifier.
fn expected_text(prompt: &Prompt) -> Option<Cow<'_, str>> {
    field_text(prompt, "solution").or_else(|| field_text(prompt, "completion"))
}

/// Reads prompts from a file of JSON lines or of a JSON list, compressed by gzip or not, in TRL's dataset formats.
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
    let mut set = PromptSet::default();
    let mut splits = HashMap::new();
    for record in records::open(path)? {
        let (line, json) = record?;
        let wrong = |message| TaskError::Line { path: path.to_path_buf(), line, message };
        let (prompt, split) = parse_line(&json).map_err(wrong)?;
        // What a model sees: a template also prints roles and tools.
        let Prompt { text, messages, template_values, .. } = &prompt;
        let input = (text.clone(), messages.clone(), template_values.clone());
        let (other, first) = *splits.entry(input).or_insert((split, line));
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
        let message =
            "the file is empty; write one JSON object with a `prompt` per line".to_string();
        return Err(TaskError::File { path: path.to_path_buf(), message });
    }
    Ok(set)
}

/// Keys of the prompt, whose numbers stay numbers: the verifier does not get them among the fields.
const PROMPT_KEYS: [&str; 2] = ["prompt", "messages"];
/// Keys that count as absent where they are null, as tools write them for rows that lack a column.
const OPTIONAL_KEYS: [&str; 4] = ["prompt", "messages", "completion", "split"];

/// Parses the prompt of a line, and its split.
fn parse_line(line: &[u8]) -> Result<(Prompt, Split), String> {
    let read = |line: &[u8]| match serde_json::from_slice(line) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err("not a JSON object such as {\"prompt\": \"2+2=\"}".to_string()),
        Err(error) => Err(describe_json_error(line, &error)),
    };
    let mut fields = read(line)?;
    if let Cow::Owned(marked) = numbers::mark_large_integers(line) {
        let prompt_fields =
            fields.into_iter().filter(|(key, _)| PROMPT_KEYS.contains(&key.as_str()));
        fields = read(&marked)?.into_iter().chain(prompt_fields).collect();
    }
    fields.retain(|key, value| !value.is_null() || !OPTIONAL_KEYS.contains(&key.as_str()));
    let split = fields.remove("split").map(|name| {
        let wrong = |_| format!("`split` is {name}, but must be \"train\" or \"test\"");
        Split::deserialize(&name).map_err(wrong)
    });
    let split = split.transpose()?;
    let prompt = take_prompt(&mut fields, line)?;
    if let Some(value) = fields.get_mut("completion") {
        *value = completion_text(value.take())?.into();
    }
    let split = split.unwrap_or_else(|| Split::assign(&prompt.text));
    Ok((Prompt { fields, ..prompt }, split))
}

/// The input of a chat template on a line, with keys in the line's order.
#[derive(Deserialize)]
struct Conversation {
    prompt: Option<Vec<Message>>,
    messages: Option<Vec<Message>>,
    chat_template_kwargs: Option<Json>,
    tools: Option<Json>,
}

/// Describes the error of a line that is not JSON.
fn describe_json_error(line: &[u8], error: &serde_json::Error) -> String {
    let column = error.column();
    // The reader stops at the start of a constant or soon after it.
    let near = column.saturating_sub(3)..=column;
    let constant = near.rev().find_map(|column| {
        let rest = line.get(column.checked_sub(1)?..)?;
        let name =
            ["NaN", "Infinity"].into_iter().find(|name| rest.starts_with(name.as_bytes()))?;
        Some(format!("invalid JSON: {name} at column {column}; JSON has no such number"))
    });
    let is_followed = || {
        let object = line.trim_ascii_end().strip_suffix(b",");
        object.is_some_and(|object| serde_json::from_slice::<Value>(object).is_ok())
    };
    match constant {
        Some(message) => message,
        None if is_followed() => {
            "a comma follows the object; each line is a whole object by itself".to_string()
        }
        None if !line.trim_ascii_start().starts_with(b"{") => {
            "not a JSON object such as {\"prompt\": \"2+2=\"}; other formats, such as CSV and Parquet, are not read"
                .to_string()
        }
        None => {
            let what = message_without_position(error);
            format!("invalid JSON: {what} at column {column}")
        }
    }
}

/// The message of an error without its position.
fn message_without_position(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.rsplit_once(" at line ").map_or(message.as_str(), |(what, _)| what).to_string()
}

/// Removes the prompt from the fields of a line, and returns it without fields.
fn take_prompt(fields: &mut Map<String, Value>, line: &[u8]) -> Result<Prompt, String> {
    let (key, expected, value) = match (fields.remove("prompt"), fields.remove("messages")) {
        (Some(_), Some(_)) => return Err("both `prompt` and `messages`; keep one".to_string()),
        (None, None) => return Err("neither `prompt` nor `messages`".to_string()),
        (Some(Value::String(text)), None) if text.is_empty() => {
            return Err("`prompt` is empty".to_string());
        }
        (Some(Value::String(text)), None) => return Ok(Prompt { text, ..Prompt::default() }),
        (Some(value), None) => ("prompt", "a string or a list of messages", value),
        (None, Some(value)) => ("messages", "a list of messages", value),
    };
    if !value.is_array() {
        return Err(format!("`{key}` is {value}, but must be {expected}"));
    }
    let conversation: Conversation = serde_json::from_slice(line).map_err(|error| {
        let what = message_without_position(&error);
        format!("`{key}` is not a list of messages with string `role` and `content`: {what}")
    })?;
    let Conversation { prompt, messages, chat_template_kwargs, tools } = conversation;
    let mut messages = prompt.or(messages).unwrap_or_default();
    let is_answered = messages.last().is_some_and(|message| message.role == ASSISTANT);
    if is_answered && key == "prompt" {
        return Err("`prompt` ends with a message of the assistant, which completions do not continue; remove it, or \
                    call the list `messages` if it is the answer to learn"
            .to_string());
    }
    if is_answered && fields.contains_key("completion") {
        return Err("`messages` ends with an answer of the assistant, but there is also a `completion`; keep one"
            .to_string());
    }
    if is_answered && let Some(answer) = messages.pop() {
        fields.insert("completion".to_string(), answer_text(answer)?.into());
    }
    if messages.is_empty() {
        let what =
            if is_answered { "has no message before the answer" } else { "is an empty list" };
        return Err(format!("`{key}` {what}"));
    }
    let contents: Vec<&str> = messages.iter().map(|message| message.content.text()).collect();
    let text = contents.join("\n\n") + "\n\n";
    let template_values =
        parse_template_values(chat_template_kwargs, tools).map_err(|error| error.to_string())?;
    Ok(Prompt { text, messages, template_values, fields: Map::new() })
}

/// Converts a `completion` to text.
fn completion_text(value: Value) -> Result<String, String> {
    if let Value::String(text) = value {
        return Ok(text);
    }
    let messages: Vec<Message> = serde_json::from_value(value).unwrap_or_default();
    match <[Message; 1]>::try_from(messages) {
        Ok([message]) if message.role == ASSISTANT => answer_text(message),
        _ => Err("`completion` is neither a string nor a list of one assistant message".into()),
    }
}

/// The text of the assistant's last message.
fn answer_text(message: Message) -> Result<String, String> {
    // A template writes such a key in its own way, which no completion here would match.
    let none = Json::Scalar(Value::Null);
    match message.rest.0.iter().find(|(key, value)| key != "name" && *value != none) {
        Some((other, _)) => {
            Err(format!("the assistant's last message has `{other}`; only `content` is learnt"))
        }
        None if message.content.is_absent() => {
            Err("the assistant's last message has no `content`".to_string())
        }
        None => Ok(message.content.text().to_string()),
    }
}
