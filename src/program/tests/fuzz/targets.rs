//! The fuzz targets: a test for each kind of file.

use super::fuzz;
use crate::checkpoint;
use crate::data::{
    AnnotatedTable, Dataset, DatasetWriter, EpisodeStatus, MANIFEST_FILE, Manifest, StepColumns,
    TableOptions, deserialize_games,
};
use crate::disk;
use crate::env::{CartPole, Catch};
use crate::metrics::JsonLines;
use crate::model::policy_file::{Header, write_params};
use crate::program::models::Models;
use crate::program::tests::fault_injection::copy_folder;
use crate::program::validation::read_valid_settings;
use crate::program::watch::guard::{Hosts, check_request};
use crate::settings::{TrainConfig, overlay};
use crate::task::external::protocol::Answer;
use crate::task::ocaml::Problems;
use crate::task::{RewardPart, read_prompts};
use crate::text::{Adapters, ChatTemplate, LanguageModel, LoraConfig};
use crate::trainer::text::{LanguageSettings, split_language_settings};
use crate::trainer::{GameTrainer, config_to_toml, new_settings, read_policy_file};
use burn::tensor::Device;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The folder of the tests and their files.
fn tests_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Reads a file of the tests.
fn read_fixture(name: &str) -> Vec<u8> {
    let path = tests_folder().join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads the malformed files of the tests whose names begin and end like this.
fn read_malformed(start: &str, end: &str) -> Vec<Vec<u8>> {
    let folder = tests_folder().join("malformed");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with(start) && name.ends_with(end) && path.is_file()
    };
    let mut paths: Vec<PathBuf> = names.filter(is_one).collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Feeds mutations of the `seeds` to a reader of files, in a file of this name.
fn fuzz_file(name: &str, seeds: &[Vec<u8>], read: impl Fn(&Path)) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    fuzz(seeds, |bytes| {
        fs::write(&path, bytes).unwrap();
        read(&path);
    });
}

/// Feeds mutations of a file to a reader of what it is part of, and restores the file.
fn fuzz_in_place(path: &Path, read: impl Fn()) {
    let whole = fs::read(path).unwrap();
    fuzz(std::slice::from_ref(&whole), |bytes| {
        fs::write(path, bytes).unwrap();
        read();
    });
    fs::write(path, whole).unwrap();
}

/// A conversation of one message.
fn messages() -> [serde_json::Value; 1] {
    [json!({ "role": "user", "content": "Hi" })]
}

/// Feeds mutations of one file of a model's folder to the reader of such folders, which then tokenizes a string.
fn fuzz_model(name: &str) {
    let folder = TempDir::new().unwrap();
    let model = folder.path().join("model");
    let language = tests_folder().join("language");
    copy_folder(&language.join("qwen2"), &model);
    let seeds =
        ["qwen2", "llama", "gemma3"].map(|family| fs::read(language.join(family).join(name)));
    let seeds: Vec<Vec<u8>> = seeds.into_iter().flatten().collect();
    fuzz(&seeds, |bytes| {
        fs::write(model.join(name), bytes).unwrap();
        if let Ok(model) = LanguageModel::load(&model) {
            let _ = model.tokenize_prompt("Hi there", &messages());
            let _ = model.tokenize_answer("", &messages(), "there", &serde_json::Map::new());
            let _ = model.decode_completion(&[0, 1, 2]);
        }
    });
}

#[test]
fn gguf() {
    fuzz_file("model.gguf", &read_malformed("shape_", ".gguf"), |path| {
        if let Ok(model) = LanguageModel::load(path) {
            let _ = model.tokenize_prompt("Hi there", &messages());
        }
    });
}

#[test]
fn safetensors() {
    fuzz_model("model.safetensors");
}

#[test]
fn tokenizer() {
    fuzz_model("tokenizer.json");
}

#[test]
fn tokenizer_config() {
    fuzz_model("tokenizer_config.json");
}

#[test]
fn config() {
    fuzz_model("config.json");
}

#[test]
fn adapters() {
    let folder = TempDir::new().unwrap();
    let base = tests_folder().join("language/qwen2");
    let mut model = LanguageModel::load(&base).unwrap();
    model.adapters = Some(Adapters::zeros(&model.shape, &LoraConfig::new(2)));
    model.save(folder.path()).unwrap();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fuzz_in_place(&folder.path().join(name), || {
            if let Ok(model) = LanguageModel::load(folder.path()) {
                assert!(model.adapters.is_some());
            }
        });
    }
}

#[test]
fn chat_template() {
    let families = ["qwen2", "llama", "gemma3", "phi3"];
    let mut seeds =
        families.map(|f| read_fixture(&format!("language/{f}/chat_template.jinja"))).to_vec();
    let generation = "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}{% generation %}\
                      {{ m['role'] | upper }}: {{ m.content.strip().split('\\n')[-1] | tojson(indent=2) }}\
                      {% endgeneration %}{% endfor %}{{ raise_exception('no') if false }}";
    seeds.push(generation.as_bytes().to_vec());
    fuzz(&seeds, |bytes| {
        let source = String::from_utf8_lossy(bytes).into_owned();
        let special_tokens = [("bos_token".to_string(), "<s>".to_string())].into();
        let template = ChatTemplate { source, special_tokens, ..ChatTemplate::default() };
        let message =
            |role: &str| json!({ "role": role, "content": "a\nb", "tool_calls": [1, null] });
        let _ = template.render(&[message("system"), message("user"), message("assistant")]);
    });
}

