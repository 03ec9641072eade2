//! The engine of games and of datasets.

#[cfg(feature = "general")]
pub mod held_out;
mod host;
mod settings;
mod snapshot;

pub use host::{BatchSizes, HostSetupError};
pub use settings::{config_to_toml, layer_settings, new_settings};
pub use snapshot::{
    load_policy, load_weights, policy_bytes, read_config, read_game_name, read_policy_file,
    read_policy_params,
};

use super::choose::{
    AnyEngine, fallback_precision_reason, fallback_reason, new_network, with_engine,
};
use super::engine::{Engine, GameTotals, PolicyEngine, write_means};
use super::rank_part::{EngineInputs, RankPart, assert_valid, gather_parts};
use super::{TrainError, Trainer, may_enter_pool, run_phases};
use crate::data::{GameSums, WindowSet};
use crate::device::{self, TransferCount};
use crate::env::{HostEnvError, HostEnvs, Rules};
use crate::learner::{first_optimizer_step, learning_rate, total_optimizer_steps};
use crate::metrics::{EvaluationRecord, HeldOutMeans, IterationRecord, IterationSeconds};
use crate::model::{NativePolicy, Network};
use crate::parallel::{Shards, Team, TeamError};
use crate::rng::Stream;
use crate::rollout::{
    ActionSelection, EpisodeKeys, EpisodeResult, Evaluation, play_episodes, play_host_episodes,
};
use crate::settings::{EngineChoice, Precision, TrainConfig};
use burn::cubecl::future::block_on;
use burn::tensor::Device;
use std::borrow::Cow;
use std::ops::Range;
use web_time::Instant;

/// A policy for a game in training, with the engine that suits its model and device.
#[derive(Debug)]
pub struct GameEngine<G: Rules> {
    game: G,
    device: Device,
    /// This rank's part of the run.
    part: RankPart,
    policy_engine: AnyEngine<G>,
    /// Steps played, or learnt from a dataset, since the start of the run.
    env_steps: u64,
    /// Bytes uploaded to the device before the first iteration.
    uploaded_bytes: u64,
    held_out: Option<WindowSet>,
    /// Environments on the host, instead of the game.
    host: Option<HostEnvs>,
}

/// The trainer of a policy for a game or on a dataset.
pub type GameTrainer<G> = Trainer<GameEngine<G>>;

/// Demonstrations that a run learns from instead of games.
#[derive(Clone, Debug)]
pub struct Demonstrations {
    /// Windows for training.
    pub train: WindowSet,
    /// Held-out windows, which select the best policy.
    pub validation: WindowSet,
}

impl<G: Rules> GameTrainer<G> {
    /// Creates a run of the network selected by `config.policy`.
    ///
    /// # Panics
    /// If `config.policy` names a user-defined network, which [`Trainer::with_model`] takes, or for a reason of that.
    pub fn new(game: G, config: &TrainConfig, device: &Device) -> Self {
        assert_valid(&game, config);
        Self::with_model(game, new_network(game, config, device), config, device)
    }

    /// The reason why a run could not use a fused engine; `None` if it could.
    ///
    /// # Panics
    /// If `config.policy` names a user-defined network.
    pub fn fallback_reason_for(game: G, config: &TrainConfig, device: &Device) -> Option<String> {
        fallback_reason(&new_network(game, config, device), config, device, &Team::alone(), None)
    }

    /// Creates a run of a model on `device` instead of the network in `config.policy`.
    /// [`Trainer::unsupported_reason`] tells whether the requested engine and precision are available, and whether the
    /// model can learn from what it does.
    ///
    /// # Panics
    /// If the game ([`env::validate`](crate::env::validate())) or the settings ([`TrainConfig::validate`]) are out of
    /// range, the model's numbers of features and actions are not the game's, `config.data` names a dataset
    /// ([`Trainer::with_team`] takes it), or the game cannot be played
    /// ([`Env::IS_PLAYABLE`](crate::env::Env::IS_PLAYABLE)). In a build without the feature `general`, also where there
    /// is a reason ([`Trainer::fallback_reason`]).
    pub fn with_model(
        game: G,
        model: impl Into<Network>,
        config: &TrainConfig,
        device: &Device,
    ) -> Self {
        Self::with_team(game, model, config, device, None, Team::alone())
            .expect("one rank is never too many")
    }

