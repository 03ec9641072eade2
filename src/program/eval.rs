//! `grove eval`: fresh episodes with a trained policy.

use super::run_dir::find_checkpoint;
use super::say::{tell, tell_json};
use super::{EvalArgs, Games, Models, Playable, saved};
use crate::checkpoint::Checkpoint;
use crate::rng::Stream;
use crate::rollout::{Evaluation, Player, evaluate};
use crate::trainer::saved_game_name;
use anyhow::{Context, Result};
use serde::Serialize;

#[derive(Serialize)]
struct Report<'a> {
    env: &'a str,
    run: String,
    iteration: u64,
    player: &'a str,
    seed: u64,
    #[serde(flatten)]
    evaluation: Evaluation,
}

pub fn run(games: &Games, args: EvalArgs) -> Result<()> {
    super::use_threads(args.threads)?;
    let checkpoint = find_checkpoint(&args.run)
        .with_context(|| format!("{} holds no policy to evaluate", args.run.display()))?;
    games.find(&saved_game_name(&checkpoint)?)?.eval(games.models(), &args, &checkpoint)
}

/// Plays the episodes, and reports their scores.
pub fn play<G: Playable>(models: &Models, args: &EvalArgs, checkpoint: &Checkpoint) -> Result<()> {
    let (game, config) = saved::<G>(models, checkpoint)?;
    let policy = models.load_policy(checkpoint, game, &config)?;
    let (player, name) = match args.greedy {
        true => (Player::Greedy, "greedy"),
        false => (Player::Sampling, "sampling"),
    };
    let evaluation = evaluate(&policy, game, args.episodes, Stream::Evaluation, args.seed, player);
    if args.json {
        let report = Report {
            env: G::NAME,
            run: args.run.display().to_string(),
            iteration: checkpoint.iteration,
            player: name,
            seed: args.seed,
            evaluation,
        };
        return tell_json(&report);
    }
    let Evaluation { episodes, mean_score, std_error, min_score, max_score, mean_length } =
        evaluation;
    tell(format_args!(
        "{} of iteration {}, {name}, {episodes} fresh episodes:\n\
         mean score {mean_score:.3} +- {std_error:.3} (standard error), lowest {min_score}, highest \
         {max_score}, mean length {mean_length:.1} steps",
        G::NAME,
        checkpoint.iteration,
    ))
}
