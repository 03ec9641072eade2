//! The general learner: any model on any device through Burn's autodiff.

use super::context::LearnerContext;
use super::counted_steps::{CountedSteps, LearntSteps};
use super::experience::TensorExperience;
use super::means::{APPROX_KL, NUM_SUMS};
use super::optimizer::clip_grad_norm;
use super::order::{Minibatch, split_evenly};
use super::schedule::{entropy_coef, first_optimizer_step};
use super::train_state::{TrainState, read_gradient_and_sums, sum_over_ranks};
use super::update::{UpdateSteps, take_steps};
use crate::data::Trajectory;
use crate::device::{self, upload_indices};
use crate::model::Network;
use crate::objective::{Loss, LossSteps, TensorStepDenominators, loss};
use crate::parallel::{PartialSum, PartialSumLen, TeamError};
use crate::settings::{Precision, TrainConfig};
use burn::tensor::Tensor;

/// A policy in training: parameters, optimizer and, if configured, a reference policy.
#[derive(Clone, Debug)]
pub struct AutodiffLearner {
    /// Parameters, optimizer and reference policy.
    pub state: TrainState,
    /// Settings, and the part of the run that this rank learns from.
    pub context: LearnerContext,
}

/// Minimum number of steps of a minibatch per shard. Passes have a high fixed cost.
pub const MIN_AUTODIFF_SHARD_STEPS: usize = 2048;

/// Target magnitude of a step's logit gradient in half precision. It leaves room below the largest
/// f16 (65,504) for sums over many steps, and stays far above the smallest.
const TARGET_GRADIENT: f32 = 1.0 / 16.0;

impl AutodiffLearner {
    /// Trains `policy` on its device. If `kl_coef` is not 0, the initial policy becomes the
    /// reference policy.
    pub fn new(policy: impl Into<Network>, config: &TrainConfig) -> Self {
        let policy = policy.into();
        let policy = match config.precision {
            Precision::F32 => policy,
            precision => policy.with_precision(precision).unwrap_or(policy),
        };
        Self {
            state: TrainState::new(policy, config),
            context: LearnerContext::single_rank(config),
        }
    }

