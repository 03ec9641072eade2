//! Gradients of a decoder's trainable parameters, looked up by parameter.

use crate::device::buffers::{argument, cube_tensor, grid};
use crate::nn::arch::Projection;
use crate::nn::tensors::arenas::Arenas;
use crate::text::DeviceDecoder;
use crate::text::kernels::UNITS;
use crate::text::kernels::rows::copy_or_add_kernel;
use burn::cubecl::prelude::CubeDim;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use std::collections::HashMap;

/// The gradients of the trainable parameters on a device.
pub(crate) struct Gradients {
    arenas: Arenas,
    /// Whether each parameter has a gradient yet; otherwise it is 0.
    has_gradient: Vec<bool>,
    indices: ParameterIndices,
}

/// Indices of the trainable parameters.
enum ParameterIndices {
    /// All weights, by name.
    Weights(HashMap<String, usize>),
    /// The matrix `a` of each adapter, followed by `b`; `None` for matrices without adapter.
    Adapters(Vec<Option<usize>>),
}

impl Gradients {
    /// Creates gradients of 0 for the trainable parameters of a decoder.
    pub fn new(decoder: &DeviceDecoder) -> Self {
        let indices = match decoder.adapter_tensors() {
            Some(adapters) => {
                let mut count = 0;
                let pairs = adapters.pairs.iter().map(|pair| {
                    pair.as_ref().map(|_| {
                        count += 2;
                        count - 2
                    })
                });
                ParameterIndices::Adapters(pairs.collect())
            }
            None => {
                let parameters = decoder.module.shape().parameters().into_iter();
                ParameterIndices::Weights(
                    parameters.enumerate().map(|(i, parameter)| (parameter.name, i)).collect(),
                )
            }
        };
        let arenas = decoder.trainable().zeros_like();
        let has_gradient = vec![false; arenas.packing().counts().count()];
        Self { arenas, has_gradient, indices }
    }

    /// Whether the weights are learnt, not adapters.
    pub fn has_weights(&self) -> bool {
        matches!(self.indices, ParameterIndices::Weights(_))
    }

    /// Adds the gradients of some weights, if weights are learnt. `make` is given one buffer for all of them, in which
    /// each starts at the device's buffer alignment. It either takes the buffer and fills it, or leaves it and returns
    /// tensors, which are copied.
    pub fn add<const D: usize, const N: usize>(
        &mut self,
        names: [&str; N],
        make: impl FnOnce(&mut Option<Tensor<1>>) -> [Tensor<D>; N],
    ) {
        let ParameterIndices::Weights(indices) = &self.indices else { return };
        let parameters = names.map(|name| indices[name]);
        self.add_to(parameters, make);
    }

    /// Adds the gradients of the matrices `a` and `b` of the adapter of a layer's matrix, as [`Gradients::add`] does.
    pub fn add_adapter(
        &mut self,
        (layer, projection): (usize, Projection),
        make_a: impl FnOnce(&mut Option<Tensor<1>>) -> [Tensor<2>; 1],
        make_b: impl FnOnce(&mut Option<Tensor<1>>) -> [Tensor<2>; 1],
    ) {
        let ParameterIndices::Adapters(indices) = &self.indices else { return };
        let Some(index) = indices[projection.index_in(layer)] else { return };
        self.add_to([index], make_a);
        self.add_to([index + 1], make_b);
    }

    /// Returns the memory of the gradient of a weight, `[count]`, to which the caller must add; `None` if adapters are
    /// learnt.
    pub fn prepare_accumulator(&mut self, name: &str) -> Option<CubeTensor> {
        let ParameterIndices::Weights(indices) = &self.indices else { return None };
        let index = indices[name];
        self.has_gradient[index] = true;
        Some(cube_tensor(self.arenas.view(index)))
    }

    fn add_to<const D: usize, const N: usize>(
        &mut self,
        parameters: [usize; N],
        make: impl FnOnce(&mut Option<Tensor<1>>) -> [Tensor<D>; N],
    ) {
        let are_new = parameters.iter().all(|index| !self.has_gradient[*index]);
        let mut memory = if are_new { self.arenas.joint_view(&parameters) } else { None };
        let is_given = memory.is_some();
        let gradients = make(&mut memory);
        let is_filled = is_given && memory.is_none();
        for (index, gradient) in parameters.into_iter().zip(gradients) {
            let had_gradient = std::mem::replace(&mut self.has_gradient[index], true);
            if !is_filled {
                let to = cube_tensor(self.arenas.view(index));
                copy_or_add(&cube_tensor(gradient), &to, had_gradient);
            }
        }
    }

    /// The gradients of all trainable parameters.
    pub fn into_arenas(self) -> Arenas {
        self.arenas
    }
}

/// Copies elements to the memory of `to`, or adds them to it.
fn copy_or_add(from: &CubeTensor, to: &CubeTensor, adds: bool) {
    let count = to.meta.num_elements();
    assert_eq!(from.meta.num_elements(), count, "numbers of a gradient");
    // SAFETY: accesses stay below `count`; only gradients refer to the memory that changes.
    unsafe {
        copy_or_add_kernel::launch_unchecked(
            &to.client,
            grid(to, count.div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            argument(from),
            argument(to),
            count,
            adds,
        );
    }
}
