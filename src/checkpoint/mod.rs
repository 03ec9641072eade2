//! Checkpoints: named, versioned sections of bytes, saved whole or not at all.
//!
//! This module does not know what the bytes mean; whoever owns a section also reads it. A
//! checkpoint is a directory:
//!
//! ```text
//! checkpoints/00000120/
//!   manifest.json         format, iteration, and every section's name, version and size
//!   weights.safetensors   a section: a file under the section's own name
//!   ...
//!   SHA256SUMS            checksums of all the others, as `sha256sum -c SHA256SUMS` reads them
//! ```
//!
//! Nothing in it depends on time, host or path: the same data give the same bytes. [`save`] and
//! [`load`] handle one directory, [`Store`] a run's directory of them.
//!
//! While `NAME` is saved, two hidden directories may stand beside it: `.NAME.tmp`, not finished
//! yet, and `.NAME.old`, which `NAME` is about to replace. A crash may leave either behind. [`load`]
//! never reads the first, and reads the second only where `NAME` itself is missing; the next
//! [`save`] clears both, but never a directory that is no checkpoint's. At most one process may save to a path at a time; any number may load.

mod error;
mod load;
mod manifest;
mod save;
mod store;

pub use error::CheckpointError;
pub use load::load;
pub use save::save;
pub use store::{Latest, Store};

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A part of a checkpoint that is saved as a file of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The file's name, for instance `weights.safetensors`: ASCII letters, digits, `.`, `-` and
    /// `_`, starting with a letter or a digit.
    pub name: String,
    /// The version of the bytes' layout, counted up by the section's owner.
    pub version: u32,
    /// The file's content.
    pub bytes: Vec<u8>,
}

/// All that is saved at one iteration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Iterations trained so far.
    pub iteration: u64,
    /// The sections, in the order in which the manifest lists them.
    pub sections: Vec<Section>,
}

impl Checkpoint {
    /// The section called `name`, for a reader that knows its versions up to `supported`.
    ///
    /// # Errors
    /// [`CheckpointError::MissingSection`] if there is none of that name, and
    /// [`CheckpointError::NewerSection`] if its version is above `supported`.
    pub fn section(&self, name: &str, supported: u32) -> Result<&Section, CheckpointError> {
        let section =
            self.sections.iter().find(|section| section.name == name).ok_or_else(|| {
                CheckpointError::MissingSection { iteration: self.iteration, name: name.to_owned() }
            })?;
        if section.version > supported {
            return Err(CheckpointError::NewerSection {
                iteration: self.iteration,
                name: name.to_owned(),
                found: section.version,
                supported,
            });
        }
        Ok(section)
    }
}

/// Where an unfinished save (or removal) of `path` stands; `None` if `path` ends in no name.
fn unfinished(path: &Path) -> Option<PathBuf> {
    hidden_beside(path, ".tmp")
}

/// Where the directory that `path` replaces stands meanwhile; `None` if `path` ends in no name.
fn set_aside(path: &Path) -> Option<PathBuf> {
    hidden_beside(path, ".old")
}

fn hidden_beside(path: &Path, suffix: &str) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(path.file_name()?);
    name.push(suffix);
    Some(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint() -> Checkpoint {
        let section = Section { name: "weights".into(), version: 2, bytes: vec![1, 2, 3] };
        Checkpoint { iteration: 120, sections: vec![section] }
    }

    #[test]
    fn a_section_is_found_by_name_for_readers_of_its_version_or_newer() {
        let checkpoint = checkpoint();
        for supported in [2, 3] {
            let section = checkpoint.section("weights", supported).unwrap();
            assert_eq!((section.version, &section.bytes[..]), (2, &[1, 2, 3][..]));
        }
    }

    #[test]
    fn a_missing_or_newer_section_is_an_error_that_names_it() {
        let checkpoint = checkpoint();
        assert_eq!(
            checkpoint.section("weights", 1).unwrap_err().to_string(),
            "section weights of the checkpoint at iteration 120 has version 2, but this grove \
             reads versions up to 1; load it with a newer grove"
        );
        let missing = checkpoint.section("optimizer", 9).unwrap_err();
        assert!(
            matches!(&missing, CheckpointError::MissingSection { name, .. } if name == "optimizer")
        );
    }

    #[test]
    fn hidden_directories_stand_beside_the_path() {
        assert_eq!(unfinished(Path::new("run/best")).unwrap(), Path::new("run/.best.tmp"));
        assert_eq!(set_aside(Path::new("best")).unwrap(), Path::new(".best.old"));
        assert_eq!(set_aside(Path::new("..")), None);
    }
}
