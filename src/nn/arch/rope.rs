//! The rotary frequencies of an architecture, and their scaling for long contexts.
//!
//! Formulas as in `transformers`' `modeling_rope_utils.py`.

use super::entries::{
    ConfigError, read_number, read_section, read_switch, read_text, unsupported_error,
};
use super::{DecoderShape, Family};
use crate::nn::ops::rope::RopeTable;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::f64::consts::TAU;

/// A change of the rotary frequencies for contexts longer than those of pre-training; serialized as the `rope_scaling`
/// of a `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Positions are divided by `factor` (Chen et al. 2023).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Beyond the context of pre-training the base grows with the position (NTK-aware scaling, as `transformers`
    /// applies it to one token after the other).
    Dynamic {
        /// The growth of the context.
        factor: f64,
        /// Tokens of the context in pre-training.
        #[serde(skip_serializing)]
        original_max_position_embeddings: f64,
    },
    /// Slow frequencies are divided by `factor`, fast ones stay, with a ramp between them (Peng et al. 2023).
    Yarn {
        /// The divisor.
        factor: f64,
        /// Tokens of the context in pre-training.
        #[serde(serialize_with = "serialize_whole")]
        original_max_position_embeddings: f64,
        /// Rotations in the original context from which on a frequency is fast.
        beta_fast: f64,
        /// Rotations in the original context up to which a frequency is slow.
        beta_slow: f64,
        /// The factor of cosines and sines.
        attention_factor: f64,
        /// Whether the ends of the ramp are rounded outwards to whole pairs.
        truncate: bool,
    },
    /// Llama 3's: slow frequencies are divided by `factor`, fast ones stay, with a ramp over wavelengths.
    Llama3 {
        /// The divisor.
        factor: f64,
        /// Rotations in the original context up to which a frequency is slow.
        low_freq_factor: f64,
        /// Rotations in the original context from which on a frequency is fast.
        high_freq_factor: f64,
        /// Tokens of the context in pre-training.
        #[serde(serialize_with = "serialize_whole")]
        original_max_position_embeddings: f64,
    },
}

/// The entry for the tokens of the context in pre-training.
const ORIGINAL_CONTEXT: &str = "original_max_position_embeddings";

/// Serializes a whole number, held as a float, as an integer.
fn serialize_whole<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(*x as u64)
}

impl RopeScaling {
    /// Finds the scaling of a released Llama 3 model that divides the frequencies by `divisors`; `None` if no model has
    /// it. Files of llama.cpp hold the divisors instead of the scaling's settings.
    pub fn from_llama3_divisors(divisors: &[f64], theta: f64) -> Option<Self> {
        let dim = 2 * divisors.len();
        let plain = compute_frequencies(dim, theta, None);
        let matches = |scaling: &Self| {
            let scaled = compute_frequencies(dim, theta, Some(*scaling));
            let quotients = plain.iter().zip(scaled).map(|(plain, scaled)| plain / scaled);
            quotients.zip(divisors).all(|(expected, found)| (found / expected - 1.0).abs() < 1e-4)
        };
        [2.0, 4.0, 8.0, 16.0, 32.0].map(Self::released_llama3).into_iter().find(matches)
    }

    /// The scaling of Llama's released models, by this factor.
    fn released_llama3(factor: f64) -> Self {
        Self::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        }
    }
}

/// The rotations of a decoder's positions with this base and scaling.
pub(super) fn rope_table(
    shape: &DecoderShape,
    theta: f64,
    scaling: Option<RopeScaling>,
) -> RopeTable {
    let dim = shape.rotary_dim();
    if let Some(RopeScaling::Dynamic { factor, original_max_position_embeddings }) = scaling {
        let positions = num_dynamic_positions(factor, original_max_position_embeddings);
        return RopeTable::from_fn((positions as usize).max(1), |position| {
            let length = (position as f64 + 1.0).max(original_max_position_embeddings);
            let growth = factor * length / original_max_position_embeddings - (factor - 1.0);
            let power = dim as f64 / (dim as f64 - 2.0).max(1.0);
            compute_frequencies(dim, theta * growth.powf(power), None)
        });
    }
    let attention_factor = match scaling {
        Some(RopeScaling::Yarn { attention_factor, .. }) => attention_factor,
        _ => 1.0,
    };
    RopeTable::new(&compute_frequencies(dim, theta, scaling), attention_factor, shape.context)
}

