//! Policies that are transformers: they train, repeat, resume, act and are saved as all others.

use crate::models::{bytes, iterate, repeats_and_resumes};
use crate::shared::training::short_run;
use crate::support::{adapter, cpu, grove, json, refusal, stdout, train};
use burn::tensor::{Device, Tensor, TensorData};
use grove::config::{DecoderConfig, Engine, ModelKind, Start, TrainConfig};
use grove::data::Trajectory;
use grove::env::{Catch, Env, Recall};
use grove::learner::Learner;
use grove::model::{Decoder, NativePolicy, TensorActor, flatten};
use grove::rng::Stream;
use grove::rollout::{Player, evaluate};
use grove::trainer::{Trainer, load_policy};

/// A small decoder whose window is shorter than an episode of Catch.
fn decoder_run(start: Start) -> TrainConfig {
    let mut config = short_run(start);
    config.policy.kind = ModelKind::Decoder;
    config.policy.own.decoder = DecoderConfig {
        hidden_size: 8,
        num_layers: 2,
        num_heads: 2,
        num_kv_heads: 1,
        intermediate_size: 12,
        context: 5,
    };
    config
}

fn a_decoder_repeats_and_resumes(device: &Device) {
    for start in [Start::Branch, Start::Level] {
        let config = decoder_run(start);
        let decoder = Trainer::new(Catch::default(), &config, device).model();
        repeats_and_resumes(&decoder, &config, device);
    }
}

#[test]
fn on_the_cpu_a_decoder_repeats_and_resumes_byte_for_byte() {
    a_decoder_repeats_and_resumes(&cpu());
}

#[test]
fn on_an_adapter_a_decoder_repeats_and_resumes_byte_for_byte() {
    let Some(device) = adapter() else { return };
    a_decoder_repeats_and_resumes(&device);
}

#[test]
fn any_number_of_threads_makes_the_same_bytes() {
    // As many games, steps and units as make Burn's CPU backend divide its work.
    let mut config = decoder_run(Start::Branch);
    config.policy.own.decoder = DecoderConfig { context: 8, ..DecoderConfig::default() };
    config.rollout.num_groups = 32;
    config.rollout.group_size = 8;
    config.rollout.num_steps = 24;
    config.rollout.learn_steps = 16;
    config.update.num_minibatches = 2;
    let run = |threads: usize, engine: Engine| {
        let config = TrainConfig { engine, ..config.clone() };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut trainer = Trainer::new(Catch::default(), &config, &cpu());
            iterate(&mut trainer, 2);
            bytes(&trainer)
        })
    };
    for engine in [Engine::Auto, Engine::General] {
        let one = run(1, engine);
        for threads in [2, 3] {
            assert!(one == run(threads, engine), "{threads} threads, {engine:?}");
        }
    }
}

/// The parameters before and after the first update from made-up steps of 6 games, in which episodes end.
fn first_update(config: &TrainConfig, device: &Device) -> [Vec<f64>; 2] {
    let [steps, games, features, actions] = [11, 6, 7, 3];
    let wave = |count: usize, rate: f32| -> Vec<f32> {
        (0..count).map(|i| (i as f32 * rate).sin()).collect()
    };
    let rows = |v: Vec<f32>| Tensor::<2>::from_data(TensorData::new(v, [steps, games]), device);
    let zeros = || Tensor::<2>::zeros([steps, games], device);
    let ends = (0..steps * games).map(|i| f32::from(i % 17 == 5)).collect();
    let policy = Decoder::new(features, actions, &config.policy, 7, device);
    let taken: Vec<i32> = (0..steps * games).map(|i| (i * 7 % 5 % actions) as i32).collect();
    let obs = TensorData::new(wave(steps * games * features, 1.7), [steps, games, features]);
    // Steps that were remembered before the first: 0 to 7 of them.
    let size = policy.shape().memory_size();
    let mut memory = wave(games * size, 0.9);
    memory
        .iter_mut()
        .step_by(size)
        .enumerate()
        .for_each(|(i, n)| *n = [0.0, 1.0, 3.0, 5.0, 6.0, 7.0][i]);
    let trajectory = Trajectory {
        obs: Tensor::from_data(obs, device),
        actions: Tensor::from_data(TensorData::new(taken, [steps, games]), device),
        logprobs: rows(wave(steps * games, 0.3).iter().map(|x| x * 0.3 - 1.1).collect()),
        rewards: zeros(),
        terminated: rows(ends),
        truncated: zeros(),
        scores: zeros(),
        memory: Some(Tensor::from_data(TensorData::new(memory, [games, size]), device)),
        legal: None,
    };
    let advantages = rows(wave(steps * games, 2.3));
    let params = |policy: &Decoder| flatten(policy).into_data().iter::<f64>().collect::<Vec<_>>();
    let before = params(&policy);
    let mut learner = Learner::new(policy, config);
    learner.update(&trajectory, &advantages, &trajectory.mask(true), 0);
    [before, params(&learner.weights().policy())]
}

/// A run whose first update is one step as long as the gradient, which the sign of a small one does not
/// decide; `parts` are those that its minibatch is worked off in.
fn one_step(engine: Engine, parts: usize) -> TrainConfig {
    let mut config = TrainConfig { engine, ..decoder_run(Start::Level) };
    config.update.update_epochs = 1;
    config.update.num_minibatches = 1;
    config.update.gradient_accumulation_steps = parts;
    config.optimizer.adam_epsilon = 1.0;
    config
}

