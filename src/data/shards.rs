//! Steps of memory-mapped dataset shards, validated on opening.

use super::error::malformed_error;
use super::{DatasetError, EpisodeStatus, Manifest, StepColumns, Steps};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::fmt::Debug;
use std::ops::{Deref, Range, RangeInclusive};
use std::path::PathBuf;

/// Largest magnitude of an observation: the squares of gradients, which grow with it, stay finite in 32 bits.
pub(super) const MAX_OBSERVATION: f32 = 1e15;
/// Range of weights above 0: sums of them, and the factors that scale them to a mean of 1, stay finite in 32 bits.
const WEIGHTS: RangeInclusive<f32> = 1e-15..=1e15;

/// The steps of several shards in order. Files are memory-mapped, so the system loads pages on
/// demand and may drop them again.
#[derive(Debug)]
pub struct ShardedSteps {
    num_features: usize,
    shards: Vec<Shard>,
    len: usize,
}

/// The contents of a file, in memory or mapped into it.
pub(super) trait FileContents: Deref<Target = [u8]> + Debug + Send + Sync {}

impl<T: Deref<Target = [u8]> + Debug + Send + Sync> FileContents for T {}

/// A shard with the byte ranges of its columns.
#[derive(Debug)]
struct Shard {
    bytes: Box<dyn FileContents>,
    /// Index of its first step among those of all shards.
    first_step: usize,
    rows: usize,
    obs: Range<usize>,
    actions: Column,
    weights: Option<Column>,
    ends: Option<Column>,
}

/// A column: its byte range within the file, and the type of its values.
#[derive(Clone, Debug)]
struct Column {
    range: Range<usize>,
    dtype: Dtype,
}

impl ShardedSteps {
    /// Validates all steps.
    ///
    /// # Errors
    /// The errors of [`Dataset::into_steps`](super::Dataset::into_steps).
    pub(super) fn new(
        files: Vec<(PathBuf, Box<dyn FileContents>)>,
        num_features: usize,
        num_actions: usize,
    ) -> Result<Self, DatasetError> {
        let mut this = Self { num_features, shards: Vec::new(), len: 0 };
        let first = files.first().map(|(path, _)| path.clone());
        for (path, bytes) in files {
            let shard = Shard::new(bytes, this.len, num_features);
            let shard = shard.map_err(|reason| malformed_error(&path, reason))?;
            let checked = shard.check(num_features, num_actions);
            checked.map_err(|reason| malformed_error(&path, reason))?;
            this.len += shard.rows;
            this.shards.push(shard);
        }
        match first {
            Some(path) if this.len == 0 => Err(malformed_error(&path, "there is no step in it")),
            _ => Ok(this),
        }
    }

    /// The steps of the shard at index `shard` and of all later ones.
    pub fn steps_from(&self, shard: usize) -> Range<usize> {
        self.shards.get(shard).map_or(self.len, |shard| shard.first_step)..self.len
    }

    /// Shard of a step, and row within it.
    fn find(&self, step: usize) -> (&Shard, usize) {
        let after = self.shards.partition_point(|shard| shard.first_step <= step);
        let shard = &self.shards[after - 1];
        (shard, step - shard.first_step)
    }
}

impl Steps for ShardedSteps {
    fn num_features(&self) -> usize {
        self.num_features
    }

    fn len(&self) -> usize {
        self.len
    }

    fn observe(&self, step: usize, obs: &mut [f32]) {
        let (shard, row) = self.find(step);
        let values = &shard.bytes[shard.obs.clone()][row * 4 * self.num_features..];
        for (to, from) in obs.iter_mut().zip(values.as_chunks().0) {
            *to = f32::from_le_bytes(*from);
        }
    }

    fn action(&self, step: usize) -> i32 {
        let (shard, row) = self.find(step);
        shard.actions.read_integer(&shard.bytes, row) as i32
    }

    fn weight(&self, step: usize) -> f32 {
        let (shard, row) = self.find(step);
        shard.weight(row)
    }

    fn status(&self, step: usize) -> EpisodeStatus {
        let (shard, row) = self.find(step);
        match shard.ends.as_ref().map_or(0, |ends| ends.read_integer(&shard.bytes, row)) {
            0 if row + 1 == shard.rows => EpisodeStatus::Truncated,
            0 => EpisodeStatus::Running,
            1 => EpisodeStatus::Terminated,
            _ => EpisodeStatus::Truncated,
        }
    }
}

