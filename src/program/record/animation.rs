//! Animations as sequences of changed rectangles.

use crate::viewer::Picture;
use anyhow::{Context, Result};

/// Context of write errors.
const CANNOT_WRITE: &str = "cannot write the animation";

/// A writer of an animation file. Each frame is composited onto the previous one; opaque pixels stay opaque.
pub trait AnimationWriter {
    /// Adds the frame `picture`, which differs from `last` in `region` only.
    fn add(&mut self, picture: &Picture, region: ChangedRegion, last: &Picture) -> Result<()>;
    /// Completes the file.
    fn finish(self) -> Result<()>;
}

/// A rectangle of a picture: columns `left..right` and rows `top..bottom`, pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedRegion {
    pub left: usize,
    pub right: usize,
    pub top: usize,
    pub bottom: usize,
}

impl ChangedRegion {
    fn whole(picture: &Picture) -> Self {
        let (right, bottom) = (picture.width as usize, picture.height as usize);
        Self { left: 0, right, top: 0, bottom }
    }

    /// Computes the bounding box of all differences, at least one pixel.
    fn between(last: &Picture, picture: &Picture) -> Self {
        let (width, height) = (picture.width as usize, picture.height as usize);
        let mut region = Self { left: width, right: 0, top: height, bottom: 0 };
        let rows = picture.pixels.chunks_exact(4 * width);
        for (y, (new, old)) in rows.zip(last.pixels.chunks_exact(4 * width)).enumerate() {
            let differs = |x: &usize| new[4 * x..4 * x + 4] != old[4 * x..4 * x + 4];
            if new == old {
                continue;
            }
            region.top = region.top.min(y);
            region.bottom = y + 1;
            region.left = (0..width).find(differs).unwrap_or(width).min(region.left);
            region.right = (0..width).rfind(differs).map_or(0, |x| x + 1).max(region.right);
        }
        if region.bottom == 0 { Self { left: 0, right: 1, top: 0, bottom: 1 } } else { region }
    }

    /// Width, pixels.
    pub fn width(self) -> usize {
        self.right - self.left
    }

    /// Height, pixels.
    pub fn height(self) -> usize {
        self.bottom - self.top
    }

    /// The ranges of its pixels' indices in a picture, row by row.
    pub fn rows(self, picture: &Picture) -> impl Iterator<Item = std::ops::Range<usize>> {
        let width = picture.width as usize;
        (self.top..self.bottom).map(move |y| y * width + self.left..y * width + self.right)
    }
}

/// An animation in progress.
pub struct AnimationRecorder<F: AnimationWriter> {
    file: F,
    last: Option<Picture>,
    num_frames: u32,
}

impl<F: AnimationWriter> AnimationRecorder<F> {
    /// Starts an animation without frames in a new file.
    pub fn new(file: Result<F>) -> Result<Self> {
        Ok(Self { file: file.context(CANNOT_WRITE)?, last: None, num_frames: 0 })
    }

    pub fn add(&mut self, picture: &Picture) -> Result<()> {
        let region = match &self.last {
            None => ChangedRegion::whole(picture),
            Some(last) => ChangedRegion::between(last, picture),
        };
        let empty = || Picture::new(picture.width, picture.height);
        let last = self.last.get_or_insert_with(empty);
        self.file.add(picture, region, last).context(CANNOT_WRITE)?;
        last.clone_from(picture);
        self.num_frames += 1;
        Ok(())
    }

    /// Completes the file and returns the number of frames.
    pub fn finish(self) -> Result<u32> {
        self.file.finish().context(CANNOT_WRITE)?;
        Ok(self.num_frames)
    }
}

/// The RGBA value of the pixel with index `at`.
pub fn pixel(picture: &Picture, at: usize) -> [u8; 4] {
    picture.pixels.as_chunks::<4>().0[at]
}
