//! The fused rollout plays the games of the native and the stepwise one.

use super::{CATCH_BOARD, Host, SHORT_FRUIT, assert_words, config};
use crate::support::{adapter, cpu};
use burn::tensor::{Device, Tensor};
use grove::config::{Activation, PolicyConfig, RolloutConfig, Start};
use grove::draws::{draw, uniform};
use grove::env::{CartPole, Catch, Rules};
use grove::policy::{FlatMlp, Mlp, NativeMlp, flatten, unflatten};
use grove::rollout::{FusedRollout, NativeRollout, RolloutKeys, StepwiseRollout, unpack};

/// A perceptron whose logits differ by a few units, whatever its width.
fn perceptron<G: Rules>(game: G, hidden: &[usize], activation: Activation, device: &Device) -> Mlp {
    let config = PolicyConfig { hidden: hidden.to_vec(), activation };
    let mlp = Mlp::new(game.num_features(), game.num_actions(), &config, 1, device);
    // Burn's GELU is no number where its cube is beyond the range of a device's hyperbolic tangent.
    let spread = if activation == Activation::Tanh { 5.0 } else { 3.5 };
    let mut params = Vec::new();
    for (layer, linear) in mlp.layers().iter().enumerate() {
        let [inputs, outputs] = linear.weight.dims();
        let scale = spread / (inputs as f32).sqrt();
        let count = (inputs * outputs) as u32;
        let key = draw(41, layer as u32);
        params.extend((0..count).map(|i| (uniform(draw(key, i)) * 2.0 - 1.0) * scale));
        let key = draw(43, layer as u32);
        params.extend((0..outputs as u32).map(|i| uniform(draw(key, i)) - 0.5));
    }
    assert_eq!(flatten(&mlp).dims(), [params.len()]);
    unflatten(mlp, &Tensor::from_floats(params.as_slice(), device))
}

/// Plays three iterations natively, stepwise and fused, whole and `chunk` steps a launch; the third
/// by new rollouts that go on from what the native one exported.
fn check<G: Rules>(
    game: G,
    config: &RolloutConfig,
    hidden: &[usize],
    activation: Activation,
    chunk: usize,
    float_state: bool,
    device: &Device,
) {
    let keys = RolloutKeys::new(0x0fed_cba9_8765);
    let policy = perceptron(game, hidden, activation, device);
    let native_policy = NativeMlp::new(&policy);
    let mut native = NativeRollout::new(game, config, keys);
    let mut stepwise = StepwiseRollout::new(game, config, keys, device);
    let flat = FlatMlp::of(&policy).unwrap();
    let new = || FusedRollout::new(game, config, keys, device);
    // In launches of a few steps, and in parts of a few groups.
    let cut = || new().with_steps_per_launch(chunk).with_groups_per_part(2);
    let (mut whole, mut chunked) = (new(), cut());
    assert!(whole.export().is_empty());
    for iteration in 0..3 {
        let context =
            format!("{game:?}, {hidden:?} {activation:?}, {config:?}, iteration {iteration}");
        if iteration == 2 {
            (whole, chunked) = (new(), cut());
            whole.import(&native.export()).unwrap();
            chunked.import(&native.export()).unwrap();
            stepwise.import(&native.export()).unwrap();
        }
        let want = Host::of(&native.collect(&native_policy, iteration, &cpu()));
        let steps = Host::of(&stepwise.collect(&policy, iteration));
        let got = whole.collect(&flat, iteration);
        assert_eq!(got.parts.len(), 1);
        let got = Host::of(&unpack(game, &got, &cpu()));
        want.assert_lively(game.num_actions() as u32, &context);
        got.assert_is(&want, &format!("native: {context}"));
        got.assert_is(&steps, &format!("stepwise: {context}"));
        let parts = chunked.collect(&flat, iteration);
        assert_eq!(parts.parts.len(), config.num_groups.div_ceil(2));
        let parts = Host::of(&unpack(game, &parts, &cpu()));
        assert_eq!(parts, got, "in parts, {chunk} steps a launch: {context}");
        let words = whole.export();
        assert_words(game, &words, &native.export(), float_state, &context);
        assert_words(game, &words, &stepwise.export(), float_state, &context);
        assert_eq!(chunked.export(), words, "in parts, {chunk} steps a launch: {context}");
    }
}

