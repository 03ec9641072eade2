//! An update of the fused learner: its buffers, and the launches of its kernels.

use super::FusedLearner;
use super::gradient::{TileRangeLaunch, gradient_kernel};
use super::launches::{launch_count, launch_sum};
use super::optimizer_kernels::{UNITS, adamw_kernel};
use super::sharing::MinibatchOrder;
use super::tiles::Spread;
use super::update_kernels::{
    ExperienceBuffersLaunch, MINIBATCH_COUNTS, MinibatchPortionLaunch, PartSizesLaunch,
    UpdateVariant, reference_kernel, sequence_ratio_kernel,
};
use crate::data::summary::LEARNT_STEPS;
use crate::data::{Recording, RecordingAdvantages, RecordingPart};
use crate::device;
use crate::device::buffers::{argument, cube_ints, cube_tensor, element_type, grid, uninit};
use crate::device::items_per_launch;
use crate::learner::context::LearnerContext;
use crate::learner::counted_steps::LearntSteps;
use crate::learner::means::{APPROX_KL, NUM_SUMS};
use crate::learner::optimizer::{TensorMoments, adamw_factors};
use crate::learner::schedule::{entropy_coef, first_optimizer_step};
use crate::learner::train_state::{TrainState, broadcast_params, sum_over_ranks};
use crate::learner::update::{StepsTaken, UpdateSteps};
use crate::model::Observer;
use crate::objective::{LossConfig, LossForm, LossParams, LossParamsLaunch};
use crate::parallel::TeamError;
use burn::backend::{Cube, DType};
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use std::ops::Range;

/// Units per cube of the kernels in which a unit processes a game.
const GAME_UNITS: usize = 64;

/// An update in kernels: its buffers and its progress.
pub(super) struct FusedUpdate<'a, O: Observer> {
    learner: &'a FusedLearner,
    variant: UpdateVariant<O>,
    recording: &'a Recording,
    /// Number of steps to learn from.
    learn_steps: usize,
    parts: Vec<PartBuffers>,
    minibatches: MinibatchOrder,
    order_buffer: CubeTensor,
    summary: CubeTensor,
    /// Offset of the sequence ratios in the summary.
    ratios_offset: usize,
    entropy_coef: f64,
    /// Parameters and moments, `[3, num_params]`, and a buffer for those after the next step.
    param_states: [CubeTensor; 2],
    /// Sums over the optimizer steps taken: those beside their gradients, then the gradient norm: `[NUM_SUMS + 1]`.
    update_sums: CubeTensor,
    /// Index of the update's first optimizer step in the run.
    first_optimizer_step: u64,
    /// Number of steps that the optimizer has taken.
    optimizer_steps: u64,
}

/// Games of a minibatch in a part of a recording.
struct PartPortion<'a> {
    part: &'a PartBuffers,
    /// Offset of the games in the order.
    first: usize,
    num_games: usize,
}

/// Buffers of a part of a recording.
struct PartBuffers {
    first_env: usize,
    num_envs: usize,
    words: CubeTensor,
    values: CubeTensor,
    advantages: CubeTensor,
}

/// Panics unless the advantages and the observer are those of a recording and of a learner's network.
fn check_inputs<O: Observer>(
    learner: &FusedLearner,
    recording: &Recording,
    advantages: &RecordingAdvantages,
    observer: &O,
) {
    assert_eq!(recording.parts.len(), advantages.parts.len(), "advantages of each part");
    assert!(advantages.learn_steps <= recording.num_steps, "advantages of the recording");
    assert_eq!(observer.num_features(), learner.mlp.num_features, "the observer's features");
    let words = recording.parts[0].num_words();
    assert_eq!(observer.num_words() + 1, words, "the observer's words, and the action's");
}

/// Parameters and moments, `[3, num_params]`, and a buffer for those after a step.
fn param_states(state: &TrainState) -> [CubeTensor; 2] {
    let TrainState { params, optimizer, .. } = state;
    let TensorMoments { first_moment, second_moment, .. } = optimizer;
    let before = vec![params.clone(), first_moment.clone(), second_moment.clone()];
    let before = cube_tensor(Tensor::cat(before, 0));
    let after = uninit(&before, &[before.meta.num_elements()], DType::F32);
    [before, after]
}

