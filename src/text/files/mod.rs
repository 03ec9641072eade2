//! Files of language models: Hugging Face folders, PEFT's adapter folders, and GGUF files.

mod adapter;
mod gguf;
mod gguf_metadata;
mod gguf_tokens;
mod gguf_vocabulary;
mod gguf_writer;
mod hugging_face;
mod parameters;
mod pre_tokenizers;
mod quants;
mod tokenizer;
mod weights;

pub use gguf_writer::GgufType;

use super::error::LanguageError;
use super::language_model::LanguageModel;
use super::{Adapters, DecoderParams};
use crate::disk::input;
use crate::model::DecoderShape;
use memmap2::Mmap;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

impl LanguageModel {
    /// Reads a Hugging Face folder, a folder of adapters in PEFT's format, or a GGUF file.
    ///
    /// # Errors
    /// If it cannot be read, or has an unknown architecture.
    pub fn load(path: &Path) -> Result<Self, LanguageError> {
        if path.is_file() {
            gguf::read(path)
        } else if !path.exists() {
            Err(LanguageError::Missing(path.to_path_buf()))
        } else if !path.is_dir() {
            Err(unusable_error(path, "it is neither a regular file nor a folder"))
        } else if adapter::has_adapters(path) {
            adapter::read(path)
        } else {
            hugging_face::read(path)
        }
    }

    /// Writes a Hugging Face folder; for a model with adapters, a folder of the adapters alone in PEFT's format.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), LanguageError> {
        match &self.adapters {
            Some(adapters) => adapter::write(self, adapters, folder),
            None => hugging_face::write(self, folder),
        }
    }

    /// Writes a GGUF file for llama.cpp; for a model with adapters, a file of the adapters alone.
    ///
    /// # Errors
    /// If it cannot be written, or the architecture or the vocabulary is not supported.
    pub fn save_gguf(&self, path: &Path, format: GgufType) -> Result<(), LanguageError> {
        match &self.adapters {
            Some(adapters) => gguf_writer::write_adapters(self, adapters, format, path),
            None => gguf_writer::write(self, format, path),
        }
    }

    /// Contents of the model's files other than the weights, by file name.
    pub fn metadata(&self) -> BTreeMap<String, Vec<u8>> {
        match &self.adapters {
            Some(adapters) => adapter::metadata(self, adapters),
            None => hugging_face::metadata(self),
        }
    }

    /// Creates a model from [`LanguageModel::metadata`], with adapters of 0 if the files describe any. `params` reads
    /// the weights without adapters, in the order of [`DecoderShape::parameters`]; `folder` is the path that errors
    /// name.
    ///
    /// # Errors
    /// If a file is missing or cannot be used, and those of `params`.
    pub fn from_metadata<E: From<LanguageError>>(
        folder: &Path,
        mut files: BTreeMap<String, Vec<u8>>,
        params: impl FnOnce(&DecoderShape) -> Result<DecoderParams, E>,
    ) -> Result<Self, E> {
        let config = adapter::take_config(&mut files, folder)?;
        // A checkpoint from elsewhere may have any others, which are not to reach a model's folder.
        files.retain(|name, _| hugging_face::KEPT_FILES.contains(&&**name));
        let shape = hugging_face::read_shape(folder, &files)?;
        let params = params(&shape)?;
        let mut model = hugging_face::assemble(folder, shape, params, files)?;
        model.base = PathBuf::new();
        model.adapters = config.map(|config| Adapters::zeros(&model.shape, &config));
        Ok(model)
    }
}

/// Formats JSON as the content of a file.
fn to_pretty_json(value: &Value) -> Vec<u8> {
    serde_json::to_vec_pretty(value).expect("JSON is text")
}

/// Creates the error for a malformed file.
fn unusable_error(path: &Path, reason: impl ToString) -> LanguageError {
    LanguageError::Unusable { path: path.to_path_buf(), reason: reason.to_string() }
}

/// Creates the error for a malformed file from a reason, for `map_err`.
fn unusable<R: ToString>(path: &Path) -> impl FnOnce(R) -> LanguageError {
    move |reason| unusable_error(path, reason)
}

/// Reason for rejecting an entry with a value of the wrong type, which is abbreviated since it may be long.
fn wrong_type_reason(name: &str, value: &Value, expected: &str) -> String {
    let shown: String = value.to_string().chars().take(60).collect();
    format!("`{name}` is {shown}, but must be {expected}")
}

/// Creates the error for a file that cannot be `read` or `written`, for `map_err`.
fn file_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LanguageError {
    move |cause| LanguageError::File { path: path.to_path_buf(), action, cause }
}

/// Reads a whole file.
///
/// # Errors
/// If it cannot be read, or is a Git LFS pointer.
fn read_file(path: &Path) -> Result<Vec<u8>, LanguageError> {
    let bytes = input::read(path, input::MAX_DATA_BYTES).map_err(file_error("read", path))?;
    reject_lfs_pointer(&bytes, path)?;
    Ok(bytes)
}

/// Maps a whole file into memory. Texts must be copied before they are checked: another process may modify the file.
///
/// # Errors
/// If it cannot be read, or is a Git LFS pointer.
fn map_file(path: &Path) -> Result<Mmap, LanguageError> {
    let file = input::open(path).map_err(file_error("read", path))?;
    // SAFETY: any bytes are valid. If another process modifies the file while it is mapped, values change, or the
    // program is stopped by SIGBUS, but memory safety is not affected.
    let bytes = unsafe { Mmap::map(&file) }.map_err(file_error("read", path))?;
    reject_lfs_pointer(&bytes, path)?;
    Ok(bytes)
}

/// Rejects the pointer that stands for a file in a clone made without Git LFS.
fn reject_lfs_pointer(bytes: &[u8], path: &Path) -> Result<(), LanguageError> {
    if bytes.starts_with(b"version https://git-lfs.github.com/spec/") {
        let reason = "it is a pointer of Git LFS, not the file itself; `git lfs pull` fetches that";
        Err(unusable_error(path, reason))
    } else {
        Ok(())
    }
}
