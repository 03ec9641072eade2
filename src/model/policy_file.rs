//! A policy as one file: its parameters as named tensors, and its settings in the file's header.
//!
//! The format is safetensors (<https://huggingface.co/docs/safetensors>). Its metadata holds one entry,
//! `grove`: a [`Header`] as JSON. Other readers see plain tensors.

use super::Parameter;
use crate::math::block_quantized::{self, BlockCode};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;

/// The key of the metadata's only entry; several entries would be written in random order.
const METADATA_KEY: &str = "grove";

/// The run that a policy comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Iterations of training.
    pub iteration: u64,
    /// The settings of its run and the parameters of its game, as TOML.
    pub config: String,
    /// The manifest, without shards, of the dataset that the policy is fitted to; `None` if there is none or it is
    /// unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dataset: Option<serde_json::Value>,
}

/// The error for a file without a policy, or with another one.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PolicyFileError {
    /// The file is not an intact safetensors file.
    #[error("it is not an intact safetensors file: {0}")]
    Unreadable(String),
    /// The tensors are not those of the network's parameters.
    #[error("it does not fit the network: {0}")]
    Mismatch(String),
    /// The parameters are there, but no settings.
    #[error(
        "its header has no game and settings; use a file saved by grove, or put config.toml beside it"
    )]
    NoHeader,
}

/// The end of the name of a tensor of scales, after the name of the tensor that they belong to.
const SCALES_SUFFIX: &str = ".scales";

/// The values of a parameter vector, in the precision in which a file keeps them.
#[derive(Clone, Copy, Debug)]
pub enum ParameterValues<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// The upper halves of single-precision numbers.
    Bf16(&'a [u16]),
    /// Codes of 8 bits with a sign, and the scales in bf16 of their blocks; a parameter begins a block.
    I8 { codes: &'a [i8], scales: &'a [u16] },
    /// Codes of 8 bits without a sign, and the scales in bf16 of their blocks; a parameter begins a block.
    U8 { codes: &'a [u8], scales: &'a [u16] },
}

impl<'a> ParameterValues<'a> {
    /// The type, and the bytes in a file's order, copied only where the machine has another.
    fn encode(self) -> (Dtype, Cow<'a, [u8]>) {
        let (dtype, bytes): (Dtype, &'a [u8]) = match self {
            Self::F32(values) => (Dtype::F32, bytemuck::cast_slice(values)),
            Self::Bf16(values) => (Dtype::BF16, bytemuck::cast_slice(values)),
            Self::I8 { codes, .. } => (Dtype::I8, bytemuck::cast_slice(codes)),
            Self::U8 { codes, .. } => (Dtype::U8, codes),
        };
        let bytes = if cfg!(target_endian = "little") {
            Cow::Borrowed(bytes)
        } else {
            let values = bytes.chunks_exact(bytes_per_value(dtype));
            values.flat_map(|x| x.iter().rev().copied()).collect()
        };
        (dtype, bytes)
    }

    /// The scales of blocks.
    fn scales(self) -> Option<ParameterValues<'a>> {
        match self {
            Self::F32(_) | Self::Bf16(_) => None,
            Self::I8 { scales, .. } | Self::U8 { scales, .. } => Some(Self::Bf16(scales)),
        }
    }
}

fn bytes_per_value(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}

/// Writes a parameter vector as a safetensors file.
///
/// # Panics
/// If there are fewer values than the `layout` has.
pub fn write_params(layout: &[Parameter], values: &[f32], header: Option<&Header>) -> Vec<u8> {
    write_values(layout, ParameterValues::F32(values), header)
}

