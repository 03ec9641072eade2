//! Comparison of the fused learner with the general one.

use super::{cpu, doubles, floats, noise};
use burn::tensor::{Device, Int, Tensor, TensorData};
use grove::data::{Recording, RecordingAdvantages, RecordingPart, Trajectory};
use grove::learner::fused::FusedLearner;
use grove::learner::{AutodiffLearner, TrainState};
use grove::model::{Categorical, Memoryless, Mlp, Observer, StoredFeatures, flatten, unflatten};
use grove::settings::{Activation, KlEstimator, LossConfig, LossType, PolicyConfig, TrainConfig};

/// Sizes of a network and a trajectory.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub features: usize,
    pub hidden: &'static [usize],
    pub actions: usize,
    pub activation: Activation,
    pub steps: usize,
    pub games: usize,
}

/// Inputs of an update in host memory.
pub struct UpdateInputs {
    pub sizes: Sizes,
    pub params: Vec<f32>,
    pub obs: Vec<f32>,
    pub actions: Vec<i32>,
    pub logprobs: Vec<f32>,
    pub advantages: Vec<f32>,
    pub mask: Vec<f32>,
    /// Action masks, `[steps, games, actions]`; `None` if all actions are legal.
    pub legal: Option<Vec<f32>>,
}

/// A perceptron with the given or fresh parameters.
pub fn mlp(sizes: Sizes, params: Option<&[f32]>, device: &Device) -> Mlp {
    let config = PolicyConfig::mlp(sizes.hidden, sizes.activation);
    let mlp = Mlp::new(sizes.features, sizes.actions, &config, 7, device);
    match params {
        Some(params) => unflatten(mlp, &Tensor::from_floats(params, device)),
        None => mlp,
    }
}

impl UpdateInputs {
    /// Games of different lengths from a perturbed policy, so that ratios lie on both sides of
    /// every bound.
    pub async fn new(sizes: Sizes) -> Self {
        let Sizes { features, actions, steps, games, .. } = sizes;
        let device = cpu();
        let start = flatten(&mlp(sizes, None, &device));
        let params: Vec<f32> = floats(start)
            .await
            .iter()
            .zip(noise(3, 1 << 16))
            .map(|(p, jitter)| p + 0.2 * jitter)
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
            floats(own).await.iter().zip(noise(8, count)).map(|(l, n)| l + 0.9 * n).collect();
        let mask =
            (0..count).map(|i| f32::from(u8::from(i / games <= (i % games * 5) % steps))).collect();
        let advantages = noise(9, count).iter().map(|x| x * 2.0).collect();
        Self { sizes, params, obs, actions: taken, logprobs, advantages, mask, legal: None }
    }

    /// Parameters near these.
    fn reference(&self) -> Vec<f32> {
        self.params.iter().zip(noise(11, 1 << 16)).map(|(p, n)| p + 0.1 * n).collect()
    }

    /// The games as a recording with features as words, in parts that end after the given games.
    pub fn recorded(&self, ends: &[usize], device: &Device) -> (Recording, RecordingAdvantages) {
        let Sizes { features, steps, games, .. } = self.sizes;
        let (mut first, mut parts, mut advantages) = (0, Vec::new(), Vec::new());
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
            let mut values = row(&self.logprobs);
            values.resize(2 * steps * count, 0.0);
            let masked: Vec<f32> =
                self.advantages.iter().zip(&self.mask).map(|(a, mask)| a * mask).collect();
            let mut part_advantages = row(&masked);
            let length = |game| (0..steps).map(|t| self.mask[at(t, game)]).sum::<f32>();
            part_advantages.extend((0..count).map(length));
            part_advantages.resize((steps + 2) * count, 0.0);
            let tensor =
                |values: Vec<f32>, shape: &[usize]| TensorData::new(values, shape.to_vec());
            let words = TensorData::new(words, [features + 1, steps, count]);
            let part = RecordingPart::new(
                Tensor::from_data(words, device),
                Tensor::from_data(tensor(values, &[2, steps, count]), device),
                Tensor::zeros([2, count], device),
            );
            parts.push(part.expect("tensors that belong together"));
            advantages
                .push(Tensor::from_data(tensor(part_advantages, &[steps + 2, count]), device));
            first = end;
        }
        let counted: f32 = self.mask.iter().sum();
        let summary = Tensor::from_floats([counted, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], device);
        let recording = Recording::new(parts).expect("parts of the same steps");
        let advantages = RecordingAdvantages::new(&recording, steps, advantages, summary)
            .expect("of the recording");
        (recording, advantages)
    }

    /// Policy, trajectory, advantages and mask on a device.
    pub fn on(&self, device: &Device) -> (Mlp, Trajectory, Tensor<2>, Tensor<2>) {
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
            terminated: zeros(),
            truncated: zeros(),
            scores: zeros(),
            memory: None,
            elapsed: None,
            legal: self.legal.clone().map(|legal| {
                let shape = [steps, games, self.sizes.actions];
                Tensor::from_data(TensorData::new(legal, shape), device)
            }),
        };
        let policy = mlp(self.sizes, Some(&self.params), device);
        (policy, trajectory, rows(&self.advantages), rows(&self.mask))
    }
}

