//! A training run as the sections of a checkpoint, and back.

use super::Trainer;
use super::engine::with_way;
use super::way::{State as Kept, Way};
use crate::checkpoint::{Checkpoint, CheckpointError, Section};
use crate::config::{ConfigError, TrainConfig, overlay};
use crate::env::Rules;
use crate::learner::Moments;
use crate::policy::{Mlp, Parameter, named_parameters, unflatten};
use crate::rollout::SeatsError;
use burn::cubecl::future::block_on;
use burn::tensor::{Device, Tensor, TensorData};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const CONFIG: &str = "config.toml";
const STATE: &str = "state.json";
const WEIGHTS: &str = "weights.safetensors";
const FIRST_MOMENT: &str = "first_moment.safetensors";
const SECOND_MOMENT: &str = "second_moment.safetensors";
const REFERENCE: &str = "reference.safetensors";
const GAMES: &str = "games.safetensors";
/// The version of all sections that this build writes, and the newest that it reads.
const VERSION: u32 = 1;

/// Counters of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct State {
    iteration: u32,
    optimizer_steps: u64,
    best_score: Option<f64>,
    best_iteration: Option<u32>,
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
    Games(#[from] SeatsError),
    /// It is a checkpoint of another game.
    #[error("the checkpoint is of the game `{found}`, not `{expected}`")]
    OtherGame {
        /// The game wanted.
        expected: String,
        /// The game found.
        found: String,
    },
    /// The weights are of another network.
    #[error("the checkpoint's {section} do not fit the network: {reason}")]
    OtherShape {
        /// Which section.
        section: String,
        /// What differs.
        reason: String,
    },
    /// A section that is not what its name says.
    #[error("the checkpoint's {section} cannot be read: {reason}")]
    Unreadable {
        /// Which section.
        section: String,
        /// What the parser says.
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

/// The policy in a checkpoint, on `device`.
///
/// # Errors
/// If the checkpoint does not hold a policy for this game.
pub fn load_policy<G: Rules>(
    checkpoint: &Checkpoint,
    game: G,
    config: &TrainConfig,
    device: &Device,
) -> Result<Mlp, SnapshotError> {
    let policy = Mlp::new(game.num_features(), game.num_actions(), &config.policy, 0, device);
    let weights = read_params(checkpoint, WEIGHTS, &named_parameters(&policy))?;
    let count = weights.len();
    let weights = Tensor::from_data(TensorData::new(weights, [count]), device);
    Ok(unflatten(policy, &weights))
}

impl<G: Rules + Serialize> Trainer<G> {
    /// Everything that the run needs to go on. On a device this reads back and waits.
    pub fn snapshot(&self) -> Checkpoint {
        block_on(self.snapshot_async())
    }

    /// As [`Trainer::snapshot`], where nothing can be waited for.
    pub async fn snapshot_async(&self) -> Checkpoint {
        let names = named_parameters(&self.policy());
        let kept = with_way!(&self.engine, way => way.export().await);
        let state = State {
            iteration: self.iteration,
            optimizer_steps: kept.moments.steps,
            best_score: self.best.map(|(score, _)| score),
            best_iteration: self.best.map(|(_, iteration)| iteration),
        };
        let mut state = serde_json::to_vec_pretty(&state).expect("counters are plain numbers");
        state.push(b'\n');
        let mut sections = vec![
            (CONFIG, config_toml(&self.game, &self.config).into_bytes()),
            (STATE, state),
            (WEIGHTS, params_bytes(&names, &kept.params)),
            (FIRST_MOMENT, params_bytes(&names, &kept.moments.first_moment)),
            (SECOND_MOMENT, params_bytes(&names, &kept.moments.second_moment)),
            (GAMES, games_bytes(&kept.games, self.config.rollout.num_groups)),
        ];
        if let Some(reference) = &kept.reference {
            sections.push((REFERENCE, params_bytes(&names, reference)));
        }
        let sections = sections.into_iter().map(|(name, bytes)| Section {
            name: name.to_string(),
            version: VERSION,
            bytes,
        });
        Checkpoint { iteration: u64::from(self.iteration), sections: sections.collect() }
    }

    /// A run that goes on from a checkpoint. `config` and `game` are those of the checkpoint
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
        let mut trainer = Self::new(game, config, device);
        let section = checkpoint.section(STATE, VERSION)?;
        let state: State =
            serde_json::from_slice(&section.bytes).map_err(|e| unreadable(STATE, e))?;
        let names = named_parameters(&trainer.policy());
        let params = |section: &str| read_params(checkpoint, section, &names);
        let kept = Kept {
            params: params(WEIGHTS)?,
            moments: Moments {
                first_moment: params(FIRST_MOMENT)?,
                second_moment: params(SECOND_MOMENT)?,
                steps: state.optimizer_steps,
            },
            reference: (config.loss.kl_coef > 0.0).then(|| params(REFERENCE)).transpose()?,
            games: read_games(checkpoint)?,
        };
        with_way!(&mut trainer.engine, way => way.import(&kept))?;
        trainer.iteration = state.iteration;
        trainer.best = state.best_score.zip(state.best_iteration);
        Ok(trainer)
    }
}

fn unreadable(section: &str, reason: impl ToString) -> SnapshotError {
    SnapshotError::Unreadable { section: section.to_string(), reason: reason.to_string() }
}

/// A parameter vector as named tensors.
fn params_bytes(names: &[Parameter], params: &[f32]) -> Vec<u8> {
    let bytes: Vec<u8> = params.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut offset = 0;
    let views = names.iter().map(|parameter| {
        let len = 4 * parameter.shape.iter().product::<usize>();
        let view =
            TensorView::new(Dtype::F32, parameter.shape.clone(), &bytes[offset..offset + len])
                .expect("the length is that of the shape");
        offset += len;
        (parameter.name.clone(), view)
    });
    let views: Vec<_> = views.collect();
    safetensors::serialize(views, None).expect("names and shapes are those of a module")
}

/// The parameter vector that [`params_bytes`] wrote.
fn read_params(
    checkpoint: &Checkpoint,
    name: &str,
    parameters: &[Parameter],
) -> Result<Vec<f32>, SnapshotError> {
    let section = checkpoint.section(name, VERSION)?;
    let tensors = SafeTensors::deserialize(&section.bytes).map_err(|e| unreadable(name, e))?;
    let other = |reason: String| SnapshotError::OtherShape { section: name.to_string(), reason };
    if tensors.len() != parameters.len() {
        let (found, expected) = (tensors.len(), parameters.len());
        return Err(other(format!("it holds {found} tensors instead of {expected}")));
    }
    let mut params = Vec::new();
    for parameter in parameters {
        let view = tensors
            .tensor(&parameter.name)
            .map_err(|_| other(format!("`{}` is missing", parameter.name)))?;
        if view.shape() != parameter.shape || view.dtype() != Dtype::F32 {
            return Err(other(format!(
                "`{}` is {:?} {:?} instead of F32 {:?}",
                parameter.name,
                view.dtype(),
                view.shape(),
                parameter.shape
            )));
        }
        let words = view.data().chunks_exact(4);
        params.extend(words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    }
    Ok(params)
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
