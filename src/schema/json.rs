//! JSON Schemas of settings files, from which editors complete and check TOML.

use super::{Setting, ValueRange, flatten_sections, range::Interval};
use serde_json::{Map, Value, json};

/// Schema of a table of these settings; `defaults` holds the values that apply where the file has
/// none.
pub fn table_schema(settings: &'static [Setting], defaults: &toml::Table) -> Value {
    let mut properties = Map::new();
    for setting in flatten_sections(settings) {
        let default = defaults.get(setting.key);
        properties.insert(setting.key.to_string(), setting_schema(setting, default));
    }
    // Settings of a user's game or task that are not declared.
    for (key, value) in defaults {
        if !properties.contains_key(key) {
            properties.insert(key.clone(), undeclared_schema(value));
        }
    }
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

/// Schema of a setting with this default.
fn setting_schema(setting: &Setting, default: Option<&toml::Value>) -> Value {
    let mut schema = match (setting.range, default) {
        (ValueRange::Section(settings), Some(toml::Value::Table(defaults))) => {
            table_schema(settings, defaults)
        }
        (range, _) => range_schema(&range),
    };
    schema["description"] = setting.meaning().into();
    if let Some(default) = default.filter(|default| !default.is_table()) {
        schema["default"] = json!(default);
    }
    schema
}

/// Limits a setting of a table's schema, by its path, to the values of a range.
pub fn narrow(schema: &mut Value, path: &str, range: &ValueRange) {
    let pointer = format!("/properties/{}", path.replace('.', "/properties/"));
    if let (Some(Value::Object(setting)), Value::Object(narrowed)) =
        (schema.pointer_mut(&pointer), range_schema(range))
    {
        setting.extend(narrowed);
    }
}

/// Schema of the values that a range allows.
fn range_schema(range: &ValueRange) -> Value {
    match *range {
        ValueRange::Integer(low, high) => {
            json!({ "type": "integer", "minimum": low, "maximum": high })
        }
        ValueRange::Number(interval) => interval_schema(interval),
        ValueRange::Bool => json!({ "type": "boolean" }),
        ValueRange::Name(names) => json!({ "enum": names }),
        ValueRange::OpenName(names) => {
            json!({ "anyOf": [{ "enum": names }, { "type": "string" }] })
        }
        ValueRange::String => json!({ "type": "string" }),
        ValueRange::Strings => list_schema(&json!({ "type": "string" })),
        ValueRange::StringsOf(names) => list_schema(&json!({ "enum": names })),
        ValueRange::Integers { count, each } => {
            let mut schema = list_schema(&range_schema(&ValueRange::Integer(each.0, each.1)));
            let list = &mut schema["anyOf"][0];
            (list["minItems"], list["maxItems"]) = (count.0.into(), count.1.into());
            schema
        }
        ValueRange::Section(settings) => table_schema(settings, &toml::Table::new()),
    }
}

/// Schema of a list of such items, or of one that stands for a list of one.
fn list_schema(item: &Value) -> Value {
    json!({ "anyOf": [{ "type": "array", "items": item }, item] })
}

/// Schema of the numbers of an interval.
fn interval_schema(interval: Interval) -> Value {
    let low = if interval.includes_low { "minimum" } else { "exclusiveMinimum" };
    let high = if interval.includes_high { "maximum" } else { "exclusiveMaximum" };
    let mut schema = json!({ "type": "number", low: interval.low });
    if let Some(smallest) = interval.smallest() {
        schema["minimum"] = smallest.into();
    }
    if interval.high.is_finite() {
        schema[high] = interval.high.into()
    } else {
        // JSON has no infinity: editors see null in its place, which TOML does not have.
        schema["type"] = json!(["number", "null"])
    }
    schema
}

/// Schema of an undeclared setting, derived from its default.
fn undeclared_schema(default: &toml::Value) -> Value {
    let json_type = match default {
        toml::Value::Integer(_) => "integer",
        toml::Value::Float(_) => "number",
        toml::Value::Boolean(_) => "boolean",
        toml::Value::Array(_) => "array",
        toml::Value::Table(defaults) => return table_schema(&[], defaults),
        toml::Value::String(_) | toml::Value::Datetime(_) => "string",
    };
    json!({ "type": json_type, "default": default })
}
