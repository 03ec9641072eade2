//! The fused learner: a perceptron's update on a CubeCL device, in kernels of our own.
//!
//! What it computes is what [`super::Learner`] does, in four launches an optimiser step: (for `gspo`
//! the ratios,) partial gradients, their sum, AdamW. Nothing is read back, and no sum depends on the
//! order in which units get to it: two runs give the same bytes.

use super::UpdateStats;
use super::gradient_kernel::{SUMS, Spread, gradient_kernel};
use super::loss_kernels::*;
use super::optimizer_kernels::*;
use super::order::epoch_order;
use super::schedule::{entropy_coef, learning_rate, total_updates};
use super::weights::Weights;
use crate::config::{KlEstimator, LossType, TrainConfig};
use crate::draws::Stream;
use crate::policy::kernels::{MlpShape, argument, cube_ints, cube_tensor, room};
use crate::policy::{Mlp, flatten};
use crate::trajectory::Trajectory;
use burn::backend::{Cube, DType};
use burn::cubecl;
use burn::cubecl::prelude::*;
use burn::tensor::{Int, Tensor, TensorData};
use burn_cubecl::tensor::CubeTensor;

/// What the kernels of an update are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shapes {
    /// The policy.
    pub mlp: MlpShape,
    /// The loss.
    pub loss: LossShape,
}

impl Shapes {
    /// The estimator of the divergence from the reference policy, where there is one.
    pub fn estimator(&self) -> KlEstimator {
        self.loss.kl.unwrap_or(KlEstimator::K1)
    }
}

/// A perceptron in training on a CubeCL device.
#[derive(Clone, Debug)]
pub struct FusedLearner {
    weights: Weights<Mlp>,
    config: TrainConfig,
    shuffle_key: u32,
    shapes: Shapes,
}

/// The buffers of an update that all its kernels read.
struct Buffers {
    obs: CubeTensor,
    samples: CubeTensor,
    order: CubeTensor,
    facts: CubeTensor,
    sequences: CubeTensor,
}

/// Cubes of `dim` units for `units` units, one each.
fn cubes(buffer: &CubeTensor, units: usize, dim: CubeDim) -> CubeCount {
    cubecl::calculate_cube_count_elemwise(&buffer.client, units, dim)
}

impl FusedLearner {
    /// Whether a policy has one or two hidden layers of a width that the kernels take (256).
    pub fn takes(policy: &Mlp) -> bool {
        MlpShape::of(policy).is_some_and(|shape| Spread::new(&shape, 1).is_some())
    }

    /// Trains `policy` where it lies. The reference policy, if `kl_coef` asks for one, is the policy
    /// as it is now.
    ///
    /// # Panics
    /// If it does not take the policy ([`FusedLearner::takes`]).
    pub fn new(policy: Mlp, config: &TrainConfig) -> Self {
        assert!(Self::takes(&policy), "the fused learner does not take such a wide policy");
        let mlp = MlpShape::of(&policy).expect("one or two hidden layers");
        let loss = LossShape {
            loss_type: config.loss.loss_type,
            dual_clip: config.loss.dual_clip > 0.0,
            kl: (config.loss.kl_coef > 0.0).then_some(config.loss.kl_estimator),
        };
        let weights = Weights::new(policy, config);
        let shuffle_key = Stream::Shuffle.key(config.seed);
        Self { weights, config: config.clone(), shuffle_key, shapes: Shapes { mlp, loss } }
    }

    /// Parameters, optimiser and reference policy.
    pub fn weights(&self) -> &Weights<Mlp> {
        &self.weights
    }

    /// The same, to be changed.
    pub fn weights_mut(&mut self) -> &mut Weights<Mlp> {
        &mut self.weights
    }

