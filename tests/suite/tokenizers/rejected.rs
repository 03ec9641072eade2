//! Unusable model files are rejected in one sentence; similar usable ones are read.

use super::gguf::Gguf;
use super::{added_token, byte_gguf, byte_tokens, folder, word_tokenizer};
use crate::support::{Scratch, repository};
use grove::text::LanguageModel;
use serde_json::{Value, json};
use std::fs;

/// A file that can be used.
fn whole() -> Gguf {
    byte_gguf().with("tokenizer.ggml.pre", "llama-bpe")
}

#[test]
fn unusable_gguf_files_are_rejected_in_a_sentence() {
    let refused = |file: Gguf, why: &str| {
        let error = file.load().map(|model| model.shape).unwrap_err();
        assert!(error.contains(why) && !error.contains('\n'), "{error}");
    };
    refused(byte_gguf(), "there is no `tokenizer.ggml.pre`, which says how it splits text");
    refused(byte_gguf().with("tokenizer.ggml.pre", "klingon"), "is `klingon`, a splitting");
    refused(whole().with("tokenizer.ggml.model", "rwkv"), "the tokenizer `rwkv` is not known");
    refused(whole().with("llama.attention.head_count_kv", 0), "`num_key_value_heads` is 0");
    refused(whole().with("llama.attention.head_count", 4), "`head_dim` is 0, but");
    for (name, factor) in [("scaling.factor", 4.0), ("scale_linear", 4.0)] {
        refused(
            whole().with(&format!("llama.rope.{name}"), factor),
            "rotary scaling is supported for",
        );
    }
    refused(
        whole().with("llama.rope.scaling.factor", 4.0).with("llama.rope.scaling.type", "linear"),
        "rotary scaling is supported for",
    );
    refused(whole().with("llama.rope.dimension_count", 1), "1 numbers of a head of 2 rotate");
    for same in [0.0, 1.0] {
        assert!(whole().with("llama.rope.scaling.factor", same).load().is_ok(), "{same}");
    }
    refused(
        whole().with("split.no", 0).with("split.count", 3),
        "part 1 of 3 of a model; `llama-gguf-split --merge` joins them",
    );
    refused(whole().with("general.alignment", 0), "`general.alignment` is not a power of two");
    for (name, value, expected) in [
        ("llama.attention.head_count_kv", json!("two"), "a whole number"),
        ("llama.rope.freq_base", json!("x"), "a number"),
        ("tokenizer.chat_template", json!(5), "a string"),
        ("tokenizer.ggml.add_bos_token", json!(1), "true or false"),
        ("tokenizer.ggml.merges", json!([1]), "a list of strings"),
    ] {
        let why = format!("`{name}` is {value}, but must be {expected}");
        refused(whole().with(name, value), &why);
    }
    let mut deep = json!([1]);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    refused(whole().with("deep", deep), "arrays in arrays");
    let (mut tokens, kinds) = byte_tokens();
    tokens[7] = "a".to_string();
    let twice = Gguf::new(&tokens, &kinds).with("tokenizer.ggml.model", "gpt2");
    refused(twice, "the tokens 7 and 97 are both called `a`");
    let q4_0 = Gguf { format: 2, ..whole() };
    refused(q4_0, "has rows of 2 numbers, and its format blocks of 32");
    for (format, name) in [(11, "Q3_K"), (20, "IQ4_NL")] {
        refused(Gguf { format, ..whole() }, &format!("ggml's format {name}, which is not known"));
    }
}