#[test]
fn settings() {
    let game = CartPole::default();
    let game = config_to_toml(&game, &TrainConfig::with_defaults_of(&game).unwrap());
    let text = b"task = \"sort\"\niterations = 3\n[model]\npath = \"tiny\"\n[lora]\nr = 8\n[sort]\nlength = 4\n";
    fuzz(&[game.into_bytes(), text.to_vec()], |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let Ok(table) = overlay::parse("a file", text) else { return };
        if let Ok((game, config)) = new_settings::<CartPole>(&table, &[]) {
            let _ = (crate::env::Env::validate(&game), config.validate());
        }
        if let Ok(LanguageSettings { config, .. }) = split_language_settings(table) {
            let _ = config.validate();
        }
    });
}

#[test]
fn prompts() {
    let lines = [
        r#"{"prompt": "2+2=", "solution": "4", "id": 18446744073709551616}"#,
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
        r#"{"prompt": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "split": "test"}"#,
        r#"{"prompt": "p", "completion": [{"role": "assistant", "content": null}], "tests": ["a"]}"#,
    ];
    let mut seeds = read_malformed("jsonl_", ".jsonl");
    seeds.push(lines.join("\n").into_bytes());
    fuzz_file("prompts.jsonl", &seeds, |path| drop(read_prompts(path)));
}

#[test]
fn records() {
    let lines: String =
        (1..5).map(|i| format!("{{\"iteration\":{i},\"score\":{i}.5}}\n")).collect();
    fuzz_file("metrics.jsonl", &[lines.into_bytes()], |path| {
        JsonLines::resume(path, 3).unwrap().write(&json!({ "iteration": 4 })).unwrap();
        let kept = fs::read_to_string(path).unwrap();
        let last: serde_json::Value = serde_json::from_str(kept.lines().last().unwrap()).unwrap();
        assert_eq!(last["iteration"], 4);
    });
}

#[test]
fn series() {
    let row = |i: u32| {
        format!("{i},2026-01-{:02}T00:00:00Z,{},{}\n", i, i * i, ["u", "d"][i as usize % 2])
    };
    let rows: String = (1..12).map(row).collect();
    let mut seeds = read_malformed("csv_", ".csv");
    seeds.push(format!(",time,x,label\n{rows}").into_bytes());
    fuzz_file("series.csv", &seeds, |path| {
        for time in [None, Some("time")] {
            let options = TableOptions {
                label: "label",
                time,
                time_format: None,
                window: 2,
                validation: 0.2,
            };
            let _ = AnnotatedTable::read(path, &options);
        }
    });
}

#[test]
fn problems() {
    let mut rows = String::from_utf8(read_fixture("ocaml/rows.csv")).unwrap();
    rows.truncate(4000);
    let lines = include_str!("../../../../assets/ocaml/problems.jsonl");
    let lines: Vec<&str> = lines.lines().take(3).collect();
    fuzz_file("rows.csv", &[rows.into_bytes()], |path| drop(Problems::read(path)));
    fuzz_file("rows.jsonl", &[lines.join("\n").into_bytes()], |path| drop(Problems::read(path)));
}

/// Writes a dataset of two episodes.
fn write_dataset(folder: &Path) {
    let mut writer = DatasetWriter::create(folder, Manifest::new("cartpole")).unwrap();
    let ends = [(false, false), (true, false), (false, true)];
    let statuses = ends.map(|(terminated, truncated)| EpisodeStatus::new(terminated, truncated));
    let columns = StepColumns {
        num_features: 4,
        obs: (0..12).map(|i| i as f32).collect(),
        actions: vec![0, 1, 1],
        weights: vec![1.0; 3],
        statuses: statuses.to_vec(),
    };
    writer.write(&columns).unwrap();
    writer.finish().unwrap();
}

#[test]
fn dataset_manifest_and_shard() {
    let temp_dir = TempDir::new().unwrap();
    let folder = temp_dir.path().join("data");
    write_dataset(&folder);
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    for path in names.collect::<Vec<_>>() {
        fuzz_in_place(&path, || {
            let _ = Dataset::open(&folder).and_then(|dataset| dataset.into_steps(4, 2));
        });
    }
    assert!(folder.join(MANIFEST_FILE).exists());
}

#[test]
fn games_of_the_page() {
    let temp_dir = TempDir::new().unwrap();
    let folder = temp_dir.path().join("data");
    write_dataset(&folder);
    let shards = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let shards = shards.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    let mut seeds: Vec<Vec<u8>> = shards.map(|path| fs::read(path).unwrap()).collect();
    seeds.extend(read_malformed("games_", ".safetensors"));
    fuzz(&seeds, |bytes| drop(deserialize_games(PathBuf::from("games"), bytes.to_vec())));
}

