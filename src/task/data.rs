//! A task of one's own: prompts from a file of JSON lines, verified by a command or by their solutions.

use super::external::{Verifier, VerifierOptions};
use super::text::indicator;
use super::{Completion, Message, Part, Prompt, PromptSet, Rewards, Split, Task, TaskError};
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

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

    /// Reads the prompts of `path` ([`read_prompts`]) and starts the verifier. Without one, a completion is
    /// right where it is the `solution` of its prompt, but for white space around it.
    ///
    /// # Errors
    /// The file, with the number of the line that is wrong; a verifier that does not start; no verifier for
    /// prompts without solutions.
    pub fn open(path: &Path, verifier: Option<VerifierOptions>) -> Result<Self, TaskError> {
        let prompts = read_prompts(path)?;
        let parts = match &verifier {
            Some(options) => options.parts.clone(),
            None => vec![Part::new("exact", 1.0)],
        };
        let all = prompts.train.iter().chain(&prompts.test);
        if verifier.is_none()
            && let Some(prompt) = all.clone().find(|prompt| solution(prompt).is_none())
        {
            let start: String = prompt.text.chars().take(40).collect();
            return Err(TaskError::Setting(format!(
                "nothing says what completions of {} are worth: give --verifier a command, or every line a \
                 `solution` (the prompt that begins with {start:?} has none)",
                path.display()
            )));
        }
        // A token is rarely less than a character; without solutions a number that suits short answers.
        let longest = all.filter_map(solution).map(|text| text.chars().count() + 1).max();
        let verifier = verifier.map(Verifier::start).transpose()?;
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
            let expected = solution(completion.prompt).map(str::trim);
            Rewards::new(vec![indicator(Some(completion.text.trim()) == expected)])
        };
        match &self.verifier {
            Some(verifier) => verifier.verify(completions),
            None => Ok(completions.iter().map(exact).collect()),
        }
    }

    fn max_new_tokens(&self) -> usize {
        self.max_new_tokens
    }
}

fn solution(prompt: &Prompt) -> Option<&str> {
    prompt.fields.get("solution")?.as_str()
}

/// Reads prompts from a file of JSON lines. A line is an object with a `prompt` (a text, or a list of
/// messages as TRL has them) or `messages`; `split` says whether it is for `train` or `test`, else chance does,
/// one in eight for testing; all other keys are the prompt's fields. Empty lines are passed over.
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
    let messages: Vec<Message> = serde_json::from_value(value).map_err(|e| {
        format!("`{key}` is no list of messages with `role` and `content`, each a text: {e}")
    })?;
    if messages.is_empty() {
        return Err(format!("`{key}` is an empty list"));
    }
    let contents: Vec<&str> = messages.iter().map(|message| message.content.as_str()).collect();
    Ok((contents.join("\n\n") + "\n\n", messages))
}