#[test]
fn gguf_files_that_are_ambiguous_or_hold_no_model_are_rejected_in_a_sentence() {
    let folder = Scratch::new();
    let path = folder.join("model.gguf");
    let rejected = |bytes: &[u8], why: &str| {
        fs::write(&path, bytes).unwrap();
        let error = LanguageModel::load(&path).map(|model| model.shape).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    rejected(b"GG", "it is not a GGUF file");
    let mut bytes = whole().bytes();
    bytes[4..8].reverse();
    rejected(&bytes, "its numbers are big-endian");
    let mut bytes = whole().with("note.1", 1).with("note.2", 2).bytes();
    let at = bytes.windows(6).position(|six| six == b"note.2").unwrap();
    bytes[at + 5] = b'1';
    rejected(&bytes, "its header has a key twice");
    let twice = Gguf { more: vec!["output_norm.weight"], ..whole() };
    rejected(&twice.bytes(), "it has two tensors of one name");
    let adapters = whole().with("general.type", "adapter").bytes();
    rejected(&adapters, "it holds adapters without their model");
    // An array of 2^23 bytes, the only value.
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([0u64, 1, 1].map(u64::to_le_bytes).concat());
    bytes.extend(b"x\x09\0\0\0\0\0\0\0");
    bytes.extend((1u64 << 23).to_le_bytes());
    bytes.resize(bytes.len() + (1 << 23), 0);
    rejected(&bytes, "its header has over 8 million values");
    let pieces = ["a".to_string(), "a".repeat(100_000)];
    let long = Gguf::new(&pieces, &[1, 1])
        .with("tokenizer.ggml.model", "llama")
        .with("tokenizer.ggml.scores", json!([0.5, 0.5]));
    rejected(&long.bytes(), "the token 1 has 100000 bytes, more than 512");
}

#[test]
fn tensors_of_gguf_files_are_used_or_rejected_by_name() {
    let load = |more: &[&'static str]| {
        Gguf { more: more.to_vec(), ..whole() }.load().map(|model| model.shape)
    };
    for name in [
        "blk.0.attn_k.bias",
        "blk.0.attn_q.scale",
        "blk.0.attn_sinks.weight",
        "blk.0.ffn_up.bias",
        "blk.0.post_attention_norm.weight",
        "blk.1.attn_q_norm.weight",
        "output.bias",
    ] {
        let error = load(&[name]).unwrap_err();
        let why = format!("`{name}` has no place in a LlamaForCausalLM with a `block_count` of 1");
        assert!(error.contains(&why), "{error}");
    }
    let [q, k, v] = ["blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.0.attn_v.bias"];
    let o = "blk.0.attn_output.bias";
    let shape = load(&[q, k, v, o]).unwrap();
    assert!(shape.qkv_bias && shape.output_bias && !shape.mlp_bias);
    // Llama's `attention_bias` stands for all four.
    for some in [&[q, k, v][..], &[o], &["blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"]] {
        let error = load(some).unwrap_err();
        assert!(error.contains("its biases and norms are not those of a"), "{error}");
    }
    let error = load(&["blk.0.ffn_gate.bias"]).unwrap_err();
    assert!(error.contains("the tensor `blk.0.ffn_up.bias` is missing"), "{error}");
}

#[test]
fn tokens_added_outside_the_vocabulary_are_rejected_by_name() {
    let mut tokenizer = word_tokenizer(json!({ "a": 0, "b": 1 }));
    tokenizer["added_tokens"] = json!([added_token(2, "<s>")]);
    let load_with = |normalizer: Value, about: Value, added: Value| {
        let mut tokenizer = tokenizer.clone();
        tokenizer["normalizer"] = normalizer;
        let folder = folder(3, &tokenizer, about);
        fs::write(folder.join("added_tokens.json"), added.to_string()).unwrap();
        LanguageModel::load(&folder).map(|_| ()).map_err(|error| error.to_string())
    };
    let load = |about: Value, added: Value| load_with(Value::Null, about, added);
    let token = |name: &str| json!({ "content": name, "special": true });
    let table = |name: &str| json!({ "added_tokens_decoder": { "2": token(name) } });
    for (about, added) in [
        (table("<s>"), json!({ "<x>": 3 })),
        (json!({ "additional_special_tokens": ["<s>", { "content": "<s>" }] }), json!({})),
        (json!({ "extra_special_tokens": { "first": "<s>" } }), json!({ "<s>": 2 })),
        (json!({ "additional_special_tokens": null, "split_special_tokens": false }), json!({})),
    ] {
        assert_eq!(load(about, added), Ok(()));
    }
    for (about, added, place) in [
        (table("<x>"), json!({}), "added_tokens_decoder"),
        (json!({ "additional_special_tokens": ["<x>"] }), json!({}), "additional_special_tokens"),
        (json!({ "extra_special_tokens": { "x": "<x>" } }), json!({}), "extra_special_tokens"),
        (json!({}), json!({ "<x>": 3 }), "added_tokens.json"),
    ] {
        let error = load(about, added).unwrap_err();
        let why = format!("its `added_tokens` lack \"<x>\", which `{place}` beside it names");
        assert!(error.contains(&why), "{error}");
    }
    for flag in ["lstrip", "rstrip", "single_word"] {
        let mut token = token("<s>");
        token[flag] = json!(true);
        let about = json!({ "added_tokens_decoder": { "2": token } });
        let error = load(about, json!({})).unwrap_err();
        let why = format!(
            "`{flag}` of its added token \"<s>\" differs from the one in `added_tokens_decoder`"
        );
        assert!(error.contains(&why), "{error}");
    }
    // Without a normalizer that changes texts.
    let mut normalized = token("<s>");
    normalized["normalized"] = json!(true);
    let about = json!({ "added_tokens_decoder": { "2": normalized } });
    let sequence = |all: Value| json!({ "type": "Sequence", "normalizers": all });
    for normalizer in [Value::Null, sequence(json!([])), sequence(json!([sequence(json!([]))]))] {
        assert_eq!(load_with(normalizer, about.clone(), json!({})), Ok(()));
    }
    let normalizer = sequence(json!([{ "type": "Lowercase" }]));
    let error = load_with(normalizer, about, json!({})).unwrap_err();
    assert!(error.contains("`normalized` of its added token \"<s>\" differs"), "{error}");
    let error = load(json!({ "split_special_tokens": true }), json!({})).unwrap_err();
    assert!(error.contains("`split_special_tokens` of tokenizer_config.json is true"), "{error}");
}

#[test]
fn tokens_beyond_the_weights_are_rejected() {
    for id in [3, 4_294_967_295_u64] {
        let tokenizer = word_tokenizer(json!({ "a": 0, "b": id }));
        let folder = folder(3, &tokenizer, "{}");
        let error = LanguageModel::load(&folder).unwrap_err().to_string();
        let why = format!("its token {id} is beyond the weights, which have 3 tokens");
        assert!(error.contains(&why), "{error}");
    }
}

/// Gemma 3's text models have a mark of images that follows the last row of their weights.
#[test]
fn added_tokens_beyond_the_weights_are_rejected_in_texts_alone() {
    for id in [2, 4_294_967_295_u64] {
        let mut tokenizer = word_tokenizer(json!({ "a": 0, "b": 1 }));
        tokenizer["added_tokens"] = json!([added_token(id, "<image>")]);
        tokenizer["pre_tokenizer"] = json!({
            "type": "Split", "pattern": { "Regex": "." }, "behavior": "Isolated", "invert": false,
        });
        let folder = folder(2, &tokenizer, r#"{ "eos_token": "<image>" }"#);
        let model = LanguageModel::load(&folder).unwrap();
        assert_eq!(model.stop_tokens, [0_u32; 0], "a token without weights ends no text");
        assert_eq!(model.tokenize_prompt("ab", &[] as &[()]).unwrap(), [0, 1]);
        let error = model.tokenize_prompt("a<image>", &[] as &[()]).unwrap_err().to_string();
        assert!(error.contains("the weights have 2 tokens"), "{error}");
    }
}

#[test]
fn tokens_beyond_the_weights_neither_end_nor_begin_a_text() {
    let special = json!({ "id": "<s>", "ids": [9], "tokens": ["<s>"] });
    let mut tokenizer = word_tokenizer(json!({ "a": 0, "b": 1 }));
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": { "<s>": special },
    });
    let folder = folder(2, &tokenizer, "{}");
    let ends = json!({ "eos_token_id": [999_999, (1_u64 << 32) + 1, 1] });
    fs::write(folder.join("generation_config.json"), ends.to_string()).unwrap();
    let model = LanguageModel::load(&folder).unwrap();
    assert_eq!(model.stop_tokens, [1]);
    let error = model.tokenize_prompt("b", &[] as &[()]).unwrap_err().to_string();
    assert!(error.contains("it makes the token 9, and the weights have 2 tokens"), "{error}");
}

