//! What is held natively and in a browser: every way of playing and of learning agrees with the others.
//!
//! A browser's page cannot wait for a device, so reading tensors is asynchronous here.

pub mod decoder;
pub mod iteration;
pub mod ledge;
pub mod meadow;
pub mod rollouts;
pub mod training;
pub mod updates;

use burn::tensor::{Device, Tensor};
use grove::rng::{draw, uniform};

/// The CPU.
pub fn cpu() -> Device {
    Device::flex()
}

/// Numbers uniform in [-1, 1).
pub fn noise(key: u32, count: usize) -> Vec<f32> {
    (0..count).map(|i| uniform(draw(key, i as u32)) * 2.0 - 1.0).collect()
}

/// A tensor's values.
pub async fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data = tensor.into_data_async().await.expect("the device answers");
    data.try_into_vec().expect("f32")
}

/// A tensor's values in double precision.
pub async fn doubles<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    floats(tensor).await.into_iter().map(f64::from).collect()
}
