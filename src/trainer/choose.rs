//! Selection of a run's engine.

use super::engine::PolicyEngine as _;
#[cfg(feature = "kernels")]
use super::fused::FusedEngine;
#[cfg(feature = "general")]
use super::general::GeneralEngine;
use super::native::NativeEngine;
use super::rank_part::{EngineInputs, RankPart};
use crate::device;
use crate::env::{HostEnvs, Rules};
use crate::learner::native_learner;
use crate::model::{Mlp, Network};
use crate::parallel::{Team, TeamError};
use crate::rng::Stream;
use crate::settings::{EngineChoice, Precision, TrainConfig};
use burn::tensor::Device;

/// The engine that a run uses.
#[derive(Debug)]
pub(super) enum AnyEngine<G: Rules> {
    Native(Box<NativeEngine<G>>),
    #[cfg(feature = "general")]
    General(Box<GeneralEngine<G>>),
    #[cfg(feature = "kernels")]
    Fused(Box<FusedEngine<G>>),
}

/// Evaluates an expression, `$body`, with the engine inside an [`AnyEngine`] bound to the name `$engine`.
macro_rules! with_engine {
    ($any_engine:expr, $engine:ident => $body:expr) => {
        match $any_engine {
            $crate::trainer::choose::AnyEngine::Native($engine) => $body,
            #[cfg(feature = "general")]
            $crate::trainer::choose::AnyEngine::General($engine) => $body,
            #[cfg(feature = "kernels")]
            $crate::trainer::choose::AnyEngine::Fused($engine) => $body,
        }
    };
}
pub(super) use with_engine;

impl<G: Rules> AnyEngine<G> {
    /// Creates the engine requested by `config.engine`, by default the fastest that supports the run, with this rank's
    /// part of the run.
    pub fn new(
        inputs: EngineInputs<G>,
        config: &TrainConfig,
        device: &Device,
        team: &Team,
    ) -> Result<(Self, RankPart), TeamError> {
        let reason = fallback_reason(&inputs.model, config, device, team, inputs.host.as_ref());
        #[cfg(feature = "general")]
        if reason.is_some() {
            let (inputs, part) =
                inputs.reduce_to_rank(config, team, crate::learner::MIN_AUTODIFF_SHARD_STEPS)?;
            let engine = GeneralEngine::new(inputs, part.clone(), device);
            return Ok((Self::General(Box::new(engine)), part));
        }
        if let Some(reason) = reason {
            panic!("this build has only the fused engines: {reason}");
        }
        #[cfg(feature = "kernels")]
        if device::has_kernels(device) {
            let mlp = inputs.model.get::<Mlp>().expect("kernels take MLPs only").clone();
            let (inputs, part) =
                inputs.reduce_to_rank(config, team, crate::learner::MIN_SHARD_STEPS)?;
            let engine = FusedEngine::new(inputs, mlp, part.clone(), device);
            return Ok((Self::Fused(Box::new(engine)), part));
        }
        let learner = native_learner(&inputs.model, config).expect("it has no reason to fall back");
        let (inputs, part) = inputs.reduce_to_rank(config, team, learner.min_shard_steps())?;
        let engine = NativeEngine::new(inputs, learner, part.clone());
        Ok((Self::Native(Box::new(engine)), part))
    }

