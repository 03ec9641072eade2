//! Policy losses and the list of them. Those that are no clipped surrogate have a file each.
//!
//! A loss is a weighted sum over steps of a policy term, minus the entropy bonus, plus the
//! divergence from a reference policy ([`kl`]). The policy term depends on the step's ratio,
//! advantage and log-probability. Each loss implements it twice: on scalars with a hand-written
//! derivative (`term`), for the lanes and kernels of the fast engines, and on tensors
//! ([`Objective::tensors`]), for autodiff. [`LossType`], the names of the losses and the dispatch of
//! all engines are generated from the list below, so an engine that lacks a loss does not compile.

mod clip;
pub mod kl;
mod scalar;
mod settings;
mod tensors;
pub mod weights;

pub use scalar::{GameRatio, Step, StepLanes, Term, TermLanes, by_logit};
pub use settings::{Coefficients, CoefficientsLaunch, Form, KlEstimator, LossConfig};
pub use tensors::{Loss, Steps, TensorSteps, TensorTerms, loss};
pub use weights::{Averaging, Totals};

use crate::schema::names;
use burn::cubecl::prelude::*;
use scalar::term_lanes;

/// Properties of a loss, and its policy term in tensors.
pub trait Objective {
    /// Averaging of the terms.
    const AVERAGING: Averaging;
    /// Whether the ratio is per game, the geometric mean over its steps, instead of per step.
    const RATIO_OF_GAME: bool = false;
    /// Whether the loss clips the ratio, so that the fraction of clipped steps is reported.
    const CLIPS: bool;

    /// Computes the policy term of each step.
    fn tensors(steps: &TensorSteps, config: &LossConfig) -> TensorTerms;
}

/// Declares the module of a loss: its file, or the clipped surrogate with this averaging and kind of ratio.
macro_rules! module {
    ($(#[$doc:meta])* $module:ident: $Name:ident) => {
        mod $module;
    };
    ($(#[$doc:meta])* $module:ident: $Name:ident = $averaging:ident, $of_game:literal) => {
        mod $module {
            pub(super) use super::clip::surrogate as term;

            $(#[$doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $Name;

            impl super::Objective for $Name {
                const AVERAGING: super::Averaging = super::Averaging::$averaging;
                const RATIO_OF_GAME: bool = $of_game;
                const CLIPS: bool = true;

                fn tensors(steps: &super::TensorSteps, config: &super::LossConfig) -> super::TensorTerms {
                    super::clip::surrogate_tensors(steps, config)
                }
            }
        }
    };
}

macro_rules! objectives {
    ($($(#[$doc:meta])* $module:ident: $Name:ident $(= $averaging:ident, ratio_of_game $of_game:literal)?;)+) => {
        $(module!($(#[$doc])* $module: $Name $(= $averaging, $of_game)?);)+
        $(pub use $module::$Name;)+

        /// Losses by the names that TRL gives them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum LossType {
            $($(#[$doc])* $Name,)+
        }

        names!(LossType { $($Name = stringify!($module),)+ });

        impl LossType {
            /// Averaging of the loss's terms.
            pub const fn averaging(self) -> Averaging {
                match self { $(Self::$Name => $Name::AVERAGING,)+ }
            }

            /// Whether the ratio is per game instead of per step.
            pub const fn ratio_of_game(self) -> bool {
                match self { $(Self::$Name => $Name::RATIO_OF_GAME,)+ }
            }

            /// Whether the loss clips the ratio.
            pub const fn clips(self) -> bool {
                match self { $(Self::$Name => $Name::CLIPS,)+ }
            }

            /// Computes the policy term of each step, in tensors.
            pub fn tensors(self, steps: &TensorSteps, config: &LossConfig) -> TensorTerms {
                match self { $(Self::$Name => $Name::tensors(steps, config),)+ }
            }

            /// Computes the policy terms of `N` steps in SIMD lanes.
            #[inline(always)]
            pub fn terms<const N: usize>(
                self,
                steps: &StepLanes<N>,
                by: &Coefficients,
            ) -> TermLanes<N> {
                match self {
                    $(Self::$Name => term_lanes(steps, |step| $module::term(step, by)),)+
                }
            }
        }

        /// Computes the policy term of one step.
        #[inline(always)]
        pub fn term(step: &Step, by: &Coefficients, loss_type: LossType) -> Term {
            match loss_type {
                $(LossType::$Name => $module::term(step, by),)+
            }
        }

        /// Kernel-side form of [`term()`], written by hand because `#[cube]` does not expand macro
        /// names.
        pub mod term {
            use super::*;

            /// Expands to the term of the given loss, known when the kernel is compiled.
            pub fn expand(
                scope: &Scope,
                step: &<Step as CubeType>::ExpandType,
                by: &<Coefficients as CubeType>::ExpandType,
                loss_type: LossType,
            ) -> <Term as CubeType>::ExpandType {
                match loss_type {
                    $(LossType::$Name => $module::term::expand(scope, step, by),)+
                }
            }
        }
    };
}

objectives! {
    /// The clipped surrogate, averaged over the steps of each game, then over games, whatever their length (Shao et al.
    /// 2024).
    grpo: Grpo = Game, ratio_of_game false;
    /// The clipped surrogate, summed over all steps and divided by the constant `learn_steps` times the number of games
    /// (Liu et al. 2025).
    ///
    /// `learn_steps` is the maximum number of learnt steps per game, in analogy to TRL's `max_completion_length`. All steps
    /// have equal weight, whatever the length of their game.
    dr_grpo: DrGrpo = Constant, ratio_of_game false;
    /// The clipped surrogate, averaged over all steps of the rollout, across minibatches (Yu et al.
    /// 2025).
    dapo: Dapo = Rollout, ratio_of_game false;
    /// The clipped surrogate, averaged over all steps of the minibatch.
    bnpo: Bnpo = Minibatch, ratio_of_game false;
    /// The surrogate of `grpo` with one ratio per game: the geometric mean over its steps (Zheng et
    /// al. 2025).
    ///
    /// The logarithm of the ratio is the mean of the log-ratios over the unmasked steps of a game. Each of these steps
    /// therefore receives the sum of the game's derivatives divided by their number.
    gspo: Gspo = Game, ratio_of_game true;
    /// `log pi` weighted by the clipped, detached ratio, averaged as in `dapo` (MiniMax 2025).
    cispo: Cispo;
    /// A soft gate instead of clipping, averaged as in `grpo` (Gao et al. 2025).
    sapo: Sapo;
    /// `-w log pi` with the advantage as weight `w`, averaged over all steps of the minibatch:
    /// supervised learning, independent of the behaviour policy.
    nll: Nll;
}
