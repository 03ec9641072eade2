//! The defaults: what trains each game well with no flag at all.

use super::*;
use crate::env::{self, Env};

/// What imitation needs that reinforcement does not: TOML, to be laid over a game's defaults.
pub const IMITATION: &str = include_str!("imitation.toml");

impl TrainConfig {
    /// The defaults for Grove's own game of this name; the general ones for another.
    pub fn for_game(name: &str) -> Self {
        Self::with(name, env::defaults(name)).expect("a test reads the defaults of every game")
    }

    /// The defaults for a game, which brings its own ([`Env::defaults`]).
    ///
    /// # Errors
    /// If those are no TOML, or such as there are not.
    pub fn of<G: Env>(game: &G) -> Result<Self, ConfigError> {
        Self::with(G::NAME, game.defaults())
    }

    /// The general defaults with those of a game laid over them.
    fn with(game: &str, defaults: &[&str]) -> Result<Self, ConfigError> {
        let mut table = overlay::to_table(&Self::general());
        for piece in defaults {
            let changes = overlay::parse(&format!("the defaults of {game}"), piece)?;
            overlay::lay_over(&mut table, changes)?;
        }
        overlay::from_table(table)
    }

    fn general() -> Self {
        Self {
            seed: 1,
            iterations: 300,
            engine: Engine::Auto,
            precision: Precision::F32,
            policy: PolicyConfig::mlp(&[64, 64], Activation::Relu),
            rollout: RolloutConfig {
                num_groups: 64,
                group_size: 16,
                num_steps: 32,
                learn_steps: 16,
                start: Start::Branch,
                auto_reset: true,
            },
            advantage: AdvantageConfig {
                estimator: Estimator::RewardToGo,
                discount: 0.97,
                scale_rewards: Scale::Batch,
            },
            loss: LossConfig { entropy_coef: 0.02, ..LossConfig::default() },
            update: UpdateConfig {
                update_epochs: 2,
                num_minibatches: 4,
                gradient_accumulation_steps: 1,
                num_shards: 16,
                gradient_checkpointing: false,
                max_grad_norm: 1.0,
            },
            optimizer: OptimizerConfig {
                learning_rate: 2e-3,
                lr_scheduler_type: LrSchedule::Linear,
                warmup_ratio: 0.0,
                adam_beta1: 0.9,
                adam_beta2: 0.999,
                adam_epsilon: 1e-8,
                weight_decay: 0.01,
            },
            checkpoint: CheckpointConfig {
                save_every: 50,
                keep: 3,
                eval_every: 25,
                eval_episodes: 1000,
            },
            data: DataConfig::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_game_has_defaults_that_hold() {
        for name in env::NAMES {
            let config = TrainConfig::for_game(name);
            config.validate().unwrap();
            assert!(config != TrainConfig::general() || env::defaults(name).is_empty(), "{name}");
        }
        assert_eq!(TrainConfig::for_game("somebody else's"), TrainConfig::general());
    }
}
