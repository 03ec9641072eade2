//! `grove eval`: fresh episodes with a trained policy.

use super::run_dir::find_checkpoint;
use super::{EvalArgs, with_game};
use crate::checkpoint::Checkpoint;
use crate::env::Rules;
use crate::rng::Stream;
use crate::rollout::{Evaluation, Player, evaluate};
use crate::trainer::{load_policy, saved_config, saved_game_name};
use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

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

pub fn run(args: EvalArgs) -> Result<()> {
    super::use_threads(args.threads)?;
    let checkpoint = find_checkpoint(&args.run)
        .with_context(|| format!("{} holds no policy to evaluate", args.run.display()))?;
    let name = saved_game_name(&checkpoint)?;
    with_game!(name.as_str(), play(&args, &checkpoint))
}

fn play<G: Rules + DeserializeOwned>(args: &EvalArgs, checkpoint: &Checkpoint) -> Result<()> {
    let (game, config) = saved_config::<G>(checkpoint)?;
    let policy = load_policy(checkpoint, game, &config)?;
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
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    println!(
        "{} of iteration {}, {name}, {} fresh episodes:",
        G::NAME,
        checkpoint.iteration,
        evaluation.episodes
    );
    println!(
        "mean score {:.3} +- {:.3} (standard error), lowest {}, highest {}, mean length {:.1} steps",
        evaluation.mean_score,
        evaluation.std_error,
        evaluation.min_score,
        evaluation.max_score,
        evaluation.mean_length
    );
    Ok(())
}
