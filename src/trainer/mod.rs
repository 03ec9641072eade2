//! Group Relative Policy Optimisation, on one screen.

mod engine;
#[cfg(feature = "kernels")]
mod fused;
#[cfg(feature = "general")]
mod general;
mod native;
mod snapshot;
#[cfg(any(feature = "general", feature = "kernels"))]
mod transfer;
mod way;

pub use snapshot::{
    SnapshotError, config_toml, load_policy, policy_file, saved_config, saved_game_name,
};

use crate::config::TrainConfig;
use crate::device;
use crate::env::Rules;
use crate::learner::{learning_rate, total_updates};
use crate::metrics::{EvaluationRecord, IterationRecord, Phases, Seconds};
use crate::model::{Mlp, NativeMlp};
use crate::rng::Stream;
use crate::rollout::{Evaluation, Player, evaluate};
use burn::cubecl::future::block_on;
use burn::tensor::Device;
use engine::{Engines, first_policy, obstacle, with_way};
use tracing::{Instrument, info_span};
use way::{Numbers, Way};
use web_time::Instant;

/// A training run in memory: games, policy, optimiser, counters.
#[derive(Debug)]
pub struct Trainer<G: Rules> {
    game: G,
    config: TrainConfig,
    device: Device,
    engine: Engines<G>,
    /// Iterations done.
    iteration: u32,
    /// Score and iteration of the best evaluation so far.
    best: Option<(f64, u32)>,
}

/// One iteration of GRPO: every group plays, every action is judged by its group, the policy moves
/// towards the better ones. Gives its numbers and the seconds of its phases.
async fn iterate<W: Way>(
    way: &mut W,
    iteration: u32,
    next: Option<u32>,
) -> (Numbers, Option<Phases>) {
    let started = Instant::now();
    let span = info_span!("rollout").entered();
    let played = way.play(iteration);
    let timed = way.finish_phase();
    let rollout = started.elapsed().as_secs_f64();
    span.exit();

    let span = info_span!("advantage").entered();
    let judged = way.judge(&played);
    way.finish_phase();
    let advantage = started.elapsed().as_secs_f64();
    span.exit();

    let span = info_span!("update").entered();
    let learnt = way.update(&played, &judged, iteration);
    way.finish_phase();
    let update = started.elapsed().as_secs_f64();
    span.exit();

    let numbers = way.numbers(played, judged, learnt, next).instrument(info_span!("read_back"));
    let numbers = numbers.await;
    let phases = Phases { rollout, advantage: advantage - rollout, update: update - advantage };
    (numbers, timed.then_some(phases))
}

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Numbers ran out of range.
    #[error(
        "the {what} is not finite in iteration {iteration}; the last checkpoint is untouched. \
         A lower optimizer.learning_rate or update.max_grad_norm may help"
    )]
    NotFinite {
        /// Which number.
        what: &'static str,
        /// The iteration, from 1.
        iteration: u32,
    },
}

impl<G: Rules> Trainer<G> {
    /// A run at its start. Both `game` and `config` must have been validated.
    ///
    /// # Panics
    /// In a build without the feature `general`, where there is an obstacle ([`Trainer::obstacle_to`]).
    pub fn new(game: G, config: &TrainConfig, device: &Device) -> Self {
        let engine = Engines::new(game, config, device);
        let (config, device) = (config.clone(), device.clone());
        Self { game, config, device, engine, iteration: 0, best: None }
    }

    /// One iteration of GRPO.
    ///
    /// # Errors
    /// [`TrainError::NotFinite`]; the trainer is of no use then.
    pub fn iterate(&mut self) -> Result<IterationRecord, TrainError> {
        if matches!(self.engine, Engines::Native(_)) {
            // In the pool of threads from one end to the other: whoever asks it from outside is woken up
            // after each phase. Not so on a device, whose queue belongs to the thread that asks.
            rayon::scope(|_| block_on(self.iterate_async()))
        } else {
            block_on(self.iterate_async())
        }
    }

    /// As [`Trainer::iterate`], where nothing can be waited for: in a browser.
    ///
    /// # Errors
    /// As [`Trainer::iterate`].
    pub async fn iterate_async(&mut self) -> Result<IterationRecord, TrainError> {
        device::take_read_count();
        let started = Instant::now();
        let next = (self.iteration + 1 < self.config.iterations).then_some(self.iteration + 1);
        let (numbers, phases) =
            with_way!(&mut self.engine, way => iterate(way.as_mut(), self.iteration, next).await);
        self.iteration += 1;
        self.record(numbers, Seconds { total: started.elapsed().as_secs_f64(), phases })
    }

