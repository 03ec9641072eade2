//! Advantages in kernels against tensor operations.

use crate::support::{adapter, cpu, floats};
use burn::tensor::{Tensor, TensorData};
use grove::advantage::compute_advantages;
use grove::advantage::kernels::compute_recording_advantages;
use grove::data::{
    Recording, RecordingAdvantages, RecordingPart, TERMINATED, TRUNCATED, Trajectory,
};
use grove::settings::{
    AdvantageConfig, AdvantageScale, CreditEstimator, GroupStart, RolloutConfig,
};

/// A multiple of 1/3 in -1..=1, so that games of small groups often coincide.
fn third(i: usize) -> f32 {
    ((i * 2_654_435_761) % 1009 % 7) as f32 / 3.0 - 1.0
}

/// Rewards and ends `[num_steps, num_envs]`, and scores and steps before the first step.
struct Games {
    rewards: Vec<f32>,
    ends: Vec<bool>,
    first_scores: Vec<f32>,
    elapsed: Vec<f32>,
    /// Whether scores are independent values instead of sums of rewards.
    scored: bool,
    rollout: RolloutConfig,
}

impl Games {
    /// Creates games in which every third group has identical games.
    fn new(num_groups: usize, group_size: usize, num_steps: usize, learn_steps: usize) -> Self {
        let games = num_groups * group_size;
        let each = || (0..num_steps * games).map(|at| (at / games, at % games));
        let alike = |game: usize| game / group_size % 3 == 1;
        let source = |game: usize| if alike(game) { game / group_size * group_size } else { game };
        Self {
            rewards: each().map(|(t, game)| third(t * 31 + source(game) * 17)).collect(),
            ends: each().map(|(t, game)| (t * 5 + source(game) * 3) % 11 == 4).collect(),
            first_scores: (0..games).map(|game| third(game * 7)).collect(),
            elapsed: (0..games).map(|game| (game % 9) as f32).collect(),
            scored: num_steps % 2 == 1,
            rollout: RolloutConfig {
                num_groups,
                group_size,
                num_steps,
                learn_steps,
                start: GroupStart::Branch,
                auto_reset: true,
            },
        }
    }

    /// Score of the episode that ended with a step, else 0: `[num_steps, num_envs]`.
    fn scores(&self) -> Vec<f32> {
        let games = self.rollout.num_envs();
        let mut under_way = self.first_scores.clone();
        let mut scores = Vec::new();
        for (at, (reward, ended)) in self.rewards.iter().zip(&self.ends).enumerate() {
            under_way[at % games] += reward;
            let sum = if *ended { std::mem::take(&mut under_way[at % games]) } else { 0.0 };
            scores.push(if self.scored && *ended { third(at * 13) + 5.0 } else { sum });
        }
        scores
    }

    fn trajectory(&self) -> Trajectory {
        let (steps, games) = (self.rollout.num_steps, self.rollout.num_envs());
        let ends = |odd: usize| {
            let ends = self.ends.iter().enumerate();
            ends.map(|(at, ended)| f32::from(*ended && at % 2 == odd)).collect::<Vec<f32>>()
        };
        let rows = |v: Vec<f32>| Tensor::from_data(TensorData::new(v, [steps, games]), &cpu());
        Trajectory {
            obs: Tensor::zeros([steps, games, 1], &cpu()),
            actions: Tensor::zeros([steps, games], &cpu()),
            logprobs: Tensor::zeros([steps, games], &cpu()),
            rewards: rows(self.rewards.clone()),
            terminated: rows(ends(0)),
            truncated: rows(ends(1)),
            scores: rows(self.scores()),
            legal: None,
            memory: None,
            elapsed: Some(Tensor::from_floats(self.elapsed.as_slice(), &cpu())),
        }
    }

    /// The games as a recording in parts that end after the given groups.
    fn recording(&self, ends: &[usize], device: &burn::tensor::Device) -> Recording {
        let (steps, games) = (self.rollout.num_steps, self.rollout.num_envs());
        let (mut first, mut parts, scores) = (0, Vec::new(), self.scores());
        for end in ends.iter().map(|group| group * self.rollout.group_size).chain([games]) {
            let count = end - first;
            let each =
                || (0..steps).flat_map(|t| (0..count).map(move |game| t * games + first + game));
            // An arbitrary state word, then action 1 with or without an end.
            let taken = each().map(|at| match (self.ends[at], at % 2) {
                (true, 0) => (TERMINATED | 1) as i32,
                (true, _) => (TRUNCATED | 1) as i32,
                (false, _) => 1,
            });
            let words: Vec<i32> = vec![-7; steps * count].into_iter().chain(taken).collect();
            let mut values = vec![-0.5; steps * count];
            values.extend(each().map(|at| self.rewards[at]));
            if self.scored {
                values.extend(each().map(|at| scores[at]));
            }
            let rows = values.len() / (steps * count);
            let data = TensorData::new(values, [rows, steps, count]);
            let part = RecordingPart::new(
                Tensor::from_data(TensorData::new(words, [2, steps, count]), device),
                Tensor::from_data(data, device),
                Tensor::stack(
                    [&self.first_scores, &self.elapsed]
                        .map(|values| Tensor::<1>::from_floats(&values[first..end], device))
                        .to_vec(),
                    0,
                ),
            );
            parts.push(part.expect("tensors that belong together"));
            first = end;
        }
        let recording = Recording::new(parts).expect("parts of the same steps");
        assert_eq!([recording.num_steps(), recording.num_envs()], [steps, games]);
        recording
    }
}

