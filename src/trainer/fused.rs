//! The fast engine on a device: a few kernels an iteration, and the next rollout on its way before the
//! last values are read.

use super::engine::{Engine, State, Totals};
use super::part::Part;
use super::transfer::{download, upload};
use crate::advantage::shared_recording_advantages;
use crate::config::{RolloutConfig, TrainConfig};
use crate::data::summary::{EPISODES, EVEN_GROUPS, REWARD_SUM, SCORE_SUM};
use crate::data::{Recording, RecordingAdvantages};
use crate::device;
use crate::env::Rules;
use crate::learner::{FusedLearner, SHARD_STEPS, UpdateStats};
use crate::model::{Mlp, Model, unflatten};
use crate::parallel::{Shards, Team, TeamError};
use crate::rollout::{Branches, EnvStatesError, FusedRollout, RolloutKeys};
use burn::tensor::Device;

/// Fused rollouts, advantages and updates.
#[derive(Debug)]
pub(super) struct FusedEngine<G: Rules, M: Model> {
    /// The model whose fast form the perceptron is; its weights are those that the run began with.
    model: M,
    config: TrainConfig,
    /// That of our part of the games.
    rollout: RolloutConfig,
    /// The groups of games.
    shards: Shards,
    team: Team,
    device: Device,
    games: FusedRollout<G>,
    learner: FusedLearner,
    /// The next iteration's rollout, if it has been begun, and the iteration.
    ahead: Option<(u32, Recording, Branches)>,
}

impl<G: Rules, M: Model> FusedEngine<G, M> {
    /// Trains `model` as the perceptron that it is.
    pub fn new(
        game: G,
        (model, mlp): (M, Mlp),
        config: &TrainConfig,
        device: &Device,
        team: &Team,
    ) -> Result<Self, TeamError> {
        let Part { shards, rollout, .. } = Part::new(config, None, team, SHARD_STEPS)?;
        let keys = RolloutKeys::new(config.seed).from_group(shards.own_items().start);
        let games = FusedRollout::new(game, &rollout, keys, device);
        Ok(Self {
            games: games.with_precision(config.precision),
            learner: FusedLearner::new(mlp, config)
                .sharing(shards.times(rollout.group_size), team.clone()),
            model,
            config: config.clone(),
            rollout,
            shards,
            team: team.clone(),
            device: device.clone(),
            ahead: None,
        })
    }
}

impl<G: Rules, M: Model> Engine for FusedEngine<G, M> {
    type Model = M;
    type Trajectory = Recording;
    type Advantages = RecordingAdvantages;
    type Stats = UpdateStats;

    fn rollout(&mut self, iteration: u32) -> Recording {
        let (recording, branches) = match self.ahead.take() {
            Some((ahead, recording, branches)) if ahead == iteration => (recording, branches),
            _ => self.games.play(&self.learner.policy(), iteration),
        };
        self.games.go_on_from(branches);
        recording
    }

    fn advantages(&mut self, recording: &Recording) -> Result<RecordingAdvantages, TeamError> {
        let config = &self.config.advantage;
        shared_recording_advantages(recording, &self.rollout, config, &self.team)
    }

    fn update(
        &mut self,
        recording: &Recording,
        advantages: &RecordingAdvantages,
        iteration: u32,
    ) -> Result<UpdateStats, TeamError> {
        self.learner.update(recording, advantages, self.games.observer(), iteration)
    }

    async fn totals(
        &mut self,
        recording: Recording,
        advantages: RecordingAdvantages,
        stats: UpdateStats,
        next: Option<u32>,
    ) -> Result<Totals, TeamError> {
        // The memory of this iteration is free for the next as soon as its kernels are through.
        drop(recording);
        let begin = |iteration| {
            let (recording, branches) = self.games.play(&self.learner.policy(), iteration);
            (iteration, recording, branches)
        };
        let wanted = [advantages.summary, stats.means];
        let ([summary, means], ahead) = device::read_while(wanted, || next.map(begin)).await;
        self.ahead = ahead;
        // They are of all members.
        let [score_sum, episodes, rewards, even] =
            [SCORE_SUM, EPISODES, REWARD_SUM, EVEN_GROUPS].map(|i| f64::from(summary[i]));
        let rollout = &self.config.rollout;
        let steps = (rollout.num_envs() * rollout.num_steps) as f64;
        Ok(Totals {
            score_sum,
            episodes,
            mean_reward: rewards / steps,
            waited: 0.0,
            zero_variance: even / rollout.num_groups as f64,
            update: std::array::from_fn(|i| means[i].into()),
        })
    }

    fn finish_phase(&self) -> bool {
        false
    }

    fn rehearse(&mut self, iteration: u32) {
        self.games.play(&self.learner.policy(), iteration);
        let _ = self.device.sync();
    }

    fn describe(&self) -> String {
        "fused rollouts, fused updates".to_string()
    }

    fn model(&self) -> M {
        unflatten(self.model.clone(), self.learner.weights().params())
    }

    fn shards(&self) -> &Shards {
        &self.shards
    }

    fn steps(&self) -> u64 {
        self.learner.weights().optimizer().steps
    }

    async fn export(&self) -> State {
        let games = self.games.export_async().await;
        download(self.learner.weights(), games, Vec::new()).await
    }

    fn import(&mut self, state: &State) -> Result<(), EnvStatesError> {
        self.ahead = None;
        upload(state, self.learner.weights_mut());
        self.games.import(&state.games)
    }
}
