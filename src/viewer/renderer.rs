//! GPU renderer through wgpu, equivalent to [`paint()`](super::paint()).

use super::atlas::{Atlas, TILE_SIZE};
use super::sprites::SPRITE_WORDS;
use super::{SceneSize, Sprite, Wall};
use crate::env::look::SceneInfo;

const SHADER: &str = include_str!("../../shaders/sprites.wgsl");

/// 32-bit words of the shader's `Layout`.
const LAYOUT_WORDS: usize = 16;

/// A renderer for one game with fixed parameters on one device.
///
/// Fits WebGPU's default limits: one uniform, two storage buffers readable by the vertex stage, one
/// texture.
#[derive(Debug)]
pub struct Renderer {
    device: wgpu::Device,
    queue: wgpu::Queue,
    scene_size: SceneSize,
    num_sprites: usize,
    backgrounds: wgpu::RenderPipeline,
    sprites: wgpu::RenderPipeline,
    bind_group_layout: wgpu::BindGroupLayout,
    /// The wall of games, as the shader's `Layout`.
    wall: wgpu::Buffer,
    atlas: wgpu::TextureView,
    background: wgpu::Buffer,
    /// Storage for the sprites of [`Renderer::draw`].
    sprite_buffer: wgpu::Buffer,
}

impl Renderer {
    /// Creates a renderer for targets of the given format.
    pub fn new(
        device: &wgpu::Device,
        queue: &wgpu::Queue,
        format: wgpu::TextureFormat,
        game: &dyn SceneInfo,
    ) -> Self {
        let scene_size = game.size();
        let SceneSize { columns, rows } = scene_size;
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (column, row)));
        let tiles = cells.flat_map(|(column, row)| game.background(column, row).to_le_bytes());
        let tiles: Vec<u8> = tiles.collect();
        let storage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let background = create_buffer(device, "background", storage, tiles.len());
        queue.write_buffer(&background, 0, &tiles);
        let uniform = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let bind_group_layout = create_bind_group_layout(device);
        let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("sprites"),
            source: wgpu::ShaderSource::Wgsl(SHADER.into()),
        });
        let pipeline = |vertex, fragment| {
            create_pipeline(device, &bind_group_layout, &module, format, vertex, fragment)
        };
        Self {
            scene_size,
            num_sprites: game.num_sprites(),
            backgrounds: pipeline("whole_picture", "paint_background"),
            sprites: pipeline("sprite", "paint_sprite"),
            wall: create_buffer(device, "wall", uniform, LAYOUT_WORDS * 4),
            atlas: upload_atlas(device, queue, format),
            background,
            sprite_buffer: create_buffer(device, "sprites", storage, 4 * SPRITE_WORDS),
            bind_group_layout,
            device: device.clone(),
            queue: queue.clone(),
        }
    }

    /// Draws `count` games as a [`Wall`] on a target of `width` x `height` pixels, replacing the
    /// whole picture; equivalent to [`paint()`](super::paint()). Colours have premultiplied alpha.
    ///
    /// # Panics
    /// If the number of sprites does not match `count`.
    pub fn draw(
        &mut self,
        target: &wgpu::TextureView,
        width: u32,
        height: u32,
        count: usize,
        sprites: &[Sprite],
    ) {
        let expected = count * self.num_sprites;
        assert_eq!(sprites.len(), expected, "sprites: [count * num_sprites]");
        let bytes: &[u8] = bytemuck::cast_slice(sprites);
        if (self.sprite_buffer.size() as usize) < bytes.len() {
            let usage = self.sprite_buffer.usage();
            self.sprite_buffer = create_buffer(&self.device, "sprites", usage, bytes.len());
        }
        self.queue.write_buffer(&self.sprite_buffer, 0, bytes);
        self.draw_buffer(
            target,
            width,
            height,
            count,
            self.sprite_buffer.as_entire_buffer_binding(),
        );
    }

    /// Draws sprites written by a kernel, read directly from device memory: the first `count *
    /// num_sprites` of a storage buffer of this renderer's device.
    ///
    /// # Panics
    /// If the buffer is smaller.
    pub fn draw_buffer(
        &self,
        target: &wgpu::TextureView,
        width: u32,
        height: u32,
        count: usize,
        sprites: wgpu::BufferBinding<'_>,
    ) {
        let total = count * self.num_sprites;
        let size = sprites.size.map_or(sprites.buffer.size() - sprites.offset, |n| n.get());
        assert!(size as usize >= total * 4 * SPRITE_WORDS, "sprites: [count * num_sprites]");
        let wall = Wall::fit(self.scene_size, count, width, height);
        self.queue.write_buffer(&self.wall, 0, &self.encode_wall(&wall, width, height));
        let group = self.bind(sprites);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = begin_pass(&mut encoder, target);
        if count > 0 && wall.board_width > 0 && wall.board_height > 0 {
            pass.set_bind_group(0, &group, &[]);
            pass.set_pipeline(&self.backgrounds);
            pass.draw(0..3, 0..1);
            pass.set_pipeline(&self.sprites);
            pass.draw(0..6, 0..total as u32);
        }
        drop(pass);
        self.queue.submit([encoder.finish()]);
    }

    /// Binds what the shaders read, in the order of [`create_bind_group_layout`].
    fn bind(&self, sprites: wgpu::BufferBinding<'_>) -> wgpu::BindGroup {
        let entry = |binding, resource| wgpu::BindGroupEntry { binding, resource };
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("sprites"),
            layout: &self.bind_group_layout,
            entries: &[
                entry(0, self.wall.as_entire_binding()),
                entry(1, wgpu::BindingResource::TextureView(&self.atlas)),
                entry(2, self.background.as_entire_binding()),
                entry(3, wgpu::BindingResource::Buffer(sprites)),
            ],
        })
    }

    /// Encodes the wall as the shader's `Layout`.
    fn encode_wall(&self, wall: &Wall, width: u32, height: u32) -> Vec<u8> {
        let words: [u32; LAYOUT_WORDS] = [
            (width as f32).to_bits(),
            (height as f32).to_bits(),
            self.scene_size.columns,
            self.scene_size.rows,
            wall.board_width,
            wall.board_height,
            wall.left,
            wall.top,
            wall.gap,
            wall.columns,
            wall.count,
            self.num_sprites as u32,
            wall.cell_size.to_bits(),
            0,
            0,
            0,
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Begins a pass that replaces the whole picture.
fn begin_pass<'a>(
    encoder: &'a mut wgpu::CommandEncoder,
    target: &wgpu::TextureView,
) -> wgpu::RenderPass<'a> {
    let ops = wgpu::Operations {
        load: wgpu::LoadOp::Clear(wgpu::Color::TRANSPARENT),
        store: wgpu::StoreOp::Store,
    };
    let (view, depth_slice, resolve_target) = (target, None, None);
    let picture = wgpu::RenderPassColorAttachment { view, depth_slice, resolve_target, ops };
    encoder.begin_render_pass(&wgpu::RenderPassDescriptor {
        label: Some("sprites"),
        color_attachments: &[Some(picture)],
        ..Default::default()
    })
}

