//! Space of settings that a sweep searches, as a unit cube.

use crate::rng::{draw, uniform};
use anyhow::{Result, bail};
use serde::{Deserialize, Deserializer, de::Error};
use std::collections::{BTreeMap, HashSet};
use toml::Value;

/// Error for a range in the file that has none of the forms.
const RANGE_ERROR: &str =
    "the values of a setting are `linear = [LOW, HIGH]`, `log = [LOW, HIGH]` or `choices = [...]`";

/// Values that a setting may take.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(try_from = "toml::Table")]
pub enum Range {
    /// Uniform or log-uniform between two numbers; integers if both are.
    Numbers { ends: [Value; 2], is_log: bool },
    /// One of several values.
    Choices(Vec<Value>),
}

impl TryFrom<toml::Table> for Range {
    type Error = &'static str;

    fn try_from(table: toml::Table) -> Result<Self, Self::Error> {
        let mut entries = table.into_iter();
        let (Some((kind, Value::Array(values))), None) = (entries.next(), entries.next()) else {
            return Err(RANGE_ERROR);
        };
        match (&*kind, <[Value; 2]>::try_from(values)) {
            ("linear" | "log", Ok(ends)) => Ok(Self::Numbers { ends, is_log: kind == "log" }),
            ("choices", Ok(two)) => Ok(Self::Choices(two.into())),
            ("choices", Err(values)) => Ok(Self::Choices(values)),
            _ => Err(RANGE_ERROR),
        }
    }
}

/// An entry of `[space]`: a range, or a section of ranges, as in `[settings]`.
#[derive(Deserialize)]
#[serde(try_from = "toml::Table")]
enum SpaceEntry {
    Range(Range),
    Section(BTreeMap<String, Range>),
}

impl TryFrom<toml::Table> for SpaceEntry {
    type Error = &'static str;

    fn try_from(table: toml::Table) -> Result<Self, Self::Error> {
        if table.is_empty() || !table.values().all(Value::is_table) {
            return Range::try_from(table).map(Self::Range);
        }
        Value::Table(table).try_into().map(Self::Section).map_err(|_| RANGE_ERROR)
    }
}

/// Parses `[space]`, in which a setting has its full name in quotes or is in its section.
pub fn read_space<'de, D: Deserializer<'de>>(source: D) -> Result<Space, D::Error> {
    let mut space = Space::new();
    for (name, entry) in BTreeMap::<String, SpaceEntry>::deserialize(source)? {
        let ranges = match entry {
            SpaceEntry::Range(range) => vec![(name, range)],
            SpaceEntry::Section(ranges) => {
                ranges.into_iter().map(|(key, range)| (format!("{name}.{key}"), range)).collect()
            }
        };
        for (name, range) in ranges {
            if space.insert(name.clone(), range).is_some() {
                return Err(D::Error::custom(format!("`{name}` is listed twice")));
            }
        }
    }
    Ok(space)
}

/// Ranges of the searched settings by name.
pub type Space = BTreeMap<String, Range>;
/// A point of the space: a number in [0, 1) for each setting, in order of their names.
pub type Point = Vec<f64>;

impl Range {
    /// Checks that the range has something to choose from.
    pub fn check(&self, name: &str) -> Result<()> {
        match self {
            Self::Choices(values) if values.is_empty() => bail!("{name}: choices is an empty list"),
            Self::Choices(_) => Ok(()),
            Self::Numbers { ends, is_log } => {
                let [Some(low), Some(high)] = ends.each_ref().map(as_number) else {
                    bail!("{name}: a range needs two numbers");
                };
                let min = if *is_log { 0.0 } else { f64::MIN };
                if !(low < high && low > min && high.is_finite()) {
                    bail!(
                        "{name}: {low} to {high} is not a range: the first end must be less than the second, and above 0 \
                         for log"
                    );
                }
                Ok(())
            }
        }
    }

    /// Makes the ends fractional, so that values between integers are not rounded: for fractional settings.
    pub fn allow_fractions(&mut self) {
        if let Self::Numbers { ends, .. } = self {
            for end in ends {
                *end = as_number(end).map_or_else(|| end.clone(), Value::Float);
            }
        }
    }

    /// Value at a position in [0, 1).
    pub fn value_at(&self, position: f64) -> Value {
        match self {
            Self::Choices(values) => values[choice_index(position, values.len())].clone(),
            Self::Numbers { ends, is_log } => NumberScale::new(ends, *is_log).value_at(position),
        }
    }

