//! What all modules of a page have: how they begin, and a run as a browser's storage keeps it.

use grove::checkpoint::{Checkpoint, Section};
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
    std::panic::set_hook(Box::new(|panic| console_error(&panic.to_string())));
}

/// A run as the sections of a checkpoint, which a browser's storage keeps as they are.
#[wasm_bindgen]
pub struct Saved(#[wasm_bindgen(skip)] pub Checkpoint);

#[wasm_bindgen]
impl Saved {
    /// With no section yet.
    #[wasm_bindgen(constructor)]
    pub fn new(iteration: u32) -> Saved {
        Saved(Checkpoint { iteration: iteration.into(), sections: Vec::new() })
    }

    /// With one section more.
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

    /// The version of a section.
    pub fn version(&self, i: usize) -> u32 {
        self.0.sections[i].version
    }

    /// The bytes of a section.
    pub fn bytes(&self, i: usize) -> Vec<u8> {
        self.0.sections[i].bytes.clone()
    }
}
