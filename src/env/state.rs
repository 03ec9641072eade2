//! Game states as 32-bit words. A game declares the bit width of each field and never packs by
//! hand.
//!
//! Devices store the states of all games as rows of words. [`packed_state!`](crate::packed_state)
//! declares a state type together with its layout in those words.

use super::bits::{from_bits, to_bits};
use burn::cubecl;
use burn::cubecl::prelude::*;
use std::fmt::Debug;

/// The maximum number of 32-bit words in a packed state.
pub const MAX_WORDS: usize = 64;

/// Bits per word.
pub(super) const WORD_BITS: usize = u32::BITS as usize;

/// The kernel-side (expanded) form of a type.
pub(super) type KernelForm<T> = <T as CubeType>::ExpandType;

/// A game state that packs into [`PackedState::WORDS`] words. Declare one with
/// [`packed_state!`](crate::packed_state).
pub trait PackedState: CubeType + Copy + Debug + Send + Sync + 'static {
    /// Number of words, 1 to [`MAX_WORDS`].
    const WORDS: usize;

    /// Words of `LANES` states in structure-of-arrays order: `[WORDS][LANES]`.
    type Rows<const LANES: usize>: Copy
        + Debug
        + Send
        + Sync
        + AsRef<[[u32; LANES]]>
        + AsMut<[[u32; LANES]]>;

    /// Returns rows of zero words.
    fn zero_rows<const LANES: usize>() -> Self::Rows<LANES>;

    /// Unpacks a state; `word(w)` returns word `w`.
    fn unpack(word: impl Fn(usize) -> u32) -> Self;

    /// Packs the state, calling `put(w, word)` for every word.
    fn pack(&self, put: impl FnMut(usize, u32));

    /// Returns the name of the first field whose value exceeds its bit width, if any. Packing does
    /// not mask values, so such a field would corrupt its neighbours; [`check`](fn@super::check)
    /// looks for it once so that packing need not.
    fn oversized_field(&self) -> Option<&'static str>;

    /// Returns the packed words in order.
    fn words(&self) -> Vec<u32> {
        let mut words = vec![0; Self::WORDS];
        self.pack(|w, word| words[w] = word);
        words
    }

    #[doc(hidden)]
    fn __expand_unpack(scope: &Scope, words: &[NativeExpand<u32>]) -> KernelForm<Self>;

    #[doc(hidden)]
    fn __expand_pack(scope: &Scope, state: &KernelForm<Self>) -> Vec<NativeExpand<u32>>;
}

/// Declares a game state and its layout in words.
///
/// The type of a field gives its encoding: [`Bits<N>`](crate::env::Bits) is a `u32` below 2^N;
/// `u32`, `f32` and `bool` are stored as themselves; [`Cells<BITS, WORDS>`](crate::env::Cells) is a
/// packed array of small integers. Fields are laid out in order of declaration, starting at the
/// lowest bits of the first word. No field straddles two words. A state of more than
/// [`MAX_WORDS`](crate::env::MAX_WORDS) words does not compile.
///
/// Packing runs in every step and therefore does not check values: a value wider than its field
/// corrupts neighbouring fields. `grove check` detects this.
///
/// ```
/// use burn::cubecl;
/// use burn::cubecl::prelude::*;
/// use grove::env::{Bits, Cells, PackedState};
///
/// grove::packed_state! {
///     /// A snake on a board of 10 x 10 cells.
///     pub struct Snake {
///         /// Index of the head's cell.
///         pub head: Bits<7>,
///         /// 1 for every cell that the body covers: 100 elements of 1 bit.
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
                $crate::env::__num_words(&bits)
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
                    let at = $crate::env::__place_field(&mut end, <$kind as $crate::env::Field>::BITS);
                    let $field = <$kind as $crate::env::Field>::load(&word, at);
                )*
                Self { $($field),* }
            }

            #[inline(always)]
            fn pack(&self, mut put: impl FnMut(usize, u32)) {
                let mut words = [0u32; <Self as $crate::env::PackedState>::WORDS];
                let mut end = 0;
                $(
                    let at = $crate::env::__place_field(&mut end, <$kind as $crate::env::Field>::BITS);
                    <$kind as $crate::env::Field>::store(self.$field, &mut words, at);
                )*
                for (w, word) in words.into_iter().enumerate() {
                    put(w, word);
                }
            }

            fn oversized_field(&self) -> Option<&'static str> {
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
                    let at = $crate::env::__place_field(&mut end, <$kind as $crate::env::Field>::BITS);
                    let $field = <$kind as $crate::env::Field>::__expand_load(scope, words, at);
                )*
                Expand { $($field),* }
            }

            fn __expand_pack(
                scope: &$crate::env::__cubecl::prelude::Scope,
                state: &<Self as $crate::env::__cubecl::prelude::CubeType>::ExpandType,
            ) -> Vec<$crate::env::__cubecl::prelude::NativeExpand<u32>> {
                let words = 0..<Self as $crate::env::PackedState>::WORDS;
                let mut words = words.map(|_| None).collect();
                let mut end = 0;
                $(
                    let at = $crate::env::__place_field(&mut end, <$kind as $crate::env::Field>::BITS);
                    let field = &state.$field;
                    <$kind as $crate::env::Field>::__expand_store(scope, field, &mut words, at);
                )*
                $crate::env::__finish_words(scope, words)
            }
        }
    };
}

