//! Writer of GGUF files, for a model or for adapters.
//!
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

use super::file_error;
use super::gguf::paired_head_dim;
use super::gguf_metadata::{MetadataValue, append_string};
use super::gguf_tokens::convert_vocabulary;
use super::parameters::{FileParameter, reorder_rows};
use super::quants::BlockFormat;
use crate::disk;
use crate::model::{DecoderShape, Parameter};
use crate::nn::arch::{Adapters, GgufForm, gguf_name};
use crate::schema::names;
use crate::text::error::LanguageError;
use crate::text::language_model::LanguageModel;
use half::{bf16, f16};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Alignment of tensors in bytes: the format's default.
const ALIGNMENT: usize = 32;
/// Number of values in a block of Q8_0.
const BLOCK_VALUES: usize = 32;
/// Largest code in a block of Q8_0.
const LARGEST_CODE: f32 = 127.0;
/// Suffix of the name of an adapter's first factor, which has one row per rank.
const LORA_A: &str = ".lora_a";

names! {
    /// Number format of the matrices of a GGUF file; vectors are always f32.
    pub enum GgufType {
        /// Single precision.
        F32 = "f32",
        /// Half precision.
        F16 = "f16",
        /// Half the bits of single precision, with its range.
        Bf16 = "bf16",
        /// Blocks of 32 numbers of 8 bits with a scale.
        Q8_0 = "q8_0",
    }
}

impl GgufType {
    /// ggml's code of a tensor in the format.
    const fn tensor_code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 30,
            Self::Q8_0 => 8,
        }
    }

    /// ggml's code of a file in the format.
    const fn file_code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 32,
            Self::Q8_0 => 7,
        }
    }
}

/// A tensor to write.
struct Tensor<'a> {
    parameter: FileParameter<'a>,
    format: GgufType,
    /// Size of a head, if the two rows of a head that rotate together are adjacent in the file.
    paired_head_dim: Option<usize>,
}

impl<'a> Tensor<'a> {
    /// Selects the number format of a parameter: f32 for vectors, the requested one for matrices, or f16 if their rows
    /// are not whole blocks.
    fn new(parameter: FileParameter<'a>, requested: GgufType, shape: &DecoderShape) -> Self {
        let format = match (&parameter.shape[..], requested) {
            ([_], _) => GgufType::F32,
            ([.., width], GgufType::Q8_0) if !width.is_multiple_of(BLOCK_VALUES) => GgufType::F16,
            _ => requested,
        };
        let has_heads = !parameter.name.ends_with(LORA_A);
        let paired_head_dim = paired_head_dim(shape, &parameter.name).filter(|_| has_heads);
        Self { parameter, format, paired_head_dim }
    }

    fn num_bytes(&self) -> usize {
        let format = BlockFormat::from_code(self.format.tensor_code()).expect("a known format");
        format.num_bytes(self.parameter.params.len())
    }

    /// Rejects numbers that the tensor's format cannot represent.
    fn check(&self) -> Result<(), String> {
        let fits = |x: f32| match self.format {
            GgufType::F32 => true,
            GgufType::F16 => f16::from_f32(x).is_finite(),
            GgufType::Bf16 => bf16::from_f32(x).is_finite(),
            GgufType::Q8_0 => f16::from_f32(x / LARGEST_CODE).is_finite(),
        };
        let FileParameter { name, params, .. } = &self.parameter;
        match params.iter().find(|x| !fits(**x)) {
            Some(x) => Err(format!("`{name}` has {x}, too large for {}", self.format.name())),
            None => Ok(()),
        }
    }

    /// Encodes the values in file order.
    fn encode(&self) -> Vec<u8> {
        let mut values = self.parameter.values();
        if let Some(head_dim) = self.paired_head_dim {
            let width = self.parameter.shape[1..].iter().product();
            let source = |row: usize| {
                let i = row % head_dim;
                row - i + i % 2 * (head_dim / 2) + i / 2
            };
            values = reorder_rows(&values, width, source).into();
        }
        match self.format {
            GgufType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            GgufType::F16 => values.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            GgufType::Bf16 => {
                values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect()
            }
            GgufType::Q8_0 => values.as_chunks().0.iter().flat_map(encode_q8_0).collect(),
        }
    }
}

