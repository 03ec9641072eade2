//! A wall of games that a GPU plays and draws.

use burn::tensor::{Device, Int, Tensor};
use grove::device::graphics_setup;
use grove::env::look::Look;
use grove::model::FlatMlp;
use grove::rollout::DeviceGames;
use grove::viewer::{Renderer, compute_sprites_on_device};
use wasm_bindgen::prelude::*;
use web_sys::OffscreenCanvas;

/// A wall of games, without their type.
pub trait Wall {
    /// Plays a step of every game by the policy. Does not wait for the GPU.
    fn step(&mut self, policy: &FlatMlp);
    /// Draws the games after `progress`, 0 to 1, of the motion of their last step. Does not wait for the GPU.
    fn draw(&mut self, progress: f32);
}

/// Opens a wall: the game, the number of games, a seed, the device, and the canvas. An error if the device is no
/// GPU, or cannot draw on the canvas.
pub type Open<G> = fn(G, usize, u64, &Device, OffscreenCanvas) -> Result<Box<dyn Wall>, JsError>;

/// Opens the wall of a game that has a look.
pub fn open<G: Look>(
    game: G,
    count: usize,
    seed: u64,
    device: &Device,
    canvas: OffscreenCanvas,
) -> Result<Box<dyn Wall>, JsError> {
    let setup = graphics_setup(device)
        .ok_or_else(|| JsError::new("a wall is played and drawn on a GPU"))?;
    let (width, height) = (canvas.width().max(1), canvas.height().max(1));
    let surface = setup.instance.create_surface(wgpu::SurfaceTarget::OffscreenCanvas(canvas))?;
    let mut configuration = surface
        .get_default_config(&setup.adapter, width, height)
        .ok_or_else(|| JsError::new("this canvas cannot be drawn on by this GPU"))?;
    configuration.alpha_mode = wgpu::CompositeAlphaMode::PreMultiplied;
    surface.configure(&setup.device, &configuration);
    let renderer = Renderer::new(&setup.device, &setup.queue, configuration.format, &game);
    let games = DeviceGames::new(game, count, seed, device);
    let queue = setup.queue;
    let seats = None;
    Ok(Box::new(Looks { game, count, games, seats, renderer, surface, configuration, queue }))
}

/// Games, and the canvas of their picture.
struct Looks<G: Look> {
    game: G,
    count: usize,
    games: DeviceGames<G>,
    /// The states before and after the last step; `None` before the first.
    seats: Option<[Tensor<2, Int>; 2]>,
    renderer: Renderer,
    surface: wgpu::Surface<'static>,
    configuration: wgpu::SurfaceConfiguration,
    queue: wgpu::Queue,
}

impl<G: Look> Wall for Looks<G> {
    fn step(&mut self, policy: &FlatMlp) {
        self.seats = Some(self.games.step(policy));
    }

    fn draw(&mut self, progress: f32) {
        use wgpu::CurrentSurfaceTexture::{Suboptimal, Success};
        let Some([before, now]) = &self.seats else {
            return;
        };
        let sprites = compute_sprites_on_device(self.game, before, now, progress);
        let (Success(target) | Suboptimal(target)) = self.surface.get_current_texture() else {
            // No frame is available now; the next one will be drawn.
            return;
        };
        let view = target.texture.create_view(&Default::default());
        let (width, height) = (self.configuration.width, self.configuration.height);
        self.renderer.draw_buffer(&view, width, height, self.count, sprites.binding());
        self.queue.present(target);
    }
}
