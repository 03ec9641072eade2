//! Pictures as a GIF: exact colours, and of each frame only what has changed.

use anyhow::{Context, Result};
use gif::{Encoder, Frame, Repeat};
use grove::viewer::{Picture, colours};
use std::collections::HashMap;
use std::io::Write;

/// An animation that is being written.
pub struct Animation<W: Write> {
    encoder: Encoder<W>,
    /// Hundredths of a second that a frame is shown.
    delay: u16,
    colours: Vec<[u8; 3]>,
    numbers: HashMap<[u8; 3], u8>,
    last: Picture,
    frames: u32,
}

/// The part of a picture that a frame is of.
struct Part {
    left: usize,
    right: usize,
    top: usize,
    bottom: usize,
}

impl<W: Write> Animation<W> {
    /// Frames of the size of `like`, each shown for `delay` seconds, about; from the last to the first again.
    pub fn new(file: W, like: &Picture, delay: f32) -> Result<Self> {
        let last = Picture::new(like.width, like.height);
        let colours = colours();
        // After the colours comes a number for a pixel that stays as it is.
        let mut palette = colours.concat();
        palette.extend([0; 3]);
        let mut encoder = Encoder::new(file, like.width as u16, like.height as u16, &palette)
            .context("cannot write the animation")?;
        encoder.set_repeat(Repeat::Infinite).context("cannot write the animation")?;
        let numbers = colours.iter().enumerate().map(|(i, colour)| (*colour, i as u8)).collect();
        // Browsers take less than two hundredths for a tenth.
        let delay = (delay * 100.0).round().max(2.0) as u16;
        Ok(Self { encoder, delay, colours, numbers, last, frames: 0 })
    }

    /// Adds a frame.
    pub fn add(&mut self, picture: &Picture) -> Result<()> {
        let part = self.changed(picture);
        let stay = self.colours.len() as u8;
        let width = picture.width as usize;
        let mut buffer = Vec::with_capacity((part.right - part.left) * (part.bottom - part.top));
        for y in part.top..part.bottom {
            for at in y * width + part.left..y * width + part.right {
                let [r, g, b, opacity] = pixel(picture, at);
                let stays = opacity == 0 || pixel(&self.last, at) == [r, g, b, opacity];
                buffer.push(if stays { stay } else { self.number([r, g, b]) });
            }
        }
        let frame = Frame {
            delay: self.delay,
            transparent: Some(stay),
            left: part.left as u16,
            top: part.top as u16,
            width: (part.right - part.left) as u16,
            height: (part.bottom - part.top) as u16,
            buffer: buffer.into(),
            ..Frame::default()
        };
        self.encoder.write_frame(&frame).context("cannot write the animation")?;
        self.last.clone_from(picture);
        self.frames += 1;
        Ok(())
    }

    /// Writes the end; gives the number of frames.
    pub fn finish(self) -> Result<u32> {
        self.encoder.into_inner().context("cannot write the animation")?;
        Ok(self.frames)
    }

    /// The smallest part of a picture that holds all that has changed, and at least a pixel; of the
    /// first, all.
    fn changed(&self, picture: &Picture) -> Part {
        let (width, height) = (picture.width as usize, picture.height as usize);
        if self.frames == 0 {
            return Part { left: 0, right: width, top: 0, bottom: height };
        }
        let mut part = Part { left: width, right: 0, top: height, bottom: 0 };
        let rows = picture.pixels.chunks_exact(4 * width);
        for (y, (new, old)) in rows.zip(self.last.pixels.chunks_exact(4 * width)).enumerate() {
            let differs = |x: &usize| new[4 * x..4 * x + 4] != old[4 * x..4 * x + 4];
            if new == old {
                continue;
            }
            part.top = part.top.min(y);
            part.bottom = y + 1;
            part.left = (0..width).find(differs).unwrap_or(width).min(part.left);
            part.right = (0..width).rfind(differs).map_or(0, |x| x + 1).max(part.right);
        }
        if part.bottom == 0 { Part { left: 0, right: 1, top: 0, bottom: 1 } } else { part }
    }

    /// The number of a colour, or of the nearest that there is.
    fn number(&mut self, colour: [u8; 3]) -> u8 {
        let colours = &self.colours;
        *self.numbers.entry(colour).or_insert_with(|| {
            let off = |other: &[u8; 3]| -> u32 {
                colour.iter().zip(other).map(|(a, b)| u32::from(a.abs_diff(*b)).pow(2)).sum()
            };
            let nearest = (0..colours.len()).min_by_key(|&i| off(&colours[i]));
            nearest.unwrap_or(0) as u8
        })
    }
}

fn pixel(picture: &Picture, at: usize) -> [u8; 4] {
    let bytes = &picture.pixels[4 * at..4 * at + 4];
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}
