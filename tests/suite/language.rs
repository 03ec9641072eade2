//! Language models: files in and out, and text that depends on nothing but its prompt, its key and the weights.

use crate::support::{Scratch, repository};
use crate::trainers::on_threads;
use burn::tensor::Device;
use grove::nn::arch::{FAMILIES, Family};
use grove::settings::Precision;
use grove::text::generate::{Completion, CompletionRequest, Generator, Sampling};
use grove::text::{
    Adapters, Cache, CompletionIndex, LanguageModel, LoraConfig, Pass, PromptWithCompletions,
    Retention, Row, TextPass, TokenDecoder, normalize,
};
use serde::Deserialize;
use serde_json::json;
use std::path::{Path, PathBuf};

/// The expectations of `transformers` for a folder; `tests/language/make_fixtures.py` wrote it.
#[derive(Deserialize)]
struct Expected {
    text: String,
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
    greedy: Vec<u32>,
    chat: String,
}

pub fn folder(name: &str) -> PathBuf {
    repository("tests/language").join(name)
}

/// Names of the folders whose architecture is known: at least one of each.
pub fn folders() -> Vec<String> {
    let entries = std::fs::read_dir(folder("")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> =
        names.filter(|name| folder(name).join("config.json").exists()).collect();
    let is_of =
        |name: &str, family: &Family| config(&folder(name))["model_type"] == family.model_type;
    names.retain(|name| FAMILIES.iter().any(|family| is_of(name, family)));
    names.sort();
    for family in FAMILIES {
        assert!(names.iter().any(|name| is_of(name, family)), "no folder of {family:?}");
    }
    names
}

fn load(name: &str) -> (LanguageModel, Expected) {
    let expected = std::fs::read(folder(name).join("expected.json")).unwrap();
    let model = LanguageModel::load(&folder(name)).unwrap();
    (model, serde_json::from_slice(&expected).unwrap())
}

fn decoder(model: &LanguageModel) -> TokenDecoder {
    TokenDecoder::new(model.shape.clone(), model.params.clone())
}

/// The `config.json` of a folder.
fn config(folder: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

/// Logits of what comes after each token of a text.
fn logits(decoder: &TokenDecoder, tokens: &[u32]) -> Vec<Vec<f32>> {
    let rows =
        tokens.iter().enumerate().map(|(index, token)| Row { token: *token, cache: 0, index });
    let rows: Vec<Row> = rows.collect();
    let mut caches = [Cache::default()];
    decoder.begin_cache(&mut caches[0], tokens.len(), None);
    let mut pass = Pass::default();
    decoder.forward(&rows, &mut caches, Retention::Nothing, &mut pass);
    let mut logits = Vec::new();
    decoder.compute_logits(pass.hidden(), &mut logits);
    logits.chunks_exact(decoder.shape().num_actions).map(<[f32]>::to_vec).collect()
}

/// Completes prompts in so many slots.
pub fn complete(
    decoder: &TokenDecoder,
    prompts: &[CompletionRequest],
    sampling: &Sampling,
    slots: usize,
) -> Vec<Vec<Completion>> {
    Generator { decoder, sampling, num_slots: slots, stop: None, listener: None }.generate(prompts)
}

#[test]
fn completions_of_no_tokens_are_empty() {
    let prompts = [CompletionRequest { tokens: vec![1], num_completions: 2, key: 0 }];
    let sampling = Sampling { max_new_tokens: 0, ..Sampling::default() };
    let decoder = load("qwen2").0.new_decoder();
    for decoder in [decoder.clone(), decoder.with_device(Some(Device::flex()), Precision::F32)] {
        let found = complete(&decoder, &prompts, &sampling, 4);
        assert_eq!(found, [vec![Completion::default(); 2]]);
    }
}

#[test]
fn folders_of_transformers_give_its_logits_and_its_text() {
    for name in folders() {
        let (model, expected) = load(&name);
        assert_eq!(
            model.tokenize_prompt(&expected.text, &[] as &[()]).unwrap(),
            expected.tokens,
            "{name}"
        );
        let decoder = decoder(&model);
        let got = logits(&decoder, &expected.tokens);
        let largest = expected.logits.concat().iter().fold(0.0f32, |max, x| max.max(x.abs()));
        for (got, want) in got[got.len() - 2..].iter().flatten().zip(expected.logits.concat()) {
            assert!((got - want).abs() < 1e-4 * largest, "{name}: {got} instead of {want}");
        }
        let sampling = Sampling { temperature: 0.0, max_new_tokens: 64, ..Sampling::default() };
        let prompt = CompletionRequest { tokens: expected.tokens, num_completions: 1, key: 0 };
        let there = decoder.clone().with_device(Some(Device::flex()), Precision::F32);
        for decoder in [&decoder, &there] {
            let completions = complete(decoder, std::slice::from_ref(&prompt), &sampling, 1);
            assert_eq!(completions[0][0].tokens, expected.greedy, "{name}");
        }
        let messages = [json!({ "role": "user", "content": " jumps over " })];
        assert_eq!(model.template.as_ref().unwrap().render(&messages).unwrap(), expected.chat);
    }
}

#[test]
fn saved_checkpoints_load_again() {
    for name in folders() {
        let (model, expected) = load(&name);
        let copy = Scratch::new();
        model.save(&copy).unwrap();
        let again = LanguageModel::load(&copy).unwrap();
        assert!(again.params == model.params && again.shape == model.shape, "{name}");
        assert_eq!(again.tokenize_prompt(&expected.text, &[] as &[()]).unwrap(), expected.tokens);
        assert_eq!((again.template, again.stop_tokens), (model.template, model.stop_tokens));
        // One of the folders is in bf16, to which `transformers` would round the weights.
        assert_eq!(config(&copy)["dtype"], "float32", "{name}");
    }
}

#[test]
fn new_models_are_saved_and_loaded() {
    let shape = load("qwen2").0.shape;
    let tiny = LanguageModel::tiny(&shape, "0123456789,=\n", 3);
    assert_eq!(tiny.shape.num_actions, 14);
    let copy = Scratch::new();
    tiny.save(&copy).unwrap();
    let again = LanguageModel::load(&copy).unwrap();
    assert!(again.params == tiny.params && again.shape == tiny.shape);
    assert_eq!(again.stop_tokens, [0]);
    let tokens = again.tokenize_prompt("3,1=", &[] as &[()]).unwrap();
    assert_eq!(
        (again.decode_completion(&tokens), again.decode_completion(&[tokens[0], 0])),
        ("3,1=".into(), "3".into())
    );
    // Without a chat template a conversation needs a text beside it.
    let conversation = [json!({ "role": "user", "content": "3" })];
    assert_eq!(again.tokenize_prompt("3,1=", &conversation).unwrap(), tokens);
    let refused = again.tokenize_prompt("", &conversation).unwrap_err().to_string();
    assert!(refused.contains("has no chat template"), "{refused}");
    let refused = again.tokenize_prompt("", &[] as &[()]).unwrap_err().to_string();
    assert_eq!(refused, "the prompt is empty");
}

/// Prompts of different lengths, each with its own number of completions.
fn prompts(vocabulary: u32) -> Vec<CompletionRequest> {
    let tokens = |i: u32| (0..3 + i * 7 % 23).map(|t| (i * 13 + t * 5) % vocabulary).collect();
    (0..12)
        .map(|i| CompletionRequest {
            tokens: tokens(i),
            num_completions: 3 + i as usize % 4,
            key: 77 * i,
        })
        .collect()
}

#[test]
fn completions_depend_on_prompt_key_and_weights_alone() {
    for name in folders() {
        let (model, _) = load(&name);
        let decoder = decoder(&model);
        let stop_tokens = vec![5, 9];
        let sampling = Sampling { max_new_tokens: 20, stop_tokens, ..Sampling::default() };
        let prompts = prompts(64);
        let all = complete(&decoder, &prompts, &sampling, 64);
        let lengths: Vec<usize> = all.iter().flatten().map(|one| one.tokens.len()).collect();
        assert!(lengths.contains(&20) && lengths.iter().any(|length| *length < 20), "{lengths:?}");
        for one in all.iter().flatten() {
            let stops = one.tokens.last().is_some_and(|token| [5, 9].contains(token));
            assert_eq!(one.is_terminated, stops);
            assert!(stops || one.tokens.len() == 20);
        }
        for (prompt, completions) in prompts.iter().zip(&all) {
            let alone = complete(&decoder, std::slice::from_ref(prompt), &sampling, 1);
            assert!(alone[0] == *completions, "{name}: alone");
            let [first, second] = [0, 1].map(|i| &completions[i].tokens);
            assert!(first != second, "{name}: members of a group differ");
        }
        for threads in [1, 2, 3] {
            let same = on_threads(threads, || complete(&decoder, &prompts, &sampling, 7));
            assert!(same == all, "{name}: {threads} threads");
        }
    }
}

#[test]
fn texts_that_are_learnt_from_have_the_very_probabilities_of_their_generation() {
    for name in folders() {
        let (model, _) = load(&name);
        let decoder = decoder(&model);
        let sampling = Sampling { max_new_tokens: 20, ..Sampling::default() };
        let prompts = prompts(64);
        let all = complete(&decoder, &prompts, &sampling, 9);
        let texts: Vec<PromptWithCompletions> = prompts
            .iter()
            .zip(&all)
            .map(|(prompt, completions)| PromptWithCompletions {
                prompt: &prompt.tokens,
                completions: completions.iter().map(|one| &one.tokens[..]).collect(),
            })
            .collect();
        for retention in [Retention::All, Retention::Inputs] {
            let mut forward = TextPass::default();
            decoder.forward_texts(&texts, retention, &mut forward);
            let mut logits = Vec::new();
            decoder.compute_logits(forward.hidden(), &mut logits);
            let places = all.iter().enumerate().flat_map(|(text, group)| {
                let index = move |completion| CompletionIndex { text, completion };
                group.iter().enumerate().map(move |(number, one)| (index(number), one))
            });
            for (place, completion) in places {
                for (at, token) in completion.tokens.iter().enumerate() {
                    let row = &logits[forward.prediction(place, at) * 64..][..64];
                    let by = normalize(row);
                    let logprob = row[*token as usize] - by.max - by.log_sum;
                    assert_eq!(logprob, completion.logprobs[at], "{name} {place:?} {at}");
                }
            }
        }
    }
}

#[test]
fn unusable_model_folders_are_rejected_in_a_sentence() {
    let (model, _) = load("qwen2");
    let broken = |change: &dyn Fn(&Path)| {
        let copy = Scratch::new();
        model.save(&copy).unwrap();
        change(&copy);
        let error = LanguageModel::load(&copy).unwrap_err().to_string();
        assert!(!error.contains('\n') && error.len() < 400, "{error}");
        error
    };
    let remove =
        |name: &'static str| move |path: &Path| std::fs::remove_file(path.join(name)).unwrap();
    assert!(broken(&remove("tokenizer.json")).contains("there is no tokenizer.json"));
    assert!(broken(&remove("config.json")).contains("there is no config.json"));
    assert!(broken(&remove("model.safetensors")).contains("model.safetensors cannot be read"));
    let edit = |from: &'static str, to: &'static str| {
        move |path: &Path| {
            let path = path.join("config.json");
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{text}");
            std::fs::write(&path, text.replace(from, to)).unwrap();
        }
    };
    let other = broken(&edit("\"model_type\": \"qwen2\"", "\"model_type\": \"gpt_neox\""));
    assert!(other.contains("architecture gpt_neox; supported are llama, qwen2, qwen3"), "{other}");
    let wide = broken(&edit("\"intermediate_size\": 24", "\"intermediate_size\": 25"));
    assert!(wide.contains("must have [25, 16]") || wide.contains("must have [16, 25]"), "{wide}");
    let few = broken(&edit("\"vocab_size\": 64", "\"vocab_size\": 63"));
    assert!(few.contains("must have [63, 16]") || few.contains("63"), "{few}");
    let cut = broken(&|path: &Path| {
        let path = path.join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 7]).unwrap();
    });
    assert!(cut.contains("model.safetensors cannot be used"), "{cut}");
    let quantized = "\"quantization_config\": { \"quant_method\": \"fp8\" }, \"model_type\"";
    let quantized = broken(&edit("\"model_type\"", quantized));
    assert!(quantized.contains("`quantization_config` says that the weights"), "{quantized}");
    let rename = |to: &'static str| {
        move |path: &Path| {
            std::fs::rename(path.join("model.safetensors"), path.join(to)).unwrap();
        }
    };
    for name in ["pytorch_model.bin", "pytorch_model.bin.index.json"] {
        let pickled = broken(&rename(name));
        assert!(pickled.contains(&format!("weights are pickled ({name})")), "{pickled}");
    }
    let mut adapted = model.clone();
    adapted.adapters = Some(Adapters::zeros(&model.shape, &LoraConfig::new(2)));
    let copy = Scratch::new();
    adapted.save(&copy).unwrap();
    let [safe, pickled] = ["adapter_model.safetensors", "adapter_model.bin"];
    std::fs::rename(copy.join(safe), copy.join(pickled)).unwrap();
    let error = LanguageModel::load(&copy).unwrap_err().to_string();
    assert!(error.contains("weights are pickled (adapter_model.bin)"), "{error}");
    #[cfg(unix)]
    {
        let device = LanguageModel::load(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(device.contains("it is neither a regular file nor a folder"), "{device}");
    }
    let nothing = LanguageModel::load(Path::new("/nowhere/at/all")).unwrap_err().to_string();
    assert!(
        nothing.contains("no file or folder /nowhere/at/all; models are not downloaded"),
        "{nothing}"
    );
}

