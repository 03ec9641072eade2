//! The multi-layer perceptron with its gradient, for blocks of samples.
//!
//! A block's numbers are sample-major, `[samples, units]`, so that all three products vectorise over
//! units: forward `z = h W`, the gradient of the weights `h^T d`, that of the inputs `d W^T`. For
//! that, widths are padded with zeros to whole vectors; padding earns no gradient and stays zero.
//! The last layer has few outputs and is therefore held as `W^T`, which keeps the vectors full, and
//! its logits are `[actions, samples]`, side by side for the loss.

use super::loss::Group;
use super::product::{QUAD, ROWS, Rows, Store, Strided, Transposed, multiply, narrow, pack};
use super::sparse::Nonzeros;
use crate::config::Activation;
use crate::data::OBS_MULTIPLE;
use crate::math::activation::{activated, for_activation};
use crate::model::LANES;
use multiversion::multiversion;

const _: () = assert!(OBS_MULTIPLE.is_multiple_of(ROWS), "observations are a product's rows");

/// Where the parameters of a network lie in a padded vector.
#[derive(Clone, Debug)]
pub struct Layout {
    activation: Activation,
    hidden: Vec<Dense>,
    head: Head,
    len: usize,
}

/// A hidden layer: weights `[rows, columns]`, row-major, then biases `[columns]`.
#[derive(Clone, Copy, Debug)]
struct Dense {
    inputs: usize,
    outputs: usize,
    rows: usize,
    columns: usize,
    weight: usize,
    bias: usize,
}

/// The last layer: transposed weights `[rows, width]`, then biases `[rows]`.
#[derive(Clone, Copy, Debug)]
struct Head {
    inputs: usize,
    actions: usize,
    rows: usize,
    width: usize,
    weight: usize,
    bias: usize,
}

impl Layout {
    /// The layout of a network with these layer widths, features and actions included.
    ///
    /// # Panics
    /// If there is no hidden layer.
    pub fn new(widths: &[usize], activation: Activation) -> Self {
        assert!(widths.len() >= 3, "features, hidden layers, actions");
        let mut len = 0;
        let mut take = |count: usize| {
            len += count;
            len - count
        };
        let last = widths.len() - 2;
        let hidden: Vec<Dense> = (0..last)
            .map(|i| {
                let (inputs, outputs) = (widths[i], widths[i + 1]);
                // The features are never a vector of columns.
                let rows = inputs.next_multiple_of(if i == 0 { OBS_MULTIPLE } else { LANES });
                let columns = outputs.next_multiple_of(LANES);
                Dense {
                    inputs,
                    outputs,
                    rows,
                    columns,
                    weight: take(rows * columns),
                    bias: take(columns),
                }
            })
            .collect();
        let (inputs, actions) = (widths[last], widths[last + 1]);
        let (rows, width) = (actions.next_multiple_of(QUAD), inputs.next_multiple_of(LANES));
        let (weight, bias) = (take(rows * width), take(rows));
        let head = Head { inputs, actions, rows, width, weight, bias };
        Self { activation, hidden, head, len }
    }

    /// Numbers of a padded vector.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The layers' widths, features and actions included.
    pub fn widths(&self) -> Vec<usize> {
        let inputs = self.hidden.iter().map(|layer| layer.inputs);
        inputs.chain([self.head.inputs, self.head.actions]).collect()
    }

    /// What follows each hidden layer.
    pub fn activation(&self) -> Activation {
        self.activation
    }

    /// Features of an observation.
    pub fn features(&self) -> usize {
        self.hidden[0].inputs
    }

    /// Numbers from observation to observation in a block.
    pub fn obs_stride(&self) -> usize {
        self.hidden[0].rows
    }

    /// Actions.
    pub fn actions(&self) -> usize {
        self.head.actions
    }