    /// `update_epochs` passes over the trajectory of `iteration` in `num_minibatches` steps each,
    /// with the games in the order of [`super::Learner::update`].
    ///
    /// `advantages` and `mask` are `[num_steps, num_envs]`, as the trajectory's own steps. A
    /// minibatch is worked off at once, whatever `gradient_accumulation_steps` says: there are no
    /// activations to save memory on.
    pub fn update(
        &mut self,
        trajectory: &Trajectory,
        advantages: &Tensor<2>,
        mask: &Tensor<2>,
        iteration: u32,
    ) -> UpdateStats {
        let [num_steps, num_envs, num_features] = trajectory.dims();
        assert_eq!(advantages.dims(), [num_steps, num_envs], "advantages: [num_steps, num_envs]");
        assert_eq!(mask.dims(), [num_steps, num_envs], "mask: [num_steps, num_envs]");
        assert_eq!(num_features, self.shapes.mlp.features, "the policy's features");
        let (epochs, num_minibatches) =
            (self.config.update.update_epochs, self.config.update.num_minibatches);
        let games = num_envs / num_minibatches;
        let buffers = self.prepare(trajectory, advantages, mask, iteration);
        let loss = &self.config.loss;
        let entropy = entropy_coef(&self.config, iteration);
        let device = trajectory.obs.device();
        let means = Tensor::<1>::zeros([UpdateStats::LEN], &device);
        let means = cube_tensor(means);
        let state = vec![
            self.weights.params.clone(),
            self.weights.optimizer.first_moment.clone(),
            self.weights.optimizer.second_moment.clone(),
        ];
        let mut before = cube_tensor(Tensor::cat(state, 0));
        let num_params = self.shapes.mlp.num_params();
        let mut after = room(&before, &[3 * num_params], DType::F32);
        for number in 0..epochs * num_minibatches {
            let batch = || {
                BatchLaunch::new(
                    number * games,
                    number,
                    games,
                    num_steps,
                    num_envs,
                    num_minibatches,
                    1 + epochs * num_minibatches,
                )
            };
            let coefficients = || {
                CoefficientsLaunch::new(
                    (1.0 - loss.clip_eps_low) as f32,
                    (1.0 + loss.clip_eps_high) as f32,
                    loss.dual_clip as f32,
                    entropy as f32,
                    loss.kl_coef as f32,
                )
            };
            if loss.loss_type == LossType::Gspo {
                self.sequences(&buffers, &before, games, batch(), coefficients());
            }
            let gradient =
                self.gradient(&buffers, &before, games * num_steps, batch(), coefficients());
            self.weights.optimizer.steps += 1;
            self.step(&gradient, &before, &after, &buffers.facts, &means);
            std::mem::swap(&mut before, &mut after);
        }
        let state = Tensor::<1>::from_primitive::<Cube>(before);
        let part = |i: usize| state.clone().slice(i * num_params..(i + 1) * num_params);
        self.weights.params = part(0);
        self.weights.optimizer.first_moment = part(1);
        self.weights.optimizer.second_moment = part(2);
        UpdateStats { means: Tensor::from_primitive::<Cube>(means) }
    }

    /// Packs the samples, uploads the order of the games for all epochs, and counts the steps.
    fn prepare(
        &self,
        trajectory: &Trajectory,
        advantages: &Tensor<2>,
        mask: &Tensor<2>,
        iteration: u32,
    ) -> Buffers {
        let [num_steps, num_envs, _] = trajectory.dims();
        let update = &self.config.update;
        let games = num_envs / update.num_minibatches;
        let minibatches = update.update_epochs * update.num_minibatches;
        let order: Vec<i32> = (0..update.update_epochs)
            .flat_map(|epoch| {
                let mut order = epoch_order(self.shuffle_key, iteration, epoch, num_envs);
                order.truncate(games * update.num_minibatches);
                order
            })
            .collect();
        let device = trajectory.obs.device();
        let order = Tensor::<1, Int>::from_data(TensorData::from(order.as_slice()), &device);
        let obs = cube_tensor(trajectory.obs.clone());
        let samples = room(&obs, &[SAMPLE, num_steps, num_envs], DType::F32);
        let lengths = 1 + minibatches;
        let facts = room(&obs, &[lengths + num_envs], DType::F32);
        let sequences = room(&obs, &[2, games], DType::F32);
        let order = cube_ints(order);
        let reference =
            self.weights.reference.as_ref().map(|reference| cube_tensor(flatten(reference)));
        let (client, steps) = (&obs.client, num_steps * num_envs);
        let dim = CubeDim::new_1d(64);
        // SAFETY: the kernels stay below the number of steps, games and minibatches in every buffer;
        // without a reference, the first kernel does not read what stands in for it.
        unsafe {
            pack_kernel::launch_unchecked(
                client,
                cubes(&obs, steps, dim),
                dim,
                argument(&cube_ints(trajectory.actions.clone())),
                argument(&cube_tensor(trajectory.logprobs.clone())),
                argument(&cube_tensor(advantages.clone())),
                argument(&cube_tensor(mask.clone())),
                argument(&obs),
                argument(reference.as_ref().unwrap_or(&facts)),
                argument(&samples),
                steps,
                reference.is_some(),
                self.shapes.mlp,
            );
            length_kernel::launch_unchecked(
                client,
                cubes(&obs, num_envs, dim),
                dim,
                argument(&samples),
                argument(&facts),
                num_steps,
                num_envs,
                lengths,
            );
            count_kernel::launch_unchecked(
                client,
                CubeCount::Static(1 + minibatches as u32, 1, 1),
                CubeDim::new_1d(COUNT_UNITS as u32),
                argument(&order),
                argument(&facts),
                games,
                num_envs,
                lengths,
            );
        }
        Buffers { obs, samples, order, facts, sequences }
    }

