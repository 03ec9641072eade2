//! The layers of a token step.
//!
//! They compute the same formulas as [`DeviceDecoder::step`](crate::text::DeviceDecoder::step), for one token of each
//! row: norms with the addition before them, rotation with the write into the caches, attention over the filled part of
//! the caches with each prompt read in place, and the gate. Products are computed by
//! [`ProductPrecision`](crate::nn::tensors::products::ProductPrecision).

use super::KernelBatch;
use crate::device::buffers::{argument, cube_tensor, element_type_of, grid, uninit, vector_size};
use crate::nn::arch::Projection;
use crate::nn::tensors::rope::Rope;
use crate::text::kernels::UNITS;
use crate::text::kernels::attend::{CachedKeysValuesLaunch, attend_kernel};
use crate::text::kernels::heads::{rotation_kernel, store_kernel};
use crate::text::kernels::launch::{add_norm, apply_gate};
use crate::text::kernels::rows::RowLayout;
use burn::backend::{Cube, DType};
use burn::cubecl::prelude::CubeDim;
use burn::tensor::{Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

impl KernelBatch<'_> {
    /// Passes the last token of each completion through all layers. Returns the normed hidden states, `[rows,
    /// hidden_size]`. `key_bound` is the number of keys, rounded up to a multiple of [`UNITS`].
    pub(super) fn run_layers(&self, key_bound: usize) -> Tensor<2> {
        let (module, adapters) = (&self.decoder.module, self.decoder.adapter_tensors());
        let (shape, operand_type) = (module.shape(), module.products.dtype());
        let tokens = Tensor::<1, Int>::from_primitive::<Cube>(self.state.tokens.clone());
        let rotations: Vec<_> =
            module.rope.iter().map(|table| self.advance_and_rotate(table)).collect();
        let mut stream = cube_tensor(module.embed(tokens.reshape([self.rows(), 1])));
        let mut output = None;
        for (i, layer) in module.layers.iter().enumerate() {
            let tensor = |x: &CubeTensor| Tensor::<3>::from_primitive::<Cube>(x.clone());
            let apply = |projection: Projection, x: &CubeTensor| {
                cube_tensor(module.apply(adapters, i, projection, tensor(x)))
            };
            let norms = layer.norms(shape.norm_placement);
            let norm = norms.before_attention;
            let (input, sum) = add_norm(shape, stream, output, norm, operand_type);
            let [queries, keys, values] = module
                .apply_all(adapters, i, Projection::ATTENTION_INPUTS, tensor(&input))
                .map(cube_tensor);
            self.store(i, [&queries, &keys, &values], &rotations[shape.rope_table_index(i)]);
            let attended = apply(Projection::Output, &self.attend(i, &queries, key_bound));
            let attended = Some((attended, norms.after_attention));
            let (input, sum) = add_norm(shape, sum, attended, norms.before_mlp, operand_type);
            let [gate, up] = module
                .apply_all(adapters, i, Projection::MLP_INPUTS, tensor(&input))
                .map(cube_tensor);
            let inner = apply_gate(&gate, &up, shape.activation, operand_type);
            output = Some((apply(Projection::Down, &inner), norms.after_mlp));
            stream = sum;
        }
        let (hidden, _) = add_norm(shape, stream, output, Some(&module.norm), DType::F32);
        Tensor::<3>::from_primitive::<Cube>(hidden).reshape([self.rows(), shape.hidden_size])
    }

    /// Advances the progress to the last token chosen, and computes the rotations of each row's position,
    /// `[rows, num_pairs, 2]`. Several tables of a step advance it to the same token.
    fn advance_and_rotate(&self, table: &Rope) -> CubeTensor {
        let num_pairs = self.token_step.heads.num_rotary_pairs;
        let [low, high] = table.parts;
        let rotations = uninit(&self.draws, &[self.rows(), num_pairs, 2], DType::F32);
        let cubes = (self.rows() * num_pairs).div_ceil(UNITS);
        // SAFETY: accesses stay below the rows and the parts of the table.
        unsafe {
            rotation_kernel::launch_unchecked(
                &rotations.client,
                grid(&rotations, cubes),
                CubeDim::new_1d(UNITS as u32),
                self.progress(),
                argument(&cube_tensor(table.rotations.clone())),
                argument(&rotations),
                self.rows(),
                low,
                high,
                num_pairs,
            );
        }
        rotations
    }

    /// Norms and rotates queries and keys in place, and stores keys and values.
    fn store(
        &self,
        layer: usize,
        [queries, keys, values]: [&CubeTensor; 3],
        rotations: &CubeTensor,
    ) {
        let caches = self.state.keys_values[layer].each_ref().map(|x| cube_tensor(x.clone()));
        let max_tokens = self.state.keys_values[layer][0].dims()[1];
        let shape = self.decoder.module.shape();
        let units = RowLayout::new(self.token_step.heads.query_size()).units;
        // SAFETY: accesses stay below the rows, the heads and the room of the caches, which nothing else reads or
        // writes meanwhile; all units of a cube reach its barriers.
        unsafe {
            store_kernel::launch_unchecked(
                &queries.client,
                grid(queries, self.rows()),
                CubeDim::new_1d(units as u32),
                argument(queries),
                argument(keys),
                argument(values),
                argument(rotations),
                argument(&self.token_step.head_norms[layer]),
                argument(&caches[0]),
                argument(&caches[1]),
                self.progress(),
                self.rows(),
                max_tokens,
                shape.head_shape().scale,
                shape.rms_norm_eps,
                self.token_step.heads,
                units,
                element_type_of(&caches[0]),
            );
        }
    }

    /// Computes the result of attention: `[rows, 1, query_size]`.
    fn attend(&self, layer: usize, queries: &CubeTensor, key_bound: usize) -> CubeTensor {
        let completions = &self.state.keys_values[layer];
        let prompts = &self.prompts.keys_values[layer];
        let (max_tokens, longest) = (completions[0].dims()[1], prompts[0].dims()[1]);
        let [keys, values] = completions.each_ref().map(|x| cube_tensor(x.clone()));
        let [prompt_keys, prompt_values] = prompts.each_ref().map(|x| cube_tensor(x.clone()));
        let heads = self.token_step.heads;
        let attended = uninit(queries, &[self.rows(), 1, heads.query_size()], keys.dtype);
        let window = self.decoder.module.shape().window(layer);
        let operands = [&keys, &values, &prompt_keys, &prompt_values, queries];
        let vector = vector_size(&operands, |vector| heads.head_dim.is_multiple_of(vector));
        // SAFETY: accesses stay below the rows, the heads and the room of the caches; all units of a cube reach its
        // barriers.
        unsafe {
            attend_kernel::launch_unchecked(
                &queries.client,
                grid(queries, self.rows() * heads.num_query_heads),
                CubeDim::new_1d(UNITS as u32),
                argument(queries),
                CachedKeysValuesLaunch::new(
                    argument(&keys),
                    argument(&values),
                    argument(&prompt_keys),
                    argument(&prompt_values),
                    max_tokens,
                    longest,
                ),
                self.progress(),
                argument(&attended),
                self.rows(),
                window,
                key_bound,
                heads,
                vector,
                element_type_of(&keys),
                vector,
            );
        }
        attended
    }
}
