//! Products on devices that run kernels, as operations of Burn's tensors with autodiff.

use super::product;
pub(super) use crate::nn::buffers::has_kernels;
use crate::nn::buffers::{cube_tensor, float_element_type, read_properties};
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, binary};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Cube, DType, Dispatch, Shape, TensorMetadata, backend_extension};
use burn::cubecl::ir::{DeviceProperties, ElemType, FloatKind};
use burn::tensor::{Device, FloatDType, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// Whether Grove's kernels compute a product: always in single precision, unless Burn's may round operands to TF32; in
/// half precision on matrix units; and if the product is narrow.
pub(super) fn uses_kernel<const D: usize>(
    a: &Tensor<D>,
    b: &Tensor<D>,
    operand_dtype: Option<FloatDType>,
    allows_tf32: bool,
) -> bool {
    let device = a.device();
    has_kernels(&device)
        && (is_narrow(a, b)
            || match operand_dtype {
                Some(dtype) => has_matrix_units(&device, dtype),
                None => !(allows_tf32 && has_tf32(&device)),
            })
}

/// Whether Burn's own products of single-precision numbers are in TF32 on a device.
fn has_tf32(device: &Device) -> bool {
    let tf32 = ElemType::Float(FloatKind::TF32);
    read_properties(device, |properties| properties.supports_type(tf32)).unwrap_or(false)
}

/// Whether a device has matrix units that Grove's products of operands in half precision use.
fn has_matrix_units(device: &Device, dtype: FloatDType) -> bool {
    let plane_units = |properties: &DeviceProperties| {
        product::matrix_plane_units(properties, operand_type(Some(dtype)))
    };
    read_properties(device, plane_units).flatten().is_some()
}

/// The type that operands of products are rounded to.
fn operand_type(operand_dtype: Option<FloatDType>) -> ElemType {
    float_element_type(operand_dtype.map_or(DType::F32, DType::from))
}

/// The product `a b` of matrices, or of batches of them, on a device that runs kernels, by multiplications and
/// additions of single-precision numbers, with autodiff or without.
pub(crate) fn matmul<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    let product =
        <Dispatch as SingleProducts>::single_product(a.into_dispatch(), b.into_dispatch());
    Tensor::from_dispatch(product)
}

/// The products `a b + bias` with several matrices, at most three, in one launch, without autodiff, of operands that
/// are rounded to half precision if `operand_dtype` is given. The results are in single precision, in `into` if it is
/// given ([`product::matmul_all`]).
pub(crate) fn matmul_all<const D: usize, const N: usize>(
    a: Tensor<D>,
    matrices: [Tensor<D>; N],
    biases: Option<[Tensor<1>; N]>,
    operand_dtype: Option<FloatDType>,
    into: Option<Tensor<1>>,
) -> [Tensor<D>; N] {
    let tensor = |x: Tensor<D>| x.try_into_primitive::<Cube>().expect("a device that runs kernels");
    let biases = biases.map(|biases| biases.map(cube_tensor));
    let (a, matrices, into) = (tensor(a), matrices.map(tensor), into.map(cube_tensor));
    let products =
        product::matmul_all(a, matrices, biases.as_ref(), operand_type(operand_dtype), into);
    products.map(Tensor::from_primitive::<Cube>)
}

/// Whether a product has so few tiles that matrix units, which take large ones, would be idle.
fn is_narrow<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> bool {
    let (a, b) = (a.dims(), b.dims());
    let batches: usize = (0..D - 2).map(|d| a[d].max(b[d])).product();
    product::is_narrow(batches * a[D - 2], b[D - 1])
}

/// Backends with products in single precision.
#[backend_extension(Cube, Autodiff)]
pub(crate) trait SingleProducts: Backend {
    /// The product `a b` in single precision.
    fn single_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self>;
}

impl SingleProducts for Cube {
    fn single_product(a: CubeTensor, b: CubeTensor) -> CubeTensor {
        let [product] = product::matmul_all(a, [b], None, operand_type(None), None);
        product
    }
}

impl<B: SingleProducts, C: CheckpointStrategy> SingleProducts for Autodiff<B, C> {
    /// Computes the product, and records what its backward pass needs of both factors: two products of single
    /// precision.
    fn single_product(a: FloatTensor<Self>, b: FloatTensor<Self>) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Product;

        impl<B: SingleProducts> Backward<B, 2> for Product {
            type State = [(Option<NodeId>, Shape); 2];

