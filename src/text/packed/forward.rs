//! The forward pass over packed texts.

use super::layout::Layout;
use crate::device::buffers::{
    ALIGNMENT, argument, cube_ints, cube_tensor, element_type_of, grid, uninit,
};
use crate::device::upload_indices;
use crate::nn::arch::{DecoderShape, Projection};
use crate::nn::tensors::rope::Rope;
use crate::text::kernels::UNITS;
use crate::text::kernels::attention_tiles::{TileCounts, Tiles};
use crate::text::kernels::heads::KernelHeadShape;
use crate::text::kernels::launch::{add_norm, apply_gate, head_norm_weights};
use crate::text::kernels::text_attention::text_attend_kernel;
use crate::text::kernels::text_gradients::KEY_BLOCK_ENTRIES;
use crate::text::kernels::text_heads::{SegmentsLaunch, norm_rotate_kernel, text_rotation_kernel};
use crate::text::{
    CompletionIndex, DeviceDecoder, PromptKvCaches, PromptWithCompletions, Retention,
    upload_integers,
};
use burn::backend::{Cube, DType};
use burn::cubecl::prelude::CubeDim;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;

/// A pass of texts through a decoder: hidden states, and the activations that the backward pass needs.
pub(crate) struct PackedPass<'a> {
    pub(super) decoder: &'a DeviceDecoder,
    pub(super) layout: Layout,
    pub(super) heads: KernelHeadShape,
    /// The type of keys and values.
    pub(super) operand_type: DType,
    /// The table of [`Layout`], then the blocks of rows that queries and keys are divided into.
    pub(super) table: CubeTensor,
    pub(super) blocks: Blocks,
    /// For each of the shape's tables the rotations of each row: `[rows, num_pairs, 2]`.
    pub(super) rotations: Vec<CubeTensor>,
    pub(super) layers: Vec<KeptLayer>,
    /// The stream after the last layer: `[1, rows, hidden_size]`, as are all streams.
    pub(super) last_stream: CubeTensor,
    hidden: CubeTensor,
}

/// Workgroup memory, bytes, from which cubes have several times [`UNITS`] units.
const LARGE_WORKGROUP_BYTES: usize = 32 << 10;

/// Blocks of rows that the cubes of attention take, with the tiles of each kernel.
pub(super) struct Blocks {
    pub attention: RowBlocks,
    pub query_gradient: RowBlocks,
    /// Parts of blocks of keys.
    pub key_gradient: RowBlocks,
    /// Rows of all these parts.
    pub part_rows: usize,
    /// Start of the parts of each row in the table of segments.
    pub row_parts_start: usize,
}

/// Blocks of rows that the cubes of a kernel take.
#[derive(Clone, Copy)]
pub(super) struct RowBlocks {
    pub tiles: Tiles,
    /// Start in the table of segments.
    pub start: usize,
    pub count: usize,
}

impl Blocks {
    /// Creates the blocks of texts, and the table of their layout, followed by these blocks.
    fn new(layout: &Layout, heads: KernelHeadShape, like: &CubeTensor) -> (Self, Vec<i32>) {
        let workgroup_bytes = like.client.properties().hardware.max_shared_memory_size;
        let heads_per_kv_head = heads.heads_per_kv_head();
        let ([forward, query_gradient, keys], _) = fit_tiles(heads, workgroup_bytes);
        let mut table = layout.table.clone();
        let [attention, query_gradient] = [forward, query_gradient].map(|tiles| {
            let start = table.len();
            let blocks = layout.divide_rows(tiles.queries / heads_per_kv_head);
            table.extend(&blocks);
            RowBlocks { tiles, start, count: blocks.len() / 2 }
        });
        let start = table.len();
        let parts = layout.divide_keys(keys.keys, keys.queries.div_ceil(heads_per_kv_head));
        table.extend(&parts.blocks);
        let row_parts_start = table.len();
        table.extend(&parts.row_parts);
        let count = parts.blocks.len() / KEY_BLOCK_ENTRIES;
        let key_gradient = RowBlocks { tiles: keys, start, count };
        let part_rows = parts.rows;
        (Self { attention, query_gradient, key_gradient, part_rows, row_parts_start }, table)
    }
}

