//! Vocabularies: those of folders and of GGUF files give the tokens of the package `tokenizers`, and files that
//! cannot be used are rejected in a sentence.

mod gguf;
mod rejected;
mod special_tokens;

use crate::support::Scratch;
use gguf::Gguf;
use grove::task::{Json, Message};
use grove::text::{GgufType, LanguageError, LanguageModel};
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

/// Numbers of the stream of the models here, which are as small as can be.
const WIDTH: usize = 2;

/// Names and shapes of the weights of a model of one layer, in Hugging Face's words and in GGUF's.
fn weights(vocabulary: usize) -> Vec<(&'static str, &'static str, Vec<usize>)> {
    let square = || vec![WIDTH, WIDTH];
    vec![
        ("model.embed_tokens.weight", "token_embd.weight", vec![vocabulary, WIDTH]),
        ("model.norm.weight", "output_norm.weight", vec![WIDTH]),
        ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight", vec![WIDTH]),
        ("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", vec![WIDTH]),
        ("model.layers.0.self_attn.q_proj.weight", "blk.0.attn_q.weight", square()),
        ("model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight", square()),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight", square()),
        ("model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight", square()),
        ("model.layers.0.mlp.gate_proj.weight", "blk.0.ffn_gate.weight", square()),
        ("model.layers.0.mlp.up_proj.weight", "blk.0.ffn_up.weight", square()),
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight", square()),
    ]
}

/// The content of a `tokenizer.json` whose tokens are words with these numbers.
fn word_tokenizer(vocabulary: Value) -> Value {
    let model = json!({ "type": "WordLevel", "vocab": vocabulary, "unk_token": "a" });
    json!({ "version": "1.0", "model": model })
}

/// An added token that is special.
fn added_token(id: u64, content: &str) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}

/// Writes a folder of a model with this `tokenizer.json` and `tokenizer_config.json`.
fn folder(vocabulary: usize, tokenizer: impl Display, about: impl Display) -> Scratch {
    let folder = Scratch::new();
    let config = json!({
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": WIDTH,
        "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": WIDTH,
        "max_position_embeddings": 4096, "tie_word_embeddings": true,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.join("tokenizer_config.json"), about.to_string()).unwrap();
    let zeros = vec![0; 4 * WIDTH * vocabulary.max(WIDTH)];
    let tensors = weights(vocabulary).into_iter().map(|(name, _, shape)| {
        let bytes = &zeros[..4 * shape.iter().product::<usize>()];
        (name, TensorView::new(Dtype::F32, shape, bytes).unwrap())
    });
    let bytes = safetensors::serialize(tensors, None).unwrap();
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
    folder
}

/// The character that stands for a byte in vocabularies of bytes (GPT-2).
fn character(byte: u8) -> String {
    let is_printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let hidden = (0..byte).filter(|byte| !is_printable(*byte)).count() as u32;
    let code = if is_printable(byte) { u32::from(byte) } else { 256 + hidden };
    char::from_u32(code).unwrap().to_string()
}

/// All bytes, two line ends in one, and two tokens that no text is split into.
fn byte_tokens() -> (Vec<String>, Vec<u32>) {
    let more = ["ĊĊ", "<|bos|>", "<|eot_id|>"].map(str::to_string);
    let tokens: Vec<String> = (0..=255).map(character).chain(more).collect();
    let kinds = (0..tokens.len()).map(|token| if token < 257 { 1 } else { 3 }).collect();
    (tokens, kinds)
}

fn byte_gguf() -> Gguf {
    let (tokens, kinds) = byte_tokens();
    Gguf::new(&tokens, &kinds)
        .with("tokenizer.ggml.model", "gpt2")
        .with("tokenizer.ggml.merges", json!(["Ċ Ċ"]))
        .with("tokenizer.ggml.bos_token_id", 257)
}

/// The tokens of a text, which are none where it is refused as an empty prompt.
fn prompt(model: &LanguageModel, text: &str) -> Vec<u32> {
    match model.tokenize_prompt(text, &[] as &[()]) {
        Err(LanguageError::EmptyPrompt) => Vec::new(),
        tokens => tokens.unwrap(),
    }
}

#[test]
fn a_pattern_means_the_same_with_line_ends_spelled_out_or_as_they_are() {
    let (tokens, _) = byte_tokens();
    for ends in ["\\r\\n", "\r\n"] {
        let pattern = format!("\\p{{L}}+|\\s*[{ends}]+|\\s+(?!\\S)|\\s+");
        let vocabulary: BTreeMap<&String, usize> = tokens.iter().zip(0..).collect();
        let bytes = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false,
        });
        let split = json!({
            "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
            "invert": false,
        });
        let tokenizer = json!({
            "version": "1.0",
            "pre_tokenizer": { "type": "Sequence", "pretokenizers": [split, bytes] },
            "decoder": bytes,
            "model": { "type": "BPE", "vocab": vocabulary, "merges": [["Ċ", "Ċ"]] },
        });
        let folder = folder(tokens.len(), &tokenizer, "{}");
        let model = LanguageModel::load(&folder).unwrap();
        assert_eq!(prompt(&model, "a\n\nb"), [97, 256, 98], "{ends:?}");
        assert_eq!(model.decode_completion(&[97, 256, 98]), "a\n\nb");
        assert_eq!(model.decode_pieces(&[0xc3, 0xa9, 97]), ["\u{fffd}", "\u{fffd}", "a"]);
    }
}

