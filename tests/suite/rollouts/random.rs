//! Random play is the same on every device.

use super::{CATCH_BOARD, LEDGE, SHORT_FRUIT};
use crate::shared::meadow::Meadow;
use crate::support::{adapter, cpu, floats, for_every_game};
use burn::tensor::Device;
use grove::env::{Catch, CatchObservation, Rules};
use grove::rollout::play_at_random;

/// Sums over the games.
fn sums<G: Rules>(game: G, envs: usize, steps: usize, seed: u64, device: &Device) -> Vec<f32> {
    let sums = play_at_random(game, envs, steps, seed, device);
    assert_eq!(sums.dims(), [envs]);
    floats(sums)
}

/// Checks numbers of games that do not fill a cube or block, and steps around a launch's number.
fn check<G: Rules>(game: G, device: &Device) {
    for (envs, steps) in [(1, 1), (37, 40), (129, 128), (70, 300)] {
        let context = format!("{game:?}, {envs} games x {steps} steps");
        let want = sums(game, envs, steps, 5, &cpu());
        let got = sums(game, envs, steps, 5, device);
        for (env, (got, want)) in got.iter().zip(&want).enumerate() {
            let error = (got - want).abs() / steps as f32;
            assert!(error < 1e-4, "{context}: game {env} sums up to {got}, not {want}");
        }
        if envs > 1 {
            assert!(want.iter().any(|sum| *sum != want[0]), "{context}: games differ");
            assert_ne!(want, sums(game, envs, steps, 6, &cpu()), "{context}: so do seeds");
        }
    }
}

#[test]
fn random_games_are_the_same_on_an_adapter() {
    let Some(device) = adapter() else { return };
    for_every_game!(game => check(game, &device));
    check(SHORT_FRUIT, &device);
    check(CATCH_BOARD, &device);
    check(LEDGE, &device);
    check(Meadow, &device);
}

#[test]
fn a_game_alone_is_the_game_among_others() {
    let many = sums(SHORT_FRUIT, 50, 64, 9, &cpu());
    assert_eq!(sums(SHORT_FRUIT, 33, 64, 9, &cpu()), many[..33]);
}

/// An episode of Catch with ten rows has nine steps, each observing a board with two ones, and one
/// reward of 1 or -1.
#[test]
fn the_sums_are_those_of_the_rules() {
    let game = Catch { observation: CatchObservation::Board, ..Catch::default() };
    for device in [Some(cpu()), adapter()].into_iter().flatten() {
        let sums = sums(game, 200, 9, 3, &device);
        let rewards: Vec<f32> = sums.iter().map(|sum| sum - 9.0 * 2.0).collect();
        assert!(rewards.iter().all(|r| [-1.0, 1.0].contains(r)), "{rewards:?}");
        let caught = rewards.iter().filter(|r| **r == 1.0).count();
        assert!((20..80).contains(&caught), "a random player catches a fifth: {caught}");
    }
}
