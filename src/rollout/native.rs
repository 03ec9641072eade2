//! Rollouts on the CPU's threads: rules and policy as native code.
//!
//! Blocks of [`LANES`] games are played from the first step to the last by one thread, without a
//! word to the others; which thread plays which block changes nothing.

use super::seats::{self, BranchPoint, Seat};
use super::{RolloutKeys, SeatsError, action_key, action_uniform};
use crate::config::RolloutConfig;
use crate::env::Rules;
use crate::policy::{LANES, Lanes, NativeMlp, sample_lanes};
use crate::trajectory::Trajectory;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;

/// The games of a run, played natively.
#[derive(Clone, Debug)]
pub struct NativeRollout<G: Rules> {
    game: G,
    config: RolloutConfig,
    keys: RolloutKeys,
    branches: Vec<Seat<G>>,
}

/// What a block of games gave: `[num_steps][LANES]` each, the features
/// `[num_steps * num_features][LANES]`.
struct Block<G: Rules> {
    /// The group and the seat of each branch point among these games.
    branches: Vec<(usize, Seat<G>)>,
    obs: Vec<Lanes>,
    actions: Vec<[i32; LANES]>,
    logprobs: Vec<Lanes>,
    rewards: Vec<Lanes>,
    ends: Vec<Lanes>,
    scores: Vec<Lanes>,
}

impl<G: Rules> NativeRollout<G> {
    /// No game is started before the first rollout.
    pub fn new(game: G, config: &RolloutConfig, keys: RolloutKeys) -> Self {
        Self { game, config: config.clone(), keys, branches: Vec::new() }
    }

    /// Plays `num_steps` steps of every game and puts the trajectory on `device`.
    pub fn collect(&mut self, policy: &NativeMlp, iteration: u32, device: &Device) -> Trajectory {
        let keys = self.keys.at(iteration);
        let seats = seats::deal(self.game, &self.config, keys.level, &self.branches);
        let points = seats::branch_points(&self.config, keys.branch);
        let blocks: Vec<Block<G>> = seats
            .par_chunks(LANES)
            .enumerate()
            .map(|(block, seats)| {
                self.play_block(policy, keys.action, &points, block * LANES, seats.to_vec())
            })
            .collect();
        let mut branches: Vec<_> =
            blocks.iter().flat_map(|block| block.branches.iter().copied()).collect();
        branches.sort_by_key(|(group, _)| *group);
        self.branches = branches.into_iter().map(|(_, seat)| seat).collect();

        let (steps, envs) = (self.config.num_steps, self.config.num_envs());
        let floats = |pick: fn(&Block<G>) -> &[Lanes]| {
            let rows = in_time_order(&blocks, steps, envs, pick);
            Tensor::<2>::from_data(TensorData::new(rows, [steps, envs]), device)
        };
        let actions = in_time_order(&blocks, steps, envs, |b| &b.actions);
        Trajectory {
            obs: self.observations(&blocks, device),
            actions: Tensor::<2, Int>::from_data(TensorData::new(actions, [steps, envs]), device),
            logprobs: floats(|b| &b.logprobs),
            rewards: floats(|b| &b.rewards),
            ends: floats(|b| &b.ends),
            scores: floats(|b| &b.scores),
        }
    }

    /// Where the groups go on, as words `[seat_words, num_groups]`; none before the first iteration
    /// or where games start at levels.
    pub fn export(&self) -> Vec<u32> {
        seats::export(self.game, &self.branches)
    }

    /// Goes on with what [`NativeRollout::export`] gave.
    ///
    /// # Errors
    /// If the number of words does not fit.
    pub fn import(&mut self, words: &[u32]) -> Result<(), SeatsError> {
        self.branches = seats::import(self.game, self.config.num_groups, words)?;
        Ok(())
    }

