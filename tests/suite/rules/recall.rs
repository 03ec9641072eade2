//! Recall against its description, and scores of players with and without memory.

use super::{NEXT_LEVEL, START, assert_packs, episode, features};
use grove::env::{Env, Recall, initial_state, step_with_auto_reset};
use grove::rng::{below, draw, uniform};

#[test]
fn recall_follows_its_description() {
    for (steps, cues) in [(32, 4), (2, 2), (7, 6), (300, 3)] {
        let game = Recall { steps, cues };
        game.validate().unwrap();
        let k = cues as usize;
        let mut level = draw(31, steps);
        let mut state = initial_state::<Recall>(level, game);
        let mut counted = episode(level);
        let (mut seen, mut right, mut misleading) = (vec![0; k], 0, 0);
        for number in 0..200 {
            let cue = below(draw(draw(level, START), 0), cues);
            seen[cue as usize] += 1;
            for t in 0..steps {
                assert_packs(&state, game);
                let key = if t == 0 { draw(level, START) } else { draw(level, t - 1) };
                let light = below(draw(key, 0), cues);
                let noise = uniform(draw(key, 1)) * 2.0 - 1.0;
                let lights = (0..cues).map(|i| f32::from(i == light));
                let rest = [f32::from(t == 0), f32::from(t == steps - 1), noise];
                let want: Vec<f32> = lights.chain(rest).collect();
                assert_eq!(features(&state, game), want, "{game:?}, step {t}");

                let last = t == steps - 1;
                misleading += usize::from(last && light != cue);
                // Every other episode answers correctly; earlier actions do not matter.
                let action = match (last, number % 2) {
                    (true, 0) => cue,
                    (true, _) => (cue + 1) % cues,
                    (false, _) => draw(key, 2) % cues,
                };
                let result = step_with_auto_reset::<Recall>(&mut state, &mut counted, action, game);
                let reward = f32::from(last && action == cue);
                assert_eq!(
                    (result.reward, result.has_ended()),
                    (reward, last),
                    "{game:?}, step {t}"
                );
                assert_eq!(result.episode_score, reward);
                right += usize::from(reward == 1.0);
            }
            level = draw(level, NEXT_LEVEL);
        }
        assert_eq!(right, 100);
        assert!(misleading > 50 && seen.iter().all(|count| *count > 15), "{seen:?}");
    }
}

#[test]
fn the_last_observation_is_independent_of_the_cue() {
    let game = Recall::default();
    let mut counts = [[0u32; 4]; 4];
    for number in 0..16_000 {
        let level = draw(5, number);
        let mut state = initial_state::<Recall>(level, game);
        let mut counted = episode(level);
        for _ in 1..game.steps {
            step_with_auto_reset::<Recall>(&mut state, &mut counted, 0, game);
        }
        counts[state.cue as usize][state.light as usize] += 1;
    }
    // 99.99 % quantile of chi-square with 15 degrees of freedom is 44.3.
    let chi2: f64 =
        counts.iter().flatten().map(|n| (f64::from(*n) - 1000.0).powi(2) / 1000.0).sum();
    assert!(chi2 < 44.3, "chi-square {chi2}: {counts:?}");
}

#[test]
fn parameters_of_recall_out_of_range_are_rejected_by_name() {
    for (name, steps, cues) in
        [("steps", 1, 4), ("steps", 10_001, 4), ("cues", 32, 1), ("cues", 32, 7)]
    {
        let message = Recall { steps, cues }.validate().unwrap_err();
        assert!(message.contains(&format!("recall.{name}")), "{message}");
    }
    for cues in 2..=6 {
        let references = Recall { cues, ..Recall::default() }.reference_scores();
        assert_eq!(references, [("chance", 1.0 / f64::from(cues)), ("optimum", 1.0)]);
    }
}
