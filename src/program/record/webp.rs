//! Frames of a lossless WebP.
//!
//! The `image` crate encodes pictures; the container that makes an animation of them is written here, as
//! RFC 9649 has it.

use super::animation::{Frames, Part, pixel};
use crate::viewer::Picture;
use anyhow::Result;
use image::ExtendedColorType;
use image::codecs::webp::WebPEncoder;
use std::io::{self, Seek, SeekFrom, Write};

/// In a header of the extended format: there are frames, and pixels that are not opaque.
const ANIMATED_WITH_ALPHA: u8 = 1 << 1 | 1 << 4;
/// How a frame is laid over the one before: where its pixels are not opaque, that one is seen.
const LAID_OVER: u8 = 0;
/// Bytes of a WebP file before its first chunk: "RIFF", the length of what follows, "WEBP".
const FILE_HEADER: usize = 12;

/// A WebP that is being written; from its last frame it goes on with the first.
pub struct WebP<W: Write + Seek> {
    file: W,
    /// Milliseconds that a frame is shown.
    delay: u32,
}

impl<W: Write + Seek> WebP<W> {
    /// Frames of `width` x `height` pixels, each shown for `delay` seconds, about.
    pub fn new(mut file: W, width: u32, height: u32, delay: f32) -> Result<Self> {
        // The length is put in at the end.
        file.write_all(b"RIFF\0\0\0\0WEBP")?;
        let mut header = vec![ANIMATED_WITH_ALPHA, 0, 0, 0];
        header.extend(bytes_24(width - 1));
        header.extend(bytes_24(height - 1));
        chunk(&mut file, b"VP8X", &header)?;
        // A background that nothing is seen of, and frames without end.
        chunk(&mut file, b"ANIM", &[0; 6])?;
        Ok(Self { file, delay: (delay * 1000.0).round() as u32 })
    }
}

impl<W: Write + Seek> Frames for WebP<W> {
    fn add(&mut self, picture: &Picture, mut part: Part, last: &Picture) -> Result<()> {
        // Frames begin at even pixels.
        part.left -= part.left % 2;
        part.top -= part.top % 2;
        let (width, height) = (part.width() as u32, part.height() as u32);
        let mut pixels = Vec::with_capacity(4 * part.width() * part.height());
        for at in part.rows(picture).flatten() {
            let (new, old) = (pixel(picture, at), pixel(last, at));
            // What stays is left out; long stretches of nothing are coded in a few bytes.
            pixels.extend(if new == old { [0; 4] } else { new });
        }
        let mut still = Vec::new();
        let encoder = WebPEncoder::new_lossless(&mut still);
        encoder.encode(&pixels, width, height, ExtendedColorType::Rgba8)?;
        let mut frame = Vec::new();
        for number in [part.left as u32 / 2, part.top as u32 / 2, width - 1, height - 1, self.delay]
        {
            frame.extend(bytes_24(number));
        }
        frame.push(LAID_OVER);
        frame.extend(&still[FILE_HEADER..]);
        Ok(chunk(&mut self.file, b"ANMF", &frame)?)
    }

    fn finish(mut self) -> Result<()> {
        let after_length = u32::try_from(self.file.stream_position()? - 8)?;
        self.file.seek(SeekFrom::Start(4))?;
        Ok(self.file.write_all(&after_length.to_le_bytes())?)
    }
}

/// The lower three bytes, the lowest first.
fn bytes_24(number: u32) -> [u8; 3] {
    let [low, middle, high, _] = number.to_le_bytes();
    [low, middle, high]
}

/// Writes a chunk: its name, its length, its data, and a byte more where that is odd.
fn chunk(file: &mut impl Write, name: &[u8; 4], data: &[u8]) -> io::Result<()> {
    file.write_all(name)?;
    file.write_all(&(data.len() as u32).to_le_bytes())?;
    file.write_all(data)?;
    file.write_all(&[0][..data.len() % 2])
}
