//! A task of one's own: prompts from a file of JSON lines, verified by a command or by their solutions.

use super::external::{Verifier, VerifierOptions};
use super::text::indicator;
use super::{
    Completion, Message, Part, Prompt, PromptSet, Rewards, Split, Task, TaskError, TaskSettings,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The settings of a task of one's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataSettings {
    /// The file of prompts.
    pub path: String,
    /// The command that verifies, as a shell takes it; empty where completions are compared with solutions.
    pub verifier: String,
    /// The folder in which the command is started; empty for the program's own.
    pub folder: String,
    /// The parts of a reward with their weights (TRL: `reward_weights`), for instance `exact=0.8,brief=0.2`;
    /// empty where the command gives one number.
    pub reward_weights: String,
    /// Processes of the command at work; 0 for as many as the machine has cores.
    pub workers: usize,
    /// Seconds that an answer may take, above 0.
    pub timeout: f64,
}

impl Default for DataSettings {
    fn default() -> Self {
        Self {
            path: String::new(),
            verifier: String::new(),
            folder: String::new(),
            reward_weights: String::new(),
            workers: 0,
            timeout: 10.0,
        }
    }
}

impl TaskSettings for DataSettings {
    const NAME: &'static str = DataTask::NAME;

    fn open(self) -> Result<Arc<dyn Task>, TaskError> {
        let Self { path, verifier, folder, reward_weights, workers, timeout } = self;
        let setting = |message: &str| Err(TaskError::Setting(message.to_string()));
        let verifier = match (verifier.as_str(), reward_weights.as_str()) {
            _ if path.is_empty() => {
                return setting(
                    "`data.path` names no file of prompts; --task-data FILE.jsonl does",
                );
            }
            ("", "") => None,
            ("", _) => {
                return setting("`data.reward_weights` are a verifier's; --verifier names one");
            }
            (command, "") => Some(VerifierOptions::new(command)),
            (command, parts) => Some(VerifierOptions::new(command).with_parts(parts)?),
        };
        let folder = (!folder.is_empty()).then(|| PathBuf::from(folder));
        let verifier =
            verifier.map(|options| VerifierOptions { workers, timeout, folder, ..options });
        Ok(Arc::new(DataTask::open(Path::new(&path), verifier)?))
    }
}

/// Prompts of a file, with what verifies them.
pub struct DataTask {
    prompts: PromptSet,
    verifier: Option<Verifier>,
    parts: Vec<Part>,
    max_new_tokens: usize,
}

impl DataTask {
    /// The name of such a task in settings.
    pub const NAME: &str = "data";

    /// Reads the prompts of `path` ([`read_prompts`]) and starts the verifier, which is asked about one of
    /// them. Without one, a completion is right where it is the `solution` of its prompt, or, where there is
    /// none, its `completion`, but for white space around it.
    ///
    /// # Errors
    /// The file, with the number of the line that is wrong; a verifier that does not start, or cannot answer;
    /// no verifier for prompts without solutions.
    pub fn open(path: &Path, verifier: Option<VerifierOptions>) -> Result<Self, TaskError> {
        let prompts = read_prompts(path)?;
        let parts = match &verifier {
            Some(options) => options.parts.clone(),
            None => vec![Part::new("exact", 1.0)],
        };
        let all = prompts.train.iter().chain(&prompts.test);
        if verifier.is_none()
            && let Some(prompt) = all.clone().find(|prompt| right(prompt).is_none())
        {
            let start: String = prompt.text.chars().take(40).collect();
            return Err(TaskError::Setting(format!(
                "nothing says what completions of {} are worth: give every line a `solution` or a \
                 `completion`, or --verifier a command (the prompt that begins with {start:?} has none)",
                path.display()
            )));
        }
        // A token is rarely less than a character; without solutions a number that suits short answers.
        let longest = all.clone().filter_map(shown).map(|text| text.chars().count() + 1).max();
        let verifier = verifier.map(Verifier::start).transpose()?;
        if let (Some(verifier), Some(prompt)) = (&verifier, all.clone().next()) {
            verifier.try_out(&Completion::new(prompt, shown(prompt).unwrap_or_default()))?;
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
            let expected = right(completion.prompt).map(str::trim);
            Rewards::new(vec![indicator(Some(completion.text.trim()) == expected)])
        };
        match &self.verifier {
            Some(verifier) => verifier.verify(completions),
            None => Ok(completions.iter().map(exact).collect()),
        }
    }

