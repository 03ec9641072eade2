//! The one list of networks that come along, from which the settings, the checkpoints, the engines and
//! the page take theirs.
//!
//! A network is a folder: `burn.rs` trains it anywhere, `cpu.rs` acts on the CPU's vector units, and
//! [`BuiltIn`] says how the two are made of settings. To add one, declare the folder here and put its
//! struct in [`networks!`], with its own settings if it has any.

use super::{Actor, Memory, Model, Parameter, PolicyConfig};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Debug, Display, Formatter};

#[path = "decoder/mod.rs"]
pub(super) mod decoder;
#[path = "gru/mod.rs"]
pub(super) mod gru;
#[path = "mlp/mod.rs"]
pub(super) mod mlp;

pub use decoder::{Decoder, DecoderConfig, NativeDecoder};
pub use gru::{Gru, NativeGru};
pub use mlp::{Mlp, NativeMlp, Scratch};

/// Hands the list to a macro: the structs, each with its doc, and with the field and the struct of the
/// settings that are its own.
macro_rules! networks {
    ($callback:ident) => {
        $callback! {
            /// A multi-layer perceptron, which acts by what it sees now.
            Mlp;
            /// A gated recurrent network (Cho et al. 2014), which remembers what it has seen of an episode.
            Gru;
            /// A transformer (Vaswani et al. 2017), which looks back at the last steps of an episode.
            Decoder with decoder: DecoderConfig;
        }
    };
}
pub(super) use networks;

/// A network that comes along, for the list.
pub trait BuiltIn: Model<Memory: FromRows> {
    /// Its name in settings: that of the struct in small letters.
    const NAME: &'static str;

    /// The settings that only it heeds, each with its full name, its range, and what it does, in words.
    const SETTINGS: &'static [[&'static str; 3]] = &[];

    /// The network on the CPU's vector units.
    type Native: Actor + Clone + Debug + Send;

    /// One with fresh weights on `device`, the same for the same `key`.
    fn fresh(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self;

    /// Names and shapes of its parameters, in the order of [`flatten`](super::flatten).
    fn parameters(num_features: usize, num_actions: usize, config: &PolicyConfig)
    -> Vec<Parameter>;

    /// Its fast form from such parameters.
    ///
    /// # Panics
    /// If the number of parameters is another.
    fn native(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        params: &[f32],
    ) -> Self::Native;

    /// Its fast form with a copy of its weights.
    fn to_native(&self) -> impl Future<Output = Self::Native>;

    /// Its sizes in words.
    fn sizes(config: &PolicyConfig) -> String {
        config.hidden_sizes()
    }

    /// Checks the settings that only it heeds.
    ///
    /// # Errors
    /// In words, if one is out of its range.
    fn check(_config: &PolicyConfig) -> Result<(), String> {
        Ok(())
    }
}

/// Memory that is nothing but its [`rows`](Memory::rows).
pub trait FromRows: Memory {
    /// The memory with these rows.
    ///
    /// # Panics
    /// If there are none, and it is one of numbers.
    fn from_rows(rows: Option<Tensor<2>>) -> Self;
}

impl FromRows for () {
    fn from_rows(_rows: Option<Tensor<2>>) {}
}

impl FromRows for Tensor<2> {
    fn from_rows(rows: Option<Tensor<2>>) -> Self {
        rows.expect("a network with a memory has rows of it")
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $Kind:ident $(with $field:ident: $Settings:ty)?;)*) => {
        /// A kind of network.
        #[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum ModelKind {
            $($(#[$doc])* $Kind,)*
            /// A model that somebody else has brought along, by its name.
            #[serde(untagged)]
            Own(String),
        }

        impl ModelKind {
            /// The names of the kinds that come along.
            pub const NAMES: &'static [&'static str] = &[$(<$Kind as BuiltIn>::NAME),*];

            /// The settings that one kind alone heeds, as [`BuiltIn::SETTINGS`].
            pub const SETTINGS: &'static [&'static [[&'static str; 3]]] =
                &[$(<$Kind as BuiltIn>::SETTINGS),*];
        }

        impl Display for ModelKind {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$Kind => <$Kind as BuiltIn>::NAME,)*
                    Self::Own(name) => name,
                })
            }
        }

        impl PolicyConfig {
            /// Its sizes in words.
            pub fn sizes(&self) -> String {
                match self.kind {
                    $(ModelKind::$Kind => <$Kind as BuiltIn>::sizes(self),)*
                    ModelKind::Own(_) => self.hidden_sizes(),
                }
            }

            /// Checks the settings that only its kind of network heeds.
            ///
            /// # Errors
            /// In words, if one is out of its range.
            pub fn check(&self) -> Result<(), String> {
                match self.kind {
                    $(ModelKind::$Kind => <$Kind as BuiltIn>::check(self),)*
                    ModelKind::Own(_) => Ok(()),
                }
            }

            /// Names and shapes of the parameters of the network that they ask for, in the order of
            /// [`flatten`](super::flatten).
            ///
            /// # Panics
            /// If they ask for a model that somebody has brought along.
            pub fn parameters(&self, num_features: usize, num_actions: usize) -> Vec<Parameter> {
                match &self.kind {
                    $(ModelKind::$Kind => {
                        <$Kind as BuiltIn>::parameters(num_features, num_actions, self)
                    })*
                    ModelKind::Own(name) => panic!("`{name}` is no network that comes along"),
                }
            }
        }

        /// The settings that one kind of network alone heeds.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct OwnSettings {
            $($(
                #[doc = concat!("Those of [`", stringify!($Kind), "`].")]
                #[serde(flatten)]
                pub $field: $Settings,
            )?)*
        }
    };
}
networks!(kinds);

impl Default for ModelKind {
    fn default() -> Self {
        Self::Mlp
    }
}
