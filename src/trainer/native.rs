//! The fast way on the CPU: native code on all threads.

use super::engine::{Numbers, State, Way};
use crate::advantage::{Advantages, advantages};
use crate::config::{RolloutConfig, TrainConfig};
use crate::device;
use crate::env::Rules;
use crate::learner::{NativeLearner, UpdateMeans};
use crate::policy::{Mlp, NativeMlp};
use crate::rollout::{NativeRollout, RolloutKeys, SeatsError};
use crate::trajectory::Trajectory;
use burn::tensor::{Device, Tensor};

/// Native rollouts and updates.
#[derive(Debug)]
pub(super) struct NativeWay<G: Rules> {
    config: TrainConfig,
    device: Device,
    games: NativeRollout<G>,
    learner: NativeLearner,
}

impl<G: Rules> NativeWay<G> {
    pub fn new(game: G, policy: &Mlp, config: &TrainConfig, device: &Device) -> Self {
        let keys = RolloutKeys::new(config.seed);
        Self {
            games: NativeRollout::new(game, &config.rollout, keys),
            learner: NativeLearner::new(policy, config),
            config: config.clone(),
            device: device.clone(),
        }
    }
}

impl<G: Rules> Way for NativeWay<G> {
    type Played = Trajectory;
    type Judged = Advantages;
    type Learnt = UpdateMeans;

    fn play(&mut self, iteration: u32) -> Trajectory {
        self.games.collect(&NativeMlp::new(&self.learner.policy()), iteration, &self.device)
    }

    fn judge(&self, played: &Trajectory) -> Advantages {
        let RolloutConfig { group_size, learn_steps, auto_reset, .. } = self.config.rollout;
        let mask = played.mask(auto_reset);
        advantages(played, &mask, group_size, learn_steps, &self.config.advantage)
    }

    fn update(&mut self, played: &Trajectory, judged: &Advantages, iteration: u32) -> UpdateMeans {
        let learnt = played.first_steps(self.config.rollout.learn_steps);
        self.learner.update(&learnt, &judged.values, &judged.mask, iteration)
    }

    fn numbers(
        &mut self,
        played: Trajectory,
        judged: Advantages,
        learnt: UpdateMeans,
        _next: Option<u32>,
    ) -> Numbers {
        let parts = vec![
            played.scores.sum(),
            played.ends.sum(),
            played.rewards.mean(),
            judged.zero_variance,
        ];
        let numbers = device::read(Tensor::cat(parts, 0));
        let at = |i: usize| f64::from(numbers[i]);
        let UpdateMeans { approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm } =
            learnt;
        Numbers {
            score_sum: at(0),
            episodes: at(1),
            mean_reward: at(2),
            zero_variance: at(3),
            update: [approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm],
        }
    }

    fn finish_phase(&self) -> bool {
        true
    }

    fn rehearse(&self, iteration: u32) {
        let policy = NativeMlp::new(&self.learner.policy());
        self.games.clone().collect(&policy, iteration, &self.device);
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

    fn export(&self) -> State {
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
