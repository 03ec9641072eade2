//! Pictures of games, composed of atlas sprites by the CPU or a GPU: a single game or a wall of
//! them.
//!
//! Games define their look ([`crate::env::look`]). [`compute_sprites()`] computes sprites on the CPU and
//! `compute_sprites_on_device` on the device that plays; [`paint()`] draws them on the CPU and `Renderer` on
//! a GPU. All produce the same picture up to rounding. Games without a look are drawn as their
//! features ([`compute_bars()`]).

mod atlas;
mod bars;
#[cfg(feature = "wgpu")]
mod device_sprites;
#[cfg(all(feature = "wgpu", not(target_family = "wasm")))]
mod offscreen;
mod paint;
#[cfg(feature = "viewer")]
mod renderer;
mod scene;
mod sprites;
mod wall;

pub use crate::env::look::{SceneSize, Sprite};
pub use bars::{Bars, compute_bars};
#[cfg(feature = "wgpu")]
pub use device_sprites::{DeviceSprites, compute_sprites_on_device};
#[cfg(all(feature = "wgpu", not(target_family = "wasm")))]
pub use offscreen::{OffscreenError, OffscreenTarget};
pub use paint::{Picture, paint};
#[cfg(feature = "viewer")]
pub use renderer::Renderer;
pub use scene::Scene;
pub use sprites::compute_sprites;
pub use wall::{BoardOrigin, Wall};

/// Colours of the atlas as red, green, blue; fewer than 256. Pictures of fully opaque sprites
/// contain no others.
pub fn colours() -> Vec<[u8; 3]> {
    atlas::Atlas::get().colours()
}
