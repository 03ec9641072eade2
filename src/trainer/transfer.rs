//! A learner's state from a device to host memory, and back.

use super::way::State;
use crate::device;
use crate::learner::{AdamW, Moments, Weights};
use crate::model::{Policy, flatten};
use burn::tensor::{Tensor, TensorData};

/// A learner's state from a device, with the `games`.
pub(super) async fn download<P: Policy>(weights: &Weights<P>, games: Vec<u32>) -> State {
    let read = |tensor: &Tensor<1>| device::read_async(tensor.clone());
    let optimizer = weights.optimizer();
    State {
        params: read(weights.params()).await,
        moments: Moments {
            first_moment: read(&optimizer.first_moment).await,
            second_moment: read(&optimizer.second_moment).await,
            steps: optimizer.steps,
        },
        reference: match weights.reference() {
            Some(policy) => Some(read(&flatten(policy)).await),
            None => None,
        },
        games,
    }
}

/// Puts a learner's state on a device.
pub(super) fn upload<P: Policy>(state: &State, weights: &mut Weights<P>) {
    let device = weights.params().device();
    let upload = |values: &Vec<f32>| {
        Tensor::<1>::from_data(TensorData::new(values.clone(), [values.len()]), &device)
    };
    let optimizer = AdamW {
        first_moment: upload(&state.moments.first_moment),
        second_moment: upload(&state.moments.second_moment),
        steps: state.moments.steps,
    };
    weights.restore(upload(&state.params), optimizer, state.reference.as_ref().map(upload));
}
