//! Cache of tokenized prompts and answers, so that each of a dataset is tokenized once per run.

use super::error::LanguageError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Maximum number of cached texts; further ones are tokenized every time, as for tasks with unlimited
/// prompts.
const MAX_PROMPTS: usize = 1 << 14;

/// A prompt's text and its continuation, if any; or an empty text and a conversation as JSON.
type PromptKey = (String, String);

/// A cache shared by the clones of a model.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenizationCache(Arc<Mutex<HashMap<PromptKey, Vec<u32>>>>);

impl TokenizationCache {
    /// Returns the tokens of a prompt, computed by `tokenize` unless they are cached.
    ///
    /// # Errors
    /// The errors of `tokenize`.
    pub fn get_or_tokenize(
        &self,
        key: PromptKey,
        tokenize: impl FnOnce() -> Result<Vec<u32>, LanguageError>,
    ) -> Result<Vec<u32>, LanguageError> {
        let lock = || self.0.lock().expect("no holder of the lock panics");
        if let Some(tokens) = lock().get(&key) {
            return Ok(tokens.clone());
        }
        let tokens = tokenize()?;
        let mut prompts = lock();
        if prompts.len() < MAX_PROMPTS {
            prompts.insert(key, tokens.clone());
        }
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_tokenized_once_while_there_is_room() {
        let cache = TokenizationCache::default();
        let mut count = 0;
        let mut ask = |index: usize| {
            let tokens = cache.clone().get_or_tokenize((index.to_string(), String::new()), || {
                count += 1;
                Ok(vec![index as u32])
            });
            assert_eq!(tokens.unwrap(), [index as u32]);
            count
        };
        assert_eq!((ask(0), ask(1), ask(0)), (1, 2, 2));
        for index in 2..=MAX_PROMPTS {
            ask(index);
        }
        let full = ask(0);
        assert_eq!((ask(MAX_PROMPTS), ask(MAX_PROMPTS - 1)), (full + 1, full + 1));
        let failed = cache
            .get_or_tokenize(PromptKey::default(), || Err(LanguageError::UnknownCharacter('x')));
        assert!(failed.is_err());
    }
}
