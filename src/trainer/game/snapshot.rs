//! Checkpoints of a game's run, and its policy as a file.

use super::{GameEngine, GameTrainer, config_to_toml};
use crate::checkpoint::{Checkpoint, Section};
use crate::device;
use crate::env::Rules;
use crate::learner::Moments;
use crate::model::policy_file::{self, Header, PolicyFileError, write_params};
use crate::model::{NativePolicy, Network, Parameter};
use crate::parallel::TeamError;
use crate::rollout::env_words;
use crate::settings::{ConfigError, ModelKind, RunKind, TrainConfig, overlay};
use crate::trainer::choose::with_engine;
use crate::trainer::engine::{PolicyEngine, PolicyState};
use crate::trainer::rank_part::{
    gather_game_states, gather_parts, select_game_states, select_memory,
};
use crate::trainer::snapshot::{
    CONFIG, Counters, FIRST_MOMENT, Persistent, REFERENCE, SECOND_MOMENT, SnapshotError, VERSION,
    WEIGHTS, new_section, read_params, read_settings, unreadable_error,
};
use burn::tensor::Device;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::Serialize;
use serde::de::DeserializeOwned;

const GAMES: &str = "games.safetensors";
/// Version of the saved games; 1 held levels in place of how far each episode's time is ahead.
const GAMES_VERSION: u32 = 2;
const MEMORY: &str = "memory.safetensors";

/// Reads the name of the game in a checkpoint.
///
/// # Errors
/// If the checkpoint does not say, or is of a language model.
pub fn read_game_name(checkpoint: &Checkpoint) -> Result<String, SnapshotError> {
    let mut settings = read_settings(checkpoint)?;
    match settings.remove("env") {
        Some(toml::Value::String(name)) => Ok(name),
        _ if RunKind::of(&settings) == Some(RunKind::Language) => {
            let what = "they are of a language model, which plays no game";
            Err(ConfigError::OtherKind(what.to_string()).into())
        }
        _ => Err(unreadable_error(CONFIG, "there is no `env`")),
    }
}

/// Reads the settings in a checkpoint: the game's parameters and the run's settings.
///
/// # Errors
/// If they are missing, cannot be read, or the game is not `G`.
pub fn read_config<G: Rules + DeserializeOwned>(
    checkpoint: &Checkpoint,
) -> Result<(G, TrainConfig), SnapshotError> {
    let found = read_game_name(checkpoint)?;
    if found != G::NAME {
        let expected = G::NAME.to_string();
        return Err(SnapshotError::OtherGame { expected, found });
    }
    Ok(overlay::split_game(read_settings(checkpoint)?, G::NAME)?)
}

/// Reads the layout and the values of the parameters of a checkpoint's policy, a built-in network.
///
/// # Errors
/// If the checkpoint does not hold such a policy for this game.
pub fn read_policy_params<G: Rules>(
    checkpoint: &Checkpoint,
    game: G,
    config: &TrainConfig,
) -> Result<(Vec<Parameter>, Vec<f32>), SnapshotError> {
    if let ModelKind::UserDefined(name) = &config.policy.kind {
        return Err(SnapshotError::OtherModel { name: name.clone() });
    }
    let layout = config.policy.parameters(game.num_features(), game.num_actions());
    let values = read_params(checkpoint, WEIGHTS, &layout)?;
    Ok((layout, values))
}

/// Loads the policy of a checkpoint, a built-in network.
///
/// # Errors
/// If the checkpoint does not hold such a policy for this game.
pub fn load_policy<G: Rules>(
    checkpoint: &Checkpoint,
    game: G,
    config: &TrainConfig,
) -> Result<NativePolicy, SnapshotError> {
    let (features, actions) = (game.num_features(), game.num_actions());
    let (_, weights) = read_policy_params(checkpoint, game, config)?;
    Ok(NativePolicy::from_params(features, actions, &config.policy, &weights))
}

/// Replaces the weights of a network with those of a checkpoint's policy.
///
/// # Errors
/// If the checkpoint does not hold a policy of such a network.
pub fn load_weights(network: Network, checkpoint: &Checkpoint) -> Result<Network, SnapshotError> {
    let weights = read_params(checkpoint, WEIGHTS, &network.parameters())?;
    Ok(network.unflatten(&device::upload(weights, &network.device())))
}

