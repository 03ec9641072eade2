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

use super::UpdateStats;
use super::optimizer::factors;
use super::order::Batches;
use super::schedule::{entropy_coef, first_update, learning_rate, total_updates};
use super::weights::Weights;
use crate::data::{Part, Recording, RecordingAdvantages};
use crate::device::buffers::{argument, cube_ints, cube_tensor, element, grid, uninit};
use crate::math::adamw::{Factors, FactorsLaunch};
use crate::model::kernels::MlpShape;
use crate::model::{FlatMlp, Mlp, Observer};
use crate::objective::{Coefficients, CoefficientsLaunch, Form};
use crate::parallel::{Shards, Team, TeamError};
use crate::settings::TrainConfig;
use burn::backend::{Cube, DType};
use burn::cubecl::ir::ElemType;
use burn::cubecl::prelude::*;
use burn::tensor::{Int, Tensor, TensorData};
use burn_cubecl::tensor::CubeTensor;
use gradient::{ShareLaunch, gradient_kernel};
use loss_kernels::*;
use optimizer_kernels::*;
use sharing::Minibatches;
use tiles::{SUMS, Spread, Tiling};

/// Approximate number of samples per launch of the gradient kernel: few enough to stay below the
/// timeouts of drivers and browsers, enough to make the launch overhead negligible.
const LAUNCH_SAMPLES: usize = 1 << 20;

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

/// State shared by the kernels of an update.
struct Update<'a, O: Observer> {
    learner: &'a FusedLearner,
    plan: Plan<O>,
    recording: &'a Recording,
    steps: usize,
    parts: Vec<PartBuffers>,
    minibatches: Minibatches,
    order_buffer: CubeTensor,
    summary: CubeTensor,
    /// Offset of the game ratios in the summary.
    sequences: usize,
    entropy: f64,
}

/// Buffers of a part of a recording.
struct PartBuffers {
    first_env: usize,
    num_envs: usize,
    words: CubeTensor,
    values: CubeTensor,
    advantages: CubeTensor,
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
        let means = cube_tensor(Tensor::<1>::zeros([UpdateStats::LEN], &device));
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
            self.step(&gradient, &before, &after, &update.summary, &means, &by);
            std::mem::swap(&mut before, &mut after);
            if self.team.rounds_differently() {
                before = self.first_params(before)?;
            }
        }
        drop(update);
        let state = Tensor::<1>::from_primitive::<Cube>(before);
        let part = |i: usize| state.clone().slice(i * num_params..(i + 1) * num_params);
        self.weights.params = part(0);
        self.weights.optimizer.first_moment = part(1);
        self.weights.optimizer.second_moment = part(2);
        self.weights.optimizer.steps = steps;
        Ok(UpdateStats { means: Tensor::from_primitive::<Cube>(means) })
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
        summary: &CubeTensor,
        means: &CubeTensor,
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
                CubeCount::Static(num_params.div_ceil(ADAMW_UNITS) as u32, 1, 1),
                CubeDim::new_1d(ADAMW_UNITS as u32),
                argument(gradient),
                MovingParamsLaunch::new(argument(before), argument(after)),
                MeansLaunch::new(
                    argument(summary),
                    argument(means),
                    update.update_epochs as f32,
                    (update.update_epochs * update.num_minibatches) as f32,
                ),
                by,
                update.max_grad_norm as f32,
                num_params,
                update.max_grad_norm > 0.0,
            );
        }
    }
}

