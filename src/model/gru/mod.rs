//! The gated recurrent network, for training on any device and for acting on the CPU's vector units.

mod burn;
mod cpu;
mod kind;
mod learn;

pub use self::burn::Gru;
pub use cpu::NativeGru;
