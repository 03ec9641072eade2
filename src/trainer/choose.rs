//! The choice of a run's engine.

use super::engine::PolicyEngine as _;
use super::native::NativeEngine;
use crate::data::Pieces;
use crate::device;
use crate::env::{HostEnvs, Rules};
use crate::model::{Mlp, Network};
use crate::parallel::{Team, TeamError};
use crate::rng::Stream;
use crate::settings::{Engine, Precision, TrainConfig};
use burn::tensor::Device;

/// The engine of a run.
#[derive(Debug)]
pub(super) enum Engines<G: Rules> {
    Native(Box<NativeEngine<G>>),
    #[cfg(feature = "general")]
    General(Box<super::general::GeneralEngine<G>>),
    #[cfg(feature = "kernels")]
    Fused(Box<super::fused::FusedEngine<G>>),
}

/// Evaluates an expression with the engine of a run, whichever it is.
macro_rules! with_engine {
    ($engines:expr, $engine:ident => $run:expr) => {
        match $engines {
            $crate::trainer::choose::Engines::Native($engine) => $run,
            #[cfg(feature = "general")]
            $crate::trainer::choose::Engines::General($engine) => $run,
            #[cfg(feature = "kernels")]
            $crate::trainer::choose::Engines::Fused($engine) => $run,
        }
    };
}
pub(super) use with_engine;

impl<G: Rules> Engines<G> {
    /// Makes the engine that `config.engine` asks for, or the fast one if there is one. It learns from `data`
    /// or from environments on the `host` instead of from games, if they are given.
    pub fn new(
        game: G,
        model: Network,
        config: &TrainConfig,
        device: &Device,
        data: Option<Pieces>,
        host: Option<HostEnvs>,
        team: &Team,
    ) -> Result<Self, TeamError> {
        let obstacle = obstacle(&model, config, device, team);
        let on_host = "environments on the host have no kernels".to_string();
        let obstacle =
            obstacle.or((host.is_some() && device::has_kernels(device)).then_some(on_host));
        let mlp = model.get::<Mlp>().filter(|_| obstacle.is_none()).cloned();
        #[cfg(feature = "general")]
        if mlp.is_none() {
            let engine =
                super::general::GeneralEngine::new(game, model, config, device, data, host, team)?;
            return Ok(Self::General(Box::new(engine)));
        }
        let mlp = mlp.unwrap_or_else(|| {
            panic!("this build has fast engines only: {}", obstacle.unwrap_or_default())
        });
        #[cfg(feature = "kernels")]
        if device::has_kernels(device) {
            let engine =
                super::fused::FusedEngine::new(game, (model, mlp), config, device, data, team)?;
            return Ok(Self::Fused(Box::new(engine)));
        }
        let engine = NativeEngine::new(game, (model, &mlp), config, data, host, team)?;
        Ok(Self::Native(Box::new(engine)))
    }

    /// The model as it is.
    pub fn model(&self) -> Network {
        with_engine!(self, engine => engine.model())
    }
}

/// The network that the settings of a run ask for, with its initial weights.
pub(super) fn first_network<G: Rules>(game: G, config: &TrainConfig, device: &Device) -> Network {
    let key = Stream::Weights.key(config.seed);
    Network::new(game.num_features(), game.num_actions(), &config.policy, key, device)
}

/// The reason why a run cannot have the precision of its settings, if so; `obstacle` is that to a fast engine.
pub(super) fn precision_obstacle(
    model: &Network,
    config: &TrainConfig,
    device: &Device,
    obstacle: Option<String>,
) -> Option<String> {
    let obstacle = obstacle?;
    if model.with_precision(config.precision).is_some() {
        return device::precision_obstacle(Some(device), config.precision);
    }
    Some(match model.get::<Mlp>() {
        Some(_) => obstacle,
        None => "perceptrons and decoders alone have others than f32".to_string(),
    })
}

/// The reason why a run cannot have a fast engine, if so.
pub(super) fn obstacle(
    model: &Network,
    config: &TrainConfig,
    device: &Device,
    team: &Team,
) -> Option<String> {
    if config.engine == Engine::General {
        return Some("`engine = general` was requested".to_string());
    }
    let Some(mlp) = model.get::<Mlp>() else {
        let other = model.kind().map_or("other models".to_string(), |kind| format!("a `{kind}`"));
        return Some(format!("the fast engines take perceptrons, not {other}"));
    };
    if config.precision == Precision::Tf32 {
        return Some("tf32 is for decoders and language models".to_string());
    }
    if team.is_mixed() {
        return Some("the CPU and devices share the run".to_string());
    }
    if config.update.target_kl > 0.0 && device::has_kernels(device) {
        let reads =
            "update.target_kl reads each minibatch's divergence back, fused kernels nothing";
        return Some(reads.to_string());
    }
    if !device::has_kernels(device) {
        return device::precision_obstacle(Some(device), config.precision);
    }
    #[cfg(feature = "kernels")]
    if !crate::learner::fused::FusedLearner::takes(mlp) {
        let limits = "the fused kernels take one or two hidden layers of up to 256 units";
        return Some(limits.to_string());
    }
    let _ = mlp;
    device::precision_obstacle(Some(device), config.precision)
}
