//! Learning from demonstrations: what is kept, what is learnt from it, and what is refused.

use crate::support::{
    Scratch, adapter, cpu, json, records, refusal, refused, report, stderr, success,
};
use crate::trainers::{assert_resumes, imitator, iterate, params, snapshot};
use burn::tensor::Device;
use grove::data::{
    Dataset, DatasetWriter, EpisodeStatus, Manifest, StepColumns, Steps, serialize_games,
};
use grove::env::{Fruit, Recall, Rules};
use grove::settings::{DataConfig, EngineChoice, LossType, ModelKind, TrainConfig};
use grove::trainer::{GameTrainer, Trainer};
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::path::Path;
use std::sync::Arc;

/// Demonstrations of the fruit catcher in `folder/shown`.
fn demo(folder: &Path, episodes: &str) -> serde_json::Value {
    report(folder, &format!("demo fruit --out shown --json --player planner --episodes {episodes}"))
}

#[test]
fn a_planner_is_imitated_and_surpassed() {
    let folder = &Scratch::new();
    let shown = demo(folder, "2000");
    assert!(shown["mean_score"].as_f64().unwrap() > 7.5, "{shown}");
    let fitted = report(folder, "fit shown --device cpu --iterations 150 --run-dir fit --json");
    let score = |report: &serde_json::Value| report["mean_score"].as_f64().unwrap();
    // The planner's score over 50,000 episodes is 7.565 +- 0.012.
    assert!(score(&fitted) > 0.97 * 7.565, "{fitted}");
    assert!(fitted["held_out"]["accuracy"].as_f64().unwrap() > 0.99, "{fitted}");
    let counts = fitted["held_out"]["confusion"].as_array().unwrap();
    let total: u64 =
        counts.iter().flat_map(|row| row.as_array().unwrap()).map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(total, 200 * 100, "every tenth episode of 100 steps");
    let train = "train fruit --device cpu --iterations 40 --json --set eval_every=8";
    let after = report(folder, &format!("{train} --from fit --run-dir after"));
    assert!(score(&after) > score(&fitted) + 0.05, "{after} after {fitted}");
    // The first evaluation is beyond what a run from nothing has by then.
    let first = |run: &str| {
        let records: Vec<serde_json::Value> = records(&folder.join(run));
        records.iter().find_map(|record| record["evaluation"]["mean_score"].as_f64()).unwrap()
    };
    report(folder, &format!("{train} --run-dir from-nothing"));
    assert!(first("after") > first("from-nothing") + 0.3);
}

/// The defaults of `fit` and a file may name a setting differently.
#[test]
fn a_settings_file_overrides_the_defaults_by_any_name() {
    let folder = &Scratch::new();
    demo(folder, "40");
    // The dataset is that of the command line.
    let file = "path = \"elsewhere\"\nlr = 1e-4\nentropy_coef = 0.5\niterations = 2\n\
                [update]\nnum_iterations = 3\n";
    fs::write(folder.join("mine.toml"), file).unwrap();
    let fit = "fit shown --device cpu --json --config";
    let settings = |run: &str| -> toml::Table {
        fs::read_to_string(folder.join(run).join("config.toml")).unwrap().parse().unwrap()
    };
    report(folder, &format!("{fit} mine.toml --run-dir by-file"));
    let found = settings("by-file");
    assert_eq!(found["optimizer"]["learning_rate"].as_float(), Some(1e-4));
    assert_eq!(found["loss"]["entropy_coef"].as_float(), Some(0.5));
    assert_eq!(found["update"]["update_epochs"].as_integer(), Some(3));
    assert_eq!(found["iterations"].as_integer(), Some(2));
    report(folder, &format!("{fit} mine.toml --set iterations=1 --run-dir by-option"));
    assert_eq!(settings("by-option")["iterations"].as_integer(), Some(1));
    // Settings of an earlier run name both; iterations follow from the epochs.
    fs::copy(folder.join("by-option/config.toml"), folder.join("whole.toml")).unwrap();
    report(folder, &format!("{fit} whole.toml --set epochs=60 --run-dir again"));
    assert!(settings("again")["iterations"].as_integer() > Some(1));
    // Only iterations that do not follow from the epochs are a change.
    let listed = json(folder, &["runs", ".", "--json"]);
    let changed = |run: &str| {
        let runs = listed.as_array().unwrap();
        let found = runs.iter().find(|it| it["run"].as_str().unwrap().ends_with(run)).unwrap();
        found["changes"]["iterations"].clone()
    };
    assert_eq!(
        ["by-file", "by-option", "again"].map(changed),
        [2.into(), 1.into(), serde_json::Value::Null]
    );
}

