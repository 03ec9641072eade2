//! Model card of a trained language model: its training, its scores, and how to load it.

use super::games::Games;
use super::history::{History, flat};
use crate::run::{FinalScores, short};
use crate::text::LanguageModel;
use crate::trainer::text::TINY;
use std::fmt::Write;
use toml::Value;

/// Writes the card of a run's model, in the format of the Hugging Face Hub. `result` is the final evaluation, if
/// any.
pub fn card(
    games: &Games,
    run: &History,
    model: &LanguageModel,
    result: Option<&FinalScores>,
) -> String {
    let base = Some(run.model()).filter(|base| base != TINY && !base.is_empty());
    let mut text = "---\npipeline_tag: text-generation\ntags: [grove, grpo]\n".to_string();
    let library = if model.adapters.is_some() { "peft" } else { "transformers" };
    // Writing to a string cannot fail.
    let _ = write!(text, "library_name: {library}\n---\n# A model for `{}`\n\n", run.subject());
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(text, "Trained by Grove {version} for the task `{}`.\n", run.subject());
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "| {name} | {value} |");
    };
    row("", String::new());
    row("---", "---".to_string());
    row("Base model", base.unwrap_or("none: fresh weights".to_string()));
    row("Architecture", model.shape.family.class.to_string());
    row("Parameters", short(model.shape.num_params() as f64));
    if let Some(adapters) = &model.adapters {
        let (rank, count) = (adapters.config().r, short(adapters.params().len() as f64));
        row("Adapters", format!("LoRA of rank {rank}, {count} parameters"));
    }
    let (iterations, tokens) = (run.iteration(), short(run.env_steps() as f64));
    row("Training", format!("{iterations} iterations, {tokens} tokens"));
    if let Some((iteration, best)) = run.best().filter(|(_, best)| best.episodes > 0) {
        let (score, prompts) = (best.mean_score, best.episodes);
        row(
            "Best evaluation",
            format!("{score:.3} on {prompts} held-out prompts, after iteration {iteration}"),
        );
    }
    let scores = result.and_then(|result| result.scores.as_ref()).map(ToString::to_string);
    let held_out = result.and_then(|result| result.held_out.as_ref()).map(ToString::to_string);
    let final_scores: Vec<String> = scores.into_iter().chain(held_out).collect();
    if !final_scores.is_empty() {
        let scores = final_scores.join("\n\n");
        let _ = write!(text, "\n## On other held-out prompts\n\n```text\n{scores}\n```\n");
    }
    let changes = run.changes(games).unwrap_or_else(|| flat(&run.settings));
    // Paths are only meaningful on this machine.
    let is_told = |value: &Value| value.as_str().is_none_or(|text| !text.contains(['/', '\\']));
    let settings = changes.iter().filter(|(_, value)| is_told(value));
    let settings: String = settings.map(|(key, value)| format!("{key} = {value}\n")).collect();
    if !settings.is_empty() {
        let _ = write!(
            text,
            "\n## Settings\n\nThose that are not the defaults:\n\n```toml\n{settings}```\n"
        );
    }
    text + &usage(model)
}

/// Commands that load the model.
fn usage(model: &LanguageModel) -> String {
    let python = match model.adapters.is_some() {
        true => {
            "from peft import AutoPeftModelForCausalLM\nmodel = AutoPeftModelForCausalLM.from_pretrained(\"FOLDER\")"
        }
        false => {
            "from transformers import AutoModelForCausalLM, AutoTokenizer\nmodel = \
             AutoModelForCausalLM.from_pretrained(\"FOLDER\")\ntokenizer = AutoTokenizer.from_pretrained(\"FOLDER\")"
        }
    };
    format!(
        "\n## Use\n\n```console\n$ grove generate FOLDER 'PROMPT'\n$ grove export FOLDER --format gguf\n```\n\n\
         ```python\n{python}\n```\n"
    )
}
