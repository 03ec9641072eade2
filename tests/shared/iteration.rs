//! A whole iteration on a device (rollout, advantages, update), and the first games of a run.

use super::rollouts::{Host, LEDGE, play_fused};
use super::unpack::unpack;
use super::updates::{
    SMALL, Sizes, UpdateInputs, check_means, error, general, gradient_settings, learn_fused, mlp,
    norm, settings,
};
use super::{cpu, floats};
use burn::tensor::Device;
use grove::advantage::compute_advantages;
use grove::advantage::kernels::compute_recording_advantages;
use grove::env::{CartPole, Catch, Fruit, Rules};
use grove::model::{FlatMlp, Mlp, NativeMlp, flatten};
use grove::rng::{Stream, draw};
use grove::rollout::{FusedRollout, NativeRollout, RolloutKeys};
use grove::settings::{GroupStart, KlEstimator, LossType, RolloutConfig, TrainConfig};

/// Compares updates on recordings, whole and in parts, with the general learner on the unpacked
/// trajectory. Returns the error of the gradient.
pub async fn rollout_and_update(device: &Device) -> f64 {
    let fruit = Sizes { features: 16, hidden: &[17], steps: 9, games: 21, ..SMALL };
    let ledge = Sizes { features: 3, actions: 4, ..fruit };
    let errors = [
        learn_from_rollout(Fruit::default(), fruit, LossType::Dapo, device).await,
        learn_from_rollout(LEDGE, ledge, LossType::Dapo, device).await,
        learn_from_rollout(LEDGE, ledge, LossType::Gspo, device).await,
    ];
    errors.into_iter().fold(0.0, f64::max)
}

async fn learn_from_rollout<G: Rules>(
    game: G,
    sizes: Sizes,
    loss_type: LossType,
    device: &Device,
) -> f64 {
    let mut config = gradient_settings(settings(loss_type, 0.0, KlEstimator::K3));
    config.update.max_grad_norm = 1.0;
    config.rollout = RolloutConfig {
        num_groups: 7,
        group_size: 3,
        num_steps: 14,
        learn_steps: sizes.steps,
        start: GroupStart::Branch,
        auto_reset: true,
    };
    let policy = mlp(sizes, None, device);
    let flat = FlatMlp::from_mlp(&policy).expect("one hidden layer");
    let mut largest = 0.0f64;
    for groups in [7, 3] {
        let keys = RolloutKeys::new(5);
        let rollout = FusedRollout::new(game, &config.rollout, keys, device);
        let rollout = rollout.with_groups_per_part(groups);
        let (recording, _) = rollout.play(&flat, 0);
        assert_eq!(recording.parts().len(), 7usize.div_ceil(groups));
        let recorded = compute_recording_advantages(&recording, &config.rollout, &config.advantage);
        let observer = rollout.observer();
        let got = learn_fused(policy.clone(), &config, None, &recording, &recorded, observer).await;

        let whole = unpack(game, &recording, &cpu()).await;
        let mask = whole.mask(true);
        let advantages = compute_advantages(&whole, &mask, 3, sizes.steps, &config.advantage);
        let trajectory = whole.first_steps(sizes.steps);
        let legal = match trajectory.legal {
            Some(legal) => Some(floats(legal).await),
            None => None,
        };
        let actions = trajectory.actions.into_data_async().await.expect("the device answers");
        let played = UpdateInputs {
            sizes,
            params: floats(flatten(&policy)).await,
            obs: floats(trajectory.obs).await,
            actions: actions.iter().collect(),
            logprobs: floats(trajectory.logprobs).await,
            advantages: floats(advantages.values).await,
            mask: floats(advantages.mask).await,
            legal,
        };
        let want = general(&played, &config, None, &cpu()).await;
        let size = norm(&want.moments[0]);
        let error = error(&got.moments[0], &want.moments[0], size);
        assert!(size > 1e-4 && error < 1e-5, "gradient off by {error} of {size}");
        check_means(&got.means, &want.means, "after a rollout");
        // The behaviour policy is the current policy: ratio 1.
        assert!(got.means[0].abs() < 1e-6 && got.means[1] == 0.0, "{:?}", got.means);
        largest = largest.max(error);
    }
    largest
}

/// Digests of the first actions of runs of fruit, catch and cartpole.
const FIRST_ACTIONS: [u32; 3] = [3_338_780_410, 1_711_842_536, 4_128_586_907];

/// Checks that a run's first games, with default settings and 8 groups, are the same on the CPU, on
/// `device`, and as recorded in [`FIRST_ACTIONS`]. Returns the largest difference of a value.
pub async fn first_games(device: &Device) -> f64 {
    let played = [
        first_games_of(Fruit::default(), device).await,
        first_games_of(Catch::default(), device).await,
        first_games_of(CartPole::default(), device).await,
    ];
    assert_eq!(played.map(|(digest, _)| digest), FIRST_ACTIONS, "runs start with other actions");
    played.map(|(_, difference)| difference).into_iter().fold(0.0, f64::max)
}

/// Digest of the actions, and largest difference between values on the CPU and on the device.
async fn first_games_of<G: Rules>(game: G, device: &Device) -> (u32, f64) {
    let mut config = TrainConfig::for_game(G::NAME);
    config.rollout.num_groups = 8;
    let keys = RolloutKeys::new(config.seed);
    let policy = |device: &Device| {
        let (features, actions) = (game.num_features(), game.num_actions());
        Mlp::new(features, actions, &config.policy, Stream::Weights.key(config.seed), device)
    };
    let mut native = NativeRollout::new(game, &config.rollout, keys);
    let native = native.collect(&NativeMlp::new(&policy(&cpu())), 0, &cpu());
    let native = Host::read(&native).await;
    let mut rollout = FusedRollout::new(game, &config.rollout, keys, device);
    let got = Host::read(&play_fused(game, &mut rollout, &policy(device), 0).await).await;
    let difference = got.assert_is(&native, G::NAME);
    (native.actions.iter().fold(0, |digest, action| draw(digest, *action)), difference)
}
