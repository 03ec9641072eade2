//! Products of tiles by Advanced Matrix Extensions, on Linux.
//!
//! Two by two tiles of sums stay in registers while a block of the inner dimension is traversed; where products are
//! added, the sums begin with the destination. `tdpbf16ps` sums the even and the odd elements of a tile's inner
//! dimension separately before it adds both to the sums (Intel 64 and IA-32 Architectures Software Developer's Manual,
//! volume 2).

use super::output::{Output, Sums};
use super::tiles::{TILE_SIDE, Tile, TiledMatrix};
use crate::nn::ops::WriteMode;
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::ops::Range;
use std::sync::OnceLock;

/// The kernel's number of `arch_prctl(ARCH_REQ_XCOMP_PERM)`, and that of the state of tiles.
const REQUEST_PERMISSION: libc::c_long = 0x1023;
const TILE_DATA: libc::c_long = 18;
/// The bits of `cpuid(7, 0).edx` that stand for `amx_bf16` and `amx_tile`.
const FEATURES: u32 = 1 << 22 | 1 << 24;

/// Maximum tiles of the inner dimension in a block: two strips of columns of this depth stay in the L1 cache.
const MAX_BLOCK_TILES: usize = 20;

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
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    // SAFETY: the call takes two numbers, and changes nothing but the permission of this process.
    let permit = || unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) };
    *AVAILABLE.get_or_init(|| {
        is_x86_feature_detected!("avx512f")
            && __cpuid_count(7, 0).edx & FEATURES == FEATURES
            && permit() == 0
    })
}

/// Multiplies the strips `rows` of `a` by the strips `columns` of `b`.
///
/// # Safety
/// No other thread may access that part of `output`.
///
/// # Panics
/// If the processor lacks the instructions, or the system does not permit them.
pub unsafe fn multiply(
    a: &TiledMatrix,
    b: &TiledMatrix,
    [rows, columns]: [Range<usize>; 2],
    output: &Output,
) {
    assert!(is_available());
    let configuration = CONFIGURATION;
    // SAFETY: the processor has the instructions, and the configuration is a valid one.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack)) };
    let ends = [rows.end, columns.end];
    let num_tiles = a.strip(rows.start).len();
    let block_tiles = num_tiles.div_ceil(num_tiles.div_ceil(MAX_BLOCK_TILES));
    for j in columns.clone().step_by(2) {
        // Where fewer strips are left, the last one is multiplied again and its product dropped.
        let right = [j, (j + 1).min(columns.end - 1)].map(|j| b.strip(j));
        for first in (0..num_tiles).step_by(block_tiles) {
            let block = first..(first + block_tiles).min(num_tiles);
            let right = right.map(|strip| &strip[block.clone()]);
            let start = if first > 0 || output.mode() == WriteMode::Accumulate {
                Start::Present
            } else {
                Start::Zero
            };
            for i in rows.clone().step_by(2) {
                // The columns of the first rows come from memory: prefetch the next ones meanwhile.
                let ahead = match (i - rows.start) / 2 {
                    strip @ 0..2 => Some((2 + strip) * num_tiles * size_of::<Tile>()),
                    _ => None,
                };
                let left = [i, (i + 1).min(rows.end - 1)].map(|i| &a.strip(i)[block.clone()]);
                // SAFETY: tiles are configured; the four tiles of the output are this thread's.
                unsafe { multiply_square([left, right], [i, j], ends, start, ahead, output) };
            }
        }
    }
    // SAFETY: no tile is in use any more.
    unsafe { asm!("tilerelease", options(nostack, nomem)) };
}

/// The first term of sums.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Zero,
    /// The elements at the destination.
    Present,
}

/// Multiplies two strips of rows by two of columns into the tiles of `output` from `[i, j]` on, up to `ends`.
///
/// # Safety
/// Tiles are configured, all strips have one length, not 0, and no other thread accesses these tiles of `output`.
unsafe fn multiply_square(
    [left, right]: [[&[Tile]; 2]; 2],
    [i, j]: [usize; 2],
    ends: [usize; 2],
    start: Start,
    ahead: Option<usize>,
    output: &Output,
) {
    let is_single = i + 1 == ends[0];
    let is_whole = !is_single && j + 1 < ends[1];
    // SAFETY: the caller guarantees it (`# Safety`); destinations in the matrix are within it, others are tiles of
    // their own.
    unsafe {
        if let Some((first, row_stride)) = output.square([i, j]).filter(|_| is_whole) {
            let below = first.add(TILE_SIDE * row_stride);
            let targets = [first, first.add(TILE_SIDE), below, below.add(TILE_SIDE)];
            return multiply_square_to(left, right, targets, row_stride, start, ahead);
        }
        let mut sums = [const { Sums([[0.0; TILE_SIDE]; TILE_SIDE]) }; 4];
        let tile_at = |index: usize| {
            let [i, j] = [i + index / 2, j + index % 2];
            (i < ends[0] && j < ends[1]).then_some([i, j])
        };
        if start == Start::Present {
            for (index, sums) in sums.iter_mut().enumerate() {
                if let Some(tile) = tile_at(index) {
                    output.load(tile, sums);
                }
            }
        }
        let targets = sums.each_mut().map(|sums| sums.0.as_mut_ptr().cast());
        if is_single {
            multiply_pair_to(left[0], right, [targets[0], targets[1]]);
        } else {
            multiply_square_to(left, right, targets, TILE_SIDE, Start::Present, ahead);
        }
        for (index, sums) in sums.iter().enumerate() {
            if let Some(tile) = tile_at(index) {
                output.overwrite(tile, sums);
            }
        }
    }
}