    /// Creates this rank's part of a run that the ranks of `team` share: all take the same optimizer steps and arrive
    /// at the same weights. It learns from the dataset `data` of `config.data`, or, if that is `None`, from games.
    /// Ranks of a process need a thread each: outside of Rayon's pools, or in a pool of its own. In one pool, a rank
    /// that waits for work could execute another rank and wait for itself.
    ///
    /// # Errors
    /// If there are more ranks than shards ([`TrainConfig::shard_counts`]).
    ///
    /// # Panics
    /// If `config.data` names a dataset and there are no `data`, or the other way round, or for a reason of
    /// [`Trainer::with_model`].
    pub fn with_team(
        game: G,
        model: impl Into<Network>,
        config: &TrainConfig,
        device: &Device,
        data: Option<Demonstrations>,
        team: Team,
    ) -> Result<Self, TeamError> {
        let (data, held_out) = data.map(|data| (data.train, data.validation)).unzip();
        let inputs = EngineInputs { game, model: model.into(), data, host: None };
        Self::from_inputs(inputs, held_out, config, device, &team)
    }

    /// Creates this rank's part of a run.
    fn from_inputs(
        inputs: EngineInputs<G>,
        held_out: Option<WindowSet>,
        config: &TrainConfig,
        device: &Device,
        team: &Team,
    ) -> Result<Self, TeamError> {
        inputs.check(config);
        let (game, host) = (inputs.game, inputs.host.clone());
        let transfers = TransferCount::start();
        let (policy_engine, part) = AnyEngine::new(inputs, config, device, team)?;
        Ok(Self::from_engine(GameEngine {
            game,
            device: device.clone(),
            part,
            policy_engine,
            env_steps: 0,
            uploaded_bytes: transfers.stop().uploaded_bytes,
            held_out,
            host,
        }))
    }

    /// Plays the next iteration's rollout without learning from it; the run is unchanged. Returns its seconds.
    pub fn rehearse(&mut self) -> f64 {
        let started = Instant::now();
        with_engine!(&mut self.engine.policy_engine, engine => engine.rehearse(self.iterations_done));
        started.elapsed().as_secs_f64()
    }

    /// Measures the seconds of a rollout, after another one that compiles the kernels; `None` if the requested engine
    /// or precision is not available.
    pub fn measure_rollout_seconds(&mut self) -> Option<f64> {
        if self.unsupported_reason().is_some() {
            return None;
        }
        self.rehearse();
        Some(self.rehearse())
    }

    /// Plays the first `episodes` episodes of evaluations during training, the same in each call. Since these selected
    /// the best policy, use [`Trainer::evaluate_fresh`] for a final score.
    ///
    /// # Errors
    /// If an environment on the host fails.
    ///
    /// # Panics
    /// If `episodes` is 0.
    pub fn evaluate_on_validation(
        &self,
        episodes: usize,
        selection: ActionSelection,
    ) -> Result<Evaluation, TrainError> {
        block_on(self.evaluate_on_validation_async(episodes, selection))
    }

    /// Asynchronous form of [`Trainer::evaluate_on_validation`], for threads that must not block.
    pub async fn evaluate_on_validation_async(
        &self,
        episodes: usize,
        selection: ActionSelection,
    ) -> Result<Evaluation, TrainError> {
        let keys = self.engine.validation_keys();
        Ok(Evaluation::from_results(&self.engine.play(0..episodes, keys, selection).await?))
    }

    /// Evaluates the policy on `episodes` episodes of levels that neither training nor its evaluations use. The levels
    /// follow from `seed`, as those of `grove eval --seed` do.
    ///
    /// # Errors
    /// If an environment on the host fails.
    ///
    /// # Panics
    /// If `episodes` is 0.
    pub fn evaluate_fresh(
        &self,
        episodes: usize,
        seed: u64,
        selection: ActionSelection,
    ) -> Result<Evaluation, TrainError> {
        let keys = EpisodeKeys::new(Stream::Evaluation, seed);
        Ok(Evaluation::from_results(&block_on(self.engine.play(0..episodes, keys, selection))?))
    }

    /// The current model.
    pub fn model(&self) -> Network {
        self.engine.policy_engine.model()
    }