/// The model is where `tests/language/fetch_smollm2.sh` puts it, or where `GROVE_SMOLLM2` says.
#[test]
#[ignore = "a real model, which tests/language/fetch_smollm2.sh fetches"]
fn a_real_model_in_few_bits_gives_the_logits_and_the_text_of_transformers() {
    let cache = std::env::var("HOME")
        .map(|home| Path::new(&home).join(".cache/grove/SmolLM2-135M-Instruct.Q4_1.gguf"));
    let file = std::env::var("GROVE_SMOLLM2").map(PathBuf::from).or(cache);
    let file = file.ok().filter(|file| file.is_file());
    let file = file.expect("tests/language/fetch_smollm2.sh fetches the model");
    let model = LanguageModel::load(&file).unwrap();
    let expected = std::fs::read(folder("smollm2.json")).unwrap();
    let expected: Expected = serde_json::from_slice(&expected).unwrap();
    assert_eq!(model.tokenize_prompt(&expected.text, &[] as &[()]).unwrap(), expected.tokens);
    let decoder = decoder(&model);
    let got = logits(&decoder, &expected.tokens);
    let largest = got.iter().flatten().fold(0.0f32, |max, x| max.max(x.abs()));
    for (got, want) in got[got.len() - 2..].iter().zip(&expected.logits) {
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 1e-4 * largest, "{got} instead of {want}");
        }
    }
    let sampling = Sampling { temperature: 0.0, max_new_tokens: 64, ..Sampling::default() };
    let prompt = CompletionRequest { tokens: expected.tokens, num_completions: 1, key: 0 };
    let completions = complete(&decoder, &[prompt], &sampling, 1);
    assert_eq!(completions[0][0].tokens, expected.greedy);
    let question =
        "What is the capital of France? Answer with it's name only, please: 12345 + 678.";
    let messages = [json!({ "role": "user", "content": question })];
    assert_eq!(model.template.as_ref().unwrap().render(&messages).unwrap(), expected.chat);
}