            fn backward(
                self,
                ops: Ops<Self::State, 2>,
                gradients: &mut Gradients,
                checkpointer: &mut Checkpointer,
            ) {
                let [(a, a_shape), (b, b_shape)] = ops.state;
                let a = a.map(|node| checkpointer.retrieve_node_output(node));
                let b = b.map(|node| checkpointer.retrieve_node_output(node));
                let transpose = |x: Option<B::FloatTensorPrimitive>| {
                    B::float_transpose(x.expect("kept for the gradient of the other"))
                };
                binary::<B, _, _>(
                    ops.parents,
                    ops.node,
                    gradients,
                    |d| sum_repetitions::<B>(B::single_product(d, transpose(b)), &a_shape),
                    |d| sum_repetitions::<B>(B::single_product(transpose(a), d), &b_shape),
                );
            }
        }

        let [is_a_tracked, is_b_tracked] = [a.is_tracked(), b.is_tracked()];
        let shapes = [a.shape(), b.shape()];
        match Product.prepare::<C>([a.node(), b.node()]).compute_bound().stateful() {
            OpsKind::Tracked(mut prep) => {
                let a_node = is_b_tracked.then(|| prep.checkpoint(&a));
                let b_node = is_a_tracked.then(|| prep.checkpoint(&b));
                let [a_shape, b_shape] = shapes;
                let product = B::single_product(a.into_primitive(), b.into_primitive());
                prep.finish([(a_node, a_shape), (b_node, b_shape)], product)
            }
            OpsKind::UnTracked(prep) => {
                prep.finish(B::single_product(a.into_primitive(), b.into_primitive()))
            }
        }
    }
}