/// The table of layers that do not rotate: the angle 0 at every position.
pub(super) fn identity_table(shape: &DecoderShape) -> RopeTable {
    RopeTable::from_fn(1, |_| vec![0.0; shape.rotary_dim() / 2])
}

/// Computes the frequency of each pair, in radians a position: `[dim / 2]`.
fn compute_frequencies(dim: usize, theta: f64, scaling: Option<RopeScaling>) -> Vec<f64> {
    let plain = (0..dim / 2).map(|i| theta.powf(-(2.0 * i as f64) / dim as f64));
    match scaling {
        None | Some(RopeScaling::Dynamic { .. }) => plain.collect(),
        Some(RopeScaling::Linear { factor }) => plain.map(|plain| plain / factor).collect(),
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        }) => {
            let scaled = |plain: f64| {
                let fast = ((original * plain / TAU - low) / (high - low)).clamp(0.0, 1.0);
                plain * fast + plain / factor * (1.0 - fast)
            };
            plain.map(scaled).collect()
        }
        Some(RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast,
            beta_slow,
            truncate,
            ..
        }) => {
            let wavelengths = [beta_fast, beta_slow].map(|rotations| original / (rotations * TAU));
            let [low, high] = find_ramp(dim, theta, wavelengths, truncate);
            let scaled = |(i, plain): (usize, f64)| {
                let slow = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                plain / factor * slow + plain * (1.0 - slow)
            };
            plain.enumerate().map(scaled).collect()
        }
    }
}

