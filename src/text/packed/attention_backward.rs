//! The backward pass of attention over packed texts.

use super::backward::{sum_columns, weight_name};
use super::forward::{Activations, PackedPass, RowBlocks, as_rows};
use super::gradients::Gradients;
use crate::device::buffers::{argument, cube_tensor, element_type_of, grid, uninit, vector_size};
use crate::nn::arch::Projection;
use crate::text::kernels::UNITS;
use crate::text::kernels::launch::head_norm_weights;
use crate::text::kernels::rows::ROWS_PER_CUBE;
use crate::text::kernels::text_gradients::{
    add_parts_kernel, delta_kernel, key_gradient_kernel, query_gradient_kernel,
};
use crate::text::kernels::text_heads::{norm_rotate_backward_kernel, unrotate_kernel};
use burn::backend::DType;
use burn::cubecl::prelude::CubeDim;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;

impl PackedPass<'_> {
    /// Computes the gradient of the input of a layer's attention.
    pub(super) fn attention_backward(
        &self,
        layer: usize,
        activations: &Activations,
        input: CubeTensor,
        d_output: CubeTensor,
        gradients: &mut Gradients,
    ) -> Tensor<2> {
        let attended = || as_rows(activations.attended.clone());
        let d_attended =
            self.linears_backward(layer, [Projection::Output], attended, [&d_output], gradients);
        let values =
            activations.values.clone().unwrap_or_else(|| self.compute_values(layer, &input));
        let attention = Attention {
            pass: self,
            window: self.shape().window(layer),
            activations,
            values: &values,
            d_attended: cube_tensor(d_attended),
        };
        let [d_queries, d_keys, d_values] = attention.backward();
        let d_scored = [d_queries, d_keys];
        let [d_queries, d_keys] = match &activations.unnormed_heads {
            Some(unnormed_heads) => {
                self.head_norms_backward(layer, unnormed_heads, d_scored, gradients)
            }
            None => self.rotate_back(layer, d_scored),
        };
        let d_results = [&d_queries, &d_keys, &d_values];
        let input = || as_rows(input);
        self.linears_backward(layer, Projection::ATTENTION_INPUTS, input, d_results, gradients)
    }

    /// Computes the gradients of queries and keys without norms before rotation from those of the rotated ones.
    fn rotate_back(&self, layer: usize, [d_queries, d_keys]: [CubeTensor; 2]) -> [CubeTensor; 2] {
        let (rows, heads) = (self.rows(), self.heads);
        let count = rows
            * (heads.num_query_heads + heads.num_kv_heads)
            * (heads.head_dim - heads.num_rotary_pairs);
        let new = |size: usize| self.allocate_rows(size, self.operand_type);
        let unrotated = [new(heads.query_size()), new(heads.kv_size())];
        // SAFETY: accesses stay below the rows and the heads.
        unsafe {
            unrotate_kernel::launch_unchecked(
                &d_queries.client,
                grid(&d_queries, count.div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                argument(self.layer_rotations(layer)),
                argument(&d_queries),
                argument(&d_keys),
                argument(&unrotated[0]),
                argument(&unrotated[1]),
                rows,
                self.shape().head_shape().scale,
                heads,
                element_type_of(&unrotated[0]),
            );
        }
        unrotated
    }

    /// Computes the gradients of queries and keys before norm and rotation from those of the rotated ones; adds the
    /// gradients of the norms' weights.
    fn head_norms_backward(
        &self,
        layer: usize,
        [queries, keys]: &[CubeTensor; 2],
        [d_queries, d_keys]: [CubeTensor; 2],
        gradients: &mut Gradients,
    ) -> [CubeTensor; 2] {
        let (rows, heads, shape) = (self.rows(), self.heads, self.shape());
        let cubes = rows.div_ceil(ROWS_PER_CUBE);
        let partials = uninit(&d_queries, &[cubes, heads.norm_size()], DType::F32);
        // SAFETY: accesses stay below the rows, the heads and the cubes; all units of a cube reach its barriers.
        // Nothing else refers to the gradients that change.
        unsafe {
            norm_rotate_backward_kernel::launch_unchecked(
                &d_queries.client,
                grid(&d_queries, cubes),
                CubeDim::new_1d(UNITS as u32),
                argument(queries),
                argument(keys),
                argument(self.layer_rotations(layer)),
                argument(&head_norm_weights(&self.decoder.module, layer)),
                argument(&d_queries),
                argument(&d_keys),
                argument(&partials),
                rows,
                shape.head_shape().scale,
                shape.rms_norm_eps,
                heads,
            );
        }
        if gradients.has_weights() {
            self.add_head_norm_gradients(layer, &partials, gradients);
        }
        let products = self.decoder.module.products;
        [d_queries, d_keys].map(|d| cube_tensor(products.cast_operand(as_rows(d))))
    }

    /// Adds the gradients of the weights of the norms of queries and keys, from their partial sums, `[cubes, weights]`.
    fn add_head_norm_gradients(
        &self,
        layer: usize,
        partials: &CubeTensor,
        gradients: &mut Gradients,
    ) {
        let heads = self.heads;
        let names = ["self_attn.q_norm", "self_attn.k_norm"].map(|name| weight_name(layer, name));
        gradients.add(names.each_ref().map(|name| &name[..]), |buffer| {
            // The sums have no gap between the two.
            let mut buffer = buffer.take_if(|buffer| buffer.dims()[0] == heads.norm_size());
            let (sums, of_queries) = (sum_columns(partials, &mut buffer), heads.query_norm_size());
            let part = |start: usize, len: usize| sums.clone().narrow(0, start, len);
            [part(0, of_queries), part(of_queries, heads.norm_size() - of_queries)]
        });
    }
}

