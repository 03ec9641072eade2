//! Tests of the special tokens that the files of a tokenizer name.

use super::{added_token, folder, word_tokenizer};
use crate::support::Scratch;
use grove::text::LanguageModel;
use serde_json::{Value, json};
use std::fs;

#[test]
fn special_tokens_are_those_of_the_map_if_the_configuration_names_none() {
    let tokenizer = word_tokenizer(json!({ "a": 0, "b": 1 }));
    let load = |about: Value| {
        let folder = folder(2, &tokenizer, about);
        let map = json!({ "eos_token": { "content": "b", "lstrip": false } }).to_string();
        fs::write(folder.join("special_tokens_map.json"), map).unwrap();
        LanguageModel::load(&folder).unwrap()
    };
    assert_eq!(load(json!({ "eos_token": null })).stop_tokens, [1]);
    assert_eq!(load(json!({ "eos_token": "a" })).stop_tokens, [0]);
}

#[test]
fn chat_templates_know_the_special_tokens_of_the_tokenizer() {
    let mut tokenizer = word_tokenizer(json!({ "a": 0, "<p>": 1, "<i>": 2 }));
    tokenizer["added_tokens"] = json!([added_token(1, "<p>"), added_token(2, "<i>")]);
    let about = json!({
        "pad_token": { "content": "<p>" },
        "extra_special_tokens": { "image_token": "<i>" },
        "chat_template": "{{ pad_token }}{{ image_token }}{{ sep_token is defined }}",
    });
    let folder = folder(3, &tokenizer, about);
    let template = LanguageModel::load(&folder).unwrap().template.unwrap();
    assert_eq!(template.render(&[json!({})]).unwrap(), "<p><i>False");
}

#[test]
fn conversations_with_tools_are_rendered_by_the_template_for_tools() {
    let tokenizer = word_tokenizer(json!({ "a": 0, "b": 1 }));
    let [plain, with_tools] = ["a", "{% if tools %}b{% endif %}"];
    let list = json!([{ "name": "default", "template": plain }, { "name": "tool_use", "template": with_tools }]);
    let load = |about: Value| folder(2, &tokenizer, about);
    // A configuration that is no object counts as none.
    let separate = [json!({ "chat_template": "unused" }), json!([])].map(|about| {
        let separate = load(about);
        fs::write(separate.join("chat_template.jinja"), plain).unwrap();
        fs::create_dir(separate.join("additional_chat_templates")).unwrap();
        fs::write(separate.join("additional_chat_templates/tool_use.jinja"), with_tools).unwrap();
        separate
    });
    for folder in separate.into_iter().chain([load(json!({ "chat_template": list }))]) {
        let model = LanguageModel::load(&folder).unwrap();
        let copy = Scratch::new();
        model.save(&copy).unwrap();
        for model in [model, LanguageModel::load(&copy).unwrap()] {
            let tokens = |values: Value| {
                model.tokenize_prompt_with(
                    "",
                    &[json!({ "role": "user", "content": "c" })],
                    &values,
                )
            };
            assert_eq!(tokens(json!({})).unwrap(), [0]);
            assert_eq!(tokens(json!({ "tools": null })).unwrap(), [0]);
            let template = model.template.as_ref().unwrap();
            assert_eq!(template.tool_source.as_deref(), Some(with_tools));
            assert_eq!(tokens(json!({ "tools": [{}] })).unwrap(), [1]);
        }
    }
}
