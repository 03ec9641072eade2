//! The networks that settings name.

#[cfg(feature = "general")]
use super::OwnModel;
use super::registry::{BuiltIn, Decoder, FromRows, Gru, Mlp, networks};
use super::{Memory, Model, ModelKind, PolicyConfig, Precision};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};

macro_rules! network {
    ($($(#[$doc:meta])* $Kind:ident $(with $field:ident: $Settings:ty)?;)*) => {
        /// The network that a [`PolicyConfig`] asks for.
        #[derive(Module, Debug)]
        #[allow(clippy::large_enum_variant)]
        pub enum Network {
            $($(#[$doc])* $Kind($Kind),)*
            /// A model that somebody has brought along.
            #[cfg(feature = "general")]
            Own(OwnModel),
        }

        /// A network that comes along, for which there are fast forms.
        #[derive(Clone, Copy, Debug)]
        pub enum FastForm<'a> {
            $($(#[$doc])* $Kind(&'a $Kind),)*
        }

        impl FastForm<'_> {
            /// The name of its kind.
            pub fn kind(&self) -> &'static str {
                match self {
                    $(Self::$Kind(_) => <$Kind as BuiltIn>::NAME,)*
                }
            }
        }

        impl Network {
            /// A network that comes along with fresh weights on `device`, the same for the same `key`.
            ///
            /// # Panics
            /// If the settings name a model that somebody has brought along: whoever has makes it.
            pub fn new(
                num_features: usize,
                num_actions: usize,
                config: &PolicyConfig,
                key: u32,
                device: &Device,
            ) -> Self {
                match &config.kind {
                    $(ModelKind::$Kind => {
                        let network = <$Kind as BuiltIn>::fresh;
                        Self::$Kind(network(num_features, num_actions, config, key, device))
                    })*
                    ModelKind::Own(name) => panic!("`{name}` is no network that comes along"),
                }
            }
        }

        impl Model for Network {
            type Memory = Option<Tensor<2>>;

            fn initial_memory(&self, batch: usize, device: &Device) -> Option<Tensor<2>> {
                match self {
                    $(Self::$Kind(network) => network.initial_memory(batch, device).rows(),)*
                    #[cfg(feature = "general")]
                    Self::Own(own) => own.initial_memory(batch, device),
                }
            }

            fn step(
                &self,
                obs: Tensor<2>,
                memory: Option<Tensor<2>>,
            ) -> (Tensor<2>, Option<Tensor<2>>) {
                match self {
                    $(Self::$Kind(network) => {
                        let (logits, memory) = network.step(obs, FromRows::from_rows(memory));
                        (logits, memory.rows())
                    })*
                    #[cfg(feature = "general")]
                    Self::Own(own) => own.step(obs, memory),
                }
            }

            fn sequence(
                &self,
                obs: Tensor<3>,
                starts: Tensor<2>,
                memory: Option<Tensor<2>>,
            ) -> Tensor<3> {
                match self {
                    $(Self::$Kind(network) => {
                        network.sequence(obs, starts, FromRows::from_rows(memory))
                    })*
                    #[cfg(feature = "general")]
                    Self::Own(own) => own.sequence(obs, starts, memory),
                }
            }

            fn fast_form(&self) -> Option<FastForm<'_>> {
                match self {
                    $(Self::$Kind(network) => Some(FastForm::$Kind(network)),)*
                    #[cfg(feature = "general")]
                    Self::Own(own) => own.fast_form(),
                }
            }

            fn with_precision(&self, precision: Precision) -> Option<Self> {
                match self {
                    $(Self::$Kind(network) => network.with_precision(precision).map(Self::$Kind),)*
                    #[cfg(feature = "general")]
                    Self::Own(_) => None,
                }
            }
        }
    };
}
networks!(network);

impl Network {
    /// The perceptron that it is, if it is one.
    pub fn mlp(&self) -> Option<&Mlp> {
        match self {
            Self::Mlp(mlp) => Some(mlp),
            _ => None,
        }
    }
}

/// What a [`Network`] remembers: numbers, if it has a memory.
impl Memory for Option<Tensor<2>> {
    fn select(&self, games: Tensor<1, Int>) -> Self {
        self.as_ref().map(|memory| Memory::select(memory, games))
    }

    fn anew(self, fresh: &Self, starts: Tensor<1>) -> Self {
        let both = self.zip(fresh.as_ref());
        both.map(|(memory, fresh)| memory.anew(fresh, starts))
    }

    fn rows(&self) -> Option<Tensor<2>> {
        self.clone()
    }

    fn with_rows(self, rows: Tensor<2>) -> Self {
        self.map(|memory| memory.with_rows(rows))
    }
}
