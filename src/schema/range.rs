//! Ranges of settings as data, from which checks, descriptions and JSON Schemas follow.

use super::Setting;
use std::fmt::{self, Display, Formatter};
use std::ops::RangeInclusive;

/// Values that a setting accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueRange {
    /// An integer in this range, both ends included.
    Integer(u64, u64),
    /// A number within an interval.
    Number(Interval),
    /// `true` or `false`.
    Bool,
    /// One of these names.
    Name(&'static [&'static str]),
    /// One of these names or a user-defined one.
    OpenName(&'static [&'static str]),
    /// Any string.
    String,
    /// A list of non-empty strings.
    Strings,
    /// A list of some of these strings.
    StringsOf(&'static [&'static str]),
    /// A list of integers.
    Integers {
        /// Minimum and maximum length.
        count: (u64, u64),
        /// Minimum and maximum of each integer.
        each: (u64, u64),
    },
    /// A table.
    Section(&'static [Setting]),
}

/// An interval of numbers that are finite in single precision, in which the engines compute, or infinite. Numbers above
/// 0 must also be above 0 in single precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Whether the lower end is included.
    pub includes_low: bool,
    /// Whether the upper end is included.
    pub includes_high: bool,
}

/// Largest finite number in single precision.
const LARGEST: f64 = f32::MAX as f64;
/// Smallest positive number that all devices distinguish from 0.
const SMALLEST: f64 = f32::MIN_POSITIVE as f64;

/// Integers in this range.
pub const fn integer(range: RangeInclusive<u64>) -> ValueRange {
    ValueRange::Integer(*range.start(), *range.end())
}

/// Lists with a length in `count`, of integers in `each`.
pub const fn integers(count: RangeInclusive<u64>, each: RangeInclusive<u64>) -> ValueRange {
    ValueRange::Integers {
        count: (*count.start(), *count.end()),
        each: (*each.start(), *each.end()),
    }
}

/// Lists of some of these strings.
pub const fn strings_of(names: &'static [&'static str]) -> ValueRange {
    ValueRange::StringsOf(names)
}

/// Numbers of at least `low`.
pub const fn at_least(low: f64) -> ValueRange {
    ValueRange::Number(Interval { low, high: LARGEST, includes_low: true, includes_high: true })
}

/// Any number, or infinity for none.
pub const fn number_or_inf() -> ValueRange {
    let (low, high) = (-LARGEST, f64::INFINITY);
    ValueRange::Number(Interval { low, high, includes_low: true, includes_high: true })
}

/// Numbers above `low`.
pub const fn above(low: f64) -> ValueRange {
    ValueRange::Number(Interval { low, high: LARGEST, includes_low: false, includes_high: true })
}

impl ValueRange {
    /// Limits an interval to numbers up to `high`; other ranges stay as they are.
    #[must_use]
    pub const fn at_most(self, high: f64) -> Self {
        match self {
            Self::Number(interval) => Self::Number(Interval { high, ..interval }),
            other => other,
        }
    }

    /// Limits an interval to numbers below `high`; other ranges stay as they are.
    #[must_use]
    pub const fn below(self, high: f64) -> Self {
        match self {
            Self::Number(interval) => {
                Self::Number(Interval { high, includes_high: false, ..interval })
            }
            other => other,
        }
    }
}

/// Describes the range, for instance `0 to below 1`.
impl Display for ValueRange {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Integer(low, high) => write!(f, "{}", describe_integers(low, high)),
            Self::Number(interval) => write!(f, "{interval}"),
            Self::Bool => write!(f, "true, false"),
            Self::Name(names) => write!(f, "{}", names.join(", ")),
            Self::OpenName(names) => write!(f, "{}, or a model of your own", names.join(", ")),
            Self::String => write!(f, "a string"),
            Self::Strings => write!(f, "a list of strings"),
            Self::StringsOf(names) => write!(f, "one or more of: {}", names.join(", ")),
            Self::Integers { count, each } => {
                let [count, each] = [count, each].map(|(low, high)| describe_integers(low, high));
                write!(f, "{count} numbers of {each}")
            }
            Self::Section(_) => write!(f, "a table"),
        }
    }
}

impl Interval {
    /// Whether the number is in the interval.
    pub fn contains(&self, number: f64) -> bool {
        let is_above = if self.includes_low {
            number >= self.low
        } else {
            number > self.low && !self.is_too_small(number)
        };
        let is_below = if self.includes_high { number <= self.high } else { number < self.high };
        is_above && is_below
    }

