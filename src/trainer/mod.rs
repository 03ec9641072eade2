//! Group Relative Policy Optimisation, on one screen.

mod choose;
mod engine;
mod finite;
#[cfg(feature = "kernels")]
mod fused;
mod game;
#[cfg(feature = "general")]
mod general;
mod native;
mod part;
mod reduction;
mod snapshot;
mod stream;
pub mod text;
mod transfer;

pub use engine::{Engine, Iteration};
pub use finite::is_finite;
#[cfg(feature = "general")]
pub use game::held_out::Confusion;
pub use game::{
    Demonstrations, GameEngine, GameTrainer, HostSetupError, config_toml, load_policy,
    new_settings, policy_file, policy_params, saved_config, saved_game_name,
};
pub use snapshot::{Counters, Export, Persistent, SnapshotError, TextCounters};

use crate::device;
use crate::env::HostEnvError;
use crate::metrics::{EvaluationRecord, IterationRecord, Phases, Reduction, Seconds};
use crate::parallel::{Shards, Team, TeamError};
use burn::cubecl::future::block_on;
use burn::tensor::Device;
use engine::Grpo;
use tracing::{Instrument, info_span};
use web_time::Instant;

/// A training run in memory: an engine, the iterations done and the best evaluation so far.
///
/// [`Trainer::new`] trains a policy for a game, of the network that the settings ask for, and
/// [`Trainer::with_model`] any model; [`Trainer::for_task`](text::LanguageTrainer) trains a language model.
#[derive(Debug)]
pub struct Trainer<E> {
    engine: E,
    /// Iterations done.
    iteration: u32,
    /// Value and iteration of the best evaluation so far: the mean score, or, with held-out demonstrations, their
    /// negative loss.
    best: Option<(f64, u32)>,
}

/// The number that the game or the task gives, and not the policy.
const REWARD: &str = "reward";

/// One iteration of GRPO: every group plays, every action is compared with its group, the policy moves
/// towards the better ones. Returns its totals and the seconds of its phases.
async fn iterate<E: Grpo>(
    engine: &mut E,
    iteration: u32,
    next: Option<u32>,
) -> Result<(E::Totals, Option<Phases>), E::Error> {
    let started = Instant::now();
    let span = info_span!("rollout").entered();
    let trajectory = engine.rollout(iteration)?;
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
        "the {what} is not finite in iteration {iteration}, of which nothing is saved; {}",
        way_out(what)
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
    /// An environment on the host failed.
    #[error(transparent)]
    Env(#[from] HostEnvError),
}

/// Advice for a run with a number that is not finite.
fn way_out(what: &str) -> &'static str {
    match what {
        REWARD => "the game or the task must give finite rewards",
        _ => {
            "a lower optimizer.learning_rate (of SFT: fit.learning_rate), optimizer.weight_decay or \
             update.max_grad_norm may help"
        }
    }
}

impl<E: Engine> Trainer<E> {
    /// A run at its start.
    fn start(engine: E) -> Self {
        Self { engine, iteration: 0, best: None }
    }

    /// One iteration of GRPO. After those of the settings ([`Engine::iterations`]) the learning rate is 0, unless its
    /// schedule is constant.
    ///
    /// # Errors
    /// If numbers run out of range, an environment or a task fails, or another rank of the run is gone or silent. The
    /// trainer cannot be used any more then.
    ///
    /// # Panics
    /// If an environment, a task or the device does.
    pub fn iterate(&mut self) -> Result<IterationRecord, E::Error> {
        in_pool(self.engine.runs_in_pool(), || block_on(self.iterate_async()))
    }

    /// The device that it works on; `None` for a language model on the CPU.
    pub fn device(&self) -> Option<&Device> {
        self.engine.device()
    }

    /// The asynchronous form of [`Trainer::iterate`], for a browser, where a thread must not block.
    pub async fn iterate_async(&mut self) -> Result<IterationRecord, E::Error> {
        device::take_transfers();
        self.engine.team().take_traffic();
        let started = Instant::now();
        let next = self.iteration + 1;
        let next = (next < self.engine.iterations()).then_some(next);
        let Iteration { mut record, steps } = self.engine.iterate(self.iteration, next).await?;
        self.iteration += 1;
        let total = started.elapsed().as_secs_f64();
        record.iteration = self.iteration;
        record.reduction = self.reduction(total).await?;
        check_finite(&record)?;
        record.seconds = Seconds { total, ..record.seconds };
        record.steps_per_second = steps as f64 / total.max(1e-9);
        record.memory = device::memory(self.engine.device());
        record.load = device::load(self.engine.device());
        let transfers = device::take_transfers();
        record.read_backs = transfers.read_backs;
        record.downloaded_bytes = transfers.downloaded;
        record.uploaded_bytes = transfers.uploaded;
        Ok(record)
    }

