//! CPU renderer: the reference for the shader, and the fallback without a GPU.

use super::atlas::{Atlas, Rgba, TILE_SIZE};
use super::{BoardOrigin, SceneSize, Sprite, Wall};
use crate::env::look::SceneInfo;

/// Offset added before positions are truncated, so that rounding errors do not decide cases on a
/// pixel border. Matches `shaders/sprites.wgsl`.
const ROUNDING_MARGIN: f32 = 0.01;

/// An RGBA picture, row by row from the upper left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// Bytes: `[height][width][4]`.
    pub pixels: Vec<u8>,
}

impl Picture {
    /// Creates a transparent picture.
    pub fn new(width: u32, height: u32) -> Self {
        Self { width, height, pixels: vec![0; width as usize * height as usize * 4] }
    }

    fn row(&mut self, x: u32, y: u32, len: u32) -> &mut [Rgba] {
        let first = (y as usize * self.width as usize + x as usize) * 4;
        self.pixels[first..first + len as usize * 4].as_chunks_mut().0
    }

    /// Copies `len` pixels from position `from` to position `to`, both `(x, y)`.
    fn copy_row(&mut self, from: (u32, u32), to: (u32, u32), len: u32) {
        let at = |(x, y): (u32, u32)| (y as usize * self.width as usize + x as usize) * 4;
        let first = at(from);
        self.pixels.copy_within(first..first + len as usize * 4, at(to));
    }
}

/// Paints `count` games as a [`Wall`], replacing the whole picture. `sprites` are those of all
/// games, from [`compute_sprites()`](super::compute_sprites()). Pixels outside of the games are transparent.
///
/// # Panics
/// If the number of sprites does not match `count`, or the picture does not have `width * height *
/// 4` bytes.
pub fn paint(game: &dyn SceneInfo, count: usize, sprites: &[Sprite], picture: &mut Picture) {
    assert_eq!(sprites.len(), count * game.num_sprites(), "sprites: [count * num_sprites]");
    let bytes = picture.width as usize * picture.height as usize * 4;
    assert_eq!(picture.pixels.len(), bytes, "pixels: [height][width][4]");
    picture.pixels.fill(0);
    let wall = Wall::fit(game.size(), count, picture.width, picture.height);
    if count == 0 || wall.board_width == 0 || wall.board_height == 0 {
        return;
    }
    paint_backgrounds(game, &wall, picture);
    for (i, sprites) in sprites.chunks_exact(game.num_sprites().max(1)).enumerate() {
        let board = wall.board_origin(i);
        for sprite in sprites.iter().filter(|sprite| sprite.opacity > 0.0) {
            paint_sprite(sprite, &wall, board, picture);
        }
    }
}

/// Paints the background of the first board and copies it to the others.
fn paint_backgrounds(info: &dyn SceneInfo, wall: &Wall, picture: &mut Picture) {
    let atlas = Atlas::get();
    // Maps each pixel of a line to its cell and to the pixel within that cell's tile.
    let locate_pixels = |pixels: u32, cells: u32| -> Vec<(u32, usize)> {
        let locate = |pixel: u32| {
            let at = (pixel as f32 + 0.5) / wall.cell_size;
            let cell = (at as u32).min(cells - 1);
            let inside = (at - cell as f32) * TILE_SIZE as f32 + ROUNDING_MARGIN;
            (cell, (inside as usize).min(TILE_SIZE - 1))
        };
        (0..pixels).map(locate).collect()
    };
    let SceneSize { columns, rows } = info.size();
    let column_locations = locate_pixels(wall.board_width, columns);
    let first = wall.board_origin(0);
    let mut tiles = Vec::new();
    let mut last = None;
    for (y, location) in locate_pixels(wall.board_height, rows).into_iter().enumerate() {
        let line = first.y + y as u32;
        if last == Some(location) {
            picture.copy_row((first.x, line - 1), (first.x, line), wall.board_width);
            continue;
        }
        let (row, inside) = location;
        if last.is_none_or(|(last, _)| last != row) {
            tiles = (0..columns).map(|column| info.background(column, row)).collect();
        }
        let texels: Vec<&[Rgba]> = tiles.iter().map(|tile| atlas.row(*tile, inside)).collect();
        let pixels = picture.row(first.x, line, wall.board_width);
        for (pixel, (column, x)) in pixels.iter_mut().zip(&column_locations) {
            *pixel = texels[*column as usize][*x];
        }
        last = Some(location);
    }
    for board in (1..wall.count as usize).map(|i| wall.board_origin(i)) {
        for y in 0..wall.board_height {
            picture.copy_row((first.x, first.y + y), (board.x, board.y + y), wall.board_width);
        }
    }
}

