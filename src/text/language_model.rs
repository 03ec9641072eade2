//! Language models: weights, vocabulary, chat template, and the other files of their folder.

use super::characters::{Characters, END_TOKEN, END_TOKEN_NAME};
use super::error::LanguageError;
use super::template::ChatTemplate;
use super::tokenization_cache::TokenizationCache;
use super::tokenizer::Tokenizer;
use super::{Adapters, DecoderParams, TokenDecoder};
use crate::model::{DecoderShape, Parameter};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A language model.
#[derive(Clone, Debug)]
pub struct LanguageModel {
    /// Sizes and switches of the decoder.
    pub shape: DecoderShape,
    /// Parameters of the decoder, in the order of [`DecoderShape::parameters`].
    pub params: DecoderParams,
    /// LoRA adapters, which are trained instead of `params`; `None` to train all parameters.
    pub adapters: Option<Adapters>,
    /// The vocabulary.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// Chat template; `None` for a model that continues plain text.
    pub template: Option<ChatTemplate>,
    /// Tokens that end a completion; the first is the tokenizer's `eos_token`, if it has one.
    pub stop_tokens: Vec<u32>,
    /// Other files of its folder, by name: configuration, tokenizer, chat template.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Folder or file of the weights without adapters; empty for a new model.
    pub base: PathBuf,
    pub(super) tokenization_cache: TokenizationCache,
}

impl LanguageModel {
    /// Creates a model with new weights. Its tokens are the characters of `alphabet`, whatever the vocabulary size in
    /// `sizes`; `key` determines the weights.
    pub fn with_fresh_weights(sizes: &DecoderShape, alphabet: &str, key: u32) -> Self {
        let characters = Characters::from_text(alphabet);
        let shape = DecoderShape { num_outputs: characters.num_tokens(), ..sizes.clone() };
        Self {
            params: shape.normal_weights(key).into(),
            adapters: None,
            files: tokenizer_files(&characters),
            shape,
            tokenizer: Arc::new(characters),
            template: None,
            stop_tokens: vec![END_TOKEN],
            base: PathBuf::new(),
            tokenization_cache: TokenizationCache::default(),
        }
    }

    /// Creates a model of the smallest sizes.
    #[cfg(test)]
    pub(crate) fn smallest(alphabet: &str) -> Self {
        let sizes = DecoderShape {
            hidden_size: 8,
            num_layers: 1,
            num_heads: 1,
            num_kv_heads: 1,
            head_dim: 8,
            intermediate_size: 8,
            ..DecoderShape::default()
        };
        Self::with_fresh_weights(&sizes, alphabet, 0)
    }

    /// Whether the model was created with new weights rather than read from files.
    pub fn is_fresh(&self) -> bool {
        self.base.as_os_str().is_empty()
    }

    /// Creates the decoder, which computes logits on the CPU and shares the weights.
    pub fn new_decoder(&self) -> TokenDecoder {
        let decoder = TokenDecoder::new(self.shape.clone(), self.params.clone());
        decoder.with_adapters(self.adapters.clone())
    }

    /// Merges the adapters into the weights.
    #[must_use]
    pub fn merge_adapters(mut self) -> Self {
        if let Some(adapters) = self.adapters.take() {
            adapters.merge_into(&self.shape, self.params.to_mut());
        }
        self
    }

    /// Names and shapes of the trainable parameters: the adapters' if there are any, else all weights.
    pub fn trainable_parameters(&self) -> Vec<Parameter> {
        match &self.adapters {
            Some(adapters) => adapters.parameters().to_vec(),
            None => self.shape.parameters(),
        }
    }

    /// Tokenizes a prompt: its messages if the model has a chat template and there are any, else its text.
    ///
    /// # Errors
    /// If the messages cannot be serialized, the template fails, the text cannot be tokenized, or no token results; and
    /// for messages without a text if the model has no chat template.
    pub fn tokenize_prompt(
        &self,
        text: &str,
        messages: &[impl Serialize],
    ) -> Result<Vec<u32>, LanguageError> {
        self.tokenize_prompt_with(text, messages, &Map::<String, Value>::new())
    }

