//! Observers, the interface between recordings and the fused learner: a rollout gives an observer to the learner, whose
//! kernels compute a step's features with it and learn which actions were legal.

use burn::cubecl;
use burn::cubecl::prelude::*;
use std::fmt::Debug;
use std::hash::Hash;

/// The host's side of an [`Observer`].
pub trait HostObserver: Copy + Eq + Hash + Debug + Send + Sync + 'static {
    /// Whether some actions are illegal in some steps.
    const HAS_ILLEGAL_ACTIONS: bool;

    /// Words read for each step.
    fn num_words(&self) -> usize;

    /// Features computed from them.
    fn num_features(&self) -> usize;
}

/// The place of a step's words in a buffer: word `w` is at `first + w * stride`.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct StepWords {
    /// The place of the first word.
    pub first: usize,
    /// The distance from one word to the next.
    pub stride: usize,
}

/// The destination of a step's features, feature `i` at `first + i * stride`, and which of them a unit computes.
#[derive(CubeType, Clone, Copy, Debug)]
pub struct FeatureSlots {
    /// The place of the first feature.
    pub first: usize,
    /// The distance from one feature to the next.
    pub stride: usize,
    /// The unit computes the features `i` with `i % num_workers == worker`.
    pub worker: usize,
    /// The number of units that compute features of the step.
    #[cube(comptime)]
    pub num_workers: usize,
}

/// Computes the policy's observations inside a kernel, from the words that a rollout has stored.
#[cube]
pub trait Observer: HostObserver {
    /// Writes features of a step to `x`.
    fn observe<I: Float>(
        words: &[u32],
        step: &StepWords,
        x: &mut [I],
        to: &FeatureSlots,
        #[comptime] observer: Self,
    );

    /// Whether `action` was legal in a step; asked only if the observer is [`HostObserver::HAS_ILLEGAL_ACTIONS`].
    fn legal(
        words: &[u32],
        step: &StepWords,
        #[comptime] action: usize,
        #[comptime] observer: Self,
    ) -> bool;
}

/// The observer of recordings that store the features themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoredFeatures {
    /// Features of an observation.
    pub num_features: usize,
}

impl HostObserver for StoredFeatures {
    const HAS_ILLEGAL_ACTIONS: bool = false;

    fn num_words(&self) -> usize {
        self.num_features
    }

    fn num_features(&self) -> usize {
        self.num_features
    }
}

#[cube]
impl Observer for StoredFeatures {
    fn observe<I: Float>(
        words: &[u32],
        step: &StepWords,
        x: &mut [I],
        to: &FeatureSlots,
        #[comptime] observer: Self,
    ) {
        for i in range_stepped(to.worker, comptime!(observer.num_features), to.num_workers) {
            let word = words[i * step.stride + step.first];
            x[to.first + i * to.stride] = I::cast_from(f32::reinterpret(word));
        }
    }

    fn legal(
        _words: &[u32],
        _step: &StepWords,
        #[comptime] _action: usize,
        #[comptime] _observer: Self,
    ) -> bool {
        true.runtime()
    }
}