/// Writes parameters, or their moments, in any precision as a safetensors file, as [`write_params`] does.
///
/// # Panics
/// If there are fewer values than the `layout` has.
pub fn write_values(
    layout: &[Parameter],
    values: ParameterValues,
    header: Option<&Header>,
) -> Vec<u8> {
    let (values, scales) = (values.encode(), values.scales().map(ParameterValues::encode));
    let scale_tensors = layout.iter().map(|Parameter { name, shape }| Parameter {
        name: format!("{name}{SCALES_SUFFIX}"),
        shape: vec![block_quantized::num_blocks(shape.iter().product())],
    });
    let scale_tensors: Vec<Parameter> = scale_tensors.collect();
    let mut views = tensor_views(layout, &values);
    views.extend(scales.iter().flat_map(|scales| tensor_views(&scale_tensors, scales)));
    safetensors::serialize(views, header.map(header_metadata))
        .expect("names and shapes are those of a module")
}

/// The tensors of some parameters in a file, from their type and the bytes of all.
fn tensor_views<'a>(
    layout: &[Parameter],
    (dtype, bytes): &'a (Dtype, Cow<[u8]>),
) -> Vec<(String, TensorView<'a>)> {
    let mut offset = 0;
    let views = layout.iter().map(|parameter| {
        let len = bytes_per_value(*dtype) * parameter.num_elements();
        let view = TensorView::new(*dtype, parameter.shape.clone(), &bytes[offset..offset + len])
            .expect("the length is that of the shape");
        offset += len;
        (parameter.name.clone(), view)
    });
    views.collect()
}

/// Replaces the header of a safetensors file.
///
/// # Errors
/// If the file is damaged.
pub fn replace_header(bytes: &[u8], header: &Header) -> Result<Vec<u8>, PolicyFileError> {
    let tensors = SafeTensors::deserialize(bytes).map_err(unreadable_error)?;
    safetensors::serialize(tensors.iter(), Some(header_metadata(header))).map_err(unreadable_error)
}

fn header_metadata(header: &Header) -> HashMap<String, String> {
    let text = serde_json::to_string(header).expect("a header is plain data");
    HashMap::from([(METADATA_KEY.to_string(), text)])
}

/// Reads the parameter vector from a safetensors file with these tensors, in f32, bf16 or 8 bits.
///
/// # Errors
/// If the file is damaged, its tensors differ, or a number is not finite.
pub fn read_params(bytes: &[u8], layout: &[Parameter]) -> Result<Vec<f32>, PolicyFileError> {
    let tensors = SafeTensors::deserialize(bytes).map_err(unreadable_error)?;
    // A parameter of a user's module may be called `scales`, too.
    let is_scales = |name: &&str| {
        let scaled = name.strip_suffix(SCALES_SUFFIX).and_then(|name| tensors.tensor(name).ok());
        scaled.is_some_and(|view| matches!(view.dtype(), Dtype::I8 | Dtype::U8))
    };
    let found = tensors.names().into_iter().filter(|name| !is_scales(name)).count();
    if found != layout.len() {
        let expected = layout.len();
        return Err(mismatch_error(format!("it holds {found} tensors instead of {expected}")));
    }
    let mut values: Vec<f32> = Vec::new();
    for Parameter { name, shape } in layout {
        let view = find_tensor(&tensors, name)?;
        let (found, dtype, data) = (view.shape(), view.dtype(), view.data());
        let is_known = matches!(dtype, Dtype::F32 | Dtype::BF16 | Dtype::I8 | Dtype::U8);
        if found != shape || !is_known {
            return Err(mismatch_error(format!(
                "`{name}` is {dtype:?} {found:?} instead of F32 {shape:?}"
            )));
        }
        let start = values.len();
        match dtype {
            Dtype::F32 => values.extend(data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b))),
            Dtype::BF16 => values
                .extend(data.as_chunks().0.iter().map(|[a, b]| f32::from_le_bytes([0, 0, *a, *b]))),
            Dtype::I8 => {
                read_blocks::<i8>(&tensors, name, bytemuck::cast_slice(data), &mut values)?
            }
            _ => read_blocks::<u8>(&tensors, name, data, &mut values)?,
        }
        if values[start..].iter().any(|x| !x.is_finite()) {
            return Err(PolicyFileError::Unreadable(format!(
                "`{name}` holds numbers that are not finite"
            )));
        }
    }
    Ok(values)
}

