//! The token step of generation in dedicated kernels: nine launches per layer where tensors take about seventy.
//!
//! Everything that a step changes is in buffers on the device, so that its launches can be recorded once as a graph
//! (CUDA graphs, or a list of dispatches in wgpu) and replayed for each token: the host then issues one call a token in
//! place of hundreds.

mod layers;

use crate::device;
use crate::device::buffers::{argument, cube_ints, cube_tensor, grid, uninit};
use crate::nn::tensors::attention::KeysValues;
use crate::text::generate::decode::{Decode, READ_BACK_STEPS};
use crate::text::generate::{SampledToken, Sampling};
use crate::text::kernels::UNITS;
use crate::text::kernels::choose::{ChoicesLaunch, VALUES_PER_CHOICE, choose_kernel};
use crate::text::kernels::filter::{
    FilterScratchLaunch, TOKENS_PER_FLOAT_WORD, TokenFilterLaunch, filter_kernel,
};
use crate::text::kernels::heads::KernelHeadShape;
use crate::text::kernels::launch::head_norm_weights;
use crate::text::kernels::progress::ProgressLaunch;
use crate::text::{DeviceDecoder, PromptKvCaches, inverse_temperature};
use burn::backend::{Cube, DType};
use burn::cubecl::client::Graph;
use burn::cubecl::prelude::CubeDim;
use burn::cubecl::server::ServerError;
use burn::tensor::Tensor;
use burn_cubecl::tensor::CubeTensor;
use rayon::prelude::*;

/// Number of remaining steps above which recording a graph is worthwhile.
const MIN_REPLAYS: usize = 4;

/// The parts of a decoder that all of its token steps share.
#[derive(Clone, Debug)]
pub(super) struct TokenStep {
    /// Weights of the norms of queries and keys of each layer, in the layout of the kernels.
    head_norms: Vec<CubeTensor>,
    heads: KernelHeadShape,
}

impl TokenStep {
    /// Collects the weights of a decoder; `None` if its device runs no kernels.
    pub(super) fn new(decoder: &DeviceDecoder) -> Option<Self> {
        if !device::has_kernels(decoder.device()) {
            return None;
        }
        let module = &decoder.module;
        let head_norms = (0..module.layers.len()).map(|layer| head_norm_weights(module, layer));
        Some(Self {
            head_norms: head_norms.collect(),
            heads: KernelHeadShape::from_shape(module.shape()),
        })
    }
}

/// A batch of prompts with equally many completions each, which decode together.
pub(super) struct KernelBatch<'a> {
    token_step: &'a TokenStep,
    decoder: &'a DeviceDecoder,
    sampling: &'a Sampling,
    prompts: PromptKvCaches,
    /// The draws of all tokens: `[max_new_tokens, rows]`.
    draws: CubeTensor,
    state: StepState,
    /// Number of tokens chosen so far.
    num_chosen: usize,
    graph: Option<RecordedStep>,
    may_record: bool,
}

/// The buffers that a step reads and changes.
struct StepState {
    /// Keys and values of completions, layer by layer: `[rows, max_new_tokens, num_kv_heads, head_dim]`.
    keys_values: Vec<KeysValues>,
    /// The counts of [`Progress`](crate::text::kernels::progress::Progress).
    progress: CubeTensor,
    /// The tokens chosen last: `[rows]`.
    tokens: CubeTensor,
    /// The last choices: `[READ_BACK_STEPS, size]`, as [`Choices`](crate::text::kernels::choose::Choices) has them.
    choices: CubeTensor,
}

/// The recorded launches of a step.
struct RecordedStep {
    graph: Graph,
    /// Maximum number of keys of the steps that it can replay.
    key_bound: usize,
}

