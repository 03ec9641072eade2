//! Runs in time and on disk, uniform over games, datasets and language models.
//!
//! [`Schedule`] decides when a run is evaluated, saved and over; it needs no files, so the browser page uses it,
//! too. Everything else drives a [`Run`] on this machine: directory and lock, records (always written before the
//! checkpoint of their iteration), resume, dry run and final report. Nothing here prints: a [`RunObserver`] is
//! called for every iteration, or [`Run::events`] iterates over them.

#[cfg(on_disk)]
mod local;
mod schedule;

#[cfg(on_disk)]
pub use local::*;
pub use schedule::{DueWork, EndReason, Schedule};