    /// Performs one update: `update_epochs` passes over the trajectory of `iteration`, in
    /// `num_minibatches` optimizer steps each, or fewer if `update.target_kl` ends it early.
    ///
    /// `advantages` and `mask` are `[num_steps, num_envs]` and, like the trajectory, cover this
    /// rank's shards.
    ///
    /// Returns the means of [`Loss::SUM_NAMES`] over all counted steps of all epochs, then the mean loss and the mean
    /// gradient norm before clipping over optimizer steps, `[6]`, still on the device.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    pub fn update(
        &mut self,
        trajectory: &Trajectory,
        advantages: &Tensor<2>,
        mask: &Tensor<2>,
        iteration: u32,
    ) -> Result<Tensor<1>, TeamError> {
        let device = trajectory.obs.device();
        let mut experience = TensorExperience {
            obs: trajectory.obs.clone(),
            starts: trajectory.starts(),
            memory: trajectory.memory.clone(),
            network: self.state.network.clone(),
            actions: trajectory.actions.clone(),
            old_logprobs: trajectory.logprobs.clone(),
            reference_logprobs: None,
            advantages: advantages.clone(),
            mask: mask.clone(),
            legal: trajectory.legal.clone(),
            smooths_labels: self.context.config.loss.label_smoothing > 0.0,
        };
        let (minibatches, counted) = self.count_steps(mask, iteration)?;
        let reference = self.state.reference.as_ref();
        experience.reference_logprobs =
            reference.map(|policy| self.compute_logprobs(&experience, policy, &minibatches));
        let config = self.context.config.clone();
        let mut update = AutodiffUpdate {
            learner: self,
            experience,
            counted,
            entropy_coef: entropy_coef(&config, iteration),
            first_optimizer_step: first_optimizer_step(&config, iteration),
            update_sums: Tensor::zeros([NUM_SUMS + 1], &device),
        };
        let taken = take_steps(&mut update, &minibatches, &config.update)?;
        Ok(taken.write_ending_kl_first(update.means(taken.count, &config)))
    }

    /// Log-probabilities of all actions under a policy, `[num_steps, num_envs]`. On the CPU they are computed in
    /// [`Batches::portions`](super::order::Batches::portions), so that rounding does not depend on the number of local
    /// shards.
    fn compute_logprobs(
        &self,
        experience: &TensorExperience,
        policy: &Network,
        minibatches: &[Minibatch],
    ) -> Tensor<2> {
        let ([_, num_envs, _], device) = (experience.obs.dims(), experience.obs.device());
        if device::has_kernels(&device) {
            return experience.evaluate(policy).logprobs;
        }
        let portions = self.context.batches.portions(minibatches, num_envs);
        let logprobs = portions.iter().map(|games| {
            experience.select_games(upload_indices(games, &device)).evaluate(policy).logprobs
        });
        Tensor::cat(logprobs.collect(), 1)
    }

    /// Whether an update needs no data in host memory: a single rank on a device with kernels.
    fn stays_on_device(&self) -> bool {
        self.context.team.size() == 1 && device::has_kernels(&self.state.params.device())
    }

    /// The minibatches of an iteration, and their counted steps.
    fn count_steps(
        &mut self,
        mask: &Tensor<2>,
        iteration: u32,
    ) -> Result<(Vec<Minibatch>, CountedStepTensors), TeamError> {
        let ([steps, num_envs], device) = (mask.dims(), mask.device());
        let minibatches = self.context.batches.minibatches(iteration, num_envs);
        if self.stays_on_device() {
            let total = mask.clone().sum();
            let count = |minibatch: &Minibatch| match minibatch.games() {
                games if games.len() == num_envs => total.clone(),
                games => mask.clone().select(1, upload_indices(games, &device)).sum(),
            };
            let per_minibatch = minibatches.iter().map(count).collect();
            return Ok((minibatches, CountedStepTensors { per_minibatch, total }));
        }
        let lengths = device::read(mask.clone().sum_dim(0).reshape([num_envs]));
        let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
        let counted = CountedSteps::count(&self.context, &minibatches, &lengths, steps, iteration)?;
        let tensor = |count: f64| Tensor::from_floats([count as f32], &device);
        let per_minibatch = counted.per_minibatch.iter().map(|count| tensor(*count)).collect();
        Ok((minibatches, CountedStepTensors { per_minibatch, total: tensor(counted.total) }))
    }

    /// Gradient of a minibatch, and its sums: [`Loss::SUM_NAMES`] and the loss.
    fn compute_gradient(
        &self,
        experience: &TensorExperience,
        minibatch: &Minibatch,
        loss: &(impl Fn(LossSteps) -> Loss + Sync),
    ) -> Result<(Tensor<1>, Tensor<1>), TeamError> {
        let LearnerContext { config, batches, team } = &self.context;
        let accumulation = config.update.gradient_accumulation_steps;
        if self.stays_on_device() {
            return Ok(self.accumulate_gradient(experience, minibatch.games(), accumulation, loss));
        }
        let [num_params] = self.state.params.dims();
        let gradient_and_sums = |games: &[i32], count| {
            let (gradient, sums) = self.accumulate_gradient(experience, games, count, loss);
            Tensor::cat(vec![gradient, sums], 0)
        };
        if team.has_devices() {
            let local = gradient_and_sums(minibatch.games(), accumulation);
            let sum = sum_over_ranks(team, local, num_params)?;
            let part = |start, len| sum.clone().narrow(0, start, len);
            return Ok((part(0, num_params), part(num_params, NUM_SUMS)));
        }
        let shards = batches.shards(experience.obs.dims()[1]);
        let num_parts = accumulation.div_ceil(shards.count());
        let leaf = |shard: usize| {
            let tensor = gradient_and_sums(minibatch.shard(shard), num_parts);
            let (vector, numbers) = read_gradient_and_sums(tensor, num_params);
            PartialSum { shards: shard..shard + 1, vector, numbers }
        };
        let len = PartialSumLen { vector: num_params, numbers: NUM_SUMS };
        let local = shards.compute_partial_sums(&leaf, &drop);
        let sum = team.all_reduce_shards(&shards, local, len)?;
        let sums = sum.numbers.iter().map(|x| *x as f32).collect();
        let upload = |values| device::upload(values, &self.state.params.device());
        Ok((upload(sum.vector), upload(sums)))
    }

    /// Gradient and sums of some games of a minibatch, accumulated over `count` parts.
    fn accumulate_gradient(
        &self,
        experience: &TensorExperience,
        games: &[i32],
        count: usize,
        loss: &impl Fn(LossSteps) -> Loss,
    ) -> (Tensor<1>, Tensor<1>) {
        let ([_, num_envs, _], device) = (experience.obs.dims(), experience.obs.device());
        let mut gradient = self.state.params.zeros_like();
        let mut sums = Tensor::<1>::zeros([NUM_SUMS], &device);
        for part in split_evenly(games, count).filter(|part| !part.is_empty()) {
            // On the CPU games are always gathered in minibatch order, which determines the order
            // of sums.
            let is_all = self.stays_on_device() && part.len() == num_envs;
            let selected =
                (!is_all).then(|| experience.select_games(upload_indices(part, &device)));
            let part = selected.as_ref().unwrap_or(experience);
            let (loss, part_gradient) =
                part.compute_gradient(&self.state, self.loss_scale(part), loss);
            gradient = gradient + part_gradient;
            let part_sums = [loss.sums, loss.value].map(Tensor::without_autodiff);
            sums = sums + Tensor::cat(part_sums.to_vec(), 0);
        }
        (gradient, sums)
    }

    /// Loss scale for half precision (Micikevicius et al. 2018): about the number of steps that the
    /// loss averages over, so that the gradient of a single step does not underflow. A power of
    /// two, which does not affect rounding.
    fn loss_scale(&self, part: &TensorExperience) -> f32 {
        let [num_steps, games] = part.mask.dims();
        match self.context.config.precision {
            Precision::F16 => (num_steps * games).next_power_of_two() as f32 * TARGET_GRADIENT,
            _ => 1.0,
        }
    }
}

