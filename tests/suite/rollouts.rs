//! Native and stepwise rollouts on the CPU and on an adapter play the same games.

mod fused;
mod many;
mod masks;
mod memory;
mod random;
mod starts;

use crate::shared::meadow::Meadow;
use crate::shared::rollouts::{
    CATCH_BOARD, Host, LEDGE, SHORT_FRUIT, assert_close, assert_words, config,
};
use crate::support::{adapter, cpu};
use crate::trainers::on_threads;
use burn::tensor::{Device, Tensor};
use grove::data::{GameSums, NativeTrajectory, Trajectory};
use grove::env::{CartPole, Catch, Env, Episode, Fruit, FruitObservation, PackedState, Rules};
use grove::model::{Mlp, NativeMlp, flatten, unflatten};
use grove::rng::{Stream, draw, uniform};
use grove::rollout::{
    ActionSelection, NativeRollout, RolloutKeys, StepwiseRollout, env_words, evaluate,
};
use grove::settings::{Activation, GroupStart, PolicyConfig, RolloutConfig};
use pollster::block_on;

impl Host {
    fn of(trajectory: &Trajectory) -> Self {
        block_on(Self::read(trajectory))
    }

    /// The observation of game `env` before step `t`.
    fn obs(&self, t: usize, env: usize) -> &[f32] {
        let [_, envs, features] = self.dims;
        &self.obs[(t * envs + env) * features..][..features]
    }
}

/// A perceptron for `game` with parameters uniform in [-scale, scale).
fn perceptron<G: Env>(game: G, hidden: &[usize], scale: f32, device: &Device) -> Mlp {
    let config = PolicyConfig::mlp(hidden, Activation::Tanh);
    let mlp = Mlp::new(game.num_features(), game.num_actions(), &config, 1, device);
    let count = flatten(&mlp).dims()[0] as u32;
    let params: Vec<f32> = (0..count).map(|i| (uniform(draw(41, i)) * 2.0 - 1.0) * scale).collect();
    unflatten(mlp, &Tensor::from_floats(params.as_slice(), device))
}

/// A perceptron that always takes `action`.
fn constant_policy<G: Env>(game: G, action: usize, device: &Device) -> Mlp {
    let mlp = perceptron(game, &[4], 0.1, device);
    let count = flatten(&mlp).dims()[0];
    let mut params: Vec<f32> = flatten(&mlp).to_data().try_into_vec().expect("f32");
    params[count - game.num_actions() + action] = 60.0;
    unflatten(mlp, &Tensor::from_floats(params.as_slice(), device))
}

/// Decodes a group's branch point from exported words.
fn seat<G: Rules>(game: G, words: &[u32], group: usize) -> (G::State, Episode) {
    let groups = words.len() / env_words(game);
    let at = |w: usize| words.get(w * groups + group).copied().unwrap_or(0);
    let state = G::State::unpack(|w| at(3 + w));
    let episode = Episode { level: at(0), time: at(1), score: f32::from_bits(at(2)) };
    (state, episode)
}

/// Plays three iterations natively and stepwise on `device`. The third uses a new stepwise rollout
/// that imports the native export.
fn check<G: Rules>(
    game: G,
    config: &RolloutConfig,
    hidden: &[usize],
    float_state: bool,
    device: &Device,
) {
    let keys = RolloutKeys::new(0x1234_5678_9abc);
    let scale = if hidden.len() == 1 { 1.2 } else { 0.6 };
    let policy = perceptron(game, hidden, scale, device);
    let native_policy = NativeMlp::new(&policy);
    let mut native = NativeRollout::new(game, config, keys);
    let mut stepwise = StepwiseRollout::new(game, config, keys, device);
    assert!(
        native.export_branches().is_empty()
            && block_on(stepwise.export_branches_async()).is_empty()
    );
    for iteration in 0..3 {
        let context = format!("{game:?}, {config:?}, iteration {iteration}");
        if iteration == 2 {
            stepwise = StepwiseRollout::new(game, config, keys, device);
            stepwise.import_branches(&native.export_branches()).unwrap();
        }
        let want = Host::of(&native.collect(&native_policy, iteration, &cpu()));
        let got = Host::of(&stepwise.collect(&policy.clone().into(), iteration));
        want.assert_lively(game.num_actions() as u32, &context);
        got.assert_is(&want, &context);
        let (got, want) = (block_on(stepwise.export_branches_async()), native.export_branches());
        let seats = match config.start {
            GroupStart::Level => 0,
            GroupStart::Branch => config.num_groups,
        };
        assert_eq!(want.len(), seats * env_words(game), "{context}");
        assert_words(game, &got, &want, float_state, &context);
    }
}

