//! The interface of policies that act on the CPU, for games side by side.

use super::{Lanes, PolicySizes};

/// A policy that acts on the CPU, for [`LANES`](super::LANES) games at once.
///
/// The caller holds the games' memory, `[memory_size][LANES]`, which is [`Actor::initial_memory`], by default 0, at the
/// start of an episode.
pub trait Actor: Sync {
    /// Buffers of one thread.
    type Scratch;

    /// Widths of observations, logits and memory.
    fn sizes(&self) -> PolicySizes;

    /// The number of features of an observation.
    fn num_features(&self) -> usize {
        self.sizes().num_features
    }

    /// The number of actions.
    fn num_actions(&self) -> usize {
        self.sizes().num_actions
    }

    /// The number of floats of memory for each game.
    fn memory_size(&self) -> usize {
        self.sizes().memory_size
    }

    /// The memory of a game at the start of an episode, `[memory_size]`.
    fn initial_memory(&self) -> Vec<f32> {
        vec![0.0; self.memory_size()]
    }

    /// Buffers for one thread.
    fn new_scratch(&self) -> Self::Scratch;

    /// The features that were not 0 in some lane of the last observations, in ascending order; `None` for
    /// policies that do not track them.
    fn active_features<'a>(&self, _scratch: &'a Self::Scratch) -> Option<&'a [usize]> {
        None
    }

    /// Logits, `[num_actions][LANES]`, of observations, `[num_features][LANES]`; updates `memory` in place.
    fn compute_logits<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut Self::Scratch,
    ) -> &'a [Lanes];
}
