//! The parameters of a decoder in host memory, some matrices perhaps in the number format of their file.

use crate::math::LANES;
use crate::nn::ops::stored::StoredMatrix;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The parameters of a decoder, in the order of
/// [`DecoderShape::parameters`](crate::nn::arch::DecoderShape::parameters). Clones share them.
///
/// [`values`](Self::values) expands matrices in the number format of their file to f32 and keeps the copy; products and
/// embeddings read them as they are.
#[derive(Clone, Debug, Default)]
pub struct DecoderParams(Arc<SharedParams>);

#[derive(Debug, Default)]
struct SharedParams {
    /// All elements in f32, once [`DecoderParams::values`] has been called.
    values: OnceLock<Vec<f32>>,
    /// The parameters with the ranges of their elements, without gaps; none if they were in f32 from the start.
    parameters: Vec<(Range<usize>, StoredParameter)>,
}

/// A parameter, as values or as a weight in its file's format.
#[derive(Clone, Debug)]
pub enum StoredParameter {
    /// Values in f32.
    Values(Vec<f32>),
    /// The weight of a linear layer, `[inputs, outputs]`.
    Weight(StoredMatrix),
    /// The table of token embeddings, `[vocabulary, size]`: its transpose, the weight of the head.
    Table(StoredMatrix),
}

impl StoredParameter {
    /// The number of elements.
    fn len(&self) -> usize {
        match self {
            Self::Values(values) => values.len(),
            Self::Weight(matrix) | Self::Table(matrix) => matrix.inner() * matrix.columns(),
        }
    }

    /// Expands the elements from index `first` on.
    fn read(&self, first: usize, elements: &mut [f32]) {
        type ReadPart<'a> = &'a (dyn Fn(usize, &mut [f32]) + Sync);
        // Parts of this many elements are expanded together.
        let (width, read_whole): (usize, ReadPart) = match self {
            Self::Values(values) => {
                return elements.copy_from_slice(&values[first..][..elements.len()]);
            }
            Self::Weight(matrix) => {
                (2 * matrix.columns(), &|index, rows| matrix.read_row_pair(index, rows))
            }
            Self::Table(matrix) => {
                (LANES * matrix.inner(), &|index, rows| matrix.read_columns(LANES * index, rows))
            }
        };
        let read_part = |index: usize, offset: usize, part: &mut [f32]| {
            if part.len() == width {
                return read_whole(index, part);
            }
            let mut whole = vec![0.0; width];
            read_whole(index, &mut whole);
            part.copy_from_slice(&whole[offset..][..part.len()]);
        };
        let (index, offset) = (first / width, first % width);
        let (lead, rest) = elements.split_at_mut((width - offset).min(elements.len()));
        read_part(index, offset, lead);
        let rest = rest.par_chunks_mut(width).enumerate();
        rest.for_each(|(i, part)| read_part(index + 1 + i, 0, part));
    }
}

impl From<Vec<f32>> for DecoderParams {
    fn from(values: Vec<f32>) -> Self {
        Self(Arc::new(SharedParams { values: OnceLock::from(values), parameters: Vec::new() }))
    }
}

impl PartialEq for DecoderParams {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.values() == other.values()
    }
}