/// Places a field of `bits` bits after those that end at bit `end`: returns its offset, and moves `end` to its own end.
#[doc(hidden)]
#[inline(always)]
pub const fn __place_field(end: &mut usize, bits: usize) -> usize {
    let fits = *end % WORD_BITS + bits <= WORD_BITS;
    let at = if fits { *end } else { end.next_multiple_of(WORD_BITS) };
    *end = at + bits;
    at
}

/// Number of words needed for fields of the given bit widths.
#[doc(hidden)]
pub const fn __num_words(bits: &[usize]) -> usize {
    let (mut end, mut i) = (0, 0);
    while i < bits.len() {
        __place_field(&mut end, bits[i]);
        i += 1;
    }
    let words = end.div_ceil(WORD_BITS);
    assert!(words > 0, "a state has a field or more");
    assert!(words <= MAX_WORDS, "a state has 64 words at most");
    words
}

/// Words under construction inside a kernel; `None` until the first field is stored.
pub(super) type PartialWords = Vec<Option<NativeExpand<u32>>>;

#[doc(hidden)]
pub fn __finish_words(scope: &Scope, words: PartialWords) -> Vec<NativeExpand<u32>> {
    words.into_iter().map(|word| word.unwrap_or_else(|| 0u32.into_expand(scope))).collect()
}

/// The encoding of a field type in a packed state.
pub trait Field {
    /// The Rust type of the field.
    type Value: CubeType + Copy + Debug;

    /// Width in bits: at most one word, or a whole number of words.
    const BITS: usize;

    /// Whether `value` fits into [`Field::BITS`] bits.
    fn fits(_value: &Self::Value) -> bool {
        true
    }

    /// Reads the field that starts at bit `at`.
    fn load(word: &impl Fn(usize) -> u32, at: usize) -> Self::Value;

    /// Writes the field at bit `at`, where `words` must still be 0.
    fn store(value: Self::Value, words: &mut [u32], at: usize);

    #[doc(hidden)]
    fn __expand_load(
        scope: &Scope,
        words: &[NativeExpand<u32>],
        at: usize,
    ) -> KernelForm<Self::Value>;

    #[doc(hidden)]
    fn __expand_store(
        scope: &Scope,
        value: &KernelForm<Self::Value>,
        words: &mut PartialWords,
        at: usize,
    );
}

/// A mask of the lowest `bits` bits.
pub(super) const fn mask(bits: u32) -> u32 {
    u32::MAX >> (u32::BITS - bits)
}

/// Extracts `bits` bits of a word, starting at bit `at`.
#[cube]
#[inline(always)]
pub(super) fn extract_bits(word: u32, #[comptime] at: u32, #[comptime] bits: u32) -> u32 {
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

/// Shifts a value to bit `at`.
#[cube]
#[inline(always)]
fn shift_left(value: u32, #[comptime] at: u32) -> u32 {
    if comptime!(at == 0) { value } else { value << at }
}

#[cube]
fn bitwise_or(a: u32, b: u32) -> u32 {
    a | b
}

/// An unsigned integer below 2^`N`, for `N` from 1 to 32, held as a `u32` in the state.
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
        extract_bits(word(at / WORD_BITS), (at % WORD_BITS) as u32, N)
    }

    #[inline(always)]
    fn store(value: u32, words: &mut [u32], at: usize) {
        words[at / WORD_BITS] |= shift_left(value, (at % WORD_BITS) as u32);
    }

    fn __expand_load(scope: &Scope, words: &[NativeExpand<u32>], at: usize) -> NativeExpand<u32> {
        let word = words[at / WORD_BITS].clone_unchecked();
        extract_bits::expand(scope, word, (at % WORD_BITS) as u32, N)
    }

    fn __expand_store(
        scope: &Scope,
        value: &NativeExpand<u32>,
        words: &mut PartialWords,
        at: usize,
    ) {
        let value = shift_left::expand(scope, value.clone_unchecked(), (at % WORD_BITS) as u32);
        let word = &mut words[at / WORD_BITS];
        *word = Some(match word.take() {
            None => value,
            Some(others) => bitwise_or::expand(scope, others, value),
        });
    }
}

/// Implements [`Field`] for a type by converting it to and from an integer.
macro_rules! impl_field {
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
                words: &mut PartialWords,
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
fn identity(x: u32) -> u32 {
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

impl_field!(u32, 32, identity, identity);
impl_field!(f32, 32, to_bits, from_bits);
impl_field!(bool, 1, as_bit, is_set);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Cells;

    crate::packed_state! {
        /// Fields of every kind, one of which does not fit behind its predecessors in a word.
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
    fn an_oversized_field_is_named() {
        let mut state = Mixed::unpack(|_| u32::MAX);
        assert_eq!(state.oversized_field(), None);
        state.wide = 1 << 30;
        assert_eq!(state.oversized_field(), Some("wide"));
        state.small = 8;
        assert_eq!(state.oversized_field(), Some("small"));
    }
}
