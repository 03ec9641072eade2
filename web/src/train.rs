//! Training, in a worker.

use burn::tensor::Device;
use grove::config::{ConfigError, TrainConfig, overlay};
use grove::device::{self, DeviceInfo};
use grove::env::{CartPole, Catch, Fruit, Game, Rules};
use grove::metrics::IterationRecord;
use grove::trainer::{TrainError, Trainer, config_toml};
use serde::{Serialize, de::DeserializeOwned};
use std::pin::Pin;
use wasm_bindgen::prelude::*;

/// What will be there when the device has answered.
type Soon<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A run of whatever game.
trait Run {
    /// Iterations done, and those of the whole run.
    fn iterations(&self) -> (u32, u32);
    /// One more, with an evaluation where it is due.
    fn iterate(&mut self) -> Soon<'_, Result<IterationRecord, TrainError>>;
    /// A policy file.
    fn policy(&self) -> Soon<'_, Vec<u8>>;
    /// All settings, as TOML.
    fn settings(&self) -> String;
    /// How is played and learnt, in words.
    fn describe(&self) -> String;
}

impl<G: Rules + Serialize> Run for Trainer<G> {
    fn iterations(&self) -> (u32, u32) {
        (self.iteration(), self.config().iterations)
    }

    fn iterate(&mut self) -> Soon<'_, Result<IterationRecord, TrainError>> {
        Box::pin(async {
            let mut record = self.iterate_async().await?;
            let TrainConfig { iterations, checkpoint, .. } = self.config();
            let last = record.iteration == *iterations;
            if last || record.iteration.is_multiple_of(checkpoint.eval_every) {
                record.evaluation = Some(self.measure_async().await.0);
            }
            Ok(record)
        })
    }

    fn policy(&self) -> Soon<'_, Vec<u8>> {
        Box::pin(self.policy_file_async())
    }

    fn settings(&self) -> String {
        config_toml(&self.game(), self.config())
    }

    fn describe(&self) -> String {
        Trainer::describe(self)
    }
}

/// The settings of a game: its defaults, and what is asked for laid over them.
fn settings<G>(asked: &str) -> Result<(G, TrainConfig), ConfigError>
where
    G: Rules + Default + Serialize + DeserializeOwned,
{
    let defaults = config_toml(&G::default(), &TrainConfig::for_game(G::NAME));
    let mut table = overlay::parse("the defaults", &defaults)?;
    overlay::lay_over(&mut table, overlay::parse("the settings", asked)?)?;
    let (game, config) = overlay::split::<G>(table, G::NAME)?;
    game.validate().map_err(ConfigError::OutOfRange)?;
    config.validate()?;
    Ok((game, config))
}

/// A run at its start.
fn begin<G>(asked: &str, device: &Device) -> Result<Box<dyn Run>, JsError>
where
    G: Rules + Default + Serialize + DeserializeOwned,
{
    let (game, config) = settings::<G>(asked)?;
    match Trainer::obstacle_to(game, &config, device) {
        None => Ok(Box::new(Trainer::new(game, &config, device))),
        Some(obstacle) => {
            Err(JsError::new(&format!("a page trains the fast way only: {obstacle}")))
        }
    }
}

/// What trains, for people.
#[derive(Serialize)]
struct About {
    device: String,
    api: String,
    way: String,
    software: bool,
    version: &'static str,
}

/// A training run.
#[wasm_bindgen]
pub struct Training {
    run: Box<dyn Run>,
    device: DeviceInfo,
}

#[wasm_bindgen]
impl Training {
    /// A run at its start, by `settings`: TOML with `env`, the name of a game, and whatever differs from
    /// that game's defaults. On WebGPU, or else on the CPU.
    pub async fn create(settings: String, gpu: bool) -> Result<Training, JsError> {
        let changes = overlay::parse("the settings", &settings)?;
        let name = changes.get("env").and_then(|name| name.as_str()).unwrap_or_default();
        let begin = match name {
            Fruit::NAME => begin::<Fruit>,
            Catch::NAME => begin::<Catch>,
            CartPole::NAME => begin::<CartPole>,
            _ => {
                let (a, b, c) = (Fruit::NAME, Catch::NAME, CartPole::NAME);
                let message = format!("`env` must name the game: {a}, {b} or {c}");
                return Err(JsError::new(&message));
            }
        };
        let chosen = if gpu { device::start_in_browser().await? } else { device::choose("cpu")? };
        Ok(Self { run: begin(&settings, &chosen.device)?, device: chosen.info })
    }

    /// One iteration; gives its record as JSON, a line of `metrics.jsonl`, with an evaluation where one
    /// is due.
    pub async fn iterate(&mut self) -> Result<String, JsError> {
        let (done, all) = self.run.iterations();
        if done >= all {
            return Err(JsError::new(&format!("this run has done all its {all} iterations")));
        }
        let record = self.run.iterate().await?;
        Ok(serde_json::to_string(&record)?)
    }

    /// The policy as it is, as a file.
    pub async fn policy(&self) -> Vec<u8> {
        self.run.policy().await
    }

    /// All settings, as TOML.
    pub fn settings(&self) -> String {
        self.run.settings()
    }

    /// The device, its interface and the way taken, as JSON.
    pub fn about(&self) -> Result<String, JsError> {
        let about = About {
            device: self.device.description.clone(),
            api: self.device.api.clone(),
            way: self.run.describe(),
            software: self.device.software,
            version: env!("CARGO_PKG_VERSION"),
        };
        Ok(serde_json::to_string(&about)?)
    }
}
