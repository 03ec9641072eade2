//! Model card of a trained language model: its training, its scores, and how to load it.

use super::games::Games;
use super::recorded_run::{RecordedRun, flatten};
use crate::metrics::pluralize;
use crate::run::{FinalEvaluation, format_with_prefix};
use crate::settings::overlay;
use crate::text::LanguageModel;
use crate::trainer::text::TINY;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use toml::{Table, Value};

/// Formats the card of a run's model, in the format of the Hugging Face Hub. `evaluation` is the final one,
/// if any.
pub fn format_card(
    games: &Games,
    run: &RecordedRun,
    model: &LanguageModel,
    evaluation: Option<&FinalEvaluation>,
) -> String {
    let path = Some(run.model_path())
        .filter(|path| *path != Path::new(TINY) && !path.as_os_str().is_empty());
    let hub = path.and_then(|path| hub_id(path, &model.files));
    let header = format_header(run, model, hub.as_deref());
    let base =
        hub.or(path.map(|_| run.describe_model())).unwrap_or("none: fresh weights".to_string());
    let overview = format_overview(run, model, base);
    let scores = format_scores(evaluation);
    let settings = format_changed_settings(games, run);
    [header, overview, scores, settings, format_usage(model), format_stops(&run.settings)].concat()
}

/// Formats the card's metadata for the Hub, and its title. `base` is the base model's identifier there.
fn format_header(run: &RecordedRun, model: &LanguageModel, base: Option<&str>) -> String {
    let task = run.subject();
    let algorithm = if run.is_fit() { "sft" } else { "grpo" };
    let (library, relation) =
        if model.adapters.is_some() { ("peft", "adapter") } else { ("transformers", "finetune") };
    let mut text = format!("---\npipeline_tag: text-generation\ntags: [grove, {algorithm}]\n");
    // Writing to a string cannot fail.
    if let Some(base) = base {
        let _ = write!(text, "base_model: {base}\nbase_model_relation: {relation}\n");
    }
    let _ = write!(text, "library_name: {library}\n---\n# A model for `{task}`\n\n");
    let version = env!("CARGO_PKG_VERSION");
    let _ = writeln!(text, "Trained by Grove {version} for the task `{task}`.\n");
    text
}

/// Formats a table of the model, its base model, and its training.
fn format_overview(run: &RecordedRun, model: &LanguageModel, base: String) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "| {name} | {value} |");
    };
    row("", String::new());
    row("---", "---".to_string());
    row("Base model", base);
    row("Architecture", model.shape.family.class.to_string());
    row("Parameters", format_with_prefix(model.shape.num_params() as f64));
    if let Some(adapters) = &model.adapters {
        let rank = adapters.config().r;
        let count = format_with_prefix(adapters.params().len() as f64);
        row("Adapters", format!("LoRA of rank {rank}, {count} parameters"));
    }
    let iterations = run.iterations_done();
    let tokens = format_with_prefix(run.env_steps() as f64);
    let algorithm = if run.is_fit() { " of supervised fine-tuning (SFT)" } else { "" };
    row("Training", format!("{iterations} iterations{algorithm}, {tokens} tokens"));
    let best = run.best();
    if let Some((iteration, best, score)) =
        best.and_then(|(iteration, best)| Some((iteration, best, best.score()?)))
    {
        let prompts = pluralize(best.episodes, "held-out prompt");
        row("Best evaluation", format!("{score:.3} on {prompts}, after iteration {iteration}"));
    }
    text
}

/// Formats the section of the final evaluation; empty without one.
fn format_scores(evaluation: Option<&FinalEvaluation>) -> String {
    let Some(FinalEvaluation { scores, held_out }) = evaluation else { return String::new() };
    let scores = scores.as_ref().map(ToString::to_string);
    let held_out = held_out.as_ref().map(ToString::to_string);
    let parts: Vec<String> = scores.into_iter().chain(held_out).collect();
    if parts.is_empty() {
        return String::new();
    }
    let parts = parts.join("\n\n");
    format!("\n## On other held-out prompts\n\n```text\n{parts}\n```\n")
}

/// Formats the section of settings that differ from the defaults; empty if none do.
fn format_changed_settings(games: &Games, run: &RecordedRun) -> String {
    let changes = run.changes(games).unwrap_or_else(|| flatten(&run.settings));
    // Paths are only meaningful on this machine.
    let is_shown = |value: &Value| value.as_str().is_none_or(|text| !text.contains(['/', '\\']));
    let settings = changes.iter().filter(|(_, value)| is_shown(value));
    let settings: String = settings.map(|(key, value)| format!("{key} = {value}\n")).collect();
    if settings.is_empty() {
        return settings;
    }
    format!("\n## Settings\n\nThose that are not the defaults:\n\n```toml\n{settings}```\n")
}

/// The identifier of a model on the Hugging Face Hub, from its place in the Hub's cache (`models--OWNER--NAME`) or the
/// `_name_or_path` of its configuration; `None` if neither is one.
fn hub_id(path: &Path, files: &BTreeMap<String, Vec<u8>>) -> Option<String> {
    let cached = path.iter().find_map(|part| {
        let (owner, name) = part.to_str()?.strip_prefix("models--")?.split_once("--")?;
        Some(format!("{owner}/{name}")).filter(|id| is_hub_id(id))
    });
    cached.or_else(|| {
        let config: serde_json::Value = serde_json::from_slice(files.get("config.json")?).ok()?;
        let name = config["_name_or_path"].as_str();
        name.filter(|id| is_hub_id(id) && !is_folder_of_trainer(id)).map(str::to_string)
    })
}

