//! Who plays and who learns: the fast way where there is one, else the general way.

use crate::config::{Engine, TrainConfig};
use crate::device;
use crate::env::Rules;
#[cfg(feature = "kernels")]
use crate::learner::FusedLearner;
use crate::learner::{AdamW, Learner, Moments, NativeLearner, UpdateStats, Weights};
use crate::policy::{Mlp, NativeMlp, flatten};
#[cfg(feature = "kernels")]
use crate::rollout::FusedRollout;
use crate::rollout::{NativeRollout, RolloutKeys, SeatsError, StepwiseRollout};
use crate::trajectory::Trajectory;
use burn::tensor::{Device, Tensor, TensorData};

/// Steps of a game in one launch at most, so that no launch outlasts the patience of a driver or a
/// browser.
#[cfg(feature = "kernels")]
const STEPS_PER_LAUNCH: usize = 128;

/// Whether a run takes the fast way on a device with kernels.
#[cfg(feature = "kernels")]
fn is_fused(policy: &Mlp, config: &TrainConfig, device: &Device) -> bool {
    config.engine != Engine::General && device::has_kernels(device) && FusedLearner::takes(policy)
}

/// Where the games are played: natively where the device is the CPU; on a device in one kernel, or
/// step by step where the general way is taken.
#[derive(Debug)]
pub(super) enum Games<G: Rules> {
    Native(NativeRollout<G>),
    Stepwise(Box<StepwiseRollout<G>>),
    #[cfg(feature = "kernels")]
    Fused(Box<FusedRollout<G>>),
}

impl<G: Rules> Games<G> {
    pub fn new(game: G, policy: &Mlp, config: &TrainConfig, device: &Device) -> Self {
        let keys = RolloutKeys::new(config.seed);
        #[cfg(feature = "kernels")]
        if is_fused(policy, config, device) {
            let rollout = &config.rollout;
            let fused = FusedRollout::new(game, rollout, keys, device, STEPS_PER_LAUNCH);
            return Self::Fused(Box::new(fused));
        }
        #[cfg(not(feature = "kernels"))]
        let _ = policy;
        if device::has_kernels(device) {
            Self::Stepwise(Box::new(StepwiseRollout::new(game, &config.rollout, keys, device)))
        } else {
            Self::Native(NativeRollout::new(game, &config.rollout, keys))
        }
    }

    pub fn play(&mut self, policy: &Mlp, iteration: u32, device: &Device) -> Trajectory {
        match self {
            Self::Native(games) => games.collect(&NativeMlp::new(policy), iteration, device),
            Self::Stepwise(games) => games.collect(policy, iteration),
            #[cfg(feature = "kernels")]
            Self::Fused(games) => games.collect(policy, iteration),
        }
    }

    /// How the games are played, in words.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Native(_) => "native rollouts",
            Self::Stepwise(_) => "stepwise rollouts",
            #[cfg(feature = "kernels")]
            Self::Fused(_) => "fused rollouts",
        }
    }

    pub fn export(&self) -> Vec<u32> {
        match self {
            Self::Native(games) => games.export(),
            Self::Stepwise(games) => games.export(),
            #[cfg(feature = "kernels")]
            Self::Fused(games) => games.export(),
        }
    }

    pub fn import(&mut self, words: &[u32]) -> Result<(), SeatsError> {
        match self {
            Self::Native(games) => games.import(words),
            Self::Stepwise(games) => games.import(words),
            #[cfg(feature = "kernels")]
            Self::Fused(games) => games.import(words),
        }
    }
}

/// What learns: natively where the device is the CPU; on a device in kernels of our own; by autodiff
/// where these don't apply or the general way is asked for.
#[derive(Debug)]
pub(super) enum Learning {
    Native(Box<NativeLearner>),
    Autodiff(Box<Learner<Mlp>>),
    #[cfg(feature = "kernels")]
    Fused(Box<FusedLearner>),
}

/// A learner's state in host memory, each vector `[num_params]`.
pub(super) struct Learnt {
    pub params: Vec<f32>,
    pub moments: Moments,
    pub reference: Option<Vec<f32>>,
}

