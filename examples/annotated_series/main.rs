//! Writes a labelled time series with planted patterns, and prints the best possible accuracy:
//!
//! ```console
//! $ cargo run --release --example annotated_series -- series.csv
//! ```

mod series;

use series::{ROWS, Series, optimum};

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "series.csv".to_string());
    let series = Series::new(20_000, 1);
    std::fs::write(&path, &series.csv)?;
    let last_fifth = series.rows - (series.rows as f64 * 0.2).round() as usize;
    println!("Wrote {} rows with {} labels to {path}.", series.rows, series.marks.len());
    println!("A label depends on the {ROWS} rows up to it.");
    println!("Best expected accuracy: {:.2} %", 100.0 * optimum());
    let accuracy = series.optimal_accuracy_from(last_fifth);
    println!("on the labels of the last fifth: {:.2} %", 100.0 * accuracy);
    Ok(())
}