/// Fits the tiles of the kernels of attention and of the gradients of queries and of keys into `workgroup_bytes` bytes
/// of workgroup memory. Returns them and the bytes that they need: more if even the smallest do not fit.
fn fit_tiles(heads: KernelHeadShape, workgroup_bytes: usize) -> ([Tiles; 3], usize) {
    let heads_per_kv_head = heads.heads_per_kv_head();
    let tile_sizes = |queries: usize, keys| Tiles {
        // The heads of a row that share keys are in one tile.
        queries: queries.max(heads_per_kv_head.next_power_of_two()),
        keys,
        dim: heads.head_dim,
        units: UNITS,
    };
    // A prompt's keys are seen by all its completions: more units share the work of a cube.
    let units = if workgroup_bytes >= LARGE_WORKGROUP_BYTES { 4 * UNITS } else { UNITS };
    let forward_counts = TileCounts { num_tiles: 1, num_products: 1, floats_per_query: 3 };
    let query_counts = TileCounts { num_tiles: 2, num_products: 1, floats_per_query: 0 };
    let key_counts = TileCounts { num_tiles: 2, num_products: 2, floats_per_query: 0 };
    let preferred = [
        (tile_sizes(16, 32), heads_per_kv_head, forward_counts),
        (tile_sizes(16, 32), heads_per_kv_head, query_counts),
        (Tiles { units, ..tile_sizes(32, 16) }, 1, key_counts),
    ];
    let mut bytes = 0;
    let tiles = preferred.map(|(tiles, min_queries, counts)| {
        let tiles = tiles.shrink_to_fit(min_queries, counts, workgroup_bytes);
        bytes = bytes.max(tiles.bytes(counts));
        tiles
    });
    (tiles, bytes)
}

/// The workgroup memory without which kernels cannot compute the attention of a decoder, bytes.
pub(crate) fn attention_bytes(shape: &DecoderShape) -> usize {
    fit_tiles(KernelHeadShape::from_shape(shape), 0).1
}

/// The bytes of a row in the largest buffer of a forward pass: of products that one launch makes, or of the stream.
pub(crate) fn forward_bytes(shape: &DecoderShape) -> u64 {
    // Each product begins at a multiple of the alignment.
    let scores = shape.query_size().next_multiple_of(ALIGNMENT) + shape.kv_size();
    (scores.max(shape.intermediate_size).max(shape.hidden_size) * size_of::<f32>()) as u64
}

/// The activations of a layer that the backward pass needs.
pub(super) struct KeptLayer {
    /// The input stream.
    pub stream: CubeTensor,
    /// All others; `None` if the backward pass recomputes them.
    pub activations: Option<Activations>,
}

/// The activations of a layer. A pass keeps neither the values nor the up projection, a third of the memory of all: the
/// backward pass needs their inputs anyway, and recomputes each by one product.
pub(super) struct Activations {
    /// Queries and keys before their norms, if they have any.
    pub unnormed_heads: Option<[CubeTensor; 2]>,
    pub queries: CubeTensor,
    pub keys: CubeTensor,
    /// `None` once a pass keeps the others.
    pub values: Option<CubeTensor>,
    pub attended: CubeTensor,
    /// Log-sum-exp of the scores of each row and head, and delta, the sum of `d_out * out`, which the backward pass
    /// fills: `[rows, heads, 2]`.
    pub log_sum_exp_and_delta: CubeTensor,
    /// Output of the attention block, if it is normed.
    pub attention_output: Option<CubeTensor>,
    /// The stream between the attention block and the feed-forward block.
    pub stream_after_attention: CubeTensor,
    pub gate: CubeTensor,
    /// The up projection; `None` once a pass keeps the others.
    pub up: Option<CubeTensor>,
    /// Output of the feed-forward block, if it is normed.
    pub mlp_output: Option<CubeTensor>,
}

impl<'a> PackedPass<'a> {
    /// Computes the forward pass of texts through all layers.
    ///
    /// # Panics
    /// If a prompt or a completion has no tokens.
    pub fn forward(
        decoder: &'a DeviceDecoder,
        prompts: &[PromptWithCompletions],
        retention: Retention,
    ) -> Self {
        Self::forward_with(decoder, prompts, retention, |_| {})
    }

