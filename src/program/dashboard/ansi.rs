//! Conversion of a drawn buffer to text with ANSI colours.

use ratatui_core::buffer::{Buffer, CellWidth};
use ratatui_core::style::Color;

/// Formats the rows of a buffer as lines without trailing spaces.
pub fn format_lines(buffer: &Buffer, has_colors: bool) -> String {
    let rows = buffer.content().chunks(usize::from(buffer.area.width));
    let lines = rows.map(|row| {
        let mut line = String::new();
        let mut color = Color::Reset;
        let end = row.iter().rposition(|cell| cell.symbol() != " ").map_or(0, |last| last + 1);
        // Cells that a wide character covers.
        let mut covered = 0;
        for cell in &row[..end] {
            if covered > 0 {
                covered -= 1;
                continue;
            }
            covered = cell.symbol().cell_width().saturating_sub(1);
            if has_colors && cell.fg != color {
                color = cell.fg;
                line += escape_sequence(color);
            }
            line += cell.symbol();
        }
        if color != Color::Reset {
            line += escape_sequence(Color::Reset);
        }
        line
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Escape sequence of a colour.
const fn escape_sequence(color: Color) -> &'static str {
    match color {
        Color::Green => "\u{1b}[32m",
        Color::DarkGray => "\u{1b}[90m",
        _ => "\u{1b}[0m",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui_core::layout::Rect;
    use ratatui_core::style::Style;

    #[test]
    fn lines_have_colours_where_they_change_and_no_spaces_at_their_ends() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 6, 2));
        buffer.set_string(0, 0, "ab", Style::new());
        buffer.set_string(2, 0, "cd", Style::new().fg(Color::Green));
        assert_eq!(format_lines(&buffer, false), "abcd\n");
        assert_eq!(format_lines(&buffer, true), "ab\u{1b}[32mcd\u{1b}[0m\n");
    }

    #[test]
    fn wide_characters_take_no_more_room_than_their_own() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 1));
        buffer.set_string(0, 0, "日本 é|", Style::new());
        assert_eq!(format_lines(&buffer, false), "日本 é|");
    }
}