/// A model with a chat template, and a token that ends texts, with a smaller number than the one that ends turns.
fn chat_model(template: &str) -> LanguageModel {
    let file = byte_gguf().with("tokenizer.ggml.pre", "qwen2");
    let file = file.with("tokenizer.ggml.eos_token_id", 257);
    file.with("tokenizer.chat_template", template).load().unwrap()
}

/// The template of Qwen, whose tokenizer may name another token for the end of a text.
const CHATML: &str = "{% for message in messages %}<|bos|>{{ message.role }}\n{{ message.content }}<|eot_id|>\n{% endfor %}\
     {% if add_generation_prompt %}<|bos|>assistant\n{% endif %}";

#[test]
fn answers_end_with_the_token_that_the_chat_template_puts_behind_them() {
    let user = [json!({ "role": "user", "content": "a" })];
    let model = chat_model(CHATML);
    assert_eq!(model.stop_tokens, [257, 258]);
    assert_eq!(model.end_of_answer(&user), Some(258));
    assert_eq!(model.end_of_answer(&[] as &[()]), Some(257));
    for other in ["{{ messages[0].content }}", "{{ raise_exception('no') }}"] {
        assert_eq!(chat_model(other).end_of_answer(&user), Some(257), "{other}");
    }
    // The end of a turn need not be marked as special.
    let (_, mut kinds) = byte_tokens();
    kinds[258] = 4;
    let file = byte_gguf().with("tokenizer.ggml.token_type", kinds);
    let file = file.with("tokenizer.ggml.pre", "qwen2").with("tokenizer.ggml.eos_token_id", 257);
    let model = file.with("tokenizer.chat_template", CHATML).load().unwrap();
    assert_eq!(model.decode_completion(&[55, 258, 55]), "7<|eot_id|>7");
    assert_eq!(model.end_of_answer(&user), Some(258));
}

/// A template that trims answers, and puts an empty block of reasoning before them, or into the prompt.
const THINKING: &str = "{% for m in messages %}<|bos|>{{ m.role }}\n{% if m.role == 'assistant' %}()\n{% endif %}\
     {{ m.content | trim }}<|eot_id|>\n{% endfor %}{% if add_generation_prompt %}<|bos|>assistant\n\
     {% if thinking is defined and not thinking %}()\n{% endif %}{% endif %}";

