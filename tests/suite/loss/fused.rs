//! The fused learner makes the updates of the general one.

use super::{KL_ESTIMATORS, LOSS_TYPES, doubles, loss_config, noise};
use crate::support::{adapter, cpu};
use burn::tensor::{Device, Int, Tensor, TensorData};
use grove::advantage::advantages;
use grove::config::{
    Activation, KlEstimator, LossType, PolicyConfig, RolloutConfig, Start, TrainConfig,
};
use grove::env::Fruit;
use grove::learner::{FusedLearner, Learner};
use grove::policy::{Categorical, Mlp, Policy, flatten, unflatten};
use grove::rollout::{FusedRollout, RolloutKeys};
use grove::trajectory::Trajectory;

/// Sizes of a network and a trajectory.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    features: usize,
    hidden: &'static [usize],
    actions: usize,
    activation: Activation,
    steps: usize,
    games: usize,
}

/// Numbers that an update takes, in host memory.
struct Played {
    sizes: Sizes,
    params: Vec<f32>,
    obs: Vec<f32>,
    actions: Vec<i32>,
    logprobs: Vec<f32>,
    advantages: Vec<f32>,
    mask: Vec<f32>,
}

fn mlp(sizes: Sizes, params: Option<&[f32]>, device: &Device) -> Mlp {
    let config = PolicyConfig { hidden: sizes.hidden.to_vec(), activation: sizes.activation };
    let mlp = Mlp::new(sizes.features, sizes.actions, &config, 7, device);
    match params {
        Some(params) => unflatten(mlp, &Tensor::from_floats(params, device)),
        None => mlp,
    }
}

impl Played {
    /// Games of different lengths, by a policy somewhat unlike the network, so that ratios are on
    /// both sides of every bound.
    fn new(sizes: Sizes) -> Self {
        let Sizes { features, actions, steps, games, .. } = sizes;
        let device = cpu();
        let start = flatten(&mlp(sizes, None, &device));
        let params: Vec<f32> = doubles(start)
            .iter()
            .zip(noise(3, 1 << 16))
            .map(|(p, jitter)| *p as f32 + 0.2 * jitter)
            .collect();
        let count = steps * games;
        let obs = noise(5, count * features);
        let taken: Vec<i32> =
            noise(6, count).iter().map(|x| ((x + 1.0) * 0.5 * actions as f32) as i32).collect();
        let policy = mlp(sizes, Some(&params), &device);
        let batch = Tensor::from_data(TensorData::new(obs.clone(), [count, features]), &device);
        let distribution = Categorical::new(policy.logits(batch));
        let own = distribution.logprob(Tensor::from_data(TensorData::from(&taken[..]), &device));
        let logprobs =
            doubles(own).iter().zip(noise(8, count)).map(|(l, n)| *l as f32 + 0.9 * n).collect();
        let mask =
            (0..count).map(|i| f32::from(u8::from(i / games <= (i % games * 5) % steps))).collect();
        let advantages = noise(9, count).iter().map(|x| x * 2.0).collect();
        Self { sizes, params, obs, actions: taken, logprobs, advantages, mask }
    }

    /// The same games, so many times over.
    fn repeated(&self, times: usize) -> Self {
        let games = self.sizes.games;
        fn rows<T: Copy>(values: &[T], row: usize, times: usize) -> Vec<T> {
            values.chunks_exact(row).flat_map(|row| row.repeat(times)).collect()
        }
        Self {
            sizes: Sizes { games: games * times, ..self.sizes },
            params: self.params.clone(),
            obs: rows(&self.obs, games * self.sizes.features, times),
            actions: rows(&self.actions, games, times),
            logprobs: rows(&self.logprobs, games, times),
            advantages: rows(&self.advantages, games, times),
            mask: rows(&self.mask, games, times),
        }
    }

