//! Tokenizers read from `tokenizer.json` by the crate `tokenizers`.

use super::{unusable, wrong_type_reason};
use crate::text::characters::Characters;
use crate::text::error::LanguageError;
use crate::text::tokenizer::Tokenizer;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::slice;
use std::sync::{Arc, Once};

/// A tokenizer of any type: BPE, unigram, WordPiece or word level.
#[derive(Debug)]
struct FileTokenizer {
    tokenizer: tokenizers::Tokenizer,
    /// Number of tokens in the weights.
    num_tokens: usize,
    /// The warning of tokens that cannot be decoded.
    warning: Once,
}

/// Reads a `tokenizer.json` for weights with `num_tokens` tokens; errors name `path`.
///
/// Added tokens may be beyond the weights, as the mark of an image is in Gemma 3's text models: only a text that
/// contains one is an error.
///
/// # Errors
/// If it is malformed, or the vocabulary of its model has a token that the weights lack.
pub(super) fn read(
    text: &[u8],
    num_tokens: usize,
    path: &Path,
) -> Result<Arc<dyn Tokenizer>, LanguageError> {
    let json: Value = serde_json::from_slice(text).map_err(unusable(path))?;
    check(&json, num_tokens).map_err(unusable(path))?;
    if let Some(characters) = Characters::from_json(&json) {
        return Ok(Arc::new(characters));
    }
    drop(json);
    let tokenizer = call(|| tokenizers::Tokenizer::from_bytes(text));
    let mut tokenizer = tokenizer.map_err(unusable(path))?;
    // Prompts are never truncated or padded.
    tokenizer.with_padding(None).with_truncation(None).map_err(unusable(path))?;
    Ok(Arc::new(FileTokenizer { tokenizer, num_tokens, warning: Once::new() }))
}

/// Rejects a `tokenizer.json` that the crate `tokenizers` would not bound, or not read as it must be.
fn check(json: &Value, num_tokens: usize) -> Result<(), String> {
    // First, before anything is allocated by a token's id.
    check_largest_token(&json["model"]["vocab"], num_tokens)?;
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        check_growth(part, &json[part])?;
    }
    check_dropout(&json["model"])?;
    check_merges(&json["model"])?;
    check_template(&json["post_processor"])
}

/// The entries of a `tokenizer.json` that decide how added tokens are found in a text.
#[derive(Deserialize)]
struct AddedTokens {
    #[serde(default)]
    added_tokens: Value,
    #[serde(default)]
    normalizer: Value,
}

/// Refuses a `tokenizer_config.json`, `config`, or an `added_tokens.json`, `added`, by which `transformers` would split
/// texts differently from the `tokenizer.json` beside them.
///
/// # Errors
/// A clause, if one of the files names a token that `tokenizer.json` does not add or adds in another way, or asks for
/// added tokens to be split.
pub(super) fn check_added_tokens(text: &[u8], config: &Value, added: &Value) -> Result<(), String> {
    let key = "split_special_tokens";
    if config[key] == true {
        return Err(format!(
            "`{key}` of tokenizer_config.json is true, but special tokens are never split; set it to false"
        ));
    }
    let file: AddedTokens = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let known = list_elements(&file.added_tokens).into_iter();
    let known: HashMap<&str, &Value> =
        known.filter_map(|token| Some((token_text(token)?, token))).collect();
    let table = "added_tokens_decoder";
    let mut named = Vec::new();
    for key in [table, "additional_special_tokens", "extra_special_tokens"] {
        let tokens = list_elements(&config[key]).into_iter().filter_map(token_text);
        named.extend(tokens.map(|name| (key, name)));
    }
    // Only counts without that table.
    if config[table].is_null() {
        let names = added.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        named.extend(names.map(|name| ("added_tokens.json", name)));
    }
    if let Some((place, name)) = named.into_iter().find(|(_, name)| !known.contains_key(name)) {
        return Err(format!(
            "its `added_tokens` lack {name:?}, which `{place}` beside it names; save the tokenizer with `transformers`, \
             which adds it"
        ));
    }
    for token in list_elements(&config[table]) {
        let Some((name, known)) = token_text(token).and_then(|name| known.get_key_value(name))
        else {
            continue;
        };
        if let Some(flag) = differing_flag(token, known, changes_texts(&file.normalizer)) {
            return Err(format!(
                "`{flag}` of its added token {name:?} differs from the one in `{table}` beside it; save the tokenizer \
                 with `transformers`, which takes that one"
            ));
        }
    }
    Ok(())
}

