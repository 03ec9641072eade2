//! Which way through an iteration a run takes.

#[cfg(feature = "kernels")]
use super::fused::FusedWay;
#[cfg(feature = "general")]
use super::general::GeneralWay;
use super::native::NativeWay;
use crate::config::{Engine, Precision, TrainConfig};
use crate::device;
use crate::env::Rules;
#[cfg(feature = "kernels")]
use crate::learner::FusedLearner;
use crate::model::Mlp;
use crate::rng::Stream;
use burn::tensor::Device;

/// The way of a run.
#[derive(Debug)]
pub(super) enum Engines<G: Rules> {
    Native(Box<NativeWay<G>>),
    #[cfg(feature = "general")]
    General(Box<GeneralWay<G>>),
    #[cfg(feature = "kernels")]
    Fused(Box<FusedWay<G>>),
}

/// Runs the same for whichever way it is.
macro_rules! with_way {
    ($engine:expr, $way:ident => $run:expr) => {
        match $engine {
            $crate::trainer::engine::Engines::Native($way) => $run,
            #[cfg(feature = "general")]
            $crate::trainer::engine::Engines::General($way) => $run,
            #[cfg(feature = "kernels")]
            $crate::trainer::engine::Engines::Fused($way) => $run,
        }
    };
}
pub(super) use with_way;

impl<G: Rules> Engines<G> {
    /// The way that `config.engine` asks for, or the fast one where there is one.
    pub fn new(game: G, config: &TrainConfig, device: &Device) -> Self {
        let policy = first_policy(game, config, device);
        let obstacle = obstacle(&policy, config, device);
        #[cfg(feature = "general")]
        if obstacle.is_some() {
            return Self::General(Box::new(GeneralWay::new(game, policy, config, device)));
        }
        if let Some(obstacle) = obstacle {
            panic!("this build has the fast way only: {obstacle}");
        }
        #[cfg(feature = "kernels")]
        if device::has_kernels(device) {
            return Self::Fused(Box::new(FusedWay::new(game, policy, config, device)));
        }
        Self::Native(Box::new(NativeWay::new(game, &policy, config)))
    }
}

/// The policy that a run starts with.
pub(super) fn first_policy<G: Rules>(game: G, config: &TrainConfig, device: &Device) -> Mlp {
    let key = Stream::Weights.key(config.seed);
    Mlp::new(game.num_features(), game.num_actions(), &config.policy, key, device)
}

/// Why a run cannot take the fast way, if so: in words that tell what it would need.
pub(super) fn obstacle(policy: &Mlp, config: &TrainConfig, device: &Device) -> Option<String> {
    if config.engine == Engine::General {
        return Some("`engine = general` was asked for".to_string());
    }
    if !device::has_kernels(device) {
        return (config.precision != Precision::F32)
            .then(|| "the CPU computes with f32 only".to_string());
    }
    #[cfg(feature = "kernels")]
    if !FusedLearner::takes(policy) {
        let limits = "the fused kernels take one or two hidden layers of up to 256 units";
        return Some(limits.to_string());
    }
    let _ = policy;
    (!device::has_precision(device, config.precision))
        .then(|| format!("the device does not have {}", config.precision))
}
