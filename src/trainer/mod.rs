//! Group Relative Policy Optimisation, on one screen.

mod engine;
mod snapshot;

pub use snapshot::{SnapshotError, config_toml, load_policy, saved_config, saved_game_name};

use crate::advantage::advantages;
use crate::config::{RolloutConfig, TrainConfig};
use crate::device;
use crate::draws::Stream;
use crate::env::Rules;
use crate::learner::{UpdateStats, learning_rate, total_updates};
use crate::metrics::{EvaluationRecord, IterationRecord, Seconds};
use crate::policy::{Mlp, NativeMlp};
use crate::rollout::{Evaluation, Player, evaluate};
use crate::trajectory::Trajectory;
use burn::tensor::{Device, Tensor};
use engine::{Games, Learning};
use std::time::Instant;

/// A training run in memory: games, policy, optimiser, counters.
#[derive(Debug)]
pub struct Trainer<G: Rules> {
    game: G,
    config: TrainConfig,
    device: Device,
    games: Games<G>,
    learning: Learning,
    /// Iterations done.
    iteration: u32,
    /// Score and iteration of the best evaluation so far.
    best: Option<(f64, u32)>,
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
    pub fn new(game: G, config: &TrainConfig, device: &Device) -> Self {
        let key = Stream::Weights.key(config.seed);
        let (features, actions) = (game.num_features(), game.num_actions());
        let policy = Mlp::new(features, actions, &config.policy, key, device);
        let games = Games::new(game, &policy, config, device);
        let learning = Learning::new(policy, config, device);
        let (config, device) = (config.clone(), device.clone());
        Self { game, config, device, games, learning, iteration: 0, best: None }
    }

    /// One iteration of GRPO: every group plays, every action is judged by its group, the policy
    /// moves towards the better ones.
    ///
    /// # Errors
    /// [`TrainError::NotFinite`]; the trainer is of no use then.
    pub fn iterate(&mut self) -> Result<IterationRecord, TrainError> {
        let TrainConfig { rollout, advantage, .. } = &self.config;
        let mut phases = Phases::start(&self.device);

        let trajectory = phases.run("rollout", || {
            self.games.play(&self.learning.policy(), self.iteration, &self.device)
        });

        let judged = phases.run("advantage", || {
            let mask = trajectory.mask(rollout.auto_reset);
            let RolloutConfig { group_size, learn_steps, .. } = *rollout;
            advantages(&trajectory, &mask, group_size, learn_steps, advantage)
        });

        let stats = phases.run("update", || {
            let learnt = trajectory.first_steps(rollout.learn_steps);
            self.learning.update(&learnt, &judged.values, &judged.mask, self.iteration)
        });

        let metrics =
            phases.run("read_back", || read_back(&trajectory, judged.zero_variance, stats));

        self.iteration += 1;
        self.record(metrics, phases.seconds)
    }

    /// Plays `episodes` fresh episodes with the policy as it is.
    pub fn evaluate(&self, episodes: usize, player: Player) -> Evaluation {
        let policy = NativeMlp::new(&self.learning.policy());
        evaluate(&policy, self.game, episodes, Stream::Validation, self.config.seed, player)
    }

    /// Evaluates the greedy policy, and says whether it is the best so far.
    pub fn measure(&mut self) -> (EvaluationRecord, bool) {
        let evaluation = self.evaluate(self.config.checkpoint.eval_episodes, Player::Greedy);
        let score = evaluation.mean_score;
        let improved = self.best.is_none_or(|(best, _)| score > best);
        if improved {
            self.best = Some((score, self.iteration));
        }
        (EvaluationRecord::from(evaluation), improved)
    }

    /// The policy as it is.
    pub fn policy(&self) -> Mlp {
        self.learning.policy()
    }

    /// How the run plays and learns, in words: what `engine` came to on this device.
    pub fn describe(&self) -> String {
        format!("{}, {}", self.games.describe(), self.learning.describe())
    }

    /// Why the run takes the general way although `engine` did not ask for it, if so.
    pub fn obstacle(&self) -> Option<&'static str> {
        self.learning.obstacle(self.config.engine)
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