    /// Divides the range into parts and returns the index of the one at `position`, in [0, 1). A range of numbers has
    /// `count` parts, or one for each value if it has fewer integers; each choice is a part of its own, and equal
    /// choices share one.
    pub fn part_at(&self, position: f64, count: usize) -> usize {
        match (self, self.value_at(position)) {
            (Self::Choices(values), value) => {
                let index = choice_index(position, values.len());
                values.iter().position(|other| *other == value).unwrap_or(index)
            }
            (Self::Numbers { ends: [Value::Integer(low), _], .. }, Value::Integer(value))
                if self.num_values().is_some_and(|values| values <= count) =>
            {
                (value - low) as usize
            }
            (Self::Numbers { ends, is_log }, Value::Integer(value)) => {
                let position = NumberScale::new(ends, *is_log).position_of(value as f64);
                choice_index(position, count)
            }
            _ => choice_index(position, count),
        }
    }

    /// Position of the value that divides a range of numbers at `share`, 0 for its lower end and 1 for its upper one.
    fn position_at(&self, share: f64) -> f64 {
        match self {
            Self::Choices(_) => share,
            Self::Numbers { ends, is_log } => NumberScale::new(ends, *is_log).position_at(share),
        }
    }

    /// All choices, or the ends of a range.
    pub fn extremes(&self) -> Vec<Value> {
        match self {
            Self::Choices(values) => values.clone(),
            Self::Numbers { ends, .. } => ends.to_vec(),
        }
    }

    /// Number of values in a grid with `steps` values per range of numbers.
    pub fn num_grid_values(&self, steps: usize) -> usize {
        self.num_choices().unwrap_or(steps)
    }

    /// Number of different values; `None` for a range of fractions.
    fn num_values(&self) -> Option<usize> {
        match self {
            Self::Choices(values) => {
                Some(values.iter().map(Value::to_string).collect::<HashSet<_>>().len())
            }
            Self::Numbers { ends: [low, high], .. } => {
                let steps = high.as_integer()?.checked_sub(low.as_integer()?)?;
                usize::try_from(steps).ok()?.checked_add(1)
            }
        }
    }

    /// Number of choices; `None` for a range of numbers.
    pub fn num_choices(&self) -> Option<usize> {
        match self {
            Self::Choices(values) => Some(values.len()),
            Self::Numbers { .. } => None,
        }
    }
}

/// Index of the choice among `count` at a position in [0, 1).
pub fn choice_index(position: f64, count: usize) -> usize {
    ((position * count as f64) as usize).min(count - 1)
}

fn as_number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))
}

/// A function of a number.
type Function = fn(f64) -> f64;

/// A range of numbers as a line on which its values are even.
struct NumberScale {
    /// The lowest and the highest value.
    ends: [f64; 2],
    /// Whether values are rounded to integers.
    is_whole: bool,
    /// Converts a value to its coordinate.
    to_coordinate: Function,
    /// Converts a coordinate to its value.
    to_value: Function,
}

impl NumberScale {
    fn new(ends: &[Value; 2], is_log: bool) -> Self {
        let (to_coordinate, to_value): (Function, Function) =
            if is_log { (f64::ln, f64::exp) } else { (|x| x, |x| x) };
        let is_whole = ends.iter().all(Value::is_integer);
        let ends = ends.each_ref().map(|end| as_number(end).unwrap_or_default());
        Self { ends, is_whole, to_coordinate, to_value }
    }

    /// The coordinates at positions 0 and 1. For integers they are half a step outside the ends, so that rounding makes
    /// both ends as likely as other values.
    fn margins(&self) -> [f64; 2] {
        let [low, high] = self.ends;
        let margin = if self.is_whole { 0.5 } else { 0.0 };
        [low - margin, high + margin].map(self.to_coordinate)
    }

    /// Value at a position between the margins.
    fn value_at(&self, position: f64) -> Value {
        let ([low, high], [first, last]) = (self.ends, self.margins());
        let value = (self.to_value)(first + (last - first) * position).clamp(low, high);
        if self.is_whole {
            Value::Integer(value.round() as i64)
        } else {
            // Few digits, so that tables and settings files stay readable; the ends are exact.
            let rounded: f64 = format!("{value:.4e}").parse().unwrap_or(value);
            Value::Float(rounded.clamp(low, high))
        }
    }

    /// Position between the margins of the value at `share` of the way between the ends.
    fn position_at(&self, share: f64) -> f64 {
        let [low, high] = self.ends.map(self.to_coordinate);
        let value = (self.to_value)(low + (high - low) * share);
        self.position_of(if self.is_whole { value.round() } else { value })
    }

    /// Position of a value between the margins.
    fn position_of(&self, value: f64) -> f64 {
        let [first, last] = self.margins();
        ((self.to_coordinate)(value) - first) / (last - first)
    }
}

/// Draws the point of the trial with this index for a seed.
pub fn draw_point(space: &Space, seed: u32, index: u32) -> Point {
    let key = draw(seed, index);
    (0..space.len() as u32).map(|i| f64::from(uniform(draw(key, i)))).collect()
}

/// Counts the points with different settings; `None` if there is no end of them.
pub fn count_points(space: &Space) -> Option<usize> {
    space.values().try_fold(1_usize, |size, range| size.checked_mul(range.num_values()?))
}

