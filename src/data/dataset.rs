//! Demonstrations on disk: a folder with a manifest and shards of tensors.
//!
//! The manifest, `manifest.json`, says which game was shown and names the shards; a shard is a
//! safetensors file of whole episodes: `obs [N, F]` (F32), `actions [N]` (I32, I64 or U8), and, if one
//! likes, `ends [N]` (U8: 0 where the episode goes on after the step, 1 where the game came to its end,
//! 2 where it was cut off; without it a shard is one episode) and `weights [N]` (F32, 1 without it).

use super::{Columns, End};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The file that makes a folder a dataset.
pub const MANIFEST: &str = "manifest.json";

/// The format that this build writes, and the newest that it reads.
const FORMAT: u32 = 1;

/// What a dataset is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the format, 1.
    pub format: u32,
    /// The game that was shown.
    pub env: String,
    /// The game's parameters, by their names; those that are missing are the game's defaults.
    #[serde(default)]
    pub settings: serde_json::Map<String, serde_json::Value>,
    /// Who has shown it.
    #[serde(default)]
    pub player: String,
    /// The names of the features, if they are told.
    #[serde(default)]
    pub features: Vec<String>,
    /// The names of the actions, if they are told.
    #[serde(default)]
    pub actions: Vec<String>,
    /// Under which licence it may be used; an SPDX name, for instance `CC0-1.0`.
    #[serde(default)]
    pub license: String,
    /// The files of the shards, in their order.
    pub shards: Vec<String>,
}

impl Manifest {
    /// The manifest of a game's demonstrations that have no shards yet.
    pub fn new(env: &str) -> Self {
        Self {
            format: FORMAT,
            env: env.to_string(),
            settings: Default::default(),
            player: String::new(),
            features: Vec::new(),
            actions: Vec::new(),
            license: String::new(),
            shards: Vec::new(),
        }
    }
}

/// Why a dataset cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The folder has no manifest.
    #[error("{} is no dataset: it has no {MANIFEST}", path.display())]
    NoManifest {
        /// The folder.
        path: PathBuf,
    },
    /// A file is not what it should be.
    #[error("{}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> DatasetError {
    let path = path.to_path_buf();
    move |source| DatasetError::Io { path, source }
}

fn malformed(path: &Path, reason: impl ToString) -> DatasetError {
    DatasetError::Malformed { path: path.to_path_buf(), reason: reason.to_string() }
}

/// A dataset whose files are open.
#[derive(Debug)]
pub struct Dataset {
    manifest: Manifest,
    shards: Vec<(PathBuf, Mmap)>,
}

impl Dataset {
    /// Opens a folder. What lies in the shards is looked at by [`Dataset::columns`].
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
            // SAFETY: a file that somebody changes meanwhile gives other numbers; every row is checked
            // as it is copied, and nothing is kept of the map.
            let map = unsafe { Mmap::map(&file) }.map_err(io_error(&path))?;
            Ok((path, map))
        };
        let shards = manifest.shards.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self { manifest, shards })
    }

    /// What it is of.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// All its steps.
    ///
    /// # Errors
    /// If a shard is cut off, lacks a column or has one of another shape or type, has an observation or
    /// a weight that is not finite, a negative weight, or an action that is none of `num_actions`; or if
    /// there is no step at all.
    pub fn columns(
        &self,
        num_features: usize,
        num_actions: usize,
    ) -> Result<Columns, DatasetError> {
        let mut all = Columns { num_features, ..Columns::default() };
        for (path, map) in &self.shards {
            let tensors = SafeTensors::deserialize(map).map_err(|e| malformed(path, e))?;
            append(&mut all, &tensors, num_actions).map_err(|reason| malformed(path, reason))?;
        }
        match self.shards.first() {
            Some((path, _)) if all.actions.is_empty() => {
                Err(malformed(path, "there is no step in it"))
            }
            _ => Ok(all),
        }
    }
}

