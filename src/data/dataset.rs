//! Demonstrations on disk: a folder with a manifest and shards of tensors.
//!
//! The manifest, `manifest.json`, says which game was shown and names the shards; a shard is a
//! safetensors file of whole episodes: `obs [N, F]` (F32), `actions [N]` (I32, I64 or U8), and, if one
//! likes, `ends [N]` (U8: 0 where the episode goes on after the step, 1 where the game came to its end,
//! 2 where it was cut off; without it a shard is one episode) and `weights [N]` (F32, 1 without it).

use super::error::{io_error, malformed};
use super::manifest::FORMAT;
use super::shards::{Bytes, shard_file};
use super::{Columns, DatasetError, MANIFEST, Manifest, Shards};
use memmap2::Mmap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A dataset whose files are open.
#[derive(Debug)]
pub struct Dataset {
    manifest: Manifest,
    shards: Vec<(PathBuf, Bytes)>,
}

impl Dataset {
    /// Opens a folder. What lies in the shards is looked at by [`Dataset::steps`].
    ///
    /// # Errors
    /// If the manifest or a shard is missing, or the manifest cannot be read.
    pub fn open(folder: &Path) -> Result<Self, DatasetError> {
        let path = folder.join(MANIFEST);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(DatasetError::NoManifest { path: folder.to_path_buf() });
            }
            Err(error) => return Err(io_error(&path)(error)),
        };
        let manifest: Manifest = serde_json::from_str(&text).map_err(|e| malformed(&path, e))?;
        if manifest.format != FORMAT {
            let format = manifest.format;
            return Err(malformed(
                &path,
                format!("its format is {format}, but this build reads {FORMAT}"),
            ));
        }
        if manifest.shards.is_empty() {
            return Err(malformed(&path, "it names no shards"));
        }
        let open = |name: &String| {
            let inside = Path::new(name).components().count() == 1 && !name.starts_with('.');
            if !inside {
                return Err(malformed(&path, format!("the shard `{name}` is no file beside it")));
            }
            let path = folder.join(name);
            let file = File::open(&path).map_err(io_error(&path))?;
            // SAFETY: the bytes are numbers, whatever they are: a file that somebody changes while it is
            // open gives others, or stops the program, and nothing worse.
            let map = unsafe { Mmap::map(&file) }.map_err(io_error(&path))?;
            Ok((path, Bytes::Mapped(map)))
        };
        let shards = manifest.shards.iter().chain(&manifest.held_out).map(open);
        let shards = shards.collect::<Result<_, _>>()?;
        Ok(Self { manifest, shards })
    }

    /// The files of its shards, those that are held out behind the others.
    pub fn files(&self) -> Vec<&Path> {
        self.shards.iter().map(|(path, _)| path.as_path()).collect()
    }

    /// What it is of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// All its steps, those of the shards that are held out behind the others. They are read once, to see
    /// that they hold, and stay on disk.
    ///
    /// # Errors
    /// If a shard is cut off, lacks a column or has one of another shape or type, has an observation or
    /// a weight that is not finite, a negative weight, or an action that is none of `num_actions`; or if
    /// there is no step at all.
    pub fn steps(self, num_features: usize, num_actions: usize) -> Result<Shards, DatasetError> {
        Shards::new(self.shards, num_features, num_actions)
    }
}

/// A dataset that is being written: the manifest comes last, so that half a dataset is none.
#[derive(Debug)]
pub struct DatasetWriter {
    folder: PathBuf,
    manifest: Manifest,
}

impl DatasetWriter {
    /// Makes the folder.
    ///
    /// # Errors
    /// If there is something in it already, or it cannot be made.
    pub fn create(folder: &Path, manifest: Manifest) -> Result<Self, DatasetError> {
        fs::create_dir_all(folder).map_err(io_error(folder))?;
        if fs::read_dir(folder).map_err(io_error(folder))?.next().is_some() {
            return Err(malformed(folder, "the folder is not empty; choose another one"));
        }
        Ok(Self { folder: folder.to_path_buf(), manifest })
    }

    /// Writes whole episodes as another shard.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, columns: &Columns) -> Result<(), DatasetError> {
        let name = self.write_shard(columns)?;
        self.manifest.shards.push(name);
        Ok(())
    }

    /// Writes whole episodes as another shard that is held out.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn hold_out(&mut self, columns: &Columns) -> Result<(), DatasetError> {
        let name = self.write_shard(columns)?;
        self.manifest.held_out.push(name);
        Ok(())
    }

    /// Writes the file of a shard, and gives its name.
    fn write_shard(&self, columns: &Columns) -> Result<String, DatasetError> {
        let shards = self.manifest.shards.len() + self.manifest.held_out.len();
        let name = format!("{shards:05}.safetensors");
        let path = self.folder.join(&name);
        fs::write(&path, shard_file(columns, None)).map_err(io_error(&path))?;
        Ok(name)
    }

    /// Writes the manifest.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(self) -> Result<(), DatasetError> {
        let path = self.folder.join(MANIFEST);
        let text = serde_json::to_string_pretty(&self.manifest).expect("a manifest is plain data");
        fs::write(&path, text + "\n").map_err(io_error(&path))
    }
}