/// Reads a policy file ([`crate::model::policy_file`]), which has a policy with its settings, as a checkpoint.
///
/// # Errors
/// If it is not such a file.
pub fn read_policy_file(bytes: Vec<u8>) -> Result<Checkpoint, PolicyFileError> {
    let Header { iteration, config, .. } = policy_file::read_header(&bytes)?;
    let sections = vec![new_section(CONFIG, config.into_bytes()), new_section(WEIGHTS, bytes)];
    Ok(Checkpoint { iteration, sections })
}

/// The content of a checkpoint's policy file, which [`read_policy_file`] reads.
///
/// # Errors
/// If the checkpoint holds no policy.
pub fn policy_bytes(checkpoint: &Checkpoint) -> Result<&[u8], SnapshotError> {
    Ok(&checkpoint.section(WEIGHTS, VERSION)?.bytes)
}

impl<G: Rules + Serialize> Persistent for GameEngine<G> {
    async fn export_sections(
        &self,
        iterations_done: u32,
    ) -> Result<(Vec<Section>, Counters), TeamError> {
        let layout = self.policy_engine.model().parameters();
        let mut state = with_engine!(&self.policy_engine, engine => engine.export_state().await);
        let num_groups = self.part.config.rollout.num_groups;
        if self.part.team.size() > 1 {
            state.branches = gather_game_states(&state.branches, num_groups, &self.part.team)?;
            state.memory = gather_parts(&state.memory, &self.part.team)?.concat();
        }
        let header = self.header(iterations_done);
        let encode = |values: &[f32]| write_params(&layout, values, None);
        let mut sections = vec![
            new_section(CONFIG, header.config.clone().into_bytes()),
            new_section(WEIGHTS, write_params(&layout, &state.params, Some(&header))),
            new_section(FIRST_MOMENT, encode(&state.moments.first_moment)),
            new_section(SECOND_MOMENT, encode(&state.moments.second_moment)),
            encode_games(&state.branches, num_groups),
        ];
        if let Some(reference) = &state.reference {
            sections.push(new_section(REFERENCE, encode(reference)));
        }
        if !state.memory.is_empty() {
            let memory = memory_parameter(num_groups, state.memory.len() / num_groups);
            sections.push(new_section(MEMORY, write_params(&[memory], &state.memory, None)));
        }
        let played_steps = (!self.part.config.plays_all_steps()).then_some(self.env_steps);
        let optimizer_steps = state.moments.steps;
        Ok((
            sections,
            Counters { iterations_done, optimizer_steps, played_steps, ..Counters::default() },
        ))
    }

    fn import_sections(
        &mut self,
        checkpoint: &Checkpoint,
        counters: &Counters,
    ) -> Result<(), SnapshotError> {
        let model = self.policy_engine.model();
        let memory_size = memory_size(&model, &self.device);
        let layout = model.parameters();
        let read = |section: &str| read_params(checkpoint, section, &layout);
        let num_groups = self.part.config.rollout.num_groups;
        let branches = read_games(checkpoint, [env_words(self.game), num_groups])?;
        let memory = if memory_size == 0 || branches.is_empty() {
            Vec::new()
        } else {
            read_params(checkpoint, MEMORY, &[memory_parameter(num_groups, memory_size)])?
        };
        let own = self.part.shards.own_items();
        let (branches, memory) = match self.part.team.size() {
            1 => (branches, memory),
            _ => (
                select_game_states(&branches, num_groups, &own),
                select_memory(&memory, num_groups, &own),
            ),
        };
        let state = PolicyState {
            params: read(WEIGHTS)?,
            moments: Moments {
                first_moment: read(FIRST_MOMENT)?,
                second_moment: read(SECOND_MOMENT)?,
                steps: counters.optimizer_steps,
            },
            reference: (self.part.config.loss.kl_coef > 0.0)
                .then(|| read(REFERENCE))
                .transpose()?,
            branches,
            memory,
        };
        with_engine!(&mut self.policy_engine, engine => engine.import_state(&state))?;
        let recorded_steps = self.part.recorded_steps() * u64::from(counters.iterations_done);
        self.env_steps = counters.played_steps.unwrap_or(recorded_steps);
        Ok(())
    }
}

