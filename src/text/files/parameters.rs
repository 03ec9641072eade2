//! Parameters of a decoder in files: names, layouts, and reading.

use super::quants::BlockFormat;
use super::unusable_error;
use crate::model::Parameter;
use crate::nn::ops::stored::StoredMatrix;
use crate::nn::{DecoderParams, StoredParameter};
use crate::text::error::LanguageError;
use rayon::prelude::*;
use std::borrow::Cow;
use std::path::Path;

/// Whether files store a parameter transposed, `[outputs, inputs]`.
fn is_transposed(parameter: &Parameter) -> bool {
    parameter.shape.len() == 2 && parameter.name != "embed_tokens.weight"
}

/// Shape of a parameter in files.
pub(super) fn shape_in_files(parameter: &Parameter) -> Vec<usize> {
    if is_transposed(parameter) {
        parameter.shape.iter().rev().copied().collect()
    } else {
        parameter.shape.clone()
    }
}

/// Checks the shape that a parameter has in a file, where its name is `name`.
///
/// # Errors
/// A clause if the shape is another.
pub(super) fn check_shape(
    parameter: &Parameter,
    name: &str,
    found: &[usize],
) -> Result<(), String> {
    let wanted = shape_in_files(parameter);
    if found == wanted {
        Ok(())
    } else {
        Err(format!("`{name}` has the shape {found:?}, but must have {wanted:?}"))
    }
}

/// Name of a parameter in Hugging Face's files.
pub(super) fn hugging_face_name(parameter: &Parameter) -> String {
    match parameter.name.as_str() {
        "lm_head.weight" => parameter.name.clone(),
        name => format!("model.{name}"),
    }
}

/// A parameter to write to a file.
pub(super) struct FileParameter<'a> {
    pub name: String,
    /// Shape in the file, whose last axis is contiguous.
    pub shape: Vec<usize>,
    /// Values in the order of the decoder's layout.
    pub params: &'a [f32],
    /// Number of columns of the matrix in memory, if the file has its transpose.
    pub transposed_columns: Option<usize>,
}

impl<'a> FileParameter<'a> {
    /// Lists the parameters of a model, or of adapters; `name` gives their names in the file.
    pub fn list(
        parameters: &[Parameter],
        params: &'a [f32],
        name: impl Fn(&Parameter) -> String,
    ) -> Vec<Self> {
        let mut rest = params;
        let written = parameters.iter().map(|parameter| {
            let (params, after) = rest.split_at(parameter.num_elements());
            rest = after;
            let transposed_columns = is_transposed(parameter).then(|| parameter.shape[1]);
            let (name, shape) = (name(parameter), shape_in_files(parameter));
            Self { name, shape, params, transposed_columns }
        });
        written.collect()
    }

    /// Values in file order.
    pub fn values(&self) -> Cow<'a, [f32]> {
        match self.transposed_columns {
            Some(columns) => transpose(self.params, columns).into(),
            None => self.params.into(),
        }
    }
}

/// A parameter in a file, row by row.
pub(super) struct FileBytes<'a> {
    pub format: BlockFormat,
    pub bytes: &'a [u8],
    /// Size of a head, if the two rows of a head that rotate together are adjacent in the file.
    pub paired_head_dim: Option<usize>,
}

impl FileBytes<'_> {
    /// Index in the file of a row of Hugging Face's layout.
    fn file_row(&self, row: usize) -> usize {
        let Some(head_dim) = self.paired_head_dim else { return row };
        let (i, half) = (row % head_dim, head_dim / 2);
        row - i + i % half * 2 + i / half
    }

    /// Reads the values, in rows of `width` numbers.
    fn read(&self, width: usize) -> Vec<f32> {
        let values = self.format.decode(self.bytes);
        match self.paired_head_dim {
            Some(_) => reorder_rows(&values, width, |row| self.file_row(row)),
            None => values,
        }
    }

    /// Reads a matrix `[inner, columns]`, whose columns are the rows of the file, in its number format; `None` if that
    /// is f32.
    fn read_stored(&self, sizes: [usize; 2]) -> Option<StoredMatrix> {
        self.format.to_matrix(self.bytes, sizes, |row| self.file_row(row))
    }
}

/// Copies rows of `width` numbers into another order: row `i` is row `source(i)` of `values`.
pub(super) fn reorder_rows(
    values: &[f32],
    width: usize,
    source: impl Fn(usize) -> usize,
) -> Vec<f32> {
    let rows = (0..values.len() / width).flat_map(|row| &values[source(row) * width..][..width]);
    rows.copied().collect()
}

/// Reads the parameters of a model: matrices in the number format of the file, the others in f32. `find` looks a
/// parameter up and checks its shape and length; this is done for all of them before anything is allocated.
///
/// # Errors
/// If `find` fails, or a number is not finite.
pub(super) fn read_parameters<'a>(
    parameters: &[Parameter],
    path: &Path,
    find: impl Fn(&Parameter) -> Result<FileBytes<'a>, LanguageError>,
) -> Result<DecoderParams, LanguageError> {
    let found = parameters.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let parts = parameters.par_iter().zip(found).map(|(parameter, found)| {
        let not_finite = || {
            let reason = format!("`{}` holds numbers that are not finite", parameter.name);
            unusable_error(path, reason)
        };
        let shape = shape_in_files(parameter);
        if let [columns, inner] = shape[..]
            && let Some(matrix) = found.read_stored([inner, columns])
        {
            return match (matrix.is_finite(), is_transposed(parameter)) {
                (false, _) => Err(not_finite()),
                (true, true) => Ok(StoredParameter::Weight(matrix)),
                (true, false) => Ok(StoredParameter::Table(matrix)),
            };
        }
        let mut values = found.read(shape[1..].iter().product());
        if !values.iter().all(|x| x.is_finite()) {
            return Err(not_finite());
        }
        if is_transposed(parameter) {
            values = transpose(&values, parameter.shape[0]);
        }
        Ok(StoredParameter::Values(values))
    });
    Ok(DecoderParams::new(parts.collect::<Result<_, _>>()?))
}

/// Transposes a matrix of rows of `width` numbers.
fn transpose(from: &[f32], width: usize) -> Vec<f32> {
    let (rows, mut transposed) = (from.len() / width, vec![0.0; from.len()]);
    // In blocks of 16 rows, which stay in the cache.
    for first in (0..rows).step_by(16) {
        for column in 0..width {
            let to = &mut transposed[column * rows + first..];
            for (row, to) in (first..rows.min(first + 16)).zip(to) {
                *to = from[row * width + column];
            }
        }
    }
    transposed
}
