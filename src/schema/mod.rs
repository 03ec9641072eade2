//! Declarations of settings: one macro states a setting's name, meaning, default, range and alias.
//!
//! `settings!` turns a struct with doc comments into a plain serde struct, its default, its checks
//! ([`Settings::validate`]) and a table of what it declares ([`Settings::SETTINGS`]). Overlays, listings,
//! JSON Schemas ([`json`]) and forms read that table, so that no list is kept beside the struct.
//! `names!` does the same for a setting that is one of a few names.

pub mod json;
mod names;
pub mod range;
pub(crate) mod table;
mod value;

pub use names::{UnknownName, find_by_name, names};
pub use range::ValueRange;
pub use value::SettingValue;

/// Declaration of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Name in its table.
    pub key: &'static str,
    /// Lines of its doc comment.
    pub doc: &'static [&'static str],
    /// Values that it accepts.
    pub range: ValueRange,
    /// Name in TRL, if different.
    pub alias: Option<&'static str>,
    /// Whether it is a section whose settings are part of the enclosing table.
    pub is_flat: bool,
}

impl Setting {
    /// First paragraph of its doc comment, on one line.
    pub fn meaning(&self) -> String {
        let lines = self.doc.iter().map(|line| line.trim());
        let mut meaning = lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        if let Some(alias) = self.alias {
            meaning += &format!(" (TRL: {alias})");
        }
        meaning
    }
}

/// Lines of a doc comment; none in a browser, where nothing prints them and every visitor would download them.
pub const fn doc_lines(lines: &'static [&'static str]) -> &'static [&'static str] {
    if cfg!(target_family = "wasm") { &[] } else { lines }
}

/// Settings as they appear in a table, with flat sections replaced by their settings.
pub fn flatten_sections(settings: &'static [Setting]) -> Vec<&'static Setting> {
    let mut all = Vec::with_capacity(settings.len());
    for setting in settings {
        match setting.range {
            ValueRange::Section(inner) if setting.is_flat => all.extend(flatten_sections(inner)),
            _ => all.push(setting),
        }
    }
    all
}

/// The values that the setting at a path accepts, `key` or `section.key`.
pub fn declared_range_at(settings: &'static [Setting], path: &str) -> Option<ValueRange> {
    let find = |settings, key: &str| {
        flatten_sections(settings).into_iter().find(|setting| setting.key == key).map(|it| it.range)
    };
    match path.split_once('.') {
        None => find(settings, path),
        Some((section, key)) => match find(settings, section)? {
            ValueRange::Section(inner) => find(inner, key),
            _ => None,
        },
    }
}

/// A struct of settings declared by `settings!`.
pub trait Settings {
    /// Declarations in order.
    const SETTINGS: &'static [Setting];

    /// Checks every setting against its range, and the rules between settings.
    ///
    /// # Errors
    /// [`OutOfRange`] for the first that is refused.
    fn validate(&self) -> Result<(), OutOfRange>;
}

/// A value outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}, but must be {allowed}")]
pub struct OutOfRange {
    /// Path of the setting, for instance `optimizer.learning_rate`.
    pub key: String,
    /// The invalid value.
    pub value: String,
    /// Description of the range.
    pub allowed: String,
}

impl OutOfRange {
    /// The same error for a setting inside `section`.
    #[must_use]
    pub fn with_section(mut self, section: &str) -> Self {
        self.key = if self.key.is_empty() {
            section.to_string()
        } else {
            format!("{section}.{}", self.key)
        };
        self
    }
}

/// Checks that a setting has an allowed value.
///
/// # Errors
/// [`OutOfRange`] with these words.
pub fn ensure(
    is_allowed: bool,
    key: &str,
    value: impl std::fmt::Display,
    allowed: impl std::fmt::Display,
) -> Result<(), OutOfRange> {
    if is_allowed {
        return Ok(());
    }
    let (key, mut value, allowed) = (key.to_string(), value.to_string(), allowed.to_string());
    // A tiny number has hundreds of zeros.
    if value.len() > 32
        && let Ok(number) = value.parse::<f64>()
    {
        value = range::format_number(number);
    }
    Err(OutOfRange { key, value, allowed })
}

/// Checks rules between settings of a struct, on lines of the form `SETTING valid_if CONDITION, "WHAT IS ALLOWED";`.
macro_rules! ensure_all {
    ($settings:ident: $($first:ident$(.$rest:ident)* valid_if $is_allowed:expr, $allowed:expr;)+) => {
        $($crate::schema::ensure(
            $is_allowed,
            concat!(stringify!($first) $(, ".", stringify!($rest))*),
            &$settings.$first$(.$rest)*,
            $allowed,
        )?;)+
    };
}
pub(crate) use ensure_all;

/// Name of a field, without the `r#` of keywords.
#[doc(hidden)]
pub const fn plain_name(field: &'static str) -> &'static str {
    match field.as_bytes() {
        [b'r', b'#', ..] => field.split_at(2).1,
        _ => field,
    }
}

/// Declares a struct of settings: those of a run, or a game's parameters. A crate that declares some depends on `serde`
/// with its derive macros.
///
/// ```text
/// settings! {
///     /// AdamW.
///     pub struct OptimizerConfig {
///         /// Peak learning rate.
///         learning_rate: f64 = 2e-3, in at_least(0.0);
///         /// Passes over the data of an iteration.
///         update_epochs: usize = 2, in integer(1..=65536), alias "num_iterations";
///         /// A section, with the default of its type.
///         loss: LossConfig;
///         /// A section whose settings stand among these.
///         @flatten sizes: DecoderConfig;
///     }
///     check = OptimizerConfig::check_settings;
/// }
/// ```
///
/// The first paragraph of a field's doc comment is its meaning in listings and forms; the range is an
/// expression of [`schema::range`](crate::schema::range). More traits to derive follow the name
/// (`pub struct DataConfig: Eq`), and `check` is a function that checks settings beside each other.
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $struct_doc:literal])*
        pub struct $Name:ident $(: $($Extra:ident),+)? {
            $(
                $(#[doc = $doc:literal])*
                $(@$flat:ident)? $field:ident: $ty:ty $(= $default:expr)? $(, in $range:expr)?
                $(, alias $alias:literal)?;
            )*
        }
        $(check = $check:path;)?
    ) => {
        $(#[doc = $struct_doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        $(#[derive($($Extra),+)])?
        #[serde(default)]
        pub struct $Name {
            $(
                $(#[doc = $doc])*
                $(#[serde($flat)])?
                pub $field: $ty,
            )*
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $($field: $crate::schema::settings!(@default $($default)?),)* }
            }
        }

        impl $crate::schema::Settings for $Name {
            const SETTINGS: &'static [$crate::schema::Setting] = &[$(
                $crate::schema::Setting {
                    key: $crate::schema::plain_name(stringify!($field)),
                    doc: $crate::schema::doc_lines(&[$($doc),*]),
                    range: $crate::schema::settings!(@range $ty $(, $range)?),
                    alias: $crate::schema::settings!(@alias $($alias)?),
                    is_flat: $crate::schema::settings!(@flat $($flat)?),
                },
            )*];

            fn validate(&self) -> Result<(), $crate::schema::OutOfRange> {
                $(
                    let range = const { &$crate::schema::settings!(@range $ty $(, $range)?) };
                    let checked = $crate::schema::SettingValue::check(&self.$field, range);
                    if $crate::schema::settings!(@flat $($flat)?) {
                        checked?
                    } else {
                        let name = $crate::schema::plain_name(stringify!($field));
                        checked.map_err(|error| error.with_section(name))?
                    }
                )*
                $($check(self)?;)?
                Ok(())
            }
        }

        impl $crate::schema::SettingValue for $Name {
            const DEFAULT_RANGE: $crate::schema::ValueRange =
                $crate::schema::ValueRange::Section(<Self as $crate::schema::Settings>::SETTINGS);

            fn check(&self, _: &$crate::schema::ValueRange) -> Result<(), $crate::schema::OutOfRange> {
                $crate::schema::Settings::validate(self)
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@range $ty:ty) => { <$ty as $crate::schema::SettingValue>::DEFAULT_RANGE };
    (@range $ty:ty, $range:expr) => {{
        #[allow(unused_imports)]
        use $crate::schema::range::*;
        $range
    }};
    (@alias) => { None };
    (@alias $alias:literal) => { Some($alias) };
    (@flat) => { false };
    (@flat $flat:ident) => { true };
}
pub use settings;

