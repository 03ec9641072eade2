//! Rendering on a GPU.

use crate::device::graphics_setup;
use crate::env::look::SceneInfo;
use crate::viewer::{OffscreenTarget, Picture, Renderer, Sprite};
use anyhow::Result;
use burn::tensor::Device;

/// A renderer with the texture that it renders to.
pub struct GpuRenderer(Renderer, OffscreenTarget);

impl GpuRenderer {
    /// Creates a renderer for pictures of `width` x `height` pixels; `None` if the device cannot render.
    pub fn new(
        device: &Device,
        info: &dyn SceneInfo,
        width: u32,
        height: u32,
    ) -> Result<Option<Self>> {
        let Some(setup) = graphics_setup(device) else { return Ok(None) };
        let (device, queue) = (&setup.device, &setup.queue);
        let offscreen = OffscreenTarget::new(device, queue, width, height)?;
        let renderer = Renderer::new(device, queue, OffscreenTarget::FORMAT, info);
        Ok(Some(Self(renderer, offscreen)))
    }

    /// Renders the sprites of `num_games` games.
    pub fn paint(
        &mut self,
        num_games: usize,
        sprites: &[Sprite],
        picture: &mut Picture,
    ) -> Result<()> {
        let Self(renderer, offscreen) = self;
        renderer.draw(offscreen.view(), picture.width, picture.height, num_games, sprites);
        *picture = offscreen.read()?;
        Ok(())
    }
}
