//! The parameters of any module as one vector, and back.
//!
//! Optimizer, gradient norm and checkpoint work on the vector, so they are independent of the module. The order
//! of the parameters is the order in which Burn visits them.

use super::arch::Parameter;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::Tensor;

/// Whether a container is an enum: its variant is left out of a parameter's name.
fn is_enum(container_type: &str) -> bool {
    container_type.starts_with("Enum:")
}

/// Names and shapes of the float parameters, in order.
pub fn named_parameters<M: Module>(module: &M) -> Vec<Parameter> {
    #[derive(Default)]
    struct Names {
        path: Vec<String>,
        found: Vec<Parameter>,
    }
    impl ModuleVisitor for Names {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.found.push(Parameter::new(self.path.join("."), &param.val().dims()));
        }
        fn enter_module(&mut self, name: &str, container_type: &str) {
            if !is_enum(container_type) {
                self.path.push(name.to_string());
            }
        }
        fn exit_module(&mut self, _name: &str, container_type: &str) {
            if !is_enum(container_type) {
                self.path.pop();
            }
        }
    }
    let mut names = Names::default();
    module.visit(&mut names);
    names.found
}

/// All float parameters in one vector `[num_params]`.
pub fn flatten<M: Module>(module: &M) -> Tensor<1> {
    struct Collector(Vec<Tensor<1>>);
    impl ModuleVisitor for Collector {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let len = value.shape().num_elements();
            self.0.push(value.reshape([len]));
        }
    }
    let mut collector = Collector(Vec::new());
    module.visit(&mut collector);
    Tensor::cat(collector.0, 0)
}

/// Copies a vector, such as all parameters, to host memory. On a device this reads it back.
///
/// # Panics
/// If the device fails.
pub(crate) async fn to_vec_async(vector: Tensor<1>) -> Vec<f32> {
    let data = vector.without_autodiff().into_data_async().await;
    let data = data.unwrap_or_else(|error| panic!("the device failed: {error}"));
    data.try_into_vec().expect("all tensors are f32")
}

/// Copies the elements of a tensor to host memory: [`to_vec_async`] for threads that may block, and any shape.
///
/// # Panics
/// If the device fails.
pub(crate) fn to_vec<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("all tensors are f32")
}

/// The module with other float parameters, in order: `next` gives each, `[count]`, for its number of elements, or one
/// number for all of them, `[1]`.
pub(crate) fn with_parameters<M: Module>(module: M, next: impl FnMut(usize) -> Tensor<1>) -> M {
    struct Filler<F>(F);
    impl<F: FnMut(usize) -> Tensor<1>> ModuleMapper for Filler<F> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, value, _) = param.consume();
            let (dims, count) = (value.dims(), value.shape().num_elements());
            let numbers = (self.0)(count);
            let is_each = numbers.dims() == [count];
            let value = if is_each { numbers.reshape(dims) } else { numbers.expand(dims) };
            Param::initialized(id, value)
        }
    }
    module.map(&mut Filler(next))
}

/// The module with its float parameters taken from a vector `[num_params]`. If the vector requires a gradient,
/// the module's outputs are differentiable with respect to it.
///
/// # Panics
/// If the vector's length is not the number of parameters.
pub fn unflatten<M: Module>(module: M, flat: &Tensor<1>) -> M {
    let mut end = 0;
    let module = with_parameters(module, |count| {
        end += count;
        flat.clone().slice(end - count..end)
    });
    assert_eq!(end, flat.dims()[0], "flat: [num_params]");
    module
}
