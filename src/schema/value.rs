//! The types of settings, each with the values that it can have.

use super::range::{Interval, whole};
use super::{OutOfRange, Shape, limit};
use std::fmt::Display;

/// A type that a setting can have.
pub trait Value {
    /// The values that it can have where the declaration names no range.
    const SHAPE: Shape;

    /// Checks that the value is one of `shape`.
    ///
    /// # Errors
    /// [`OutOfRange`] without a key, unless it is of a setting inside this one.
    fn check(&self, shape: &Shape) -> Result<(), OutOfRange>;
}

fn require(is_allowed: bool, value: impl Display, shape: &Shape) -> Result<(), OutOfRange> {
    if is_allowed { Ok(()) } else { limit(false, "", value, shape.words()) }
}

fn check_whole(value: u64, shape: &Shape) -> Result<(), OutOfRange> {
    let Shape::Whole(low, high) = *shape else { return Ok(()) };
    require((low..=high).contains(&value), value, shape)
}

macro_rules! whole_numbers {
    ($($ty:ty),*) => {$(
        impl Value for $ty {
            const SHAPE: Shape = whole(0..=(u32::MAX as u64));

            fn check(&self, shape: &Shape) -> Result<(), OutOfRange> {
                check_whole(*self as u64, shape)
            }
        }
    )*};
}
whole_numbers!(u32, u64, usize);

/// Any number that is finite in single precision.
const FINITE: Shape = Shape::Number(Interval {
    low: -(f32::MAX as f64),
    high: f32::MAX as f64,
    has_low: true,
    has_high: true,
});

impl Value for f64 {
    const SHAPE: Shape = FINITE;

    fn check(&self, shape: &Shape) -> Result<(), OutOfRange> {
        let Shape::Number(interval) = shape else { return Ok(()) };
        require(interval.contains(*self), self, shape)
    }
}

impl Value for f32 {
    const SHAPE: Shape = FINITE;

    fn check(&self, shape: &Shape) -> Result<(), OutOfRange> {
        let Shape::Number(interval) = shape else { return Ok(()) };
        require(interval.contains(f64::from(*self)), self, shape)
    }
}

impl Value for bool {
    const SHAPE: Shape = Shape::Flag;

    fn check(&self, _: &Shape) -> Result<(), OutOfRange> {
        Ok(())
    }
}

impl Value for String {
    const SHAPE: Shape = Shape::Text;

    fn check(&self, _: &Shape) -> Result<(), OutOfRange> {
        Ok(())
    }
}

impl Value for Vec<String> {
    const SHAPE: Shape = Shape::Texts;

    fn check(&self, _: &Shape) -> Result<(), OutOfRange> {
        Ok(())
    }
}

impl Value for Vec<usize> {
    const SHAPE: Shape = Shape::Wholes { count: (0, 64), each: (0, u32::MAX as u64) };

    fn check(&self, shape: &Shape) -> Result<(), OutOfRange> {
        let Shape::Wholes { count, each } = *shape else { return Ok(()) };
        let is_in =
            |range: (u64, u64), number: usize| (range.0..=range.1).contains(&(number as u64));
        let is_allowed = is_in(count, self.len()) && self.iter().all(|number| is_in(each, *number));
        require(is_allowed, format!("{self:?}"), shape)
    }
}
