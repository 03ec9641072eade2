//! The rows of CSV files (RFC 4180).

use super::input;
use std::io::{self, Read};
use std::mem;

/// Maximum size of a row that spans several lines, bytes.
const MAX_ROW_BYTES: usize = 1 << 20;

/// Iterates over the cells of each row, with the number of the row's first line, from 1. A cell in quotes may hold
/// commas, line breaks and doubled quotes; blank lines are left out.
pub fn rows(file: impl Read) -> impl Iterator<Item = (usize, io::Result<Vec<String>>)> {
    let mut lines = (1..)
        .zip(input::lines(file))
        .map(|(number, line)| (number, line.and_then(|line| decode_line(number, line))));
    std::iter::from_fn(move || {
        let is_blank =
            |line: &io::Result<String>| line.as_ref().is_ok_and(|line| line.trim().is_empty());
        let (line_number, line) = lines.find(|(_, line)| !is_blank(line))?;
        let mut next_line = || lines.next().map(|(_, line)| line);
        Some((line_number, line.and_then(|line| parse_row(line_number, line, &mut next_line))))
    })
}

fn decode_line(line_number: usize, line: Vec<u8>) -> io::Result<String> {
    let text = String::from_utf8(line);
    let text = text.map_err(|_| io::Error::other(format!("line {line_number} is not UTF-8")))?;
    match text.strip_prefix('\u{feff}').filter(|_| line_number == 1) {
        Some(text) => Ok(text.to_string()),
        None => Ok(text),
    }
}

/// Parses the cells of the row that begins with line `line_number`; `next_line` reads the next line.
fn parse_row(
    line_number: usize,
    mut line: String,
    next_line: &mut impl FnMut() -> Option<io::Result<String>>,
) -> io::Result<Vec<String>> {
    let error = |reason: &str| io::Error::other(format!("a quote of line {line_number} {reason}"));
    let (mut cells, mut cell, mut is_quoted, mut bytes) = (Vec::new(), String::new(), false, 0);
    loop {
        let mut characters = line.chars().peekable();
        while let Some(c) = characters.next() {
            match (is_quoted, c) {
                (true, '"') if characters.peek() == Some(&'"') => cell.extend(characters.next()),
                (true, '"') => is_quoted = false,
                (false, '"') if cell.trim().is_empty() => is_quoted = true,
                (false, '"') => return Err(error("is within a cell; put the cell in quotes")),
                (false, ',') => cells.push(mem::take(&mut cell)),
                (false, '\n') => {}
                (false, '\r') if characters.peek() == Some(&'\n') => {}
                (_, c) => cell.push(c),
            }
        }
        if !is_quoted {
            cells.push(cell);
            return Ok(cells);
        }
        bytes += line.len();
        line =
            next_line().filter(|_| bytes < MAX_ROW_BYTES).ok_or_else(|| error("has no end"))??;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_may_hold_quotes_commas_and_lines() {
        let file = "\u{feff}id, prompt\r\n1,\"a \"\"b\"\", c\nd\" \n \n2,e,, \"f, g\"\n\"\n";
        let mut found: Vec<_> = rows(file.as_bytes()).collect();
        let (line, last) = found.pop().unwrap();
        assert_eq!((line, &last.unwrap_err().to_string()[..]), (6, "a quote of line 6 has no end"));
        let found: Vec<_> = found.into_iter().map(|(line, cells)| (line, cells.unwrap())).collect();
        let row = |line: usize, cells: &[&str]| {
            (line, cells.iter().map(|cell| cell.to_string()).collect::<Vec<_>>())
        };
        let wanted = [
            row(1, &["id", " prompt"]),
            row(2, &["1", "a \"b\", c\nd "]),
            row(5, &["2", "e", "", " f, g"]),
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn invalid_rows_are_rejected() {
        let error = |file: &[u8]| rows(file).next().unwrap().1.unwrap_err().to_string();
        assert!(error(b"1,a\"b\n").starts_with("a quote of line 1 is within a cell"));
        assert_eq!(error(b"1,\xff\n"), "line 1 is not UTF-8");
        let endless = ["\"", &"a\n".repeat(MAX_ROW_BYTES), "\""].concat();
        assert_eq!(error(endless.as_bytes()), "a quote of line 1 has no end");
    }
}
