//! The module of a page that trains policies for games in a worker.

mod games;
mod session;
mod team;
mod training;
mod wall;

pub use games::Page;

use grove_web_base as _; // links the start of the module
