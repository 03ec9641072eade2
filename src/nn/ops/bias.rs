//! The bias of a linear layer, added to every row.

/// Adds `bias`, `[columns]`, to each row; an empty bias adds nothing.
pub fn forward(bias: &[f32], rows: &mut [f32]) {
    if bias.is_empty() {
        return;
    }
    for row in rows.chunks_exact_mut(bias.len()) {
        row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
    }
}

/// Adds the rows of `dy` to the bias gradient `d_bias`; an empty one takes nothing.
pub fn backward(dy: &[f32], d_bias: &mut [f32]) {
    if d_bias.is_empty() {
        return;
    }
    for dy in dy.chunks_exact(d_bias.len()) {
        d_bias.iter_mut().zip(dy).for_each(|(sum, d)| *sum += d);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::{Draws, assert_gradient, weighted_sum};

    #[test]
    fn gradients_are_finite_differences() {
        let mut draws = Draws::new(1);
        for _ in 0..8 {
            let (rows, columns) = (draws.next_size(5), draws.next_size(19));
            let (x, bias) = (draws.next_numbers(rows * columns), draws.next_numbers(columns));
            let dy = draws.next_numbers(rows * columns);
            let mut d_bias = vec![0.0; columns];
            backward(&dy, &mut d_bias);
            assert_gradient("bias", &bias, &d_bias, |bias| {
                let mut y = x.clone();
                forward(bias, &mut y);
                weighted_sum(&y, &dy)
            });
        }
    }
}