/// Results of an update.
#[derive(Debug, PartialEq)]
pub struct Updated {
    pub params: Vec<f64>,
    pub moments: [Vec<f64>; 2],
    pub means: Vec<f64>,
}

impl Updated {
    async fn read(state: &TrainState, means: Tensor<1>) -> Self {
        let adam = state.optimizer();
        Self {
            params: doubles(state.params().clone()).await,
            moments: [
                doubles(adam.first_moment.clone()).await,
                doubles(adam.second_moment.clone()).await,
            ],
            means: doubles(means).await,
        }
    }
}

/// Replaces the parameters of the reference policy.
fn refer(state: &mut TrainState, reference: Option<&[f32]>) {
    let reference = reference.map(|r| Tensor::from_floats(r, &state.params().device()));
    state.restore(state.params().clone(), state.optimizer().clone(), reference);
}

/// Runs an update with the general learner.
pub async fn general(
    played: &UpdateInputs,
    config: &TrainConfig,
    reference: Option<&[f32]>,
    device: &Device,
) -> Updated {
    let (policy, trajectory, advantages, mask) = played.on(device);
    let mut learner = AutodiffLearner::new(policy, config);
    refer(&mut learner.state, reference);
    let means = learner.update(&trajectory, &advantages, &mask, 3).unwrap();
    Updated::read(&learner.state, means).await
}

/// Runs an update with the fused learner.
pub async fn fused(
    played: &UpdateInputs,
    config: &TrainConfig,
    reference: Option<&[f32]>,
    device: &Device,
) -> Updated {
    fused_in_parts(played, config, reference, &[], device).await
}

/// Runs a fused update on games in parts that end after the given games.
pub async fn fused_in_parts(
    played: &UpdateInputs,
    config: &TrainConfig,
    reference: Option<&[f32]>,
    ends: &[usize],
    device: &Device,
) -> Updated {
    let (recording, advantages) = played.recorded(ends, device);
    let observer = StoredFeatures { num_features: played.sizes.features };
    let policy = mlp(played.sizes, Some(&played.params), device);
    learn_fused(policy, config, reference, &recording, &advantages, observer).await
}

/// Runs a fused update on a recording and its advantages.
pub async fn learn_fused<O: Observer>(
    policy: Mlp,
    config: &TrainConfig,
    reference: Option<&[f32]>,
    recording: &Recording,
    advantages: &RecordingAdvantages,
    observer: O,
) -> Updated {
    let mut learner = FusedLearner::new(policy, config);
    refer(&mut learner.state, reference);
    let means = learner.update(recording, advantages, observer, 3).unwrap();
    Updated::read(&learner.state, means).await
}

