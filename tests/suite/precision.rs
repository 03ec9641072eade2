//! Lower precisions: what they change, and where they cannot be had.

use crate::shared::decoder::{
    decoder_run, first_native_update, first_update, one_step, relative_distance,
};
use crate::shared::training::short_run;
use crate::shared::unpack::unpack;
use crate::support::{Scratch, adapter, cpu, floats, refusal};
use crate::trainers::{assert_resumes, iterate};
use burn::tensor::{Device, Tensor};
use grove::advantage::kernels::compute_recording_advantages;
use grove::device::has_precision;
use grove::env::{Catch, Env, Fruit};
use grove::learner::fused::FusedLearner;
use grove::model::{FlatMlp, Mlp, flatten, unflatten};
use grove::rng::{draw, uniform};
use grove::rollout::{ActionSelection, FusedRollout, RolloutKeys};
use grove::settings::{Activation, GroupStart, ModelKind, PolicyConfig, Precision, TrainConfig};
use grove::trainer::{GameTrainer, Trainer};
use pollster::block_on;

/// A perceptron for the fruit catcher whose logits differ by a few units.
fn perceptron(hidden: &[usize], device: &Device) -> Mlp {
    let game = Fruit::default();
    let config = PolicyConfig::mlp(hidden, Activation::Silu);
    let mlp = Mlp::new(game.num_features(), game.num_actions(), &config, 1, device);
    let params: Vec<f32> = floats(flatten(&mlp))
        .iter()
        .enumerate()
        .map(|(i, p)| p + 0.3 * (uniform(draw(77, i as u32)) - 0.5))
        .collect();
    unflatten(mlp, &Tensor::from_floats(params.as_slice(), device))
}

fn config(precision: Precision) -> TrainConfig {
    let mut config = TrainConfig::for_game("fruit");
    config.precision = precision;
    config.rollout.num_groups = 37;
    config.rollout.group_size = 5;
    config.rollout.start = GroupStart::Level;
    config.update.update_epochs = 1;
    config.update.num_minibatches = 1;
    config.update.max_grad_norm = 0.0;
    config
}

