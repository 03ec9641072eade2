//! Token embeddings: a row of the table for each token.

use super::stored::StoredMatrix;

/// Appends the embedding of each token, a row of `table` `[vocabulary, size]` times `scale`, to `rows`.
pub fn forward(
    table: &[f32],
    size: usize,
    scale: f32,
    tokens: impl Iterator<Item = u32>,
    rows: &mut Vec<f32>,
) {
    for token in tokens {
        let row = &table[token as usize * size..][..size];
        rows.extend(row.iter().map(|x| x * scale));
    }
}

/// Appends embeddings as [`forward`], of a table in the number format of its file: `[size, vocabulary]`.
pub fn forward_stored(
    table: &StoredMatrix,
    scale: f32,
    tokens: impl Iterator<Item = u32>,
    rows: &mut Vec<f32>,
) {
    for token in tokens {
        let start = rows.len();
        rows.resize(start + table.inner(), 0.0);
        table.read_column(token as usize, &mut rows[start..]);
        rows[start..].iter_mut().for_each(|x| *x *= scale);
    }
}

/// Adds the gradient of each row, `d_rows`, to that of its token's embedding, in the order of the rows.
pub fn backward(
    d_rows: &[f32],
    size: usize,
    scale: f32,
    tokens: impl Iterator<Item = u32>,
    d_table: &mut [f32],
) {
    for (token, d) in tokens.zip(d_rows.chunks_exact(size)) {
        let sum = &mut d_table[token as usize * size..][..size];
        sum.iter_mut().zip(d).for_each(|(sum, d)| *sum += d * scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::ops::check::{Draws, assert_gradient, weighted_sum};

    #[test]
    fn gradients_are_finite_differences() {
        let mut draws = Draws::new(2);
        for scale in [1.0, 3.5] {
            let (vocabulary, size, count) =
                (draws.next_size(7), draws.next_size(9), draws.next_size(11));
            let tokens: Vec<u32> =
                (0..count).map(|_| draws.next_size(vocabulary) as u32 - 1).collect();
            let table = draws.next_numbers(vocabulary * size);
            let dy = draws.next_numbers(count * size);
            let mut d_table = vec![0.0; table.len()];
            backward(&dy, size, scale, tokens.iter().copied(), &mut d_table);
            assert_gradient("table", &table, &d_table, |table| {
                let mut rows = Vec::new();
                forward(table, size, scale, tokens.iter().copied(), &mut rows);
                weighted_sum(&rows, &dy)
            });
        }
    }
}
