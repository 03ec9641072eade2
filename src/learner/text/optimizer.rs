//! State of the optimizer of a language model, in each place and precision in which it is kept.

#[cfg(text_kernels)]
use super::device;
use crate::learner::eight_bit::EightBitMoments;
use crate::learner::moment::Bf16Moment;
use crate::learner::optimizer::{Moments, StepSettings};
use crate::model::policy_file::ParameterValues;
use crate::settings::MomentPrecision;
use bytemuck::TransparentWrapper;
use std::borrow::Cow;

/// Optimizer state: in host memory, in one of the precisions, or on the decoder's device.
#[derive(Clone, Debug)]
pub(super) enum AnyMoments {
    F32(Moments),
    Bf16(Moments<Bf16Moment>),
    EightBit(EightBitMoments),
    #[cfg(text_kernels)]
    Device(Box<device::DeviceMoments>),
}

impl AnyMoments {
    /// Creates the initial state in host memory for parameters of these sizes.
    pub fn new(precision: MomentPrecision, sizes: Vec<usize>) -> Self {
        let count = sizes.iter().sum();
        match precision {
            MomentPrecision::F32 => Self::F32(Moments::zeros(count)),
            MomentPrecision::Bf16 => Self::Bf16(Moments::zeros(count)),
            MomentPrecision::EightBit => Self::EightBit(EightBitMoments::zeros(sizes)),
        }
    }

    /// The state in host memory and in f32; a copy if it is on a device or in another precision.
    pub fn read_moments(&self) -> Cow<'_, Moments> {
        match self {
            Self::F32(moments) => Cow::Borrowed(moments),
            Self::Bf16(moments) => Cow::Owned(moments.convert()),
            Self::EightBit(moments) => Cow::Owned(moments.dequantize()),
            #[cfg(text_kernels)]
            Self::Device(moments) => Cow::Owned(moments.download()),
        }
    }

    /// Calls `save` with the first and the second moment, in their precision in host memory, and returns the number of
    /// steps taken.
    pub fn save(&self, save: impl FnOnce([ParameterValues; 2])) -> u64 {
        match self {
            Self::Bf16(moments) => {
                save([
                    ParameterValues::Bf16(Bf16Moment::peel_slice(&moments.first_moment)),
                    ParameterValues::Bf16(Bf16Moment::peel_slice(&moments.second_moment)),
                ]);
                moments.steps
            }
            Self::EightBit(moments) => {
                let (first, second) = (&moments.first_moment, &moments.second_moment);
                save([
                    ParameterValues::I8 { codes: &first.codes, scales: &first.scales },
                    ParameterValues::U8 { codes: &second.codes, scales: &second.scales },
                ]);
                moments.steps
            }
            _ => {
                let moments = self.read_moments();
                save([
                    ParameterValues::F32(&moments.first_moment),
                    ParameterValues::F32(&moments.second_moment),
                ]);
                moments.steps
            }
        }
    }

    /// Converts the state to this precision in host memory, unless it is kept so already. `sizes` are the numbers of
    /// elements of the parameters.
    pub fn convert_to(&mut self, precision: MomentPrecision, sizes: impl FnOnce() -> Vec<usize>) {
        *self = match (precision, &*self) {
            (MomentPrecision::F32, Self::F32(_))
            | (MomentPrecision::Bf16, Self::Bf16(_))
            | (MomentPrecision::EightBit, Self::EightBit(_)) => return,
            (MomentPrecision::F32, _) => Self::F32(self.read_moments().into_owned()),
            (MomentPrecision::Bf16, _) => Self::Bf16(self.read_moments().convert()),
            (MomentPrecision::EightBit, _) => {
                Self::EightBit(EightBitMoments::quantize(&self.read_moments(), sizes()))
            }
        };
    }

    /// Performs [`Moments::step`] in host memory.
    ///
    /// # Panics
    /// If the state is on a device.
    pub fn step(
        &mut self,
        params: &mut [f32],
        gradient: &[f32],
        scale: f32,
        settings: &StepSettings,
    ) {
        match self {
            Self::F32(moments) => moments.step(params, gradient, scale, settings),
            Self::Bf16(moments) => moments.step(params, gradient, scale, settings),
            Self::EightBit(moments) => moments.step(params, gradient, scale, settings),
            #[cfg(text_kernels)]
            Self::Device(_) => unreachable!("copied to host memory"),
        }
    }
}
