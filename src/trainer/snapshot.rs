//! A training run as the sections of a checkpoint, and back.

use super::Trainer;
use super::choose::{first_network, with_engine};
use super::engine::{Engine, State as Kept};
use super::part::{all_games, all_memory, own_games, own_memory};
use crate::checkpoint::{Checkpoint, CheckpointError, Section};
use crate::config::{ConfigError, ModelKind, TrainConfig, overlay};
use crate::device;
use crate::env::Rules;
use crate::learner::Moments;
use crate::model::saved::{self, Header, SavedError, write_params};
use crate::model::{NativePolicy, Network, Parameter};
use crate::parallel::TeamError;
use crate::rollout::EnvStatesError;
use burn::cubecl::future::block_on;
use burn::tensor::Device;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(super) const CONFIG: &str = "config.toml";
pub(super) const STATE: &str = "state.json";
pub(super) const WEIGHTS: &str = "weights.safetensors";
pub(super) const FIRST_MOMENT: &str = "first_moment.safetensors";
pub(super) const SECOND_MOMENT: &str = "second_moment.safetensors";
pub(super) const REFERENCE: &str = "reference.safetensors";
const GAMES: &str = "games.safetensors";
const MEMORY: &str = "memory.safetensors";
/// The version of all sections that this build writes, and the newest that it reads.
pub(super) const VERSION: u32 = 1;

/// Counters of a run, as `state.json` keeps them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Counters {
    /// Iterations done.
    pub iteration: u32,
    /// Optimiser steps done.
    pub optimizer_steps: u64,
    best_score: Option<f64>,
    best_iteration: Option<u32>,
    /// Counters of a language model's run.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub text: Option<TextCounters>,
}

/// Counters that only a language model's run has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TextCounters {
    /// The number of the next prompt.
    pub next_prompt: u64,
    /// Tokens generated so far, and learnt from by SFT.
    #[serde(default)]
    pub env_steps: u64,
}

impl Counters {
    /// Counters of a run whose best evaluation had this value in this iteration.
    pub fn new(
        iteration: u32,
        optimizer_steps: u64,
        best: Option<(f64, u32)>,
        text: Option<TextCounters>,
    ) -> Self {
        let (best_score, best_iteration) = best.unzip();
        Self { iteration, optimizer_steps, best_score, best_iteration, text }
    }

    /// The counters in a checkpoint.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, SnapshotError> {
        let section = checkpoint.section(STATE, VERSION)?;
        serde_json::from_slice(&section.bytes).map_err(|e| unreadable(STATE, e))
    }

    /// Value and iteration of the best evaluation so far.
    pub fn best(&self) -> Option<(f64, u32)> {
        self.best_score.zip(self.best_iteration)
    }

    /// The bytes of `state.json`.
    pub fn to_json(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("counters are plain numbers");
        bytes.push(b'\n');
        bytes
    }
}

