//! `grove record`: renders games of a trained policy to a picture, an animation or a video, off-screen.

mod animation;
mod caption;
mod gif;
#[cfg_attr(not(feature = "wgpu"), path = "no_gpu.rs")]
mod gpu;
mod mp4;
mod webp;

use self::gif::Gif;
use self::mp4::Mp4;
use super::args::{RecordArgs, RenderOptions};
use super::games::{ConfigurableGame, Games};
use super::interrupt::Interrupt;
use super::models::Models;
use super::output::{print_json, print_result};
use super::progress_note::with_note;
use super::session::load_policy_checkpoint;
use super::validation::read_valid_settings;
use crate::checkpoint::Checkpoint;
use crate::device;
use crate::disk::PendingFile;
use crate::env::Rules;
use crate::model::NativePolicy;
use crate::rollout::{ActionSelection, LiveGames};
use crate::run::{RunFolder, pluralize};
use crate::track;
use crate::trainer::read_game_name;
use crate::viewer::{Picture, Scene, SceneSize, Sprite, Wall, paint};
use animation::{AnimationRecorder, AnimationWriter};
use anyhow::{Context, Result, bail};
use caption::{draw_caption, format_score};
use gpu::GpuRenderer;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use serde::Serialize;
use std::io::{BufWriter, Write};
use std::path::Path;
use webp::WebP;

/// Maximum width and height, pixels: the limit that every GPU supports.
const MAX_SIDE: u64 = 8192;
/// Maximum width and height by default, pixels.
const DEFAULT_SIZE: (u64, u64) = (800, 600);
/// Maximum width and height of an animation for trackers, which show it small, pixels.
const TRACKED_SIZE: (u64, u64) = (320, 240);
/// Approximate frame rate of an animation; a faster game has one frame per step.
const FRAMES_PER_SECOND: f32 = 33.0;

/// The format of the output file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputFormat {
    Gif,
    Mp4,
    Png,
    WebP,
}

impl OutputFormat {
    fn from_path(path: &Path) -> Result<Self> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
        match extension.to_ascii_lowercase().as_str() {
            "gif" => Ok(Self::Gif),
            "mp4" => Ok(Self::Mp4),
            "png" => Ok(Self::Png),
            "webp" => Ok(Self::WebP),
            _ => bail!("--out is {}, but must end in .gif, .webp, .mp4 or .png", path.display()),
        }
    }
}

/// Renders games of a saved policy to a file.
pub fn run(games: &Games, args: RecordArgs) -> Result<()> {
    OutputFormat::from_path(&args.out)?;
    RunFolder::check_output(&args.out)?;
    let checkpoint = load_policy_checkpoint(&args.run)?;
    (games.find(&read_game_name(&checkpoint)?)?.record)(&games.models, &args, &checkpoint)
}

/// The state of a rendering: the games and the picture they are drawn on.
struct GameRendering<'a, G: Rules> {
    options: &'a RenderOptions,
    policy: NativePolicy,
    games: LiveGames<G>,
    scene: Scene<G>,
    sprites: Vec<Sprite>,
    /// The renderer on a GPU, which draws what the CPU paints; `None` on the CPU.
    gpu: Option<GpuRenderer>,
    picture: Picture,
    timing: FrameTiming,
    /// Ends the rendering of a file; `None` where nothing is to listen.
    interrupt: Option<(Interrupt, &'a Path)>,
}

