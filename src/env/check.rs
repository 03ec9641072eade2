//! A linter for games: plays random episodes and reports violations of the [`Rules`] contract.

use super::{
    Episode, MAX_STEP_REWARD, Outcome, PackedState, Rules, StepResult, draw_legal_action,
    initial_state, num_words, step_episode, validate_sizes,
};
use crate::rng::draw;
use serde::Serialize;
use std::fmt::{self, Display};

/// Options of [`check()`].
#[derive(Clone, Debug, PartialEq)]
pub struct CheckOptions {
    /// Number of random-action episodes, each on its own level.
    pub episodes: u32,
    /// Maximum number of steps to play in each episode.
    pub max_steps: u32,
    /// Seed of levels and actions.
    pub seed: u32,
    /// Largest absolute feature value that is accepted without a warning. Networks learn best from
    /// inputs of about [-1, 1]; a few units do no harm.
    pub max_abs_feature: f32,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self { episodes: 64, max_steps: 10_000, seed: 1, max_abs_feature: 5.0 }
    }
}

/// The aspect of a game that a finding concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Aspect {
    /// Parameters of the game.
    Parameters,
    /// Numbers of features, actions, words and steps.
    Sizes,
    /// Values of the observation.
    Features,
    /// Rewards and scores.
    Rewards,
    /// Round trip of the state through its packed words.
    Packing,
    /// Legality of actions.
    Masks,
    /// Length of episodes.
    Length,
    /// Sources of randomness.
    Draws,
    /// Agreement of native rules and kernels.
    Kernels,
}

/// A problem with a game.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The aspect of the game.
    pub aspect: Aspect,
    /// Whether training would be incorrect; if false, it may only be harder than necessary.
    pub is_error: bool,
    /// Description of the problem and its remedy.
    pub message: String,
}

impl Finding {
    /// Creates a finding that makes training incorrect.
    pub fn error(aspect: Aspect, message: String) -> Self {
        Self { aspect, is_error: true, message }
    }

    /// Creates a finding that may make training harder than necessary.
    pub fn warning(aspect: Aspect, message: String) -> Self {
        Self { aspect, is_error: false, message }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", if self.is_error { "error" } else { "warning" }, self.message)
    }
}

/// Findings of a check and the amount of play behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Problems, errors first; empty if there are none.
    pub findings: Vec<Finding>,
    /// Number of episodes started.
    pub episodes: u32,
    /// Number of steps played.
    pub steps: u64,
}

/// Plays a game natively and reports problems.
///
/// `rollout::check_on_device` compares the kernels of the game with its native rules.
pub fn check<G: Rules>(game: G, options: &CheckOptions) -> CheckReport {
    let mut report = CheckReport { findings: check_sizes(game), ..CheckReport::default() };
    if report.findings.iter().all(|finding| !finding.is_error) {
        let mut player = ValidatingPlayer::new(game, options);
        for index in 0..options.episodes {
            player.play(index);
        }
        (report.episodes, report.steps) = (options.episodes, player.num_steps);
        report.findings.extend(player.into_findings());
    }
    report.findings.sort_by_key(|finding| (!finding.is_error, finding.aspect));
    report
}

/// Checks the parameters and sizes, which needs no play.
fn check_sizes<G: Rules>(game: G) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut error = |aspect, message| findings.push(Finding::error(aspect, message));
    if let Err(message) = game.validate() {
        error(Aspect::Parameters, message);
    }
    if let Err(message) = validate_sizes(&game) {
        error(Aspect::Sizes, message);
    }
    findings
}

/// A random player that validates every state and step.
struct ValidatingPlayer<'a, G: Rules> {
    game: G,
    options: &'a CheckOptions,
    findings: Vec<Finding>,
    /// Largest absolute value seen of each feature.
    max_abs_features: Vec<f32>,
    /// Packed initial state of the first level, to detect levels that are all alike.
    first_start: Option<Vec<u32>>,
    starts_differ: bool,
    steps_differ: bool,
    num_ended: u32,
    num_steps: u64,
}

/// Bit pattern of a number, the same for all NaNs: their sign and payload depend on how code was compiled.
fn canonical_bits(x: f32) -> u32 {
    if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }
}

/// Bit patterns of a step result, so that NaNs compare equal.
fn result_bits(result: &StepResult) -> (u32, u32, bool, bool) {
    let StepResult { reward, terminated, truncated, episode_score } = *result;
    (canonical_bits(reward), canonical_bits(episode_score), terminated, truncated)
}

/// Packs and unpacks a state.
fn pack_and_unpack<S: PackedState>(state: &S) -> S {
    let words = state.words();
    S::unpack(|w| words[w])
}