/// Adds the steps of a shard.
fn append(all: &mut Columns, tensors: &SafeTensors, num_actions: usize) -> Result<(), String> {
    let features = all.num_features;
    let column = |name: &str| tensors.tensor(name).ok();
    let obs = column("obs").ok_or("there is no tensor `obs`")?;
    let rows = match *obs.shape() {
        [rows, width] if width == features => rows,
        ref shape => {
            return Err(format!(
                "`obs` is {shape:?}, but must be [steps, {features}]: the game shows {features} features"
            ));
        }
    };
    let of_rows = |name: &str, view: &TensorView| match *view.shape() == [rows] {
        true => Ok(()),
        false => {
            let shape = view.shape();
            Err(format!("`{name}` is {shape:?}, but must be [{rows}], as `obs` has {rows} steps"))
        }
    };
    let obs = floats("obs", &obs)?;
    if let Some(i) = obs.iter().position(|x| !x.is_finite()) {
        return Err(format!(
            "`obs` has {} in row {}, feature {}",
            obs[i],
            i / features,
            i % features
        ));
    }
    let actions = column("actions").ok_or("there is no tensor `actions`")?;
    of_rows("actions", &actions)?;
    let actions = integers("actions", &actions)?;
    if let Some(row) = actions.iter().position(|a| !(0..num_actions as i64).contains(a)) {
        let last = num_actions - 1;
        return Err(format!(
            "`actions` has {} in row {row}, but actions are 0 to {last}",
            actions[row]
        ));
    }
    let weights = match column("weights") {
        Some(view) => of_rows("weights", &view).and_then(|()| floats("weights", &view))?,
        None => vec![1.0; rows],
    };
    if let Some(row) = weights.iter().position(|w| !w.is_finite() || *w < 0.0) {
        return Err(format!("`weights` has {} in row {row}, but must be 0 or more", weights[row]));
    }
    let ends = match column("ends") {
        Some(view) => of_rows("ends", &view).and_then(|()| integers("ends", &view))?,
        None => vec![0; rows],
    };
    let end = |(row, end): (usize, &i64)| match end {
        0 if row + 1 == rows => Ok(End::Truncated),
        0 => Ok(End::None),
        1 => Ok(End::Terminated),
        2 => Ok(End::Truncated),
        other => Err(format!("`ends` has {other} in row {row}, but must be 0, 1 or 2")),
    };
    let ends = ends.iter().enumerate().map(end).collect::<Result<Vec<_>, _>>()?;
    all.obs.extend(obs);
    all.actions.extend(actions.iter().map(|a| *a as i32));
    all.weights.extend(weights);
    all.ends.extend(ends);
    Ok(())
}

fn floats(name: &str, view: &TensorView) -> Result<Vec<f32>, String> {
    match view.dtype() {
        Dtype::F32 => {
            Ok(view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
        }
        other => Err(format!("`{name}` is of type {other:?}, but must be F32")),
    }
}

fn integers(name: &str, view: &TensorView) -> Result<Vec<i64>, String> {
    let data = view.data();
    match view.dtype() {
        Dtype::I64 => Ok(data.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect()),
        Dtype::I32 => {
            Ok(data.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b).into()).collect())
        }
        Dtype::U8 | Dtype::BOOL => Ok(data.iter().map(|b| (*b).into()).collect()),
        other => Err(format!("`{name}` is of type {other:?}, but must be I64, I32 or U8")),
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
        let rows = columns.actions.len();
        let obs: Vec<u8> = columns.obs.iter().flat_map(|x| x.to_le_bytes()).collect();
        let actions: Vec<u8> = columns.actions.iter().flat_map(|x| x.to_le_bytes()).collect();
        let weights: Vec<u8> = columns.weights.iter().flat_map(|x| x.to_le_bytes()).collect();
        let ends: Vec<u8> = columns.ends.iter().map(|end| *end as u8).collect();
        let view = |dtype, shape, data| TensorView::new(dtype, shape, data).expect("shapes fit");
        let tensors = [
            ("obs", view(Dtype::F32, vec![rows, columns.num_features], &obs)),
            ("actions", view(Dtype::I32, vec![rows], &actions)),
            ("weights", view(Dtype::F32, vec![rows], &weights)),
            ("ends", view(Dtype::U8, vec![rows], &ends)),
        ];
        let name = format!("{:05}.safetensors", self.manifest.shards.len());
        let path = self.folder.join(&name);
        let bytes = safetensors::serialize(tensors, None).map_err(|e| malformed(&path, e))?;
        fs::write(&path, bytes).map_err(io_error(&path))?;
        self.manifest.shards.push(name);
        Ok(())
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