/// The attention of a layer, from rotated queries, keys and values to its result, with the gradient of the latter.
struct Attention<'a> {
    pass: &'a PackedPass<'a>,
    window: usize,
    activations: &'a Activations,
    values: &'a CubeTensor,
    d_attended: CubeTensor,
}

impl Attention<'_> {
    /// Computes the gradients of rotated queries and keys, and of values.
    fn backward(self) -> [CubeTensor; 3] {
        self.fill_delta();
        let d_queries = self.compute_query_gradient();
        let [d_keys, d_values] = self.add_parts(self.compute_key_and_value_parts());
        [d_queries, d_keys, d_values]
    }

    /// Computes delta, which the other kernels read.
    fn fill_delta(&self) {
        let Activations { queries, attended, log_sum_exp_and_delta, .. } = self.activations;
        let (heads, d_attended) = (self.pass.heads, &self.d_attended);
        let count = self.pass.rows() * heads.num_query_heads;
        let vector =
            vector_size(&[attended, d_attended], |size| heads.head_dim.is_multiple_of(size));
        // SAFETY: accesses stay below the rows and the heads. Delta is read by later kernels alone.
        unsafe {
            delta_kernel::launch_unchecked(
                &queries.client,
                grid(queries, count.div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                argument(attended),
                argument(d_attended),
                argument(log_sum_exp_and_delta),
                count,
                heads.head_dim / vector,
                vector,
                element_type_of(attended),
                vector,
            );
        }
    }

    fn compute_query_gradient(&self) -> CubeTensor {
        let Activations { queries, keys, log_sum_exp_and_delta, .. } = self.activations;
        let heads = self.pass.heads;
        let RowBlocks { tiles, start, count } = self.pass.blocks.query_gradient;
        let d_queries = self.pass.allocate_rows(heads.query_size(), DType::F32);
        // SAFETY: accesses stay below the rows and the heads; all units of a cube reach its barriers.
        unsafe {
            query_gradient_kernel::launch_unchecked(
                &queries.client,
                grid(queries, count * heads.num_kv_heads),
                CubeDim::new_1d(UNITS as u32),
                argument(queries),
                argument(&self.d_attended),
                argument(keys),
                argument(self.values),
                argument(log_sum_exp_and_delta),
                self.pass.segments(),
                argument(&d_queries),
                start,
                count,
                self.window,
                heads,
                tiles,
                element_type_of(keys),
            );
        }
        d_queries
    }

    /// Computes the gradients of keys and values in parts, `[part_rows, kv_size]` each: a cube visits some of the rows
    /// that see its keys.
    fn compute_key_and_value_parts(&self) -> [CubeTensor; 2] {
        let Activations { queries, keys, log_sum_exp_and_delta, .. } = self.activations;
        let heads = self.pass.heads;
        let blocks = &self.pass.blocks;
        let RowBlocks { tiles, start, count } = blocks.key_gradient;
        let part = || uninit(queries, &[blocks.part_rows, heads.kv_size()], DType::F32);
        let [key_parts, value_parts] = [part(), part()];
        // SAFETY: accesses stay below the rows and the heads; all units of a cube reach its barriers.
        unsafe {
            key_gradient_kernel::launch_unchecked(
                &queries.client,
                grid(queries, count * heads.num_kv_heads),
                CubeDim::new_1d(tiles.units as u32),
                argument(queries),
                argument(&self.d_attended),
                argument(keys),
                argument(self.values),
                argument(log_sum_exp_and_delta),
                self.pass.segments(),
                argument(&key_parts),
                argument(&value_parts),
                start,
                count,
                self.window,
                heads,
                tiles,
                element_type_of(keys),
            );
        }
        [key_parts, value_parts]
    }

    /// Adds up the parts of the gradients of keys and values.
    fn add_parts(&self, [key_parts, value_parts]: [CubeTensor; 2]) -> [CubeTensor; 2] {
        let (queries, size) = (&self.activations.queries, self.pass.heads.kv_size());
        let count = self.pass.rows() * size;
        let d_keys = self.pass.allocate_rows(size, DType::F32);
        let d_values = self.pass.allocate_rows(size, self.pass.operand_type);
        // SAFETY: accesses stay below the rows and the parts.
        unsafe {
            add_parts_kernel::launch_unchecked(
                &queries.client,
                grid(queries, count.div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                argument(&key_parts),
                argument(&value_parts),
                self.pass.segments(),
                argument(&d_keys),
                argument(&d_values),
                self.pass.blocks.row_parts_start,
                count,
                size,
                element_type_of(&d_values),
            );
        }
        [d_keys, d_values]
    }
}