/// Appends the values of a tensor of 8 bits, whose scales are beside it, to `values`.
fn read_blocks<B: BlockCode>(
    tensors: &SafeTensors,
    name: &str,
    codes: &[B],
    values: &mut Vec<f32>,
) -> Result<(), PolicyFileError> {
    let name = format!("{name}{SCALES_SUFFIX}");
    let view = find_tensor(tensors, &name)?;
    let (found, dtype, expected) =
        (view.shape(), view.dtype(), [block_quantized::num_blocks(codes.len())]);
    if found != expected || dtype != Dtype::BF16 {
        return Err(mismatch_error(format!(
            "`{name}` is {dtype:?} {found:?} instead of BF16 {expected:?}"
        )));
    }
    for (block, scale) in codes.chunks(block_quantized::BLOCK).zip(view.data().as_chunks().0) {
        let start = values.len();
        values.resize(start + block.len(), 0.0);
        block_quantized::dequantize(block, u16::from_le_bytes(*scale), &mut values[start..]);
    }
    Ok(())
}

fn find_tensor<'a>(
    tensors: &SafeTensors<'a>,
    name: &str,
) -> Result<TensorView<'a>, PolicyFileError> {
    tensors.tensor(name).map_err(|_| mismatch_error(format!("the tensor `{name}` is missing")))
}

/// Reads the header of a policy file.
///
/// # Errors
/// If the file is damaged or has no header.
pub fn read_header(bytes: &[u8]) -> Result<Header, PolicyFileError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(unreadable_error)?;
    let entry = metadata.metadata().as_ref().and_then(|entries| entries.get(METADATA_KEY));
    serde_json::from_str(entry.ok_or(PolicyFileError::NoHeader)?).map_err(unreadable_error)
}

fn mismatch_error(reason: String) -> PolicyFileError {
    PolicyFileError::Mismatch(reason)
}

