//! Multi-layer perceptron with hand-written backward pass, for blocks of samples.
//!
//! Activations are sample-major, `[samples, units]`, so that all three products vectorize over
//! units: forward `z = h W`, weight gradient `h^T d`, input gradient `d W^T`. To that end widths
//! are padded with zeros to whole vectors; padding has zero gradient and stays zero. The output
//! layer is narrow and therefore stored as `W^T`, which keeps vectors full, and its logits are
//! `[actions, samples]`, as the loss needs them.

use super::operands::{Epilogue, QUAD, Rows, Strided, TILE_ROWS, Transpose};
use super::product::{multiply, multiply_narrow, pack_narrow};
use super::sparse::{self, Nonzeros};
use crate::data::OBS_MULTIPLE;
use crate::learner::native::loss::LaneBlock;
use crate::math::activation::activate_with_derivatives;
use crate::model::LANES;
use crate::settings::Activation;
use multiversion::multiversion;
use std::ops::Range;

const _: () = assert!(OBS_MULTIPLE.is_multiple_of(TILE_ROWS), "observations are a product's rows");

/// Layout of a network's parameters in a padded vector.
#[derive(Clone, Debug)]
pub struct PaddedLayout {
    /// Activation function of the hidden layers.
    pub activation: Activation,
    hidden: Vec<PaddedDense>,
    head: PaddedHead,
    /// Length of a padded vector.
    pub len: usize,
}

/// A hidden layer: weights `[rows, columns]`, row-major, then biases `[columns]`.
#[derive(Clone, Copy, Debug)]
struct PaddedDense {
    inputs: usize,
    outputs: usize,
    rows: usize,
    columns: usize,
    weight: usize,
    bias: usize,
}

/// The output layer: transposed weights `[rows, width]`, then biases `[rows]`.
#[derive(Clone, Copy, Debug)]
struct PaddedHead {
    inputs: usize,
    actions: usize,
    rows: usize,
    width: usize,
    weight: usize,
    bias: usize,
}

impl PaddedLayout {
    /// Creates the layout for layer widths that include features and actions.
    ///
    /// # Panics
    /// If there is no hidden layer.
    pub fn new(widths: &[usize], activation: Activation) -> Self {
        assert!(widths.len() >= 3, "features, hidden layers, actions");
        let mut len = 0;
        let mut reserve = |count: usize| {
            len += count;
            len - count
        };
        let last = widths.len() - 2;
        let hidden: Vec<PaddedDense> = (0..last)
            .map(|i| {
                let (inputs, outputs) = (widths[i], widths[i + 1]);
                // Features are never output columns, so they need less padding.
                let rows = inputs.next_multiple_of(if i == 0 { OBS_MULTIPLE } else { LANES });
                let columns = outputs.next_multiple_of(LANES);
                PaddedDense {
                    inputs,
                    outputs,
                    rows,
                    columns,
                    weight: reserve(rows * columns),
                    bias: reserve(columns),
                }
            })
            .collect();
        let (inputs, actions) = (widths[last], widths[last + 1]);
        let (rows, width) = (actions.next_multiple_of(QUAD), inputs.next_multiple_of(LANES));
        let (weight, bias) = (reserve(rows * width), reserve(rows));
        let head = PaddedHead { inputs, actions, rows, width, weight, bias };
        Self { activation, hidden, head, len }
    }

    /// Number of parameters, without padding.
    pub fn num_params(&self) -> usize {
        let mut count = 0;
        self.for_each_run(|_, _, len| count += len);
        count
    }

    /// Layer widths, features and actions included.
    pub fn widths(&self) -> Vec<usize> {
        let inputs = self.hidden.iter().map(|layer| layer.inputs);
        inputs.chain([self.head.inputs, self.head.actions]).collect()
    }

    /// Features per observation.
    pub fn features(&self) -> usize {
        self.hidden[0].inputs
    }

    /// Number of actions.
    pub fn actions(&self) -> usize {
        self.head.actions
    }