#[test]
fn a_folder_without_a_head_is_rejected_unless_it_is_tied() {
    let (model, _) = load("qwen3");
    assert!(!model.shape.tie_word_embeddings);
    let headless = Scratch::new();
    model.save(&headless).unwrap();
    let weights = headless.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let others = tensors.iter().filter(|(name, _)| *name != "lm_head.weight");
    std::fs::write(&weights, safetensors::serialize(others, None).unwrap()).unwrap();
    let mut config = config(&headless);
    for is_tied in [json!(false), json!(null), json!(true)] {
        config["tie_word_embeddings"] = is_tied.clone();
        std::fs::write(headless.join("config.json"), config.to_string()).unwrap();
        match LanguageModel::load(&headless) {
            Ok(model) => assert!(is_tied == true && model.shape.tie_word_embeddings),
            Err(error) => {
                let why =
                    "the tensor `lm_head.weight` is missing; if the embedding table is the head";
                assert!(is_tied != true && error.to_string().contains(why), "{error}");
            }
        }
    }
}

#[test]
fn a_head_beside_a_tied_table_is_used_if_it_differs() {
    let (model, _) = load("qwen2");
    assert!(model.shape.tie_word_embeddings);
    let folder = Scratch::new();
    let [headed, saved] = ["headed", "saved"].map(|name| folder.join(name));
    for factor in [1.0, -2.0] {
        model.save(&headed).unwrap();
        let weights = headed.join("model.safetensors");
        let bytes = std::fs::read(&weights).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let table = tensors.tensor("model.embed_tokens.weight").unwrap();
        let numbers =
            table.data().as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x) * factor);
        let head: Vec<u8> = numbers.flat_map(f32::to_le_bytes).collect();
        let shape = table.shape().to_vec();
        let head = safetensors::tensor::TensorView::new(table.dtype(), shape, &head).unwrap();
        let mut all = tensors.tensors();
        all.push(("lm_head.weight".to_string(), head));
        std::fs::write(&weights, safetensors::serialize(all, None).unwrap()).unwrap();

        let headed = LanguageModel::load(&headed).unwrap();
        headed.save(&saved).unwrap();
        let again = LanguageModel::load(&saved).unwrap();
        let is_tied = factor == 1.0;
        assert_eq!(config(&saved)["tie_word_embeddings"], is_tied);
        let tokens = [3, 1, 4];
        let expected = logits(&decoder(&model), &tokens).concat();
        let largest = expected.iter().fold(0.0f32, |max, x| max.max(x.abs()));
        for model in [headed, again] {
            assert_eq!(model.shape.tie_word_embeddings, is_tied);
            for (got, want) in logits(&decoder(&model), &tokens).concat().iter().zip(&expected) {
                assert!((got - factor * want).abs() <= 1e-5 * largest, "{got} for {want}");
            }
        }
    }
}