#[test]
fn answers_are_what_the_chat_template_adds_to_the_prompt() {
    let user = [json!({ "role": "user", "content": "a" })];
    let none: Map<String, Value> = Map::new();
    let plain: Map<String, Value> = Map::from_iter([("thinking".to_string(), json!(false))]);
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<u32>>();
    let ended = |text: &str, end: u32| [bytes(text), vec![end]].concat();
    let model = chat_model(THINKING);
    assert_eq!(model.tokenize_answer("", &user, " 7 \n", &none).unwrap(), ended("()\n7", 258));
    assert_eq!(model.tokenize_answer("", &user, "7", &plain).unwrap(), ended("7", 258));
    let prompts =
        [&none, &plain].map(|values| model.tokenize_prompt_with("", &user, values).unwrap());
    assert_eq!(prompts[1], [prompts[0].clone(), bytes("()\n")].concat());
    assert_eq!(model.tokenize_answer("", &[] as &[()], "7", &none).unwrap(), ended("7", 257));
    // Two line ends are one token, but the first belongs to the prompt.
    assert_eq!(
        chat_model(CHATML).tokenize_answer("", &user, "\n7", &none).unwrap(),
        ended("\n7", 258)
    );
    let unended = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}\
                   {% if add_generation_prompt %}assistant: {% endif %}";
    assert_eq!(
        chat_model(unended).tokenize_answer("", &user, "7", &none).unwrap(),
        ended("7", 257)
    );
    for other in ["{{ messages[0].content }}", "a{% if add_generation_prompt %}b{% endif %}"] {
        let error =
            chat_model(other).tokenize_answer("", &user, "7", &none).unwrap_err().to_string();
        assert!(error.contains("does not put the answer after the prompt"), "{error}");
    }
}

#[test]
fn chat_templates_tell_null_from_an_empty_content_and_from_none() {
    let template = "{% for m in messages %}{% if m.content is none %}n{% elif m.content is undefined %}u\
                    {% else %}{{ m.content }}{% endif %},{% endfor %}";
    let file = byte_gguf().with("tokenizer.ggml.pre", "qwen2");
    let model = file.with("tokenizer.chat_template", template).load().unwrap();
    let messages: Vec<Message> = serde_json::from_value(json!([
        { "role": "user", "content": "a" },
        { "role": "assistant", "content": "" },
        { "role": "assistant", "content": null, "tool_calls": [{}] },
        { "role": "assistant", "tool_calls": [{}] },
    ]))
    .unwrap();
    assert_eq!(model.tokenize_prompt("", &messages).unwrap(), b"a,,n,u,".map(u32::from));
}

/// Unigrams with a mark for spaces, and added tokens that are words or are normalized; the tokens are those of the
/// package `tokenizers`.
#[test]
fn unigrams_marks_and_added_tokens_are_read() {
    let added = |id: u32, content: &str, single_word: bool, normalized: bool| {
        json!({
            "id": id, "content": content, "single_word": single_word, "lstrip": false,
            "rstrip": false, "normalized": normalized, "special": false,
        })
    };
    let mark = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [added(9, "cat", true, false), added(10, "DOG", false, true)],
        "normalizer": { "type": "Lowercase" },
        "pre_tokenizer": mark,
        "decoder": mark,
        "model": {
            "type": "Unigram", "unk_id": 0, "byte_fallback": false,
            "vocab": [
                ["<unk>", 0.0], ["▁", -2.0], ["▁a", -1.0], ["b", -3.0], ["▁ab", -1.5], ["c", -3.0],
                ["a", -3.0], ["t", -3.0], ["s", -3.0],
            ],
        },
    });
    let folder = folder(11, &tokenizer, "{}");
    let model = LanguageModel::load(&folder).unwrap();
    assert_eq!(prompt(&model, "ab a"), [4, 2]);
    assert_eq!(prompt(&model, "AB x"), [4, 1, 0]);
    assert_eq!(prompt(&model, "cats cat"), [1, 5, 6, 7, 8, 1, 9]);
    assert_eq!(prompt(&model, "b dog"), [1, 3, 1, 10]);
    assert_eq!(model.decode_completion(&[4, 2]), "ab a");
    assert_eq!(model.decode_pieces(&[4, 2, 3]), ["ab", " a", "b"]);
    // After a text an answer begins with a mark only if a space is between them.
    let after =
        |text: &str, answer: &str| model.tokenize_plain_answer(text, &[] as &[()], answer).unwrap();
    assert_eq!(after("ab c", "ab"), [6, 3]);
    assert_eq!(after("ab c", " ab"), [4]);
    // Tokenized by itself, if the prompt's last token would be another.
    assert_eq!(after("ab a", "b"), [1, 3]);
}

