//! Transfer of a learner's state between a device and host memory.

use super::engine::PolicyState;
use crate::device;
use crate::learner::{Moments, TensorMoments, TrainState};
use burn::tensor::Tensor;

/// Downloads a learner's state; `branches` are the branch points of the groups, and `memory` is the model's memory
/// there.
pub(super) async fn download(
    train_state: &TrainState,
    branches: Vec<u32>,
    memory: Vec<f32>,
) -> PolicyState {
    let read = |tensor: &Tensor<1>| device::read_async(tensor.clone());
    let optimizer = train_state.optimizer();
    PolicyState {
        params: read(train_state.params()).await,
        moments: Moments {
            first_moment: read(&optimizer.first_moment).await,
            second_moment: read(&optimizer.second_moment).await,
            steps: optimizer.steps,
        },
        reference: match train_state.reference() {
            Some(policy) => Some(read(&policy.flatten()).await),
            None => None,
        },
        branches,
        memory,
    }
}

/// Uploads a learner's state.
pub(super) fn upload(state: &PolicyState, train_state: &mut TrainState) {
    let device = train_state.params().device();
    let upload = |values: &Vec<f32>| device::upload(values.clone(), &device);
    let optimizer = TensorMoments {
        first_moment: upload(&state.moments.first_moment),
        second_moment: upload(&state.moments.second_moment),
        steps: state.moments.steps,
    };
    train_state.restore(upload(&state.params), optimizer, state.reference.as_ref().map(upload));
}
