//! Who acts on the CPU: any policy, for games side by side.

#[cfg(feature = "general")]
use super::LANES;
use super::saved::mlp_widths;
use super::{DecoderShape, FastForm, Lanes, NativeDecoder, NativeGru, NativeMlp, Network};
#[cfg(feature = "general")]
use super::{Memory, Model, OwnModel};
use crate::config::{ModelKind, PolicyConfig};
use burn::cubecl::future::block_on;
#[cfg(feature = "general")]
use burn::tensor::{Device, Tensor, TensorData};

/// A policy that acts on the CPU, for [`LANES`] games at once.
///
/// What it remembers of them is plain numbers, `[memory_size][LANES]`, which whoever asks it keeps; they
/// are 0 where an episode begins, unless [`Actor::initial_memory`] says otherwise.
pub trait Actor: Sync {
    /// Room that one thread needs.
    type Scratch;

    /// Features of an observation.
    fn num_features(&self) -> usize;

    /// Actions.
    fn num_actions(&self) -> usize;

    /// Numbers that it remembers of a game.
    fn memory_size(&self) -> usize;

    /// What it remembers of a game whose episode begins, `[memory_size]`.
    fn initial_memory(&self) -> Vec<f32> {
        vec![0.0; self.memory_size()]
    }

    /// Room for one thread.
    fn scratch(&self) -> Self::Scratch;

    /// Logits, `[num_actions][LANES]`, of observations, `[num_features][LANES]`; `memory` becomes what it
    /// remembers from then on.
    fn act<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut Self::Scratch,
    ) -> &'a [Lanes];
}

/// The policy of a [`Network`] on the CPU: on its vector units where it is one of ours.
#[derive(Clone, Debug)]
pub enum NativePolicy {
    /// A multi-layer perceptron.
    Mlp(NativeMlp),
    /// A gated recurrent network.
    Gru(NativeGru),
    /// A transformer.
    Decoder(NativeDecoder),
    /// A model that somebody has brought along.
    #[cfg(feature = "general")]
    Own(TensorActor<OwnModel>),
}

/// The room of a [`NativePolicy`].
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)]
pub enum NativeScratch {
    /// The room of a perceptron.
    Mlp(<NativeMlp as Actor>::Scratch),
    /// The room of a recurrent network.
    Gru(<NativeGru as Actor>::Scratch),
    /// The room of a transformer.
    Decoder(<NativeDecoder as Actor>::Scratch),
    /// The room of a model that somebody has brought along.
    #[cfg(feature = "general")]
    Own(<TensorActor<OwnModel> as Actor>::Scratch),
}