/// A word of 40,000 letters takes a moment: pairs are merged out of a queue.
#[test]
fn gguf_vocabularies_of_bytes_are_split_as_they_say() {
    let model = byte_gguf().with("tokenizer.ggml.pre", "llama-bpe").load().unwrap();
    // Llama 3's begin with their token for it.
    assert_eq!(prompt(&model, "a\n\nb<|eot_id|>"), [257, 97, 256, 98, 258]);
    assert_eq!(model.stop_tokens, [258]);
    let model = byte_gguf().with("tokenizer.ggml.pre", "gpt-2").load().unwrap();
    assert_eq!(prompt(&model, "a\n\nb"), [97, 10, 10, 98]);
    let begins = byte_gguf()
        .with("tokenizer.ggml.pre", "qwen2")
        .with("tokenizer.ggml.add_bos_token", true)
        .with("tokenizer.ggml.eos_token_id", 97)
        .load()
        .unwrap();
    assert_eq!(prompt(&begins, "é"), [257, 0xc3, 0xa9]);
    assert_eq!(begins.stop_tokens, [97, 258]);
    let copy = Scratch::new();
    begins.save(&copy).unwrap();
    let again = LanguageModel::load(&copy).unwrap();
    assert_eq!(again.stop_tokens, begins.stop_tokens);
    assert_eq!(prompt(&again, "a\n\nb"), prompt(&begins, "a\n\nb"));
}

/// A vocabulary of SentencePiece, with these scores of "▁a" and "ab".
fn piece_gguf(scores: [f32; 2]) -> Gguf {
    let names = ["<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁a", "ab", "▁", "a", "b", "▁▁"];
    let scores =
        [0., 0., 0., 0., 0., scores[0], scores[1], -5., -5., -5., -4.].map(|x| x + 0.25f32);
    Gguf::new(&names.map(str::to_string), &[2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1])
        .with("tokenizer.ggml.model", "llama")
        .with("tokenizer.ggml.scores", json!(scores))
        .with("tokenizer.ggml.bos_token_id", 1)
        .with("tokenizer.ggml.eos_token_id", 2)
}

#[test]
fn gguf_vocabularies_of_sentence_piece_are_merged_by_their_scores() {
    let model = piece_gguf([-1., -2.]).load().unwrap();
    assert_eq!(prompt(&model, "ab b"), [1, 5, 9, 7, 9]);
    assert_eq!(prompt(&model, "é"), [1, 7, 3, 4]);
    assert_eq!(model.decode_completion(&[5, 9, 7, 9]), "ab b");
    assert_eq!(model.stop_tokens, [2]);
    let other = piece_gguf([-2., -1.]);
    assert_eq!(prompt(&other.load().unwrap(), "ab"), [1, 7, 6]);
    let bare = other
        .with("tokenizer.ggml.add_bos_token", false)
        .with("tokenizer.ggml.add_eos_token", true)
        .with("tokenizer.ggml.add_space_prefix", false);
    assert_eq!(prompt(&bare.load().unwrap(), "ab"), [6, 2]);
}

/// A model as it is after being written to a GGUF file and read.
fn rewritten(model: &LanguageModel) -> LanguageModel {
    let folder = Scratch::new();
    let path = folder.join("model.gguf");
    model.save_gguf(&path, GgufType::F32).unwrap();
    LanguageModel::load(&path).unwrap()
}

