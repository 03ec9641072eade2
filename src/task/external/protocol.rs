//! The protocol between Grove and a verifier process: requests and answers, each one line of JSON.

use crate::task::{Completion, Content, Message, RewardPart, numbers};
use serde::Serialize;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Largest absolute value of a reward. The squares of larger ones would drown all others in a group's deviation.
const MAX_VERIFIER_REWARD: f64 = 1e6;

/// The body of a request: all but its id and the fields of its prompt.
#[derive(Serialize)]
struct RequestBody<'a> {
    prompt: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    messages: Vec<Cow<'a, Message>>,
    completion: &'a str,
    num_tokens: usize,
    is_truncated: bool,
}

/// Returns a message as verifiers get it, with an empty text for null.
fn replace_null_content(message: &Message) -> Cow<'_, Message> {
    if message.content == Content::Null {
        let content = Content::Text(String::new());
        Cow::Owned(Message { content, ..message.clone() })
    } else {
        Cow::Borrowed(message)
    }
}

/// Serializes the request for a completion, without its id.
pub fn encode_body(completion: &Completion) -> String {
    let Completion { prompt, text, num_tokens, is_truncated } = *completion;
    let messages = prompt.messages.iter().map(replace_null_content).collect();
    let body =
        RequestBody { prompt: &prompt.text, messages, completion: text, num_tokens, is_truncated };
    let body = serde_json::to_string(&body).expect("texts and numbers");
    // Only the fields hold marked numbers; a completion may merely look like one.
    let fields = serde_json::to_string(&prompt.fields).expect("texts and numbers");
    format!("{},\"fields\":{}}}", &body[..body.len() - 1], numbers::unmark_large_integers(fields))
}

/// Adds the id to a request and returns it as a line.
pub fn encode_request(id: u64, body: &str) -> String {
    format!("{{\"id\":{id},{}\n", &body[1..])
}

/// The reason why a completion has no rewards.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Failure {
    /// The verifier reported an error, of which this is an excerpt.
    #[error("the verifier reported: {0}")]
    Reported(String),
    /// The rewards in its answer are missing, unknown or out of range, as this sentence says.
    #[error("{0}")]
    InvalidRewards(String),
    /// The time limit was exceeded, as this sentence says.
    #[error("{0}")]
    TimedOut(String),
    /// Two new processes ended; the text is the end of the second one, such as `ended (exit status: 1)`.
    #[error("the verifier {0} twice on this completion")]
    Ended(String),
}

/// A verifier's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The id of the request.
    pub id: u64,
    object: Map<String, Value>,
}

