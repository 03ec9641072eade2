//! The backward pass over packed texts.

use super::forward::{Activations, KeptLayer, PackedPass, as_rows, forward_bytes};
use super::gradients::Gradients;
use super::head::scatter_add;
use super::layout::MAX_PARTS;
use crate::device::buffers::{argument, cube_tensor, element_type_of, grid, uninit, vector_size};
use crate::nn::arch::{DecoderShape, Projection};
use crate::nn::tensors::decoder::RmsNorm;
use crate::text::kernels::UNITS;
use crate::text::kernels::launch::{add_norm, apply_gate, num_rows};
use crate::text::kernels::rows::{
    COLUMNS_PER_CUBE, NormBackwardForm, ROWS_PER_CUBE, RowLayout, column_sums_kernel,
    gate_backward_kernel, norm_backward_kernel,
};
use burn::backend::{Cube, DType};
use burn::cubecl::prelude::CubeDim;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;

/// The bytes of a row in the largest buffer of a forward and backward pass: of the forward pass, or of the gradients of
/// keys in parts.
pub(crate) fn backward_bytes(shape: &DecoderShape) -> u64 {
    let parts = MAX_PARTS * shape.kv_size() * size_of::<f32>();
    forward_bytes(shape).max(parts as u64)
}

/// Sums the columns of a matrix, `[.., width]`: `[width]`. Takes `buffer` for the result, if there is one.
pub(super) fn sum_columns(matrix: &CubeTensor, buffer: &mut Option<Tensor<1>>) -> Tensor<1> {
    let rows = num_rows(matrix);
    let width = matrix.meta.num_elements() / rows;
    let sums = buffer.take().map_or_else(|| uninit(matrix, &[width], DType::F32), cube_tensor);
    debug_assert_eq!(sums.meta.num_elements(), width);
    // SAFETY: accesses stay below `rows` and `width`; all units of a cube reach its barrier.
    unsafe {
        column_sums_kernel::launch_unchecked(
            &matrix.client,
            grid(matrix, width.div_ceil(COLUMNS_PER_CUBE)),
            CubeDim::new_1d(UNITS as u32),
            argument(matrix),
            argument(&sums),
            rows,
            width,
            element_type_of(matrix),
        );
    }
    Tensor::<1>::from_primitive::<Cube>(sums)
}

/// The name of the weights of a layer's matrix or norm.
pub(super) fn weight_name(layer: usize, name: &str) -> String {
    format!("layers.{layer}.{name}.weight")
}

/// A norm of a layer with the name of its weights, if there is one.
fn norm_with_name<'a>(
    layer: usize,
    norm: Option<&'a RmsNorm>,
    name: Option<&str>,
) -> Option<(&'a RmsNorm, String)> {
    Some((norm?, weight_name(layer, name?)))
}

