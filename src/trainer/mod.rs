//! Group Relative Policy Optimisation, on one screen.

mod choose;
mod engine;
mod finite;
#[cfg(feature = "kernels")]
mod fused;
#[cfg(feature = "general")]
mod general;
#[cfg(feature = "general")]
mod held_out;
pub mod language;
mod native;
mod part;
mod reduction;
mod snapshot;
mod stream;
#[cfg(any(feature = "general", feature = "kernels"))]
mod transfer;

pub use finite::is_finite;
#[cfg(feature = "general")]
pub use held_out::Confusion;
pub use snapshot::{
    SnapshotError, config_toml, load_policy, new_settings, policy_file, saved_config,
    saved_game_name,
};

use crate::config::TrainConfig;
use crate::data::Pieces;
use crate::device;
use crate::env::Rules;
use crate::learner::{learning_rate, total_updates};
use crate::metrics::{EvaluationRecord, HeldOut, IterationRecord, Phases, Reduction, Seconds};
use crate::model::{NativePolicy, Network};
use crate::parallel::{Shards, Team, TeamError};
use crate::rng::Stream;
use crate::rollout::{Evaluation, Player, play_episodes};
use burn::cubecl::future::block_on;
use burn::tensor::Device;
use choose::{Engines, first_network, obstacle, precision_obstacle, with_engine};
use engine::{Engine, Totals};
use std::ops::Range;
use tracing::{Instrument, info_span};
use web_time::Instant;

/// A training run in memory: games, model, optimiser, counters.
///
/// [`Trainer::new`] trains the network that the settings ask for, [`Trainer::with_model`] any model.
#[derive(Debug)]
pub struct Trainer<G: Rules> {
    game: G,
    config: TrainConfig,
    device: Device,
    /// The ranks that share the run.
    team: Team,
    engine: Engines<G>,
    /// Iterations done.
    iteration: u32,
    /// Value and iteration of the best evaluation so far: the mean score, or, from data, the negative held-out loss.
    best: Option<(f64, u32)>,
    /// Bytes that were put on the device before the first iteration.
    uploaded: u64,
    /// Held-out demonstrations.
    held_out: Option<Pieces>,
}

/// Demonstrations that a run learns from instead of games.
#[derive(Clone, Debug)]
pub struct Demonstrations {
    /// The training part.
    pub learnt: Pieces,
    /// The part that the policy is evaluated on.
    pub held_out: Pieces,
}

/// One iteration of GRPO: every group plays, every action is compared with its group, the policy moves
/// towards the better ones. Returns its totals and the seconds of its phases.
async fn iterate<E: Engine>(
    engine: &mut E,
    iteration: u32,
    next: Option<u32>,
) -> Result<(Totals, Option<Phases>), TeamError> {
    let started = Instant::now();
    let span = info_span!("rollout").entered();
    let trajectory = engine.rollout(iteration);
    let timed = engine.finish_phase();
    let rollout = started.elapsed().as_secs_f64();
    span.exit();

    let span = info_span!("advantage").entered();
    let advantages = engine.advantages(&trajectory)?;
    engine.finish_phase();
    let advantage = started.elapsed().as_secs_f64();
    span.exit();

    let span = info_span!("update").entered();
    let stats = engine.update(&trajectory, &advantages, iteration)?;
    engine.finish_phase();
    let update = started.elapsed().as_secs_f64();
    span.exit();

    let totals = engine.totals(trajectory, advantages, stats, next);
    let totals = totals.instrument(info_span!("read_back")).await?;
    let (advantage, update) = (advantage - rollout, update - advantage);
    let phases = Phases { rollout, advantage, update, verify: None };
    Ok((totals, timed.then_some(phases)))
}

/// The reasons for which training stops.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// Numbers ran out of range.
    #[error(
        "the {what} is not finite in iteration {iteration}; the last checkpoint is untouched. \
         A lower optimizer.learning_rate or update.max_grad_norm may help"
    )]
    NotFinite {
        /// The number.
        what: &'static str,
        /// The iteration, from 1.
        iteration: u32,
    },
    /// Another rank of the run is gone, or does not fit.
    #[error(transparent)]
    Team(#[from] TeamError),
}

impl<G: Rules> Trainer<G> {
    /// A run at its start, of the network that the settings ask for. Both `game` and `config` must have
    /// been validated.
    ///
    /// # Panics
    /// In a build without the feature `general`, where there is an obstacle ([`Trainer::obstacle_to`]).
    pub fn new(game: G, config: &TrainConfig, device: &Device) -> Self {
        Self::with_model(game, first_network(game, config, device), config, device)
    }

    /// The reason why a run would not have a fast engine, if so.
    pub fn obstacle_to(game: G, config: &TrainConfig, device: &Device) -> Option<String> {
        obstacle(&first_network(game, config, device), config, device, &Team::alone())
    }
}