/// Finds the indices of the pairs at which the ramp from fast to slow frequencies begins and ends: those with these
/// wavelengths over 2 pi, rounded outwards to whole pairs if `truncate`.
fn find_ramp(dim: usize, theta: f64, wavelengths: [f64; 2], truncate: bool) -> [f64; 2] {
    let [mut low, mut high] =
        wavelengths.map(|length| dim as f64 * length.ln() / (2.0 * theta.ln()));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    let (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
    [low, if low == high { high + 0.001 } else { high }]
}

/// Reads the table of rotary settings of full attention: `rope_scaling`, or `rope_parameters` in files of newer
/// versions of `transformers`, which also prefers the former; of tables for each kind of layer, that of full attention.
pub(super) fn read_rope_settings(config: &Value, family: &Family) -> Result<Value, ConfigError> {
    let parameters = read_section(config, "rope_parameters")?;
    let scaling = read_section(config, "rope_scaling")?;
    if family.has_rope_per_layer_type {
        // As in `transformers`, settings outside of the tables do not count, and a `rope_scaling` changes those of full
        // attention instead of replacing them.
        let full = parameters.map_or(Ok(None), |table| read_section(table, "full_attention"))?;
        let plain = || Map::from_iter([("rope_type".to_string(), "default".into())]);
        let mut table = full.and_then(Value::as_object).cloned().unwrap_or_else(plain);
        table.extend(scaling.and_then(Value::as_object).cloned().unwrap_or_default());
        return Ok(Value::Object(table));
    }
    let is_empty = |table: &&Value| table.as_object().is_some_and(Map::is_empty);
    let entry = scaling.filter(|table| !is_empty(table)).or(parameters).unwrap_or(&Value::Null);
    if let Some(full) = read_section(entry, "full_attention")? {
        return Ok(full.clone());
    }
    let mut table = entry.clone();
    // As in `transformers`, the length at the top of a configuration has priority over the one in its only table.
    if table.is_object()
        && let Some(tokens) = read_number(config, ORIGINAL_CONTEXT)?
    {
        table[ORIGINAL_CONTEXT] = tokens.into();
    }
    Ok(table)
}

/// Reads a number of the rotary embedding, such as `rope_theta`, from its table or the top of a configuration;
/// `None` if it is absent.
pub(super) fn read_rope_number(
    config: &Value,
    family: &Family,
    name: &str,
) -> Result<Option<f64>, ConfigError> {
    Ok(read_number(&read_rope_settings(config, family)?, name)?.or(read_number(config, name)?))
}

/// Checks `partial_rotary_factor`, which the classes of these families in `transformers` do not honour: there, plain
/// rotary embeddings rotate whole heads whatever the factor is, and scaled ones fail if it is below 1.
pub(super) fn check_partial_rotary_factor(
    config: &Value,
    shape: &DecoderShape,
) -> Result<(), ConfigError> {
    let name = "partial_rotary_factor";
    let factor = read_rope_number(config, shape.family, name)?.unwrap_or(1.0);
    let is_whole = (shape.head_dim as f64 * factor) as usize == shape.head_dim;
    if is_whole || shape.rope_scaling.is_none() {
        Ok(())
    } else {
        Err(unsupported_error(name, factor))
    }
}

/// Reads the base of the rotary frequencies of layers with a sliding window, from the table that `rope_parameters` has
/// for them; `None` if it is absent.
pub(super) fn read_sliding_theta(config: &Value) -> Result<Option<f64>, ConfigError> {
    let name = "sliding_attention";
    let sliding = read_section(&config["rope_parameters"], name)?.unwrap_or(&Value::Null);
    match read_scaling_kind(sliding)? {
        "default" => read_number(sliding, "rope_theta"),
        other => Err(unsupported_error(&format!("rope_parameters.{name}.rope_type"), other)),
    }
}

/// Reads the kind of scaling from a table of rotary settings.
fn read_scaling_kind(rope: &Value) -> Result<&str, ConfigError> {
    Ok(read_text(rope, "rope_type")?.or(read_text(rope, "type")?).unwrap_or("default"))
}

/// Maximum positions of a table with frequencies by position; heads larger than [`USUAL_HEAD_DIM`] have fewer.
const MAX_POSITIONS: f64 = 1048576.0;
const USUAL_HEAD_DIM: usize = 128;

/// Checks that a table with frequencies by position is not too large.
pub(super) fn check_table_size(shape: &DecoderShape) -> Result<(), ConfigError> {
    let Some(RopeScaling::Dynamic { factor, original_max_position_embeddings: original }) =
        shape.rope_scaling
    else {
        return Ok(());
    };
    let size = num_dynamic_positions(factor, original) * shape.head_dim.max(USUAL_HEAD_DIM) as f64;
    if size > MAX_POSITIONS * USUAL_HEAD_DIM as f64 {
        Err(unsupported_error("rope_scaling.factor", factor))
    } else {
        Ok(())
    }
}

/// Reads the scaling of the rotary frequencies, if there is one.
pub(super) fn read_scaling(
    rope: &Value,
    context: usize,
) -> Result<Option<RopeScaling>, ConfigError> {
    let require = |name: &str| {
        read_number(rope, name)?.ok_or_else(|| ConfigError::Missing(format!("rope_scaling.{name}")))
    };
    let context = context as f64;
    let original = read_number(rope, ORIGINAL_CONTEXT)?;
    Ok(match read_scaling_kind(rope)? {
        "default" => None,
        "linear" => Some(RopeScaling::Linear { factor: require("factor")? }),
        "dynamic" => Some(RopeScaling::Dynamic {
            factor: require("factor")?,
            original_max_position_embeddings: context,
        }),
        "llama3" => Some(RopeScaling::Llama3 {
            factor: require("factor")?,
            low_freq_factor: require("low_freq_factor")?,
            high_freq_factor: require("high_freq_factor")?,
            original_max_position_embeddings: original.unwrap_or(context),
        }),
        "yarn" => {
            let factor = match (read_number(rope, "factor")?, original) {
                (None, Some(original)) => context / original,
                _ => require("factor")?,
            };
            Some(read_yarn(rope, factor, original.unwrap_or(context))?)
        }
        other => return Err(unsupported_error("rope_type", other)),
    })
}

/// The number of positions in the table of a dynamic scaling: those of the grown context, and no fewer than of the
/// original one.
fn num_dynamic_positions(factor: f64, original: f64) -> f64 {
    (factor.max(1.0) * original).ceil()
}

/// Reads YaRN with this factor and this context of pre-training.
fn read_yarn(rope: &Value, factor: f64, original: f64) -> Result<RopeScaling, ConfigError> {
    let read_or = |name: &str, default: f64| read_number(rope, name).map(|x| x.unwrap_or(default));
    // The factor of attention by Peng et al. 2023, formula 22.
    let mscale = |weight: f64| if factor > 1.0 { 0.1 * weight * factor.ln() + 1.0 } else { 1.0 };
    let weight = |name: &str| read_number(rope, name).map(|x| x.filter(|weight| *weight != 0.0));
    let attention_factor = match (weight("mscale")?, weight("mscale_all_dim")?) {
        (Some(some), Some(all)) => mscale(some) / mscale(all),
        _ => mscale(1.0),
    };
    Ok(RopeScaling::Yarn {
        factor,
        original_max_position_embeddings: original,
        beta_fast: read_or("beta_fast", 32.0)?,
        beta_slow: read_or("beta_slow", 1.0)?,
        attention_factor: read_or("attention_factor", attention_factor)?,
        truncate: read_switch(rope, "truncate")?.unwrap_or(true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::arch::FAMILIES;
    use crate::nn::arch::entries::sample_shape;
    use serde_json::json;

    #[test]
    fn slow_frequencies_are_scaled_and_fast_ones_are_not() {
        let scaling = RopeScaling::released_llama3(8.0);
        let [plain, scaled] =
            [None, Some(scaling)].map(|scaling| compute_frequencies(64, 5e5, scaling));
        let shares: Vec<f64> = scaled.iter().zip(&plain).map(|(a, b)| a / b).collect();
        assert_eq!((shares[0], shares[31]), (1.0, 0.125));
        assert!(shares.windows(2).all(|pair| pair[1] <= pair[0]), "{shares:?}");
        // Pair 17: 8192 * 5e5^(-17/32) / 2 pi rotations, the share by the formula of Llama 3.
        let rotations = 8192.0 * 5e5f64.powf(-17.0 / 32.0) / TAU;
        let smooth = (rotations - 1.0) / 3.0;
        assert!((shares[17] - ((1.0 - smooth) / 8.0 + smooth)).abs() < 1e-12);
    }

    #[test]
    fn a_scaling_is_known_by_its_divisors() {
        for factor in [8.0, 32.0] {
            let scaling = RopeScaling::released_llama3(factor);
            let [plain, scaled] =
                [None, Some(scaling)].map(|scaling| compute_frequencies(64, 5e5, scaling));
            // As files have them, in single precision.
            let mut divisors: Vec<f64> =
                plain.iter().zip(&scaled).map(|(a, b)| f64::from((a / b) as f32)).collect();
            assert_eq!(RopeScaling::from_llama3_divisors(&divisors, 5e5), Some(scaling));
            divisors[20] *= 1.01;
            assert_eq!(RopeScaling::from_llama3_divisors(&divisors, 5e5), None);
        }
    }

    #[test]
    fn dynamic_frequencies_are_plain_within_the_context_and_slower_beyond() {
        let scaling = RopeScaling::Dynamic { factor: 2.0, original_max_position_embeddings: 8.0 };
        let shape = DecoderShape { head_dim: 8, ..DecoderShape::default() };
        let [plain, scaled] = [None, Some(scaling)].map(|scaling| rope_table(&shape, 1e4, scaling));
        let at = |table: &RopeTable, position| table.at(position).collect::<Vec<_>>();
        for (a, b) in (0..8).flat_map(|p| at(&plain, p).into_iter().zip(at(&scaled, p))) {
            assert!((a[0] - b[0]).abs() < 1e-6 && (a[1] - b[1]).abs() < 1e-6);
        }
        // Position 11 is the end of 12 tokens: the base grows by (2 * 12 / 8 - 1)^(8 / 6).
        let base = 1e4 * 2f64.powf(8.0 / 6.0);
        let angle = 11.0 * base.powf(-0.25);
        assert!((f64::from(at(&scaled, 11)[1][0]) - angle.cos()).abs() < 1e-6);
    }

    #[test]
    fn yarn_ramps_between_the_pairs_that_rotate_fast_and_slowly() {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original_max_position_embeddings: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: 1.0,
            truncate: true,
        };
        let [plain, scaled] =
            [None, Some(scaling)].map(|scaling| compute_frequencies(64, 1e4, scaling));
        let shares: Vec<f64> = scaled.iter().zip(&plain).map(|(a, b)| a / b).collect();
        // Pairs floor(10.46) and ceil(22.51): 64 ln(4096 / (2 pi rotations)) / (2 ln 10000).
        assert!(shares[..=10].iter().all(|share| *share == 1.0), "{shares:?}");
        assert!(shares[23..].iter().all(|share| (*share - 0.25).abs() < 1e-12), "{shares:?}");
        assert!((shares[15] - (0.25 * 5.0 / 13.0 + 8.0 / 13.0)).abs() < 1e-12);
        let linear = compute_frequencies(64, 1e4, Some(RopeScaling::Linear { factor: 2.0 }));
        assert!(linear.iter().zip(&plain).all(|(a, b)| *a == b / 2.0));
    }

    /// The shape by a `config.json` of a family, with other entries.
    fn shape(model_type: &str, others: Value) -> DecoderShape {
        sample_shape(model_type, others).unwrap()
    }

    #[test]
    fn the_context_of_pre_training_at_the_top_of_a_file_has_priority() {
        let original = |family: &str, rope: Value, top: Value| {
            let others =
                json!({ "rope_parameters": rope, "original_max_position_embeddings": top });
            match shape(family, others).rope_scaling.unwrap() {
                RopeScaling::Yarn { original_max_position_embeddings: original, .. }
                | RopeScaling::Llama3 { original_max_position_embeddings: original, .. } => {
                    original
                }
                other => panic!("{other:?}"),
            }
        };
        for kind in ["llama3", "yarn"] {
            let mut table = json!({
                "rope_type": kind, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            });
            assert_eq!(original("llama", table.clone(), Value::Null), 64.0);
            assert_eq!(original("llama", table.clone(), json!(16)), 16.0);
            table["original_max_position_embeddings"] = json!(32);
            assert_eq!(original("llama", table.clone(), Value::Null), 32.0);
            assert_eq!(original("llama", table.clone(), json!(16)), 16.0);
            // Tables for each kind of layer keep their own.
            let each = json!({ "full_attention": table });
            assert_eq!(original("olmo3", each, json!(16)), 32.0);
        }
    }

    #[test]
    fn families_with_a_table_for_each_kind_of_layer_ignore_settings_outside_of_them() {
        let found = |family: &str, others: Value| {
            let shape = shape(family, others);
            (shape.rope_theta, shape.rope_scaling, shape.sliding.unwrap().rope_theta.unwrap())
        };
        let flat = json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": 2e3 });
        let linear = Some(RopeScaling::Linear { factor: 2.0 });
        for (family, theta, local) in [("gemma3_text", 1e6, 1e4), ("olmo3", 5e5, 5e5)] {
            let outside = json!({ "rope_parameters": flat });
            assert_eq!(found(family, outside), (theta, None, local));
            // A `rope_scaling` changes entries of the table.
            let full = json!({ "full_attention": { "rope_type": "default", "rope_theta": 2e3 } });
            let scaling = json!({ "rope_type": "linear", "factor": 2.0 });
            assert_eq!(found(family, json!({ "rope_scaling": scaling })), (theta, linear, local));
            let both = json!({ "rope_parameters": full, "rope_scaling": scaling });
            assert_eq!(found(family, both), (2e3, linear, local));
        }
        // In other families an empty `rope_scaling` is none.
        let empty = shape("llama", json!({ "rope_parameters": flat, "rope_scaling": {} }));
        assert_eq!((empty.rope_theta, empty.rope_scaling), (2e3, linear));
    }

    #[test]
    fn whole_heads_rotate_whatever_a_file_says_of_a_part() {
        for family in FAMILIES {
            for part in [0.5, 0.65] {
                let entry = json!({ "partial_rotary_factor": part });
                let table = json!({ "rope_type": "default", "partial_rotary_factor": part });
                for others in [entry, json!({ "rope_parameters": table })] {
                    let shape = shape(family.model_type, others);
                    assert_eq!((shape.rotary_dim(), shape.head_dim), (8, 8), "{family:?}");
                }
            }
        }
    }
}
