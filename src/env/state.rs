//! States as words: a game says how many bits each field of its state takes, and packs nothing by hand.
//!
//! Devices keep the states of all games as rows of 32-bit words. [`packed_state!`](crate::packed_state)
//! declares a state together with its place in these words.

use super::bits::{from_bits, to_bits};
use burn::cubecl;
use burn::cubecl::prelude::*;
use std::fmt::Debug;

/// The most 32-bit words that a game's state may take.
pub const MAX_WORDS: usize = 64;

/// Bits of a word.
pub(super) const WORD: usize = u32::BITS as usize;

/// What a type is within a kernel.
pub(super) type Expanded<T> = <T as CubeType>::ExpandType;

/// A game's state, which can be written down as [`PackedState::WORDS`] words;
/// [`packed_state!`](crate::packed_state) declares one.
pub trait PackedState: CubeType + Copy + Debug + Send + Sync + 'static {
    /// Words that it takes, 1 to [`MAX_WORDS`].
    const WORDS: usize;

    /// The words of `LANES` states side by side: `[WORDS][LANES]`.
    type Rows<const LANES: usize>: Copy
        + Debug
        + Send
        + Sync
        + AsRef<[[u32; LANES]]>
        + AsMut<[[u32; LANES]]>;

    /// Rows of which every word is 0.
    fn zero_rows<const LANES: usize>() -> Self::Rows<LANES>;

    /// The state whose words `word` gives by their number.
    fn unpack(word: impl Fn(usize) -> u32) -> Self;

    /// Hands every word to `put`, with its number.
    fn pack(&self, put: impl FnMut(usize, u32));

    /// The first field that holds more than its bits can, if there is one: it would spoil its neighbours
    /// in the words. [`check`](fn@super::check) looks for it, so that packing need not.
    fn too_large(&self) -> Option<&'static str>;

    /// The words, in their order.
    fn words(&self) -> Vec<u32> {
        let mut words = vec![0; Self::WORDS];
        self.pack(|w, word| words[w] = word);
        words
    }

    #[doc(hidden)]
    fn __expand_unpack(scope: &Scope, words: &[NativeExpand<u32>]) -> Expanded<Self>;

    #[doc(hidden)]
    fn __expand_pack(scope: &Scope, state: &Expanded<Self>) -> Vec<NativeExpand<u32>>;
}