/// How far two updates are apart, as a share of how far the second went.
fn apart(got: &[Vec<f64>; 2], [before, want]: &[Vec<f64>; 2]) -> f64 {
    assert_eq!(&got[0], before);
    let distance =
        |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
    let change = distance(want, before);
    assert!(change > 1e-4, "{change}");
    distance(&got[1], want) / change
}

#[test]
fn the_first_update_on_an_adapter_is_that_of_the_cpu() {
    let Some(device) = adapter() else { return };
    let config = one_step(Engine::Auto, 1);
    let off = apart(&first_update(&config, &device), &first_update(&config, &cpu()));
    assert!(off < 1e-4, "off by {off}");
}

#[test]
fn the_first_update_by_hand_is_that_of_autodiff() {
    for parts in [1, 4] {
        let [by_hand, by_autodiff] = [Engine::Auto, Engine::General]
            .map(|engine| first_update(&one_step(engine, parts), &cpu()));
        let off = apart(&by_hand, &by_autodiff);
        assert!(off > 0.0 && off < 2e-5, "off by {off}");
    }
}

#[test]
fn a_decoder_acts_the_same_natively_and_by_tensors() {
    let config = decoder_run(Start::Branch);
    let game = Catch::default();
    let trainer = Trainer::new(game, &config, &cpu());
    let native = NativePolicy::new(&trainer.model());
    let tensors = TensorActor::new(&trainer.model(), game.num_features(), 3);
    for player in [Player::Greedy, Player::Sampling] {
        let [a, b] = [
            evaluate(&native, game, 333, Stream::Validation, config.seed, player),
            evaluate(&tensors, game, 333, Stream::Validation, config.seed, player),
        ];
        assert_eq!(trainer.evaluate(333, player), a);
        // Rounding may decide an action in a thousand.
        assert!((a.mean_score - b.mean_score).abs() < 0.02, "{a:?} {b:?}");
        assert_eq!(a.mean_length, b.mean_length);
    }
    let saved = load_policy(&trainer.snapshot(), game, &config).unwrap();
    assert_eq!(
        evaluate(&saved, game, 50, Stream::Evaluation, 1, Player::Greedy),
        evaluate(&native, game, 50, Stream::Evaluation, 1, Player::Greedy)
    );
}

#[test]
fn a_decoder_learns_what_none_without_memory_can() {
    let game = Recall { steps: 16, ..Recall::default() };
    let mut config = TrainConfig::for_game(Recall::NAME);
    config.policy.kind = ModelKind::Decoder;
    config.rollout.num_steps = 16;
    config.rollout.learn_steps = 16;
    let mut trainer = Trainer::new(game, &config, &cpu());
    for _ in 0..12 {
        trainer.iterate().unwrap();
    }
    // Chance, and the best without a memory, is 1 / 4.
    let score = trainer.evaluate(2000, Player::Greedy).mean_score;
    assert!(score >= 0.99, "{score}");
}

#[test]
fn the_program_trains_resumes_evaluates_records_and_measures_a_decoder() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let kind = ["--set", "kind=decoder", "--set", "context=4", "--iterations"];
    json(folder, &train("catch", "whole", &[&kind[..], &["4"]].concat()));
    json(folder, &train("catch", "broken", &[&kind[..], &["2"]].concat()));
    let go_on = ["train", "--resume", "--run-dir", "broken", "--json", "--device", "cpu"];
    let resumed = json(folder, &[&go_on[..], &["--iterations", "4"]].concat());
    assert_eq!(resumed["iteration"], 4);
    let report = json(folder, &["eval", "whole", "--episodes", "100", "--json"]);
    assert_eq!(report["episodes"], 100);
    let said =
        grove(folder, &["record", "whole", "--out", "x.png", "--games", "4", "--steps", "5"]);
    assert!(said.status.success() && stdout(&said).contains("catch"));
    let small = ["--num-envs", "32", "--num-steps", "8", "--repeats", "1", "--device", "cpu"];
    let arguments = [&["bench", "catch", "--json", "--set", "kind=decoder"], &small[..]].concat();
    let measured = json(folder, &arguments);
    let policy = "decoder of 2 layers of 64, 4 heads, 32 steps of context";
    assert_eq!(measured["policy"], policy);
    let fused = [&kind[..4], &["--engine", "fused"]].concat();
    let said = refusal(folder, &train("catch", "fast", &fused));
    assert!(said.contains("not a `decoder`"), "{said}");
}

#[test]
fn sizes_that_do_not_fit_are_named_where_the_policy_is_a_decoder() {
    for (assignment, words) in [
        ("hidden_size=20", "policy.hidden_size is 20, but must be a multiple of twice"),
        (
            "num_kv_heads=3",
            "policy.num_kv_heads is 3, but must be a divisor of policy.num_heads (4)",
        ),
        ("num_layers=0", "policy.num_layers is 0, but must be 1 to 128"),
        ("context=0", "policy.context is 0, but must be 1 to 8192"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let set = ["--set", "kind=decoder", "--set", assignment];
        let said = refusal(folder.path(), &train("catch", "run", &set));
        assert!(said.contains(words) && said.trim().lines().count() == 1, "{said}");
        // Of no other kind of network.
        let mut config = TrainConfig::for_game(Catch::NAME);
        config.policy.own.decoder.num_kv_heads = 3;
        config.validate().unwrap();
    }
}
