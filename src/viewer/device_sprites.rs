//! Sprites computed on the device that plays the games and rendered from its memory.

use super::sprites::SPRITE_WORDS;
use crate::device::buffers::{argument, cube_ints, uninit};
use crate::env::bits::to_bits;
use crate::env::look::{Look, Sprite};
use crate::rollout::{env_words, load_env_state, load_episode};
use burn::backend::DType;
use burn::cubecl;
use burn::cubecl::calculate_cube_count_elemwise;
use burn::cubecl::prelude::*;
use burn::cubecl::server::BufferBinding;
use burn::cubecl::wgpu::{AutoCompiler, WgpuServer};
use burn::tensor::{Int, Tensor};

/// Sprites in device memory: `[games * num_sprites]` of [`Sprite`](super::Sprite).
#[derive(Debug)]
pub struct DeviceSprites {
    buffer: wgpu::Buffer,
    offset: u64,
    size: u64,
    /// Keeps the allocation alive.
    _memory: BufferBinding,
}

impl DeviceSprites {
    /// Returns the buffer for [`Renderer::draw_buffer`](super::Renderer::draw_buffer) of a renderer
    /// on the same device.
    pub fn binding(&self) -> wgpu::BufferBinding<'_> {
        let size = wgpu::BufferSize::new(self.size);
        wgpu::BufferBinding { buffer: &self.buffer, offset: self.offset, size }
    }
}

#[cube]
fn store(words: &mut [u32], sprite: &Sprite, at: usize) {
    let first = at * SPRITE_WORDS;
    words[first] = to_bits(sprite.x);
    words[first + 1] = to_bits(sprite.y);
    words[first + 2] = to_bits(sprite.width);
    words[first + 3] = to_bits(sprite.height);
    words[first + 4] = to_bits(sprite.rotation);
    words[first + 5] = sprite.tile;
    words[first + 6] = to_bits(sprite.repeat);
    words[first + 7] = to_bits(sprite.opacity);
}

/// Computes the sprites of one game per unit.
#[cube(launch_unchecked)]
fn sprites_kernel<G: Look>(
    before: &[u32],
    now: &[u32],
    words: &mut [u32],
    progress: f32,
    count: usize,
    #[comptime] game: G,
) {
    let i = ABSOLUTE_POS;
    if i < count {
        let num_sprites = comptime!(game.num_sprites());
        // A step leads to a later time, or to the start of an episode. Its level says nothing: that of a game which
        // continues from a branch point is new.
        let (episode_before, episode_now) =
            (load_episode(before, i, count), load_episode(now, i, count));
        let follows = episode_before.time < episode_now.time;
        let before = load_env_state::<G>(before, i, count, game);
        let now = load_env_state::<G>(now, i, count, game);
        #[unroll]
        for k in 0..num_sprites {
            if follows {
                store(words, &G::sprite(&before, &now, progress, k, game), i * num_sprites + k);
            } else {
                store(words, &G::sprite(&now, &now, progress, k, game), i * num_sprites + k);
            }
        }
    }
}

/// Computes the sprites of some games on a wgpu device; equivalent to
/// [`compute_sprites()`](super::compute_sprites()) on the CPU. `before` and `now` are the states around the
/// last step, `[env_words, games]` ([`env_words`]). A game that started a new episode in between is
/// shown as it is now.
///
/// # Panics
/// If the shapes differ, or the tensors are not on a wgpu device.
pub fn compute_sprites_on_device<G: Look>(
    game: G,
    before: &Tensor<2, Int>,
    now: &Tensor<2, Int>,
    progress: f32,
) -> DeviceSprites {
    assert_eq!(now.dims()[0], env_words(game), "now: [env_words, games]");
    assert_eq!(before.dims(), now.dims(), "before: [env_words, games]");
    let count = now.dims()[1];
    let (before, now) = (cube_ints(before.clone()), cube_ints(now.clone()));
    let words = uninit(&now, &[count * game.num_sprites(), SPRITE_WORDS], DType::I32);
    let client = &now.client;
    let dim = CubeDim::new_1d(32);
    // SAFETY: the kernel only accesses games below `count`, for which the buffers are sized.
    unsafe {
        sprites_kernel::launch_unchecked::<G>(
            client,
            calculate_cube_count_elemwise(client, count, dim),
            dim,
            argument(&before),
            argument(&now),
            argument(&words),
            progress,
            count,
            game,
        );
    }
    let handle = words.handle.clone();
    let memory = handle.clone().binding();
    let managed = client
        .get_resource::<WgpuServer<AutoCompiler>>(handle)
        .unwrap_or_else(|error| panic!("the sprites are not on a wgpu device: {error:?}"));
    // Submits the kernel, so that later work on the queue, such as rendering, runs after it.
    client.flush().unwrap_or_else(|error| panic!("the device failed: {error}"));
    let resource = managed.resource();
    DeviceSprites {
        buffer: resource.buffer.clone(),
        offset: resource.offset,
        size: resource.size,
        _memory: memory,
    }
}
