//! The integration tests, in one program so that they are linked once.

mod arrows;
mod bad_input;
mod browser;
mod checkpoint;
mod checkpoint_store;
mod config;
mod engines;
mod judging;
mod learning;
mod loss;
mod models;
mod optimum;
mod policies;
mod precision;
mod program;
mod record;
mod rollouts;
mod rules;
#[path = "../shared/mod.rs"]
mod shared;
mod support;
mod viewer;
mod watch;
mod watch_live;
