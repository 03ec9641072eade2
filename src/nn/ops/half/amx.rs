//! Products of tiles by Advanced Matrix Extensions, on Linux.
//!
//! Two by two tiles of sums stay in registers while the inner dimension is traversed. `tdpbf16ps` sums the even and
//! the odd numbers of a tile's inner dimension apart before it adds both to the sums (Intel 64 and IA-32 Architectures
//! Software Developer's Manual, volume 2).

use super::output::Output;
use super::tiles::{Operand, SIDE, Sums, Tile};
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::ops::Range;

/// The kernel's number of `arch_prctl(ARCH_REQ_XCOMP_PERM)`, and that of the state of tiles.
const REQUEST_PERMISSION: libc::c_long = 0x1023;
const TILE_DATA: libc::c_long = 18;
/// The bits of `cpuid(7, 0).edx` that stand for `amx_bf16` and `amx_tile`.
const FEATURES: u32 = 1 << 22 | 1 << 24;

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// All eight tiles as 16 rows of 64 bytes.
const CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// Whether the processor has the instructions and the kernel permits this process to use tiles, which the first call
/// asks for.
pub fn is_available() -> bool {
    // SAFETY: the call takes two numbers, and changes nothing but the permission of this process.
    let permit = || unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) };
    is_x86_feature_detected!("avx512f")
        && __cpuid_count(7, 0).edx & FEATURES == FEATURES
        && permit() == 0
}

/// Multiplies the strips `rows` of `a` by the strips `columns` of `b`, whose part of `to` is this thread's alone.
///
/// The processor must have the instructions: [`is_available`].
pub fn multiply(a: &Operand, b: &Operand, [rows, columns]: [Range<usize>; 2], to: &Output) {
    let configuration = CONFIGURATION;
    // SAFETY: the processor has the instructions, since a kernel is taken from those available, and the configuration is a valid one.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack)) };
    let mut sums = [const { Sums([[0.0; SIDE]; SIDE]) }; 4];
    for j in columns.clone().step_by(2) {
        for i in rows.clone().step_by(2) {
            // Beyond the last strip, it is multiplied again.
            let (down, across) = ((i + 1).min(rows.end - 1), (j + 1).min(columns.end - 1));
            let (left, right) = ([i, down].map(|i| a.strip(i)), [j, across].map(|j| b.strip(j)));
            // SAFETY: tiles are configured; the four tiles of the output are this thread's.
            unsafe {
                match to.place([i, j]) {
                    Some((start, row)) => {
                        let below = start.add(SIDE * row);
                        let places = [start, start.add(SIDE), below, below.add(SIDE)];
                        square(left, right, places, row);
                    }
                    None => {
                        let places = sums.each_mut().map(|sums| sums.0.as_mut_ptr().cast());
                        match down == i {
                            true => pair(left[0], right, [places[0], places[1]], SIDE),
                            false => square(left, right, places, SIDE),
                        }
                        for (number, sums) in sums.iter().enumerate() {
                            let (down, across) = (number / 2, number % 2);
                            if i + down < rows.end && j + across < columns.end {
                                to.put([i + down, j + across], sums);
                            }
                        }
                    }
                }
            }
        }
    }
    // SAFETY: no tile is in use any more.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// The product of two strips of rows by two of columns; `row` is the distance of rows of the destination.
///
/// # Safety
/// Tiles are configured, all strips have the same length, which is not 0, and each destination has 16 rows of 16
/// numbers.
#[inline]
unsafe fn square(a: [&[Tile]; 2], b: [&[Tile]; 2], to: [*mut f32; 4], row: usize) {
    // SAFETY: the strips are read from their start to their end, and the destinations written as far as they go.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{a0} + {stride}*1]",
            "tileloadd tmm6, [{b0} + {stride}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b1} + {stride}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a1} + {stride}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a0}, 1024",
            "add {a1}, 1024",
            "add {b0}, 1024",
            "add {b1}, 1024",
            "dec {blocks}",
            "jnz 2b",
            a0 = inout(reg) a[0].as_ptr() => _,
            a1 = inout(reg) a[1].as_ptr() => _,
            b0 = inout(reg) b[0].as_ptr() => _,
            b1 = inout(reg) b[1].as_ptr() => _,
            blocks = inout(reg) a[0].len() => _,
            stride = in(reg) 64usize,
            options(nostack),
        );
        asm!(
            "tilestored [{c0} + {row}*1], tmm0",
            "tilestored [{c1} + {row}*1], tmm1",
            "tilestored [{c2} + {row}*1], tmm2",
            "tilestored [{c3} + {row}*1], tmm3",
            c0 = in(reg) to[0],
            c1 = in(reg) to[1],
            c2 = in(reg) to[2],
            c3 = in(reg) to[3],
            row = in(reg) row * size_of::<f32>(),
            options(nostack),
        );
    }
}

/// The product of one strip of rows by two of columns, as [`square`].
///
/// # Safety
/// As [`square`].
#[inline]
unsafe fn pair(a: &[Tile], b: [&[Tile]; 2], to: [*mut f32; 2], row: usize) {
    // SAFETY: as in `square`.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{a} + {stride}*1]",
            "tileloadd tmm6, [{b0} + {stride}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b1} + {stride}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "add {a}, 1024",
            "add {b0}, 1024",
            "add {b1}, 1024",
            "dec {blocks}",
            "jnz 2b",
            "tilestored [{c0} + {row}*1], tmm0",
            "tilestored [{c1} + {row}*1], tmm1",
            a = inout(reg) a.as_ptr() => _,
            b0 = inout(reg) b[0].as_ptr() => _,
            b1 = inout(reg) b[1].as_ptr() => _,
            blocks = inout(reg) a.len() => _,
            stride = in(reg) 64usize,
            c0 = in(reg) to[0],
            c1 = in(reg) to[1],
            row = in(reg) row * size_of::<f32>(),
            options(nostack),
        );
    }
}
