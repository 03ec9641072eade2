//! A program with models of its user's: every command is there for them, beside the built-in ones.

use crate::own_game::{json, own};
use crate::support::{Scratch, refusal, stderr, tree};
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use grove::model::{Model, NamedModel};
use grove::settings::PolicyConfig;
use std::collections::BTreeMap;
use std::path::Path;

/// A model with memory: a running mean of what it has seen, which begins with a parameter.
#[derive(Module, Debug)]
pub struct Leaky {
    first: Param<Tensor<1>>,
    weight: Param<Tensor<2>>,
}

impl Model for Leaky {
    type Memory = Tensor<2>;

    fn initial_memory(&self, batch: usize, device: &Device) -> Tensor<2> {
        self.first.val().to_device(device).unsqueeze::<2>().repeat_dim(0, batch)
    }

    fn step(&self, obs: Tensor<2>, memory: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let memory = memory * 0.7 + obs * 0.3;
        (memory.clone().matmul(self.weight.val()), memory)
    }
}

impl NamedModel for Leaky {
    const KIND: &'static str = "leaky";

    fn new(
        num_features: usize,
        num_actions: usize,
        _config: &PolicyConfig,
        key: u32,
        device: &Device,
    ) -> Self {
        let number = |i: usize| ((i as f32 + f32::from(key as u8)) * 0.9).sin() * 0.2;
        let numbers = |count: usize| (0..count).map(number).collect::<Vec<f32>>();
        let weight =
            TensorData::new(numbers(num_features * num_actions), [num_features, num_actions]);
        Self {
            first: Param::from_data(TensorData::new(numbers(num_features), [num_features]), device),
            weight: Param::from_data(weight, device),
        }
    }
}

/// Nothing of it depends on how long the run is to be.
const SMALL: &str = "--device cpu --set num_groups=8 --set hidden=[8] --set eval_episodes=50 \
                     --set lr_scheduler_type=constant --set entropy_coef=0 --set eval_every=2";

/// The files of a run's checkpoint after four iterations.
fn saved(folder: &Path, run: &str) -> BTreeMap<String, Vec<u8>> {
    tree(&folder.join(run).join("checkpoints/00000004"))
}

#[test]
fn every_command_takes_user_defined_models() {
    for kind in ["residual", "leaky"] {
        let folder = &Scratch::new();
        let settings = format!("--set kind={kind} {SMALL}");
        let run = |name: &str, iterations: u32| {
            let words =
                format!("train catch --run-dir {name} --iterations {iterations} {settings}");
            json(folder, &words)
        };
        let whole = run("whole", 4);
        run("broken", 2);
        let resumed = json(folder, "train --resume --run-dir broken --iterations 4 --device cpu");
        assert_eq!(resumed["mean_score"], whole["mean_score"], "{kind}");
        let (whole_files, broken_files) = (saved(folder, "whole"), saved(folder, "broken"));
        assert_eq!(whole_files.contains_key("memory.safetensors"), kind == "leaky");
        assert!(whole_files == broken_files, "{kind} goes on where it was, byte for byte");

        // Saved by the names of the module's own parameters.
        let weights = &whole_files["weights.safetensors"];
        let tensors = safetensors::SafeTensors::deserialize(weights).unwrap();
        let name = if kind == "leaky" { "first" } else { "norm.gamma" };
        assert!(tensors.tensor(name).is_ok(), "{:?}", tensors.names());

        let evaluation = json(folder, "eval whole");
        assert_eq!(evaluation["mean_score"], whole["mean_score"], "{kind}");
        let file = "eval whole/best/weights.safetensors";
        assert_eq!(json(folder, file)["mean_score"], whole["mean_score"], "{kind}");
        assert_eq!(
            json(folder, "record whole --out x.gif --steps 5")["iteration"],
            whole["best_iteration"]
        );
        let sizes = "--num-envs 16 --num-steps 8 --hidden 8 --repeats 1 --no-peak --device cpu";
        let figures = json(folder, &format!("bench corridor --set kind={kind} {sizes}"));
        assert!(figures["work_per_step"].is_null(), "nobody knows what it costs");
        assert!(figures["trained_steps_per_second"]["median"].as_f64().unwrap() > 0.0);

        // A program without the model says so.
        let text = refusal(folder, &["eval", "whole"]);
        assert!(
            text.contains(&format!(
                "policy.kind is `{kind}`, but must be one of: mlp, gru, decoder"
            )),
            "{text}"
        );
    }
}

#[test]
fn user_defined_models_begin_alike_on_every_rank() {
    let folder = &Scratch::new();
    // So wide that the ranks draw their weights at the same time.
    let settings = "--iterations 4 --set kind=residual --set hidden=[256] --set num_groups=16 --timeout 600 \
                    --set num_minibatches=1 --set num_shards=4 --set eval_episodes=50";
    let run = |name: &str, devices: &str| {
        json(folder, &format!("train catch --run-dir {name} --device {devices} {settings}"));
        saved(folder, name)
    };
    assert!(run("one", "cpu") == run("two", "cpu,cpu"));
}

#[test]
fn a_user_defined_model_learns_in_the_program_and_an_unknown_one_is_rejected() {
    let folder = &Scratch::new();
    let report =
        json(folder, "train catch --set kind=residual --iterations 30 --device cpu --run-dir x");
    assert!(report["mean_score"].as_f64().unwrap() > 0.9, "{report}");
    let unknown = own(folder, "train catch --set kind=lstm");
    assert!(!unknown.status.success());
    let said = stderr(&unknown);
    let words = "policy.kind is `lstm`, but must be one of: mlp, gru, decoder, residual, leaky";
    assert!(said.contains(words), "{said}");
    let fused = stderr(&own(folder, "train catch --set kind=residual --engine fused --device cpu"));
    assert!(fused.contains("the fused engines take built-in networks"), "{fused}");
}
