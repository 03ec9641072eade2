//! Models other than the perceptron: they train, repeat, resume, act and are saved as that one.

#[allow(dead_code)]
#[path = "../../examples/own_model.rs"]
pub mod own_model;

use crate::own_models::Leaky;
use crate::shared::training::short_run;
use crate::support::{Scratch, adapter, cpu, grove, json, stdout, train};
use crate::trainers::{iterate, on_threads, snapshot};
use burn::tensor::Device;
use grove::env::{Catch, Env, Recall};
use grove::model::{NamedModel, NativePolicy, Network, TensorActor};
use grove::rng::Stream;
use grove::rollout::{ActionSelection, evaluate};
use grove::settings::{Activation, EngineChoice, GroupStart, ModelKind, PolicyConfig, TrainConfig};
use grove::trainer::{Trainer, load_policy};
use own_model::Residual;
use std::fs;
use std::path::Path;

fn gru_run(start: GroupStart) -> TrainConfig {
    let mut config = short_run(start);
    config.policy.kind = ModelKind::Gru;
    config.policy.hidden = vec![8, 5];
    config
}

/// The example's model, for Catch.
fn residual(width: usize, key: u32, device: &Device) -> Network {
    let game = Catch::default();
    let config = PolicyConfig::mlp(&[width], Activation::Relu);
    let (features, actions) = (game.num_features(), game.num_actions());
    Network::user_defined::<Residual>(features, actions, &config, key, device)
}

/// A run repeats itself, and goes on where it was interrupted, byte for byte.
pub fn assert_repeats_and_resumes(model: &Network, config: &TrainConfig, device: &Device) {
    let game = Catch::default();
    let new = || Trainer::with_model(game, model.clone(), config, device);
    let [mut whole, mut again, mut broken] = [new(), new(), new()];
    // The native engine takes built-in networks; the fused one takes perceptrons alone.
    assert_eq!(whole.fallback_reason().is_none(), model.kind().is_some() && *device == cpu());
    iterate(&mut whole, 4);
    iterate(&mut again, 4);
    assert!(snapshot(&whole) == snapshot(&again), "{} repeats itself", whole.describe_engine());
    iterate(&mut broken, 2);
    let saved = snapshot(&broken);
    let has_memory = model.initial_memory(1, device).is_some();
    let saves_memory = has_memory && config.rollout.start == GroupStart::Branch;
    assert_eq!(saved.section("memory.safetensors", 1).is_ok(), saves_memory);
    let mut resumed = new().with_checkpoint(&saved).unwrap();
    iterate(&mut resumed, 2);
    assert!(snapshot(&whole) == snapshot(&resumed), "{} goes on exactly", whole.describe_engine());
}

/// Checks that a run of so many groups of games comes to the same bytes on any number of threads.
pub fn assert_any_threads_agree(mut config: TrainConfig, num_groups: usize) {
    // So many games, steps and units that Burn's CPU backend divides its work.
    config.rollout.num_groups = num_groups;
    config.rollout.group_size = 8;
    config.rollout.num_steps = 24;
    config.rollout.learn_steps = 16;
    config.update.num_minibatches = 2;
    let run = |threads: usize| {
        on_threads(threads, || {
            let mut trainer = Trainer::new(Catch::default(), &config, &cpu());
            iterate(&mut trainer, 2);
            snapshot(&trainer)
        })
    };
    let one = run(1);
    for threads in [2, 3] {
        assert!(one == run(threads), "{threads} threads: {config:?}");
    }
}

/// Checks that networks of this kind learn Recall in so many iterations.
pub fn assert_learns_recall(kind: ModelKind, iterations: u32) {
    let game = Recall { steps: 16, ..Recall::default() };
    let mut config = TrainConfig::for_game(Recall::NAME);
    config.policy.kind = kind;
    config.rollout.num_steps = 16;
    config.rollout.learn_steps = 16;
    let mut trainer = Trainer::new(game, &config, &cpu());
    iterate(&mut trainer, iterations);
    // Chance, and the best without a memory, is 1 / 4.
    let score = trainer.evaluate_on_validation(2000, ActionSelection::Greedy).unwrap().mean_score;
    assert!(score >= 0.99, "{score}");
}

