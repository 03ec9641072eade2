//! How a tokenizer cuts text into words before it makes tokens of them.

use regex::Regex;
use serde_json::Value;

/// A way to cut text up.
#[derive(Clone, Debug)]
pub(super) enum Split {
    /// At the matches of a pattern.
    Pattern {
        pattern: Regex,
        /// Whether a match of several spaces gives the last back to the word that follows.
        keeps_space: bool,
        /// Whether what matches is left out.
        removes: bool,
    },
    /// Each digit by itself.
    Digits,
}

/// How GPT-2 splits text: what the part "ByteLevel" does if it is told to.
const GPT2: &str =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/// Spaces that no word follows, then all others: the one thing that needs a look ahead.
const SPACES: &str = "\\s+(?!\\S)|\\s+";

impl Split {
    /// Of a pattern as tokenizers' files write it.
    fn pattern(pattern: &str, removes: bool) -> Result<Self, String> {
        let (pattern, keeps_space) = match pattern.strip_suffix(SPACES) {
            Some(rest) => (format!("{rest}\\s+"), true),
            None => (pattern.to_string(), false),
        };
        let pattern =
            Regex::new(&pattern).map_err(|_| format!("the pattern {pattern} is not known"))?;
        Ok(Self::Pattern { pattern, keeps_space, removes })
    }

    /// The pieces of a text.
    fn apply<'a>(&self, text: &'a str, pieces: &mut Vec<&'a str>) {
        let mut push = |piece: &'a str| {
            if !piece.is_empty() {
                pieces.push(piece);
            }
        };
        match self {
            Self::Digits => {
                let mut start = 0;
                for (at, c) in text.char_indices().filter(|(_, c)| c.is_numeric()) {
                    push(&text[start..at]);
                    start = at + c.len_utf8();
                    push(&text[at..start]);
                }
                push(&text[start..]);
            }
            Self::Pattern { pattern, keeps_space, removes } => {
                let mut start = 0;
                while let Some(found) = pattern.find_at(text, start) {
                    push(&text[start..found.start()]);
                    let mut end = found.end();
                    let space = found.as_str();
                    if *keeps_space && end < text.len() && space.trim().is_empty() {
                        // `\s+(?!\S)` leaves the last space, unless it is the only one; line ends that
                        // another part of the pattern has matched stay together.
                        let last = space.chars().next_back().map_or(0, char::len_utf8);
                        let is_run = !space.ends_with(['\r', '\n'])
                            || !pattern.as_str().contains("[\\r\\n]+");
                        if is_run && last < space.len() {
                            end -= last;
                        }
                    }
                    if !removes {
                        push(&text[found.start()..end]);
                    }
                    start = end.max(start + usize::from(end == start));
                    if end == found.start() {
                        break;
                    }
                }
                push(&text[start.min(text.len())..]);
            }
        }
    }
}

/// All ways of a `pre_tokenizer`, one after the other, and whether the pieces become bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Splits {
    splits: Vec<Split>,
    pub bytes: bool,
    /// Whether a space is put before a text that has none.
    pub prefix: bool,
}

impl Splits {
    /// From a tokenizer's file.
    pub fn new(json: &Value) -> Result<Self, String> {
        let mut splits = Self::default();
        splits.add(json)?;
        Ok(splits)
    }

    fn add(&mut self, json: &Value) -> Result<(), String> {
        let is = |name: &str| json[name].as_bool().unwrap_or(false);
        match json["type"].as_str() {
            None => {}
            Some("Sequence") => {
                for part in json["pretokenizers"].as_array().into_iter().flatten() {
                    self.add(part)?;
                }
            }
            Some("ByteLevel") => {
                if json["use_regex"].as_bool().unwrap_or(true) {
                    self.splits.push(Split::pattern(GPT2, false)?);
                }
                (self.bytes, self.prefix) = (true, is("add_prefix_space"));
            }
            Some("Digits") if is("individual_digits") => self.splits.push(Split::Digits),
            Some("Digits") => self.splits.push(Split::pattern("\\p{N}+", false)?),
            Some("Whitespace") => {
                let words = Split::pattern("\\w+|[^\\w\\s]+", false)?;
                self.splits.extend([words, Split::pattern("\\s+", true)?]);
            }
            Some("WhitespaceSplit") => self.splits.push(Split::pattern("\\s+", true)?),
            Some("Split") if !is("invert") => {
                let pattern = match (&json["pattern"]["Regex"], &json["pattern"]["String"]) {
                    (Value::String(pattern), _) => pattern.clone(),
                    (_, Value::String(text)) => regex::escape(text),
                    _ => return Err("a split has no pattern".to_string()),
                };
                let removes = match json["behavior"].as_str() {
                    Some("Isolated") => false,
                    Some("Removed") => true,
                    other => {
                        return Err(format!("the split `{}` is not known", other.unwrap_or("")));
                    }
                };
                self.splits.push(Split::pattern(&pattern, removes)?);
            }
            Some(other) => return Err(format!("the pre-tokenizer `{other}` is not known")),
        }
        Ok(())
    }

    /// The words of a text.
    pub fn apply<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut words = vec![text];
        for split in &self.splits {
            let mut pieces = Vec::new();
            words.into_iter().for_each(|word| split.apply(word, &mut pieces));
            words = pieces;
        }
        words
    }
}
