//! Attention in tensors: over a row's own sequence, and over a prefix that several sequences share.

use super::products::ProductPrecision;
use burn::tensor::{Device, Int, Tensor, activation};
use std::ops::Range;

/// The number added to the scores of keys that a query does not see.
pub(super) const MASKED_SCORE: f32 = -1e9;

/// Keys and values: `[batch, columns, num_kv_heads, head_dim]` each.
pub(crate) type KeysValues = [Tensor<4>; 2];

/// The keys and values of prompts, each of which is the prefix of some rows.
pub(super) struct Prefix<'a> {
    /// `[num_prompts, longest, num_kv_heads, head_dim]` each; `rows / num_prompts` rows follow each of them.
    pub keys_values: &'a KeysValues,
    /// 0 or [`MASKED_SCORE`]: `[num_prompts, steps or 1, longest]`.
    pub mask: &'a Tensor<3>,
}

/// The result of attention for `queries`, `[rows, steps, heads, head_dim]`, over `own` keys and values,
/// `[rows, columns, num_kv_heads, head_dim]`, and over those of a prefix: `[rows, steps, heads * head_dim]`.
///
/// `mask`, `[rows or 1, steps, columns]`, is 0 where a query sees a key of its own sequence, else [`MASKED_SCORE`].
/// Scores are multiplied by `scale`.
pub(super) fn attend(
    products: ProductPrecision,
    scale: f32,
    queries: Tensor<4>,
    own: &KeysValues,
    mask: Tensor<3>,
    prefix: Option<Prefix>,
) -> Tensor<3> {
    let [rows, steps, heads, head_dim] = queries.dims();
    let [_, columns, kv_heads, _] = own[0].dims();
    let heads_per_kv_head = heads / kv_heads;
    let queries = (queries * scale)
        .reshape([rows, steps, kv_heads, heads_per_kv_head, head_dim])
        .permute([0, 2, 3, 1, 4])
        .reshape([rows, kv_heads, heads_per_kv_head * steps, head_dim]);
    let scores = products.matmul(queries.clone(), move_heads_first(&own[0]).swap_dims(2, 3));
    let mask_rows = mask.dims()[0];
    let scores = scores.reshape([rows, kv_heads, heads_per_kv_head, steps, columns])
        + mask.reshape([mask_rows, 1, 1, steps, columns]);
    let attended = match prefix {
        None => {
            let weights = activation::softmax(scores, 4);
            let weights = weights.reshape([rows, kv_heads, heads_per_kv_head * steps, columns]);
            products.matmul(weights, move_heads_first(&own[1]))
        }
        Some(prefix) => {
            attend_with_prefix(products, queries, scores, move_heads_first(&own[1]), prefix)
        }
    };
    let attended = attended.reshape([rows, kv_heads, heads_per_kv_head, steps, head_dim]);
    attended.permute([0, 3, 1, 2, 4]).reshape([rows, steps, heads * head_dim])
}

/// Moves the heads of keys or values before their columns.
fn move_heads_first(x: &Tensor<4>) -> Tensor<4> {
    x.clone().swap_dims(1, 2)
}

/// The result of attention for `queries`, `[rows, kv_heads, heads_per_kv_head * steps, head_dim]`, over a prefix and
/// over keys and values of their own, whose masked scores, `[rows, kv_heads, heads_per_kv_head, steps, columns]`, and
/// values by head are given.
fn attend_with_prefix(
    products: ProductPrecision,
    queries: Tensor<4>,
    scores: Tensor<5>,
    own_values: Tensor<4>,
    Prefix { keys_values: [keys, values], mask }: Prefix,
) -> Tensor<4> {
    let ([rows, kv_heads, heads_per_kv_head, steps, columns], [.., head_dim]) =
        (scores.dims(), queries.dims());
    let [num_prompts, mask_steps, longest] = mask.dims();
    let rows_per_prompt = rows / num_prompts;
    // The rows of a prompt are compared with its keys in one product.
    let merge_rows = |x: Tensor<4>, width: usize| {
        let x =
            x.reshape([num_prompts, rows_per_prompt, kv_heads, heads_per_kv_head * steps, width]);
        x.swap_dims(1, 2).reshape([
            num_prompts,
            kv_heads,
            rows_per_prompt * heads_per_kv_head * steps,
            width,
        ])
    };
    let split_rows = |x: Tensor<4>, width: usize| {
        let x =
            x.reshape([num_prompts, kv_heads, rows_per_prompt, heads_per_kv_head * steps, width]);
        x.swap_dims(1, 2).reshape([rows, kv_heads, heads_per_kv_head * steps, width])
    };
    let prefix_scores =
        products.matmul(merge_rows(queries, head_dim), move_heads_first(keys).swap_dims(2, 3));
    let prefix_scores = prefix_scores.reshape([
        num_prompts,
        kv_heads * rows_per_prompt * heads_per_kv_head,
        steps,
        longest,
    ]) + mask.clone().reshape([num_prompts, 1, mask_steps, longest]);
    let prefix_scores = split_rows(prefix_scores, longest);
    let prefix_scores = prefix_scores.reshape([rows, kv_heads, heads_per_kv_head, steps, longest]);
    let weights = activation::softmax(Tensor::cat(vec![prefix_scores, scores], 4), 4);
    let weights = weights.reshape([rows, kv_heads, heads_per_kv_head * steps, longest + columns]);
    let prefix_weights = merge_rows(weights.clone().narrow(3, 0, longest), longest);
    let prefix_output =
        split_rows(products.matmul(prefix_weights, move_heads_first(values)), head_dim);
    prefix_output + products.matmul(weights.narrow(3, longest, columns), own_values)
}

/// The mask of some of a text's `count` tokens, computed on the device: each sees itself and those before it, `window`
/// at most: `[1, rows, count]`.
pub(super) fn causal_mask(
    rows: Range<usize>,
    count: usize,
    window: usize,
    device: &Device,
) -> Tensor<3> {
    let size = [1, rows.len(), count];
    let indices = |range: Range<usize>| {
        Tensor::<1, Int>::arange(range.start as i64..range.end as i64, device)
    };
    let columns = indices(0..count).reshape([1, 1, count]).expand(size);
    let rows = indices(rows).reshape([1, size[1], 1]).expand(size);
    let later = columns.clone().greater(rows.clone()).float();
    let hidden = if window < count {
        later + columns.lower_equal(rows - window as i32).float()
    } else {
        later
    };
    hidden * MASKED_SCORE
}
