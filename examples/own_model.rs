//! A model of one's own: a residual network, trained on Catch by Burn's autodiff.
//!
//! ```console
//! $ cargo run --release --example own_model
//! ```

use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use grove::config::TrainConfig;
use grove::env::{Catch, Env};
use grove::model::Memoryless;
use grove::rollout::Player;
use grove::trainer::Trainer;

/// A Burn module. Whatever parameters it has are trained, saved and resumed by their names.
#[derive(Module, Debug)]
pub struct Residual {
    first: Linear,
    norm: LayerNorm,
    inner: Linear,
    head: Linear,
}

impl Residual {
    /// Fresh weights for a game, the same for the same seed.
    pub fn new<G: Env>(game: G, width: usize, seed: u64, device: &Device) -> Self {
        device.seed(seed);
        Self {
            first: LinearConfig::new(game.num_features(), width).init(device),
            norm: LayerNormConfig::new(width).init(device),
            inner: LinearConfig::new(width, width).init(device),
            head: LinearConfig::new(width, game.num_actions()).init(device),
        }
    }
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

/// The settings of the run: Catch's, but for its length.
pub fn settings() -> TrainConfig {
    TrainConfig { iterations: 30, ..TrainConfig::for_game(Catch::NAME) }
}

/// Trains the model, and gives its mean score before and after; 1 is the optimum.
pub fn train(device: &Device) -> Result<[f64; 2], Box<dyn std::error::Error>> {
    let (game, config) = (Catch::default(), settings());
    let model = Residual::new(game, 64, config.seed, device);
    let mut trainer = Trainer::with_model(game, model, &config, device);
    let before = trainer.evaluate(1000, Player::Sampling).mean_score;
    for _ in 0..config.iterations {
        trainer.iterate()?;
    }
    Ok([before, trainer.evaluate(1000, Player::Greedy).mean_score])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [before, after] = train(&Device::flex())?;
    println!("untrained: {before:.2}");
    println!("trained:   {after:.2}");
    Ok(())
}
