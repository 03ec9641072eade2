//! The integration tests, in one program so that they are linked once.

mod advantages;
mod arrows;
mod bad_input;
mod browser;
mod checkpoint;
mod checkpoint_store;
mod config;
mod decoder;
mod engines;
mod envs;
mod fit;
mod learning;
mod loss;
mod models;
mod optimum;
mod own_game;
mod own_models;
mod policies;
mod precision;
mod program;
mod record;
mod registry;
mod robust;
mod rollouts;
mod rules;
#[path = "../shared/mod.rs"]
mod shared;
mod support;
mod task_data;
mod task_ocaml;
mod task_verifier;
mod viewer;
mod watch;
mod watch_live;
mod words;
