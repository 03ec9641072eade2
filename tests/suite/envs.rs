//! The linter for games.

use crate::shared::meadow::Meadow;
use crate::shared::rollouts::{CATCH_BOARD, LEDGE, SHORT_FRUIT};
use crate::support::{adapter, for_every_game};
use burn::cubecl;
use burn::cubecl::prelude::*;
use grove::env::{Aspect, Bits, CheckOptions, Env, Finding, Outcome, Rules, check};
use grove::rng::below;
use grove::rollout::check_on_device;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU32, Ordering};

fn assert_no_findings(findings: &[Finding], context: &str) {
    assert!(findings.is_empty(), "{context}: {findings:?}");
}

#[test]
fn built_in_games_pass_their_checks() {
    fn assert_passes<G: Rules>(game: G) {
        let options = CheckOptions::default();
        assert_no_findings(&check(game, &options).findings, &format!("{game:?}"));
        if let Some(device) = adapter() {
            let findings = check_on_device(game, &options, &device);
            assert_no_findings(&findings, &format!("{game:?} on a device"));
        }
    }
    for_every_game!(game => assert_passes(game));
    assert_passes(SHORT_FRUIT);
    assert_passes(CATCH_BOARD);
    assert_passes(LEDGE);
    assert_passes(Meadow);
}

/// A game with a configurable fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Faulty {
    fault: Fault,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fault {
    #[default]
    Nothing,
    HugeFeature,
    InfiniteFeature,
    LostByPacking,
    UsesWordsItDoesNotHave,
    Illegal,
    Endless,
    StartsFromWhatWasThere,
    Deterministic,
    NoReward,
    HugeReward,
    ScoreOfItsOwn,
    WrongInKernels,
    Panics,
    PanicsTwice,
    PanicsUnheard,
}

grove::packed_state! {
    pub struct FaultyState {
        number: Bits<5>,
        second: Bits<32>,
    }
}

/// Returns 0 natively and 1 in a kernel.
fn place() -> u32 {
    0
}

mod place {
    use super::*;

    pub fn expand(scope: &Scope) -> NativeExpand<u32> {
        one::expand(scope)
    }
}

/// The steps before one that panics.
const STEPS_BEFORE_PANIC: u32 = 30_000;

/// Panics at a step of its process, in the way of the fault.
fn broken(fault: Fault) -> u32 {
    static STEPS: AtomicU32 = AtomicU32::new(0);
    if STEPS.fetch_add(1, Ordering::Relaxed) == STEPS_BEFORE_PANIC {
        let lost = || panic!("the device is gone");
        match fault {
            Fault::PanicsTwice => {
                let _again = PanicsWhenDropped;
                lost()
            }
            // As a thread of a device, whose panics are swallowed.
            Fault::PanicsUnheard => {
                let thread = std::thread::Builder::new().name("DSD-0-0".to_string());
                let _ = thread.spawn(lost).unwrap().join();
            }
            _ => lost(),
        }
    }
    0
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("the device is gone");
    }
}

mod broken {
    use super::*;

    pub fn expand(scope: &Scope, _fault: Fault) -> NativeExpand<u32> {
        one::expand(scope)
    }
}

#[cube]
fn one() -> u32 {
    1u32.runtime()
}

impl Env for Faulty {
    const NAME: &'static str = "faulty";
    const SCORE_IS_REWARD: bool = true;

    fn num_features(&self) -> usize {
        1
    }

    fn num_actions(&self) -> usize {
        2
    }

    fn used_words(&self) -> usize {
        if self.fault == Fault::UsesWordsItDoesNotHave { 1 } else { 2 }
    }

    fn max_steps(&self) -> u32 {
        if self.fault == Fault::Endless { u32::MAX } else { 20 }
    }

    fn validate(&self) -> Result<(), String> {
        Ok(())
    }
}

#[cube]
impl Rules for Faulty {
    type State = FaultyState;

    fn reset(state: &mut FaultyState, key: u32, #[comptime] game: Self) {
        if comptime!(game.fault == Fault::Deterministic) {
            state.number = 3;
        } else if comptime!(game.fault == Fault::StartsFromWhatWasThere) {
            state.number = (state.number & 1) + 2 * below(key, 9);
        } else {
            state.number = below(key, 10);
        }
        state.second = 0;
        if comptime!(game.fault == Fault::UsesWordsItDoesNotHave) {
            state.second = 1;
        }
    }