impl<G: Rules> Trainer<G> {
    /// A run at its start, of a model on `device` in place of the one in `config.policy`.
    ///
    /// # Panics
    /// If the settings are out of range, or the device lacks what they ask for.
    pub fn with_model(
        game: G,
        model: impl Into<Network>,
        config: &TrainConfig,
        device: &Device,
    ) -> Self {
        Self::with_source(game, model, config, device, None)
    }

    /// A run at its start that learns from `data` instead of from games, if they are given, as `config.data` says.
    ///
    /// # Panics
    /// As [`Trainer::with_model`].
    pub fn with_source(
        game: G,
        model: impl Into<Network>,
        config: &TrainConfig,
        device: &Device,
        data: Option<Demonstrations>,
    ) -> Self {
        Self::with_team(game, model, config, device, data, Team::alone())
            .expect("one rank is never too many")
    }

    /// This rank's part in a run that the ranks of `team` share: all of them take the same steps, and arrive at the
    /// same weights.
    ///
    /// # Errors
    /// If there are more ranks than shards ([`TrainConfig::shards`]).
    ///
    /// # Panics
    /// As [`Trainer::with_model`].
    pub fn with_team(
        game: G,
        model: impl Into<Network>,
        config: &TrainConfig,
        device: &Device,
        data: Option<Demonstrations>,
        team: Team,
    ) -> Result<Self, TeamError> {
        let (learnt, held_out) = data.map(|data| (data.learnt, data.held_out)).unzip();
        device::take_transfers();
        let engine = Engines::new(game, model.into(), config, device, learnt, &team)?;
        let (config, device) = (config.clone(), device.clone());
        let uploaded = device::take_transfers().uploaded;
        Ok(Self {
            game,
            config,
            device,
            team,
            engine,
            iteration: 0,
            best: None,
            uploaded,
            held_out,
        })
    }

    /// One iteration of GRPO.
    ///
    /// # Errors
    /// [`TrainError::NotFinite`]; the trainer cannot be used any more then.
    pub fn iterate(&mut self) -> Result<IterationRecord, TrainError> {
        if matches!(self.engine, Engines::Native(_)) {
            // The whole iteration runs inside the pool of threads, so that no thread outside is woken up after each
            // phase. Not so on a device, which has a queue for each thread that asks.
            rayon::scope(|_| block_on(self.iterate_async()))
        } else {
            block_on(self.iterate_async())
        }
    }

    /// The asynchronous form of [`Trainer::iterate`], for a browser, where a thread must not block.
    ///
    /// # Errors
    /// As [`Trainer::iterate`].
    pub async fn iterate_async(&mut self) -> Result<IterationRecord, TrainError> {
        device::take_transfers();
        self.team.take_traffic();
        let started = Instant::now();
        let next = (self.iteration + 1 < self.config.iterations).then_some(self.iteration + 1);
        let (totals, phases) = with_engine!(&mut self.engine, engine => {
            iterate(engine.as_mut(), self.iteration, next).await
        })?;
        self.iteration += 1;
        let (total, waiting_for_data) = (started.elapsed().as_secs_f64(), totals.waited);
        let reduction = self.reduction(total).await?;
        let seconds = Seconds { total, waiting_for_data, phases };
        Ok(IterationRecord { reduction, ..self.record(totals, seconds)? })
    }

    /// The cost of sharing an iteration of so many seconds, if ranks share the run. Now and then they also compare
    /// their policies.
    async fn reduction(&self, seconds: f64) -> Result<Option<Reduction>, TeamError> {
        let reduction = reduction::reduction(&self.team, seconds)?;
        let is_due = reduction::is_compared(self.iteration, self.config.iterations);
        if reduction.is_some() && is_due {
            let params = device::read_async(self.model().flatten()).await;
            reduction::compare(&self.team, &params)?;
        }
        Ok(reduction)
    }

    /// Plays the next iteration's rollout to its end without learning from it, and leaves the run unchanged. Returns
    /// the seconds that it took.
    pub fn rehearse(&mut self) -> f64 {
        let started = Instant::now();
        with_engine!(&mut self.engine, engine => engine.rehearse(self.iteration));
        started.elapsed().as_secs_f64()
    }

    /// Plays `episodes` fresh episodes with the policy.
    pub fn evaluate(&self, episodes: usize, player: Player) -> Evaluation {
        block_on(self.evaluate_async(episodes, player))
    }

    /// The asynchronous form of [`Trainer::evaluate`], for a browser.
    pub async fn evaluate_async(&self, episodes: usize, player: Player) -> Evaluation {
        Evaluation::of(&self.play(0..episodes, player).await)
    }

    /// Score and length of some episodes of an evaluation.
    async fn play(&self, episodes: Range<usize>, player: Player) -> Vec<[f64; 2]> {
        let (game, draws) = (self.game, (Stream::Validation, self.config.seed));
        let (features, actions) = (game.num_features(), game.num_actions());
        let policy = NativePolicy::new_async(&self.model(), features, actions).await;
        play_episodes(&policy, game, episodes, draws, player)
    }

