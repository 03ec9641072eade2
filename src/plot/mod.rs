//! Curves of runs: aggregated over seeds, with intervals, drawn as SVG or PNG.

mod chart;
mod curve;
mod error;
mod legend;
pub mod statistics;
mod style;

pub(crate) use chart::extent;
pub use chart::{Chart, Line};
pub use curve::{Band, aggregate};
pub use error::ChartError;
