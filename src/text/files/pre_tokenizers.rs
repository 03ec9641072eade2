//! Pre-tokenizers, which split text into words, by the name in a GGUF file (`tokenizer.ggml.pre`).
//!
//! Names, patterns and flags are facts of llama.cpp (`src/llama-vocab.cpp`); where it gives a pattern in another
//! form than the model's own `tokenizer.json`, the latter's is here.

use super::tokenizer::steps;
use serde_json::Value;

/// A pre-tokenizer, with the settings implied by its name.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    /// Patterns in order; each splits the pieces left by the previous one.
    pub patterns: &'static [&'static str],
    /// Whether a word that is a token is never split, whatever the merges.
    pub ignores_merges: bool,
    /// Whether texts begin with the beginning-of-text token by default.
    pub adds_bos: bool,
    /// Whether text is normalized first (Unicode's NFC).
    pub normalizes_nfc: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const CJK: &str = "[一-龥\u{800}-一가-\u{d7ff}]+";
const HAN_AND_KANA: &str = "[一-龥\u{3040}-ゟ゠-ヿ]+";
/// DeepSeek lists the letters that have a case one range after another.
const DEEPSEEK_LLM: [&str; 6] = [
    r"[\r\n]",
    r"\s?[\p{Lu}\p{Ll}\p{Lt}]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    CJK,
    r"\p{N}+",
];

/// The pre-tokenizer of these patterns, without further settings.
const fn split(patterns: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { patterns, ignores_merges: false, adds_bos: false, normalizes_nfc: false }
}

/// All pre-tokenizers by their names, with spaces between them; the first name is the one that is written.
static ALL: [(&str, PreTokenizer); 18] = [
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer { ignores_merges: true, adds_bos: true, ..split(&[LLAMA3]) },
    ),
    ("dbrx smaug-bpe glm4 chatglm-bpe", split(&[LLAMA3])),
    ("qwen2", PreTokenizer { normalizes_nfc: true, ..split(&[QWEN2]) }),
    ("deepseek-r1-qwen kormo f2llmv2 stablelm2 megrez hunyuan solar-open grok-2", split(&[QWEN2])),
    ("qwen35", PreTokenizer { normalizes_nfc: true, ..split(&[QWEN35]) }),
    ("tekken", PreTokenizer { ignores_merges: true, adds_bos: true, ..split(&[TEKKEN]) }),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", split(&[GPT4O])),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        split(&[r"\p{N}", GPT2]),
    ),
    (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert \
         mpt olmo jais trillion granite-docling exaone4",
        split(&[GPT2]),
    ),
    ("default", split(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"])),
    ("falcon", split(&[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"])),
    ("deepseek-v3 hunyuan-dense joyai-llm", split(&[r"\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK3])),
    ("deepseek-llm", split(&DEEPSEEK_LLM)),
    ("deepseek-coder", split(&[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"])),
    ("bailingmoe bailingmoe2 llada-moe", split(&[BAILING])),
    ("seed-coder", split(&[SEED_CODER])),
    ("minicpm5", PreTokenizer { ignores_merges: true, ..split(&[r"\p{N}{1,3}", MINICPM5]) }),
    ("viking", split(&[r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"])),
];

impl PreTokenizer {
    /// Finds the name of the pre-tokenizer in a `tokenizer.json`.
    pub fn find_name(json: &Value) -> Option<&'static str> {
        let normalizes_nfc = match &json["normalizer"] {
            Value::Null => false,
            normalizer if normalizer["type"] == "NFC" => true,
            _ => return None,
        };
        let parts = steps(&json["pre_tokenizer"], "pretokenizers");
        if !parts.iter().any(|part| part["type"] == "ByteLevel") {
            return None;
        }
        let patterns = parts.iter().map(|part| match part["type"].as_str()? {
            "Split" if part["behavior"] == "Isolated" && part["invert"] != true => {
                part["pattern"]["Regex"].as_str().map(Some)
            }
            "Digits" if part["individual_digits"] == true => Some(Some(r"\p{N}")),
            "ByteLevel" if part["add_prefix_space"] == true => None,
            "ByteLevel" => Some((part["use_regex"] != false).then_some(GPT2)),
            _ => None,
        });
        let patterns: Vec<&str> =
            patterns.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
        let ignores_merges = json["model"]["ignore_merges"] == true;
        let found = ALL.iter().find(|(_, known)| {
            known.patterns == patterns
                && known.ignores_merges == ignores_merges
                && known.normalizes_nfc == normalizes_nfc
        });
        found.and_then(|(names, _)| names.split(' ').next())
    }

    /// Finds a pre-tokenizer by name.
    pub fn from_name(name: &str) -> Option<Self> {
        let found = ALL.iter().find(|(names, _)| names.split(' ').any(|known| known == name));
        found.map(|(_, pre_tokenizer)| *pre_tokenizer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_finds_its_own_pre_tokenizer() {
        for (names, expected) in &ALL {
            for name in names.split(' ') {
                let found = PreTokenizer::from_name(name).unwrap();
                assert_eq!(format!("{found:?}"), format!("{expected:?}"), "{name}");
            }
        }
        assert!(PreTokenizer::from_name("").is_none());
        assert!(PreTokenizer::from_name("dbrx glm4").is_none());
    }
}
