//! The native engine: code for all threads of the CPU, for built-in networks.

use super::engine::{GameTotals, IterationPhases, PolicyEngine, PolicyState};
use super::rank_part::{EngineInputs, RankPart};
use super::source::Source;
use super::{TrainError, run_in_pool_if};
use crate::advantage::NativeAdvantages;
use crate::data::{GameSums, NativeTrajectory, WindowBatch};
use crate::env::{HostEnvError, Rules};
use crate::learner::{NativeExperience, NativeLearner, RolloutPolicy, UpdateMeans};
use crate::model::{Actor, Network};
use crate::rollout::{EnvStatesError, HostRollout, NativeRollout};
use crate::settings::Precision;
use burn::tensor::{Tensor, TensorData};

/// Rollouts and updates in native code, all in host memory.
#[derive(Debug)]
pub(super) struct NativeEngine<G: Rules> {
    /// The trained model with its initial weights.
    model: Network,
    part: RankPart,
    source: Source<NativeRollout<G>, ()>,
    /// Environments on the host, instead of the games.
    host: Option<HostRollout>,
    learner: Box<dyn NativeLearner>,
    buffers: IterationBuffers,
}

/// Buffers of the last iteration for reuse by the next, or a dataset with its weights as advantages.
#[derive(Debug, Default)]
struct IterationBuffers {
    trajectory: NativeTrajectory,
    advantages: NativeAdvantages,
}

impl From<WindowBatch> for IterationBuffers {
    fn from(windows: WindowBatch) -> Self {
        let WindowBatch { trajectory, counts, weights } = windows;
        let advantages = NativeAdvantages { values: weights, counts, zero_variance_fraction: 0.0 };
        Self { trajectory, advantages }
    }
}

impl<G: Rules> NativeEngine<G> {
    /// Creates the engine of this rank's part of a run that trains the model of `inputs` with `learner`.
    pub fn new(
        inputs: EngineInputs<G>,
        mut learner: Box<dyn NativeLearner>,
        part: RankPart,
    ) -> Self {
        let EngineInputs { game, model, data, host } = inputs;
        learner.context_mut().assign(part.game_shards.clone(), part.team.clone());
        let mut buffers = IterationBuffers::default();
        let own_rollout = &part.own_rollout;
        let host =
            host.map(|envs| HostRollout::new(envs, game.max_steps(), own_rollout, part.keys()));
        let source = match data {
            None => Source::Games(NativeRollout::new(game, own_rollout, part.keys())),
            Some(window_set) => {
                Source::from_data(window_set, &part, u64::MAX, |windows| buffers = windows.into())
            }
        };
        Self { source, host, learner, model, part, buffers }
    }
}

/// Plays the games, or the environments on the host, and returns the sums of each.
fn play<G: Rules, A: Actor>(
    policy: &A,
    iteration: u32,
    games: &mut NativeRollout<G>,
    host: Option<&mut HostRollout>,
    trajectory: &mut NativeTrajectory,
) -> Result<Vec<GameSums>, HostEnvError> {
    match host {
        Some(host) => host.collect_into(policy, iteration, trajectory),
        None => Ok(games.collect_into(policy, iteration, trajectory)),
    }
}

impl<G: Rules> IterationPhases for NativeEngine<G> {
    type Trajectory = (NativeTrajectory, Vec<GameSums>);
    type Advantages = NativeAdvantages;
    type Stats = UpdateMeans;
    type Totals = GameTotals;
    type Error = TrainError;

    fn roll_out(&mut self, iteration: u32) -> Result<Self::Trajectory, TrainError> {
        let Self { source, learner, buffers, host, .. } = self;
        source.become_resident(|windows| *buffers = windows.into());
        learner.context_mut().batches.set_in_order(source.is_streamed());
        let sums = match source {
            Source::Games(games) => {
                let (host, trajectory) = (host.as_mut(), &mut buffers.trajectory);
                match learner.policy() {
                    RolloutPolicy::Perceptron(policy) => {
                        play(&policy, iteration, games, host, trajectory)?
                    }
                    RolloutPolicy::Other(policy) => {
                        play(&policy, iteration, games, host, trajectory)?
                    }
                }
            }
            Source::Resident(()) => Vec::new(),
            Source::Streamed(stream) => {
                *buffers = stream.take(iteration).into();
                Vec::new()
            }
        };
        Ok((std::mem::take(&mut buffers.trajectory), sums))
    }

