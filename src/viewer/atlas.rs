//! The sprite atlas: the tiles of `assets/sprites.txt` as pixels.
//!
//! The file is plain text:
//!
//! ```text
//! colour r d8433c            a character and its colour as RRGGBB
//! tile apple                 name of a tile; its rows follow, up to an empty line
//! mirror apple b of apple    another tile, mirrored left to right
//! ```
//!
//! Each character of a row is a pixel; `.` is transparent. A drawing smaller than [`TILE_SIZE`] is
//! repeated to the right and downwards. Lines that begin with `//` are comments.

use crate::env::look::tile::NAMES;
use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

/// Side length of a tile in pixels.
pub(super) const TILE_SIZE: usize = 16;

/// Source text of the atlas.
const SOURCE: &str = include_str!("../../assets/sprites.txt");

/// Red, green, blue, alpha; alpha is 0 or 255.
pub(super) type Rgba = [u8; 4];

/// A drawing of [`TILE_SIZE`] x [`TILE_SIZE`] pixels in row-major order.
type Drawing = [Rgba; TILE_SIZE * TILE_SIZE];

/// Pixels of all tiles: `[tiles][TILE_SIZE][TILE_SIZE]`.
#[derive(Debug)]
pub(super) struct Atlas {
    pixels: Vec<Rgba>,
}

impl Atlas {
    /// Returns the built-in atlas, parsed on first use.
    pub fn get() -> &'static Self {
        static ATLAS: OnceLock<Atlas> = OnceLock::new();
        ATLAS.get_or_init(|| Self::parse(SOURCE).expect("a test reads assets/sprites.txt"))
    }

    /// Parses the source text. Errors name the line.
    fn parse(text: &str) -> Result<Self, String> {
        let drawings = AtlasParser::default().parse(text)?;
        let mut pixels = Vec::new();
        for name in NAMES {
            let drawing =
                drawings.get(*name).ok_or_else(|| format!("there is no tile `{name}`"))?;
            pixels.extend_from_slice(drawing);
        }
        if let Some(name) = drawings.keys().find(|name| !NAMES.contains(&name.as_str())) {
            return Err(format!("the tile `{name}` is used nowhere"));
        }
        Ok(Self { pixels })
    }

    /// Distinct colours as red, green, blue.
    pub fn colours(&self) -> Vec<[u8; 3]> {
        let opaque = self.pixels.iter().filter(|pixel| pixel[3] > 0);
        let colours: BTreeSet<_> = opaque.map(|&[r, g, b, _]| [r, g, b]).collect();
        colours.into_iter().collect()
    }

    /// Number of tiles.
    pub fn len(&self) -> usize {
        self.pixels.len() / (TILE_SIZE * TILE_SIZE)
    }

    /// Pixels of all tiles: `[tiles][TILE_SIZE][TILE_SIZE]`.
    pub fn bytes(&self) -> &[u8] {
        self.pixels.as_flattened()
    }

    /// Row `y` of a tile.
    pub fn row(&self, tile: u32, y: usize) -> &[Rgba] {
        let first = (tile as usize * TILE_SIZE + y) * TILE_SIZE;
        &self.pixels[first..first + TILE_SIZE]
    }
}

/// Parser of the source text, with what it has read so far.
#[derive(Default)]
struct AtlasParser {
    colours: HashMap<char, Rgba>,
    drawings: HashMap<String, Drawing>,
}

impl AtlasParser {
    fn parse(mut self, text: &str) -> Result<HashMap<String, Drawing>, String> {
        let mut lines = text.lines().enumerate();
        while let Some((index, line)) = lines.next() {
            let outcome = if line.is_empty() || line.starts_with("//") {
                Ok(())
            } else if let Some(colour) = line.strip_prefix("colour ") {
                self.read_colour(colour)
            } else if let Some(names) = line.strip_prefix("mirror ") {
                self.read_mirror(names)
            } else if let Some(name) = line.strip_prefix("tile ") {
                let rows = lines.by_ref().map(|(_, row)| row).take_while(|row| !row.is_empty());
                let rows: Vec<_> = rows.filter(|row| !row.starts_with("//")).collect();
                self.read_tile(name, &rows)
            } else {
                Err("this is neither a colour nor a tile".to_string())
            };
            outcome.map_err(|message| format!("line {}: {message}", index + 1))?;
        }
        Ok(self.drawings)
    }