    /// The padded vector of parameters in the order of [`flatten`](crate::model::flatten): layer by
    /// layer weights `[inputs, outputs]`, row-major, then biases.
    ///
    /// # Panics
    /// If the number of parameters is another.
    pub fn pad(&self, flat: &[f32]) -> Vec<f32> {
        let mut padded = vec![0.0; self.len];
        self.pad_into(flat, &mut padded);
        padded
    }

    /// [`Layout::pad`] into a vector whose padding is zero already.
    pub fn pad_into(&self, flat: &[f32], padded: &mut [f32]) {
        let mut rest = flat;
        self.each_run(|start, stride, len| {
            let (run, others) = rest.split_at(len);
            rest = others;
            match stride {
                1 => padded[start..start + len].copy_from_slice(run),
                _ => run.iter().enumerate().for_each(|(i, x)| padded[start + i * stride] = *x),
            }
        });
        assert!(rest.is_empty(), "flat: [num_params]");
    }

    /// The inverse of [`Layout::pad`].
    pub fn unpad(&self, padded: &[f32]) -> Vec<f32> {
        let mut flat = Vec::with_capacity(self.len);
        self.each_run(|start, stride, len| match stride {
            1 => flat.extend_from_slice(&padded[start..start + len]),
            _ => flat.extend((0..len).map(|i| padded[start + i * stride])),
        });
        flat
    }

    /// Calls for each run of parameters that follow each other in the flat vector: where it begins in the padded
    /// one, how far apart its parameters are there, and how many they are.
    fn each_run(&self, mut run: impl FnMut(usize, usize, usize)) {
        for layer in &self.hidden {
            (0..layer.inputs).for_each(|i| run(layer.weight + i * layer.columns, 1, layer.outputs));
            run(layer.bias, 1, layer.outputs);
        }
        let Head { inputs, actions, width, weight, bias, .. } = self.head;
        (0..inputs).for_each(|i| run(weight + i, width, actions));
        run(bias, 1, actions);
    }
}

/// A network: padded parameters, and the weights of every layer but the first once more, in another
/// order.
#[derive(Clone, Debug)]
pub struct Network {
    layout: Layout,
    params: Vec<f32>,
    /// The transposed weights of each hidden layer but the first, `[columns, rows]`.
    transposed: Vec<Vec<f32>>,
    /// The head's weights, as [`pack`] orders them.
    packed: Vec<f32>,
}

/// The numbers of a block of samples on their way through a network.
#[derive(Clone, Debug)]
pub struct Block {
    /// Where the observation of each sample begins.
    starts: Vec<usize>,
    obs_stride: usize,
    /// The observations, where they are mostly 0.
    nonzeros: Nonzeros,
    /// The activations of each hidden layer, `[samples, columns]`.
    hidden: Vec<Vec<f32>>,
    /// The derivatives of the activations there, then the gradients of the loss; see
    /// [`Network::slopes`].
    slopes: Vec<Vec<f32>>,
    /// Logits, then the gradients of the loss: `[rows, room]`, where zeros stay in the rows behind
    /// the actions.
    logits: Vec<f32>,
    /// Samples that there is room for.
    room: usize,
}

impl Block {
    /// Room for a number of samples, in whole groups.
    pub fn new(layout: &Layout, samples: usize) -> Self {
        let room = |stride: usize| vec![0.0; samples * stride];
        let hidden: Vec<_> = layout.hidden.iter().map(|l| room(l.columns)).collect();
        Self {
            starts: vec![0; samples],
            obs_stride: layout.obs_stride(),
            nonzeros: Nonzeros::default(),
            slopes: hidden.clone(),
            hidden,
            logits: room(layout.head.rows),
            room: samples,
        }
    }

    /// The samples from `at` on are the `len` observations from `first` on.
    pub fn take_obs(&mut self, at: usize, first: usize, len: usize) {
        let starts = self.starts[at..at + len].iter_mut();
        starts.zip(first..).for_each(|(start, slot)| *start = slot * self.obs_stride);
    }

