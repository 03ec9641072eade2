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

/// Stroke of a curve: its colour and width, and its dashes.
pub(super) struct Stroke {
    pub style: ShapeStyle,
    /// Length of a dash in pixels.
    pub dash: i32,
    /// Length of a gap in pixels.
    pub gap: i32,
}

/// The stroke of the curve with this index.
pub(super) fn stroke(index: usize) -> Stroke {
    let (dash, gap) = DASHES[index / COLOURS.len() % DASHES.len()];
    Stroke { style: COLOURS[index % COLOURS.len()].stroke_width(2), dash, gap }
}
