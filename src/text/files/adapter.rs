//! Adapter folders in PEFT's format: low-rank additions to a model in another folder.

use super::hugging_face::{self, Files, write_files};
use super::parameters::read_parameters;
use super::weights::{WeightFiles, write_weights};
use super::{read_file, to_pretty_json, unusable, unusable_error};
use crate::model::Parameter;
use crate::nn::arch::Projection;
use crate::schema::Settings;
use crate::text::error::LanguageError;
use crate::text::language_model::LanguageModel;
use crate::text::{Adapters, LoraConfig};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::Path;

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// Keys of PEFT 0.21's `LoraConfig` that are read, or that do not affect the adapted model: settings of training, and
/// parameters of disabled features. Any other key must be null, false or empty.
const KNOWN_KEYS: [&str; 19] = [
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "eva_config",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
];
/// Initializations of adapters that leave the weights of the base model as they are.
const NEUTRAL_INITIALIZATIONS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// Whether a folder holds adapters.
pub(super) fn has_adapters(folder: &Path) -> bool {
    folder.join(CONFIG).is_file()
}

/// Name of a parameter's tensor in files.
fn tensor_name(parameter: &Parameter) -> String {
    format!("base_model.model.model.{}", parameter.name)
}

/// Reads adapters and their base model.
pub(super) fn read(folder: &Path) -> Result<LanguageModel, LanguageError> {
    let path = folder.join(CONFIG);
    let text = read_file(&path)?;
    let config_json: Value = serde_json::from_slice(&text).map_err(unusable(&path))?;
    let key = "base_model_name_or_path";
    let base = config_json[key].as_str().filter(|base| !base.is_empty());
    let base = base.ok_or_else(|| unusable_error(&path, format!("there is no `{key}`")))?;
    let base = match Path::new(base) {
        base if base.is_relative() && !base.exists() => folder.join(base),
        base => base.to_path_buf(),
    };
    if !base.exists() || has_adapters(&base) {
        let base = base.display();
        let reason = format!(
            "there is no model in {base}, which these adapters are for; `{key}` must be the path of its folder"
        );
        return Err(unusable_error(&path, reason));
    }
    let model = LanguageModel::load(&base)?;
    let mut model = hugging_face::with_files_of_adapters(model, folder)?;
    let config = parse_config(&config_json).map_err(unusable(&path))?;
    let weights = WeightFiles::open_files(folder, vec![WEIGHTS.to_string()])?;
    let find = |parameter: &Parameter| weights.find(parameter, &tensor_name(parameter));
    // Checked before anything is allocated by the rank.
    for linear in Projection::ALL.into_iter().filter(|linear| config.targets(*linear)) {
        let [inputs, _] = linear.sizes(&model.shape);
        let first = format!("layers.0.{}.lora_A.weight", linear.name());
        find(&Parameter::new(first, &[inputs, config.r]))?;
    }
    let adapters = Adapters::zeros(&model.shape, &config);
    let params = read_parameters(adapters.parameters(), folder, find)?.values().to_vec();
    let used: HashSet<String> = adapters.parameters().iter().map(tensor_name).collect();
    if let Some(other) = weights.tensor_names().filter(|name| !used.contains(*name)).min() {
        let reason = format!("the tensor `{other}` belongs to none of the adapters in {CONFIG}");
        return Err(unusable_error(&folder.join(WEIGHTS), reason));
    }
    model.adapters = Some(adapters.with_params(params));
    Ok(model)
}

/// Parses the configuration of adapters.
///
/// # Errors
/// A clause if it is not supported.
fn parse_config(config_json: &Value) -> Result<LoraConfig, String> {
    if config_json["peft_type"] != "LORA" {
        return Err(format!("`peft_type` {} is not known", config_json["peft_type"]));
    }
    check_entries(config_json)?;
    let rank = config_json["r"].as_u64().filter(|r| *r > 0);
    let rank = rank.ok_or("there is no whole number `r` above 0")?;
    let target_modules = parse_target_modules(&config_json["target_modules"])?;
    let lora_alpha = parse_lora_alpha(config_json, rank)?;
    let config = LoraConfig { r: rank as usize, lora_alpha, target_modules };
    config.validate().map_err(|error| error.to_string())?;
    Ok(config)
}