/// A checkpoint that does not fit what it is loaded into.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A section is missing or too new.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The saved settings cannot be read.
    #[error("the checkpoint's settings cannot be used: {0}")]
    Config(#[from] ConfigError),
    /// The saved games do not fit.
    #[error(transparent)]
    Games(#[from] EnvStatesError),
    /// It is a checkpoint of another game.
    #[error("the checkpoint is of the game `{found}`, not `{expected}`")]
    OtherGame {
        /// The game wanted.
        expected: String,
        /// The game found.
        found: String,
    },
    /// It is of a model that this program does not have.
    #[error("the checkpoint is of the model `{name}`, which this program does not have")]
    OtherModel {
        /// The name in its settings.
        name: String,
    },
    /// The parameters are of another network, or cannot be read.
    #[error("the checkpoint's {section}: {source}")]
    Params {
        /// The section.
        section: String,
        /// The reason.
        source: SavedError,
    },
    /// A section that is not what its name says.
    #[error("the checkpoint's {section} cannot be read: {reason}")]
    Unreadable {
        /// The section.
        section: String,
        /// The parser's message.
        reason: String,
    },
}

/// The name of the game that a checkpoint is of.
///
/// # Errors
/// If the checkpoint does not say.
pub fn saved_game_name(checkpoint: &Checkpoint) -> Result<String, SnapshotError> {
    match saved_table(checkpoint)?.remove("env") {
        Some(toml::Value::String(name)) => Ok(name),
        _ => Err(unreadable(CONFIG, "there is no `env`")),
    }
}

/// The settings in a checkpoint: the game's parameters and the run's.
///
/// # Errors
/// If they are missing, cannot be read, or the game is not `G`.
pub fn saved_config<G: Rules + DeserializeOwned>(
    checkpoint: &Checkpoint,
) -> Result<(G, TrainConfig), SnapshotError> {
    let found = saved_game_name(checkpoint)?;
    if found != G::NAME {
        let expected = G::NAME.to_string();
        return Err(SnapshotError::OtherGame { expected, found });
    }
    Ok(overlay::split(saved_table(checkpoint)?, G::NAME)?)
}

fn saved_table(checkpoint: &Checkpoint) -> Result<toml::Table, SnapshotError> {
    let section = checkpoint.section(CONFIG, VERSION)?;
    let text = std::str::from_utf8(&section.bytes).map_err(|e| unreadable(CONFIG, e))?;
    Ok(overlay::parse(CONFIG, text)?)
}

/// The settings of a run as they are saved and shown: what [`overlay::split`] takes apart.
pub fn config_toml<G: Rules + Serialize>(game: &G, config: &TrainConfig) -> String {
    let mut table = toml::Table::new();
    table.insert("env".to_string(), G::NAME.into());
    table.extend(overlay::to_table(config));
    table.insert(G::NAME.to_string(), overlay::to_table(game).into());
    toml::to_string(&table).expect("settings are plain tables")
}

/// The settings of a new run: the defaults, those of a file laid over them, then every `key=value`.
///
/// A game's own settings are read first, since the defaults may depend on them
/// ([`Env::defaults`](crate::env::Env::defaults)).
///
/// # Errors
/// If there is no such setting, or a value is not of its type.
pub fn new_settings<G>(file: &toml::Table, set: &[String]) -> Result<(G, TrainConfig), ConfigError>
where
    G: Rules + Default + Serialize + DeserializeOwned,
{
    let over = |defaults: TrainConfig| {
        let mut table = overlay::parse("the defaults", &config_toml(&G::default(), &defaults))?;
        overlay::lay_over(&mut table, file.clone())?;
        overlay::apply(&mut table, set)?;
        overlay::split::<G>(table, G::NAME)
    };
    let (game, _) = over(TrainConfig::of(&G::default())?)?;
    over(TrainConfig::of(&game)?)
}

/// The policy in a checkpoint, of a built-in network.
///
/// # Errors
/// If the checkpoint does not hold such a policy for this game.
pub fn load_policy<G: Rules>(
    checkpoint: &Checkpoint,
    game: G,
    config: &TrainConfig,
) -> Result<NativePolicy, SnapshotError> {
    check_builtin(config)?;
    let (features, actions) = (game.num_features(), game.num_actions());
    let parameters = config.policy.parameters(features, actions);
    let weights = read_params(checkpoint, WEIGHTS, &parameters)?;
    Ok(NativePolicy::from_params(features, actions, &config.policy, &weights))
}

impl Network {
    /// The policy in a checkpoint, of a network like this one, whose weights do not matter.
    ///
    /// # Errors
    /// If the checkpoint does not hold a policy of such a network.
    pub fn policy_in<G: Rules>(
        self,
        checkpoint: &Checkpoint,
        game: G,
    ) -> Result<NativePolicy, SnapshotError> {
        let network = self.with_weights_of(checkpoint)?;
        Ok(NativePolicy::new(&network, game.num_features(), game.num_actions()))
    }

    /// This network with the weights in a checkpoint, in place of its own.
    ///
    /// # Errors
    /// If the checkpoint does not hold a policy of such a network.
    pub fn with_weights_of(self, checkpoint: &Checkpoint) -> Result<Self, SnapshotError> {
        let weights = read_params(checkpoint, WEIGHTS, &self.parameters())?;
        Ok(self.unflatten(&device::upload(weights, &self.device())))
    }
}

/// Refuses settings that name a user-defined model.
fn check_builtin(config: &TrainConfig) -> Result<(), SnapshotError> {
    match &config.policy.kind {
        ModelKind::UserDefined(name) => Err(SnapshotError::OtherModel { name: name.clone() }),
        _ => Ok(()),
    }
}

/// Reads a file with a policy and its settings ([`crate::model::saved`]) as a checkpoint.
///
/// # Errors
/// If it is no such file.
pub fn policy_file(bytes: Vec<u8>) -> Result<Checkpoint, SavedError> {
    let Header { iteration, config } = saved::read_header(&bytes)?;
    let section = |name: &str, bytes| Section { name: name.to_string(), version: VERSION, bytes };
    let sections = vec![section(CONFIG, config.into_bytes()), section(WEIGHTS, bytes)];
    Ok(Checkpoint { iteration, sections })
}

impl<G: Rules + Serialize> Trainer<G> {
    /// Everything that the run needs to continue. On a device this reads back. All ranks must call this.
    ///
    /// # Errors
    /// If another rank of the run is gone or silent.
    pub fn snapshot(&self) -> Result<Checkpoint, TeamError> {
        block_on(self.snapshot_async())
    }

    /// The asynchronous form of [`Trainer::snapshot`], for where a thread must not block.
    ///
    /// # Errors
    /// As [`Trainer::snapshot`].
    pub async fn snapshot_async(&self) -> Result<Checkpoint, TeamError> {
        let names = self.model().parameters();
        let mut kept = with_engine!(&self.engine, engine => engine.export().await);
        if self.team.size() > 1 {
            kept.games = all_games(&kept.games, self.config.rollout.num_groups, &self.team)?;
            kept.memory = all_memory(&kept.memory, &self.team)?;
        }
        let state = Counters::new(self.iteration, kept.moments.steps, self.best, None).to_json();
        let header = self.header();
        let bytes = |params: &[f32]| write_params(&names, params, None);
        let mut sections = vec![
            (CONFIG, header.config.clone().into_bytes()),
            (STATE, state),
            (WEIGHTS, write_params(&names, &kept.params, Some(&header))),
            (FIRST_MOMENT, bytes(&kept.moments.first_moment)),
            (SECOND_MOMENT, bytes(&kept.moments.second_moment)),
            (GAMES, games_bytes(&kept.games, self.config.rollout.num_groups)),
        ];
        if let Some(reference) = &kept.reference {
            sections.push((REFERENCE, bytes(reference)));
        }
        if !kept.memory.is_empty() {
            sections.push((MEMORY, memory_bytes(&kept.memory, self.config.rollout.num_groups)));
        }
        let sections = sections.into_iter().map(|(name, bytes)| Section {
            name: name.to_string(),
            version: VERSION,
            bytes,
        });
        Ok(Checkpoint { iteration: u64::from(self.iteration), sections: sections.collect() })
    }

    /// The policy as one file ([`crate::model::saved`]). On a device this reads back.
    pub async fn policy_file_async(&self) -> Vec<u8> {
        let model = self.model();
        let params = device::read_async(model.flatten()).await;
        write_params(&model.parameters(), &params, Some(&self.header()))
    }

    /// The header of a policy file.
    fn header(&self) -> Header {
        let config = config_toml(&self.game, &self.config);
        Header { iteration: self.iteration.into(), config }
    }

    /// Resumes a run of a user-defined model from a checkpoint, as [`Trainer::resume`]; the saved weights replace those
    /// of `model`.
    ///
    /// # Errors
    /// If the checkpoint lacks a section or does not fit.
    pub fn resume_with_model(
        checkpoint: &Checkpoint,
        game: G,
        model: impl Into<Network>,
        config: &TrainConfig,
        device: &Device,
    ) -> Result<Self, SnapshotError> {
        Self::with_model(game, model, config, device).restored(checkpoint)
    }

    /// The run as it was when the checkpoint was saved.
    ///
    /// # Errors
    /// As [`Trainer::restore`].
    pub fn restored(mut self, checkpoint: &Checkpoint) -> Result<Self, SnapshotError> {
        self.restore(checkpoint)?;
        Ok(self)
    }

    /// Returns to the state of a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint lacks a section or does not fit.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<(), SnapshotError> {
        let model = self.model();
        let memory_size = memory_size(&model, &self.device);
        let state = Counters::of(checkpoint)?;
        let names = model.parameters();
        let params = |section: &str| read_params(checkpoint, section, &names);
        let (games, num_groups) = (read_games(checkpoint)?, self.config.rollout.num_groups);
        let memory = if memory_size == 0 || games.is_empty() {
            Vec::new()
        } else {
            read_memory(checkpoint, num_groups, memory_size)?
        };
        let own = with_engine!(&self.engine, engine => engine.shards().own_items());
        let (games, memory) = match self.team.size() {
            1 => (games, memory),
            _ => (own_games(&games, num_groups, &own), own_memory(&memory, num_groups, &own)),
        };
        let kept = Kept {
            params: params(WEIGHTS)?,
            moments: Moments {
                first_moment: params(FIRST_MOMENT)?,
                second_moment: params(SECOND_MOMENT)?,
                steps: state.optimizer_steps,
            },
            reference: (self.config.loss.kl_coef > 0.0).then(|| params(REFERENCE)).transpose()?,
            games,
            memory,
        };
        with_engine!(&mut self.engine, engine => engine.import(&kept))?;
        (self.iteration, self.best) = (state.iteration, state.best());
        Ok(())
    }
}

