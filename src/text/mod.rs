//! Language models: decoders over tokens with a vocabulary, read from files and written to them.
//!
//! A model is read from a Hugging Face folder or a GGUF file (`LanguageModel::load`), or created with fresh weights and
//! characters as tokens ([`LanguageModel::with_fresh_weights`]). [`TokenDecoder`] generates and learns.

mod characters;
mod error;
#[cfg(on_disk)]
mod files;
pub mod generate;
#[cfg(text_kernels)]
mod kernels;
mod language_model;
#[cfg(text_kernels)]
mod limits;
#[cfg(text_kernels)]
pub(crate) mod packed;
mod template;
mod tokenization_cache;
mod tokenizer;

use crate::nn::Precision;

pub use crate::nn::DecoderParams;
pub use crate::nn::arch::{AdapterConflict, Adapters, LoraConfig};
pub use crate::nn::cpu::{
    DecodeBuffers, KvCache, Pass, Pool, PrefixCache, Retention, Row, TextPass, TokenDecoder,
};
pub use crate::nn::ops::Parallelism;
pub use crate::nn::ops::bf16::Bf16Instructions;
pub use crate::nn::ops::linear::Arithmetic;
pub use crate::nn::ops::region::run_in_region;
pub use crate::nn::ops::softmax::{
    EXCLUSION_OFFSET, WeightSums, exclude_all_but, fill_weights, find_normalizer,
    inverse_temperature,
};
#[cfg(text_kernels)]
pub(crate) use crate::nn::tensors::arenas::{Arenas, Packing};
#[cfg(text_kernels)]
pub use crate::nn::tensors::texts::{
    CompletionKvCaches, DeviceDecoder, HiddenStates, PromptKvCaches, upload_integers,
};
pub use crate::nn::text::{CompletionIndex, PromptWithCompletions};
pub use characters::{Characters, END_TOKEN};
pub use error::LanguageError;
#[cfg(on_disk)]
pub use files::GgufType;
pub use language_model::LanguageModel;
#[cfg(text_kernels)]
pub(crate) use limits::{check_fits_device, max_pass_tokens, max_prefill_tokens};
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;

/// The precision with the fastest products of a large decoder on a device, by its name: bf16 on a CPU with matrix tiles
/// (AMX), f32 elsewhere.
pub fn fastest_precision(device: &str) -> Precision {
    if device == "cpu" && Bf16Instructions::best() == Bf16Instructions::Amx {
        Precision::Bf16
    } else {
        Precision::F32
    }
}

/// Uploads the decoder to its device as tensors, unless it is there; `None` on the CPU. Counts the uploaded bytes
/// ([`TransferCount`](crate::device::TransferCount)).
#[cfg(text_kernels)]
pub fn upload_decoder(decoder: &TokenDecoder) -> Option<DeviceDecoder> {
    crate::device::count_upload(decoder.bytes_to_upload() as u64);
    decoder.on_device()
}