/// Whether the value of a key disables its feature.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Checks that no entry stands for something that is not computed here.
fn check_entries(config_json: &Value) -> Result<(), String> {
    let mut entries = config_json.as_object().into_iter().flatten();
    if let Some((name, value)) =
        entries.find(|(name, value)| !KNOWN_KEYS.contains(&name.as_str()) && !is_off(value))
    {
        return Err(format!("`{name}`: {value} is not known, and may change the model"));
    }
    let initialization = &config_json["init_lora_weights"];
    let keeps_base = match initialization {
        Value::Null | Value::Bool(_) => true,
        name => name.as_str().is_some_and(|name| NEUTRAL_INITIALIZATIONS.contains(&name)),
    };
    if !keeps_base {
        return Err(format!(
            "`init_lora_weights` {initialization} changes the weights of the base model; save the adapters \
             with PEFT's `path_initial_model_for_weight_conversion`, which makes plain ones of them"
        ));
    }
    if !is_off(&config_json["bias"]) && config_json["bias"] != "none" {
        return Err(format!("adapters with biases (`bias` {}) are not known", config_json["bias"]));
    }
    Ok(())
}

fn parse_target_modules(value: &Value) -> Result<Vec<String>, String> {
    let modules = match value {
        Value::Array(names) => parse_modules(names),
        Value::String(name) if name == "all-linear" => Some(LoraConfig::new(1).target_modules),
        _ => None,
    };
    modules.ok_or_else(|| format!("`target_modules` {value} is not known"))
}

/// Parses the numerator of the factor of adapters of this rank, `lora_alpha / r`.
fn parse_lora_alpha(config_json: &Value, rank: u64) -> Result<f32, String> {
    let lora_alpha = match &config_json["lora_alpha"] {
        // PEFT's default.
        Value::Null => Some(8.0),
        alpha => alpha.as_f64(),
    };
    let lora_alpha = lora_alpha
        .ok_or_else(|| format!("`lora_alpha` {} is not a number", config_json["lora_alpha"]))?;
    // The factor of rank-stabilized adapters is `lora_alpha / sqrt(r)` (Kalajdzievski 2023).
    let lora_alpha = match &config_json["use_rslora"] {
        Value::Bool(true) => lora_alpha * (rank as f64).sqrt(),
        other if is_off(other) => lora_alpha,
        other => return Err(format!("`use_rslora` {other} is neither true nor false")),
    };
    Ok(lora_alpha as f32)
}

/// Parses the matrices that a list of modules names, each once; `None` if an element is not a string. A name may be a
/// path, and PEFT lists the modules of all layers where they are few. A layer that is not listed lacks its tensors.
fn parse_modules(names: &[Value]) -> Option<Vec<String>> {
    let mut modules: Vec<String> = Vec::new();
    for name in names {
        let name = name.as_str()?;
        let is_path = |linear: &Projection| {
            let path = name.strip_suffix(&*linear.name());
            path.is_some_and(|path| path.is_empty() || path.ends_with('.'))
        };
        let is_module = |linear: &Projection| linear.module() == name;
        if !Projection::ALL.iter().any(|linear| is_path(linear) || is_module(linear)) {
            // Refused later, by itself: a file may name any number of others.
            return Some(vec![name.to_string()]);
        }
        let name = name.rsplit('.').next().unwrap_or(name);
        if !modules.iter().any(|known| known == name) {
            modules.push(name.to_string());
        }
    }
    Some(modules)
}

/// Writes a model's adapters and its vocabulary.
pub(super) fn write(
    model: &LanguageModel,
    adapters: &Adapters,
    folder: &Path,
) -> Result<(), LanguageError> {
    write_files(model, metadata(model, adapters), folder)?;
    write_weights(&folder.join(WEIGHTS), adapters.parameters(), adapters.params(), tensor_name)
}

