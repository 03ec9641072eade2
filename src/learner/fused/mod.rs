//! The fused learner: updates of a multi-layer perceptron on CubeCL devices in custom kernels.
//!
//! Computes the same update as [`super::Learner`] with three launches per optimizer step: partial
//! gradients (preceded by game ratios for losses that use them), their sum, and AdamW. Nothing is
//! read back. No sum depends on scheduling, so runs are bit-reproducible.

mod gradient;
mod loss_kernels;
mod neuron;
mod optimizer_kernels;
mod sharing;
mod tiles;
mod update;

use super::UpdateStats;
use super::optimizer::factors;
use super::order::Batches;
use super::schedule::{first_update, learning_rate, total_updates};
use super::weights::Weights;
use crate::data::summary::STEPS;
use crate::data::{Recording, RecordingAdvantages};
use crate::device::buffers::{argument, cube_tensor, element, grid, uninit};
use crate::math::adamw::{Factors, FactorsLaunch};
use crate::model::kernels::MlpShape;
use crate::model::{FlatMlp, Mlp, Observer};
use crate::objective::Form;
use crate::parallel::{Shards, Team, TeamError};
use crate::settings::{TrainConfig, UpdateConfig};
use burn::backend::{Cube, DType};
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use loss_kernels::COUNTS;
use optimizer_kernels::*;
use tiles::{SUMS, Tiling};
use update::Update;

/// A multi-layer perceptron in training on a CubeCL device.
#[derive(Clone, Debug)]
pub struct FusedLearner {
    weights: Weights,
    config: TrainConfig,
    batches: Batches,
    team: Team,
    mlp: MlpShape,
    loss: Form,
    tiling: Tiling,
}

impl FusedLearner {
    /// Whether the kernels support a policy: one or two hidden layers of up to 256 units.
    pub fn takes(policy: &Mlp) -> bool {
        MlpShape::of(policy).is_some_and(|shape| Tiling::new(&shape, size_of::<f32>()).is_some())
    }

    /// Trains `policy` on its device. If `kl_coef` is not 0, the initial policy becomes the
    /// reference policy.
    ///
    /// # Panics
    /// If the policy is not supported ([`FusedLearner::takes`]), or the device lacks the configured
    /// precision ([`crate::device::has_precision`]).
    pub fn new(policy: Mlp, config: &TrainConfig) -> Self {
        assert!(Self::takes(&policy), "the fused learner does not take such a wide policy");
        let mlp = MlpShape::of(&policy).expect("one or two hidden layers");
        let tiling = Tiling::new(&mlp, element(config.precision).size());
        let loss = Form::of(&config.loss);
        let weights = Weights::new(policy.into(), config);
        let tiling = tiling.expect("f32 takes the most room");
        let (config, batches) = (config.clone(), Batches::new(config));
        Self { weights, config, batches, team: Team::alone(), mlp, loss, tiling }
    }

    /// Sets the shards of games that this rank of `team` learns from.
    pub fn sharing(self, shards: Shards, team: Team) -> Self {
        let batches = Batches::of_shards(&self.config, shards);
        Self { batches, team, ..self }
    }

    /// Sets whether the data passed to an update are exactly the batches of that iteration, in
    /// order.
    pub fn set_in_order(&mut self, in_order: bool) {
        self.batches.set_in_order(in_order);
    }

    /// Parameters, optimizer and reference policy.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Mutable access to parameters, optimizer and reference policy.
    pub fn weights_mut(&mut self) -> &mut Weights {
        &mut self.weights
    }

    /// The current policy in the form used by rollouts.
    pub fn policy(&self) -> FlatMlp {
        FlatMlp { shape: self.mlp, params: self.weights.params.clone() }
    }