impl NativePolicy {
    /// Copies the weights. On a device this reads them back and waits for them.
    pub fn new(network: &Network) -> Self {
        block_on(Self::new_async(match network {
            Network::Mlp(mlp) => FastForm::Mlp(mlp),
            Network::Gru(gru) => FastForm::Gru(gru),
            Network::Decoder(decoder) => FastForm::Decoder(decoder),
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
            FastForm::Mlp(mlp) => Self::Mlp(NativeMlp::new_async(mlp).await),
            FastForm::Gru(gru) => Self::Gru(NativeGru::new_async(gru).await),
            FastForm::Decoder(decoder) => Self::Decoder(NativeDecoder::new_async(decoder).await),
        }
    }

    /// From the settings of a network of ours, and its parameters in the order of
    /// [`flatten`](super::flatten).
    ///
    /// # Panics
    /// If the number of parameters is another, or the network is none of ours.
    pub fn from_params(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        params: &[f32],
    ) -> Self {
        let widths = mlp_widths(num_features, num_actions, config);
        let activation = config.activation;
        match config.kind {
            ModelKind::Mlp => Self::Mlp(NativeMlp::from_params(&widths, activation, params)),
            ModelKind::Gru => Self::Gru(NativeGru::from_params(&widths, activation, params)),
            ModelKind::Decoder => {
                let shape = DecoderShape::new(num_features, num_actions, config);
                Self::Decoder(NativeDecoder::from_params(shape, params))
            }
            ModelKind::Own(ref name) => panic!("`{name}` is no network that comes along"),
        }
    }

    /// The number of parameters.
    pub fn num_params(&self) -> usize {
        match self {
            Self::Mlp(mlp) => mlp.num_params(),
            Self::Gru(gru) => gru.num_params(),
            Self::Decoder(decoder) => decoder.num_params(),
            #[cfg(feature = "general")]
            Self::Own(own) => burn::module::Module::num_params(&own.model),
        }
    }
}

/// Runs the same for whichever network it is.
macro_rules! with_native {
    ($policy:expr, $network:ident => $run:expr) => {
        match $policy {
            NativePolicy::Mlp($network) => $run,
            NativePolicy::Gru($network) => $run,
            NativePolicy::Decoder($network) => $run,
            #[cfg(feature = "general")]
            NativePolicy::Own($network) => $run,
        }
    };
}

impl Actor for NativePolicy {
    type Scratch = NativeScratch;

    fn num_features(&self) -> usize {
        with_native!(self, network => Actor::num_features(network))
    }

    fn num_actions(&self) -> usize {
        with_native!(self, network => Actor::num_actions(network))
    }

    fn memory_size(&self) -> usize {
        with_native!(self, network => network.memory_size())
    }

    fn initial_memory(&self) -> Vec<f32> {
        with_native!(self, network => network.initial_memory())
    }

    fn scratch(&self) -> NativeScratch {
        match self {
            Self::Mlp(mlp) => NativeScratch::Mlp(mlp.scratch()),
            Self::Gru(gru) => NativeScratch::Gru(gru.scratch()),
            Self::Decoder(decoder) => NativeScratch::Decoder(decoder.scratch()),
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
            (Self::Mlp(mlp), NativeScratch::Mlp(scratch)) => mlp.act(obs, memory, scratch),
            (Self::Gru(gru), NativeScratch::Gru(scratch)) => gru.act(obs, memory, scratch),
            (Self::Decoder(decoder), NativeScratch::Decoder(scratch)) => {
                decoder.act(obs, memory, scratch)
            }
            #[cfg(feature = "general")]
            (Self::Own(own), NativeScratch::Own(scratch)) => own.act(obs, memory, scratch),
            _ => panic!("the scratch is that of another network"),
        }
    }
}

/// Any model, by Burn's operations on the CPU.
#[cfg(feature = "general")]
#[derive(Clone, Debug)]
pub struct TensorActor<M: Model> {
    model: M,
    num_features: usize,
    num_actions: usize,
    initial_memory: Vec<f32>,
    device: Device,
}

#[cfg(feature = "general")]
impl<M: Model> TensorActor<M> {
    /// A copy of a model on the CPU, where this build has Burn's CPU backend; else on its own device.
    pub fn new(model: &M, num_features: usize, num_actions: usize) -> Self {
        #[cfg(feature = "flex")]
        let device = Device::flex();
        #[cfg(not(feature = "flex"))]
        let device = model.devices().into_iter().next().unwrap_or_default().without_autodiff();
        let model = model.clone().to_device(&device);
        let initial = model.initial_memory(1, &device).rows();
        let initial_memory = initial.map_or_else(Vec::new, host_floats);
        Self { model, num_features, num_actions, initial_memory, device }
    }
}

#[cfg(feature = "general")]
impl<M: Model> Actor for TensorActor<M> {
    type Scratch = Vec<Lanes>;

    fn num_features(&self) -> usize {
        self.num_features
    }

    fn num_actions(&self) -> usize {
        self.num_actions
    }

    fn memory_size(&self) -> usize {
        self.initial_memory.len()
    }

    fn initial_memory(&self) -> Vec<f32> {
        self.initial_memory.clone()
    }

    fn scratch(&self) -> Vec<Lanes> {
        vec![[0.0; LANES]; self.num_actions]
    }

    fn act<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut Vec<Lanes>,
    ) -> &'a [Lanes] {
        let rows = |lanes: &[Lanes]| {
            let rows = (0..LANES).flat_map(|lane| lanes.iter().map(move |x| x[lane])).collect();
            Tensor::<2>::from_data(
                TensorData::new::<f32, _>(rows, [LANES, lanes.len()]),
                &self.device,
            )
        };
        let mut remembered = self.model.initial_memory(LANES, &self.device);
        if !memory.is_empty() {
            remembered = remembered.with_rows(rows(memory));
        }
        let (logits, remembered) = self.model.step(rows(obs), remembered);
        assert_eq!(logits.dims(), [LANES, self.num_actions], "logits: [batch, num_actions]");
        into_lanes(&host_floats(logits), scratch);
        if let Some(rows) = remembered.rows() {
            into_lanes(&host_floats(rows), memory);
        }
        scratch
    }
}

/// The numbers of a tensor in host memory.
#[cfg(feature = "general")]
fn host_floats(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().try_into_vec().expect("models compute in f32")
}

/// Numbers `[LANES, count]` as `count` lanes.
#[cfg(feature = "general")]
fn into_lanes(rows: &[f32], lanes: &mut [Lanes]) {
    let count = lanes.len();
    for (i, lanes) in lanes.iter_mut().enumerate() {
        for (lane, x) in lanes.iter_mut().enumerate() {
            *x = rows[lane * count + i];
        }
    }
}
