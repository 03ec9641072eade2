//! Products of rows with weights, spread over the threads where they are large.
//!
//! However a product is cut up, each number of the result is the same sum in the same order.

use crate::model::decoder::product::product;
use crate::model::decoder::product::{Target, View};
use rayon::prelude::*;

/// Rows of a part of a product of many rows.
const ROWS: usize = 128;
/// Columns of a part of a product of few rows.
const COLUMNS: usize = 192;
/// Inputs of a part of a weight's gradient.
const INPUTS: usize = 64;

/// Whether products are spread over the threads.
#[derive(Clone, Copy, Debug)]
pub struct Wide(pub bool);

impl Wide {
    /// `y = x w`, or `y += x w`, rows without gaps: `x` is `[rows, inputs]`, `w` `[inputs, outputs]`.
    pub fn apply(self, x: &[f32], weight: &[f32], inputs: usize, y: &mut [f32], add: bool) {
        self.product(x, View::rows(weight, weight.len() / inputs), inputs, y, add);
    }

    /// `dx = dy w^T`, or `dx += dy w^T`.
    pub fn back(self, dy: &[f32], weight: &[f32], inputs: usize, dx: &mut [f32], add: bool) {
        let outputs = weight.len() / inputs;
        self.product(dy, View::rows(weight, outputs).transposed(), outputs, dx, add);
    }

    /// `y = x w`, or `y += x w`, of a matrix that lies in any way.
    pub fn product(self, x: &[f32], weight: View, inputs: usize, y: &mut [f32], add: bool) {
        let rows = x.len() / inputs;
        if rows == 0 {
            return;
        }
        let outputs = y.len() / rows;
        let part = |x: &[f32], weight: View, y: &mut [f32], outputs: usize, add: bool| {
            let sizes = [x.len() / inputs, inputs, outputs];
            product(View::rows(x, inputs), weight, Target { values: y, row: outputs, add }, sizes);
        };
        if !self.0 {
            part(x, weight, y, outputs, add);
        } else if rows >= 2 * ROWS {
            let parts = y.par_chunks_mut(ROWS * outputs).zip(x.par_chunks(ROWS * inputs));
            parts.for_each(|(y, x)| part(x, weight, y, outputs, add));
        } else {
            let starts: Vec<usize> = (0..outputs).step_by(COLUMNS).collect();
            let parts: Vec<Vec<f32>> = starts
                .par_iter()
                .map(|start| {
                    let columns = COLUMNS.min(outputs - start);
                    let mut y = vec![0.0; rows * columns];
                    let from = &weight.values[start * weight.column..];
                    let weight = View { values: from, ..weight };
                    part(x, weight, &mut y, columns, false);
                    y
                })
                .collect();
            y.par_chunks_mut(outputs).enumerate().for_each(|(row, y)| {
                for (part, y) in parts.iter().zip(y.chunks_mut(COLUMNS)) {
                    let part = &part[row * y.len()..][..y.len()];
                    match add {
                        true => y.iter_mut().zip(part).for_each(|(y, x)| *y += x),
                        false => y.copy_from_slice(part),
                    }
                }
            });
        }
    }

    /// `gradient += x^T dy`, that of a weight.
    pub fn weigh(self, x: &[f32], dy: &[f32], inputs: usize, gradient: &mut [f32]) {
        let (rows, outputs) = (x.len() / inputs, gradient.len() / inputs);
        if rows == 0 {
            return;
        }
        let part = |from: usize, gradient: &mut [f32]| {
            let sizes = [gradient.len() / outputs, rows, outputs];
            let x = View::rows(&x[from..], inputs).transposed();
            let target = Target { values: gradient, row: outputs, add: true };
            product(x, View::rows(dy, outputs), target, sizes);
        };
        match self.0 {
            true => {
                let parts = gradient.par_chunks_mut(INPUTS * outputs).enumerate();
                parts.for_each(|(number, gradient)| part(number * INPUTS, gradient));
            }
            false => part(0, gradient),
        }
    }
}