/// A state and its episode.
type StateAndEpisode<G> = (<G as Rules>::State, Episode);

impl<'a, G: Rules> ValidatingPlayer<'a, G> {
    fn new(game: G, options: &'a CheckOptions) -> Self {
        Self {
            game,
            options,
            findings: Vec::new(),
            max_abs_features: vec![0.0; game.num_features()],
            first_start: None,
            starts_differ: false,
            steps_differ: false,
            num_ended: 0,
            num_steps: 0,
        }
    }

    /// Records an error, unless its aspect has one already: later ones are usually consequences.
    fn record_error(&mut self, aspect: Aspect, message: impl FnOnce() -> String) {
        if self.findings.iter().all(|finding| finding.aspect != aspect) {
            self.findings.push(Finding::error(aspect, message()));
        }
    }

    /// Plays an episode beside a copy that is packed and unpacked at every step.
    fn play(&mut self, index: u32) {
        let game = self.game;
        let level = draw(draw(self.options.seed, 0), index);
        let actions = draw(draw(self.options.seed, 1), index);
        let (mut state, mut episode) = self.start(level);
        for time in 0..self.options.max_steps.min(game.max_steps()) {
            self.inspect(&state, time);
            let action = self.choose_action(&state, draw(actions, time));
            let before = (state, episode);
            let mut copy = pack_and_unpack(&state);
            let mut copy_episode = episode;
            self.num_steps += 1;
            let result = step_episode::<G>(&mut state, &mut episode, action, game);
            let replayed = step_episode::<G>(&mut copy, &mut copy_episode, action, game);
            if result_bits(&result) != result_bits(&replayed) || state.words() != copy.words() {
                self.record_error(Aspect::Packing, || {
                    format!(
                        "a state that is packed and unpacked plays on differently (level {level}, \
                         step {time}, action {action}): is a number too large for its field?"
                    )
                });
            }
            let (state, episode) = before;
            let outcome = self.check_step_draws(state, episode, action, time);
            self.check_rewards(&outcome);
            if result.has_ended() {
                self.num_ended += 1;
                break;
            }
        }
    }

    /// Starts a level twice, from a fresh state and over a used one; both must agree.
    fn start(&mut self, level: u32) -> StateAndEpisode<G> {
        let game = self.game;
        let state = initial_state::<G>(level, game);
        let words = state.words();
        // A state of another level after a few steps, reset to this level.
        let mut reused = initial_state::<G>(!level, game);
        let mut other_episode = Episode { level: !level, ..Episode::default() };
        for time in 0..3 {
            let action = self.choose_action(&reused, draw(level, time));
            if step_episode::<G>(&mut reused, &mut other_episode, action, game).has_ended() {
                break;
            }
        }
        let mut episode = Episode { level, ..Episode::default() };
        super::episode::restart::<G>(&mut reused, &mut episode, game);
        if reused.words() != words {
            self.record_error(Aspect::Draws, || {
                format!(
                    "level {level} starts differently after another episode: reset leaves a part of \
                     the state as it was, or draws from something other than its key"
                )
            });
        }
        self.starts_differ |= *self.first_start.get_or_insert_with(|| words.clone()) != words;
        (state, episode)
    }

    /// Validates features, words and masks of a state.
    fn inspect(&mut self, state: &G::State, time: u32) {
        let game = self.game;
        if let Some(field) = state.oversized_field() {
            self.record_error(Aspect::Packing, || {
                format!("field `{field}` of the state holds a number that its bits cannot, at step {time}")
            });
        }
        let unpacked = pack_and_unpack(state);
        for i in 0..game.num_features() {
            let x = G::feature(state, i, game);
            if canonical_bits(x) != canonical_bits(G::feature(&unpacked, i, game)) {
                self.record_error(Aspect::Packing, || {
                    let name = game.feature_name(i);
                    format!("feature {i} ({name}) is of something that packing loses: is a number too large for its field?")
                });
            }
            if !x.is_finite() {
                self.record_error(Aspect::Features, || {
                    format!("feature {i} ({}) is {x} at step {time}", game.feature_name(i))
                });
            }
            self.max_abs_features[i] = self.max_abs_features[i].max(x.abs());
        }
        let used = num_words(game);
        let unused = state.words().into_iter().enumerate().skip(used).find(|(_, word)| *word != 0);
        if let Some((w, _)) = unused {
            self.record_error(Aspect::Packing, || {
                format!("word {w} is not 0, but used_words is {used}: it would be lost")
            });
        }
        let is_legal = |a: &usize| G::is_legal(state, *a, game);
        let all = 0..game.num_actions();
        if G::HAS_ILLEGAL_ACTIONS && !all.clone().any(|a| is_legal(&a)) {
            self.record_error(Aspect::Masks, || format!("no action may be taken at step {time}"));
        }
        if let (false, Some(a)) = (G::HAS_ILLEGAL_ACTIONS, all.clone().find(|a| !is_legal(a))) {
            self.record_error(Aspect::Masks, || {
                let name = game.action_name(a);
                format!("action {a} ({name}) may not be taken at step {time}, but HAS_ILLEGAL_ACTIONS is false")
            });
        }
    }