    /// Pads parameters in the order of [`flatten`](crate::model::flatten): for each layer weights
    /// `[inputs, outputs]`, row-major, then biases.
    ///
    /// # Panics
    /// If the number of parameters is wrong.
    pub fn pad(&self, flat: &[f32]) -> Vec<f32> {
        let mut padded = vec![0.0; self.len];
        self.pad_into(flat, &mut padded);
        padded
    }

    /// Copies as [`PaddedLayout::pad`] does, into a vector whose padding is already zero.
    pub fn pad_into(&self, flat: &[f32], padded: &mut [f32]) {
        let mut rest = flat;
        self.for_each_run(|start, stride, len| {
            let (run, others) = rest.split_at(len);
            rest = others;
            match stride {
                1 => padded[start..start + len].copy_from_slice(run),
                _ => run.iter().enumerate().for_each(|(i, x)| padded[start + i * stride] = *x),
            }
        });
        assert!(rest.is_empty(), "flat: [num_params]");
    }

    /// Removes padding; the inverse of [`PaddedLayout::pad`].
    pub fn unpad(&self, padded: &[f32]) -> Vec<f32> {
        let mut flat = Vec::with_capacity(self.len);
        self.for_each_run(|start, stride, len| match stride {
            1 => flat.extend_from_slice(&padded[start..start + len]),
            _ => flat.extend((0..len).map(|i| padded[start + i * stride])),
        });
        flat
    }

    /// Calls `visit(start, stride, len)` for each run of consecutive parameters of the flat vector,
    /// with its start and stride in the padded vector.
    fn for_each_run(&self, mut visit: impl FnMut(usize, usize, usize)) {
        for layer in &self.hidden {
            let PaddedDense { inputs, outputs, columns, weight, bias, .. } = *layer;
            (0..inputs).for_each(|i| visit(weight + i * columns, 1, outputs));
            visit(bias, 1, outputs);
        }
        let PaddedHead { inputs, actions, width, weight, bias, .. } = self.head;
        (0..inputs).for_each(|i| visit(weight + i, width, actions));
        visit(bias, 1, actions);
    }
}

/// A network: padded parameters, and derived copies of the weights in other layouts.
#[derive(Clone, Debug)]
pub struct PaddedNetwork {
    /// Layout of the parameters.
    pub layout: PaddedLayout,
    params: Vec<f32>,
    /// Transposed weights of each hidden layer but the first, `[columns, rows]`.
    transposed: Vec<Vec<f32>>,
    /// Output weights in the order of [`pack_narrow`].
    packed: Vec<f32>,
}

/// Activations and gradients of a block of samples.
#[derive(Clone, Debug)]
pub struct SampleBlock {
    /// Offset of each sample's observation.
    starts: Vec<usize>,
    /// Distance between observations.
    obs_stride: usize,
    /// Sparse form of the observations, if they are mostly 0.
    nonzeros: Nonzeros,
    /// Activations of each hidden layer, `[samples, columns]`.
    hidden: Vec<Vec<f32>>,
    /// Derivatives of the activation function, later gradients of the loss; see
    /// [`PaddedNetwork::select_derivatives`].
    derivatives: Vec<Vec<f32>>,
    /// Logits, later gradients of the loss: `[rows, capacity]`; rows past the actions stay zero.
    logits: Vec<f32>,
    /// Capacity in samples.
    capacity: usize,
}

impl SampleBlock {
    /// Allocates a block for a number of samples, a multiple of the size of a lane block.
    pub fn new(layout: &PaddedLayout, samples: usize) -> Self {
        let zeros = |stride: usize| vec![0.0; samples * stride];
        let hidden: Vec<_> = layout.hidden.iter().map(|layer| zeros(layer.columns)).collect();
        Self {
            starts: vec![0; samples],
            obs_stride: layout.hidden[0].rows,
            nonzeros: Nonzeros::default(),
            derivatives: hidden.clone(),
            hidden,
            logits: zeros(layout.head.rows),
            capacity: samples,
        }
    }

    /// Assigns the observations from `first_slot` on to some samples.
    pub fn assign_obs(&mut self, samples: Range<usize>, first_slot: usize) {
        let starts = self.starts[samples].iter_mut();
        starts.zip(first_slot..).for_each(|(start, slot)| *start = slot * self.obs_stride);
    }