    /// Tokenizes a prompt, as [`LanguageModel::tokenize_prompt`], with values for the chat template's own variables: an
    /// object, whose keys keep the order in which they are serialized.
    ///
    /// # Errors
    /// The errors of [`LanguageModel::tokenize_prompt`].
    pub fn tokenize_prompt_with(
        &self,
        text: &str,
        messages: &[impl Serialize],
        values: &impl Serialize,
    ) -> Result<Vec<u32>, LanguageError> {
        // Builds without the files of models have no templates.
        #[cfg(on_disk)]
        if let Some(template) = self.template_for(messages) {
            let key = conversation_key(&(messages, values))?;
            return self.tokenization_cache.get_or_tokenize(key, || {
                // The template inserts all special tokens.
                let rendered = template.render_with(messages, values, None)?;
                let tokens = self.tokenizer.encode(&rendered)?;
                if tokens.is_empty() {
                    Err(LanguageError::EmptyRendering(text.chars().take(40).collect()))
                } else {
                    Ok(tokens)
                }
            });
        }
        let _ = values;
        if text.is_empty() && !messages.is_empty() {
            return Err(LanguageError::NoTemplate);
        }
        let key = (text.to_string(), String::new());
        self.tokenization_cache.get_or_tokenize(key, || {
            match self.tokenizer.encode_whole(text)? {
                tokens if tokens.is_empty() => Err(LanguageError::EmptyPrompt),
                tokens => Ok(tokens),
            }
        })
    }

    /// Tokenizes an answer to a prompt, with the token that ends it. For messages this is what the chat template adds
    /// to the rendered prompt, up to the end of the turn; otherwise it is the plain answer.
    ///
    /// # Errors
    /// If the prompt or the answer cannot be tokenized or is empty, or the template fails or does not put the answer
    /// after the prompt.
    pub fn tokenize_answer(
        &self,
        text: &str,
        messages: &[impl Serialize],
        answer: &str,
        values: &impl Serialize,
    ) -> Result<Vec<u32>, LanguageError> {
        #[cfg(on_disk)]
        if let Some(template) = self.template_for(messages) {
            let key = conversation_key(&(messages, values, answer))?;
            return self.tokenization_cache.get_or_tokenize(key, || {
                let prompt = template.render_with(messages, values, None)?;
                let with_answer = template.render_with(messages, values, Some(answer))?;
                let added = with_answer.strip_prefix(&prompt[..]).filter(|added| !added.is_empty());
                let added = added.ok_or_else(|| {
                    let start = prompt.char_indices().rev().nth(39).map_or(0, |(at, _)| at);
                    LanguageError::MisplacedAnswer(prompt[start..].to_string())
                })?;
                let mut tokens = self.tokenize_continuation(&prompt, added)?;
                let is_end = |token: &u32| Some(*token) == template.turn_end;
                match tokens.iter().rposition(is_end) {
                    Some(end) => tokens.truncate(end + 1),
                    None => tokens.extend(self.end_of_answer(messages)),
                }
                require_tokens(tokens)
            });
        }
        let _ = values;
        self.tokenize_plain_answer(text, messages, answer)
    }

    /// Tokenizes a plain answer, with the token that ends it: alone after messages, otherwise together with the
    /// prompt's text, which it follows.
    ///
    /// # Errors
    /// If the answer cannot be tokenized, or is empty and no token ends it.
    pub fn tokenize_plain_answer(
        &self,
        text: &str,
        messages: &[impl Serialize],
        answer: &str,
    ) -> Result<Vec<u32>, LanguageError> {
        let mut tokens = match self.template_for(messages) {
            Some(_) => self.tokenizer.encode(answer)?,
            None if answer.is_empty() => Vec::new(),
            None => {
                let key = (text.to_string(), answer.to_string());
                let tokenize = || self.tokenize_continuation(text, answer);
                self.tokenization_cache.get_or_tokenize(key, tokenize)?
            }
        };
        tokens.extend(self.end_of_answer(messages));
        require_tokens(tokens)
    }

