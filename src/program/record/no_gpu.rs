//! Stub of GPU rendering for builds without it.

use crate::env::look::SceneInfo;
use crate::viewer::{Picture, Sprite};
use anyhow::Result;
use burn::tensor::Device;

/// A renderer on a GPU, which this build does not have.
pub enum GpuRenderer {}

impl GpuRenderer {
    /// Reports that the device cannot render.
    pub fn new(_: &Device, _: &dyn SceneInfo, _: u32, _: u32) -> Result<Option<Self>> {
        Ok(None)
    }

    /// Renders the sprites of `num_games` games.
    pub fn paint(&mut self, _: usize, _: &[Sprite], _: &mut Picture) -> Result<()> {
        match *self {}
    }
}