    fn step(state: &mut FaultyState, action: u32, key: u32, #[comptime] game: Self) -> Outcome {
        let drawn = if comptime!(game.fault == Fault::Deterministic) {
            1u32.runtime()
        } else {
            below(key, 5)
        };
        // A field of 5 bits holds values below 32.
        let limit = comptime!(if game.fault == Fault::LostByPacking { 40u32 } else { 16u32 });
        state.number = (state.number + drawn + action) % limit;
        if comptime!(game.fault == Fault::WrongInKernels) {
            state.number = (state.number + place()) % 16;
        }
        if comptime!(matches!(
            game.fault,
            Fault::Panics | Fault::PanicsTwice | Fault::PanicsUnheard
        )) {
            state.number = (state.number + broken(comptime!(game.fault))) % 16;
        }
        let plain = state.number as f32 * 0.0625f32;
        let reward = if comptime!(game.fault == Fault::NoReward) {
            plain / 0.0f32
        } else if comptime!(game.fault == Fault::HugeReward) {
            plain * 1e30f32
        } else {
            plain
        };
        let score =
            if comptime!(game.fault == Fault::ScoreOfItsOwn) { 1.0f32.runtime() } else { reward };
        Outcome { reward, score, terminated: false.runtime() }
    }

    fn feature(state: &FaultyState, #[comptime] _i: usize, #[comptime] game: Self) -> f32 {
        let x = state.number as f32 * 0.0625f32;
        if comptime!(game.fault == Fault::HugeFeature) {
            x * 1000.0f32
        } else if comptime!(game.fault == Fault::InfiniteFeature) {
            1.0f32 / (x * 0.0f32)
        } else {
            x
        }
    }

    fn is_legal(_state: &FaultyState, #[comptime] action: usize, #[comptime] game: Self) -> bool {
        if comptime!(game.fault == Fault::Illegal && action == 1) {
            false.runtime()
        } else {
            true.runtime()
        }
    }
}

fn found(fault: Fault) -> Vec<Finding> {
    let options = CheckOptions { max_steps: 300, ..CheckOptions::default() };
    check(Faulty { fault }, &options).findings
}

#[test]
fn mistakes_in_a_game_are_found() {
    assert_no_findings(&found(Fault::Nothing), "nothing");
    for (fault, aspect, is_error, word) in [
        (Fault::HugeFeature, Aspect::Features, false, "reaches"),
        (Fault::InfiniteFeature, Aspect::Features, true, "feature 0"),
        (Fault::LostByPacking, Aspect::Packing, true, "field `number`"),
        (Fault::UsesWordsItDoesNotHave, Aspect::Packing, true, "word 1 is not 0"),
        (Fault::Illegal, Aspect::Masks, true, "HAS_ILLEGAL_ACTIONS is false"),
        (Fault::Endless, Aspect::Length, false, "none of 64 episodes ended"),
        (Fault::StartsFromWhatWasThere, Aspect::Draws, true, "starts differently"),
        (Fault::Deterministic, Aspect::Draws, false, "levels do not differ"),
        (Fault::NoReward, Aspect::Rewards, true, "not finite"),
        (Fault::HugeReward, Aspect::Rewards, true, "beyond 1e15"),
        (Fault::ScoreOfItsOwn, Aspect::Rewards, true, "SCORE_IS_REWARD"),
    ] {
        let findings = found(fault);
        assert_eq!(findings.len(), 1, "{fault:?}: {findings:?}");
        let finding = &findings[0];
        assert_eq!((finding.aspect, finding.is_error), (aspect, is_error), "{finding}");
        assert!(finding.message.contains(word), "{finding}");
    }
}

#[test]
fn rules_that_differ_in_kernels_are_found() {
    let Some(device) = adapter() else { return };
    let options = CheckOptions::default();
    let findings = check_on_device(Faulty::default(), &options, &device);
    assert_no_findings(&findings, "nothing");
    let wrong = Faulty { fault: Fault::WrongInKernels };
    let natively = check(wrong, &options);
    assert_no_findings(&natively.findings, "natively");
    // Episodes of 20 steps each.
    assert_eq!((natively.episodes, natively.steps), (64, 64 * 20));
    let findings = check_on_device(wrong, &options, &device);
    assert_eq!(findings.len(), 1);
    assert_eq!((findings[0].aspect, findings[0].is_error), (Aspect::Kernels, true));
}
