//! Policy losses and the list of them ([`LossType`]); those with a clipped ratio share `clip.rs`, any other has a file.
//!
//! A loss is a weighted sum over steps of a policy term, minus the entropy bonus, plus the
//! divergence from a reference policy ([`kl`]). The policy term depends on the step's ratio,
//! advantage and log-probability. Each file implements it twice: on scalars with a hand-written
//! derivative (`term`), for the lanes and kernels of the native and fused engines, and on tensors (`tensor_terms`),
//! for autodiff. All engines call them through [`LossType`] and [`term()`].

mod cispo;
mod clip;
pub mod kl;
mod nll;
mod sapo;
mod scalar;
mod settings;
mod tensors;
pub mod weights;

pub use scalar::{SequenceRatio, Step, StepLanes, Term, TermLanes, d_logit};
pub use settings::{KlEstimator, LossConfig, LossForm, LossParams, LossParamsLaunch};
pub use tensors::{Loss, LossSteps, TensorSteps, TensorTerms, loss};
pub use weights::{Averaging, TensorStepDenominators};

use crate::schema::names;
use burn::cubecl;
use burn::cubecl::prelude::*;
use scalar::evaluate_lanes;

names! {
    /// Losses by the names that TRL gives them.
    pub enum LossType {
        /// The clipped surrogate, averaged over the steps of each game, then over games, whatever their length (Shao et
        /// al. 2024).
        Grpo = "grpo",
        /// The clipped surrogate, summed over all steps and divided by the constant `learn_steps` times the number of
        /// games (Liu et al. 2025).
        ///
        /// `learn_steps` is the maximum number of learnt steps per game, in analogy to TRL's `max_completion_length`.
        /// All steps have equal weight, whatever the length of their game.
        DrGrpo = "dr_grpo",
        /// The clipped surrogate, averaged over all steps of the rollout, across minibatches (Yu et al.
        /// 2025).
        Dapo = "dapo",
        /// The clipped surrogate, averaged over all steps of the minibatch.
        Bnpo = "bnpo",
        /// The surrogate of `grpo` with one ratio per game: the geometric mean over its steps (Zheng et
        /// al. 2025).
        ///
        /// The logarithm of the ratio is the mean of the log-ratios over the unmasked steps of a game. Each of these
        /// steps therefore receives the sum of the game's derivatives divided by their number.
        Gspo = "gspo",
        /// `log pi` weighted by the clipped, detached ratio, averaged as in `dapo` (MiniMax 2025).
        Cispo = "cispo",
        /// A soft gate instead of clipping, averaged as in `grpo` (Gao et al. 2025).
        Sapo = "sapo",
        /// `-w log pi` with the advantage as weight `w`, averaged over all steps of the minibatch:
        /// supervised learning, independent of the behaviour policy.
        Nll = "nll",
    }
}

/// The terms that losses average over the steps, each in a file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PolicyTerm {
    /// The surrogate with a clipped ratio.
    Clip,
    Cispo,
    Sapo,
    Nll,
}

impl LossType {
    /// Averaging of the loss's terms.
    pub const fn averaging(self) -> Averaging {
        match self {
            Self::Grpo | Self::Gspo | Self::Sapo => Averaging::Sequence,
            Self::DrGrpo => Averaging::Constant,
            Self::Dapo | Self::Cispo => Averaging::Rollout,
            Self::Bnpo | Self::Nll => Averaging::Minibatch,
        }
    }

    /// Whether the ratio is per game, the geometric mean over its steps, instead of per step.
    pub const fn has_sequence_ratio(self) -> bool {
        matches!(self, Self::Gspo)
    }

    /// The policy term of the loss.
    const fn policy_term(self) -> PolicyTerm {
        match self {
            Self::Grpo | Self::DrGrpo | Self::Dapo | Self::Bnpo | Self::Gspo => PolicyTerm::Clip,
            Self::Cispo => PolicyTerm::Cispo,
            Self::Sapo => PolicyTerm::Sapo,
            Self::Nll => PolicyTerm::Nll,
        }
    }

    /// Computes the policy term of each step, in tensors.
    pub fn tensor_terms(self, steps: &TensorSteps, config: &LossConfig) -> TensorTerms {
        match self.policy_term() {
            PolicyTerm::Clip => clip::tensor_terms(steps, config),
            PolicyTerm::Cispo => cispo::tensor_terms(steps, config),
            PolicyTerm::Sapo => sapo::tensor_terms(steps, config),
            PolicyTerm::Nll => nll::tensor_terms(steps),
        }
    }

    /// Computes the policy terms of `N` steps in SIMD lanes.
    #[inline(always)]
    pub fn lane_terms<const N: usize>(
        self,
        steps: &StepLanes<N>,
        loss_params: &LossParams,
    ) -> TermLanes<N> {
        match self.policy_term() {
            PolicyTerm::Clip => evaluate_lanes(steps, |step| clip::term(step, loss_params)),
            PolicyTerm::Cispo => evaluate_lanes(steps, |step| cispo::term(step, loss_params)),
            PolicyTerm::Sapo => evaluate_lanes(steps, |step| sapo::term(step, loss_params)),
            PolicyTerm::Nll => evaluate_lanes(steps, nll::term),
        }
    }
}

/// Computes the policy term of one step.
#[cube]
#[inline(always)]
pub fn term(step: &Step, loss_params: &LossParams, #[comptime] loss_type: LossType) -> Term {
    match comptime!(loss_type.policy_term()) {
        PolicyTerm::Clip => clip::term(step, loss_params),
        PolicyTerm::Cispo => cispo::term(step, loss_params),
        PolicyTerm::Sapo => sapo::term(step, loss_params),
        PolicyTerm::Nll => nll::term(step),
    }
}
