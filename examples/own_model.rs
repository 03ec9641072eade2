//! A model of one's own, complete: a residual network, trained by Burn's autodiff.
//!
//! With it comes the whole program, where `policy.kind` names the model:
//!
//! ```console
//! $ cargo run --release --example own_model -- train catch --set kind=residual --iterations 30
//! $ cargo run --release --example own_model -- eval runs/catch-1
//! ```

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use grove::config::PolicyConfig;
use grove::model::{Memoryless, NamedModel};
use std::process::ExitCode;

/// A Burn module. Whatever parameters it has are trained, saved and resumed by their names.
#[derive(Module, Debug)]
pub struct Residual {
    first: Linear,
    norm: LayerNorm,
    inner: Linear,
    head: Linear,
}

/// One function makes it a model. One that remembers what it has seen implements `Model` instead, whose
/// `step` takes its memory and gives it back.
impl Memoryless for Residual {
    fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
        let x = relu(self.first.forward(obs));
        let x = x.clone() + relu(self.inner.forward(self.norm.forward(x)));
        self.head.forward(x)
    }
}

/// How the program makes it, for any game. A trainer of one's own needs none of this: it takes a model as
/// it is (`Trainer::with_model`).
impl NamedModel for Residual {
    const KIND: &'static str = "residual";

    /// Fresh weights, the same for the same key; as wide as the first number of `policy.hidden`.
    fn new(
        num_features: usize,
        num_actions: usize,
        config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self {
        device.seed(key.into());
        let width = config.hidden[0];
        Self {
            first: LinearConfig::new(num_features, width).init(device),
            norm: LayerNormConfig::new(width).init(device),
            inner: LinearConfig::new(width, width).init(device),
            head: LinearConfig::new(width, num_actions).init(device),
        }
    }
}

fn main() -> ExitCode {
    grove::program().model::<Residual>().run()
}
