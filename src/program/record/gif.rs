//! GIF animations with exact colours.

use super::animation::{AnimationWriter, ChangedRegion, pixel};
use crate::viewer::{Picture, colours};
use anyhow::Result;
use gif::{Encoder, EncodingError, Frame, Repeat};
use std::collections::HashMap;
use std::io::Write;

/// A looping GIF in progress.
pub struct Gif<W: Write> {
    encoder: Encoder<W>,
    /// Duration of a frame, hundredths of a second.
    delay: u16,
    colours: Vec<[u8; 3]>,
    palette_indices: HashMap<[u8; 3], u8>,
}

impl<W: Write> Gif<W> {
    /// Starts a file with frames of `width` x `height` pixels, each shown for about `frame_seconds` seconds.
    pub fn new(file: W, width: u32, height: u32, frame_seconds: f32) -> Result<Self> {
        let colours = colours();
        // The last entry of the palette is transparent, for unchanged pixels.
        let mut palette = colours.concat();
        palette.extend([0; 3]);
        let mut encoder =
            Encoder::new(file, width as u16, height as u16, &palette).map_err(unwrap_io)?;
        encoder.set_repeat(Repeat::Infinite).map_err(unwrap_io)?;
        let palette_indices =
            colours.iter().enumerate().map(|(i, colour)| (*colour, i as u8)).collect();
        // Browsers replace delays below 0.02 s by 0.1 s.
        let delay = (frame_seconds * 100.0).round().max(2.0) as u16;
        Ok(Self { encoder, delay, colours, palette_indices })
    }

    /// The palette index of a colour, or of the nearest one.
    fn palette_index(&mut self, colour: [u8; 3]) -> u8 {
        let colours = &self.colours;
        *self.palette_indices.entry(colour).or_insert_with(|| {
            let distance = |other: &[u8; 3]| -> u32 {
                colour.iter().zip(other).map(|(a, b)| u32::from(a.abs_diff(*b)).pow(2)).sum()
            };
            let nearest = (0..colours.len()).min_by_key(|&i| distance(&colours[i]));
            nearest.unwrap_or(0) as u8
        })
    }
}

impl<W: Write> AnimationWriter for Gif<W> {
    fn add(&mut self, picture: &Picture, region: ChangedRegion, last: &Picture) -> Result<()> {
        let transparent_index = self.colours.len() as u8;
        let mut buffer = Vec::with_capacity(region.width() * region.height());
        for at in region.rows(picture).flatten() {
            let [r, g, b, opacity] = pixel(picture, at);
            let is_unchanged = opacity == 0 || pixel(last, at) == [r, g, b, opacity];
            buffer.push(if is_unchanged {
                transparent_index
            } else {
                self.palette_index([r, g, b])
            });
        }
        let frame = Frame {
            delay: self.delay,
            transparent: Some(transparent_index),
            left: region.left as u16,
            top: region.top as u16,
            width: region.width() as u16,
            height: region.height() as u16,
            buffer: buffer.into(),
            ..Frame::default()
        };
        self.encoder.write_frame(&frame).map_err(unwrap_io)
    }

    fn finish(self) -> Result<()> {
        self.encoder.into_inner().map_err(unwrap_io)?;
        Ok(())
    }
}

/// Unwraps I/O errors, whose message the encoder's error would repeat.
fn unwrap_io(error: EncodingError) -> anyhow::Error {
    match error {
        EncodingError::Io(error) => error.into(),
        error => error.into(),
    }
}