impl Shard {
    /// Locates the columns of a shard.
    fn new(
        bytes: Box<dyn FileContents>,
        first_step: usize,
        num_features: usize,
    ) -> Result<Self, String> {
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| e.to_string())?;
        let missing = |name: &str| format!("there is no tensor `{name}`");
        let shape = tensors.tensor("obs").map_err(|_| missing("obs"))?.shape().to_vec();
        let rows = match shape[..] {
            [_, 0] => return Err("`obs` has no features".to_string()),
            [rows, width] if width == num_features => rows,
            _ => {
                return Err(format!(
                    "`obs` is {shape:?}, but must be [steps, {num_features}], as the game has {num_features} features"
                ));
            }
        };
        let column = |name: &str, types: &[Dtype], expected: &str| {
            let Ok(view) = tensors.tensor(name) else { return Ok(None) };
            let (shape, dtype) = (view.shape(), view.dtype());
            if name != "obs" && *shape != [rows] {
                return Err(format!(
                    "`{name}` is {shape:?}, but must be [{rows}], as `obs` has {rows} steps"
                ));
            }
            if !types.contains(&dtype) {
                return Err(format!("`{name}` is of type {dtype:?}, but must be {expected}"));
            }
            let start = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
            Ok(Some(Column { range: start..start + view.data().len(), dtype }))
        };
        let floats = |name| column(name, &[Dtype::F32], "F32");
        let integers = |name| {
            let types = [Dtype::I64, Dtype::I32, Dtype::U8, Dtype::BOOL];
            column(name, &types, "I64, I32 or U8")
        };
        let obs = floats("obs")?.ok_or_else(|| missing("obs"))?;
        let actions = integers("actions")?.ok_or_else(|| missing("actions"))?;
        let (weights, ends) = (floats("weights")?, integers("ends")?);
        Ok(Self { first_step, rows, obs: obs.range, actions, weights, ends, bytes })
    }

    /// Validates every value.
    fn check(&self, num_features: usize, num_actions: usize) -> Result<(), String> {
        let obs = self.bytes[self.obs.clone()].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
        let is_usable = |x: f32| x.abs() <= MAX_OBSERVATION;
        if let Some((i, x)) = obs.enumerate().find(|(_, x)| !is_usable(*x)) {
            let (row, feature) = (i / num_features, i % num_features);
            return Err(format!(
                "`obs` has {x:e} in row {row}, feature {feature}, but must be -1e15 to 1e15"
            ));
        }
        let last = num_actions as i64 - 1;
        for row in 0..self.rows {
            let action = self.actions.read_integer(&self.bytes, row);
            if !(0..=last).contains(&action) {
                return Err(format!(
                    "`actions` has {action} in row {row}, but actions are 0 to {last}"
                ));
            }
            let weight = self.weight(row);
            if weight != 0.0 && !WEIGHTS.contains(&weight) {
                return Err(format!(
                    "`weights` has {weight:e} in row {row}, but must be 0 or 1e-15 to 1e15"
                ));
            }
            let end = self.ends.as_ref().map_or(0, |ends| ends.read_integer(&self.bytes, row));
            if !(0..=2).contains(&end) {
                return Err(format!("`ends` has {end} in row {row}, but must be 0, 1 or 2"));
            }
        }
        Ok(())
    }

    /// The weight of a row, 1 without a column of weights.
    fn weight(&self, row: usize) -> f32 {
        let Some(column) = &self.weights else { return 1.0 };
        f32::from_le_bytes(row_bytes(&self.bytes[column.range.clone()], row))
    }
}

impl Column {
    fn read_integer(&self, bytes: &[u8], row: usize) -> i64 {
        let column = &bytes[self.range.clone()];
        match self.dtype {
            Dtype::I64 => i64::from_le_bytes(row_bytes(column, row)),
            Dtype::I32 => i32::from_le_bytes(row_bytes(column, row)).into(),
            _ => column[row].into(),
        }
    }
}