    /// The reason why the run does not use a fused engine; `None` if it does.
    pub fn fallback_reason(&self) -> Option<String> {
        let GameEngine { part, device, host, .. } = &self.engine;
        fallback_reason(&self.model(), &part.config, device, &part.team, host.as_ref())
    }

    /// The reason why the requested engine or precision is not available, the device has no room for the policy or a
    /// rollout, or a user-defined model learns by other logits than it acts by, as a sentence; `None` if nothing is
    /// missing.
    pub fn unsupported_reason(&self) -> Option<String> {
        let GameEngine { part, device, policy_engine, .. } = &self.engine;
        let bytes = (self.model().num_params() * size_of::<f32>()) as u64;
        let size =
            device::check_buffer_fits(device, "the vector of the policy's parameters", bytes)
                .map_err(|reason| format!("{reason}: choose a smaller policy"))
                .and_then(|()| with_engine!(policy_engine, engine => engine.check_size()));
        if let Err(reason) = size {
            return Some(format!("{reason}, or use another device, such as the CPU"));
        }
        if !part.config.data.is_on()
            && let Err(reason) = policy_engine.check_model(self.engine.game.num_features())
        {
            return Some(reason);
        }
        let TrainConfig { engine, precision, .. } = &part.config;
        if *engine != EngineChoice::Fused && *precision == Precision::F32 {
            return None;
        }
        let fallback = self.fallback_reason()?;
        let (wanted, reason) = match engine {
            EngineChoice::Fused => ("engine `fused`".to_string(), fallback),
            _ => (
                format!("precision {precision}"),
                fallback_precision_reason(&self.model(), &part.config, device, &fallback)?,
            ),
        };
        Some(format!("the {wanted} is not available for this run: {reason}"))
    }

    /// The game.
    pub fn game(&self) -> G {
        self.engine.game
    }
}

impl<G: Rules> GameEngine<G> {
    /// Keys of the episodes of evaluations during training.
    fn validation_keys(&self) -> EpisodeKeys {
        EpisodeKeys::new(Stream::Validation, self.part.config.seed)
    }

    /// Plays some episodes of an evaluation.
    async fn play(
        &self,
        episodes: Range<usize>,
        keys: EpisodeKeys,
        selection: ActionSelection,
    ) -> Result<Vec<EpisodeResult>, HostEnvError> {
        let game = self.game;
        let (features, actions) = (game.num_features(), game.num_actions());
        let policy = NativePolicy::new_async(&self.policy_engine.model(), features, actions).await;
        match &self.host {
            Some(envs) => {
                play_host_episodes(&policy, envs, game.max_steps(), episodes, keys, selection)
            }
            None => Ok(play_episodes(&policy, game, episodes, keys, selection)),
        }
    }

    /// Evaluates the greedy policy on episodes that the ranks share.
    async fn evaluate_together(&self, episodes: usize) -> Result<Evaluation, TrainError> {
        let team = &self.part.team;
        let (rank, size) = (team.rank(), team.size());
        let own_episodes = rank * episodes / size..(rank + 1) * episodes / size;
        let results =
            self.play(own_episodes, self.validation_keys(), ActionSelection::Greedy).await?;
        let pair = |result: &EpisodeResult| [result.score, result.length.into()];
        let local: Vec<[f64; 2]> = results.iter().map(pair).collect();
        let pairs = gather_parts(&local, team)?.concat();
        let result = |&[score, length]: &[f64; 2]| EpisodeResult { score, length: length as u32 };
        Ok(Evaluation::from_results(&pairs.iter().map(result).collect::<Vec<_>>()))
    }
}

impl<G: Rules> Engine for GameEngine<G> {
    type Config = TrainConfig;
    type Error = TrainError;

    fn config(&self) -> &TrainConfig {
        &self.part.config
    }

    fn iterations(&self) -> u32 {
        self.part.config.iterations
    }

    fn env_steps(&self) -> u64 {
        self.env_steps
    }

    fn team(&self) -> &Team {
        &self.part.team
    }

    fn shards(&self) -> Shards {
        self.part.shards.clone()
    }

    fn device(&self) -> Option<&Device> {
        Some(&self.device)
    }

    fn describe(&self) -> String {
        with_engine!(&self.policy_engine, engine => engine.describe())
    }

