//! The renderer of a recording: the CPU or a GPU, with identical results.

use super::Scene;
use crate::device;
use crate::env::Rules;
use crate::viewer::{Instance, Picture, paint};
#[cfg(feature = "wgpu")]
use crate::viewer::{Offscreen, Renderer};
use anyhow::{Result, bail};

/// Renders the games of a recording.
pub struct Artist<G: Rules> {
    scene: Scene<G>,
    name: String,
    instances: Vec<Instance>,
    #[cfg(feature = "wgpu")]
    gpu: Option<(Renderer, Offscreen)>,
}

impl<G: Rules> Artist<G> {
    /// Creates a renderer on the device called `name`, for pictures of `width` x `height` pixels.
    pub fn new(scene: Scene<G>, name: &str, width: u32, height: u32) -> Result<Self> {
        let chosen = device::choose(name)?;
        #[cfg(feature = "wgpu")]
        let gpu = match device::graphics_setup(&chosen.device) {
            Some(setup) => {
                let (device, queue) = (&setup.device, &setup.queue);
                let offscreen = Offscreen::new(device, queue, width, height)?;
                Some((Renderer::new(device, queue, Offscreen::FORMAT, scene.setting()), offscreen))
            }
            None => None,
        };
        #[cfg(feature = "wgpu")]
        let draws = gpu.is_some();
        #[cfg(not(feature = "wgpu"))]
        let draws = false;
        if !draws && chosen.info.kind != "cpu" {
            bail!("the device `{name}` cannot render pictures; use cpu or wgpu");
        }
        Ok(Self {
            scene,
            name: chosen.info.to_string(),
            instances: Vec::new(),
            #[cfg(feature = "wgpu")]
            gpu,
        })
    }

    /// Description of the device that renders.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renders games at a fraction `part` of the motion from `before` to `now`.
    pub fn paint(
        &mut self,
        before: &[G::State],
        now: &[G::State],
        part: f32,
        picture: &mut Picture,
    ) -> Result<()> {
        self.scene.sprites(before, now, part, &mut self.instances);
        #[cfg(feature = "wgpu")]
        if let Some((renderer, offscreen)) = &mut self.gpu {
            let (width, height) = (picture.width, picture.height);
            renderer.draw(offscreen.view(), width, height, now.len(), &self.instances);
            *picture = offscreen.read()?;
            return Ok(());
        }
        paint(self.scene.setting(), now.len(), &self.instances, picture);
        Ok(())
    }
}