impl DecoderParams {
    /// Parameters in order, of which some may be in the number format of their file.
    pub fn new(parameters: Vec<StoredParameter>) -> Self {
        if parameters.iter().all(|parameter| matches!(parameter, StoredParameter::Values(_))) {
            let mut values = Vec::with_capacity(parameters.iter().map(StoredParameter::len).sum());
            for parameter in parameters {
                if let StoredParameter::Values(own) = parameter {
                    values.extend(own);
                }
            }
            return values.into();
        }
        let mut end = 0;
        let with_ranges = parameters.into_iter().map(|parameter| {
            let start = end;
            end += parameter.len();
            (start..end, parameter)
        });
        Self(Arc::new(SharedParams { values: OnceLock::new(), parameters: with_ranges.collect() }))
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        let stored_len = || self.0.parameters.last().map_or(0, |(range, _)| range.end);
        self.0.values.get().map_or_else(stored_len, Vec::len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All elements. The first call expands stored matrices on all threads of the pool, so it must not come from work
    /// that runs in parallel with other work on the same parameters: that could wait for itself.
    pub fn values(&self) -> &[f32] {
        self.0.values.get_or_init(|| {
            let mut values = vec![0.0; self.len()];
            self.read(0, &mut values);
            values
        })
    }

    /// Copies the elements from index `first` on, without expanding others.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn read(&self, first: usize, elements: &mut [f32]) {
        if let Some(values) = self.0.values.get() {
            return elements.copy_from_slice(&values[first..][..elements.len()]);
        }
        let mut done = 0;
        while done < elements.len() {
            let index = first + done;
            let (range, parameter) = self.parameter_at(index).expect("so many elements");
            let count = (range.end - index).min(elements.len() - done);
            parameter.read(index - range.start, &mut elements[done..][..count]);
            done += count;
        }
    }

    /// The elements in `range`, which lie within one parameter that is in f32.
    pub(in crate::nn) fn slice(&self, range: &Range<usize>) -> &[f32] {
        if range.is_empty() {
            return &[];
        }
        if self.0.values.get().is_none()
            && let Some((own, StoredParameter::Values(values))) = self.parameter_at(range.start)
        {
            return &values[range.start - own.start..range.end - own.start];
        }
        &self.values()[range.clone()]
    }

    /// The stored matrix with the elements in `range`, if that parameter is one.
    pub(in crate::nn) fn stored_matrix(&self, range: &Range<usize>) -> Option<&StoredMatrix> {
        match self.parameter_at(range.start)? {
            (_, StoredParameter::Weight(matrix) | StoredParameter::Table(matrix)) => Some(matrix),
            (_, StoredParameter::Values(_)) => None,
        }
    }

    /// All elements, to be changed: expanded, and copied if they are shared.
    pub fn to_mut(&mut self) -> &mut Vec<f32> {
        self.values();
        match Arc::get_mut(&mut self.0) {
            Some(shared) => shared.parameters = Vec::new(),
            None => *self = self.values().to_vec().into(),
        }
        let shared = Arc::get_mut(&mut self.0).expect("no clone of new parameters");
        shared.values.get_mut().expect("expanded")
    }

    /// The parameter that contains the element with this index, and the range of its elements; `None` if all were in
    /// f32 from the start.
    fn parameter_at(&self, index: usize) -> Option<&(Range<usize>, StoredParameter)> {
        let position = self.0.parameters.partition_point(|(range, _)| range.end <= index);
        self.0.parameters.get(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::stored::NumberFormat;

    fn matrix(sizes: [usize; 2]) -> StoredMatrix {
        StoredMatrix::new(NumberFormat::EightBit, sizes, 2, |j, to| {
            to.codes.iter_mut().enumerate().for_each(|(k, code)| *code = (10 * k + j) as u16);
            to.scales.fill([1.0, 0.0]);
        })
    }

    #[test]
    fn parameters_expand_in_their_order() {
        let mut params = DecoderParams::new(vec![
            StoredParameter::Table(matrix([2, 3])),
            StoredParameter::Values(vec![0.5, 0.25]),
            StoredParameter::Weight(matrix([2, 3])),
        ]);
        let all = [0.0, 10.0, 1.0, 11.0, 2.0, 12.0, 0.5, 0.25, 0.0, 1.0, 2.0, 10.0, 11.0, 12.0];
        assert_eq!((params.len(), params.slice(&(7..8))), (all.len(), &[0.25][..]));
        assert!(
            params.stored_matrix(&(6..8)).is_none() && params.stored_matrix(&(8..14)).is_some()
        );
        for first in 0..all.len() {
            for end in first..=all.len() {
                let mut numbers = vec![0.0; end - first];
                params.read(first, &mut numbers);
                assert_eq!(numbers, all[first..end]);
            }
        }
        assert_eq!(params.values(), all);
        let before = params.clone();
        params.to_mut()[1] = 7.0;
        assert_eq!((params.values()[1], before.values()[1], params.len()), (7.0, 10.0, all.len()));
        assert!(
            params.stored_matrix(&(8..14)).is_none() && before.stored_matrix(&(8..14)).is_some()
        );
        let expanded = before.values().as_ptr();
        let mut alone = before;
        assert_eq!(alone.to_mut().as_ptr(), expanded);
        assert!(alone.stored_matrix(&(8..14)).is_none());
    }
}
