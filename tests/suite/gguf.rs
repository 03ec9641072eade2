//! GGUF files of models: they are read as they were written, adapters are added to weights, and forms that the
//! format lacks are refused.

use crate::language::{complete, folder as fixture};
use crate::support::{Scratch, TINY_SIZES, grove, json, refusal, stderr, tree};
use grove::model::DecoderShape;
use grove::nn::arch::{FAMILIES, Family, QkNorm};
use grove::text::generate::{CompletionRequest, Sampling};
use grove::text::{Adapters, GgufType, LanguageModel, LoraConfig};
use std::fs;

const ALPHABET: &str = "0123456789+= \nab";

fn family(name: &str) -> &'static Family {
    FAMILIES.iter().find(|family| family.model_type == name).unwrap()
}

/// Small shapes of the families in whose forms files are written.
fn shapes() -> Vec<DecoderShape> {
    let sizes = DecoderShape {
        hidden_size: 32,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 8,
        intermediate_size: 48,
        context: 128,
        rope_theta: 1000.0,
        ..DecoderShape::default()
    };
    vec![
        DecoderShape { family: family("llama"), ..sizes.clone() },
        DecoderShape {
            family: family("llama"),
            qkv_bias: true,
            output_bias: true,
            mlp_bias: true,
            ..sizes.clone()
        },
        DecoderShape { family: family("mistral"), ..sizes.clone() },
        DecoderShape {
            family: family("qwen2"),
            qkv_bias: true,
            tie_word_embeddings: true,
            ..sizes.clone()
        },
        DecoderShape { family: family("qwen3"), qk_norm: QkNorm::PerHead, head_dim: 16, ..sizes },
    ]
}

/// A model whose weights matter, as those of fresh models hardly do.
fn sharpened_model(shape: &DecoderShape) -> LanguageModel {
    let mut model = LanguageModel::with_fresh_weights(shape, ALPHABET, 7);
    let params =
        model.params.values().iter().enumerate().map(|(i, x)| x * 20.0 + (i as f32).sin() * 0.1);
    model.params = params.collect::<Vec<_>>().into();
    model
}

fn greedy(model: &LanguageModel, count: usize) -> Vec<u32> {
    let sampling = Sampling { temperature: 0.0, max_new_tokens: count, ..Sampling::default() };
    let tokens = model.tokenize_prompt("12+34=", &[] as &[()]).unwrap();
    let prompt = CompletionRequest { tokens, num_completions: 1, key: 0 };
    complete(&model.new_decoder(), &[prompt], &sampling, 1)[0][0].tokens.clone()
}

fn written(model: &LanguageModel, kind: GgufType) -> LanguageModel {
    let folder = Scratch::new();
    let path = folder.join("model.gguf");
    model.save_gguf(&path, kind).unwrap();
    LanguageModel::load(&path).unwrap()
}

#[test]
fn models_are_read_as_they_were_written() {
    for shape in shapes() {
        let model = sharpened_model(&shape);
        let again = written(&model, GgufType::F32);
        let context = shape.family.model_type;
        assert!(again.params == model.params, "{context}");
        let family = again.shape.family.model_type;
        assert_eq!(family, if context == "mistral" { "llama" } else { context });
        let shape = DecoderShape { family: again.shape.family, ..model.shape.clone() };
        assert_eq!(again.shape, shape);
        assert_eq!(again.stop_tokens, model.stop_tokens);
        let tokens =
            |model: &LanguageModel| model.tokenize_prompt("3 + 4=\nab", &[] as &[()]).unwrap();
        assert_eq!(tokens(&again), tokens(&model));
        let text: Vec<u32> = (1..model.shape.vocab_size() as u32).collect();
        assert_eq!(again.decode_completion(&text), model.decode_completion(&text));
        let first = greedy(&model, 64);
        assert!(first.len() == 64 || first.ends_with(&model.stop_tokens), "{context}: {first:?}");
        assert_eq!(greedy(&again, 64), first);
    }
}

#[test]
fn fewer_bits_are_near_the_weights() {
    for shape in shapes() {
        let model = sharpened_model(&shape);
        let largest = model.params.values().iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        for (kind, bound) in [
            (GgufType::F16, 1.0 / 2048.0),
            (GgufType::Bf16, 1.0 / 256.0),
            (GgufType::Q8_0, 1.0 / 200.0),
        ] {
            let again = written(&model, kind);
            assert!(again.params != model.params, "{kind}");
            for (got, want) in again.params.values().iter().zip(model.params.values()) {
                assert!((got - want).abs() <= bound * largest, "{kind}: {got} for {want}");
            }
        }
    }
}

#[test]
fn adapters_are_added_to_the_weights_or_written_alone() {
    for shape in shapes() {
        let base = sharpened_model(&shape);
        let config = LoraConfig::new(3);
        let adapters = Adapters::zeros(&base.shape, &config);
        let count = adapters.params().len();
        let params = (0..count).map(|i| (i as f32 * 0.37).sin() * 0.2).collect();
        let mut model = base.clone();
        model.adapters = Some(adapters.with_params(params));
        let merged = model.clone().merge_adapters();
        assert!(merged.adapters.is_none() && merged.params != base.params);
        assert_eq!(greedy(&merged, 24), greedy(&model, 24), "{}", shape.family.model_type);
        assert_ne!(greedy(&base, 24), greedy(&model, 24), "{}", shape.family.model_type);
        assert!(written(&merged, GgufType::F32).params == merged.params);

        let folder = Scratch::new();
        let path = folder.join("adapters.gguf");
        model.save_gguf(&path, GgufType::F32).unwrap();
        let bytes = fs::read(&path).unwrap();
        let holds = |words: &str| bytes.windows(words.len()).any(|it| it == words.as_bytes());
        assert!(holds("adapter.lora.alpha") && holds("blk.1.ffn_down.weight.lora_b"));
        assert!(!holds("token_embd.weight") && bytes.len() < 8 * count);
    }
}