    /// Policy, trajectory, advantages and mask on a device.
    fn on(&self, device: &Device) -> (Mlp, Trajectory, Tensor<2>, Tensor<2>) {
        let Sizes { features, steps, games, .. } = self.sizes;
        let rows =
            |v: &[f32]| Tensor::<2>::from_data(TensorData::new(v.to_vec(), [steps, games]), device);
        let zeros = || Tensor::<2>::zeros([steps, games], device);
        let trajectory = Trajectory {
            obs: Tensor::from_data(
                TensorData::new(self.obs.clone(), [steps, games, features]),
                device,
            ),
            actions: Tensor::<2, Int>::from_data(
                TensorData::new(self.actions.clone(), [steps, games]),
                device,
            ),
            logprobs: rows(&self.logprobs),
            rewards: zeros(),
            ends: zeros(),
            scores: zeros(),
        };
        let policy = mlp(self.sizes, Some(&self.params), device);
        (policy, trajectory, rows(&self.advantages), rows(&self.mask))
    }
}

/// What an update leaves: parameters, moments, means.
type Updated = [Vec<f64>; 4];

fn general(played: &Played, config: &TrainConfig, reference: Option<&[f32]>) -> Updated {
    let device = cpu();
    let (policy, trajectory, advantages, mask) = played.on(&device);
    let mut learner = Learner::new(policy, config);
    if let Some(reference) = reference {
        let (params, optimizer) =
            (learner.weights().params().clone(), learner.weights().optimizer().clone());
        learner.weights_mut().restore(
            params,
            optimizer,
            Some(Tensor::from_floats(reference, &device)),
        );
    }
    let means = learner.update(&trajectory, &advantages, &mask, 3).means;
    let adam = learner.weights().optimizer();
    [learner.weights().params(), &adam.first_moment, &adam.second_moment, &means]
        .map(|tensor| doubles(tensor.clone()))
}

fn fused(
    played: &Played,
    config: &TrainConfig,
    reference: Option<&[f32]>,
    device: &Device,
) -> Updated {
    let (policy, trajectory, advantages, mask) = played.on(device);
    let mut learner = FusedLearner::new(policy, config);
    if let Some(reference) = reference {
        let (params, optimizer) =
            (learner.weights().params().clone(), learner.weights().optimizer().clone());
        learner.weights_mut().restore(
            params,
            optimizer,
            Some(Tensor::from_floats(reference, device)),
        );
    }
    let means = learner.update(&trajectory, &advantages, &mask, 3).means;
    let adam = learner.weights().optimizer();
    [learner.weights().params(), &adam.first_moment, &adam.second_moment, &means]
        .map(|tensor| doubles(tensor.clone()))
}

fn norm(a: &[f64]) -> f64 {
    a.iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn difference(a: &[f64], b: &[f64]) -> Vec<f64> {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

fn settings(loss_type: LossType, dual_clip: f64, kl: KlEstimator) -> TrainConfig {
    let mut config = TrainConfig::for_game("any");
    config.iterations = 10;
    config.loss = loss_config(loss_type, dual_clip, kl);
    config.optimizer.learning_rate = 3e-3;
    config.optimizer.weight_decay = 0.01;
    config
}

/// A single step without clipping, which leaves the gradient in the first moment.
fn gradient_settings(mut config: TrainConfig) -> TrainConfig {
    config.update.update_epochs = 1;
    config.update.num_minibatches = 1;
    config.update.max_grad_norm = 0.0;
    config
}

fn check_gradient(played: &Played, config: TrainConfig, device: &Device) {
    let config = gradient_settings(config);
    let context = format!("{:?}, {:?}", played.sizes, config.loss);
    let reference: Vec<f32> =
        played.params.iter().zip(noise(11, 1 << 16)).map(|(p, n)| p + 0.1 * n).collect();
    let reference = (config.loss.kl_coef > 0.0).then_some(reference.as_slice());
    let want = general(played, &config, reference);
    let got = fused(played, &config, reference, device);
    let error = norm(&difference(&got[1], &want[1])) / norm(&want[1]);
    eprintln!("gradient error {error:.1e} of {:.1e}: {context}", norm(&want[1]));
    assert!(norm(&want[1]) > 1e-4, "{context}");
    assert!(want[3][1] > 0.05 && want[3][1] < 0.8, "{context}: clipped {}", want[3][1]);
    assert!(error < 1e-5, "{context}: gradient off by {error} of its norm");
    check_means(&got[3], &want[3], &context);
}

fn check_means(got: &[f64], want: &[f64], context: &str) {
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-4 * (1.0 + want.abs()), "{context}: {got}, not {want}");
    }
}

