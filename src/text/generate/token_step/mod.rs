//! The token step of generation in dedicated kernels: nine launches per layer where tensors take about seventy.
//!
//! It computes the same formulas as [`DeviceDecoder::step`], for one token of each row:
//! norms with the addition before them, rotation with the write into the caches, attention over the filled part of
//! the caches with the prompt of a group read in place, the gate, and the choice of a token. Products are computed by
//! [`ProductPrecision`](crate::nn::tensors::products::ProductPrecision).

mod batch;

pub(super) use batch::KernelBatch;

use crate::device::buffers::{argument, cube_tensor, element_type_of, grid, uninit, vector_size};
use crate::device::has_kernels;
use crate::nn::arch::{DecoderShape, Projection};
use crate::nn::tensors::attention::KeysValues;
use crate::nn::tensors::rope::Rope;
use crate::text::DeviceDecoder;
use crate::text::kernels::UNITS;
use crate::text::kernels::attend::{CachedKeysValuesLaunch, attend_kernel};
use crate::text::kernels::heads::{Heads, rotation_kernel, store_kernel};
use crate::text::kernels::launch::{add_norm, apply_gate, head_norm_weights};
use crate::text::kernels::progress::{NUM_INDICES, ProgressLaunch};
use crate::text::kernels::rows;
use burn::backend::{Cube, DType};
use burn::cubecl::prelude::CubeDim;
use burn::tensor::{Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// The token step of a decoder: its heads, and the weights of their norms in the layout of the kernels.
#[derive(Clone, Debug)]
pub(super) struct TokenStep {
    /// Weights of the norms of queries and keys of each layer.
    head_norms: Vec<CubeTensor>,
    heads: Heads,
}

impl TokenStep {
    /// Collects the weights of a decoder; `None` if its device runs no kernels.
    pub(super) fn new(decoder: &DeviceDecoder) -> Option<Self> {
        if !has_kernels(decoder.device()) {
            return None;
        }
        let module = &decoder.module;
        let head_norms = (0..module.layers.len()).map(|layer| head_norm_weights(module, layer));
        Some(Self { head_norms: head_norms.collect(), heads: Heads::from_shape(module.shape()) })
    }

    /// Passes a token of each completion, `[rows]`, through all layers, as [`DeviceDecoder::step`] does. Returns the
    /// normed hidden states, `[rows, hidden_size]`. The index of the token is in `progress`, the counts of a
    /// [`Progress`](crate::text::kernels::progress::Progress). `key_bound` is the number of keys, rounded up to a
    /// multiple of [`UNITS`].
    fn run(
        &self,
        decoder: &DeviceDecoder,
        [prompts, completions]: [&[KeysValues]; 2],
        progress: &CubeTensor,
        tokens: Tensor<1, Int>,
        key_bound: usize,
    ) -> Tensor<2> {
        let (module, adapters) = (&decoder.module, decoder.adapter_tensors());
        let rows = tokens.dims()[0];
        let shape = module.shape();
        let launch = StepLaunch {
            token_step: self,
            shape,
            prompts,
            completions,
            progress,
            key_bound,
            rows,
            completions_per_prompt: rows / (progress.meta.num_elements() - NUM_INDICES),
            operand_type: module.products.dtype(),
        };
        let rotations: Vec<_> =
            module.rope.iter().map(|table| launch.advance_and_rotate(table)).collect();
        let mut stream = cube_tensor(module.embed(tokens.reshape([rows, 1])));
        let mut output = None;
        for (i, layer) in module.layers.iter().enumerate() {
            let tensor = |x: &CubeTensor| Tensor::<3>::from_primitive::<Cube>(x.clone());
            let apply = |projection: Projection, x: &CubeTensor| {
                cube_tensor(module.apply(adapters, i, projection, tensor(x)))
            };
            let norms = layer.norms(shape.norm_placement);
            let norm = norms.before_attention;
            let (input, sum) = add_norm(shape, stream, output, norm, launch.operand_type);
            let [queries, keys, values] = module
                .apply_all(adapters, i, Projection::ATTENTION_INPUTS, tensor(&input))
                .map(cube_tensor);
            launch.store(i, [&queries, &keys, &values], &rotations[shape.rope_table_index(i)]);
            let attended = apply(Projection::Output, &launch.attend(i, &queries));
            let attended = Some((attended, norms.after_attention));
            let (input, sum) =
                add_norm(shape, sum, attended, norms.before_mlp, launch.operand_type);
            let [gate, up] = module
                .apply_all(adapters, i, Projection::MLP_INPUTS, tensor(&input))
                .map(cube_tensor);
            let inner = apply_gate(&gate, &up, shape.activation, launch.operand_type);
            output = Some((apply(Projection::Down, &inner), norms.after_mlp));
            stream = sum;
        }
        let (hidden, _) = add_norm(shape, stream, output, Some(&module.norm), DType::F32);
        Tensor::<3>::from_primitive::<Cube>(hidden).reshape([rows, shape.hidden_size])
    }
}

/// Launches of the kernels of one step.
struct StepLaunch<'a> {
    token_step: &'a TokenStep,
    shape: &'a DecoderShape,
    /// Keys and values of prompts and of completions, layer by layer.
    prompts: &'a [KeysValues],
    completions: &'a [KeysValues],
    progress: &'a CubeTensor,
    /// The number of keys, rounded up to a multiple of [`UNITS`].
    key_bound: usize,
    rows: usize,
    /// Completions of a prompt.
    completions_per_prompt: usize,
    /// The type of the operands of products, and of the caches.
    operand_type: DType,
}