    /// Repeats the last of the `len` samples until there is a multiple of [`LANES`] of them; gives how
    /// many there are then.
    pub fn fill_up(&mut self, len: usize) -> usize {
        let rows = len.next_multiple_of(LANES);
        let last = self.starts[len - 1];
        self.starts[len..rows].fill(last);
        rows
    }

    /// The logits of a group of samples, action by action.
    pub fn logits(&mut self, group: usize) -> impl Iterator<Item = &mut Group> {
        let rows = self.logits.chunks_exact_mut(self.room);
        rows.map(move |row| &mut row.as_chunks_mut().0[group])
    }
}

impl Network {
    /// From padded parameters.
    pub fn new(layout: &Layout, params: Vec<f32>) -> Self {
        assert_eq!(params.len(), layout.len, "params: padded");
        let hidden = layout.hidden[1..].iter();
        let transposed = hidden.map(|layer| vec![0.0; layer.rows * layer.columns]).collect();
        let packed = vec![0.0; layout.head.rows * layout.head.width];
        let mut network = Self { layout: layout.clone(), params, transposed, packed };
        network.transpose();
        network
    }

    /// Where the parameters lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The padded parameters.
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// Changes the padded parameters.
    pub fn change(&mut self, change: impl FnOnce(&mut [f32])) {
        change(&mut self.params);
        self.transpose();
    }

    fn transpose(&mut self) {
        let Layout { hidden, head, .. } = &self.layout;
        for (layer, to) in hidden[1..].iter().zip(&mut self.transposed) {
            let Dense { weight, rows, columns, .. } = *layer;
            let from = self.params[weight..weight + rows * columns].chunks_exact(columns);
            for (i, row) in from.enumerate() {
                for (j, x) in row.iter().enumerate() {
                    to[j * rows + i] = *x;
                }
            }
        }
        let weight = &self.params[head.weight..][..head.rows * head.width];
        pack(weight, head.width, &mut self.packed);
    }

    /// Fills in the logits of the first `samples` samples of the block, a multiple of [`LANES`], whose
    /// observations are among `obs`, `[slots, obs_stride]`.
    pub fn forward(&self, block: &mut Block, obs: &[f32], samples: usize) {
        let Layout { activation, hidden, head, .. } = &self.layout;
        let obs = Rows { values: obs, starts: &block.starts[..samples] };
        block.nonzeros.list(obs, self.layout.obs_stride());
        let mut input: Option<(&[f32], usize)> = None;
        let places = block.hidden.iter_mut().zip(&mut block.slopes);
        for (layer, (output, slopes)) in hidden.iter().zip(places) {
            let weight = &self.params[layer.weight..][..layer.inputs * layer.columns];
            let bias = &self.params[layer.bias..][..layer.columns];
            let output = &mut output[..samples * layer.columns];
            let rectified = *activation == Activation::Relu;
            let store = if rectified { Store::Rectified(bias) } else { Store::Biased(bias) };
            match input {
                Some(input) => multiply(matrix(input), weight, output, layer.columns, store),
                None if block.nonzeros.pays() => {
                    block.nonzeros.multiply(weight, bias, output, rectified);
                }
                None => multiply(obs, weight, output, layer.columns, store),
            }
            activate(*activation, output, &mut slopes[..samples * layer.columns]);
            input = Some((output, layer.columns));
        }
        let bias = &self.params[head.bias..][..head.rows];
        let outputs = &block.hidden[hidden.len() - 1][..samples * head.width];
        narrow(outputs, &self.packed, bias, &mut block.logits, block.room);
    }

