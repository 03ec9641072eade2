//! Starting positions of games, checked by replaying trajectories: levels or branch points.

use super::{Host, SHORT_FRUIT, config, perceptron, seat};
use crate::support::cpu;
use grove::env::{CartPole, Catch, Episode, Rules, initial_state, step_with_auto_reset};
use grove::model::NativeMlp;
use grove::rng::{Stream, draw};
use grove::rollout::{NativeRollout, RolloutKeys};
use grove::settings::{GroupStart, RolloutConfig};

/// Replays the recorded actions of game `env` from a position. Returns the position after each
/// step, or `None` if the record does not match.
pub fn replay<G: Rules>(
    game: G,
    host: &Host,
    env: usize,
    (mut state, mut episode): (G::State, Episode),
) -> Option<Vec<(G::State, Episode)>> {
    let [steps, envs, _] = host.dims;
    let mut seats = Vec::new();
    for t in 0..steps {
        let at = t * envs + env;
        let obs: Vec<f32> = (0..game.num_features()).map(|i| G::feature(&state, i, game)).collect();
        let result = step_with_auto_reset::<G>(&mut state, &mut episode, host.actions[at], game);
        let ends = [result.terminated, result.truncated].map(f32::from);
        let mut values = obs.iter().zip(host.obs(t, env));
        if values.any(|(a, b)| (a - b).abs() > 1e-6)
            || ends != [host.terminated[at], host.truncated[at]]
            || [result.reward, result.episode_score] != [host.rewards[at], host.scores[at]]
        {
            return None;
        }
        seats.push((state, episode));
    }
    Some(seats)
}

/// Start of the level of `group` in `iteration`.
fn level_start<G: Rules>(game: G, seed: u64, iteration: u32, group: usize) -> (G::State, Episode) {
    let level = draw(draw(Stream::TrainLevel.key(seed), iteration), group as u32);
    let episode = Episode { level, ..Episode::default() };
    (initial_state::<G>(level, game), episode)
}

/// Start in the first iteration of `GroupStart::Branch`, which staggers the times of episodes.
pub fn staggered_start<G: Rules>(game: G, seed: u64, group: usize) -> (G::State, Episode) {
    let (state, mut episode) = level_start(game, seed, 0, group);
    episode.time = draw(episode.level, 0xffff_fffd) % game.max_steps();
    (state, episode)
}

/// Step and game from which a group branches, computed as documented.
pub fn branch_point(
    config: &RolloutConfig,
    seed: u64,
    iteration: u32,
    group: usize,
) -> (usize, usize) {
    let key = draw(draw(Stream::Branch.key(seed), iteration), group as u32);
    let step = 1 + draw(key, 0) as usize % config.learn_steps;
    (step, draw(key, 1) as usize % config.group_size)
}

/// Follows every group of `GroupStart::Branch` by replaying trajectories of the native rollout.
fn check_branches<G: Rules<State: PartialEq>>(game: G) {
    let config = config(13, 5, 17, GroupStart::Branch);
    let (groups, members) = (config.num_groups, config.group_size);
    let policy = NativeMlp::new(&perceptron(game, &[16], 1.2, &cpu()));
    let seed = 77;
    let mut rollout = NativeRollout::new(game, &config, RolloutKeys::new(seed));
    // Each group starts at its level, at a random time of the episode.
    let mut starts: Vec<_> = (0..groups).map(|group| staggered_start(game, seed, group)).collect();
    let mut times = starts.iter().map(|start| start.1.time as usize).collect();
    let (mut steps, mut chosen) = (Vec::new(), Vec::new());
    // Steps played of each group's episode so far.
    let (mut played, mut continued) = (vec![0; groups], 0);
    for iteration in 0..4 {
        let host = Host::of(&rollout.collect(&policy, iteration, &cpu()));
        let words = rollout.export_branches();
        let started = played.clone();
        for (group, start) in starts.iter_mut().enumerate() {
            let context = format!("{game:?}, iteration {iteration}, group {group}");
            let (step, member) = branch_point(&config, seed, iteration, group);
            assert!((1..=config.learn_steps).contains(&step));
            let mut next = None;
            for m in 0..members {
                let env = group * members + m;
                assert_eq!(host.obs(0, env), host.obs(0, group * members), "{context}");
                let seats = replay(game, &host, env, *start);
                let seats = seats.unwrap_or_else(|| panic!("{context}: member {m} strayed"));
                let (mut length, mut ended_steps) = (started[group], 0.0);
                for (t, (state, mut episode)) in seats.into_iter().enumerate() {
                    length += 1;
                    if episode.time == 0 {
                        ended_steps += length as f32;
                        continued += usize::from(length > t + 1);
                        length = 0;
                    }
                    if m == member && t + 1 == step {
                        // In place of the level, which says nothing of a new future.
                        episode.level = episode.time - length as u32;
                        next = Some((state, episode));
                        played[group] = length;
                    }
                }
                assert_eq!(host.ended_steps[env], ended_steps, "{context}: member {m}");
            }
            // The group continues from one of its games with a new future.
            let found = seat(game, &words, group);
            assert_eq!(Some(found), next, "{context}");
            *start = found;
            let new = level_start(game, seed, iteration + 1, group).1.level;
            assert_ne!(start.1.level, new, "{context}");
            start.1.level = new;
            steps.push(step);
            chosen.push(member);
        }
    }
    let different = |values: &mut Vec<usize>| {
        values.sort_unstable();
        values.dedup();
        values.len()
    };
    assert!(continued > 0, "{game:?}: no episode began before its iteration");
    assert!(different(&mut times) > 3, "{game:?}: starts at {times:?}");
    assert_eq!(different(&mut steps), config.learn_steps, "{steps:?}");
    assert_eq!(different(&mut chosen), members, "{chosen:?}");
}

#[test]
fn a_branching_group_continues_from_one_of_its_games() {
    check_branches(SHORT_FRUIT);
    check_branches(Catch::default());
    check_branches(CartPole { max_steps: 30 });
}

/// `GroupStart::Level`: each group starts a new level in every iteration.
fn check_levels<G: Rules>(game: G) {
    let config = config(7, 3, 23, GroupStart::Level);
    let policy = NativeMlp::new(&perceptron(game, &[16], 1.2, &cpu()));
    let seed = 78;
    let mut rollout = NativeRollout::new(game, &config, RolloutKeys::new(seed));
    for iteration in 0..3 {
        let host = Host::of(&rollout.collect(&policy, iteration, &cpu()));
        host.assert_lively(game.num_actions() as u32, G::NAME);
        for env in 0..config.num_envs() {
            let start = level_start(game, seed, iteration, env / config.group_size);
            let replayed = replay(game, &host, env, start).is_some();
            assert!(replayed, "{game:?}, iteration {iteration}, game {env}");
        }
        assert!(rollout.export_branches().is_empty());
    }
}

#[test]
fn every_iteration_starts_new_levels() {
    check_levels(SHORT_FRUIT);
    check_levels(Catch::default());
    check_levels(CartPole::default());
}