    fn play_block(
        &self,
        policy: &NativeMlp,
        iteration_key: u32,
        points: &[BranchPoint],
        first: usize,
        mut seats: Vec<Seat<G>>,
    ) -> Block<G> {
        // The groups that have members among these games.
        let members = self.config.group_size;
        let groups = first / members..=(first + seats.len() - 1) / members;
        let (steps, features) = (self.config.num_steps, self.game.num_features());
        let mut block = Block {
            branches: Vec::new(),
            obs: vec![[0.0; LANES]; steps * features],
            actions: vec![[0; LANES]; steps],
            logprobs: vec![[0.0; LANES]; steps],
            rewards: vec![[0.0; LANES]; steps],
            ends: vec![[0.0; LANES]; steps],
            scores: vec![[0.0; LANES]; steps],
        };
        let mut scratch = policy.scratch();
        let action_keys: [u32; LANES] =
            std::array::from_fn(|lane| action_key(iteration_key, (first + lane) as u32));
        let mut actions = [0; LANES];
        for t in 0..steps {
            let obs = &mut block.obs[t * features..(t + 1) * features];
            observe(self.game, &seats, obs);
            let logits = policy.logits(obs, &mut scratch);
            let u = action_keys.map(|key| action_uniform(key, t as u32));
            sample_lanes(logits, &u, &mut actions, &mut block.logprobs[t]);
            block.actions[t] = actions.map(|action| action as i32);
            for (lane, seat) in seats.iter_mut().enumerate() {
                let played = seat.play(actions[lane], self.game);
                block.rewards[t][lane] = played.reward;
                block.ends[t][lane] = f32::from(played.ended);
                block.scores[t][lane] = played.score;
            }
            for group in groups.clone() {
                if let Some(point) = points.get(group)
                    && point.step == t + 1
                    && (first..first + seats.len()).contains(&point.env)
                {
                    block.branches.push((group, seats[point.env - first]));
                }
            }
        }
        block
    }

    /// Observations `[num_steps, num_envs, num_features]` out of the blocks' lanes.
    fn observations(&self, blocks: &[Block<G>], device: &Device) -> Tensor<3> {
        let (steps, envs) = (self.config.num_steps, self.config.num_envs());
        let features = self.game.num_features();
        let mut obs = vec![0.0f32; steps * envs * features];
        obs.par_chunks_mut(envs * features).enumerate().for_each(|(t, row)| {
            for (block, out) in blocks.iter().zip(row.chunks_mut(LANES * features)) {
                let lanes = &block.obs[t * features..(t + 1) * features];
                for (lane, out) in out.chunks_exact_mut(features).enumerate() {
                    for (x, feature) in out.iter_mut().zip(lanes) {
                        *x = feature[lane];
                    }
                }
            }
        });
        Tensor::from_data(TensorData::new(obs, [steps, envs, features]), device)
    }
}

/// Fills `obs`, `[num_features][LANES]`, with the features of up to [`LANES`] games.
///
/// The first features are asked for by constants, so that the code of each is compiled for itself, as
/// it is in a kernel.
pub(super) fn observe<G: Rules>(game: G, seats: &[Seat<G>], obs: &mut [Lanes]) {
    macro_rules! constants {
        ($($i:literal)*) => {
            $(if $i < obs.len() {
                observe_one(game, seats, $i, &mut obs[$i]);
            })*
        };
    }
    constants!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19);
    for (i, feature) in obs.iter_mut().enumerate().skip(20) {
        observe_one(game, seats, i, feature);
    }
}

#[inline(always)]
fn observe_one<G: Rules>(game: G, seats: &[Seat<G>], i: usize, feature: &mut Lanes) {
    for (x, seat) in feature.iter_mut().zip(seats) {
        *x = G::feature(&seat.state, i, game);
    }
}

/// One quantity of all blocks in the order `[num_steps, num_envs]`.
fn in_time_order<G: Rules, T: Copy + Default + Send + Sync>(
    blocks: &[Block<G>],
    steps: usize,
    envs: usize,
    pick: fn(&Block<G>) -> &[[T; LANES]],
) -> Vec<T> {
    let mut rows = vec![T::default(); steps * envs];
    rows.par_chunks_mut(envs).enumerate().for_each(|(t, row)| {
        for (block, out) in blocks.iter().zip(row.chunks_mut(LANES)) {
            out.copy_from_slice(&pick(block)[t][..out.len()]);
        }
    });
    rows
}