impl<'a, O: Observer> Update<'a, O> {
    /// Uploads the order of the games for all epochs, evaluates the reference policy if there is
    /// one, and counts the steps of each minibatch.
    fn new(
        learner: &'a FusedLearner,
        recording: &'a Recording,
        advantages: &RecordingAdvantages,
        observer: O,
        iteration: u32,
    ) -> Result<Self, TeamError> {
        assert_eq!(recording.parts.len(), advantages.parts.len(), "advantages of each part");
        assert!(advantages.learn_steps <= recording.num_steps, "advantages of the recording");
        assert_eq!(observer.num_features(), learner.mlp.features, "the observer's features");
        let words = recording.parts[0].num_words();
        assert_eq!(observer.num_words() + 1, words, "the observer's words, and the action's");
        let update = &learner.config.update;
        let minibatches = update.update_epochs * update.num_minibatches;
        let device = advantages.summary.device();
        let games = learner.minibatches(recording, iteration);
        let words: Vec<i32> = games.order.iter().map(|env| *env as i32).collect();
        let order_buffer = Tensor::<1, Int>::from_data(TensorData::from(words.as_slice()), &device);
        let order_buffer = cube_ints(order_buffer);
        let recorded = cube_tensor(advantages.summary.clone());
        let sequences = COUNTS + minibatches;
        let len = sequences + 2 * games.size;
        let summary = match learner.team.size() {
            1 => uninit(&recorded, &[len], DType::F32),
            _ => learner.shared_summary(advantages, &games, len)?,
        };
        let (mlp, loss, tiling) = (learner.mlp, learner.loss, learner.tiling);
        let mut this = Self {
            learner,
            plan: Plan { observer, mlp, loss, tiling },
            recording,
            steps: advantages.learn_steps,
            parts: Vec::new(),
            minibatches: games,
            order_buffer,
            summary,
            sequences,
            entropy: entropy_coef(&learner.config, iteration),
        };
        let reference = learner.weights.reference.as_ref().map(|it| cube_tensor(it.flatten()));
        let mut first_env = 0;
        for (part, advantages) in recording.parts.iter().zip(&advantages.parts) {
            let part = this.part(part, advantages, first_env, reference.as_ref());
            if learner.team.size() == 1 {
                this.count(&part, &recorded, minibatches);
            }
            first_env += part.num_envs;
            this.parts.push(part);
        }
        Ok(this)
    }

    /// Collects the buffers of a part, including log-probabilities under the reference policy.
    fn part(
        &self,
        part: &Part,
        advantages: &Tensor<2>,
        first_env: usize,
        reference: Option<&CubeTensor>,
    ) -> PartBuffers {
        let num_envs = part.num_envs();
        assert_eq!(
            advantages.dims(),
            [self.steps + 2, num_envs],
            "advantages: [learn_steps + 2, games]"
        );
        let words = cube_ints(part.words.clone());
        let values = cube_tensor(part.values.clone());
        let mut advantages = cube_tensor(advantages.clone());
        if let Some(reference) = reference {
            let extended = uninit(&advantages, &[2 * self.steps + 2, num_envs], DType::F32);
            let dim = CubeDim::new_1d(64);
            // SAFETY: accesses stay below the numbers of games and steps.
            unsafe {
                reference_kernel::launch_unchecked::<O>(
                    &advantages.client,
                    grid(&advantages, num_envs.div_ceil(64)),
                    dim,
                    argument(reference),
                    argument(&words),
                    argument(&advantages),
                    argument(&extended),
                    self.sizes(first_env, num_envs),
                    self.plan,
                    self.input(),
                );
            }
            advantages = extended;
        }
        PartBuffers { first_env, num_envs, words, values, advantages }
    }

    fn sizes(&self, first_env: usize, num_envs: usize) -> PartSizesLaunch {
        PartSizesLaunch::new(first_env, num_envs, self.recording.num_steps, self.steps)
    }

    /// Kernel element type of the inputs of the network's matrix products.
    fn input(&self) -> ElemType {
        element(self.learner.config.precision)
    }

    /// Adds the part's contribution to the step count of each minibatch.
    fn count(&self, part: &PartBuffers, recorded: &CubeTensor, minibatches: usize) {
        // SAFETY: accesses stay below the numbers of games and minibatches.
        unsafe {
            count_kernel::launch_unchecked(
                &recorded.client,
                CubeCount::Static(minibatches as u32, 1, 1),
                CubeDim::new_1d(COUNT_UNITS as u32),
                argument(&self.order_buffer),
                argument(&part.advantages),
                argument(recorded),
                argument(&self.summary),
                self.minibatches.size,
                self.sizes(part.first_env, part.num_envs),
            );
        }
    }

    /// Splits minibatch `number` by parts: the part, the offset of its games in the order, and
    /// their number. Parts without games are omitted.
    fn shares(&self, number: usize) -> Vec<(&PartBuffers, usize, usize)> {
        let Minibatches { order, cuts, .. } = &self.minibatches;
        let (start, end) = (cuts[number], cuts[number + 1]);
        let games = &order[start..end];
        let behind = |env: usize| games.partition_point(|game| (*game as usize) < env);
        let single = self.parts.len() == 1;
        let shares = self.parts.iter().map(|part| {
            if single {
                return (part, start, end - start);
            }
            let (first, end) = (behind(part.first_env), behind(part.first_env + part.num_envs));
            (part, start + first, end - first)
        });
        shares.filter(|(_, _, games)| *games > 0).collect()
    }