impl<'a, O: Observer> FusedUpdate<'a, O> {
    /// Uploads the order of the games for all epochs, evaluates the reference policy if there is
    /// one, and counts the steps of each minibatch.
    pub(super) fn new(
        learner: &'a FusedLearner,
        recording: &'a Recording,
        advantages: &RecordingAdvantages,
        observer: O,
        minibatches: MinibatchOrder,
        iteration: u32,
    ) -> Result<Self, TeamError> {
        check_inputs(learner, recording, advantages, &observer);
        let config = &learner.context.config;
        let device = advantages.summary.device();
        let order_buffer = cube_ints(device::upload_indices(&minibatches.order, &device));
        let recording_summary = cube_tensor(advantages.summary.clone());
        let ratios_offset = MINIBATCH_COUNTS + minibatches.ranges.len();
        let len = ratios_offset + 2 * minibatches.global_size;
        let summary = match learner.context.team.size() {
            1 => uninit(&recording_summary, &[len], DType::F32),
            _ => learner.all_reduce_summary(advantages, &minibatches, len)?,
        };
        let (mlp, loss, tiling) = (learner.mlp, learner.loss, learner.tiling);
        let mut this = Self {
            learner,
            variant: UpdateVariant { observer, mlp, loss, tiling },
            recording,
            learn_steps: advantages.learn_steps,
            parts: Vec::new(),
            minibatches,
            order_buffer,
            summary,
            ratios_offset,
            entropy_coef: entropy_coef(config, iteration),
            param_states: param_states(&learner.state),
            update_sums: cube_tensor(Tensor::<1>::zeros([NUM_SUMS + 1], &device)),
            first_optimizer_step: first_optimizer_step(config, iteration),
            optimizer_steps: learner.state.optimizer.steps,
        };
        this.add_parts(advantages, &recording_summary);
        Ok(this)
    }

    /// Adds the buffers of all parts of the recording, and counts the steps that each has of each minibatch, unless the
    /// ranks have counted them together.
    fn add_parts(&mut self, advantages: &RecordingAdvantages, recording_summary: &CubeTensor) {
        let FusedLearner { context, state, .. } = self.learner;
        let reference = state.reference.as_ref();
        let reference = reference.map(|network| cube_tensor(network.flatten()));
        let mut first_env = 0;
        for (part, advantages) in self.recording.parts.iter().zip(&advantages.parts) {
            let part = self.part_buffers(part, advantages, first_env, reference.as_ref());
            if context.team.size() == 1 {
                launch_count(
                    &self.order_buffer,
                    &part.advantages,
                    recording_summary,
                    &self.summary,
                    self.minibatches.ranges.len(),
                    self.minibatches.global_size,
                    self.part_sizes(part.first_env, part.num_envs),
                );
            }
            first_env += part.num_envs;
            self.parts.push(part);
        }
    }

    /// Collects the buffers of a part, including log-probabilities under the reference policy.
    fn part_buffers(
        &self,
        part: &RecordingPart,
        advantages: &Tensor<2>,
        first_env: usize,
        reference: Option<&CubeTensor>,
    ) -> PartBuffers {
        let num_envs = part.num_envs();
        assert_eq!(
            advantages.dims(),
            [self.learn_steps + 2, num_envs],
            "advantages: [learn_steps + 2, games]"
        );
        let words = cube_ints(part.words.clone());
        let values = cube_tensor(part.values.clone());
        let mut advantages = cube_tensor(advantages.clone());
        if let Some(reference) = reference {
            // The kernel is the same for all losses, so that it is compiled once.
            let variant =
                UpdateVariant { loss: LossForm::new(&LossConfig::default()), ..self.variant };
            let extended = uninit(&advantages, &[2 * self.learn_steps + 2, num_envs], DType::F32);
            for games in self.split_into_launches(num_envs) {
                // SAFETY: accesses stay below the numbers of games and steps.
                unsafe {
                    reference_kernel::launch_unchecked::<O>(
                        &advantages.client,
                        grid(&advantages, games.len().div_ceil(GAME_UNITS)),
                        CubeDim::new_1d(GAME_UNITS as u32),
                        argument(reference),
                        argument(&words),
                        argument(&advantages),
                        argument(&extended),
                        self.part_sizes(first_env, num_envs),
                        games.start,
                        games.end,
                        variant,
                        self.input_type(),
                    );
                }
            }
            advantages = extended;
        }
        PartBuffers { first_env, num_envs, words, values, advantages }
    }

