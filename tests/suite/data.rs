//! Datasets in memory and streamed give the same result, and nothing is copied twice.

use crate::support::{Scratch, adapter, cpu, is_alone, wait_for};
use crate::trainers::{imitator, iterate, on_threads, params, snapshot};
use burn::tensor::Device;
use grove::data::{Dataset, DatasetWriter, EpisodeStatus, Manifest, StepColumns};
use grove::env::{Env, Fruit};
use grove::metrics::IterationRecord;
use grove::settings::{DataConfig, EngineChoice, KlEstimator, LossType, ModelKind, TrainConfig};
use grove::trainer::GameTrainer;
use std::path::Path;
use std::sync::Arc;

/// Steps per episode.
const EPISODE: usize = 50;

/// Writes episodes as a dataset of three shards.
fn write(folder: &Path, episodes: usize) {
    let features = Fruit::default().num_features();
    let mut writer = DatasetWriter::create(folder, Manifest::new("fruit")).unwrap();
    for shard in 0..3 {
        let rows = episodes / 3 * EPISODE;
        let x = |i: usize| ((i * 7919 + shard * 31) % 1009) as f32 / 504.5 - 1.0;
        let columns = StepColumns {
            num_features: features,
            obs: (0..rows * features).map(x).collect(),
            actions: (0..rows).map(|row| i32::from(x(row * features) > 0.0)).collect(),
            weights: (0..rows).map(|row| (row % 3) as f32).collect(),
            statuses: (0..rows)
                .map(|row| EpisodeStatus::new(row % EPISODE == EPISODE - 1, false))
                .collect(),
        };
        writer.write(&columns).unwrap();
    }
    writer.finish().unwrap();
}

/// Creates a trainer for the dataset in `folder`.
fn run(folder: &Path, config: &TrainConfig, device: &Device) -> GameTrainer<Fruit> {
    let game = Fruit::default();
    let data = Dataset::open(folder).unwrap();
    let steps = data.into_steps(game.num_features(), game.num_actions()).unwrap();
    imitator(game, Arc::new(steps), config, device)
}

/// Settings of a run in which an epoch takes slightly more than three iterations.
fn config(kind: ModelKind, windows: usize, window: usize) -> TrainConfig {
    let mut config = TrainConfig::for_game("any");
    config.iterations = 12;
    config.policy.kind = kind;
    config.policy.hidden = vec![8];
    config.policy.kind_settings.decoder.hidden_size = 16;
    config.policy.kind_settings.decoder.num_layers = 1;
    config.policy.kind_settings.decoder.intermediate_size = 16;
    config.policy.kind_settings.decoder.context = 6;
    config.loss.loss_type = LossType::Nll;
    (config.update.update_epochs, config.update.num_minibatches) = (1, 4);
    config.data = DataConfig {
        path: "somewhere".to_string(),
        window,
        history: window / 3,
        batch_size: windows / 13,
        resident_mb: 1 << 20,
        ..DataConfig::default()
    };
    config.validate().unwrap();
    config
}

/// Checks that streaming data of three times the memory budget gives the same bytes as keeping them
/// in memory, on any number of threads and after resuming; and that data in memory are not copied
/// again.
fn assert_streams_alike(kind: ModelKind, window: usize, engine: EngineChoice, device: &Device) {
    let folder = Scratch::new();
    let folder = folder.join("shown");
    // A MiB holds about 16,000 steps with their context.
    let episodes = if window == 1 { 1500 } else { 900 };
    write(&folder, episodes);
    let windows = episodes * 9 / 10 * EPISODE.div_ceil(window);
    let mut config = TrainConfig { engine, ..config(kind, windows, window) };
    (config.loss.kl_coef, config.loss.kl_estimator) = (0.1, KlEstimator::K2);
    let mut resident = run(&folder, &config, device);
    let records = iterate(&mut resident, 5);
    let figures = |records: &[IterationRecord]| -> Vec<[f64; 2]> {
        assert!(records.iter().all(|record| record.score.is_none() && record.episodes == 0));
        assert!(records[1..].iter().all(|record| record.reference_kl > 0.0));
        records.iter().map(|record| [record.entropy, record.loss]).collect()
    };
    let expected_figures = figures(&records);
    let mut uploads: Vec<_> = records.iter().map(|record| record.uploaded_bytes).collect();
    assert!(resident.describe_engine().contains("memory"), "{}", resident.describe_engine());
    let (expected, confusion) = (params(&resident), resident.compute_confusion_matrix().unwrap());
    // The first iterations may copy data themselves, until everything has been read.
    wait_for("an iteration that copies nothing", || {
        uploads.push(resident.iterate().unwrap().uploaded_bytes);
        uploads.last() == Some(&0)
    });
    let all = uploads.iter().position(|bytes| *bytes > 3 << 20).expect("all of it, once");
    assert!(uploads[all + 1..].iter().all(|bytes| *bytes == 0), "{uploads:?}");

    let mut small = config.clone();
    small.data.resident_mb = 1;
    let streamed = |threads: usize| {
        on_threads(threads, || {
            let mut trainer = run(&folder, &small, device);
            let records = iterate(&mut trainer, 5);
            let engine = trainer.describe_engine();
            assert!(engine.contains("read as it is needed"), "{engine}");
            assert!(records.iter().all(|record| record.uploaded_bytes > 0));
            for (found, expected) in figures(&records).iter().zip(&expected_figures) {
                let apart = found.iter().zip(expected).map(|(a, b)| (a / b - 1.0).abs());
                assert!(apart.fold(0.0, f64::max) < 1e-4, "{found:?} instead of {expected:?}");
            }
            params(&trainer)
        })
    };
    for threads in if *device == cpu() { 1..=2 } else { 2..=2 } {
        assert_eq!(streamed(threads), expected, "{threads} threads");
    }
    let mut first = run(&folder, &small, device);
    iterate(&mut first, 2);
    let mut second = run(&folder, &small, device).with_checkpoint(&snapshot(&first)).unwrap();
    iterate(&mut second, 3);
    assert_eq!(params(&second), expected, "resumed");
    // Held-out measurements agree.
    assert_eq!(second.compute_confusion_matrix().unwrap(), confusion);
}