    /// The ratios of the games of a minibatch, for `gspo`.
    fn sequences(
        &self,
        buffers: &Buffers,
        params: &CubeTensor,
        games: usize,
        batch: BatchLaunch,
        coefficients: CoefficientsLaunch,
    ) {
        let dim = CubeDim::new_1d(64);
        // SAFETY: the kernel stays below `games`, and its games are among `num_envs`.
        unsafe {
            sequence_kernel::launch_unchecked(
                &params.client,
                cubes(params, games, dim),
                dim,
                argument(params),
                argument(&buffers.obs),
                argument(&buffers.samples),
                argument(&buffers.order),
                argument(&buffers.facts),
                argument(&buffers.sequences),
                batch,
                coefficients,
                self.shapes,
            );
        }
    }

    /// The gradient of a minibatch of `samples` samples, and its sums: `[num_params + SUMS]`.
    fn gradient(
        &self,
        buffers: &Buffers,
        params: &CubeTensor,
        samples: usize,
        batch: BatchLaunch,
        coefficients: CoefficientsLaunch,
    ) -> CubeTensor {
        let spread = Spread::new(&self.shapes.mlp, samples).expect("`new` has checked the widths");
        let width = self.shapes.mlp.num_params() + SUMS;
        let partials = room(params, &[spread.cubes, width], DType::F32);
        let totals = room(params, &[width], DType::F32);
        // SAFETY: the first kernel reads nothing for samples beyond the last, and each cube writes
        // its own row; the second stays below `width`. All units of a cube reach its barriers.
        unsafe {
            gradient_kernel::launch_unchecked(
                &params.client,
                CubeCount::Static(spread.cubes as u32, 1, 1),
                CubeDim::new_1d(spread.units as u32),
                argument(params),
                argument(&buffers.obs),
                argument(&buffers.samples),
                argument(&buffers.order),
                argument(&buffers.facts),
                argument(&buffers.sequences),
                argument(&partials),
                batch,
                coefficients,
                spread,
                self.shapes,
            );
            sum_kernel::launch_unchecked(
                &params.client,
                CubeCount::Static(width.div_ceil(COLUMNS) as u32, 1, 1),
                CubeDim::new_1d(SUM_UNITS as u32),
                argument(&partials),
                argument(&totals),
                spread.cubes,
                width,
            );
        }
        totals
    }

    /// AdamW from `before` to `after`, `[3, num_params]`; its formula is that of [`AdamW::step`].
    fn step(
        &self,
        gradient: &CubeTensor,
        before: &CubeTensor,
        after: &CubeTensor,
        facts: &CubeTensor,
        means: &CubeTensor,
    ) {
        let (config, update) = (&self.config.optimizer, &self.config.update);
        let num_params = self.shapes.mlp.num_params();
        let steps = self.weights.optimizer.steps as f64;
        let rate =
            learning_rate(config, self.weights.optimizer.steps - 1, total_updates(&self.config));
        let (beta1, beta2) = (config.adam_beta1, config.adam_beta2);
        let numbers = AdamNumbersLaunch::new(
            beta1 as f32,
            (1.0 - beta1) as f32,
            beta2 as f32,
            (1.0 - beta2) as f32,
            (1.0 - beta2.powf(steps)).sqrt() as f32,
            config.adam_epsilon as f32,
            (1.0 - rate * config.weight_decay) as f32,
            (rate / (1.0 - beta1.powf(steps))) as f32,
            update.max_grad_norm as f32,
        );
        // SAFETY: the kernel stays below `num_params` and the number of sums.
        unsafe {
            adamw_kernel::launch_unchecked(
                &before.client,
                CubeCount::Static(num_params.div_ceil(ADAMW_UNITS) as u32, 1, 1),
                CubeDim::new_1d(ADAMW_UNITS as u32),
                argument(gradient),
                argument(before),
                argument(after),
                argument(facts),
                argument(means),
                numbers,
                update.update_epochs as f32,
                (update.update_epochs * update.num_minibatches) as f32,
                num_params,
                update.max_grad_norm > 0.0,
            );
        }
    }
}