/// Maximum number of points of a grid; `None` on overflow.
pub fn grid_size(space: &Space, steps: usize) -> Option<usize> {
    space.values().try_fold(1_usize, |size, range| size.checked_mul(range.num_grid_values(steps)))
}

/// All points of a grid with `steps` values per range of numbers, ends included, without duplicates of integer values.
pub fn grid_points(space: &Space, steps: usize) -> Vec<Point> {
    let mut points = vec![Point::new()];
    for range in space.values() {
        let count = range.num_grid_values(steps);
        let position = |i: usize| match range {
            Range::Choices(_) => (i as f64 + 0.5) / count as f64,
            _ if count == 1 => range.position_at(0.5),
            _ => range.position_at(i as f64 / (count - 1) as f64),
        };
        let mut positions: Vec<f64> = (0..count).map(position).collect();
        positions.dedup_by(|a, b| range.value_at(*a) == range.value_at(*b));
        let extend = |point: &Point| {
            let point = point.clone();
            positions
                .iter()
                .map(move |position| [&point[..], &[*position]].concat())
                .collect::<Vec<_>>()
        };
        points = points.iter().flat_map(extend).collect();
    }
    points
}

pub fn settings_at(space: &Space, point: &[f64]) -> BTreeMap<String, Value> {
    let pairs = space.iter().zip(point);
    pairs.map(|((name, range), position)| (name.clone(), range.value_at(*position))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(text: &str) -> Space {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_malformed_range_is_rejected_with_the_valid_forms() {
        for text in ["{ low = 1, high = 2, log = true }", "{ log = [1] }", "{ linear = 3 }", "{}"] {
            let error = toml::from_str::<Space>(&format!("a = {text}")).unwrap_err();
            assert!(error.to_string().contains(RANGE_ERROR), "{text}: {error}");
        }
        let three = Range::Choices([1, 2, 3].map(Value::Integer).to_vec());
        assert_eq!(space("a = { choices = [1, 2, 3] }")["a"], three);
    }

    #[test]
    fn ranges_are_even_in_their_scale() {
        let space = space(
            "a = { log = [1e-4, 1e-2] }\nb = { linear = [2, 8] }\nc = { choices = ['x', 'y'] }",
        );
        let at = |name: &str, position: f64| space[name].value_at(position);
        assert_eq!(
            [at("a", 0.0), at("a", 0.5), at("a", 1.0)],
            [1e-4, 1e-3, 1e-2].map(Value::Float)
        );
        assert_eq!([at("b", 0.0), at("b", 0.5), at("b", 1.0)], [2, 5, 8].map(Value::Integer));
        assert_eq!([at("c", 0.49), at("c", 0.5), at("c", 1.0)], ["x", "y", "y"].map(Value::from));
        assert_eq!(grid_points(&space, 3).len(), 3 * 3 * 2);
        assert_eq!(grid_size(&space, 3), Some(3 * 3 * 2));
        assert_eq!(grid_size(&space, usize::MAX), None);
        assert_eq!(count_points(&space), None);
        let finite = super::tests::space("a = { log = [1, 8] }\nb = { choices = ['x', 'x', 'y'] }");
        assert_eq!(count_points(&finite), Some(8 * 2));
        // Integers are equally likely, the ends too.
        let linear = |ends| Range::Numbers { ends, is_log: false };
        let whole = linear([1, 3].map(Value::Integer));
        let mut counts = [0; 3];
        for i in 0..300 {
            counts[whole.value_at((f64::from(i) + 0.5) / 300.0).as_integer().unwrap() as usize
                - 1] += 1;
        }
        assert_eq!(counts, [100; 3]);
        let narrow = linear([0.99, 0.999_999].map(Value::Float));
        assert_eq!(narrow.value_at(1.0), Value::Float(0.999_999), "an end with many digits");
        let random = draw_point(&space, 7, 3);
        assert_eq!(random, draw_point(&space, 7, 3));
        assert!(random.iter().all(|position| (0.0..1.0).contains(position)));
    }

    #[test]
    fn a_grid_has_no_settings_twice() {
        let space = space("a = { linear = [1, 2] }\nb = { log = [1, 8] }");
        let points = grid_points(&space, 8);
        let values = |d: usize| -> Vec<f64> {
            let values = points
                .iter()
                .filter_map(|point| as_number(&space.values().nth(d)?.value_at(point[d])));
            values.collect()
        };
        assert_eq!(values(0), [[1.0; 6], [2.0; 6]].concat());
        assert_eq!(values(1), [1.0, 2.0, 3.0, 4.0, 6.0, 8.0].repeat(2));
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for text in [
            "{ log = [0.0, 1.0] }",
            "{ linear = [2, 2] }",
            "{ linear = ['a', 'b'] }",
            "{ choices = [] }",
        ] {
            assert!(space(&format!("a = {text}"))["a"].check("a").is_err(), "{text}");
        }
        assert!(toml::from_str::<Space>("a = { normal = [0, 1] }").is_err());
    }
}