/// Writers that store shared tensors once keep the first of their names, which is the head's.
#[test]
fn a_tied_table_may_be_named_as_the_head() {
    let (model, _) = load("qwen2");
    assert!(model.shape.tie_word_embeddings);
    let folder = Scratch::new();
    model.save(&folder).unwrap();
    let weights = folder.join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let renamed = tensors.tensors().into_iter().map(|(name, tensor)| match &*name {
        "model.embed_tokens.weight" => ("lm_head.weight".to_string(), tensor),
        _ => (name, tensor),
    });
    let renamed: Vec<_> = renamed.collect();
    std::fs::write(&weights, safetensors::serialize(renamed, None).unwrap()).unwrap();
    let again = LanguageModel::load(&folder).unwrap();
    assert!(again.shape.tie_word_embeddings && again.params == model.params);
}

#[test]
fn saved_folders_name_all_tokens_that_end_a_completion() {
    let (mut model, _) = load("qwen2");
    let folder = Scratch::new();
    let named = || {
        let text = std::fs::read(folder.join("generation_config.json")).ok()?;
        Some(serde_json::from_slice::<serde_json::Value>(&text).unwrap()["eos_token_id"].clone())
    };
    model.save(&folder).unwrap();
    let before = named();
    assert!(model.stop_tokens.len() < 2 || before.is_some());
    // The end of a turn in a chat template, which the files of a base model do not name.
    let end = (0..).find(|token| !model.stop_tokens.contains(token)).unwrap();
    model.stop_tokens.push(end);
    model.save(&folder).unwrap();
    assert_eq!(named(), Some(json!(model.stop_tokens)));
    let again = LanguageModel::load(&folder).unwrap();
    assert_eq!(again.stop_tokens, model.stop_tokens);
}

