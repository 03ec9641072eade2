//! The integration tests, in one program so that they are linked once.

// Most tests of signals, pipes and sandboxes need Unix or Linux.
#![cfg_attr(not(target_os = "linux"), allow(dead_code, unused_imports))]

mod advantages;
mod bad_input;
mod browser;
mod checkpoint;
mod checkpoint_store;
mod config;
mod contributing;
mod data;
mod decoder;
mod dependencies;
mod engines;
mod envs;
#[cfg(unix)]
mod failures;
mod first_hour;
mod fit;
mod gguf;
mod host_envs;
mod kernels;
mod language;
mod language_bf16;
mod language_device;
mod language_device_choices;
mod language_device_passes;
mod language_device_steps;
mod language_learning;
mod language_moments;
mod language_program;
mod language_samples;
mod language_teams;
mod language_training;
mod language_verification;
mod learning;
mod loss;
mod models;
mod networks;
#[cfg(target_os = "linux")]
mod odd_paths;
mod optimum;
mod output;
mod own_game;
mod own_models;
mod phrases;
mod policies;
mod precision;
mod program;
#[cfg(unix)]
mod readme;
mod record;
mod registry;
mod resume;
mod robustness;
mod rollouts;
mod rules;
mod series;
#[path = "../shared/mod.rs"]
mod shared;
mod stopping;
mod studies;
mod support;
mod task_data;
#[cfg(target_os = "linux")]
mod task_ocaml;
#[cfg(target_os = "linux")]
mod task_ocaml_gate;
#[cfg(target_os = "linux")]
mod task_rows;
#[cfg(target_os = "linux")]
mod task_sandbox;
#[cfg(target_os = "linux")]
mod task_users;
#[cfg(unix)]
mod task_verifier;
mod teams;
mod tokenizers;
mod trainers;
mod vec_env;
mod viewer;
mod watch;
mod watch_live;
mod watch_text;
