//! The policy of whichever network on the CPU, on its vector units where the network comes along.

use super::registry::{BuiltIn, Decoder, Gru, Mlp, networks};
use super::{Actor, FastForm, Lanes, ModelKind, Network, PolicyConfig};
#[cfg(feature = "general")]
use super::{Model, OwnModel, TensorActor};
use burn::cubecl::future::block_on;

macro_rules! native_policy {
    ($($(#[$doc:meta])* $Kind:ident $(with $field:ident: $Settings:ty)?;)*) => {
        /// The policy of a [`Network`] on the CPU: on its vector units where it comes along.
        #[derive(Clone, Debug)]
        pub enum NativePolicy {
            $($(#[$doc])* $Kind(<$Kind as BuiltIn>::Native),)*
            /// A model that somebody has brought along.
            #[cfg(feature = "general")]
            Own(TensorActor<OwnModel>),
        }

        /// The room of a [`NativePolicy`].
        #[allow(clippy::large_enum_variant)]
        pub enum NativeScratch {
            $(
                #[doc = concat!("That of a [`", stringify!($Kind), "`].")]
                $Kind(<<$Kind as BuiltIn>::Native as Actor>::Scratch),
            )*
            /// The room of a model that somebody has brought along.
            #[cfg(feature = "general")]
            Own(<TensorActor<OwnModel> as Actor>::Scratch),
        }

        impl NativePolicy {
            /// Copies the weights. On a device this reads them back and waits for them.
            pub fn new(network: &Network) -> Self {
                block_on(Self::new_async(match network {
                    $(Network::$Kind(network) => FastForm::$Kind(network),)*
                    #[cfg(feature = "general")]
                    Network::Own(own) => match own.fast_form() {
                        Some(form) => form,
                        None => {
                            let (features, actions) = (own.num_features(), own.num_actions());
                            return Self::Own(TensorActor::new(own, features, actions));
                        }
                    },
                }))
            }

            /// The asynchronous form of [`NativePolicy::new`], for where a thread must not block.
            pub async fn new_async(network: FastForm<'_>) -> Self {
                match network {
                    $(FastForm::$Kind(network) => {
                        Self::$Kind(BuiltIn::to_native(network).await)
                    })*
                }
            }

            /// From the settings of a network that comes along, and its parameters in the order of
            /// [`flatten`](super::flatten).
            ///
            /// # Panics
            /// If the number of parameters is another, or the network does not come along.
            pub fn from_params(
                num_features: usize,
                num_actions: usize,
                config: &PolicyConfig,
                params: &[f32],
            ) -> Self {
                match &config.kind {
                    $(ModelKind::$Kind => {
                        let native = <$Kind as BuiltIn>::native;
                        Self::$Kind(native(num_features, num_actions, config, params))
                    })*
                    ModelKind::Own(name) => panic!("`{name}` is no network that comes along"),
                }
            }
        }

        impl Actor for NativePolicy {
            type Scratch = NativeScratch;

            fn num_features(&self) -> usize {
                match self {
                    $(Self::$Kind(network) => Actor::num_features(network),)*
                    #[cfg(feature = "general")]
                    Self::Own(own) => own.num_features(),
                }
            }

            fn num_actions(&self) -> usize {
                match self {
                    $(Self::$Kind(network) => Actor::num_actions(network),)*
                    #[cfg(feature = "general")]
                    Self::Own(own) => own.num_actions(),
                }
            }

            fn num_params(&self) -> usize {
                match self {
                    $(Self::$Kind(network) => Actor::num_params(network),)*
                    #[cfg(feature = "general")]
                    Self::Own(own) => own.num_params(),
                }
            }

            fn memory_size(&self) -> usize {
                match self {
                    $(Self::$Kind(network) => network.memory_size(),)*
                    #[cfg(feature = "general")]
                    Self::Own(own) => own.memory_size(),
                }
            }

            fn initial_memory(&self) -> Vec<f32> {
                match self {
                    $(Self::$Kind(network) => network.initial_memory(),)*
                    #[cfg(feature = "general")]
                    Self::Own(own) => own.initial_memory(),
                }
            }

            fn scratch(&self) -> NativeScratch {
                match self {
                    $(Self::$Kind(network) => NativeScratch::$Kind(network.scratch()),)*
                    #[cfg(feature = "general")]
                    Self::Own(own) => NativeScratch::Own(own.scratch()),
                }
            }

            fn act<'a>(
                &self,
                obs: &[Lanes],
                memory: &mut [Lanes],
                scratch: &'a mut NativeScratch,
            ) -> &'a [Lanes] {
                match (self, scratch) {
                    $((Self::$Kind(network), NativeScratch::$Kind(scratch)) => {
                        network.act(obs, memory, scratch)
                    })*
                    #[cfg(feature = "general")]
                    (Self::Own(own), NativeScratch::Own(scratch)) => own.act(obs, memory, scratch),
                    _ => panic!("the scratch is that of another network"),
                }
            }
        }
    };
}
networks!(native_policy);