    fn runs_in_pool(&self) -> bool {
        // Environments on the host stay on the caller's thread, which may block on their lock.
        let is_native = matches!(self.policy_engine, AnyEngine::Native(_)) && self.host.is_none();
        is_native && may_enter_pool(&self.part.team)
    }

    async fn train_iteration(
        &mut self,
        iteration: u32,
        next_iteration: Option<u32>,
    ) -> Result<IterationRecord, TrainError> {
        device::count_upload(std::mem::take(&mut self.uploaded_bytes));
        let (totals, phases) = with_engine!(&mut self.policy_engine, engine => {
            run_phases(engine.as_mut(), iteration, next_iteration).await
        })?;
        let GameTotals { games, waiting_seconds, zero_variance_fraction, update } = totals;
        let GameSums { scores, episodes, ended_steps, rewards, steps } = games;
        let steps = self.part.counted_steps(steps);
        self.env_steps += steps;
        let optimizer_steps = first_optimizer_step(&self.part.config, iteration + 1);
        let total_steps = total_optimizer_steps(&self.part.config);
        let mut record = IterationRecord {
            score: (episodes > 0.0).then(|| scores / episodes),
            episodes: episodes as u64,
            mean_length: (episodes > 0.0).then(|| ended_steps / episodes),
            mean_reward: rewards / steps as f64,
            zero_variance_fraction,
            learning_rate: learning_rate(
                &self.part.config.optimizer,
                optimizer_steps - 1,
                total_steps,
            ),
            seconds: IterationSeconds {
                waiting_for_data: waiting_seconds,
                phases,
                ..IterationSeconds::default()
            },
            ..IterationRecord::default()
        };
        match self.held_out {
            None => write_means(&mut record, update),
            Some(_) => write_means(&mut record, update.without_approx_kl()),
        }
        Ok(record)
    }

    async fn evaluate_on_validation(&self) -> Result<EvaluationRecord, TrainError> {
        // Evaluating whole sequences needs Burn's autodiff, which the page's modules leave out.
        #[cfg(not(feature = "general"))]
        let held_out = None::<HeldOutMeans>;
        #[cfg(feature = "general")]
        let held_out = self.compute_held_out_means().await?;
        if let Some(HeldOutMeans { accuracy: mean_score, .. }) =
            held_out.filter(|_| !G::IS_PLAYABLE)
        {
            return Ok(EvaluationRecord { mean_score, held_out, ..EvaluationRecord::default() });
        }
        let played = self.evaluate_together(self.part.config.checkpoint.eval_episodes).await?;
        Ok(EvaluationRecord { held_out, ..played.into() })
    }

    async fn params(&self) -> Cow<'_, [f32]> {
        Cow::Owned(device::read_async(self.policy_engine.model().flatten()).await)
    }
}

impl From<Evaluation> for EvaluationRecord {
    fn from(evaluation: Evaluation) -> Self {
        Self {
            episodes: evaluation.episodes,
            mean_score: Some(evaluation.mean_score),
            std_error: evaluation.std_error,
            min_score: Some(evaluation.min_score),
            max_score: Some(evaluation.max_score),
            mean_length: evaluation.mean_length,
            held_out: None,
            text: None,
        }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::env::Catch;
    use crate::settings::RolloutConfig;

    #[test]
    #[should_panic(expected = "the game `catch` cannot be trained: rollout.group_size")]
    fn settings_out_of_range_are_refused_by_name() {
        let rollout = RolloutConfig { group_size: 0, ..RolloutConfig::default() };
        let config = TrainConfig { rollout, ..TrainConfig::default() };
        GameTrainer::new(Catch::default(), &config, &Device::flex());
    }

    #[test]
    fn ranks_enter_no_pool_that_they_share() {
        let (game, device) = (Catch::default(), Device::flex());
        let config = TrainConfig::with_defaults_of(&game).unwrap();
        let runs_in_pool = |team: Team| {
            let model = new_network(game, &config, &device);
            let trainer = GameTrainer::with_team(game, model, &config, &device, None, team);
            trainer.unwrap().engine.runs_in_pool()
        };
        assert!(runs_in_pool(Team::alone()));
        for team in crate::parallel::thread_teams(2, crate::parallel::DEFAULT_TIMEOUT) {
            assert!(!runs_in_pool(team.clone()));
            let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
            assert!(pool.install(|| runs_in_pool(team)));
        }
    }
}
