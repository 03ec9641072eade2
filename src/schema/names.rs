//! Enumerated settings: declares an enum together with the names of its values in text and settings.

/// A name that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` must be one of: {}", .known.join(", "))]
pub struct UnknownName {
    /// The name as written.
    pub name: String,
    /// Allowed names.
    pub known: Vec<&'static str>,
}

/// Finds the value with this name among `all`, whose names are `names` in the same order.
///
/// # Errors
/// [`UnknownName`] if none has it.
pub fn find_by_name<T: Copy>(
    name: &str,
    all: &[T],
    names: &[&'static str],
) -> Result<T, UnknownName> {
    match names.iter().position(|known| *known == name) {
        Some(index) => Ok(all[index]),
        None => Err(UnknownName { name: name.to_string(), known: names.to_vec() }),
    }
}

/// Declares an enum whose variants have names in settings and on the command line.
///
/// ```text
/// names! {
///     /// Learning-rate schedule.
///     pub enum LrSchedule {
///         /// No decay.
///         Constant = "constant",
///         /// Linear decay to 0.
///         Linear = "linear",
///     }
/// }
/// ```
#[macro_export]
macro_rules! names {
    (
        $(#[$meta:meta])*
        pub enum $Enum:ident { $($(#[$attribute:meta])* $Variant:ident = $name:expr,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $Enum { $($(#[$attribute])* $Variant,)+ }

        impl $Enum {
            /// All values, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$Variant,)+];

            /// Names of [`ALL`](Self::ALL).
            pub const NAMES: &'static [&'static str] = &[$($name,)+];

            /// Name in settings.
            pub const fn name(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }

        impl std::fmt::Display for $Enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $Enum {
            type Err = $crate::schema::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                $crate::schema::find_by_name(name, Self::ALL, Self::NAMES)
            }
        }

        impl serde::Serialize for $Enum {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $Enum {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = <String as serde::Deserialize>::deserialize(deserializer)?;
                name.parse().map_err(serde::de::Error::custom)
            }
        }

        impl $crate::schema::SettingValue for $Enum {
            const DEFAULT_RANGE: $crate::schema::ValueRange = $crate::schema::ValueRange::Name(Self::NAMES);
        }
    };
}
pub use names;

#[cfg(test)]
mod tests {
    names! {
        /// A colour.
        #[derive(Default)]
        pub enum Colour {
            /// Like the sky.
            Blue = "blue",
            /// Like a leaf.
            #[default]
            DarkGreen = "dark_green",
        }
    }

    #[test]
    fn a_name_is_the_same_in_text_and_in_settings() {
        assert_eq!(Colour::default().to_string(), "dark_green");
        for colour in Colour::ALL {
            assert_eq!(colour.to_string().parse::<Colour>().as_ref(), Ok(colour));
            let json = serde_json::to_string(colour).unwrap();
            assert_eq!(json, format!("\"{colour}\""));
            assert_eq!(serde_json::from_str::<Colour>(&json).unwrap(), *colour);
        }
        let words = "`red` must be one of: blue, dark_green";
        assert_eq!("red".parse::<Colour>().unwrap_err().to_string(), words);
        let error = serde_json::from_str::<Colour>("\"red\"").unwrap_err().to_string();
        assert!(error.starts_with(words), "{error}");
    }
}