#[test]
fn adapters_are_read_with_the_tokenizer_and_the_template_of_their_folder() {
    let (base, _) = load("qwen2");
    let folder = Scratch::new();
    let mut adapted = base.clone();
    adapted.adapters = Some(Adapters::zeros(&base.shape, &LoraConfig::new(2)));
    adapted.save(&folder).unwrap();
    let load = || {
        let model = LanguageModel::load(&folder).unwrap();
        assert!(model.adapters.is_some() && model.base == base.base && model.params == base.params);
        (model.template.map(|template| template.source), model.stop_tokens)
    };
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    let remove = |name: &str| std::fs::remove_file(folder.join(name)).unwrap();
    let of_base = base.template.as_ref().map(|template| template.source.clone());
    assert_eq!(load(), (of_base.clone(), base.stop_tokens.clone()));
    write("chat_template.jinja", "own");
    write("generation_config.json", r#"{ "eos_token_id": 7 }"#);
    let (template, stop_tokens) = load();
    assert_eq!(template.as_deref(), Some("own"));
    assert!(stop_tokens.contains(&7) && !base.stop_tokens.contains(&7));
    // Nothing of another tokenizer comes with that of the folder.
    remove("chat_template.jinja");
    assert_eq!(load().0, None);
    remove("tokenizer.json");
    write("tokenizer_config.json", r#"{ "chat_template": "configured" }"#);
    assert_eq!(load().0.as_deref(), Some("configured"));
    write("tokenizer_config.json", r#"{ "extra_special_tokens": ["<x>"] }"#);
    let error = LanguageModel::load(&folder).unwrap_err().to_string();
    assert!(error.contains("its `added_tokens` lack \"<x>\""), "{error}");
    remove("tokenizer_config.json");
    remove("generation_config.json");
    assert_eq!(load(), (of_base, base.stop_tokens.clone()));
}

#[test]
fn an_index_beside_a_whole_file_of_weights_is_ignored() {
    let (model, _) = load("qwen2");
    let copy = Scratch::new();
    model.save(&copy).unwrap();
    let stale =
        json!({ "weight_map": { "model.norm.weight": "model-00001-of-00002.safetensors" } });
    let index = copy.join("model.safetensors.index.json");
    std::fs::write(index, stale.to_string()).unwrap();
    assert!(LanguageModel::load(&copy).unwrap().params == model.params);
}
