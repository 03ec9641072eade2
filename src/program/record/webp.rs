//! Lossless WebP animations.
//!
//! The `image` crate encodes the frames; this module writes the animation container (RFC 9649).

use super::animation::{AnimationWriter, ChangedRegion, pixel};
use crate::viewer::Picture;
use anyhow::Result;
use image::ExtendedColorType;
use image::codecs::webp::WebPEncoder;
use std::io::{self, Seek, SeekFrom, Write};

/// Flags of the `VP8X` header: animation and alpha channel.
const ANIMATED_WITH_ALPHA: u8 = 1 << 1 | 1 << 4;
/// Flags of a frame: alpha-blended onto the previous one, which is kept.
const BLENDED: u8 = 0;
/// Size of the file header: "RIFF", the length of the rest, "WEBP".
const FILE_HEADER_BYTES: usize = 12;

/// A looping WebP in progress.
pub struct WebP<W: Write + Seek> {
    file: W,
    /// Duration of a frame, milliseconds.
    delay: u32,
}

impl<W: Write + Seek> WebP<W> {
    /// Starts a file with frames of `width` x `height` pixels, each shown for about `frame_seconds` seconds.
    pub fn new(mut file: W, width: u32, height: u32, frame_seconds: f32) -> Result<Self> {
        // The length is filled in by `finish`.
        file.write_all(b"RIFF\0\0\0\0WEBP")?;
        let mut header = vec![ANIMATED_WITH_ALPHA, 0, 0, 0];
        header.extend(&(width - 1).to_le_bytes()[..3]);
        header.extend(&(height - 1).to_le_bytes()[..3]);
        write_chunk(&mut file, b"VP8X", &header)?;
        // A transparent background, and an infinite loop.
        write_chunk(&mut file, b"ANIM", &[0; 6])?;
        Ok(Self { file, delay: (frame_seconds * 1000.0).round() as u32 })
    }
}

impl<W: Write + Seek> AnimationWriter for WebP<W> {
    fn add(&mut self, picture: &Picture, mut region: ChangedRegion, last: &Picture) -> Result<()> {
        // Frames must start at even coordinates.
        region.left -= region.left % 2;
        region.top -= region.top % 2;
        let (width, height) = (region.width() as u32, region.height() as u32);
        let mut pixels = Vec::with_capacity(4 * region.width() * region.height());
        for at in region.rows(picture).flatten() {
            let (new, old) = (pixel(picture, at), pixel(last, at));
            // Unchanged pixels are transparent, which compresses well.
            pixels.extend(if new == old { [0; 4] } else { new });
        }
        let mut still = Vec::new();
        let encoder = WebPEncoder::new_lossless(&mut still);
        encoder.encode(&pixels, width, height, ExtendedColorType::Rgba8)?;
        let mut frame = Vec::new();
        for value in
            [region.left as u32 / 2, region.top as u32 / 2, width - 1, height - 1, self.delay]
        {
            frame.extend(&value.to_le_bytes()[..3]);
        }
        frame.push(BLENDED);
        frame.extend(&still[FILE_HEADER_BYTES..]);
        Ok(write_chunk(&mut self.file, b"ANMF", &frame)?)
    }

    fn finish(mut self) -> Result<()> {
        let length = u32::try_from(self.file.stream_position()? - 8)?;
        self.file.seek(SeekFrom::Start(4))?;
        Ok(self.file.write_all(&length.to_le_bytes())?)
    }
}

/// Writes a chunk: its name, length and data, padded to an even length.
fn write_chunk(file: &mut impl Write, name: &[u8; 4], data: &[u8]) -> io::Result<()> {
    file.write_all(name)?;
    file.write_all(&(data.len() as u32).to_le_bytes())?;
    file.write_all(data)?;
    file.write_all(&[0][..data.len() % 2])
}
