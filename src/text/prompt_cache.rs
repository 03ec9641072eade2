//! The tokens of prompts that come again, so that those of a dataset are tokenized once a run.

use super::error::LanguageError;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Prompts that are kept at most; later ones are tokenized each time, as those of a task without end.
const MAX_PROMPTS: usize = 1 << 14;

/// A prompt's text and its messages as JSON, either of which may be empty.
type Key = (String, String);

/// A cache that the clones of a model share.
#[derive(Clone, Debug, Default)]
pub(super) struct PromptCache(Arc<Mutex<HashMap<Key, Vec<u32>>>>);

impl PromptCache {
    /// The tokens of a prompt, by `tokenize` where they are not kept.
    ///
    /// # Errors
    /// As `tokenize`.
    pub fn tokens(
        &self,
        key: Key,
        tokenize: impl FnOnce() -> Result<Vec<u32>, LanguageError>,
    ) -> Result<Vec<u32>, LanguageError> {
        if let Some(tokens) = self.prompts().get(&key) {
            return Ok(tokens.clone());
        }
        let tokens = tokenize()?;
        let mut prompts = self.prompts();
        if prompts.len() < MAX_PROMPTS {
            prompts.insert(key, tokens.clone());
        }
        Ok(tokens)
    }

    fn prompts(&self) -> MutexGuard<'_, HashMap<Key, Vec<u32>>> {
        self.0.lock().expect("no holder of the lock panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_tokenized_once_while_there_is_room() {
        let cache = PromptCache::default();
        let mut count = 0;
        let mut ask = |number: usize| {
            let tokens = cache.clone().tokens((number.to_string(), String::new()), || {
                count += 1;
                Ok(vec![number as u32])
            });
            assert_eq!(tokens.unwrap(), [number as u32]);
            count
        };
        assert_eq!((ask(0), ask(1), ask(0)), (1, 2, 2));
        for number in 2..=MAX_PROMPTS {
            ask(number);
        }
        let full = ask(0);
        assert_eq!((ask(MAX_PROMPTS), ask(MAX_PROMPTS - 1)), (full + 1, full + 1));
        let failed = cache.tokens(Key::default(), || Err(LanguageError::Character('x')));
        assert!(failed.is_err());
    }
}
