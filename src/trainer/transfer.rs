//! Transfer of a learner's state between a device and host memory.

use super::engine::PolicyState;
use crate::device;
use crate::learner::{AdamW, Moments, Weights};
use burn::tensor::Tensor;

/// Downloads a learner's state; `games` are the branch points of the groups, and `memory` is the model's memory there.
pub(super) async fn download(weights: &Weights, games: Vec<u32>, memory: Vec<f32>) -> PolicyState {
    let read = |tensor: &Tensor<1>| device::read_async(tensor.clone());
    let optimizer = weights.optimizer();
    PolicyState {
        params: read(weights.params()).await,
        moments: Moments {
            first_moment: read(&optimizer.first_moment).await,
            second_moment: read(&optimizer.second_moment).await,
            steps: optimizer.steps,
        },
        reference: match weights.reference() {
            Some(policy) => Some(read(&policy.flatten()).await),
            None => None,
        },
        games,
        memory,
    }
}

/// Uploads a learner's state.
pub(super) fn upload(state: &PolicyState, weights: &mut Weights) {
    let device = weights.params().device();
    let upload = |values: &Vec<f32>| device::upload(values.clone(), &device);
    let optimizer = AdamW {
        first_moment: upload(&state.moments.first_moment),
        second_moment: upload(&state.moments.second_moment),
        steps: state.moments.steps,
    };
    weights.restore(upload(&state.params), optimizer, state.reference.as_ref().map(upload));
}
