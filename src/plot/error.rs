//! Reasons why a chart cannot be drawn.

use std::io;
use std::path::PathBuf;

/// Reasons why a chart cannot be drawn.
#[derive(Debug, thiserror::Error)]
pub enum ChartError {
    /// The file's name does not end in `.svg` or `.png`.
    #[error("{0} must end in .svg or .png")]
    Format(PathBuf),
    /// No curve has a point.
    #[error(
        "there are no points to draw: no run has recorded this metric yet, or the curves of the seeds of a line do not overlap"
    )]
    Empty,
    /// The picture cannot be drawn.
    #[error("the picture cannot be drawn: {0}")]
    Drawing(String),
    /// The file cannot be written.
    #[error("cannot write {0}: {1}")]
    File(PathBuf, io::Error),
}

/// Wraps the error of a drawing backend.
pub(super) fn drawing_error(error: impl std::fmt::Display) -> ChartError {
    ChartError::Drawing(error.to_string())
}