/// Actions and log-probabilities of a rollout, and the gradient and the means of the update by the
/// recording of a rollout in f32.
fn play_and_learn(
    hidden: &[usize],
    precision: Precision,
    device: &Device,
) -> (Vec<i32>, Vec<f32>, Vec<f32>, Vec<f32>) {
    let (game, config) = (Fruit::default(), config(precision));
    let policy = perceptron(hidden, device);
    let flat = FlatMlp::from_mlp(&policy).expect("one or two hidden layers");
    let rollout = FusedRollout::new(game, &config.rollout, RolloutKeys::new(3), device);
    let (recording, _) = rollout.clone().with_precision(precision).play(&flat, 0);
    let played = block_on(unpack(game, &recording, &cpu()));
    let (recording, _) = rollout.play(&flat, 0);
    let advantages = compute_recording_advantages(&recording, &config.rollout, &config.advantage);
    let mut learner = FusedLearner::new(policy, &config);
    let means = learner.update(&recording, &advantages, rollout.observer(), 0).unwrap();
    let gradient = floats(learner.state.optimizer().first_moment.clone());
    let actions = played.actions.into_data().iter().collect();
    (actions, floats(played.logprobs), gradient, floats(means))
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

/// The lower precision takes nearly the same actions and gives nearly the same gradient; `unit` is its
/// rounding error.
fn check(precision: Precision, unit: f64, device: &Device) {
    for hidden in [&[33][..], &[16, 24]] {
        let (actions, logprobs, gradient, means) = play_and_learn(hidden, precision, device);
        let want = play_and_learn(hidden, Precision::F32, device);
        let steps = actions.len();
        assert_ne!(logprobs, want.1, "{precision:?}: its rounding shows");
        // A game whose action differs once is another game from there on.
        let first: Vec<_> = actions.iter().zip(&want.0).take(steps / 8).collect();
        let other = first.iter().filter(|(a, b)| a != b).count() as f64 / first.len() as f64;
        assert!(other < 20.0 * unit, "{precision:?}: {other} of the actions differ");
        let difference: Vec<f32> = gradient.iter().zip(&want.2).map(|(a, b)| a - b).collect();
        let error = norm(&difference) / norm(&want.2);
        eprintln!("{precision:?}, {hidden:?}: gradient off by {error:.1e}, actions by {other:.1e}");
        assert!(error > 0.0 && error < 20.0 * unit, "{precision:?}: gradient off by {error}");
        assert!((means[2] - want.3[2]).abs() < 0.01, "{precision:?}: entropy");
    }
}

/// A decoder's first update in a lower precision is nearly that in single precision.
fn check_decoder(precision: Precision, unit: f64, device: &Device) {
    let update = |precision| {
        let config = TrainConfig { precision, ..one_step(2) };
        block_on(first_update(&config, device))
    };
    let off = relative_distance(&update(precision), &update(Precision::F32));
    eprintln!("{precision}, a decoder: the first update off by {off:.1e}");
    assert!(off > 0.01 * unit && off < 20.0 * unit, "{precision}: off by {off}");
}

/// The lower precisions, and how far apart numbers next to 1 are in them.
const LOWER: [(Precision, f64); 2] =
    [(Precision::F16, 1.0 / 2048.0), (Precision::Bf16, 1.0 / 256.0)];

#[test]
fn a_decoder_learns_nearly_the_same_in_lower_precisions() {
    for (precision, unit) in LOWER {
        check_decoder(precision, unit, &cpu());
    }
}

/// Settings of short runs in bf16, one of each built-in network.
fn runs_in_bf16() -> [TrainConfig; 3] {
    let [mut gru, mut perceptron] = [short_run(GroupStart::Branch), short_run(GroupStart::Level)];
    gru.policy.kind = ModelKind::Gru;
    perceptron.policy.hidden = vec![40, 33];
    [decoder_run(GroupStart::Branch), gru, perceptron]
        .map(|config| TrainConfig { precision: Precision::Bf16, ..config })
}

fn trainer(config: &TrainConfig) -> GameTrainer<Catch> {
    Trainer::new(Catch::default(), config, &cpu())
}

#[test]
fn a_decoder_learns_nearly_the_same_in_bf16_by_hand() {
    let update = |precision| first_native_update(&TrainConfig { precision, ..one_step(2) });
    let off = relative_distance(&update(Precision::Bf16), &update(Precision::F32));
    assert!(off > 1e-5 && off < 0.1, "the first update off by {off:.1e}");
}

#[test]
fn ratios_of_the_first_update_in_bf16_are_exactly_one() {
    for mut config in runs_in_bf16() {
        config.update.update_epochs = 1;
        config.update.num_minibatches = 1;
        let mut trainer = trainer(&config);
        assert_eq!(trainer.fallback_reason(), None);
        for _ in 0..config.iterations {
            let record = trainer.iterate().unwrap();
            assert!(record.approx_kl == 0.0 && record.grad_norm > 0.0, "{record:?}");
        }
    }
}

#[test]
fn a_resumed_run_in_bf16_equals_an_uninterrupted_one_with_any_threads() {
    for config in runs_in_bf16() {
        assert_resumes(|| trainer(&config), config.iterations, &[(1, 2), (3, 1)]);
    }
}

#[test]
fn built_in_networks_learn_to_catch_in_bf16() {
    for mut config in runs_in_bf16() {
        config.iterations = 40;
        config.rollout.start = GroupStart::Branch;
        config.rollout.num_groups = 64;
        config.rollout.group_size = 8;
        config.update.num_minibatches = 4;
        config.optimizer.learning_rate = 1e-2;
        let mut trainer = trainer(&config);
        iterate(&mut trainer, config.iterations);
        let score =
            trainer.evaluate_on_validation(1000, ActionSelection::Greedy).unwrap().mean_score;
        assert!(score > 0.9, "{}: {score}", config.policy.kind);
    }
}

/// `GROVE_REQUIRE_PRECISIONS=N` makes it a failure if the device has fewer than `N` of them.
#[test]
fn lower_precisions_come_close_to_single_precision_where_the_device_has_them() {
    let Some(device) = adapter() else { return };
    assert!(has_precision(&device, Precision::F32));
    assert!(!has_precision(&cpu(), Precision::F32), "the CPU has no kernels");
    let mut tested = 0;
    for (precision, unit) in LOWER {
        if has_precision(&device, precision) {
            check(precision, unit, &device);
            check_decoder(precision, unit, &device);
            tested += 1;
        } else {
            let config = TrainConfig { precision, ..config(precision) };
            let trainer = Trainer::new(Fruit::default(), &config, &device);
            let reason = trainer.fallback_reason().expect("the fused engine is closed to it");
            assert!(reason.contains("the device does not support"), "{reason}");
        }
    }
    let wanted = std::env::var("GROVE_REQUIRE_PRECISIONS").ok().and_then(|n| n.parse().ok());
    assert!(tested >= wanted.unwrap_or(0), "{tested} lower precisions tested, {wanted:?} wanted");
}

#[test]
fn an_unavailable_precision_is_rejected() {
    let folder = Scratch::new();
    let text = refusal(&folder, &["train", "catch", "--device", "cpu", "--precision", "f16"]);
    assert!(
        text.contains("the precision f16 is not available for this run: the CPU supports f32"),
        "{text}"
    );
    let tf32 = ["train", "catch", "--device", "cpu", "--precision", "tf32"];
    let text = refusal(&folder, &tf32);
    assert!(text.contains("tf32 is for decoders and language models"), "{text}");
    let text = refusal(&folder, &["train", "sort", "--device", "cpu", "--precision", "tf32"]);
    assert!(text.contains("the CPU supports f32, and bf16 for"), "{text}");
    let gru = ["train", "recall", "--set", "kind=gru", "--precision", "f16"];
    let text = refusal(&folder, &gru);
    assert!(text.contains("this network does not support f16 on this device"), "{text}");
    for kind in ["kind=mlp", "kind=gru", "kind=decoder"] {
        // The CPU has bf16 for all, but not in this engine.
        let general = ["train", "recall", "--set", kind, "--device", "cpu", "--engine", "general"];
        let text = refusal(&folder, &[&general[..], &["--precision", "bf16"]].concat());
        assert!(text.contains("for this run: `engine = general` was requested"), "{text}");
    }
    let text = refusal(&folder, &["train", "catch", "--precision", "f8"]);
    assert!(text.contains("must be one of: f32, tf32, f16, bf16"), "{text}");
}
