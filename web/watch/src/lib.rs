//! The module of a page that shows games: policies and people play on the CPU, and the screen draws them.

mod beside;
mod games;
mod kind;
mod person;
mod screen;
mod shown;
mod watch;

pub use games::Page;

use grove_web_base as _; // links the start of the module
