//! The list of built-in networks, from which settings, checkpoints, engines and the page take theirs.
//!
//! A network is a folder: `burn.rs` trains it anywhere, `cpu.rs` acts on the CPU's vector units, and
//! [`BuiltIn`] makes both from settings. To add one, declare the folder here and put its struct in
//! [`networks!`], with its settings struct if it has one.

use super::{Actor, Model, NativePolicy, Network, Parameter, PolicyConfig};
use crate::nn::cpu::{DynSequenceModel, Retention};
use crate::nn::ops::linear::Arithmetic;
use crate::schema::{OutOfRange, SettingValue, ValueRange, settings};
use burn::tensor::Device;
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
pub use mlp::{Mlp, NativeMlp};

/// Creates a sequence model from the parameters of a network, the arithmetic of its products, and the activations that
/// a forward pass over layers keeps.
pub type SequenceModelConstructor<'a> =
    Box<dyn FnOnce(Vec<f32>, Arithmetic, Retention) -> Box<dyn DynSequenceModel> + 'a>;

/// A built-in network: a model with a fast form on the CPU, made from settings.
pub trait BuiltIn: Model {
    /// The name in settings: the name of the struct in lower case.
    const NAME: &'static str;

    /// The sizes of a network, from which the names and shapes of its parameters follow.
    type Shape;

    /// The network on the CPU's vector units.
    type Native: Actor<Scratch: Send + 'static> + Debug + Send + 'static;

    /// The shape by settings.
    fn shape_from(num_features: usize, num_actions: usize, config: &PolicyConfig) -> Self::Shape;

    /// The shape of this network.
    fn to_shape(&self) -> Self::Shape;

    /// Names and shapes of the parameters, in the order of [`flatten`](super::flatten).
    fn parameters(shape: &Self::Shape) -> Vec<Parameter>;

    /// The native form with these parameters.
    ///
    /// # Panics
    /// If the number of parameters differs.
    fn new_native(shape: Self::Shape, params: &[f32]) -> Self::Native;

    /// The constructor of its hand-written backward pass on the CPU; `None` if there is none, and autodiff trains it.
    fn sequence_model_constructor(&self) -> Option<SequenceModelConstructor<'_>> {
        None
    }

    /// The sizes in words, for reports.
    fn describe_sizes(config: &PolicyConfig) -> String {
        config.describe_hidden()
    }
}

/// Declares the built-in networks: the structs, each with its doc, and with the field and the struct of its
/// own settings.
macro_rules! networks {
    ($($(#[$doc:meta])* $Kind:ident $(with $field:ident: $Settings:ty)?;)*) => {
        /// A kind of network.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum ModelKind {
            $($(#[$doc])* $Kind,)*
            /// A user-defined network, by its name.
            #[serde(untagged)]
            UserDefined(String),
        }

        impl ModelKind {
            /// The names of the built-in networks.
            pub const NAMES: &'static [&'static str] = &[$(<$Kind as BuiltIn>::NAME),*];

            /// The name of a user-defined network; `None` for a built-in one.
            pub fn user_defined(&self) -> Option<&str> {
                match self {
                    Self::UserDefined(name) => Some(name),
                    _ => None,
                }
            }
        }

        impl Display for ModelKind {
            fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$Kind => <$Kind as BuiltIn>::NAME,)*
                    Self::UserDefined(name) => name,
                })
            }
        }

        settings! {
            /// The settings that one kind of network has alone.
            pub struct KindSettings: Eq {
                $($(
                    /// The settings of this network.
                    @flatten $field: $Settings;
                )?)*
            }
        }

        impl PolicyConfig {
            /// The sizes of the network in words, for reports.
            pub fn describe_sizes(&self) -> String {
                match self.kind {
                    $(ModelKind::$Kind => <$Kind as BuiltIn>::describe_sizes(self),)*
                    ModelKind::UserDefined(_) => self.describe_hidden(),
                }
            }

            /// Names and shapes of the network's parameters, in the order of
            /// [`flatten`](super::flatten).
            ///
            /// # Panics
            /// If the network is user-defined.
            pub fn parameters(&self, num_features: usize, num_actions: usize) -> Vec<Parameter> {
                match &self.kind {
                    $(ModelKind::$Kind => {
                        $Kind::parameters(&$Kind::shape_from(num_features, num_actions, self))
                    })*
                    ModelKind::UserDefined(name) => panic_not_built_in(name),
                }
            }
        }

        impl Network {
            /// A built-in network with fresh weights on `device`, the same for the same `key`.
            ///
            /// # Panics
            /// If the settings name a user-defined network ([`Network::user_defined`]).
            pub fn new(
                num_features: usize,
                num_actions: usize,
                config: &PolicyConfig,
                key: u32,
                device: &Device,
            ) -> Self {
                match &config.kind {
                    $(ModelKind::$Kind => {
                        $Kind::new(num_features, num_actions, config, key, device).into()
                    })*
                    ModelKind::UserDefined(name) => panic_not_built_in(name),
                }
            }

            /// The name of its kind in settings; `None` for a user-defined network.
            pub fn kind(&self) -> Option<&'static str> {
                $(if self.get::<$Kind>().is_some() {
                    return Some(<$Kind as BuiltIn>::NAME);
                })*
                None
            }

            /// The constructor of its hand-written backward pass on the CPU; `None` if there is none.
            pub(crate) fn sequence_model_constructor(&self) -> Option<SequenceModelConstructor<'_>> {
                $(if let Some(network) = self.get::<$Kind>() {
                    return BuiltIn::sequence_model_constructor(network);
                })*
                None
            }
        }

        impl NativePolicy {
            /// A built-in network from its settings and its parameters in the order of
            /// [`flatten`](super::flatten).
            ///
            /// # Panics
            /// If the number of parameters differs, or the network is user-defined.
            pub fn from_params(
                num_features: usize,
                num_actions: usize,
                config: &PolicyConfig,
                params: &[f32],
            ) -> Self {
                match &config.kind {
                    $(ModelKind::$Kind => {
                        let shape = $Kind::shape_from(num_features, num_actions, config);
                        Self::from_actor($Kind::new_native(shape, params))
                    })*
                    ModelKind::UserDefined(name) => panic_not_built_in(name),
                }
            }

            /// A built-in network like this one with other parameters; `None` for a user-defined one.
            pub(crate) fn from_built_in(network: &Network, params: &[f32]) -> Option<Self> {
                $(if let Some(network) = network.get::<$Kind>() {
                    return Some(Self::from_actor($Kind::new_native(network.to_shape(), params)));
                })*
                None
            }
        }
    };
}

fn panic_not_built_in(name: &str) -> ! {
    panic!("`{name}` is not a built-in network")
}

impl SettingValue for ModelKind {
    const DEFAULT_RANGE: ValueRange = ValueRange::OpenName(Self::NAMES);

    /// Accepts every name: those of user-defined networks are known where the run is checked.
    fn check(&self, _: &ValueRange) -> Result<(), OutOfRange> {
        Ok(())
    }
}

networks! {
    /// A multi-layer perceptron, which sees the current observation alone.
    #[default]
    Mlp;
    /// A gated recurrent network (Cho et al. 2014), whose memory spans an episode.
    Gru;
    /// A transformer (Vaswani et al. 2017), which attends to the last steps of an episode.
    Decoder with decoder: DecoderConfig;
}
