//! Tests of the special tokens that the files of a tokenizer name.

use super::folder;
use grove::text::LanguageModel;
use serde_json::{Value, json};
use std::fs;

#[test]
fn special_tokens_are_those_of_the_map_if_the_configuration_names_none() {
    let tokenizer = json!({
        "version": "1.0",
        "model": { "type": "WordLevel", "vocab": { "a": 0, "b": 1 }, "unk_token": "a" },
    });
    let load = |about: Value| {
        let folder = folder(2, tokenizer.to_string().as_bytes(), about.to_string().as_bytes());
        let map = json!({ "eos_token": { "content": "b", "lstrip": false } }).to_string();
        fs::write(folder.path().join("special_tokens_map.json"), map).unwrap();
        LanguageModel::load(folder.path()).unwrap()
    };
    assert_eq!(load(json!({ "eos_token": null })).stop_tokens, [1]);
    assert_eq!(load(json!({ "eos_token": "a" })).stop_tokens, [0]);
}

#[test]
fn chat_templates_know_the_special_tokens_of_the_tokenizer() {
    let vocab = json!({ "a": 0, "<p>": 1, "<i>": 2 });
    let added = |id: u32, content: &str| json!({ "id": id, "content": content, "special": true });
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [added(1, "<p>"), added(2, "<i>")],
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "a" },
    });
    let about = json!({
        "pad_token": { "content": "<p>" },
        "extra_special_tokens": { "image_token": "<i>" },
        "chat_template": "{{ pad_token }}{{ image_token }}{{ sep_token is defined }}",
    });
    let folder = folder(3, tokenizer.to_string().as_bytes(), about.to_string().as_bytes());
    let template = LanguageModel::load(folder.path()).unwrap().template.unwrap();
    assert_eq!(template.render(&[json!({})]).unwrap(), "<p><i>False");
}
