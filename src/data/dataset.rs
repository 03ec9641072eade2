//! Demonstration datasets on disk: a folder with a manifest and safetensors shards.
//!
//! The manifest, `manifest.json`, names the game and the shards. A shard is a safetensors file of
//! whole episodes: `obs [N, F]` (F32), `actions [N]` (I32, I64 or U8), and optionally `ends [N]`
//! (U8: 0 if the episode continues, 1 if it terminated, 2 if it was truncated; without it a shard
//! is one episode) and `weights [N]` (F32, default 1).

use super::error::{io_error, malformed_error};
use super::shards::{FileContents, serialize_shard};
use super::{DatasetError, MANIFEST_FILE, Manifest, ShardedSteps, StepColumns};
use crate::disk::{self, PendingFile, input};
use memmap2::Mmap;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fs::{self, TryLockError};
use std::iter;
use std::path::{Path, PathBuf};

/// Size of a block of a shard that has its own digest.
const DIGEST_BLOCK_BYTES: usize = 1 << 22;

/// A dataset with its shards open.
#[derive(Debug)]
pub struct Dataset {
    manifest: Manifest,
    /// SHA-256 of the manifest's text.
    manifest_digest: Vec<u8>,
    shards: Vec<(PathBuf, Box<dyn FileContents>)>,
}

impl Dataset {
    /// Opens a dataset folder. The contents of the shards are validated by [`Dataset::into_steps`].
    ///
    /// # Errors
    /// If the manifest or a shard is missing, or the manifest is malformed.
    pub fn open(folder: &Path) -> Result<Self, DatasetError> {
        let path = folder.join(MANIFEST_FILE);
        if !folder.exists() {
            return Err(DatasetError::Missing(folder.to_path_buf()));
        }
        if !path.exists() {
            return Err(DatasetError::NoManifest(folder.to_path_buf()));
        }
        let text = input::read_description(&path).map_err(io_error("read", &path))?;
        let manifest = Manifest::parse(&text).map_err(|reason| malformed_error(&path, reason))?;
        if manifest.shards.is_empty() {
            return Err(malformed_error(&path, "it names no shards"));
        }
        let open = |name: &String| {
            let is_inside = Path::new(name).components().count() == 1 && !name.starts_with('.');
            if !is_inside {
                let reason = format!("the shard `{name}` is not a file in that folder");
                return Err(malformed_error(&path, reason));
            }
            let path = folder.join(name);
            let file = input::open(&path).map_err(io_error("read", &path))?;
            // SAFETY: any bytes are valid numbers. If another process modifies the file while it is
            // mapped, values change or the program is stopped, but memory safety is not affected.
            let map = unsafe { Mmap::map(&file) }.map_err(io_error("read", &path))?;
            Ok((path, Box::new(map) as Box<dyn FileContents>))
        };
        let names = || manifest.shards.iter().chain(&manifest.held_out);
        let mut seen = HashSet::new();
        if let Some(name) = names().find(|name| !seen.insert(*name)) {
            return Err(malformed_error(&path, format!("it names the shard `{name}` twice")));
        }
        let shards = names().map(open).collect::<Result<_, _>>()?;
        Ok(Self { manifest, manifest_digest: Sha256::digest(&text).to_vec(), shards })
    }

    /// SHA-256, hexadecimal, over the digests of the manifest and of the 4 MiB blocks of each shard. The folder's path
    /// does not matter.
    pub fn digest(&self) -> String {
        let mut whole = self.manifest_digest.clone();
        for (_, bytes) in &self.shards {
            let digests = bytes.par_chunks(DIGEST_BLOCK_BYTES);
            let digests = digests.map(|block| Sha256::digest(block).to_vec());
            whole.extend((bytes.len() as u64).to_le_bytes());
            whole.extend(digests.collect::<Vec<_>>().concat());
        }
        disk::sha256(whole)
    }

    /// Paths of the shards, held-out ones last.
    pub fn shard_paths(&self) -> Vec<&Path> {
        self.shards.iter().map(|(path, _)| path.as_path()).collect()
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// All steps, held-out shards last. They are read once for validation and stay on disk.
    ///
    /// # Errors
    /// If a shard is truncated, lacks a column or has one of the wrong shape or type; has an
    /// observation that is not finite or beyond 1e15, a weight that is neither 0 nor 1e-15 to 1e15, or an action
    /// outside `0..num_actions`; or if there are no steps.
    pub fn into_steps(
        self,
        num_features: usize,
        num_actions: usize,
    ) -> Result<ShardedSteps, DatasetError> {
        ShardedSteps::new(self.shards, num_features, num_actions)
    }
}

/// Writer for a new dataset. The manifest is written last, so an incomplete dataset is not valid; its files are removed
/// if the writer is dropped before it is finished or, if the process is killed, by the next writer in the folder.
#[derive(Debug)]
pub struct DatasetWriter {
    folder: PathBuf,
    manifest: Manifest,
    /// The file of the manifest, locked while the dataset is written; `None` in the end.
    manifest_file: Option<PendingFile>,
    is_finished: bool,
}

impl DatasetWriter {
    /// Creates the folder for a dataset with this manifest, whose names of shards are ignored.
    ///
    /// # Errors
    /// If the folder cannot be created, or has other files than those of a writer that was killed.
    pub fn create(folder: &Path, manifest: Manifest) -> Result<Self, DatasetError> {
        let (shards, held_out) = (Vec::new(), Vec::new());
        let manifest = Manifest { shards, held_out, ..manifest };
        fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        remove_incomplete(folder)?;
        if fs::read_dir(folder).map_err(io_error("read", folder))?.next().is_some() {
            return Err(DatasetError::Occupied(folder.to_path_buf()));
        }
        let path = folder.join(MANIFEST_FILE);
        let file = PendingFile::create_output(&path).map_err(io_error("write", &path))?;
        // A file system without locks only lacks the refusal of a second writer.
        let _ = file.file.try_lock();
        let folder = folder.to_path_buf();
        let manifest_file = Some(file);
        Ok(Self { folder, manifest, manifest_file, is_finished: false })
    }

