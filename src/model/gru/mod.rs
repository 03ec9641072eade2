//! The gated recurrent network: for training anywhere, and on the CPU's vector units.

mod burn;
mod cpu;
mod kind;

pub use self::burn::Gru;
pub use cpu::NativeGru;
