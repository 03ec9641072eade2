//! A language model: weights, vocabulary, chat template, and what else its files say.

#[cfg(all(feature = "general", not(target_family = "wasm")))]
mod adapter;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
mod bpe;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
mod gguf;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
mod hugging_face;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
mod names;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
mod quants;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
mod split;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
mod template;
mod tokenizer;

#[cfg(all(feature = "general", not(target_family = "wasm")))]
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;

use super::characters::{Characters, END};
use super::error::LanguageError;
use crate::model::language::{Adapters, TokenDecoder};
use crate::model::{DecoderShape, Parameter};
use serde::Serialize;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(all(feature = "general", not(target_family = "wasm")))]
use std::{collections::BTreeMap, path::Path};

/// The texts of a model's files but the weights, by their names.
#[cfg(all(feature = "general", not(target_family = "wasm")))]
type Files = BTreeMap<String, Vec<u8>>;

/// A language model.
#[derive(Clone, Debug)]
pub struct LanguageModel {
    /// The sizes and switches of its decoder.
    pub shape: DecoderShape,
    /// Its parameters, in the order of [`DecoderShape::parameters`].
    pub params: Arc<Vec<f32>>,
    /// What is added to them, if anything is: low-rank matrices that are learnt in their place.
    pub adapters: Option<Adapters>,
    /// Its vocabulary.
    pub tokenizer: Tokenizer,
    /// How it takes messages, if it does.
    #[cfg(all(feature = "general", not(target_family = "wasm")))]
    pub template: Option<ChatTemplate>,
    /// The tokens that end a text.
    pub stop_tokens: Vec<u32>,
    #[cfg(all(feature = "general", not(target_family = "wasm")))]
    files: Files,
    /// Where it comes from: the folder or the file of the weights without adapters.
    base: PathBuf,
}

impl LanguageModel {
    /// From a Hugging Face folder, one of adapters in the form of PEFT, or a GGUF file.
    ///
    /// # Errors
    /// If it cannot be read, or is of a shape that is not known.
    #[cfg(all(feature = "general", not(target_family = "wasm")))]
    pub fn load(path: &Path) -> Result<Self, LanguageError> {
        match () {
            () if path.is_file() => gguf::read(path),
            () if adapter::is_folder(path) => adapter::read(path),
            () => hugging_face::read(path),
        }
    }

    /// A fresh one of these sizes, whose tokens are the characters of a text; the vocabulary of the shape
    /// does not matter.
    pub fn tiny(sizes: &DecoderShape, alphabet: &str, key: u32) -> Self {
        let characters = Characters::of(alphabet);
        let shape = DecoderShape { num_actions: characters.vocabulary(), ..sizes.clone() };
        Self {
            params: shape.normal_weights(key).into(),
            adapters: None,
            #[cfg(all(feature = "general", not(target_family = "wasm")))]
            files: files(&shape, &characters),
            shape,
            tokenizer: Tokenizer::Characters(characters),
            #[cfg(all(feature = "general", not(target_family = "wasm")))]
            template: None,
            stop_tokens: vec![END],
            base: PathBuf::new(),
        }
    }

    /// Writes it as a Hugging Face folder; of a model with adapters only these, in the form of PEFT.
    ///
    /// # Errors
    /// If it cannot be written.
    #[cfg(all(feature = "general", not(target_family = "wasm")))]
    pub fn save(&self, folder: &Path) -> Result<(), LanguageError> {
        match &self.adapters {
            Some(adapters) => adapter::write(self, adapters, folder),
            None => hugging_face::write(self, folder),
        }
    }

    /// Whether it begins from nothing, so that it lies nowhere yet.
    pub fn is_fresh(&self) -> bool {
        self.base.as_os_str().is_empty()
    }

    /// The decoder that takes this model's tokens to logits on the CPU; it shares the weights.
    pub fn decoder(&self) -> TokenDecoder {
        let decoder = TokenDecoder::new(self.shape.clone(), self.params.clone());
        decoder.with_adapters(self.adapters.clone())
    }

    /// Names and shapes of what is learnt: of the adapters' numbers, or where there are none of all weights.
    pub fn trained_parameters(&self) -> Vec<Parameter> {
        match &self.adapters {
            Some(adapters) => adapters.parameters().to_vec(),
            None => self.shape.parameters(),
        }
    }

    /// The tokens of a prompt: of its messages, where the model has a chat template and there are any, else
    /// of its text.
    ///
    /// # Errors
    /// If the template fails, or the text cannot be made of tokens.
    pub fn prompt(
        &self,
        text: &str,
        messages: &[impl Serialize],
    ) -> Result<Vec<u32>, LanguageError> {
        #[cfg(all(feature = "general", not(target_family = "wasm")))]
        if let Some(template) = &self.template
            && !messages.is_empty()
        {
            // The template has put all special tokens where they belong.
            return self.tokenizer.encode(&template.render(messages)?, false);
        }
        // Without the files of models there are no templates.
        let _ = messages;
        self.tokenizer.encode(text, true)
    }

    /// The text of a completion's tokens, without what ended it.
    pub fn text(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(self.unended(tokens))
    }

    /// The same token by token, as [`Tokenizer::pieces`].
    pub fn pieces(&self, tokens: &[u32]) -> Vec<String> {
        self.tokenizer.pieces(self.unended(tokens))
    }

    fn unended<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        let ended = tokens.last().is_some_and(|token| self.stop_tokens.contains(token));
        &tokens[..tokens.len() - usize::from(ended)]
    }
}

/// The files of a fresh model.
#[cfg(all(feature = "general", not(target_family = "wasm")))]
fn files(shape: &DecoderShape, characters: &Characters) -> Files {
    let text = |value: &Value| serde_json::to_vec_pretty(value).expect("JSON is text");
    let about = json!({ "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>" });
    let files = [
        ("config.json", text(&crate::nn::arch::to_config(shape, &[END]))),
        ("tokenizer.json", text(&characters.to_json())),
        ("tokenizer_config.json", text(&about)),
    ];
    files.map(|(name, bytes)| (name.to_string(), bytes)).into()
}
