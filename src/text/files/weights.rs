//! Safetensors files of weights: a single one, or several listed by an index.

use super::parameters::{FileBytes, FileParameter, check_shape};
use super::quants::BlockFormat;
use super::{file_error, map_file, read_file, unusable, unusable_error};
use crate::disk;
use crate::model::Parameter;
use crate::text::error::LanguageError;
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorInfo};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// File of a model's weights.
pub(super) const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Files of older models and adapters: pickled weights, or an index of several.
const PICKLED: [&str; 3] =
    ["pytorch_model.bin", "pytorch_model.bin.index.json", "adapter_model.bin"];

/// Weight files of a folder.
pub(super) struct WeightFiles {
    files: Vec<(PathBuf, Mmap)>,
    /// File and byte range of each tensor.
    locations: HashMap<String, TensorLocation>,
}

/// Location of a tensor in one of several files.
struct TensorLocation {
    file: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

impl WeightFiles {
    /// Opens the weights of a folder: the single file, otherwise those listed by the index.
    pub fn open(folder: &Path) -> Result<Self, LanguageError> {
        let index = folder.join(INDEX);
        // As in `transformers`: an index beside the single file lists older weights.
        let names = if index.is_file() && !folder.join(WEIGHTS).is_file() {
            parse_index(&read_file(&index)?).map_err(unusable(&index))?
        } else {
            vec![WEIGHTS.to_string()]
        };
        Self::open_files(folder, names)
    }

    /// Opens weight files by name.
    pub fn open_files(folder: &Path, names: Vec<String>) -> Result<Self, LanguageError> {
        let (mut files, mut locations) = (Vec::new(), HashMap::new());
        for (file, name) in names.into_iter().enumerate() {
            let path = folder.join(name);
            if !path.is_file()
                && let Some(pickled) = PICKLED.iter().find(|name| folder.join(name).is_file())
            {
                let reason = format!(
                    "its weights are pickled ({pickled}), and a pickle can run code when it is read; convert them with \
                     `safetensors.torch.save_file`"
                );
                return Err(unusable_error(folder, reason));
            }
            let map = map_file(&path)?;
            // Ranges and shapes are checked against the length of the file.
            let (header_bytes, metadata) =
                SafeTensors::read_metadata(&map).map_err(unusable(&path))?;
            // Sorted, so that a damaged file always gives the same error.
            let tensors = BTreeMap::from_iter(metadata.tensors());
            for (name, tensor) in tensors {
                let (start, end) = tensor.data_offsets;
                let bytes = 8 + header_bytes + start..8 + header_bytes + end;
                let location = TensorLocation {
                    file,
                    dtype: tensor.dtype,
                    shape: tensor.shape.clone(),
                    bytes,
                };
                let parameter = normalize_name(&name);
                if locations.contains_key(&parameter) {
                    let reason =
                        format!("two of its tensors, or of other files, are `{parameter}`");
                    return Err(unusable_error(&path, reason));
                }
                locations.insert(parameter, location);
            }
            files.push((path, map));
        }
        Ok(Self { files, locations })
    }

    /// Names of all tensors.
    pub fn tensor_names(&self) -> impl Iterator<Item = &String> {
        self.locations.keys()
    }

    /// Whether a tensor exists.
    pub fn contains(&self, name: &str) -> bool {
        self.locations.contains_key(name)
    }

    /// Whether two tensors exist that differ in values, shape or type.
    pub fn has_different(&self, first: &str, second: &str) -> bool {
        let tensor = |name: &str| {
            let location = self.locations.get(name)?;
            let bytes = &self.files[location.file].1[location.bytes.clone()];
            Some((location.dtype, &location.shape, bytes))
        };
        match (tensor(first), tensor(second)) {
            (Some(first), Some(second)) => first != second,
            _ => false,
        }
    }

