//! The losses: one file each, and one list of them.
//!
//! Each is a weighted sum over steps of a policy term, minus the entropy, plus the divergence from a
//! reference policy ([`kl`]). The policy term of a step is a function of its ratio, its advantage and its
//! log-probability. A file of a loss has it twice: as scalars with the derivative by hand (`term`), which
//! the fast engines call from lanes and kernels, and as tensors ([`Objective::host`]) for autodiff.
//! The list below gives [`LossType`], its names, and the calls of every engine, so that
//! an engine without one of the losses does not compile.

mod clip;
mod host;
pub mod kl;
mod scalar;
mod settings;
pub mod weights;

pub use host::{HostSteps, HostTerms, Loss, Steps, Totals, loss};
pub use kl::KlEstimator;
pub use scalar::{Step, StepLanes, Term, TermLanes, by_logit};
pub use settings::{Coefficients, CoefficientsLaunch, Form, LossConfig};
pub use weights::Averaging;

use crate::schema::names;
use burn::cubecl::prelude::*;
use scalar::term_lanes;

/// What a loss says of itself, and its policy term in tensors.
pub trait Objective {
    /// How its terms are averaged.
    const AVERAGING: Averaging;
    /// Whether the ratio of a step is that of its whole game: the geometric mean over its steps.
    const RATIO_OF_GAME: bool = false;
    /// Whether there is a bound that the ratio can leave, so that the share of steps at which it has is
    /// worth a report.
    const CLIPS: bool;

    /// The policy term of each step.
    fn host(steps: &HostSteps, config: &LossConfig) -> HostTerms;
}

macro_rules! objectives {
    ($($(#[$doc:meta])* $module:ident: $Name:ident,)+) => {
        $(mod $module;)+
        $(pub use $module::$Name;)+

        /// Losses by the names that TRL gives them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum LossType {
            $($(#[$doc])* $Name,)+
        }

        names!(LossType { $($Name = stringify!($module),)+ });

        impl LossType {
            /// How its terms are averaged.
            pub const fn averaging(self) -> Averaging {
                match self { $(Self::$Name => $Name::AVERAGING,)+ }
            }

            /// Whether the ratio of a step is that of its whole game.
            pub const fn ratio_of_game(self) -> bool {
                match self { $(Self::$Name => $Name::RATIO_OF_GAME,)+ }
            }

            /// Whether there is a bound that the ratio can leave.
            pub const fn clips(self) -> bool {
                match self { $(Self::$Name => $Name::CLIPS,)+ }
            }

            /// The policy term of each step, in tensors.
            pub fn host(self, steps: &HostSteps, config: &LossConfig) -> HostTerms {
                match self { $(Self::$Name => $Name::host(steps, config),)+ }
            }

            /// The policy terms of steps side by side.
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

        /// The policy term of a step.
        #[inline(always)]
        pub fn term(step: &Step, by: &Coefficients, loss_type: LossType) -> Term {
            match loss_type {
                $(LossType::$Name => $module::term(step, by),)+
            }
        }

        /// The kernel side of [`term()`], written out because `#[cube]` does not see through a macro's
        /// names.
        pub mod term {
            use super::*;

            /// Expands to the term of the loss, which is known when the kernel is compiled.
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
    /// The clipped surrogate, averaged over the steps of a game, then over the games (Shao et al. 2024).
    grpo: Grpo,
    /// The clipped surrogate, summed over all steps and divided by `learn_steps` times the games: a
    /// constant (Liu et al. 2025).
    dr_grpo: DrGrpo,
    /// The clipped surrogate, averaged over all steps of the rollout, whichever minibatch they are in
    /// (Yu et al. 2025).
    dapo: Dapo,
    /// The clipped surrogate, averaged over all steps of the minibatch.
    bnpo: Bnpo,
    /// The surrogate of `grpo` with one ratio a game: the geometric mean over its steps (Zheng et al. 2025).
    gspo: Gspo,
    /// The clipped ratio as a constant weight of `log pi`, averaged as in `dapo` (MiniMax 2025).
    cispo: Cispo,
    /// A soft gate instead of clipping, averaged as in `grpo` (Gao et al. 2025).
    sapo: Sapo,
    /// `-w log pi`, with the advantage as the weight `w`, averaged over all steps of the minibatch:
    /// learning from data, whatever acted.
    nll: Nll,
}
