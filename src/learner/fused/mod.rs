//! The fused learner: a perceptron's update on a CubeCL device, in kernels of our own.
//!
//! What it computes is what [`super::Learner`] does, in three launches an optimiser step: partial
//! gradients (of losses with one ratio a game, the ratios before), their sum, AdamW. Nothing is read back, and no sum depends
//! on the order in which units get to it: two runs give the same bytes.

mod gradient;
mod loss_kernels;
mod neuron;
mod optimizer_kernels;
mod sharing;
mod tiles;

use super::UpdateStats;
use super::optimizer::factors;
use super::order::Batches;
use super::schedule::{entropy_coef, learning_rate, total_updates};
use super::weights::Weights;
use crate::config::TrainConfig;
use crate::data::{Part, Recording, RecordingAdvantages};
use crate::device::buffers::{argument, cube_ints, cube_tensor, element, grid, uninit};
use crate::math::adamw::FactorsLaunch;
use crate::model::kernels::MlpShape;
use crate::model::{FlatMlp, Mlp, Observer};
use crate::objective::{Coefficients, CoefficientsLaunch, Form};
use crate::parallel::{Shards, Team, TeamError};
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

/// Samples in a launch of the gradient's kernel, about: so few that no launch outlasts the patience of a
/// driver or a browser, and so many that a launch costs little beside them.
const LAUNCH_SAMPLES: usize = 1 << 20;

/// A perceptron in training on a CubeCL device.
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

/// What the kernels of an update have in common.
struct Update<'a, O: Observer> {
    learner: &'a FusedLearner,
    plan: Plan<O>,
    recording: &'a Recording,
    steps: usize,
    parts: Vec<PartBuffers>,
    minibatches: Minibatches,
    order_buffer: CubeTensor,
    summary: CubeTensor,
    /// Numbers before the ratios in the summary.
    sequences: usize,
    entropy: f64,
}

/// A part of a recording as buffers.
struct PartBuffers {
    first_env: usize,
    num_envs: usize,
    words: CubeTensor,
    values: CubeTensor,
    advantages: CubeTensor,
}

impl FusedLearner {
    /// Whether a policy has one or two hidden layers of a width that the kernels take (256).
    pub fn takes(policy: &Mlp) -> bool {
        MlpShape::of(policy).is_some_and(|shape| Tiling::new(&shape, size_of::<f32>()).is_some())
    }

    /// Trains `policy` where it lies. The reference policy, if `kl_coef` asks for one, is the policy
    /// as it is now.
    ///
    /// # Panics
    /// If it does not take the policy ([`FusedLearner::takes`]), or the device does not have the
    /// precision of the settings ([`crate::device::has_precision`]).
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

    /// Learns from games in these shards, which the members of `team` share.
    pub fn sharing(self, shards: Shards, team: Team) -> Self {
        let batches = Batches::of_shards(&self.config, shards);
        Self { batches, team, ..self }
    }

    /// Says whether what is learnt from are the batches of an iteration alone, one after the other.
    pub fn set_in_order(&mut self, in_order: bool) {
        self.batches.set_in_order(in_order);
    }

    /// Parameters, optimiser and reference policy.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The same, to be changed.
    pub fn weights_mut(&mut self) -> &mut Weights {
        &mut self.weights
    }

    /// The policy as it is now, as rollouts take it.
    pub fn policy(&self) -> FlatMlp {
        FlatMlp { shape: self.mlp, params: self.weights.params.clone() }
    }

    /// `update_epochs` passes over the recording of `iteration` in `num_minibatches` steps each,
    /// with the games in the order of [`super::Learner::update`].
    ///
    /// A minibatch is worked off at once, whatever `gradient_accumulation_steps` says: there are no
    /// activations to save memory on.
    ///
    /// # Panics
    /// If the advantages are not of the recording.
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
        for number in 0..self.config.update.update_epochs * self.config.update.num_minibatches {
            let gradient = self.shared_gradient(update.gradient(&before, number))?;
            steps += 1;
            self.step(&gradient, &before, &after, &update.summary, &means, steps);
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

    /// AdamW from `before` to `after`, `[3, num_params]`.
    fn step(
        &self,
        gradient: &CubeTensor,
        before: &CubeTensor,
        after: &CubeTensor,
        summary: &CubeTensor,
        means: &CubeTensor,
        steps: u64,
    ) {
        let (config, update) = (&self.config.optimizer, &self.config.update);
        let num_params = self.mlp.num_params();
        let rate = learning_rate(config, steps - 1, total_updates(&self.config));
        let by = factors(config, rate, steps);
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
        // SAFETY: the kernel stays below `num_params` and the number of sums.
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
    /// Uploads the order of the games for all epochs, evaluates the reference policy if there is one,
    /// and counts the minibatches' steps.
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

    /// The buffers of a part, with the reference policy's log-probabilities.
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
            // SAFETY: the kernel stays below the number of games and steps.
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

    /// What enters the network's products, as a type of kernels.
    fn input(&self) -> ElemType {
        element(self.learner.config.precision)
    }

    /// Adds the part's share of each minibatch's steps to the summary.
    fn count(&self, part: &PartBuffers, recorded: &CubeTensor, minibatches: usize) {
        // SAFETY: the kernel stays below the number of games and minibatches.
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

    /// The games of minibatch `number` in each part: the part, where its games start in the order, and
    /// how many there are. Parts with none are left out.
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

    /// The gradient of minibatch `number` by the parameters at the start of `params`, and its sums:
    /// `[num_params + SUMS]`.
    fn gradient(&self, params: &CubeTensor, number: usize) -> CubeTensor {
        let Plan { mlp, tiling, .. } = &self.plan;
        let width = mlp.num_params() + SUMS;
        let shares = self.shares(number);
        let spread = |games: usize| Spread::new(mlp, tiling.tile, games * self.steps);
        let rows: usize = shares.iter().map(|(_, _, games)| spread(*games).cubes).sum();
        if rows == 0 {
            // Other members have all of it.
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
            let cubes = (LAUNCH_SAMPLES / (tiling.tile * spread.tiles)).max(1);
            for first in (0..spread.cubes).step_by(cubes) {
                let end = spread.cubes.min(first + cubes);
                let rows = argument(&partials);
                let share = ShareLaunch::new(rows, first, end, spread.tiles, first_row);
                self.partial_gradients(part, params, end - first, batch(), share);
            }
            first_row += spread.cubes;
        }
        // SAFETY: the kernel stays below `rows` and `width`; all units of a cube reach its barrier.
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

    /// The ratios of a minibatch's games in a part.
    fn sequences(&self, part: &PartBuffers, params: &CubeTensor, games: usize, batch: BatchLaunch) {
        // SAFETY: the kernel stays below `games`, and its games are among the part's.
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

    /// One launch of the gradient's kernel.
    fn partial_gradients(
        &self,
        part: &PartBuffers,
        params: &CubeTensor,
        cubes: usize,
        batch: BatchLaunch,
        share: ShareLaunch,
    ) {
        // SAFETY: the kernel reads nothing for samples beyond the last, and each cube writes its own
        // row. All units of a cube reach its barriers.
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
