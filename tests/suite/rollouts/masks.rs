//! Action masks in all rollouts, and scores that differ from rewards.

use super::{Host, LEDGE, config, perceptron};
use crate::shared::cpu;
use crate::shared::ledge::{Ledge, LedgeState};
use crate::shared::rollouts::play_fused;
use crate::support::adapter;
use grove::env::{Episode, Rules, initial_state, step_with_auto_reset};
use grove::model::{Mlp, NativeMlp};
use grove::rng::{Stream, draw};
use grove::rollout::{
    ActionSelection, FusedRollout, LiveGames, NativeRollout, RolloutKeys, StepwiseRollout, evaluate,
};
use grove::settings::{GroupStart, LossType, TrainConfig};
use grove::trainer::Trainer;
use pollster::block_on;

fn policy() -> Mlp {
    perceptron(LEDGE, &[16], 1.2, &cpu())
}

/// Asserts that no illegal action is taken, and that every action is illegal at times.
fn assert_legal(host: &Host, context: &str) {
    let legal = host.legal.as_ref().expect("the game has masks");
    assert_eq!(legal.len(), 4 * host.actions.len(), "{context}");
    for (at, action) in host.actions.iter().enumerate() {
        assert_eq!(legal[4 * at + *action as usize], 1.0, "{context}: step {at}");
    }
    for a in 0..4 {
        let seen = |what: f32| legal.iter().skip(a).step_by(4).any(|x| *x == what);
        assert!(seen(0.0) && seen(1.0), "{context}: action {a} is legal at times");
        assert!(host.actions.contains(&(a as u32)), "{context}: action {a} is taken");
    }
}

#[test]
fn no_rollout_takes_an_illegal_action() {
    let config = config(40, 5, 60, GroupStart::Level);
    let keys = RolloutKeys::new(3);
    let mut native = NativeRollout::new(LEDGE, &config, keys);
    let want = Host::of(&native.collect(&NativeMlp::new(&policy()), 0, &cpu()));
    assert_legal(&want, "native");
    let mut stepwise = StepwiseRollout::new(LEDGE, &config, keys, &cpu());
    Host::of(&stepwise.collect(&policy().into(), 0)).assert_is(&want, "stepwise on the CPU");
    if let Some(device) = adapter() {
        let policy = perceptron(LEDGE, &[16], 1.2, &device);
        let mut fused = FusedRollout::new(LEDGE, &config, keys, &device);
        let got = Host::of(&block_on(play_fused(LEDGE, &mut fused, &policy, 0)));
        assert_legal(&got, "fused");
    }
}

#[test]
fn scores_are_those_of_the_rules_and_not_the_rewards() {
    let config = config(9, 3, 50, GroupStart::Level);
    let mut native = NativeRollout::new(LEDGE, &config, RolloutKeys::new(4));
    let host = Host::of(&native.collect(&NativeMlp::new(&policy()), 0, &cpu()));
    let mut ends = [0; 2];
    for env in 0..27 {
        let level = draw(draw(Stream::TrainLevel.key(4), 0), env as u32 / 3);
        let mut state = initial_state::<Ledge>(level, LEDGE);
        let mut episode = Episode { level, ..Episode::default() };
        let mut score = 0.0;
        for t in 0..50 {
            let at = t * 27 + env;
            // Being at the lamp gives reward 1 and score 3.
            let result =
                step_with_auto_reset::<Ledge>(&mut state, &mut episode, host.actions[at], LEDGE);
            assert_eq!(result.reward, host.rewards[at]);
            score += if host.rewards[at] == 1.0 { 3.0 } else { 0.0 };
            if result.has_ended() {
                assert_eq!(host.scores[at], score);
                score = 0.0;
                assert_ne!(result.terminated, result.truncated);
                ends[usize::from(result.truncated)] += 1;
            }
            let told = [host.terminated[at], host.truncated[at]];
            assert_eq!(told, [result.terminated, result.truncated].map(f32::from));
        }
    }
    assert!(ends[0] > 10 && ends[1] > 10, "episodes end both ways: {ends:?}");
}

#[test]
fn evaluated_and_watched_games_heed_masks_too() {
    let native = NativeMlp::new(&policy());
    for player in [ActionSelection::Greedy, ActionSelection::Sampling] {
        let mut watched = LiveGames::new(LEDGE, 19, 7);
        for _ in 0..40 {
            let choices = watched.choose(&native, player);
            for (choice, state) in choices.iter().zip(watched.states()) {
                let legal = |a: usize| <Ledge as Rules>::is_legal(&state, a, LEDGE);
                assert!(legal(choice.action as usize), "{player:?}: {choice:?} in {state:?}");
                for (a, p) in choice.probabilities.iter().enumerate() {
                    // The exponential of a masked logit is not 0, but too small to be drawn.
                    assert_eq!(*p > 1e-30, legal(a), "{player:?}: {choice:?} in {state:?}");
                }
            }
            let actions: Vec<u32> = choices.iter().map(|choice| choice.action).collect();
            watched.step(&actions);
        }
        // An illegal step would leave the ledge, where nothing scores.
        let result = evaluate(&native, LEDGE, 200, Stream::Evaluation, 7, player);
        assert!(result.mean_score >= 0.0 && result.mean_length > 2.0, "{player:?}: {result:?}");
    }
}

#[test]
fn illegal_actions_are_never_learnt() {
    let mut config = TrainConfig { iterations: 30, ..TrainConfig::for_game("ledge") };
    (config.rollout.num_groups, config.rollout.group_size) = (16, 8);
    (config.rollout.num_steps, config.rollout.learn_steps) = (16, 16);
    config.loss.loss_type = LossType::Grpo;
    config.policy.hidden = vec![32];
    config.update.num_minibatches = 1;
    let mut trainer = Trainer::new(LEDGE, &config, &cpu());
    let before = trainer.evaluate_on_validation(500, ActionSelection::Sampling).unwrap().mean_score;
    for _ in 0..30 {
        let record = trainer.iterate().expect("values stay finite");
        assert!(record.entropy <= 4f64.ln(), "{record:?}");
    }
    let after = trainer.evaluate_on_validation(500, ActionSelection::Greedy).unwrap().mean_score;
    assert!(after > 1.3 * before, "from {before} to {after}");
    let walled = LedgeState { cell: 0, lamp: 3, stood: 1 };
    assert!(<Ledge as Rules>::is_legal(&walled, 2, LEDGE), "one action is always left");
}
