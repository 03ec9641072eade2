//! The series of checkpoints of a run: one directory per iteration.

use super::load::read_entries;
use super::save::{recover_replacement, remove, require_no_link};
use super::{Checkpoint, CheckpointError, load, save};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// A directory of checkpoints named by iteration, such as `checkpoints/00000120`.
///
/// One process at a time may save and prune; any number may load concurrently.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

/// The newest usable checkpoint of a [`Store`].
#[derive(Debug)]
pub struct LatestCheckpoint {
    pub checkpoint: Checkpoint,
    /// The checkpoint's directory.
    pub path: PathBuf,
    /// Newer checkpoints that were skipped, with the reason for each, newest first.
    pub skipped_checkpoints: Vec<(PathBuf, CheckpointError)>,
}

impl Store {
    /// Creates a handle for the store in `directory`. The first [`save`](Store::save) creates the
    /// directory if it is missing.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The directory of the checkpoint at `iteration`, whether it exists or not.
    pub fn path(&self, iteration: u64) -> PathBuf {
        self.directory.join(directory_name(iteration))
    }

    /// Saves a checkpoint under its iteration and returns its directory, after cleaning up the
    /// leftovers of crashed saves.
    ///
    /// # Errors
    /// The errors of [`save`]. Other checkpoints are not affected.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
        let names = match self.directory_names() {
            Err(CheckpointError::NotFound(_)) => Vec::new(),
            names => names?,
        };
        for iteration in names.iter().filter_map(|name| parse_leftover(name)) {
            // A leftover that cannot be removed is harmless; the next save tries again.
            let _ = recover_replacement(&self.path(iteration));
        }
        let path = self.path(checkpoint.iteration);
        save(checkpoint, &path)?;
        Ok(path)
    }

    /// Lists the iterations of all checkpoints, oldest first, including damaged ones.
    ///
    /// # Errors
    /// [`CheckpointError::NotFound`] if the store's directory does not exist, or an I/O error if it
    /// cannot be read.
    pub fn iterations(&self) -> Result<Vec<u64>, CheckpointError> {
        let mut iterations = BTreeSet::new();
        for name in self.directory_names()? {
            // A checkpoint that a crash left moved aside counts too: `load` finds it.
            let aside = name.strip_prefix('.').and_then(|name| name.strip_suffix(".old"));
            iterations.extend(parse_iteration(aside.unwrap_or(&name)));
        }
        Ok(iterations.into_iter().collect())
    }

    /// Loads the newest intact checkpoint and reports the newer, damaged ones.
    ///
    /// # Errors
    /// [`CheckpointError::NoneSaved`] if the store is empty; if no checkpoint can be loaded, the error of the newest
    /// that [may be intact](CheckpointError::may_be_intact), or otherwise [`CheckpointError::NoneIntact`]; and the
    /// errors of [`iterations`](Store::iterations).
    pub fn load_latest(&self) -> Result<LatestCheckpoint, CheckpointError> {
        self.load_latest_usable(|_| Ok(()))
    }

    /// Loads the newest intact checkpoint that `check` accepts. The callback inspects the content,
    /// which is opaque to this module, and returns the reason if it rejects one.
    ///
    /// # Errors
    /// The errors of [`load_latest`](Store::load_latest).
    pub fn load_latest_usable(
        &self,
        check: impl Fn(&Checkpoint) -> Result<(), String>,
    ) -> Result<LatestCheckpoint, CheckpointError> {
        let mut skipped_checkpoints = Vec::new();
        for iteration in self.iterations()?.into_iter().rev() {
            let path = self.path(iteration);
            let loaded = self.load(iteration).and_then(|checkpoint| match check(&checkpoint) {
                Ok(()) => Ok(checkpoint),
                Err(reason) => Err(CheckpointError::Unusable { path: path.clone(), reason }),
            });
            match loaded {
                Ok(checkpoint) => {
                    return Ok(LatestCheckpoint { checkpoint, path, skipped_checkpoints });
                }
                Err(error) => skipped_checkpoints.push((path, error)),
            }
        }
        // The advice about damaged ones would cost one that is intact.
        if let Some(at) = skipped_checkpoints.iter().position(|(_, error)| error.may_be_intact()) {
            return Err(skipped_checkpoints.swap_remove(at).1);
        }
        let path = self.directory.clone();
        Err(match skipped_checkpoints[..] {
            [] => CheckpointError::NoneSaved(path),
            _ => CheckpointError::NoneIntact { path, damaged_checkpoints: skipped_checkpoints },
        })
    }

    /// Removes all but the newest `keep` checkpoints and returns the removed directories, oldest
    /// first. The newest intact checkpoint is never removed.
    ///
    /// Checkpoints are read and verified from the newest on until an intact one is found.
    ///
    /// # Errors
    /// The errors of [`load_latest`](Store::load_latest) if no checkpoint is intact (nothing is removed then), and
    /// [`CheckpointError::Io`] if a removal fails.
    pub fn prune(&self, keep: usize) -> Result<Vec<PathBuf>, CheckpointError> {
        let iterations = self.iterations()?;
        let excess = iterations.len().saturating_sub(keep);
        if excess == 0 {
            return Ok(Vec::new());
        }
        let intact = self.load_latest()?.checkpoint.iteration;
        let mut removed = Vec::new();
        for iteration in iterations.into_iter().take(excess).filter(|&i| i != intact) {
            let path = self.path(iteration);
            recover_replacement(&path)?;
            remove(&path)?;
            removed.push(path);
        }
        Ok(removed)
    }

    /// Loads the checkpoint at `iteration` and checks that its manifest has the same iteration.
    fn load(&self, iteration: u64) -> Result<Checkpoint, CheckpointError> {
        let path = self.path(iteration);
        let checkpoint = load(&path)?;
        if checkpoint.iteration != iteration {
            let found = checkpoint.iteration;
            let reason = format!("manifest.json has iteration {found}, not {iteration}");
            return Err(CheckpointError::damaged(&path, reason));
        }
        Ok(checkpoint)
    }

    /// Lists the names of the store's subdirectories, except those that are not Unicode.
    fn directory_names(&self) -> Result<Vec<String>, CheckpointError> {
        let directory = &self.directory;
        require_no_link(directory)?;
        let mut names = Vec::new();
        for entry in read_entries(directory)? {
            let entry = entry.map_err(CheckpointError::io("read", directory))?;
            if entry.path().is_dir() {
                names.extend(entry.file_name().into_string());
            }
        }
        Ok(names)
    }
}

