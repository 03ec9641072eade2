//! The screen: a canvas with a picture of games, drawn by the GPU or by the CPU.

use crate::kind::Kind;
use crate::watch::Show;
use grove::viewer::{Picture, Renderer, Sprite, paint};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use wasm_bindgen::prelude::*;
use wasm_bindgen::{Clamped, JsCast};
use web_sys::{CanvasRenderingContext2d, HtmlCanvasElement, ImageData};

/// A canvas, drawn by the GPU or by the CPU.
#[wasm_bindgen]
pub struct Screen {
    canvas: Canvas,
    sprites: Vec<Sprite>,
}

/// A canvas and its renderer.
enum Canvas {
    Gpu(Box<Gpu>),
    Plain(Plain),
}

/// A canvas drawn by WebGPU.
struct Gpu {
    surface: wgpu::Surface<'static>,
    configuration: wgpu::SurfaceConfiguration,
    device: wgpu::Device,
    queue: wgpu::Queue,
    renderer: Option<(Rc<dyn Kind>, Renderer)>,
    lost: Arc<OnceLock<String>>,
}

/// A 2D canvas with pixels painted by the CPU.
struct Plain {
    canvas: HtmlCanvasElement,
    context: CanvasRenderingContext2d,
    picture: Picture,
}

impl Canvas {
    /// Takes a canvas for WebGPU.
    ///
    /// # Errors
    /// If the browser has no WebGPU or gives no device.
    async fn on_gpu(canvas: HtmlCanvasElement) -> Result<Self, JsError> {
        let (width, height) = (canvas.width().max(1), canvas.height().max(1));
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: wgpu::Backends::BROWSER_WEBGPU,
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let surface = instance.create_surface(wgpu::SurfaceTarget::Canvas(canvas))?;
        let options = wgpu::RequestAdapterOptions {
            compatible_surface: Some(&surface),
            ..Default::default()
        };
        // The message of wgpu names backends that a browser does not have.
        let adapter = instance.request_adapter(&options).await;
        let adapter = adapter.map_err(|_| JsError::new("the browser offers no WebGPU adapter"))?;
        let (device, queue) = adapter.request_device(&Default::default()).await?;
        let mut configuration = surface
            .get_default_config(&adapter, width, height)
            .ok_or_else(|| JsError::new("this canvas cannot be drawn on by this GPU"))?;
        configuration.alpha_mode = wgpu::CompositeAlphaMode::PreMultiplied;
        surface.configure(&device, &configuration);
        let lost = Arc::new(OnceLock::new());
        let message = lost.clone();
        device.set_device_lost_callback(move |_, reason| {
            let _ = message.set(reason);
        });
        Ok(Self::Gpu(Box::new(Gpu { surface, configuration, device, queue, renderer: None, lost })))
    }

    /// Takes a canvas for pictures painted by the CPU.
    ///
    /// # Errors
    /// If the browser has no 2D canvas, or this canvas has another context.
    fn plain(canvas: HtmlCanvasElement) -> Result<Self, JsError> {
        let none = || JsError::new("the browser gives no 2D canvas");
        let context = canvas.get_context("2d").map_err(|_| none())?.ok_or_else(none)?;
        let context = context.dyn_into().map_err(|_| none())?;
        let picture = Picture::new(canvas.width().max(1), canvas.height().max(1));
        Ok(Self::Plain(Plain { canvas, context, picture }))
    }
}

#[wasm_bindgen]
impl Screen {
    /// Draws on a canvas by WebGPU, or by the CPU.
    pub async fn open(canvas: HtmlCanvasElement, gpu: bool) -> Result<Screen, JsError> {
        let canvas = if gpu { Canvas::on_gpu(canvas).await? } else { Canvas::plain(canvas)? };
        Ok(Self { canvas, sprites: Vec::new() })
    }

    /// `WebGPU` or `2D canvas`.
    pub fn api(&self) -> String {
        let api = if matches!(self.canvas, Canvas::Gpu(_)) { "WebGPU" } else { "2D canvas" };
        api.to_string()
    }

    /// The reason if the GPU device was lost.
    pub fn lost(&self) -> Option<String> {
        match &self.canvas {
            Canvas::Gpu(gpu) => gpu.lost.get().cloned(),
            Canvas::Plain(_) => None,
        }
    }

    /// Sets the size of the picture in device pixels.
    pub fn resize(&mut self, width: u32, height: u32) {
        match &mut self.canvas {
            Canvas::Gpu(gpu) => {
                let most = gpu.device.limits().max_texture_dimension_2d;
                gpu.configuration.width = width.clamp(1, most);
                gpu.configuration.height = height.clamp(1, most);
                gpu.surface.configure(&gpu.device, &gpu.configuration);
            }
            Canvas::Plain(plain) => {
                let (width, height) = (width.max(1), height.max(1));
                plain.canvas.set_width(width);
                plain.canvas.set_height(height);
                plain.picture = Picture::new(width, height);
            }
        }
    }

    /// Draws the games after `progress`, 0 to 1, of the motion of their last step.
    pub fn draw(&mut self, show: &Show, progress: f32) -> Result<(), JsError> {
        let Self { canvas, sprites } = self;
        show.sprites(progress.clamp(0.0, 1.0), sprites);
        match canvas {
            Canvas::Gpu(gpu) => {
                gpu.draw(&show.kind, show.boards(), sprites);
                Ok(())
            }
            Canvas::Plain(Plain { context, picture, .. }) => {
                paint(show.kind.info(), show.boards(), sprites, picture);
                let Picture { width, height, pixels } = &*picture;
                let refused = |_| JsError::new("the canvas does not take the picture");
                let data =
                    ImageData::new_with_u8_clamped_array_and_sh(Clamped(pixels), *width, *height);
                context.put_image_data(&data.map_err(refused)?, 0.0, 0.0).map_err(refused)
            }
        }
    }
}

impl Gpu {
    fn draw(&mut self, kind: &Rc<dyn Kind>, count: usize, sprites: &[Sprite]) {
        use wgpu::CurrentSurfaceTexture::{Suboptimal, Success};
        let (Success(target) | Suboptimal(target)) = self.surface.get_current_texture() else {
            // No frame is available now; the next one will be drawn.
            return;
        };
        let view = target.texture.create_view(&Default::default());
        if self.renderer.as_ref().is_none_or(|(drawn, _)| !drawn.is(&**kind)) {
            let format = self.configuration.format;
            let renderer = Renderer::new(&self.device, &self.queue, format, kind.info());
            self.renderer = Some((kind.clone(), renderer));
        }
        if let Some((_, renderer)) = &mut self.renderer {
            let wgpu::SurfaceConfiguration { width, height, .. } = self.configuration;
            renderer.draw(&view, width, height, count, sprites);
        }
        self.queue.present(target);
    }
}