impl Answer {
    /// Parses a line.
    ///
    /// # Errors
    /// A description of the line if it is not an answer, with "it" as the subject.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let text = String::from_utf8_lossy(line);
        let parsed = serde_json::from_slice(line)
            .or_else(|_| serde_json::from_slice(&quote_unusual_numbers(text.as_bytes())));
        let Ok(Value::Object(object)) = parsed else {
            return Err(format!("it wrote {}, which is not a JSON object", excerpt(&text)));
        };
        match object.get("id").map(|id| (parse_integer(id), id)) {
            Some((Some(id), _)) => Ok(Self { id, object }),
            Some((None, id)) if !id.is_number() => {
                Err(format!("it wrote {}, whose `id` is not a number", excerpt(&text)))
            }
            _ => Err(format!("it wrote {}, which has no `id`", excerpt(&text))),
        }
    }

    /// Extracts the rewards in the order of `parts`.
    ///
    /// # Errors
    /// If the verifier reported an error, or if rewards are missing, unknown or not finite.
    pub fn rewards(&self, parts: &[RewardPart]) -> Result<Vec<f64>, Failure> {
        if let Some(error) = self.get("error") {
            let text = error.as_str().map_or_else(|| error.to_string(), str::to_string);
            return Err(Failure::Reported(excerpt(&text)));
        }
        self.parse_rewards(parts).map_err(Failure::InvalidRewards)
    }

    /// Returns the value of a key. Programs that write all keys of an answer set the ones that do not apply to null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Parses the rewards in the order of `parts`.
    ///
    /// # Errors
    /// A sentence if rewards are missing, unknown or not finite.
    fn parse_rewards(&self, parts: &[RewardPart]) -> Result<Vec<f64>, String> {
        let single = |value: &Value| Map::from_iter([(parts[0].name.to_string(), value.clone())]);
        let rewards = match (self.object.get("reward"), self.get("rewards")) {
            (Some(reward), None) if parts.len() == 1 => single(reward),
            (None | Some(Value::Null), Some(Value::Object(rewards))) => rewards.clone(),
            (Some(_), Some(_)) => {
                return Err("the verifier's answer has both `reward` and `rewards`".to_string());
            }
            _ => {
                let expected = if parts.len() == 1 { "neither `reward` nor" } else { "no" };
                return Err(format!("the verifier's answer has {expected} `rewards` by name"));
            }
        };
        let is_known = |name: &String| parts.iter().any(|part| part.name == *name);
        if let Some(name) = rewards.keys().find(|name| !is_known(name)) {
            let weights: Vec<String> = rewards.keys().map(|name| format!("{name}=1")).collect();
            return Err(format!(
                "the verifier returned the reward {}, which has no weight: set data.reward_weights, such as {}",
                excerpt(name),
                excerpt(&weights.join(","))
            ));
        }
        let parse_reward = |part: &RewardPart| {
            let value = rewards.get(&*part.name);
            let value =
                value.ok_or_else(|| format!("the verifier returned no reward `{}`", part.name))?;
            let is_bounded = |reward: &f64| reward.abs() <= MAX_VERIFIER_REWARD;
            value.as_f64().filter(is_bounded).ok_or_else(|| {
                let value: String = value.to_string().chars().take(60).collect();
                format!(
                    "the verifier returned {value} as the reward `{}`, which is not a number from \
                     -{MAX_VERIFIER_REWARD:e} to {MAX_VERIFIER_REWARD:e}",
                    part.name
                )
            })
        };
        parts.iter().map(parse_reward).collect()
    }
}

/// Parses an integer, which some JSON writers write with a fraction of 0.
fn parse_integer(value: &Value) -> Option<u64> {
    let rounded = || {
        let number = value.as_f64()?;
        let rounded = number as u64;
        (rounded as f64 == number).then_some(rounded)
    };
    value.as_u64().or_else(rounded)
}

/// JSON with quotes around NaN and Infinity, which some writers emit, and around numbers that are too large: such a
/// reward is rejected, but the id can be read.
fn quote_unusual_numbers(json: &[u8]) -> Vec<u8> {
    let quote_if_unusual = |token: &[u8]| {
        let number = str::from_utf8(token).ok().and_then(|word| word.parse::<f64>().ok());
        let is_unusual = number.is_some_and(|number| !number.is_finite());
        let quote: &[u8] = if is_unusual { b"\"" } else { b"" };
        [quote, token, quote].concat()
    };
    numbers::split_json(json).flat_map(quote_if_unusual).collect()
}

