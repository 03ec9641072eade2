//! Texts on a device: prompts and their completions side by side, with or without autodiff.
//!
//! A prompt runs once, whatever the number of its completions, which attend to its keys and values. Short texts are
//! padded on the right; no token attends to the padding.

use super::Decoder;
use super::arenas::{Arenas, Packing};
use super::attention::{KeysValues, MASKED_SCORE, Prefix};
use super::decoder::AdapterTensors;
use super::products::gradient_scale;
use crate::nn::Precision;
use crate::nn::arch::{Adapters, DecoderShape, UNLIMITED_WINDOW};
use crate::nn::parameters::with_parameters;
use crate::nn::text::{CompletionIndex, PromptWithCompletions};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Int, Tensor, TensorData};
use std::ops::Range;
use std::sync::Arc;

/// A decoder over tokens on a device.
#[derive(Clone, Debug)]
pub struct DeviceDecoder {
    /// The decoder in tensors.
    pub(crate) module: Decoder,
    /// The parameters of the module, in whose memory its tensors are.
    pub(super) weights: Arenas,
    pub(super) adapters: Option<DeviceAdapters>,
}

/// Adapters on a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceAdapters {
    tensors: AdapterTensors,
    /// Their parameters, in whose memory their tensors are.
    pub arenas: Arenas,
}

impl DeviceAdapters {
    /// Uploads adapters.
    pub fn new(adapters: &Adapters, device: &Device) -> Self {
        let packing = Arc::new(Packing::new(adapters.parameters(), device));
        let mut arenas = Arenas::zeros(packing, device).upload(adapters.params(), uploader(device));
        let r = adapters.config().r;
        let sizes = adapters.layouts.iter().map(|layout| {
            let layout = layout.as_ref()?;
            Some([[layout.a.len() / r, r], [r, layout.b.len() / r]])
        });
        let tensors = view_adapters(sizes, adapters.scale(), &mut arenas);
        Self { tensors, arenas }
    }
}

/// Views adapters of these sizes, `a` and `b` of each matrix that has them, in the memory of arenas.
fn view_adapters(
    sizes: impl Iterator<Item = Option<[[usize; 2]; 2]>>,
    scale: f32,
    arenas: &mut Arenas,
) -> AdapterTensors {
    let mut views = arenas.views();
    let mut view = |sizes: [usize; 2]| views.next().expect("every matrix").reshape(sizes);
    let pairs = sizes.map(|pair| pair.map(|pair| pair.map(&mut view))).collect();
    AdapterTensors { pairs, scale }
}

/// A function that uploads a vector to a device.
fn uploader(device: &Device) -> impl Fn(Vec<f32>) -> Tensor<1> {
    move |numbers| {
        let count = numbers.len();
        Tensor::from_data(TensorData::new(numbers, [count]), device)
    }
}

impl Decoder {
    /// Puts the parameters into the memory of arenas.
    fn with_memory_of(self, arenas: &mut Arenas) -> Self {
        let mut views = arenas.views();
        with_parameters(self, |_| views.next().expect("every parameter"))
    }
}

/// The keys and values of `num_prompts` prompts, for completions to follow.
#[derive(Clone, Debug)]
pub struct PromptKvCaches {
    /// Keys and values, layer by layer: `[num_prompts, longest, num_kv_heads, head_dim]`.
    pub(crate) keys_values: Vec<KeysValues>,
    /// The tokens of each prompt: `[num_prompts, 1]`.
    pub(crate) lengths: Tensor<2, Int>,
    /// The normed streams of their last tokens: `[num_prompts, hidden_size]`.
    pub last_hidden: Tensor<2>,
}

impl PromptKvCaches {
    /// [`PromptKvCaches::last_hidden`] of `rows` completions, equally many per prompt: `[rows, hidden_size]`.
    pub(crate) fn last_hidden_for(&self, rows: usize) -> Tensor<2> {
        let [num_prompts, size] = self.last_hidden.dims();
        let last = self.last_hidden.clone().reshape([num_prompts, 1, size]);
        last.expand([num_prompts, rows / num_prompts, size]).reshape([rows, size])
    }

