//! A pool of buffers shared by threads.

use std::sync::{Mutex, PoisonError};

/// A free list of buffers; a clone starts empty.
#[derive(Debug)]
pub struct Pool<T>(Mutex<Vec<T>>);

impl<T: Default> Pool<T> {
    /// A buffer from the list, or a new one.
    pub fn take(&self) -> T {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        last.unwrap_or_default()
    }

    /// Returns a buffer to the list.
    pub fn put(&self, buffer: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }

    /// Lends a buffer to `work`.
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        let mut buffer = self.take();
        let result = work(&mut buffer);
        self.put(buffer);
        result
    }
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Clone for Pool<T> {
    fn clone(&self) -> Self {
        Self::default()
    }
}
