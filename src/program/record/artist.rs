//! The renderer of a recording, on the CPU or on a GPU with identical results.

use super::gpu::Gpu;
use crate::device;
use crate::env::Rules;
use crate::viewer::{Instance, Picture, Scene, paint};
use anyhow::{Result, bail};

/// Renders the games of a recording.
pub struct Artist<G: Rules> {
    scene: Scene<G>,
    name: String,
    instances: Vec<Instance>,
    gpu: Option<Gpu>,
}

impl<G: Rules> Artist<G> {
    /// Creates a renderer on the device called `name`, for pictures of `width` x `height` pixels.
    pub fn new(scene: Scene<G>, name: &str, width: u32, height: u32) -> Result<Self> {
        let chosen = device::choose(name)?;
        let gpu = Gpu::new(&chosen.device, scene.setting(), width, height)?;
        if gpu.is_none() && chosen.info.kind != "cpu" {
            bail!("the device `{name}` cannot render pictures; use cpu or wgpu");
        }
        Ok(Self { scene, name: chosen.info.to_string(), instances: Vec::new(), gpu })
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
        match &mut self.gpu {
            Some(gpu) => gpu.paint(now.len(), &self.instances, picture),
            None => {
                paint(self.scene.setting(), now.len(), &self.instances, picture);
                Ok(())
            }
        }
    }
}