/// Whether a normalizer does anything: an empty list of normalizers stands for none.
fn changes_texts(normalizer: &Value) -> bool {
    nested_parts(normalizer, &["normalizers"])
        .any(|part| !part.is_null() && part["type"] != "Sequence")
}

/// The first flag that makes `transformers` find the added token elsewhere, or leave it out of more decoded texts, than
/// `tokenizer.json` does. Absent flags are as in `transformers`.
fn differing_flag(token: &Value, known: &Value, has_normalizer: bool) -> Option<&'static str> {
    let is_on = |token: &Value, flag: &str| match &token[flag] {
        Value::Null => flag == "normalized" && token["special"] != true,
        value => *value == true,
    };
    let flags = ["lstrip", "rstrip", "single_word", "normalized", "special"];
    flags.into_iter().find(|flag| match *flag {
        // Without a normalizer a token is found in the text as it stands.
        "normalized" if !has_normalizer => false,
        // Tokens that `tokenizer.json` marks as special stay special.
        "special" => is_on(token, flag) && !is_on(known, flag),
        flag => is_on(token, flag) != is_on(known, flag),
    })
}

/// Lists the elements of a list, or the values of a table.
fn list_elements(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(all) => all.iter().collect(),
        Value::Object(all) => all.values().collect(),
        _ => Vec::new(),
    }
}

