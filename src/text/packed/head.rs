//! The head over some rows at a time: log-probabilities and entropies of tokens, and a loss's gradient.

use super::gradients::Gradients;
use super::layout::group_sources;
use crate::device::buffers::{argument, cube_ints, cube_tensor, grid, uninit};
use crate::device::upload_indices;
use crate::text::kernels::UNITS;
use crate::text::kernels::rows::scatter_kernel;
use crate::text::kernels::token_loss::{
    TOKENS_PER_WORD, TokenForm, logit_gradient_kernel, token_logprob_kernel,
};
use crate::text::{DeviceDecoder, upload_integers};
use burn::backend::{Cube, DType};
use burn::cubecl::prelude::CubeDim;
use burn::tensor::{Int, Tensor};
use burn_cubecl::tensor::CubeTensor;

/// Tokens, one for each row, with the normed hidden states that predict them.
pub(crate) struct Targets<'a> {
    decoder: &'a DeviceDecoder,
    /// `[rows, hidden_size]`.
    hidden: Tensor<2>,
    tokens: CubeTensor,
    /// A bit for each token that can be drawn, `[rows, words]`; `None` where all can.
    masks: Option<CubeTensor>,
    inverse_temperature: f32,
}

impl<'a> Targets<'a> {
    /// Creates targets of the tokens, `[rows]`, each drawn from its candidates, or from all tokens if these are empty.
    /// Logits are multiplied by `inverse_temperature`.
    pub fn new<'b>(
        decoder: &'a DeviceDecoder,
        hidden: Tensor<2>,
        tokens: Tensor<1, Int>,
        candidates: impl Iterator<Item = &'b [u32]> + Clone,
        inverse_temperature: f32,
    ) -> Self {
        let words = decoder.vocab_size().div_ceil(TOKENS_PER_WORD);
        let is_masked = candidates.clone().any(|row| !row.is_empty());
        let masks = is_masked.then(|| {
            let mut masks = Vec::new();
            for row in candidates {
                let first = masks.len();
                masks.resize(first + words, if row.is_empty() { -1i32 } else { 0 });
                for token in row {
                    masks[first + *token as usize / TOKENS_PER_WORD] |=
                        1 << (*token as usize % TOKENS_PER_WORD);
                }
            }
            cube_ints(upload_integers(&masks, [masks.len() / words, words], decoder.device()))
        });
        Self { decoder, hidden, tokens: cube_ints(tokens), masks, inverse_temperature }
    }

    fn rows(&self) -> usize {
        self.hidden.dims()[0]
    }

    fn form(&self) -> TokenForm {
        TokenForm { vocabulary: self.decoder.vocab_size(), is_masked: self.masks.is_some() }
    }

    fn logits(&self) -> CubeTensor {
        cube_tensor(self.decoder.logits(self.hidden.clone()))
    }

    /// Computes the log-probabilities of the tokens and the entropies of their distributions: `[2, rows]`.
    pub fn logprobs_and_entropies(&self) -> Tensor<2> {
        let (logits, rows) = (self.logits(), self.rows());
        let logprobs_and_entropies = uninit(&logits, &[2, rows], DType::F32);
        // SAFETY: accesses stay below the rows, the vocabulary and its words; all units of a cube reach its barriers.
        unsafe {
            token_logprob_kernel::launch_unchecked(
                &logits.client,
                grid(&logits, rows),
                CubeDim::new_1d(UNITS as u32),
                argument(&logits),
                argument(&self.tokens),
                argument(self.masks.as_ref().unwrap_or(&self.tokens)),
                argument(&logprobs_and_entropies),
                rows,
                self.inverse_temperature,
                self.form(),
            );
        }
        Tensor::<2>::from_primitive::<Cube>(logprobs_and_entropies)
    }

    /// Computes the gradient of the hidden states, `[rows, hidden_size]`, of a loss, and adds that of the head. The
    /// derivatives of the loss, `[2, rows]`, are `derivatives[0]` by log-probabilities and `-derivatives[1]` by
    /// entropies.
    pub fn backward(&self, derivatives: Tensor<2>, gradients: &mut Gradients) -> Tensor<2> {
        let (logits, rows) = (self.logits(), self.rows());
        // SAFETY: as above; nothing else refers to the logits, which change.
        unsafe {
            logit_gradient_kernel::launch_unchecked(
                &logits.client,
                grid(&logits, rows),
                CubeDim::new_1d(UNITS as u32),
                argument(&logits),
                argument(&self.tokens),
                argument(self.masks.as_ref().unwrap_or(&self.tokens)),
                argument(&cube_tensor(derivatives)),
                rows,
                self.inverse_temperature,
                self.form(),
            );
        }
        let d = Tensor::<2>::from_primitive::<Cube>(logits);
        let (module, products) = (&self.decoder.module, self.decoder.module.products);
        match module.lm_head() {
            Some(head) => {
                gradients.add(["lm_head.weight"], |buffer| {
                    products.matmul_all(self.hidden.clone().transpose(), [d.clone()], buffer)
                });
                products.matmul(d, head.transpose())
            }
            None => {
                gradients.add(["embed_tokens.weight"], |buffer| {
                    products.matmul_all(d.clone().transpose(), [self.hidden.clone()], buffer)
                });
                products.matmul(d, module.table())
            }
        }
    }
}

/// Adds up the rows of `from`, `[rows, size]`, by destination, multiplies the sums by `scale`, and adds them to the
/// destinations' rows of `to` in place.
pub(super) fn scatter_add(destinations: &[i32], from: Tensor<2>, to: &CubeTensor, scale: f32) {
    let (size, (count, table)) = (from.dims()[1], group_sources(destinations));
    let table = cube_ints(upload_indices(&table, &from.device()));
    // SAFETY: accesses stay below the number of destinations, whose rows are rows of both tensors, as the caller
    // ensures; others read the changed memory only later.
    unsafe {
        scatter_kernel::launch_unchecked(
            &to.client,
            grid(to, count * size.div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            argument(&table),
            argument(&cube_tensor(from)),
            argument(to),
            count,
            size,
            scale,
        );
    }
}

/// Adds the rows of each part, `[count, size]`, to those of `to`, `[rows, size]`, by destination.
pub(crate) fn scatter_add_parts<'a>(
    parts: impl Iterator<Item = (Tensor<2>, &'a [i32])>,
    to: Tensor<2>,
) -> Tensor<2> {
    let to = cube_tensor(to);
    for (from, destinations) in parts {
        scatter_add(destinations, from, &to, 1.0);
    }
    Tensor::<2>::from_primitive::<Cube>(to)
}
