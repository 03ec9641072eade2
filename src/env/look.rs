//! How a game looks: its sprites between two steps, written once for CPU and kernels, beside its rules.
//!
//! A scene is a grid of cells, x to the right and y down, with a still background of one tile a cell
//! and a fixed number of sprites over it, drawn in their order. A sprite is a function of the states
//! before and after a step and of how far the motion between them has come.

use super::Rules;
use burn::cubecl;
use burn::cubecl::prelude::*;

/// One picture of the atlas in its place.
#[derive(CubeType, Clone, Copy, Debug, PartialEq)]
pub struct Sprite {
    /// Centre, in cells from the scene's left edge.
    pub x: f32,
    /// Centre, in cells from the scene's upper edge.
    pub y: f32,
    /// Cells across.
    pub width: f32,
    /// Cells down.
    pub height: f32,
    /// Radians, clockwise about the centre.
    pub turn: f32,
    /// The picture, one of [`tile`].
    pub tile: u32,
    /// How often the picture is repeated across the width.
    pub repeat: f32,
    /// Opacity, 0 to 1; 0 draws nothing.
    pub shade: f32,
}

#[cube]
impl Sprite {
    /// A picture that is drawn once, upright and opaque.
    pub fn upright(x: f32, y: f32, width: f32, height: f32, tile: u32) -> Sprite {
        Sprite {
            x,
            y,
            width,
            height,
            turn: 0.0f32.runtime(),
            tile,
            repeat: 1.0f32.runtime(),
            shade: 1.0f32.runtime(),
        }
    }
}

/// The number between `a` and `b` where `part` of the way is gone: exactly `a` at 0, `b` at 1.
#[cube]
#[inline(always)]
pub fn between(a: f32, b: f32, part: f32) -> f32 {
    a * (1.0f32 - part) + b * part
}

/// The scene of a game: what of its look the host needs to know.
pub trait Setting {
    /// The game's name for people.
    fn title(&self) -> &'static str;

    /// The rules and what scores, in a sentence or two for people; empty where nothing is said.
    fn rules(&self) -> &'static str {
        ""
    }

    /// What a person does who does nothing; `None` where something must be done.
    fn idle(&self) -> Option<u32> {
        None
    }

    /// Cells across.
    fn columns(&self) -> u32;

    /// Cells down.
    fn rows(&self) -> u32;

    /// The background of a cell, one of [`tile`].
    fn background(&self, column: u32, row: u32) -> u32;

    /// Sprites over it, seen or not.
    fn num_sprites(&self) -> usize;

    /// The speed at which the game is good to look at.
    fn steps_per_second(&self) -> f32;
}

impl<S: Setting + ?Sized> Setting for &S {
    fn title(&self) -> &'static str {
        (**self).title()
    }

    fn rules(&self) -> &'static str {
        (**self).rules()
    }

    fn idle(&self) -> Option<u32> {
        (**self).idle()
    }

    fn columns(&self) -> u32 {
        (**self).columns()
    }

    fn rows(&self) -> u32 {
        (**self).rows()
    }

    fn background(&self, column: u32, row: u32) -> u32 {
        (**self).background(column, row)
    }

    fn num_sprites(&self) -> usize {
        (**self).num_sprites()
    }

    fn steps_per_second(&self) -> f32 {
        (**self).steps_per_second()
    }
}

/// The sprites of a game, in functions that run natively and in kernels, as [`Rules`] do.
#[cube]
pub trait Look: Rules + Setting {
    /// Sprite `i`, for `i < num_sprites`, where `part` (0 to 1) of the motion from `before` to `now`
    /// has been made: 0 shows `before`, 1 shows `now`. `now` is one step after `before`, or equal
    /// to it.
    fn sprite(
        before: &Self::State,
        now: &Self::State,
        part: f32,
        #[comptime] i: usize,
        #[comptime] game: Self,
    ) -> Sprite;
}

/// Names the pictures, and numbers them in their order.
macro_rules! tiles {
    ($($constant:ident $name:literal,)*) => {
        /// The pictures of the atlas, by number.
        pub mod tile {
            #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
            enum Number { $($constant,)* }
            $(
                #[doc = concat!("The picture `", $name, "`.")]
                pub const $constant: u32 = Number::$constant as u32;
            )*
            /// The pictures' names in `assets/sprites.txt`.
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

/// How many kinds of fruit there are, from [`tile::APPLE`] on.
pub const FRUIT_KINDS: u32 = tile::BANANA - tile::APPLE + 1;

/// The sky in row `row` of `rows`: eight tones from above to below, a fade between two, and clouds,
/// which are two cells wide, in two of the fades.
pub(super) fn sky(column: u32, row: u32, rows: u32) -> u32 {
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

/// One of `count` variants for a cell, the same each time.
pub(super) fn variant(column: u32, row: u32, count: u32) -> u32 {
    crate::rng::draw(column, row) % count
}