    /// Plays the next iteration's rollout to its end without learning from it, and leaves the run as
    /// it was. Gives the seconds that it took.
    pub fn rehearse(&mut self) -> f64 {
        let started = Instant::now();
        with_way!(&mut self.engine, way => way.rehearse(self.iteration));
        started.elapsed().as_secs_f64()
    }

    /// Plays `episodes` fresh episodes with the policy as it is.
    pub fn evaluate(&self, episodes: usize, player: Player) -> Evaluation {
        block_on(self.evaluate_async(episodes, player))
    }

    /// As [`Trainer::evaluate`], where nothing can be waited for.
    pub async fn evaluate_async(&self, episodes: usize, player: Player) -> Evaluation {
        let policy = NativeMlp::new_async(&self.policy()).await;
        evaluate(&policy, self.game, episodes, Stream::Validation, self.config.seed, player)
    }

    /// Evaluates the greedy policy, and says whether it is the best so far.
    pub fn measure(&mut self) -> (EvaluationRecord, bool) {
        block_on(self.measure_async())
    }

    /// As [`Trainer::measure`], where nothing can be waited for.
    pub async fn measure_async(&mut self) -> (EvaluationRecord, bool) {
        let episodes = self.config.checkpoint.eval_episodes;
        let evaluation = self.evaluate_async(episodes, Player::Greedy).await;
        let score = evaluation.mean_score;
        let improved = self.best.is_none_or(|(best, _)| score > best);
        if improved {
            self.best = Some((score, self.iteration));
        }
        (EvaluationRecord::from(evaluation), improved)
    }

    /// The policy as it is.
    pub fn policy(&self) -> Mlp {
        with_way!(&self.engine, way => way.policy())
    }

    /// How the run plays and learns, in words: what `engine` came to on this device.
    pub fn describe(&self) -> String {
        with_way!(&self.engine, way => way.describe())
    }

    /// Why the run does not take the fast way, if it doesn't.
    pub fn obstacle(&self) -> Option<String> {
        Self::obstacle_to(self.game, &self.config, &self.device)
    }

    /// Why a run would not take the fast way, if it wouldn't.
    pub fn obstacle_to(game: G, config: &TrainConfig, device: &Device) -> Option<String> {
        obstacle(&first_policy(game, config, device), config, device)
    }

    /// The game.
    pub fn game(&self) -> G {
        self.game
    }

    /// The settings.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// Iterations done.
    pub fn iteration(&self) -> u32 {
        self.iteration
    }

    /// Score and iteration of the best evaluation so far.
    pub fn best(&self) -> Option<(f64, u32)> {
        self.best
    }

    fn record(&self, numbers: Numbers, seconds: Seconds) -> Result<IterationRecord, TrainError> {
        let iteration = self.iteration;
        let Numbers { score_sum, episodes, mean_reward, zero_variance, update } = numbers;
        let [approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm] = update;
        for (what, value) in [
            ("loss", loss),
            ("gradient", grad_norm),
            ("policy's divergence", approx_kl),
            ("reward", mean_reward),
        ] {
            if !value.is_finite() {
                return Err(TrainError::NotFinite { what, iteration });
            }
        }
        let rollout = &self.config.rollout;
        let steps = (rollout.num_envs() * rollout.num_steps) as u64;
        let updates = with_way!(&self.engine, way => way.steps());
        let total = total_updates(&self.config);
        Ok(IterationRecord {
            iteration,
            env_steps: steps * u64::from(iteration),
            score: (episodes > 0.0).then(|| score_sum / episodes),
            episodes: episodes as u64,
            mean_reward,
            zero_variance_groups: zero_variance,
            loss,
            entropy,
            approx_kl,
            clip_fraction,
            reference_kl,
            grad_norm,
            learning_rate: learning_rate(&self.config.optimizer, updates - 1, total),
            seconds,
            steps_per_second: steps as f64 / seconds.total,
            memory: device::memory(&self.device),
            read_backs: device::take_read_count(),
            evaluation: None,
        })
    }
}

impl From<Evaluation> for EvaluationRecord {
    fn from(evaluation: Evaluation) -> Self {
        let Evaluation { episodes, mean_score, std_error, .. } = evaluation;
        Self { episodes, mean_score, std_error }
    }
}
