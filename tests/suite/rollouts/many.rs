//! More games than fit in one row of cubes.

use super::starts::{branch_point, replay, staggered_start};
use super::{Host, assert_close, config, seat};
use crate::support::adapter;
use burn::backend::Cube;
use burn::cubecl::CubeDim;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use grove::env::{Catch, Episode};
use grove::model::{Memoryless, sample};
use grove::rng::{Stream, draw, uniform};
use grove::rollout::{RolloutKeys, StepwiseRollout};
use grove::settings::{GroupStart, RolloutConfig};
use pollster::block_on;

/// A policy without a matrix product: the logits are scaled features.
#[derive(Module, Debug)]
struct Features {
    scale: Param<Tensor<1>>,
}

impl Memoryless for Features {
    fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
        let [batch, _] = obs.dims();
        let scale = self.scale.val().reshape([1, 3]);
        obs.slice([0..batch, 0..3]) * scale
    }
}

/// Number of games that fit in one row of cubes at the launch size of the rollout's kernels.
fn games_of_a_row(device: &Device) -> usize {
    let probe = Tensor::<1>::zeros([1], device);
    let client = probe.try_into_primitive::<Cube>().unwrap().client;
    let (row, _, _) = client.properties().hardware.max_cube_count;
    row as usize * CubeDim::new(&client, 1 << 24).num_elems() as usize
}

#[test]
fn more_games_than_a_row_of_cubes_holds() {
    let Some(device) = adapter() else { return };
    // If a row holds too many games for a small machine, use a number that at least exceeds 16
    // bits.
    let row = games_of_a_row(&device);
    let groups = if row < 1 << 22 { row / 7 + 3 } else { 10_001 };
    eprintln!("a row of cubes holds {row} games: playing {}", groups * 7);
    let game = Catch::default();
    let (members, steps, seed) = (7, 2, 81);
    let config =
        RolloutConfig { learn_steps: steps, ..config(groups, members, steps, GroupStart::Branch) };
    let scale = [3.0f32, -2.0, 1.5];
    let policy = Features { scale: Param::from_data(TensorData::from(scale), &device) };
    let mut rollout = StepwiseRollout::new(game, &config, RolloutKeys::new(seed), &device);
    let host = Host::of(&rollout.collect(&policy.into(), 0));
    let words = block_on(rollout.export_branches_async());

    let action_key = draw(Stream::TrainAction.key(seed), 0);
    let envs = groups * members;
    assert_eq!(host.dims, [steps, envs, 4]);
    let mut differing = 0;
    for env in 0..envs {
        let (group, member) = (env / members, env % members);
        let seats = replay(game, &host, env, staggered_start(game, seed, group));
        let seats = seats.unwrap_or_else(|| panic!("game {env} strayed"));
        for t in 0..steps {
            let at = t * envs + env;
            let obs = host.obs(t, env);
            let logits = [0, 1, 2].map(|a| obs[a] * scale[a]);
            let u = uniform(draw(draw(action_key, env as u32), t as u32));
            let sampled = sample(&logits, u);
            if host.actions[at] == sampled.action {
                assert_close(&[host.logprobs[at]], &[sampled.logprob], 1e-5, "logprob");
            } else {
                differing += 1;
            }
        }
        let (step, chosen) = branch_point(&config, seed, 0, group);
        if member == chosen {
            // A branch point has another number in place of its level.
            let (state, episode) = seat(game, &words, group);
            let (expected, was) = seats[step - 1];
            let episode = Episode { level: was.level, ..episode };
            assert_eq!((state, episode), (expected, was), "group {group}");
        }
    }
    // An adapter's exponential may flip a draw by rounding, about once in a million.
    assert!(differing <= 1 + envs * steps / 100_000, "{differing} differ");
}