fn create_buffer(
    device: &wgpu::Device,
    label: &str,
    usage: wgpu::BufferUsages,
    bytes: usize,
) -> wgpu::Buffer {
    let size = bytes as u64;
    let label = Some(label);
    device.create_buffer(&wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false })
}

/// Creates the layout of what the shaders read: the wall's layout, the atlas, the background and the sprites.
fn create_bind_group_layout(device: &wgpu::Device) -> wgpu::BindGroupLayout {
    let both = wgpu::ShaderStages::VERTEX_FRAGMENT;
    let entry = |binding, visibility, ty| wgpu::BindGroupLayoutEntry {
        binding,
        visibility,
        ty,
        count: None,
    };
    let buffer =
        |ty| wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None };
    let words = buffer(wgpu::BufferBindingType::Storage { read_only: true });
    let atlas = wgpu::BindingType::Texture {
        sample_type: wgpu::TextureSampleType::Float { filterable: false },
        view_dimension: wgpu::TextureViewDimension::D2,
        multisampled: false,
    };
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: Some("sprites"),
        entries: &[
            entry(0, both, buffer(wgpu::BufferBindingType::Uniform)),
            entry(1, wgpu::ShaderStages::FRAGMENT, atlas),
            entry(2, wgpu::ShaderStages::FRAGMENT, words),
            entry(3, wgpu::ShaderStages::VERTEX, words),
        ],
    })
}

/// Creates the pipeline of a vertex and a fragment shader, whose colours are blended over the picture.
fn create_pipeline(
    device: &wgpu::Device,
    bind_group_layout: &wgpu::BindGroupLayout,
    module: &wgpu::ShaderModule,
    format: wgpu::TextureFormat,
    vertex: &str,
    fragment: &str,
) -> wgpu::RenderPipeline {
    let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some("sprites"),
        bind_group_layouts: &[Some(bind_group_layout)],
        ..Default::default()
    });
    device.create_render_pipeline(&wgpu::RenderPipelineDescriptor {
        label: Some(fragment),
        layout: Some(&layout),
        vertex: wgpu::VertexState {
            module,
            entry_point: Some(vertex),
            compilation_options: Default::default(),
            buffers: &[],
        },
        primitive: Default::default(),
        depth_stencil: None,
        multisample: Default::default(),
        fragment: Some(wgpu::FragmentState {
            module,
            entry_point: Some(fragment),
            compilation_options: Default::default(),
            targets: &[Some(wgpu::ColorTargetState {
                format,
                blend: Some(wgpu::BlendState::PREMULTIPLIED_ALPHA_BLENDING),
                write_mask: wgpu::ColorWrites::ALL,
            })],
        }),
        multiview_mask: None,
        cache: None,
    })
}

/// Uploads the atlas as a texture in the colour space of the target, so that colours are unchanged.
fn upload_atlas(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    format: wgpu::TextureFormat,
) -> wgpu::TextureView {
    let atlas = Atlas::get();
    let size = wgpu::Extent3d {
        width: TILE_SIZE as u32,
        height: (atlas.len() * TILE_SIZE) as u32,
        depth_or_array_layers: 1,
    };
    let texture = device.create_texture(&wgpu::TextureDescriptor {
        label: Some("atlas"),
        size,
        mip_level_count: 1,
        sample_count: 1,
        dimension: wgpu::TextureDimension::D2,
        format: if format.is_srgb() {
            wgpu::TextureFormat::Rgba8UnormSrgb
        } else {
            wgpu::TextureFormat::Rgba8Unorm
        },
        usage: wgpu::TextureUsages::TEXTURE_BINDING | wgpu::TextureUsages::COPY_DST,
        view_formats: &[],
    });
    let rows = wgpu::TexelCopyBufferLayout {
        offset: 0,
        bytes_per_row: Some(size.width * 4),
        rows_per_image: None,
    };
    queue.write_texture(texture.as_image_copy(), atlas.bytes(), rows, size);
    texture.create_view(&Default::default())
}
