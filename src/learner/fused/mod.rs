//! The fused learner: updates of a multi-layer perceptron on CubeCL devices in custom kernels.
//!
//! Computes the same update as [`super::AutodiffLearner`] with three launches per optimizer step: partial
//! gradients (preceded by sequence ratios for losses that use them), their sum, and AdamW. Nothing is
//! read back. No sum depends on scheduling, so runs are bit-reproducible.

mod gradient;
mod launches;
mod layers;
mod optimizer_kernels;
mod sharing;
mod tiles;
mod update;
mod update_kernels;

use super::context::LearnerContext;
use super::train_state::TrainState;
use super::update::take_steps;
use crate::data::{Recording, RecordingAdvantages};
use crate::model::kernels::MlpShape;
use crate::model::{FlatMlp, Mlp, Observer};
use crate::objective::LossForm;
use crate::parallel::TeamError;
use crate::settings::TrainConfig;
use burn::tensor::Tensor;
use tiles::Tiling;
use update::FusedUpdate;

/// A multi-layer perceptron in training on a CubeCL device.
#[derive(Clone, Debug)]
pub struct FusedLearner {
    /// Parameters, optimizer and reference policy.
    pub state: TrainState,
    /// Settings, and the part of the run that this rank learns from.
    pub context: LearnerContext,
    mlp: MlpShape,
    loss: LossForm,
    tiling: Tiling,
}

impl FusedLearner {
    /// Whether the kernels support a policy: one or two hidden layers of up to 256 units.
    pub fn supports(policy: &Mlp) -> bool {
        MlpShape::from_mlp(policy).is_some_and(|shape| Tiling::new(&shape).is_some())
    }

    /// Trains `policy` on its device. If `kl_coef` is not 0, the initial policy becomes the
    /// reference policy.
    ///
    /// # Panics
    /// If the policy is not supported ([`FusedLearner::supports`]), or the device lacks the configured
    /// precision ([`crate::device::has_precision`]).
    pub fn new(policy: Mlp, config: &TrainConfig) -> Self {
        let mlp = MlpShape::from_mlp(&policy).expect("one or two hidden layers");
        let tiling = Tiling::new(&mlp).expect("a policy of a supported width");
        let loss = LossForm::new(&config.loss);
        let state = TrainState::new(policy.into(), config);
        Self { state, context: LearnerContext::single_rank(config), mlp, loss, tiling }
    }

    /// The current policy in the form used by rollouts.
    pub fn policy(&self) -> FlatMlp {
        FlatMlp { shape: self.mlp, params: self.state.params.clone() }
    }

    /// Performs one update: `update_epochs` passes over the recording of `iteration`, in
    /// `num_minibatches` optimizer steps each, or fewer if `update.target_kl` ends it early, with games in the same
    /// order as [`super::AutodiffLearner::update`]. Returns the same means, `[6]`.
    ///
    /// `gradient_accumulation_steps` has no effect, because no activations are stored.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    ///
    /// # Panics
    /// If the advantages do not match the recording.
    pub fn update<O: Observer>(
        &mut self,
        recording: &Recording,
        advantages: &RecordingAdvantages,
        observer: O,
        iteration: u32,
    ) -> Result<Tensor<1>, TeamError> {
        let minibatches = self.order_games(recording, iteration);
        let ranges = minibatches.ranges.clone();
        let mut update =
            FusedUpdate::new(self, recording, advantages, observer, minibatches, iteration)?;
        let taken = take_steps(&mut update, &ranges, &self.context.config.update)?;
        let (means, params, optimizer) = update.finish(&taken);
        self.state.params = params;
        self.state.optimizer = optimizer;
        Ok(means)
    }
}