fn assert_any_model_repeats_and_resumes(device: &Device) {
    for start in [GroupStart::Branch, GroupStart::Level] {
        let config = gru_run(start);
        let gru = Trainer::new(Catch::default(), &config, device).model();
        assert_repeats_and_resumes(&gru, &config, device);
        let leaky = Leaky::new(4, 3, &config.policy, 1, device).into();
        assert_repeats_and_resumes(&leaky, &config, device);
    }
    let own = residual(8, 3, device);
    assert_repeats_and_resumes(&own, &short_run(GroupStart::Branch), device);
}

#[test]
fn on_the_cpu_any_model_repeats_and_resumes_byte_for_byte() {
    assert_any_model_repeats_and_resumes(&cpu());
}

#[test]
#[ignore = "slow: 50 s of CPU time on a software adapter"]
fn on_an_adapter_any_model_repeats_and_resumes_byte_for_byte() {
    let Some(device) = adapter() else { return };
    assert_any_model_repeats_and_resumes(&device);
}

#[test]
fn one_thread_and_two_make_the_same_bytes() {
    for kind in [ModelKind::Gru, ModelKind::Mlp] {
        let mut config = gru_run(GroupStart::Branch);
        (config.policy.kind, config.policy.hidden) = (kind, vec![64, 64]);
        config.engine = EngineChoice::General;
        assert_any_threads_agree(config, 64);
    }
}

#[test]
fn three_hidden_layers_are_trained_by_the_cpus_engine_as_by_autodiff() {
    let mut config = short_run(GroupStart::Branch);
    config.policy.hidden = vec![16, 9, 12];
    let [mut fast, mut general] = [EngineChoice::Auto, EngineChoice::General].map(|engine| {
        let config = TrainConfig { engine, ..config.clone() };
        Trainer::new(Catch::default(), &config, &cpu())
    });
    assert_ne!(fast.describe_engine(), general.describe_engine());
    for _ in 0..3 {
        let (a, b) = (fast.iterate().unwrap(), general.iterate().unwrap());
        assert_eq!((a.score, a.episodes), (b.score, b.episodes));
        for (a, b) in [(a.entropy, b.entropy), (a.grad_norm, b.grad_norm), (a.loss, b.loss)] {
            assert!((a - b).abs() <= 1e-5 + 1e-3 * b.abs(), "{a} and {b}");
        }
    }
    let Some(device) = adapter() else { return };
    let reason = Trainer::fallback_reason_for(Catch::default(), &config, &device).unwrap();
    assert!(reason.contains("one or two hidden layers"), "{reason}");
}

/// Checks that a policy for catch acts the same by its native form, by tensors, and after being saved.
pub fn assert_acts_as_by_tensors(config: &TrainConfig) {
    let game = Catch::default();
    let trainer = Trainer::new(game, config, &cpu());
    let native = NativePolicy::new(&trainer.model(), game.num_features(), 3);
    let tensors = TensorActor::new(&trainer.model(), game.num_features(), 3);
    for player in [ActionSelection::Greedy, ActionSelection::Sampling] {
        let [a, b] = [
            evaluate(&native, game, 333, Stream::Validation, config.seed, player),
            evaluate(&tensors, game, 333, Stream::Validation, config.seed, player),
        ];
        assert_eq!(trainer.evaluate_on_validation(333, player).unwrap(), a);
        // Rounding may decide an action in a thousand.
        assert!((a.mean_score - b.mean_score).abs() < 0.02, "{a:?} {b:?}");
        assert_eq!(a.mean_length, b.mean_length);
    }
    let saved = load_policy(&snapshot(&trainer), game, config).unwrap();
    assert_eq!(
        evaluate(&saved, game, 50, Stream::Evaluation, 1, ActionSelection::Greedy),
        evaluate(&native, game, 50, Stream::Evaluation, 1, ActionSelection::Greedy)
    );
}

