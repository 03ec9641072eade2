//! Trainable parameters, their gradients and their moments in a few large buffers, so that an optimizer step is one
//! launch per buffer instead of one per tensor.

use crate::nn::arch::Parameter;
use crate::nn::buffers::{ALIGNMENT, cube_tensor, has_kernels, largest_allocation_bytes, view};
use burn::backend::Cube;
use burn::tensor::{Device, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of elements of an arena, unless a single tensor has more: 256 MiB, which nearly all devices bind.
const MAX_LEN: usize = 1 << 26;

/// The places of parameters in arenas.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    places: Vec<ArenaRange>,
    arenas: Vec<ArenaLayout>,
}

/// The place of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ArenaRange {
    /// Index of the arena.
    arena: usize,
    /// Range of the tensor there, in elements.
    range: Range<usize>,
}

/// The layout of an arena, whose tensors are all matrices or all vectors.
#[derive(Debug, PartialEq, Eq)]
struct ArenaLayout {
    /// Number of elements up to the end of the last tensor.
    len: usize,
    has_vectors: bool,
}

impl Packing {
    /// The places of parameters on a device: each has its own arena where no kernels run.
    pub fn new(parameters: &[Parameter], device: &Device) -> Self {
        let max_len = largest_allocation_bytes(device).map_or(0, |largest| {
            MAX_LEN.min(usize::try_from(largest).unwrap_or(usize::MAX) / size_of::<f32>())
        });
        Self::with_max_len(parameters, max_len)
    }

    /// The places in arenas of at most `max_len` elements; a larger parameter has its own arena. Matrices follow each
    /// other in the order of their parameters, and so do vectors.
    pub fn with_max_len(parameters: &[Parameter], max_len: usize) -> Self {
        let (mut places, mut arenas) = (Vec::new(), Vec::<ArenaLayout>::new());
        let mut last = [None; 2];
        for parameter in parameters {
            let (count, is_vector) = (parameter.num_elements(), parameter.shape.len() == 1);
            let last = &mut last[usize::from(is_vector)];
            let next = last.map(|arena: usize| (arena, arenas[arena].len));
            let next = next.map(|(arena, len)| (arena, len.next_multiple_of(ALIGNMENT)));
            let (arena, start) =
                next.filter(|(_, start)| start + count <= max_len).unwrap_or_else(|| {
                    arenas.push(ArenaLayout { len: 0, has_vectors: is_vector });
                    (arenas.len() - 1, 0)
                });
            *last = Some(arena);
            arenas[arena].len = start + count;
            places.push(ArenaRange { arena, range: start..start + count });
        }
        Self { places, arenas }
    }

    /// The number of arenas.
    pub fn len(&self) -> usize {
        self.arenas.len()
    }

    /// Whether an arena has the parameters that are vectors, not matrices.
    pub fn has_vectors(&self, arena: usize) -> bool {
        self.arenas[arena].has_vectors
    }

    /// The index and the range of each parameter of an arena.
    pub fn ranges_in(&self, arena: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
        let places = self.places.iter().enumerate().filter(move |(_, place)| place.arena == arena);
        places.map(|(i, place)| (i, place.range.clone()))
    }

    /// The number of elements of each parameter.
    pub fn counts(&self) -> impl Iterator<Item = usize> {
        self.places.iter().map(|place| place.range.len())
    }

    /// The range of each parameter in the parameter vector, and its place in an arena.
    fn vector_ranges(&self) -> impl Iterator<Item = (Range<usize>, &ArenaRange)> {
        self.places.iter().scan(0, |end, place| {
            let start = std::mem::replace(end, *end + place.range.len());
            Some((start..*end, place))
        })
    }
}

/// One f32 for each element of some parameters (weights, gradients or moments) on a device, in a few buffers laid out
/// by a [`Packing`].
#[derive(Clone, Debug)]
pub(crate) struct Arenas {
    packing: Arc<Packing>,
    device: Device,
    /// `[len]`; `None` where all are 0.
    buffers: Vec<Option<Tensor<1>>>,
}

