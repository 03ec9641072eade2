//! Legend of a chart with many curves: below the plot and in columns, where it covers no curve.

use super::error::{ChartError, drawing_error};
use super::style::{FONT_FAMILY, Stroke, stroke};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

/// Number of curves from which the legend is below the plot.
const MIN_CURVES_BELOW: usize = 7;
/// Maximum number of entries of the legend and of characters in a name, so that it fits into the picture.
const MAX_ENTRIES: usize = 20;
const MAX_NAME_LENGTH: usize = 60;
/// Size of the text in pixels.
pub const TEXT_SIZE: u32 = 14;
/// Length of a curve's sample in pixels.
const SAMPLE_LENGTH: i32 = 18;
/// Distances in pixels: between lines, between a sample and its name, between columns, and from the picture's edges.
const LINE_HEIGHT: u32 = 20;
const SAMPLE_GAP: i32 = 6;
const COLUMN_GAP: u32 = 24;
const EDGE_GAP: u32 = 28;

/// Lists the entries of the legend of curves with these names, in order; the last one counts those left out.
pub fn list_entries(curve_names: &[&str]) -> Vec<String> {
    let mut entries: Vec<String> = curve_names.iter().map(|name| shorten(name)).collect();
    if entries.len() > MAX_ENTRIES {
        entries.truncate(MAX_ENTRIES - 1);
        entries.push(format!("and {} more", curve_names.len() + 1 - MAX_ENTRIES));
    }
    entries
}

fn shorten(name: &str) -> String {
    match name.char_indices().nth(MAX_NAME_LENGTH) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_string(),
    }
}

/// A legend below the plot.
pub struct Legend {
    entries: Vec<String>,
    /// Number of entries per column.
    num_rows: usize,
    /// Width of a column in pixels.
    column_width: u32,
}

impl Legend {
    /// Lays out the legend of curves with these names in a picture of this width; `None` if it has room in the plot.
    pub fn lay_out(curve_names: &[&str], picture_width: u32) -> Result<Option<Self>, ChartError> {
        if curve_names.len() < MIN_CURVES_BELOW {
            return Ok(None);
        }
        let entries = list_entries(curve_names);
        let font = (FONT_FAMILY, TEXT_SIZE).into_font();
        let mut text_width = 0;
        for name in &entries {
            text_width = text_width.max(font.box_size(name).map_err(drawing_error)?.0);
        }
        let column_width =
            text_width + SAMPLE_LENGTH.unsigned_abs() + SAMPLE_GAP.unsigned_abs() + COLUMN_GAP;
        let max_columns = (picture_width - 2 * EDGE_GAP + COLUMN_GAP) / column_width;
        let num_rows = entries.len().div_ceil((max_columns as usize).clamp(1, entries.len()));
        Ok(Some(Self { entries, num_rows, column_width }))
    }

    /// Height in pixels.
    pub fn height(&self) -> u32 {
        self.num_rows as u32 * LINE_HEIGHT + EDGE_GAP / 2
    }

    /// Draws the legend, column by column.
    pub fn draw<B: DrawingBackend>(&self, area: &DrawingArea<B, Shift>) -> Result<(), ChartError> {
        for (i, name) in self.entries.iter().enumerate() {
            let (column, row) = (i / self.num_rows, i % self.num_rows);
            let x = (EDGE_GAP + column as u32 * self.column_width) as i32;
            let y = (row as u32 * LINE_HEIGHT + LINE_HEIGHT / 2) as i32;
            area.draw(&curve_sample(i, (x, y))).map_err(drawing_error)?;
            let position = (x + SAMPLE_LENGTH + SAMPLE_GAP, y - TEXT_SIZE as i32 / 2);
            area.draw(&Text::new(&**name, position, (FONT_FAMILY, TEXT_SIZE)))
                .map_err(drawing_error)?;
        }
        Ok(())
    }
}

/// Sample of the curve with this index that starts at this point.
pub fn curve_sample(
    index: usize,
    (x, y): (i32, i32),
) -> DashedPathElement<std::array::IntoIter<(i32, i32), 2>, i32> {
    let Stroke { style, dash, gap } = stroke(index);
    DashedPathElement::new([(x, y), (x + SAMPLE_LENGTH, y)], dash, gap, style)
}
