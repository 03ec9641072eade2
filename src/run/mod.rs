//! A run in time and on disk, the same for games, datasets and texts.
//!
//! [`Schedule`] decides when a run is evaluated, saved and over; it needs no files, so that a page can use it too.
//! The rest drives a [`Run`] on this machine: its folder and lock, its records, which are on disk before the
//! checkpoint that follows them, resumption, a dry run and the final report. Nothing here prints: an [`Observer`]
//! is told of every iteration, and [`Run::events`] is the same as an iterator.

#[cfg(on_disk)]
mod local;
mod schedule;

#[cfg(on_disk)]
pub use local::*;
pub use schedule::{Due, End, Schedule};