    /// Computes the forward pass, and calls `on_layer` with the activations of each layer.
    fn forward_with(
        decoder: &'a DeviceDecoder,
        prompts: &[PromptWithCompletions],
        retention: Retention,
        mut on_layer: impl FnMut(&Activations),
    ) -> Self {
        let (module, layout) = (&decoder.module, Layout::new(prompts));
        let shape = module.shape();
        let rows = layout.tokens.len();
        let tokens = upload_integers(&layout.tokens, [1, rows], decoder.device());
        let stream = cube_tensor(module.embed(tokens));
        let heads = KernelHeadShape::from_shape(shape);
        let (blocks, table) = Blocks::new(&layout, heads, &stream);
        let table = cube_ints(upload_indices(&table, decoder.device()));
        let mut pass = Self {
            decoder,
            layout,
            heads,
            operand_type: module.products.dtype(),
            table,
            blocks,
            rotations: Vec::new(),
            layers: Vec::new(),
            last_stream: stream.clone(),
            hidden: stream.clone(),
        };
        pass.rotations = module.rope.iter().map(|table| pass.compute_rotations(table)).collect();
        let (mut stream, mut output) = (stream, None);
        for (i, layer) in module.layers.iter().enumerate() {
            let norms = layer.norms(shape.norm_placement);
            let norm = norms.before_attention;
            let (input, sum) = add_norm(shape, stream, output, norm, pass.operand_type);
            let (activations, result) = pass.run_layer(i, input, sum.clone());
            on_layer(&activations);
            stream = activations.stream_after_attention.clone();
            output = Some((result, norms.after_mlp));
            if retention != Retention::Nothing {
                let activations = (retention == Retention::All).then_some(Activations {
                    values: None,
                    up: None,
                    ..activations
                });
                pass.layers.push(KeptLayer { stream: sum, activations });
            }
        }
        (pass.hidden, pass.last_stream) =
            add_norm(shape, stream, output, Some(&module.norm), DType::F32);
        pass
    }

    /// The normed streams of all rows: `[rows, hidden_size]`.
    pub fn hidden(&self) -> Tensor<2> {
        as_rows(self.hidden.clone())
    }

    /// The row of [`PackedPass::hidden`] that predicts token number `token_index` of a completion.
    pub fn prediction(&self, completion: CompletionIndex, token_index: usize) -> usize {
        self.layout.prediction(completion, token_index)
    }

