//! Off-screen rendering: reads the picture drawn by a GPU back to the host.

use super::Picture;

/// A render target with a staging buffer for reading it back.
#[derive(Debug)]
pub struct OffscreenTarget {
    device: wgpu::Device,
    queue: wgpu::Queue,
    texture: wgpu::Texture,
    view: wgpu::TextureView,
    staging_buffer: wgpu::Buffer,
    /// Bytes per row in `staging_buffer`.
    stride: u32,
}

/// A failure to draw or read back a picture.
#[derive(Debug, thiserror::Error)]
pub enum OffscreenError {
    /// The size is not supported by the device.
    #[error("{width} x {height} pixels are asked for, but this device draws 1 to {limit} a side")]
    Size {
        /// Requested width in pixels.
        width: u32,
        /// Requested height in pixels.
        height: u32,
        /// Maximum of either.
        limit: u32,
    },
    /// The device failed.
    #[error("the device failed: {0}")]
    Failed(String),
}

impl OffscreenTarget {
    /// Pixel format.
    pub const FORMAT: wgpu::TextureFormat = wgpu::TextureFormat::Rgba8Unorm;

    /// Creates a target of `width` x `height` pixels.
    ///
    /// # Errors
    /// If the device does not support the size.
    pub fn new(
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        width: u32,
        height: u32,
    ) -> Result<Self, OffscreenError> {
        let limit = device.limits().max_texture_dimension_2d;
        if width == 0 || height == 0 || width.max(height) > limit {
            return Err(OffscreenError::Size { width, height, limit });
        }
        let texture = device.create_texture(&wgpu::TextureDescriptor {
            label: Some("offscreen"),
            size: wgpu::Extent3d { width, height, depth_or_array_layers: 1 },
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: Self::FORMAT,
            usage: wgpu::TextureUsages::RENDER_ATTACHMENT | wgpu::TextureUsages::COPY_SRC,
            view_formats: &[],
        });
        let stride = (width * 4).next_multiple_of(wgpu::COPY_BYTES_PER_ROW_ALIGNMENT);
        let staging_buffer = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("offscreen"),
            size: u64::from(stride) * u64::from(height),
            usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
            mapped_at_creation: false,
        });
        Ok(Self {
            device: device.clone(),
            queue: queue.clone(),
            view: texture.create_view(&Default::default()),
            texture,
            staging_buffer,
            stride,
        })
    }

    /// The view to render to.
    pub fn view(&self) -> &wgpu::TextureView {
        &self.view
    }

    /// Waits for rendering to finish and copies the picture to the host.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Picture, OffscreenError> {
        let (width, height) = (self.texture.width(), self.texture.height());
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let layout = wgpu::TexelCopyBufferLayout {
            offset: 0,
            bytes_per_row: Some(self.stride),
            rows_per_image: None,
        };
        let target = wgpu::TexelCopyBufferInfo { buffer: &self.staging_buffer, layout };
        encoder.copy_texture_to_buffer(self.texture.as_image_copy(), target, self.texture.size());
        self.queue.submit([encoder.finish()]);
        let (sender, receiver) = std::sync::mpsc::channel();
        self.staging_buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            // The receiver waits below, unless polling has failed.
            let _ = sender.send(result);
        });
        self.device.poll(wgpu::PollType::wait_indefinitely()).map_err(offscreen_error)?;
        receiver.recv().map_err(offscreen_error)?.map_err(offscreen_error)?;
        let mut picture = Picture::new(width, height);
        let bytes = self.staging_buffer.get_mapped_range(..).map_err(offscreen_error)?;
        let row_bytes = width as usize * 4;
        let rows = bytes.chunks_exact(self.stride as usize);
        for (to, from) in picture.pixels.chunks_exact_mut(row_bytes).zip(rows) {
            to.copy_from_slice(&from[..row_bytes]);
        }
        drop(bytes);
        self.staging_buffer.unmap();
        Ok(picture)
    }
}

fn offscreen_error(error: impl std::fmt::Display) -> OffscreenError {
    OffscreenError::Failed(error.to_string())
}