/// Files of an adapter folder other than the weights.
pub(super) fn metadata(model: &LanguageModel, adapters: &Adapters) -> Files {
    let config = adapters.config();
    let targets: Vec<&str> = Projection::ALL
        .into_iter()
        .filter(|linear| config.targets(*linear))
        .map(Projection::module)
        .collect();
    let config_json = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model.base.display().to_string(),
        "r": config.r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "target_modules": targets,
    });
    let mut files = hugging_face::metadata(model);
    files.insert(CONFIG.to_string(), to_pretty_json(&config_json));
    files
}

/// Removes the adapter configuration from the files of a folder, if there is one, and returns it.
pub(super) fn take_config(
    files: &mut Files,
    folder: &Path,
) -> Result<Option<LoraConfig>, LanguageError> {
    let Some(text) = files.remove(CONFIG) else { return Ok(None) };
    let path = folder.join(CONFIG);
    let config_json = serde_json::from_slice(&text).map_err(unusable(&path))?;
    parse_config(&config_json).map(Some).map_err(unusable(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration as PEFT writes it, with another value for a key.
    fn config_json(key: &str, value: Value) -> Value {
        let mut config_json = json!({
            "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
            "base_model_name_or_path": "base", "bias": "none", "corda_config": null,
            "ensure_weight_tying": false, "eva_config": null, "exclude_modules": null,
            "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true,
            "layer_replication": null, "layers_pattern": null, "layers_to_transform": null,
            "loftq_config": {}, "lora_alpha": 16, "lora_bias": false, "lora_dropout": 0.05,
            "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null,
            "peft_type": "LORA", "peft_version": "0.18.0", "qalora_group_size": 16, "r": 4,
            "rank_pattern": {}, "revision": null, "target_modules": ["q_proj", "v_proj"],
            "target_parameters": null, "task_type": "CAUSAL_LM", "trainable_token_indices": null,
            "use_dora": false, "use_qalora": false, "use_rslora": false
        });
        config_json[key] = value;
        config_json
    }

    #[test]
    fn unsupported_adapter_keys_are_rejected_by_name() {
        let read = parse_config;
        let plain = read(&config_json("r", json!(4))).unwrap();
        assert_eq!((plain.r, plain.lora_alpha), (4, 16.0));
        assert_eq!(read(&config_json("lora_alpha", Value::Null)).unwrap().lora_alpha, 8.0);
        assert_eq!(read(&config_json("use_rslora", json!(true))).unwrap().lora_alpha, 32.0);
        assert!(read(&config_json("init_lora_weights", json!("gaussian"))).is_ok());
        let paths =
            ["self_attn.q_proj", "model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"];
        let targets = read(&config_json("target_modules", json!(paths))).unwrap().target_modules;
        assert_eq!(targets, ["q_proj", "up_proj"]);
        for (key, value) in [
            ("lora_bias", json!(true)),
            ("use_dora", json!(true)),
            ("use_rslora", json!("on")),
            ("use_qalora", json!(true)),
            ("fan_in_fan_out", json!(true)),
            ("trainable_token_indices", json!([1, 2])),
            ("trainable_token_indices", json!({"embed_tokens": [1]})),
            ("alora_invocation_tokens", json!([7])),
            ("target_parameters", json!(["mlp.experts.gate_up_proj"])),
            ("layer_replication", json!([[0, 4], [2, 5]])),
            ("exclude_modules", json!("lm_head")),
            ("modules_to_save", json!(["embed_tokens"])),
            ("layers_to_transform", json!([0])),
            ("layers_to_transform", json!(0)),
            ("rank_pattern", json!({"q_proj": 8})),
            ("alpha_pattern", json!({"q_proj": 8})),
            ("loftq_config", json!({"loftq_bits": 4})),
            ("init_lora_weights", json!("pissa")),
            ("init_lora_weights", json!("pissa_niter_16")),
            ("init_lora_weights", json!("olora")),
            ("init_lora_weights", json!(3)),
            ("bias", json!("all")),
            ("bias", json!(true)),
            ("lora_alpha", json!("32")),
            ("target_modules", json!(["q_proj", 3])),
            ("target_modules", json!(["lm_head"])),
            ("target_modules", json!(["linear_self_attn.q_proj"])),
            ("of_a_later_version", json!("on")),
        ] {
            let said = read(&config_json(key, value)).unwrap_err();
            assert!(said.contains(key), "{said}");
        }
    }
}
