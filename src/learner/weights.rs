//! A module in training: its parameters, the optimiser's state, and the policy that the KL term refers
//! to where one is asked for.

use super::optimizer::AdamW;
use crate::config::TrainConfig;
use crate::model::Network;
use burn::tensor::Tensor;

/// What an update changes, on the module's device.
#[derive(Clone, Debug)]
pub struct Weights {
    pub(super) network: Network,
    pub(super) reference: Option<Network>,
    pub(super) params: Tensor<1>,
    pub(super) optimizer: AdamW,
}

impl Weights {
    /// The weights of `policy` before the first update. The reference policy, if `kl_coef` asks for one, is the
    /// policy as it is now.
    pub fn new(policy: Network, config: &TrainConfig) -> Self {
        let reference = (config.loss.kl_coef > 0.0).then(|| policy.clone());
        let params = policy.flatten();
        let optimizer = AdamW::new(&params);
        Self { network: policy, reference, params, optimizer }
    }

    /// The policy as it is now.
    pub fn policy(&self) -> Network {
        self.network.unflatten(&self.params)
    }

    /// The policy that the KL term refers to, if there is one.
    pub fn reference(&self) -> Option<&Network> {
        self.reference.as_ref()
    }

    /// All parameters, `[num_params]`.
    pub fn params(&self) -> &Tensor<1> {
        &self.params
    }

    /// The optimiser's state.
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// Goes on from saved parameters, optimiser state and reference parameters.
    pub fn restore(&mut self, params: Tensor<1>, optimizer: AdamW, reference: Option<Tensor<1>>) {
        self.params = params;
        self.optimizer = optimizer;
        if let (Some(network), Some(params)) = (&mut self.reference, reference) {
            *network = network.unflatten(&params);
        }
    }
}