#[test]
fn a_policy_is_demonstrated_by_its_run() {
    let folder = &Scratch::new();
    let train = "train catch --run-dir run --set num_groups=8 --iterations 3 --device cpu --json";
    report(folder, train);
    let shown = report(folder, "demo catch --player run --episodes 64 --out shown --json");
    assert_eq!(shown["steps"], 64 * 9);
    let steps = Dataset::open(&folder.join("shown")).unwrap().into_steps(4, 3).unwrap();
    assert_eq!(steps.episodes().len(), 64);
    assert_eq!(
        (0..steps.len()).filter(|i| steps.status(*i) == EpisodeStatus::Terminated).count(),
        64
    );
    for (line, words) in [
        ("demo catch --player random --out shown", "the folder shown is not empty"),
        (
            "demo fruit --player nobody --out other",
            "its players are: random, lowest-fruit, planner",
        ),
        ("train fruit --from run", "of the game `catch`, not `fruit`"),
    ] {
        refused(folder, line, &[words]);
    }
}

/// Ten episodes of 12 steps in which the action is the sign of the first feature.
fn columns(num_features: usize) -> StepColumns {
    let rows = 120;
    let x = |row: usize, i: usize| ((row * 37 + i * 11) % 23) as f32 / 11.0 - 1.0;
    let obs = (0..rows).flat_map(|row| (0..num_features).map(move |i| x(row, i)));
    StepColumns {
        num_features,
        obs: obs.collect(),
        actions: (0..rows).map(|row| i32::from(x(row, 0) > 0.0)).collect(),
        weights: vec![1.0; rows],
        statuses: (0..rows).map(|row| EpisodeStatus::new(row % 12 == 11, false)).collect(),
    }
}

fn config(kind: ModelKind, window: usize) -> TrainConfig {
    let mut config = TrainConfig::for_game("any");
    config.iterations = 9;
    config.policy.kind = kind;
    config.policy.hidden = vec![16];
    config.loss.loss_type = LossType::Nll;
    config.loss.entropy_coef = 0.0;
    config.update.update_epochs = 1;
    config.update.num_minibatches = 5;
    config.optimizer.learning_rate = 2e-2;
    config.checkpoint.eval_episodes = 20;
    config.data = DataConfig {
        path: "somewhere".to_string(),
        window,
        batch_size: if window > 1 { 7 } else { 16 },
        ..DataConfig::default()
    };
    config.validate().unwrap();
    config
}

fn run<G: Rules>(game: G, config: &TrainConfig, device: &Device) -> GameTrainer<G> {
    imitator(game, Arc::new(columns(game.num_features())), config, device)
}

#[test]
#[should_panic(expected = "which must name a dataset exactly where the run learns from one")]
fn settings_of_a_dataset_play_no_games() {
    let config = config(ModelKind::Mlp, 1);
    let _ = Trainer::new(Fruit::default(), &config, &cpu());
}

/// A run that is interrupted in the middle of an epoch gives the bytes of one that is not, on any number
/// of threads; and it learns.
fn assert_resumes_exactly<G: Rules + serde::Serialize>(game: G, config: &TrainConfig) {
    let new = || run(game, config, &cpu());
    assert_resumes(new, config.iterations, &[(2, 0), (2, 4)]);
    let mut trainer = new();
    let before = trainer.compute_confusion_matrix().unwrap().means();
    iterate(&mut trainer, config.iterations);
    let after = trainer.compute_confusion_matrix().unwrap().means();
    assert!(after.loss < 0.5 * before.loss, "{before:?} {after:?}");
}