const SMALL: Sizes = Sizes {
    features: 5,
    hidden: &[17],
    actions: 3,
    activation: Activation::Tanh,
    steps: 7,
    games: 13,
};

#[test]
fn fused_gradients_of_every_loss_are_those_of_autodiff() {
    let Some(device) = adapter() else { return };
    let played = Played::new(SMALL);
    for (i, loss_type) in LOSS_TYPES.into_iter().enumerate() {
        let estimator = KL_ESTIMATORS[i % 3];
        check_gradient(&played, settings(loss_type, 0.0, estimator), &device);
        let mut config = settings(loss_type, 2.0, KL_ESTIMATORS[(i + 1) % 3]);
        config.loss.kl_coef *= f64::from(u8::from(i % 2 == 0));
        check_gradient(&played, config, &device);
    }
}

/// Other sizes than [`SMALL`]'s, with one hidden layer and with two.
const SHAPES: [Sizes; 7] = [
    Sizes { features: 10, hidden: &[64], activation: Activation::Relu, ..SMALL },
    Sizes { features: 32, hidden: &[128], actions: 8, activation: Activation::Gelu, ..SMALL },
    Sizes { hidden: &[16], actions: 2, activation: Activation::Silu, ..SMALL },
    Sizes { hidden: &[16, 17], ..SMALL },
    Sizes { hidden: &[64, 16], activation: Activation::Relu, ..SMALL },
    Sizes { hidden: &[17, 64], activation: Activation::Silu, steps: 3, ..SMALL },
    Sizes { features: 32, hidden: &[128, 128], actions: 8, activation: Activation::Gelu, ..SMALL },
];

#[test]
fn fused_gradients_of_every_shape_are_those_of_autodiff() {
    let Some(device) = adapter() else { return };
    for sizes in SHAPES {
        let played = Played::new(sizes);
        check_gradient(&played, settings(LossType::Grpo, 0.0, KlEstimator::K3), &device);
    }
    // More samples than one tile a cube.
    for hidden in [&[17][..], &[17, 16]] {
        let played = Played::new(Sizes { steps: 331, games: 113, hidden, ..SMALL });
        check_gradient(&played, settings(LossType::Dapo, 0.0, KlEstimator::K3), &device);
    }
}

#[test]
fn fused_gradients_are_right_with_more_samples_than_a_row_of_cubes_holds() {
    let Some(device) = adapter() else { return };
    // A row has 65,535 cubes, where WebGPU's limits hold, of 64 samples each.
    let sizes = Sizes { features: 2, hidden: &[3], actions: 2, steps: 2, ..SMALL };
    let played = Played::new(sizes);
    let many = played.repeated(161_320);
    assert!(many.sizes.steps * many.sizes.games > 65_535 * 64);
    let config = gradient_settings(settings(LossType::Grpo, 0.0, KlEstimator::K3));
    // GRPO's loss is a mean over games, and the many are copies of the few.
    let want = general(&played, &config, None);
    let got = fused(&many, &config, None, &device);
    let error = norm(&difference(&got[1], &want[1])) / norm(&want[1]);
    eprintln!("gradient error {error:.1e} with many samples");
    assert!(error < 1e-5, "gradient off by {error} of its norm");
    check_means(&got[3], &want[3], "many samples");
}