/// Encodes a block in ggml's Q8_0: the scale in half precision, then the codes.
fn encode_q8_0(block: &[f32; BLOCK_VALUES]) -> [u8; BLOCK_VALUES + 2] {
    let largest = block.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let scale = largest / LARGEST_CODE;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut bytes = [0; BLOCK_VALUES + 2];
    bytes[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    for (byte, x) in bytes[2..].iter_mut().zip(block) {
        *byte = (x * inverse).round() as i8 as u8;
    }
    bytes
}

/// Name of the architecture in files.
///
/// # Errors
/// If GGUF cannot express the shape, or [`super::gguf`] would not read it.
fn find_architecture(shape: &DecoderShape) -> Result<&'static str, String> {
    let plain = |form: &GgufForm| DecoderShape {
        family: shape.family,
        num_outputs: shape.num_outputs,
        hidden_size: shape.hidden_size,
        num_layers: shape.num_layers,
        num_heads: shape.num_heads,
        num_kv_heads: shape.num_kv_heads,
        head_dim: shape.head_dim,
        intermediate_size: shape.intermediate_size,
        context: shape.context,
        qkv_bias: shape.qkv_bias && form.has_qkv_bias,
        output_bias: shape.output_bias && form.has_output_and_mlp_bias,
        mlp_bias: shape.mlp_bias && form.has_output_and_mlp_bias,
        qk_norm: form.qk_norm,
        tie_word_embeddings: shape.tie_word_embeddings,
        rope_theta: shape.rope_theta,
        rms_norm_eps: shape.rms_norm_eps,
        ..DecoderShape::default()
    };
    let form = shape.family.gguf.filter(|form| plain(form) == *shape);
    form.map(|form| form.architecture).ok_or_else(|| {
        format!(
            "GGUF files are written in the forms of Llama, Qwen2 and Qwen3, without rotary scaling, sliding windows \
             and biases that llama.cpp does not add; this `{}` has another",
            shape.family.model_type
        )
    })
}

/// Metadata of a model.
fn model_metadata(
    model: &LanguageModel,
    format: GgufType,
) -> Result<Vec<(String, MetadataValue)>, String> {
    let shape = &model.shape;
    let architecture = find_architecture(shape)?;
    let count = |count: usize| MetadataValue::U32(count as u32);
    let sizes = [
        ("context_length", count(shape.context)),
        ("embedding_length", count(shape.hidden_size)),
        ("block_count", count(shape.num_layers)),
        ("feed_forward_length", count(shape.intermediate_size)),
        ("attention.head_count", count(shape.num_heads)),
        ("attention.head_count_kv", count(shape.num_kv_heads)),
        ("attention.key_length", count(shape.head_dim)),
        ("attention.value_length", count(shape.head_dim)),
        ("attention.layer_norm_rms_epsilon", MetadataValue::F32(shape.rms_norm_eps)),
        ("rope.dimension_count", count(shape.head_dim)),
        ("rope.freq_base", MetadataValue::F32(shape.rope_theta as f32)),
        ("vocab_size", count(shape.vocab_size())),
    ];
    let mut metadata = vec![
        ("general.architecture".to_string(), MetadataValue::String(architecture.to_string())),
        ("general.file_type".to_string(), MetadataValue::U32(format.file_code())),
        ("general.quantization_version".to_string(), MetadataValue::U32(2)),
    ];
    metadata.extend(sizes.map(|(key, value)| (format!("{architecture}.{key}"), value)));
    let vocabulary = convert_vocabulary(model)?;
    metadata.extend(vocabulary.into_iter().map(|(key, value)| (format!("tokenizer.{key}"), value)));
    Ok(metadata)
}

/// Creates the error for a model that the file at `path` cannot express, for `map_err`.
fn unwritable(path: &Path) -> impl FnOnce(String) -> LanguageError {
    move |reason| LanguageError::Unwritable { path: path.to_path_buf(), reason }
}

/// Writes a model without its adapters.
pub(super) fn write(
    model: &LanguageModel,
    format: GgufType,
    path: &Path,
) -> Result<(), LanguageError> {
    let shape = &model.shape;
    let metadata = model_metadata(model, format).map_err(unwritable(path))?;
    let name = |parameter: &Parameter| gguf_name(shape, &parameter.name);
    let parameters = FileParameter::list(&shape.parameters(), model.params.values(), name);
    write_file(path, &metadata, parameters, format, shape)
}