/// A sprite in pixel coordinates of its board.
struct PlacedSprite {
    /// Bounding box.
    low: (f32, f32),
    high: (f32, f32),
    centre: (f32, f32),
    size: (f32, f32),
    cos: f32,
    sin: f32,
}

impl PlacedSprite {
    /// Snaps an unrotated sprite to whole pixels, so that its look does not change while it moves.
    fn new(sprite: &Sprite, scale: f32) -> Self {
        let side = |centre: f32, size: f32| {
            let low = (centre * scale - 0.5 * size * scale + 0.5 + ROUNDING_MARGIN).floor();
            let high = (centre * scale + 0.5 * size * scale + 0.5 + ROUNDING_MARGIN)
                .floor()
                .max(low + 1.0);
            (low, high)
        };
        if sprite.rotation == 0.0 {
            let (left, right) = side(sprite.x, sprite.width);
            let (top, bottom) = side(sprite.y, sprite.height);
            return Self {
                low: (left, top),
                high: (right, bottom),
                centre: (0.5 * (left + right), 0.5 * (top + bottom)),
                size: (right - left, bottom - top),
                cos: 1.0,
                sin: 0.0,
            };
        }
        let (sin, cos) = sprite.rotation.sin_cos();
        let (x, y) = (sprite.x * scale, sprite.y * scale);
        let (width, height) = ((sprite.width * scale).max(1.0), (sprite.height * scale).max(1.0));
        let half_x = 0.5 * (width * cos.abs() + height * sin.abs());
        let half_y = 0.5 * (width * sin.abs() + height * cos.abs());
        Self {
            low: ((x - half_x).floor(), (y - half_y).floor()),
            high: ((x + half_x).ceil(), (y + half_y).ceil()),
            centre: (x, y),
            size: (width, height),
            cos,
            sin,
        }
    }

    /// Texture coordinates of a pixel's centre, 0 to 1 within the sprite.
    fn texture_coordinates(&self, x: u32, y: u32) -> (f32, f32) {
        let (dx, dy) = (x as f32 + 0.5 - self.centre.0, y as f32 + 0.5 - self.centre.1);
        let across = (dx * self.cos + dy * self.sin) / self.size.0;
        let down = (dy * self.cos - dx * self.sin) / self.size.1;
        (across + 0.5, down + 0.5)
    }
}

fn paint_sprite(sprite: &Sprite, wall: &Wall, board: BoardOrigin, picture: &mut Picture) {
    let atlas = Atlas::get();
    let placed = PlacedSprite::new(sprite, wall.cell_size);
    // `as` saturates negative coordinates to 0.
    let (left, right) = (placed.low.0 as u32, (placed.high.0 as u32).min(wall.board_width));
    let (top, bottom) = (placed.low.1 as u32, (placed.high.1 as u32).min(wall.board_height));
    if left >= right {
        return;
    }
    let inside = |at: f32| ((at * TILE_SIZE as f32 + ROUNDING_MARGIN) as usize).min(TILE_SIZE - 1);
    for y in top..bottom {
        let line = picture.row(board.x + left, board.y + y, right - left);
        for (x, pixel) in (left..right).zip(line) {
            let (u, v) = placed.texture_coordinates(x, y);
            if !(0.0..1.0).contains(&u) || !(0.0..1.0).contains(&v) {
                continue;
            }
            let colour = atlas.row(sprite.tile, inside(v))[inside((u * sprite.repeat).fract())];
            if colour[3] > 0 {
                *pixel = blend(*pixel, colour, sprite.opacity);
            }
        }
    }
}

/// Blends an opaque colour with opacity `opacity` over an opaque pixel.
fn blend(under: Rgba, over: Rgba, opacity: f32) -> Rgba {
    if opacity >= 1.0 {
        return over;
    }
    let mix = |under: u8, over: u8| {
        (f32::from(under) * (1.0 - opacity) + f32::from(over) * opacity + 0.5) as u8
    };
    std::array::from_fn(|i| mix(under[i], over[i]))
}
