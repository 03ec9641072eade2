//! The number formats of stored weights.

use crate::math::{LANES, Lanes, mul_add};
use ::half::{bf16, f16};

/// The format of a stored number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    /// Whole numbers from 0 to 15, with a scale and an offset for each group.
    Four,
    /// Whole numbers from -128 to 127, with a scale and an offset for each group.
    Eight,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl NumberFormat {
    /// The number of a code, before it is scaled.
    pub fn number(self, code: u16) -> f32 {
        match self {
            Self::Four => f32::from(code),
            Self::Eight => f32::from(code as i8),
            Self::Bf16 => bf16::from_bits(code).to_f32(),
            Self::F16 => f16::from_bits(code).to_f32(),
        }
    }
}

/// The codes of two adjacent rows of a strip of columns.
pub trait Pair: Copy + Default + Send + Sync + 'static {
    /// Whether a number is a code times a scale plus an offset, instead of the code's own.
    const SCALED: bool;

    /// Sets the code of row 0 or 1 in a column.
    fn set(&mut self, row: usize, lane: usize, code: u16);

    /// The codes of both rows as numbers.
    fn numbers(&self) -> [Lanes; 2];

    /// The numbers of both rows, given the columns' scales and offsets. Products of codes and scales are exact in the formats
    /// that have offsets, so it does not matter whether the sum is fused.
    #[inline(always)]
    fn expand(&self, [scales, offsets]: &[Lanes; 2]) -> [Lanes; 2] {
        let mut numbers = self.numbers();
        if Self::SCALED {
            for row in &mut numbers {
                for ((x, scale), offset) in row.iter_mut().zip(scales).zip(offsets) {
                    *x = mul_add(*x, *scale, *offset);
                }
            }
        }
        numbers
    }
}

/// Codes of 4 bits: that of row 0 in the low half of a byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Four([u8; LANES]);

/// Codes of 8 bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Eight([[i8; LANES]; 2]);

/// Numbers in bfloat16.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bf16([[u16; LANES]; 2]);

/// Numbers in half precision.
#[derive(Clone, Copy, Debug, Default)]
pub struct F16([[u16; LANES]; 2]);

impl Pair for Four {
    const SCALED: bool = true;

    fn set(&mut self, row: usize, lane: usize, code: u16) {
        self.0[lane] |= (code as u8 & 15) << (4 * row);
    }

    #[inline(always)]
    fn numbers(&self) -> [Lanes; 2] {
        [self.0.map(|byte| f32::from(byte & 15)), self.0.map(|byte| f32::from(byte >> 4))]
    }
}

impl Pair for Eight {
    const SCALED: bool = true;

    fn set(&mut self, row: usize, lane: usize, code: u16) {
        self.0[row][lane] = code as i8;
    }

    #[inline(always)]
    fn numbers(&self) -> [Lanes; 2] {
        self.0.map(|row| row.map(f32::from))
    }
}

impl Pair for Bf16 {
    const SCALED: bool = false;

    fn set(&mut self, row: usize, lane: usize, code: u16) {
        self.0[row][lane] = code;
    }

    #[inline(always)]
    fn numbers(&self) -> [Lanes; 2] {
        self.0.map(|row| row.map(|bits| f32::from_bits(u32::from(bits) << 16)))
    }
}

impl Pair for F16 {
    const SCALED: bool = false;

    fn set(&mut self, row: usize, lane: usize, code: u16) {
        self.0[row][lane] = code;
    }

    /// The exponent's bias is 15 in half precision and 127 in single precision, and a product with a power of two is exact,
    /// also where the half-precision number is subnormal.
    #[inline(always)]
    fn numbers(&self) -> [Lanes; 2] {
        let scale = f32::from_bits((127 + 127 - 15) << 23);
        self.0.map(|row| {
            row.map(|bits| {
                let bits = u32::from(bits);
                let magnitude = f32::from_bits((bits & 0x7fff) << 13) * scale;
                f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
            })
        })
    }
}