/// Adds the products of two strips of rows, `$a`, by two of columns, `$b`, to tiles 0 to 3, with some more instructions
/// for each step along the strips, and their operands.
macro_rules! products {
    ($a:ident, $b:ident, [$($more:literal,)*], [$($operands:tt)*]) => {
        asm!(
            "2:",
            "tileloadd tmm4, [{a0} + {stride}*1]",
            "tileloadd tmm6, [{b0} + {stride}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{b1} + {stride}*1]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{a1} + {stride}*1]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            $($more,)*
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a0}, 1024",
            "add {a1}, 1024",
            "add {b0}, 1024",
            "add {b1}, 1024",
            "dec {blocks}",
            "jnz 2b",
            a0 = inout(reg) $a[0].as_ptr() => _,
            a1 = inout(reg) $a[1].as_ptr() => _,
            b0 = inout(reg) $b[0].as_ptr() => _,
            b1 = inout(reg) $b[1].as_ptr() => _,
            blocks = inout(reg) $a[0].len() => _,
            stride = in(reg) 64usize,
            $($operands)*
            options(nostack, readonly),
        )
    };
}

/// Multiplies two strips of rows by two of columns into the tiles at `targets`, which have this row stride. The strip
/// `ahead` bytes after the first one of columns is prefetched.
///
/// # Safety
/// Tiles are configured, all strips have the same length, which is not 0, and each destination has 16 rows of 16
/// numbers.
#[inline]
unsafe fn multiply_square_to(
    a: [&[Tile]; 2],
    b: [&[Tile]; 2],
    targets: [*mut f32; 4],
    row_stride: usize,
    start: Start,
    ahead: Option<usize>,
) {
    let row_bytes = row_stride * size_of::<f32>();
    // SAFETY: the strips are read from their start to their end, and the destinations read and written to theirs.
    unsafe {
        match start {
            Start::Zero => asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem),
            ),
            Start::Present => asm!(
                "tileloadd tmm0, [{c0} + {row_bytes}*1]",
                "tileloadd tmm1, [{c1} + {row_bytes}*1]",
                "tileloadd tmm2, [{c2} + {row_bytes}*1]",
                "tileloadd tmm3, [{c3} + {row_bytes}*1]",
                c0 = in(reg) targets[0],
                c1 = in(reg) targets[1],
                c2 = in(reg) targets[2],
                c3 = in(reg) targets[3],
                row_bytes = in(reg) row_bytes,
                options(nostack, readonly),
            ),
        }
        match ahead {
            None => products!(a, b, [], []),
            Some(ahead) => products!(
                a,
                b,
                [
                    "prefetcht1 [{b0} + {ahead}*1]",
                    "prefetcht1 [{b0} + {ahead}*1 + 64]",
                    "prefetcht1 [{b0} + {ahead}*1 + 128]",
                    "prefetcht1 [{b0} + {ahead}*1 + 192]",
                    "prefetcht1 [{b0} + {ahead}*1 + 256]",
                    "prefetcht1 [{b0} + {ahead}*1 + 320]",
                    "prefetcht1 [{b0} + {ahead}*1 + 384]",
                    "prefetcht1 [{b0} + {ahead}*1 + 448]",
                    "prefetcht1 [{b0} + {ahead}*1 + 512]",
                    "prefetcht1 [{b0} + {ahead}*1 + 576]",
                    "prefetcht1 [{b0} + {ahead}*1 + 640]",
                    "prefetcht1 [{b0} + {ahead}*1 + 704]",
                    "prefetcht1 [{b0} + {ahead}*1 + 768]",
                    "prefetcht1 [{b0} + {ahead}*1 + 832]",
                    "prefetcht1 [{b0} + {ahead}*1 + 896]",
                    "prefetcht1 [{b0} + {ahead}*1 + 960]",
                ],
                [ahead = in(reg) ahead,]
            ),
        }
        asm!(
            "tilestored [{c0} + {row_bytes}*1], tmm0",
            "tilestored [{c1} + {row_bytes}*1], tmm1",
            "tilestored [{c2} + {row_bytes}*1], tmm2",
            "tilestored [{c3} + {row_bytes}*1], tmm3",
            c0 = in(reg) targets[0],
            c1 = in(reg) targets[1],
            c2 = in(reg) targets[2],
            c3 = in(reg) targets[3],
            row_bytes = in(reg) row_bytes,
            options(nostack),
        );
    }
}

/// Adds the product of one strip of rows by two of columns to two tiles.
///
/// # Safety
/// The contract of [`multiply_square_to`].
#[inline]
unsafe fn multiply_pair_to(a: &[Tile], b: [&[Tile]; 2], targets: [*mut f32; 2]) {
    // SAFETY: as in `multiply_square_to`.
    unsafe {
        asm!(
            "tileloadd tmm0, [{c0} + {stride}*1]",
            "tileloadd tmm1, [{c1} + {stride}*1]",
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
            "tilestored [{c0} + {stride}*1], tmm0",
            "tilestored [{c1} + {stride}*1], tmm1",
            a = inout(reg) a.as_ptr() => _,
            b0 = inout(reg) b[0].as_ptr() => _,
            b1 = inout(reg) b[1].as_ptr() => _,
            blocks = inout(reg) a.len() => _,
            stride = in(reg) 64usize,
            c0 = in(reg) targets[0],
            c1 = in(reg) targets[1],
            options(nostack),
        );
    }
}
