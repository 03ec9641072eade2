//! Parsers of the values of options.

use crate::schema::{Settings, ValueRange, declared_range_at, find_by_name};
use crate::settings::GenerationConfig;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command, ValueEnum};
use std::ffi::OsStr;
use std::ops::RangeInclusive;

/// A parser of these values by their names, which help and shells' completions list.
#[derive(Clone)]
pub struct OneOf<T: 'static>(pub &'static [T], pub fn(T) -> &'static str);

impl<T: Copy> OneOf<T> {
    fn names(&self) -> Vec<&'static str> {
        self.0.iter().map(|choice| (self.1)(*choice)).collect()
    }
}

impl<T: Copy + Send + Sync + 'static> TypedValueParser for OneOf<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let (all, names) = (self.0, self.names());
        // A function is a parser whose error names the option.
        let parse = move |text: &str| find_by_name(text, all, &names);
        parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names().into_iter().map(PossibleValue::new)))
    }
}

/// The name of a value on the command line.
pub fn name_of(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value().expect("no value is hidden");
    value.get_name().to_string()
}

/// Creates a parser of counts in this range.
pub fn count_in<T: TryFrom<u64> + 'static>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let number = text.parse::<u64>().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("must be {} to {}", range.start(), range.end()))
    }
}

/// The seeds of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub Vec<u64>);

/// Parses seeds: `1..5`, both ends included, or `1,2,8`.
pub fn parse_seeds(text: &str) -> Result<Seeds, String> {
    let error = || "write a range, for instance 1..5 (both included), or a list, 1,2,8".to_string();
    let parse_one = |text: &str| {
        let seed = text.trim().parse::<u64>().map_err(|_| error())?;
        let is_small = i64::try_from(seed).is_ok();
        is_small.then_some(seed).ok_or_else(|| "a seed is at most 2^63 - 1".to_string())
    };
    let seeds: Vec<u64> = match text.split_once("..") {
        Some((first, last)) => (parse_one(first)?..=parse_one(last)?).take(1001).collect(),
        None => text.split(',').map(parse_one).collect::<Result<_, _>>()?,
    };
    let is_twice = |(at, seed): &(usize, &u64)| seeds[..*at].contains(seed);
    match (seeds.len(), seeds.iter().enumerate().find(is_twice)) {
        (0, _) => Err("there is no seed between the ends; write the lower one first".to_string()),
        (1001.., _) => Err("more than 1000 seeds".to_string()),
        (_, Some((_, seed))) => Err(format!("the seed {seed} is listed twice")),
        (_, None) => Ok(Seeds(seeds)),
    }
}

/// Parses a seed: a whole number that a settings file can hold as well.
pub fn parse_seed<T: TryFrom<i64>>(text: &str) -> Result<T, String> {
    let seed = text.parse::<i64>().ok().and_then(|seed| T::try_from(seed).ok());
    let max_seed = if size_of::<T>() == 4 { i64::from(u32::MAX) } else { i64::MAX };
    seed.ok_or_else(|| format!("a seed is a whole number from 0 to {max_seed}"))
}

/// Parses a temperature: one that training takes, or 0.
pub fn parse_temperature(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(0.0) => Ok(0.0),
        _ => parse_sampling("temperature", text).map_err(|error| error.replace("be ", "be 0, or ")),
    }
}

/// Parses a number that training takes for this setting of generation.
pub fn parse_sampling(key: &str, text: &str) -> Result<f32, String> {
    let number: f32 = text.parse().map_err(|_| "not a number".to_string())?;
    match declared_range_at(GenerationConfig::SETTINGS, key) {
        Some(ValueRange::Number(range)) if !range.contains(number.into()) => {
            Err(format!("must be {}", range.describe_for(number.into())))
        }
        _ => Ok(number),
    }
}

/// Parses a number that is neither infinite nor NaN.
pub fn parse_finite(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    number.ok_or_else(|| "must be a finite number".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_range_or_a_list() {
        assert_eq!(parse_seeds("1..5"), Ok(Seeds(vec![1, 2, 3, 4, 5])));
        assert_eq!(parse_seeds("3, 1,8"), Ok(Seeds(vec![3, 1, 8])));
        assert_eq!(parse_seeds("7"), Ok(Seeds(vec![7])));
        assert_eq!(parse_seeds("5000000000"), Ok(Seeds(vec![5_000_000_000])));
        assert_eq!(parse_seeds("1..4000000000"), Err("more than 1000 seeds".to_string()));
        for text in ["5..1", "a", "", "-1..2", "1..", "1,,2", "1,2,1", "9223372036854775808"] {
            assert!(parse_seeds(text).is_err(), "{text}");
        }
    }
}
