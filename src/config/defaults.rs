//! The defaults: what trains each game well with no flag at all.

use super::*;

impl TrainConfig {
    /// The defaults for the game of this name; a general setting for an unknown one.
    pub fn for_game(name: &str) -> Self {
        match name {
            "fruit" => Self::fruit(),
            "catch" => Self::catch(),
            "cartpole" => Self::cartpole(),
            _ => Self::general(),
        }
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
            loss: LossConfig {
                loss_type: LossType::Dapo,
                clip_eps_low: 0.2,
                clip_eps_high: 0.2,
                dual_clip: 0.0,
                kl_coef: 0.0,
                kl_estimator: KlEstimator::K3,
                entropy_coef: 0.02,
                entropy_coef_final: 0.0,
            },
            update: UpdateConfig {
                update_epochs: 2,
                num_minibatches: 4,
                gradient_accumulation_steps: 1,
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
        }
    }

    fn fruit() -> Self {
        let mut config = Self::general();
        config.iterations = 100;
        config.rollout.num_groups = 512;
        config.rollout.group_size = 8;
        config.advantage.discount = 0.98;
        config.loss.entropy_coef = 0.2;
        config.optimizer.learning_rate = 4e-3;
        config.optimizer.lr_scheduler_type = LrSchedule::Cosine;
        config.update.num_minibatches = 16;
        config.checkpoint.eval_every = 10;
        config.checkpoint.eval_episodes = 5000;
        config
    }

    fn catch() -> Self {
        let mut config = Self::general();
        config.iterations = 60;
        config
    }

    fn cartpole() -> Self {
        let mut config = Self::general();
        config.iterations = 60;
        config.rollout.num_groups = 32;
        config.rollout.num_steps = 128;
        config.rollout.learn_steps = 64;
        config.advantage.discount = 0.99;
        config.loss.entropy_coef = 0.0;
        config.update.num_minibatches = 8;
        config
    }
}
