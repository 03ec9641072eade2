//! The general learner: any model on any device through Burn's autodiff.

use super::experience::{Experience, FirstMemory};
use super::means::{Partial, SUMS, plus};
use super::optimizer::clip_grad_norm;
use super::order::{Batches, Minibatch, parts};
use super::schedule::{entropy_coef, first_update};
use super::weights::Weights;
use crate::data::Trajectory;
use crate::device;
use crate::model::Network;
use crate::objective::{Loss, Steps, Totals, loss};
use crate::parallel::{Node, NodeLen, Shards, Team, TeamError, add_up, nodes};
use crate::settings::{Precision, TrainConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::ops::Range;

/// A policy in training: parameters, optimizer and, if configured, a reference policy.
#[derive(Clone, Debug)]
pub struct Learner {
    weights: Weights,
    config: TrainConfig,
    batches: Batches,
    team: Team,
}

/// Minimum number of steps of a minibatch per shard. Passes have a high fixed cost.
pub const AUTODIFF_SHARD_STEPS: usize = 2048;

/// Target magnitude of a step's logit gradient in half precision. It leaves room below the largest
/// f16 (65,504) for sums over many steps, and stays far above the smallest.
const LARGEST: f32 = 1.0 / 16.0;

/// Metrics of an update, still on the device.
#[derive(Clone, Debug)]
pub struct UpdateStats {
    /// Means of [`Loss::SUMS`] over all counted steps of all epochs, then the mean loss and the
    /// mean gradient norm before clipping over optimizer steps: `[6]`.
    pub means: Tensor<1>,
}

impl UpdateStats {
    /// Number of means.
    pub const LEN: usize = Loss::SUMS.len() + 2;
}

impl Learner {
    /// Trains `policy` on its device. If `kl_coef` is not 0, the initial policy becomes the
    /// reference policy.
    pub fn new(policy: impl Into<Network>, config: &TrainConfig) -> Self {
        let policy = policy.into();
        let policy = match config.precision {
            Precision::F32 => policy,
            precision => policy.with_precision(precision).unwrap_or(policy),
        };
        let (weights, batches) = (Weights::new(policy, config), Batches::new(config));
        Self { weights, batches, config: config.clone(), team: Team::alone() }
    }

    /// Sets the shards of games, or of windows of a dataset, that this rank of `team` learns from.
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

    /// Number of parameters.
    fn num_params(&self) -> usize {
        self.weights.params.dims()[0]
    }

    /// Performs one update: `update_epochs` passes over the trajectory of `iteration`, in
    /// `num_minibatches` optimizer steps each.
    ///
    /// `advantages` and `mask` are `[num_steps, num_envs]` and, like the trajectory, cover this
    /// rank's shards.
    ///
    /// # Errors
    /// If another rank has failed or does not respond.
    pub fn update(
        &mut self,
        trajectory: &Trajectory,
        advantages: &Tensor<2>,
        mask: &Tensor<2>,
        iteration: u32,
    ) -> Result<UpdateStats, TeamError> {
        let [_, num_envs, _] = trajectory.dims();
        let device = trajectory.obs.device();
        let update = self.config.update.clone();
        let mut experience = Experience {
            obs: trajectory.obs.clone(),
            starts: trajectory.starts(),
            memory: self.first_memory(trajectory),
            actions: trajectory.actions.clone(),
            old_logprobs: trajectory.logprobs.clone(),
            reference_logprobs: None,
            advantages: advantages.clone(),
            mask: mask.clone(),
            legal: trajectory.legal.clone(),
            smoothed: self.config.loss.label_smoothing > 0.0,
        };
        experience.reference_logprobs =
            self.weights.reference.as_ref().map(|policy| self.logprobs(&experience, policy));
        let minibatches = self.batches.of(iteration, num_envs);
        let (counts, counted) = self.counts(mask, &minibatches)?;
        let entropy_coef = entropy_coef(&self.config, iteration);
        let zeros = |len: usize| Tensor::<1>::zeros([len], &device);
        let (mut sums, mut norms) = (zeros(SUMS), zeros(1));
        let first = first_update(&self.config, iteration);
        let mut taken = 0;
        for (minibatch, steps) in minibatches.iter().zip(&counts) {
            let totals = Totals {
                games: minibatch.size,
                steps: steps.clone(),
                rollout_share: counted.clone() / update.num_minibatches as f32,
            };
            let by = |steps: Steps| loss(&self.config.loss, entropy_coef, &steps, &totals);
            let (gradient, of_all) = self.gradient(&experience, minibatch, &by)?;
            if update.target_kl > 0.0 {
                let approx_kl = of_all.clone().narrow(0, 0, 1) / steps.clone().clamp_min(1.0);
                if update.ends_at(f64::from(device::fetch(approx_kl)[0])) {
                    break;
                }
            }
            sums = sums + of_all;
            let (gradient, norm) = clip_grad_norm(gradient, update.max_grad_norm);
            norms = norms + norm;
            self.weights.step(gradient, first + taken as u64, &self.config, &self.team)?;
            taken += 1;
        }
        // Every epoch covers all games of the rollout, whereas datasets advance by batches.
        let learnt = if taken < minibatches.len() {
            let counts = counts.into_iter().take(taken);
            counts.fold(zeros(1), |sum, count| sum + count).clamp_min(1.0)
        } else if self.config.data.is_on() {
            Tensor::cat(counts, 0).sum()
        } else {
            counted * update.update_epochs as f32
        };
        let updates = taken.max(1) as f32;
        let losses = sums.clone().narrow(0, Loss::SUMS.len(), 1);
        let sums = sums.narrow(0, 0, Loss::SUMS.len());
        let means = vec![sums / learnt, losses / updates, norms / updates];
        Ok(UpdateStats { means: Tensor::cat(means, 0) })
    }

    /// Log-probabilities of all actions under a policy, `[num_steps, num_envs]`. On the CPU they
    /// are computed shard by shard, so that rounding does not depend on the number of local shards.
    fn logprobs(&self, experience: &Experience, policy: &Network) -> Tensor<2> {
        let ([_, num_envs, _], device) = (experience.obs.dims(), experience.obs.device());
        if device::has_kernels(&device) {
            return experience.steps(policy).logprobs;
        }
        let shards = self.batches.shards(num_envs);
        let logprobs = shards.own().map(|shard| {
            let games: Vec<i32> = shards.places_of(shard).map(|game| game as i32).collect();
            experience.games(indices(&games, &device)).steps(policy).logprobs
        });
        Tensor::cat(logprobs.collect(), 1)
    }

    /// Whether an update needs no data in host memory: a single rank on a device with kernels.
    fn stays_on_device(&self) -> bool {
        self.team.size() == 1 && device::has_kernels(&self.weights.params.device())
    }

    /// Numbers of counted steps in each minibatch and in all games: `[1]` each.
    fn counts(
        &self,
        mask: &Tensor<2>,
        minibatches: &[Minibatch],
    ) -> Result<(Vec<Tensor<1>>, Tensor<1>), TeamError> {
        let ([_, num_envs], device) = (mask.dims(), mask.device());
        if self.stays_on_device() {
            let counted = mask.clone().sum();
            let count = |one: &Minibatch| match one.games() {
                games if games.len() == num_envs => counted.clone(),
                games => mask.clone().select(1, indices(games, &device)).sum(),
            };
            return Ok((minibatches.iter().map(count).collect(), counted));
        }
        let lengths = device::fetch(mask.clone().sum_dim(0).reshape([num_envs]));
        let count = |one: &Minibatch| {
            one.games().iter().map(|game| f64::from(lengths[*game as usize])).sum::<f64>()
        };
        let all = lengths.iter().copied().map(f64::from).sum();
        let ours: Vec<f64> = minibatches.iter().map(count).chain([all]).collect();
        let counts = self.team.total(&ours)?.into_iter();
        let mut counts: Vec<Tensor<1>> =
            counts.map(|x| Tensor::from_floats([x as f32], &device)).collect();
        let counted = counts.pop().expect("the last is that of all");
        Ok((counts, counted))
    }

    /// Gradient of a minibatch, and its sums: [`Loss::SUMS`] and the loss.
    fn gradient(
        &self,
        experience: &Experience,
        minibatch: &Minibatch,
        loss: &(impl Fn(Steps) -> Loss + Sync),
    ) -> Result<(Tensor<1>, Tensor<1>), TeamError> {
        let accumulation = self.config.update.gradient_accumulation_steps;
        if self.stays_on_device() {
            return Ok(self.pass(experience, minibatch.games(), accumulation, loss));
        }
        let device = self.weights.params.device();
        let sum = if self.team.has_devices() {
            let games = minibatch.games();
            if let Some(collective) = &self.team.hardware().collective {
                let ours = self.pass(experience, games, accumulation, loss);
                let sum = collective.sum(&self.team, Tensor::cat(vec![ours.0, ours.1], 0))?;
                let num_params = self.num_params();
                let part = |start, len| sum.clone().narrow(0, start, len);
                return Ok((part(0, num_params), part(num_params, SUMS)));
            }
            let (vector, numbers) = self.numbers(experience, games, accumulation, loss);
            self.team.sum_ranks(vector, numbers.to_vec())?
        } else {
            let shards = self.batches.shards(experience.obs.dims()[1]);
            let parts = accumulation.div_ceil(shards.count());
            let shard = |shard: usize| {
                let games = minibatch.shard(shard - shards.own().start);
                self.numbers(experience, games, parts, loss)
            };
            let sum = |node: &Range<usize>| {
                let leaves = self.each(node.clone(), &shard).into_iter().enumerate();
                let leaves = leaves.map(|(at, leaf)| (at..at + 1, leaf)).collect();
                add_up(node.len(), leaves, &|sum, other| plus(sum, &other))
            };
            let ours = nodes(shards.count(), &shards.own()).into_iter().map(|node| {
                let (vector, numbers) = sum(&node);
                Node { shards: node, vector, numbers: numbers.to_vec() }
            });
            let len = NodeLen { vector: self.num_params(), numbers: SUMS };
            self.team.sum(&shards, ours.collect(), len)?
        };
        let sums: Vec<f32> = sum.numbers.iter().map(|x| *x as f32).collect();
        let upload = |values: Vec<f32>| {
            let count = values.len();
            Tensor::from_data(TensorData::new(values, [count]), &device)
        };
        Ok((upload(sum.vector), upload(sums)))
    }

    /// Maps `shard` over some shards on all threads. Uses dedicated threads, because pool threads
    /// that wait within one shard would start another.
    fn each<T: Send>(&self, shards: Range<usize>, shard: &(impl Fn(usize) -> T + Sync)) -> Vec<T> {
        let threads = rayon::current_num_threads().min(shards.len());
        if threads == 1 {
            return shards.map(shard).collect();
        }
        let part = |thread: usize| {
            let own = shards.clone().skip(thread).step_by(threads);
            own.map(shard).collect::<Vec<_>>().into_iter()
        };
        std::thread::scope(|scope| {
            let others: Vec<_> =
                (1..threads).map(|thread| scope.spawn(move || part(thread))).collect();
            let mut parts = vec![part(0)];
            for other in others {
                parts.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            let next = |i: usize| parts[i % threads].next();
            (0..shards.len()).map_while(next).collect()
        })
    }

    /// Gradient and sums of some games of a minibatch, accumulated over `count` parts.
    fn pass(
        &self,
        experience: &Experience,
        games: &[i32],
        count: usize,
        loss: &impl Fn(Steps) -> Loss,
    ) -> (Tensor<1>, Tensor<1>) {
        let ([_, num_envs, _], device) = (experience.obs.dims(), experience.obs.device());
        let mut gradient = self.weights.params.zeros_like();
        let mut sums = Tensor::<1>::zeros([SUMS], &device);
        for part in parts(games, count).filter(|part| !part.is_empty()) {
            // On the CPU games are always gathered in minibatch order, which determines the order
            // of sums.
            let is_all = self.stays_on_device() && part.len() == num_envs;
            let some = (!is_all).then(|| experience.games(indices(part, &device)));
            let part = some.as_ref().unwrap_or(experience);
            let (loss, of_part) = part.gradient(&self.weights, self.scale(part), loss);
            gradient = gradient + of_part;
            sums = sums + all_sums(&loss);
        }
        (gradient, sums)
    }

    /// [`Learner::pass`] with its results in host memory.
    fn numbers(
        &self,
        experience: &Experience,
        games: &[i32],
        count: usize,
        loss: &impl Fn(Steps) -> Loss,
    ) -> Partial {
        let (gradient, sums) = self.pass(experience, games, count, loss);
        let num_params = self.num_params();
        let mut all = device::fetch(Tensor::cat(vec![gradient, sums], 0));
        let sums = std::array::from_fn(|i| f64::from(all[num_params + i]));
        all.truncate(num_params);
        (all, sums)
    }

    /// Loss scale for half precision (Micikevicius et al. 2018): about the number of steps that the
    /// loss averages over, so that the gradient of a single step does not underflow. A power of
    /// two, which does not affect rounding.
    fn scale(&self, part: &Experience) -> f32 {
        let [num_steps, games] = part.mask.dims();
        match self.config.precision {
            Precision::F16 => (num_steps * games).next_power_of_two() as f32 * LARGEST,
            _ => 1.0,
        }
    }

    /// Memory of the policy before the first step of a trajectory.
    fn first_memory(&self, trajectory: &Trajectory) -> FirstMemory {
        match &trajectory.memory {
            Some(rows) => FirstMemory::Rows(rows.clone()),
            None => {
                let device = trajectory.obs.device();
                FirstMemory::Fresh(self.weights.network.initial_memory(1, &device))
            }
        }
    }
}

/// Sums over the steps of a loss, followed by the loss.
fn all_sums(loss: &Loss) -> Tensor<1> {
    Tensor::cat(vec![loss.sums.clone().without_autodiff(), loss.loss.clone().without_autodiff()], 0)
}

fn indices(games: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::from(games), device)
}
