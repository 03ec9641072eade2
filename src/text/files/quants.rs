//! Decoders of the number formats of GGUF files.
//!
//! The layouts are those of ggml's `ggml-common.h`: a block has a scale, often an offset, and a few bits for
//! each of its numbers.

use crate::nn::ops::stored::{Column, NumberFormat, StoredMatrix};
use half::f16;

/// A format: values and bytes per block, and how to decode it.
#[derive(Clone, Copy)]
pub(super) struct BlockFormat {
    pub block_values: usize,
    pub block_bytes: usize,
    encoding: Encoding,
}

/// The encoding of the values of a block.
#[derive(Clone, Copy)]
enum Encoding {
    /// Single precision.
    Single,
    /// Half-precision numbers.
    Half(NumberFormat),
    /// Blocks of codes, with a scale and an offset per `group_size` of them.
    Codes { format: NumberFormat, group_size: usize, unpack: Unpack },
}

/// Fills the codes of a block, and the scales and offsets of its groups.
type Unpack = fn(&[u8], &mut [u16], &mut [[f32; 2]]);

/// The names of ggml's formats by their codes (`ggml.h`); empty for those that it has removed.
const NAMES: [&str; 41] = [
    "F32", "F16", "Q4_0", "Q4_1", "", "", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K",
    "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S",
    "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0", "",
    "", "", "MXFP4", "NVFP4",
];

impl BlockFormat {
    /// Single precision.
    pub const F32: Self = Self { block_values: 1, block_bytes: 4, encoding: Encoding::Single };
    /// Half precision.
    pub const F16: Self = Self::half(NumberFormat::F16);
    /// bfloat16.
    pub const BF16: Self = Self::half(NumberFormat::Bf16);

    const fn half(format: NumberFormat) -> Self {
        Self { block_values: 1, block_bytes: 2, encoding: Encoding::Half(format) }
    }

    /// Finds a format by ggml's code.
    ///
    /// # Errors
    /// A phrase that names the format and the supported ones, if it is not supported.
    pub fn from_code(code: u32) -> Result<Self, String> {
        let codes = |block_values, block_bytes, format, group_size, unpack| {
            Ok(Self {
                block_values,
                block_bytes,
                encoding: Encoding::Codes { format, group_size, unpack },
            })
        };
        match code {
            0 => Ok(Self::F32),
            1 => Ok(Self::F16),
            2 => codes(32, 18, NumberFormat::FourBit, 32, unpack_q4_q5::<false, false>),
            3 => codes(32, 20, NumberFormat::FourBit, 32, unpack_q4_q5::<true, false>),
            6 => codes(32, 22, NumberFormat::EightBit, 32, unpack_q4_q5::<false, true>),
            7 => codes(32, 24, NumberFormat::EightBit, 32, unpack_q4_q5::<true, true>),
            8 => codes(32, 34, NumberFormat::EightBit, 32, unpack_q8_0),
            12 => codes(256, 144, NumberFormat::FourBit, 32, unpack_q4k_q5k::<false>),
            13 => codes(256, 176, NumberFormat::EightBit, 32, unpack_q4k_q5k::<true>),
            14 => codes(256, 210, NumberFormat::EightBit, 16, unpack_q6_k),
            30 => Ok(Self::BF16),
            _ => {
                let name = NAMES.get(code as usize).filter(|name| !name.is_empty());
                let name = name.map_or_else(|| format!("number {code}"), |name| name.to_string());
                Err(format!(
                    "ggml's format {name}, which is not known; there are F32, F16, BF16, Q4_0, Q4_1, Q5_0, \
                     Q5_1, Q8_0, Q4_K, Q5_K and Q6_K"
                ))
            }
        }
    }

    /// Bytes of this many values, which fill whole blocks.
    pub fn num_bytes(self, num_values: usize) -> usize {
        num_values / self.block_values * self.block_bytes
    }

