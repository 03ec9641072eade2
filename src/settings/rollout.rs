//! Settings of data collection and of advantages.

use crate::schema::{OutOfRange, ensure, names, settings};

settings! {
    /// Games played in parallel: `num_envs = num_groups * group_size`, each for `num_steps`.
    pub struct RolloutConfig: Eq {
        /// Groups played in parallel; the games of a group share a level.
        num_groups: usize = 64, in integer(1..=1 << 30);
        /// Games of a group, whose mean is the baseline of their advantages.
        group_size: usize = 16, in integer(2..=1 << 30), alias "num_generations";
        /// Steps of each game in an iteration.
        num_steps: usize = 32, in integer(1..=1 << 30);
        /// Leading steps of each rollout used for the update, at most `num_steps`; later steps only
        /// contribute to their returns.
        learn_steps: usize = 16, in integer(1..=1 << 30);
        /// Start of a group: `level` is the start of a new level, `branch` the middle of a game.
        start: GroupStart = GroupStart::Branch;
        /// Start the next level when an episode ends within a rollout; otherwise its remaining steps
        /// are masked and do not count.
        auto_reset: bool = true;
    }
    check = RolloutConfig::check_settings;
}

impl RolloutConfig {
    /// Games played in parallel.
    pub fn num_envs(&self) -> usize {
        self.num_groups * self.group_size
    }

    fn check_settings(&self) -> Result<(), OutOfRange> {
        let Self { num_groups, group_size, num_steps, learn_steps, .. } = *self;
        let allowed = format!("1 to num_steps ({num_steps})");
        ensure(learn_steps <= num_steps, "learn_steps", learn_steps, allowed)?;
        let steps: u128 = [num_groups, group_size, num_steps].map(|n| n as u128).iter().product();
        ensure(steps <= 1 << 30, "num_groups * group_size * num_steps", steps, "at most 2^30")
    }
}

names! {
    /// The state in which a group of games starts an iteration.
    pub enum GroupStart {
        /// The start of a new level, the same for all games of a group.
        Level = "level",
        /// The middle of a game: all games of a group start from a state that one of them had in the last iteration, at
        /// a step of `1..=learn_steps`, both drawn at random. A group then compares actions in the same situation (as
        /// in the "vine" of Schulman et al. 2015). The environment's randomness from there on is new in each iteration,
        /// and the same for all games.
        Branch = "branch",
    }
}

settings! {
    /// Group-relative advantages.
    pub struct AdvantageConfig {
        /// Credit of an action: the `return` of its whole episode, or its `reward_to_go`.
        estimator: CreditEstimator = CreditEstimator::RewardToGo;
        /// Discount factor of rewards per step.
        discount: f64 = 0.97, in above(0.0).at_most(1.0), alias "gamma";
        /// Advantages are divided by the standard deviation of the `group` or of the `batch`; `none`: not divided.
        scale_rewards: AdvantageScale = AdvantageScale::Batch;
    }
}

names! {
    /// The credit of an action before the group's mean is subtracted.
    pub enum CreditEstimator {
        /// The sum of the rewards of the step's episode within the rollout, the same for all of its steps (Shao et al.
        /// 2024, outcome supervision).
        Return = "return",
        /// The discounted sum of the rewards from this step to the end of the episode or rollout,
        /// against the group's mean at the same step.
        RewardToGo = "reward_to_go",
    }
}

names! {
    /// The divisor of advantages.
    pub enum AdvantageScale {
        /// The standard deviation within the group (for reward-to-go, at the same step).
        Group = "group",
        /// The standard deviation of all advantages of the iteration; for language models that of all rewards, as in
        /// TRL.
        Batch = "batch",
        /// No division (Dr. GRPO).
        None = "none",
    }
}