    /// Communication cost of an iteration that took `seconds`; `None` for one rank. Every 32 iterations ranks compare their
    /// parameters.
    async fn reduction(&self, seconds: f64) -> Result<Option<Reduction>, TeamError> {
        let team = self.engine.team();
        let reduction = reduction::reduction(team, seconds)?;
        if reduction.is_some() && reduction::is_compared(self.iteration, self.engine.iterations()) {
            reduction::compare(team, &self.engine.params().await)?;
        }
        Ok(reduction)
    }

    /// Evaluates the greedy policy, and returns whether it is the best so far: by its mean score, or, with held-out
    /// demonstrations, by their loss. All ranks must call this.
    ///
    /// # Errors
    /// If an environment or a task fails, or another rank of the run is gone or silent.
    ///
    /// # Panics
    /// If a policy for games is to play no episodes: `checkpoint.eval_episodes` is 0.
    pub fn measure(&mut self) -> Result<(EvaluationRecord, bool), E::Error> {
        block_on(self.measure_async())
    }

    /// The asynchronous form of [`Trainer::measure`], for a browser.
    pub async fn measure_async(&mut self) -> Result<(EvaluationRecord, bool), E::Error> {
        let evaluation = self.engine.evaluate_greedy().await?;
        let value = evaluation.value().filter(|value| is_best(*value, self.best));
        self.best = value.map(|value| (value, self.iteration)).or(self.best);
        Ok((evaluation, value.is_some()))
    }

    /// A description of the engine, for people.
    pub fn describe(&self) -> String {
        self.engine.describe()
    }

    /// The shards of a batch, and which of them are this rank's.
    pub fn shards(&self) -> Shards {
        self.engine.shards()
    }

    /// The ranks that share the run.
    pub fn team(&self) -> &Team {
        self.engine.team()
    }

    /// The settings.
    pub fn config(&self) -> &E::Config {
        self.engine.config()
    }

    /// Iterations done.
    pub fn iteration(&self) -> u32 {
        self.iteration
    }

    /// Environment steps so far; of a language model, tokens.
    pub fn env_steps(&self) -> u64 {
        self.engine.env_steps()
    }

    /// Value and iteration of the best evaluation so far.
    pub fn best(&self) -> Option<(f64, u32)> {
        self.best
    }
}

/// Whether the work of a rank may enter the thread pool. Ranks that wait for each other in one pool could take all of its
/// threads; a rank that is inside a pool has its own.
fn may_enter_pool(team: &Team) -> bool {
    team.size() == 1 || rayon::current_thread_index().is_some()
}

/// Does work on a thread of the pool if it `enters` that, else on this one.
fn in_pool<T: Send>(enters: bool, work: impl FnOnce() -> T + Send) -> T {
    if enters { rayon::scope(|_| work()) } else { work() }
}

/// Whether an evaluation is the best so far. One out of range never is: none after it would be better.
fn is_best(value: f64, so_far: Option<(f64, u32)>) -> bool {
    value.is_finite() && so_far.is_none_or(|(best, _)| value > best)
}

/// Checks that the numbers of an iteration are in range.
fn check_finite(record: &IterationRecord) -> Result<(), TrainError> {
    let sampling = record.text.as_ref().map_or(0.0, |text| text.sampling_entropy);
    // The other numbers follow from the reward.
    for (what, value) in [
        (REWARD, record.mean_reward),
        ("entropy of the sampled tokens", sampling),
        ("loss", record.loss),
        ("gradient", record.grad_norm),
        ("policy's divergence", record.approx_kl),
    ] {
        if !value.is_finite() {
            return Err(TrainError::NotFinite { what, iteration: record.iteration });
        }
    }
    Ok(())
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
        assert!(check_finite(&IterationRecord::default()).is_ok());
    }

    #[test]
    fn an_evaluation_out_of_range_is_never_the_best() {
        assert!(
            is_best(-1.0, None) && is_best(2.0, Some((1.0, 3))) && !is_best(1.0, Some((1.0, 3)))
        );
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!is_best(value, None) && !is_best(value, Some((1.0, 3))));
        }
    }
}
