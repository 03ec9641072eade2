//! Sprites as renderers take them: 32 bytes each, in the order of their fields.

use crate::env::look::{Look, Sprite};
use bytemuck::{Pod, Zeroable};

// SAFETY: all bits 0 are a sprite.
unsafe impl Zeroable for Sprite {}
// SAFETY: any bits are numbers, and eight fields of four bytes leave no gap.
unsafe impl Pod for Sprite {}

/// 32-bit words per [`Sprite`].
pub(super) const SPRITE_WORDS: usize = size_of::<Sprite>() / 4;

/// Replaces the contents of `sprites` with the sprites of some games, `[games * num_sprites]`, at
/// `progress` (0 to 1) from `before` to `now`.
///
/// # Panics
/// If `before` and `now` differ in length.
pub fn compute_sprites<G: Look>(
    game: G,
    before: &[G::State],
    now: &[G::State],
    progress: f32,
    sprites: &mut Vec<Sprite>,
) {
    fill_sprites(before, now, game.num_sprites(), sprites, |before, now, i| {
        G::sprite(before, now, progress, i, game)
    });
}

/// Replaces the contents of `sprites` with `count` sprites of each game, from its states before and now.
pub(super) fn fill_sprites<S>(
    before: &[S],
    now: &[S],
    count: usize,
    sprites: &mut Vec<Sprite>,
    sprite: impl Fn(&S, &S, usize) -> Sprite,
) {
    assert_eq!(before.len(), now.len(), "as many games before as now");
    sprites.clear();
    for (before, now) in before.iter().zip(now) {
        sprites.extend((0..count).map(|i| sprite(before, now, i)));
    }
}
