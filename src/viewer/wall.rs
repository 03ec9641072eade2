//! Layout of a wall of games within a picture.

use crate::env::look::SceneSize;

/// Gap between two boards in pixels: half a cell.
fn gap_width(cell_size: f32) -> f32 {
    (cell_size * 0.5).floor()
}

/// Cell size in pixels from which cells are rounded to whole pixels.
const MIN_WHOLE_PIXELS: f32 = 4.0;

/// Arrangement of `count` games in a picture: rows of boards, one for each game, as large as possible and centred.
/// Cells of four pixels or more are rounded to whole pixels, so that all look alike; smaller cells
/// keep their fraction, because rounding would waste much space. Boards start at whole pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wall {
    /// Number of games.
    pub count: u32,
    /// Boards per row.
    pub columns: u32,
    /// Side length of a cell in pixels.
    pub cell_size: f32,
    /// Width of a board in pixels.
    pub board_width: u32,
    /// Height of a board in pixels.
    pub board_height: u32,
    /// Gap between boards in pixels.
    pub gap: u32,
    /// Left edge of the first board in pixels.
    pub left: u32,
    /// Upper edge of the first board in pixels.
    pub top: u32,
}

/// Upper left corner of a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoardOrigin {
    /// Distance from the picture's left edge in pixels.
    pub x: u32,
    /// Distance from its upper edge in pixels.
    pub y: u32,
}

impl Wall {
    /// Fits `count` games into a picture of `width` x `height` pixels. With no games or no pixels the wall is
    /// empty. (The size of a board is then that of a wall of one game.)
    pub fn fit(scene: SceneSize, count: usize, width: u32, height: u32) -> Self {
        let count = count as u32;
        let (cells_x, cells_y) = (scene.columns as f32, scene.rows as f32);
        let fit_cells = |columns: u32| {
            let rows = count.div_ceil(columns).max(1) as f32;
            let columns = columns as f32;
            let side =
                |n: f32, cells: f32, size: f32| n * cells * size + (n - 1.0) * gap_width(size);
            let x = width as f32 / (columns * cells_x + (columns - 1.0) * 0.5);
            let y = height as f32 / (rows * cells_y + (rows - 1.0) * 0.5);
            let exact = x.min(y);
            // Gaps are truncated to whole pixels, which may leave space for the next whole number.
            let next = exact.ceil();
            let fits = side(columns, cells_x, next) <= width as f32
                && side(rows, cells_y, next) <= height as f32;
            if fits {
                next
            } else if exact >= MIN_WHOLE_PIXELS {
                exact.floor()
            } else {
                exact
            }
        };
        // Largest cells first; ties go to the layout with the fewest empty places.
        let empty = |columns: u32| columns * count.div_ceil(columns) - count;
        let best = (1..=count).max_by(|&a, &b| {
            fit_cells(a).total_cmp(&fit_cells(b)).then(empty(b).cmp(&empty(a))).then(b.cmp(&a))
        });
        let columns = best.unwrap_or(1);
        let rows = count.div_ceil(columns);
        let cell_size = fit_cells(columns);
        // Boards with fractional cells are truncated to whole pixels.
        let board_width = (cells_x * cell_size + 1e-3) as u32;
        let board_height = (cells_y * cell_size + 1e-3) as u32;
        let gap = gap_width(cell_size) as u32;
        let side = |n: u32, board: u32| n * board + n.saturating_sub(1) * gap;
        Self {
            count,
            columns,
            cell_size,
            board_width,
            board_height,
            gap,
            left: width.saturating_sub(side(columns.min(count), board_width)) / 2,
            top: height.saturating_sub(side(rows, board_height)) / 2,
        }
    }

    /// Width and height in pixels of a picture of `count` (at least 1) games with cells of `cell_size`
    /// pixels, at an aspect ratio of about 3:2 if there are several.
    pub fn picture_size(scene: SceneSize, count: usize, cell_size: u32) -> (u64, u64) {
        let (count, cell_size) = (count.max(1) as u64, u64::from(cell_size));
        let side =
            |n: u64, cells: u32| n * u64::from(cells) * cell_size + (n - 1) * (cell_size / 2);
        let size = |columns: u64| {
            (side(columns, scene.columns), side(count.div_ceil(columns), scene.rows))
        };
        let cost = |columns: u64| {
            let (width, height) = size(columns);
            let empty = columns * count.div_ceil(columns) - count;
            (width as f64 / height as f64 / 1.5).ln().abs() + empty as f64 / columns as f64
        };
        let best = (1..=count).min_by(|&a, &b| cost(a).total_cmp(&cost(b)));
        size(best.unwrap_or(1))
    }

    /// Upper left corner of the board of game `i`.
    pub fn board_origin(&self, i: usize) -> BoardOrigin {
        let (column, row) = (i as u32 % self.columns, i as u32 / self.columns);
        BoardOrigin {
            x: self.left + column * (self.board_width + self.gap),
            y: self.top + row * (self.board_height + self.gap),
        }
    }
}