/// Whether `OWNER/NAME` is rather a folder into which programs write what they have trained. Files keep the name of the
/// folder from which a model was loaded.
fn is_folder_of_trainer(id: &str) -> bool {
    const FOLDERS: [&str; 9] =
        ["checkpoints", "ckpts", "model", "models", "output", "outputs", "results", "runs", "tmp"];
    let (folder, name) = id.split_once('/').unwrap_or_default();
    FOLDERS.contains(&folder.to_lowercase().as_str()) || name.starts_with("checkpoint-")
}

/// Whether a string has the form of an identifier on the Hub, `OWNER/NAME`.
fn is_hub_id(text: &str) -> bool {
    let is_word_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = |part: &str| {
        part.len() <= 96
            && part.starts_with(is_word_char)
            && part.ends_with(is_word_char)
            && part.chars().all(|c| is_word_char(c) || c == '-' || c == '.')
            && !part.contains("--")
            && !part.contains("..")
    };
    text.split_once('/').is_some_and(|(owner, name)| is_name(owner) && is_name(name))
}

/// Formats the section of commands that load the model.
fn format_usage(model: &LanguageModel) -> String {
    if model.adapters.is_some() && model.base.is_file() {
        return "\n## Use\n\n```console\n$ grove generate FOLDER 'PROMPT'\n\
                $ grove export FOLDER --merge --format safetensors --out MERGED\n```\n\n\
                The base model is a GGUF file, to which PEFT adds no adapters; `transformers` loads MERGED.\n"
            .to_string();
    }
    let python = if model.adapters.is_some() {
        "from peft import AutoPeftModelForCausalLM\nmodel = AutoPeftModelForCausalLM.from_pretrained(\"FOLDER\")"
    } else {
        "from transformers import AutoModelForCausalLM, AutoTokenizer\nmodel = \
             AutoModelForCausalLM.from_pretrained(\"FOLDER\")\ntokenizer = AutoTokenizer.from_pretrained(\"FOLDER\")"
    };
    format!(
        "\n## Use\n\n```console\n$ grove generate FOLDER 'PROMPT'\n$ grove export FOLDER --format gguf\n```\n\n\
         ```python\n{python}\n```\n"
    )
}

/// Formats the note about the strings that end completions; empty without any.
fn format_stops(settings: &Table) -> String {
    let stops = overlay::get(settings, "generation.stop").and_then(Value::as_array);
    let texts = stops.into_iter().flatten().filter_map(Value::as_str);
    let texts: Vec<String> = texts.map(|text| format!("`{text:?}`")).collect();
    if texts.is_empty() {
        return String::new();
    }
    format!(
        "\nIn training, completions ended before {}: give it to `grove generate` by `--stop`, and to `transformers` as \
         `stop_strings`.\n",
        texts.join(" or ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::LoraConfig;
    use crate::text::Adapters;

    #[test]
    fn a_base_model_is_known_by_its_place_in_the_cache_or_by_its_configuration() {
        let found = |path: &str, name: &str| {
            let config = format!("{{\"_name_or_path\": \"{name}\"}}");
            hub_id(Path::new(path), &[("config.json".to_string(), config.into())].into())
        };
        let cached = "/home/me/.cache/huggingface/hub/models--Qwen--Qwen2.5-0.5B/snapshots/060db64";
        assert_eq!(found(cached, "acme/other").unwrap(), "Qwen/Qwen2.5-0.5B");
        assert_eq!(found("models--gpt2", "acme/my_model-1.5b").unwrap(), "acme/my_model-1.5b");
        for name in [
            "",
            "gpt2",
            "./acme/model",
            "/acme/model",
            "../model",
            "~/model",
            "a/b/c",
            "acme/",
            "acme/model.",
            "acme/my model",
            "acme/a--b",
            "acme/a..b",
            "acme/model\\nlicense: mit",
            "output/checkpoint-100",
            "sorter/checkpoint-100",
            "runs/sort-1",
        ] {
            assert_eq!(found("models/mine", name), None, "{name}");
        }
        assert_eq!(found("models--runs--sorter", "runs/sort-1"), Some("runs/sorter".to_string()));
        assert_eq!(hub_id(Path::new("model.gguf"), &BTreeMap::new()), None);
        let long = "a".repeat(97);
        assert_eq!(found("model", &format!("acme/{long}")), None);
    }

    #[test]
    fn texts_that_end_completions_are_named() {
        let stops_of = |settings: &str| format_stops(&settings.parse().unwrap());
        let named = stops_of("generation = { stop = [\"\\n\", 'END'] }");
        assert!(named.contains("before `\"\\n\"` or `\"END\"`: give"), "{named}");
        assert_eq!(stops_of("generation = { stop = [] }") + &stops_of(""), "");
    }

    #[test]
    fn adapters_for_a_file_are_merged_for_other_tools() {
        let mut model = LanguageModel::smallest("ab");
        model.adapters = Some(Adapters::zeros(&model.shape, &LoraConfig::new(1)));
        let folder = tempfile::TempDir::new().unwrap();
        model.base = folder.path().to_path_buf();
        let usage = format_usage(&model);
        assert!(
            usage.contains("AutoPeftModelForCausalLM") && !usage.contains("--merge"),
            "{usage}"
        );
        model.base = folder.path().join("model.gguf");
        std::fs::write(&model.base, "").unwrap();
        let usage = format_usage(&model);
        assert!(
            usage.contains("--merge") && !usage.contains("AutoPeftModelForCausalLM"),
            "{usage}"
        );
    }
}
