//! The fused engine on devices: a few kernels per iteration. The next rollout starts before the metrics of the
//! last one are read.

use super::TrainError;
use super::engine::{GameTotals, IterationPhases, PolicyEngine, PolicyState};
use super::rank_part::{EngineInputs, RankPart};
use super::source::Source;
use super::transfer::{download, upload};
use crate::advantage::kernels::compute_shared_recording_advantages;
use crate::data::summary::{
    COUNTED_STEPS, ENDED_STEPS, EPISODES, REWARD_SUM, SCORE_SUM, ZERO_VARIANCE_GROUPS,
};
use crate::data::{GameSums, Recording, RecordingAdvantages, WindowBatch};
use crate::device::{self, buffers::max_part_bytes};
use crate::env::Rules;
use crate::learner::UpdateMeans;
use crate::learner::fused::FusedLearner;
use crate::model::{Mlp, Network, StoredFeatures};
use crate::rollout::{DeviceBranches, EnvStatesError, FusedRollout};
use burn::tensor::{Device, Tensor};

/// Fused rollouts, advantages and updates.
#[derive(Debug)]
pub(super) struct FusedEngine<G: Rules> {
    /// The trained model with its initial weights.
    model: Network,
    part: RankPart,
    device: Device,
    source: Source<FusedRollout<G>, Box<DeviceData>>,
    learner: FusedLearner,
    /// The rollout of the next iteration, if already started.
    next_rollout: Option<StartedRollout>,
}

/// A rollout that was started before its iteration.
#[derive(Debug)]
struct StartedRollout {
    iteration: u32,
    recording: Recording,
    /// Branch points from which the iteration after it starts.
    branches: DeviceBranches,
}

/// A dataset on a device, with its weights as advantages.
type DeviceData = (Recording, RecordingAdvantages);

fn upload_windows(windows: &WindowBatch, device: &Device) -> DeviceData {
    windows.upload_recording(max_part_bytes(device), device)
}

impl<G: Rules> FusedEngine<G> {
    /// Creates the engine of this rank's part of a run that trains `mlp`, the model of `inputs`.
    pub fn new(inputs: EngineInputs<G>, mlp: Mlp, part: RankPart, device: &Device) -> Self {
        let EngineInputs { game, model, data, .. } = inputs;
        let RankPart { config, team, game_shards, own_rollout, .. } = &part;
        let mut learner = FusedLearner::new(mlp, config);
        learner.context.assign(game_shards.clone(), team.clone());
        let source = match data {
            None => {
                let games = FusedRollout::new(game, own_rollout, part.keys(), device);
                let games = games.with_launch_size(config.launch_size);
                Source::Games(games.with_precision(config.precision))
            }
            Some(window_set) => {
                Source::from_data(window_set, &part, max_part_bytes(device), |windows| {
                    Box::new(upload_windows(&windows, device))
                })
            }
        };
        Self { model, device: device.clone(), source, learner, next_rollout: None, part }
    }
}

impl<G: Rules> IterationPhases for FusedEngine<G> {
    /// The recording and, for a dataset, the weights of its windows, which are their advantages.
    type Trajectory = (Recording, Option<RecordingAdvantages>);
    type Advantages = RecordingAdvantages;
    type Stats = Tensor<1>;
    type Totals = GameTotals;
    type Error = TrainError;

    fn roll_out(&mut self, iteration: u32) -> Result<Self::Trajectory, TrainError> {
        let Self { device, source, learner, next_rollout, .. } = self;
        let policy = learner.policy();
        let upload = |windows: &WindowBatch| upload_windows(windows, device);
        source.take(iteration, &mut learner.context.batches, upload, |games| {
            let (recording, branches) = match next_rollout.take() {
                Some(started) if started.iteration == iteration => {
                    (started.recording, started.branches)
                }
                _ => games.play(&policy, iteration),
            };
            games.continue_from(branches);
            Ok(recording)
        })
    }

    fn compute_advantages(
        &mut self,
        (recording, weights): &Self::Trajectory,
    ) -> Result<RecordingAdvantages, TrainError> {
        if let Some(weights) = weights {
            return Ok(weights.clone());
        }
        let RankPart { config, team, own_rollout, .. } = &self.part;
        Ok(compute_shared_recording_advantages(recording, own_rollout, &config.advantage, team)?)
    }

    fn update(
        &mut self,
        (recording, _): &Self::Trajectory,
        advantages: &RecordingAdvantages,
        iteration: u32,
    ) -> Result<Tensor<1>, TrainError> {
        if let Source::Games(games) = &self.source {
            let observer = games.observer();
            return Ok(self.learner.update(recording, advantages, observer, iteration)?);
        }
        let observer = StoredFeatures { num_features: self.learner.policy().shape.num_features };
        Ok(self.learner.update(recording, advantages, observer, iteration)?)
    }

    async fn read_totals(
        &mut self,
        recording: Self::Trajectory,
        advantages: RecordingAdvantages,
        stats: Tensor<1>,
        next_iteration: Option<u32>,
    ) -> Result<GameTotals, TrainError> {
        // Frees the memory for the next iteration as soon as the kernels are done.
        drop(recording);
        let start_rollout = |iteration| {
            let Source::Games(games) = &self.source else { return None };
            let (recording, branches) = games.play(&self.learner.policy(), iteration);
            Some(StartedRollout { iteration, recording, branches })
        };
        let tensors = [advantages.summary, stats];
        let ([summary, means], next_rollout) =
            device::read_while(tensors, || next_iteration.and_then(start_rollout)).await;
        self.next_rollout = next_rollout;
        // Sums over all ranks.
        let total = |i: usize| f64::from(summary[i]);
        let sums = [SCORE_SUM, EPISODES, ENDED_STEPS, REWARD_SUM, COUNTED_STEPS].map(total);
        Ok(GameTotals {
            games: GameSums::from(sums),
            waiting_seconds: self.source.take_waiting_seconds(),
            zero_variance_fraction: total(ZERO_VARIANCE_GROUPS)
                / self.part.config.rollout.num_groups as f64,
            update: UpdateMeans::new(std::array::from_fn(|i| means[i].into())),
        })
    }

    fn finish_phase(&self) -> bool {
        false
    }
}

impl<G: Rules> PolicyEngine for FusedEngine<G> {
    fn rehearse(&mut self, iteration: u32) {
        let Source::Games(games) = &self.source else { return };
        games.play(&self.learner.policy(), iteration);
        let _ = self.device.sync();
    }

    fn describe(&self) -> String {
        format!("{}, fused updates", self.source.description().unwrap_or("fused rollouts"))
    }

    fn check_size(&self) -> Result<(), String> {
        let Source::Games(games) = &self.source else { return Ok(()) };
        device::check_buffer_fits(&self.device, "a group's rollout", games.group_bytes())
            .map_err(|reason| format!("{reason}: lower rollout.group_size or rollout.num_steps"))
    }

    fn model(&self) -> Network {
        self.model.unflatten(self.learner.state.params())
    }

    async fn export_state(&self) -> PolicyState {
        let branches = match &self.source {
            Source::Games(games) => games.export_branches_async().await,
            _ => Vec::new(),
        };
        download(&self.learner.state, branches, Vec::new()).await
    }

    fn import_state(&mut self, state: &PolicyState) -> Result<(), EnvStatesError> {
        self.next_rollout = None;
        upload(state, &mut self.learner.state);
        let Source::Games(games) = &mut self.source else { return Ok(()) };
        games.import_branches(&state.branches)
    }
}