fn check_all(device: &Device, default_fruit: bool) {
    for start in [GroupStart::Level, GroupStart::Branch] {
        check(SHORT_FRUIT, &config(7, 3, 20, start), &[16], false, device);
        let positions = Fruit { observation: FruitObservation::Positions, ..SHORT_FRUIT };
        check(positions, &config(5, 3, 18, start), &[16], false, device);
        check(Catch::default(), &config(3, 5, 19, start), &[32, 16], false, device);
        check(CATCH_BOARD, &config(5, 3, 17, start), &[16], false, device);
        check(LEDGE, &config(5, 3, 37, start), &[16], false, device);
        check(Meadow, &config(5, 3, 37, start), &[16], false, device);
        let cartpole = CartPole::default();
        check(cartpole, &config(3, 5, 200, start), &[16], true, device);
        if default_fruit {
            let fruit = Fruit::default();
            check(fruit, &config(11, 7, 101, start), &[16], false, device);
        }
    }
}

#[test]
fn native_and_stepwise_play_the_same_games_on_the_cpu() {
    check_all(&cpu(), true);
}

#[test]
fn native_and_stepwise_play_the_same_games_on_an_adapter() {
    let Some(device) = adapter() else { return };
    check_all(&device, false);
}

/// Checks that games of a group with equal actions have equal observations over several episodes,
/// and that groups differ.
fn check_shared_levels<G: Rules>(game: G, stepwise: Option<&Device>) {
    let config = config(5, 4, 40, GroupStart::Level);
    let keys = RolloutKeys::new(79);
    let device = stepwise.cloned().unwrap_or_else(cpu);
    let policy = constant_policy(game, 1, &device);
    let host = Host::of(&match stepwise {
        None => {
            let policy = NativeMlp::new(&policy);
            NativeRollout::new(game, &config, keys).collect(&policy, 0, &device)
        }
        Some(_) => {
            StepwiseRollout::new(game, &config, keys, &device).collect(&policy.clone().into(), 0)
        }
    });
    assert!(host.actions.iter().all(|a| *a == 1), "all act alike");
    assert!(host.ends().iter().sum::<f32>() > config.num_envs() as f32);
    let trace = |env: usize| -> Vec<&[f32]> { (0..40).map(|t| host.obs(t, env)).collect() };
    for env in 0..config.num_envs() {
        let first = env / 4 * 4;
        assert_eq!(trace(env), trace(first), "{game:?}: game {env}");
        assert!(env == first || env < 4 || trace(env) != trace(0));
    }
}

