//! Frames of an MP4, which ffmpeg makes.

use super::animation::{Frames, Part};
use crate::viewer::Picture;
use anyhow::{Context, Result, bail};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// An MP4 that is being written by another process.
pub struct Mp4 {
    ffmpeg: Child,
}

impl Mp4 {
    /// Frames of `width` x `height` pixels in the file at `path`, each shown for `delay` seconds.
    pub fn new(path: &Path, width: u32, height: u32, delay: f32) -> Result<Self> {
        let started = Command::new("ffmpeg")
            .args(["-hide_banner", "-loglevel", "error", "-y"])
            .args(["-f", "rawvideo", "-pix_fmt", "rgba"])
            .args(["-video_size", &format!("{width}x{height}")])
            .args(["-framerate", &(1.0 / delay).to_string(), "-i", "pipe:0"])
            // What most players show: colours at half the size, which must be whole.
            .args(["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"])
            .args(["-movflags", "+faststart", "-f", "mp4"])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        match started {
            Ok(ffmpeg) => Ok(Self { ffmpeg }),
            Err(error) if error.kind() == ErrorKind::NotFound => bail!(
                "an .mp4 is made by ffmpeg, which is not on the PATH: install it, or write a .gif or .webp"
            ),
            Err(error) => Err(error).context("ffmpeg, which makes an .mp4, does not start"),
        }
    }

    /// Waits for its end, and says what it says where that is not a good one.
    fn end(&mut self) -> Result<()> {
        drop(self.ffmpeg.stdin.take());
        let mut said = String::new();
        if let Some(mut stderr) = self.ffmpeg.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        let status = self.ffmpeg.wait()?;
        if !status.success() {
            bail!("ffmpeg failed ({status}): {}", said.trim());
        }
        Ok(())
    }
}

impl Frames for Mp4 {
    fn add(&mut self, picture: &Picture, _part: Part, _last: &Picture) -> Result<()> {
        let pipe = self.ffmpeg.stdin.as_mut().context("it is at its end")?;
        match pipe.write_all(&picture.pixels) {
            // It knows best why it has gone.
            Err(error) => self.end().and(Err(error.into())),
            Ok(()) => Ok(()),
        }
    }

    fn finish(mut self) -> Result<()> {
        self.end()
    }
}

impl Drop for Mp4 {
    fn drop(&mut self) {
        // Where it has ended, there is nothing to stop.
        let _ = self.ffmpeg.kill();
        let _ = self.ffmpeg.wait();
    }
}
