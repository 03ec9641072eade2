//! A rank's part of a run, and the exchange of game states between ranks.

use crate::data::{GameSums, WindowSet};
use crate::env::{self, Env, HostEnvs, Rules};
use crate::model::Network;
use crate::parallel::{Shards, Team, TeamError};
use crate::rollout::RolloutKeys;
use crate::settings::{RolloutConfig, TrainConfig};
use std::ops::Range;

/// Inputs of an engine: the game and the model to train, and the source to learn from.
pub(super) struct EngineInputs<G> {
    pub game: G,
    pub model: Network,
    /// Dataset to learn from instead of games.
    pub data: Option<WindowSet>,
    /// Environments on the host to learn from instead of games.
    pub host: Option<HostEnvs>,
}

impl<G> EngineInputs<G> {
    /// Reduces the inputs to this rank's part of the run, in which the shards of a minibatch have at least
    /// `min_shard_steps` steps.
    ///
    /// # Errors
    /// If there are more ranks than shards.
    pub fn reduce_to_rank(
        self,
        config: &TrainConfig,
        team: &Team,
        min_shard_steps: usize,
    ) -> Result<(Self, RankPart), TeamError> {
        let items = self.data.as_ref().map_or(config.rollout.num_groups, WindowSet::len);
        // A device sums over all of its shards at once, so they may be small.
        let min_shard_steps = if team.has_devices() { 1 } else { min_shard_steps };
        let counts = config.shard_counts(items, min_shard_steps);
        let shards = team.cut_into_shards(items, counts.shards).with_strata(counts.strata);
        if team.size() > shards.count() {
            return Err(TeamError::TooManyRanks { ranks: team.size(), shards: shards.count() });
        }
        let own = shards.own_items();
        let data = self.data.map(|data| data.select(own.clone()));
        let RolloutConfig { num_groups, group_size, .. } = config.rollout;
        let (num_groups, games_per_item) =
            if data.is_some() { (num_groups, 1) } else { (own.len(), group_size) };
        let own_rollout = RolloutConfig { num_groups, ..config.rollout.clone() };
        let game_shards = shards.in_smaller_units(games_per_item);
        let (config, team) = (config.clone(), team.clone());
        let part = RankPart { config, team, shards, game_shards, own_rollout };
        Ok((Self { data, ..self }, part))
    }
}

impl<G: Rules> EngineInputs<G> {
    /// Checks that the settings are in range, and that the inputs fit each other and the settings.
    ///
    /// # Panics
    /// If they do not.
    pub fn check(&self, config: &TrainConfig) {
        let Self { game, model, data, host } = self;
        assert_valid(game, config);
        let (features, actions) = (game.num_features(), game.num_actions());
        let found = model.sizes(features);
        assert!(
            (found.num_features, found.num_actions) == (features, actions),
            "the network has {} features and {} actions, but the game `{}` has {features} and {actions}",
            found.num_features,
            found.num_actions,
            G::NAME
        );
        let path = &config.data.path;
        assert!(
            config.data.is_on() == data.is_some(),
            "data.path is {path:?}, which must name a dataset exactly where the run learns from one (`with_team`)"
        );
        assert!(
            G::IS_PLAYABLE || data.is_some() || host.is_some(),
            "the game `{}` cannot be played: it needs environments (`with_envs`) or a dataset (`with_team`)",
            G::NAME
        );
    }
}

/// Checks that the parameters and sizes of a game and the settings of a run are in range.
///
/// # Panics
/// If one is not, with a sentence about it.
pub(super) fn assert_valid<G: Env>(game: &G, config: &TrainConfig) {
    let settings = || config.validate_for_any_model();
    let validity = env::validate(game).and_then(|()| settings().map_err(|error| error.to_string()));
    if let Err(reason) = validity {
        panic!("the game `{}` cannot be trained: {reason}", G::NAME);
    }
}

