//! The names of a decoder's parameters in files, and their layout there.

use super::unusable;
use crate::model::Parameter;
use crate::text::error::LanguageError;
use rayon::prelude::*;
use std::path::Path;

/// Whether a parameter lies in files with its rows and columns exchanged: `[outputs, inputs]`.
pub(super) fn is_turned(parameter: &Parameter) -> bool {
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

/// The numbers of parameters. `find` looks a parameter up in the file and checks its shape and length, all of them before
/// anything is allocated; `read` decodes its numbers as they lie there.
///
/// # Errors
/// If `find` fails, or a number is not finite.
pub(super) fn gather<T: Send>(
    parameters: &[Parameter],
    path: &Path,
    find: impl Fn(&Parameter) -> Result<T, LanguageError>,
    read: impl Fn(T) -> Vec<f32> + Sync,
) -> Result<Vec<f32>, LanguageError> {
    let found = parameters.iter().map(find).collect::<Result<Vec<T>, _>>()?;
    let count = parameters.iter().map(Parameter::count).sum();
    let mut params = vec![0.0; count];
    let mut rest = &mut params[..];
    let mut places = Vec::new();
    for (parameter, found) in parameters.iter().zip(found) {
        let (place, after) = rest.split_at_mut(parameter.count());
        places.push((parameter, found, place));
        rest = after;
    }
    places.into_par_iter().try_for_each(|(parameter, found, place)| {
        let numbers = read(found);
        if !numbers.iter().all(|x| x.is_finite()) {
            let reason = format!("`{}` holds numbers that are not finite", parameter.name);
            return Err(unusable(path, reason));
        }
        match is_turned(parameter) {
            true => turn(&numbers, parameter.shape[0], place),
            false => place.copy_from_slice(&numbers),
        }
        Ok(())
    })?;
    Ok(params)
}

/// Rows of so many numbers become columns.
pub(super) fn turn(from: &[f32], width: usize, to: &mut [f32]) {
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
