//! `grove export` of a language model: writes a GGUF file or a Hugging Face folder.

use super::args::{ExportArgs, ExportFormat};
use super::games::Games;
use super::model_card::format_card;
use super::output::{eprint_line, print_json};
use super::progress_note::with_note;
use super::recorded_run::RecordedRun;
use super::text::load_named_model;
use crate::disk;
use crate::run::RunFolder;
use crate::text::{GgufType, LanguageModel};
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::fs;
use std::path::Path;

/// Message shown while a model is written.
const WRITING_MODEL: &str = "Writing the model.";

/// Description of the written files.
#[derive(Serialize)]
struct Report<'a> {
    out: String,
    architecture: &'a str,
    parameters: usize,
    /// Whether adapters alone were written.
    is_adapter: bool,
}

/// Whether a path is the folder or file of a language model.
pub fn is_model(path: &Path) -> bool {
    path.is_file() && disk::has_extension(path, "gguf")
        || ["config.json", "adapter_config.json"].iter().any(|name| path.join(name).is_file())
}

/// Default name of an exported file without its extension: that of the folder, or of the file without its extension.
pub fn output_stem(path: &Path) -> String {
    let name = if path.is_file() { path.file_stem() } else { path.file_name() };
    // `.` and `..` have no name of their own.
    let whole = name.is_none().then(|| path.canonicalize().ok()).flatten();
    let name = name.or_else(|| whole.as_ref()?.file_name());
    name.unwrap_or_default().to_string_lossy().into_owned()
}

/// Writes a model, which `run` has trained if it is known.
pub fn write(games: &Games, args: &ExportArgs, run: Option<&RunFolder>) -> Result<()> {
    ensure!(args.samples.is_none(), "--samples is for games");
    let format = args.format.unwrap_or(ExportFormat::Gguf);
    if args.outtype.is_some() && format != ExportFormat::Gguf {
        bail!("--outtype is for the format gguf");
    }
    let suffix = match format {
        ExportFormat::Gguf => ".gguf",
        ExportFormat::Safetensors => "-model",
        ExportFormat::Onnx | ExportFormat::Json => {
            bail!("a language model is written as gguf or safetensors (a Hugging Face folder)")
        }
    };
    let mut model = load_named_model(run.map_or(&*args.run, RunFolder::path))?;
    if args.merge {
        model = model.merge_adapters();
    }
    let default_out = || format!("{}{suffix}", output_stem(&args.run)).into();
    let out = args.out.clone().unwrap_or_else(default_out);
    RunFolder::check_output(&out)?;
    if format == ExportFormat::Gguf {
        let gguf_type = args.outtype.unwrap_or(GgufType::F32);
        with_note(WRITING_MODEL, || model.save_gguf(&out, gguf_type))?;
    } else {
        write_folder(games, &model, &out, run)?;
    }
    let out = out.display().to_string();
    let is_adapter = model.adapters.is_some();
    if args.json {
        let architecture = model.shape.family.class;
        let parameters = model.shape.num_params();
        return print_json(&Report { out, architecture, parameters, is_adapter });
    }
    if is_adapter {
        eprint_line!("Wrote the adapters to {out}; --merge adds them to the weights.")
    } else {
        eprint_line!("Wrote the model to {out}.")
    }
    Ok(())
}

/// Writes a folder in Hugging Face's format, with a model card if the model is of a run.
fn write_folder(
    games: &Games,
    model: &LanguageModel,
    out: &Path,
    run: Option<&RunFolder>,
) -> Result<()> {
    ensure!(!out.exists(), "{} exists already; --out FOLDER names another one", out.display());
    let clear = |folder: &Path| fs::remove_dir_all(folder);
    disk::replace_folder(out, clear, |folder| -> Result<()> {
        with_note(WRITING_MODEL, || model.save(folder))?;
        if let Some(run) = run {
            let card = format_card(games, &RecordedRun::read(run.path())?, model, None);
            fs::write(folder.join("README.md"), card).context("cannot write the model's card")?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_after_the_whole_name_of_a_folder() {
        let temp_dir = tempfile::TempDir::new().unwrap();
        let folder = temp_dir.path().join("lr-0.1");
        fs::create_dir_all(folder.join("best")).unwrap();
        fs::write(temp_dir.path().join("policy.v2.grove"), "").unwrap();
        for (path, expected) in [
            ("lr-0.1", "lr-0.1"),
            ("lr-0.1/", "lr-0.1"),
            ("lr-0.1/.", "lr-0.1"),
            ("lr-0.1/best/..", "lr-0.1"),
            ("policy.v2.grove", "policy.v2"),
            ("fruit", "fruit"),
        ] {
            assert_eq!(output_stem(&temp_dir.path().join(path)), expected);
        }
    }
}