    /// Describes the interval for an error about a number outside it; for numbers beyond single precision, that limit
    /// is included.
    pub fn describe_for(&self, number: f64) -> String {
        if self.high == LARGEST && number > LARGEST {
            format!("{self}, at most {LARGEST:.1e}")
        } else if self.is_too_small(number) {
            format!("{self}, at least {SMALLEST:.1e}")
        } else {
            self.to_string()
        }
    }

    /// Smallest number in it, if that is not `low`.
    pub(super) fn smallest(&self) -> Option<f64> {
        (self.low == 0.0 && !self.includes_low).then_some(SMALLEST)
    }

    /// Whether a positive number may become 0 in single precision where 0 is not allowed.
    fn is_too_small(&self, number: f64) -> bool {
        self.smallest().is_some_and(|smallest| number > 0.0 && number < smallest)
    }
}

impl Display for Interval {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { includes_low, includes_high, .. } = *self;
        let [low, high] = [self.low, self.high].map(format_number);
        match (includes_low, includes_high, self.high == LARGEST) {
            _ if self.high == f64::INFINITY => write!(f, "a number, or inf for none"),
            (true, _, true) if self.low == -LARGEST => write!(f, "a finite number"),
            (true, _, true) => write!(f, "{low} or more"),
            (false, _, true) => write!(f, "above {low}"),
            (true, true, _) if self.low == self.high => write!(f, "{low}"),
            (true, true, _) => write!(f, "{low} to {high}"),
            (true, false, _) => write!(f, "{low} to below {high}"),
            (false, true, _) => write!(f, "above {low}, at most {high}"),
            (false, false, _) => write!(f, "above {low}, below {high}"),
        }
    }
}

/// `low to high`, or the number where there is only one.
fn describe_integers(low: u64, high: u64) -> String {
    if low == high {
        format_integer(low)
    } else {
        format!("{} to {}", format_integer(low), format_integer(high))
    }
}

/// Formats a number with the fewest digits that parse back to it, in single precision if that represents it exactly,
/// and with an exponent instead of many zeros.
pub fn format_number(number: f64) -> String {
    let single = number as f32;
    match (f64::from(single) == number, is_long(number)) {
        (true, true) => format!("{single:e}"),
        (true, false) => single.to_string(),
        (false, true) => format!("{number:e}"),
        (false, false) => number.to_string(),
    }
}

/// Whether a number has many zeros without an exponent.
pub(crate) fn is_long(number: f64) -> bool {
    number.is_finite() && number != 0.0 && !(1e-6..1e16).contains(&number.abs())
}

/// Formats a number in digits, or as a power of two if it is large.
fn format_integer(number: u64) -> String {
    const LONG: u64 = 1 << 17;
    match number {
        LONG.. if number.is_power_of_two() => format!("2^{}", number.ilog2()),
        LONG.. if number & number.wrapping_add(1) == 0 => {
            format!("2^{} - 1", 64 - number.leading_zeros())
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_the_range() {
        for (range, words) in [
            (integer(1..=4096), "1 to 4096"),
            (integer(0..=(1 << 63) - 1), "0 to 2^63 - 1"),
            (integer(2..=1 << 30), "2 to 2^30"),
            (at_least(0.0), "0 or more"),
            (number_or_inf(), "a number, or inf for none"),
            (above(0.0), "above 0"),
            (above(0.0).at_most(0.5), "above 0, at most 0.5"),
            (at_least(0.0).below(1.0), "0 to below 1"),
            (at_least(0.0).at_most(1.0), "0 to 1"),
            (at_least(0.0).at_most(0.0), "0"),
            (at_least(0.01).at_most(86_400.0), "0.01 to 86400"),
            (at_least(1e-6_f32 as f64), "1e-6 or more"),
        ] {
            assert_eq!(range.to_string(), words);
        }
    }

    #[test]
    fn an_interval_has_no_number_beyond_single_precision() {
        let ValueRange::Number(interval) = at_least(0.0) else { unreachable!() };
        assert!(interval.contains(0.0) && interval.contains(1e38));
        for number in [f64::NAN, f64::INFINITY, 1e39, -1e-9] {
            assert!(!interval.contains(number), "{number}");
        }
        assert!(interval.contains(1e-308), "it may become 0");
        let ValueRange::Number(interval) = above(0.0) else { unreachable!() };
        assert!(
            !interval.contains(1e-308) && !interval.contains(0.0) && interval.contains(SMALLEST)
        );
        assert_eq!(interval.describe_for(1e-308), "above 0, at least 1.2e-38");
        assert_eq!(interval.describe_for(0.0), "above 0");
    }
}