    /// Checks that a user-defined model learns by the logits that it acts by.
    ///
    /// # Errors
    /// If it cannot, with a reason.
    #[cfg_attr(
        not(feature = "general"),
        expect(unused_variables, reason = "no model is user-defined")
    )]
    pub fn check_model(&self, num_features: usize) -> Result<(), String> {
        match self {
            #[cfg(feature = "general")]
            Self::General(engine) => match engine.model() {
                model if model.kind().is_none() => model.check_passes_agree(num_features),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// The current model.
    pub fn model(&self) -> Network {
        with_engine!(self, engine => engine.model())
    }
}

/// Creates the network selected by `config.policy`, with its initial weights.
pub(super) fn new_network<G: Rules>(game: G, config: &TrainConfig, device: &Device) -> Network {
    let key = Stream::Weights.key(config.seed);
    Network::new(game.num_features(), game.num_actions(), &config.policy, key, device)
}

/// The reason why the general engine does not have the configured precision; `None` if it has. `fallback` is the reason
/// why the run cannot use a fused engine.
pub(super) fn fallback_precision_reason(
    model: &Network,
    config: &TrainConfig,
    device: &Device,
    fallback: &str,
) -> Option<String> {
    if takes_bf16_on_cpu(model, config, device) {
        return Some(fallback.to_string());
    }
    if model.with_precision(config.precision).is_some() {
        return device::check_precision(Some(device), config.precision).err();
    }
    Some(match model.get::<Mlp>() {
        Some(_) => fallback.to_string(),
        None => format!("this network does not support {} on this device", config.precision),
    })
}

/// Whether the native engine has the bf16 products of a run: those of a hand-written backward pass.
fn takes_bf16_on_cpu(model: &Network, config: &TrainConfig, device: &Device) -> bool {
    cfg!(feature = "general")
        && config.precision == Precision::Bf16
        && !device::has_kernels(device)
        && model.sequence_model_constructor().is_some()
}

/// The reason why a run cannot use a fused engine; `None` if it can. `host` are its environments on the host, if any.
pub(super) fn fallback_reason(
    model: &Network,
    config: &TrainConfig,
    device: &Device,
    team: &Team,
    host: Option<&HostEnvs>,
) -> Option<String> {
    if config.engine == EngineChoice::General {
        return Some("`engine = general` was requested".to_string());
    }
    let Some(kind) = model.kind() else {
        return Some("the fused engines take built-in networks".to_string());
    };
    if cfg!(not(feature = "general")) && model.get::<Mlp>().is_none() {
        return Some(format!("this build trains MLPs only, not a `{kind}`"));
    }
    if config.precision == Precision::Tf32 {
        return Some("tf32 is for decoders and language models".to_string());
    }
    if team.is_mixed() {
        return Some("the CPU and devices share the run".to_string());
    }
    if !device::has_kernels(device) {
        // A build without the general engine, which only trains MLPs, links no other backward pass.
        if cfg!(feature = "general") && model.sequence_model_constructor().is_none() {
            return Some(format!("a `{kind}` has no hand-written backward pass for the CPU"));
        }
        if cfg!(not(feature = "general")) && config.precision != Precision::F32 {
            return Some("on the CPU this build has the precision f32 alone".to_string());
        }
        let takes_bf16 = takes_bf16_on_cpu(model, config, device);
        return device::check_precision(Some(device), config.precision)
            .err()
            .filter(|_| !takes_bf16);
    }
    if host.is_some() {
        return Some("environments on the host have no kernels".to_string());
    }
    #[cfg_attr(not(feature = "kernels"), expect(unused_variables))]
    let Some(mlp) = model.get::<Mlp>() else {
        return Some(format!("the fused kernels take MLPs, not a `{kind}`"));
    };
    #[cfg(feature = "kernels")]
    if !crate::learner::fused::FusedLearner::supports(mlp) {
        let limits = "the fused kernels take one or two hidden layers of up to 256 units";
        return Some(limits.to_string());
    }
    device::check_precision(Some(device), config.precision).err()
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::model::{DecoderConfig, Memoryless, PolicyConfig};
    use crate::settings::Activation;
    use burn::module::Module;
    use burn::tensor::Tensor;

    /// A network that is not built in.
    #[derive(Module, Debug)]
    struct UserNetwork {
        mlp: Mlp,
    }

    impl Memoryless for UserNetwork {
        fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
            self.mlp.logits(obs)
        }
    }

    #[test]
    fn a_network_without_a_learner_on_the_cpu_falls_back() {
        let (device, team) = (Device::flex(), Team::alone());
        let mlp = PolicyConfig::mlp(&[5], Activation::Tanh);
        let own = UserNetwork { mlp: Mlp::new(3, 4, &mlp, 1, &device) };
        let gru = PolicyConfig::gru(&[5], Activation::Tanh);
        let built_in = [mlp, gru, PolicyConfig::decoder(DecoderConfig::default())];
        let built_in = built_in.map(|config| Network::new(3, 4, &config, 1, &device));
        for network in built_in.into_iter().chain([own.into()]) {
            for precision in [Precision::F32, Precision::Bf16] {
                let config = TrainConfig { precision, ..TrainConfig::for_game("catch") };
                let reason = fallback_reason(&network, &config, &device, &team, None);
                let has_learner = native_learner(&network, &config).is_some();
                assert_eq!(reason.is_none(), has_learner, "{reason:?}");
                assert_eq!(takes_bf16_on_cpu(&network, &config, &device), {
                    has_learner && precision == Precision::Bf16
                });
            }
        }
    }
}