    /// Tokens of the longest prompt.
    pub(crate) fn longest(&self) -> usize {
        self.keys_values.first().map_or(0, |[keys, _]| keys.dims()[1])
    }
}

/// The keys and values of completions in progress, of at most `max_tokens` tokens each.
#[derive(Clone, Debug)]
pub struct CompletionKvCaches {
    /// Keys and values, layer by layer: `[rows, max_tokens, num_kv_heads, head_dim]`.
    pub(crate) keys_values: Vec<KeysValues>,
    /// Maximum number of tokens of a completion.
    max_tokens: usize,
    /// Number of tokens so far.
    pub(crate) num_tokens: usize,
}

/// The hidden states after a forward pass over texts.
#[derive(Clone, Debug)]
pub struct HiddenStates {
    /// The normed streams from which tokens are predicted: `[predictions, hidden_size]`.
    pub hidden: Tensor<2>,
    num_prompts: usize,
    completions_per_prompt: usize,
    /// Tokens of a completion from which others are predicted.
    steps: usize,
}

impl HiddenStates {
    /// The row of [`HiddenStates::hidden`] that predicts the token `token_index` of a completion.
    pub fn prediction(&self, completion: CompletionIndex, token_index: usize) -> usize {
        let CompletionIndex { prompt, completion } = completion;
        match token_index {
            0 => prompt,
            _ => {
                let row = prompt * self.completions_per_prompt + completion;
                self.num_prompts + row * self.steps + token_index - 1
            }
        }
    }
}

/// Uploads whole numbers, `[rows, columns]`.
pub fn upload_integers(
    values: &[i32],
    [rows, columns]: [usize; 2],
    device: &Device,
) -> Tensor<2, Int> {
    Tensor::from_data(TensorData::new(values.to_vec(), [rows, columns]), device)
}

/// Pads texts of different lengths: `[texts, longest]`.
fn pad<'a>(texts: impl Iterator<Item = &'a [u32]>, longest: usize) -> Vec<i32> {
    let row = |text: &'a [u32]| {
        let fill = std::iter::repeat_n(0, longest - text.len());
        text.iter().map(|token| *token as i32).chain(fill)
    };
    texts.flat_map(row).collect()
}

impl DeviceDecoder {
    /// Uploads parameters, in the order of [`DecoderShape::parameters`], to a device that computes products in this
    /// precision.
    pub(crate) fn new(
        shape: &DecoderShape,
        params: &[f32],
        device: &Device,
        precision: Precision,
    ) -> Self {
        let packing = Arc::new(Packing::new(&shape.parameters(), device));
        let mut weights = Arenas::zeros(packing, device).upload(params, uploader(device));
        let module = Decoder::placeholder(shape.clone(), device).in_precision(precision);
        let module = module.with_memory_of(&mut weights);
        Self { module, weights, adapters: None }
    }

    /// The same decoder with adapters, or without.
    pub(super) fn with_adapters(self, adapters: Option<DeviceAdapters>) -> Self {
        Self { adapters, ..self }
    }

    /// The adapters that are learnt instead of the weights, if any.
    pub(crate) fn adapter_tensors(&self) -> Option<&AdapterTensors> {
        self.adapters.as_ref().map(|adapters| &adapters.tensors)
    }

    /// The trainable parameters: those of the adapters, or without any all weights.
    pub(crate) fn trainable(&self) -> &Arenas {
        self.adapters.as_ref().map_or(&self.weights, |adapters| &adapters.arenas)
    }

