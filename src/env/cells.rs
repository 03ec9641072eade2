//! A packed array of small integers as a state field, most often a game board.

use super::state::{Field, PartialWords, WORD_BITS, extract_bits, mask};
use burn::cubecl;
use burn::cubecl::prelude::*;

/// An array of `BITS`-bit unsigned integers packed into `WORDS` words, `32 / BITS` per word,
/// initially all 0.
///
/// Access by a run-time index selects among all words and so costs O(`WORDS`). [`Cells::at`] takes
/// an index known when a kernel is compiled and costs O(1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cells<const BITS: u32, const WORDS: usize>([u32; WORDS]);

/// The kernel-side form of [`Cells`].
#[doc(hidden)]
pub struct CellsExpand<const BITS: u32, const WORDS: usize>([NativeExpand<u32>; WORDS]);

impl<const BITS: u32, const WORDS: usize> Default for Cells<BITS, WORDS> {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

/// Returns `chosen` if word `w` holds element `i`, else `other`.
#[cube]
#[inline(always)]
fn choose_word(chosen: u32, other: u32, i: u32, #[comptime] w: u32, #[comptime] bits: u32) -> u32 {
    select(i / comptime!(u32::BITS / bits) == w, chosen, other)
}

/// Extracts element `i % (32 / bits)` of a word.
#[cube]
#[inline(always)]
fn get_element(word: u32, i: u32, #[comptime] bits: u32) -> u32 {
    (word >> ((i % comptime!(u32::BITS / bits)) * bits)) & comptime!(mask(bits))
}

/// Sets element `i` to `value` if word `w` holds it; otherwise leaves the word unchanged.
#[cube]
#[inline(always)]
fn set_element(word: &mut u32, i: u32, value: u32, #[comptime] w: u32, #[comptime] bits: u32) {
    let shift = (i % comptime!(u32::BITS / bits)) * bits;
    let rest = *word & !(comptime!(mask(bits)) << shift);
    let set = rest | ((value & comptime!(mask(bits))) << shift);
    *word = select(i / comptime!(u32::BITS / bits) == w, set, *word);
}

#[cube]
#[inline(always)]
fn set_zero(word: &mut u32) {
    *word = 0u32;
}

impl<const BITS: u32, const WORDS: usize> Cells<BITS, WORDS> {
    /// Number of elements.
    pub const LEN: usize = {
        assert!(BITS >= 1 && BITS <= u32::BITS, "Cells<BITS, WORDS>: 1 to 32 bits");
        WORDS * (u32::BITS / BITS) as usize
    };

    /// Returns element `i`, which must be below [`Cells::LEN`].
    #[inline(always)]
    pub fn get(&self, i: u32) -> u32 {
        let mut word = self.0[0];
        for (w, other) in self.0.iter().enumerate().skip(1) {
            word = choose_word(*other, word, i, w as u32, BITS);
        }
        get_element(word, i, BITS)
    }

    /// Sets element `i` to the lowest `BITS` bits of `value`. Does nothing if `i` is [`Cells::LEN`]
    /// or more.
    #[inline(always)]
    pub fn set(&mut self, i: u32, value: u32) {
        for (w, word) in self.0.iter_mut().enumerate() {
            set_element(word, i, value, w as u32, BITS);
        }
    }

    /// Returns element `i`, an index known when a kernel is compiled.
    #[inline(always)]
    pub fn at(&self, i: usize) -> u32 {
        let per_word = (u32::BITS / BITS) as usize;
        extract_bits(self.0[i / per_word], (i % per_word) as u32 * BITS, BITS)
    }

    /// Sets all elements to 0.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.0 = [0; WORDS];
    }
}

impl<const BITS: u32, const WORDS: usize> CellsExpand<BITS, WORDS> {
    #[doc(hidden)]
    pub fn __expand_get_method(&self, scope: &Scope, i: NativeExpand<u32>) -> NativeExpand<u32> {
        let mut word = self.0[0].clone_unchecked();
        for (w, other) in self.0.iter().enumerate().skip(1) {
            let (other, i) = (other.clone_unchecked(), i.clone_unchecked());
            word = choose_word::expand(scope, other, word, i, w as u32, BITS);
        }
        get_element::expand(scope, word, i, BITS)
    }

