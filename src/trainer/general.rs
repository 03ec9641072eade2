//! The general engine: any model on any device, through Burn's operations and autodiff.

use super::TrainError;
use super::engine::{GameTotals, IterationPhases, PolicyEngine, PolicyState};
use super::rank_part::{EngineInputs, RankPart};
use super::source::Source;
use super::transfer::{download, upload};
use crate::advantage::{Advantages, compute_advantages, compute_shared_advantages};
use crate::data::native::upload_time_major;
use crate::data::{GameSums, Trajectory, WindowBatch};
use crate::device;
use crate::env::Rules;
use crate::learner::{AutodiffLearner, UpdateMeans};
use crate::model::Network;
use crate::rollout::{EnvStatesError, HostRollout, StepwiseRollout};
use crate::settings::RolloutConfig;
use burn::tensor::{Device, Tensor};

/// Stepwise rollouts, advantages by tensor operations, and updates by autodiff.
#[derive(Debug)]
pub(super) struct GeneralEngine<G: Rules> {
    part: RankPart,
    device: Device,
    source: Source<StepwiseRollout<G>, Box<DeviceData>>,
    /// Environments on the host, in place of the games.
    host: Option<HostRollout>,
    learner: AutodiffLearner,
}

impl<G: Rules> GeneralEngine<G> {
    /// Creates the engine of this rank's part of a run.
    pub fn new(inputs: EngineInputs<G>, part: RankPart, device: &Device) -> Self {
        let EngineInputs { game, model, data, host } = inputs;
        let RankPart { config, team, game_shards, own_rollout, .. } = &part;
        let mut learner = AutodiffLearner::new(model, config);
        learner.context.assign(game_shards.clone(), team.clone());
        let host =
            host.map(|envs| HostRollout::new(envs, game.max_steps(), own_rollout, part.keys()));
        let source = match data {
            None => Source::Games(StepwiseRollout::new(game, own_rollout, part.keys(), device)),
            Some(window_set) => Source::from_data(window_set, &part, u64::MAX, |windows| {
                Box::new(upload_windows(&windows, device))
            }),
        };
        Self { source, host, learner, device: device.clone(), part }
    }
}

/// Collects the sums of each game from rows of one sum per game, in the order of the fields of [`GameSums`]; missing
/// rows are zeros.
fn collect_game_sums(rows: &[f32], games: usize) -> Vec<GameSums> {
    let sum = |i: usize, game: usize| rows.get(i * games + game).map_or(0.0, |sum| f64::from(*sum));
    let sums = |game| GameSums::from(std::array::from_fn(|i| sum(i, game)));
    (0..games.min(rows.len())).map(sums).collect()
}

/// A dataset on a device, with its weights as advantages.
type DeviceData = (Trajectory, Advantages);

fn upload_windows(windows: &WindowBatch, device: &Device) -> DeviceData {
    let upload = |values: &[f32]| upload_time_major(values, windows.trajectory.num_envs, device);
    let advantages = Advantages {
        values: upload(&windows.weights),
        mask: upload(&windows.mask()),
        zero_variance_fraction: Tensor::zeros([1], device),
    };
    (windows.trajectory.to_tensors(device), advantages)
}

impl<G: Rules> IterationPhases for GeneralEngine<G> {
    /// The trajectory and, for a dataset, the weights of its windows, which are their advantages.
    type Trajectory = (Trajectory, Option<Advantages>);
    type Advantages = Advantages;
    type Stats = Tensor<1>;
    type Totals = GameTotals;
    type Error = TrainError;

    fn roll_out(&mut self, iteration: u32) -> Result<Self::Trajectory, TrainError> {
        let Self { device, source, host, learner, .. } = self;
        let upload = |windows: &WindowBatch| upload_windows(windows, device);
        source.take(iteration, &mut learner.context.batches, upload, |games| {
            let policy = learner.state.policy();
            Ok(match host {
                Some(host) => host.collect(&policy, iteration, device)?,
                None => games.collect(&policy, iteration),
            })
        })
    }