impl StepState {
    fn new(
        decoder: &DeviceDecoder,
        prompts: &PromptKvCaches,
        draws: &CubeTensor,
        sampling: &Sampling,
    ) -> Self {
        let shape = decoder.module.shape();
        let [max_tokens, rows] = [draws.meta.shape()[0], draws.meta.shape()[1]];
        let dtype = decoder.module.products.dtype();
        let cache = || {
            let sizes = [rows, max_tokens, shape.num_kv_heads, shape.head_dim];
            Tensor::<4>::from_primitive::<Cube>(uninit(draws, &sizes, dtype))
        };
        let lengths = prompts.lengths.clone();
        let num_prompts = lengths.dims()[0];
        let counts = Tensor::from_ints([0, -1], decoder.device());
        Self {
            keys_values: (0..shape.num_layers).map(|_| [cache(), cache()]).collect(),
            progress: cube_ints(Tensor::cat(vec![counts, lengths.reshape([num_prompts])], 0)),
            tokens: uninit(draws, &[rows], DType::I32),
            choices: uninit(
                draws,
                &[READ_BACK_STEPS, (VALUES_PER_CHOICE + num_mask_words(decoder, sampling)) * rows],
                DType::F32,
            ),
        }
    }
}

impl Decode for KernelBatch<'_> {
    fn advance(&mut self) {
        if self.num_chosen == 0 {
            self.choose(self.prompts.last_hidden_for(self.rows()));
        } else {
            self.run_step();
        }
        self.num_chosen += 1;
    }

    fn read(&mut self, steps: usize) -> Vec<Vec<SampledToken>> {
        let (rows, vocabulary) = (self.rows(), self.decoder.vocab_size());
        let choices = Tensor::<2>::from_primitive::<Cube>(self.state.choices.clone());
        let size = choices.dims()[1];
        let numbers = device::read(choices.reshape([READ_BACK_STEPS * size]));
        let step = |index: usize| {
            let (values, masks) = numbers[index % READ_BACK_STEPS * size..][..size]
                .split_at(VALUES_PER_CHOICE * rows);
            let words = masks.len() / rows;
            let chosen = |row: usize| SampledToken {
                token: values[row] as u32,
                logprob: values[rows + row],
                entropy: values[2 * rows + row],
                candidates: unpack_candidates(&masks[row * words..][..words], vocabulary),
            };
            (0..rows).into_par_iter().map(chosen).collect()
        };
        (self.num_chosen - steps..self.num_chosen).map(step).collect()
    }
}

impl<'a> KernelBatch<'a> {
    /// Creates a batch that follows prompts with `draws` of all tokens, `[max_new_tokens, rows]`.
    pub fn new(
        token_step: &'a TokenStep,
        decoder: &'a DeviceDecoder,
        sampling: &'a Sampling,
        prompts: PromptKvCaches,
        draws: Tensor<2>,
    ) -> Self {
        let draws = cube_tensor(draws);
        let state = StepState::new(decoder, &prompts, &draws, sampling);
        Self {
            token_step,
            decoder,
            sampling,
            prompts,
            draws,
            state,
            num_chosen: 0,
            graph: None,
            may_record: device::may_record_graphs(),
        }
    }

    fn rows(&self) -> usize {
        self.draws.meta.shape()[1]
    }

    /// Passes the last tokens through all layers and chooses the next ones: by the graph of such a step, if there is
    /// one or recording it is worthwhile.
    fn run_step(&mut self) {
        // The keys that the tokens attend to: those of prompts, of the tokens before them, and their own.
        let longest = self.prompts.longest();
        let key_bound = (longest + self.num_chosen).next_multiple_of(UNITS);
        if self.graph.as_ref().is_some_and(|recorded| recorded.key_bound < key_bound) {
            self.graph = None;
        }
        let num_left = (self.sampling.max_new_tokens - self.num_chosen)
            .min(key_bound + 1 - longest - self.num_chosen);
        let result = match &self.graph {
            // SAFETY: the graph keeps the buffers of its launches alive: this batch's, and those of a decoder that it
            // borrows; all work on them is issued from here.
            Some(recorded) => unsafe { recorded.graph.replay() },
            None if self.may_record && num_left > MIN_REPLAYS => self.record(key_bound),
            None => {
                self.launch(key_bound);
                Ok(())
            }
        };
        if result.is_err() {
            self.restart_without_graph();
        }
    }

