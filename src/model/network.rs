//! A model of any type: the one form in which trainers, learners and rollouts hold a policy.

use super::tensors::ForwardPasses;
use super::{Memory, Model, NamedModel, PolicyConfig};
use crate::nn::{Parameter, Precision, flatten, named_parameters, unflatten};
use burn::tensor::{Device, Tensor};
use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::sync::{Mutex, PoisonError};

/// Held while a user-defined model draws its first weights: Burn's generator (`Device::seed`) belongs to the process,
/// and the threads of several ranks would share it.
static INIT_LOCK: Mutex<()> = Mutex::new(());

/// A type-erased model, so that code over models is compiled once instead of once per model.
///
/// Made from settings by [`Network::new`], or from any [`Model`] by `From`. Cloning copies no weights.
pub struct Network(Box<dyn AnyModel>);

/// The functions of a [`Model`] and its [`Module`](burn::module::Module) that need no type.
pub(super) trait AnyModel: Any + Debug + Send + Sync {
    fn clone_boxed(&self) -> Box<dyn AnyModel>;
    fn parameters(&self) -> Vec<Parameter>;
    fn flatten(&self) -> Tensor<1>;
    fn unflatten(&self, flat: &Tensor<1>) -> Network;
    fn device(&self) -> Device;
    fn with_precision(&self, precision: Precision) -> Option<Network>;
    fn initial_memory(&self, batch: usize, device: &Device) -> Option<Tensor<2>>;
    fn forward_passes(&self) -> &dyn ForwardPasses;
}

impl<M: Model> AnyModel for M {
    fn clone_boxed(&self) -> Box<dyn AnyModel> {
        Box::new(self.clone())
    }

    fn parameters(&self) -> Vec<Parameter> {
        named_parameters(self)
    }

    fn flatten(&self) -> Tensor<1> {
        flatten(self)
    }

    fn unflatten(&self, flat: &Tensor<1>) -> Network {
        unflatten(self.clone(), flat).into()
    }

    fn device(&self) -> Device {
        self.devices().into_iter().next().unwrap_or_default()
    }

    fn with_precision(&self, precision: Precision) -> Option<Network> {
        Model::with_precision(self, precision).map(Network::from)
    }

    fn initial_memory(&self, batch: usize, device: &Device) -> Option<Tensor<2>> {
        Model::initial_memory(self, batch, device).into_rows()
    }

    fn forward_passes(&self) -> &dyn ForwardPasses {
        // A build without the general engine links no forward pass in tensors.
        if cfg!(feature = "general") {
            self
        } else {
            panic!("this network needs a build with the feature `general`")
        }
    }
}

impl<M: Model> From<M> for Network {
    fn from(model: M) -> Self {
        Self(Box::new(model))
    }
}

impl Network {
    /// A user-defined network with fresh weights on `device`, the same for the same `key`.
    pub fn user_defined<M: NamedModel>(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self {
        let _lock = INIT_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let network = Self::from(M::new(num_features, num_actions, config, key, device));
        // Burn draws a parameter only when it is first read.
        drop(network.flatten());
        network
    }

    /// The model, if its type is `M`.
    pub fn get<M: Model>(&self) -> Option<&M> {
        let model: &dyn Any = &*self.0;
        model.downcast_ref()
    }

    /// Names and shapes of its parameters, in the order of [`Network::flatten`].
    pub fn parameters(&self) -> Vec<Parameter> {
        self.0.parameters()
    }

    /// The number of parameters.
    pub fn num_params(&self) -> usize {
        self.parameters().iter().map(Parameter::num_elements).sum()
    }

    /// All parameters in one vector `[num_params]`.
    pub fn flatten(&self) -> Tensor<1> {
        self.0.flatten()
    }

    /// The network with its parameters taken from a vector `[num_params]`. If the vector requires a gradient,
    /// the network's outputs are differentiable with respect to it.
    ///
    /// # Panics
    /// If the vector's length is not the number of parameters.
    pub fn unflatten(&self, flat: &Tensor<1>) -> Self {
        self.0.unflatten(flat)
    }

    /// The device that holds the parameters.
    pub fn device(&self) -> Device {
        self.0.device()
    }

    /// The network with matrix products in this precision; see [`Model::with_precision`].
    pub fn with_precision(&self, precision: Precision) -> Option<Self> {
        self.0.with_precision(precision)
    }

    /// The memory at the start of an episode, `[batch, memory_size]`; `None` for a network without memory.
    pub fn initial_memory(&self, batch: usize, device: &Device) -> Option<Tensor<2>> {
        self.0.initial_memory(batch, device)
    }

    /// The forward passes in tensors.
    ///
    /// # Panics
    /// In a build without the feature `general`.
    pub(super) fn forward_passes(&self) -> &dyn ForwardPasses {
        self.0.forward_passes()
    }
}

impl Clone for Network {
    fn clone(&self) -> Self {
        Self(self.0.clone_boxed())
    }
}

impl Debug for Network {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