/// Euclidean norm.
pub fn norm(a: &[f64]) -> f64 {
    a.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Norm of the difference relative to `scale`.
pub fn error(got: &[f64], want: &[f64], scale: f64) -> f64 {
    assert_eq!(got.len(), want.len());
    let difference: Vec<f64> = got.iter().zip(want).map(|(a, b)| a - b).collect();
    norm(&difference) / scale
}

/// A loss with all terms active.
pub fn loss_config(loss_type: LossType, dual_clip: f64, kl_estimator: KlEstimator) -> LossConfig {
    LossConfig {
        loss_type,
        clip_eps_low: 0.2,
        // The cap of CISPO is the number itself.
        clip_eps_high: if loss_type == LossType::Cispo { 1.28 } else { 0.28 },
        dual_clip,
        sapo_temperature_pos: 1.3,
        sapo_temperature_neg: 2.1,
        kl_coef: 0.07,
        kl_estimator,
        use_bias_correction_kl: false,
        entropy_coef: 0.03,
        entropy_coef_final: 0.0,
        label_smoothing: 0.0,
    }
}

/// Settings of an update with such a loss.
pub fn settings(loss_type: LossType, dual_clip: f64, kl: KlEstimator) -> TrainConfig {
    let mut config = TrainConfig::for_game("any");
    config.iterations = 10;
    config.loss = loss_config(loss_type, dual_clip, kl);
    config.optimizer.learning_rate = 3e-3;
    config.optimizer.weight_decay = 0.01;
    config
}

/// Reduces an update to a single step without clipping, so that the first moment holds the
/// gradient.
pub fn gradient_settings(mut config: TrainConfig) -> TrainConfig {
    config.update.update_epochs = 1;
    config.update.num_minibatches = 1;
    config.update.max_grad_norm = 0.0;
    config
}

/// Compares a gradient and returns the error relative to its norm.
pub async fn check_gradient(played: &UpdateInputs, config: TrainConfig, device: &Device) -> f64 {
    let config = gradient_settings(config);
    let context = format!("{:?}, {:?}", played.sizes, config.loss);
    let reference = played.reference();
    let reference = (config.loss.kl_coef > 0.0).then_some(reference.as_slice());
    let want = general(played, &config, reference, &cpu()).await;
    let got = fused(played, &config, reference, device).await;
    let (size, clipped) = (norm(&want.moments[0]), want.means[1]);
    let error = error(&got.moments[0], &want.moments[0], size);
    eprintln!("gradient error {error:.1e} of {size:.1e}: {context}");
    assert!(size > 1e-4, "{context}");
    if !matches!(config.loss.loss_type, LossType::Sapo | LossType::Nll) {
        assert!(clipped > 0.05 && clipped < 0.8, "{context}: clipped {clipped}");
    } else {
        assert_eq!(clipped, 0.0, "{context}");
    }
    assert!(error < 1e-5, "{context}: gradient off by {error} of its norm");
    check_means(&got.means, &want.means, &context);
    error
}

/// Asserts that the means of an update agree within 1e-4.
pub fn check_means(got: &[f64], want: &[f64], context: &str) {
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-4 * (1.0 + want.abs()), "{context}: {got}, not {want}");
    }
}

/// Asserts that the moments and means of an update agree.
fn check_moments(got: &Updated, want: &Updated, context: &str) {
    for (got, want) in got.moments.iter().zip(&want.moments) {
        let off = error(got, want, norm(want));
        assert!(off < 1e-5, "{context}: a moment off by {off} of its norm");
    }
    check_means(&got.means, &want.means, context);
}

/// A small network and trajectory of odd sizes.
pub const SMALL: Sizes = Sizes {
    features: 5,
    hidden: &[17],
    actions: 3,
    activation: Activation::Tanh,
    steps: 7,
    games: 13,
};

/// Shapes other than [`SMALL`], with one and two hidden layers.
const SHAPES: [Sizes; 7] = [
    Sizes { features: 10, hidden: &[64], activation: Activation::Relu, ..SMALL },
    Sizes { features: 32, hidden: &[128], actions: 8, activation: Activation::Gelu, ..SMALL },
    Sizes { hidden: &[16], actions: 2, activation: Activation::Silu, ..SMALL },
    Sizes { hidden: &[16, 17], ..SMALL },
    Sizes { hidden: &[64, 16], activation: Activation::Relu, ..SMALL },
    Sizes { hidden: &[17, 64], activation: Activation::Silu, steps: 3, ..SMALL },
    Sizes { features: 32, hidden: &[128, 128], actions: 8, activation: Activation::Gelu, ..SMALL },
];

/// An estimator of the divergence from a reference policy, and whether it is weighted by the ratio; `None` without a
/// reference.
pub type Divergence = Option<(KlEstimator, bool)>;

/// No divergence first, then one that is weighted, then every estimator.
pub fn divergences() -> Vec<Divergence> {
    let plain = KlEstimator::ALL.iter().map(|estimator| Some((*estimator, false)));
    [None, Some((KlEstimator::K3, true))].into_iter().chain(plain).collect()
}

