//! Comparison of the fused rollout with the native and the stepwise one.

use super::ledge::Ledge;
use super::meadow::Meadow;
use super::unpack::unpack;
use super::{cpu, floats};
use burn::tensor::{Device, Tensor};
use grove::data::Trajectory;
use grove::env::{
    Breakout, BreakoutActions, BreakoutObservation, CartPole, Catch, CatchObservation, Fruit,
    FruitObservation, Recall, Rules,
};
use grove::model::{FlatMlp, Mlp, NativeMlp, flatten, unflatten};
use grove::rng::{draw, uniform};
use grove::rollout::{FusedRollout, NativeRollout, RolloutKeys, StepwiseRollout, env_words};
use grove::settings::{Activation, GroupStart, PolicyConfig, RolloutConfig};

/// Fruit with short episodes, in which fruits appear and land both together and alone.
pub const SHORT_FRUIT: Fruit = Fruit {
    width: 7,
    height: 5,
    basket: 2,
    max_fruits: 5,
    min_fruits: 3,
    spawn_interval: 1,
    max_steps: 13,
    observation: FruitObservation::Features,
};

/// Catch with a board observation of more cells than there are specialized features on the CPU.
pub const CATCH_BOARD: Catch = Catch { rows: 6, columns: 5, observation: CatchObservation::Board };

/// Breakout with sticky actions and short episodes.
pub const STICKY_BREAKOUT: Breakout = Breakout {
    observation: BreakoutObservation::Features,
    actions: BreakoutActions::Minimal,
    sticky: 25,
    max_steps: 33,
};

/// A game with action masks whose score differs from its reward.
pub const LEDGE: Ledge = Ledge { cells: 7 };

/// A trajectory in host memory.
#[derive(Debug, PartialEq)]
pub struct Host {
    pub dims: [usize; 3],
    pub obs: Vec<f32>,
    pub actions: Vec<u32>,
    pub logprobs: Vec<f32>,
    pub rewards: Vec<f32>,
    pub terminated: Vec<f32>,
    pub truncated: Vec<f32>,
    pub scores: Vec<f32>,
    pub ended_steps: Vec<f32>,
    pub legal: Option<Vec<f32>>,
}

impl Host {
    /// Copies a trajectory from its device.
    pub async fn read(trajectory: &Trajectory) -> Self {
        let actions = trajectory.actions.clone().into_data_async().await;
        Self {
            dims: trajectory.dims(),
            obs: floats(trajectory.obs.clone()).await,
            actions: actions.expect("the device answers").iter().collect(),
            logprobs: floats(trajectory.logprobs.clone()).await,
            rewards: floats(trajectory.rewards.clone()).await,
            terminated: floats(trajectory.terminated.clone()).await,
            truncated: floats(trajectory.truncated.clone()).await,
            scores: floats(trajectory.scores.clone()).await,
            ended_steps: floats(trajectory.ended_steps(true)).await,
            legal: match &trajectory.legal {
                Some(legal) => Some(floats(legal.clone()).await),
                None => None,
            },
        }
    }

    /// 1 where an episode ended, by termination or truncation.
    pub fn ends(&self) -> Vec<f32> {
        self.terminated.iter().zip(&self.truncated).map(|(end, cut)| end + cut).collect()
    }

    /// Asserts that the games are equal, and observations and log-probabilities within 1e-5.
    /// Returns the largest difference.
    pub fn assert_is(&self, other: &Self, context: &str) -> f64 {
        assert_eq!(self.dims, other.dims, "{context}");
        assert_eq!(self.actions, other.actions, "{context}: actions");
        assert_eq!(self.rewards, other.rewards, "{context}: rewards");
        assert_eq!(self.terminated, other.terminated, "{context}: terminated");
        assert_eq!(self.truncated, other.truncated, "{context}: truncated");
        assert_eq!(self.scores, other.scores, "{context}: scores");
        assert_eq!(self.ended_steps, other.ended_steps, "{context}: steps of ended episodes");
        assert_eq!(self.legal, other.legal, "{context}: legal");
        let obs = assert_close(&self.obs, &other.obs, 1e-5, context);
        obs.max(assert_close(&self.logprobs, &other.logprobs, 1e-5, context))
    }

    /// Asserts that the policy is far from uniform, every action occurs, and episodes end.
    pub fn assert_lively(&self, actions: u32, context: &str) {
        let lowest = self.logprobs.iter().copied().fold(0.0, f32::min);
        let highest = self.logprobs.iter().copied().fold(-9.0, f32::max);
        assert!(lowest < -1.5 && highest > -0.4, "{context}: from {lowest} to {highest}");
        let all = (0..actions).all(|a| self.actions.contains(&a));
        assert!(all, "{context}: not every action was taken");
        let ends = self.ends();
        assert!(ends.contains(&1.0) && ends.contains(&0.0));
    }
}

