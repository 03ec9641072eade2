//! Checkpoints: named, versioned sections of bytes that are saved atomically.
//!
//! The content of a section is opaque here; the code that writes a section also reads it back. A
//! checkpoint is a directory:
//!
//! ```text
//! checkpoints/00000120/
//!   manifest.json         format, iteration, and every section's name, version and size
//!   weights.safetensors   a section, stored in a file of the same name
//!   ...
//!   SHA256SUMS            checksums of all other files, readable by `sha256sum -c SHA256SUMS`
//! ```
//!
//! The bytes depend on the data alone, not on the time, the host or the path. [`save`] and [`load`]
//! handle one directory; a [`Store`] manages a run's series of them.
//!
//! During a save of `NAME`, two hidden directories may exist next to it: `.NAME.tmp`, the incomplete
//! new checkpoint, and `.NAME.old`, the one being replaced. A crash may leave either behind. [`load`]
//! never reads `.NAME.tmp`, and reads `.NAME.old` only if `NAME` is missing. The next [`save`] removes
//! both, unless they do not look like checkpoints. One process at a time may save to a path; any
//! number may load from it.
//!
//! ```
//! use grove::checkpoint::{Checkpoint, Section, Store};
//!
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path().join("checkpoints");
//! let store = Store::new(directory);
//! let counts = Section { name: "counts.json".into(), version: 1, bytes: b"[1, 2, 3]".to_vec() };
//! store.save(&Checkpoint { iteration: 120, sections: vec![counts] })?;
//!
//! let latest = store.load_latest()?.checkpoint;
//! assert_eq!(latest.iteration, 120);
//! // The reader states the version of the section that it understands.
//! assert_eq!(latest.section("counts.json", 1)?.bytes, b"[1, 2, 3]");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod load;
mod manifest;
mod save;
mod store;

pub use error::CheckpointError;
pub use load::load;
#[cfg(feature = "program")]
pub(crate) use load::load_with;
#[cfg(on_disk)]
pub(crate) use load::read_iteration;
#[cfg(on_disk)]
pub(crate) use manifest::MANIFEST;
pub use save::save;
pub use store::{LatestCheckpoint, Store};

/// A part of a checkpoint, saved in its own file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The file name, for instance `weights.safetensors`: ASCII letters, digits, `.`, `-` and
    /// `_`, starting with a letter or a digit.
    pub name: String,
    /// Version of the layout of `bytes`, incremented by the writer when the layout changes.
    pub version: u32,
    /// The file's content.
    pub bytes: Vec<u8>,
}

/// The state of a run after one iteration, as named sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Number of iterations completed.
    pub iteration: u64,
    /// The sections, in manifest order.
    pub sections: Vec<Section>,
}

impl Checkpoint {
    /// Returns the section called `name`, of the version that the caller reads.
    ///
    /// # Errors
    /// [`CheckpointError::MissingSection`] if there is no such section, and
    /// [`CheckpointError::OtherSectionVersion`] if it has another version.
    pub fn section(&self, name: &str, version: u32) -> Result<&Section, CheckpointError> {
        let section =
            self.sections.iter().find(|section| section.name == name).ok_or_else(|| {
                CheckpointError::MissingSection { iteration: self.iteration, name: name.to_owned() }
            })?;
        if section.version != version {
            return Err(CheckpointError::OtherSectionVersion {
                iteration: self.iteration,
                name: name.to_owned(),
                found: section.version,
                expected: version,
            });
        }
        Ok(section)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_section_or_one_of_another_version_is_an_error_that_names_it() {
        let section = Section { name: "weights".into(), version: 2, bytes: vec![1, 2, 3] };
        let checkpoint = Checkpoint { iteration: 120, sections: vec![section] };
        assert_eq!(checkpoint.section("weights", 2).unwrap(), &checkpoint.sections[0]);
        for other in [1, 3] {
            assert_eq!(
                checkpoint.section("weights", other).unwrap_err().to_string(),
                format!(
                    "section weights of the checkpoint at iteration 120 has version 2, but this \
                     version of Grove reads version {other}; load it with the version of Grove \
                     that saved it"
                )
            );
        }
        let missing = checkpoint.section("optimizer", 9).unwrap_err();
        assert!(
            matches!(&missing, CheckpointError::MissingSection { name, .. } if name == "optimizer")
        );
    }
}