impl StepLaunch<'_> {
    fn progress(&self) -> ProgressLaunch {
        ProgressLaunch::new(argument(self.progress), self.completions_per_prompt)
    }

    /// Advances `progress` to the last token chosen, and computes the rotations of each row's position,
    /// `[rows, half, 2]`. Several tables of a step advance it to the same token.
    fn advance_and_rotate(&self, table: &Rope) -> CubeTensor {
        let half = self.token_step.heads.half;
        let [low, high] = table.parts;
        let rotations = uninit(self.progress, &[self.rows, half, 2], DType::F32);
        let cubes = (self.rows * half).div_ceil(UNITS);
        // SAFETY: accesses stay below the rows and the parts of the table.
        unsafe {
            rotation_kernel::launch_unchecked(
                &self.progress.client,
                grid(self.progress, cubes),
                CubeDim::new_1d(UNITS as u32),
                self.progress(),
                argument(&cube_tensor(table.rotations.clone())),
                argument(&rotations),
                self.rows,
                low,
                high,
                half,
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
        let caches = self.completions[layer].each_ref().map(|x| cube_tensor(x.clone()));
        let max_tokens = self.completions[layer][0].dims()[1];
        let units = rows::RowLayout::new(self.token_step.heads.query_size()).units;
        // SAFETY: accesses stay below the rows, the heads and the room of the caches, which nothing else reads or
        // writes meanwhile; all units of a cube reach its barriers.
        unsafe {
            store_kernel::launch_unchecked(
                &queries.client,
                grid(queries, self.rows),
                CubeDim::new_1d(units as u32),
                argument(queries),
                argument(keys),
                argument(values),
                argument(rotations),
                argument(&self.token_step.head_norms[layer]),
                argument(&caches[0]),
                argument(&caches[1]),
                self.progress(),
                self.rows,
                max_tokens,
                self.shape.head_shape().scale,
                self.shape.rms_norm_eps,
                self.token_step.heads,
                units,
                element_type_of(&caches[0]),
            );
        }
    }

    /// Computes the result of attention: `[rows, 1, query_size]`.
    fn attend(&self, layer: usize, queries: &CubeTensor) -> CubeTensor {
        let [completions, prompts] = [&self.completions[layer], &self.prompts[layer]];
        let (max_tokens, longest) = (completions[0].dims()[1], prompts[0].dims()[1]);
        let [keys, values] = completions.each_ref().map(|x| cube_tensor(x.clone()));
        let [prompt_keys, prompt_values] = prompts.each_ref().map(|x| cube_tensor(x.clone()));
        let heads = self.token_step.heads;
        let attended = uninit(queries, &[self.rows, 1, heads.query_size()], self.operand_type);
        let window = self.shape.window(layer);
        let operands = [&keys, &values, &prompt_keys, &prompt_values, queries];
        let vector = vector_size(&operands, |vector| heads.dim.is_multiple_of(vector));
        // SAFETY: accesses stay below the rows, the heads and the room of the caches; all units of a cube reach its
        // barriers.
        unsafe {
            attend_kernel::launch_unchecked(
                &queries.client,
                grid(queries, self.rows * heads.queries),
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
                self.rows,
                window,
                self.key_bound,
                heads,
                vector,
                element_type_of(&keys),
                vector,
            );
        }
        attended
    }
}
