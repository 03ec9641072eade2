//! Windows of a dataset in the layout of fused kernels.

use super::native::stage;
use super::{Recording, RecordingAdvantages, RecordingPart, WindowBatch, summary};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;
use std::ops::Range;

impl WindowBatch {
    /// Uploads the windows as a recording whose words are the features themselves and whose
    /// advantages are the step weights, in buffers of at most `max_bytes` bytes.
    pub(crate) fn upload_recording(
        &self,
        max_bytes: u64,
        device: &Device,
    ) -> (Recording, RecordingAdvantages) {
        let (count, num_steps) = (self.len(), self.trajectory.num_steps);
        let window_bytes = (self.trajectory.num_features + 2) * num_steps * size_of::<u32>();
        let max_windows = (max_bytes as usize / window_bytes).max(1);
        let parts = (0..count).step_by(max_windows);
        let parts = parts.map(|first| first..count.min(first + max_windows));
        let (parts, advantages) = parts
            .map(|part| {
                (self.upload_part(part.clone(), device), self.upload_step_weights(part, device))
            })
            .unzip();
        let mut values = [0.0; summary::LEN];
        values[summary::LEARNT_STEPS] = self.counts.iter().sum::<usize>() as f32;
        values[summary::SCALE] = 1.0;
        let summary = Tensor::from_floats(values, device);
        let recording = Recording { num_steps, num_envs: count, parts };
        (recording, RecordingAdvantages { learn_steps: num_steps, parts: advantages, summary })
    }

    /// Uploads some windows as a part of a recording. Log-probabilities and rewards are 0.
    fn upload_part(&self, windows: Range<usize>, device: &Device) -> RecordingPart {
        let trajectory = &self.trajectory;
        let (steps, features, games) =
            (trajectory.num_steps, trajectory.num_features, windows.len());
        let mut words = vec![0i32; (features + 1) * steps * games];
        words.par_chunks_mut(steps * games).enumerate().for_each(|(word, to)| {
            for (at, to) in to.iter_mut().enumerate() {
                let slot = (windows.start + at % games) * steps + at / games;
                *to = if word < features {
                    trajectory.obs[slot * trajectory.obs_stride() + word].to_bits() as i32
                } else {
                    trajectory.actions[slot]
                };
            }
        });
        let words = stage(TensorData::new(words, [features + 1, steps, games]), device);
        RecordingPart {
            words: Tensor::<3, Int>::from_data(words, device),
            values: Tensor::zeros([2, steps, games], device),
            initial_episodes: Tensor::zeros([2, games], device),
        }
    }

    /// Uploads the step weights of a part in the layout of [`RecordingAdvantages::parts`].
    fn upload_step_weights(&self, windows: Range<usize>, device: &Device) -> Tensor<2> {
        let (steps, games) = (self.trajectory.num_steps, windows.len());
        let mut rows = vec![0.0f32; (steps + 2) * games];
        for (at, window) in windows.enumerate() {
            for t in 0..steps {
                rows[t * games + at] = self.weights[window * steps + t];
            }
            rows[steps * games + at] = self.counts[window] as f32;
        }
        let rows = TensorData::new(rows, [steps + 2, games]);
        Tensor::from_data(stage(rows, device), device)
    }
}