    fn compute_advantages(
        &mut self,
        (trajectory, weights): &Self::Trajectory,
    ) -> Result<Advantages, TrainError> {
        if let Some(weights) = weights {
            return Ok(weights.clone());
        }
        let RankPart { config, team, shards, own_rollout, .. } = &self.part;
        let (mask, config) = (trajectory.mask(own_rollout.auto_reset), &config.advantage);
        let RolloutConfig { group_size, learn_steps, .. } = *own_rollout;
        if team.size() == 1 && device::has_kernels(&self.device) {
            return Ok(compute_advantages(trajectory, &mask, group_size, learn_steps, config));
        }
        Ok(compute_shared_advantages(trajectory, &mask, own_rollout, config, shards, team)?)
    }

    fn update(
        &mut self,
        (trajectory, _): &Self::Trajectory,
        advantages: &Advantages,
        iteration: u32,
    ) -> Result<Tensor<1>, TrainError> {
        let [learn_steps, _] = advantages.mask.dims();
        let learnt = trajectory.first_steps(learn_steps);
        Ok(self.learner.update(&learnt, &advantages.values, &advantages.mask, iteration)?)
    }

    async fn read_totals(
        &mut self,
        (trajectory, _): Self::Trajectory,
        advantages: Advantages,
        stats: Tensor<1>,
        _next_iteration: Option<u32>,
    ) -> Result<GameTotals, TrainError> {
        let RankPart { config, own_rollout, .. } = &self.part;
        let mut parts = vec![advantages.zero_variance_fraction, stats];
        // A run that learns from data plays no games, and the episodes of a dataset have no score.
        if let Source::Games(_) = self.source {
            let sums_by_game = |values: Tensor<2>| values.sum_dim(0).squeeze_dim::<1>(0);
            let ended_steps = trajectory.ended_steps(own_rollout.auto_reset);
            let sums = [trajectory.scores.clone(), trajectory.ends(), trajectory.rewards.clone()];
            // Number of counted steps of each game, where it varies.
            let mask = (!config.plays_all_steps()).then(|| trajectory.mask(own_rollout.auto_reset));
            let [scores, ends, rewards] = sums.map(|values| match &mask {
                Some(mask) => sums_by_game(values * mask.clone()),
                None => sums_by_game(values),
            });
            parts.extend([scores, ends, ended_steps, rewards]);
            parts.extend(mask.map(sums_by_game));
        }
        let values = device::read_async(Tensor::cat(parts, 0)).await;
        let (means, sums) = values.split_at(1 + UpdateMeans::LEN);
        let sums = collect_game_sums(sums, self.part.game_shards.own_items().len());
        Ok(GameTotals {
            games: self.part.sum_games(&sums)?,
            waiting_seconds: self.source.take_waiting_seconds(),
            zero_variance_fraction: means[0].into(),
            update: UpdateMeans::new(std::array::from_fn(|i| means[1 + i].into())),
        })
    }

    fn finish_phase(&self) -> bool {
        // An error here recurs, with a better message, when results are read.
        let _ = self.device.sync();
        true
    }
}

impl<G: Rules> PolicyEngine for GeneralEngine<G> {
    fn rehearse(&mut self, iteration: u32) {
        let Source::Games(games) = &self.source else { return };
        if self.host.is_some() {
            // The iteration itself reports a failure.
            let _ = self.roll_out(iteration);
            return;
        }
        games.clone().collect(&self.learner.state.policy(), iteration);
        let _ = self.device.sync();
    }

    fn describe(&self) -> String {
        let rollouts = self.host.as_ref().map_or("stepwise rollouts", |_| "rollouts on the host");
        format!("{}, updates by autodiff", self.source.description().unwrap_or(rollouts))
    }

    fn check_size(&self) -> Result<(), String> {
        let Source::Games(games) = &self.source else { return Ok(()) };
        let settings = "rollout.num_groups, rollout.group_size or rollout.num_steps";
        device::check_buffer_fits(&self.device, "a rollout", games.largest_buffer_bytes())
            .map_err(|reason| format!("{reason}: lower {settings}"))
    }

    fn model(&self) -> Network {
        self.learner.state.policy()
    }

    async fn export_state(&self) -> PolicyState {
        let (branches, memory) = match &self.source {
            Source::Games(games) => {
                (games.export_branches_async().await, games.export_memory_async().await)
            }
            _ => Default::default(),
        };
        download(&self.learner.state, branches, memory).await
    }

    fn import_state(&mut self, state: &PolicyState) -> Result<(), EnvStatesError> {
        upload(state, &mut self.learner.state);
        let Source::Games(games) = &mut self.source else { return Ok(()) };
        games.import_memory(&state.memory);
        games.import_branches(&state.branches)
    }
}
