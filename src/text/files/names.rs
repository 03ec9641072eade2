//! Names and layout of a decoder's parameters in files.

use super::unusable;
use crate::model::Parameter;
use crate::nn::ops::stored::StoredMatrix;
use crate::nn::{DecoderParams, Part};
use crate::text::error::LanguageError;
use rayon::prelude::*;
use std::borrow::Cow;
use std::path::Path;

/// Whether files store a parameter with its rows and columns exchanged: `[outputs, inputs]`.
fn is_turned(parameter: &Parameter) -> bool {
    parameter.shape.len() == 2 && parameter.name != "embed_tokens.weight"
}

/// The shape of a parameter in files.
pub(super) fn shape_in_files(parameter: &Parameter) -> Vec<usize> {
    match is_turned(parameter) {
        true => parameter.shape.iter().rev().copied().collect(),
        false => parameter.shape.clone(),
    }
}

/// The name of a parameter in Hugging Face's files.
pub(super) fn hugging_face(parameter: &Parameter) -> String {
    match parameter.name.as_str() {
        "lm_head.weight" => parameter.name.clone(),
        name => format!("model.{name}"),
    }
}

/// A parameter that is written to a file.
pub(super) struct Written<'a> {
    pub name: String,
    /// The sizes of its axes there, the last of which lies side by side.
    pub shape: Vec<usize>,
    /// The numbers as they lie in memory.
    pub in_memory: &'a [f32],
    /// Columns of a matrix that lies in memory with its rows and columns exchanged.
    pub turned: Option<usize>,
}

impl<'a> Written<'a> {
    /// The parameters of a model, or of adapters, under these names.
    pub fn all(
        parameters: &[Parameter],
        params: &'a [f32],
        name: impl Fn(&Parameter) -> String,
    ) -> Vec<Self> {
        let mut rest = params;
        let written = parameters.iter().map(|parameter| {
            let (in_memory, after) = rest.split_at(parameter.count());
            rest = after;
            let turned = is_turned(parameter).then(|| parameter.shape[1]);
            let (name, shape) = (name(parameter), shape_in_files(parameter));
            Self { name, shape, in_memory, turned }
        });
        written.collect()
    }

    /// The numbers in the order of the file.
    pub fn numbers(&self) -> Cow<'a, [f32]> {
        let mut numbers = Cow::Borrowed(self.in_memory);
        if let Some(columns) = self.turned {
            turn(self.in_memory, columns, numbers.to_mut());
        }
        numbers
    }
}

/// A parameter in a file.
pub(super) trait Source: Send + Sync {
    /// Reads the numbers, in the order of the file.
    fn read(&self) -> Vec<f32>;

    /// Reads a matrix `[inner, columns]`, whose columns follow each other in the file, without expanding its numbers; `None`
    /// if they are in f32.
    fn stored(&self, sizes: [usize; 2]) -> Option<StoredMatrix>;
}

/// The parameters of a model: matrices in the number format of the file, the others in f32. `find` looks a parameter up in
/// the file and checks its shape and length, all of them before anything is allocated.
///
/// # Errors
/// If `find` fails, or a number is not finite.
pub(super) fn gather<T: Source>(
    parameters: &[Parameter],
    path: &Path,
    find: impl Fn(&Parameter) -> Result<T, LanguageError>,
) -> Result<DecoderParams, LanguageError> {
    let found = parameters.iter().map(find).collect::<Result<Vec<T>, _>>()?;
    let parts = parameters.par_iter().zip(found).map(|(parameter, found)| {
        let not_finite = || {
            let reason = format!("`{}` holds numbers that are not finite", parameter.name);
            unusable(path, reason)
        };
        if let [columns, inner] = shape_in_files(parameter)[..]
            && let Some(matrix) = found.stored([inner, columns])
        {
            return match (matrix.is_finite(), is_turned(parameter)) {
                (false, _) => Err(not_finite()),
                (true, true) => Ok(Part::Weight(matrix)),
                (true, false) => Ok(Part::Table(matrix)),
            };
        }
        let mut numbers = found.read();
        if !numbers.iter().all(|x| x.is_finite()) {
            return Err(not_finite());
        }
        if is_turned(parameter) {
            let mut turned = vec![0.0; numbers.len()];
            turn(&numbers, parameter.shape[0], &mut turned);
            numbers = turned;
        }
        Ok(Part::Values(numbers))
    });
    Ok(DecoderParams::new(parts.collect::<Result<_, _>>()?))
}

/// Transposes a matrix of rows of `width` numbers.
fn turn(from: &[f32], width: usize, to: &mut [f32]) {
    let rows = from.len() / width;
    // A square at a time, so that both sides stay near.
    for first in (0..rows).step_by(16) {
        for column in 0..width {
            let to = &mut to[column * rows + first..];
            for (row, to) in (first..rows.min(first + 16)).zip(to) {
                *to = from[row * width + column];
            }
        }
    }
}