#[test]
fn ambiguous_pre_tokenizers_are_rejected() {
    let folder = Scratch::new();
    let path = folder.join("model.gguf");
    for name in ["gemma3", "olmo2", "olmo3", "smollm3", "llama", "rope_yarn"] {
        let model = LanguageModel::load(&fixture(name)).unwrap();
        let error = model.save_gguf(&path, GgufType::F32).unwrap_err().to_string();
        let unwritable = format!("the model cannot be written to {}: ", path.display());
        assert!(error.starts_with(&unwritable), "{name}: {error}");
        assert!(error.contains("in the forms of Llama, Qwen2 and Qwen3"), "{name}: {error}");
    }
    // A vocabulary with its own way of splitting words.
    let model = LanguageModel::load(&fixture("qwen3")).unwrap();
    let error = model.save_gguf(&path, GgufType::F32).unwrap_err().to_string();
    assert!(error.contains("splits text has no name in llama.cpp"), "{error}");
    assert!(!path.exists());
}

#[test]
fn runs_are_exported_with_a_card() {
    let folder = &Scratch::new();
    let small =
        ["num_prompts=4", "group_size=2", "fit.iterations=2", "eval_episodes=8", "sort.length=3"];
    let sets = |more: &[&'static str]| -> Vec<&str> {
        TINY_SIZES.iter().chain(&small).chain(more).flat_map(|set| ["--set", *set]).collect()
    };
    let train = |dir: &'static str, model: &'static str, more: &[&'static str]| {
        let mut words = vec!["train", "sort", "--model", model, "--iterations", "4", "--json"];
        words.extend(["--run-dir", dir]);
        words.extend(sets(more));
        json(folder, &words);
    };
    train("run", "tiny", &[]);
    let card = fs::read_to_string(folder.join("run/model/README.md")).unwrap();
    for words in [
        "\ntags: [grove, grpo]\n",
        "# A model for `sort`\n",
        "task `sort`",
        "Qwen2ForCausalLM",
        "4 iterations",
        "held-out prompts",
    ] {
        assert!(card.contains(words), "{words}: {card}");
    }
    assert!(card.contains("model.hidden_size = 16"), "{card}");
    let is_fresh = card.contains("\nlibrary_name: transformers\n") && !card.contains("base_model");
    assert!(is_fresh, "{card}");

    let report = json(folder, &["export", "run", "--json"]);
    assert_eq!((&report["out"], &report["is_adapter"]), (&"run.gguf".into(), &false.into()));
    let generated = |model: &str| {
        let words =
            ["generate", model, "213>", "--temperature", "0", "--max-new-tokens", "8", "--json"];
        json(folder, &words)["completions"][0]["tokens"].clone()
    };
    assert_eq!(generated("run.gguf"), generated("run"));
    assert_eq!(generated("run/best"), generated("run"));

    // A model in the Hub's cache.
    let cached = "models--acme--sorter-1.5/snapshots/0123";
    fs::create_dir_all(folder.join(cached)).unwrap();
    for (name, bytes) in tree(&folder.join("run/model")) {
        fs::write(folder.join(cached).join(name), bytes).unwrap();
    }
    train("adapted", cached, &["lora.r=2", "fit.iterations=0"]);
    let card = fs::read_to_string(folder.join("adapted/model/README.md")).unwrap();
    let base =
        "\nbase_model: acme/sorter-1.5\nbase_model_relation: adapter\nlibrary_name: peft\n---\n";
    assert!(card.contains(base), "{card}");
    let report = json(folder, &["export", "adapted", "--out", "apart.gguf", "--json"]);
    assert_eq!(report["is_adapter"], true);
    let merged = ["export", "adapted", "--merge", "--json"];
    json(folder, &[&merged[..], &["--out", "merged.gguf"]].concat());
    json(folder, &[&merged[..], &["--format", "safetensors", "--out", "merged"]].concat());
    assert_eq!(generated("merged.gguf"), generated("adapted"));
    assert_eq!(generated("adapted/best"), generated("adapted"));
    assert_eq!(generated("merged"), generated("adapted"));
    let card = fs::read_to_string(folder.join("merged/README.md")).unwrap();
    let relation = "base_model_relation: finetune\nlibrary_name: transformers\n";
    assert!(card.contains("`sort`") && card.contains(relation), "{card}");

    let error =
        refusal(folder, &[&merged[..], &["--format", "safetensors", "--out", "merged"]].concat());
    assert!(error.contains("merged exists already"), "{error}");
    let inside = ["export", "run", "--format", "safetensors", "--out", "run/best/model"];
    assert!(refusal(folder, &inside).contains("is a file of a run"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |name: &str| fs::metadata(folder.join(name)).unwrap().permissions().mode();
        assert_eq!(mode("merged/model.safetensors"), mode("merged/config.json"));
    }
    let words = ["export", "run", "--format", "safetensors", "--outtype", "f16"];
    let error = refusal(folder, &words);
    assert!(error.contains("--outtype is for the format gguf"), "{error}");
    let error = refusal(folder, &["export", "run", "--format", "onnx"]);
    assert!(error.contains("gguf or safetensors"), "{error}");
    let output = grove(folder, &["export", "run", "--outtype", "q3"]);
    assert!(stderr(&output).contains("f32, f16, bf16, q8_0"), "{}", stderr(&output));
}