/// Records a game that is drawn by `scene`.
pub fn record<G: ConfigurableGame>(
    models: &Models,
    args: &RecordArgs,
    checkpoint: &Checkpoint,
    scene: fn(G) -> Scene<G>,
) -> Result<()> {
    let format = OutputFormat::from_path(&args.out)?;
    let mut rendering = GameRendering::new(models, &args.render, checkpoint, scene, DEFAULT_SIZE)?;
    let chosen = device::start(&args.device)?;
    let Picture { width, height, .. } = rendering.picture;
    let FrameTiming { frame_seconds, .. } = rendering.timing;
    rendering.gpu = GpuRenderer::new(&chosen.device, rendering.scene.info(), width, height)?;
    if rendering.gpu.is_none() && !chosen.info.is_cpu() {
        bail!("the device `{}` cannot render pictures; use cpu or wgpu", args.device);
    }
    rendering.interrupt = Some((Interrupt::listen(None)?, &args.out));
    let error_text = || format!("cannot write {}", args.out.display());
    let pending = PendingFile::create_output(&args.out).with_context(error_text)?;
    let mut file = BufWriter::new(&pending.file);
    let note = format!("Rendering {}.", pluralize(args.render.games, "game"));
    let frames = with_note(&note, || match format {
        OutputFormat::Gif => rendering.animate(Gif::new(&mut file, width, height, frame_seconds)),
        OutputFormat::Mp4 => {
            rendering.animate(Mp4::new(&pending.path, width, height, frame_seconds))
        }
        OutputFormat::WebP => rendering.animate(WebP::new(&mut file, width, height, frame_seconds)),
        OutputFormat::Png => rendering.write_still(PngEncoder::new_with_quality(
            &mut file,
            CompressionType::Best,
            FilterType::NoFilter,
        )),
    })?;
    file.flush().with_context(error_text)?;
    drop(file);
    let bytes = pending.file.metadata().with_context(error_text)?.len();
    pending.finish().with_context(error_text)?;
    let report = Report {
        env: G::NAME,
        iteration: checkpoint.iteration,
        out: args.out.display().to_string(),
        frames,
        width,
        height,
        bytes,
        drawn_by: chosen.info.to_string(),
    };
    if args.json { print_json(&report) } else { print_result(report) }
}

/// A description of the output file.
#[derive(Serialize)]
struct Report<'a> {
    env: &'a str,
    iteration: u64,
    out: String,
    /// Number of frames of an animation.
    frames: Option<u32>,
    width: u32,
    height: u32,
    bytes: u64,
    drawn_by: String,
}

impl std::fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let frames = self.frames.map_or("a still".to_string(), |frames| format!("{frames} frames"));
        let Self { env, iteration, out, width, height, drawn_by, .. } = self;
        let kilobytes = self.bytes as f64 / 1e3;
        write!(f, "{out}: {frames} of {width} x {height} pixels, {kilobytes:.1} KB; ")?;
        write!(f, "{env} of iteration {iteration}, drawn by {drawn_by}")
    }
}

/// Animates a policy at play, as `grove record` does by default, but with its score, small, and painted by the CPU.
pub fn render_animation<G: ConfigurableGame>(
    models: &Models,
    checkpoint: &Checkpoint,
    scene: fn(G) -> Scene<G>,
) -> Result<track::Animation> {
    let options = RenderOptions { score: true, games: 1, steps: 100, scale: None, seed: 0 };
    let mut rendering = GameRendering::new(models, &options, checkpoint, scene, TRACKED_SIZE)?;
    let Picture { width, height, .. } = rendering.picture;
    let mut gif = Vec::new();
    let writer = Gif::new(&mut gif, width, height, rendering.timing.frame_seconds);
    rendering.animate(writer)?;
    Ok(track::Animation { gif, width, height })
}

impl<'a, G: ConfigurableGame> GameRendering<'a, G> {
    /// Creates a rendering on the CPU before its first step, at most `max_pixels` wide and high by default.
    fn new(
        models: &Models,
        options: &'a RenderOptions,
        checkpoint: &Checkpoint,
        scene: fn(G) -> Scene<G>,
        max_pixels: (u64, u64),
    ) -> Result<Self> {
        let (game, config) = read_valid_settings::<G>(models, checkpoint)?;
        let scene = scene(game);
        let scene_size = scene.info().size();
        let (width, height) = choose_picture_size(scene_size, options, max_pixels)?;
        let timing = FrameTiming::new(scene.info().steps_per_second());
        Ok(Self {
            options,
            policy: models.load_policy(checkpoint, game, &config)?,
            games: LiveGames::new(game, options.games, options.seed),
            scene,
            sprites: Vec::new(),
            gpu: None,
            picture: Picture::new(width, height),
            timing,
            interrupt: None,
        })
    }
}