#[test]
fn fused_updates_are_those_of_autodiff_and_always_the_same() {
    let Some(device) = adapter() else { return };
    for (loss_type, sizes) in [
        (LossType::Grpo, SMALL),
        (LossType::Bnpo, Sizes { hidden: &[16, 17], ..SMALL }),
        (LossType::Gspo, SMALL),
        (LossType::Dapo, Sizes { hidden: &[64], ..SMALL }),
    ] {
        let played = Played::new(sizes);
        let mut config = settings(loss_type, 0.0, KlEstimator::K3);
        config.update.update_epochs = 2;
        config.update.num_minibatches = 3;
        config.update.max_grad_norm = 0.05;
        let context = format!("{loss_type:?}, {sizes:?}");
        let want = general(&played, &config, None);
        let got = fused(&played, &config, None, &device);
        let before: Vec<f64> = played.params.iter().map(|p| f64::from(*p)).collect();
        let change = norm(&difference(&want[0], &before));
        let error = norm(&difference(&got[0], &want[0])) / change;
        eprintln!("update error {error:.1e} of {change:.1e}: {context}");
        assert!(change > 1e-2, "{context}: {change}");
        assert!(error < 1e-5, "{context}: parameters off by {error} of their change");
        for moment in [1, 2] {
            let error = norm(&difference(&got[moment], &want[moment])) / norm(&want[moment]);
            assert!(error < 1e-5, "{context}: moment {moment} off by {error} of its norm");
        }
        check_means(&got[3], &want[3], &context);
        assert_eq!(fused(&played, &config, None, &device), got, "{context}: repeated");
    }
}

/// The tensors that a rollout leaves are parts of larger ones; the learner takes them as they are.
#[test]
fn fused_rollouts_and_updates_work_on_the_same_device() {
    let Some(device) = adapter() else { return };
    let sizes = Sizes { features: 16, hidden: &[17], steps: 9, games: 21, ..SMALL };
    let mut config = settings(LossType::Dapo, 0.0, KlEstimator::K3);
    config.rollout = RolloutConfig {
        num_groups: 7,
        group_size: 3,
        num_steps: 14,
        learn_steps: sizes.steps,
        start: Start::Branch,
        auto_reset: true,
    };
    config.update.num_minibatches = 1;
    config.update.update_epochs = 1;
    let policy = mlp(sizes, None, &device);
    let keys = RolloutKeys::new(5);
    let mut rollout = FusedRollout::new(Fruit::default(), &config.rollout, keys, &device, 100);
    let whole = rollout.collect(&policy, 0);
    let mask = whole.mask(true);
    let judged = advantages(&whole, &mask, 3, sizes.steps, &config.advantage);
    let trajectory = whole.first_steps(sizes.steps);
    let mut learner = FusedLearner::new(policy.clone(), &config);
    let means = learner.update(&trajectory, &judged.values, &judged.mask, 0).means;
    let (got, means) =
        (doubles(learner.weights().optimizer().first_moment.clone()), doubles(means));

    let floats = |tensor: Tensor<2>| doubles(tensor).iter().map(|x| *x as f32).collect();
    let played = Played {
        sizes,
        params: doubles(flatten(&policy)).iter().map(|x| *x as f32).collect(),
        obs: doubles(trajectory.obs).iter().map(|x| *x as f32).collect(),
        actions: trajectory.actions.into_data().iter().collect(),
        logprobs: floats(trajectory.logprobs),
        advantages: floats(judged.values),
        mask: floats(judged.mask),
    };
    let (_, trajectory, advantages, mask) = played.on(&cpu());
    let mut learner = Learner::new(mlp(sizes, Some(&played.params), &cpu()), &config);
    let want_means = learner.update(&trajectory, &advantages, &mask, 0).means;
    let want = doubles(learner.weights().optimizer().first_moment.clone());
    let error = norm(&difference(&got, &want)) / norm(&want);
    assert!(norm(&want) > 1e-4 && error < 1e-5, "gradient off by {error} of {}", norm(&want));
    check_means(&means, &doubles(want_means), "after a rollout");
    // The policy that played is the one that the learner sees: ratio 1.
    assert!(means[0].abs() < 1e-6 && means[1] == 0.0, "{means:?}");
}

#[test]
fn the_fused_learner_says_what_it_takes() {
    let takes = |hidden: &'static [usize]| {
        FusedLearner::takes(&mlp(Sizes { hidden, ..SMALL }, None, &cpu()))
    };
    assert!(takes(&[1]) && takes(&[256]) && takes(&[256, 256]) && takes(&[128, 1]));
    assert!(!takes(&[257]) && !takes(&[16, 257]));
}
