//! The general engine: any model, by Burn's operations and autodiff, on any device.

use super::engine::{Engine, Source, State, Totals, is_resident};
use super::stream::Stream;
use super::transfer::{download, upload};
use crate::advantage::{Advantages, advantages};
use crate::config::{self, RolloutConfig, TrainConfig};
use crate::data::{HostTrajectory, Pieces, Trajectory, Windows};
use crate::device;
use crate::env::Rules;
use crate::learner::{Batches, Learner, UpdateStats};
use crate::model::Model;
use crate::rollout::{EnvStatesError, RolloutKeys, StepwiseRollout};
use burn::tensor::{Device, Tensor, TensorData};

/// Stepwise rollouts, advantages by tensor operations, updates by autodiff.
#[derive(Debug)]
pub(super) struct GeneralEngine<G: Rules, M: Model> {
    config: TrainConfig,
    device: Device,
    source: Source<StepwiseRollout<G>, Box<Shown>>,
    /// The weights of the last iteration's data, where those are streamed.
    streamed: Option<Advantages>,
    learner: Learner<M>,
}

impl<G: Rules, M: Model> GeneralEngine<G, M> {
    pub fn new(
        game: G,
        model: M,
        config: &TrainConfig,
        device: &Device,
        data: Option<Pieces>,
    ) -> Self {
        let keys = RolloutKeys::new(config.seed);
        let mut learner = Learner::new(model, config);
        let source = match data {
            None => Source::Games(games(game, config, keys, device)),
            Some(pieces) if is_resident(&pieces, config) => {
                Source::Resident(Box::new(shown(&pieces.all(), device)))
            }
            Some(pieces) => {
                learner = learner.in_order();
                Source::Streamed(Box::new(Stream::new(pieces, Batches::new(config))))
            }
        };
        Self { source, streamed: None, learner, config: config.clone(), device: device.clone() }
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

/// What is learnt from data, with their weights as advantages.
type Shown = (Trajectory, Advantages);

/// Puts windows on a device.
fn shown(windows: &Windows, device: &Device) -> Shown {
    device::count_upload(windows.bytes());
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
            Source::Resident(data) => data.0.clone(),
            Source::Streamed(stream) => {
                let windows = stream.take(iteration);
                let (trajectory, weights) = shown(&windows, &self.device);
                stream.give_back(windows);
                self.streamed = Some(weights);
                trajectory
            }
        }
    }

    fn advantages(&mut self, trajectory: &Trajectory) -> Advantages {
        if let Source::Resident(data) = &self.source {
            return data.1.clone();
        }
        if let Some(weights) = self.streamed.take() {
            return weights;
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
            waited: match &mut self.source {
                Source::Streamed(stream) => stream.take_waited(),
                _ => 0.0,
            },
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
            Source::Resident(_) => format!("a dataset in the device's memory, {updates}"),
            Source::Streamed(_) => format!("a dataset read as it is needed, {updates}"),
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
            _ => Default::default(),
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