#[test]
fn checkpoint_manifest() {
    let temp_dir = TempDir::new().unwrap();
    let folder = temp_dir.path().join("best");
    let section = |name: &str, byte| checkpoint::Section {
        name: name.to_string(),
        version: 1,
        bytes: vec![byte; 9],
    };
    let sections = vec![section("weights", 1), section("state.json", 2)];
    checkpoint::save(&checkpoint::Checkpoint { iteration: 3, sections }, &folder).unwrap();
    let sums = fs::read_to_string(folder.join("SHA256SUMS")).unwrap();
    let rest = sums.split_once('\n').unwrap().1;
    fuzz(&[fs::read(folder.join("manifest.json")).unwrap()], |bytes| {
        // With the right checksum, so that the manifest itself is read.
        let digest = disk::sha256(bytes);
        fs::write(folder.join("manifest.json"), bytes).unwrap();
        fs::write(folder.join("SHA256SUMS"), format!("{digest}  manifest.json\n{rest}")).unwrap();
        let _ = checkpoint::load(&folder);
    });
}

#[test]
fn checkpoint_sections() {
    let mut config = TrainConfig::for_game("catch");
    config.rollout.num_groups = 4;
    let mut trainer = GameTrainer::new(Catch::default(), &config, &Device::flex());
    trainer.iterate().unwrap();
    let whole = trainer.snapshot().unwrap();
    for (at, section) in whole.sections.iter().enumerate() {
        // Settings have their own target, and settings that differ from those of the weights may be large.
        if section.name == "config.toml" {
            continue;
        }
        fuzz(std::slice::from_ref(&section.bytes), |bytes| {
            let mut checkpoint = whole.clone();
            checkpoint.sections[at].bytes = bytes.to_vec();
            let run = GameTrainer::new(Catch::default(), &config, &Device::flex());
            let _ = run.with_checkpoint(&checkpoint);
        });
    }
}

#[test]
fn policy() {
    let (game, config) = new_settings::<CartPole>(&toml::Table::new(), &[]).unwrap();
    let layout = config.policy.parameters(4, 2);
    let num_values = layout.iter().map(|parameter| parameter.num_elements()).sum();
    let header = Header { iteration: 3, config: config_to_toml(&game, &config), dataset: None };
    let whole = write_params(&layout, &vec![0.5; num_values], Some(&header));
    fuzz(&[whole], |bytes| {
        let Ok(checkpoint) = read_policy_file(bytes.to_vec()) else { return };
        let models = Models::default();
        if let Ok((game, config)) = read_valid_settings::<CartPole>(&models, &checkpoint) {
            let _ = models.load_policy(&checkpoint, game, &config);
        }
    });
}

#[test]
fn http_head() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let seeds = [
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:8642\r\nAccept: */*\r\n\r\n",
        "GET /run/events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 3\r\nOrigin: http://localhost\r\n\r\n",
        "HEAD http://[::1]:80/run/completions.jsonl?iteration=7 HTTP/1.1\r\nHost: [::1]:80\r\nRange: bytes=0-9\r\n\r\n",
        "POST /x HTTP/1.0\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
    ];
    let seeds = seeds.map(|seed| seed.as_bytes().to_vec());
    let hosts = Hosts { is_local: true, names: vec!["127.0.0.1".to_string()] };
    fuzz(&seeds, |bytes| {
        runtime.block_on(async {
            let (mut client, server) = tokio::io::duplex(1 << 20);
            client.write_all(bytes).await.unwrap();
            client.shutdown().await.unwrap();
            let service = service_fn(async |request: Request<_>| {
                let refused = check_request(&request, &hosts).err();
                let text = refused.map_or_else(String::new, |refused| refused.text.into());
                Ok::<_, Infallible>(Response::new(text))
            });
            let connection = http1::Builder::new();
            let _ = connection.serve_connection(TokioIo::new(server), service).await;
            let mut response = Vec::new();
            let _ = client.read_to_end(&mut response).await;
        });
    });
}

#[test]
fn verifier_line() {
    let lines = [
        r#"{"id": 1, "reward": 0.5}"#,
        r#"{"id": 18446744073709551615, "rewards": {"exact": 1, "format": -1e6}}"#,
        r#"{"id": 1, "reward": NaN}"#,
        r#"{"id": 1, "error": "no\nidea"}"#,
    ];
    let seeds = lines.map(|line| line.as_bytes().to_vec());
    let parts = [
        vec![RewardPart::new("reward", 1.0)],
        vec![RewardPart::new("exact", 1.0), RewardPart::new("format", 0.5)],
    ];
    fuzz(&seeds, |bytes| {
        let Ok(answer) = Answer::parse(bytes) else { return };
        for parts in &parts {
            if let Ok(rewards) = answer.rewards(parts) {
                assert!(rewards.iter().all(|reward| reward.abs() <= 1e6));
            }
        }
    });
}