/// Advantages `[learn_steps, num_envs]` and lengths `[num_envs]` of all parts.
fn joined(advantages: &RecordingAdvantages) -> (Vec<f32>, Vec<f32>) {
    let scale = floats(advantages.summary().clone())[1];
    let all = Tensor::cat(advantages.parts().to_vec(), 1);
    let [_, games] = all.dims();
    let values = floats(all);
    let (values, rest) = values.split_at(advantages.learn_steps() * games);
    (values.iter().map(|a| a * scale).collect(), rest[..games].to_vec())
}

fn check(games: &Games, config: &AdvantageConfig, ends: &[usize], device: &burn::tensor::Device) {
    let rollout = &games.rollout;
    let context = format!("{config:?}, {rollout:?}, parts {ends:?}");
    let trajectory = games.trajectory();
    let mask = trajectory.mask(rollout.auto_reset);
    let want =
        compute_advantages(&trajectory, &mask, rollout.group_size, rollout.learn_steps, config);
    let advantages = compute_recording_advantages(&games.recording(ends, device), rollout, config);
    let (values, lengths) = joined(&advantages);
    let expected_values = floats(want.values);
    for (i, (got, want)) in values.iter().zip(&expected_values).enumerate() {
        assert!((got - want).abs() < 1e-5 * (1.0 + want.abs()), "{context}: {i}: {got}, {want}");
    }
    // The exact number of groups without any advantage, for which rounding would be too many.
    let without = |values: &[f32]| {
        let has_none = |group: usize| {
            let games = group * rollout.group_size..(group + 1) * rollout.group_size;
            values
                .chunks_exact(rollout.num_envs())
                .all(|step| step[games.clone()].iter().all(|x| *x == 0.0))
        };
        (0..rollout.num_groups).filter(|group| has_none(*group)).count() as f32
    };
    let zero = floats(want.zero_variance_fraction)[0];
    let equal = (zero * rollout.num_groups as f32).round();
    assert_eq!([without(&values), without(&expected_values)], [equal; 2], "{context}");
    let counted = floats(want.mask.sum_dim(0));
    let played = floats(mask);
    let counted_values = |values: &[f32]| -> Vec<f32> {
        values.iter().zip(&played).map(|(value, counts)| value * counts).collect()
    };
    let rewards = counted_values(&games.rewards);
    assert_eq!(lengths, counted, "{context}: lengths");
    let summary = floats(advantages.summary().clone());
    let scores = counted_values(&floats(trajectory.scores.clone()));
    let sum = |values: &[f32]| values.iter().map(|x| f64::from(*x)).sum::<f64>() as f32;
    let ends: Vec<f32> = games.ends.iter().map(|ended| f32::from(u8::from(*ended))).collect();
    let episodes = sum(&counted_values(&ends));
    let expected = [
        (0, sum(&counted)),
        (2, sum(&scores)),
        (3, episodes),
        (4, sum(&rewards)),
        (5, zero * rollout.num_groups as f32),
        (6, sum(&played)),
        (7, sum(&floats(trajectory.ended_steps(rollout.auto_reset)))),
    ];
    for (fact, want) in expected {
        let got = summary[fact];
        assert!((got - want).abs() < 1e-4 * (1.0 + want.abs()), "{context}: {fact}: {got}, {want}");
    }
    assert!(episodes > 0.0 && zero > 0.0 && zero < 1.0, "{context}: a lively example");
}

#[test]
fn advantages_in_kernels_are_those_of_the_trajectory() {
    let Some(device) = adapter() else { return };
    for (estimator, discount) in
        [(CreditEstimator::RewardToGo, 0.9), (CreditEstimator::Return, 1.0)]
    {
        for scale_rewards in [AdvantageScale::Group, AdvantageScale::Batch, AdvantageScale::None] {
            let config = AdvantageConfig { estimator, discount, scale_rewards };
            let mut games = Games::new(7, 3, 13, 5);
            for auto_reset in [true, false] {
                games.rollout.auto_reset = auto_reset;
                check(&games, &config, &[], &device);
                check(&games, &config, &[1, 5], &device);
            }
        }
    }
}

#[test]
fn advantages_of_many_groups_are_right_too() {
    let Some(device) = adapter() else { return };
    let config = AdvantageConfig {
        estimator: CreditEstimator::RewardToGo,
        discount: 0.95,
        scale_rewards: AdvantageScale::Batch,
    };
    // More groups than units of the centring kernel, so that each handles several steps.
    check(&Games::new(70_001, 2, 9, 9), &config, &[30_000], &device);
    // Games of a single step, and large groups.
    check(&Games::new(1009, 2, 1, 1), &config, &[], &device);
    check(&Games::new(5, 131, 8, 3), &config, &[2], &device);
}
