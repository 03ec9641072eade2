//! Sprites as plain data in the layout read by GPUs.

use crate::env::look::{Look, Sprite};

/// A sprite in the 32-byte layout read by GPUs. The fields match [`Sprite`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
#[allow(missing_docs)]
pub struct Instance {
    pub x: f32,
    pub y: f32,
    pub width: f32,
    pub height: f32,
    pub turn: f32,
    pub tile: u32,
    pub repeat: f32,
    pub shade: f32,
}

/// 32-bit words per [`Instance`].
pub(super) const WORDS: usize = size_of::<Instance>() / 4;

impl From<Sprite> for Instance {
    fn from(sprite: Sprite) -> Self {
        let Sprite { x, y, width, height, turn, tile, repeat, shade } = sprite;
        Self { x, y, width, height, turn, tile, repeat, shade }
    }
}

impl Instance {
    /// Bytes in field order, little-endian.
    pub fn bytes(&self) -> [u8; 4 * WORDS] {
        let Self { x, y, width, height, turn, tile, repeat, shade } = *self;
        let [x, y, width, height, turn] = [x, y, width, height, turn].map(f32::to_bits);
        let words = [x, y, width, height, turn, tile, repeat.to_bits(), shade.to_bits()];
        let mut bytes = [0; 4 * WORDS];
        for (bytes, word) in bytes.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Replaces the contents of `into` with the sprites of some games, `[games * num_sprites]`, at
/// progress `part` (0 to 1) from `before` to `now`.
///
/// # Panics
/// If `before` and `now` differ in length.
pub fn instances<G: Look>(
    game: G,
    before: &[G::State],
    now: &[G::State],
    part: f32,
    into: &mut Vec<Instance>,
) {
    assert_eq!(before.len(), now.len(), "as many games before as now");
    into.clear();
    for (before, now) in before.iter().zip(now) {
        let sprites = 0..game.num_sprites();
        into.extend(sprites.map(|i| Instance::from(G::sprite(before, now, part, i, game))));
    }
}
