//! `grove eval`: fresh episodes with a trained policy.

use super::run_dir::find_checkpoint;
use super::say::{tell, tell_json};
use super::score::Scores;
use super::{EvalArgs, Games, Models, Playable, language, saved};
use crate::checkpoint::Checkpoint;
use crate::trainer::saved_game_name;
use anyhow::{Context, Result};
use serde::Serialize;

#[derive(Serialize)]
struct Report<'a> {
    env: &'a str,
    run: String,
    iteration: u64,
    seed: u64,
    #[serde(flatten)]
    scores: Scores,
}

pub fn run(games: &Games, args: EvalArgs) -> Result<()> {
    super::use_threads(args.threads)?;
    let checkpoint = find_checkpoint(&args.run)
        .with_context(|| format!("{} holds no policy to evaluate", args.run.display()))?;
    if language::is_of(&checkpoint) {
        return language::eval(&args, &checkpoint);
    }
    games.find(&saved_game_name(&checkpoint)?)?.eval(games.models(), &args, &checkpoint)
}

/// Plays the episodes, and reports their scores.
pub fn play<G: Playable>(models: &Models, args: &EvalArgs, checkpoint: &Checkpoint) -> Result<()> {
    let (game, config) = saved::<G>(models, checkpoint)?;
    let policy = models.load_policy(checkpoint, game, &config)?;
    let scores = Scores::of(&policy, game, args.episodes, args.seed);
    let iteration = checkpoint.iteration;
    if args.json {
        let run = args.run.display().to_string();
        return tell_json(&Report { env: G::NAME, run, iteration, seed: args.seed, scores });
    }
    tell(format_args!(
        "{} of iteration {iteration}\n\n{}",
        G::NAME,
        scores.table(game.references())
    ))
}
