//! `grove eval` of a language model's run: pass@1 and pass@k.

use super::{EvalArgs, MODEL, is_run, open};
use crate::checkpoint::Checkpoint;
use crate::model::language::LanguageModel;
use crate::program::say::{tell, tell_json};
use crate::rollout::generate::Sampling;
use crate::trainer::language::{LanguageTrainer, load_language_settings, saved_language_settings};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Evaluates the model of a run's checkpoint.
pub fn eval(args: &EvalArgs, checkpoint: &Checkpoint) -> Result<()> {
    let (name, own, mut config) = load_language_settings(saved_language_settings(checkpoint)?)?;
    config.seed = args.seed;
    let model = LanguageModel::load(&model_of(&args.run)?)?;
    let trainer = LanguageTrainer::new(open(&name, own)?, config, Some(model))?;
    let trainer = trainer.restored(checkpoint)?;
    let sampling = trainer.sampling();
    let greedy = Sampling { temperature: 0.0, ..sampling.clone() };
    let greedy = trainer.evaluate(args.episodes, 1, &greedy)?;
    let drawn = trainer.evaluate(args.episodes, args.k, &sampling)?;
    if args.json {
        let result = serde_json::json!({ "task": name, "greedy": greedy, "drawn": drawn });
        return tell_json(&result);
    }
    tell(format_args!(
        "{name}, {} prompts that were not trained on\n\
         most likely tokens   mean reward {:.4}   pass@1 {:.4}\n\
         drawn tokens         mean reward {:.4}   pass@1 {:.4}   pass@{} {:.4}",
        greedy.prompts,
        greedy.reward,
        greedy.pass_at_1,
        drawn.reward,
        drawn.pass_at_1,
        drawn.k,
        drawn.pass_at_k
    ))
}

/// The model of the run that a path is, or in which it lies: its vocabulary is with no checkpoint.
fn model_of(path: &Path) -> Result<PathBuf> {
    let place = path.canonicalize()?;
    let run = place.ancestors().take(3).find(|folder| is_run(folder)).with_context(|| {
        format!(
            "{} is a language model's checkpoint, and needs its run's folder `{MODEL}` beside it",
            path.display()
        )
    })?;
    Ok(run.join(MODEL))
}