/// Sums the gradient of an operand whose batches of one were repeated over the repetitions.
fn sum_repetitions<B: Backend>(gradient: FloatTensor<B>, shape: &Shape) -> FloatTensor<B> {
    (0..shape.num_dims()).fold(gradient, |gradient, dim| match shape[dim] {
        1 if gradient.shape()[dim] > 1 => B::float_sum_dim(gradient, dim),
        _ => gradient,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{adapters, has_precision};
    use crate::nn::Precision;
    use crate::nn::parameters::to_vec;
    use crate::rng::{draw, uniform};
    use burn::tensor::TensorData;

    /// A tensor of any numbers.
    fn numbers<const D: usize>(key: u32, shape: [usize; D], device: &Device) -> Tensor<D> {
        let count: usize = shape.iter().product();
        let numbers: Vec<f32> = (0..count as u32).map(|i| uniform(draw(key, i)) - 0.5).collect();
        Tensor::from_data(TensorData::new(numbers, shape), device)
    }

    fn assert_near(what: &str, got: &[f32], want: &[f32]) {
        assert_eq!(got.len(), want.len(), "{what}");
        let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        // The order of sums of 1,100 products, which differs between processors, accounts for 1e-5; TF32 would be
        // off by 1e-3.
        assert!(off < 5e-5, "{what}: off by {off}");
    }

    /// The product and its gradients, by `product`, with both operands tracked.
    fn with_gradients(
        shapes: [[usize; 3]; 2],
        device: &Device,
        product: impl Fn(Tensor<3>, Tensor<3>) -> Tensor<3>,
    ) -> [Vec<f32>; 3] {
        let device = device.clone().autodiff();
        let a = numbers(1, shapes[0], &device).require_grad();
        let b = numbers(2, shapes[1], &device).require_grad();
        let y = product(a.clone(), b.clone());
        let gradients = (y.clone() * numbers(3, y.dims(), &device)).sum().backward();
        let gradient = |x: &Tensor<3>| to_vec(x.grad(&gradients).expect("tracked"));
        [to_vec(y.inner()), gradient(&a), gradient(&b)]
    }

    #[test]
    fn products_and_their_gradients_are_those_of_the_cpu() {
        for device in adapters() {
            // Odd sizes, a batch of one that is repeated on either side, each tiling, and an inner dimension that
            // several cubes divide.
            let shapes = [
                [[1, 1, 1], [1, 1, 1]],
                [[3, 17, 29], [3, 29, 37]],
                [[5, 7, 67], [1, 67, 13]],
                [[1, 33, 19], [2, 19, 65]],
                [[1, 70, 130], [1, 130, 18]],
                [[130, 9, 17], [130, 17, 66]],
                [[1, 530, 33], [1, 33, 910]],
                [[1, 5, 1100], [1, 1100, 6]],
            ];
            for shapes in shapes {
                let got = with_gradients(shapes, &device, matmul);
                let want = with_gradients(shapes, &Device::flex(), Tensor::matmul);
                for (got, want) in got.iter().zip(&want) {
                    assert_near(&format!("{shapes:?}"), got, want);
                }
            }
        }
    }

    #[test]
    fn transposed_operands_are_read_by_their_strides() {
        for device in adapters() {
            let [a, b] = [numbers(4, [31, 11], &device), numbers(5, [23, 31], &device)];
            let got = to_vec(matmul(a.transpose(), b.transpose()));
            let cpu = Device::flex();
            let [a, b] = [numbers(4, [31, 11], &cpu), numbers(5, [23, 31], &cpu)];
            let want = to_vec(a.transpose().matmul(b.transpose()));
            assert_near("transposed", &got, &want);
        }
    }

    #[test]
    fn batches_of_several_dimensions_are_repeated() {
        for device in adapters() {
            let shapes = [
                ([2, 4, 5, 8], [2, 1, 8, 7]),
                ([3, 1, 9, 6], [1, 5, 6, 4]),
                ([6, 3, 70, 20], [6, 3, 20, 66]),
                ([4, 2, 1, 30], [1, 1, 30, 10]),
                ([1, 6, 9, 4], [1, 6, 4, 12]),
            ];
            for (left, right) in shapes {
                let of = |device: &Device| {
                    let [a, b] = [numbers::<4>(9, left, device), numbers(10, right, device)];
                    (a.clone(), b.clone(), a.swap_dims(0, 1), b.swap_dims(0, 1))
                };
                let (a, b, a_swapped, b_swapped) = of(&device);
                let (c, d, c_swapped, d_swapped) = of(&Device::flex());
                let what = format!("{left:?} {right:?}");
                assert_near(&what, &to_vec(matmul(a, b)), &to_vec(c.matmul(d)));
                let [got, want] = [matmul(a_swapped, b_swapped), c_swapped.matmul(d_swapped)];
                assert_near(&what, &to_vec(got), &to_vec(want));
            }
        }
    }

    #[test]
    fn operands_are_rounded_to_half_precision() {
        for device in adapters() {
            let [a, b] = [numbers(6, [40, 90], &device), numbers(7, [90, 20], &device)];
            let cpu = Device::flex();
            let halves = [(FloatDType::BF16, Precision::Bf16), (FloatDType::F16, Precision::F16)];
            for (dtype, precision) in halves {
                if !has_precision(&device, precision) {
                    continue;
                }
                let bias = numbers(8, [20], &device);
                let [got] = matmul_all(a.clone(), [b.clone()], Some([bias]), Some(dtype), None);
                let got = to_vec(got);
                let [a, b] = [numbers(6, [40, 90], &cpu), numbers(7, [90, 20], &cpu)];
                let rounded = |x: Tensor<2>| x.cast(dtype).cast(FloatDType::F32);
                let want =
                    to_vec(rounded(a).matmul(rounded(b)) + numbers(8, [20], &cpu).unsqueeze());
                assert_near(&format!("{dtype:?}"), &got, &want);
            }
        }
    }

    #[test]
    fn several_products_of_one_operand_are_those_of_each() {
        for device in adapters() {
            // With one tile and several, and an inner dimension that several cubes divide.
            for (rows, inner) in [(1, 9), (5, 70), (70, 33), (3, 1200)] {
                let of = |device: &Device| {
                    let matrix = |key, columns| numbers::<3>(key, [1, inner, columns], device);
                    let biases = [1, 66, 17].map(|size| numbers::<1>(14, [size], device));
                    let matrices = [matrix(11, 1), matrix(12, 66), matrix(13, 17)];
                    (numbers::<3>(10, [rows, 1, inner], device), matrices, biases)
                };
                let (x, matrices, biases) = of(&device);
                let (y, on_host, host_biases) = of(&Device::flex());
                let got = matmul_all(x.clone(), matrices.clone(), Some(biases), None, None);
                for (index, got) in got.into_iter().enumerate() {
                    let want = y.clone().matmul(on_host[index].clone())
                        + host_biases[index].clone().unsqueeze();
                    let what = format!("{rows} rows, {inner}, matrix {index}");
                    assert_near(&what, &to_vec(got), &to_vec(want));
                }
                let [_, second, third] = matrices;
                for (got, matrix) in
                    matmul_all(x, [second, third], None, None, None).into_iter().zip(1..)
                {
                    let want = to_vec(y.clone().matmul(on_host[matrix].clone()));
                    assert_near(&format!("{rows} rows, {inner}, pair"), &to_vec(got), &want);
                }
            }
        }
    }

    #[test]
    fn the_cpu_has_no_tf32() {
        assert!(!has_tf32(&Device::flex()));
    }
}
