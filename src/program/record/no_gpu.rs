//! Rendering on a GPU in a build without them.

use crate::env::look::Setting;
use crate::viewer::{Instance, Picture};
use anyhow::Result;
use burn::tensor::Device;

/// A renderer on a GPU: there is none.
pub enum Gpu {}

impl Gpu {
    /// Finds that the device cannot render.
    pub fn new(_: &Device, _: &dyn Setting, _: u32, _: u32) -> Result<Option<Self>> {
        Ok(None)
    }

    /// Renders the sprites of `count` games.
    pub fn paint(&mut self, _: usize, _: &[Instance], _: &mut Picture) -> Result<()> {
        match *self {}
    }
}