/// Checks the gradients of a loss with each of these dual clips (0 for none) and divergences. Returns the largest
/// error.
pub async fn check_loss(
    played: &UpdateInputs,
    loss_type: LossType,
    dual_clips: &[f64],
    divergences: &[Divergence],
    device: &Device,
) -> f64 {
    let mut largest = 0.0f64;
    for &dual_clip in dual_clips {
        for divergence in divergences {
            let (estimator, weighted) = divergence.unwrap_or((KlEstimator::K3, false));
            let mut config = settings(loss_type, dual_clip, estimator);
            config.loss.use_bias_correction_kl = weighted;
            if divergence.is_none() {
                config.loss.kl_coef = 0.0;
            }
            largest = largest.max(check_gradient(played, config, device).await);
        }
    }
    largest
}

/// Checks the gradients of every loss with every KL estimator and none, with and without dual clip.
/// Returns the largest error.
pub async fn every_loss(device: &Device) -> f64 {
    let played = UpdateInputs::new(SMALL).await;
    let mut largest = 0.0f64;
    for &loss_type in LossType::ALL {
        largest =
            largest.max(check_loss(&played, loss_type, &[0.0, 2.0], &divergences(), device).await);
    }
    largest
}

/// Checks the gradients of networks of various depths and activations. Returns the largest error.
pub async fn every_shape(device: &Device) -> f64 {
    let mut largest = 0.0f64;
    for sizes in SHAPES {
        let played = UpdateInputs::new(sizes).await;
        let config = settings(LossType::Grpo, 0.0, KlEstimator::K3);
        largest = largest.max(check_gradient(&played, config, device).await);
    }
    // More samples than one tile per cube.
    for hidden in [&[17][..], &[17, 16]] {
        let played = UpdateInputs::new(Sizes { steps: 331, games: 113, hidden, ..SMALL }).await;
        let config = settings(LossType::Dapo, 0.0, KlEstimator::K3);
        largest = largest.max(check_gradient(&played, config, device).await);
    }
    largest
}

/// Compares multi-step fused updates with the general learner on the CPU and on the device, and
/// checks that they are reproducible. Returns the largest error.
pub async fn whole_updates(device: &Device) -> f64 {
    let mut largest = 0.0f64;
    for (loss_type, sizes) in [
        (LossType::Grpo, SMALL),
        (LossType::Bnpo, Sizes { hidden: &[16, 17], ..SMALL }),
        (LossType::Gspo, SMALL),
        (LossType::Dapo, Sizes { hidden: &[64], ..SMALL }),
    ] {
        let played = UpdateInputs::new(sizes).await;
        let mut config = settings(loss_type, 0.0, KlEstimator::K3);
        config.update.update_epochs = 2;
        config.update.num_minibatches = 3;
        config.update.max_grad_norm = 0.05;
        let context = format!("{loss_type:?}, {sizes:?}");
        let got = fused(&played, &config, None, device).await;
        for (place, want) in [
            ("the CPU", general(&played, &config, None, &cpu()).await),
            ("the device", general(&played, &config, None, device).await),
        ] {
            let context = format!("{context}, against {place}");
            let before: Vec<f64> = played.params.iter().map(|p| f64::from(*p)).collect();
            let change = error(&want.params, &before, 1.0);
            let off = error(&got.params, &want.params, change);
            eprintln!("update error {off:.1e} of {change:.1e}: {context}");
            assert!(change > 1e-2, "{context}: {change}");
            assert!(off < 1e-5, "{context}: parameters off by {off} of their change");
            largest = largest.max(off);
            check_moments(&got, &want, &context);
        }
        assert_eq!(fused(&played, &config, None, device).await, got, "{context}: repeated");
    }
    largest
}

/// Checks that splitting games into parts only affects rounding. Returns the largest error.
pub async fn in_parts(device: &Device) -> f64 {
    let mut largest = 0.0f64;
    for (loss_type, sizes) in
        [(LossType::Bnpo, SMALL), (LossType::Gspo, Sizes { hidden: &[16, 17], ..SMALL })]
    {
        let played = UpdateInputs::new(sizes).await;
        let mut config = settings(loss_type, 0.0, KlEstimator::K3);
        config.update.num_minibatches = 3;
        let reference = played.reference();
        let want = fused(&played, &config, Some(&reference), device).await;
        for ends in [&[1][..], &[6], &[2, 9, 12]] {
            let got = fused_in_parts(&played, &config, Some(&reference), ends, device).await;
            let off = error(&got.params, &want.params, norm(&want.params));
            assert!(off < 1e-6, "{loss_type:?}, parts end at {ends:?}: parameters off by {off}");
            largest = largest.max(off);
            check_moments(&got, &want, &format!("{loss_type:?}, parts end at {ends:?}"));
        }
    }
    largest
}