    /// Decodes all values of some blocks.
    pub fn decode(self, blocks: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; blocks.len() / self.block_bytes * self.block_values];
        match self.to_matrix(blocks, [values.len(), 1], |_| 0) {
            Some(matrix) => matrix.read_column(0, &mut values),
            None => {
                let words = blocks.as_chunks().0;
                values.iter_mut().zip(words).for_each(|(x, word)| *x = f32::from_le_bytes(*word));
            }
        }
        values
    }

    /// Converts blocks to the matrix of these sizes, `[inner, columns]`, whose column `j` is row `row(j)` of `blocks`,
    /// without expanding it; `None` if the numbers are in f32 anyway. Rows consist of whole blocks.
    pub fn to_matrix(
        self,
        blocks: &[u8],
        sizes @ [inner, _]: [usize; 2],
        row: impl Fn(usize) -> usize + Sync,
    ) -> Option<StoredMatrix> {
        let width = self.num_bytes(inner);
        let row = |column: usize| &blocks[row(column) * width..][..width];
        match self.encoding {
            Encoding::Single => None,
            Encoding::Half(format) => Some(StoredMatrix::from_halves(format, sizes, row)),
            Encoding::Codes { format, group_size, unpack } => {
                let fill = |column: usize, Column { codes, scales }: Column| {
                    let codes = codes.chunks_exact_mut(self.block_values);
                    let scales = scales.chunks_exact_mut(self.block_values / group_size);
                    let blocks = row(column).chunks_exact(self.block_bytes);
                    for (block, (codes, scales)) in blocks.zip(codes.zip(scales)) {
                        unpack(block, codes, scales);
                    }
                };
                Some(StoredMatrix::new(format, sizes, group_size, fill))
            }
        }
    }
}

fn read_half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// The fifth bit of value `i`, shifted into place.
fn fifth_bit(bits: &[u8], i: usize) -> u16 {
    u16::from(bits[i / 8] >> (i % 8) & 1) << 4
}

/// Decodes a block of 32 codes with a scale and, if `OFFSET`, an offset; otherwise codes count from the
/// middle of their range. Codes have 4 bits, or 5 (`FIFTH`), the fifth of them apart.
fn unpack_q4_q5<const OFFSET: bool, const FIFTH: bool>(
    block: &[u8],
    codes: &mut [u16],
    scales: &mut [[f32; 2]],
) {
    let (scale, middle) = (read_half(block), if FIFTH { -16.0 } else { -8.0 });
    let (offset, rest) =
        if OFFSET { (read_half(&block[2..]), &block[4..]) } else { (middle * scale, &block[2..]) };
    scales[0] = [scale, offset];
    let (fifths, bytes) = rest.split_at(if FIFTH { 4 } else { 0 });
    // The lower four bits of all bytes, then the upper ones.
    let lower = bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4));
    for (i, (code, q)) in codes.iter_mut().zip(lower).enumerate() {
        *code = u16::from(q) | if FIFTH { fifth_bit(fifths, i) } else { 0 };
    }
}

fn unpack_q8_0(block: &[u8], codes: &mut [u16], scales: &mut [[f32; 2]]) {
    scales[0] = [read_half(block), 0.0];
    codes.iter_mut().zip(&block[2..]).for_each(|(code, q)| *code = (*q).into());
}

/// Scale and offset of group `i` of a block of eight groups, 6 bits each, in 12 bytes.
fn unpack_scale(from: &[u8], i: usize) -> [f32; 2] {
    let (scale, offset) = if i < 4 {
        (from[i] & 63, from[i + 4] & 63)
    } else {
        (from[i + 4] & 15 | from[i - 4] >> 6 << 4, from[i + 4] >> 4 | from[i] >> 6 << 4)
    };
    [f32::from(scale), f32::from(offset)]
}

