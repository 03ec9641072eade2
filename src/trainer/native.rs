//! The fast engine on the CPU: native code on all threads.

use super::engine::{Engine, State, Totals};
use crate::advantage::HostAdvantages;
use crate::config::TrainConfig;
use crate::data::{self, HostTrajectory};
use crate::env::Rules;
use crate::learner::{NativeLearner, UpdateMeans};
use crate::model::{Mlp, Model, flatten, unflatten};
use crate::rollout::{EnvStatesError, NativeRollout, RolloutKeys};

/// Native rollouts and updates, in the host's memory from one end to the other.
#[derive(Debug)]
pub(super) struct NativeEngine<G: Rules, M: Model> {
    /// The model whose fast form the perceptron is; its weights are those that the run began with.
    model: M,
    config: TrainConfig,
    games: NativeRollout<G>,
    learner: NativeLearner,
    /// The memory of the last iteration, for the next.
    room: (HostTrajectory, HostAdvantages),
}

impl<G: Rules, M: Model> NativeEngine<G, M> {
    /// Trains `model` as the perceptron that it is.
    pub fn new(game: G, model: M, mlp: &Mlp, config: &TrainConfig) -> Self {
        let keys = RolloutKeys::new(config.seed);
        Self {
            games: NativeRollout::new(game, &config.rollout, keys),
            learner: NativeLearner::new(mlp, config),
            model,
            config: config.clone(),
            room: Default::default(),
        }
    }
}

impl<G: Rules, M: Model> Engine for NativeEngine<G, M> {
    type Model = M;
    type Trajectory = (HostTrajectory, data::Totals);
    type Advantages = HostAdvantages;
    type Stats = UpdateMeans;

    fn rollout(&mut self, iteration: u32) -> Self::Trajectory {
        let mut trajectory = std::mem::take(&mut self.room.0);
        let policy = self.learner.native_policy();
        let totals = self.games.collect_into(&policy, iteration, &mut trajectory);
        (trajectory, totals)
    }

    fn advantages(&mut self, (trajectory, _): &Self::Trajectory) -> HostAdvantages {
        let mut advantages = std::mem::take(&mut self.room.1);
        advantages.compute(trajectory, &self.config.rollout, &self.config.advantage);
        advantages
    }

    fn update(
        &mut self,
        (trajectory, _): &Self::Trajectory,
        advantages: &HostAdvantages,
        iteration: u32,
    ) -> UpdateMeans {
        let HostAdvantages { values, counts, .. } = advantages;
        let learn_steps = self.config.rollout.learn_steps;
        self.learner.update_from_host(trajectory, values, counts, learn_steps, iteration)
    }

    async fn totals(
        &mut self,
        (trajectory, totals): Self::Trajectory,
        advantages: HostAdvantages,
        stats: UpdateMeans,
        _next: Option<u32>,
    ) -> Totals {
        let data::Totals { score_sum, episodes, mean_reward } = totals;
        let zero_variance = advantages.zero_variance;
        self.room = (trajectory, advantages);
        let UpdateMeans { approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm } =
            stats;
        let update = [approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm];
        Totals { score_sum, episodes, mean_reward, zero_variance, update }
    }

    fn finish_phase(&self) -> bool {
        true
    }

    fn rehearse(&mut self, iteration: u32) {
        let games = self.games.clone();
        (self.room.0, _) = self.rollout(iteration);
        self.games = games;
    }

    fn describe(&self) -> String {
        "native rollouts, native updates".to_string()
    }

    fn model(&self) -> M {
        unflatten(self.model.clone(), &flatten(&self.learner.policy()))
    }

    fn steps(&self) -> u64 {
        self.learner.steps()
    }

    async fn export(&self) -> State {
        State {
            params: self.learner.params(),
            moments: self.learner.optimizer(),
            reference: self.learner.reference_params(),
            games: self.games.export(),
            memory: Vec::new(),
        }
    }

    fn import(&mut self, state: &State) -> Result<(), EnvStatesError> {
        self.learner.restore(&state.params, &state.moments, state.reference.as_deref());
        self.games.import(&state.games)
    }
}