    /// Repeats the last of `len` samples up to a multiple of [`LANES`]. Returns the multiple.
    pub fn pad_to_lanes(&mut self, len: usize) -> usize {
        let rows = len.next_multiple_of(LANES);
        let last = self.starts[len - 1];
        self.starts[len..rows].fill(last);
        rows
    }

    /// Logits of a lane block of samples, action by action.
    pub fn logits(&mut self, lane_block: usize) -> impl Iterator<Item = &mut LaneBlock> {
        let rows = self.logits.chunks_exact_mut(self.capacity);
        rows.map(move |row| &mut row.as_chunks_mut().0[lane_block])
    }
}

impl PaddedNetwork {
    /// Creates a network from padded parameters.
    pub fn new(layout: &PaddedLayout, params: Vec<f32>) -> Self {
        assert_eq!(params.len(), layout.len, "params: padded");
        let hidden = layout.hidden[1..].iter();
        let transposed = hidden.map(|layer| vec![0.0; layer.rows * layer.columns]).collect();
        let packed = vec![0.0; layout.head.rows * layout.head.width];
        let mut network = Self { layout: layout.clone(), params, transposed, packed };
        network.update_copies();
        network
    }

    /// Padded parameters.
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// Modifies the padded parameters and updates the derived copies.
    pub fn change(&mut self, change: impl FnOnce(&mut [f32])) {
        change(&mut self.params);
        self.update_copies();
    }

    /// Updates the derived copies of the weights.
    fn update_copies(&mut self) {
        let PaddedLayout { hidden, head, .. } = &self.layout;
        for (layer, to) in hidden[1..].iter().zip(&mut self.transposed) {
            let PaddedDense { weight, rows, columns, .. } = *layer;
            let from = self.params[weight..weight + rows * columns].chunks_exact(columns);
            for (i, row) in from.enumerate() {
                for (j, x) in row.iter().enumerate() {
                    to[j * rows + i] = *x;
                }
            }
        }
        let weight = &self.params[head.weight..][..head.rows * head.width];
        pack_narrow(weight, head.width, &mut self.packed);
    }

    /// Computes the logits of the first `samples` samples of the block, a multiple of [`LANES`],
    /// with observations from `obs`, `[slots, obs_stride]`.
    pub fn forward(&self, block: &mut SampleBlock, obs: &[f32], samples: usize) {
        let PaddedLayout { activation, hidden, head, .. } = &self.layout;
        let obs = Rows { values: obs, starts: &block.starts[..samples] };
        block.nonzeros.list(obs, block.obs_stride);
        let mut input: Option<Strided> = None;
        let buffers = block.hidden.iter_mut().zip(&mut block.derivatives);
        for (layer, (output, derivatives)) in hidden.iter().zip(buffers) {
            let weight = &self.params[layer.weight..][..layer.inputs * layer.columns];
            let bias = &self.params[layer.bias..][..layer.columns];
            let output = &mut output[..samples * layer.columns];
            let is_relu = *activation == Activation::Relu;
            let epilogue = if is_relu { Epilogue::BiasRelu(bias) } else { Epilogue::Bias(bias) };
            match input {
                Some(input) => multiply(input, weight, output, layer.columns, epilogue),
                None if block.nonzeros.is_worthwhile() => {
                    sparse::multiply(&block.nonzeros, weight, bias, output, is_relu);
                }
                None => multiply(obs, weight, output, layer.columns, epilogue),
            }
            // A ReLU is applied when the product is stored.
            if !is_relu {
                activate_with_derivatives(
                    *activation,
                    output,
                    &mut derivatives[..samples * layer.columns],
                );
            }
            input = Some(Strided { values: output, row_stride: layer.columns });
        }
        let bias = &self.params[head.bias..][..head.rows];
        let outputs = &block.hidden[hidden.len() - 1][..samples * head.width];
        multiply_narrow(outputs, &self.packed, bias, &mut block.logits, block.capacity);
    }