/// Decodes a block of eight groups with scales and offsets, which begins with the scale and the offset of these. Codes
/// have 4 bits, or 5 (`FIFTH`), the fifth of them apart.
fn unpack_q4k_q5k<const FIFTH: bool>(block: &[u8], codes: &mut [u16], scales: &mut [[f32; 2]]) {
    let (scale, offset) = (read_half(block), read_half(&block[2..]));
    for (i, to) in scales.iter_mut().enumerate() {
        let [s, o] = unpack_scale(&block[4..16], i);
        *to = [scale * s, -(offset * o)];
    }
    let (fifths, bytes) = block[16..].split_at(if FIFTH { 32 } else { 0 });
    for (i, codes) in codes.chunks_exact_mut(32).enumerate() {
        let bytes = &bytes[i / 2 * 32..][..32];
        for (l, (code, q)) in codes.iter_mut().zip(bytes).enumerate() {
            let fifth = if FIFTH { (fifths[l] >> i & 1) << 4 } else { 0 };
            *code = u16::from(q >> (i % 2 * 4) & 15 | fifth);
        }
    }
}

fn unpack_q6_k(block: &[u8], codes: &mut [u16], scales: &mut [[f32; 2]]) {
    let (lower, upper) = (&block[..128], &block[128..192]);
    let scale = read_half(&block[208..]);
    for (to, s) in scales.iter_mut().zip(&block[192..208]) {
        *to = [scale * f32::from(*s as i8), 0.0];
    }
    for (i, code) in codes.iter_mut().enumerate() {
        // Two halves of 128 numbers, each of four groups of 32.
        let (part, group, l) = (i / 128, i / 32 % 4, i % 32);
        let low = lower[part * 64 + group % 2 * 32 + l] >> (group / 2 * 4) & 15;
        let high = upper[part * 32 + l] >> (group * 2) & 3;
        *code = (low | high << 4).wrapping_sub(32).into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each case is a format's code, the offsets of half-precision numbers in its blocks, the count of numbers in two
    /// blocks, their weighted sum, and two of the numbers, as the Python package `gguf` reads them.
    #[test]
    fn blocks_are_read_as_the_reference_reads_them() {
        type Expected = (u32, &'static [usize], usize, f64, f32, f32);
        let expected: [Expected; 8] = [
            (2, &[0], 64, -5.8580, 0.199951, 0.809204),
            (3, &[0, 2], 64, 11.7321, 0.999756, 0.924805),
            (6, &[0], 64, 8.5040, 0.499878, 1.040405),
            (7, &[0, 2], 64, 4.6770, 1.499634, 0.924805),
            (8, &[0], 64, -50.3721, -11.797119, -9.94165),
            (12, &[0, 2], 512, -1319.5066, 14.396484, 61.730713),
            (13, &[0, 2], 512, -734.2145, 8.897827, -0.115601),
            (14, &[208], 512, -13688.6815, -90.37793, -29.131348),
        ];
        for (code, halves, count, sum, early, late) in expected {
            let format = BlockFormat::from_code(code).unwrap();
            let mut bytes: Vec<u8> = (0..2 * format.block_bytes)
                .map(|i| ((i * i * 37 + i * 11 + 5) % 251) as u8)
                .collect();
            for (block, bytes) in bytes.chunks_exact_mut(format.block_bytes).enumerate() {
                for at in halves {
                    bytes[*at..at + 2].copy_from_slice(&[0x66, 0x2e + block as u8]);
                }
            }
            let values = format.decode(&bytes);
            assert_eq!(values.len(), count);
            let weighted = values.iter().enumerate();
            let weighted = weighted.map(|(i, x)| f64::from(*x) * ((i * 7 % 13) as f64 - 6.0));
            let got = (weighted.sum::<f64>(), values[5], values[count - 3]);
            assert!((got.0 - sum).abs() < 1e-3 * sum.abs(), "{code}: {got:?}");
            assert!((got.1 - early).abs() < 1e-5 && (got.2 - late).abs() < 1e-5, "{code}: {got:?}");
        }
    }
}
