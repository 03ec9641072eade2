//! Curves of runs: aggregated over seeds, with intervals, drawn as SVG or PNG.

mod chart;
mod curve;
mod legend;
pub mod statistics;

pub(crate) use chart::extent;
pub use chart::{Chart, ChartError, Line};
pub use curve::{Band, band};