    fn part_sizes(&self, first_env: usize, num_envs: usize) -> PartSizesLaunch {
        PartSizesLaunch::new(first_env, num_envs, self.recording.num_steps, self.learn_steps)
    }

    /// Kernel element type of the inputs of the network's matrix products.
    fn input_type(&self) -> ElemType {
        element_type(self.learner.context.config.precision)
    }

    /// Splits the minibatch at `range` of the order by parts. Parts without games are omitted.
    fn split_by_part(&self, range: &Range<usize>) -> Vec<PartPortion<'_>> {
        let Range { start, end } = *range;
        let games = &self.minibatches.order[start..end];
        let position = |env: usize| games.partition_point(|game| (*game as usize) < env);
        let is_single = self.parts.len() == 1;
        let portions = self.parts.iter().map(|part| {
            if is_single {
                return PartPortion { part, first: start, num_games: end - start };
            }
            let (first, end) = (position(part.first_env), position(part.first_env + part.num_envs));
            PartPortion { part, first: start + first, num_games: end - first }
        });
        portions.filter(|portion| portion.num_games > 0).collect()
    }

    /// Gradient of minibatch `index` on this rank, followed by its sums: `[num_params + NUM_SUMS]`.
    fn own_gradient(&self, index: usize) -> CubeTensor {
        let params = &self.param_states[0];
        let UpdateVariant { mlp, tiling, .. } = &self.variant;
        let width = mlp.num_params() + NUM_SUMS;
        let portions = self.split_by_part(&self.minibatches.ranges[index]);
        let spread = |num_games: usize| {
            Spread::new(mlp, tiling, num_games * self.learn_steps, portions.len())
        };
        let rows: usize = portions.iter().map(|portion| spread(portion.num_games).num_cubes).sum();
        if rows == 0 {
            // All games of this minibatch belong to other ranks.
            return cube_tensor(Tensor::<1>::zeros([width], &as_tensor(params).device()));
        }
        let stride = tiling.row_len(mlp);
        let partials = uninit(params, &[rows, stride], DType::F32);
        let totals = uninit(params, &[width], DType::F32);
        let mut first_row = 0;
        for portion in &portions {
            let spread = spread(portion.num_games);
            self.launch_gradient(portion, index, &spread, &partials, first_row);
            first_row += spread.num_cubes;
        }
        launch_sum(&partials, &totals, rows, width, stride);
        totals
    }

    /// Computes the partial gradients of a part's games of minibatch `index`, a row of `partials` for each cube from
    /// `first_row` on.
    fn launch_gradient(
        &self,
        &PartPortion { part, first, num_games }: &PartPortion,
        index: usize,
        &Spread { num_cubes, tiles_per_cube }: &Spread,
        partials: &CubeTensor,
        first_row: usize,
    ) {
        let params = &self.param_states[0];
        let UpdateVariant { mlp, tiling, .. } = &self.variant;
        let portion = || self.portion(index, first, num_games);
        if self.learner.loss.loss_type.has_sequence_ratio() {
            self.compute_ratios(part, params, num_games, portion);
        }
        // Forward, and backward by inputs and by weights.
        let samples = self.items_per_launch(3.0 * mlp.forward_flops());
        let step = (samples / (num_cubes * tiling.tile_samples)).max(1);
        for first_tile in (0..tiles_per_cube).step_by(step) {
            let end_tile = tiles_per_cube.min(first_tile + step);
            let tile_range = TileRangeLaunch::new(
                argument(partials),
                num_cubes,
                tiles_per_cube,
                first_tile,
                end_tile,
                first_row,
            );
            // SAFETY: the kernel does not read samples past the last, and each cube writes its own row. All units of a
            // cube reach its barriers.
            unsafe {
                gradient_kernel::launch_unchecked::<O>(
                    &params.client,
                    grid(params, num_cubes),
                    CubeDim::new_1d(tiling.num_units as u32),
                    argument(params),
                    self.experience(part),
                    portion(),
                    tile_range,
                    self.loss_params(),
                    self.variant,
                    self.input_type(),
                );
            }
        }
    }

    /// Number of items per launch, if each takes `flops` FLOP.
    fn items_per_launch(&self, flops: f64) -> usize {
        items_per_launch(flops, self.learner.context.config.launch_size)
    }

    fn portion(&self, index: usize, first: usize, num_games: usize) -> MinibatchPortionLaunch {
        let num_minibatches = self.learner.context.config.update.num_minibatches;
        let MinibatchOrder { ranges, global_size, .. } = &self.minibatches;
        MinibatchPortionLaunch::new(
            argument(&self.summary),
            first,
            num_games,
            first - ranges[index].start,
            *global_size,
            index,
            num_minibatches,
            self.ratios_offset,
        )
    }

    fn experience(&self, part: &PartBuffers) -> ExperienceBuffersLaunch {
        ExperienceBuffersLaunch::new(
            argument(&part.words),
            argument(&part.values),
            argument(&part.advantages),
            argument(&self.order_buffer),
            self.part_sizes(part.first_env, part.num_envs),
        )
    }

    /// The parameters of the loss.
    fn loss_params(&self) -> LossParamsLaunch {
        let loss_params = LossParams::new(&self.learner.context.config.loss, self.entropy_coef);
        LossParamsLaunch::new(
            loss_params.min_ratio,
            loss_params.max_ratio,
            loss_params.dual_clip,
            loss_params.sapo_temperature_pos,
            loss_params.sapo_temperature_neg,
            loss_params.entropy_coef,
            loss_params.kl_coef,
            loss_params.label_smoothing,
        )
    }

    /// Computes the ratios of a minibatch's games in a part.
    fn compute_ratios(
        &self,
        part: &PartBuffers,
        params: &CubeTensor,
        num_games: usize,
        portion: impl Fn() -> MinibatchPortionLaunch,
    ) {
        for games in self.split_into_launches(num_games) {
            // SAFETY: accesses stay below the number of games, which belong to the part.
            unsafe {
                sequence_ratio_kernel::launch_unchecked::<O>(
                    &params.client,
                    grid(params, games.len().div_ceil(GAME_UNITS)),
                    CubeDim::new_1d(GAME_UNITS as u32),
                    argument(params),
                    self.experience(part),
                    portion(),
                    self.loss_params(),
                    games.start,
                    games.end,
                    self.variant,
                    self.input_type(),
                );
            }
        }
    }

    /// Divides games into launches of kernels that evaluate the policy at each step of a game.
    fn split_into_launches(&self, num_games: usize) -> impl Iterator<Item = Range<usize>> {
        let flops = self.variant.mlp.forward_flops() * self.learn_steps as f64;
        let max_games = self.items_per_launch(flops).next_multiple_of(GAME_UNITS);
        (0..num_games).step_by(max_games).map(move |first| first..num_games.min(first + max_games))
    }

    /// Returns the means of the minibatches taken, in the order of
    /// [`AutodiffLearner::update`](crate::learner::AutodiffLearner), the parameters, and the state of the optimizer.
    pub(super) fn finish(self, taken: &StepsTaken) -> (Tensor<1>, Tensor<1>, TensorMoments) {
        let (config, count) = (&self.learner.context.config, taken.count);
        let (summary, update_sums) = (as_tensor(&self.summary), as_tensor(&self.update_sums));
        let num_learnt = match LearntSteps::new(config, count, self.minibatches.ranges.len()) {
            // Without a minibatch all sums are 0, whatever they are divided by; a tensor cannot be empty.
            LearntSteps::Minibatches(count) => {
                summary.narrow(0, MINIBATCH_COUNTS, count.max(1)).sum()
            }
            LearntSteps::Epochs(epochs) => summary.narrow(0, LEARNT_STEPS, 1) * epochs as f32,
        };
        let step_means = update_sums.clone().narrow(0, 0, NUM_SUMS - 1) / num_learnt.clamp_min(1.0);
        let means = vec![step_means, update_sums.narrow(0, NUM_SUMS - 1, 2) / count.max(1) as f32];
        let state = as_tensor(&self.param_states[0]);
        let num_params = self.variant.mlp.num_params();
        let part = |i: usize| state.clone().slice(i * num_params..(i + 1) * num_params);
        let [params, first_moment, second_moment] = [0, 1, 2].map(part);
        let optimizer = TensorMoments { first_moment, second_moment, steps: self.optimizer_steps };
        (taken.write_ending_kl_first(Tensor::cat(means, 0)), params, optimizer)
    }
}