#[test]
fn a_perceptron_resumes_in_the_middle_of_an_epoch() {
    assert_resumes_exactly(Fruit::default(), &config(ModelKind::Mlp, 1));
}

#[test]
fn a_recurrent_network_resumes_in_the_middle_of_an_epoch() {
    assert_resumes_exactly(Recall::default(), &config(ModelKind::Gru, 5));
}

#[test]
fn a_dataset_smaller_than_a_batch_counts_its_own_steps() {
    for engine in [EngineChoice::Auto, EngineChoice::General] {
        let mut config = TrainConfig { engine, ..config(ModelKind::Mlp, 1) };
        config.data.batch_size = 4096;
        let mut trainer = run(Fruit::default(), &config, &cpu());
        let records = iterate(&mut trainer, 2);
        // Nine of ten episodes of 12 steps are learnt from, in each of five optimizer steps.
        assert_eq!([0, 1].map(|i| records[i].env_steps), [5 * 9 * 12, 2 * 5 * 9 * 12]);
        let saved = snapshot(&trainer);
        let resumed = run(Fruit::default(), &config, &cpu()).with_checkpoint(&saved).unwrap();
        assert_eq!(resumed.env_steps(), trainer.env_steps());
    }
}

#[test]
fn engines_learn_the_same_from_data() {
    for smoothing in [0.0, 0.2] {
        assert_engines_learn_the_same(smoothing);
    }
}

fn assert_engines_learn_the_same(label_smoothing: f64) {
    let mut records = Vec::new();
    let mut weights = |config: &TrainConfig, device: &Device| -> Vec<f32> {
        let mut trainer = run(Fruit::default(), config, device);
        records.push(iterate(&mut trainer, 3).pop().unwrap());
        params(&trainer)
    };
    let mut fast = config(ModelKind::Mlp, 1);
    (fast.update.update_epochs, fast.update.num_minibatches) = (2, 3);
    fast.loss.label_smoothing = label_smoothing;
    let general = TrainConfig { engine: EngineChoice::General, ..fast.clone() };
    let native = weights(&fast, &cpu());
    let first = params(&run(Fruit::default(), &fast, &cpu()));
    let far = |other: &[f32]| {
        let square = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
        };
        (square(other, &native) / square(&first, &native)).sqrt()
    };
    assert!(far(&weights(&general, &cpu())) < 1e-4);
    if let Some(device) = adapter() {
        let how = run(Fruit::default(), &fast, &device).describe_engine();
        assert!(how.contains("fused updates"), "{how}");
        for config in [&fast, &general] {
            assert!(far(&weights(config, &device)) < 1e-4);
        }
    }
    for record in &records {
        assert_eq!((record.score, record.episodes), (None, 0));
        for (found, expected) in [
            (record.entropy, records[0].entropy),
            (record.loss, records[0].loss),
            (record.grad_norm, records[0].grad_norm),
        ] {
            assert!((found / expected - 1.0).abs() < 1e-3, "{found} instead of {expected}");
        }
        // 3 iterations of 2 epochs of 3 minibatches of 16 windows of a step.
        assert_eq!(record.env_steps, 3 * 2 * 3 * 16);
    }
}

/// A shard as any program may write it.
fn shard(path: &Path, obs: (&[usize], &[f32]), actions: &[i64], more: &[(&str, &[f32])]) {
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (shape, values) = obs;
    let obs = bytes(values);
    let taken: Vec<u8> = actions.iter().flat_map(|a| a.to_le_bytes()).collect();
    let more: Vec<_> = more.iter().map(|(name, x)| (*name, x.len(), bytes(x))).collect();
    let mut tensors = vec![
        ("obs", TensorView::new(Dtype::F32, shape.to_vec(), &obs).unwrap()),
        ("actions", TensorView::new(Dtype::I64, vec![actions.len()], &taken).unwrap()),
    ];
    for (name, len, x) in &more {
        tensors.push((name, TensorView::new(Dtype::F32, vec![*len], x).unwrap()));
    }
    fs::write(path, safetensors::serialize(tensors, None).unwrap()).unwrap();
}

