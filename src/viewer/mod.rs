//! Pictures of games: sprites from an atlas, drawn by the CPU or a GPU, one game large or a wall of them.
//!
//! A game says how it looks ([`crate::env::look`]). [`instances()`] computes its sprites on the CPU, and
//! `device_instances` on the device that plays; [`paint()`] draws them on the CPU, and `Renderer` on a GPU.
//! All give the same picture, up to rounding. What has no look is drawn as its features ([`bars()`]).

mod atlas;
mod bars;
#[cfg(feature = "wgpu")]
mod device;
mod instance;
#[cfg(all(feature = "wgpu", not(target_family = "wasm")))]
mod offscreen;
mod paint;
#[cfg(feature = "viewer")]
mod renderer;
mod scene;
mod wall;

pub use bars::{Bars, bars};
#[cfg(feature = "wgpu")]
pub use device::{DeviceInstances, device_instances};
pub use instance::{Instance, instances};
#[cfg(all(feature = "wgpu", not(target_family = "wasm")))]
pub use offscreen::{Offscreen, OffscreenError};
pub use paint::{Picture, paint};
#[cfg(feature = "viewer")]
pub use renderer::Renderer;
pub use scene::Scene;
pub use wall::{Cells, Plate, Wall};

/// All colours of all games, as red, green and blue, less than 256: pictures without sprites of partial
/// opacity have no others.
pub fn colours() -> Vec<[u8; 3]> {
    atlas::Atlas::get().colours()
}
