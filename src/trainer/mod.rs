//! The training loop of Group Relative Policy Optimization (GRPO).

mod choose;
mod communication;
mod engine;
mod finite;
#[cfg(feature = "kernels")]
mod fused;
mod game;
#[cfg(feature = "general")]
mod general;
mod native;
mod prefetch;
mod rank_part;
mod snapshot;
mod source;
pub mod text;
mod transfer;

pub use engine::Engine;
pub use finite::is_finite;
#[cfg(feature = "general")]
pub use game::held_out::ConfusionMatrix;
pub use game::{
    BatchSizes, Demonstrations, GameEngine, GameTrainer, HostSetupError, config_to_toml,
    layer_settings, load_policy, load_weights, new_settings, policy_bytes, read_config,
    read_game_name, read_policy_file, read_policy_params,
};
pub(crate) use snapshot::replace_settings;
pub use snapshot::{Counters, LanguageCounters, Persistent, SnapshotError};

use crate::device::{self, TransferCount};
use crate::env::{HostEnvError, MAX_STEP_REWARD};
use crate::metrics::{EvaluationRecord, IterationRecord, IterationSeconds, PhaseSeconds};
use crate::parallel::{Shards, Team, TeamError};
use burn::cubecl::future::block_on;
use burn::tensor::Device;
use engine::IterationPhases;
use tracing::{Instrument, info_span};
use web_time::Instant;

/// A training run in memory: an engine, its number of iterations and its best evaluation.
///
/// [`Trainer::new`] trains the network selected by the settings on a game, [`Trainer::with_model`] any model;
/// [`Trainer::for_task`](text::LanguageTrainer) trains a language model. Nothing is written to disk: [`crate::run`]
/// does that.
#[derive(Debug)]
pub struct Trainer<E> {
    engine: E,
    /// Number of iterations done.
    iterations_done: u32,
    best: Option<BestEvaluation>,
}

/// The best evaluation of a run so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BestEvaluation {
    /// Mean score, or, with held-out demonstrations, their negative loss.
    pub value: f64,
    /// Number of iterations done when it was evaluated.
    pub iterations_done: u32,
}

/// An evaluation of the greedy policy that may select the best one.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// Result of the evaluation.
    pub evaluation: EvaluationRecord,
    /// Whether it is the best so far.
    pub is_best: bool,
}

/// Name of the metric that comes from the game or the task rather than the policy.
const REWARD: &str = "reward";

/// Name of the score in messages.
const SCORE: &str = "score";

/// Trains one iteration of GRPO: every group plays, every action is compared with the other actions of its group, and
/// the policy moves towards the better ones. Returns the iteration's totals, and the seconds of its phases if they can
/// be timed.
async fn run_phases<E: IterationPhases>(
    engine: &mut E,
    iteration: u32,
    next_iteration: Option<u32>,
) -> Result<(E::Totals, Option<PhaseSeconds>), E::Error> {
    let started = Instant::now();
    let span = info_span!("rollout").entered();
    let trajectory = engine.roll_out(iteration)?;
    let is_timed = engine.finish_phase();
    let rollout_end = started.elapsed().as_secs_f64();
    span.exit();

    let span = info_span!("advantage").entered();
    let advantages = engine.compute_advantages(&trajectory)?;
    engine.finish_phase();
    let advantage_end = started.elapsed().as_secs_f64();
    span.exit();

    let span = info_span!("update").entered();
    let stats = engine.update(&trajectory, &advantages, iteration)?;
    engine.finish_phase();
    let update_end = started.elapsed().as_secs_f64();
    span.exit();

    let totals = engine.read_totals(trajectory, advantages, stats, next_iteration);
    let totals = totals.instrument(info_span!("read_back")).await?;
    let phases = PhaseSeconds {
        rollout: rollout_end,
        advantage: advantage_end - rollout_end,
        update: update_end - advantage_end,
        verify: None,
    };
    Ok((totals, is_timed.then_some(phases)))
}

