//! `grove eval` of a language model's run: pass@1 and pass@k.

use super::{EvalArgs, MODEL, open};
use crate::checkpoint;
use crate::model::language::LanguageModel;
use crate::program::run_dir::RunDir;
use crate::program::say::{tell, tell_json};
use crate::rollout::generate::Sampling;
use crate::trainer::language::{LanguageTrainer, load_language_settings, saved_language_settings};
use anyhow::Result;

/// Evaluates a run's best model.
pub fn eval(args: &EvalArgs) -> Result<()> {
    let dir = RunDir::open(Some(args.run.clone()), None)?;
    let checkpoint = match checkpoint::load(&dir.best()) {
        Ok(best) => best,
        Err(_) => dir.latest()?,
    };
    let (name, own, mut config) = load_language_settings(saved_language_settings(&checkpoint)?)?;
    config.seed = args.seed;
    let model = LanguageModel::load(&dir.path().join(MODEL))?;
    let trainer = LanguageTrainer::new(open(&name, own)?, config, Some(model))?;
    let trainer = trainer.restored(&checkpoint)?;
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
