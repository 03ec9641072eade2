//! The fast engine on the CPU: native code on all threads.

use super::engine::{Engine, Source, State, Totals, is_resident};
use super::stream::Stream;
use crate::advantage::HostAdvantages;
use crate::config::TrainConfig;
use crate::data::{self, HostTrajectory, Pieces, Windows};
use crate::device;
use crate::env::Rules;
use crate::learner::Batches;
use crate::learner::{NativeLearner, UpdateMeans};
use crate::model::{Mlp, Model, flatten, unflatten};
use crate::rollout::{EnvStatesError, NativeRollout, RolloutKeys};

/// Native rollouts and updates, in the host's memory from one end to the other.
#[derive(Debug)]
pub(super) struct NativeEngine<G: Rules, M: Model> {
    /// The model whose fast form the perceptron is; its weights are those that the run began with.
    model: M,
    config: TrainConfig,
    source: Source<NativeRollout<G>, ()>,
    learner: NativeLearner,
    /// The memory of the last iteration, for the next; or the dataset, with its weights as advantages.
    room: (HostTrajectory, HostAdvantages),
}

impl<G: Rules, M: Model> NativeEngine<G, M> {
    /// Trains `model` as the perceptron that it is.
    pub fn new(game: G, model: M, mlp: &Mlp, config: &TrainConfig, data: Option<Pieces>) -> Self {
        let keys = RolloutKeys::new(config.seed);
        let mut learner = NativeLearner::new(mlp, config);
        let (source, room) = match data {
            None => {
                (Source::Games(NativeRollout::new(game, &config.rollout, keys)), Default::default())
            }
            Some(pieces) if !is_resident(&pieces, config) => {
                learner = learner.in_order();
                (
                    Source::Streamed(Box::new(Stream::new(pieces, Batches::new(config)))),
                    Default::default(),
                )
            }
            Some(pieces) => {
                device::count_upload(pieces.bytes());
                (Source::Resident(()), shown(pieces.all()))
            }
        };
        Self { source, learner, model, config: config.clone(), room }
    }
}

/// Windows as what is learnt from, with their weights as advantages.
fn shown(windows: Windows) -> (HostTrajectory, HostAdvantages) {
    let Windows { trajectory, counts, weights } = windows;
    (trajectory, HostAdvantages { values: weights, counts, zero_variance: 0.0 })
}

impl<G: Rules, M: Model> NativeEngine<G, M> {
    /// Keeps the memory of an iteration for the next, and gives the seconds that were waited for its data.
    fn keep(&mut self, trajectory: HostTrajectory, advantages: HostAdvantages) -> f64 {
        if let Source::Streamed(stream) = &mut self.source {
            let HostAdvantages { values: weights, counts, .. } = advantages;
            stream.give_back(Windows { trajectory, counts, weights });
            return stream.take_waited();
        }
        self.room = (trajectory, advantages);
        0.0
    }
}

impl<G: Rules, M: Model> Engine for NativeEngine<G, M> {
    type Model = M;
    type Trajectory = (HostTrajectory, data::Totals);
    type Advantages = HostAdvantages;
    type Stats = UpdateMeans;

    fn rollout(&mut self, iteration: u32) -> Self::Trajectory {
        let mut trajectory = std::mem::take(&mut self.room.0);
        let totals = match &mut self.source {
            Source::Games(games) => {
                let policy = self.learner.native_policy();
                games.collect_into(&policy, iteration, &mut trajectory)
            }
            Source::Resident(()) => data::Totals::default(),
            Source::Streamed(stream) => {
                let windows = stream.take(iteration);
                device::count_upload(windows.bytes());
                (trajectory, self.room.1) = shown(windows);
                data::Totals::default()
            }
        };
        (trajectory, totals)
    }

    fn advantages(&mut self, (trajectory, _): &Self::Trajectory) -> HostAdvantages {
        let mut advantages = std::mem::take(&mut self.room.1);
        if let Source::Games(_) = self.source {
            advantages.compute(trajectory, &self.config.rollout, &self.config.advantage);
        }
        advantages
    }

    fn update(
        &mut self,
        (trajectory, _): &Self::Trajectory,
        advantages: &HostAdvantages,
        iteration: u32,
    ) -> UpdateMeans {
        let HostAdvantages { values, counts, .. } = advantages;
        let learn_steps = match self.source {
            Source::Games(_) => self.config.rollout.learn_steps,
            _ => trajectory.num_steps,
        };
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
        let waited = self.keep(trajectory, advantages);
        let UpdateMeans { approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm } =
            stats;
        let update = [approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm];
        Totals { score_sum, episodes, mean_reward, waited, zero_variance, update }
    }

    fn finish_phase(&self) -> bool {
        true
    }

    fn rehearse(&mut self, iteration: u32) {
        let Source::Games(games) = &self.source else { return };
        let games = games.clone();
        (self.room.0, _) = self.rollout(iteration);
        self.source = Source::Games(games);
    }

    fn describe(&self) -> String {
        match self.source {
            Source::Games(_) => "native rollouts, native updates".to_string(),
            Source::Resident(()) => "a dataset in memory, native updates".to_string(),
            Source::Streamed(_) => "a dataset read as it is needed, native updates".to_string(),
        }
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
            games: match &self.source {
                Source::Games(games) => games.export(),
                _ => Vec::new(),
            },
            memory: Vec::new(),
        }
    }

    fn import(&mut self, state: &State) -> Result<(), EnvStatesError> {
        self.learner.restore(&state.params, &state.moments, state.reference.as_deref());
        match &mut self.source {
            Source::Games(games) => games.import(&state.games),
            _ => Ok(()),
        }
    }
}