#[test]
fn bad_datasets_get_one_clear_sentence_and_nothing_is_written() {
    let folder = &Scratch::new();
    let manifest = |text: &str| {
        fs::create_dir_all(folder.join("d")).unwrap();
        fs::write(folder.join("d/manifest.json"), text).unwrap();
    };
    let said = |more: &[&str]| {
        let text = refusal(folder, &[&["fit", "d", "--device", "cpu"], more].concat());
        assert!(!folder.join("runs").exists(), "{text}");
        text
    };
    assert!(said(&[]).contains("there is no folder d; a dataset is a folder with a manifest.json"));
    fs::create_dir(folder.join("d")).unwrap();
    assert!(said(&[]).contains("d is not a dataset: it has no manifest.json"));
    manifest("{");
    assert!(said(&[]).contains("manifest.json: EOF"), "{}", said(&[]));
    manifest(r#"{"format": 2, "env": "catch", "shards": ["a"]}"#);
    assert!(said(&[]).contains("its format is 2, but this build reads 1"));
    manifest(r#"{"format": 1, "env": "catch", "shards": []}"#);
    assert!(said(&[]).contains("it names no shards"));
    manifest(r#"{"format": 1, "env": "catch", "shards": ["../a"]}"#);
    assert!(said(&[]).contains("the shard `../a` is not a file in that folder"));
    manifest(r#"{"format": 1, "env": "catch", "shards": ["a"], "held_out": ["a"]}"#);
    assert!(said(&[]).contains("it names the shard `a` twice"));
    manifest(r#"{"format": 1, "env": "chess", "shards": ["a"]}"#);
    fs::write(folder.join("d/a"), [0; 5]).unwrap();
    assert!(said(&[]).contains("a game that this program does not have"));
    manifest(r#"{"format": 1, "env": "catch", "shards": ["a"]}"#);
    assert!(said(&[]).contains("d/a: "), "{}", said(&[]));
    let path = folder.join("d/a");
    let good = vec![0.5; 40];
    let actions = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0];
    shard(&path, (&[10, 4], &good), &actions, &[]);
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
    assert!(said(&[]).contains("d/a: "), "cut off");
    shard(&path, (&[8, 5], &good), &actions, &[]);
    assert!(said(&[]).contains("`obs` is [8, 5], but must be [steps, 4]"), "{}", said(&[]));
    shard(&path, (&[10, 4], &good), &actions[..9], &[]);
    assert!(said(&[]).contains("`actions` is [9], but must be [10]"));
    shard(&path, (&[10, 4], &good), &[0, 1, 2, 3, 0, 0, 0, 0, 0, 0], &[]);
    assert!(said(&[]).contains("`actions` has 3 in row 3, but actions are 0 to 2"));
    let mut bad = good.clone();
    bad[6] = f32::NAN;
    shard(&path, (&[10, 4], &bad), &actions, &[]);
    assert!(said(&[]).contains("`obs` has NaN in row 1, feature 2"));
    bad[6] = 1e38;
    shard(&path, (&[10, 4], &bad), &actions, &[]);
    assert!(said(&[]).contains("`obs` has 1e38 in row 1, feature 2, but must be -1e15 to 1e15"));
    for weight in [-1.0, 1e-40, 3e38] {
        shard(&path, (&[10, 4], &good), &actions, &[("weights", &[weight; 10])]);
        let words = format!("`weights` has {weight:e} in row 0, but must be 0 or 1e-15 to 1e15");
        assert!(said(&[]).contains(&words), "{}", said(&[]));
    }
    shard(&path, (&[10, 4], &good), &actions, &[("ends", &[0.0; 10])]);
    assert!(said(&[]).contains("`ends` is of type F32, but must be I64, I32 or U8"));
    shard(&path, (&[10, 4], &good), &actions, &[]);
    // It is one episode, as nothing is said of ends.
    assert!(said(&[]).contains("too few episodes, 1, to hold out a share of 0.1"), "{}", said(&[]));
    shard(&path, (&[0, 4], &[]), &[], &[]);
    assert!(said(&[]).contains("there is no step in it"));
    shard(&folder.join("d/b"), (&[10, 4], &good), &actions, &[]);
    manifest(r#"{"format": 1, "env": "catch", "shards": ["b"], "held_out": ["a"]}"#);
    assert!(said(&[]).contains("no step is in the `held_out` that the manifest"), "{}", said(&[]));
    manifest(r#"{"format": 1, "env": "catch", "shards": ["b"], "actions": ["left", "right"]}"#);
    assert!(said(&[]).contains("names 2 actions, but there are 3 with"), "{}", said(&[]));
    manifest(
        r#"{"format": 1, "env": "table", "settings": {"columns": 4}, "shards": ["b"], "features": ["a"]}"#,
    );
    assert!(said(&[]).contains("names 1 features, but there are 4 with"), "{}", said(&[]));
    shown(folder);
    let long = "fit shown --device cpu --set data.window=13";
    refused(folder, long, &["the longest episode in"]);
    manifest(r#"{"format": 1, "env": "catch", "settings": {"rows": 9}, "shards": ["a"]}"#);
    let other = said(&["--set", "catch.rows=10"]);
    assert!(other.contains("is of `catch` with catch.rows = 9, not 10"), "{other}");
    for (line, words) in [
        ("fit shown --model tiny", "shown is a dataset of a game, and --model"),
        (
            "demo catch --player random --out shown",
            "the folder shown is not empty; choose another one",
        ),
        ("fit shown --set loss_type=grpo", "nll where the run learns from data"),
    ] {
        refused(folder, line, &[words]);
    }
}

/// A dataset of `columns` for the game of catching, in `folder/shown`.
fn shown(folder: &Path) {
    let mut writer = DatasetWriter::create(&folder.join("shown"), Manifest::new("catch")).unwrap();
    writer.write(&columns(4)).unwrap();
    writer.finish().unwrap();
}

#[test]
fn epochs_are_passes_over_the_data_and_windows_fit_the_episodes() {
    let folder = &Scratch::new();
    shown(folder);
    // 9 episodes of 12 steps are learnt from: 108 batches of one step in an epoch.
    let fit = |more: &str| report(folder, &format!("fit shown --device cpu --json {more}"));
    fit("--run-dir two --set data.epochs=2 --set data.batch_size=1");
    let config = fs::read_to_string(folder.join("two/config.toml")).unwrap();
    let config: toml::Table = config.parse().unwrap();
    assert_eq!(config["iterations"].as_integer(), Some(4));
    assert_eq!(config["update"]["num_minibatches"].as_integer(), Some(216 / 4));
    let listed = json(folder, &["runs", ".", "--json"]);
    let changes: Vec<_> = listed[0]["changes"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(changes, ["data.batch_size", "data.digest", "data.epochs", "data.path"]);
    // A history beyond the start of an episode is empty.
    let loss = |history: &str| {
        let gru = "--iterations 1 --set policy.kind=gru --set policy.hidden=[8]";
        fit(&format!("{gru} --set data.history={history} --run-dir {history}"));
        records::<serde_json::Value>(&folder.join(history))[0]["loss"].clone()
    };
    let [beyond, whole, shorter] = ["65536", "11", "10"].map(loss);
    assert!(whole.is_f64() && beyond == whole && shorter != whole, "{beyond} {whole} {shorter}");
    let warns = |sets: &str| {
        let line = format!("fit shown --device cpu --dry-run {sets}");
        let output = success(folder, &line.split(' ').collect::<Vec<_>>());
        stderr(&output).contains("--set data.window=12 --set data.batch_size=21 trains it")
    };
    assert!(warns("--set policy.kind=gru") && !warns("--set policy.kind=mlp"));
    assert!(!warns("--set policy.kind=gru --set data.window=12"));
}

#[test]
fn a_dataset_in_the_settings_is_found_from_another_folder() {
    let folder = &Scratch::new();
    shown(folder);
    let train = "train catch --device cpu --json --run-dir run --iterations 2";
    report(folder, &format!("{train} --set data.path=shown --set loss_type=nll"));
    let elsewhere = folder.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let resumed = report(&elsewhere, "train --resume ../run --iterations 3 --device cpu --json");
    assert_eq!(resumed["iteration"], 3);
    let sweep = "game = 'catch'\nseeds = '1'\ntrials = 2\nsearch = 'random'\n[settings]\niterations = 1\neval_every = 1\n\
                 data.path = 'shown'\nloss.loss_type = 'nll'\n[space]\nlearning_rate = { log = [1e-3, 1e-2] }\n";
    fs::write(folder.join("study.toml"), sweep).unwrap();
    json(folder, &["sweep", "study.toml", "--device", "cpu", "--json"]);
    report(&elsewhere, "train --config ../study/best.toml --device cpu --json");
}

#[test]
fn a_fit_stops_without_improvement_and_can_be_resumed() {
    let folder = &Scratch::new();
    shown(folder);
    // A rate at which the loss is soon at its best.
    let fit = "fit shown --device cpu --json --run-dir";
    let sets = "--set patience=2 --set eval_every=1 --set learning_rate=0.5";
    let ended = report(folder, &format!("{fit} run {sets} --iterations 200"));
    let (done, best) = (&ended["iteration"], &ended["best_iteration"]);
    assert_eq!(done.as_u64().unwrap(), best.as_u64().unwrap() + 2, "{ended}");
    assert_eq!(ended["interrupted"], false);
    report(folder, &format!("{fit} run2 --iterations 3"));
    let on = ["train", "--resume", "--run-dir", "run2", "--iterations", "5", "--device", "cpu"];
    let output = success(folder, &on);
    assert!(stderr(&output).contains("a dataset in memory"), "{}", stderr(&output));
}

#[test]
fn the_games_of_a_person_are_imported_and_learnt() {
    let folder = &Scratch::new();
    let mut manifest = Manifest::new("catch");
    manifest.features = (0..4).map(|i| format!("feature {i}")).collect();
    manifest.actions = ["left", "stay", "right"].map(String::from).to_vec();
    let file = serialize_games(&manifest, &columns(4));
    fs::write(folder.join("mine"), &file).unwrap();
    let report = json(folder, &["import", "mine", "--out", "shown", "--json"]);
    assert_eq!((&report["episodes"], &report["steps"]), (&10.into(), &120.into()));
    let report = json(folder, &["fit", "shown", "--device", "cpu", "--run-dir", "run", "--json"]);
    assert!(report["held_out"]["accuracy"].as_f64().unwrap() > 0.8, "{report}");

    let said = |bytes: &[u8], words: &[&str]| {
        fs::write(folder.join("mine"), bytes).unwrap();
        let text = refusal(folder, &[&["import", "mine", "--out", "other"], words].concat());
        assert!(!folder.join("other").exists(), "{text}");
        text
    };
    assert!(said(&file[..99], &[]).contains("mine: "));
    assert!(said(&file, &["--label", "x"]).contains("--window"));
    manifest.env = "chess".to_string();
    assert!(said(&serialize_games(&manifest, &columns(4)), &[]).contains("unknown game `chess`"));
    manifest.actions.truncate(1);
    assert!(said(&serialize_games(&manifest, &columns(4)), &[]).contains("`actions` has 1 in row"));
}

#[test]
fn games_have_players_that_know_how() {
    let folder = &Scratch::new();
    for (game, player, score) in
        [("catch", "chaser", 1.0), ("cartpole", "balancer", 500.0), ("recall", "rememberer", 1.0)]
    {
        let demo = format!("demo {game} --player {player} --episodes 200 --out {game} --json");
        assert_eq!(report(folder, &demo)["mean_score"].as_f64().unwrap(), score, "{game}");
    }
}