/// Errors that end training.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A metric or the policy is not finite.
    #[error(
        "the {quantity} is not finite in iteration {iteration}, so this iteration is not saved; {}",
        non_finite_advice(quantity)
    )]
    NotFinite {
        quantity: &'static str,
        /// Iteration, counted from 1.
        iteration: u32,
    },
    /// Rewards are so large that their squares overflow, so that nothing would be learnt from them.
    #[error(
        "the mean reward is {reward:e} in iteration {iteration}, beyond 1e15 in size, so this iteration is not saved; \
         scale the rewards of the game down"
    )]
    HugeReward { reward: f64, iteration: u32 },
    /// Another rank fails, does not respond, or has other settings or weights.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// An environment on the host failed.
    #[error(transparent)]
    Env(#[from] HostEnvError),
}

/// Advice about a quantity that is not finite.
fn non_finite_advice(quantity: &str) -> &'static str {
    match quantity {
        REWARD => "the game or the task must give finite rewards",
        SCORE => "the game must give finite scores",
        _ => {
            "a lower optimizer.learning_rate (of SFT before GRPO: fit.learning_rate), optimizer.weight_decay or \
             update.max_grad_norm may help"
        }
    }
}

impl<E: Engine> Trainer<E> {
    /// Creates a run at iteration 0.
    fn from_engine(engine: E) -> Self {
        Self { engine, iterations_done: 0, best: None }
    }

    /// Trains one iteration of GRPO and returns its metrics. After the number of iterations in the settings
    /// ([`Engine::iterations`]) the learning rate is 0, unless its schedule is constant.
    ///
    /// # Errors
    /// If a metric is not finite, an environment or a task fails, or another rank fails or does not respond. The
    /// trainer must not be used afterwards.
    ///
    /// # Panics
    /// If an environment, a task or the device panics.
    pub fn iterate(&mut self) -> Result<IterationRecord, E::Error> {
        run_in_pool_if(self.engine.runs_in_pool(), || block_on(self.iterate_async()))
    }

    /// The device; `None` for a language model on the CPU.
    pub fn device(&self) -> Option<&Device> {
        self.engine.device()
    }

    /// Asynchronous form of [`Trainer::iterate`], for threads that must not block, as in a browser. While an
    /// iteration is in progress, run no other trainer on this thread, and do not move it to another: transfers are
    /// counted per thread.
    pub async fn iterate_async(&mut self) -> Result<IterationRecord, E::Error> {
        let transfers = TransferCount::start();
        self.engine.team().take_traffic();
        let started = Instant::now();
        let next_iteration = self.iterations_done + 1;
        let next_iteration = (next_iteration < self.engine.iterations()).then_some(next_iteration);
        let earlier_steps = self.engine.env_steps();
        let mut record = self.engine.train_iteration(self.iterations_done, next_iteration).await?;
        self.iterations_done += 1;
        let total = started.elapsed().as_secs_f64();
        record.iteration = self.iterations_done;
        record.communication =
            communication::measure(&self.engine, self.iterations_done, total).await?;
        check_finite(&record)?;
        record.seconds = IterationSeconds { total, ..record.seconds };
        record.env_steps = self.engine.env_steps();
        record.steps_per_second = (record.env_steps - earlier_steps) as f64 / total.max(1e-9);
        record.memory = device::measure_memory(self.engine.device());
        record.utilization = device::measure_utilization(self.engine.device());
        let transfers = transfers.stop();
        record.read_backs = transfers.read_backs;
        record.downloaded_bytes = transfers.downloaded_bytes;
        record.uploaded_bytes = transfers.uploaded_bytes;
        Ok(record)
    }

    /// Evaluates the greedy policy on the episodes, prompts or demonstrations that select the best one: by mean score,
    /// or, with held-out demonstrations, by their loss. All ranks must call this.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank fails or does not respond.
    ///
    /// # Panics
    /// If a policy for games is evaluated on no episodes (`checkpoint.eval_episodes` is 0).
    pub fn validate(&mut self) -> Result<Validation, E::Error> {
        block_on(self.validate_async())
    }

    /// Asynchronous form of [`Trainer::validate`], for threads that must not block.
    pub async fn validate_async(&mut self) -> Result<Validation, E::Error> {
        let evaluation = self.engine.evaluate_on_validation().await?;
        let value = evaluation.value().filter(|value| is_best(*value, self.best));
        self.best = value
            .map(|value| BestEvaluation { value, iterations_done: self.iterations_done })
            .or(self.best);
        Ok(Validation { evaluation, is_best: value.is_some() })
    }