    /// Writes whole episodes as a new shard.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, columns: &StepColumns) -> Result<(), DatasetError> {
        self.write_shard(columns).map(|name| self.manifest.shards.push(name))
    }

    /// Writes whole episodes as a new held-out shard.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_held_out(&mut self, columns: &StepColumns) -> Result<(), DatasetError> {
        self.write_shard(columns).map(|name| self.manifest.held_out.push(name))
    }

    /// Writes a shard and returns its file name.
    fn write_shard(&self, columns: &StepColumns) -> Result<String, DatasetError> {
        let name = shard_name(self.num_shards());
        let path = self.folder.join(&name);
        fs::write(&path, serialize_shard(columns, None)).map_err(io_error("write", &path))?;
        Ok(name)
    }

    fn num_shards(&self) -> usize {
        self.manifest.shards.len() + self.manifest.held_out.len()
    }

    /// Writes the manifest.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> Result<(), DatasetError> {
        let path = self.folder.join(MANIFEST_FILE);
        let text = serde_json::to_string_pretty(&self.manifest).expect("a manifest is plain data");
        let mut file = self.manifest_file.take().expect("taken only here");
        let written = disk::write(&mut file.file, (text + "\n").as_bytes());
        let written = written.and_then(|()| file.finish());
        self.is_finished = written.is_ok();
        written.map_err(io_error("write", &path))
    }
}

impl Drop for DatasetWriter {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // The folder must be empty for the next attempt. The last shard may be a part of one.
        let shards = (0..=self.num_shards()).rev().map(shard_name);
        for name in shards.chain([MANIFEST_FILE.to_string()]) {
            let _ = fs::remove_file(self.folder.join(name));
        }
    }
}

/// Removes the dataset that a killed process has left incomplete in a folder, if there is nothing else: the file that
/// was to become its manifest, and its shards.
fn remove_incomplete(folder: &Path) -> Result<(), DatasetError> {
    let manifest = PendingFile::path_for(&folder.join(MANIFEST_FILE)).expect("it has a name");
    let Ok(file) = disk::open_no_follow(&manifest) else { return Ok(()) };
    let is_in_use = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    drop(file);
    let shards = (0..).map(|index| folder.join(shard_name(index))).take_while(|it| it.is_file());
    let remains: Vec<PathBuf> = iter::once(manifest).chain(shards).collect();
    let count = fs::read_dir(folder).map_err(io_error("read", folder))?.count();
    if is_in_use || count > remains.len() {
        return Ok(());
    }
    // The first one tells what they are.
    let mut remains = remains.iter().rev();
    remains.try_for_each(|path| disk::remove_file(path).map_err(io_error("remove", path)))
}

fn shard_name(index: usize) -> String {
    format!("{index:05}.safetensors")
}

#[cfg(test)]
mod tests {
    use super::super::steps::tests::columns;
    use super::*;

    #[test]
    fn an_incomplete_dataset_leaves_an_empty_folder() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = DatasetWriter::create(folder.path(), Manifest::new("catch")).unwrap();
        writer.write(&columns()).unwrap();
        writer.write_held_out(&columns()).unwrap();
        let names = || fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names(), 3);
        let other = DatasetWriter::create(folder.path(), Manifest::new("catch")).unwrap_err();
        assert!(matches!(other, DatasetError::Occupied(_)), "{other}");
        assert_eq!(names(), 3, "they are still written");
        drop(writer);
        assert_eq!(names(), 0);
    }

    #[test]
    fn what_a_killed_writer_has_left_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let names = [".manifest.json.tmp", "00000.safetensors", "00001.safetensors"];
        let paths = names.map(|name| folder.path().join(name));
        paths.iter().for_each(|path| fs::write(path, "a part").unwrap());
        let create = || DatasetWriter::create(folder.path(), Manifest::new("catch"));
        let note = folder.path().join("notes.txt");
        fs::write(&note, "of the user").unwrap();
        assert!(matches!(create(), Err(DatasetError::Occupied(_))));
        assert!(paths.iter().all(|path| path.is_file()), "the folder is not Grove's alone");
        fs::remove_file(note).unwrap();
        let mut writer = create().unwrap();
        writer.write(&columns()).unwrap();
        writer.finish().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        assert_eq!(Dataset::open(folder.path()).unwrap().manifest().shards, names[1..2]);
        fs::remove_file(folder.path().join(MANIFEST_FILE)).unwrap();
        assert!(matches!(create(), Err(DatasetError::Occupied(_))), "shards of another program");
    }

    #[test]
    fn a_manifest_from_elsewhere_names_no_shards_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let names = || vec!["a".to_string()];
        let manifest = Manifest { shards: names(), held_out: names(), ..Manifest::new("catch") };
        let mut writer = DatasetWriter::create(folder.path(), manifest).unwrap();
        writer.write(&columns()).unwrap();
        writer.finish().unwrap();
        let found = Dataset::open(folder.path()).unwrap();
        assert_eq!(found.manifest().shards, ["00000.safetensors"]);
        assert!(found.manifest().held_out.is_empty());
    }
}