#[test]
fn a_recurrent_policy_acts_the_same_natively_and_by_tensors() {
    let mut config = gru_run(GroupStart::Branch);
    config.policy.hidden = vec![9, 7];
    assert_acts_as_by_tensors(&config);
}

#[test]
#[should_panic(expected = "has 4 features and 36 actions, but the game `catch` has 4 and 3")]
fn a_built_in_network_with_other_actions_is_rejected() {
    let config = short_run(GroupStart::Branch);
    let network = Network::new(4, 36, &config.policy, 1, &cpu());
    let _ = Trainer::with_model(Catch::default(), network, &config, &cpu());
}

#[test]
#[should_panic(expected = "has 4 features and 2 actions, but the game `catch` has 4 and 3")]
fn a_user_defined_model_with_other_actions_is_rejected() {
    let policy = PolicyConfig::mlp(&[8], Activation::Relu);
    let model = Network::user_defined::<Residual>(4, 2, &policy, 1, &cpu());
    let _ = Trainer::with_model(Catch::default(), model, &short_run(GroupStart::Branch), &cpu());
}

/// It learns by default, too: in the program of `own_models`.
#[test]
#[ignore = "slow: 10 s of CPU time"]
fn a_user_defined_model_learns() {
    let config = TrainConfig { iterations: 30, ..TrainConfig::for_game(Catch::NAME) };
    let model = residual(64, 1, &cpu());
    let mut trainer = Trainer::with_model(Catch::default(), model, &config, &cpu());
    let before =
        trainer.evaluate_on_validation(1000, ActionSelection::Sampling).unwrap().mean_score;
    iterate(&mut trainer, config.iterations);
    let after = trainer.evaluate_on_validation(1000, ActionSelection::Greedy).unwrap().mean_score;
    assert!(before < 0.0 && after > 0.9, "{before} before, {after} after");
}

#[test]
fn a_recurrent_policy_learns_a_task_that_needs_memory() {
    assert_eq!(TrainConfig::for_game(Recall::NAME).policy.kind, ModelKind::Gru);
    assert_learns_recall(ModelKind::Gru, 30);
}

/// Checks that the program trains, resumes, evaluates and records a policy for Catch with these settings; the trained
/// run is `whole`.
pub fn assert_program_takes(folder: &Path, settings: &[&str]) {
    let run = |dir, iterations| {
        json(folder, &train("catch", dir, &[settings, &["--iterations", iterations]].concat()))
    };
    run("whole", "4");
    run("broken", "2");
    let resume = ["train", "--resume", "--run-dir", "broken", "--json", "--device", "cpu"];
    let resumed = json(folder, &[&resume[..], &["--iterations", "4"]].concat());
    assert_eq!(resumed["iteration"], 4);
    let report = json(folder, &["eval", "whole", "--episodes", "100", "--json"]);
    assert_eq!(report["episodes"], 100);
    let said =
        grove(folder, &["record", "whole", "--out", "x.png", "--games", "4", "--steps", "5"]);
    assert!(said.status.success() && stdout(&said).contains("catch"));
    assert_engine(folder, "whole", "native updates");
}

/// Checks that a run says that it learnt in this way.
fn assert_engine(folder: &Path, run: &str, engine: &str) {
    let metadata = fs::read_to_string(folder.join(run).join("run.json")).unwrap();
    assert!(metadata.contains(engine), "{metadata}");
}

#[test]
fn the_program_trains_resumes_evaluates_and_records_a_recurrent_policy() {
    let folder = &Scratch::new();
    let gru = ["--set", "kind=gru", "--set", "hidden=[6]"];
    assert_program_takes(folder, &gru);
    let general = [&gru[..], &["--iterations", "4", "--engine", "general"]].concat();
    json(folder, &train("catch", "general", &general));
    assert_engine(folder, "general", "updates by autodiff");
}
