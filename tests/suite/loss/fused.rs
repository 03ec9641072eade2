//! The fused learner makes the updates of the general one.

use super::{KL_ESTIMATORS, LOSS_TYPES, doubles, loss_config, noise};
use crate::support::{adapter, cpu};
use burn::tensor::{Device, Int, Tensor, TensorData};
use grove::advantage::{advantages, judge};
use grove::config::{
    Activation, KlEstimator, LossType, PolicyConfig, RolloutConfig, Start, TrainConfig,
};
use grove::env::{Fruit, Game};
use grove::learner::{FusedLearner, Learner};
use grove::policy::{Categorical, FlatMlp, Mlp, Policy, StoredFeatures, flatten, unflatten};
use grove::rollout::{FusedRollout, RolloutKeys, unpack};
use grove::trajectory::{Judged, Part, Recording, Trajectory};

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

    /// The games as a fused rollout would have left them, in parts that end behind these games, with
    /// the features as words.
    fn recorded(&self, ends: &[usize], device: &Device) -> (Recording, Judged) {
        let Sizes { features, steps, games, .. } = self.sizes;
        let (mut first, mut parts, mut judged) = (0, Vec::new(), Vec::new());
        for end in ends.iter().copied().chain([games]) {
            let count = end - first;
            let at = |t: usize, game: usize| t * games + first + game;
            let each = || (0..steps).flat_map(move |t| (0..count).map(move |game| (t, game)));
            let mut words: Vec<i32> = (0..features)
                .flat_map(|i| each().map(move |(t, game)| (i, at(t, game))))
                .map(|(i, at)| self.obs[at * features + i].to_bits() as i32)
                .collect();
            words.extend(each().map(|(t, game)| self.actions[at(t, game)]));
            let row = |values: &[f32]| -> Vec<f32> {
                each().map(|(t, game)| values[at(t, game)]).collect()
            };
            let mut numbers = row(&self.logprobs);
            numbers.resize(2 * steps * count, 0.0);
            let masked: Vec<f32> =
                self.advantages.iter().zip(&self.mask).map(|(a, mask)| a * mask).collect();
            let mut values = row(&masked);
            let length = |game| (0..steps).map(|t| self.mask[at(t, game)]).sum::<f32>();
            values.extend((0..count).map(length));
            values.resize((steps + 2) * count, 0.0);
            let tensor =
                |values: Vec<f32>, shape: &[usize]| TensorData::new(values, shape.to_vec());
            let words = TensorData::new(words, [features + 1, steps, count]);
            parts.push(Part {
                words: Tensor::from_data(words, device),
                numbers: Tensor::from_data(tensor(numbers, &[2, steps, count]), device),
                first_scores: Tensor::zeros([count], device),
            });
            judged.push(Tensor::from_data(tensor(values, &[steps + 2, count]), device));
            first = end;
        }
        let counted: f32 = self.mask.iter().sum();
        let facts = Tensor::from_floats([counted, 1.0, 0.0, 0.0, 0.0, 0.0], device);
        let recording = Recording { num_steps: steps, num_envs: games, parts };
        (recording, Judged { learn_steps: steps, parts: judged, facts })
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
    fused_in_parts(played, config, reference, &[], device)
}

/// The same with the games in parts.
fn fused_in_parts(
    played: &Played,
    config: &TrainConfig,
    reference: Option<&[f32]>,
    parts: &[usize],
    device: &Device,
) -> Updated {
    let (recording, judged) = played.recorded(parts, device);
    let policy = mlp(played.sizes, Some(&played.params), device);
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
    let observer = StoredFeatures { features: played.sizes.features };
    let means = learner.update(&recording, &judged, observer, 3).means;
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

/// Where the parts end changes nothing but rounding.
#[test]
fn fused_updates_of_games_in_parts_are_the_same() {
    let Some(device) = adapter() else { return };
    for (loss_type, sizes) in
        [(LossType::Bnpo, SMALL), (LossType::Gspo, Sizes { hidden: &[16, 17], ..SMALL })]
    {
        let played = Played::new(sizes);
        let mut config = settings(loss_type, 0.0, KlEstimator::K3);
        config.update.num_minibatches = 3;
        let reference: Vec<f32> =
            played.params.iter().zip(noise(11, 1 << 16)).map(|(p, n)| p + 0.1 * n).collect();
        let update =
            |parts: &[usize]| fused_in_parts(&played, &config, Some(&reference), parts, &device);
        let want = update(&[]);
        for parts in [&[1][..], &[6], &[2, 9, 12]] {
            let got = update(parts);
            for (got, want) in got.iter().zip(&want).take(3) {
                let error = norm(&difference(got, want)) / norm(want);
                assert!(error < 1e-5, "{loss_type:?} in parts {parts:?}: off by {error}");
            }
            check_means(&got[3], &want[3], "in parts");
        }
    }
}

/// What a rollout leaves is learnt from as the general learner learns from its trajectory.
#[test]
fn fused_rollouts_judgements_and_updates_fit_together() {
    let Some(device) = adapter() else { return };
    let game = Fruit::default();
    let sizes = Sizes { features: 16, hidden: &[17], steps: 9, games: 21, ..SMALL };
    assert_eq!(game.num_features(), sizes.features);
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
    for groups in [7, 3] {
        let mut rollout =
            FusedRollout::new(game, &config.rollout, keys, &device).with_groups_per_part(groups);
        let recording = rollout.collect(&FlatMlp::of(&policy).unwrap(), 0);
        assert_eq!(recording.parts.len(), 7usize.div_ceil(groups));
        let judged = judge(&recording, &config.rollout, &config.advantage);
        let mut learner = FusedLearner::new(policy.clone(), &config);
        let means = learner.update(&recording, &judged, rollout.observer(), 0).means;
        let got = doubles(learner.weights().optimizer().first_moment.clone());
        let means = doubles(means);

        let whole = unpack(game, &recording, &cpu());
        let mask = whole.mask(true);
        let judged = advantages(&whole, &mask, 3, sizes.steps, &config.advantage);
        let params: Vec<f32> = doubles(flatten(&policy)).iter().map(|x| *x as f32).collect();
        let mut learner = Learner::new(mlp(sizes, Some(&params), &cpu()), &config);
        let trajectory = whole.first_steps(sizes.steps);
        let want_means = learner.update(&trajectory, &judged.values, &judged.mask, 0).means;
        let want = doubles(learner.weights().optimizer().first_moment.clone());
        let error = norm(&difference(&got, &want)) / norm(&want);
        assert!(norm(&want) > 1e-4 && error < 1e-5, "gradient off by {error} of {}", norm(&want));
        check_means(&means, &doubles(want_means), "after a rollout");
        // The policy that played is the one that the learner sees: ratio 1.
        assert!(means[0].abs() < 1e-6 && means[1] == 0.0, "{means:?}");
    }
}

#[test]
fn the_fused_learner_says_what_it_takes() {
    let takes = |hidden: &'static [usize]| {
        FusedLearner::takes(&mlp(Sizes { hidden, ..SMALL }, None, &cpu()))
    };
    assert!(takes(&[1]) && takes(&[256]) && takes(&[256, 256]) && takes(&[128, 1]));
    assert!(!takes(&[257]) && !takes(&[16, 257]));
}
