//! Networks with a hand-written backward pass over whole games on the CPU ([`SequenceModel`]).
//!
//! Games are distributed over partial gradients, whose number does not depend on that of the threads, and which are
//! summed in a fixed order, so that any number of threads gives the same bytes.

use super::{Pool, fill_zeros};
use crate::math::{LANES, Lanes};
use rayon::prelude::*;
use std::fmt::Debug;
use std::ops::Range;

/// Parameters summed by one thread at a time.
const SUM_CHUNK: usize = 1 << 12;

/// Sequences of some games, time-major, as [`Model::sequence`](crate::model::Model::sequence) takes them.
#[derive(Clone, Debug, Default)]
pub struct Sequences {
    /// Number of games.
    pub num_games: usize,
    /// `[num_steps, games, num_features]`.
    pub obs: Vec<f32>,
    /// `[num_steps, games]`: 1 where an episode starts.
    pub starts: Vec<f32>,
    /// Memory before the first step: `[games, memory_size]`; empty if it is 0.
    pub memory: Vec<f32>,
}

impl Sequences {
    /// The number of steps of each game.
    pub fn num_steps(&self) -> usize {
        self.starts.len() / self.num_games
    }

    /// Copies the rows of some games, `[num_steps, range, width]`, from those of all, `[num_steps, games, width]`.
    pub fn copy_rows(&self, values: &[f32], range: Range<usize>, rows: &mut Vec<f32>) {
        let width = values.len() / self.starts.len();
        rows.clear();
        for step in values.chunks_exact(self.num_games * width) {
            rows.extend_from_slice(&step[range.start * width..range.end * width]);
        }
    }

    /// The number of features of an observation.
    pub fn num_features(&self) -> usize {
        self.obs.len() / self.starts.len()
    }
}

/// Transposes lanes, `[width][LANES]`, to rows, `[LANES, width]`.
pub fn to_rows(lanes: &[Lanes]) -> Vec<f32> {
    (0..LANES).flat_map(|lane| lanes.iter().map(move |lanes| lanes[lane])).collect()
}

/// Transposes rows, `[LANES, width]`, to lanes, `[width][LANES]`.
pub fn to_lanes(rows: &[f32], lanes: &mut [Lanes]) {
    for (lane, row) in rows.chunks_exact(lanes.len()).enumerate() {
        lanes.iter_mut().zip(row).for_each(|(lanes, x)| lanes[lane] = *x);
    }
}

/// Widths of a policy's observations, logits and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicySizes {
    /// Features of an observation.
    pub num_features: usize,
    /// Number of actions.
    pub num_actions: usize,
    /// Floats of memory of each game.
    pub memory_size: usize,
}

/// A network with a hand-written backward pass over sequences.
pub trait SequenceModel: Clone + Debug + Send + Sync + 'static {
    /// The activations of some games that the backward pass needs.
    type Tape: Debug + Default + Send;

    /// Widths of observations, logits and memory.
    fn sizes(&self) -> PolicySizes;

    /// The parameters, `[num_params]`, in the order of [`flatten`](crate::model::flatten).
    fn params(&self) -> &[f32];

    /// The parameters, mutable; [`SequenceModel::repack`] must follow a change.
    fn params_mut(&mut self) -> &mut [f32];

    /// Updates the packed copies of the parameters.
    fn repack(&mut self);

    /// Computes a step of [`LANES`](crate::math::LANES) games: logits `[LANES, num_actions]` of observations
    /// `[LANES, num_features]`, equal to those of whole sequences to the last bit; updates `memory`,
    /// `[memory_size][LANES]`, in place.
    fn compute_logits(
        &self,
        obs: &[f32],
        memory: &mut [Lanes],
        tape: &mut Self::Tape,
        logits: &mut [f32],
    );

    /// Runs the forward pass of the games in this range: logits `[num_steps, range, num_actions]`.
    fn forward(
        &self,
        sequences: &Sequences,
        games: Range<usize>,
        tape: &mut Self::Tape,
        logits: &mut [f32],
    );

    /// Adds the gradient of the parameters to `gradient`, from the gradient of the logits.
    fn backward(&self, tape: &mut Self::Tape, d_logits: &[f32], gradient: &mut [f32]);
}

/// A [`SequenceModel`] with its type erased, which has its own buffers; several calls may be in progress at a time.
pub trait DynSequenceModel: Debug + Send + Sync {
    /// The parameters, `[num_params]`, in the order of [`flatten`](crate::model::flatten).
    fn params(&self) -> &[f32];

    /// Changes the parameters.
    fn change(&mut self, change: &mut dyn FnMut(&mut [f32]));

    /// Widths of observations, logits and memory.
    fn sizes(&self) -> PolicySizes;

    /// Computes a step of some games ([`SequenceModel::compute_logits`]).
    ///
    /// # Panics
    /// If there are no parameters yet, or lengths do not belong together.
    fn compute_logits(&self, obs: &[f32], memory: &mut [Lanes], logits: &mut [f32]);

    /// Logits of sequences: `[num_steps, games, num_actions]`.
    ///
    /// # Panics
    /// If lengths do not belong together.
    fn logits(&self, sequences: &Sequences) -> Vec<f32>;

    /// The gradient of all parameters, the sum of at most `max_partials` partial ones, which are computed in parallel.
    /// `differentiate` turns the logits into the gradient with respect to them.
    ///
    /// # Panics
    /// If lengths do not belong together.
    fn gradient(
        &self,
        sequences: &Sequences,
        max_partials: usize,
        differentiate: &mut dyn FnMut(Vec<f32>) -> Vec<f32>,
    ) -> Vec<f32>;