    pub(super) fn shape(&self) -> &'a DecoderShape {
        self.decoder.module.shape()
    }

    pub(super) fn rows(&self) -> usize {
        self.layout.tokens.len()
    }

    /// Allocates a tensor with a row of this size for each row of the pass: `[1, rows, size]`.
    pub(super) fn allocate_rows(&self, size: usize, dtype: DType) -> CubeTensor {
        uninit(&self.table, &[1, self.rows(), size], dtype)
    }

    pub(super) fn segments(&self) -> SegmentsLaunch {
        SegmentsLaunch::new(argument(&self.table), self.rows())
    }

    /// Computes the rotations of each row.
    fn compute_rotations(&self, table: &Rope) -> CubeTensor {
        let num_pairs = self.heads.num_rotary_pairs;
        let ([low, high], table) = (table.parts, cube_tensor(table.rotations.clone()));
        let rotations = uninit(&table, &[self.rows(), num_pairs, 2], DType::F32);
        let cubes = (self.rows() * num_pairs).div_ceil(UNITS);
        // SAFETY: accesses stay below the rows, the segments and the parts of the table.
        unsafe {
            text_rotation_kernel::launch_unchecked(
                &rotations.client,
                grid(&rotations, cubes),
                CubeDim::new_1d(UNITS as u32),
                self.segments(),
                argument(&table),
                argument(&rotations),
                low,
                high,
                num_pairs,
            );
        }
        rotations
    }

    /// Computes a layer from its normed input and the stream. Returns the activations and the output of the
    /// feed-forward block.
    pub(super) fn run_layer(
        &self,
        layer: usize,
        input: CubeTensor,
        stream: CubeTensor,
    ) -> (Activations, CubeTensor) {
        let (module, shape) = (&self.decoder.module, self.shape());
        let norms = module.layers[layer].norms(shape.norm_placement);
        let apply = |projection: Projection, x: &CubeTensor| self.apply(layer, projection, x);
        // Values live longer than the other two: a buffer of all three would keep them, too.
        let values = self.compute_values(layer, &input);
        let tensor = Tensor::<3>::from_primitive::<Cube>(input);
        let [queries, keys] = module
            .apply_all(self.decoder.adapter_tensors(), layer, Projection::QUERY_AND_KEY, tensor)
            .map(cube_tensor);
        let unnormed_heads = [queries, keys];
        let [queries, keys] = self.rotate_heads(layer, &unnormed_heads);
        let (attended, log_sum_exp_and_delta) = self.attend(layer, [&queries, &keys, &values]);
        let attention_output = apply(Projection::Output, &attended);
        let output = Some((attention_output.clone(), norms.after_attention));
        let (input, stream_after_attention) =
            add_norm(shape, stream, output, norms.before_mlp, self.operand_type);
        // The gate lives longer than the up projection: a buffer of both would keep them, too.
        let [gate, up] = Projection::MLP_INPUTS.map(|projection| apply(projection, &input));
        let output =
            apply(Projection::Down, &apply_gate(&gate, &up, shape.activation, self.operand_type));
        let activations = Activations {
            unnormed_heads: self.heads.has_head_norms().then_some(unnormed_heads),
            queries,
            keys,
            values: Some(values),
            attended,
            log_sum_exp_and_delta,
            attention_output: norms.after_attention.map(|_| attention_output),
            stream_after_attention,
            gate,
            up: Some(up),
            mlp_output: norms.after_mlp.map(|_| output.clone()),
        };
        (activations, output)
    }

    /// Multiplies the input of a block, `[1, rows, inputs]`, by a matrix of a layer.
    pub(super) fn apply(
        &self,
        layer: usize,
        projection: Projection,
        input: &CubeTensor,
    ) -> CubeTensor {
        let adapters = self.decoder.adapter_tensors();
        let input = Tensor::<3>::from_primitive::<Cube>(input.clone());
        cube_tensor(self.decoder.module.apply(adapters, layer, projection, input))
    }

    /// Computes the values of a layer from the input of its attention.
    pub(super) fn compute_values(&self, layer: usize, input: &CubeTensor) -> CubeTensor {
        let values = self.apply(layer, Projection::Value, input);
        let products = self.decoder.module.products;
        match products.operand_dtype {
            None => values,
            Some(_) => cube_tensor(products.cast_operand(as_rows(values))),
        }
    }

    /// The rotations of a layer.
    pub(super) fn layer_rotations(&self, layer: usize) -> &CubeTensor {
        &self.rotations[self.shape().rope_table_index(layer)]
    }

    /// Norms and rotates queries and keys.
    fn rotate_heads(&self, layer: usize, [queries, keys]: &[CubeTensor; 2]) -> [CubeTensor; 2] {
        let (rows, shape) = (self.rows(), self.shape());
        let rotated_queries = self.allocate_rows(self.heads.query_size(), DType::F32);
        let rotated_keys = self.allocate_rows(self.heads.kv_size(), self.operand_type);
        // SAFETY: accesses stay below the rows and the heads; all units of a cube reach its barriers.
        unsafe {
            norm_rotate_kernel::launch_unchecked(
                &queries.client,
                grid(queries, rows),
                CubeDim::new_1d(UNITS as u32),
                argument(queries),
                argument(keys),
                argument(self.layer_rotations(layer)),
                argument(&head_norm_weights(&self.decoder.module, layer)),
                argument(&rotated_queries),
                argument(&rotated_keys),
                rows,
                shape.head_shape().scale,
                shape.rms_norm_eps,
                self.heads,
                element_type_of(&rotated_keys),
            );
        }
        [rotated_queries, rotated_keys]
    }

    /// Computes attention: its result, and [`Activations::log_sum_exp_and_delta`].
    fn attend(
        &self,
        layer: usize,
        [queries, keys, values]: [&CubeTensor; 3],
    ) -> (CubeTensor, CubeTensor) {
        let (rows, heads) = (self.rows(), self.heads);
        let attended = self.allocate_rows(heads.query_size(), self.operand_type);
        let log_sum_exp_and_delta = uninit(queries, &[rows, heads.num_query_heads, 2], DType::F32);
        let RowBlocks { tiles, start, count } = self.blocks.attention;
        // SAFETY: accesses stay below the rows and the heads; all units of a cube reach its barriers.
        unsafe {
            text_attend_kernel::launch_unchecked(
                &queries.client,
                grid(queries, count * heads.num_kv_heads),
                CubeDim::new_1d(UNITS as u32),
                argument(queries),
                argument(keys),
                argument(values),
                self.segments(),
                argument(&attended),
                argument(&log_sum_exp_and_delta),
                start,
                count,
                self.shape().window(layer),
                heads,
                tiles,
                element_type_of(keys),
            );
        }
        (attended, log_sum_exp_and_delta)
    }
}

