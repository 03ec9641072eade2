//! The sizes of a decoder, by Hugging Face's names.

use crate::nn::DecoderShape;
use crate::nn::arch::MAX_HEAD_DIM;
use crate::schema::{OutOfRange, ensure, settings};

settings! {
    /// The sizes of a decoder; other networks ignore them.
    pub struct DecoderConfig: Eq {
        /// Decoder: width of the residual stream, a multiple of `2 * num_heads`.
        hidden_size: usize = 64, in integer(1..=8192);
        /// Decoder: layers.
        num_layers: usize = 2, in integer(1..=128);
        /// Decoder: query heads per layer.
        num_heads: usize = 4, in integer(1..=128);
        /// Decoder: key and value heads, a divisor of `num_heads`; query heads share them (GQA).
        num_kv_heads: usize = 2, in integer(1..=128);
        /// Decoder: width of the gated MLP.
        intermediate_size: usize = 128, in integer(1..=32768);
        /// Decoder: context length, in steps of a game or in tokens.
        context: usize = 32, in integer(1..=8192);
    }
    check = DecoderConfig::check_settings;
}

impl DecoderConfig {
    /// The sizes in words.
    pub(super) fn describe_sizes(&self) -> String {
        let Self { hidden_size, num_layers, num_heads, context, .. } = self;
        format!(
            "{num_layers} layers of {hidden_size}, {num_heads} heads, {context} steps of context"
        )
    }

    /// The shape of a decoder with these sizes, and all else as in `base`.
    pub fn to_shape(&self, base: DecoderShape) -> DecoderShape {
        DecoderShape {
            hidden_size: self.hidden_size,
            num_layers: self.num_layers,
            num_heads: self.num_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.hidden_size / self.num_heads.max(1),
            intermediate_size: self.intermediate_size,
            context: self.context,
            ..base
        }
    }

    /// Checks the rules that relate sizes to each other.
    fn check_settings(&self) -> Result<(), OutOfRange> {
        ensure(
            self.hidden_size.is_multiple_of(2 * self.num_heads),
            "hidden_size",
            self.hidden_size,
            format!(
                "a multiple of twice num_heads ({}): rotary embeddings rotate pairs",
                self.num_heads
            ),
        )?;
        ensure(
            self.hidden_size / self.num_heads <= MAX_HEAD_DIM,
            "hidden_size",
            self.hidden_size,
            format!("at most {MAX_HEAD_DIM} times num_heads ({})", self.num_heads),
        )?;
        ensure(
            self.num_heads.is_multiple_of(self.num_kv_heads),
            "num_kv_heads",
            self.num_kv_heads,
            format!("a divisor of num_heads ({})", self.num_heads),
        )?;
        let [size, inner, layers] =
            [self.hidden_size, self.intermediate_size, self.num_layers].map(|n| n as u64);
        let weights = layers * size * (4 * size + 3 * inner);
        ensure(
            weights <= 1 << 31,
            "num_layers * hidden_size * (4 * hidden_size + 3 * intermediate_size)",
            weights,
            "at most 2^31",
        )
    }
}