/// The start of a string, quoted and escaped.
fn excerpt(text: &str) -> String {
    let start: String = text.chars().take(60).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("{start:?}{dots}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Prompt;

    #[test]
    fn a_request_is_always_one_line() {
        let text = "a\n\"b\"\u{2028}\0";
        let prompt = Prompt { text: text.to_string(), ..Prompt::default() };
        let line = encode_request(7, &encode_body(&Completion::new(&prompt, text)));
        assert_eq!(line.matches('\n').count(), 1);
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&value["id"], &value["prompt"], &value["completion"]),
            (&7.into(), &text.into(), &text.into())
        );
        assert_eq!(value.get("messages"), None);
        let null = r#"{"role":"assistant","content":null,"tool_calls":[1]}"#;
        let messages = vec![serde_json::from_str(null).unwrap()];
        let line = encode_body(&Completion::new(&Prompt { messages, ..prompt }, text));
        assert!(line.contains(&null.replace("null", "\"\"")), "{line}");
    }

    #[test]
    fn a_completion_is_a_text_whatever_it_looks_like() {
        let text = "\u{fdd0}123456789012345678901234567890";
        let fields = Map::from_iter([("n".to_string(), text.into())]);
        let prompt = Prompt { text: text.to_string(), fields, ..Prompt::default() };
        let line = encode_request(7, &encode_body(&Completion::new(&prompt, text)));
        assert!(line.ends_with("\"fields\":{\"n\":123456789012345678901234567890}}\n"), "{line}");
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&value["prompt"], &value["completion"]), (&text.into(), &text.into()));
    }

    #[test]
    fn answers_are_read_strictly() {
        let one = [RewardPart::new("reward", 1.0)];
        let two = [RewardPart::new("exact", 1.0), RewardPart::new("format", 0.5)];
        let rewards = |line: &str, parts: &[RewardPart]| {
            let rewards = Answer::parse(line.as_bytes())?.rewards(parts);
            rewards.map_err(|failure| failure.to_string())
        };
        assert_eq!(rewards(r#"{"id": 1, "reward": 0.5}"#, &one), Ok(vec![0.5]));
        assert_eq!(rewards(r#"{"id": 1, "rewards": {"reward": 1}}"#, &one), Ok(vec![1.0]));
        let all_keys = r#"{"id": 1, "reward": 0.5, "rewards": null, "error": null}"#;
        assert_eq!(rewards(all_keys, &one), Ok(vec![0.5]));
        let all_keys = r#"{"id": 1, "reward": null, "rewards": {"reward": 1}, "error": null}"#;
        assert_eq!(rewards(all_keys, &one), Ok(vec![1.0]));
        let of_float = Answer::parse(br#"{"id": 4379754838093040.0, "reward": 1}"#).unwrap();
        assert_eq!(of_float.id, 4_379_754_838_093_040);
        let text = br#"{"id": 7, "error": "NaN \" 1e999", "reward": 1e999}"#;
        assert_eq!(Answer::parse(text).unwrap().object["error"], "NaN \" 1e999");
        let by_name = r#"{"id": 1, "rewards": {"format": 0, "exact": -1.5}}"#;
        assert_eq!(rewards(by_name, &two), Ok(vec![-1.5, 0.0]));
        for (line, parts, said) in [
            ("hello", &one[..], "it wrote \"hello\", which is not a JSON object"),
            (r#"{"reward": 1}"#, &one, "which has no `id`"),
            (
                r#"{"id": 1, "reward": NaN}"#,
                &one,
                r#"returned "NaN" as the reward `reward`, which is not a number from -1e6 to 1e6"#,
            ),
            (r#"{"id": 1, "reward": -Infinity}"#, &one, r#"returned "-Infinity" as the reward"#),
            (r#"{"id": 1, "reward": 1e999}"#, &one, r#"returned "1e999" as the reward"#),
            (r#"{"id": 1.5, "reward": 1}"#, &one, "which has no `id`"),
            (r#"{"id": -1.0, "reward": 1}"#, &one, "which has no `id`"),
            (r#"{"id": "7", "reward": 1}"#, &one, "whose `id` is not a number"),
            (
                r#"{"id": 1, "reward": "1"}"#,
                &one,
                r#"returned "1" as the reward `reward`, which is not a number from -1e6 to 1e6"#,
            ),
            (r#"{"id": 1, "reward": 1e200}"#, &one, "returned 1e+200 as the reward"),
            (r#"{"id": 1, "reward": -1000001}"#, &one, "returned -1000001 as the reward"),
            (r#"{"id": 1, "reward": null}"#, &one, "returned null as the reward"),
            (r#"{"id": 1, "reward": 1}"#, &two, "has no `rewards` by name"),
            (r#"{"id": 1, "rewards": {"exact": 1}}"#, &two, "returned no reward `format`"),
            (
                r#"{"id": 1, "rewards": {"exact": 1, "form": 1}}"#,
                &two,
                r#"returned the reward "form", which has no weight: set data.reward_weights, such as "exact=1,form=1""#,
            ),
            (r#"{"id": 1}"#, &one, "has neither `reward` nor `rewards` by name"),
            (
                r#"{"id": 1, "reward": 1, "rewards": {"a": 1}}"#,
                &one,
                "has both `reward` and `rewards`",
            ),
            (r#"{"id": 1, "error": "no\nidea"}"#, &one, "the verifier reported: \"no\\nidea\""),
        ] {
            let message = rewards(line, parts).unwrap_err();
            assert!(message.contains(said) && !message.contains('\n'), "{message}");
        }
    }
}
