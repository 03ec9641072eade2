//! MP4 videos, encoded by ffmpeg.

use super::animation::{AnimationWriter, ChangedRegion};
use crate::viewer::Picture;
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsString;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// An MP4 in progress, written by a child process.
pub struct Mp4 {
    ffmpeg: Child,
}

impl Mp4 {
    /// Starts a file at `path` with frames of `width` x `height` pixels, each shown for `frame_seconds` seconds.
    pub fn new(path: &Path, width: u32, height: u32, frame_seconds: f32) -> Result<Self> {
        // A name alone could be taken for an option or, with a colon, for a protocol.
        let mut file = OsString::from("file:");
        file.push(path);
        let started = Command::new("ffmpeg")
            .args(["-hide_banner", "-loglevel", "error", "-y"])
            .args(["-f", "rawvideo", "-pix_fmt", "rgba"])
            .args(["-video_size", &format!("{width}x{height}")])
            .args(["-framerate", &(1.0 / frame_seconds).to_string(), "-i", "pipe:0"])
            // Most players need 4:2:0 chroma subsampling, which requires even dimensions.
            .args(["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"])
            .args(["-movflags", "+faststart", "-f", "mp4"])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        match started {
            Ok(ffmpeg) => Ok(Self { ffmpeg }),
            Err(error) if error.kind() == ErrorKind::NotFound => bail!(
                ".mp4 files need ffmpeg, which is not on the PATH: install it, or write a .gif or .webp"
            ),
            Err(error) => Err(error).context("cannot start ffmpeg, which encodes .mp4 files"),
        }
    }

    /// Closes ffmpeg's input, waits for it to exit and returns its error output if it failed.
    fn wait_for_exit(&mut self) -> Result<()> {
        drop(self.ffmpeg.stdin.take());
        let mut message = String::new();
        if let Some(mut stderr) = self.ffmpeg.stderr.take() {
            let _ = stderr.read_to_string(&mut message);
        }
        let status = self.ffmpeg.wait()?;
        ensure!(status.success(), "ffmpeg failed ({status}): {}", message.trim());
        Ok(())
    }
}

impl AnimationWriter for Mp4 {
    fn add(&mut self, picture: &Picture, _region: ChangedRegion, _last: &Picture) -> Result<()> {
        let pipe = self.ffmpeg.stdin.as_mut().context("the video is complete")?;
        match pipe.write_all(&picture.pixels) {
            // ffmpeg's own message explains a broken pipe.
            Err(error) => self.wait_for_exit().and(Err(error.into())),
            Ok(()) => Ok(()),
        }
    }

    fn finish(mut self) -> Result<()> {
        self.wait_for_exit()
    }
}

impl Drop for Mp4 {
    fn drop(&mut self) {
        // No effect if it has exited.
        let _ = self.ffmpeg.kill();
        let _ = self.ffmpeg.wait();
    }
}