#[cfg(test)]
mod tests {
    use super::*;

    settings! {
        /// The inner settings.
        pub struct Inner {
            /// The rate
            /// of change.
            ///
            /// More of it.
            rate: f64 = 0.5, in above(0.0).at_most(1.0), alias "pace";
        }
    }

    settings! {
        /// The outer settings.
        pub struct Outer: Eq {
            /// Sizes.
            sizes: Vec<usize> = vec![4], in integers(1..=2, 1..=9);
            /// A field that is a keyword.
            r#unsafe: bool;
            /// A count.
            count: u32 = 3, in integer(1..=1 << 20);
        }
        check = Outer::check_settings;
    }

    impl Outer {
        fn check_settings(&self) -> Result<(), OutOfRange> {
            ensure(self.count != 7, "count", self.count, "any number but 7")
        }
    }

    settings! {
        /// All of them.
        pub struct All {
            /// A section.
            inner: Inner = Inner { rate: 0.25 };
            /// Settings among these.
            @flatten outer: Outer;
        }
    }

    fn refusal(text: &str) -> String {
        toml::from_str::<All>(text).unwrap().validate().unwrap_err().to_string()
    }

    #[test]
    fn a_declaration_gives_default_check_and_table() {
        let all = All::default();
        assert_eq!((all.inner.rate, all.outer.count), (0.25, 3));
        assert_eq!(all.validate(), Ok(()));
        assert_eq!(toml::from_str::<All>("count = 5").unwrap().outer.count, 5);
        assert!(toml::from_str::<All>("unsafe = true").unwrap().outer.r#unsafe);
        for (text, words) in [
            ("inner = { rate = 0.0 }", "inner.rate is 0, but must be above 0, at most 1"),
            ("inner = { rate = nan }", "inner.rate is NaN, but must be above 0, at most 1"),
            ("count = 0", "count is 0, but must be 1 to 2^20"),
            ("count = 7", "count is 7, but must be any number but 7"),
            ("sizes = []", "sizes is [], but must be 1 to 2 numbers of 1 to 9"),
            ("sizes = [1, 10]", "sizes is [1, 10], but must be 1 to 2 numbers of 1 to 9"),
        ] {
            assert_eq!(refusal(text), words);
        }
        let keys: Vec<_> =
            flatten_sections(All::SETTINGS).iter().map(|setting| setting.key).collect();
        assert_eq!(keys, ["inner", "sizes", "unsafe", "count"]);
        assert_eq!(Inner::SETTINGS[0].meaning(), "The rate of change. (TRL: pace)");
    }
}
