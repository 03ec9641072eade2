//! The weights of a decoder in host memory, packed for products when first needed, and its linear layers.

use crate::math::LANES;
use crate::nn::DecoderParams;
use crate::nn::arch::{Adapters, DecoderShape, Layout, LinearLayout};
use crate::nn::ops::attention::cache::{CacheFormat, KvCache, PrefixCache};
use crate::nn::ops::linear::{self, Arithmetic, PackedWeight};
use crate::nn::ops::matmul::View;
use crate::nn::ops::norm::RmsNorm;
use crate::nn::ops::rope::RopeTable;
use crate::nn::ops::{Parallelism, WriteMode, bias};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// A decoder's weights, and what follows from its shape. Clones share the weights until one of them changes.
#[derive(Clone, Debug)]
pub struct DecoderWeights {
    pub(super) shape: DecoderShape,
    pub(super) layout: Layout,
    pub(super) rope: Vec<RopeTable>,
    pub(super) params: DecoderParams,
    /// Adapters that are learnt instead of the weights, if any.
    pub(super) adapters: Option<Adapters>,
    pub(super) packed: Arc<[PackedCopies]>,
    /// Whether packed copies in f32 are kept; else large weights are repacked for each product, a block at a time.
    /// Copies in bf16 are always kept.
    pub(super) keeps_packed: bool,
    /// The threads of a pass.
    pub(super) parallelism: Parallelism,
    /// The arithmetic of products with weights; adapters have their own, f32.
    pub(super) arithmetic: Arithmetic,
}

/// Copies of a matrix in the order in which products read them.
#[derive(Debug, Default)]
pub(super) struct PackedCopies {
    /// For the forward pass.
    forward: OnceLock<PackedWeight>,
    /// For the backward pass.
    transposed: OnceLock<PackedWeight>,
}

/// The pass that a copy of a matrix is packed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Orientation {
    Forward,
    /// The backward pass, which multiplies by the transpose.
    Transposed,
}

/// No copies yet of the matrices of a decoder.
fn no_copies(layout: &Layout) -> Arc<[PackedCopies]> {
    layout.linears().map(|_| PackedCopies::default()).collect()
}

impl LinearLayout {
    /// The weight among the decoder's parameters, `[inputs, outputs]`.
    fn view<'a>(&self, params: &'a DecoderParams) -> View<'a> {
        let params = params.slice(&self.weight);
        if self.is_transposed {
            View::rows(params, self.inputs).transpose()
        } else {
            View::rows(params, self.outputs)
        }
    }
}

impl DecoderWeights {
    /// The weights of a shape, in the order of [`DecoderShape::parameters`].
    pub(super) fn new(
        shape: DecoderShape,
        params: DecoderParams,
        parallelism: Parallelism,
    ) -> Self {
        let layout = Layout::new(&shape);
        let (packed, rope) = (no_copies(&layout), shape.rope_tables());
        let (arithmetic, adapters, keeps_packed) = (Arithmetic::F32, None, true);
        Self {
            shape,
            layout,
            rope,
            params,
            adapters,
            packed,
            keeps_packed,
            parallelism,
            arithmetic,
        }
    }

    /// Begins a cache of `num_tokens` tokens after a prefix, if any, in each of `num_layers` layers
    /// ([`KvCache::begin`]).
    pub(super) fn begin_cache(
        &self,
        cache: &mut KvCache,
        num_layers: usize,
        num_tokens: usize,
        prefix: Option<PrefixCache>,
    ) {
        let format = match self.arithmetic {
            Arithmetic::F32 => CacheFormat::F32,
            Arithmetic::Bf16(_) => CacheFormat::Bf16,
        };
        cache.begin(&self.shape.head_shape(), format, num_layers, num_tokens, prefix);
    }

    /// Drops the packed copies, which no longer match the weights.
    pub(super) fn drop_packed(&mut self) {
        self.packed = no_copies(&self.layout);
    }