    fn compute_advantages(
        &mut self,
        (trajectory, _): &Self::Trajectory,
    ) -> Result<NativeAdvantages, TrainError> {
        let mut advantages = std::mem::take(&mut self.buffers.advantages);
        if let Source::Games(_) = self.source {
            let RankPart { config, team, shards, own_rollout, .. } = &self.part;
            advantages.compute(trajectory, own_rollout, &config.advantage, shards, team)?;
        }
        Ok(advantages)
    }

    fn update(
        &mut self,
        (trajectory, _): &Self::Trajectory,
        advantages: &NativeAdvantages,
        iteration: u32,
    ) -> Result<UpdateMeans, TrainError> {
        let NativeAdvantages { values, counts, .. } = advantages;
        let learn_steps = match self.source {
            Source::Games(_) => self.part.config.rollout.learn_steps,
            _ => trajectory.num_steps,
        };
        let experience = NativeExperience::new(trajectory, values, counts, learn_steps);
        let learner = &mut self.learner;
        // With environments on the host, the iteration runs outside the pool.
        Ok(run_in_pool_if(self.host.is_some(), || learner.update(&experience, iteration))?)
    }

    async fn read_totals(
        &mut self,
        (trajectory, sums): Self::Trajectory,
        advantages: NativeAdvantages,
        stats: UpdateMeans,
        _next_iteration: Option<u32>,
    ) -> Result<GameTotals, TrainError> {
        let zero_variance_fraction = advantages.zero_variance_fraction;
        // The next iteration reuses the buffers.
        if let Source::Streamed(stream) = &self.source {
            let NativeAdvantages { values: weights, counts, .. } = advantages;
            stream.give_back(WindowBatch { trajectory, counts, weights });
        } else {
            self.buffers = IterationBuffers { trajectory, advantages };
        }
        Ok(GameTotals {
            games: self.part.sum_games(&sums)?,
            waiting_seconds: self.source.take_waiting_seconds(),
            zero_variance_fraction,
            update: stats,
        })
    }
}

impl<G: Rules> PolicyEngine for NativeEngine<G> {
    fn rehearse(&mut self, iteration: u32) {
        let Source::Games(games) = &self.source else { return };
        let games = games.clone();
        if let Ok((trajectory, _)) = self.roll_out(iteration) {
            self.buffers.trajectory = trajectory;
        }
        self.source = Source::Games(games);
    }

    fn describe(&self) -> String {
        let rollouts = self.host.as_ref().map_or("native rollouts", |_| "rollouts on the host");
        let precision = match self.part.config.precision {
            Precision::F32 => String::new(),
            precision => format!(", {precision}"),
        };
        format!("{}, native updates{precision}", self.source.description().unwrap_or(rollouts))
    }

    fn model(&self) -> Network {
        let params = self.learner.params();
        let count = params.len();
        let params = TensorData::new(params, [count]);
        self.model.unflatten(&Tensor::from_data(params, &self.model.device()))
    }

    async fn export_state(&self) -> PolicyState {
        let (branches, memory) = match &self.source {
            Source::Games(games) => (games.export_branches(), games.export_memory().to_vec()),
            _ => Default::default(),
        };
        PolicyState {
            params: self.learner.params(),
            moments: self.learner.moments(),
            reference: self.learner.reference_params(),
            branches,
            memory,
        }
    }

    fn import_state(&mut self, state: &PolicyState) -> Result<(), EnvStatesError> {
        self.learner.restore(&state.params, &state.moments, state.reference.as_deref());
        let Source::Games(games) = &mut self.source else { return Ok(()) };
        games.import_memory(&state.memory);
        games.import_branches(&state.branches)
    }
}
