//! The networks that settings name.

#[cfg(feature = "general")]
use super::OwnModel;
use super::{Decoder, Gru, Memory, Memoryless, Mlp, Model};
use crate::config::{ModelKind, PolicyConfig};
use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};

/// The network that a [`PolicyConfig`] asks for.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum Network {
    /// A multi-layer perceptron.
    Mlp(Mlp),
    /// A gated recurrent network.
    Gru(Gru),
    /// A transformer that looks back.
    Decoder(Decoder),
    /// A model that somebody has brought along.
    #[cfg(feature = "general")]
    Own(OwnModel),
}

/// A network of ours, for which there are fast forms.
#[derive(Clone, Copy, Debug)]
pub enum FastForm<'a> {
    /// A multi-layer perceptron, which the fast engines train.
    Mlp(&'a Mlp),
    /// A gated recurrent network, which acts fast on the CPU.
    Gru(&'a Gru),
    /// A transformer, which acts fast on the CPU.
    Decoder(&'a Decoder),
}

impl Network {
    /// A network of ours with fresh weights on `device`, the same for the same `key`.
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
        match config.kind {
            ModelKind::Mlp => Self::Mlp(Mlp::new(num_features, num_actions, config, key, device)),
            ModelKind::Gru => Self::Gru(Gru::new(num_features, num_actions, config, key, device)),
            ModelKind::Decoder => {
                Self::Decoder(Decoder::new(num_features, num_actions, config, key, device))
            }
            ModelKind::Own(ref name) => panic!("`{name}` is no network that comes along"),
        }
    }

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

impl Model for Network {
    type Memory = Option<Tensor<2>>;

    fn initial_memory(&self, batch: usize, device: &Device) -> Option<Tensor<2>> {
        match self {
            Self::Mlp(_) => None,
            Self::Gru(gru) => Some(gru.initial_memory(batch, device)),
            Self::Decoder(decoder) => Some(decoder.initial_memory(batch, device)),
            #[cfg(feature = "general")]
            Self::Own(own) => own.initial_memory(batch, device),
        }
    }

    fn step(&self, obs: Tensor<2>, memory: Option<Tensor<2>>) -> (Tensor<2>, Option<Tensor<2>>) {
        match self {
            Self::Mlp(mlp) => (mlp.logits(obs), None),
            Self::Gru(gru) => {
                let (logits, memory) = gru.step(obs, memory.expect("it has a memory"));
                (logits, Some(memory))
            }
            Self::Decoder(decoder) => {
                let (logits, memory) = decoder.step(obs, memory.expect("it has a memory"));
                (logits, Some(memory))
            }
            #[cfg(feature = "general")]
            Self::Own(own) => own.step(obs, memory),
        }
    }

    fn sequence(&self, obs: Tensor<3>, starts: Tensor<2>, memory: Option<Tensor<2>>) -> Tensor<3> {
        match self {
            Self::Mlp(mlp) => mlp.sequence(obs, starts, ()),
            Self::Gru(gru) => gru.sequence(obs, starts, memory.expect("it has a memory")),
            Self::Decoder(decoder) => {
                decoder.sequence(obs, starts, memory.expect("it has a memory"))
            }
            #[cfg(feature = "general")]
            Self::Own(own) => own.sequence(obs, starts, memory),
        }
    }

    fn fast_form(&self) -> Option<FastForm<'_>> {
        match self {
            Self::Mlp(mlp) => Some(FastForm::Mlp(mlp)),
            Self::Gru(gru) => Some(FastForm::Gru(gru)),
            Self::Decoder(decoder) => Some(FastForm::Decoder(decoder)),
            #[cfg(feature = "general")]
            Self::Own(own) => own.fast_form(),
        }
    }
}
