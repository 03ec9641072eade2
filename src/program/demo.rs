//! `grove demo`: records demonstrations of a player as a dataset.

use super::args::DemoArgs;
use super::games::{ConfigurableGame, Games};
use super::models::Models;
use super::output::{print_json, print_result};
use super::progress_note::with_note;
use super::session::load_policy_checkpoint;
use super::validation::read_valid_settings;
use crate::data::{DatasetWriter, EpisodeStatus, Manifest, StepColumns};
use crate::env::{self, Episode, ScriptedPlayer, draw_legal_action, initial_state, step_episode};
use crate::model::{Actor, LANES, NativePolicy, argmax_lane, splat};
use crate::rng::{Stream, draw};
use crate::rollout::{EpisodeResult, Evaluation};
use crate::run::{format_with_prefix, pluralize};
use crate::trainer::{new_settings, read_game_name};
use anyhow::{Result, bail};
use rayon::prelude::*;
use serde::Serialize;
use std::path::Path;

/// Episodes per shard of the dataset.
const EPISODES_PER_SHARD: u32 = 4096;

/// Records demonstrations of a game, by default the first one.
pub fn run(games: &Games, args: DemoArgs) -> Result<()> {
    (games.find_or_default(args.game.as_deref())?.demo)(&games.models, &args)
}

/// Description of the dataset.
#[derive(Serialize)]
struct Report<'a> {
    env: &'a str,
    player: String,
    out: String,
    episodes: u32,
    steps: u64,
    seed: u64,
    mean_score: f64,
    std_error: Option<f64>,
}

/// The player that demonstrates.
enum Demonstrator {
    Random,
    Scripted(ScriptedPlayer),
    Policy(Box<NativePolicy>),
}

/// Plays the episodes and writes the dataset.
pub fn demonstrate<G: ConfigurableGame>(models: &Models, args: &DemoArgs) -> Result<()> {
    let (game, _) = new_settings::<G>(&toml::Table::new(), &args.set)?;
    env::validate(&game).map_err(anyhow::Error::msg)?;
    let player = find_demonstrator(models, game, &args.player)?;
    let manifest = Manifest {
        settings: serde_json::to_value(game)?.as_object().cloned().unwrap_or_default(),
        player: args.player.display().to_string(),
        features: game.feature_names(),
        actions: game.action_names(),
        license: "CC0-1.0".to_string(),
        ..Manifest::new(G::NAME)
    };
    let mut writer = DatasetWriter::create(&args.out, manifest)?;
    let note = format!("Playing {}.", pluralize(args.episodes as usize, "episode"));
    let results = with_note(&note, || write_episodes(&mut writer, game, &player, args))?;
    writer.finish()?;
    let Evaluation { mean_score, std_error, .. } = Evaluation::from_results(&results);
    let steps: u64 = results.iter().map(|episode| u64::from(episode.length)).sum();
    let out = args.out.display().to_string();
    let DemoArgs { episodes, seed, .. } = *args;
    if args.json {
        let env = G::NAME;
        let player = args.player.display().to_string();
        let report = Report { env, player, out, episodes, steps, seed, mean_score, std_error };
        return print_json(&report);
    }
    print_result(format_args!(
        "Wrote {} of {} ({} steps) by `{}` to {out}; mean score {mean_score:.3}{}.",
        pluralize(episodes as usize, "episode"),
        G::NAME,
        format_with_prefix(steps as f64),
        args.player.display(),
        std_error.map_or(String::new(), |error| format!(" ± {error:.3} (standard error)"))
    ))
}

