//! The parts of every module of a page: its start, its version, and a checkpoint for the browser's storage.

use grove::checkpoint::{Checkpoint, Section};
use wasm_bindgen::prelude::*;

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(message: &str);
}

unsafe extern "C" {
    /// Runs the static constructors of all libraries; the linker makes it.
    fn __wasm_call_ctors();
}

/// Runs the static constructors of all libraries, once: some thousand functions that register the operations of
/// CubeCL's compiler. Without this function the linker runs them in every exported function. A module that compiles no
/// kernels does not call it: `web/linker.mjs` links it without them, which halves it.
#[unsafe(no_mangle)]
pub extern "C" fn constructors() {
    // SAFETY: the linker defines this function, and nothing else calls it.
    unsafe { __wasm_call_ctors() }
}

/// Starts the module.
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|panic| console_error(&panic.to_string())));
}

/// The version of Grove.
#[wasm_bindgen]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_string()
}

/// A checkpoint whose sections JavaScript reads and writes, to keep a run in the browser's storage.
#[wasm_bindgen]
pub struct Saved(#[wasm_bindgen(skip)] pub Checkpoint);

#[wasm_bindgen]
impl Saved {
    /// A checkpoint without sections.
    #[wasm_bindgen(constructor)]
    pub fn new(iteration: u32) -> Saved {
        Saved(Checkpoint { iteration: iteration.into(), sections: Vec::new() })
    }

    /// Adds a section.
    pub fn put(&mut self, name: String, version: u32, bytes: Vec<u8>) {
        self.0.sections.push(Section { name, version, bytes });
    }

    /// Iterations done.
    pub fn iteration(&self) -> u32 {
        self.0.iteration as u32
    }

    /// The names of the sections.
    pub fn names(&self) -> Vec<String> {
        self.0.sections.iter().map(|section| section.name.clone()).collect()
    }

    /// The version of section `i`.
    pub fn version(&self, i: usize) -> u32 {
        self.0.sections[i].version
    }

    /// The bytes of section `i`.
    pub fn bytes(&self, i: usize) -> Vec<u8> {
        self.0.sections[i].bytes.clone()
    }
}
