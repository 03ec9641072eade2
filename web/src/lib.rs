//! The modules of a page, as a library: `watch` shows games, `train` (a feature, and a module of its own)
//! trains them. [`page!`] makes a crate of games, Grove's or a user's, such a module.

#[cfg(any(clippy, not(feature = "train")))]
mod beside;
pub mod games;
#[cfg(any(clippy, not(feature = "train")))]
mod kind;
#[cfg(any(clippy, not(feature = "train")))]
mod mine;
#[cfg(any(clippy, not(feature = "train")))]
mod screen;
#[cfg(any(clippy, not(feature = "train")))]
mod shown;
#[cfg(feature = "train")]
mod together;
#[cfg(feature = "train")]
mod train;
#[cfg(feature = "train")]
mod wall;
#[cfg(any(clippy, not(feature = "train")))]
mod watch;

#[doc(hidden)]
pub use wasm_bindgen;

use grove_web_base as _; // which begins the module
use wasm_bindgen::prelude::*;

/// The version of Grove.
#[wasm_bindgen]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_string()
}