#[test]
fn fused_and_stepwise_play_the_same_games_with_one_hidden_layer() {
    use Activation::{Gelu, Relu, Silu, Tanh};
    let Some(device) = adapter() else { return };
    let (level, branch) = (Start::Level, Start::Branch);
    let pole = CartPole::default();
    check(SHORT_FRUIT, &config(7, 3, 20, branch), &[16], Relu, 7, false, &device);
    check(SHORT_FRUIT, &config(5, 3, 20, level), &[17], Silu, 20, false, &device);
    check(Catch::default(), &config(3, 7, 19, level), &[17], Tanh, 1, false, &device);
    check(Catch::default(), &config(23, 3, 19, branch), &[128], Gelu, 18, false, &device);
    check(CATCH_BOARD, &config(5, 3, 17, branch), &[33], Relu, 6, false, &device);
    check(pole, &config(3, 5, 120, branch), &[64], Silu, 50, true, &device);
    check(pole, &config(3, 5, 150, level), &[128], Tanh, 149, true, &device);
}

#[test]
fn fused_and_stepwise_play_the_same_games_with_two_hidden_layers() {
    use Activation::{Gelu, Relu, Silu, Tanh};
    let Some(device) = adapter() else { return };
    let (level, branch) = (Start::Level, Start::Branch);
    let pole = CartPole::default();
    check(SHORT_FRUIT, &config(7, 3, 20, level), &[16, 17], Silu, 7, false, &device);
    check(SHORT_FRUIT, &config(5, 3, 20, branch), &[128, 128], Gelu, 9, false, &device);
    check(Catch::default(), &config(3, 7, 19, branch), &[17, 64], Relu, 4, false, &device);
    check(pole, &config(3, 5, 60, branch), &[64, 16], Tanh, 13, true, &device);
}

#[test]
fn the_fused_rollout_plays_more_games_than_a_row_of_cubes_holds() {
    let Some(device) = adapter() else { return };
    // A row has 65,535 cubes, where WebGPU's limits hold, of 64 games each.
    let (game, groups, members) = (Catch { rows: 2, ..Catch::default() }, 599_213, 7);
    assert!(groups * members > 65_535 * 64);
    let config = config(groups, members, 1, Start::Branch);
    let keys = RolloutKeys::new(82);
    let policy = perceptron(game, &[1], Activation::Tanh, &device);
    let mut native = NativeRollout::new(game, &config, keys);
    let want = Host::of(&native.collect(&NativeMlp::new(&policy), 0, &cpu()));
    let mut fused = FusedRollout::new(game, &config, keys, &device);
    let got = fused.collect(&FlatMlp::of(&policy).unwrap(), 0);
    let got = Host::of(&unpack(game, &got, &cpu()));
    assert_eq!(got.obs, want.obs);
    // An adapter's exponential may round a sum to the other side of a draw, once in a million.
    let differing = got.actions.iter().zip(&want.actions).filter(|(a, b)| a != b).count();
    assert!(differing <= 42, "{differing} actions differ");
    let differing = fused.export().iter().zip(native.export()).filter(|(a, b)| **a != *b).count();
    assert!(differing <= 42, "{differing} words differ");
}

#[test]
fn the_fused_rollout_refuses_saved_games_that_do_not_fit() {
    let Some(device) = adapter() else { return };
    let config = config(3, 5, 2, Start::Branch);
    let mut fused = FusedRollout::new(Catch::default(), &config, RolloutKeys::new(1), &device);
    let message = fused.import(&[0; 11]).unwrap_err().to_string();
    assert!(message.contains("11 words, but 12 are needed"), "{message}");
}