/// Text of a token, given as a string or in a table.
pub(super) fn token_text(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// Rejects a vocabulary with a token that the weights lack.
fn check_largest_token(vocabulary: &Value, num_tokens: usize) -> Result<(), String> {
    let largest = match vocabulary {
        Value::Object(vocabulary) => vocabulary.values().filter_map(Value::as_u64).max(),
        Value::Array(vocabulary) => (vocabulary.len() as u64).checked_sub(1),
        _ => None,
    };
    match largest.filter(|token| *token >= num_tokens as u64) {
        Some(largest) => Err(format!(
            "its token {largest} is beyond the weights, which have {num_tokens} tokens"
        )),
        None => Ok(()),
    }
}

/// A part of a `tokenizer.json`, and the parts that it holds, at any depth, in lists of these names.
fn nested_parts<'a>(part: &'a Value, lists: &'a [&str]) -> impl Iterator<Item = &'a Value> {
    let mut open = vec![part];
    std::iter::from_fn(move || {
        let part = open.pop()?;
        open.extend(lists.iter().filter_map(|list| part[*list].as_array()).flatten());
        Some(part)
    })
}

/// Maximum number of bytes that a normalizer, pre-tokenizer or decoder makes of one byte, or puts before a text, and of
/// tokens that a post-processor puts beside it.
const MAX_GROWTH: usize = 1 << 10;

/// Rejects a part of a `tokenizer.json` whose own parts together lengthen a text without bound.
fn check_growth(name: &str, value: &Value) -> Result<(), String> {
    let (mut growth, mut num_prepended) = (1_usize, 0);
    for part in nested_parts(value, &["normalizers", "pretokenizers", "decoders"]) {
        num_prepended += text_length(&part["prepend"]);
        growth = growth.saturating_mul(measure_growth(name, part)?);
        if growth > MAX_GROWTH {
            return Err(format!("its {name} makes a text over {MAX_GROWTH} times as long"));
        }
        if num_prepended > MAX_GROWTH {
            return Err(format!("its {name} puts over {MAX_GROWTH} bytes before a text"));
        }
    }
    Ok(())
}

/// Length of a string in bytes; 0 for any other value.
fn text_length(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

/// The largest number of bytes that one byte becomes by a part of a normalizer, pre-tokenizer or decoder.
fn measure_growth(name: &str, part: &Value) -> Result<usize, String> {
    Ok(match (name, part["type"].as_str().unwrap_or_default()) {
        (_, "Replace") => {
            // An empty pattern matches between all bytes, and so may a regular expression.
            let from = text_length(&part["pattern"]["String"]).max(1);
            let per_byte = text_length(&part["content"]).div_ceil(from) + usize::from(from == 1);
            per_byte.max(1)
        }
        // Unicode's own numbers for texts in UTF-8.
        (_, "NFC" | "NFD") => 3,
        (_, "NFKC" | "NFKD") => 11,
        // Decomposes, and puts spaces around Chinese characters.
        (_, "BertNormalizer") => 6,
        (_, "Precompiled") => find_longest_replacement(&part["precompiled_charsmap"])?.max(1),
        // Two bytes for each that is not printable ASCII, as all of its own are; and a space before each piece.
        ("normalizer" | "pre_tokenizer", "ByteLevel") if part["add_prefix_space"] == true => 4,
        ("normalizer" | "pre_tokenizer", "ByteLevel") => 2,
        // A mark of up to four bytes for each space, and before each piece.
        ("pre_tokenizer", "Metaspace") => 8,
        // A space before each token.
        ("decoder", "WordPiece") => 2,
        // A space between all characters.
        ("decoder", "BPEDecoder") if text_length(&part["suffix"]) == 0 => 3,
        ("decoder", "CTC") if text_length(&part["word_delimiter_token"]) == 0 => 3,
        _ => 1,
    })
}

/// Finds the length of the longest text by which a `precompiled_charsmap` of SentencePiece replaces characters: behind
/// the size of a table and the table, it has these texts, each with a zero behind it.
fn find_longest_replacement(charsmap: &Value) -> Result<usize, String> {
    let bytes = charsmap.as_str().and_then(decode_base64).unwrap_or_default();
    let Some((size, rest)) = bytes.split_first_chunk() else { return Ok(0) };
    let texts = rest.get(u32::from_le_bytes(*size) as usize..);
    let texts = texts.ok_or("its `precompiled_charsmap` ends before its table does")?;
    Ok(texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(0))
}

/// Decodes a text in base64; `None` if a character does not belong to it.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut num_bits) = (Vec::new(), 0_u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        let digit = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(digit);
        num_bits += 6;
        if num_bits >= 8 {
            num_bits -= 8;
            bytes.push((bits >> num_bits) as u8);
        }
    }
    Some(bytes)
}

/// The steps of a part of a `tokenizer.json`: those of a sequence, which lists them under `key`, or the part itself.
pub(super) fn steps<'a>(part: &'a Value, key: &str) -> &'a [Value] {
    match part {
        Value::Null => &[],
        part if part["type"] == "Sequence" => part[key].as_array().map_or(&[], Vec::as_slice),
        step => slice::from_ref(step),
    }
}

/// Splits an entry of `merges`, a string or a list, into its two parts.
pub(super) fn split_merge(merge: &Value) -> Option<[&str; 2]> {
    match merge {
        Value::String(text) => text.split_once(' ').map(|(first, second)| [first, second]),
        list => Some([list[0].as_str()?, list[1].as_str()?]),
    }
}

/// Name of a special token in a file, if it has one.
///
/// # Errors
/// A clause if the token is neither a string nor a table with its `content`.
pub(super) fn special_token_name<'a>(
    config: &'a Value,
    key: &str,
) -> Result<Option<&'a str>, String> {
    let token = &config[key];
    match token_text(token) {
        Some(name) => Ok(Some(name).filter(|name| !name.is_empty())),
        None if token.is_null() => Ok(None),
        None => Err(wrong_type_reason(key, token, "the text of a token")),
    }
}

/// Rejects a model that leaves out merges at random: the same text must always be the same tokens.
fn check_dropout(model: &Value) -> Result<(), String> {
    match model["dropout"].as_f64() {
        Some(dropout) if dropout != 0.0 => Err(format!(
            "its `dropout` of {dropout} splits the same text differently each time; set it to null"
        )),
        _ => Ok(()),
    }
}

