//! Acting on the CPU by the forward pass of learning.

use super::{Actor, LANES, Lanes, PolicySizes};
use crate::nn::cpu::{DynSequenceModel, to_lanes, to_rows};

/// A policy that acts through the forward pass of its learner, since operands rounded to bf16 make the logits of two
/// different forward passes differ by more than the last bits.
#[derive(Debug)]
pub(super) struct SequenceModelActor(pub Box<dyn DynSequenceModel>);

/// The logits of a step: `[LANES, num_actions]`, and `[num_actions][LANES]`.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    rows: Vec<f32>,
    lanes: Vec<Lanes>,
}

impl Actor for SequenceModelActor {
    type Scratch = Scratch;

    fn sizes(&self) -> PolicySizes {
        self.0.sizes()
    }

    fn new_scratch(&self) -> Scratch {
        let actions = self.num_actions();
        Scratch { rows: vec![0.0; LANES * actions], lanes: vec![[0.0; LANES]; actions] }
    }

    fn compute_logits<'a>(
        &self,
        obs: &[Lanes],
        memory: &mut [Lanes],
        Scratch { rows, lanes }: &'a mut Scratch,
    ) -> &'a [Lanes] {
        assert_eq!(obs.len(), self.num_features(), "obs: [num_features][LANES]");
        self.0.compute_logits(&to_rows(obs), memory, rows);
        to_lanes(rows, lanes);
        lanes
    }
}
