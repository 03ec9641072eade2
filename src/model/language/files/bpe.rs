//! A tokenizer as a `tokenizer.json` describes it: words, then pairs that are merged (Sennrich et al. 2016).
//!
//! The pieces that Qwen, Llama and SmolLM2 use are known; a file with others is refused by name.

use super::split::Splits;
use serde_json::Value;
use std::collections::HashMap;
use unicode_normalization::UnicodeNormalization;

/// A vocabulary of merged pairs, or of whole words.
#[derive(Clone, Debug)]
pub struct Bpe {
    vocabulary: HashMap<String, u32>,
    names: Vec<String>,
    /// The rank of a pair, and what it becomes. Empty where words are looked up as they are.
    merges: HashMap<(u32, u32), (u32, u32)>,
    /// Whether a word that is a token stays whole.
    whole_words: bool,
    /// Whether characters that are no tokens become tokens of their bytes.
    byte_fallback: bool,
    unknown: Option<u32>,
    /// Texts that are tokens wherever they stand, the longest first.
    added: Vec<Added>,
    normalizers: Vec<Normalizer>,
    splits: Splits,
    /// The tokens that are put around a text.
    around: [Vec<u32>; 2],
    decoder: Decoder,
}

#[derive(Clone, Debug)]
struct Added {
    text: String,
    id: u32,
    special: bool,
    /// Whether spaces before and after belong to it.
    strips: [bool; 2],
}

#[derive(Clone, Debug)]
enum Normalizer {
    Composed,
    Prepend(String),
    Replace([String; 2]),
}

/// How tokens become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decoder {
    /// Each of their characters is a byte.
    Bytes,
    /// They are joined, with spaces for a mark, and tokens of bytes among them.
    Marks,
    /// They are joined.
    Joined,
    /// They are words.
    Words,
}

/// What stands for a space in the files of older tokenizers.
const MARK: &str = "\u{2581}";

/// The character that stands for a byte (GPT-2): itself where it is printable.
fn character(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    match is_printable(byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|byte| !is_printable(*byte)).count() as u32;
            char::from_u32(256 + before).expect("far below the surrogates")
        }
    }
}

