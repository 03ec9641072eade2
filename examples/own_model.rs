//! A user-defined model: a residual network, trained by Burn's autodiff.
//!
//! The program has all of Grove's commands, and `policy.kind` selects the model:
//!
//! ```console
//! $ cargo run --release --example own_model -- train catch --set kind=residual --iterations 30
//! $ cargo run --release --example own_model -- eval runs/catch-1
//! ```

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use grove::model::{Memoryless, NamedModel};
use grove::settings::PolicyConfig;
use std::process::ExitCode;

/// A Burn module. All of its parameters are trained, and saved under their names.
#[derive(Module, Debug)]
pub struct Residual {
    first: Linear,
    norm: LayerNorm,
    inner: Linear,
    head: Linear,
}

/// The forward pass, all that a memoryless model needs. A recurrent model implements `Model` instead, whose
/// `step` takes and returns its memory.
impl Memoryless for Residual {
    fn logits(&self, obs: Tensor<2>) -> Tensor<2> {
        let x = relu(self.first.forward(obs));
        let x = x.clone() + relu(self.inner.forward(self.norm.forward(x)));
        self.head.forward(x)
    }
}

/// The constructor that the program uses for any game. Code that calls `Trainer::with_model` does not need
/// it.
impl NamedModel for Residual {
    const KIND: &'static str = "residual";

    /// Initializes the weights from `key`; the width is the first number of `policy.hidden`.
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
