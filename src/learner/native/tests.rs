//! Comparison of the learners in host memory with the autodiff learner.

use super::{NativeExperience, NativeLearner, PerceptronLearner, RolloutPolicy, SequenceLearner};
use crate::data::native::upload_time_major;
use crate::data::{EpisodeStatus, NativeTrajectory, Trajectory};
use crate::learner::{AutodiffLearner, TrainState, UpdateMeans};
use crate::model::{Actor, LANES, Mlp, NativeMlp, Network, flatten, splat, to_vec, unflatten};
use crate::rng::{draw, uniform};
use crate::settings::{
    Activation, DecoderConfig, KlEstimator, LossType, ModelKind, PolicyConfig, TrainConfig,
};
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::BTreeSet;
use std::ops::Range;

const STEPS: usize = 6;

/// Parameters of a comparison.
#[derive(Clone, Debug)]
struct Case {
    features: usize,
    hidden: Vec<usize>,
    actions: usize,
    games: usize,
    /// One observation value in `one_in` is nonzero.
    one_in: u32,
    is_masked: bool,
    activation: Activation,
    config: TrainConfig,
}

/// Odd sizes; two epochs of two minibatches of 13 games, with frequent clipping and an uneven
/// schedule.
fn default_case() -> Case {
    let mut config = TrainConfig::for_game("any");
    config.iterations = 10;
    config.update.update_epochs = 2;
    config.update.num_minibatches = 2;
    config.update.gradient_accumulation_steps = 3;
    config.update.max_grad_norm = 0.5;
    config.optimizer.learning_rate = 1e-2;
    config.optimizer.warmup_ratio = 0.05;
    config.loss.clip_eps_high = 0.25;
    Case {
        features: 7,
        hidden: vec![17, 5],
        actions: 5,
        games: 26,
        one_in: 1,
        is_masked: false,
        activation: Activation::Relu,
        config,
    }
}

