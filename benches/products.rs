//! Matrix products of the CPU, in f32 and in bf16, at the sizes of SmolLM2-135M: GFLOP/s.
//!
//! `cargo bench --bench products`; `RAYON_NUM_THREADS=1` for one thread. `benches/peers/products_torch.py` measures the
//! same products by PyTorch.

use grove::nn::Precision;
use grove::nn::ops::linear::{Arithmetic, forward, pack};
use grove::nn::ops::matmul::View;
use grove::nn::ops::{Parallelism, WriteMode};
use std::time::Instant;

/// Rows, inner dimension, columns.
const SIZES: [[usize; 3]; 4] =
    [[2048, 576, 1536], [2048, 1536, 576], [512, 576, 49_152], [8, 576, 1536]];
const REPEATS: usize = 20;

fn main() {
    println!("{} threads", rayon::current_num_threads());
    for precision in [Precision::F32, Precision::Bf16] {
        let arithmetic = Arithmetic::for_precision(precision);
        println!("{arithmetic:?}");
        for sizes in SIZES {
            println!("{sizes:?}: {:.0} GFLOP/s", best_rate(arithmetic, sizes));
        }
    }
}

/// The highest rate of some products of random rows with a packed weight.
fn best_rate(arithmetic: Arithmetic, [rows, inner, columns]: [usize; 3]) -> f64 {
    let numbers = |count: usize| -> Vec<f32> {
        (0..count).map(|i| (i * 7919 % 1009) as f32 / 1009.0 - 0.5).collect()
    };
    let (x, w) = (numbers(rows * inner), numbers(inner * columns));
    let parallelism = Parallelism::Parallel;
    let packed = pack(arithmetic, parallelism, View::rows(&w, columns), [inner, columns]);
    let mut y = vec![0.0; rows * columns];
    let seconds = (0..REPEATS).map(|_| {
        let start = Instant::now();
        forward(parallelism, &x, &packed, &mut y, WriteMode::Overwrite);
        start.elapsed().as_secs_f64()
    });
    let flops = 2.0 * (rows * inner * columns) as f64;
    flops / seconds.fold(f64::INFINITY, f64::min) / 1e9
}
