//! The modules of the page: [`watch`] shows games, `train` (a feature, and a module of its own) trains.

#[cfg(any(clippy, not(feature = "train")))]
mod kind;
mod named;
#[cfg(any(clippy, not(feature = "train")))]
mod screen;
#[cfg(feature = "train")]
mod train;
#[cfg(feature = "train")]
mod wall;
#[cfg(any(clippy, not(feature = "train")))]
mod watch;

use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(message: &str);
}

/// Says on the console why a module panicked.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| console_error(&panic.to_string())));
}

/// The version of Grove.
#[wasm_bindgen]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_string()
}