/// A tensor as rows: `[rows, size]`.
pub(super) fn as_rows(x: CubeTensor) -> Tensor<2> {
    match x.meta.shape().len() {
        2 => Tensor::<2>::from_primitive::<Cube>(x),
        _ => Tensor::<3>::from_primitive::<Cube>(x).flatten(0, 1),
    }
}

/// Prefills prompts: computes the keys and values that their completions attend to.
///
/// # Panics
/// If a prompt has no tokens.
pub(crate) fn prefill(decoder: &DeviceDecoder, prompts: &[&[u32]]) -> PromptKvCaches {
    let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
    let texts: Vec<PromptWithCompletions> = prompts
        .iter()
        .map(|prompt| PromptWithCompletions { prompt, completions: Vec::new() })
        .collect();
    let (num_prompts, shape) = (prompts.len(), decoder.module.shape());
    let mut layers = Vec::new();
    let pass = PackedPass::forward_with(decoder, &texts, Retention::Nothing, |activations| {
        let values = activations.values.clone().expect("just computed");
        layers.push([activations.keys.clone(), values]);
    });
    let prompt_rows: Vec<_> =
        (0..num_prompts).map(|prompt| pass.layout.prompt_rows(prompt)).collect();
    // Short prompts are padded by rows that no token attends to.
    let last = pass.rows() - 1;
    let padded = prompt_rows
        .iter()
        .flat_map(|rows| (0..longest).map(move |at| (rows.start + at).min(last) as i32));
    let upload = |values: &[i32]| upload_indices(values, decoder.device());
    let sources = upload(&padded.collect::<Vec<i32>>());
    let pad = |rows: CubeTensor| {
        let padded = as_rows(rows).select(0, sources.clone());
        padded.reshape([num_prompts, longest, shape.num_kv_heads, shape.head_dim])
    };
    let keys_values = layers.into_iter().map(|layer| layer.map(pad)).collect();
    let ends: Vec<i32> = prompt_rows.iter().map(|rows| rows.end as i32 - 1).collect();
    let lengths: Vec<i32> = prompts.iter().map(|prompt| prompt.len() as i32).collect();
    let last_hidden = pass.hidden().select(0, upload(&ends));
    PromptKvCaches { keys_values, lengths: upload(&lengths).reshape([num_prompts, 1]), last_hidden }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_needs_memory_for_whole_heads_and_for_all_that_share_keys() {
        let shape = |head_dim, num_heads| DecoderShape {
            num_heads,
            num_kv_heads: 1,
            head_dim,
            ..DecoderShape::default()
        };
        assert_eq!(attention_bytes(&shape(510, 1)), 4 * (2 * 8 * 516 + 2 * 4 * 5));
        assert_eq!(attention_bytes(&shape(128, 32)), 4 * (2 * 36 * 132 + 32 * 5));
        for shape in [shape(64, 1), shape(128, 8), shape(256, 4), shape(510, 1), shape(128, 32)] {
            for workgroup_bytes in [16 << 10, 32 << 10, 48 << 10, 96 << 10] {
                let (_, bytes) = fit_tiles(KernelHeadShape::from_shape(&shape), workgroup_bytes);
                let fits = attention_bytes(&shape) <= workgroup_bytes;
                assert_eq!(bytes <= workgroup_bytes, fits, "{shape:?} in {workgroup_bytes}");
            }
        }
    }
}