impl Learning {
    pub fn new(policy: Mlp, config: &TrainConfig, device: &Device) -> Self {
        #[cfg(feature = "kernels")]
        if is_fused(&policy, config, device) {
            return Self::Fused(Box::new(FusedLearner::new(policy, config)));
        }
        if config.engine == Engine::General || device::has_kernels(device) {
            Self::Autodiff(Box::new(Learner::new(policy, config)))
        } else {
            Self::Native(Box::new(NativeLearner::new(&policy, config)))
        }
    }

    /// Why the general way was taken where `engine` did not ask for it.
    pub fn obstacle(&self, engine: Engine) -> Option<&'static str> {
        match self {
            Self::Autodiff(_) if engine != Engine::General => {
                Some("the fused kernels take one or two hidden layers of up to 256 units")
            }
            _ => None,
        }
    }

    /// How is learnt, in words.
    pub fn describe(&self) -> &'static str {
        match self {
            Self::Native(_) => "native updates",
            Self::Autodiff(_) => "updates by autodiff",
            #[cfg(feature = "kernels")]
            Self::Fused(_) => "fused updates",
        }
    }

    pub fn policy(&self) -> Mlp {
        match self {
            Self::Native(learner) => learner.policy(),
            Self::Autodiff(learner) => learner.weights().policy(),
            #[cfg(feature = "kernels")]
            Self::Fused(learner) => learner.weights().policy(),
        }
    }

    pub fn update(
        &mut self,
        trajectory: &Trajectory,
        advantages: &Tensor<2>,
        mask: &Tensor<2>,
        iteration: u32,
    ) -> UpdateStats {
        match self {
            Self::Native(learner) => {
                let means = learner.update(trajectory, advantages, mask, iteration);
                UpdateStats::new(means, &advantages.device())
            }
            Self::Autodiff(learner) => learner.update(trajectory, advantages, mask, iteration),
            #[cfg(feature = "kernels")]
            Self::Fused(learner) => learner.update(trajectory, advantages, mask, iteration),
        }
    }

    /// Optimiser steps taken.
    pub fn steps(&self) -> u64 {
        match self {
            Self::Native(learner) => learner.steps(),
            Self::Autodiff(learner) => learner.weights().optimizer().steps,
            #[cfg(feature = "kernels")]
            Self::Fused(learner) => learner.weights().optimizer().steps,
        }
    }

    /// The state as it is. On a device this reads back.
    pub fn export(&self) -> Learnt {
        match self {
            Self::Native(learner) => Learnt {
                params: learner.params(),
                moments: learner.optimizer(),
                reference: learner.reference_params(),
            },
            Self::Autodiff(learner) => download(learner.weights()),
            #[cfg(feature = "kernels")]
            Self::Fused(learner) => download(learner.weights()),
        }
    }

    /// Goes on from a state.
    pub fn import(&mut self, state: &Learnt, device: &Device) {
        match self {
            Self::Native(learner) => {
                learner.restore(&state.params, &state.moments, state.reference.as_deref());
            }
            Self::Autodiff(learner) => upload(state, learner.weights_mut(), device),
            #[cfg(feature = "kernels")]
            Self::Fused(learner) => upload(state, learner.weights_mut(), device),
        }
    }
}

/// A state from a device.
fn download(weights: &Weights<Mlp>) -> Learnt {
    let read = |tensor: &Tensor<1>| device::read(tensor.clone());
    let optimizer = weights.optimizer();
    Learnt {
        params: read(weights.params()),
        moments: Moments {
            first_moment: read(&optimizer.first_moment),
            second_moment: read(&optimizer.second_moment),
            steps: optimizer.steps,
        },
        reference: weights.reference().map(|policy| read(&flatten(policy))),
    }
}

/// Puts a state on a device.
fn upload(state: &Learnt, weights: &mut Weights<Mlp>, device: &Device) {
    let upload = |values: &Vec<f32>| {
        Tensor::<1>::from_data(TensorData::new(values.clone(), [values.len()]), device)
    };
    let optimizer = AdamW {
        first_moment: upload(&state.moments.first_moment),
        second_moment: upload(&state.moments.second_moment),
        steps: state.moments.steps,
    };
    weights.restore(upload(&state.params), optimizer, state.reference.as_ref().map(upload));
}
