//! Captions: a score drawn onto a game's picture.

use crate::viewer::{BoardOrigin, Picture};

/// A 3 x 5 pixel font: five rows per character, the leftmost pixel in the highest bit.
const GLYPHS: [(char, [u8; 5]); 12] = [
    ('0', [7, 5, 5, 5, 7]),
    ('1', [2, 6, 2, 2, 7]),
    ('2', [7, 1, 7, 4, 7]),
    ('3', [7, 1, 7, 1, 7]),
    ('4', [5, 5, 7, 1, 1]),
    ('5', [7, 4, 7, 1, 7]),
    ('6', [7, 4, 7, 5, 7]),
    ('7', [7, 1, 1, 2, 2]),
    ('8', [7, 5, 7, 5, 7]),
    ('9', [7, 5, 7, 1, 7]),
    ('-', [0, 0, 7, 0, 0]),
    ('.', [0, 0, 0, 0, 2]),
];

/// Colour of the text, RGBA.
const TEXT_COLOUR: [u8; 4] = [255; 4];
/// Colour of the background, RGBA.
const BACKGROUND: [u8; 4] = [0, 0, 0, 255];

/// Formats a score, with one decimal unless it is an integer.
pub fn format_score(score: f32) -> String {
    // A score that rounds to zero has no sign.
    let score = if score.abs() < 0.05 { 0.0 } else { score };
    if score.fract() == 0.0 { format!("{score:.0}") } else { format!("{score:.1}") }
}

/// Draws a number into the upper left corner of a board that is `width` pixels wide.
pub fn draw_caption(text: &str, board: BoardOrigin, width: u32, picture: &mut Picture) {
    // Sized so that about six characters, each followed by a gap, take a third of the width.
    let dot = (width / 72).clamp(1, 8);
    let mut fill = |x: u32, y: u32, colour: [u8; 4]| {
        for (y, x) in (0..dot).flat_map(|dy| (0..dot).map(move |dx| (y * dot + dy, x * dot + dx))) {
            let (x, y) = (board.x + x, board.y + y);
            if x < picture.width && x < board.x + width && y < picture.height {
                let at = 4 * (y as usize * picture.width as usize + x as usize);
                picture.pixels[at..at + 4].copy_from_slice(&colour);
            }
        }
    };
    let columns = 4 * text.len() as u32 + 1;
    for (y, x) in (0..7).flat_map(|y| (0..columns).map(move |x| (y, x))) {
        fill(x, y, BACKGROUND);
    }
    for (i, character) in text.chars().enumerate() {
        let rows = GLYPHS.iter().find(|(known, _)| *known == character).map_or([0; 5], |g| g.1);
        for (y, row) in (1..).zip(rows) {
            for x in (0..3).filter(|x| row & (4 >> x) != 0) {
                fill(4 * i as u32 + 1 + x, y, TEXT_COLOUR);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caption_stays_within_its_game() {
        let mut picture = Picture::new(20, 12);
        draw_caption("-1", BoardOrigin { x: 6, y: 2 }, 14, &mut picture);
        let line = |y: usize| -> String {
            let row = picture.pixels[80 * y..80 * (y + 1)].as_chunks::<4>().0;
            let letter = |p: &[u8; 4]| match *p {
                TEXT_COLOUR => '#',
                BACKGROUND => '.',
                _ => ' ',
            };
            row.iter().map(letter).collect()
        };
        assert_eq!(line(1), " ".repeat(20));
        assert_eq!(line(2), "      .........     ");
        assert_eq!(line(3), "      ......#..     ");
        assert_eq!(line(5), "      .###..#..     ");
        assert_eq!(line(7), "      .....###.     ");
        assert_eq!(line(9), " ".repeat(20));
        assert_eq!([7.0, -0.25, -0.04].map(format_score), ["7", "-0.2", "0"]);
    }

    #[test]
    fn captions_that_do_not_fit_are_clipped() {
        let mut picture = Picture::new(5, 5);
        draw_caption("12345.6", BoardOrigin { x: 2, y: 2 }, 9, &mut picture);
        let is_drawn = |x: usize, y: usize| picture.pixels[20 * y + 4 * x..][..4] != [0; 4];
        assert!((0..25).all(|i| is_drawn(i % 5, i / 5) == (i % 5 >= 2 && i / 5 >= 2)));
    }
}