#[test]
fn the_members_of_a_group_share_their_level() {
    check_shared_levels(SHORT_FRUIT, None);
    check_shared_levels(Catch::default(), None);
    check_shared_levels(CartPole::default(), None);
    if let Some(device) = adapter() {
        check_shared_levels(SHORT_FRUIT, Some(&device));
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let game = SHORT_FRUIT;
    let config = config(23, 5, 30, GroupStart::Branch);
    let policy = NativeMlp::new(&perceptron(game, &[16], 1.2, &cpu()));
    let run = |threads: usize| {
        on_threads(threads, || {
            let mut rollout = NativeRollout::new(game, &config, RolloutKeys::new(80));
            let hosts: Vec<Host> =
                (0..2).map(|i| Host::of(&rollout.collect(&policy, i, &cpu()))).collect();
            let evaluations = [ActionSelection::Greedy, ActionSelection::Sampling]
                .map(|player| evaluate(&policy, game, 77, Stream::Evaluation, 3, player));
            (hosts, rollout.export_branches(), evaluations)
        })
    };
    let one = run(1);
    one.0[0].assert_lively(3, "one thread");
    for threads in [2, 3, 8] {
        assert_eq!(run(threads), one, "{threads} threads");
    }
}

#[test]
fn other_seeds_and_iterations_play_other_games() {
    let game = SHORT_FRUIT;
    let config = config(3, 5, 20, GroupStart::Level);
    let policy = NativeMlp::new(&perceptron(game, &[16], 1.2, &cpu()));
    let played = |seed: u64, iteration: u32| {
        let mut rollout = NativeRollout::new(game, &config, RolloutKeys::new(seed));
        Host::of(&rollout.collect(&policy, iteration, &cpu()))
    };
    let first = played(1, 0);
    assert_eq!(first, played(1, 0));
    for other in [played(2, 0), played(1, 1), played((1 << 32) | 1, 0)] {
        assert_ne!(first.obs, other.obs);
        assert_ne!(first.actions, other.actions);
    }
    // Games of a group share the start, but sample their own actions.
    let actions =
        |env: usize| -> Vec<u32> { (0..20).map(|t| first.actions[t * 15 + env]).collect() };
    assert_ne!(actions(0), actions(1));
}

#[test]
fn the_sums_of_a_rollout_are_those_of_its_steps() {
    let game = CartPole { max_steps: 20 };
    let policy = NativeMlp::new(&perceptron(game, &[16], 1.2, &cpu()));
    for auto_reset in [true, false] {
        // Two blocks of games, the second one partial.
        let config = RolloutConfig { auto_reset, ..config(3, 7, 50, GroupStart::Level) };
        let mut played = NativeTrajectory::default();
        played.resize(21, 50, 4);
        played.enable_scores();
        let mut rollout = NativeRollout::new(game, &config, RolloutKeys::new(3));
        let sums = rollout.collect_into(&policy, 0, &mut played);
        let sum = |values: &[f32]| values.iter().copied().map(f64::from).sum::<f64>();
        let total = |of: fn(&GameSums) -> f64| sums.iter().map(of).sum::<f64>();
        assert_eq!(sums.len(), 21);
        let (scores, episodes) = (total(|sums| sums.scores), total(|sums| sums.episodes));
        if auto_reset {
            assert_eq!(scores, sum(&played.scores));
        }
        assert!(scores > episodes, "an episode has more than one step");
        assert_eq!(episodes > 21.0, auto_reset, "one episode of each game counts");
        for (env, sums) in sums.iter().enumerate() {
            let length = played.counted_steps(env, auto_reset);
            let statuses = &played.statuses[env * 50..][..length];
            let last = statuses.iter().rposition(|end| end.has_ended());
            assert_eq!(sums.ended_steps, last.map_or(0.0, |last| last as f64 + 1.0));
            let ended = statuses.iter().filter(|end| end.has_ended()).count();
            assert_eq!(sums.episodes, ended as f64);
            assert_eq!(sums.scores, sum(&played.scores[env * 50..][..length]));
            assert_eq!(sums.rewards, sum(&played.rewards[env * 50..][..length]));
            assert_eq!(sums.steps, length as f64);
        }
        let steps = total(|sums| sums.steps);
        assert_eq!(steps == 21.0 * 50.0, auto_reset, "an episode has 20 steps at most");
    }
}

#[test]
fn saved_games_that_do_not_fit_are_rejected() {
    let game = Catch::default();
    let config = config(3, 5, 2, GroupStart::Branch);
    let keys = RolloutKeys::new(1);
    let words = vec![0; 3 * env_words(game) - 1];
    let expected = "the saved games are 11 words, but 12 are needed for 3 groups of `catch`";
    let mut native = NativeRollout::new(game, &config, keys);
    assert_eq!(native.import_branches(&words).unwrap_err().to_string(), expected);
    let mut stepwise = StepwiseRollout::new(game, &config, keys, &cpu());
    assert_eq!(stepwise.import_branches(&words).unwrap_err().to_string(), expected);
}