    /// Adds to `gradient`, a padded vector, that of the loss whose gradients with respect to the
    /// logits are in `block.logits`. `obs` and the first `samples` must be those of the last forward pass.
    pub fn backward(&self, block: &mut Block, obs: &[f32], samples: usize, gradient: &mut [f32]) {
        let Layout { hidden, head, .. } = &self.layout;
        let last = hidden.len() - 1;
        let outputs = &block.hidden[last][..samples * head.width];
        for (sum, logits) in gradient[head.bias..].iter_mut().zip(block.logits.chunks(block.room)) {
            *sum += total(&logits[..samples]);
        }
        let logits = matrix((&block.logits, block.room));
        multiply(
            logits,
            outputs,
            &mut gradient[head.weight..][..head.rows * head.width],
            head.width,
            Store::Added,
        );
        let (slopes, store) = self.slopes(&mut block.hidden, &mut block.slopes);
        multiply(
            Transposed(logits),
            &self.params[head.weight..][..head.actions * head.width],
            &mut slopes[last][..samples * head.width],
            head.width,
            store,
        );
        for (i, layer) in hidden.iter().enumerate().rev() {
            let (inputs, hidden) = block.hidden.split_at_mut(i);
            let (below, slopes) = block.slopes.split_at_mut(i);
            let (slopes, _) = self.slopes(hidden, slopes);
            let slopes = &slopes[0][..samples * layer.columns];
            add_columns(slopes, &mut gradient[layer.bias..][..layer.columns]);
            let sums = &mut gradient[layer.weight..][..layer.rows * layer.columns];
            match inputs.last() {
                Some(input) => {
                    let input = Transposed(matrix((input, layer.rows)));
                    multiply(input, slopes, sums, layer.columns, Store::Added);
                }
                None if block.nonzeros.pays() => {
                    block.nonzeros.add_gradient(slopes, sums, layer.columns);
                }
                None => {
                    let obs = Transposed(Rows { values: obs, starts: &block.starts[..samples] });
                    multiply(obs, slopes, sums, layer.columns, Store::Added);
                }
            }
            let (below, store) = self.slopes(inputs, below);
            if let Some(below) = below.last_mut() {
                multiply(
                    matrix((slopes, layer.columns)),
                    &self.transposed[i - 1][..layer.outputs * layer.rows],
                    &mut below[..samples * layer.rows],
                    layer.rows,
                    store,
                );
            }
        }
    }

    /// Where the slopes of some layers' activations are, and how a gradient with respect to what they
    /// give becomes one with respect to what they take.
    ///
    /// Those of [`Activation::Relu`] are seen from what it gives, which has no other use any more once
    /// the layer above has its gradient.
    fn slopes<'a>(
        &self,
        hidden: &'a mut [Vec<f32>],
        slopes: &'a mut [Vec<f32>],
    ) -> (&'a mut [Vec<f32>], Store<'static>) {
        match self.layout.activation {
            Activation::Relu => (hidden, Store::Gated),
            _ => (slopes, Store::Multiplied),
        }
    }
}

/// A matrix without gaps, of rows of this length.
fn matrix((values, row): (&[f32], usize)) -> Strided<'_> {
    Strided { values, row }
}

/// The sum of the numbers, a multiple of [`LANES`].
fn total(values: &[f32]) -> f32 {
    let (vectors, _) = values.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for values in vectors {
        sums.iter_mut().zip(values).for_each(|(sum, x)| *sum += x);
    }
    sums.iter().sum()
}

/// Adds the rows of `values` to `sums`, a multiple of [`LANES`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn add_columns(values: &[f32], sums: &mut [f32]) {
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

/// Applies the activation in place, and gives its derivatives; nothing is left to do for
/// [`Activation::Relu`].
#[multiversion(targets("x86_64+avx512f+avx512vl+avx2+fma", "x86_64+avx2+fma", "aarch64+neon"))]
fn activate(activation: Activation, values: &mut [f32], slopes: &mut [f32]) {
    // Rectified as it was stored.
    if activation == Activation::Relu {
        return;
    }
    for_activation!(activation, KNOWN => {
        for (x, slope) in values.iter_mut().zip(slopes) {
            let at = activated(*x, KNOWN);
            (*x, *slope) = (at.value, at.slope);
        }
    });
}
