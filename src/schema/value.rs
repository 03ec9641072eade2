//! Types of settings, each with its default range.

use super::range::{at_least, format_number, integer};
use super::{OutOfRange, ValueRange, ensure};

/// A type that a setting can have.
pub trait SettingValue {
    /// Range of settings whose declaration names none.
    const DEFAULT_RANGE: ValueRange;

    /// Checks that the value is in `range`.
    ///
    /// # Errors
    /// [`OutOfRange`]; its key is empty, or the path of a setting inside this one.
    fn check(&self, _range: &ValueRange) -> Result<(), OutOfRange> {
        Ok(())
    }
}

macro_rules! numbers {
    ($range:expr, $check:expr, $($ty:ty),*) => {$(
        impl SettingValue for $ty {
            const DEFAULT_RANGE: ValueRange = $range;

            fn check(&self, range: &ValueRange) -> Result<(), OutOfRange> {
                $check(*self as _, range)
            }
        }
    )*};
}
numbers!(integer(0..=(u32::MAX as u64)), check_integer, u32, u64, usize);
// Any number that is finite in single precision.
numbers!(at_least(-(f32::MAX as f64)), check_number, f32, f64);

fn check_integer(number: u64, range: &ValueRange) -> Result<(), OutOfRange> {
    let ValueRange::Integer(low, high) = *range else { return Ok(()) };
    ensure((low..=high).contains(&number), "", number, range)
}

fn check_number(number: f64, range: &ValueRange) -> Result<(), OutOfRange> {
    let ValueRange::Number(interval) = *range else { return Ok(()) };
    ensure(interval.contains(number), "", format_number(number), interval.describe_for(number))
}

impl SettingValue for bool {
    const DEFAULT_RANGE: ValueRange = ValueRange::Bool;
}

impl SettingValue for String {
    const DEFAULT_RANGE: ValueRange = ValueRange::String;
}

impl SettingValue for Vec<String> {
    const DEFAULT_RANGE: ValueRange = ValueRange::Strings;

    fn check(&self, range: &ValueRange) -> Result<(), OutOfRange> {
        let (is_allowed, allowed) = match range {
            ValueRange::StringsOf(names) => {
                let is_known = |name: &String| names.contains(&name.as_str());
                (self.iter().all(is_known), range.to_string())
            }
            _ => (!self.iter().any(String::is_empty), "non-empty strings".to_string()),
        };
        ensure(is_allowed, "", format!("{self:?}"), allowed)
    }
}

impl SettingValue for Vec<usize> {
    const DEFAULT_RANGE: ValueRange =
        ValueRange::Integers { count: (0, 64), each: (0, u32::MAX as u64) };

    fn check(&self, range: &ValueRange) -> Result<(), OutOfRange> {
        let ValueRange::Integers { count, each } = *range else { return Ok(()) };
        let is_in =
            |range: (u64, u64), number: usize| (range.0..=range.1).contains(&(number as u64));
        let is_allowed = is_in(count, self.len()) && self.iter().all(|number| is_in(each, *number));
        ensure(is_allowed, "", format!("{self:?}"), range)
    }
}
