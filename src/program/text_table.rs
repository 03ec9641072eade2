//! Tables of text with aligned columns.

use super::output::escape_control_chars;
use std::ops::RangeBounds;

/// Formats a number in a table; `-` if there is none.
pub fn format_number(value: Option<f64>) -> String {
    value.map_or("-".to_string(), |value| format!("{value:.3}"))
}

/// Formats a table with aligned columns, those of `number_columns` to the right and the others to the left. Control
/// characters are escaped, since names of runs and settings may come from others.
pub fn align_columns(
    header: &[&str],
    rows: &[Vec<String>],
    number_columns: impl RangeBounds<usize>,
) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            row.iter().map(|cell| escape_control_chars(&cell.replace(['\n', '\t'], " "))).collect()
        })
        .collect();
    let length = |text: &str| text.chars().count();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| length(&row[column]));
        cells.chain([length(header[column])]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).enumerate().map(|(i, (cell, width))| {
            let is_number = number_columns.contains(&i);
            if is_number { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    let header = line(header.to_vec());
    let rows = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(header).chain(rows).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_numbers_to_the_right_and_text_to_the_left() {
        let rows =
            [["a", "10", "long"], ["bc", "9", "x"]].map(|row| row.map(String::from).to_vec());
        let table = align_columns(&["name", "n", "changes"], &rows, 1..2);
        assert_eq!(table, "name   n  changes\na     10  long\nbc     9  x");
        let red = [["\u{1b}[31m".to_string()].to_vec()];
        assert_eq!(align_columns(&["path"], &red, 1..), "path\n\\u{1b}[31m");
    }
}