/// Asserts that values agree within `tolerance` and returns the largest difference.
pub fn assert_close(got: &[f32], want: &[f32], tolerance: f32, context: &str) -> f64 {
    assert_eq!(got.len(), want.len(), "{context}");
    let mut largest = 0.0f32;
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs();
        assert!(error <= tolerance, "{context}: number {i} is {got}, not {want}");
        largest = largest.max(error);
    }
    f64::from(largest)
}

/// Settings of an iteration that learns from half of its steps.
pub fn config(
    num_groups: usize,
    group_size: usize,
    num_steps: usize,
    start: GroupStart,
) -> RolloutConfig {
    RolloutConfig {
        num_groups,
        group_size,
        num_steps,
        learn_steps: num_steps.div_ceil(2),
        start,
        auto_reset: true,
    }
}

/// A perceptron whose logits differ by a few units at any width.
pub fn perceptron<G: Rules>(
    game: G,
    hidden: &[usize],
    activation: Activation,
    device: &Device,
) -> Mlp {
    let config = PolicyConfig::mlp(hidden, activation);
    let mlp = Mlp::new(game.num_features(), game.num_actions(), &config, 1, device);
    // Burn's GELU returns NaN if its cube exceeds the range of a device's tanh.
    let spread = if activation == Activation::Tanh { 5.0 } else { 3.5 };
    let mut params = Vec::new();
    for (layer, linear) in mlp.layers().iter().enumerate() {
        let [inputs, outputs] = linear.weight.dims();
        // Observations of more than 128 features are boards, whose cells are mostly empty.
        let lively = if inputs > 128 { inputs / 8 } else { inputs };
        let scale = spread / (lively as f32).sqrt();
        let count = (inputs * outputs) as u32;
        let key = draw(41, layer as u32);
        params.extend((0..count).map(|i| (uniform(draw(key, i)) * 2.0 - 1.0) * scale));
        let key = draw(43, layer as u32);
        params.extend((0..outputs as u32).map(|i| uniform(draw(key, i)) - 0.5));
    }
    assert_eq!(flatten(&mlp).dims(), [params.len()]);
    unflatten(mlp, &Tensor::from_floats(params.as_slice(), device))
}

/// Asserts that two exports are equal; state words within 1e-4 as floats if `float_state`.
pub fn assert_words<G: Rules>(
    game: G,
    got: &[u32],
    want: &[u32],
    float_state: bool,
    context: &str,
) {
    assert_eq!(got.len(), want.len(), "{context}");
    let header = want.len() / env_words(game) * 3;
    assert_eq!(got[..header], want[..header], "{context}: episodes");
    if float_state {
        let floats =
            |words: &[u32]| -> Vec<f32> { words.iter().map(|w| f32::from_bits(*w)).collect() };
        let (got, want) = (floats(&got[header..]), floats(&want[header..]));
        assert_close(&got, &want, 1e-4, context);
    } else {
        assert_eq!(got[header..], want[header..], "{context}: states");
    }
}

/// Plays an iteration with the fused rollout.
pub async fn play_fused<G: Rules>(
    game: G,
    rollout: &mut FusedRollout<G>,
    policy: &Mlp,
    iteration: u32,
) -> Trajectory {
    let policy = FlatMlp::from_mlp(policy).expect("one or two hidden layers");
    unpack(game, &rollout.collect(&policy, iteration), &cpu()).await
}

