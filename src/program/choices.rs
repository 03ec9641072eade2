//! Options whose values are names: a parser, whose names help and shells' completions list.

use crate::schema::name_from_str;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use std::ffi::OsStr;

/// A parser of these values by their names.
pub fn one_of<T>(all: &'static [T], name: fn(T) -> &'static str) -> Choices<T> {
    Choices { all, name }
}

/// The values that an option takes.
#[derive(Clone)]
pub struct Choices<T: 'static> {
    all: &'static [T],
    name: fn(T) -> &'static str,
}

impl<T: Copy> Choices<T> {
    fn names(&self) -> Vec<&'static str> {
        self.all.iter().map(|one| (self.name)(*one)).collect()
    }
}

impl<T: Copy + Send + Sync + 'static> TypedValueParser for Choices<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let (all, names) = (self.all, self.names());
        // A function is a parser whose error names the option.
        let parse = move |text: &str| name_from_str(text, all, &names);
        parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names().into_iter().map(PossibleValue::new)))
    }
}
