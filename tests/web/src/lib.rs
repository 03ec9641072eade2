//! Checks of the native GPU tests, on WebGPU in a browser.

#[path = "../../shared/mod.rs"]
mod shared;

mod learning;

use burn::tensor::Device;
use shared::{decoder, iteration, rollouts, training, updates};
use std::pin::Pin;
use wasm_bindgen::prelude::*;

/// Gives the largest error that it has measured; panics where that is too large.
type Check = for<'a> fn(&'a Device) -> Pin<Box<dyn Future<Output = f64> + 'a>>;

const CHECKS: [(&str, Check); 12] = [
    ("a run starts with the native program's games", |d| Box::pin(iteration::first_games(d))),
    ("one hidden layer: fused, stepwise and native play the same", |d| {
        Box::pin(rollouts::one_hidden_layer(d))
    }),
    ("two hidden layers: fused, stepwise and native play the same", |d| {
        Box::pin(rollouts::two_hidden_layers(d))
    }),
    ("other layers: fused, stepwise and native play the same", |d| {
        Box::pin(rollouts::more_layers(d))
    }),
    ("every loss: fused gradients are the general ones", |d| Box::pin(updates::every_loss(d))),
    ("every shape: fused gradients are the general ones", |d| Box::pin(updates::every_shape(d))),
    ("updates: fused ones are the general ones, and repeat their bytes", |d| {
        Box::pin(updates::whole_updates(d))
    }),
    ("updates of games in parts are the same", |d| Box::pin(updates::in_parts(d))),
    ("a rollout and its update on the same device", |d| Box::pin(iteration::rollout_and_update(d))),
    ("a decoder's first update is that of the CPU", |d| Box::pin(decoder::first_updates(d))),
    ("whole runs are those of the CPU", |d| Box::pin(training::whole_runs(d))),
    ("catch is learnt", |d| Box::pin(learning::catch(d))),
];

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    fn console_error(message: &str);
}

/// The names of the checks.
#[wasm_bindgen]
pub fn names() -> Vec<String> {
    CHECKS.iter().map(|(name, _)| name.to_string()).collect()
}

/// Starts the device and says what it is.
#[wasm_bindgen]
pub async fn device() -> Result<String, JsError> {
    Ok(grove::device::start_in_browser().await?.info.to_string())
}

/// Makes the check of this number and gives its largest error. Where it fails, the console says why,
/// and a trap ends this instance.
#[wasm_bindgen]
pub async fn check(number: usize) -> Result<f64, JsError> {
    std::panic::set_hook(Box::new(|panic| console_error(&panic.to_string())));
    let device = grove::device::start_in_browser().await?.device;
    let (_, check) = CHECKS.get(number).ok_or_else(|| JsError::new("no such check"))?;
    Ok(check(&device).await)
}