    /// Finds a parameter, named `name` in the files, and checks its shape and type.
    pub fn find(&self, parameter: &Parameter, name: &str) -> Result<FileBytes<'_>, LanguageError> {
        let location = self.locations.get(name).ok_or_else(|| {
            unusable_error(&self.files[0].0, format!("the tensor `{name}` is missing"))
        })?;
        let (path, map) = &self.files[location.file];
        check_shape(parameter, name, &location.shape).map_err(unusable(path))?;
        let format = match location.dtype {
            Dtype::F32 => BlockFormat::F32,
            Dtype::F16 => BlockFormat::F16,
            Dtype::BF16 => BlockFormat::BF16,
            other => {
                let reason = format!("`{name}` holds {other:?}, not F32, F16 or BF16");
                return Err(unusable_error(path, reason));
            }
        };
        let bytes = &map[location.bytes.clone()];
        Ok(FileBytes { format, bytes, paired_head_dim: None })
    }
}

/// Parses the names of the files that an index of weights lists.
///
/// # Errors
/// A clause if the index is malformed, or names a file in another folder.
fn parse_index(index: &[u8]) -> Result<Vec<String>, String> {
    let json: Value = serde_json::from_slice(index).map_err(|error| error.to_string())?;
    let map = json["weight_map"].as_object().ok_or("there is no `weight_map`")?;
    let mut names: Vec<String> =
        map.values().filter_map(|name| Some(name.as_str()?.to_string())).collect();
    names.sort_unstable();
    names.dedup();
    let is_elsewhere = |name: &&String| Path::new(name).file_name() != Some(name.as_ref());
    match names.iter().find(is_elsewhere) {
        _ if names.is_empty() => Err("its `weight_map` names no file".to_string()),
        Some(name) => Err(format!("{name:?} is not the name of a file beside it")),
        None => Ok(names),
    }
}

/// Name of a tensor without the prefixes that `torch.compile` and multi-device wrappers leave, and with the `model.`
/// that some files lack.
fn normalize_name(name: &str) -> String {
    let mut plain = name;
    while let Some(rest) =
        ["_orig_mod.", "module."].iter().find_map(|prefix| plain.strip_prefix(prefix))
    {
        plain = rest;
    }
    let plain = plain.replace("._orig_mod.", ".");
    let is_bare = ["layers.", "embed_tokens.", "norm."].iter().any(|p| plain.starts_with(p));
    if is_bare { format!("model.{plain}") } else { plain }
}

/// Writes parameters under their names in files.
pub(super) fn write_weights(
    path: &Path,
    parameters: &[Parameter],
    params: &[f32],
    name: impl Fn(&Parameter) -> String,
) -> Result<(), LanguageError> {
    let mut tensors = FileParameter::list(parameters, params, name);
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut end = 0;
    let info = |parameter: &FileParameter| {
        let start = end;
        end += size_of_val(parameter.params);
        let (dtype, data_offsets) = (Dtype::F32, (start, end));
        (parameter.name.clone(), TensorInfo { dtype, shape: parameter.shape.clone(), data_offsets })
    };
    let metadata = [("format".to_string(), "pt".to_string())].into();
    let infos = tensors.iter().map(info).collect();
    let header = Metadata::new(Some(metadata), infos).map_err(unusable(path))?;
    let mut header = serde_json::to_vec(&header).expect("names and numbers are JSON");
    header.resize(header.len().next_multiple_of(8), b' ');
    let write = |file: &mut File| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for tensor in &tensors {
            let bytes: Vec<u8> = tensor.values().iter().flat_map(|x| x.to_le_bytes()).collect();
            file.write_all(&bytes)?;
        }
        Ok(())
    };
    disk::write_output(path, write).map_err(file_error("written", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_wrappers_do_not_count() {
        for name in [
            "model.layers.0.mlp.up_proj.weight",
            "_orig_mod.model.layers.0.mlp.up_proj.weight",
            "module._orig_mod.model.layers.0.mlp.up_proj.weight",
            "model.layers.0._orig_mod.mlp.up_proj.weight",
            "layers.0.mlp.up_proj.weight",
        ] {
            assert_eq!(normalize_name(name), "model.layers.0.mlp.up_proj.weight");
        }
        assert_eq!(normalize_name("module.lm_head.weight"), "lm_head.weight");
    }
}