    /// Updates the packed copies after the weights have changed: in place, or if they are shared by dropping them.
    pub(super) fn repack(&mut self) {
        let Self { layout, params, packed, parallelism, .. } = self;
        let Some(packed) = Arc::get_mut(packed) else { return self.drop_packed() };
        let linears: Vec<&LinearLayout> = layout.linears().collect();
        packed.par_iter_mut().zip(linears).for_each(|(copies, linear)| {
            let (view, LinearLayout { inputs, outputs, .. }) = (linear.view(params), linear);
            if let Some(copy) = copies.forward.get_mut() {
                copy.repack(*parallelism, view, [*inputs, *outputs]);
            }
            if let Some(copy) = copies.transposed.get_mut() {
                copy.repack(*parallelism, view.transpose(), [*outputs, *inputs]);
            }
        });
    }

    /// The norm whose weights are at `place`.
    pub(super) fn norm(&self, place: &Range<usize>) -> RmsNorm<'_> {
        RmsNorm {
            weight: self.params.slice(place),
            offset: self.shape.norm_offset,
            eps: self.shape.rms_norm_eps,
        }
    }

    /// Computes `y = x w + b`, or `y += x w + b`, adapters included: `x` is `[rows, inputs]`, `y` `[rows, outputs]`.
    pub(super) fn linear_forward(
        &self,
        linear: &LinearLayout,
        x: &[f32],
        y: &mut [f32],
        mode: WriteMode,
    ) {
        self.linears_forward(x, &mut [(linear, y)], mode);
    }

    /// Computes the results of some linear layers for one input, as [`DecoderWeights::linear_forward`].
    pub(super) fn linears_forward(
        &self,
        x: &[f32],
        results: &mut [(&LinearLayout, &mut [f32])],
        mode: WriteMode,
    ) {
        if x.is_empty() {
            return;
        }
        let mut products = Vec::with_capacity(results.len());
        for (linear, y) in &mut *results {
            if self.is_packed_anew() && self.params.stored_matrix(&linear.weight).is_none() {
                let (inputs, view) = (linear.inputs, linear.view(&self.params));
                linear::multiply_unpacked(x, view, [inputs, linear.outputs], inputs, y, mode);
            } else {
                let pack = || self.pack(linear, Orientation::Forward);
                products.push((self.packed[linear.index].forward.get_or_init(pack), &mut **y));
            }
        }
        linear::forward_all(self.parallelism, x, &mut products, mode);
        for (linear, y) in results {
            if let Some((_, adapter)) = self.adapters.as_ref().and_then(|all| all.get(linear)) {
                adapter.forward(self.parallelism, x, y);
            }
            bias::forward(self.params.slice(&linear.bias), y);
        }
    }

    /// Whether a matrix in f32 is packed for each product, a block at a time.
    fn is_packed_anew(&self) -> bool {
        let is_large = self.parallelism == Parallelism::Parallel;
        is_large && !self.keeps_packed && self.arithmetic == Arithmetic::F32
    }

    /// Packs the matrix of a linear layer, or its transpose; a stored matrix is expanded for this unless products read
    /// it as it is.
    ///
    /// Uses the threads of the pass: where passes run in parallel, the initialization of a cell must not wait for other
    /// threads, since a waiting thread steals other work, which may need the same cell.
    fn pack(&self, linear: &LinearLayout, orientation: Orientation) -> PackedWeight {
        let mut expanded = Vec::new();
        let view = match self.params.stored_matrix(&linear.weight) {
            None => linear.view(&self.params),
            Some(matrix)
                if self.arithmetic == Arithmetic::F32 && orientation == Orientation::Forward =>
            {
                return PackedWeight::Stored(matrix.clone());
            }
            Some(matrix) => {
                expanded.resize(linear.weight.len(), 0.0);
                let strips = [(&mut expanded[..], LANES * linear.inputs)];
                self.parallelism.each_chunk(strips, |strip, [to]| {
                    matrix.read_columns(LANES * strip, to);
                });
                View::rows(&expanded, linear.inputs).transpose()
            }
        };
        let (view, sizes) = match orientation {
            Orientation::Forward => (view, [linear.inputs, linear.outputs]),
            Orientation::Transposed => (view.transpose(), [linear.outputs, linear.inputs]),
        };
        linear::pack(self.arithmetic, self.parallelism, view, sizes)
    }

    /// Adds the gradient of the trainable parameters of linear layers with the input `x` to `gradient`, from the
    /// gradient of each layer's result; `dx` becomes the gradient of the input.
    pub(super) fn linears_backward<const N: usize>(
        &self,
        x: &[f32],
        results: [(&LinearLayout, &[f32]); N],
        dx: &mut [f32],
        gradient: &mut [f32],
    ) {
        for (index, (linear, dy)) in results.into_iter().enumerate() {
            let mode = WriteMode::Overwrite.accumulate_if(index > 0);
            self.compute_input_grad(linear, dy, dx, mode);
            let [inputs, outputs] = [linear.inputs, linear.outputs];
            debug_assert_eq!([x.len() / inputs, dy.len() / outputs], [dx.len() / inputs; 2]);
            let adapter = self.adapters.as_ref().and_then(|adapters| adapters.get(linear));
            if let Some((place, adapter)) = adapter {
                let places = [place.a.clone(), place.b.clone()];
                let both = gradient.get_disjoint_mut(places).expect("two matrices");
                adapter.backward(self.parallelism, [x, dy], dx, both);
            }
        }
        if self.adapters.is_none() {
            self.add_weight_grads(x, results, gradient);
        }
    }

    /// Computes the gradient `dx` of the input of a linear layer from that of its result.
    fn compute_input_grad(
        &self,
        linear: &LinearLayout,
        dy: &[f32],
        dx: &mut [f32],
        mode: WriteMode,
    ) {
        if self.parallelism == Parallelism::Parallel && self.arithmetic == Arithmetic::F32 {
            match self.params.stored_matrix(&linear.weight) {
                Some(matrix) => linear::backward_stored(dy, matrix, dx, mode),
                None => {
                    let transpose = linear.view(&self.params).transpose();
                    let (sizes, depth) = ([linear.outputs, linear.inputs], linear::BACKWARD_DEPTH);
                    linear::multiply_unpacked(dy, transpose, sizes, depth, dx, mode);
                }
            }
        } else {
            let pack = || self.pack(linear, Orientation::Transposed);
            let packed = self.packed[linear.index].transposed.get_or_init(pack);
            linear::forward(self.parallelism, dy, packed, dx, mode);
        }
    }

    /// Adds the gradients of weights and biases of linear layers with the input `x` to `gradient`, from the gradients
    /// of the layers' results.
    pub(super) fn add_weight_grads<const N: usize>(
        &self,
        x: &[f32],
        results: [(&LinearLayout, &[f32]); N],
        gradient: &mut [f32],
    ) {
        let (arithmetic, parallelism) = (self.arithmetic, self.parallelism);
        if results.iter().any(|(linear, _)| linear.is_transposed) {
            for (linear, dy) in results {
                let d_weight = &mut gradient[linear.weight.clone()];
                let (x, inputs, dy) = if linear.is_transposed {
                    (dy, linear.outputs, x)
                } else {
                    (x, linear.inputs, dy)
                };
                linear::weight_grads(arithmetic, parallelism, x, inputs, [(dy, d_weight)]);
            }
        } else if let Some((LinearLayout { inputs, .. }, _)) = results.first() {
            let places = results.each_ref().map(|(linear, _)| linear.weight.clone());
            let d_weights = gradient.get_disjoint_mut(places).expect("weights are apart");
            let mut d_weights = d_weights.into_iter();
            let results = results.map(|(_, dy)| (dy, d_weights.next().expect("as many")));
            linear::weight_grads(arithmetic, parallelism, x, *inputs, results);
        }
        for (linear, dy) in results {
            bias::backward(dy, &mut gradient[linear.bias.clone()]);
        }
    }
}