impl Arenas {
    /// Zeros, which have no memory yet.
    pub fn zeros(packing: Arc<Packing>, device: &Device) -> Self {
        let buffers = vec![None; packing.len()];
        Self { packing, device: device.clone(), buffers }
    }

    /// Zeros for the same parameters.
    pub fn zeros_like(&self) -> Self {
        Self::zeros(self.packing.clone(), &self.device)
    }

    /// Elements from the vector of all, taken to the device by `upload` arena by arena.
    pub fn upload(mut self, elements: &[f32], upload: impl Fn(Vec<f32>) -> Tensor<1>) -> Self {
        for (arena, arena_layout) in self.packing.arenas.iter().enumerate() {
            let mut values = vec![0.0; arena_layout.len];
            for (from, to) in self.packing.vector_ranges().filter(|(_, to)| to.arena == arena) {
                values[to.range.clone()].copy_from_slice(&elements[from]);
            }
            self.buffers[arena] = Some(upload(values));
        }
        self
    }

    /// The vector of all, read by `download` arena by arena.
    pub fn download(&self, download: impl Fn(Tensor<1>) -> Vec<f32>) -> Vec<f32> {
        let mut elements = vec![0.0; self.packing.counts().sum()];
        for (arena, buffer) in self.buffers.iter().enumerate() {
            let Some(buffer) = buffer else { continue };
            let values = download(buffer.clone());
            for (to, from) in self.packing.vector_ranges().filter(|(_, from)| from.arena == arena) {
                elements[to].copy_from_slice(&values[from.range.clone()]);
            }
        }
        elements
    }

