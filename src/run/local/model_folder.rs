//! The folder of a run's exported language model: atomic replacement, and loading from it or from a checkpoint.

use super::{FoundCheckpoint, RunError, RunFolder};
use crate::checkpoint::{Checkpoint, MANIFEST};
use crate::disk;
use crate::settings::RunKind;
use crate::text::LanguageModel;
use crate::trainer::text::{check_base, read_settings};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Replaces `folder` atomically by one that `fill` writes to the path that it is given.
///
/// # Errors
/// If it cannot be written; the previous folder then remains.
pub fn replace<E: Into<RunError>>(
    folder: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), RunError> {
    disk::replace_folder(folder, disk::remove_tree, |new| {
        disk::pass_fault_point().map_err(RunError::file("write", new))?;
        fill(new).map_err(Into::into)?;
        sync(new).map_err(RunError::file("write", new))
    })
}

/// Place of a language model.
#[derive(Debug)]
pub enum ModelPlace {
    /// A folder or file of its own.
    Folder(PathBuf),
    /// A checkpoint: the one that the path names, or that of the best model so far of a run that has not ended.
    Checkpoint(FoundCheckpoint),
}

/// Finds the language model that a path names: the best one of a run, that of a checkpoint, or one in a folder or file.
///
/// # Errors
/// If a run or checkpoint cannot be read, or is of a game.
pub fn find_language_model(path: &Path) -> Result<ModelPlace, RunError> {
    let has = |name: &str| path.join(name).is_file();
    let is_checkpoint = has(MANIFEST) && !has("config.json");
    match RunFolder::find(path) {
        Ok(run) if run.exports_best_model() => return Ok(ModelPlace::Folder(run.model_path())),
        Err(_) if !is_checkpoint => return Ok(ModelPlace::Folder(path.to_path_buf())),
        _ => {}
    }
    let saved = FoundCheckpoint::find(path)?;
    if !is_of_language_model(&saved.checkpoint) {
        return Err(RunError::NoLanguageModel(path.to_path_buf()));
    }
    Ok(ModelPlace::Checkpoint(saved))
}

/// Whether a checkpoint is of a language model's run.
pub fn is_of_language_model(checkpoint: &Checkpoint) -> bool {
    let settings = read_settings(checkpoint);
    settings.is_ok_and(|settings| RunKind::of(&settings) == Some(RunKind::Language))
}

/// Loads a language model from a folder or file. Adapters in a run directory are combined only with the weights that
/// they were trained with.
///
/// # Errors
/// If it cannot be read, or the weights are others.
pub fn load_model(path: &Path) -> Result<LanguageModel, RunError> {
    let model = LanguageModel::load(path)?;
    if model.adapters.is_some()
        && let Some(checkpoint) = load_checkpoint_of_export(path)
    {
        check_base(&checkpoint, &model)?;
    }
    Ok(model)
}

/// Loads the checkpoint of the run whose exported model a path names, if it is one.
fn load_checkpoint_of_export(model: &Path) -> Option<Checkpoint> {
    let model = model.canonicalize().ok()?;
    let run = RunFolder::find(model.parent()?).ok().filter(|run| run.model_path() == model)?;
    Some(FoundCheckpoint::find(run.path()).ok()?.checkpoint)
}

/// Waits until a folder and its files are on disk.
fn sync(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sync(&path)?;
        } else {
            // Windows only syncs files that are open for writing.
            disk::sync(&File::options().write(true).open(path)?)?;
        }
    }
    disk::sync_folder(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::faults::{Fault, with_fault};
    use tempfile::TempDir;

    fn fill(text: &'static str) -> impl FnOnce(&Path) -> Result<(), RunError> {
        move |folder| {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("weights"), text).unwrap();
            fs::write(folder.join("vocabulary"), text).unwrap();
            Ok(())
        }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_model_is_no_run_whatever_is_in_its_folder() {
        let folder = TempDir::new().unwrap();
        for name in ["model", "best", "checkpoints"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        fs::write(folder.path().join("config.json"), "{}").unwrap();
        let place = find_language_model(folder.path()).unwrap();
        assert!(matches!(place, ModelPlace::Folder(path) if path == folder.path()));
    }

    #[test]
    fn a_fault_at_any_change_leaves_a_whole_folder() {
        let root = TempDir::new().unwrap();
        let replaced = |run: &str, fault: Fault| {
            let model = root.path().join(run).join("model");
            fs::create_dir(model.parent().unwrap()).unwrap();
            with_fault(Fault::Nothing, || replace(&model, fill("old"))).0.unwrap();
            let (replaced, changes) = with_fault(fault, || replace(&model, fill("new")));
            (model, replaced, changes)
        };
        let (_, _, changes) = replaced("whole", Fault::Nothing);
        assert!(changes > 5, "{changes}");
        for fault in (0..changes).flat_map(|at| [Fault::Once(at), Fault::Stop(at)]) {
            let (model, replaced, _) = replaced(&format!("{fault:?}"), fault);
            // The next run does this after a crash.
            disk::recover_replacement(&model, disk::remove_tree).unwrap();
            assert_eq!(names(model.parent().unwrap()), ["model"], "{fault:?}");
            let [first, second] =
                ["weights", "vocabulary"].map(|file| fs::read_to_string(model.join(file)).unwrap());
            assert!(first == second && ["old", "new"].contains(&&*first), "{fault:?}: {first}");
            assert!(first == "new" || replaced.is_err(), "{fault:?}");
        }
    }
}