#[test]
fn a_perceptron_learns_the_same_from_streamed_data() {
    assert_streams_alike(ModelKind::Mlp, 1, EngineChoice::Auto, &cpu());
}

#[test]
fn a_perceptron_on_a_device_learns_the_same_from_streamed_data() {
    let Some(device) = adapter() else { return };
    assert_streams_alike(ModelKind::Mlp, 1, EngineChoice::Fused, &device);
}

#[test]
fn a_recurrent_network_learns_the_same_from_streamed_data() {
    assert_streams_alike(ModelKind::Gru, 10, EngineChoice::Auto, &cpu());
}

#[test]
fn a_decoder_learns_the_same_from_streamed_data() {
    assert_streams_alike(ModelKind::Decoder, 10, EngineChoice::Auto, &cpu());
}

#[test]
fn the_general_engine_compares_streamed_data_with_the_same_reference() {
    let folder = Scratch::new();
    let folder = folder.join("shown");
    let (episodes, window) = (600, 10);
    write(&folder, episodes);
    let windows = episodes * 9 / 10 * EPISODE / window;
    let mut config = config(ModelKind::Gru, windows, window);
    config.engine = EngineChoice::General;
    (config.loss.kl_coef, config.loss.kl_estimator) = (0.1, KlEstimator::K2);
    // Fewer windows in an iteration than in the dataset, and more.
    for num_minibatches in [4, 16] {
        config.update.num_minibatches = num_minibatches;
        let mut resident = run(&folder, &config, &cpu());
        let mut records = iterate(&mut resident, 1);
        // Numbers of windows are uploaded in each iteration.
        wait_for("everything to be read", || {
            records.extend(iterate(&mut resident, 1));
            records.last().unwrap().uploaded_bytes <= 1 << 17
        });
        let mut small = config.clone();
        small.data.resident_mb = 1;
        let streamed = iterate(&mut run(&folder, &small, &cpu()), records.len() as u32);
        for (found, expected) in streamed.iter().zip(&records) {
            let [found, expected] = [found, expected].map(|record| record.reference_kl);
            assert!((found / expected - 1.0).abs() < 1e-2, "{found} instead of {expected}");
        }
    }
}

/// The test needs its own process, in which no other work takes memory of the device.
#[test]
fn a_device_gets_data_once_and_needs_no_more_memory_after_an_epoch() {
    let Some(device) = adapter() else { return };
    if !is_alone("data::a_device_gets_data_once_and_needs_no_more_memory_after_an_epoch") {
        return;
    }
    let folder = Scratch::new();
    let folder = folder.join("shown");
    write(&folder, 60);
    let config = config(ModelKind::Mlp, 54 * EPISODE, 1);
    let mut trainer = run(&folder, &config, &device);
    let records = iterate(&mut trainer, 8);
    assert!(records[0].uploaded_bytes > 54 * EPISODE as u64 * 4 * 10);
    assert!(records[1..].iter().all(|record| record.uploaded_bytes == 0));
    // An epoch takes slightly more than three iterations; memory in between varies a little.
    let in_use: Vec<_> = records.iter().map(|record| record.memory.in_use.unwrap()).collect();
    let most = |part: &[u64]| part.iter().copied().max().unwrap();
    assert!(most(&in_use[4..]) <= most(&in_use[..4]) * 11 / 10, "{in_use:?}");
    assert!(records[7].memory.peak >= records[7].memory.in_use);
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_a_file_is_rejected() {
    let folder = Scratch::new();
    write(&folder, 3);
    let manifest = Dataset::open(&folder).unwrap().manifest().clone();
    for name in [&manifest.shards[0][..], "manifest.json"] {
        let path = folder.join(name);
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let error = Dataset::open(&folder).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("not a regular file"), "{error}");
    }
}