    #[doc(hidden)]
    pub fn __expand_set_method(
        &mut self,
        scope: &Scope,
        i: NativeExpand<u32>,
        value: NativeExpand<u32>,
    ) {
        for (w, word) in self.0.iter_mut().enumerate() {
            let (i, value) = (i.clone_unchecked(), value.clone_unchecked());
            set_element::expand(scope, word, i, value, w as u32, BITS);
        }
    }

    #[doc(hidden)]
    pub fn __expand_at_method(&self, scope: &Scope, i: usize) -> NativeExpand<u32> {
        let per_word = (u32::BITS / BITS) as usize;
        let word = self.0[i / per_word].clone_unchecked();
        extract_bits::expand(scope, word, (i % per_word) as u32 * BITS, BITS)
    }

    #[doc(hidden)]
    pub fn __expand_clear_method(&mut self, scope: &Scope) {
        for word in &mut self.0 {
            set_zero::expand(scope, word);
        }
    }
}

impl<const BITS: u32, const WORDS: usize> CubeType for Cells<BITS, WORDS> {
    type ExpandType = CellsExpand<BITS, WORDS>;
}

impl<const BITS: u32, const WORDS: usize> ExpandTypeClone for CellsExpand<BITS, WORDS> {
    fn clone_unchecked(&self) -> Self {
        Self(self.0.each_ref().map(ExpandTypeClone::clone_unchecked))
    }
}

impl<const BITS: u32, const WORDS: usize> IntoExpand for CellsExpand<BITS, WORDS> {
    type Expand = Self;

    fn into_expand(self, _scope: &Scope) -> Self {
        self
    }
}

impl<const BITS: u32, const WORDS: usize> IntoMut for CellsExpand<BITS, WORDS> {
    fn into_mut(self, scope: &Scope) -> Self {
        Self(self.0.map(|word| word.into_mut(scope)))
    }
}

impl<const BITS: u32, const WORDS: usize> CubeDebug for CellsExpand<BITS, WORDS> {}

impl<const BITS: u32, const WORDS: usize> AsRefExpand for CellsExpand<BITS, WORDS> {
    fn __expand_ref_method(&self, _scope: &Scope) -> &Self {
        self
    }
}

impl<const BITS: u32, const WORDS: usize> AsMutExpand for CellsExpand<BITS, WORDS> {
    fn __expand_ref_mut_method(&mut self, _scope: &Scope) -> &mut Self {
        self
    }
}

impl<const BITS: u32, const WORDS: usize> Field for Cells<BITS, WORDS> {
    type Value = Self;
    const BITS: usize = WORDS * WORD_BITS;

    #[inline(always)]
    fn load(word: &impl Fn(usize) -> u32, at: usize) -> Self {
        Self(std::array::from_fn(|w| word(at / WORD_BITS + w)))
    }

    #[inline(always)]
    fn store(value: Self, words: &mut [u32], at: usize) {
        words[at / WORD_BITS..][..WORDS].copy_from_slice(&value.0);
    }

    fn __expand_load(
        _scope: &Scope,
        words: &[NativeExpand<u32>],
        at: usize,
    ) -> CellsExpand<BITS, WORDS> {
        CellsExpand(std::array::from_fn(|w| words[at / WORD_BITS + w].clone_unchecked()))
    }

    fn __expand_store(
        _scope: &Scope,
        value: &CellsExpand<BITS, WORDS>,
        words: &mut PartialWords,
        at: usize,
    ) {
        for (w, word) in value.0.iter().enumerate() {
            words[at / WORD_BITS + w] = Some(word.clone_unchecked());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_an_array() {
        type Board = Cells<5, 3>;
        let mut board = Board::default();
        let mut plain = [0u32; Board::LEN];
        assert_eq!(plain.len(), 18);
        for n in 0..200u32 {
            let (i, value) = (n * 7 % 18, n * 11 % 32);
            board.set(i, value);
            plain[i as usize] = value;
            for (i, expected) in plain.iter().enumerate() {
                assert_eq!([board.get(i as u32), board.at(i)], [*expected; 2]);
            }
        }
        let before = board;
        board.set(18, 3);
        assert_eq!(board, before, "there is no such element");
        board.clear();
        assert_eq!(board, Board::default());
    }
}
