//! JSON Schema of a settings file, from which editors complete and check it.

use super::declarations;
use super::overlay::{SCALE_REWARDS, aliases, resolve};
use crate::schema::{Setting, json};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use toml::Table;

/// The schema of the settings files of a run with these defaults, whose game or task declares `own_settings`.
///
/// A setting of a section may also stand at the top, as in a file, under each of its names that no other setting has
/// and that other trainers do not use for another setting.
pub fn file_schema(defaults: &Table, own_settings: &'static [Setting]) -> Value {
    let (settings, narrowed_ranges) = declarations(defaults);
    let mut schema = json::table_schema(settings, defaults);
    for (path, range) in narrowed_ranges {
        json::narrow(&mut schema, path, range);
    }
    let properties = schema["properties"].as_object_mut().expect("a table has properties");
    let subject = |key: &'static str| Some((key, defaults.get(key)?.as_str()?));
    if let Some((key, name)) = ["env", "task"].into_iter().find_map(subject) {
        properties.insert(key.to_string(), json!({ "const": name }));
        if let Some(toml::Value::Table(own_defaults)) = defaults.get(name) {
            properties.insert(name.to_string(), json::table_schema(own_settings, own_defaults));
        }
    }
    let mut short_names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (section, schema) in properties.iter_mut() {
        let Some(inner) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
            continue;
        };
        if let Some(scale) = inner.get_mut(SCALE_REWARDS).and_then(|it| it["enum"].as_array_mut()) {
            scale.extend([true.into(), false.into()]);
        }
        let path = |key: &str| format!("#/properties/{section}/properties/{key}");
        let declared = settings.iter().find(|setting| setting.key == section);
        for (alias, key) in declared.into_iter().flat_map(aliases) {
            inner.insert(alias.to_string(), json!({ "$ref": path(key) }));
        }
        for key in inner.keys() {
            short_names.entry(key.clone()).or_default().push(path(key));
        }
    }
    for (key, paths) in short_names {
        match &paths[..] {
            [path] if !properties.contains_key(&key) && resolve(defaults, &key).is_ok() => {
                properties.insert(key, json!({ "$ref": path }));
            }
            _ => {}
        }
    }
    schema["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    schema
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Catch, Env};
    use crate::settings::{LanguageConfig, TrainConfig, overlay};

    fn games() -> Value {
        let mut table = overlay::to_table(&TrainConfig::for_game("catch"));
        table.insert("env".to_string(), "catch".into());
        table.insert("catch".to_string(), overlay::to_table(&Catch::default()).into());
        file_schema(&table, Catch::settings())
    }

    #[test]
    fn every_setting_has_a_type_a_default_and_a_description() {
        let schema = games();
        let sections = schema["properties"].as_object().unwrap();
        let mut leaves = 0;
        for (section, about) in sections {
            for (key, leaf) in about["properties"].as_object().into_iter().flatten() {
                if leaf.get("$ref").is_some() {
                    continue;
                }
                leaves += 1;
                let has = |what: &str| leaf.get(what).is_some();
                assert!(has("default") && has("description"), "{section}.{key}: {leaf}");
                assert!(has("type") || has("enum") || has("anyOf"), "{section}.{key}: {leaf}");
            }
        }
        assert!(leaves > 40, "{leaves}");
        let rate = &sections["optimizer"]["properties"]["learning_rate"];
        assert_eq!((&rate["type"], &rate["minimum"]), (&"number".into(), &0.0.into()));
        let clip = &sections["loss"]["properties"]["clip_eps_low"];
        assert_eq!((&clip["minimum"], &clip["maximum"]), (&0.0.into(), &1.0.into()));
        assert_eq!(sections["catch"]["properties"]["rows"]["default"], 10);
        assert_eq!(sections["env"], json!({ "const": "catch" }));
    }

    #[test]
    fn values_are_those_that_the_program_takes() {
        let schema = games();
        let at = |section: &str, key: &str| &schema["properties"][section]["properties"][key];
        // Editors see null where TOML has inf, the default.
        assert_eq!(at("stop", "score")["type"], json!(["number", "null"]));
        assert_eq!(at("advantage", "discount")["minimum"], json!(f64::from(f32::MIN_POSITIVE)));
        let hidden = &at("policy", "hidden")["anyOf"];
        assert_eq!((&hidden[0]["maxItems"], &hidden[1]["maximum"]), (&8.into(), &4096.into()));
        for (section, key, minimum) in
            [("update", "num_shards", 1), ("checkpoint", "eval_episodes", 1)]
        {
            assert_eq!(at(section, key)["minimum"], minimum, "{section}.{key}");
        }
        assert_eq!(at("optimizer", "moments")["enum"], json!(["f32"]));
        for change in ["num_shards=0", "eval_episodes=0", "moments=bf16", "moments=8bit"] {
            let mut table = overlay::to_table(&TrainConfig::default());
            overlay::apply_assignments(&mut table, &[change]).unwrap();
            let config: TrainConfig = overlay::from_table(table).unwrap();
            assert!(config.validate().is_err(), "{change}");
        }
    }

    #[test]
    fn other_names_that_a_file_may_use_refer_to_the_setting() {
        let schema = games();
        let at = |pointer: &str| schema.pointer(pointer).cloned();
        let groups = json!({ "$ref": "#/properties/rollout/properties/group_size" });
        assert_eq!(at("/properties/group_size"), Some(groups.clone()));
        assert_eq!(at("/properties/rollout/properties/num_generations"), Some(groups));
        let scale = at("/properties/advantage/properties/scale_rewards/enum");
        assert_eq!(scale, Some(json!(["group", "batch", "none", true, false])));
        // A file may not have these, which other trainers give to other settings.
        assert_eq!(at("/properties/batch_size"), None);
        assert!(at("/properties/data/properties/batch_size").is_some());
        // Two sections have a learning rate there, so the short name is ambiguous.
        let table = overlay::to_table(&LanguageConfig::for_model("tiny"));
        let texts = file_schema(&table, &[]);
        assert_eq!(texts.pointer("/properties/learning_rate"), None);
        let rate = json!({ "$ref": "#/properties/optimizer/properties/lr" });
        assert_eq!(texts.pointer("/properties/lr"), Some(&rate));
        assert!(texts.pointer("/properties/fit/properties/learning_rate").is_some());
    }
}
