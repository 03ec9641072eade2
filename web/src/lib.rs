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
mod text;
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

use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(message: &str);
}

unsafe extern "C" {
    /// The linker's: calls all that libraries do before anything else, here some thousand functions.
    fn __wasm_call_ctors();
}

/// Begins the module. Where nobody calls the libraries' beginnings, the linker has them called anew by each function
/// that JavaScript calls, and JavaScript calls one whenever an object is handed over.
#[wasm_bindgen(start)]
fn begin() {
    // SAFETY: the linker makes this function, and nobody else calls it.
    unsafe { __wasm_call_ctors() }
}

/// The version of Grove.
#[wasm_bindgen]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_string()
}
