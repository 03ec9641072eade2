//! The trained policies in `assets/`.

use grove::env::{Breakout, CartPole, Catch, Fruit, Recall, Rules};
use grove::rng::Stream;
use grove::rollout::{ActionSelection, evaluate};
use grove::trainer::{load_policy, read_policy_file, saved_config};
use serde::de::DeserializeOwned;

/// The greedy policy's mean score in so many episodes.
fn score<G: Rules + DeserializeOwned>(episodes: usize) -> (G, f64) {
    let path = format!("{}/assets/policies/{}.safetensors", env!("CARGO_MANIFEST_DIR"), G::NAME);
    let checkpoint = read_policy_file(std::fs::read(path).unwrap()).unwrap();
    let (game, config) = saved_config::<G>(&checkpoint).unwrap();
    let policy = load_policy(&checkpoint, game, &config).unwrap();
    let evaluation =
        evaluate(&policy, game, episodes, Stream::Evaluation, 11, ActionSelection::Greedy);
    (game, evaluation.mean_score)
}

/// The same score as a share of the optimum's.
fn share_of_optimum<G: Rules + DeserializeOwned>() -> f64 {
    let (game, score) = score::<G>(4000);
    let (player, optimum) = *game.reference_scores().last().unwrap();
    assert_eq!(player, "optimum");
    score / optimum
}

#[test]
fn shipped_policies_play_as_well_as_trained_ones() {
    assert!(share_of_optimum::<Fruit>() > 0.98);
    assert!(share_of_optimum::<Catch>() > 0.99);
    assert!(share_of_optimum::<CartPole>() > 0.99);
    assert!(share_of_optimum::<Recall>() > 0.99);
    assert!(score::<Breakout>(400).1 > 70.0);
}
