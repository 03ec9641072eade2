//! Features of games side by side, written as a row of features for each game.

use crate::data::OBS_MULTIPLE;
use crate::model::Lanes;

/// As many features of as many games.
type Square = [[f32; OBS_MULTIPLE]; OBS_MULTIPLE];

/// Writes the features of so many games, `[features][LANES]` with a multiple of [`OBS_MULTIPLE`] of them, as
/// rows that begin `apart` numbers from each other.
#[inline]
pub(super) fn write_rows(obs: &[Lanes], games: usize, apart: usize, to: &mut [f32]) {
    let (parts, _) = obs.as_chunks::<OBS_MULTIPLE>();
    let rows = to.chunks_mut(OBS_MULTIPLE * apart);
    for (first, rows) in (0..games).step_by(OBS_MULTIPLE).zip(rows) {
        for (number, features) in parts.iter().enumerate() {
            let square =
                turned(features.each_ref().map(|lanes| {
                    lanes[first..].first_chunk().expect("lanes are a multiple of it")
                }));
            let games = square.iter().take(games - first);
            for (game, rows) in games.zip(rows.chunks_mut(apart)) {
                rows[number * OBS_MULTIPLE..][..OBS_MULTIPLE].copy_from_slice(game);
            }
        }
    }
}

/// A square with its rows as columns.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn turned(rows: [&[f32; OBS_MULTIPLE]; OBS_MULTIPLE]) -> Square {
    use std::arch::x86_64::{
        _mm_loadu_ps, _mm_movehl_ps, _mm_movelh_ps, _mm_storeu_ps, _mm_unpackhi_ps, _mm_unpacklo_ps,
    };
    // SAFETY: there are four numbers at each place, and these instructions are in every x86-64. Compilers do
    // not find them by themselves.
    unsafe {
        let [a, b, c, d] = rows.map(|row| _mm_loadu_ps(row.as_ptr()));
        let [low, lower] = [_mm_unpacklo_ps(a, b), _mm_unpacklo_ps(c, d)];
        let [high, higher] = [_mm_unpackhi_ps(a, b), _mm_unpackhi_ps(c, d)];
        let turned = [
            _mm_movelh_ps(low, lower),
            _mm_movehl_ps(lower, low),
            _mm_movelh_ps(high, higher),
            _mm_movehl_ps(higher, high),
        ];
        turned.map(|row| {
            let mut numbers = [0.0; OBS_MULTIPLE];
            _mm_storeu_ps(numbers.as_mut_ptr(), row);
            numbers
        })
    }
}

/// A square with its rows as columns.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn turned(rows: [&[f32; OBS_MULTIPLE]; OBS_MULTIPLE]) -> Square {
    std::array::from_fn(|i| std::array::from_fn(|j| rows[j][i]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LANES;

    #[test]
    fn every_game_gets_its_features_and_no_other_number_changes() {
        let obs: Vec<Lanes> =
            (0..8).map(|i| std::array::from_fn(|lane| (100 * i + lane) as f32)).collect();
        for games in [1, 4, 7, LANES] {
            let apart = 11;
            let mut to = vec![-1.0; (games - 1) * apart + 8];
            write_rows(&obs, games, apart, &mut to);
            for (at, x) in to.iter().enumerate() {
                let (lane, i) = (at / apart, at % apart);
                let want = if i < 8 { (100 * i + lane) as f32 } else { -1.0 };
                assert_eq!(*x, want, "number {i} of game {lane} of {games}");
            }
        }
    }
}
