//! Language models: decoders over tokens with a vocabulary, in and out of files, and their way through the
//! CPU.
//!
//! A model comes from a Hugging Face folder or a GGUF file (`LanguageModel::load`), or begins from nothing
//! with characters for tokens (`LanguageModel::tiny`). [`TokenDecoder`] generates and learns.

mod adapters;
mod cache;
mod characters;
#[cfg(feature = "general")]
mod device;
mod error;
mod files;
mod learn;
mod matrix;
mod rows;

pub use adapters::{Adapters, LoraConfig};
pub use cache::Cache;
pub use characters::{Characters, END};
#[cfg(feature = "general")]
pub use device::{Completions, DeviceDecoder, Prompts, Read, integers};
pub use error::LanguageError;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
pub use files::ChatTemplate;
pub use files::{LanguageModel, Tokenizer};
pub use learn::{Reading, Text};
pub use rows::{Keep, Pass, Row, TokenDecoder, normalize, sharpness};
