//! A run's checkpoints: a directory of them, each named by its iteration.

use crate::checkpoint::save::{remove, settle};
use crate::checkpoint::{Checkpoint, CheckpointError, load, save};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::PathBuf;

/// A directory of checkpoints named by iteration, such as `checkpoints/00000120`.
///
/// At most one process may save and prune at a time; any number may load meanwhile.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

/// The newest intact checkpoint of a [`Store`].
#[derive(Debug)]
pub struct Latest {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// Its directory.
    pub path: PathBuf,
    /// The newer checkpoints that were passed over, with what is wrong with each, newest first.
    pub damaged: Vec<(PathBuf, CheckpointError)>,
}

impl Store {
    /// The store in this directory; the first [`save`](Store::save) creates it where it is missing.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The directory of the checkpoint at this iteration, saved or not.
    pub fn path(&self, iteration: u64) -> PathBuf {
        self.directory.join(name(iteration))
    }

    /// Saves a checkpoint under its iteration, and returns its directory.
    ///
    /// First clears what crashed saves may have left in the store.
    ///
    /// # Errors
    /// As [`save`]; the other checkpoints are as they were.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
        let names = match self.names() {
            Err(CheckpointError::NotFound { .. }) => Vec::new(),
            names => names?,
        };
        for iteration in names.iter().filter_map(|name| leftover(name)) {
            // A leftover that cannot go harms nothing; the save after this one tries again.
            let _ = settle(&self.path(iteration));
        }
        let path = self.path(checkpoint.iteration);
        save(checkpoint, &path)?;
        Ok(path)
    }

    /// The iterations of the checkpoints, oldest first, damaged ones included.
    ///
    /// # Errors
    /// [`CheckpointError::NotFound`] if the store's directory does not exist, and others if it
    /// cannot be read.
    pub fn iterations(&self) -> Result<Vec<u64>, CheckpointError> {
        let mut iterations = BTreeSet::new();
        for name in self.names()? {
            // A checkpoint that a crash left set aside is one too: `load` finds it.
            let aside = name.strip_prefix('.').and_then(|name| name.strip_suffix(".old"));
            iterations.extend(iteration(aside.unwrap_or(&name)));
        }
        Ok(iterations.into_iter().collect())
    }

    /// Loads the newest checkpoint that is intact, and says which newer ones are not.
    ///
    /// # Errors
    /// [`CheckpointError::NoneSaved`] or [`CheckpointError::NoneIntact`] if there is none, and
    /// those of [`iterations`](Store::iterations).
    pub fn latest(&self) -> Result<Latest, CheckpointError> {
        self.latest_that(|_| Ok(()))
    }

    /// As [`latest`](Store::latest), of the checkpoints that are also `usable`, which says why one is
    /// not: this module does not know what they hold.
    ///
    /// # Errors
    /// As [`latest`](Store::latest).
    pub fn latest_that(
        &self,
        usable: impl Fn(&Checkpoint) -> Result<(), String>,
    ) -> Result<Latest, CheckpointError> {
        let mut damaged = Vec::new();
        for iteration in self.iterations()?.into_iter().rev() {
            let path = self.path(iteration);
            let loaded = self.load(iteration).and_then(|checkpoint| match usable(&checkpoint) {
                Ok(()) => Ok(checkpoint),
                Err(reason) => Err(CheckpointError::Unusable { path: path.clone(), reason }),
            });
            match loaded {
                Ok(checkpoint) => return Ok(Latest { checkpoint, path, damaged }),
                Err(error) => damaged.push((path, error)),
            }
        }
        let path = self.directory.clone();
        Err(match damaged[..] {
            [] => CheckpointError::NoneSaved { path },
            _ => CheckpointError::NoneIntact { path, damaged },
        })
    }

    /// Removes all but the newest `keep` checkpoints, but never the newest intact one. Returns the
    /// directories that it removed, oldest first.
    ///
    /// To know that one is intact it reads the newest in full, and older ones until one is.
    ///
    /// # Errors
    /// Those of [`iterations`](Store::iterations), [`CheckpointError::NoneIntact`] if there is no
    /// intact one (nothing is removed then), and [`CheckpointError::Io`] if one cannot be removed.
    pub fn prune(&self, keep: usize) -> Result<Vec<PathBuf>, CheckpointError> {
        let iterations = self.iterations()?;
        let excess = iterations.len().saturating_sub(keep);
        if excess == 0 {
            return Ok(Vec::new());
        }
        let intact = self.latest()?.checkpoint.iteration;
        let mut removed = Vec::new();
        for iteration in iterations.into_iter().take(excess).filter(|&i| i != intact) {
            let path = self.path(iteration);
            settle(&path)?;
            remove(&path)?;
            removed.push(path);
        }
        Ok(removed)
    }

    /// Loads the checkpoint at `iteration`, which must also say so itself.
    fn load(&self, iteration: u64) -> Result<Checkpoint, CheckpointError> {
        let path = self.path(iteration);
        let checkpoint = load(&path)?;
        if checkpoint.iteration != iteration {
            let reason = format!("is of iteration {}, not {iteration}", checkpoint.iteration);
            return Err(CheckpointError::BadManifest { path, reason });
        }
        Ok(checkpoint)
    }

    /// The names of the directories in the store's own; those that are not Unicode are none of ours.
    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let directory = &self.directory;
        let refused = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => CheckpointError::NotFound { path: directory.clone() },
            _ if directory.is_file() => CheckpointError::NotADirectory { path: directory.clone() },
            _ => CheckpointError::io("read", directory)(source),
        };
        let mut names = Vec::new();
        for entry in fs::read_dir(directory).map_err(refused)? {
            let entry = entry.map_err(refused)?;
            if entry.path().is_dir() {
                names.extend(entry.file_name().into_string());
            }
        }
        Ok(names)
    }
}

/// The name of a checkpoint's directory; names sort as iterations do up to 99 999 999.
fn name(iteration: u64) -> String {
    format!("{iteration:08}")
}

/// The iteration whose checkpoint has this name.
fn iteration(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&iteration| name(iteration) == text)
}

/// The iteration beside whose checkpoint a crashed save left a directory of this name.
fn leftover(text: &str) -> Option<u64> {
    let text = text.strip_prefix('.')?;
    iteration(text.strip_suffix(".tmp").or_else(|| text.strip_suffix(".old"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_back_their_iterations_and_nothing_else_does() {
        for number in [0, 120, 99_999_999, 100_000_000, u64::MAX] {
            assert_eq!(iteration(&name(number)), Some(number));
            assert_eq!(leftover(&format!(".{}.tmp", name(number))), Some(number));
            assert_eq!(leftover(&format!(".{}.old", name(number))), Some(number));
        }
        assert_eq!(name(120), "00000120");
        for other in ["", "120", "000000120", "+0000120", "best", ".00000120", "00000120.tmp"] {
            assert_eq!(iteration(other), None, "{other:?}");
            assert_eq!(leftover(other), None, "{other:?}");
        }
        for other in [".best.tmp", ".00000120", "..tmp", ".00000120.tmp.old"] {
            assert_eq!(leftover(other), None, "{other:?}");
        }
    }
}