/// Serializes recorded games as a single self-describing shard, for download from the web page.
pub fn serialize_games(manifest: &Manifest, columns: &StepColumns) -> Vec<u8> {
    let manifest = serde_json::to_string(manifest).expect("a manifest is plain data");
    serialize_shard(columns, Some(manifest))
}

/// Reads a file written by [`serialize_games`]; `path` is used in errors.
///
/// # Errors
/// If the file has no manifest or fails validation ([`Dataset::into_steps`](super::Dataset::into_steps)).
pub fn deserialize_games(
    path: PathBuf,
    bytes: Vec<u8>,
) -> Result<(Manifest, ShardedSteps), DatasetError> {
    let read = || -> Result<Manifest, String> {
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| e.to_string())?;
        let manifest = header.metadata().as_ref().and_then(|metadata| metadata.get(MANIFEST_KEY));
        let manifest =
            manifest.ok_or("it does not say of which game it is, as games saved on the page do")?;
        Manifest::parse(manifest)
    };
    let manifest = read().map_err(|reason| malformed_error(&path, reason))?;
    let (features, actions) = (manifest.features.len(), manifest.actions.len());
    Ok((manifest, ShardedSteps::new(vec![(path, Box::new(bytes))], features, actions)?))
}

/// Metadata key of the manifest in a self-describing shard.
const MANIFEST_KEY: &str = "grove_games";

/// Serializes steps as a shard.
pub(super) fn serialize_shard(columns: &StepColumns, manifest: Option<String>) -> Vec<u8> {
    let rows = columns.actions.len();
    let obs: Vec<u8> = columns.obs.iter().flat_map(|x| x.to_le_bytes()).collect();
    let actions: Vec<u8> = columns.actions.iter().flat_map(|x| x.to_le_bytes()).collect();
    let weights: Vec<u8> = columns.weights.iter().flat_map(|x| x.to_le_bytes()).collect();
    let ends: Vec<u8> = columns.statuses.iter().map(|status| *status as u8).collect();
    let view = |dtype, shape, data| TensorView::new(dtype, shape, data).expect("shapes fit");
    let tensors = [
        ("obs", view(Dtype::F32, vec![rows, columns.num_features], &obs)),
        ("actions", view(Dtype::I32, vec![rows], &actions)),
        ("weights", view(Dtype::F32, vec![rows], &weights)),
        ("ends", view(Dtype::U8, vec![rows], &ends)),
    ];
    let metadata = manifest.map(|text| [(MANIFEST_KEY.to_string(), text)].into());
    safetensors::serialize(tensors, metadata).expect("tensors of these shapes")
}

fn row_bytes<const N: usize>(column: &[u8], row: usize) -> [u8; N] {
    column.as_chunks().0[row]
}

#[cfg(test)]
mod tests {
    use super::super::steps::tests::columns;
    use super::*;

    #[test]
    fn games_go_into_a_file_and_back() {
        let mut manifest = Manifest::new("catch");
        manifest.features = vec!["a".to_string(), "b".to_string()];
        manifest.actions = vec!["left".to_string(), "right".to_string()];
        let file = serialize_games(&manifest, &columns());
        let path = || PathBuf::from("games");
        let (found, steps) = deserialize_games(path(), file.clone()).unwrap();
        assert_eq!(found, manifest);
        let mut expected = columns();
        // The last step of a file ends its episode.
        expected.statuses[7] = EpisodeStatus::Truncated;
        assert_eq!(StepColumns::from_steps(&steps), expected);
        let error = |bytes: Vec<u8>| deserialize_games(path(), bytes).unwrap_err().to_string();
        assert!(error(file[..file.len() - 1].to_vec()).starts_with("games: "));
        assert!(error(serialize_shard(&columns(), None)).contains("does not say of which game"));
        let newer = Manifest { format: 2, ..manifest.clone() };
        assert!(error(serialize_games(&newer, &columns())).contains("its format is 2, but"));
        manifest.actions.pop();
        assert!(error(serialize_games(&manifest, &columns())).contains("`actions` has 1 in row 1"));
        manifest.features.clear();
        let blind = StepColumns { num_features: 0, obs: Vec::new(), ..columns() };
        assert!(error(serialize_games(&manifest, &blind)).contains("`obs` has no features"));
    }
}
