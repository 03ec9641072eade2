//! `grove eval`: evaluates a policy on fresh episodes, or a language model on held-out prompts.

use super::args::EvalArgs;
use super::games::{ConfigurableGame, Games};
use super::models::Models;
use super::output::{print_json, print_result};
use super::progress_note::with_note;
use super::validation::read_valid_settings;
use super::{ranks, session, text};
use crate::checkpoint::Checkpoint;
use crate::run::{RunFolder, Scores, Subject, is_of_language_model, score_policy};
use crate::text::generate::Sampling;
use crate::trainer::read_game_name;
use crate::trainer::text::{
    LanguageSettings, LanguageTrainer, load_language_model, read_settings, split_language_settings,
};
use anyhow::{Result, bail};
use serde::Serialize;
use std::time::Instant;

/// Completions per prompt, unless --k is given.
const DEFAULT_COMPLETIONS: usize = 8;

/// The result of an evaluation.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    subject: Subject,
    run: String,
    iteration: u64,
    seed: u64,
    device: &'static str,
    seconds: f64,
    #[serde(flatten)]
    scores: Scores,
}

/// Evaluates a policy or a language model, and prints its scores.
pub fn run(games: &Games, args: EvalArgs) -> Result<()> {
    ranks::start_thread_pool(args.threads)?;
    let checkpoint = session::load_policy_checkpoint(&args.run)?;
    if is_of_language_model(&checkpoint) {
        return evaluate_language_model(&args, &checkpoint);
    }
    let has_language_options = args.model.is_some() || args.task_data.is_some() || args.k.is_some();
    if has_language_options || args.verifier.is_given() {
        let run = args.run.display();
        bail!(
            "{run} is of a game; --model, --task-data, --k and --verifier are for language models"
        );
    }
    (games.find(&read_game_name(&checkpoint)?)?.eval)(&games.models, &args, &checkpoint)
}

/// Evaluates a policy for a game.
pub fn evaluate<G: ConfigurableGame>(
    models: &Models,
    args: &EvalArgs,
    checkpoint: &Checkpoint,
) -> Result<()> {
    let (game, config) = read_valid_settings::<G>(models, checkpoint)?;
    let policy = models.load_policy(checkpoint, game, &config)?;
    let subject = Subject::Env(G::NAME.to_string());
    evaluate_and_report(args, checkpoint, subject, || {
        Ok(score_policy(&policy, game, args.episodes, args.seed))
    })
}

/// Evaluates a language model on held-out prompts.
fn evaluate_language_model(args: &EvalArgs, checkpoint: &Checkpoint) -> Result<()> {
    let saved = split_language_settings(read_settings(checkpoint)?)?;
    let LanguageSettings { task_name, mut task_settings, mut config } = saved;
    config.seed = args.seed;
    let load = || load_language_model(checkpoint, args.model.as_deref());
    let model = with_note(text::READING_MODEL, load)?;
    let data = args.task_data.as_deref();
    let task = text::reopen_task(&task_name, &mut task_settings, data, &args.verifier)?;
    let trainer = LanguageTrainer::for_task(task, config, Some(model))?;
    let trainer = trainer.with_checkpoint(checkpoint)?;
    let sampling = trainer.sampling();
    let greedy = Sampling { temperature: 0.0, ..sampling.clone() };
    let k = args.k.unwrap_or(DEFAULT_COMPLETIONS);
    evaluate_and_report(args, checkpoint, Subject::Task(task_name), || {
        Ok(Scores {
            greedy: trainer.evaluate_fresh(args.episodes, 1, &greedy)?,
            sampled: Some(trainer.evaluate_fresh(args.episodes, k, &sampling)?),
            seed: args.seed,
            reference_scores: Vec::new(),
        })
    })
}

fn evaluate_and_report(
    args: &EvalArgs,
    checkpoint: &Checkpoint,
    subject: Subject,
    evaluate: impl FnOnce() -> Result<Scores>,
) -> Result<()> {
    let iteration = checkpoint.iteration;
    let started = Instant::now();
    let episodes = match subject {
        Subject::Env(_) => format!("{} held-out episodes", args.episodes),
        // There may be fewer of them.
        Subject::Task(_) => "held-out prompts".to_string(),
    };
    let note = format!("Evaluating on {episodes}, greedy and sampled.");
    let scores = with_note(&note, evaluate)?;
    // A run may be named by its game.
    let folder = RunFolder::find(&args.run);
    let run = folder.as_ref().map_or(&*args.run, RunFolder::path).display().to_string();
    if !args.json {
        let name = subject.name();
        return print_result(format_args!("{name}, iteration {iteration} of {run}\n\n{scores}"));
    }
    print_json(&Report {
        subject,
        run,
        iteration,
        seed: args.seed,
        device: "cpu",
        seconds: started.elapsed().as_secs_f64(),
        scores,
    })
}