    /// Human-readable description of the engine.
    pub fn describe_engine(&self) -> String {
        self.engine.describe()
    }

    /// Shards of a batch, and this rank's range of them.
    pub fn shards(&self) -> Shards {
        self.engine.shards()
    }

    /// Ranks that share the run.
    pub fn team(&self) -> &Team {
        self.engine.team()
    }

    /// Settings of the run.
    pub fn config(&self) -> &E::Config {
        self.engine.config()
    }

    /// Number of iterations done.
    pub fn iterations_done(&self) -> u32 {
        self.iterations_done
    }

    /// Environment steps so far; tokens for a language model.
    pub fn env_steps(&self) -> u64 {
        self.engine.env_steps()
    }

    /// The best evaluation so far.
    pub fn best(&self) -> Option<BestEvaluation> {
        self.best
    }
}

/// Whether a rank may run its work in the thread pool. Ranks that share a pool and wait for each other could occupy all
/// of its threads; a rank that already runs on a pool thread has its own pool.
fn may_enter_pool(team: &Team) -> bool {
    team.size() == 1 || rayon::current_thread_index().is_some()
}

/// Runs `work` on a thread of the pool if `enters`, else on this thread.
fn run_in_pool_if<T: Send>(enters: bool, work: impl FnOnce() -> T + Send) -> T {
    if enters { rayon::scope(|_| work()) } else { work() }
}

/// Whether an evaluation is the best so far. A value that is not finite never is, because nothing would beat it.
fn is_best(value: f64, so_far: Option<BestEvaluation>) -> bool {
    value.is_finite() && so_far.is_none_or(|best| value > best.value)
}

/// Checks that the metrics of an iteration are finite.
fn check_finite(record: &IterationRecord) -> Result<(), TrainError> {
    let sampling_entropy = record.text.as_ref().map_or(0.0, |text| text.sampling_entropy);
    // In the order of causes: all others follow from the reward.
    for (quantity, value) in [
        (REWARD, record.mean_reward),
        (SCORE, record.score.unwrap_or(0.0)),
        ("entropy of the sampled tokens", sampling_entropy),
        ("loss", record.loss),
        ("gradient", record.grad_norm),
        ("policy's divergence", record.approx_kl),
    ] {
        if !value.is_finite() {
            return Err(TrainError::NotFinite { quantity, iteration: record.iteration });
        }
    }
    match record.mean_reward {
        reward if reward.abs() > f64::from(MAX_STEP_REWARD) => {
            Err(TrainError::HugeReward { reward, iteration: record.iteration })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reward_out_of_range_is_not_blamed_on_the_learning_rate() {
        let nan = f64::NAN;
        let record = IterationRecord { mean_reward: nan, loss: nan, ..IterationRecord::default() };
        let said = check_finite(&record).unwrap_err().to_string();
        assert!(said.starts_with("the reward is not finite"), "{said}");
        assert!(said.ends_with("must give finite rewards"), "{said}");
        let said = check_finite(&IterationRecord { mean_reward: 0.0, ..record }).unwrap_err();
        assert!(said.to_string().contains("optimizer.learning_rate"), "{said}");
        let record = IterationRecord { score: Some(nan), ..IterationRecord::default() };
        let said = check_finite(&record).unwrap_err().to_string();
        assert!(said.ends_with("must give finite scores"), "{said}");
        let record = IterationRecord { mean_reward: -1e30, ..IterationRecord::default() };
        let said = check_finite(&record).unwrap_err().to_string();
        assert!(said.contains("is -1e30 in iteration 0"), "{said}");
        assert!(check_finite(&IterationRecord::default()).is_ok());
    }

    #[test]
    fn an_evaluation_out_of_range_is_never_the_best() {
        let best = Some(BestEvaluation { value: 1.0, iterations_done: 3 });
        assert!(is_best(-1.0, None) && is_best(2.0, best) && !is_best(1.0, best));
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!is_best(value, None) && !is_best(value, best));
        }
    }
}