    /// Replaces each arena of the trainable parameters, `[len]`, with the result of `change` for its index and the
    /// arena. `change` owns the arena, so that the result can reuse its memory.
    pub(crate) fn map_trainable(
        mut self,
        change: impl FnMut(usize, Tensor<1>) -> Tensor<1>,
    ) -> Self {
        // Views go first: nothing else may refer to memory that changes.
        match self.adapters.take() {
            Some(DeviceAdapters { tensors: AdapterTensors { pairs, scale }, arenas }) => {
                let dims = |pair: &Option<[Tensor<2>; 2]>| {
                    pair.as_ref().map(|pair| pair.each_ref().map(|x| x.dims()))
                };
                let sizes: Vec<_> = pairs.iter().map(dims).collect();
                drop(pairs);
                let mut arenas = arenas.map(change);
                let tensors = view_adapters(sizes.into_iter(), scale, &mut arenas);
                self.with_adapters(Some(DeviceAdapters { tensors, arenas }))
            }
            None => {
                let any = Tensor::empty([1], self.device());
                let module = with_parameters(self.module, |_| any.clone());
                let mut weights = self.weights.map(change);
                Self { module: module.with_memory_of(&mut weights), weights, ..self }
            }
        }
    }

    /// The factor of the gradients in the backward pass: multiply the gradient of the outputs by it, and divide the
    /// result of the backward pass. If products are in f16 it is the power of two that makes the largest element of
    /// `output_gradient` about 1/16 (loss scaling, Micikevicius et al. 2018), else 1.
    pub fn loss_scale<'a>(&self, output_gradient: impl Iterator<Item = &'a f32>) -> f32 {
        if self.module.products.needs_scale() {
            gradient_scale(output_gradient.fold(0.0f32, |max, x| max.max(x.abs())))
        } else {
            1.0
        }
    }

    /// Rounds the matrices to the precision of products, which round them to it each time otherwise.
    pub fn round_matrices(self) -> Self {
        let products = self.module.products;
        if products.operand_dtype.is_none() {
            return self;
        }
        let packing = self.weights.packing().clone();
        let mut weights = self.weights.map(|index, arena| {
            if packing.has_vectors(index) { arena } else { products.cast_operand(arena) }
        });
        Self { module: self.module.with_memory_of(&mut weights), weights, ..self }
    }

    /// Tokens in the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.module.shape().vocab_size()
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        self.weights.device()
    }

    /// Returns the decoder with its trainable parameters as leaves of the autodiff graph.
    pub fn with_autodiff(&self) -> Self {
        struct Leaves;
        impl ModuleMapper for Leaves {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let (id, value, _) = param.consume();
                Param::initialized(id, value.autodiff().require_grad())
            }
        }
        let mut leaves = self.clone();
        match &mut leaves.adapters {
            Some(DeviceAdapters { tensors, .. }) => {
                for pair in tensors.pairs.iter_mut().flatten() {
                    *pair = pair.each_ref().map(|x| x.clone().autodiff().require_grad());
                }
            }
            None => leaves.module = leaves.module.map(&mut Leaves),
        }
        leaves
    }

    /// The gradients of the trainable parameters by autodiff, on a device that runs no kernels.
    pub(crate) fn gradients(&self, autodiff: &mut Gradients) -> Arenas {
        struct Collector<'a>(&'a mut Gradients, Vec<Option<Tensor<1>>>);
        impl ModuleVisitor for Collector<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let gradient = param.val().grad_remove(self.0);
                self.1.push(gradient.map(|x| x.flatten(0, D - 1)));
            }
        }
        let by_parameter: Vec<Option<Tensor<1>>> = match self.adapter_tensors() {
            Some(adapters) => {
                let matrices = adapters.pairs.iter().flatten().flatten();
                matrices.map(|x| x.grad_remove(autodiff).map(|x| x.flatten(0, 1))).collect()
            }
            None => {
                let mut collector = Collector(autodiff, Vec::new());
                self.module.visit(&mut collector);
                collector.1
            }
        };
        let mut gradients = self.trainable().zeros_like();
        for (parameter, gradient) in by_parameter.into_iter().enumerate() {
            gradient.into_iter().for_each(|values| gradients.put_parameter(parameter, values));
        }
        gradients
    }

    /// Runs the forward pass over prompts, and keeps their keys and values.
    ///
    /// # Panics
    /// If one has no token.
    pub fn prefill(&self, prompts: &[&[u32]]) -> PromptKvCaches {
        let (num_prompts, device) = (prompts.len(), self.device());
        let lengths: Vec<i32> = prompts.iter().map(|prompt| prompt.len() as i32).collect();
        let longest = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0);
        let tokens = pad(prompts.iter().copied(), longest);
        let tokens = upload_integers(&tokens, [num_prompts, longest], device);
        let columns = Tensor::<1, Int>::arange(0..longest as i64, device).reshape([1, longest]);
        let lengths = upload_integers(&lengths, [num_prompts, 1], device);
        let masks = self.module.masks(0..longest, longest, device);
        let rotations = self.module.rotations(columns);
        let mut keys_values = Vec::new();
        let products = self.module.products;
        let x = self.module.embed(tokens);
        let adapters = self.adapter_tensors();
        let hidden = self.module.run_layers(x, &rotations, adapters, |i, queries, own| {
            let own = own.map(|x| products.cast_operand(x));
            let attended = self.module.attend(i, queries, &own, &masks, None);
            keys_values.push(own);
            attended
        });
        let size = hidden.dims()[2];
        let first = Tensor::<1, Int>::arange(0..num_prompts as i64, device) * longest as i32;
        let rows = first + lengths.clone().reshape([num_prompts]) - 1;
        let last_hidden = hidden.reshape([num_prompts * longest, size]).select(0, rows);
        PromptKvCaches { keys_values, lengths, last_hidden }
    }

    /// Memory for `rows` completions of `max_tokens` tokens each.
    pub fn allocate_completions(&self, rows: usize, max_tokens: usize) -> CompletionKvCaches {
        let (shape, products) = (self.module.shape(), self.module.products);
        let zeros = || {
            let size = [rows, max_tokens, shape.num_kv_heads, shape.head_dim];
            [(); 2].map(|()| products.cast_operand(Tensor::<4>::zeros(size, self.device())))
        };
        let keys_values = (0..shape.num_layers).map(|_| zeros()).collect();
        CompletionKvCaches { keys_values, max_tokens, num_tokens: 0 }
    }

    /// Runs all layers on the next token of each completion, `[rows]`; returns the normed streams, `[rows,
    /// hidden_size]`. The same number of completions follows each prompt, prompt by prompt.
    pub fn step(
        &self,
        prompts: &PromptKvCaches,
        completions: &mut CompletionKvCaches,
        tokens: Tensor<1, Int>,
    ) -> Tensor<2> {
        let (rows, token) = (tokens.dims()[0], completions.num_tokens);
        let num_prompts = prompts.lengths.dims()[0];
        let positions =
            (prompts.lengths.clone() + token as i32).expand([num_prompts, rows / num_prompts]);
        let rotations = self.module.rotations(positions.reshape([rows, 1]));
        let own_masks = self.module.masks(token..token + 1, completions.max_tokens, self.device());
        let prefix_masks = self.prefix_masks(prompts, token..token + 1);
        let products = self.module.products;
        let x = self.module.embed(tokens.reshape([rows, 1]));
        let adapters = self.adapter_tensors();
        let hidden = self.module.run_layers(x, &rotations, adapters, |i, queries, new| {
            let [keys, values] = &mut completions.keys_values[i];
            for (cache, new) in [keys, values].into_iter().zip(new) {
                let [_, _, heads, head_dim] = new.dims();
                let place = [0..rows, token..token + 1, 0..heads, 0..head_dim];
                let old = std::mem::replace(cache, Tensor::empty([1; 4], self.device()));
                *cache = old.slice_assign(place, products.cast_operand(new));
            }
            let prefix = self.prefix(i, prompts, &prefix_masks);
            self.module.attend(i, queries, &completions.keys_values[i], &own_masks, Some(prefix))
        });
        completions.num_tokens += 1;
        let size = hidden.dims()[2];
        hidden.reshape([rows, size])
    }

    /// Runs the forward pass over whole texts.
    pub fn forward_texts(&self, prompts: &[PromptWithCompletions]) -> HiddenStates {
        let (num_prompts, device) = (prompts.len(), self.device());
        let prompt_tokens: Vec<&[u32]> = prompts.iter().map(|text| text.prompt).collect();
        let prefilled = self.prefill(&prompt_tokens);
        let completions_per_prompt =
            prompts.iter().map(|text| text.completions.len()).max().unwrap_or(0);
        let lengths =
            prompts.iter().flat_map(|text| text.completions.iter().map(|tokens| tokens.len()));
        let steps = lengths.max().unwrap_or(1) - 1;
        if steps == 0 {
            let hidden = prefilled.last_hidden;
            return HiddenStates { hidden, num_prompts, completions_per_prompt, steps };
        }
        let rows = num_prompts * completions_per_prompt;
        let completions = prompts.iter().flat_map(|text| {
            (0..completions_per_prompt).map(move |member| {
                let tokens = text.completions.get(member).copied().unwrap_or_default();
                &tokens[..tokens.len().saturating_sub(1)]
            })
        });
        let tokens = pad(completions, steps);
        let columns = Tensor::<1, Int>::arange(0..steps as i64, device).reshape([1, 1, steps]);
        let lengths = prefilled.lengths.clone().reshape([num_prompts, 1, 1]);
        let positions = lengths.expand([num_prompts, completions_per_prompt, steps])
            + columns.expand([num_prompts, completions_per_prompt, steps]);
        let rotations = self.module.rotations(positions.reshape([rows, steps]));
        let masks = self.module.masks(0..steps, steps, device);
        let prefix_masks = self.prefix_masks(&prefilled, 0..steps);
        let x = self.module.embed(upload_integers(&tokens, [rows, steps], device));
        let adapters = self.adapter_tensors();
        let hidden = self.module.run_layers(x, &rotations, adapters, |i, queries, own| {
            let prefix = self.prefix(i, &prefilled, &prefix_masks);
            self.module.attend(i, queries, &own, &masks, Some(prefix))
        });
        let size = hidden.dims()[2];
        let hidden =
            Tensor::cat(vec![prefilled.last_hidden, hidden.reshape([rows * steps, size])], 0);
        HiddenStates { hidden, num_prompts, completions_per_prompt, steps }
    }

    /// Logits of normed vectors: `[rows, vocabulary]`.
    pub fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        self.module.logits(hidden.unsqueeze()).squeeze_dim(0)
    }

    /// Masks of the prompts' tokens for these steps of their completions, one for each window:
    /// `[num_prompts, steps or 1, longest]` each.
    fn prefix_masks(&self, prompts: &PromptKvCaches, steps: Range<usize>) -> Vec<Tensor<3>> {
        let (num_prompts, longest) = (prompts.lengths.dims()[0], prompts.longest());
        let columns = Tensor::<1, Int>::arange(0..longest as i64, self.device());
        let columns = columns.reshape([1, 1, longest]).expand([num_prompts, 1, longest]);
        let lengths = prompts.lengths.clone().reshape([num_prompts, 1, 1]);
        let is_token = columns.clone().lower(lengths.clone().expand([num_prompts, 1, longest]));
        let padding = (is_token.float() - 1.0) * -MASKED_SCORE;
        let windows = self.module.shape().windows().into_iter().map(|window| {
            if window == UNLIMITED_WINDOW {
                return padding.clone();
            }
            let count = steps.len();
            let indices = steps.start as i64..steps.end as i64;
            let indices = Tensor::<1, Int>::arange(indices, self.device()).reshape([1, count, 1]);
            let positions = lengths.clone().expand([num_prompts, count, 1])
                + indices.expand([num_prompts, count, 1]);
            // The first token that each step sees.
            let firsts = (positions - (window as i32 - 1)).expand([num_prompts, count, longest]);
            let columns = columns.clone().expand([num_prompts, count, longest]);
            let is_far = columns.lower(firsts);
            padding.clone().expand([num_prompts, count, longest]) + is_far.float() * MASKED_SCORE
        });
        windows.collect()
    }

    /// The prompts as the prefix of a layer.
    fn prefix<'a>(
        &self,
        layer: usize,
        prompts: &'a PromptKvCaches,
        masks: &'a [Tensor<3>],
    ) -> Prefix<'a> {
        let mask = &masks[self.module.shape().window_index(layer)];
        Prefix { keys_values: &prompts.keys_values[layer], mask }
    }
}