/// Declares a game's state and how it lies in words.
///
/// The type of a field says what is kept of it: [`Bits<N>`](crate::env::Bits) is a `u32` below 2^N;
/// `u32`, `f32` and `bool` are themselves; and [`Cells<BITS, WORDS>`](crate::env::Cells) is an array of
/// small numbers. Fields lie one after the other, the first in the lowest bits of the first word; none
/// lies across the border of two words. A state that takes more than
/// [`MAX_WORDS`](crate::env::MAX_WORDS) words does not compile.
///
/// Packing is part of every step, so it trusts the rules: a field that holds more than its bits can
/// spoils its neighbours. `grove check` finds it.
///
/// ```
/// use burn::cubecl;
/// use burn::cubecl::prelude::*;
/// use grove::env::{Bits, Cells, PackedState};
///
/// grove::packed_state! {
///     /// A snake on a board of 10 x 10 cells.
///     pub struct Snake {
///         /// The cell of its head.
///         pub head: Bits<7>,
///         /// 1 on every cell that it covers: 100 fields of 1 bit.
///         pub body: Cells<1, 4>,
///     }
/// }
///
/// let mut snake = Snake::unpack(|_| 0);
/// snake.head = 42;
/// snake.body.set(42, 1);
/// assert_eq!(snake.words(), [42, 0, 1 << 10, 0, 0]);
/// ```
#[macro_export]
macro_rules! packed_state {
    (
        $(#[$meta:meta])*
        $vis:vis struct $State:ident {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $kind:ty),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(CubeType, Clone, Copy, Debug, PartialEq)]
        $vis struct $State {
            $($(#[$field_meta])* $field_vis $field: <$kind as $crate::env::Field>::Value,)*
        }

        impl $crate::env::PackedState for $State {
            const WORDS: usize = {
                let bits = [$(<$kind as $crate::env::Field>::BITS),*];
                $crate::env::__words_of(&bits)
            };

            type Rows<const LANES: usize> =
                [[u32; LANES]; <$State as $crate::env::PackedState>::WORDS];

            fn zero_rows<const LANES: usize>() -> Self::Rows<LANES> {
                [[0; LANES]; <$State as $crate::env::PackedState>::WORDS]
            }

            #[inline(always)]
            fn unpack(word: impl Fn(usize) -> u32) -> Self {
                let mut end = 0;
                $(
                    let at = $crate::env::__place(end, <$kind as $crate::env::Field>::BITS);
                    end = at + <$kind as $crate::env::Field>::BITS;
                    let $field = <$kind as $crate::env::Field>::load(&word, at);
                )*
                let _ = end;
                Self { $($field),* }
            }

            #[inline(always)]
            fn pack(&self, mut put: impl FnMut(usize, u32)) {
                let mut words = [0u32; <Self as $crate::env::PackedState>::WORDS];
                let mut end = 0;
                $(
                    let at = $crate::env::__place(end, <$kind as $crate::env::Field>::BITS);
                    end = at + <$kind as $crate::env::Field>::BITS;
                    <$kind as $crate::env::Field>::store(self.$field, &mut words, at);
                )*
                let _ = end;
                for (w, word) in words.into_iter().enumerate() {
                    put(w, word);
                }
            }

            fn too_large(&self) -> Option<&'static str> {
                $(
                    if !<$kind as $crate::env::Field>::fits(&self.$field) {
                        return Some(stringify!($field));
                    }
                )*
                None
            }

            fn __expand_unpack(
                scope: &$crate::env::__cubecl::prelude::Scope,
                words: &[$crate::env::__cubecl::prelude::NativeExpand<u32>],
            ) -> <Self as $crate::env::__cubecl::prelude::CubeType>::ExpandType {
                type Expand = <$State as $crate::env::__cubecl::prelude::CubeType>::ExpandType;
                let mut end = 0;
                $(
                    let at = $crate::env::__place(end, <$kind as $crate::env::Field>::BITS);
                    end = at + <$kind as $crate::env::Field>::BITS;
                    let $field = <$kind as $crate::env::Field>::__expand_load(scope, words, at);
                )*
                let _ = end;
                Expand { $($field),* }
            }

            fn __expand_pack(
                scope: &$crate::env::__cubecl::prelude::Scope,
                state: &<Self as $crate::env::__cubecl::prelude::CubeType>::ExpandType,
            ) -> Vec<$crate::env::__cubecl::prelude::NativeExpand<u32>> {
                let mut words = $crate::env::__no_words(<Self as $crate::env::PackedState>::WORDS);
                let mut end = 0;
                $(
                    let at = $crate::env::__place(end, <$kind as $crate::env::Field>::BITS);
                    end = at + <$kind as $crate::env::Field>::BITS;
                    let field = &state.$field;
                    <$kind as $crate::env::Field>::__expand_store(scope, field, &mut words, at);
                )*
                let _ = end;
                $crate::env::__all_words(scope, words)
            }
        }
    };
}

/// The first bit of a field of so many bits, behind a field that ended at bit `end`.
#[doc(hidden)]
#[inline(always)]
pub const fn __place(end: usize, bits: usize) -> usize {
    if end % WORD + bits > WORD { end.next_multiple_of(WORD) } else { end }
}

/// Words that fields of so many bits take.
#[doc(hidden)]
pub const fn __words_of(bits: &[usize]) -> usize {
    let (mut end, mut i) = (0, 0);
    while i < bits.len() {
        end = __place(end, bits[i]) + bits[i];
        i += 1;
    }
    let words = end.div_ceil(WORD);
    assert!(words > 0, "a state has a field or more");
    assert!(words <= MAX_WORDS, "a state has 64 words at most");
    words
}

/// Words of which nothing is known yet.
pub(super) type Partial = Vec<Option<NativeExpand<u32>>>;

#[doc(hidden)]
pub fn __no_words(count: usize) -> Partial {
    (0..count).map(|_| None).collect()
}

#[doc(hidden)]
pub fn __all_words(scope: &Scope, words: Partial) -> Vec<NativeExpand<u32>> {
    words.into_iter().map(|word| word.unwrap_or_else(|| 0u32.into_expand(scope))).collect()
}

/// What a field of a state is, and how it lies in words.
pub trait Field {
    /// The field itself.
    type Value: CubeType + Copy + Debug;

    /// Bits that it takes: up to a word, or whole words.
    const BITS: usize;

    /// Whether the value can be told in so many bits.
    fn fits(_value: &Self::Value) -> bool {
        true
    }

    /// Reads the field that starts at bit `at`.
    fn load(word: &impl Fn(usize) -> u32, at: usize) -> Self::Value;

    /// Writes the field to words that are 0 there.
    fn store(value: Self::Value, words: &mut [u32], at: usize);

    #[doc(hidden)]
    fn __expand_load(
        scope: &Scope,
        words: &[NativeExpand<u32>],
        at: usize,
    ) -> Expanded<Self::Value>;

    #[doc(hidden)]
    fn __expand_store(scope: &Scope, value: &Expanded<Self::Value>, words: &mut Partial, at: usize);
}

/// A mask of the lowest bits.
pub(super) const fn mask(bits: u32) -> u32 {
    u32::MAX >> (u32::BITS - bits)
}

/// The field of `bits` bits from bit `at` of a word on.
#[cube]
#[inline(always)]
pub(super) fn cut_out(word: u32, #[comptime] at: u32, #[comptime] bits: u32) -> u32 {
    if comptime!(at == 0 && bits == u32::BITS) {
        word
    } else if comptime!(at + bits == u32::BITS) {
        word >> at
    } else if comptime!(at == 0) {
        word & comptime!(mask(bits))
    } else {
        (word >> at) & comptime!(mask(bits))
    }
}

/// A word whose field from bit `at` on is `value`; the rest is 0.
#[cube]
#[inline(always)]
fn shifted(value: u32, #[comptime] at: u32) -> u32 {
    if comptime!(at == 0) { value } else { value << at }
}

#[cube]
fn either(a: u32, b: u32) -> u32 {
    a | b
}

/// A field that is a number below 2^`N`, `N` being 1 to 32; it is a `u32` in the state.
#[derive(Clone, Copy, Debug)]
pub struct Bits<const N: u32>;

impl<const N: u32> Field for Bits<N> {
    type Value = u32;
    const BITS: usize = {
        assert!(N >= 1 && N <= u32::BITS, "Bits<N>: 1 to 32");
        N as usize
    };

    fn fits(value: &u32) -> bool {
        *value <= mask(N)
    }

    #[inline(always)]
    fn load(word: &impl Fn(usize) -> u32, at: usize) -> u32 {
        cut_out(word(at / WORD), (at % WORD) as u32, N)
    }

    #[inline(always)]
    fn store(value: u32, words: &mut [u32], at: usize) {
        words[at / WORD] |= shifted(value, (at % WORD) as u32);
    }

    fn __expand_load(scope: &Scope, words: &[NativeExpand<u32>], at: usize) -> NativeExpand<u32> {
        cut_out::expand(scope, words[at / WORD].clone_unchecked(), (at % WORD) as u32, N)
    }

    fn __expand_store(scope: &Scope, value: &NativeExpand<u32>, words: &mut Partial, at: usize) {
        let value = shifted::expand(scope, value.clone_unchecked(), (at % WORD) as u32);
        let word = &mut words[at / WORD];
        *word = Some(match word.take() {
            None => value,
            Some(others) => either::expand(scope, others, value),
        });
    }
}

/// Fields that are made of a number and back.
macro_rules! field_by {
    ($Value:ty, $bits:literal, $to:ident, $from:ident) => {
        impl Field for $Value {
            type Value = $Value;
            const BITS: usize = $bits;

            #[inline(always)]
            fn load(word: &impl Fn(usize) -> u32, at: usize) -> $Value {
                $from(Bits::<$bits>::load(word, at))
            }

            #[inline(always)]
            fn store(value: $Value, words: &mut [u32], at: usize) {
                Bits::<$bits>::store($to(value), words, at);
            }

            fn __expand_load(
                scope: &Scope,
                words: &[NativeExpand<u32>],
                at: usize,
            ) -> NativeExpand<$Value> {
                $from::expand(scope, Bits::<$bits>::__expand_load(scope, words, at))
            }

            fn __expand_store(
                scope: &Scope,
                value: &NativeExpand<$Value>,
                words: &mut Partial,
                at: usize,
            ) {
                let value = $to::expand(scope, value.clone_unchecked());
                Bits::<$bits>::__expand_store(scope, &value, words, at);
            }
        }
    };
}

#[cube]
#[inline(always)]
fn same(x: u32) -> u32 {
    x
}

#[cube]
#[inline(always)]
fn is_set(x: u32) -> bool {
    x != 0
}

#[cube]
#[inline(always)]
fn as_bit(x: bool) -> u32 {
    select(x, 1u32, 0u32)
}

field_by!(u32, 32, same, same);
field_by!(f32, 32, to_bits, from_bits);
field_by!(bool, 1, as_bit, is_set);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Cells;

    crate::packed_state! {
        /// Fields of all kinds, one of which does not fit behind the others.
        struct Mixed {
            small: Bits<3>,
            flag: bool,
            wide: Bits<30>,
            number: f32,
            cells: Cells<5, 3>,
            last: u32,
        }
    }

    #[test]
    fn fields_lie_one_after_the_other_and_never_across_words() {
        assert_eq!(Mixed::WORDS, 7);
        let mut state = Mixed::unpack(|_| 0);
        (state.small, state.flag, state.wide) = (5, true, (1 << 30) - 2);
        (state.number, state.last) = (-0.5, u32::MAX);
        state.cells.set(7, 19);
        let words = state.words();
        let expected = [0b1101, (1 << 30) - 2, (-0.5f32).to_bits(), 0, 19 << 5, 0, u32::MAX];
        assert_eq!(words, expected);
        assert_eq!(Mixed::unpack(|w| words[w]), state);
    }

    #[test]
    fn what_is_too_large_for_its_field_is_named() {
        let mut state = Mixed::unpack(|_| u32::MAX);
        assert_eq!(state.too_large(), None);
        state.wide = 1 << 30;
        assert_eq!(state.too_large(), Some("wide"));
        state.small = 8;
        assert_eq!(state.too_large(), Some("small"));
    }
}