    /// Draws a random legal action, or 0 if there is none.
    fn choose_action(&self, state: &G::State, key: u32) -> u32 {
        draw_legal_action(state, key, self.game).unwrap_or(0)
    }

    /// Steps a copy twice with the same key and once with another, to test determinism. Returns the step's outcome.
    fn check_step_draws(
        &mut self,
        state: G::State,
        episode: Episode,
        action: u32,
        time: u32,
    ) -> Outcome {
        let level = episode.level;
        let game = self.game;
        let step = |key: u32| -> (Vec<u32>, Outcome) {
            let mut state = state;
            let outcome = G::step(&mut state, action, key, game);
            (state.words(), outcome)
        };
        let key = draw(episode.level, episode.time);
        let [(first, outcome), (second, other), (third, _)] = [step(key), step(key), step(!key)];
        let outcome_bits =
            |o: &Outcome| (canonical_bits(o.reward), canonical_bits(o.score), o.terminated);
        if first != second || outcome_bits(&outcome) != outcome_bits(&other) {
            self.record_error(Aspect::Draws, || {
                format!(
                    "the same step gives different results (level {level}, step {time}, action \
                     {action}): draw from the step's key, and from nothing else"
                )
            });
        }
        self.steps_differ |= first != third;
        outcome
    }

    /// Checks the size of a step's reward and score, and whether they agree as declared.
    fn check_rewards(&mut self, outcome: &Outcome) {
        let Outcome { reward, score, .. } = *outcome;
        if reward.is_finite() && reward.abs() > MAX_STEP_REWARD {
            self.record_error(Aspect::Rewards, || {
                format!(
                    "reward {reward:e} is beyond {MAX_STEP_REWARD:e} in size: scale it down, since squares of \
                     larger ones may overflow"
                )
            });
        }
        if !reward.is_finite() || !score.is_finite() {
            self.record_error(Aspect::Rewards, || {
                format!("reward {reward}, score {score}: not finite")
            });
        }
        if G::SCORE_IS_REWARD && reward != score {
            self.record_error(Aspect::Rewards, || {
                format!("reward {reward} and score {score} differ, but SCORE_IS_REWARD is true")
            });
        }
    }

    /// Returns all findings, including those about the episodes as a whole.
    fn into_findings(self) -> Vec<Finding> {
        let Self { game, mut findings, .. } = self;
        let CheckOptions { episodes, max_steps, max_abs_feature, .. } = *self.options;
        let mut warn = |aspect, message| findings.push(Finding::warning(aspect, message));
        for (i, size) in self.max_abs_features.iter().enumerate() {
            if size.is_finite() && *size > max_abs_feature {
                let name = game.feature_name(i);
                let advice = "scale it to about [-1, 1]";
                warn(Aspect::Features, format!("feature {i} ({name}) reaches {size}: {advice}"));
            }
        }
        if episodes > 0 && self.num_ended == 0 {
            let message = format!(
                "none of {episodes} episodes ended within {max_steps} steps (max_steps is {}): \
                 scores are reported where an episode ends",
                game.max_steps()
            );
            warn(Aspect::Length, message);
        }
        if episodes > 1 && !self.starts_differ && !self.steps_differ {
            let message = "levels do not differ: neither reset nor step draws from its key";
            warn(Aspect::Draws, message.to_string());
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nans_compare_equal_and_signed_zeros_differ() {
        let payload = f32::from_bits(f32::NAN.to_bits() | 1);
        for nan in [-f32::NAN, payload] {
            assert_ne!(nan.to_bits(), f32::NAN.to_bits());
            assert_eq!(canonical_bits(nan), canonical_bits(f32::NAN));
        }
        assert_ne!(canonical_bits(0.0), canonical_bits(-0.0));
        let result =
            |reward| StepResult { reward, terminated: false, truncated: false, episode_score: 1.0 };
        assert_eq!(result_bits(&result(payload)), result_bits(&result(f32::NAN)));
    }
}
