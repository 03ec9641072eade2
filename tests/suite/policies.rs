//! The trained policies in `assets/`.

use crate::support::for_every_game;
use grove::env::{Breakout, ConfigurableGame, Env, Fruit};
use grove::rng::Stream;
use grove::rollout::{ActionSelection, evaluate};
use grove::trainer::{load_policy, read_config, read_policy_file};

/// Checks the greedy policy's mean score: at least 99 % of the optimum, or what is known of the game.
fn assert_plays_well<G: ConfigurableGame>(_: G) {
    let path = format!("{}/assets/policies/{}.safetensors", env!("CARGO_MANIFEST_DIR"), G::NAME);
    let file = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let checkpoint = read_policy_file(file).unwrap();
    let (game, config) = read_config::<G>(&checkpoint).unwrap();
    let policy = load_policy(&checkpoint, game, &config).unwrap();
    let optimum = || match game.reference_scores().last() {
        Some(("optimum", optimum)) => *optimum,
        _ => panic!("the optimum of {} is unknown: which score is good?", G::NAME),
    };
    let (episodes, least) = match G::NAME {
        Breakout::NAME => (400, 70.0),
        Fruit::NAME => (4000, 0.98 * optimum()),
        _ => (4000, 0.99 * optimum()),
    };
    let evaluation =
        evaluate(&policy, game, episodes, Stream::Evaluation, 11, ActionSelection::Greedy);
    let score = evaluation.mean_score;
    assert!(score > least, "{}: {score}, not above {least}", G::NAME);
}

#[test]
fn shipped_policies_play_as_well_as_trained_ones() {
    for_every_game!(game => assert_plays_well(game));
}