impl<O: Observer> UpdateSteps for FusedUpdate<'_, O> {
    /// Place of a minibatch in the order of the games.
    type Minibatch = Range<usize>;
    /// The gradient, followed by its sums: `[num_params + NUM_SUMS]`.
    type Gradient = CubeTensor;

    fn compute_gradient(
        &mut self,
        index: usize,
        _minibatch: &Range<usize>,
    ) -> Result<Option<CubeTensor>, TeamError> {
        let (local, team) = (self.own_gradient(index), &self.learner.context.team);
        if team.size() == 1 {
            return Ok(Some(local));
        }
        let num_params = self.variant.mlp.num_params();
        Ok(Some(cube_tensor(sum_over_ranks(team, as_tensor(&local), num_params)?)))
    }

    fn approx_kl(&self, index: usize, gradient: &CubeTensor) -> f64 {
        let number = |tensor: &CubeTensor, i: usize| as_tensor(tensor).narrow(0, i, 1);
        let sum = number(gradient, self.variant.mlp.num_params() + APPROX_KL);
        let steps = number(&self.summary, MINIBATCH_COUNTS + index);
        let read = device::read(Tensor::cat(vec![sum, steps], 0));
        f64::from(read[0]) / f64::from(read[1]).max(1.0)
    }

    fn step(&mut self, index: usize, gradient: CubeTensor) -> Result<(), TeamError> {
        let LearnerContext { config, team, .. } = &self.learner.context;
        self.optimizer_steps += 1;
        let rate = self.learner.context.learning_rate(self.first_optimizer_step + index as u64);
        let factors = adamw_factors(&config.optimizer, rate, self.optimizer_steps);
        let (num_params, max_norm) = (self.variant.mlp.num_params(), config.update.max_grad_norm);
        let [before, after] = &self.param_states;
        // SAFETY: accesses stay below `num_params` and the number of sums.
        unsafe {
            adamw_kernel::launch_unchecked(
                &before.client,
                grid(before, num_params.div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                argument(&gradient),
                argument(before),
                argument(after),
                argument(&self.update_sums),
                factors.launch(),
                max_norm as f32,
                num_params,
                max_norm > 0.0,
            );
        }
        self.param_states.swap(0, 1);
        if team.rounds_differently() {
            let state = as_tensor(&self.param_states[0]);
            let params = broadcast_params(team, state.clone().narrow(0, 0, num_params))?;
            let moments = state.narrow(0, num_params, 2 * num_params);
            self.param_states[0] = cube_tensor(Tensor::cat(vec![params, moments], 0));
        }
        Ok(())
    }
}

/// Wraps a buffer as a tensor.
fn as_tensor(buffer: &CubeTensor) -> Tensor<1> {
    Tensor::from_primitive::<Cube>(buffer.clone())
}
