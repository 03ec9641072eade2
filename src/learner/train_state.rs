//! The state that training changes: parameters, optimizer and, for the KL penalty, the reference policy.

use super::context::LearnerContext;
use super::optimizer::TensorMoments;
use crate::device;
use crate::model::Network;
use crate::parallel::{Team, TeamError};
use crate::settings::TrainConfig;
use burn::tensor::Tensor;

/// The state that training changes, on the device of the network: parameters, optimizer and, for the KL penalty, the
/// reference policy.
#[derive(Clone, Debug)]
pub struct TrainState {
    pub(super) network: Network,
    pub(super) reference: Option<Network>,
    pub(super) params: Tensor<1>,
    pub(super) optimizer: TensorMoments,
}

impl TrainState {
    /// Initial state for `policy`. If `kl_coef` is not 0, it also becomes the reference policy.
    pub fn new(policy: Network, config: &TrainConfig) -> Self {
        let reference = (config.loss.kl_coef > 0.0).then(|| policy.clone());
        let params = policy.flatten();
        let optimizer = TensorMoments::new(&params);
        Self { network: policy, reference, params, optimizer }
    }

    /// The current policy.
    pub fn policy(&self) -> Network {
        self.network.unflatten(&self.params)
    }

    /// Reference policy of the KL penalty, if any.
    pub fn reference(&self) -> Option<&Network> {
        self.reference.as_ref()
    }

    /// All parameters, `[num_params]`.
    pub fn params(&self) -> &Tensor<1> {
        &self.params
    }

    /// Optimizer state.
    pub fn optimizer(&self) -> &TensorMoments {
        &self.optimizer
    }

    /// Performs optimizer step `step_index` of the run. If ranks may round differently, the parameters of rank 0 are
    /// broadcast.
    pub(super) fn step(
        &mut self,
        gradient: Tensor<1>,
        step_index: u64,
        context: &LearnerContext,
    ) -> Result<(), TeamError> {
        let (rate, config) = (context.learning_rate(step_index), &context.config.optimizer);
        self.params = self.optimizer.step(self.params.clone(), gradient, rate, config);
        if context.team.rounds_differently() {
            self.params = broadcast_params(&context.team, self.params.clone())?;
        }
        Ok(())
    }

    /// Restores saved parameters, optimizer state and reference parameters.
    pub fn restore(
        &mut self,
        params: Tensor<1>,
        optimizer: TensorMoments,
        reference: Option<Tensor<1>>,
    ) {
        self.params = params;
        self.optimizer = optimizer;
        if let (Some(network), Some(params)) = (&mut self.reference, reference) {
            *network = network.unflatten(&params);
        }
    }
}

/// Returns the parameters of rank 0, `[num_params]`, on every rank.
pub(super) fn broadcast_params(team: &Team, params: Tensor<1>) -> Result<Tensor<1>, TeamError> {
    let device = params.device();
    let local = if team.is_root() { device::read(params) } else { Vec::new() };
    let bytes = team.broadcast(bytemuck::cast_slice(&local))?;
    Ok(device::upload(bytemuck::pod_collect_to_vec(&bytes), &device))
}

/// Copies a gradient and its sums, `[num_params + NUM_SUMS]`, to host memory, and splits them.
pub(super) fn read_gradient_and_sums(tensor: Tensor<1>, num_params: usize) -> (Vec<f32>, Vec<f64>) {
    let mut gradient = device::read(tensor);
    let sums = gradient.split_off(num_params).into_iter().map(f64::from).collect();
    (gradient, sums)
}

/// Adds up a gradient and its sums, `[num_params + NUM_SUMS]`, over ranks of which some compute on devices.
pub(super) fn sum_over_ranks(
    team: &Team,
    local: Tensor<1>,
    num_params: usize,
) -> Result<Tensor<1>, TeamError> {
    if let Some(group) = &team.hardware().nccl {
        return group.all_reduce(team, local);
    }
    let device = local.device();
    let (gradient, sums) = read_gradient_and_sums(local, num_params);
    let sum = team.all_reduce_ranks(gradient, sums)?;
    let sums = sum.numbers.iter().map(|x| *x as f32);
    Ok(device::upload(sum.vector.into_iter().chain(sums).collect(), &device))
}
