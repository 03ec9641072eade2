//! The number formats of stored weights.

use crate::math::{LANES, Lanes, map_array, mul_add};

/// The format of a stored number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberFormat {
    /// Whole numbers from 0 to 15, with a scale and an offset for each group.
    FourBit,
    /// Whole numbers from -128 to 127, with a scale and an offset for each group.
    EightBit,
    /// bfloat16.
    Bf16,
    /// IEEE half precision.
    F16,
}

/// The codes of two adjacent rows of a strip of columns.
pub trait RowPair: Copy + Default + Send + Sync + 'static {
    /// Whether a number is that of its code times a scale, plus an offset.
    const HAS_SCALES: bool;
    /// Maximum number of rows for which weights are expanded as they are multiplied, with the registers of AVX-512; for
    /// more, strips are expanded to memory first.
    const MAX_FUSED_ROWS: usize = 8;

    /// Sets the code of row 0 or 1 in a column.
    fn set(&mut self, row: usize, lane: usize, code: u16);

    /// The numbers that the codes of both rows stand for, before they are scaled.
    fn decode(&self) -> [Lanes; 2];

    /// The numbers of both rows, given the columns' scales and offsets. Products of codes and scales are exact in the
    /// formats that have offsets, so it does not matter whether the sum is fused.
    #[inline(always)]
    fn expand(&self, [scales, offsets]: &[Lanes; 2]) -> [Lanes; 2] {
        let mut numbers = self.decode();
        if Self::HAS_SCALES {
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
pub struct FourBitRowPair([u8; LANES]);

/// Codes of 8 bits.
#[derive(Clone, Copy, Debug, Default)]
pub struct EightBitRowPair([[i8; LANES]; 2]);

/// Numbers in bfloat16: those of both rows in a word, row 0 in the low half.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Bf16RowPair([u32; LANES]);

/// Numbers in half precision.
#[derive(Clone, Copy, Debug, Default)]
pub struct F16RowPair([[u16; LANES]; 2]);

impl RowPair for FourBitRowPair {
    const HAS_SCALES: bool = true;

    fn set(&mut self, row: usize, lane: usize, code: u16) {
        self.0[lane] |= (code as u8 & 15) << (4 * row);
    }

    #[inline(always)]
    fn decode(&self) -> [Lanes; 2] {
        [
            map_array(self.0, |byte| f32::from(byte & 15)),
            map_array(self.0, |byte| f32::from(byte >> 4)),
        ]
    }
}

impl RowPair for EightBitRowPair {
    const HAS_SCALES: bool = true;

    fn set(&mut self, row: usize, lane: usize, code: u16) {
        self.0[row][lane] = code as i8;
    }

    #[inline(always)]
    fn decode(&self) -> [Lanes; 2] {
        map_array(self.0, |row| map_array(row, f32::from))
    }
}

impl RowPair for Bf16RowPair {
    const HAS_SCALES: bool = false;
    // Two instructions expand two numbers.
    const MAX_FUSED_ROWS: usize = 128;

    fn set(&mut self, row: usize, lane: usize, code: u16) {
        self.0[lane] |= u32::from(code) << (16 * row);
    }

    #[inline(always)]
    fn decode(&self) -> [Lanes; 2] {
        [
            map_array(self.0, |word| f32::from_bits(word << 16)),
            map_array(self.0, |word| f32::from_bits(word & 0xffff_0000)),
        ]
    }
}

impl RowPair for F16RowPair {
    const HAS_SCALES: bool = false;

    fn set(&mut self, row: usize, lane: usize, code: u16) {
        self.0[row][lane] = code;
    }

    #[inline(always)]
    fn decode(&self) -> [Lanes; 2] {
        map_array(self.0, |row| map_array(row, f16_to_f32))
    }
}

/// The number with these bits in half precision. The exponent's bias is 15 there and 127 in single precision, and a
/// product with a power of two is exact, also where the number is subnormal in half precision.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    let bits = u32::from(bits);
    let scale = f32::from_bits((127 + 127 - 15) << 23);
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * scale;
    // Infinities and NaN have all bits of the exponent.
    let exponent = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | exponent | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::half::{bf16, f16};

    #[test]
    fn halves_of_all_bits_are_their_numbers() {
        for bits in 0..=u16::MAX {
            let want = [bf16::from_bits(bits).to_f32(), f16::from_bits(bits).to_f32()];
            let pair = Bf16RowPair([bits.into(); LANES]).decode();
            for (got, want) in [pair[0][0], f16_to_f32(bits)].into_iter().zip(want) {
                let is_same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(is_same, "{bits:04x}: {got}, not {want}");
            }
        }
    }
}