/// Values in `-1..1`.
fn noise(count: usize, key: u32) -> Vec<f32> {
    (0..count).map(|i| 2.0 * uniform(draw(key, i as u32)) - 1.0).collect()
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

/// Adds noise to parameters: the output layer and the biases start near zero, which would hide their effect.
fn add_noise(params: Tensor<1>) -> Tensor<1> {
    let count = params.dims()[0];
    params + tensor(noise(count, 9), [count]) * 0.3
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Made-up games, with the advantages of their steps and a mask of those that count, both `[num_envs, num_steps]`.
struct Experience {
    games: NativeTrajectory,
    advantages: Vec<f32>,
    mask: Vec<f32>,
}

impl Experience {
    /// Performs an update of `iteration`.
    fn update(&self, learner: &mut dyn NativeLearner, iteration: u32) -> UpdateMeans {
        let (games, advantages, counts) = self.squeeze();
        let experience = NativeExperience::new(&games, &advantages, &counts, STEPS);
        learner.update(&experience, iteration).expect("alone")
    }

    /// Removes the steps that do not count from the games and advantages; also returns the number of the others,
    /// `[num_envs]`.
    fn squeeze(&self) -> (NativeTrajectory, Vec<f32>, Vec<usize>) {
        let (mut games, mut advantages) = (self.games.clone(), self.advantages.clone());
        let stride = games.obs_stride();
        let squeeze = |(game, mask): (usize, &[f32])| {
            let mut count = 0;
            for t in (0..STEPS).filter(|t| mask[*t] != 0.0) {
                let (from, to) = (game * STEPS + t, game * STEPS + count);
                games.obs.copy_within(from * stride..(from + 1) * stride, to * stride);
                games.actions[to] = games.actions[from];
                games.logprobs[to] = games.logprobs[from];
                advantages[to] = advantages[from];
                if games.num_masked_actions > 0 {
                    games.legal[to] = games.legal[from];
                }
                count += 1;
            }
            count
        };
        let counts = self.mask.chunks_exact(STEPS).enumerate().map(squeeze).collect();
        (games, advantages, counts)
    }

    /// The games, advantages and mask as tensors.
    fn tensors(&self) -> (Trajectory, Tensor<2>, Tensor<2>) {
        let rows = |values| upload_time_major(values, self.games.num_envs, &Device::flex());
        let games = self.games.to_tensors(&Device::flex());
        (games, rows(&self.advantages), rows(&self.mask))
    }
}

impl Case {
    fn policy(&self) -> Mlp {
        let config = PolicyConfig::mlp(&self.hidden, self.activation);
        let policy = Mlp::new(self.features, self.actions, &config, 5, &Device::flex());
        let params = add_noise(flatten(&policy));
        unflatten(policy, &params)
    }

    /// Games of which zero to all steps count.
    fn experience(&self) -> Experience {
        let count = STEPS * self.games;
        let mut games = NativeTrajectory::default();
        games.resize(self.games, STEPS, self.features);
        games.enable_masks(if self.is_masked { self.actions } else { 0 });
        let stride = games.obs_stride();
        let (logprobs, obs, credits) =
            (noise(count, 2), noise(count * self.features, 3), noise(count, 4));
        let likely = (self.actions as f32).ln();
        let (mut advantages, mut mask) = (Vec::new(), Vec::new());
        for slot in 0..count {
            let (game, step) = (slot / STEPS, slot % STEPS);
            let i = step * self.games + game;
            let action = draw(1, i as u32) % self.actions as u32;
            games.actions[slot] = action as i32;
            games.logprobs[slot] = logprobs[i] * 0.5 - likely;
            for feature in 0..self.features {
                let at = i * self.features + feature;
                let seen = draw(6, at as u32).is_multiple_of(self.one_in);
                games.obs[slot * stride + feature] = obs[at] * f32::from(seen);
            }
            if self.is_masked {
                // Each action is legal in about half of the steps, and the action taken always is.
                let drawn = |a| draw(draw(8, i as u32), a) & 1 == 1;
                let legal = (0..self.actions as u32).filter(|a| drawn(*a) || *a == action);
                games.legal[slot] = legal.map(|a| 1 << a).sum();
            }
            let counts = f32::from(step < game % (STEPS + 1));
            advantages.push(credits[i] * 2.0 * counts);
            mask.push(counts);
        }
        Experience { games, advantages, mask }
    }

    /// The log-probabilities of the actions of these games under a policy.
    fn compute_logprobs(&self, policy: &Mlp, games: &NativeTrajectory) -> Vec<f32> {
        let network = NativeMlp::new(policy);
        let steps = games.obs.chunks_exact(games.obs_stride()).zip(&games.actions);
        let logprobs = steps.map(|(obs, action)| {
            let obs = splat(&obs[..self.features]);
            let mut scratch = network.new_scratch();
            let logits: Vec<f32> = network
                .compute_logits(&obs, &mut [], &mut scratch)
                .iter()
                .map(|lanes| lanes[0])
                .collect();
            logits[*action as usize] - logits.iter().map(|x| x.exp()).sum::<f32>().ln()
        });
        logprobs.collect()
    }

    /// Checks that the means of both learners agree in two iterations. Returns the state of the general learner, the
    /// means of the native one, and the distance between their parameters, divided by the length of the change.
    fn update_both(
        &self,
        network: Network,
        native: &mut dyn NativeLearner,
        experience: &Experience,
        tolerance: f64,
    ) -> (TrainState, [UpdateMeans; 2], f64) {
        let (trajectory, advantages, mask) = experience.tensors();
        let start = to_vec(network.flatten());
        let mut general = AutodiffLearner::new(network, &self.config);
        let means = [0, 1].map(|iteration| {
            let want = general.update(&trajectory, &advantages, &mask, iteration).expect("alone");
            let means = experience.update(native, iteration);
            for (got, want) in
                means.values().into_iter().zip(to_vec(want).into_iter().map(f64::from))
            {
                let near = (got - want).abs() < 1e-4 * want.abs() + tolerance;
                assert!(near, "{got}, not {want}: {self:?}");
            }
            means
        });
        let want = to_vec(general.state.params().clone());
        let off = distance(&native.params(), &want) / distance(&want, &start);
        (general.state, means, off)
    }

    /// Runs updates with the native learner.
    fn learn(&self, learner: &mut PerceptronLearner, iterations: Range<u32>) -> UpdateMeans {
        let experience = self.experience();
        iterations.map(|i| experience.update(learner, i)).last().expect("at least one iteration")
    }

    /// Checks that the hand-written backward pass over sequences agrees with autodiff after two iterations, in which a
    /// third of the games restart.
    fn compare_sequences(&self, kind: &ModelKind) {
        let mut config =
            PolicyConfig { kind: kind.clone(), ..PolicyConfig::mlp(&[6, 5], self.activation) };
        let small = DecoderConfig::default();
        config.kind_settings.decoder =
            DecoderConfig { hidden_size: 8, num_heads: 2, context: 4, ..small };
        let network = Network::new(self.features, self.actions, &config, 5, &Device::flex());
        let network = network.unflatten(&add_noise(network.flatten()));
        let mut experience = self.experience();
        for (game, statuses) in experience.games.statuses.chunks_exact_mut(STEPS).enumerate() {
            statuses[2] = EpisodeStatus::new((2 * self.games + game).is_multiple_of(3), false);
        }
        let mut native = SequenceLearner::new(&network, &self.config).expect("a built-in network");
        let (_, _, off) = self.update_both(network, &mut native, &experience, 2e-6);
        assert!(off > 0.0 && off < 1e-4, "{off}: {kind:?}, {self:?}");
    }

    /// Checks that both learners agree after two iterations.
    fn compare(&self) {
        let policy = self.policy();
        let mut native = PerceptronLearner::new(&policy, &self.config);
        assert_eq!(native.params(), to_vec(flatten(&policy)));
        let (general, means, off) =
            self.update_both(policy.clone().into(), &mut native, &self.experience(), 1e-6);
        assert!(off < 1e-5, "{off}: {self:?}");
        let clips = !matches!(self.config.loss.loss_type, LossType::Sapo | LossType::Nll);
        for UpdateMeans { clip_fraction, .. } in means {
            assert!(self.actions == 1 || (clip_fraction > 0.0) == clips, "{self:?}");
        }
        let obs = vec![[0.5; LANES]; self.features];
        let params = native.params();
        let count = params.len();
        let policy = NativeMlp::new(&unflatten(policy, &tensor(params, [count])));
        let RolloutPolicy::Perceptron(played) = native.policy() else { unreachable!() };
        let want = policy.compute_logits(&obs, &mut [], &mut policy.new_scratch()).to_vec();
        assert_eq!(played.compute_logits(&obs, &mut [], &mut played.new_scratch()), want);

        let (want, got) = (general.optimizer(), native.moments());
        assert_eq!(want.steps, got.steps);
        for (want, got) in
            [(&want.first_moment, got.first_moment), (&want.second_moment, got.second_moment)]
        {
            let want = to_vec(want.clone());
            let size = distance(&want, &vec![0.0; want.len()]);
            assert!(distance(&want, &got) <= 1e-4 * size, "moments: {self:?}");
        }
    }
}

/// The divergence that ends an update is that of the same minibatch in both learners: the first has none yet.
#[test]
fn an_update_ends_at_its_divergence_as_by_autodiff() {
    let mut case = default_case();
    case.config.optimizer.learning_rate = 5e-2;
    let policy = case.policy();
    let mut experience = case.experience();
    experience.games.logprobs = case.compute_logprobs(&policy, &experience.games);
    let (mut trajectory, advantages, mask) = experience.tensors();
    let mut learnt = |target: f64| {
        case.config.update.target_kl = target;
        let mut native = PerceptronLearner::new(&policy, &case.config);
        let means = experience.update(&mut native, 0);
        let mut general = AutodiffLearner::new(policy.clone(), &case.config);
        let update = general.update(&trajectory, &advantages, &mask, 0).expect("alone");
        let want = to_vec(general.state.params().clone());
        let off = distance(&native.params(), &want);
        assert!(off <= 1e-5 * distance(&want, &to_vec(flatten(&policy))), "{off}");
        let steps = native.moments().steps;
        assert_eq!(steps, general.state.optimizer().steps);
        let theirs = to_vec(update);
        assert!((means.approx_kl - f64::from(theirs[0])).abs() < 1e-5, "{means:?} {theirs:?}");
        assert!((means.grad_norm - f64::from(theirs[5])).abs() < 1e-4, "{means:?} {theirs:?}");
        (means, steps)
    };
    let (whole, steps) = learnt(0.0);
    assert!(steps == 4 && whole.approx_kl > 1e-3, "{whole:?}");
    assert_eq!(learnt(1e3), (whole, 4));
    let (means, steps) = learnt(1e-5);
    assert!(steps == 1 && means.entropy > 0.1, "{means:?}");
    assert!(means.approx_kl > 1e-5, "the divergence that ended it: {means:?}");
    // A minibatch that has diverged from the start is not learnt from.
    trajectory.logprobs = trajectory.logprobs - 1.0;
    experience.games.logprobs.iter_mut().for_each(|logprob| *logprob -= 1.0);
    let mut native = PerceptronLearner::new(&policy, &case.config);
    let means = experience.update(&mut native, 0);
    let UpdateMeans { approx_kl, .. } = means;
    let nothing = UpdateMeans { approx_kl, ..UpdateMeans::default() };
    assert_eq!((means, native.moments().steps), (nothing, 0));
    let mut general = AutodiffLearner::new(policy, &case.config);
    let means = to_vec(general.update(&trajectory, &advantages, &mask, 0).expect("alone"));
    assert_eq!(means[1..], [0.0; 5]);
    // The log-ratio of each step is 1.
    let want = std::f64::consts::E - 2.0;
    assert!([approx_kl, means[0].into()].iter().all(|kl| (kl - want).abs() < 1e-4), "{means:?}");
}

#[test]
fn every_loss_and_activation_agrees_with_autodiff() {
    let mut networks = BTreeSet::new();
    for (loss, &loss_type) in LossType::ALL.iter().enumerate() {
        for (variant, (dual_clip, kl, corrected)) in [
            (0.0, None, false),
            (1.4, Some(KlEstimator::K1), false),
            (0.0, Some(KlEstimator::K2), true),
            (1.4, Some(KlEstimator::K3), false),
            (1.4, Some(KlEstimator::K3), true),
        ]
        .into_iter()
        .enumerate()
        {
            // The loss does not know the network, so each case takes the next one.
            let activation = (loss + variant) % Activation::ALL.len();
            let layers = 1 + (loss / 2 + variant) % 2;
            networks.insert((activation, layers));
            let mut case = default_case();
            case.activation = Activation::ALL[activation];
            case.hidden = [17, 5][..layers].to_vec();
            case.config.loss.loss_type = loss_type;
            case.config.loss.dual_clip = dual_clip;
            case.config.loss.use_bias_correction_kl = corrected;
            case.config.loss.kl_coef = if kl.is_some() { 0.3 } else { 0.0 };
            case.config.loss.kl_estimator = kl.unwrap_or(KlEstimator::K3);
            case.compare();
        }
    }
    assert_eq!(networks.len(), 2 * Activation::ALL.len(), "{networks:?}");
}

#[test]
fn actions_that_might_not_be_taken_are_left_out_as_by_autodiff() {
    for loss_type in [LossType::Grpo, LossType::Gspo, LossType::Sapo] {
        let mut case = default_case();
        case.is_masked = true;
        case.actions = 7;
        case.config.loss.loss_type = loss_type;
        case.config.loss.kl_coef = 0.3;
        case.config.loss.entropy_coef = 0.05;
        case.compare();
    }
}

#[test]
fn every_loss_of_sequences_agrees_with_autodiff() {
    for kind in &[ModelKind::Mlp, ModelKind::Gru, ModelKind::Decoder] {
        for &loss_type in LossType::ALL {
            for masked in [false, true] {
                let mut case = default_case();
                (case.activation, case.is_masked) = (Activation::Tanh, masked);
                case.config.loss.loss_type = loss_type;
                case.config.loss.entropy_coef = 0.05;
                case.config.loss.kl_coef = if masked { 0.3 } else { 0.0 };
                case.config.loss.label_smoothing = if masked { 0.0 } else { 0.1 };
                case.compare_sequences(kind);
            }
        }
    }
}

/// Dr. GRPO divides by `learn_steps`, not by the number of steps played.
#[test]
fn dr_grpo_divides_by_the_number_of_learning_steps() {
    let mut case = default_case();
    case.config.loss.loss_type = LossType::DrGrpo;
    case.config.loss.entropy_coef = 0.0;
    case.config.update.max_grad_norm = 0.0;
    let (trajectory, advantages, mut counts) = case.experience().squeeze();
    counts.iter_mut().for_each(|count| *count = (*count).min(3));
    case.config.update.update_epochs = 1;
    case.config.update.num_minibatches = 1;
    let norm = |learn_steps: usize| {
        let mut learner = PerceptronLearner::new(&case.policy(), &case.config);
        let experience = NativeExperience::new(&trajectory, &advantages, &counts, learn_steps);
        learner.update(&experience, 0).expect("alone").grad_norm
    };
    assert!(trajectory.num_steps == STEPS && norm(3) > 0.0);
    assert!((norm(STEPS) * STEPS as f64 / 3.0 / norm(3) - 1.0).abs() < 1e-5);
}

#[test]
fn every_size_agrees_with_autodiff() {
    for (features, hidden, actions, games) in [
        (1, &[1][..], 1, 2),
        (3, &[1, 1], 2, 2),
        (100, &[130], 40, 26),
        (16, &[64, 64], 3, 26),
        (33, &[48, 97], 16, 26),
        // Several chunks.
        (7, &[17, 5], 5, 520),
    ] {
        let mut case = default_case();
        (case.features, case.actions, case.games) = (features, actions, games);
        case.hidden = hidden.to_vec();
        case.activation = Activation::Tanh;
        case.config.update.gradient_accumulation_steps = 1;
        case.compare();
    }
}

#[test]
fn observations_that_are_mostly_zeros_agree_with_autodiff() {
    for &activation in Activation::ALL {
        // Always few enough, always too many, and some of both.
        for one_in in [30, 4, 8] {
            let mut case = default_case();
            (case.features, case.one_in, case.games) = (81, one_in, 104);
            case.activation = activation;
            case.compare();
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    for loss_type in [LossType::Dapo, LossType::Gspo] {
        let mut case = default_case();
        case.games = 520;
        case.config.loss.loss_type = loss_type;
        case.config.loss.kl_coef = 0.1;
        let results = [1, 2, 3].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.expect("threads can be had").install(|| {
                let mut learner = PerceptronLearner::new(&case.policy(), &case.config);
                let means = case.learn(&mut learner, 0..2);
                (learner.params(), learner.moments(), means)
            })
        });
        assert_eq!(results[0], results[1]);
        assert_eq!(results[0], results[2]);
    }
}

#[test]
fn a_restored_learner_continues_exactly() {
    let mut case = default_case();
    case.config.loss.kl_coef = 0.1;
    let mut learner = PerceptronLearner::new(&case.policy(), &case.config);
    case.learn(&mut learner, 0..1);
    let mut restored = PerceptronLearner::new(&case.policy(), &case.config);
    let reference = learner.reference_params();
    restored.restore(&learner.params(), &learner.moments(), reference.as_deref());
    assert_eq!(restored.reference_params(), reference);
    let means = case.learn(&mut learner, 1..3);
    assert_eq!(case.learn(&mut restored, 1..3), means);
    assert_eq!(restored.params(), learner.params());
    assert_eq!(restored.moments(), learner.moments());
}
