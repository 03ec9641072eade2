//! The general engine: any model, by Burn's operations and autodiff, on any device.

use super::engine::{Engine, State, Totals};
use super::transfer::{download, upload};
use crate::advantage::{Advantages, advantages};
use crate::config::{RolloutConfig, TrainConfig};
use crate::data::Trajectory;
use crate::device;
use crate::env::Rules;
use crate::learner::{Learner, UpdateStats};
use crate::model::Model;
use crate::rollout::{EnvStatesError, RolloutKeys, StepwiseRollout};
use burn::tensor::{Device, Tensor};

/// Stepwise rollouts, advantages by tensor operations, updates by autodiff.
#[derive(Debug)]
pub(super) struct GeneralEngine<G: Rules, M: Model> {
    config: TrainConfig,
    device: Device,
    games: StepwiseRollout<G>,
    learner: Learner<M>,
}

impl<G: Rules, M: Model> GeneralEngine<G, M> {
    pub fn new(game: G, model: M, config: &TrainConfig, device: &Device) -> Self {
        let keys = RolloutKeys::new(config.seed);
        Self {
            games: StepwiseRollout::new(game, &config.rollout, keys, device),
            learner: Learner::new(model, config),
            config: config.clone(),
            device: device.clone(),
        }
    }
}

impl<G: Rules, M: Model> Engine for GeneralEngine<G, M> {
    type Model = M;
    type Trajectory = Trajectory;
    type Advantages = Advantages;
    type Stats = UpdateStats;

    fn rollout(&mut self, iteration: u32) -> Trajectory {
        self.games.collect(&self.learner.weights().policy(), iteration)
    }

    fn advantages(&mut self, trajectory: &Trajectory) -> Advantages {
        let RolloutConfig { group_size, learn_steps, auto_reset, .. } = self.config.rollout;
        let mask = trajectory.mask(auto_reset);
        advantages(trajectory, &mask, group_size, learn_steps, &self.config.advantage)
    }

    fn update(
        &mut self,
        trajectory: &Trajectory,
        advantages: &Advantages,
        iteration: u32,
    ) -> UpdateStats {
        let learnt = trajectory.first_steps(self.config.rollout.learn_steps);
        self.learner.update(&learnt, &advantages.values, &advantages.mask, iteration)
    }

    async fn totals(
        &mut self,
        trajectory: Trajectory,
        advantages: Advantages,
        stats: UpdateStats,
        _next: Option<u32>,
    ) -> Totals {
        let parts = vec![
            trajectory.scores.clone().sum(),
            trajectory.ends().sum(),
            trajectory.rewards.mean(),
            advantages.zero_variance,
            stats.means,
        ];
        let numbers = device::read_async(Tensor::cat(parts, 0)).await;
        let at = |i: usize| f64::from(numbers[i]);
        Totals {
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

    fn model(&self) -> M {
        self.learner.weights().policy()
    }

    fn steps(&self) -> u64 {
        self.learner.weights().optimizer().steps
    }

    async fn export(&self) -> State {
        let games = self.games.export_async().await;
        download(self.learner.weights(), games, self.games.export_memory_async().await).await
    }

    fn import(&mut self, state: &State) -> Result<(), EnvStatesError> {
        upload(state, self.learner.weights_mut());
        self.games.import_memory(&state.memory);
        self.games.import(&state.games)
    }
}
