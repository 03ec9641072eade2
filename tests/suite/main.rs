//! The integration tests, in one program so that they are linked once.

mod arrows;
mod bad_input;
mod checkpoint;
mod checkpoint_store;
mod learning;
mod program;
mod support;