    /// The places of the parameters.
    pub fn packing(&self) -> &Arc<Packing> {
        &self.packing
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// An arena, `[len]`, whose zeros get memory.
    fn arena(&mut self, index: usize) -> &Tensor<1> {
        let (arena_layout, device) = (&self.packing.arenas[index], &self.device);
        self.buffers[index].get_or_insert_with(|| Tensor::zeros([arena_layout.len], device))
    }

    /// All arenas, each `[len]`.
    pub fn arenas(&mut self) -> impl Iterator<Item = Tensor<1>> {
        (0..self.packing.len()).map(|index| self.arena(index).clone())
    }

    /// Moves an arena, `[len]`, out; its elements are 0 until [`Arenas::put`].
    pub fn take(&mut self, index: usize) -> Tensor<1> {
        self.arena(index);
        self.buffers[index].take().expect("it is there now")
    }

    /// Replaces an arena, `[len]`.
    pub fn put(&mut self, index: usize, arena: Tensor<1>) {
        self.buffers[index] = Some(arena);
    }

    /// Replaces the elements, `[count]`, of a parameter that has its own arena.
    pub fn put_parameter(&mut self, parameter: usize, values: Tensor<1>) {
        let place = &self.packing.places[parameter];
        debug_assert_eq!(place.range, 0..self.packing.arenas[place.arena].len);
        self.buffers[place.arena] = Some(values);
    }

    /// The elements of each parameter, `[count]`, in the memory of their arenas.
    pub fn views(&mut self) -> impl Iterator<Item = Tensor<1>> {
        (0..self.packing.places.len()).map(|parameter| self.view(parameter))
    }

    /// The elements of a parameter, `[count]`, in the memory of its arena.
    pub fn view(&mut self, parameter: usize) -> Tensor<1> {
        let ArenaRange { arena, range } = self.packing.places[parameter].clone();
        view_range(self.arena(arena), range)
    }

    /// The elements of some parameters in the memory of their arena, `[count]`, if each begins at the next multiple of
    /// the alignment after the one before: the layout of several products of one launch.
    pub fn joint_view(&mut self, parameters: &[usize]) -> Option<Tensor<1>> {
        let packing = self.packing.clone();
        let places: Vec<&ArenaRange> = parameters.iter().map(|i| &packing.places[*i]).collect();
        let follows = |pair: &[&ArenaRange]| {
            let next = pair[0].range.end.next_multiple_of(ALIGNMENT);
            (pair[1].arena, pair[1].range.start) == (pair[0].arena, next)
        };
        let (first, last) = (places.first()?, places.last()?);
        let range = first.range.start..last.range.end;
        places.windows(2).all(follows).then(|| view_range(self.arena(first.arena), range))
    }

    /// Adds `other / scale`, element by element.
    pub fn add(&mut self, other: Self, scale: f32) {
        let scaled = |x: Tensor<1>| if scale == 1.0 { x } else { x / scale };
        for (sum, other) in self.buffers.iter_mut().zip(other.buffers) {
            let other = other.map(scaled);
            *sum = match (sum.take(), other) {
                (Some(sum), Some(other)) => Some(sum + other),
                (sum, other) => sum.or(other),
            };
        }
    }

    /// Replaces each arena, `[len]`, with the result of `change` for its index and the arena.
    pub fn map(mut self, mut change: impl FnMut(usize, Tensor<1>) -> Tensor<1>) -> Self {
        for index in 0..self.packing.len() {
            let changed = change(index, self.take(index));
            self.put(index, changed);
        }
        self
    }
}

/// The elements of an arena in this range, in its memory.
fn view_range(arena: &Tensor<1>, range: Range<usize>) -> Tensor<1> {
    if range == (0..arena.dims()[0]) {
        return arena.clone();
    }
    assert!(
        has_kernels(&arena.device()),
        "an arena of several tensors is on a device that runs kernels"
    );
    let elements = view(&cube_tensor(arena.clone()), range.start, [range.len()].into());
    Tensor::from_primitive::<Cube>(elements)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::parameters::to_vec;

    /// Matrices and vectors of odd sizes, of which some have more elements than an arena of a thousand.
    fn some() -> Vec<Parameter> {
        let shapes: [&[usize]; 9] =
            [&[30, 40], &[30], &[20, 30], &[20], &[7, 11], &[1100], &[9, 9], &[13], &[40, 30]];
        shapes.map(|shape| Parameter::new("", shape)).to_vec()
    }

    #[test]
    fn places_are_aligned_and_arenas_have_room() {
        let all = some();
        for max_len in [0, 1000, 1300, 1 << 20] {
            let packing = Packing::with_max_len(&all, max_len);
            assert!(packing.counts().eq(all.iter().map(Parameter::num_elements)));
            for (arena, arena_layout) in packing.arenas.iter().enumerate() {
                let own = (0..all.len()).filter(|i| packing.places[*i].arena == arena);
                let mut end = 0;
                for i in own.clone() {
                    let range = packing.places[i].range.clone();
                    assert_eq!(range.start, usize::next_multiple_of(end, ALIGNMENT));
                    assert_eq!(all[i].shape.len() == 1, arena_layout.has_vectors);
                    end = range.end;
                }
                assert_eq!(end, arena_layout.len);
                assert!(
                    arena_layout.len <= max_len || own.count() == 1,
                    "{arena_layout:?} of {max_len}"
                );
            }
        }
        // One of matrices, one of vectors.
        assert_eq!(Packing::with_max_len(&all, 1 << 20).len(), 2);
        // In the order of the parameters, as every tensor is alone.
        let alone = Packing::with_max_len(&all, 0);
        assert!(alone.places.iter().map(|place| place.arena).eq(0..all.len()));
    }

    #[test]
    fn values_are_read_in_the_order_of_the_parameters() {
        let all = some();
        let values: Vec<f32> =
            (0..all.iter().map(Parameter::num_elements).sum()).map(|i: usize| i as f32).collect();
        let device = Device::flex();
        for max_len in [0, 1300, 1 << 20] {
            let arenas = Arenas::zeros(Arc::new(Packing::with_max_len(&all, max_len)), &device);
            assert!(arenas.download(to_vec).iter().all(|x| *x == 0.0));
            let arenas = arenas.upload(&values, |x| Tensor::from_floats(&x[..], &device));
            assert_eq!(arenas.download(to_vec), values);
        }
    }
}