    /// Backpropagates the gradient with respect to the logits in `block.logits` and adds to `gradient`
    /// (padded). `obs` and `samples` must be those of the last forward pass.
    pub fn backward(
        &self,
        block: &mut SampleBlock,
        obs: &[f32],
        samples: usize,
        gradient: &mut [f32],
    ) {
        let PaddedLayout { hidden, head, .. } = &self.layout;
        let last = hidden.len() - 1;
        let outputs = &block.hidden[last][..samples * head.width];
        for (sum, logits) in
            gradient[head.bias..].iter_mut().zip(block.logits.chunks(block.capacity))
        {
            *sum += sum_values(&logits[..samples]);
        }
        let logits = Strided { values: &block.logits, row_stride: block.capacity };
        multiply(
            logits,
            outputs,
            &mut gradient[head.weight..][..head.rows * head.width],
            head.width,
            Epilogue::Add,
        );
        let (derivatives, epilogue) =
            self.select_derivatives(&mut block.hidden, &mut block.derivatives);
        multiply(
            Transpose(logits),
            &self.params[head.weight..][..head.actions * head.width],
            &mut derivatives[last][..samples * head.width],
            head.width,
            epilogue,
        );
        for (i, layer) in hidden.iter().enumerate().rev() {
            let (inputs, hidden) = block.hidden.split_at_mut(i);
            let (below, derivatives) = block.derivatives.split_at_mut(i);
            let (derivatives, _) = self.select_derivatives(hidden, derivatives);
            let derivatives = &derivatives[0][..samples * layer.columns];
            add_rows(derivatives, &mut gradient[layer.bias..][..layer.columns]);
            let sums = &mut gradient[layer.weight..][..layer.rows * layer.columns];
            match inputs.last() {
                Some(input) => {
                    let input = Strided { values: input, row_stride: layer.rows };
                    multiply(Transpose(input), derivatives, sums, layer.columns, Epilogue::Add);
                }
                None if block.nonzeros.is_worthwhile() => {
                    sparse::add_gradient(&block.nonzeros, derivatives, sums, layer.columns);
                }
                None => {
                    let obs = Transpose(Rows { values: obs, starts: &block.starts[..samples] });
                    multiply(obs, derivatives, sums, layer.columns, Epilogue::Add);
                }
            }
            let (below, epilogue) = self.select_derivatives(inputs, below);
            if let Some(below) = below.last_mut() {
                multiply(
                    Strided { values: derivatives, row_stride: layer.columns },
                    &self.transposed[i - 1][..layer.outputs * layer.rows],
                    &mut below[..samples * layer.rows],
                    layer.rows,
                    epilogue,
                );
            }
        }
    }

    /// Selects the buffers for the derivatives of some layers, and the epilogue that converts gradients with
    /// respect to activations to gradients with respect to pre-activations.
    ///
    /// For [`Activation::Relu`] the derivative follows from the activation itself, whose buffer is free
    /// once the layer above has its gradient.
    fn select_derivatives<'a>(
        &self,
        hidden: &'a mut [Vec<f32>],
        derivatives: &'a mut [Vec<f32>],
    ) -> (&'a mut [Vec<f32>], Epilogue<'static>) {
        match self.layout.activation {
            Activation::Relu => (hidden, Epilogue::Gate),
            _ => (derivatives, Epilogue::Multiply),
        }
    }
}

/// Sum of the values; their number is a multiple of [`LANES`].
fn sum_values(values: &[f32]) -> f32 {
    let (vectors, _) = values.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for values in vectors {
        sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
    }
    sums.iter().sum()
}

/// Adds the rows of `values` to `sums`, whose length is a multiple of [`LANES`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn add_rows(values: &[f32], sums: &mut [f32]) {
    let columns = sums.len();
    for (j, sums) in sums.chunks_exact_mut(LANES).enumerate() {
        let mut total = [0.0f32; LANES];
        for row in values.chunks_exact(columns) {
            for (total, x) in total.iter_mut().zip(&row[j * LANES..(j + 1) * LANES]) {
                *total += *x;
            }
        }
        sums.iter_mut().zip(total).for_each(|(sum, x)| *sum += x);
    }
}
