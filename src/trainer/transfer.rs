//! A learner's state from a device to host memory, and back.

use super::engine::State;
use crate::device;
use crate::learner::{AdamW, Moments, Weights};
use crate::model::{Model, flatten};
use burn::tensor::Tensor;

/// A learner's state from a device, with the `games` and what the model remembers of them.
pub(super) async fn download<M: Model>(
    weights: &Weights<M>,
    games: Vec<u32>,
    memory: Vec<f32>,
) -> State {
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
        memory,
    }
}

/// Puts a learner's state on a device.
pub(super) fn upload<M: Model>(state: &State, weights: &mut Weights<M>) {
    let device = weights.params().device();
    let upload = |values: &Vec<f32>| device::upload(values.clone(), &device);
    let optimizer = AdamW {
        first_moment: upload(&state.moments.first_moment),
        second_moment: upload(&state.moments.second_moment),
        steps: state.moments.steps,
    };
    weights.restore(upload(&state.params), optimizer, state.reference.as_ref().map(upload));
}