    fn read_colour(&mut self, line: &str) -> Result<(), String> {
        let mut characters = line.chars();
        let name = characters.next().filter(|name| *name != '.').ok_or("a colour has a name")?;
        let hex = characters.as_str().trim();
        let value = u32::from_str_radix(hex, 16).ok().filter(|_| hex.len() == 6);
        let [_, r, g, b] = value.ok_or_else(|| format!("`{hex}` is not a colour"))?.to_be_bytes();
        match self.colours.insert(name, [r, g, b, 255]) {
            Some(_) => Err(format!("there are two colours `{name}`")),
            None => Ok(()),
        }
    }

    fn read_tile(&mut self, name: &str, rows: &[&str]) -> Result<(), String> {
        let width = rows.first().map_or(0, |row| row.len());
        if width == 0 || !TILE_SIZE.is_multiple_of(width) || !TILE_SIZE.is_multiple_of(rows.len()) {
            return Err(format!("`{name}` is {width} x {}, which fills no tile", rows.len()));
        }
        let mut drawing = [[0; 4]; TILE_SIZE * TILE_SIZE];
        for (y, row) in rows.iter().enumerate() {
            let row: Vec<char> = row.chars().collect();
            if row.len() != width {
                return Err(format!("row {} of `{name}` is not {width} wide", y + 1));
            }
            for at in (0..TILE_SIZE * TILE_SIZE).filter(|at| at / TILE_SIZE % rows.len() == y) {
                let character = row[at % TILE_SIZE % width];
                if character != '.' {
                    let colour = self.colours.get(&character);
                    drawing[at] =
                        *colour.ok_or_else(|| format!("`{character}` is not a colour"))?;
                }
            }
        }
        self.add(name, drawing)
    }

    fn read_mirror(&mut self, names: &str) -> Result<(), String> {
        let (name, original) = names.split_once(" of ").ok_or("a mirror is `NAME of NAME`")?;
        let drawing = self.drawings.get(original);
        let mut drawing = *drawing.ok_or_else(|| format!("there is no `{original}`"))?;
        drawing.chunks_exact_mut(TILE_SIZE).for_each(<[Rgba]>::reverse);
        self.add(name, drawing)
    }

    fn add(&mut self, name: &str, drawing: Drawing) -> Result<(), String> {
        match self.drawings.insert(name.to_string(), drawing) {
            Some(_) => Err(format!("there are two tiles `{name}`")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_of_every_game_is_drawn() {
        let atlas = Atlas::parse(SOURCE).unwrap();
        assert!(atlas.colours().len() < 256, "a GIF holds no more, and one that is none");
        for (tile, name) in NAMES.iter().enumerate() {
            let seen = (0..TILE_SIZE).any(|y| atlas.row(tile as u32, y).iter().any(|p| p[3] > 0));
            assert!(seen, "{name} is empty");
        }
    }

    #[test]
    fn drawings_are_repeated_and_mirrored() {
        let text = "colour a 010203\n\ntile one\na.\n..\n\nmirror two of one\n";
        let drawings = AtlasParser::default().parse(text).unwrap();
        let (one, two) = (&drawings["one"], &drawings["two"]);
        for at in 0..TILE_SIZE * TILE_SIZE {
            let even_row = (at / TILE_SIZE).is_multiple_of(2);
            let colour = |there: bool| if there { [1, 2, 3, 255] } else { [0; 4] };
            assert_eq!(one[at], colour(even_row && at % 2 == 0));
            assert_eq!(two[at], colour(even_row && at % 2 == 1));
        }
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, message) in [
            ("colour a 12", "line 1: `12` is not a colour"),
            ("colour a 010203\ncolour a 010203", "line 2: there are two colours `a`"),
            ("\ntile x\naaa\n", "line 2: `x` is 3 x 1, which fills no tile"),
            ("tile x\n", "line 1: `x` is 0 x 0, which fills no tile"),
            ("tile x\nb\n", "line 1: `b` is not a colour"),
            ("tile x\n..\n.\n", "line 1: row 2 of `x` is not 2 wide"),
            ("mirror x of y", "line 1: there is no `y`"),
            ("apple", "line 1: this is neither a colour nor a tile"),
        ] {
            assert_eq!(AtlasParser::default().parse(text).unwrap_err(), message);
        }
        assert!(Atlas::parse("").unwrap_err().contains("there is no tile"));
    }
}