/// Plays three iterations natively, stepwise and fused, the latter both whole and in parts of two
/// groups with `chunk` steps per launch. The third iteration uses new rollouts that import the
/// native export. Returns the largest difference.
async fn check<G: Rules>(
    game: G,
    config: &RolloutConfig,
    hidden: &[usize],
    activation: Activation,
    chunk: usize,
    float_state: bool,
    device: &Device,
) -> f64 {
    let keys = RolloutKeys::new(0x0fed_cba9_8765);
    let policy = perceptron(game, hidden, activation, device);
    let native_policy = NativeMlp::new(&perceptron(game, hidden, activation, &cpu()));
    let mut native = NativeRollout::new(game, config, keys);
    let mut stepwise = StepwiseRollout::new(game, config, keys, device);
    let new = || FusedRollout::new(game, config, keys, device);
    let cut = || new().with_steps_per_launch(chunk).with_groups_per_part(2);
    let (mut whole, mut chunked) = (new(), cut());
    assert!(whole.export_branches_async().await.is_empty());
    let mut largest = 0.0f64;
    for iteration in 0..3 {
        let context =
            format!("{game:?}, {hidden:?} {activation:?}, {config:?}, iteration {iteration}");
        if iteration == 2 {
            (whole, chunked) = (new(), cut());
            whole.import_branches(&native.export_branches()).unwrap();
            chunked.import_branches(&native.export_branches()).unwrap();
            stepwise.import_branches(&native.export_branches()).unwrap();
        }
        let want = Host::read(&native.collect(&native_policy, iteration, &cpu())).await;
        let steps = Host::read(&stepwise.collect(&policy.clone().into(), iteration)).await;
        let got = Host::read(&play_fused(game, &mut whole, &policy, iteration).await).await;
        want.assert_lively(game.num_actions() as u32, &context);
        largest = largest.max(got.assert_is(&want, &format!("native: {context}")));
        largest = largest.max(got.assert_is(&steps, &format!("stepwise: {context}")));
        let parts = Host::read(&play_fused(game, &mut chunked, &policy, iteration).await).await;
        assert_eq!(parts, got, "in parts, {chunk} steps a launch: {context}");
        let words = whole.export_branches_async().await;
        assert_words(game, &words, &native.export_branches(), float_state, &context);
        assert_words(game, &words, &stepwise.export_branches_async().await, float_state, &context);
        let parts = chunked.export_branches_async().await;
        assert_eq!(parts, words, "in parts, {chunk} steps a launch: {context}");
    }
    largest
}

/// Largest of some errors.
fn worst(errors: &[f64]) -> f64 {
    errors.iter().copied().fold(0.0, f64::max)
}

/// Checks every game with one hidden layer and returns the largest difference.
pub async fn one_hidden_layer(device: &Device) -> f64 {
    use Activation::{Relu, Silu, Tanh};
    let (level, branch) = (GroupStart::Level, GroupStart::Branch);
    let (catch, pole) = (Catch::default(), CartPole::default());
    let recall = Recall { steps: 7, cues: 3 };
    worst(&[
        check(SHORT_FRUIT, &config(7, 3, 20, branch), &[16], Relu, 7, false, device).await,
        check(catch, &config(3, 7, 19, level), &[17], Tanh, 1, false, device).await,
        check(CATCH_BOARD, &config(5, 3, 17, branch), &[33], Relu, 6, false, device).await,
        check(LEDGE, &config(5, 3, 29, branch), &[16], Tanh, 8, false, device).await,
        check(Meadow, &config(5, 3, 29, branch), &[16], Tanh, 8, false, device).await,
        check(pole, &config(3, 5, 120, branch), &[64], Silu, 50, true, device).await,
        check(Breakout::default(), &config(3, 5, 40, branch), &[16], Relu, 11, false, device).await,
        check(recall, &config(3, 5, 20, branch), &[16], Relu, 7, false, device).await,
    ])
}

/// Checks games with two hidden layers and returns the largest difference.
pub async fn two_hidden_layers(device: &Device) -> f64 {
    use Activation::{Relu, Silu, Tanh};
    let (level, branch) = (GroupStart::Level, GroupStart::Branch);
    let (catch, pole) = (Catch::default(), CartPole::default());
    worst(&[
        check(SHORT_FRUIT, &config(7, 3, 20, level), &[16, 17], Silu, 7, false, device).await,
        check(catch, &config(3, 7, 19, branch), &[17, 64], Relu, 4, false, device).await,
        check(pole, &config(3, 5, 60, branch), &[64, 16], Tanh, 13, true, device).await,
    ])
}

/// Checks other widths, activations and kinds of start, whose kernels a software adapter compiles for long, and returns
/// the largest difference.
pub async fn more_layers(device: &Device) -> f64 {
    use Activation::{Gelu, Silu, Tanh};
    let (level, branch) = (GroupStart::Level, GroupStart::Branch);
    let (catch, pole) = (Catch::default(), CartPole::default());
    worst(&[
        check(SHORT_FRUIT, &config(5, 3, 20, level), &[17], Silu, 20, false, device).await,
        check(catch, &config(23, 3, 19, branch), &[128], Gelu, 18, false, device).await,
        check(STICKY_BREAKOUT, &config(3, 5, 70, branch), &[33], Tanh, 70, false, device).await,
        check(pole, &config(3, 5, 150, level), &[128], Tanh, 149, true, device).await,
        check(SHORT_FRUIT, &config(5, 3, 20, branch), &[128, 128], Gelu, 9, false, device).await,
    ])
}
