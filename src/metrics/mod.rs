//! Metrics: typed records of a run, and where they go.

mod growth;
mod jsonl;

pub use growth::Growth;
pub use jsonl::{JsonLines, MetricsError};

use serde::{Deserialize, Serialize};

/// What one iteration did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IterationRecord {
    /// Number of the iteration, from 1.
    pub iteration: u32,
    /// Steps of all games since the start of the run.
    pub env_steps: u64,
    /// Mean score of the episodes that ended in this rollout; `None` if none did.
    pub score: Option<f64>,
    /// Episodes that ended in this rollout.
    pub episodes: u64,
    /// Mean reward of a step.
    pub mean_reward: f64,
    /// Share of the groups whose members are credited alike: from these nothing is learnt.
    pub zero_variance_groups: f64,
    /// The loss, over all optimiser steps. A value near zero is normal: advantages have mean zero.
    pub loss: f64,
    /// Mean entropy of the policy, nats.
    pub entropy: f64,
    /// Estimate of KL(policy of the rollout || policy in training).
    pub approx_kl: f64,
    /// Share of the steps at which clipping took the gradient away.
    pub clip_fraction: f64,
    /// Estimate of KL(policy || reference policy); 0 without a reference.
    pub reference_kl: f64,
    /// Norm of the gradient before clipping, over all optimiser steps.
    pub grad_norm: f64,
    /// Learning rate of the last optimiser step.
    pub learning_rate: f64,
    /// Where the time went.
    pub seconds: Seconds,
    /// Steps of all games a second in this iteration, evaluation and saving apart.
    pub steps_per_second: f64,
    /// The device's memory.
    pub memory: Memory,
    /// Times that results were waited for and copied from the device in this iteration, evaluation
    /// and saving apart.
    pub read_backs: u64,
    /// Bytes copied from the device by those.
    #[serde(default)]
    pub downloaded_bytes: u64,
    /// Bytes put where they are learnt from in this iteration; in the first also those of a dataset that
    /// stays there.
    #[serde(default)]
    pub uploaded_bytes: u64,
    /// The share of the time that the device has worked lately, 0 to 1: a GPU by its driver's counter, the
    /// CPU's cores by what this process took of them. `None` where nobody tells.
    #[serde(default)]
    pub load: Option<f64>,
    /// What it cost that several members share the run; `None` where one has it alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<Reduction>,
    /// An evaluation with the greedy policy, where one was due.
    pub evaluation: Option<EvaluationRecord>,
}

/// What the members of a run told each other in an iteration, as the first of them saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reduction {
    /// How many they are.
    pub members: usize,
    /// Seconds in which it sent, waited for others and received.
    pub seconds: f64,
    /// The share of these in which it computed meanwhile.
    #[serde(default)]
    pub hidden: f64,
    /// Bytes of gradients that it sent.
    pub bytes: u64,
    /// Bytes of counts and statistics that it sent.
    pub other_bytes: u64,
    /// By how much the member who computed longest was above the mean, as a share of it.
    pub imbalance: f64,
}

/// Seconds that an iteration took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// All of it.
    pub total: f64,
    /// Waiting for data that a thread reads ahead.
    #[serde(default)]
    pub waiting_for_data: f64,
    /// Its phases; `None` where a device works them off without being waited for in between.
    pub phases: Option<Phases>,
}

/// Seconds of the phases of an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// Playing the games.
    pub rollout: f64,
    /// Advantages.
    pub advantage: f64,
    /// Updating the policy.
    pub update: f64,
}

/// Bytes of device memory; on the CPU, of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// In use (CPU: resident). `None` where the device does not tell.
    pub in_use: Option<u64>,
    /// Reserved, at least what is in use (CPU: the highest resident so far).
    pub reserved: Option<u64>,
    /// The highest in use so far, as it was at the end of an iteration (CPU: at any time).
    #[serde(default)]
    pub peak: Option<u64>,
}

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// Episodes played; 0 where there is no game to play.
    pub episodes: usize,
    /// Mean score; without a game, the share of the steps held out that are told right.
    pub mean_score: f64,
    /// Standard error of the mean.
    pub std_error: f64,
    /// How well the policy tells what was done in episodes that it has not learnt from; only of a run
    /// that learns from data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<HeldOut>,
}

/// How well a policy tells what somebody else has done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// The mean negative log-likelihood of an action, nats.
    pub loss: f64,
    /// The share of the steps at which the policy's most likely action is what was done.
    pub accuracy: f64,
}
