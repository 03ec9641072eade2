//! Comparison of the fused learner with the general one.

use crate::shared::iteration::rollout_and_update;
use crate::shared::updates::*;
use crate::support::{adapter, cpu};
use grove::learner::fused::FusedLearner;
use grove::settings::{KlEstimator, LossType};
use pollster::block_on;

/// Each loss is tried without a divergence, and with a dual clip and one of the divergences in turn; GRPO's with all.
#[test]
fn fused_gradients_of_every_loss_are_those_of_autodiff() {
    let Some(device) = adapter() else { return };
    let played = block_on(UpdateInputs::new(SMALL));
    let (none, all) = (divergences()[0], &divergences()[1..]);
    for (i, &loss_type) in LossType::ALL.iter().enumerate() {
        block_on(check_loss(&played, loss_type, &[0.0], &[none], &device));
        block_on(check_loss(&played, loss_type, &[2.0], &[all[i % all.len()]], &device));
    }
    block_on(check_loss(&played, LossType::Grpo, &[0.0], all, &device));
}

#[test]
#[ignore = "slow: 30 s of CPU time on a software adapter"]
fn fused_gradients_of_every_loss_and_divergence_are_those_of_autodiff() {
    let Some(device) = adapter() else { return };
    block_on(every_loss(&device));
}

#[test]
fn fused_gradients_of_every_shape_are_those_of_autodiff() {
    let Some(device) = adapter() else { return };
    block_on(every_shape(&device));
}

impl UpdateInputs {
    /// Repeats the games `times` times.
    fn repeated(&self, times: usize) -> Self {
        let games = self.sizes.games;
        fn rows<T: Copy>(values: &[T], row: usize, times: usize) -> Vec<T> {
            values.chunks_exact(row).flat_map(|row| row.repeat(times)).collect()
        }
        Self {
            sizes: Sizes { games: games * times, ..self.sizes },
            params: self.params.clone(),
            obs: rows(&self.obs, games * self.sizes.features, times),
            actions: rows(&self.actions, games, times),
            logprobs: rows(&self.logprobs, games, times),
            advantages: rows(&self.advantages, games, times),
            mask: rows(&self.mask, games, times),
            legal: None,
        }
    }
}

#[test]
#[ignore = "slow: 17 s of CPU time on a software adapter"]
fn fused_gradients_are_right_with_more_samples_than_a_row_of_cubes_holds() {
    let Some(device) = adapter() else { return };
    // A row has at most 65,535 cubes under WebGPU's limits, of 64 samples each.
    let sizes = Sizes { features: 2, hidden: &[3], actions: 2, steps: 2, ..SMALL };
    let played = block_on(UpdateInputs::new(sizes));
    let many = played.repeated(161_320);
    assert!(many.sizes.steps * many.sizes.games > 65_535 * 64);
    let config = gradient_settings(settings(LossType::Grpo, 0.0, KlEstimator::K3));
    // GRPO averages over games, so copies do not change the loss.
    let want = block_on(general(&played, &config, None, &cpu()));
    let got = block_on(fused(&many, &config, None, &device));
    let error = error(&got.moments[0], &want.moments[0], norm(&want.moments[0]));
    eprintln!("gradient error {error:.1e} with many samples");
    assert!(error < 1e-5, "gradient off by {error} of its norm");
    check_means(&got.means, &want.means, "many samples");
}

#[test]
fn fused_updates_are_those_of_autodiff_and_always_the_same() {
    let Some(device) = adapter() else { return };
    block_on(whole_updates(&device));
}

#[test]
fn updates_without_a_step_that_counts_have_means_of_zero() {
    let Some(device) = adapter() else { return };
    let mut played = block_on(UpdateInputs::new(SMALL));
    played.mask.fill(0.0);
    let config = settings(LossType::Grpo, 0.0, KlEstimator::K3);
    assert_eq!(block_on(general(&played, &config, None, &cpu())).means, [0.0; 6]);
    assert_eq!(block_on(fused(&played, &config, None, &device)).means, [0.0; 6]);
}

#[test]
fn fused_updates_of_games_in_parts_are_the_same() {
    let Some(device) = adapter() else { return };
    block_on(in_parts(&device));
}

#[test]
fn fused_rollouts_advantages_and_updates_fit_together() {
    let Some(device) = adapter() else { return };
    block_on(rollout_and_update(&device));
}

#[test]
fn the_fused_learner_reports_which_policies_it_supports() {
    let takes = |hidden: &'static [usize]| {
        FusedLearner::supports(&mlp(Sizes { hidden, ..SMALL }, None, &cpu()))
    };
    assert!(takes(&[1]) && takes(&[256]) && takes(&[256, 256]) && takes(&[128, 1]));
    assert!(!takes(&[257]) && !takes(&[16, 257]));
}

#[test]
fn fused_updates_end_at_their_divergence_as_by_autodiff() {
    let Some(device) = adapter() else { return };
    let played = block_on(UpdateInputs::new(SMALL));
    let mut config = settings(LossType::Dapo, 0.0, KlEstimator::K3);
    config.loss.kl_coef = 0.0;
    config.update.num_minibatches = 2;
    config.update.update_epochs = 3;
    config.optimizer.learning_rate = 3e-2;
    let whole = block_on(general(&played, &config, None, &cpu()));
    let mut ends = Vec::new();
    for part in [1e-6, 0.8, 0.9, 1.0, 1.1, 1.2, 1e6] {
        config.update.target_kl = part * whole.means[0];
        let want = block_on(general(&played, &config, None, &cpu()));
        let got = block_on(fused(&played, &config, None, &device));
        let off = error(&got.params, &want.params, norm(&want.params));
        assert!(off < 1e-5, "ended at {part}: parameters off by {off}");
        check_means(&got.means, &want.means, "ended");
        ends.push(want.means[5]);
    }
    assert!(ends[0] == 0.0 && ends[6] == whole.means[5], "{ends:?}");
    assert!(ends.iter().any(|norm| *norm != 0.0 && *norm != whole.means[5]), "{ends:?}");
}
