//! Metrics: typed records of a run, and the file that they are written to.

mod jsonl;
mod memory_leak;
mod text;

#[cfg(on_disk)]
pub(crate) use jsonl::parse_iteration;
pub use jsonl::{JsonLines, RecordsError};
pub use memory_leak::MemoryLeakDetector;
pub use text::{LanguageEvaluation, LanguageRecord};

use serde::{Deserialize, Serialize};

/// The metrics of one iteration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IterationRecord {
    /// The iteration, from 1.
    pub iteration: u32,
    /// Environment steps of all episodes since the start of the run; a step of a text is a token.
    pub env_steps: u64,
    /// Mean score of the episodes that ended in this rollout; `None` if none did. The score of a completion is
    /// the sum of its weighted reward parts.
    pub score: Option<f64>,
    /// Number of episodes that ended in this rollout; an episode of texts is a completion.
    pub episodes: u64,
    /// Mean number of steps of these episodes, from the first step of each; `None` if none ended, and for texts, which
    /// have [`LanguageRecord::completion_length`].
    pub mean_length: Option<f64>,
    /// Mean reward per step.
    pub mean_reward: f64,
    /// Fraction of groups without any difference in return. Their advantages are 0, so they
    /// contribute no gradient.
    pub zero_variance_fraction: f64,
    /// Mean loss over all optimizer steps, with the entropy bonus and the KL penalty. Values near zero are normal:
    /// advantages have mean zero.
    pub loss: f64,
    /// Mean entropy of the policy, nats.
    pub entropy: f64,
    /// Estimate of KL(rollout policy || current policy), nats; where `update.target_kl` ended the update, the
    /// estimate that ended it.
    pub approx_kl: f64,
    /// Fraction of steps whose gradient was clipped.
    pub clip_fraction: f64,
    /// Estimate of KL(policy || reference policy), nats; 0 without a reference.
    pub reference_kl: f64,
    /// Mean gradient norm before clipping, over all optimizer steps.
    pub grad_norm: f64,
    /// Learning rate of the last optimizer step, as if `update.target_kl` had not ended the update.
    pub learning_rate: f64,
    /// Duration of the iteration and its phases.
    pub seconds: IterationSeconds,
    /// Environment steps per second, excluding evaluation and saving.
    pub steps_per_second: f64,
    /// Memory of the device.
    pub memory: Memory,
    /// Number of blocking read-backs from the device, excluding evaluation and saving; of rank 0.
    pub read_backs: u64,
    /// Bytes copied from the device by these read-backs.
    #[serde(default)]
    pub downloaded_bytes: u64,
    /// Bytes uploaded to where the learner of rank 0 reads them. The first iteration includes a dataset that
    /// stays resident.
    #[serde(default)]
    pub uploaded_bytes: u64,
    /// Recent utilization of the device, 0 to 1: the driver's counter for a GPU, this process's share
    /// of all cores for the CPU. `None` if the platform does not report it.
    pub utilization: Option<f64>,
    /// Communication between the ranks of the run; `None` for a single rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication: Option<Communication>,
    /// Metrics that only runs of language models have.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub text: Option<LanguageRecord>,
    /// Evaluation of the greedy policy, if one was due.
    pub evaluation: Option<EvaluationRecord>,
}

/// Communication between the ranks of a run during one iteration, as measured by rank 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Communication {
    /// Number of ranks.
    pub num_ranks: usize,
    /// Seconds spent sending, waiting and receiving.
    pub seconds: f64,
    /// Fraction of these seconds that overlapped with computation.
    #[serde(default)]
    pub hidden_fraction: f64,
    /// Bytes of gradients sent.
    pub bytes: u64,
    /// Bytes of counts and statistics sent.
    pub other_bytes: u64,
    /// Computing time of the slowest rank relative to the mean of all ranks, minus 1.
    pub imbalance: f64,
}

/// Duration of an iteration, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IterationSeconds {
    /// The whole iteration.
    pub total: f64,
    /// Time spent waiting for data that a thread prefetches.
    #[serde(default)]
    pub waiting_for_data: f64,
    /// The phases; `None` if a device runs them without synchronization in between.
    pub phases: Option<PhaseSeconds>,
}

/// Duration of the phases of an iteration, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseSeconds {
    /// Playing the games, or generating completions; verification that runs meanwhile takes no time of its own.
    pub rollout: f64,
    /// Computing advantages.
    pub advantage: f64,
    /// Updating the policy.
    pub update: f64,
    /// Waiting for the task's verifier after generation; `None` for games.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<f64>,
}

/// Device memory, bytes; on the CPU, memory of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Memory in use (CPU: resident set size). `None` if the platform does not report it.
    pub in_use: Option<u64>,
    /// Memory reserved by the allocator (CPU: peak resident set size).
    pub reserved: Option<u64>,
    /// Peak memory in use, sampled at the end of each iteration (CPU: at any time).
    pub peak: Option<u64>,
}

/// The result of an evaluation. Its scores are `None` where there was nothing to score.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationRecord {
    /// Episodes played, each of its own level or prompt; 0 if nothing was played.
    pub episodes: usize,
    /// Mean score; without a game, the accuracy on the held-out steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_score: Option<f64>,
    /// Standard error of the mean over levels or prompts; `None` for a single one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub std_error: Option<f64>,
    /// Lowest score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_score: Option<f64>,
    /// Highest score.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_score: Option<f64>,
    /// Mean number of steps of an episode.
    #[serde(default)]
    pub mean_length: f64,
    /// Metrics on held-out episodes, for runs that learn from data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_out: Option<HeldOutMeans>,
    /// Metrics that only evaluations of language models have.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub text: Option<LanguageEvaluation>,
}

impl EvaluationRecord {
    /// Mean score of what was played; `None` if nothing was, or no completion could be judged.
    pub fn score(&self) -> Option<f64> {
        // Older records have a score of 0 in both cases.
        let is_scored = self
            .text
            .as_ref()
            .is_none_or(|text| text.num_unjudged < text.completions_per_prompt * self.episodes);
        self.mean_score.filter(|_| self.episodes > 0 && is_scored)
    }

    /// The value by which policies are compared: the negative loss on held-out demonstrations, or the mean score;
    /// `None` if no completion could be judged.
    pub fn value(&self) -> Option<f64> {
        self.held_out.map(|held_out| -held_out.loss).or_else(|| self.score())
    }

    /// A warning if completions were generated, but none could be judged.
    pub fn warning(&self) -> Option<String> {
        let text = self.text.as_ref().filter(|_| self.episodes > 0 && self.score().is_none())?;
        Some(match text.num_unjudged {
            1 => {
                "no score: the only completion of held-out prompts could not be scored".to_string()
            }
            count => {
                format!(
                    "no score: none of the {count} completions of held-out prompts could be scored"
                )
            }
        })
    }
}

/// Formats a number of things: `1 seed`, `2 seeds`.
pub fn pluralize(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

/// Metrics of a policy on demonstrations that were held out of training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutMeans {
    /// Mean negative log-likelihood of the demonstrated actions (of texts, tokens), nats.
    pub loss: f64,
    /// Fraction of steps at which the most likely action is the demonstrated one; `None` for texts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
}