impl<G: Rules + Serialize> Trainer<G> {
    /// Resumes a run from a checkpoint. `config` and `game` are those of the checkpoint
    /// ([`saved_config`]), or changes of them that keep the shapes.
    ///
    /// # Errors
    /// If the checkpoint lacks a section or does not fit.
    pub fn resume(
        checkpoint: &Checkpoint,
        game: G,
        config: &TrainConfig,
        device: &Device,
    ) -> Result<Self, SnapshotError> {
        check_builtin(config)?;
        let network = first_network(game, config, device);
        Self::resume_with_model(checkpoint, game, network, config, device)
    }
}

/// The length of a model's memory of a game.
fn memory_size(model: &Network, device: &Device) -> usize {
    let memory = model.initial_memory(1, &device.clone().without_autodiff());
    memory.map_or(0, |rows| rows.dims()[1])
}

pub(super) fn unreadable(section: &str, reason: impl ToString) -> SnapshotError {
    SnapshotError::Unreadable { section: section.to_string(), reason: reason.to_string() }
}

/// The parameter vector in a section.
fn read_params(
    checkpoint: &Checkpoint,
    name: &str,
    parameters: &[Parameter],
) -> Result<Vec<f32>, SnapshotError> {
    let section = checkpoint.section(name, VERSION)?;
    let params = saved::read_params(&section.bytes, parameters);
    params.map_err(|source| SnapshotError::Params { section: name.to_string(), source })
}

