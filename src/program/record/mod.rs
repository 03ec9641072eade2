//! `grove record`: games of a trained policy as a picture or an animation, without a window.

mod animation;
mod artist;
mod gif;
mod unfinished;
mod webp;

use self::gif::Gif;
use super::interrupt::Interrupt;
use super::run_dir::find_checkpoint;
use super::{RecordArgs, with_game};
use crate::checkpoint::Checkpoint;
use crate::env::look::Look;
use crate::model::NativePolicy;
use crate::rollout::{Player, Watched};
use crate::trainer::{load_policy, saved_config, saved_game_name};
use crate::viewer::{Cells, Picture, Wall};
use animation::{Animation, Frames};
use anyhow::{Context, Result, bail};
use artist::Artist;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use serde::de::DeserializeOwned;
use std::path::Path;
use unfinished::Unfinished;
use webp::WebP;

/// The most pixels of a side, which is what every GPU draws.
const MAX_SIDE: u64 = 8192;
/// What a picture fits in by default, if cells of a pixel do.
const DEFAULT_SIZE: (u64, u64) = (800, 600);
/// Frames a second of an animation, about; where there are more steps, each is a frame.
const FRAMES_PER_SECOND: f32 = 33.0;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Gif,
    Png,
    WebP,
}

impl Format {
    fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        match extension.to_ascii_lowercase().as_str() {
            "gif" => Ok(Self::Gif),
            "png" => Ok(Self::Png),
            "webp" => Ok(Self::WebP),
            _ => bail!("--out is {}, but must end in .gif, .png or .webp", path.display()),
        }
    }
}

pub fn run(args: RecordArgs) -> Result<()> {
    let format = Format::of(&args.out)?;
    let checkpoint = find_checkpoint(&args.run)
        .with_context(|| format!("{} holds no policy to record", args.run.display()))?;
    let name = saved_game_name(&checkpoint)?;
    with_game!(name.as_str(), record(&args, format, &checkpoint))
}

/// Games that are played, and the picture that they are drawn to.
struct Recording<'a, G: Look> {
    args: &'a RecordArgs,
    policy: NativePolicy,
    games: Watched<G>,
    artist: Artist<G>,
    picture: Picture,
    interrupt: Interrupt,
}

fn record<G: Look + DeserializeOwned>(
    args: &RecordArgs,
    format: Format,
    checkpoint: &Checkpoint,
) -> Result<()> {
    let (game, config) = saved_config::<G>(checkpoint)?;
    let (width, height) = size(Cells::of(&game), args)?;
    let mut recording = Recording {
        args,
        policy: load_policy(checkpoint, game, &config)?,
        games: Watched::new(game, args.games, args.seed),
        artist: Artist::new(game, &args.device, width, height)?,
        picture: Picture::new(width, height),
        interrupt: Interrupt::listen(None)?,
    };
    let mut file = Unfinished::create(&args.out)?;
    let (frames, delay) = frames(game.steps_per_second());
    let said = match format {
        Format::Gif => recording.animate(Gif::new(&mut file, width, height, delay), frames)?,
        Format::WebP => recording.animate(WebP::new(&mut file, width, height, delay), frames)?,
        Format::Png => recording.still(PngEncoder::new_with_quality(
            &mut file,
            CompressionType::Best,
            FilterType::NoFilter,
        ))?,
    };
    let bytes = file.finish()?;
    println!(
        "{}: {said} of {width} x {height} pixels, {} KB; {} of iteration {}, drawn by {}",
        args.out.display(),
        bytes.div_ceil(1000),
        G::NAME,
        checkpoint.iteration,
        recording.artist.name()
    );
    Ok(())
}

impl<G: Look> Recording<'_, G> {
    /// Plays a step of all games.
    fn step(&mut self) -> Result<()> {
        if self.interrupt.seen() {
            bail!("interrupted: {} is not written", self.args.out.display());
        }
        let choices = self.games.choose(&self.policy, Player::Greedy);
        let actions: Vec<u32> = choices.iter().map(|choice| choice.action).collect();
        self.games.step(&actions);
        Ok(())
    }

    /// Draws the games, where `part` of their last step has been made.
    fn draw(&mut self, part: f32) -> Result<&Picture> {
        let (before, now) = (self.games.before(), self.games.now());
        self.artist.paint(before, &now, part, &mut self.picture)?;
        Ok(&self.picture)
    }

    /// The games' start, and then some frames a step; says how many in all.
    fn animate(&mut self, file: Result<impl Frames>, frames: u32) -> Result<String> {
        let mut animation = Animation::new(file)?;
        animation.add(self.draw(1.0)?)?;
        for _ in 0..self.args.steps {
            self.step()?;
            for frame in 1..=frames {
                animation.add(self.draw(frame as f32 / frames as f32)?)?;
            }
        }
        Ok(format!("{} frames", animation.finish()?))
    }

    /// The games after the last step.
    fn still(&mut self, encoder: impl ImageEncoder) -> Result<String> {
        for _ in 0..self.args.steps {
            self.step()?;
        }
        let Picture { width, height, pixels } = self.draw(1.0)?;
        encoder
            .write_image(pixels, *width, *height, ExtendedColorType::Rgba8)
            .context("cannot write the picture")?;
        Ok("a still".to_string())
    }
}

/// Frames of a step, and the seconds that each is shown.
fn frames(steps_per_second: f32) -> (u32, f32) {
    let frames = (FRAMES_PER_SECOND / steps_per_second).round().max(1.0);
    (frames as u32, 1.0 / (steps_per_second * frames))
}

/// The picture's size, in pixels.
fn size(cells: Cells, args: &RecordArgs) -> Result<(u32, u32)> {
    let of = |scale: u32| Wall::size(cells, args.games, scale);
    let small = |&scale: &u32| of(scale).0 <= DEFAULT_SIZE.0 && of(scale).1 <= DEFAULT_SIZE.1;
    // Whole times the 16 pixels of a tile look best.
    let scales = [32, 16].into_iter().chain((1..16).rev());
    let scale = args.scale.unwrap_or_else(|| scales.into_iter().find(small).unwrap_or(1));
    let (width, height) = of(scale);
    if width.max(height) > MAX_SIDE {
        bail!(
            "{} games with {scale} pixels a cell are a picture of {width} x {height} pixels, but \
             {MAX_SIDE} a side is the most; lower --scale or --games",
            args.games
        );
    }
    Ok((width as u32, height as u32))
}
