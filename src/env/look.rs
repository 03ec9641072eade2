//! Sprites of a game, interpolated between two steps; written once for CPU and kernels.
//!
//! A scene is a grid of cells, x to the right and y down. It has a static background of one tile
//! per cell and a fixed number of sprites on top, drawn in order. A sprite is a function of the
//! states before and after a step and of the progress of the animation between them.

use super::Rules;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// A positioned tile of the atlas.
#[derive(CubeType, Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Sprite {
    /// Centre, in cells from the left edge of the scene.
    pub x: f32,
    /// Centre, in cells from the upper edge of the scene.
    pub y: f32,
    /// Width in cells.
    pub width: f32,
    /// Height in cells.
    pub height: f32,
    /// Rotation about the centre in radians, clockwise.
    pub rotation: f32,
    /// Tile, one of [`tile`].
    pub tile: u32,
    /// Number of times the tile is repeated across the width.
    pub repeat: f32,
    /// Opacity, 0 to 1; sprites of opacity 0 are skipped.
    pub opacity: f32,
}

#[cube]
impl Sprite {
    /// Returns an opaque sprite that shows its tile once, without rotation.
    pub fn upright(x: f32, y: f32, width: f32, height: f32, tile: u32) -> Sprite {
        Sprite {
            x,
            y,
            width,
            height,
            rotation: 0.0f32.runtime(),
            tile,
            repeat: 1.0f32.runtime(),
            opacity: 1.0f32.runtime(),
        }
    }
}

/// Linear interpolation: exactly `a` at `t = 0` and `b` at `t = 1`.
#[cube]
#[inline(always)]
pub fn lerp(a: f32, b: f32, t: f32) -> f32 {
    a * (1.0f32 - t) + b * t
}

/// Size of a scene in cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SceneSize {
    /// Number of columns.
    pub columns: u32,
    /// Number of rows.
    pub rows: u32,
}

/// Host-side description of a game's scene: its size and background.
pub trait SceneInfo {
    /// Size of the scene.
    fn size(&self) -> SceneSize;

    /// Background tile of a cell, one of [`tile`].
    fn background(&self, column: u32, row: u32) -> u32;

    /// Number of sprites, including those of opacity 0.
    fn num_sprites(&self) -> usize;

    /// Comfortable playback speed in steps per second.
    fn steps_per_second(&self) -> f32;
}

/// The look of a game: its texts, and its sprites in functions that run natively and in kernels, like [`Rules`].
#[cube]
pub trait Look: Rules + SceneInfo {
    /// Human-readable name of the game.
    const TITLE: &'static str;

    /// Rules and scoring in one or two sentences for a human player.
    const RULES_TEXT: &'static str;

    /// Time that training takes in a browser with the defaults, in words such as "10 seconds"; `None`
    /// if unknown.
    const TRAINING_TIME: Option<&'static str> = None;

    /// The action of a human player who presses no key; `None` if the game waits for input.
    const IDLE_ACTION: Option<u32> = None;

    /// Returns sprite `i`, for `i < num_sprites`, at `progress` (0 to 1) of the animation from
    /// `before` to `now`. `now` is one step after `before`, or equal to it.
    fn sprite(
        before: &Self::State,
        now: &Self::State,
        progress: f32,
        #[comptime] i: usize,
        #[comptime] game: Self,
    ) -> Sprite;
}

/// Declares the tiles of the atlas as consecutive constants.
macro_rules! tiles {
    ($($constant:ident $name:literal,)*) => {
        /// Tiles of the atlas by index.
        pub mod tile {
            #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
            enum Index { $($constant,)* }
            $(
                #[doc = concat!("The picture `", $name, "`.")]
                pub const $constant: u32 = Index::$constant as u32;
            )*
            /// Names of the tiles in `assets/sprites.txt`.
            pub const NAMES: &[&str] = &[$($name,)*];
        }
    };
}

tiles! {
    SKY_0 "sky 0", SKY_1 "sky 1", SKY_2 "sky 2", SKY_3 "sky 3",
    SKY_4 "sky 4", SKY_5 "sky 5", SKY_6 "sky 6", SKY_7 "sky 7",
    FADE_0 "fade 0", FADE_1 "fade 1", FADE_2 "fade 2", FADE_3 "fade 3",
    FADE_4 "fade 4", FADE_5 "fade 5", FADE_6 "fade 6",
    CLOUD_LEFT "cloud left", CLOUD_RIGHT "cloud right",
    SMALL_CLOUD_LEFT "small cloud left", SMALL_CLOUD_RIGHT "small cloud right",
    HILL_A "hill a", HILL_B "hill b",
    MEADOW_A "meadow a", MEADOW_B "meadow b", MEADOW_C "meadow c",
    CANOPY_A "canopy a", CANOPY_B "canopy b", CANOPY_C "canopy c", CANOPY_END "canopy end",
    TRUNK_A "trunk a", TRUNK_B "trunk b", TRUNK_FOOT "trunk foot",
    APPLE "apple", PEAR "pear", CHERRY "cherry", ORANGE "orange", PLUM "plum", BANANA "banana",
    PUFF "puff",
    BASKET_LEFT "basket left", BASKET_MIDDLE "basket middle", BASKET_RIGHT "basket right",
    BASKET_ALONE "basket alone",
    INSIDE_LEFT "inside left", INSIDE_MIDDLE "inside middle", INSIDE_RIGHT "inside right",
    INSIDE_ALONE "inside alone",
    BOARD_A "board a", BOARD_B "board b", BALL "ball", PADDLE "paddle",
    TRACK "track", TRACK_MIDDLE "track middle", TRACK_END "track end", GRAVEL "gravel",
    CART "cart", WHEEL "wheel", POLE "pole", HUB "hub",
    BRICK_RED "brick red", BRICK_ORANGE "brick orange", BRICK_YELLOW "brick yellow", TRAIL "trail",
    BAR_MORE "bar more", BAR_LESS "bar less",
}

/// Number of fruit tiles, starting at [`tile::APPLE`].
pub const NUM_FRUIT_KINDS: u32 = tile::BANANA - tile::APPLE + 1;

/// Sky tile for a cell in row `row` of `rows`: eight tones from top to bottom with a fade between
/// neighbours, and two-cell clouds in two of the fades.
pub(super) fn sky_tile(column: u32, row: u32, rows: u32) -> u32 {
    let tone = |row: u32| (row * 8 / rows).min(7);
    if tone(row + 1) == tone(row) || row + 1 >= rows {
        return tile::SKY_0 + tone(row);
    }
    match (tone(row), column % 17) {
        (1, 4) => tile::CLOUD_LEFT,
        (1, 5) => tile::CLOUD_RIGHT,
        (2, 13) => tile::SMALL_CLOUD_LEFT,
        (2, 14) => tile::SMALL_CLOUD_RIGHT,
        (tone, _) => tile::FADE_0 + tone,
    }
}

/// Picks one of `count` tile variants for a cell, deterministically.
pub(super) fn pick_tile_variant(column: u32, row: u32, count: u32) -> u32 {
    crate::rng::draw(column, row) % count
}
