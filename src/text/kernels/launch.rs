//! Launches of kernels that a token step and a pass over whole texts have in common.

use super::UNITS;
use super::rows::{AddNormForm, RowLayout, add_norm_kernel, gate_kernel};
use crate::device::buffers::{argument, cube_tensor, element_type_of, grid, uninit, vector_size};
use crate::math::Activation;
use crate::nn::arch::{DecoderShape, QkNorms};
use crate::nn::tensors::decoder::{Decoder, RmsNorm};
use burn::backend::DType;
use burn::cubecl::prelude::CubeDim;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;

/// Weights of the norms of a layer's queries and keys, in this order; a placeholder that kernels do not read if there
/// are no such norms.
pub(crate) fn head_norm_weights(decoder: &Decoder, layer: usize) -> CubeTensor {
    cube_tensor(match decoder.layers[layer].head_norms() {
        QkNorms { query: Some(query), key: Some(key) } => {
            Tensor::cat([query, key].map(|norm| decoder.norm_weights(norm)).to_vec(), 0)
        }
        _ => decoder.norm.weight(),
    })
}

/// Number of rows of a tensor whose last axis is a row.
pub(crate) fn num_rows(tensor: &CubeTensor) -> usize {
    let shape = tensor.meta.shape();
    tensor.meta.num_elements() / shape[shape.len() - 1]
}

/// Adds the output of a block, normed if there is a norm, to the stream, `[.., hidden_size]`. Returns the sum, normed
/// if there is a norm, in type `normed_type`, and the sum.
pub(crate) fn add_norm(
    shape: &DecoderShape,
    stream: CubeTensor,
    output: Option<(CubeTensor, Option<&RmsNorm>)>,
    norm: Option<&RmsNorm>,
    normed_type: DType,
) -> (CubeTensor, CubeTensor) {
    let weights = |norm: &RmsNorm| cube_tensor(norm.weight());
    let output_norm = output.as_ref().and_then(|(_, norm)| *norm).map(weights);
    let norm = norm.map(weights);
    let rows = num_rows(&stream);
    let row = RowLayout::new(stream.meta.num_elements() / rows);
    let form = AddNormForm {
        row,
        has_addend: output.is_some(),
        has_output_norm: output_norm.is_some(),
        has_sum_norm: norm.is_some(),
    };
    if !form.has_addend && !form.has_sum_norm {
        return (stream.clone(), stream);
    }
    let new = |dtype: DType| uninit(&stream, &stream.meta.shape().to_vec(), dtype);
    let sum = if form.has_addend { new(DType::F32) } else { stream.clone() };
    let normed = if form.has_sum_norm { new(normed_type) } else { sum.clone() };
    let unused = uninit(&stream, &[1], DType::F32);
    let output = output.map_or_else(|| stream.clone(), |(output, _)| output);
    // SAFETY: accesses stay below `rows` times `size`; all units of a cube reach its barriers. What the form leaves out
    // is neither read nor written.
    unsafe {
        add_norm_kernel::launch_unchecked(
            &stream.client,
            grid(&stream, rows),
            CubeDim::new_1d(row.units as u32),
            argument(&stream),
            argument(&output),
            argument(norm.as_ref().unwrap_or(&stream)),
            argument(output_norm.as_ref().unwrap_or(&stream)),
            argument(if form.has_addend { &sum } else { &unused }),
            argument(if form.has_sum_norm { &normed } else { &unused }),
            rows,
            shape.rms_norm_eps,
            shape.norm_offset,
            form,
            element_type_of(&normed),
        );
    }
    (normed, sum)
}

/// Multiplies the activation of a gate by the up projection. The result has the shape of the gate.
pub(crate) fn apply_gate(
    gate: &CubeTensor,
    up: &CubeTensor,
    activation: Activation,
    gated_type: DType,
) -> CubeTensor {
    let count = gate.meta.num_elements();
    let gated = uninit(gate, &gate.meta.shape().to_vec(), gated_type);
    let vector = vector_size(&[gate, up, &gated], |vector| count.is_multiple_of(vector));
    let count = count / vector;
    // SAFETY: accesses stay below `count`.
    unsafe {
        gate_kernel::launch_unchecked(
            &gate.client,
            grid(gate, count.div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            argument(gate),
            argument(up),
            argument(&gated),
            count,
            vector,
            activation,
            element_type_of(&gated),
            vector,
        );
    }
    gated
}
