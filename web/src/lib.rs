//! Turns a crate of games into a module of a page: the module that shows them, or with the feature `train` the
//! one that trains them. [`page!`] says which games.

#[cfg(feature = "train")]
pub use grove_web_train::Page;
#[cfg(not(feature = "train"))]
pub use grove_web_watch::Page;

#[doc(hidden)]
pub use wasm_bindgen;

/// Makes the crate a module of a page with these games: `page!(Page::builtin().game::<Corridor>())`.
#[macro_export]
macro_rules! page {
    ($page:expr) => {
        #[doc(hidden)]
        #[$crate::wasm_bindgen::prelude::wasm_bindgen(start, wasm_bindgen = $crate::wasm_bindgen)]
        pub fn start_page() {
            $page.open();
        }
    };
}