    /// Performs one update: `update_epochs` passes over the recording of `iteration`, in
    /// `num_minibatches` optimizer steps each, with games in the same order as
    /// [`super::Learner::update`].
    ///
    /// `gradient_accumulation_steps` has no effect, because no activations are stored.
    ///
    /// # Panics
    /// If the advantages do not match the recording.
    pub fn update<O: Observer>(
        &mut self,
        recording: &Recording,
        advantages: &RecordingAdvantages,
        observer: O,
        iteration: u32,
    ) -> Result<UpdateStats, TeamError> {
        let update = Update::new(self, recording, advantages, observer, iteration)?;
        let like = &update.summary;
        let device = advantages.summary.device();
        let figures = cube_tensor(Tensor::<1>::zeros([UpdateStats::LEN], &device));
        let state = vec![
            self.weights.params.clone(),
            self.weights.optimizer.first_moment.clone(),
            self.weights.optimizer.second_moment.clone(),
        ];
        let mut before = cube_tensor(Tensor::cat(state, 0));
        let num_params = self.mlp.num_params();
        let mut after = uninit(like, &[3 * num_params], DType::F32);
        let mut steps = self.weights.optimizer.steps;
        let first = first_update(&self.config, iteration);
        for number in 0..self.config.update.update_epochs * self.config.update.num_minibatches {
            let gradient = self.shared_gradient(update.gradient(&before, number))?;
            steps += 1;
            let rate = self.learning_rate(first + number as u64);
            let by = factors(&self.config.optimizer, rate, steps);
            self.step(&gradient, &before, &after, &figures, &by);
            std::mem::swap(&mut before, &mut after);
            if self.team.rounds_differently() {
                before = self.first_params(before)?;
            }
        }
        let figures = Tensor::<1>::from_primitive::<Cube>(figures);
        let means = self.means(figures, update.summary.clone());
        drop(update);
        let state = Tensor::<1>::from_primitive::<Cube>(before);
        let part = |i: usize| state.clone().slice(i * num_params..(i + 1) * num_params);
        self.weights.params = part(0);
        self.weights.optimizer.first_moment = part(1);
        self.weights.optimizer.second_moment = part(2);
        self.weights.optimizer.steps = steps;
        Ok(UpdateStats { means })
    }

    /// Means of an update from its `figures`: sums over counted steps, then those of loss and gradient norm over optimizer
    /// steps. Every epoch covers all games of a rollout, whereas datasets advance by batches.
    fn means(&self, figures: Tensor<1>, summary: CubeTensor) -> Tensor<1> {
        let UpdateConfig { update_epochs, num_minibatches, .. } = self.config.update;
        let summary = Tensor::<1>::from_primitive::<Cube>(summary);
        let updates = update_epochs * num_minibatches;
        let learnt = match self.config.data.is_on() {
            true => summary.narrow(0, COUNTS, updates).sum(),
            false => summary.narrow(0, STEPS, 1) * update_epochs as f32,
        };
        let of_steps = figures.clone().narrow(0, 0, SUMS - 1) / learnt;
        Tensor::cat(vec![of_steps, figures.narrow(0, SUMS - 1, 2) / updates as f32], 0)
    }

    /// The learning rate of optimizer step `update` of the run.
    fn learning_rate(&self, update: u64) -> f64 {
        learning_rate(&self.config.optimizer, update, total_updates(&self.config))
    }

    /// Performs an AdamW step from `before` to `after`, `[3, num_params]`.
    fn step(
        &self,
        gradient: &CubeTensor,
        before: &CubeTensor,
        after: &CubeTensor,
        figures: &CubeTensor,
        by: &Factors,
    ) {
        let update = &self.config.update;
        let num_params = self.mlp.num_params();
        let by = FactorsLaunch::new(
            by.keep1,
            by.add1,
            by.keep2,
            by.add2,
            by.correction,
            by.epsilon,
            by.decay,
            by.rate,
        );
        // SAFETY: accesses stay below `num_params` and the number of sums.
        unsafe {
            adamw_kernel::launch_unchecked(
                &before.client,
                grid(before, num_params.div_ceil(ADAMW_UNITS)),
                CubeDim::new_1d(ADAMW_UNITS as u32),
                argument(gradient),
                MovingParamsLaunch::new(argument(before), argument(after)),
                argument(figures),
                by,
                update.max_grad_norm as f32,
                num_params,
                update.max_grad_norm > 0.0,
            );
        }
    }
}