impl PackedPass<'_> {
    /// Adds the gradients of the trainable parameters, from that of [`PackedPass::hidden`]. Frees activations layer
    /// by layer.
    pub fn backward(mut self, d_hidden: Tensor<2>, gradients: &mut Gradients) {
        let (module, shape) = (&self.decoder.module, self.shape());
        let norm = Some((&module.norm, "norm.weight".to_string()));
        let (stream, d_hidden) = (Some(&self.last_stream), cube_tensor(d_hidden));
        let mut d_stream = self.norm_backward(stream, norm, d_hidden, None, gradients);
        let names = shape.norm_placement.names();
        let layers = std::mem::take(&mut self.layers);
        for (layer, KeptLayer { stream, activations }) in layers.into_iter().enumerate().rev() {
            let norms = module.layers[layer].norms(shape.norm_placement);
            let before = norms.before_attention;
            let input = || add_norm(shape, stream.clone(), None, before, self.operand_type).0;
            let kept =
                activations.unwrap_or_else(|| self.run_layer(layer, input(), stream.clone()).0);

            let norm = norm_with_name(layer, norms.after_mlp, names.after_mlp);
            let output = kept.mlp_output.as_ref();
            let d_output = self.norm_backward(output, norm, d_stream.clone(), None, gradients);
            let d_input = self.mlp_backward(layer, &kept, norms.before_mlp, d_output, gradients);
            let norm = norm_with_name(layer, norms.before_mlp, names.before_mlp);
            let (stream_after_attention, d_input) =
                (Some(&kept.stream_after_attention), cube_tensor(d_input));
            d_stream = self.norm_backward(
                stream_after_attention,
                norm,
                d_input,
                Some(d_stream),
                gradients,
            );

            let norm = norm_with_name(layer, norms.after_attention, names.after_attention);
            let output = kept.attention_output.as_ref();
            let d_output = self.norm_backward(output, norm, d_stream.clone(), None, gradients);
            let d_input = self.attention_backward(layer, &kept, input(), d_output, gradients);
            let norm = norm_with_name(layer, before, names.before_attention);
            let (stream, d_input) = (Some(&stream), cube_tensor(d_input));
            d_stream = self.norm_backward(stream, norm, d_input, Some(d_stream), gradients);
        }
        self.embed_backward(d_stream, gradients);
    }

    /// Computes the gradient of a norm's input, and adds it to `residual` if given. Without a norm or an input it is
    /// that of the result. `d_normed` is freed.
    fn norm_backward(
        &self,
        input: Option<&CubeTensor>,
        norm: Option<(&RmsNorm, String)>,
        d_normed: CubeTensor,
        residual: Option<CubeTensor>,
        gradients: &mut Gradients,
    ) -> CubeTensor {
        let (Some(input), Some((norm, name))) = (input, norm) else {
            return match residual {
                Some(residual) => cube_tensor(as_rows(residual) + as_rows(d_normed)),
                None => d_normed,
            };
        };
        let (shape, rows) = (self.shape(), self.rows());
        let (size, cubes) = (shape.hidden_size, rows.div_ceil(ROWS_PER_CUBE));
        let has_weight_gradient = gradients.has_weights();
        let row = RowLayout::new(size);
        let form =
            NormBackwardForm { row, is_accumulated: residual.is_some(), has_weight_gradient };
        let d_input = residual.unwrap_or_else(|| self.allocate_rows(size, DType::F32));
        let partials =
            uninit(input, &[if has_weight_gradient { cubes } else { 1 }, size], DType::F32);
        // SAFETY: accesses stay below the rows, their size and the cubes; all units of a cube reach its barriers. No
        // later operation reads the former content of what is added to.
        unsafe {
            norm_backward_kernel::launch_unchecked(
                &input.client,
                grid(input, cubes),
                CubeDim::new_1d(row.units as u32),
                argument(input),
                argument(&cube_tensor(norm.weight())),
                argument(&d_normed),
                argument(&d_input),
                argument(&partials),
                rows,
                shape.rms_norm_eps,
                shape.norm_offset,
                form,
            );
        }
        if has_weight_gradient {
            gradients.add([&name], |buffer| [sum_columns(&partials, buffer)]);
        }
        d_input
    }

    /// Computes the gradient of the input of at most three matrices of a layer from the gradients of their results, and
    /// adds the gradients of their trainable parameters.
    pub(super) fn linears_backward<const N: usize>(
        &self,
        layer: usize,
        projections: [Projection; N],
        input: impl FnOnce() -> Tensor<2>,
        d_results: [&CubeTensor; N],
        gradients: &mut Gradients,
    ) -> Tensor<2> {
        let (module, adapters) = (&self.decoder.module, self.decoder.adapter_tensors());
        let products = module.products;
        let linears = projections.map(|projection| module.layers[layer].linear(projection));
        let d = d_results.map(|d_result| as_rows(d_result.clone()));
        let d_inputs = linears
            .iter()
            .zip(&d)
            .map(|(linear, d)| products.matmul(d.clone(), linear.weight.val().transpose()));
        let mut d_input = d_inputs.reduce(|sum, d| sum + d).expect("a matrix");
        let Some(adapters) = adapters else {
            self.add_weight_gradients(layer, projections, input(), d, d_results, gradients);
            return d_input;
        };
        if projections.iter().all(|projection| adapters.pair((layer, *projection)).is_none()) {
            return d_input;
        }
        let x = input();
        for (projection, d) in projections.into_iter().zip(d) {
            if let Some(d_adapter_input) =
                self.adapter_backward((layer, projection), &x, d, gradients)
            {
                d_input = d_input + d_adapter_input;
            }
        }
        d_input
    }

    /// Adds the gradients of the weights and biases of at most three matrices of a layer with the input `x`, by the
    /// gradients of their results as rows, `d`.
    fn add_weight_gradients<const N: usize>(
        &self,
        layer: usize,
        projections: [Projection; N],
        x: Tensor<2>,
        d: [Tensor<2>; N],
        d_results: [&CubeTensor; N],
        gradients: &mut Gradients,
    ) {
        let module = &self.decoder.module;
        let names = projections.map(|projection| weight_name(layer, &projection.name()));
        gradients.add(names.each_ref().map(|name| &name[..]), |buffer| {
            module.products.matmul_all(x.transpose(), d, buffer)
        });
        for (projection, d_result) in projections.into_iter().zip(d_results) {
            if module.layers[layer].linear(projection).bias.is_some() {
                let name = format!("layers.{layer}.{}.bias", projection.name());
                gradients.add([&name], |buffer| [sum_columns(d_result, buffer)]);
            }
        }
    }

    /// Computes the gradient of the input `x` of a matrix's adapter, and adds the gradients of the adapter; `None` if
    /// the matrix has none.
    fn adapter_backward(
        &self,
        matrix: (usize, Projection),
        x: &Tensor<2>,
        d: Tensor<2>,
        gradients: &mut Gradients,
    ) -> Option<Tensor<2>> {
        let (products, adapters) = (self.decoder.module.products, self.decoder.adapter_tensors()?);
        let [a, b] = adapters.pair(matrix)?;
        let inner = products.matmul(x.clone(), a.clone()) * adapters.scale;
        let d_inner = products.matmul(d.clone(), b.clone().transpose()) * adapters.scale;
        gradients.add_adapter(
            matrix,
            |buffer| products.matmul_all(x.clone().transpose(), [d_inner.clone()], buffer),
            |buffer| products.matmul_all(inner.transpose(), [d], buffer),
        );
        Some(products.matmul(d_inner, a.clone().transpose()))
    }

    /// Computes the gradient of the input of a layer's feed-forward block.
    fn mlp_backward(
        &self,
        layer: usize,
        activations: &Activations,
        norm: Option<&RmsNorm>,
        d_output: CubeTensor,
        gradients: &mut Gradients,
    ) -> Tensor<2> {
        let (Activations { gate, stream_after_attention, .. }, activation) =
            (activations, self.shape().activation);
        let input =
            add_norm(self.shape(), stream_after_attention.clone(), None, norm, self.operand_type).0;
        let recompute_up = || self.apply(layer, Projection::Up, &input);
        let up = &activations.up.clone().unwrap_or_else(recompute_up);
        let inner = || as_rows(apply_gate(gate, up, activation, self.operand_type));
        let d = self.linears_backward(layer, [Projection::Down], inner, [&d_output], gradients);
        let d = cube_tensor(d);
        let [d_gate, d_up] = self.gate_backward(&d, gate, up);
        let d_results = [&d_gate, &d_up];
        let input = || as_rows(input);
        self.linears_backward(layer, Projection::MLP_INPUTS, input, d_results, gradients)
    }

    /// Computes the gradients of the gate and of the up projection from that of the gated product, `d`.
    fn gate_backward(&self, d: &CubeTensor, gate: &CubeTensor, up: &CubeTensor) -> [CubeTensor; 2] {
        let new = || uninit(gate, &gate.meta.shape().to_vec(), self.operand_type);
        let count = gate.meta.num_elements();
        let [d_gate, d_up] = [new(), new()];
        let vector =
            vector_size(&[&d_gate, &d_up, d, gate, up], |vector| count.is_multiple_of(vector));
        let count = count / vector;
        // SAFETY: accesses stay below `count`.
        unsafe {
            gate_backward_kernel::launch_unchecked(
                &gate.client,
                grid(gate, count.div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                argument(d),
                argument(gate),
                argument(up),
                argument(&d_gate),
                argument(&d_up),
                count,
                vector,
                self.shape().activation,
                element_type_of(&d_gate),
                vector,
            );
        }
        [d_gate, d_up]
    }

    /// Adds the gradient of the table of embeddings.
    fn embed_backward(&self, d_stream: CubeTensor, gradients: &mut Gradients) {
        let Some(sum) = gradients.prepare_accumulator("embed_tokens.weight") else { return };
        let scale = self.shape().embedding_scale;
        scatter_add(&self.layout.tokens, as_rows(d_stream), &sum, scale);
    }
}