/// Plays the episodes and writes them shard by shard. Returns their results.
fn write_episodes<G: ConfigurableGame>(
    writer: &mut DatasetWriter,
    game: G,
    player: &Demonstrator,
    args: &DemoArgs,
) -> Result<Vec<EpisodeResult>> {
    let key = draw(Stream::Demonstration.key(args.seed), 0);
    let mut results = Vec::with_capacity(args.episodes as usize);
    for first in (0..args.episodes).step_by(EPISODES_PER_SHARD as usize) {
        let episodes = first..args.episodes.min(first + EPISODES_PER_SHARD);
        let played = episodes.into_par_iter().map(|i| play_episode(game, player, draw(key, i)));
        let played: Vec<(StepColumns, f64)> = played.collect();
        let mut shard = StepColumns { num_features: game.num_features(), ..StepColumns::default() };
        for (steps, score) in played {
            results.push(EpisodeResult { score, length: steps.actions.len() as u32 });
            shard.append(steps);
        }
        writer.write(&shard)?;
    }
    Ok(results)
}

/// Finds a player by name, or loads the policy of a run.
fn find_demonstrator<G: ConfigurableGame>(
    models: &Models,
    game: G,
    name: &Path,
) -> Result<Demonstrator> {
    if name == Path::new("random") {
        return Ok(Demonstrator::Random);
    }
    let mut players = game.players();
    if let Some(i) = players.iter().position(|player| name == Path::new(player.name())) {
        return Ok(Demonstrator::Scripted(players.swap_remove(i)));
    }
    let shown = name.display();
    if !name.exists() {
        let names: Vec<_> = players.iter().map(ScriptedPlayer::name).collect();
        bail!(
            "{} has no player `{shown}`, and there is no such run; its players are: {}",
            G::NAME,
            [&["random"], &*names].concat().join(", ")
        );
    }
    let checkpoint = load_policy_checkpoint(name)?;
    let policy_game = read_game_name(&checkpoint)?;
    if policy_game != G::NAME {
        bail!("the policy in {shown} plays `{policy_game}`, not `{}`", G::NAME);
    }
    let (_, config) = read_valid_settings::<G>(models, &checkpoint)?;
    Ok(Demonstrator::Policy(Box::new(models.load_policy(&checkpoint, game, &config)?)))
}

/// Plays one episode on a level. Returns its steps and its score.
fn play_episode<G: ConfigurableGame>(
    game: G,
    player: &Demonstrator,
    level: u32,
) -> (StepColumns, f64) {
    let mut state = initial_state::<G>(level, game);
    let mut episode = Episode { level, ..Episode::default() };
    let mut steps = StepColumns::default();
    let mut actor_state = match player {
        Demonstrator::Policy(policy) => {
            Some((splat(&policy.initial_memory()), policy.new_scratch()))
        }
        _ => None,
    };
    loop {
        let obs: Vec<f32> = (0..game.num_features()).map(|i| G::feature(&state, i, game)).collect();
        let action = match (player, &mut actor_state) {
            (Demonstrator::Policy(policy), Some((memory, scratch))) => {
                let logits = policy.compute_logits(&splat(&obs), memory, scratch);
                let mut masked = logits.to_vec();
                for (a, logit) in masked.iter_mut().enumerate() {
                    if G::HAS_ILLEGAL_ACTIONS && !G::is_legal(&state, a, game) {
                        *logit = [f32::NEG_INFINITY; LANES];
                    }
                }
                argmax_lane(&masked, 0)
            }
            (Demonstrator::Scripted(player), _) => player.act(&state),
            _ => draw_legal_action(&state, draw(!level, episode.time), game)
                .expect("an action is legal"),
        };
        let result = step_episode::<G>(&mut state, &mut episode, action, game);
        steps.obs.extend(obs);
        steps.actions.push(action as i32);
        steps.weights.push(1.0);
        steps.statuses.push(EpisodeStatus::new(result.terminated, result.truncated));
        if result.has_ended() {
            return (steps, f64::from(result.episode_score));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::HostGame;
    use std::collections::BTreeSet;

    #[test]
    fn the_random_player_takes_all_of_many_actions() {
        let game = HostGame { num_actions: 300, ..HostGame::default() };
        let first = |level| play_episode(game, &Demonstrator::Random, level).0.actions[0];
        assert_eq!((0..10_000).map(first).collect::<BTreeSet<i32>>().len(), 300);
    }
}
