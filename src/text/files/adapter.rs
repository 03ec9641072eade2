//! Folders of adapters in the form of the package PEFT: what is added to a model that lies elsewhere.

use super::hugging_face::{Weights, write_files, write_weights};
use super::names::gather;
use super::{read_file, unusable, written};
use crate::model::Parameter;
use crate::nn::arch::Projection;
use crate::schema::Settings;
use crate::text::error::LanguageError;
use crate::text::language_model::LanguageModel;
use crate::text::{Adapters, LoraConfig};
use serde_json::{Value, json};
use std::path::Path;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Whether a folder holds adapters.
pub(super) fn is_folder(folder: &Path) -> bool {
    folder.join(CONFIG).is_file()
}

/// The name of a number's tensor in files.
fn name(parameter: &Parameter) -> String {
    format!("base_model.model.model.{}", parameter.name)
}

/// Reads adapters, and the model that they are for.
pub(super) fn read(folder: &Path) -> Result<LanguageModel, LanguageError> {
    let path = folder.join(CONFIG);
    let text = read_file(&path)?;
    let about: Value = serde_json::from_slice(&text).map_err(|e| unusable(&path, e))?;
    let base = about["base_model_name_or_path"].as_str().unwrap_or_default();
    let base = match Path::new(base) {
        base if base.is_relative() && !base.exists() => folder.join(base),
        base => base.to_path_buf(),
    };
    if !base.exists() || is_folder(&base) {
        let reason =
            format!("there is no model in {}, which these adapters are for", base.display());
        return Err(unusable(&path, reason));
    }
    let mut model = LanguageModel::load(&base)?;
    let config = config(&about, &path)?;
    let adapters = Adapters::zeros(&model.shape, &config);
    let weights = Weights::open_files(folder, vec![WEIGHTS.to_string()])?;
    let find = |parameter: &Parameter| weights.find(parameter, &name(parameter));
    let params = gather(adapters.parameters(), folder, find, |tensor| tensor.read())?;
    model.adapters = Some(adapters.with_params(params));
    Ok(model)
}

/// The configuration of a folder's adapters.
fn config(about: &Value, path: &Path) -> Result<LoraConfig, LanguageError> {
    let is_on = |name: &str| !matches!(about[name], Value::Null | Value::Bool(false));
    if about["peft_type"] != "LORA" {
        return Err(unusable(path, format!("`peft_type` {} is not known", about["peft_type"])));
    }
    let others =
        ["use_dora", "use_rslora", "modules_to_save", "layers_to_transform", "fan_in_fan_out"];
    if let Some(name) = others.into_iter().find(|name| is_on(name)) {
        return Err(unusable(path, format!("`{name}` is not known")));
    }
    for name in ["rank_pattern", "alpha_pattern"] {
        if about[name].as_object().is_some_and(|map| !map.is_empty()) {
            return Err(unusable(path, format!("`{name}` is not known")));
        }
    }
    if about["bias"].as_str().is_some_and(|bias| bias != "none") {
        return Err(unusable(path, "adapters with biases are not known"));
    }
    let rank = about["r"].as_u64().filter(|r| *r > 0);
    let rank = rank.ok_or_else(|| unusable(path, "there is no whole number `r` above 0"))?;
    let target_modules = match &about["target_modules"] {
        Value::Array(names) => names.iter().filter_map(|n| Some(n.as_str()?.to_string())).collect(),
        Value::String(name) if name == "all-linear" => LoraConfig::new(1).target_modules,
        other => return Err(unusable(path, format!("`target_modules` {other} is not known"))),
    };
    let lora_alpha = about["lora_alpha"].as_f64().unwrap_or(8.0) as f32;
    let config = LoraConfig { r: rank as usize, lora_alpha, target_modules };
    config.validate().map_err(|error| unusable(path, error.to_string()))?;
    Ok(config)
}

/// Writes a model's adapters, its vocabulary beside them.
pub(super) fn write(
    model: &LanguageModel,
    adapters: &Adapters,
    folder: &Path,
) -> Result<(), LanguageError> {
    write_files(model, folder)?;
    let config = adapters.config();
    let targets: Vec<&str> = Projection::ALL
        .into_iter()
        .filter(|linear| config.targets(*linear))
        .filter_map(|linear| linear.name().rsplit('.').next())
        .collect();
    let about = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.base,
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "target_modules": targets,
    });
    let path = folder.join(CONFIG);
    let text = serde_json::to_vec_pretty(&about).expect("JSON is text");
    std::fs::write(&path, text).map_err(written(&path))?;
    write_weights(&folder.join(WEIGHTS), adapters.parameters(), adapters.params(), name)
}