/// Writes adapters alone, in the form that llama.cpp adds to a model.
pub(super) fn write_adapters(
    model: &LanguageModel,
    adapters: &Adapters,
    format: GgufType,
    path: &Path,
) -> Result<(), LanguageError> {
    let shape = &model.shape;
    let architecture = find_architecture(shape).map_err(unwritable(path))?;
    let text = |text: &str| MetadataValue::String(text.to_string());
    let metadata = [
        ("general.architecture", text(architecture)),
        ("general.type", text("adapter")),
        ("adapter.type", text("lora")),
        ("adapter.lora.alpha", MetadataValue::F32(adapters.config().lora_alpha)),
    ];
    let metadata = metadata.map(|(key, value)| (key.to_string(), value));
    // Adapters are not quantized.
    let format = if format == GgufType::Q8_0 { GgufType::F16 } else { format };
    let name = |parameter: &Parameter| {
        let (matrix, factor) = parameter.name.rsplit_once(".lora_").unwrap_or_default();
        let suffix = if factor == "B.weight" { ".lora_b" } else { LORA_A };
        gguf_name(shape, &format!("{matrix}.weight")) + suffix
    };
    let parameters = FileParameter::list(adapters.parameters(), adapters.params(), name);
    write_file(path, &metadata, parameters, format, shape)
}

/// Writes a file.
fn write_file(
    path: &Path,
    metadata: &[(String, MetadataValue)],
    parameters: Vec<FileParameter>,
    format: GgufType,
    shape: &DecoderShape,
) -> Result<(), LanguageError> {
    let tensors = parameters.into_iter().map(|parameter| Tensor::new(parameter, format, shape));
    let tensors: Vec<Tensor> = tensors.collect();
    tensors.iter().try_for_each(Tensor::check).map_err(unwritable(path))?;
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((metadata.len() as u64).to_le_bytes());
    for (name, value) in metadata {
        append_string(&mut header, name);
        value.write(&mut header);
    }
    let mut start = 0u64;
    for tensor in &tensors {
        let FileParameter { name, shape, .. } = &tensor.parameter;
        append_string(&mut header, name);
        header.extend((shape.len() as u32).to_le_bytes());
        // The file lists axes in reverse order.
        shape.iter().rev().for_each(|size| header.extend((*size as u64).to_le_bytes()));
        header.extend(tensor.format.tensor_code().to_le_bytes());
        header.extend(start.to_le_bytes());
        start += tensor.num_bytes().next_multiple_of(ALIGNMENT) as u64;
    }
    let write = |file: &mut File| {
        write_padded(file, &header)?;
        tensors.iter().try_for_each(|tensor| write_padded(file, &tensor.encode()))
    };
    disk::write_output(path, write).map_err(file_error("written", path))
}

/// Writes bytes, padded with zeros to the alignment.
fn write_padded(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.write_all(&[0; ALIGNMENT][..bytes.len().next_multiple_of(ALIGNMENT) - bytes.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_a_format_are_rejected() {
        let refused = |format, x: f32| {
            let numbers = [0.0, x];
            let (name, shape) = ("w".to_string(), vec![1, 2]);
            let parameter =
                FileParameter { name, shape, params: &numbers, transposed_columns: None };
            Tensor { parameter, format, paired_head_dim: None }.check()
        };
        for (format, max) in [
            (GgufType::F16, 65504.0),
            (GgufType::Bf16, 3.38e38),
            (GgufType::Q8_0, 65504.0 * LARGEST_CODE),
        ] {
            assert_eq!(refused(format, -max), Ok(()));
            let said = refused(format, -1.01 * max).unwrap_err();
            assert!(said.starts_with("`w` has -") && said.contains("too large for"), "{said}");
        }
        assert_eq!(refused(GgufType::F32, 1e30), Ok(()));
    }

    #[test]
    fn blocks_of_eight_bits_are_read_as_they_were_written() {
        let block: [f32; BLOCK_VALUES] = std::array::from_fn(|i| (i as f32 - 11.0) * 0.03);
        let read = BlockFormat::from_code(8).unwrap().decode(&encode_q8_0(&block));
        let step = 20.0 * 0.03 / 127.0;
        for (got, want) in read.iter().zip(block) {
            assert!((got - want).abs() <= 0.51 * step + 1e-3 * want.abs(), "{got} for {want}");
        }
        assert!(read.iter().any(|x| *x != 0.0));
        assert_eq!(
            BlockFormat::from_code(8).unwrap().decode(&encode_q8_0(&[0.0; BLOCK_VALUES])),
            [0.0; BLOCK_VALUES]
        );
    }
}