    /// Gradient of minibatch `number` with the parameters at the start of `params`, followed by its
    /// sums: `[num_params + SUMS]`.
    fn gradient(&self, params: &CubeTensor, number: usize) -> CubeTensor {
        let Plan { mlp, tiling, .. } = &self.plan;
        let width = mlp.num_params() + SUMS;
        let shares = self.shares(number);
        let spread = |games: usize| Spread::new(mlp, tiling.tile, games * self.steps);
        let rows: usize = shares.iter().map(|(_, _, games)| spread(*games).cubes).sum();
        if rows == 0 {
            // All games of this minibatch belong to other ranks.
            let device = Tensor::<1>::from_primitive::<Cube>(params.clone()).device();
            return cube_tensor(Tensor::<1>::zeros([width], &device));
        }
        let partials = uninit(params, &[rows, width], DType::F32);
        let totals = uninit(params, &[width], DType::F32);
        let mut first_row = 0;
        for (part, first, games) in &shares {
            let batch = || self.batch(number, *first, *games);
            if self.learner.loss.loss_type.ratio_of_game() {
                self.sequences(part, params, *games, batch());
            }
            let spread = spread(*games);
            let samples = (LAUNCH_SAMPLES as f64 * self.learner.config.launch_size) as usize;
            let cubes = (samples / (tiling.tile * spread.tiles)).max(1);
            for first in (0..spread.cubes).step_by(cubes) {
                let end = spread.cubes.min(first + cubes);
                let rows = argument(&partials);
                let share = ShareLaunch::new(rows, first, end, spread.tiles, first_row);
                self.partial_gradients(part, params, end - first, batch(), share);
            }
            first_row += spread.cubes;
        }
        // SAFETY: accesses stay below `rows` and `width`; all units of a cube reach its barrier.
        unsafe {
            sum_kernel::launch_unchecked(
                &params.client,
                CubeCount::Static(width.div_ceil(COLUMNS) as u32, 1, 1),
                CubeDim::new_1d(SUM_UNITS as u32),
                argument(&partials),
                argument(&totals),
                rows,
                width,
            );
        }
        totals
    }

    fn batch(&self, number: usize, first: usize, games: usize) -> BatchLaunch {
        let num_minibatches = self.learner.config.update.num_minibatches;
        let Minibatches { cuts, size, .. } = &self.minibatches;
        BatchLaunch::new(
            argument(&self.summary),
            first,
            games,
            first - cuts[number],
            *size,
            number,
            num_minibatches,
            self.sequences,
        )
    }

    fn experience(&self, part: &PartBuffers) -> ExperienceLaunch {
        ExperienceLaunch::new(
            argument(&part.words),
            argument(&part.values),
            argument(&part.advantages),
            argument(&self.order_buffer),
            self.sizes(part.first_env, part.num_envs),
        )
    }

    fn coefficients(&self) -> CoefficientsLaunch {
        let by = Coefficients::new(&self.learner.config.loss, self.entropy);
        CoefficientsLaunch::new(
            by.low,
            by.high,
            by.dual_clip,
            by.temperature_pos,
            by.temperature_neg,
            by.entropy,
            by.kl,
            by.smoothing,
        )
    }

    /// Computes the ratios of a minibatch's games in a part.
    fn sequences(&self, part: &PartBuffers, params: &CubeTensor, games: usize, batch: BatchLaunch) {
        // SAFETY: accesses stay below `games`, and these games belong to the part.
        unsafe {
            sequence_kernel::launch_unchecked::<O>(
                &params.client,
                grid(params, games.div_ceil(64)),
                CubeDim::new_1d(64),
                argument(params),
                self.experience(part),
                batch,
                self.coefficients(),
                self.plan,
                self.input(),
            );
        }
    }

    /// Launches the gradient kernel once.
    fn partial_gradients(
        &self,
        part: &PartBuffers,
        params: &CubeTensor,
        cubes: usize,
        batch: BatchLaunch,
        share: ShareLaunch,
    ) {
        // SAFETY: the kernel does not read samples past the last, and each cube writes its own row.
        // All units of a cube reach its barriers.
        unsafe {
            gradient_kernel::launch_unchecked::<O>(
                &params.client,
                grid(params, cubes),
                CubeDim::new_1d(self.plan.tiling.units as u32),
                argument(params),
                self.experience(part),
                batch,
                share,
                self.coefficients(),
                self.plan,
                self.input(),
            );
        }
    }
}