fn unreadable_error(error: impl ToString) -> PolicyFileError {
    PolicyFileError::Unreadable(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::Activation;
    use crate::model::PolicyConfig;

    fn perceptron(num_features: usize, hidden: &[usize]) -> Vec<Parameter> {
        PolicyConfig::mlp(hidden, Activation::Tanh).parameters(num_features, 2)
    }

    #[test]
    fn a_policy_and_its_header_survive_a_round_trip() {
        let layout = perceptron(2, &[3]);
        let values: Vec<f32> = (0..17).map(|i| i as f32 * 0.5 - 3.0).collect();
        let dataset = Some(serde_json::json!({ "actions": ["left", "right"] }));
        let header = Header { iteration: 12, config: "env = \"catch\"\n".to_string(), dataset };
        let bytes = write_params(&layout, &values, Some(&header));
        assert_eq!(read_params(&bytes, &layout).unwrap(), values);
        assert_eq!(read_header(&bytes).unwrap(), header);
        assert_eq!(write_params(&layout, &values, Some(&header)), bytes);
        let bare = write_params(&layout, &values, None);
        assert_eq!(read_params(&bare, &layout).unwrap(), values);
        assert_eq!(read_header(&bare).unwrap_err(), PolicyFileError::NoHeader);
        assert_eq!(replace_header(&bare, &header).unwrap(), bytes);
    }

    #[test]
    fn a_parameter_may_be_called_scales() {
        let shape = vec![2];
        let layout = ["film.scale", "film.scales", "scales"]
            .map(|name| Parameter { name: name.to_string(), shape: shape.clone() });
        let values: Vec<f32> = (0..6).map(|i| i as f32).collect();
        assert_eq!(read_params(&write_params(&layout, &values, None), &layout).unwrap(), values);
        let (codes, scales) = ([127, 0, 0, 127, 127, 127], [127 << 7; 3]);
        let quantized =
            write_values(&layout, ParameterValues::I8 { codes: &codes, scales: &scales }, None);
        assert_eq!(read_params(&quantized, &layout).unwrap(), [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn damaged_files_and_other_networks_are_rejected() {
        let layout = perceptron(2, &[3]);
        let good = write_params(&layout, &[0.5; 17], None);
        let fails = |bytes: &[u8]| read_params(bytes, &layout).unwrap_err();
        for cut in [0, 7, 20, good.len() - 1] {
            assert!(matches!(fails(&good[..cut]), PolicyFileError::Unreadable(_)), "{cut} bytes");
        }
        let wider = perceptron(3, &[3]);
        assert!(matches!(
            fails(&write_params(&wider, &[0.5; 20], None)),
            PolicyFileError::Mismatch(reason) if reason.contains("[3, 3] instead of F32 [2, 3]")
        ));
        let deeper = perceptron(2, &[3, 3]);
        assert!(matches!(
            fails(&write_params(&deeper, &[0.5; 29], None)),
            PolicyFileError::Mismatch(reason) if reason.contains("6 tensors instead of 4")
        ));
        let wild = write_params(&layout, &[f32::NAN; 17], None);
        assert!(matches!(
            fails(&wild),
            PolicyFileError::Unreadable(reason) if reason.contains("not finite")
        ));
    }

    #[test]
    fn numbers_of_8_bits_are_read_with_their_scales() {
        let layout = perceptron(2, &[300]);
        let sizes: Vec<usize> = layout.iter().map(Parameter::num_elements).collect();
        let count = sizes.iter().map(|len| block_quantized::num_blocks(*len)).sum();
        // Scales are 2^0, 2^1, ... and codes such that every third number is the largest, its half, and 0.
        let scales: Vec<u16> = (0..count).map(|i| (127 + i as u16) << 7).collect();
        let codes = |largest: u8| -> Vec<u8> {
            let code = |i: usize| [largest, largest - 8, 0][i % 3];
            sizes.iter().flat_map(|len| (0..*len).map(code)).collect()
        };
        let (plain, signed) = (codes(255), codes(127));
        let signed: Vec<i8> = signed.into_iter().map(|code| -(code as i8)).collect();
        let mut want = Vec::new();
        let mut first = 0;
        for len in &sizes {
            let value = |i: usize| {
                [1.0, 0.5, 0.0][i % 3] * 2f32.powi((first + i / block_quantized::BLOCK) as i32)
            };
            want.extend((0..*len).map(value));
            first += block_quantized::num_blocks(*len);
        }
        let write = |data| write_values(&layout, data, None);
        let good = write(ParameterValues::U8 { codes: &plain, scales: &scales });
        assert_eq!(read_params(&good, &layout).unwrap(), want);
        let minus: Vec<f32> = want.iter().map(|x| 0.0 - x).collect();
        let negated = write(ParameterValues::I8 { codes: &signed, scales: &scales });
        assert_eq!(read_params(&negated, &layout).unwrap(), minus);

        let wild = write(ParameterValues::U8 { codes: &plain, scales: &vec![0x7f80; count] });
        let error = read_params(&wild, &layout).unwrap_err();
        assert!(
            matches!(error, PolicyFileError::Unreadable(reason) if reason.contains("not finite"))
        );
        let tensors = SafeTensors::deserialize(&good).unwrap();
        let name = format!("{}{SCALES_SUFFIX}", layout[0].name);
        let without = |scales: Option<TensorView>| {
            let kept = tensors.iter().filter(|(at, _)| *at != name);
            let kept = kept.chain(scales.map(|view| (&*name, view)));
            let bytes = safetensors::serialize(kept, None).unwrap();
            read_params(&bytes, &layout).unwrap_err().to_string()
        };
        assert!(without(None).contains(&format!("the tensor `{name}` is missing")));
        let shorter = TensorView::new(Dtype::BF16, vec![1], &[0, 0]).unwrap();
        let error = without(Some(shorter));
        assert!(error.contains("is BF16 [1] instead of BF16 [5]"), "{error}");
    }
}
