//! The fused rollout against the native and the stepwise one.

use super::{Host, config};
use crate::shared::iteration::first_games;
use crate::shared::rollouts::{
    more_layers, one_hidden_layer, perceptron, play_fused, two_hidden_layers,
};
use crate::support::{adapter, cpu};
use burn::tensor::{Int, Tensor};
use grove::env::Catch;
use grove::model::{FlatMlp, NativeMlp};
use grove::rollout::{DeviceGames, FusedRollout, NativeRollout, RolloutKeys};
use grove::settings::{Activation, GroupStart};
use pollster::block_on;

#[test]
fn fused_and_stepwise_play_the_same_games_with_one_hidden_layer() {
    let Some(device) = adapter() else { return };
    block_on(one_hidden_layer(&device));
}

#[test]
fn fused_and_stepwise_play_the_same_games_with_two_hidden_layers() {
    let Some(device) = adapter() else { return };
    block_on(two_hidden_layers(&device));
}

#[test]
#[ignore = "slow: 15 s of CPU time on a software adapter"]
fn fused_and_stepwise_play_the_same_games_with_other_layers() {
    let Some(device) = adapter() else { return };
    block_on(more_layers(&device));
}

#[test]
fn runs_start_with_the_same_games_everywhere() {
    let Some(device) = adapter() else { return };
    block_on(first_games(&device));
}

#[test]
fn the_fused_rollout_plays_more_games_than_a_row_of_cubes_holds() {
    let Some(device) = adapter() else { return };
    // A row has at most 65,535 cubes under WebGPU's limits, of 64 games each.
    let (game, groups, members) = (Catch { rows: 2, ..Catch::default() }, 599_213, 7);
    assert!(groups * members > 65_535 * 64);
    let config = config(groups, members, 1, GroupStart::Branch);
    let keys = RolloutKeys::new(82);
    let policy = perceptron(game, &[1], Activation::Tanh, &device);
    let mut native = NativeRollout::new(game, &config, keys);
    let want = Host::of(&native.collect(&NativeMlp::new(&policy), 0, &cpu()));
    let mut rollout = FusedRollout::new(game, &config, keys, &device);
    let got = Host::of(&block_on(play_fused(game, &mut rollout, &policy, 0)));
    assert_eq!(got.obs, want.obs);
    // An adapter's exponential may flip a draw by rounding, about once in a million.
    let differing = got.actions.iter().zip(&want.actions).filter(|(a, b)| a != b).count();
    assert!(differing <= 42, "{differing} actions differ");
    let words = block_on(rollout.export_branches_async());
    let differing = words.iter().zip(native.export_branches()).filter(|(a, b)| **a != *b).count();
    assert!(differing <= 42, "{differing} words differ");
}

#[test]
fn games_on_a_device_advance_as_native_ones() {
    let Some(device) = adapter() else { return };
    let (game, count) = (Catch { rows: 4, ..Catch::default() }, 37);
    let mut config = config(count, 1, 1, GroupStart::Branch);
    config.learn_steps = 1;
    let policy = perceptron(game, &[16], Activation::Tanh, &device);
    let (flat, native_policy) = (FlatMlp::from_mlp(&policy).unwrap(), NativeMlp::new(&policy));
    let mut native = NativeRollout::new(game, &config, RolloutKeys::new(9));
    let mut games = DeviceGames::new(game, count, 9, &device);
    let words = |seats: Tensor<2, Int>| -> Vec<u32> {
        seats.into_data().iter::<i32>().map(|word| word as u32).collect()
    };
    let (mut last, mut begun) = (None, 0);
    for step in 0..6 {
        native.collect(&native_policy, step, &cpu());
        let [before, now] = games.step(&flat).map(words);
        assert_eq!(now, native.export_branches(), "step {step}");
        // On the first call there is no earlier state.
        let last = last.replace(now.clone()).unwrap_or_else(|| now.clone());
        assert_eq!(before, last, "step {step}");
        // A level's time begins again.
        begun += (count..2 * count).filter(|i| now[*i] < before[*i]).count();
    }
    assert!(begun >= count, "{begun} of {count} games have gone on with a next level");
}

#[test]
fn the_fused_rollout_refuses_saved_games_that_do_not_fit() {
    let Some(device) = adapter() else { return };
    let config = config(3, 5, 2, GroupStart::Branch);
    let mut fused = FusedRollout::new(Catch::default(), &config, RolloutKeys::new(1), &device);
    let message = fused.import_branches(&[0; 11]).unwrap_err().to_string();
    assert!(message.contains("11 words, but 12 are needed"), "{message}");
}