    fn solution(&self, prompt: &Prompt) -> Option<String> {
        shown(prompt).map(str::to_string)
    }

    /// The characters of the file, where every prompt shows what answers are like.
    fn alphabet(&self) -> Option<String> {
        let mut characters = BTreeSet::new();
        for prompt in self.prompts.train.iter().chain(&self.prompts.test) {
            let texts = [prompt.text.as_str(), shown(prompt)?, right(prompt)?];
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

/// What a model is fitted to. A `completion` may say at length what a `solution` says in a word.
fn shown(prompt: &Prompt) -> Option<&str> {
    text(prompt, "completion").or_else(|| text(prompt, "solution"))
}

/// What a completion is compared with where there is no verifier.
fn right(prompt: &Prompt) -> Option<&str> {
    text(prompt, "solution").or_else(|| text(prompt, "completion"))
}

/// Reads prompts from a file of JSON lines. A line is an object with a `prompt` (a text, or a list of
/// messages as TRL has them) or `messages`; `split` says whether it is for `train` or `test`, else chance does,
/// one in eight for testing; all other keys are the prompt's fields. The `completion` may be a text or, as TRL has
/// it, a list of one message; where `messages` end with the assistant's, that is it. Empty lines are passed over.
///
/// # Errors
/// [`TaskError::File`], and [`TaskError::Line`] for the first line that is wrong, also where a prompt is in both
/// splits.
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
            "it has no line; write a JSON object with a `prompt` on each".to_string(),
        ));
    }
    Ok(set)
}

/// The role of who is asked.
const ASSISTANT: &str = "assistant";

/// The prompt of a line, and its split.
fn parse(line: &[u8]) -> Result<(Prompt, Split), String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| format!("it is no JSON: {e}"))?;
    let Value::Object(mut fields) = value else {
        return Err("a JSON object is wanted, for instance {\"prompt\": \"2+2=\"}".to_string());
    };
    let split = match fields.remove("split") {
        None => None,
        Some(Value::String(name)) if name == "train" => Some(Split::Train),
        Some(Value::String(name)) if name == "test" => Some(Split::Test),
        Some(other) => return Err(format!("`split` is {other}; it may be \"train\" or \"test\"")),
    };
    let (text, messages) = asked(&mut fields)?;
    if let Some(value) = fields.get_mut("completion") {
        *value = answered(value.take())?.into();
    }
    let split = split.unwrap_or_else(|| Split::of(&text));
    Ok((Prompt { text, messages, fields }, split))
}

/// Takes what is asked out of the fields of a line.
fn asked(fields: &mut Map<String, Value>) -> Result<(String, Vec<Message>), String> {
    let (key, value) = match (fields.remove("prompt"), fields.remove("messages")) {
        (Some(_), Some(_)) => return Err("it has `prompt` and `messages`; keep one".to_string()),
        (None, None) => return Err("it has no `prompt`, nor `messages`".to_string()),
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
        format!("`{key}` is no list of messages with `role` and `content`, each a text: {e}")
    })?;
    let is_answered = messages.last().is_some_and(|message| message.role == ASSISTANT);
    if is_answered && !fields.contains_key("completion") {
        let answer = messages.pop().map(|message| message.content);
        fields.insert("completion".to_string(), answer.into());
    }
    if messages.is_empty() {
        let what = if is_answered { "asks nothing" } else { "is an empty list" };
        return Err(format!("`{key}` {what}"));
    }
    let contents: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
    Ok((contents.join("\n\n") + "\n\n", messages))
}

/// The text of a `completion`.
fn answered(value: Value) -> Result<String, String> {
    if let Value::String(text) = value {
        return Ok(text);
    }
    let messages: Vec<Message> = serde_json::from_value(value).unwrap_or_default();
    match <[Message; 1]>::try_from(messages) {
        Ok([message]) if message.role == ASSISTANT => Ok(message.content),
        _ => {
            Err("`completion` is neither a text nor a list of one message of the assistant's"
                .into())
        }
    }
}