impl<G: Rules> GameRendering<'_, G> {
    /// Advances all games by one step.
    fn step(&mut self) -> Result<()> {
        if let Some((interrupt, out)) = &self.interrupt
            && interrupt.has_signal()
        {
            bail!("interrupted; {} was not written", out.display());
        }
        let choices = self.games.choose(&self.policy, ActionSelection::Greedy);
        let actions: Vec<u32> = choices.iter().map(|choice| choice.action).collect();
        self.games.step(&actions);
        Ok(())
    }

    /// Draws the games at a fraction `progress` of their last step.
    fn draw(&mut self, progress: f32) -> Result<&Picture> {
        let Self { games, scene, sprites, gpu, picture, .. } = self;
        let states = games.states();
        scene.compute_sprites(games.previous_states(), &states, progress, sprites);
        match gpu {
            Some(gpu) => gpu.paint(states.len(), sprites, picture)?,
            None => paint(scene.info(), states.len(), sprites, picture),
        }
        if self.options.score {
            let Picture { width, height, .. } = self.picture;
            let wall = Wall::fit(self.scene.info().size(), self.games.count(), width, height);
            for i in 0..self.games.count() {
                let score = format_score(self.games.episode(i).score);
                draw_caption(&score, wall.board_origin(i), wall.board_width, &mut self.picture);
            }
        }
        Ok(&self.picture)
    }

    /// Writes a frame of the initial state and the frames of each step. Returns their number.
    fn animate(&mut self, file: Result<impl AnimationWriter>) -> Result<Option<u32>> {
        let frames_per_step = self.timing.frames_per_step;
        let mut animation = AnimationRecorder::new(file)?;
        animation.add(self.draw(1.0)?)?;
        for _ in 0..self.options.steps {
            self.step()?;
            for frame in 1..=frames_per_step {
                animation.add(self.draw(frame as f32 / frames_per_step as f32)?)?;
            }
        }
        Ok(Some(animation.finish()?))
    }

    /// Writes a picture of the games after the last step.
    fn write_still(&mut self, encoder: impl ImageEncoder) -> Result<Option<u32>> {
        for _ in 0..self.options.steps {
            self.step()?;
        }
        let Picture { width, height, pixels } = self.draw(1.0)?;
        encoder
            .write_image(pixels, *width, *height, ExtendedColorType::Rgba8)
            .context("cannot write the picture")?;
        Ok(None)
    }
}

/// The frames of an animation in time.
#[derive(Clone, Copy)]
struct FrameTiming {
    frames_per_step: u32,
    /// Duration of a frame, seconds.
    frame_seconds: f32,
}

impl FrameTiming {
    fn new(steps_per_second: f32) -> Self {
        let frames = (FRAMES_PER_SECOND / steps_per_second).round().max(1.0);
        Self { frames_per_step: frames as u32, frame_seconds: 1.0 / (steps_per_second * frames) }
    }
}

/// Chooses the width and height of the picture in pixels: by default at most `max_pixels`.
fn choose_picture_size(
    scene_size: SceneSize,
    options: &RenderOptions,
    max_pixels: (u64, u64),
) -> Result<(u32, u32)> {
    let size_at = |scale: u32| Wall::picture_size(scene_size, options.games, scale);
    let fits = |&scale: &u32| {
        let (width, height) = size_at(scale);
        width <= max_pixels.0 && height <= max_pixels.1
    };
    // Multiples of a tile's 16 pixels look best.
    let scales = [32, 16].into_iter().chain((1..16).rev());
    let scale = options.scale.unwrap_or_else(|| scales.into_iter().find(fits).unwrap_or(1));
    let (width, height) = size_at(scale);
    if width.max(height) > MAX_SIDE {
        bail!(
            "{} games with {scale} pixels per cell need a picture of {width} x {height} pixels, but the maximum is \
             {MAX_SIDE} per side; lower --scale or --games",
            options.games
        );
    }
    Ok((width as u32, height as u32))
}
