//! Conversion of a `tokenizer.json` to the metadata of a GGUF file, the reverse of `gguf_vocabulary.rs`.

use super::gguf_metadata::token_kinds::{BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED};
use super::gguf_metadata::{MetadataValue, SPACE};
use super::hugging_face::{TOKENIZER, find_special_tokens};
use super::pre_tokenizers::PreTokenizer;
use super::tokenizer::{split_merge, steps};
use crate::text::language_model::LanguageModel;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Metadata with names that lack the prefix `tokenizer.`.
type Entries = Vec<(&'static str, MetadataValue)>;

/// Tokens of a vocabulary, by id.
struct TokenTable {
    names: Vec<String>,
    kinds: Vec<u32>,
    ids: HashMap<String, u32>,
}

impl TokenTable {
    /// Collects the tokens of a `tokenizer.json`; ids without a token get a unique name.
    fn new(json: &Value, count: usize) -> Self {
        let mut names: Vec<String> = (0..count).map(|id| format!("[PAD{id}]")).collect();
        let (mut kinds, mut ids) = (vec![UNUSED; count], HashMap::new());
        let mut put = |name: &str, id: Option<u64>, kind: u32| {
            let Some(id) = id.filter(|id| (*id as usize) < count) else { return };
            names[id as usize] = name.to_string();
            kinds[id as usize] = kind;
            ids.insert(name.to_string(), id as u32);
        };
        for (name, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
            put(name, id.as_u64(), NORMAL);
        }
        for token in json["added_tokens"].as_array().into_iter().flatten() {
            let kind = if token["special"] == true { CONTROL } else { USER_DEFINED };
            put(token["content"].as_str().unwrap_or_default(), token["id"].as_u64(), kind);
        }
        for (name, _) in names.iter_mut().zip(&kinds).filter(|(_, kind)| **kind == UNUSED) {
            while ids.contains_key(name) {
                name.push('_');
            }
        }
        Self { names, kinds, ids }
    }
}

/// Converts the vocabulary to metadata.
///
/// # Errors
/// A clause if llama.cpp has no such tokenizer.
pub(super) fn convert_vocabulary(model: &LanguageModel) -> Result<Entries, String> {
    let json = model.files.get(TOKENIZER);
    let json: Value = json.and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
    let mut tokens = TokenTable::new(&json, model.shape.vocab_size());
    let mut metadata = match json["model"]["type"].as_str() {
        Some("BPE") if json["model"]["byte_fallback"] == true => {
            convert_sentence_piece(&json, &mut tokens)?
        }
        Some("BPE") => convert_byte_level(&json)?,
        Some("WordLevel") => convert_characters(&mut tokens)?,
        _ => return Err("llama.cpp has no counterpart of this kind of `tokenizer.json`".into()),
    };
    let [bos, eos] = bounding_tokens(&json["post_processor"]);
    let stop = model.stop_tokens.first().copied();
    // llama.cpp assumes token 11 if none is named.
    let special = find_special_tokens(&model.files, &model.base).map_err(|e| e.to_string())?;
    let named_bos = special.get("bos_token").and_then(|name| tokens.ids.get(name)).copied();
    let named_bos = bos.or(named_bos).or(stop);
    let stops = ["ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id"];
    let stops = stops.into_iter().zip(&model.stop_tokens);
    metadata.extend(stops.map(|(name, token)| (name, MetadataValue::U32(*token))));
    metadata.extend(named_bos.map(|token| ("ggml.bos_token_id", MetadataValue::U32(token))));
    metadata.push(("ggml.add_bos_token", MetadataValue::Bool(bos.is_some())));
    metadata.push(("ggml.add_eos_token", MetadataValue::Bool(eos.is_some())));
    if let Some(template) = &model.template {
        metadata.push(("chat_template", MetadataValue::String(template.source.clone())));
    }
    metadata.push(("ggml.tokens", MetadataValue::Strings(tokens.names)));
    metadata.push(("ggml.token_type", MetadataValue::Integers(tokens.kinds)));
    Ok(metadata)
}

/// Metadata of byte-level BPE with this pre-tokenizer.
fn byte_level_metadata(pre: &str, merges: Vec<String>) -> Entries {
    vec![
        ("ggml.model", MetadataValue::String("gpt2".to_string())),
        ("ggml.pre", MetadataValue::String(pre.to_string())),
        ("ggml.merges", MetadataValue::Strings(merges)),
    ]
}

/// Converts byte-level BPE.
fn convert_byte_level(json: &Value) -> Result<Entries, String> {
    let name = PreTokenizer::find_name(json)
        .ok_or("the way in which its `tokenizer.json` splits text has no name in llama.cpp")?;
    Ok(byte_level_metadata(name, merges(json).map(|parts| parts.join(" ")).collect()))
}

/// Merged pairs, in the order of their ranks.
fn merges(json: &Value) -> impl Iterator<Item = [&str; 2]> {
    let merges = json["model"]["merges"].as_array().into_iter().flatten();
    merges.filter_map(split_merge)
}

/// Converts SentencePiece's BPE.
fn convert_sentence_piece(json: &Value, tokens: &mut TokenTable) -> Result<Entries, String> {
    let adds_prefix = adds_space_prefix(json)?;
    let scores = merge_scores(json, tokens);
    mark_bytes(tokens);
    let mut metadata = vec![
        ("ggml.model", MetadataValue::String("llama".to_string())),
        ("ggml.pre", MetadataValue::String("default".to_string())),
        ("ggml.scores", MetadataValue::Floats(scores)),
        ("ggml.add_space_prefix", MetadataValue::Bool(adds_prefix)),
    ];
    let unknown = json["model"]["unk_token"].as_str().and_then(|name| tokens.ids.get(name));
    if let Some(unknown) = unknown {
        tokens.kinds[*unknown as usize] = UNKNOWN;
        metadata.push(("ggml.unknown_token_id", MetadataValue::U32(*unknown)));
    }
    Ok(metadata)
}

/// Whether SentencePiece's BPE puts a space before a text.
///
/// # Errors
/// A clause if it changes texts in other ways, too.
fn adds_space_prefix(json: &Value) -> Result<bool, String> {
    let replaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    let prepends = json!({ "type": "Prepend", "prepend": SPACE });
    let changes = steps(&json["normalizer"], "normalizers");
    match (changes, steps(&json["pre_tokenizer"], "pretokenizers")) {
        ([replace], []) if *replace == replaces => Ok(false),
        ([prepend, replace], []) if *prepend == prepends && *replace == replaces => Ok(true),
        // Without an entry, `split` is on.
        ([], [meta])
            if meta["type"] == "Metaspace"
                && meta["replacement"] == SPACE
                && meta["split"] == false =>
        {
            Ok(meta["prepend_scheme"] != "never")
        }
        _ => Err("its `tokenizer.json` changes texts in a way that llama.cpp has not".into()),
    }
}

/// The scores of SentencePiece's tokens, by which it ranks merges: from the rank of the first pair that makes a token.
fn merge_scores(json: &Value, tokens: &TokenTable) -> Vec<f32> {
    let pairs: Vec<String> = merges(json).map(|parts| parts.concat()).collect();
    // llama.cpp merges everything that forms a token; pairs that are not merges come last.
    let mut scores = vec![-(pairs.len() as f32); tokens.names.len()];
    // In reverse, so that a token gets the rank of its first pair.
    for (rank, name) in pairs.iter().enumerate().rev() {
        if let Some(id) = tokens.ids.get(name) {
            scores[*id as usize] = -(rank as f32);
        }
    }
    scores
}

/// Marks the tokens that SentencePiece has for bytes, such as `<0x0A>`.
fn mark_bytes(tokens: &mut TokenTable) {
    for (kind, name) in tokens.kinds.iter_mut().zip(&tokens.names) {
        let is_byte = name.len() == 6 && name.starts_with("<0x") && name.ends_with('>');
        if *kind == NORMAL && is_byte {
            *kind = BYTE;
        }
    }
}

/// Converts a vocabulary of characters to bytes without merges.
fn convert_characters(tokens: &mut TokenTable) -> Result<Entries, String> {
    for (name, kind) in tokens.names.iter_mut().zip(&tokens.kinds) {
        if *kind == NORMAL {
            let [byte] = name.as_bytes() else {
                return Err(format!(
                    "its token `{name}` is not a single byte, as llama.cpp requires"
                ));
            };
            *name = byte_character(*byte).to_string();
        }
    }
    Ok(byte_level_metadata("gpt-2", Vec::new()))
}

/// Character that stands for a byte in byte-level vocabularies (GPT-2's `bytes_to_unicode`).
fn byte_character(byte: u8) -> char {
    let is_plain = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let hidden = (0..byte).filter(|byte| !is_plain(byte)).count() as u32;
    let code = if is_plain(&byte) { u32::from(byte) } else { 256 + hidden };
    char::from_u32(code).expect("a number below the surrogates")
}

/// The special tokens that a post-processor puts before and after a text.
fn bounding_tokens(processor: &Value) -> [Option<u32>; 2] {
    let mut parts = steps(processor, "processors").iter();
    let Some(template) = parts.find(|part| part["type"] == "TemplateProcessing") else {
        return [None; 2];
    };
    let special = |piece: Option<&Value>| {
        let name = piece?["SpecialToken"]["id"].as_str()?;
        Some(template["special_tokens"][name]["ids"][0].as_u64()? as u32)
    };
    let single = template["single"].as_array().map_or(&[][..], Vec::as_slice);
    [special(single.first()), special(single.last())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_without_a_token_get_names_that_no_token_has() {
        let json = json!({ "model": { "vocab": { "[PAD1]": 0 } } });
        assert_eq!(TokenTable::new(&json, 3).names, ["[PAD1]", "[PAD1]_", "[PAD2]"]);
    }
}