fn games_bytes(words: &[u32], num_groups: usize) -> Vec<u8> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::U32, vec![words.len() / num_groups, num_groups], &bytes)
        .expect("the length is that of the shape");
    safetensors::serialize([("games", view)], None).expect("one tensor")
}

fn read_games(checkpoint: &Checkpoint) -> Result<Vec<u32>, SnapshotError> {
    let section = checkpoint.section(GAMES, VERSION)?;
    let tensors = SafeTensors::deserialize(&section.bytes).map_err(|e| unreadable(GAMES, e))?;
    let view = tensors.tensor("games").map_err(|e| unreadable(GAMES, e))?;
    let words = view.data().chunks_exact(4);
    Ok(words.map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

fn memory_bytes(numbers: &[f32], num_groups: usize) -> Vec<u8> {
    write_params(&[memory_parameter(num_groups, numbers.len() / num_groups)], numbers, None)
}

fn memory_parameter(num_groups: usize, memory_size: usize) -> Parameter {
    Parameter { name: "memory".to_string(), shape: vec![num_groups, memory_size] }
}

fn read_memory(
    checkpoint: &Checkpoint,
    num_groups: usize,
    memory_size: usize,
) -> Result<Vec<f32>, SnapshotError> {
    read_params(checkpoint, MEMORY, &[memory_parameter(num_groups, memory_size)])
}
