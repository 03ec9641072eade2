//! Comparisons of all engines, run natively and in a browser.
//!
//! Tensors are read asynchronously, because a web page cannot block on a device.

pub mod decoder;
pub mod iteration;
pub mod ledge;
pub mod meadow;
pub mod rollouts;
pub mod training;
pub mod unpack;
pub mod updates;

use burn::tensor::{Device, Tensor};
use grove::rng::{draw, uniform};

/// The CPU device.
pub fn cpu() -> Device {
    Device::flex()
}

/// Values uniform in [-1, 1).
pub fn noise(key: u32, count: usize) -> Vec<f32> {
    (0..count).map(|i| uniform(draw(key, i as u32)) * 2.0 - 1.0).collect()
}

/// Reads a tensor.
pub async fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.into_data_async().await.expect("the device answers");
    data.try_into_vec().expect("f32")
}

/// Reads a tensor in double precision.
pub async fn doubles<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    floats(tensor).await.into_iter().map(f64::from).collect()
}