/// The [`CountedSteps`] of an update in tensors, `[1]` each.
struct CountedStepTensors {
    /// Counted steps of each minibatch.
    per_minibatch: Vec<Tensor<1>>,
    /// Counted steps of all games.
    total: Tensor<1>,
}

/// An update by autodiff.
struct AutodiffUpdate<'a> {
    learner: &'a mut AutodiffLearner,
    experience: TensorExperience,
    counted: CountedStepTensors,
    entropy_coef: f64,
    /// Index of the first optimizer step in the run.
    first_optimizer_step: u64,
    /// Sums over the steps taken: [`Loss::SUM_NAMES`], the loss, the gradient norm: `[NUM_SUMS + 1]`.
    update_sums: Tensor<1>,
}

impl UpdateSteps for AutodiffUpdate<'_> {
    type Minibatch = Minibatch;
    /// The gradient, and its sums: `[num_params]`, `[NUM_SUMS]`.
    type Gradient = (Tensor<1>, Tensor<1>);

    fn compute_gradient(
        &mut self,
        index: usize,
        minibatch: &Minibatch,
    ) -> Result<Option<Self::Gradient>, TeamError> {
        let config = &self.learner.context.config;
        let denominators = TensorStepDenominators {
            sequences: minibatch.global_size,
            steps: self.counted.per_minibatch[index].clone(),
            rollout_steps_per_minibatch: self.counted.total.clone()
                / config.update.num_minibatches as f32,
        };
        let loss_of =
            |steps: LossSteps| loss(&config.loss, self.entropy_coef, &steps, &denominators);
        self.learner.compute_gradient(&self.experience, minibatch, &loss_of).map(Some)
    }

    /// Divides on the host, so that ranks whose devices round differently decide alike.
    fn approx_kl(&self, index: usize, (_, sums): &Self::Gradient) -> f64 {
        let steps = self.counted.per_minibatch[index].clone();
        let read = device::read(Tensor::cat(vec![sums.clone().narrow(0, APPROX_KL, 1), steps], 0));
        f64::from(read[0]) / f64::from(read[1]).max(1.0)
    }

    fn step(&mut self, index: usize, (gradient, sums): Self::Gradient) -> Result<(), TeamError> {
        let AutodiffLearner { state, context } = &mut *self.learner;
        let (gradient, norm) = clip_grad_norm(gradient, context.config.update.max_grad_norm);
        self.update_sums = self.update_sums.clone() + Tensor::cat(vec![sums, norm], 0);
        state.step(gradient, self.first_optimizer_step + index as u64, context)
    }
}

impl AutodiffUpdate<'_> {
    /// Means over the [`LearntSteps`] of the first `taken` minibatches; of loss and norm, the means over minibatches.
    fn means(self, taken: usize, config: &TrainConfig) -> Tensor<1> {
        let CountedStepTensors { per_minibatch, total } = self.counted;
        let num_learnt = match LearntSteps::new(config, taken, per_minibatch.len()) {
            LearntSteps::Minibatches(taken) => {
                per_minibatch.into_iter().take(taken).fold(total.zeros_like(), Tensor::add)
            }
            LearntSteps::Epochs(epochs) => total * epochs as f32,
        };
        let part = |start, len| self.update_sums.clone().narrow(0, start, len);
        let step_means = part(0, NUM_SUMS - 1) / num_learnt.clamp_min(1.0);
        Tensor::cat(vec![step_means, part(NUM_SUMS - 1, 2) / taken.max(1) as f32], 0)
    }
}
