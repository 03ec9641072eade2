//! The number formats of GGUF files, to single precision.
//!
//! The layouts are those of ggml's `ggml-common.h`: a block has a scale, often an offset, and a few bits for
//! each of its numbers.

use half::{bf16, f16};

/// A format: numbers of a block, its bytes, and how to read it.
#[derive(Clone, Copy)]
pub(super) struct Format {
    pub numbers: usize,
    pub bytes: usize,
    read: fn(&[u8], &mut [f32]),
}

/// The names of ggml's other formats (`ggml.h`).
const NAMES: [(u32, &str); 22] = [
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

impl Format {
    /// The format that ggml gives this number.
    ///
    /// # Errors
    /// Its name and those of the formats that are known, if it is not.
    pub fn of(number: u32) -> Result<Self, String> {
        let format = |numbers, bytes, read| Ok(Self { numbers, bytes, read });
        match number {
            0 => format(1, 4, |block, to| {
                to[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]])
            }),
            1 => format(1, 2, |block, to| to[0] = half(block)),
            2 => format(32, 18, q4_0),
            3 => format(32, 20, q4_1),
            6 => format(32, 22, q5_0),
            7 => format(32, 24, q5_1),
            8 => format(32, 34, q8_0),
            12 => format(256, 144, q4_k),
            13 => format(256, 176, q5_k),
            14 => format(256, 210, q6_k),
            30 => {
                format(1, 2, |block, to| to[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32())
            }
            _ => {
                let name = NAMES.iter().find(|(known, _)| *known == number);
                let name =
                    name.map_or_else(|| format!("number {number}"), |(_, name)| name.to_string());
                Err(format!(
                    "ggml's format {name}, which is not known; there are F32, F16, BF16, Q4_0, Q4_1, Q5_0, \
                     Q5_1, Q8_0, Q4_K, Q5_K and Q6_K"
                ))
            }
        }
    }

    /// All numbers of some blocks.
    pub fn read(&self, blocks: &[u8]) -> Vec<f32> {
        let mut numbers = vec![0.0; blocks.len() / self.bytes * self.numbers];
        let places = numbers.chunks_exact_mut(self.numbers);
        blocks.chunks_exact(self.bytes).zip(places).for_each(|(block, to)| (self.read)(block, to));
        numbers
    }
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// The lower halves of bytes, then the upper ones.
fn nibbles(bytes: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().map(|byte| byte & 15).chain(bytes.iter().map(|byte| byte >> 4))
}

/// Number `i`'s fifth bit, where it is to be added.
fn fifth(bits: &[u8], i: usize) -> u8 {
    (bits[i / 8] >> (i % 8) & 1) << 4
}

fn q4_0(block: &[u8], to: &mut [f32]) {
    let scale = half(block);
    to.iter_mut().zip(nibbles(&block[2..])).for_each(|(x, q)| *x = (f32::from(q) - 8.0) * scale);
}

fn q4_1(block: &[u8], to: &mut [f32]) {
    let (scale, least) = (half(block), half(&block[2..]));
    to.iter_mut().zip(nibbles(&block[4..])).for_each(|(x, q)| *x = f32::from(q) * scale + least);
}

fn q5_0(block: &[u8], to: &mut [f32]) {
    let scale = half(block);
    for (i, (x, q)) in to.iter_mut().zip(nibbles(&block[6..])).enumerate() {
        *x = (f32::from(q | fifth(&block[2..6], i)) - 16.0) * scale;
    }
}

fn q5_1(block: &[u8], to: &mut [f32]) {
    let (scale, least) = (half(block), half(&block[2..]));
    for (i, (x, q)) in to.iter_mut().zip(nibbles(&block[8..])).enumerate() {
        *x = f32::from(q | fifth(&block[4..8], i)) * scale + least;
    }
}

fn q8_0(block: &[u8], to: &mut [f32]) {
    let scale = half(block);
    to.iter_mut().zip(&block[2..]).for_each(|(x, q)| *x = f32::from(*q as i8) * scale);
}

/// The scale and the offset of group `i` of a block of eight, 6 bits each, in 12 bytes.
fn packed(bytes: &[u8], i: usize) -> [f32; 2] {
    let (scale, least) = match i < 4 {
        true => (bytes[i] & 63, bytes[i + 4] & 63),
        false => {
            (bytes[i + 4] & 15 | bytes[i - 4] >> 6 << 4, bytes[i + 4] >> 4 | bytes[i] >> 6 << 4)
        }
    };
    [f32::from(scale), f32::from(least)]
}

fn q4_k(block: &[u8], to: &mut [f32]) {
    let (scale, least) = (half(block), half(&block[2..]));
    let (groups, numbers) = (&block[4..16], &block[16..]);
    for (i, to) in to.chunks_exact_mut(32).enumerate() {
        let [s, l] = packed(groups, i);
        let numbers = &numbers[i / 2 * 32..][..32];
        for (x, q) in to.iter_mut().zip(numbers) {
            *x = scale * s * f32::from(q >> (i % 2 * 4) & 15) - least * l;
        }
    }
}

fn q5_k(block: &[u8], to: &mut [f32]) {
    let (scale, least) = (half(block), half(&block[2..]));
    let (groups, fifths, numbers) = (&block[4..16], &block[16..48], &block[48..]);
    for (i, to) in to.chunks_exact_mut(32).enumerate() {
        let [s, l] = packed(groups, i);
        let numbers = &numbers[i / 2 * 32..][..32];
        for ((x, q), fifth) in to.iter_mut().zip(numbers).zip(fifths) {
            let q = q >> (i % 2 * 4) & 15 | (fifth >> i & 1) << 4;
            *x = scale * s * f32::from(q) - least * l;
        }
    }
}

fn q6_k(block: &[u8], to: &mut [f32]) {
    let (lower, upper, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let scale = half(&block[208..]);
    for (i, x) in to.iter_mut().enumerate() {
        // Two halves of 128 numbers, each of four groups of 32.
        let (part, group, l) = (i / 128, i / 32 % 4, i % 32);
        let low = lower[part * 64 + group % 2 * 32 + l] >> (group / 2 * 4) & 15;
        let high = upper[part * 32 + l] >> (group * 2) & 3;
        let q = f32::from(low | high << 4) - 32.0;
        *x = scale * f32::from(scales[i / 16] as i8) * q;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cases are a format's number, where its blocks have halves, how many numbers two blocks have,
    /// their sum with weights, and two of them: as the Python package `gguf` reads them.
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
        for (number, halves, count, sum, early, late) in expected {
            let format = Format::of(number).unwrap();
            let mut bytes: Vec<u8> =
                (0..2 * format.bytes).map(|i| ((i * i * 37 + i * 11 + 5) % 251) as u8).collect();
            for (block, bytes) in bytes.chunks_exact_mut(format.bytes).enumerate() {
                for at in halves {
                    bytes[*at..at + 2].copy_from_slice(&[0x66, 0x2e + block as u8]);
                }
            }
            let numbers = format.read(&bytes);
            assert_eq!(numbers.len(), count);
            let weighted = numbers.iter().enumerate();
            let weighted = weighted.map(|(i, x)| f64::from(*x) * ((i * 7 % 13) as f64 - 6.0));
            let got = (weighted.sum::<f64>(), numbers[5], numbers[count - 3]);
            assert!((got.0 - sum).abs() < 1e-3 * sum.abs(), "{number}: {got:?}");
            assert!(
                (got.1 - early).abs() < 1e-5 && (got.2 - late).abs() < 1e-5,
                "{number}: {got:?}"
            );
        }
    }
}
