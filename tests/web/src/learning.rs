//! Learning in a browser.

use burn::tensor::Device;
use grove::env::{Catch, Env};
use grove::rollout::ActionSelection;
use grove::settings::TrainConfig;
use grove::trainer::Trainer;

/// Catch is learnt, by a run short enough for a GPU that the CPU plays. Gives the share that is missed.
pub async fn catch(device: &Device) -> f64 {
    let mut config = TrainConfig::for_game(Catch::NAME);
    config.iterations = 12;
    config.policy.hidden = vec![32];
    config.rollout.num_groups = 32;
    config.rollout.group_size = 8;
    config.optimizer.learning_rate = 2e-2;
    let mut run = Trainer::new(Catch::default(), &config, device);
    for _ in 0..config.iterations {
        run.iterate_async().await.expect("all values are finite");
    }
    let evaluation = run.evaluate_on_validation_async(5000, ActionSelection::Greedy).await;
    let score = evaluation.expect("its environments are not on the host").mean_score;
    assert!(score >= 0.9, "{score}");
    (1.0 - score) / 2.0
}