impl Bpe {
    /// From a `tokenizer.json`.
    ///
    /// # Errors
    /// What is missing in it, or not known here.
    pub fn new(json: &Value) -> Result<Self, String> {
        let model = &json["model"];
        let mut vocabulary: HashMap<String, u32> = HashMap::new();
        for (name, id) in model["vocab"].as_object().ok_or("there is no vocabulary")? {
            vocabulary.insert(name.clone(), id.as_u64().ok_or("a token has no number")? as u32);
        }
        let mut merges = HashMap::new();
        match model["type"].as_str().unwrap_or("BPE") {
            "WordLevel" => {}
            "BPE" => {
                let all = model["merges"].as_array().ok_or("there are no merges")?;
                for (rank, pair) in (0..).zip(all) {
                    let [left, right] = pair_of(pair).ok_or("a merge is no pair")?;
                    let id = |name: &str| {
                        vocabulary
                            .get(name)
                            .copied()
                            .ok_or(format!("a merge needs the token `{name}`"))
                    };
                    let whole = id(&format!("{left}{right}"))?;
                    merges.insert((id(left)?, id(right)?), (rank, whole));
                }
            }
            other => return Err(format!("the vocabulary `{other}` is not known")),
        }
        for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
            if model[name].as_str().is_some_and(|text| !text.is_empty()) {
                return Err(format!("`{name}` is not known"));
            }
        }
        let mut added = Vec::new();
        for one in json["added_tokens"].as_array().into_iter().flatten() {
            let is = |name: &str| one[name].as_bool().unwrap_or(false);
            let text = one["content"].as_str().ok_or("an added token has no text")?.to_string();
            let id = one["id"].as_u64().ok_or("an added token has no number")? as u32;
            vocabulary.insert(text.clone(), id);
            let strips = [is("lstrip"), is("rstrip")];
            added.push(Added { text, id, special: is("special"), strips });
        }
        added.sort_by_key(|one| std::cmp::Reverse(one.text.len()));
        let count = vocabulary.values().max().map_or(0, |id| *id as usize + 1);
        let mut names = vec![String::new(); count];
        vocabulary.iter().for_each(|(name, id)| names[*id as usize].clone_from(name));
        let mut normalizers = Vec::new();
        normalize(&json["normalizer"], &mut normalizers)?;
        let around = around(&json["post_processor"], &vocabulary)?;
        let is = |name: &str| model[name].as_bool().unwrap_or(false);
        Ok(Self {
            whole_words: is("ignore_merges") || merges.is_empty(),
            byte_fallback: is("byte_fallback"),
            unknown: model["unk_token"].as_str().and_then(|name| vocabulary.get(name)).copied(),
            splits: Splits::new(&json["pre_tokenizer"])?,
            decoder: decoder(&json["decoder"])?,
            vocabulary,
            names,
            merges,
            added,
            normalizers,
            around,
        })
    }

    /// The number of tokens.
    pub fn vocabulary(&self) -> usize {
        self.names.len()
    }

    /// The token of this name.
    pub fn token(&self, name: &str) -> Option<u32> {
        self.vocabulary.get(name).copied()
    }

    /// The tokens of a text; `special`: with those that are put around one.
    ///
    /// # Errors
    /// If the text has a character that is no token and cannot be made of any.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, char> {
        let mut tokens = if special { self.around[0].clone() } else { Vec::new() };
        let (mut rest, mut start) = (text, 0);
        while start < rest.len() {
            let found = self.added.iter().find(|one| rest[start..].starts_with(&one.text));
            let Some(one) = found.filter(|one| !one.text.is_empty()) else {
                start += rest[start..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            let (before, after) = (&rest[..start], &rest[start + one.text.len()..]);
            self.plain(if one.strips[0] { before.trim_end() } else { before }, &mut tokens)?;
            tokens.push(one.id);
            (rest, start) = (if one.strips[1] { after.trim_start() } else { after }, 0);
        }
        self.plain(rest, &mut tokens)?;
        if special {
            tokens.extend(&self.around[1]);
        }
        Ok(tokens)
    }

    /// Adds the tokens of a text without added ones.
    fn plain(&self, text: &str, tokens: &mut Vec<u32>) -> Result<(), char> {
        if text.is_empty() {
            return Ok(());
        }
        let mut text = text.to_string();
        for normalizer in &self.normalizers {
            text = match normalizer {
                Normalizer::Composed => text.nfc().collect(),
                Normalizer::Prepend(before) => format!("{before}{text}"),
                Normalizer::Replace([from, to]) => text.replace(from, to),
            };
        }
        if self.splits.prefix && !text.starts_with(' ') {
            text.insert(0, ' ');
        }
        for word in self.splits.apply(&text) {
            match self.splits.bytes {
                true => self.word(&word.bytes().map(character).collect::<String>(), tokens)?,
                false => self.word(word, tokens)?,
            }
        }
        Ok(())
    }

    /// Adds the tokens of a word.
    fn word(&self, word: &str, tokens: &mut Vec<u32>) -> Result<(), char> {
        let unknown = self.unknown.as_ref().filter(|_| self.merges.is_empty());
        if self.whole_words
            && let Some(token) = self.vocabulary.get(word).or(unknown)
        {
            tokens.push(*token);
            return Ok(());
        }
        let mut parts: Vec<u32> = Vec::with_capacity(word.len());
        for c in word.chars() {
            let mut room = [0; 4];
            let text: &str = c.encode_utf8(&mut room);
            match self.vocabulary.get(text) {
                Some(token) => parts.push(*token),
                None => {
                    let bytes = text.bytes().map(|byte| self.token(&format!("<0x{byte:02X}>")));
                    let bytes: Option<Vec<u32>> =
                        if self.byte_fallback { bytes.collect() } else { None };
                    match (bytes, self.unknown) {
                        (Some(bytes), _) => parts.extend(bytes),
                        (None, Some(unknown)) => parts.push(unknown),
                        (None, None) => return Err(c),
                    }
                }
            }
        }
        // The pair of the lowest rank, and of these the first, until there is none.
        while let Some((at, (_, whole))) = parts
            .windows(2)
            .enumerate()
            .filter_map(|(at, pair)| Some((at, *self.merges.get(&(pair[0], pair[1]))?)))
            .min_by_key(|(at, (rank, _))| (*rank, *at))
        {
            parts[at] = whole;
            parts.remove(at + 1);
        }
        tokens.extend(parts);
        Ok(())
    }

    /// The text of tokens, without special ones.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let is_special = |id: &u32| self.added.iter().any(|one| one.id == *id && one.special);
        let is_added = |id: &u32| self.added.iter().any(|one| one.id == *id);
        let kept: Vec<u32> = tokens.iter().filter(|id| !is_special(id)).copied().collect();
        let name = |id: &u32| self.names.get(*id as usize).map_or("", String::as_str);
        match self.decoder {
            Decoder::Words => kept.iter().map(name).collect::<Vec<_>>().join(" "),
            Decoder::Joined => kept.iter().map(name).collect(),
            Decoder::Bytes => {
                let byte = |c: char| (0..=255).find(|byte| character(*byte) == c);
                let bytes = kept.iter().flat_map(|id| -> Vec<u8> {
                    match is_added(id) {
                        true => name(id).bytes().collect(),
                        false => name(id).chars().filter_map(byte).collect(),
                    }
                });
                String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
            }
            Decoder::Marks => {
                let bytes = kept.iter().flat_map(|id| {
                    let name = name(id);
                    let byte = name.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                    match byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                        Some(byte) => vec![byte],
                        None => name.replace(MARK, " ").into_bytes(),
                    }
                });
                let text = String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned();
                text.strip_prefix(' ').map_or(text.clone(), str::to_string)
            }
        }
    }
}

