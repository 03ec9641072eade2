//! Fonts and strokes of charts.

use plotters::prelude::*;

/// Name of the font family.
pub(super) const FONT_FAMILY: &str = "sans-serif";
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

/// Style of the curve with this index, with the lengths of its dashes and gaps in pixels.
pub(super) fn stroke(index: usize) -> (ShapeStyle, i32, i32) {
    let (dash, gap) = DASHES[index / COLOURS.len() % DASHES.len()];
    (COLOURS[index % COLOURS.len()].stroke_width(2), dash, gap)
}
