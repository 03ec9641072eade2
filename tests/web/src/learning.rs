//! Learning in a browser.

use burn::tensor::Device;
use grove::config::TrainConfig;
use grove::env::{Catch, Game};
use grove::rollout::Player;
use grove::trainer::Trainer;

/// Catch is learnt by its defaults. Gives the share that is missed.
pub async fn catch(device: &Device) -> f64 {
    let config = TrainConfig::for_game(Catch::NAME);
    let mut run = Trainer::new(Catch::default(), &config, device);
    for _ in 0..config.iterations {
        run.iterate_async().await.expect("all numbers are finite");
    }
    let score = run.evaluate_async(5000, Player::Greedy).await.mean_score;
    assert!(score >= 0.9, "{score}");
    (1.0 - score) / 2.0
}