/// Formats the name of a checkpoint's directory. Names sort by iteration up to 99 999 999.
fn directory_name(iteration: u64) -> String {
    format!("{iteration:08}")
}

/// Parses the name of a checkpoint's directory.
fn parse_iteration(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&iteration| directory_name(iteration) == text)
}

/// Parses the name of a directory left by a crashed save, and returns the checkpoint's iteration.
fn parse_leftover(text: &str) -> Option<u64> {
    let text = text.strip_prefix('.')?;
    parse_iteration(text.strip_suffix(".tmp").or_else(|| text.strip_suffix(".old"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directory_names_of_checkpoints_parse_as_iterations() {
        for number in [0, 120, 99_999_999, 100_000_000, u64::MAX] {
            assert_eq!(parse_iteration(&directory_name(number)), Some(number));
            assert_eq!(parse_leftover(&format!(".{}.tmp", directory_name(number))), Some(number));
            assert_eq!(parse_leftover(&format!(".{}.old", directory_name(number))), Some(number));
        }
        assert_eq!(directory_name(120), "00000120");
        for other in ["", "120", "000000120", "+0000120", "best", ".00000120", "00000120.tmp"] {
            assert_eq!(parse_iteration(other), None, "{other:?}");
            assert_eq!(parse_leftover(other), None, "{other:?}");
        }
        for other in [".best.tmp", ".00000120", "..tmp", ".00000120.tmp.old"] {
            assert_eq!(parse_leftover(other), None, "{other:?}");
        }
    }
}
