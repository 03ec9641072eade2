//! Who acts on the CPU: any policy, for games side by side.

use super::Lanes;
#[cfg(feature = "general")]
use super::{LANES, Memory, Model};
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

    /// The number of its parameters.
    fn num_params(&self) -> usize;

    /// Numbers that it remembers of a game.
    fn memory_size(&self) -> usize;

    /// What it remembers of a game whose episode begins, `[memory_size]`.
    fn initial_memory(&self) -> Vec<f32> {
        vec![0.0; self.memory_size()]
    }

    /// Room for one thread.
    fn scratch(&self) -> Self::Scratch;

    /// The features that were not 0 in some lane of the last observations, in ascending order; `None` where
    /// nobody looked.
    fn active<'a>(&self, _scratch: &'a Self::Scratch) -> Option<&'a [usize]> {
        None
    }

    /// Logits, `[num_actions][LANES]`, of observations, `[num_features][LANES]`; `memory` becomes what it
    /// remembers from then on.
    fn act<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        scratch: &'a mut Self::Scratch,
    ) -> &'a [Lanes];
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

    fn num_params(&self) -> usize {
        burn::module::Module::num_params(&self.model)
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
