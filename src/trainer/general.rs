//! The general engine: any model, by Burn's operations and autodiff, on any device.

use super::engine::{Engine, Source, State, Totals};
use super::transfer::{download, upload};
use crate::advantage::{Advantages, advantages};
use crate::config::{self, RolloutConfig, TrainConfig};
use crate::data::{HostTrajectory, Trajectory, Windows};
use crate::device;
use crate::env::Rules;
use crate::learner::{Learner, UpdateStats};
use crate::model::Model;
use crate::rollout::{EnvStatesError, RolloutKeys, StepwiseRollout};
use burn::tensor::{Device, Tensor, TensorData};

/// Stepwise rollouts, advantages by tensor operations, updates by autodiff.
#[derive(Debug)]
pub(super) struct GeneralEngine<G: Rules, M: Model> {
    config: TrainConfig,
    device: Device,
    source: Source<StepwiseRollout<G>, Box<(Trajectory, Advantages)>>,
    learner: Learner<M>,
}

impl<G: Rules, M: Model> GeneralEngine<G, M> {
    pub fn new(
        game: G,
        model: M,
        config: &TrainConfig,
        device: &Device,
        data: Option<Windows>,
    ) -> Self {
        let keys = RolloutKeys::new(config.seed);
        Self {
            source: match data {
                None => Source::Games(games(game, config, keys, device)),
                Some(windows) => Source::Data(Box::new(resident(&windows, device))),
            },
            learner: Learner::new(model, config),
            config: config.clone(),
            device: device.clone(),
        }
    }
}

/// The games of a run. Unless nothing but Burn's operations is asked for, policies act fast where they can.
fn games<G: Rules>(
    game: G,
    config: &TrainConfig,
    keys: RolloutKeys,
    device: &Device,
) -> StepwiseRollout<G> {
    let games = StepwiseRollout::new(game, &config.rollout, keys, device);
    if config.engine == config::Engine::General { games } else { games.natively() }
}

/// A dataset on a device, with its weights as advantages: uploaded once.
fn resident(windows: &Windows, device: &Device) -> (Trajectory, Advantages) {
    let HostTrajectory { num_envs, num_steps, .. } = windows.trajectory;
    let rows = |values: Vec<f32>| {
        let data = TensorData::new(values, [num_envs, num_steps]);
        Tensor::<2>::from_data(data, device).transpose()
    };
    let advantages = Advantages {
        values: rows(windows.weights.clone()),
        mask: rows(windows.mask()),
        zero_variance: Tensor::zeros([1], device),
    };
    (windows.trajectory.to_tensors(device), advantages)
}

impl<G: Rules, M: Model> Engine for GeneralEngine<G, M> {
    type Model = M;
    type Trajectory = Trajectory;
    type Advantages = Advantages;
    type Stats = UpdateStats;

    fn rollout(&mut self, iteration: u32) -> Trajectory {
        match &mut self.source {
            Source::Games(games) => games.collect(&self.learner.weights().policy(), iteration),
            Source::Data(data) => data.0.clone(),
        }
    }

    fn advantages(&mut self, trajectory: &Trajectory) -> Advantages {
        if let Source::Data(data) = &self.source {
            return data.1.clone();
        }
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
        let [learn_steps, _] = advantages.mask.dims();
        let learnt = trajectory.first_steps(learn_steps);
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
        let Source::Games(games) = &self.source else { return };
        games.clone().collect(&self.learner.weights().policy(), iteration);
        let _ = self.device.sync();
    }

    fn describe(&self) -> String {
        let updates = if self.learner.by_hand() { "native updates" } else { "updates by autodiff" };
        match &self.source {
            Source::Games(games) if games.is_native(&self.model()) => {
                format!("native rollouts, {updates}")
            }
            Source::Games(_) => format!("stepwise rollouts, {updates}"),
            Source::Data(_) => format!("a dataset in the device's memory, {updates}"),
        }
    }

    fn model(&self) -> M {
        self.learner.weights().policy()
    }

    fn steps(&self) -> u64 {
        self.learner.weights().optimizer().steps
    }

    async fn export(&self) -> State {
        let (games, memory) = match &self.source {
            Source::Games(games) => (games.export_async().await, games.export_memory_async().await),
            Source::Data(_) => Default::default(),
        };
        download(self.learner.weights(), games, memory).await
    }

    fn import(&mut self, state: &State) -> Result<(), EnvStatesError> {
        upload(state, self.learner.weights_mut());
        let Source::Games(games) = &mut self.source else { return Ok(()) };
        games.import_memory(&state.memory);
        games.import(&state.games)
    }
}