#[test]
fn gguf_vocabularies_are_written_as_they_were_read() {
    let names =
        ["llama-bpe", "gpt-2", "qwen2", "smollm", "tekken", "gpt-4o", "deepseek-v3", "viking"];
    for name in names {
        let model = byte_gguf().with("tokenizer.ggml.pre", name).load().unwrap();
        let again = rewritten(&model);
        for text in ["a\n\nb<|eot_id|>", "It's 12345 é", "  x"] {
            assert_eq!(prompt(&again, text), prompt(&model, text), "{name}: {text}");
        }
        assert_eq!(again.stop_tokens, model.stop_tokens, "{name}");
    }
    for prefixes in [false, true] {
        for scores in [[-1., -2.], [-2., -1.]] {
            let file = piece_gguf(scores).with("tokenizer.ggml.add_space_prefix", prefixes);
            let model = file.load().unwrap();
            let again = rewritten(&model);
            for text in ["ab b", "é", "ab  ab"] {
                assert_eq!(prompt(&again, text), prompt(&model, text), "{prefixes}: {text}");
            }
            assert_eq!(
                again.decode_completion(&[5, 9, 7, 9]),
                model.decode_completion(&[5, 9, 7, 9])
            );
        }
    }
    // "ab", which no merge makes, does not come before "▁a".
    let mut model = piece_gguf([-1., -2.]).load().unwrap();
    let mut tokenizer: Value = serde_json::from_slice(&model.files["tokenizer.json"]).unwrap();
    let merges = tokenizer["model"]["merges"].as_array_mut().unwrap();
    merges.retain(|pair| *pair != json!(["a", "b"]));
    model.files.insert("tokenizer.json".to_string(), tokenizer.to_string().into_bytes());
    assert_eq!(prompt(&rewritten(&model), "ab b"), [1, 5, 9, 7, 9]);
    // llama.cpp splits no words before it merges, as a mark does by default.
    tokenizer["normalizer"] = Value::Null;
    for (split, is_written) in [(json!(false), true), (json!(true), false), (Value::Null, false)] {
        let mark = json!({ "type": "Metaspace", "replacement": "▁", "split": split });
        tokenizer["pre_tokenizer"] = mark;
        model.files.insert("tokenizer.json".to_string(), tokenizer.to_string().into_bytes());
        let folder = Scratch::new();
        let written = model.save_gguf(&folder.join("model.gguf"), GgufType::F32);
        assert_eq!(written.is_ok(), is_written, "{split}");
    }
}

#[test]
fn gguf_files_of_llama_3_have_its_rotary_scaling() {
    // The divisors of the first pairs of 8 dimensions with a base of 10,000 and a factor of 8, by Llama 3's formula.
    let rotations = 8192.0 * 1e4f64.powf(-0.75) / std::f64::consts::TAU;
    let fast = (rotations - 1.0) / 3.0;
    let divisors = vec![1.0, 1.0, 1.0, (1.0 / (fast + (1.0 - fast) / 8.0)) as f32];
    let file = |rope_freqs: Vec<f32>| {
        let file = byte_gguf().with("tokenizer.ggml.pre", "llama-bpe");
        Gguf { rope_freqs, ..file.with("llama.attention.key_length", 8) }
    };
    // The query projection has the wrong width, which is found after the scaling.
    let error = file(divisors.clone()).load().unwrap_err();
    assert!(error.contains("attn_q"), "{error}");
    let error = file(vec![1.0, 1.0, 1.0, 3.0]).load().unwrap_err();
    assert!(error.contains("rope_freqs") && error.contains("no known model of Llama 3"), "{error}");
    let error = file(vec![1.0; 3]).load().unwrap_err();
    assert!(error.contains("rope_freqs") && error.contains("for each pair of a head"), "{error}");
}

