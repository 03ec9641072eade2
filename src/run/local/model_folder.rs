//! The folder of a run's language model, replaced in one step, and read again.

use super::{RunError, RunFolder, SavedPolicy};
use crate::checkpoint::Checkpoint;
use crate::disk;
use crate::text::LanguageModel;
use crate::trainer::text::check_base;
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// Replaces `folder` by the one that `fill` writes at the path it is given.
///
/// # Errors
/// If it cannot be written; the old folder is as it was then.
pub fn replace<E: Into<RunError>>(
    folder: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), RunError> {
    disk::replace_folder(folder, clear, |new| {
        disk::step().map_err(RunError::file("write", new))?;
        fill(new).map_err(Into::into)?;
        sync(new).map_err(RunError::file("write", new))
    })
}

/// Reads a language model from a folder or a file. The adapters in the folder of a run are used with the weights only
/// that they were trained with.
///
/// # Errors
/// If it cannot be read, or the weights are others.
pub fn load_model(path: &Path) -> Result<LanguageModel, RunError> {
    let model = LanguageModel::load(path)?;
    if model.adapters.is_some()
        && let Some(checkpoint) = trained(path)
    {
        check_base(&checkpoint, &model)?;
    }
    Ok(model)
}

/// The checkpoint of the run whose language model a path names, if it is one's.
fn trained(model: &Path) -> Option<Checkpoint> {
    let model = model.canonicalize().ok()?;
    let run = RunFolder::find(model.parent()?).ok().filter(|run| run.model() == model)?;
    Some(SavedPolicy::find(run.path()).ok()?.checkpoint)
}

/// Finishes a replacement that a crash interrupted.
///
/// # Errors
/// If leftovers cannot be moved or removed.
pub fn settle(folder: &Path) -> Result<(), RunError> {
    Ok(disk::settle(folder, clear)?)
}

fn clear(folder: &Path) -> io::Result<()> {
    disk::step()?;
    fs::remove_dir_all(folder)
}

/// Waits until a folder and its files are on the disk.
fn sync(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            sync(&path)?;
        } else {
            // Windows syncs only files that are open for writing.
            disk::sync(&File::options().write(true).open(path)?)?;
        }
    }
    disk::sync_folder(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::PathBuf;
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
    fn a_crash_at_any_moment_leaves_a_whole_folder() {
        let run = TempDir::new().unwrap();
        let model = run.path().join("model");
        replace(&model, fill("old")).unwrap();
        // While the new one is written.
        let crash = AssertUnwindSafe(|| {
            replace(&model, |folder: &Path| -> Result<(), RunError> {
                fs::create_dir(folder).unwrap();
                fs::write(folder.join("weights"), "to").unwrap();
                panic!("the crash of this test")
            })
        });
        assert!(catch_unwind(crash).is_err());
        assert_eq!(fs::read_to_string(model.join("weights")).unwrap(), "old");
        // Between the two renames.
        fs::rename(&model, run.path().join(".model.old")).unwrap();
        settle(&model).unwrap();
        assert_eq!(fs::read_to_string(model.join("vocabulary")).unwrap(), "old");
        assert_eq!(names(run.path()), ["model"]);
        replace(&model, fill("new")).unwrap();
        assert_eq!(fs::read_to_string(model.join("weights")).unwrap(), "new");
        assert_eq!(names(run.path()), ["model"]);
    }

    #[test]
    fn a_folder_that_cannot_be_filled_leaves_the_old_one() {
        let run = TempDir::new().unwrap();
        let model = run.path().join("model");
        replace(&model, fill("old")).unwrap();
        let full = |folder: &Path| {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("weights"), "a part").unwrap();
            Err(RunError::NoRun(PathBuf::new()))
        };
        assert!(replace(&model, full).is_err());
        assert_eq!(fs::read_to_string(model.join("weights")).unwrap(), "old");
        assert_eq!(names(run.path()), ["model"]);
    }
}