    /// Returns the buffer of a gradient for reuse.
    fn give_back(&self, gradient: Vec<f32>);

    /// A copy with the same parameters.
    fn clone_boxed(&self) -> Box<dyn DynSequenceModel>;
}

impl Clone for Box<dyn DynSequenceModel> {
    fn clone(&self) -> Self {
        (**self).clone_boxed()
    }
}

/// The [`DynSequenceModel`] of a network with a hand-written backward pass.
#[derive(Debug)]
pub struct PooledSequenceModel<M: SequenceModel> {
    model: M,
    step_tapes: Pool<M::Tape>,
    passes: Pool<Vec<ThreadPass<M::Tape>>>,
    gradients: Pool<Vec<f32>>,
}

/// Some games whose forward and backward pass one thread runs.
#[derive(Debug, Default)]
struct ThreadPass<T> {
    games: Range<usize>,
    tape: T,
    /// Logits of the forward pass, then their gradient: `[num_steps, games, num_actions]`.
    logits: Vec<f32>,
}

impl<M: SequenceModel> Clone for PooledSequenceModel<M> {
    fn clone(&self) -> Self {
        Self::new(self.model.clone())
    }
}

impl<M: SequenceModel> PooledSequenceModel<M> {
    /// Wraps a network with empty pools of buffers.
    pub fn new(model: M) -> Self {
        let (step_tapes, passes) = (Pool::default(), Pool::default());
        Self { model, step_tapes, passes, gradients: Pool::default() }
    }

    /// Runs the forward pass of all games, in at most `max_passes` parallel passes.
    fn forward(
        &self,
        sequences: &Sequences,
        passes: &mut Vec<ThreadPass<M::Tape>>,
        max_passes: usize,
    ) -> Vec<f32> {
        let (PolicySizes { num_actions, .. }, steps) = (self.model.sizes(), sequences.num_steps());
        let games_per_pass = sequences.num_games.div_ceil(max_passes);
        passes.resize_with(sequences.num_games.div_ceil(games_per_pass), ThreadPass::default);
        passes.par_iter_mut().enumerate().for_each(|(index, pass)| {
            pass.games =
                index * games_per_pass..((index + 1) * games_per_pass).min(sequences.num_games);
            pass.logits.resize(steps * pass.games.len() * num_actions, 0.0);
            self.model.forward(sequences, pass.games.clone(), &mut pass.tape, &mut pass.logits);
        });
        let mut logits = vec![0.0; steps * sequences.num_games * num_actions];
        for (all, t) in logits.chunks_exact_mut(sequences.num_games * num_actions).zip(0..) {
            for ThreadPass { games, logits, .. } in &*passes {
                let width = games.len() * num_actions;
                all[games.start * num_actions..][..width]
                    .copy_from_slice(&logits[t * width..][..width]);
            }
        }
        logits
    }

    /// Runs the backward pass of all games and sums their gradients.
    fn backward(
        &self,
        passes: &mut [ThreadPass<M::Tape>],
        d_logits: &[f32],
        games: usize,
    ) -> Vec<f32> {
        let PolicySizes { num_actions, .. } = self.model.sizes();
        let partial = |ThreadPass { games: range, tape, logits }: &mut ThreadPass<M::Tape>| {
            let mut gradient = self.gradients.take();
            fill_zeros(&mut gradient, self.model.params().len());
            logits.clear();
            for all in d_logits.chunks_exact(games * num_actions) {
                logits.extend_from_slice(&all[range.start * num_actions..range.end * num_actions]);
            }
            self.model.backward(tape, logits, &mut gradient);
            gradient
        };
        let partials: Vec<_> = passes.par_iter_mut().map(partial).collect();
        let mut partials = partials.into_iter();
        let mut gradient = partials.next().expect("there are games");
        let others: Vec<_> = partials.collect();
        gradient.par_chunks_mut(SUM_CHUNK).enumerate().for_each(|(i, sum)| {
            for other in &others {
                let chunk = &other[i * SUM_CHUNK..][..sum.len()];
                sum.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += x);
            }
        });
        others.into_iter().for_each(|other| self.gradients.put(other));
        gradient
    }
}

impl<M: SequenceModel> DynSequenceModel for PooledSequenceModel<M> {
    fn params(&self) -> &[f32] {
        self.model.params()
    }

    fn change(&mut self, change: &mut dyn FnMut(&mut [f32])) {
        change(self.model.params_mut());
        self.model.repack();
    }

    fn sizes(&self) -> PolicySizes {
        self.model.sizes()
    }

    fn compute_logits(&self, obs: &[f32], memory: &mut [Lanes], logits: &mut [f32]) {
        self.step_tapes.with(|tape| self.model.compute_logits(obs, memory, tape, logits));
    }

    fn logits(&self, sequences: &Sequences) -> Vec<f32> {
        self.passes.with(|passes| self.forward(sequences, passes, sequences.num_games))
    }

    fn gradient(
        &self,
        sequences: &Sequences,
        max_partials: usize,
        differentiate: &mut dyn FnMut(Vec<f32>) -> Vec<f32>,
    ) -> Vec<f32> {
        self.passes.with(|passes| {
            let d_logits = differentiate(self.forward(sequences, passes, max_partials));
            self.backward(passes, &d_logits, sequences.num_games)
        })
    }

    fn give_back(&self, gradient: Vec<f32>) {
        self.gradients.put(gradient);
    }

    fn clone_boxed(&self) -> Box<dyn DynSequenceModel> {
        Box::new(self.clone())
    }
}