/// Rejects merges that do not form a token of the vocabulary, on which the crate `tokenizers` panics.
fn check_merges(model: &Value) -> Result<(), String> {
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    for merge in model["merges"].as_array().into_iter().flatten() {
        let Some([first, second]) = split_merge(merge) else { continue };
        let whole = second.strip_prefix(prefix).map(|second| format!("{first}{second}"));
        if whole.is_none_or(|whole| model["vocab"].get(whole).is_none()) {
            return Err(format!("the merge of `{first}` and `{second}` makes no token"));
        }
    }
    Ok(())
}

/// Rejects a `post_processor` that puts a special token beside a text without defining it, or too many, or that repeats
/// the text.
fn check_template(value: &Value) -> Result<(), String> {
    let mut num_added = 0;
    for processor in nested_parts(value, &["processors"]) {
        let pieces = || processor["single"].as_array().into_iter().flatten();
        for name in pieces().filter_map(|piece| piece["SpecialToken"]["id"].as_str()) {
            let Some(token) = processor["special_tokens"].get(name) else {
                return Err(format!(
                    "its `post_processor` adds the token {name:?} without defining it"
                ));
            };
            num_added += token["ids"].as_array().map_or(0, Vec::len);
            if num_added > MAX_GROWTH {
                return Err(format!(
                    "its `post_processor` puts over {MAX_GROWTH} tokens beside a text"
                ));
            }
        }
        if pieces().filter(|piece| piece.get("Sequence").is_some()).count() > 1 {
            return Err("its `post_processor` repeats the text".into());
        }
    }
    Ok(())
}

/// Calls the crate `tokenizers`, which panics if parts of a file do not fit together; a panic becomes an error.
fn call<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    let result = catch_unwind(AssertUnwindSafe(work));
    result.map_err(|_| "its parts do not fit together")?.map_err(|error| error.to_string())
}

impl FileTokenizer {
    fn encode_checked(
        &self,
        text: &str,
        adds_special_tokens: bool,
    ) -> Result<Vec<u32>, LanguageError> {
        let encoding = call(|| self.tokenizer.encode_fast(text, adds_special_tokens));
        let tokens = encoding.map_err(LanguageError::Tokenizer)?.get_ids().to_vec();
        // An added token may be beyond the weights, and a post-processor may add any id.
        match tokens.iter().find(|token| **token as usize >= self.num_tokens) {
            Some(token) => Err(LanguageError::Tokenizer(format!(
                "it makes the token {token}, and the weights have {} tokens",
                self.num_tokens
            ))),
            None => Ok(tokens),
        }
    }
}

impl Tokenizer for FileTokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>, LanguageError> {
        self.encode_checked(text, false)
    }

    fn encode_whole(&self, text: &str) -> Result<Vec<u32>, LanguageError> {
        self.encode_checked(text, true)
    }

    fn decode(&self, tokens: &[u32]) -> String {
        let text = call(|| self.tokenizer.decode(tokens, true));
        text.unwrap_or_else(|reason| {
            // Once, since the other texts of a run likely fail in the same way.
            self.warning.call_once(|| tracing::warn!("tokens cannot be decoded: {reason}"));
            String::new()
        })
    }

    fn decode_pieces(&self, tokens: &[u32]) -> Vec<String> {
        // Many tokenizers drop the space before the first token of a text, so each token is decoded after the one
        // before it.
        let piece = |at: usize| {
            let alone = self.decode(&tokens[at..=at]);
            if at == 0 {
                return alone;
            }
            let previous = self.decode(&tokens[at - 1..at]);
            let pair = self.decode(&tokens[at - 1..=at]);
            pair.strip_prefix(&previous).map_or(alone, str::to_string)
        };
        (0..tokens.len()).map(piece).collect()
    }

    fn is_added(&self, token: u32) -> bool {
        self.tokenizer.get_added_vocabulary().get_added_tokens_decoder().contains_key(&token)
    }

    fn find_token(&self, name: &str) -> Option<u32> {
        self.tokenizer.token_to_id(name)
    }
}