    /// An evaluation of the greedy policy whose episodes the ranks share.
    async fn evaluate_together(&self, episodes: usize) -> Result<Evaluation, TeamError> {
        let (rank, size) = (self.team.rank(), self.team.size());
        let ours = rank * episodes / size..(rank + 1) * episodes / size;
        let ours = self.play(ours, Player::Greedy).await;
        let all = self.team.all_gather(bytemuck::cast_slice(&ours))?;
        Ok(Evaluation::of(&bytemuck::pod_collect_to_vec(&all.concat())))
    }

    /// The policy's predictions on the held-out demonstrations; `None` for runs that play games.
    #[cfg(feature = "general")]
    pub fn confusion(&self) -> Option<Confusion> {
        block_on(self.confusion_async())
    }

    #[cfg(feature = "general")]
    async fn confusion_async(&self) -> Option<Confusion> {
        let held_out = self.held_out.as_ref()?;
        let actions = self.game.num_actions();
        Some(Confusion::of(&self.model(), held_out, actions, &self.device).await)
    }

    /// Evaluates the greedy policy, and returns whether it is the best so far: by its mean score, or, if the run learns
    /// from data, by the held-out loss. Without a game to play, the score is the held-out accuracy. All ranks must
    /// call this.
    ///
    /// # Errors
    /// If another rank of the run is gone or silent.
    pub fn measure(&mut self) -> Result<(EvaluationRecord, bool), TeamError> {
        block_on(self.measure_async())
    }

    /// The asynchronous form of [`Trainer::measure`], for a browser.
    ///
    /// # Errors
    /// As [`Trainer::measure`].
    pub async fn measure_async(&mut self) -> Result<(EvaluationRecord, bool), TeamError> {
        #[cfg(feature = "general")]
        let held_out = self.confusion_async().await.map(|confusion| confusion.means());
        // Whole sequences of a model need Burn's autodiff, which a page leaves out.
        #[cfg(not(feature = "general"))]
        let held_out: Option<HeldOut> = None;
        let evaluation = match held_out.filter(|_| !G::PLAYABLE) {
            Some(HeldOut { accuracy, .. }) => EvaluationRecord {
                mean_score: accuracy.unwrap_or(0.0),
                held_out,
                ..EvaluationRecord::default()
            },
            None => {
                let episodes = self.config.checkpoint.eval_episodes;
                let played = self.evaluate_together(episodes).await?;
                EvaluationRecord { held_out, ..played.into() }
            }
        };
        let score = held_out.map_or(evaluation.mean_score, |held_out| -held_out.loss);
        let improved = self.best.is_none_or(|(best, _)| score > best);
        if improved {
            self.best = Some((score, self.iteration));
        }
        Ok((evaluation, improved))
    }

    /// The model.
    pub fn model(&self) -> Network {
        self.engine.model()
    }

    /// A description of the engine, for people.
    pub fn describe(&self) -> String {
        with_engine!(&self.engine, engine => engine.describe())
    }

    /// The reason why the run does not have a fast engine, if so.
    pub fn obstacle(&self) -> Option<String> {
        obstacle(&self.model(), &self.config, &self.device, &self.team)
    }

    /// The reason why the run does not have the precision of its settings, if so.
    pub fn precision_obstacle(&self) -> Option<String> {
        precision_obstacle(&self.model(), &self.config, &self.device, self.obstacle())
    }

    /// The shards of the run's games, or of its data, and which of them are this rank's.
    pub fn shards(&self) -> &Shards {
        with_engine!(&self.engine, engine => engine.shards())
    }

    /// The ranks that share the run.
    pub fn team(&self) -> &Team {
        &self.team
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

    fn record(&mut self, totals: Totals, seconds: Seconds) -> Result<IterationRecord, TrainError> {
        let iteration = self.iteration;
        let Totals { score_sum, episodes, mean_reward, zero_variance, update, .. } = totals;
        let transfers = device::take_transfers();
        let [mut approx_kl, clip_fraction, entropy, reference_kl, loss, grad_norm] = update;
        if self.held_out.is_some() {
            // Demonstrations are off-policy.
            approx_kl = 0.0;
        }
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
        let steps = self.config.steps_per_iteration();
        let updates = with_engine!(&self.engine, engine => engine.steps());
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
            read_backs: transfers.read_backs,
            downloaded_bytes: transfers.downloaded,
            uploaded_bytes: transfers.uploaded + std::mem::take(&mut self.uploaded),
            load: device::load(&self.device),
            reduction: None,
            text: None,
            evaluation: None,
        })
    }
}

impl From<Evaluation> for EvaluationRecord {
    fn from(evaluation: Evaluation) -> Self {
        let Evaluation { episodes, mean_score, std_error, min_score, max_score, mean_length } =
            evaluation;
        let (held_out, text) = (None, None);
        Self { episodes, mean_score, std_error, min_score, max_score, mean_length, held_out, text }
    }
}
