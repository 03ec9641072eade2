//! Fonts and strokes of charts, and the reasons why one cannot be drawn.

use plotters::prelude::*;
use std::io;
use std::path::PathBuf;

/// Name of the font family.
pub(super) const FAMILY: &str = "sans-serif";
/// Colours of curves, in order: the colour-blind safe palette of Okabe and Ito (2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];
/// Lengths of dashes and gaps of curves in pixels: solid for the first use of all colours, then others.
const DASHES: [(i32, i32); 3] = [(i32::MAX, 1), (7, 4), (2, 3)];

/// Reasons why a chart cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// The file's name does not end in `.svg` or `.png`.
    #[error("{0} must end in .svg or .png")]
    Format(PathBuf),
    /// No curve has a point.
    #[error(
        "there is no point to draw: the runs have no such figure yet, or a line's seeds share no part of the axis"
    )]
    Empty,
    /// The picture cannot be drawn.
    #[error("the picture cannot be drawn: {0}")]
    Drawing(String),
    /// The file cannot be written.
    #[error("cannot write {0}: {1}")]
    File(PathBuf, io::Error),
}

/// The error of a drawing backend.
pub(super) fn drawing(error: impl std::fmt::Display) -> ChartError {
    ChartError::Drawing(error.to_string())
}

/// Style of curve number `i`, with the lengths of its dashes and gaps in pixels.
pub(super) fn stroke(i: usize) -> (ShapeStyle, i32, i32) {
    let (dash, gap) = DASHES[i / COLOURS.len() % DASHES.len()];
    (COLOURS[i % COLOURS.len()].stroke_width(2), dash, gap)
}
