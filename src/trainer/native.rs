//! The fast way on the CPU: native code on all threads.

use super::way::{Numbers, State, Way};
use crate::advantage::HostAdvantages;
use crate::config::TrainConfig;
use crate::data::{HostTrajectory, Totals};
use crate::env::Rules;
use crate::learner::{NativeLearner, UpdateMeans};
use crate::model::Mlp;
use crate::rollout::{NativeRollout, RolloutKeys, SeatsError};

/// Native rollouts and updates, in the host's memory from one end to the other.
#[derive(Debug)]
pub(super) struct NativeWay<G: Rules> {
    config: TrainConfig,
    games: NativeRollout<G>,
    learner: NativeLearner,
    /// The memory of the last iteration, for the next.
    room: (HostTrajectory, HostAdvantages),
}

impl<G: Rules> NativeWay<G> {
    pub fn new(game: G, policy: &Mlp, config: &TrainConfig) -> Self {
        let keys = RolloutKeys::new(config.seed);
        Self {
            games: NativeRollout::new(game, &config.rollout, keys),
            learner: NativeLearner::new(policy, config),
            config: config.clone(),
            room: Default::default(),
        }
    }
}

impl<G: Rules> Way for NativeWay<G> {
    type Played = (HostTrajectory, Totals);
    type Judged = HostAdvantages;
    type Learnt = UpdateMeans;

    fn play(&mut self, iteration: u32) -> (HostTrajectory, Totals) {
        let mut trajectory = std::mem::take(&mut self.room.0);
        let policy = self.learner.native_policy();
        let totals = self.games.collect_into(&policy, iteration, &mut trajectory);
        (trajectory, totals)
    }

    fn judge(&mut self, (played, _): &(HostTrajectory, Totals)) -> HostAdvantages {
        let mut advantages = std::mem::take(&mut self.room.1);
        advantages.judge(played, &self.config.rollout, &self.config.advantage);
        advantages
    }

    fn update(
        &mut self,
        (played, _): &(HostTrajectory, Totals),
        judged: &HostAdvantages,
        iteration: u32,
    ) -> UpdateMeans {
        let HostAdvantages { values, counts, .. } = judged;
        let learn_steps = self.config.rollout.learn_steps;
        self.learner.update_from_host(played, values, counts, learn_steps, iteration)
    }

    async fn numbers(
        &mut self,
        (played, totals): (HostTrajectory, Totals),
        judged: HostAdvantages,
        learnt: UpdateMeans,
        _next: Option<u32>,
    ) -> Numbers {
        let Totals { score_sum, episodes, mean_reward } = totals;
        let zero_variance = judged.zero_variance;
        self.room = (played, judged);
        let UpdateMeans { approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm } =
            learnt;
        let update = [approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm];
        Numbers { score_sum, episodes, mean_reward, zero_variance, update }
    }

    fn finish_phase(&self) -> bool {
        true
    }

    fn rehearse(&mut self, iteration: u32) {
        let games = self.games.clone();
        (self.room.0, _) = self.play(iteration);
        self.games = games;
    }

    fn describe(&self) -> String {
        "native rollouts, native updates".to_string()
    }

    fn policy(&self) -> Mlp {
        self.learner.policy()
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
        }
    }

    fn import(&mut self, state: &State) -> Result<(), SeatsError> {
        self.learner.restore(&state.params, &state.moments, state.reference.as_deref());
        self.games.import(&state.games)
    }
}
