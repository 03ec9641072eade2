//! A policy as one file: its parameters as named tensors, and what they are of in the file's header.
//!
//! The format is safetensors (<https://huggingface.co/docs/safetensors>). Its metadata holds one entry,
//! `grove`: a [`Header`] as JSON. Readers that do not know it find plain tensors.

use super::Parameter;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The metadata's entry. There is one only, for the order of several would change from file to file.
const ENTRY: &str = "grove";

/// What a policy is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Iterations that it was trained for.
    pub iteration: u64,
    /// The settings of its run and the parameters of its game, as TOML.
    pub config: String,
}

/// A file that holds no policy, or another.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SavedError {
    /// It is not what its name says.
    #[error("it is no intact file of named tensors: {0}")]
    Unreadable(String),
    /// The parameters are those of another network.
    #[error("it does not fit the network: {0}")]
    OtherShape(String),
    /// Only the parameters are there, not what they are of.
    #[error(
        "its header does not say which game and settings it is of; it takes a file that grove has \
         saved, or config.toml beside it"
    )]
    NoHeader,
}

/// A parameter vector as a file of named tensors.
///
/// # Panics
/// If `params` is shorter than the `parameters` are together.
pub fn write_params(parameters: &[Parameter], params: &[f32], header: Option<&Header>) -> Vec<u8> {
    let bytes: Vec<u8> = params.iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut offset = 0;
    let views = parameters.iter().map(|parameter| {
        let len = 4 * parameter.shape.iter().product::<usize>();
        let view =
            TensorView::new(Dtype::F32, parameter.shape.clone(), &bytes[offset..offset + len])
                .expect("the length is that of the shape");
        offset += len;
        (parameter.name.clone(), view)
    });
    let views: Vec<_> = views.collect();
    safetensors::serialize(views, header.map(metadata))
        .expect("names and shapes are those of a module")
}

/// A file of named tensors with another header.
///
/// # Errors
/// If it is no such file.
pub fn with_header(bytes: &[u8], header: &Header) -> Result<Vec<u8>, SavedError> {
    let tensors = SafeTensors::deserialize(bytes).map_err(unreadable)?;
    safetensors::serialize(tensors.iter(), Some(metadata(header))).map_err(unreadable)
}

fn metadata(header: &Header) -> HashMap<String, String> {
    let text = serde_json::to_string(header).expect("a header is a number and a text");
    HashMap::from([(ENTRY.to_string(), text)])
}

/// The parameter vector in a file of these named tensors.
///
/// # Errors
/// If it is no such file, its tensors are others, or one of its numbers is not finite.
pub fn read_params(bytes: &[u8], parameters: &[Parameter]) -> Result<Vec<f32>, SavedError> {
    let tensors = SafeTensors::deserialize(bytes).map_err(unreadable)?;
    let other = SavedError::OtherShape;
    if tensors.len() != parameters.len() {
        let (found, expected) = (tensors.len(), parameters.len());
        return Err(other(format!("it holds {found} tensors instead of {expected}")));
    }
    let mut params = Vec::new();
    for Parameter { name, shape } in parameters {
        let view =
            tensors.tensor(name).map_err(|_| other(format!("the tensor `{name}` is missing")))?;
        if view.shape() != shape || view.dtype() != Dtype::F32 {
            let (found, dtype) = (view.shape(), view.dtype());
            return Err(other(format!("`{name}` is {dtype:?} {found:?} instead of F32 {shape:?}")));
        }
        let words = view.data().chunks_exact(4);
        params.extend(words.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        if params.iter().any(|x| !x.is_finite()) {
            return Err(SavedError::Unreadable(format!(
                "`{name}` holds numbers that are not finite"
            )));
        }
    }
    Ok(params)
}

/// What a file says that its policy is of.
///
/// # Errors
/// If it is no file of named tensors, or does not say.
pub fn read_header(bytes: &[u8]) -> Result<Header, SavedError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(unreadable)?;
    let entry = metadata.metadata().as_ref().and_then(|entries| entries.get(ENTRY));
    serde_json::from_str(entry.ok_or(SavedError::NoHeader)?).map_err(unreadable)
}

fn unreadable(error: impl ToString) -> SavedError {
    SavedError::Unreadable(error.to_string())
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
    fn what_is_written_is_read_and_the_header_with_it() {
        let parameters = perceptron(2, &[3]);
        let params: Vec<f32> = (0..17).map(|i| i as f32 * 0.5 - 3.0).collect();
        let header = Header { iteration: 12, config: "env = \"catch\"\n".to_string() };
        let bytes = write_params(&parameters, &params, Some(&header));
        assert_eq!(read_params(&bytes, &parameters).unwrap(), params);
        assert_eq!(read_header(&bytes).unwrap(), header);
        assert_eq!(write_params(&parameters, &params, Some(&header)), bytes);
        let bare = write_params(&parameters, &params, None);
        assert_eq!(read_params(&bare, &parameters).unwrap(), params);
        assert_eq!(read_header(&bare).unwrap_err(), SavedError::NoHeader);
        assert_eq!(with_header(&bare, &header).unwrap(), bytes);
    }

    #[test]
    fn broken_and_foreign_files_are_told_apart() {
        let parameters = perceptron(2, &[3]);
        let good = write_params(&parameters, &[0.5; 17], None);
        let fails = |bytes: &[u8]| read_params(bytes, &parameters).unwrap_err();
        for cut in [0, 7, 20, good.len() - 1] {
            assert!(matches!(fails(&good[..cut]), SavedError::Unreadable(_)), "{cut} bytes");
        }
        let other = perceptron(3, &[3]);
        assert!(matches!(
            fails(&write_params(&other, &[0.5; 20], None)),
            SavedError::OtherShape(reason) if reason.contains("[3, 3] instead of F32 [2, 3]")
        ));
        let deeper = perceptron(2, &[3, 3]);
        assert!(matches!(
            fails(&write_params(&deeper, &[0.5; 29], None)),
            SavedError::OtherShape(reason) if reason.contains("6 tensors instead of 4")
        ));
        let wild = write_params(&parameters, &[f32::NAN; 17], None);
        assert!(matches!(
            fails(&wild),
            SavedError::Unreadable(reason) if reason.contains("not finite")
        ));
    }
}
