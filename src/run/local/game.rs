//! A run of a game or a dataset.

use super::format::describe_update;
use super::{
    Algorithm, FinalEvaluation, HeldOutReport, Run, RunError, RunSizes, Scores, Stage, Subject,
    TrainerStatus,
};
use crate::checkpoint::Checkpoint;
use crate::device::has_kernels;
use crate::env::Rules;
use crate::metrics::IterationRecord;
use crate::model::{Actor, NativePolicy};
use crate::rng::Stream;
use crate::rollout::{ActionSelection, evaluate, measure_reference_scores};
use crate::trainer::text::CompletionRecord;
use crate::trainer::{GameTrainer, Validation};
use serde::Serialize;

/// Number of episodes of the final evaluation.
const FINAL_EPISODES: usize = 10_000;

/// A run of a policy for a game.
#[derive(Debug)]
pub struct GameRun<G: Rules> {
    trainer: GameTrainer<G>,
    leak_check_interval: u32,
    action_names: Vec<String>,
}

impl<G: Rules> GameRun<G> {
    /// Creates a run of this trainer.
    pub fn new(
        trainer: GameTrainer<G>,
        leak_check_interval: u32,
        action_names: Vec<String>,
    ) -> Self {
        Self { trainer, leak_check_interval, action_names }
    }

    /// Scores the policy on as many fresh episodes on the host as an evaluation has, but at most `max_episodes`.
    fn score_on_host(&self, max_episodes: usize) -> Result<Scores, RunError> {
        let episodes = self.trainer.config().checkpoint.eval_episodes.min(max_episodes);
        let score = |selection| {
            Ok::<_, RunError>(self.trainer.evaluate_fresh(episodes, 0, selection)?.into())
        };
        Ok(Scores {
            greedy: score(ActionSelection::Greedy)?,
            sampled: Some(score(ActionSelection::Sampling)?),
            seed: 0,
            reference_scores: Vec::new(),
        })
    }
}

/// Scores a policy on `episodes` fresh episodes, greedily and, on the same levels, with sampled actions.
pub fn score_policy<A: Actor, G: Rules>(policy: &A, game: G, episodes: usize, seed: u64) -> Scores {
    let scores =
        |selection| evaluate(policy, game, episodes, Stream::Evaluation, seed, selection).into();
    Scores {
        greedy: scores(ActionSelection::Greedy),
        sampled: Some(scores(ActionSelection::Sampling)),
        seed,
        reference_scores: measure_reference_scores(game, episodes, Stream::Evaluation, seed),
    }
}

impl<G: Rules + Serialize> Run for GameRun<G> {
    fn subject(&self) -> Subject {
        Subject::Env(G::NAME.to_string())
    }

    fn seed(&self) -> u64 {
        self.trainer.config().seed
    }

    fn trainer(&self) -> &dyn TrainerStatus {
        &self.trainer
    }

    fn stages(&self) -> Vec<Stage> {
        let config = self.trainer.config();
        let algorithm = if config.data.is_on() { Algorithm::Imitation } else { Algorithm::Grpo };
        vec![Stage { algorithm, first: 1, last: config.iterations }]
    }

    fn sizes(&self) -> RunSizes {
        let config = self.trainer.config();
        let (rollout, update, data) = (&config.rollout, &config.update, &config.data);
        let num_params = self.trainer.model().num_params();
        let items = self.trainer.shards().num_items();
        let batch = if data.is_on() {
            let windows = data.batch_size.min(items);
            format!("batches of {windows} windows of {} steps", data.window)
        } else {
            format!(
                "{} groups of {}, {} steps of which {} are learnt from",
                rollout.num_groups, rollout.group_size, rollout.num_steps, rollout.learn_steps
            )
        };
        let (kind, sizes) = (&config.policy.kind, config.policy.describe_sizes());
        RunSizes {
            num_params,
            policy_description: format!("{kind} of {sizes}, {num_params} parameters"),
            num_envs: rollout.num_envs(),
            env_steps: config
                .plays_all_steps()
                .then(|| config.steps_per_iteration(items) * u64::from(config.iterations)),
            rollout_description: batch,
            update_description: describe_update(update),
        }
    }

    fn leak_check_interval(&self) -> u32 {
        self.leak_check_interval
    }

    fn fallback_reason(&self) -> Option<String> {
        self.trainer.fallback_reason()
    }

    fn smaller_launches(&self) -> Option<String> {
        let config = self.trainer.config();
        let steps = config.update.gradient_accumulation_steps;
        let more_steps = steps.saturating_mul(4).min(config.minibatch_size());
        self.trainer.device().filter(|device| has_kernels(device))?;
        match self.fallback_reason() {
            None => Some(format!("--set launch_size={}", config.launch_size / 4.0)),
            Some(_) if more_steps == steps => None,
            Some(_) => Some(format!("--set update.gradient_accumulation_steps={more_steps}")),
        }
    }

    fn iterate(&mut self) -> Result<(IterationRecord, Vec<CompletionRecord>), RunError> {
        Ok((self.trainer.iterate()?, Vec::new()))
    }

    fn validate(&mut self) -> Result<Validation, RunError> {
        Ok(self.trainer.validate()?)
    }

    fn snapshot(&self) -> Result<Checkpoint, RunError> {
        Ok(self.trainer.snapshot()?)
    }

    fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), RunError> {
        Ok(self.trainer.restore(checkpoint)?)
    }

    /// Only the first rank evaluates.
    fn evaluate_fresh(&mut self, max_episodes: usize) -> Result<FinalEvaluation, RunError> {
        if !self.trainer.team().is_root() {
            return Ok(FinalEvaluation::default());
        }
        let game = self.trainer.game();
        let (features, actions) = (game.num_features(), game.num_actions());
        let policy = NativePolicy::new(&self.trainer.model(), features, actions);
        let scores = if self.trainer.is_on_host() {
            Some(self.score_on_host(max_episodes)?)
        } else {
            G::IS_PLAYABLE.then(|| score_policy(&policy, game, FINAL_EPISODES.min(max_episodes), 0))
        };
        let held_out = self.trainer.compute_confusion_matrix().map(|confusion| HeldOutReport {
            means: confusion.means(),
            confusion: confusion.counts,
            action_names: self.action_names.clone(),
        });
        Ok(FinalEvaluation { scores, held_out })
    }
}