    fn record(&self, m: Metrics, seconds: Seconds) -> Result<IterationRecord, TrainError> {
        let iteration = self.iteration;
        for (what, value) in [
            ("loss", m.loss),
            ("gradient", m.grad_norm),
            ("policy's divergence", m.approx_kl),
            ("reward", m.mean_reward),
        ] {
            if !value.is_finite() {
                return Err(TrainError::NotFinite { what, iteration });
            }
        }
        let rollout = &self.config.rollout;
        let steps = (rollout.num_envs() * rollout.num_steps) as u64;
        let updates = self.learning.steps();
        let total = total_updates(&self.config);
        Ok(IterationRecord {
            iteration,
            env_steps: steps * u64::from(iteration),
            score: (m.episodes > 0.0).then(|| m.score_sum / m.episodes),
            episodes: m.episodes as u64,
            mean_reward: m.mean_reward,
            zero_variance_groups: m.zero_variance,
            loss: m.loss,
            entropy: m.entropy,
            approx_kl: m.approx_kl,
            clip_fraction: m.clip_fraction,
            reference_kl: m.reference_kl,
            grad_norm: m.grad_norm,
            learning_rate: learning_rate(&self.config.optimizer, updates - 1, total),
            seconds,
            steps_per_second: steps as f64 / seconds.total(),
            memory: device::memory(&self.device),
            read_backs: m.read_backs,
            evaluation: None,
        })
    }
}

/// The numbers of an iteration that come from the device.
struct Metrics {
    score_sum: f64,
    episodes: f64,
    mean_reward: f64,
    zero_variance: f64,
    approx_kl: f64,
    clip_fraction: f64,
    entropy: f64,
    reference_kl: f64,
    loss: f64,
    grad_norm: f64,
    read_backs: u64,
}

/// Fetches all numbers of an iteration in one piece.
fn read_back(trajectory: &Trajectory, zero_variance: Tensor<1>, stats: UpdateStats) -> Metrics {
    let parts = vec![
        trajectory.scores.clone().sum(),
        trajectory.ends.clone().sum(),
        trajectory.rewards.clone().mean(),
        zero_variance,
        stats.means,
    ];
    let numbers = device::read(Tensor::cat(parts, 0));
    let at = |i: usize| f64::from(numbers[i]);
    Metrics {
        score_sum: at(0),
        episodes: at(1),
        mean_reward: at(2),
        zero_variance: at(3),
        approx_kl: at(4),
        clip_fraction: at(5),
        entropy: at(6),
        reference_kl: at(7),
        loss: at(8),
        grad_norm: at(9),
        read_backs: device::take_read_count(),
    }
}

/// Runs the phases of an iteration, each in a span of its own, and measures them.
struct Phases<'a> {
    device: &'a Device,
    seconds: Seconds,
}

impl<'a> Phases<'a> {
    fn start(device: &'a Device) -> Self {
        device::take_read_count();
        Self { device, seconds: Seconds::default() }
    }

    /// Runs a phase to its end, and waits until the device is done with what it was given.
    fn run<T>(&mut self, name: &'static str, phase: impl FnOnce() -> T) -> T {
        let _span = tracing::info_span!("phase", name).entered();
        let started = Instant::now();
        let result = phase();
        // A device that fails here fails again, with a better message, where results are read.
        let _ = self.device.sync();
        let seconds = started.elapsed().as_secs_f64();
        match name {
            "rollout" => self.seconds.rollout = seconds,
            "advantage" => self.seconds.advantage = seconds,
            "update" => self.seconds.update = seconds,
            "read_back" => self.seconds.read_back = seconds,
            other => unreachable!("`Seconds` has no phase {other}"),
        }
        result
    }
}

impl From<Evaluation> for EvaluationRecord {
    fn from(evaluation: Evaluation) -> Self {
        let Evaluation { episodes, mean_score, std_error, .. } = evaluation;
        Self { episodes, mean_score, std_error }
    }
}