#[test]
fn entries_of_the_wrong_type_are_rejected_and_null_is_absent() {
    let tokenizer = word_tokenizer(json!({ "a": 0, "b": 1 }));
    let load = |about: Value, ends: Value| {
        let folder = folder(2, &tokenizer, about);
        let generation = json!({ "eos_token_id": ends }).to_string();
        fs::write(folder.join("generation_config.json"), generation).unwrap();
        LanguageModel::load(&folder).map_err(|error| error.to_string())
    };
    let named = |template: Value| {
        json!({ "chat_template": [
            { "name": "tool_use", "template": "x" },
            { "name": "default", "template": template },
        ] })
    };
    for (about, ends, why) in [
        (json!({ "chat_template": 5 }), json!(1), "`chat_template` is 5, but must be a string"),
        (named(json!(5)), json!(1), "`chat_template` is 5, but must be a string"),
        (json!({ "eos_token": 5 }), json!(1), "`eos_token` is 5, but must be the text of a token"),
        (
            json!({}),
            json!("1"),
            "`eos_token_id` is \"1\", but must be a number or a list of numbers",
        ),
        (json!({}), json!([1, "1"]), "`eos_token_id` is [1,\"1\"], but must be a number"),
    ] {
        let error = load(about, ends).unwrap_err();
        assert!(error.contains(why) && !error.contains('\n'), "{error}");
    }
    let none = json!({ "chat_template": null, "eos_token": null, "bos_token": { "content": "a" } });
    let model = load(none, Value::Null).unwrap();
    assert!(model.template.is_none() && model.stop_tokens.is_empty());
    let model = load(named(json!("b")), json!([1])).unwrap();
    let messages = [json!({ "role": "user", "content": "a" })];
    assert_eq!(
        (model.tokenize_prompt("a", &messages).unwrap(), &model.stop_tokens[..]),
        (vec![1], &[1][..])
    );
    let empty = load(json!({ "chat_template": "" }), json!(1)).unwrap();
    let error = empty.tokenize_prompt("a", &messages).unwrap_err().to_string();
    assert_eq!(error, "the model's chat template makes an empty prompt of \"a\"");
}

