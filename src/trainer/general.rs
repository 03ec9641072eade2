//! The general way: any module, by Burn's operations and autodiff, on any device.

use super::transfer::{download, upload};
use super::way::{Numbers, State, Way};
use crate::advantage::{Advantages, advantages};
use crate::config::{RolloutConfig, TrainConfig};
use crate::data::Trajectory;
use crate::device;
use crate::env::Rules;
use crate::learner::{Learner, UpdateStats};
use crate::model::Mlp;
use crate::rollout::{RolloutKeys, SeatsError, StepwiseRollout};
use burn::tensor::{Device, Tensor};

/// Stepwise rollouts, advantages by tensor operations, updates by autodiff.
#[derive(Debug)]
pub(super) struct GeneralWay<G: Rules> {
    config: TrainConfig,
    device: Device,
    games: StepwiseRollout<G>,
    learner: Learner<Mlp>,
}

impl<G: Rules> GeneralWay<G> {
    pub fn new(game: G, policy: Mlp, config: &TrainConfig, device: &Device) -> Self {
        let keys = RolloutKeys::new(config.seed);
        Self {
            games: StepwiseRollout::new(game, &config.rollout, keys, device),
            learner: Learner::new(policy, config),
            config: config.clone(),
            device: device.clone(),
        }
    }
}

impl<G: Rules> Way for GeneralWay<G> {
    type Played = Trajectory;
    type Judged = Advantages;
    type Learnt = UpdateStats;

    fn play(&mut self, iteration: u32) -> Trajectory {
        self.games.collect(&self.learner.weights().policy(), iteration)
    }

    fn judge(&mut self, played: &Trajectory) -> Advantages {
        let RolloutConfig { group_size, learn_steps, auto_reset, .. } = self.config.rollout;
        let mask = played.mask(auto_reset);
        advantages(played, &mask, group_size, learn_steps, &self.config.advantage)
    }

    fn update(&mut self, played: &Trajectory, judged: &Advantages, iteration: u32) -> UpdateStats {
        let learnt = played.first_steps(self.config.rollout.learn_steps);
        self.learner.update(&learnt, &judged.values, &judged.mask, iteration)
    }

    async fn numbers(
        &mut self,
        played: Trajectory,
        judged: Advantages,
        learnt: UpdateStats,
        _next: Option<u32>,
    ) -> Numbers {
        let parts = vec![
            played.scores.sum(),
            played.ends.sum(),
            played.rewards.mean(),
            judged.zero_variance,
            learnt.means,
        ];
        let numbers = device::read_async(Tensor::cat(parts, 0)).await;
        let at = |i: usize| f64::from(numbers[i]);
        Numbers {
            score_sum: at(0),
            episodes: at(1),
            mean_reward: at(2),
            zero_variance: at(3),
            update: std::array::from_fn(|i| at(4 + i)),
        }
    }

    fn finish_phase(&self) -> bool {
        // A device that fails here fails again, with a better message, where results are read.
        let _ = self.device.sync();
        true
    }

    fn rehearse(&mut self, iteration: u32) {
        self.games.clone().collect(&self.learner.weights().policy(), iteration);
        let _ = self.device.sync();
    }

    fn describe(&self) -> String {
        "stepwise rollouts, updates by autodiff".to_string()
    }

    fn policy(&self) -> Mlp {
        self.learner.weights().policy()
    }

    fn steps(&self) -> u64 {
        self.learner.weights().optimizer().steps
    }

    async fn export(&self) -> State {
        let games = self.games.export_async().await;
        download(self.learner.weights(), games).await
    }

    fn import(&mut self, state: &State) -> Result<(), SeatsError> {
        upload(state, self.learner.weights_mut());
        self.games.import(&state.games)
    }
}