impl<G: Rules + Serialize> GameEngine<G> {
    /// The header of a policy file.
    fn header(&self, iteration: u32) -> Header {
        let config = config_to_toml(&self.game, &self.part.config);
        Header { iteration: iteration.into(), config, dataset: None }
    }
}

impl<G: Rules + Serialize> GameTrainer<G> {
    /// Encodes the policy as a file ([`crate::model::policy_file`]). On a device this reads back.
    pub async fn encode_policy_file_async(&self) -> Vec<u8> {
        let model = self.model();
        let values = device::read_async(model.flatten()).await;
        let header = self.engine.header(self.iterations_done);
        write_params(&model.parameters(), &values, Some(&header))
    }
}

/// Size of a model's memory of one game.
fn memory_size(model: &Network, device: &Device) -> usize {
    let memory = model.initial_memory(1, &device.clone().without_autodiff());
    memory.map_or(0, |rows| rows.dims()[1])
}

fn encode_games(words: &[u32], num_groups: usize) -> Section {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::U32, vec![words.len() / num_groups, num_groups], &bytes)
        .expect("the length is that of the shape");
    let bytes = safetensors::serialize([("games", view)], None).expect("one tensor");
    Section { name: GAMES.to_string(), version: GAMES_VERSION, bytes }
}

/// Reads game states, `[env_words, num_groups]`, or none.
fn read_games(checkpoint: &Checkpoint, shape: [usize; 2]) -> Result<Vec<u32>, SnapshotError> {
    let section = checkpoint.section(GAMES, GAMES_VERSION)?;
    let tensors =
        SafeTensors::deserialize(&section.bytes).map_err(|e| unreadable_error(GAMES, e))?;
    let view = tensors.tensor("games").map_err(|e| unreadable_error(GAMES, e))?;
    let (found, dtype) = (view.shape(), view.dtype());
    if dtype != Dtype::U32 || found != shape && !view.data().is_empty() {
        let reason = format!("it has the shape {found:?} of {dtype:?} instead of {shape:?} of U32");
        return Err(unreadable_error(GAMES, reason));
    }
    Ok(view.data().as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

fn memory_parameter(num_groups: usize, memory_size: usize) -> Parameter {
    Parameter { name: "memory".to_string(), shape: vec![num_groups, memory_size] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_of_a_language_model_names_no_game() {
        let section = new_section(CONFIG, b"task = \"sort\"\n".to_vec());
        let checkpoint = Checkpoint { iteration: 1, sections: vec![section] };
        let error = read_game_name(&checkpoint).unwrap_err();
        assert!(matches!(error, SnapshotError::Config(ConfigError::OtherKind(_))), "{error}");
    }

    #[test]
    fn snapshots_with_another_number_of_groups_are_rejected() {
        let saved = |section| Checkpoint { iteration: 1, sections: vec![section] };
        let words: Vec<u32> = (0..4 * 15).collect();
        let games = saved(encode_games(&words, 15));
        assert_eq!(read_games(&games, [4, 15]).unwrap(), words);
        // As many words in all, or a number of words that other groups would divide too.
        for shape in [[15, 4], [5, 12], [4, 5], [4, 16]] {
            let said = read_games(&games, shape).unwrap_err().to_string();
            assert!(said.contains("the shape [4, 15]"), "{said}");
        }
        assert!(read_games(&saved(encode_games(&[], 15)), [4, 7]).unwrap().is_empty());
        let other = write_params(&[memory_parameter(15, 4)], &[0.0; 60], None);
        let other = Section { bytes: other, ..encode_games(&words, 15) };
        assert!(read_games(&saved(other), [4, 15]).is_err());
        let older = Section { version: 1, ..encode_games(&words, 15) };
        let said = read_games(&saved(older), [4, 15]).unwrap_err().to_string();
        assert!(
            said.contains("has version 1, but this version of Grove reads version 2"),
            "{said}"
        );
    }
}