    /// Executes a step and records its launches.
    fn record(&mut self, key_bound: usize) -> Result<(), ServerError> {
        let client = self.draws.client.clone();
        if client.graph_prepare().is_err() {
            // The device cannot record.
            self.may_record = false;
            self.launch(key_bound);
            return Ok(());
        }
        // The first launch allocates the memory that the recorded one uses.
        self.launch(key_bound);
        client.start_capture()?;
        self.launch(key_bound);
        self.graph = Some(RecordedStep { graph: client.stop_capture()?, key_bound });
        Ok(())
    }

    /// Repeats all steps, this one included, without a graph, after a recording or a replay has failed: its results are
    /// lost.
    fn restart_without_graph(&mut self) {
        (self.graph, self.may_record) = (None, false);
        self.state = StepState::new(self.decoder, &self.prompts, &self.draws, self.sampling);
        let count = std::mem::take(&mut self.num_chosen);
        for _ in 0..=count {
            self.advance();
        }
        self.num_chosen = count;
    }

    /// Launches the kernels of a step.
    fn launch(&self, key_bound: usize) {
        self.choose(self.run_layers(key_bound));
    }

    fn progress(&self) -> ProgressLaunch {
        let completions_per_prompt = self.rows() / self.prompts.lengths.dims()[0];
        ProgressLaunch::new(argument(&self.state.progress), completions_per_prompt)
    }

    /// Chooses a token for each row from normed hidden states, `[rows, hidden_size]`.
    fn choose(&self, hidden: Tensor<2>) {
        let logits = cube_tensor(self.decoder.logits(hidden));
        let [rows, vocabulary] = [logits.meta.shape()[0], logits.meta.shape()[1]];
        let StepState { tokens, choices, .. } = &self.state;
        let (client, cubes) = (logits.client.clone(), grid(&logits, rows));
        let units = CubeDim::new_1d(UNITS as u32);
        let progress = self.progress();
        let choices =
            ChoicesLaunch::new(argument(choices), READ_BACK_STEPS, choices.meta.shape()[1]);
        let Sampling { temperature, top_k, top_p, min_p, .. } = *self.sampling;
        if !self.sampling.has_filter() {
            // SAFETY: accesses stay below `rows`, `vocabulary` and the steps of draws and records; all units of a cube
            // reach its barriers.
            unsafe {
                choose_kernel::launch_unchecked(
                    &client,
                    cubes,
                    units,
                    argument(&logits),
                    argument(&self.draws),
                    progress,
                    argument(tokens),
                    choices,
                    rows,
                    vocabulary,
                    if temperature > 0.0 { inverse_temperature(temperature) } else { 1.0 },
                    temperature == 0.0,
                );
            }
            return;
        }
        let scratch = |dtype| uninit(&logits, &[rows, vocabulary], dtype);
        let [weights, lists] = [DType::F32, DType::U32].map(scratch);
        // SAFETY: as above.
        unsafe {
            filter_kernel::launch_unchecked(
                &client,
                cubes,
                units,
                argument(&logits),
                argument(&self.draws),
                FilterScratchLaunch::new(argument(&weights), argument(&lists)),
                progress,
                argument(tokens),
                choices,
                TokenFilterLaunch::new(top_k, top_p, min_p, inverse_temperature(temperature)),
                rows,
                vocabulary,
            );
        }
    }
}

/// Words of a row's mask of candidates; 0 if every token can be drawn.
fn num_mask_words(decoder: &DeviceDecoder, sampling: &Sampling) -> usize {
    if sampling.has_filter() { decoder.vocab_size().div_ceil(TOKENS_PER_FLOAT_WORD) } else { 0 }
}

/// Unpacks the tokens of a row's mask; none if it has all tokens.
fn unpack_candidates(masks: &[f32], vocabulary: usize) -> Vec<u32> {
    let words = masks.iter().map(|mask| *mask as u32).enumerate();
    let tokens_of_word = |(index, mask): (usize, u32)| {
        let bits = (0..TOKENS_PER_FLOAT_WORD as u32).filter(move |bit| mask >> bit & 1 == 1);
        bits.map(move |bit| (index * TOKENS_PER_FLOAT_WORD) as u32 + bit)
    };
    let candidates: Vec<u32> = words.flat_map(tokens_of_word).collect();
    if candidates.len() == vocabulary { Vec::new() } else { candidates }
}
