//! Settings of the update and the optimizer.

use crate::schema::{OutOfRange, ensure, names, settings};

settings! {
    /// Passes over the data of an iteration, and their minibatches.
    pub struct UpdateConfig {
        /// Passes over the data of an iteration.
        update_epochs: usize = 2, in integer(1..=65536), alias "num_iterations";
        /// Optimizer steps per pass; each takes an equal share of the games or prompts.
        num_minibatches: usize = 4, in integer(1..=1 << 20);
        /// Number of parts a minibatch is split into to save memory (gradient accumulation); the update is the same.
        /// Language models require 1.
        gradient_accumulation_steps: usize = 1, in integer(1..=1 << 30);
        /// Maximum number of shards of a batch, distributed over threads, devices and processes; 0
        /// (language models only) is 16, or 1 where all weights of a large model are trained.
        ///
        /// The gradients of the shards are added in a fixed binary tree, so that the result does not depend on
        /// the number of workers. The gradient of one shard of a language model takes as much memory as the trained
        /// weights.
        num_shards: usize = 16, in integer(0..=4096);
        /// Recompute the activations of decoders in the backward pass, to save memory.
        ///
        /// Only the inputs of layers are kept (Chen et al. 2016): a third more work, the same update. Language
        /// models also drop the packed copies of their matrices.
        gradient_checkpointing: bool = false;
        /// Largest norm of the gradient; longer ones are scaled down to it. 0 for no clipping.
        max_grad_norm: f64 = 1.0, in at_least(0.0);
        /// Mean `approx_kl` of a minibatch beyond which the update ends, before that minibatch's step; 0 for no limit.
        ///
        /// The recorded `approx_kl` is then that of this minibatch, above the limit; the other metrics are of the steps
        /// taken. The learning rate and the next iteration go on as if all steps had been taken. For language models
        /// the mean is over groups with a gradient. On a GPU each step waits for the divergence to be read back.
        target_kl: f64 = 0.0, in at_least(0.0);
    }
    check = UpdateConfig::check_settings;
}

impl UpdateConfig {
    /// Whether an update ends before the step of a minibatch with this mean divergence.
    pub fn ends_at(&self, approx_kl: f64) -> bool {
        self.target_kl > 0.0 && approx_kl > self.target_kl
    }

    fn check_settings(&self) -> Result<(), OutOfRange> {
        let steps = self.update_epochs as u64 * self.num_minibatches as u64;
        ensure(steps <= 1 << 20, "update_epochs * num_minibatches", steps, "at most 2^20")
    }
}

settings! {
    /// AdamW (Loshchilov & Hutter 2019), by PyTorch's names.
    pub struct OptimizerConfig {
        /// Peak learning rate; 0 leaves the weights as they are.
        learning_rate: f64 = 2e-3, in at_least(0.0);
        /// Learning-rate schedule; all but `constant` decay to 0.
        lr_scheduler_type: LrSchedule = LrSchedule::Linear;
        /// Share of the run over which the learning rate rises linearly to its peak; its first step is above 0.
        warmup_ratio: f64 = 0.0, in at_least(0.0).at_most(1.0);
        /// Decay of the running mean of gradients.
        adam_beta1: f64 = 0.9, in at_least(0.0).below(1.0);
        /// Decay of the running mean of squared gradients.
        adam_beta2: f64 = 0.999, in at_least(0.0).below(1.0);
        /// Added to the denominator, for numerical stability.
        adam_epsilon: f64 = 1e-8, in above(0.0);
        /// Decoupled weight decay.
        weight_decay: f64 = 0.01, in at_least(0.0);
        /// Decay the weights of norms and biases too. If false (default for language models), norms and biases get no
        /// weight decay, as in transformers' `Trainer`. Games require true.
        decay_norms_and_biases: bool = true;
        /// Precision in which the moments are kept, for language models on the CPU: `bf16` takes half of f32's memory,
        /// `8bit` a quarter. They are rounded at random, the same in every run.
        moments: MomentPrecision = MomentPrecision::F32;
    }
}

names! {
    /// Precision of the optimizer's moments.
    pub enum MomentPrecision {
        /// Single precision.
        F32 = "f32",
        /// The upper half of a single-precision number.
        Bf16 = "bf16",
        /// 8 bits, as a distance from the largest of a block of 128 numbers.
        EightBit = "8bit",
    }
}

names! {
    /// Learning-rate schedule after the warm-up.
    pub enum LrSchedule {
        /// No decay.
        Constant = "constant",
        /// Linear decay to 0 at the end of the run.
        Linear = "linear",
        /// Decay to 0 along a half cosine.
        Cosine = "cosine",
    }
}