/// The two sides of a merge.
fn pair_of(json: &Value) -> Option<[&str; 2]> {
    match json {
        Value::String(text) => text.split_once(' ').map(|(left, right)| [left, right]),
        pair => Some([pair.get(0)?.as_str()?, pair.get(1)?.as_str()?]),
    }
}

fn normalize(json: &Value, all: &mut Vec<Normalizer>) -> Result<(), String> {
    let text = |name: &str| json[name].as_str().unwrap_or_default().to_string();
    match json["type"].as_str() {
        None => {}
        Some("NFC") => all.push(Normalizer::Composed),
        Some("Prepend") => all.push(Normalizer::Prepend(text("prepend"))),
        Some("Replace") => {
            let from = json["pattern"]["String"].as_str().ok_or("a replacement has no text")?;
            all.push(Normalizer::Replace([from.to_string(), text("content")]));
        }
        Some("Sequence") => {
            for part in json["normalizers"].as_array().into_iter().flatten() {
                normalize(part, all)?;
            }
        }
        Some(other) => return Err(format!("the normalizer `{other}` is not known")),
    }
    Ok(())
}

/// The tokens that are put before and after a text.
fn around(json: &Value, vocabulary: &HashMap<String, u32>) -> Result<[Vec<u32>; 2], String> {
    let mut around = [Vec::new(), Vec::new()];
    match json["type"].as_str() {
        None | Some("ByteLevel") => {}
        Some("Sequence") => {
            for part in json["processors"].as_array().into_iter().flatten() {
                let [before, after] = self::around(part, vocabulary)?;
                around[0].extend(before);
                around[1].extend(after);
            }
        }
        Some("TemplateProcessing") => {
            let mut side = 0;
            for part in json["single"].as_array().into_iter().flatten() {
                match part["SpecialToken"]["id"].as_str() {
                    Some(name) => {
                        let id = vocabulary.get(name);
                        around[side].push(*id.ok_or(format!("there is no token `{name}`"))?);
                    }
                    None => side = 1,
                }
            }
        }
        Some(other) => return Err(format!("the post-processor `{other}` is not known")),
    }
    Ok(around)
}

fn decoder(json: &Value) -> Result<Decoder, String> {
    match json["type"].as_str() {
        None => Ok(Decoder::Words),
        Some("ByteLevel") => Ok(Decoder::Bytes),
        Some("Fuse") => Ok(Decoder::Joined),
        Some("Sequence") => {
            let parts = json["decoders"].as_array().into_iter().flatten();
            let names: Vec<&str> = parts.filter_map(|part| part["type"].as_str()).collect();
            match names[..] {
                ["Replace", "ByteFallback", "Fuse", "Strip"] => Ok(Decoder::Marks),
                _ => Err(format!("the decoder of {} is not known", names.join(", "))),
            }
        }
        Some(other) => Err(format!("the decoder `{other}` is not known")),
    }
}