    /// Tokenizes the continuation of a text together with it, since many tokenizers put a space before the first token
    /// of a text. If that would change the tokens of the text, the continuation is tokenized alone.
    fn tokenize_continuation(
        &self,
        text: &str,
        continuation: &str,
    ) -> Result<Vec<u32>, LanguageError> {
        let text_tokens = self.tokenizer.encode(text)?;
        let joined_tokens = self.tokenizer.encode(&[text, continuation].concat())?;
        match joined_tokens.strip_prefix(&text_tokens[..]) {
            Some(tokens) => Ok(tokens.to_vec()),
            None => self.tokenizer.encode(continuation),
        }
    }

    /// The token that ends an answer: the chat template's after messages, else the first stop token.
    pub fn end_of_answer(&self, messages: &[impl Serialize]) -> Option<u32> {
        let turn_end = self.template_for(messages).and_then(|template| template.turn_end);
        turn_end.or(self.stop_tokens.first().copied())
    }

    /// The chat template, unless there are no messages to render.
    fn template_for(&self, messages: &[impl Serialize]) -> Option<&ChatTemplate> {
        self.template.as_ref().filter(|_| !messages.is_empty())
    }

    /// Decodes a completion, without the token that ended it.
    pub fn decode_completion(&self, tokens: &[u32]) -> String {
        self.tokenizer.decode(self.strip_stop_token(tokens))
    }

    /// Decodes a completion token by token ([`Tokenizer::decode_pieces`]), without the token that ended it.
    pub fn decode_pieces(&self, tokens: &[u32]) -> Vec<String> {
        self.tokenizer.decode_pieces(self.strip_stop_token(tokens))
    }

    /// The tokens of a completion without the stop token that ended it, if any.
    fn strip_stop_token<'a>(&self, tokens: &'a [u32]) -> &'a [u32] {
        let has_ended = tokens.last().is_some_and(|token| self.stop_tokens.contains(token));
        &tokens[..tokens.len() - usize::from(has_ended)]
    }
}

/// Checks that an answer has at least one token.
fn require_tokens(tokens: Vec<u32>) -> Result<Vec<u32>, LanguageError> {
    if tokens.is_empty() { Err(LanguageError::EmptyAnswer) } else { Ok(tokens) }
}

/// Creates the key of a conversation in the cache of prompts.
#[cfg(on_disk)]
fn conversation_key(conversation: &impl Serialize) -> Result<(String, String), LanguageError> {
    let key = serde_json::to_string(conversation);
    Ok((String::new(), key.map_err(|error| LanguageError::Template(error.to_string()))?))
}

/// Creates the tokenizer's files of a new model.
fn tokenizer_files(characters: &Characters) -> BTreeMap<String, Vec<u8>> {
    let bytes = |value: &Value| serde_json::to_vec_pretty(value).expect("JSON is text");
    let config =
        json!({ "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_TOKEN_NAME });
    let files = [("tokenizer.json", characters.to_json()), ("tokenizer_config.json", config)];
    files.map(|(name, value)| (name.to_string(), bytes(&value))).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_token() {
        let mut model = LanguageModel::smallest("ab");
        let answer = |model: &LanguageModel, text| {
            model.tokenize_answer("", &[] as &[()], text, &Map::new())
        };
        assert_eq!(answer(&model, "").unwrap(), [END_TOKEN]);
        model.stop_tokens.clear();
        assert_eq!(answer(&model, "b").unwrap(), [2]);
        assert!(matches!(answer(&model, ""), Err(LanguageError::EmptyAnswer)));
    }
}