/// Results of the Python packages for a vocabulary; `tests/language/expect_tokens.py` writes them.
#[derive(Deserialize)]
struct Expected {
    texts: Vec<Tokenized>,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Tokenized {
    text: String,
    tokens: Vec<u32>,
    whole: Vec<u32>,
    decoded: String,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Json>,
    text: Option<String>,
}

/// The same vocabulary as a GGUF file, as llama.cpp's converter writes it.
fn as_gguf(json: &Value, pre: Option<&str>, whole: &[u32], vocabulary: usize) -> Gguf {
    let mut tokens: Vec<String> = (0..vocabulary).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![5; vocabulary];
    for (name, id) in json["model"]["vocab"].as_object().unwrap() {
        let id = id.as_u64().unwrap() as usize;
        tokens[id].clone_from(name);
        kinds[id] = match (pre, name.as_str()) {
            (None, "<unk>") => 2,
            (None, name) if name.len() == 6 && name.starts_with("<0x") => 6,
            _ => 1,
        };
    }
    for one in json["added_tokens"].as_array().unwrap() {
        let id = one["id"].as_u64().unwrap() as usize;
        tokens[id] = one["content"].as_str().unwrap().to_string();
        if kinds[id] != 2 {
            kinds[id] = if one["special"] == true { 3 } else { 4 };
        }
    }
    let merges: Vec<String> = json["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| match pair {
            Value::String(pair) => pair.clone(),
            pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
        })
        .collect();
    let file = Gguf::new(&tokens, &kinds).with("tokenizer.ggml.add_bos_token", !whole.is_empty());
    let file = match whole.first() {
        Some(bos) => file.with("tokenizer.ggml.bos_token_id", *bos),
        None => file,
    };
    if let Some(pre) = pre {
        let file = file.with("tokenizer.ggml.model", "gpt2").with("tokenizer.ggml.pre", pre);
        return file.with("tokenizer.ggml.merges", merges);
    }
    let mut scores = std::collections::HashMap::new();
    for (rank, pair) in merges.iter().enumerate() {
        scores.entry(pair.replacen(' ', "", 1)).or_insert(-(rank as f32) - 0.5);
    }
    let scores: Vec<f32> = tokens.iter().map(|name| *scores.get(name).unwrap_or(&-1e9)).collect();
    let prefixes = json["normalizer"]["normalizers"][0]["type"] == "Prepend";
    file.with("tokenizer.ggml.model", "llama")
        .with("tokenizer.ggml.scores", json!(scores))
        .with("tokenizer.ggml.add_space_prefix", prefixes)
}

/// The vocabularies are where `tests/language/fetch_tokenizers.sh` puts them, or where `GROVE_TOKENIZERS` says.
#[test]
#[ignore = "real vocabularies, which tests/language/fetch_tokenizers.sh fetches"]
fn real_vocabularies_give_the_tokens_and_the_chats_of_python() {
    let cache = std::env::var("HOME").map(|home| Path::new(&home).join(".cache/grove/tokenizers"));
    let all = std::env::var("GROVE_TOKENIZERS").map(PathBuf::from).or(cache);
    let all = all.ok().filter(|folder| folder.is_dir());
    let all = all.expect("tests/language/fetch_tokenizers.sh fetches the vocabularies");
    let names = [
        ("qwen3", Some("qwen2")),
        ("llama3", Some("llama-bpe")),
        ("deepseek_v3", Some("deepseek-v3")),
        ("mistral_nemo", Some("tekken")),
        ("llama2", None),
        ("gemma3", None),
    ];
    for (name, pre) in names {
        let read = |file: &str| fs::read_to_string(all.join(name).join(file)).unwrap();
        let expected: Expected = serde_json::from_str(&read("expected.json")).unwrap();
        let tokenizer = read("tokenizer.json");
        let json: Value = serde_json::from_str(&tokenizer).unwrap();
        let vocabulary = json["model"]["vocab"].as_object().unwrap().len() + 2048;
        let folder = folder(vocabulary, &tokenizer, read("tokenizer_config.json"));
        let whole = &expected.texts[0].whole;
        let gguf = as_gguf(&json, pre, whole, vocabulary).load().unwrap();
        for (model, what) in [(LanguageModel::load(&folder).unwrap(), "folder"), (gguf, "GGUF")] {
            for one in &expected.texts {
                let place = format!("{name}, {what}: {:?}", one.text);
                assert_eq!(prompt(&model, &one.text), one.whole, "{place}");
                assert_eq!(model.tokenizer.encode(&one.text).unwrap(), one.tokens, "{place}");
                assert_eq!(model.tokenizer.decode(&one.tokens), one.decoded, "{place}");
            }
            let long = "abcdefgh".repeat(5000);
            assert!(prompt(&model, &long).len() < long.len());
            if let Some(template) = &model.template {
                for chat in &expected.chats {
                    assert_eq!(template.render(&chat.messages).ok(), chat.text, "{name}");
                }
            }
        }
    }
}
