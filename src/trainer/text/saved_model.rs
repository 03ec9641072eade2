//! The language model of a run as sections of a checkpoint, so that a run can resume from its checkpoint alone.
//!
//! The sections are the files of a model's folder besides the weights. The weights that adapters are trained with are
//! not saved, since they do not change; a digest tells whether a folder still holds them.

use super::LanguageEngine;
use crate::checkpoint::{Checkpoint, Section};
use crate::disk;
use crate::model::DecoderShape;
use crate::text::{DecoderParams, LanguageModel};
use crate::trainer::SnapshotError;
use crate::trainer::snapshot::{VERSION, WEIGHTS, new_section, read_params, unreadable_error};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Prefix of the names of sections that are files of a model's folder.
const FILE_PREFIX: &str = "model.";
/// File of a model's folder with its shape.
const CONFIG: &str = "config.json";
/// Section that identifies the weights that the adapters are trained with.
const BASE_SECTION: &str = "base.json";
/// Number of weights per chunk of the digest.
const CHUNK_WEIGHTS: usize = 1 << 20;

/// The weights that a run's adapters are trained with.
#[derive(Serialize, Deserialize)]
struct BaseWeights {
    /// Path of the folder or file.
    path: String,
    /// SHA-256, hexadecimal.
    digest: String,
}

/// Checks that `model` has the configuration in a checkpoint, and the weights `base`.
fn check_same(
    checkpoint: &Checkpoint,
    base: BaseWeights,
    model: &LanguageModel,
) -> Result<(), SnapshotError> {
    let path = model.base.clone();
    let config = checkpoint.section(&format!("{FILE_PREFIX}{CONFIG}"), VERSION)?;
    let config = serde_json::from_slice(&config.bytes).map_err(|e| unreadable_error(CONFIG, e))?;
    let shape = DecoderShape::from_config(&config).map_err(|e| unreadable_error(CONFIG, e))?;
    if model.shape != shape {
        return Err(SnapshotError::OtherBaseShape(path));
    }
    let (found, expected) = (compute_digest(&model.params), base.digest);
    if found == expected { Ok(()) } else { Err(SnapshotError::OtherBase { path, found, expected }) }
}

/// Reads which weights the adapters in a checkpoint are trained with; `None` if it has no adapters.
fn read_base(checkpoint: &Checkpoint) -> Result<Option<BaseWeights>, SnapshotError> {
    if !checkpoint.sections.iter().any(|section| section.name == BASE_SECTION) {
        return Ok(None);
    }
    let section = checkpoint.section(BASE_SECTION, VERSION)?;
    serde_json::from_slice(&section.bytes).map(Some).map_err(|e| unreadable_error(BASE_SECTION, e))
}

/// Checks that a model has the configuration and the weights that the adapters in a checkpoint are trained with, if it
/// has adapters.
///
/// # Errors
/// If the model has others.
pub fn check_base(checkpoint: &Checkpoint, model: &LanguageModel) -> Result<(), SnapshotError> {
    match read_base(checkpoint)? {
        Some(base) => check_same(checkpoint, base, model),
        None => Ok(()),
    }
}

/// Encodes the model of a run as sections.
pub(super) fn encode_model(engine: &LanguageEngine) -> Vec<Section> {
    let model = &engine.model;
    let files = model.metadata().into_iter();
    let mut sections: Vec<_> =
        files.map(|(name, bytes)| new_section(format!("{FILE_PREFIX}{name}"), bytes)).collect();
    if model.adapters.is_some() {
        let digest =
            engine.base_digest.get_or_init(|| compute_digest(engine.learner.decoder.params()));
        let base = BaseWeights { path: model.base.display().to_string(), digest: digest.clone() };
        let text = serde_json::to_vec_pretty(&base).expect("a path and a digest are text");
        sections.push(new_section(BASE_SECTION, text));
    }
    sections
}

/// Loads the model in a checkpoint. If the model has adapters, their base weights come from the folder or file `base`,
/// or, without it, from the place that they had during training.
///
/// # Errors
/// If the checkpoint has no model, or `base` has another configuration or other weights.
pub fn load_language_model(
    checkpoint: &Checkpoint,
    base: Option<&Path>,
) -> Result<LanguageModel, SnapshotError> {
    let sections = checkpoint.sections.iter();
    let files = sections.filter_map(|section| {
        Some((section.name.strip_prefix(FILE_PREFIX)?.to_string(), section.bytes.clone()))
    });
    let (files, place) = (files.collect(), Path::new("checkpoint"));
    let Some(saved_base) = read_base(checkpoint)? else {
        if let Some(base) = base {
            return Err(SnapshotError::UnneededBase(base.to_path_buf()));
        }
        return LanguageModel::from_metadata(place, files, |shape| {
            Ok(read_params(checkpoint, WEIGHTS, &shape.parameters())?.into())
        });
    };
    let path = base.map_or_else(|| PathBuf::from(&saved_base.path), Path::to_path_buf);
    if !path.exists() {
        return Err(SnapshotError::MissingBase(path));
    }
    let loaded = LanguageModel::load(&path)?;
    check_same(checkpoint, saved_base, &loaded)?;
    let with_base =
        LanguageModel::from_metadata::<SnapshotError>(place, files, |_| Ok(loaded.params));
    let mut model = with_base?;
    model.base = loaded.base;
    if let Some(adapters) = model.adapters.take() {
        let params = read_params(checkpoint, WEIGHTS, adapters.parameters())?;
        model.adapters = Some(adapters.with_params(params));
    }
    Ok(model)
}

/// Computes the digest of weights: SHA-256 of the digests of their chunks, hexadecimal.
fn compute_digest(params: &DecoderParams) -> String {
    let chunk_digest = |first: usize| {
        let mut weights = vec![0.0; CHUNK_WEIGHTS.min(params.len() - first)];
        params.read(first, &mut weights);
        let bytes: Vec<u8> = weights.iter().flat_map(|x| x.to_le_bytes()).collect();
        Sha256::digest(bytes).to_vec()
    };
    let chunks = (0..params.len().div_ceil(CHUNK_WEIGHTS)).into_par_iter();
    let chunks: Vec<Vec<u8>> = chunks.map(|index| chunk_digest(index * CHUNK_WEIGHTS)).collect();
    disk::sha256(chunks.concat())
}