/// A rank's part of a run.
#[derive(Clone, Debug)]
pub(super) struct RankPart {
    /// The settings of the run.
    pub config: TrainConfig,
    /// The ranks that share the run.
    pub team: Team,
    /// Shards of the groups of games, or of a dataset's windows; this rank has a range of them.
    pub shards: Shards,
    /// The same shards in units of games instead of groups.
    pub game_shards: Shards,
    /// Settings of the rollouts of this rank's groups.
    pub own_rollout: RolloutConfig,
}

impl RankPart {
    /// Steps that all ranks record in an iteration.
    pub fn recorded_steps(&self) -> u64 {
        self.config.steps_per_iteration(self.shards.num_items())
    }

    /// Steps of an iteration that count: the recorded ones, or `played` where not every step does.
    pub fn counted_steps(&self, played: f64) -> u64 {
        if self.config.plays_all_steps() { self.recorded_steps() } else { played as u64 }
    }

    /// Adds up the sums of this rank's games (none for a dataset) and of the other ranks' games, in an order that does
    /// not depend on the number of ranks.
    pub fn sum_games(&self, sums: &[GameSums]) -> Result<GameSums, TeamError> {
        if sums.is_empty() {
            return Ok(GameSums::default());
        }
        let sum_of = |game: usize| sums[game].to_array();
        Ok(self.team.all_reduce_item_numbers(&self.game_shards, sum_of)?.into())
    }

    /// Keys of this rank's games.
    pub fn keys(&self) -> RolloutKeys {
        RolloutKeys::new(self.config.seed).with_first_group(self.shards.own_items().start)
    }
}

/// Gathers the game states of all ranks, `[env_words, num_groups]`, from this rank's, `[env_words, own groups]`.
pub(super) fn gather_game_states(
    ours: &[u32],
    num_groups: usize,
    team: &Team,
) -> Result<Vec<u32>, TeamError> {
    let parts = gather_parts(ours, team)?;
    let words = parts.iter().map(Vec::len).sum::<usize>() / num_groups;
    let gather_word = |w: usize| {
        parts.iter().flat_map(move |part| {
            let groups = part.len() / words;
            part[w * groups..(w + 1) * groups].iter().copied()
        })
    };
    Ok((0..words).flat_map(gather_word).collect())
}

/// Gathers an array from every rank, such as the model's memory at its game states.
pub(super) fn gather_parts<T: bytemuck::Pod>(
    ours: &[T],
    team: &Team,
) -> Result<Vec<Vec<T>>, TeamError> {
    let parts = team.all_gather(bytemuck::cast_slice(ours))?;
    Ok(parts.iter().map(|part| bytemuck::pod_collect_to_vec(part)).collect())
}

/// Selects this rank's game states, `[env_words, own groups]`, from all, `[env_words, num_groups]`; empty if those are.
pub(super) fn select_game_states(all: &[u32], num_groups: usize, own: &Range<usize>) -> Vec<u32> {
    all.chunks_exact(num_groups).flat_map(|word| &word[own.clone()]).copied().collect()
}

/// Selects this rank's part of the model's memory from that of all groups, `[num_groups, memory_size]`.
pub(super) fn select_memory(all: &[f32], num_groups: usize, own: &Range<usize>) -> Vec<f32> {
    let size = all.len() / num_groups;
    all[own.start * size..own.end * size].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn game_states_are_reassembled_in_order() {
        let (words, groups) = (5, 7);
        let all: Vec<u32> = (0..words * groups).collect();
        let memory: Vec<f32> = (0..3 * groups).map(|i| i as f32).collect();
        let groups = groups as usize;
        crate::parallel::tests::run_on_ranks(3, |team| {
            let own = team.cut_into_shards(groups, 4).own_items();
            let ours = select_game_states(&all, groups, &own);
            assert_eq!(ours.len(), 5 * own.len());
            assert_eq!(gather_game_states(&ours, groups, &team).unwrap(), all);
            let ours = select_memory(&memory, groups, &own);
            assert_eq!(gather_parts(&ours, &team).unwrap().concat(), memory);
            assert!(gather_game_states(&[], groups, &team).unwrap().is_empty());
        });
    }
}
