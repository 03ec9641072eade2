//! Who plays and who learns: the fast way where there is one, else the general way.

use crate::config::{Engine, TrainConfig};
use crate::device;
use crate::env::Rules;
use crate::learner::{AdamW, Learner, Moments, NativeLearner, UpdateStats};
use crate::policy::{Mlp, NativeMlp, flatten};
use crate::rollout::{NativeRollout, RolloutKeys, SeatsError, StepwiseRollout};
use crate::trajectory::Trajectory;
use burn::tensor::{Device, Tensor, TensorData};

/// Where the games are played: natively where the device is the CPU, else on the device.
#[derive(Debug)]
pub(super) enum Games<G: Rules> {
    Native(NativeRollout<G>),
    Stepwise(StepwiseRollout<G>),
}

impl<G: Rules> Games<G> {
    pub fn new(game: G, config: &TrainConfig, device: &Device) -> Self {
        let keys = RolloutKeys::new(config.seed);
        if device::has_kernels(device) {
            Self::Stepwise(StepwiseRollout::new(game, &config.rollout, keys, device))
        } else {
            Self::Native(NativeRollout::new(game, &config.rollout, keys))
        }
    }

    pub fn play(&mut self, policy: &Mlp, iteration: u32, device: &Device) -> Trajectory {
        match self {
            Self::Native(games) => games.collect(&NativeMlp::new(policy), iteration, device),
            Self::Stepwise(games) => games.collect(policy, iteration),
        }
    }

    pub fn export(&self) -> Vec<u32> {
        match self {
            Self::Native(games) => games.export(),
            Self::Stepwise(games) => games.export(),
        }
    }

    pub fn import(&mut self, words: &[u32]) -> Result<(), SeatsError> {
        match self {
            Self::Native(games) => games.import(words),
            Self::Stepwise(games) => games.import(words),
        }
    }
}

/// What learns: natively where the device is the CPU, by autodiff elsewhere or where the general way
/// is asked for.
#[derive(Debug)]
pub(super) enum Learning {
    Native(Box<NativeLearner>),
    Autodiff(Box<Learner<Mlp>>),
}

/// A learner's state in host memory, each vector `[num_params]`.
pub(super) struct Learnt {
    pub params: Vec<f32>,
    pub moments: Moments,
    pub reference: Option<Vec<f32>>,
}

impl Learning {
    pub fn new(policy: Mlp, config: &TrainConfig, device: &Device) -> Self {
        if config.engine == Engine::General || device::has_kernels(device) {
            Self::Autodiff(Box::new(Learner::new(policy, config)))
        } else {
            Self::Native(Box::new(NativeLearner::new(&policy, config)))
        }
    }

    pub fn policy(&self) -> Mlp {
        match self {
            Self::Native(learner) => learner.policy(),
            Self::Autodiff(learner) => learner.policy(),
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
        }
    }

    /// Optimiser steps taken.
    pub fn steps(&self) -> u64 {
        match self {
            Self::Native(learner) => learner.steps(),
            Self::Autodiff(learner) => learner.optimizer().steps,
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
            Self::Autodiff(learner) => {
                let optimizer = learner.optimizer();
                let read = |tensor: &Tensor<1>| device::read(tensor.clone());
                Learnt {
                    params: read(learner.params()),
                    moments: Moments {
                        first_moment: read(&optimizer.first_moment),
                        second_moment: read(&optimizer.second_moment),
                        steps: optimizer.steps,
                    },
                    reference: learner.reference().map(|policy| read(&flatten(policy))),
                }
            }
        }
    }

    /// Goes on from a state.
    pub fn import(&mut self, state: &Learnt, device: &Device) {
        match self {
            Self::Native(learner) => {
                learner.restore(&state.params, &state.moments, state.reference.as_deref());
            }
            Self::Autodiff(learner) => {
                let upload = |values: &Vec<f32>| {
                    let data = TensorData::new(values.clone(), [values.len()]);
                    Tensor::<1>::from_data(data, device)
                };
                let optimizer = AdamW {
                    first_moment: upload(&state.moments.first_moment),
                    second_moment: upload(&state.moments.second_moment),
                    steps: state.moments.steps,
                };
                let reference = state.reference.as_ref().map(upload);
                learner.restore(upload(&state.params), optimizer, reference);
            }
        }
    }
}
