//! The execution of a decoder in Burn's tensors, on any device, with or without autodiff.

pub(crate) mod activation;
#[cfg(text_kernels)]
pub(crate) mod arenas;
pub(crate) mod attention;
pub(crate) mod decoder;
#[cfg_attr(not(text_kernels), path = "device_copy_stub.rs")]
pub mod device_copy;
#[cfg_attr(
    not(all(feature = "kernels", not(target_family = "wasm"))),
    path = "kernel_products_stub.rs"
)]
pub(crate) mod kernel_products;
#[cfg(all(feature = "kernels", not(target_family = "wasm")))]
mod product;
pub(crate) mod products;
pub(crate) mod rope;
mod steps;
#[cfg(text_kernels)]
pub mod texts;

pub use decoder::Decoder;
