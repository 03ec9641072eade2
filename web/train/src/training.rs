//! Training runs for JavaScript, in a worker.

use crate::games::{self, Entry};
use crate::session::{Run, Source};
use crate::team::Place;
use grove::device::{self, DeviceInfo};
use grove::settings::overlay;
use grove::trainer::read_game_name;
use grove_web_base::Saved;
use serde_json::json;
use wasm_bindgen::prelude::*;
use web_sys::OffscreenCanvas;

/// The largest number of games on a wall.
const MAX_SHOWN: usize = 16_384;

/// The game of this name.
fn named(name: &str) -> Result<&'static dyn Entry, JsError> {
    games::all().find(name).ok_or_else(|| {
        JsError::new(&format!("`env` must name the game, one of: {}", games::all().joined_names()))
    })
}

/// Starts WebGPU, or the CPU.
async fn device(gpu: bool) -> Result<device::ChosenDevice, JsError> {
    Ok(if gpu { device::start_in_browser().await? } else { device::start("cpu")? })
}

/// A training run of a policy.
#[wasm_bindgen]
pub struct Training {
    run: Box<dyn Run>,
    device: DeviceInfo,
}

#[wasm_bindgen]
impl Training {
    /// Starts a run by `settings`: TOML with `env`, the name of a game, and changes of that game's defaults. It
    /// runs on WebGPU if `gpu`, else on the CPU; a run that learns from a file of `games` always runs on the CPU.
    /// `place` is this worker's place among those that share the run; the result is `None` if the run has too few
    /// shards for it.
    pub async fn create(
        settings: String,
        games: Option<Vec<u8>>,
        gpu: bool,
        place: Option<Place>,
    ) -> Result<Option<Training>, JsError> {
        let changes = overlay::parse("the settings", &settings)?;
        let game = named(changes.get("env").and_then(|name| name.as_str()).unwrap_or_default())?;
        let chosen = device(gpu && games.is_none()).await?;
        let run = game.start(&settings, Source { games, place }, &chosen.device)?;
        Ok(run.map(|run| Self { run, device: chosen.info }))
    }

    /// Resumes a run from [`Training::save`], bit for bit as if it had not been interrupted; the other arguments are
    /// those of [`Training::create`].
    pub async fn resume(
        saved: Saved,
        games: Option<Vec<u8>>,
        gpu: bool,
        place: Option<Place>,
    ) -> Result<Option<Training>, JsError> {
        let game = named(&read_game_name(&saved.0)?)?;
        let chosen = device(gpu && games.is_none()).await?;
        let run = game.resume(&saved.0, Source { games, place }, &chosen.device)?;
        Ok(run.map(|run| Self { run, device: chosen.info }))
    }

    /// The rank of this worker among those that share the run; rank 0 leads.
    pub fn rank(&self) -> usize {
        self.run.team().rank()
    }

    /// Broadcasts a command, a number of the caller's own, from rank 0 to all workers.
    pub fn next(&self, command: u8) -> Result<u8, JsError> {
        Ok(self.run.team().broadcast(&[command])?[0])
    }

    /// A checkpoint of the run.
    pub async fn save(&self) -> Result<Saved, JsError> {
        Ok(Saved(self.run.snapshot().await?))
    }

    /// Whether the run is over. A limit in seconds ends no run of a page.
    pub fn is_done(&self) -> bool {
        self.run.is_over()
    }

    /// The evaluation of the first weights, as the record of iteration 0: `{record}`, as JSON.
    pub async fn first(&self) -> Result<String, JsError> {
        let evaluation = self.run.evaluate_quickly().await?;
        Ok(json!({ "record": { "iteration": 0, "evaluation": evaluation } }).to_string())
    }

    /// Runs one iteration; returns its record, with an evaluation if there is one, as JSON: `{record}`.
    pub async fn iterate(&mut self) -> Result<String, JsError> {
        if self.is_done() {
            return Err(JsError::new("this run is over"));
        }
        let record = self.run.iterate().await?;
        Ok(json!({ "record": record }).to_string())
    }

    /// Opens a wall of `games` games on a canvas, for [`Training::step`] and [`Training::draw`]; WebGPU alone.
    pub fn show(&mut self, canvas: OffscreenCanvas, games: usize) -> Result<(), JsError> {
        self.run.show(canvas, games.clamp(1, MAX_SHOWN))
    }

    /// Plays a step of the games on the wall by the current policy. Does not wait for the GPU.
    pub fn step(&mut self) -> Result<(), JsError> {
        self.run.step()
    }

    /// Draws the wall after `progress`, 0 to 1, of the motion of the last step. Does not wait for the GPU.
    pub fn draw(&mut self, progress: f32) -> Result<(), JsError> {
        self.run.draw(progress)
    }

    /// The current policy as a file.
    pub async fn file(&self) -> Vec<u8> {
        self.run.policy().await
    }

    /// The device and the number of workers that share the run: `{device, api, software, ranks}`, as JSON.
    pub fn about(&self) -> String {
        json!({
            "device": self.device.description,
            "api": self.device.api,
            "software": self.device.is_software,
            "ranks": self.run.team().size(),
        })
        .to_string()
    }
}