#[test]
fn an_index_without_files_of_weights_is_rejected() {
    for map in [json!({}), json!({ "model.norm.weight": 3 })] {
        let tokenizer = word_tokenizer(json!({ "a": 0 }));
        let folder = folder(1, &tokenizer, "{}");
        fs::remove_file(folder.join("model.safetensors")).unwrap();
        let index = json!({ "weight_map": map });
        fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
        let error = LanguageModel::load(&folder).unwrap_err().to_string();
        assert!(error.contains("its `weight_map` names no file"), "{error}");
    }
}

#[test]
fn inconsistent_and_unbounded_vocabularies_are_rejected() {
    let bpe = |vocab: &Value, merges: &Value| {
        let model = json!({ "type": "BPE", "vocab": vocab, "merges": merges });
        json!({ "version": "1.0", "added_tokens": [], "model": model })
    };
    let vocab = json!({ "a": 0, "b": 1, "ab": 2 });
    let with = |part: &str, parts: &str, one: &Value, count: usize| {
        let mut tokenizer = bpe(&vocab, &json!([]));
        tokenizer[part] = json!({ "type": "Sequence", parts: vec![one; count] });
        tokenizer
    };
    let replace = json!({ "type": "Replace", "pattern": { "Regex": "." }, "content": "aaaaaaaa" });
    let prepend = json!({ "type": "Prepend", "prepend": "a".repeat(400) });
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let spaced = json!({ "type": "BPEDecoder", "suffix": "" });
    let delimited =
        json!({ "type": "CTC", "pad_token": "q", "word_delimiter_token": "", "cleanup": true });
    let marked = json!({ "type": "Metaspace", "replacement": "_", "prepend_scheme": "always" });
    // A table of 2^32 - 1 bytes; and an empty one, with a text of 1028 bytes.
    let charsmap = |text: &str| json!({ "type": "Precompiled", "precompiled_charsmap": text });
    let long_charsmap = format!("AAAAAGFh{}", "YWFh".repeat(342));
    let post = |single: Value, ids: usize| {
        let mut tokenizer = bpe(&vocab, &json!([]));
        let token = json!({ "id": "a", "ids": vec![0; ids], "tokens": vec!["a"; ids] });
        tokenizer["post_processor"] = json!({
            "type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": { "a": token }
        });
        tokenizer
    };
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let special = json!({ "SpecialToken": { "id": "a", "type_id": 0 } });
    let dropping = |dropout: f64| {
        let mut tokenizer = bpe(&vocab, &json!(["a b"]));
        tokenizer["model"]["dropout"] = json!(dropout);
        tokenizer
    };
    let load = |tokenizer: Value| {
        let folder = folder(3, &tokenizer, "{}");
        LanguageModel::load(&folder).map(|model| model.shape).map_err(|e| e.to_string())
    };
    for tokenizer in [
        bpe(&vocab, &json!(["a b"])),
        bpe(&vocab, &json!([["a", "b"]])),
        with("decoder", "decoders", &replace, 1),
        with("normalizer", "normalizers", &prepend, 2),
        with("pre_tokenizer", "pretokenizers", &bytes, 10),
        with("pre_tokenizer", "pretokenizers", &marked, 3),
        with("decoder", "decoders", &spaced, 6),
        with("decoder", "decoders", &delimited, 6),
        post(json!([special, text]), 1),
        dropping(0.0),
    ] {
        assert!(load(tokenizer.clone()).is_ok(), "{tokenizer}");
    }
    for (tokenizer, why) in [
        (
            bpe(&json!({ "a": 0, "b": 1 }), &json!(["a b"])),
            "the merge of `a` and `b` makes no token",
        ),
        (bpe(&vocab, &json!([["ab", "ab"]])), "the merge of `ab` and `ab` makes no token"),
        (
            with("decoder", "decoders", &replace, 4),
            "its decoder makes a text over 1024 times as long",
        ),
        (with("normalizer", "normalizers", &replace, 4), "its normalizer makes a text over 1024"),
        (
            with("normalizer", "normalizers", &prepend, 3),
            "its normalizer puts over 1024 bytes before",
        ),
        (with("pre_tokenizer", "pretokenizers", &bytes, 11), "its pre_tokenizer makes a text over"),
        (
            with("normalizer", "normalizers", &json!({ "type": "ByteLevel" }), 11),
            "its normalizer makes",
        ),
        (with("pre_tokenizer", "pretokenizers", &marked, 4), "its pre_tokenizer makes a text over"),
        (with("decoder", "decoders", &spaced, 7), "its decoder makes a text over 1024 times"),
        (with("decoder", "decoders", &delimited, 7), "its decoder makes a text over 1024 times"),
        (
            with("normalizer", "normalizers", &charsmap("/////2FhYWFhYWFh"), 1),
            "its `precompiled_charsmap` ends before its table does",
        ),
        (
            with("normalizer", "normalizers", &charsmap(&long_charsmap), 1),
            "its normalizer makes a text over 1024 times",
        ),
        (post(json!([text, text]), 1), "its `post_processor` repeats the text"),
        (post(json!([special, text, special]), 600), "puts over 1024 tokens beside a text"),
        (dropping(0.1), "its `dropout` of 0.1 splits the same text differently each time"),
    ] {
        let error = load(tokenizer).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn weights_with_two_tensors_of_one_parameter_are_rejected() {
    let tokenizer = word_tokenizer(json!({ "a": 0 }));
    let folder = folder(1, &tokenizer, "{}");
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let norm = file.tensor("model.norm.weight").unwrap();
    let twice = file.tensors().into_iter().chain([("module.norm.weight".to_string(), norm)]);
    fs::write(&path, safetensors::serialize(twice, None).unwrap()).unwrap();
    let error = LanguageModel::load(&folder).unwrap_err().to_string();
    assert!(
        error.contains("two of its tensors, or of other files, are `model.norm.weight`"),
        "{error}"
    );
}

#[test]
fn git_lfs_pointers_are_recognized() {
    let fixture = repository("tests/language/qwen2");
    for name in ["model.safetensors", "tokenizer.json"] {
        let copy = Scratch::new();
        LanguageModel::load(&fixture).unwrap().save(&copy).unwrap();
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 988097824\n";
        fs::write(copy.join(name), pointer).unwrap();
        let error = LanguageModel::load(&copy).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("`git lfs pull` fetches"), "{error}");
    }
}
