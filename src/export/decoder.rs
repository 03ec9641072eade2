//! ONNX nodes for one step of a decoder over observations.
//!
//! The memory is that of [`DecoderShape::memory_size`]: the count of steps so far, then keys and values of each layer,
//! `[context, kv_size]` each, in a ring. The step writes its own keys and values before it looks at all of them.

use super::graph::{FLOAT, Graph, INT64, int_attribute, ints_attribute};
use crate::model::DecoderShape;

/// Number added to the scores of empty memory rows.
const MASKED_SCORE: f32 = -1e9;

/// Tensors used by all layers.
struct LayerInputs {
    /// Whether a memory row is that of the current step: `[batch, context, 1, 1]`.
    is_current_row: String,
    /// 0 for memory rows that hold a step, else [`MASKED_SCORE`]: `[batch, 1, 1, context]`.
    mask: String,
    /// Cosines and sines of the step's position: `[batch, 1, num_pairs]`.
    rotation: [String; 2],
}

/// Adds the nodes of a step, with the outputs `logits`, `[batch, num_actions]`, and `next_memory`.
pub(super) fn add_step(graph: &mut Graph, shape: &DecoderShape) {
    let size = shape.hidden_size;
    let mut x = graph.add_linear("obs", shape.num_features(), size);
    let count = slice_memory(graph, 0, 1);
    let layer_inputs = add_layer_inputs(graph, shape, &count);
    let one = graph.add_scalar(1.0);
    let mut memory = vec![graph.apply("Add", &[&count, &one])];
    for layer in 0..shape.num_layers {
        let input = normalize(graph, shape, &x);
        let (attended, keys_values) = add_attention(graph, shape, &layer_inputs, layer, &input);
        memory.extend(keys_values);
        x = graph.apply("Add", &[&x, &attended]);
        let input = normalize(graph, shape, &x);
        let gate = multiply(graph, &input, size, shape.intermediate_size);
        let gate = graph.add_activation(&gate, shape.activation);
        let up = multiply(graph, &input, size, shape.intermediate_size);
        let gated = graph.apply("Mul", &[&gate, &up]);
        let output = multiply(graph, &gated, shape.intermediate_size, size);
        x = graph.apply("Add", &[&x, &output]);
    }
    let hidden = normalize(graph, shape, &x);
    let logits = multiply(graph, &hidden, size, shape.num_outputs);
    let parts: Vec<&str> = memory.iter().map(String::as_str).collect();
    let next_memory = graph.apply_with("Concat", &parts, [int_attribute("axis", 1)]);
    graph.add_node("Identity", &[&logits], "logits");
    graph.add_node("Identity", &[&next_memory], "next_memory");
}

/// Takes `count` columns of the memory, from `start` on.
fn slice_memory(graph: &mut Graph, start: usize, count: usize) -> String {
    let [start, end, axis] =
        [start, start + count, 1].map(|index| graph.add_integers(&[index as i64]));
    graph.apply("Slice", &["memory", &start, &end, &axis])
}

fn reshape(graph: &mut Graph, x: &str, sizes: &[usize]) -> String {
    let sizes: Vec<i64> = std::iter::once(-1).chain(sizes.iter().map(|n| *n as i64)).collect();
    let sizes = graph.add_integers(&sizes);
    graph.apply("Reshape", &[x, &sizes])
}

fn transpose(graph: &mut Graph, x: &str, order: [i64; 4]) -> String {
    graph.apply_with("Transpose", &[x], [ints_attribute("perm", &order)])
}

/// Multiplies by a weight matrix, `[inputs, outputs]`, taken from the next parameters.
fn multiply(graph: &mut Graph, x: &str, inputs: usize, outputs: usize) -> String {
    let weight = graph.add_parameter(&[inputs, outputs]);
    graph.apply("MatMul", &[x, &weight])
}

/// Applies RMSNorm to the rows of `x`, `[batch, hidden_size]`, weighted by the next parameters.
fn normalize(graph: &mut Graph, shape: &DecoderShape, x: &str) -> String {
    let weight = graph.add_parameter(&[shape.hidden_size]);
    let eps = graph.add_scalar(shape.rms_norm_eps);
    let square = graph.apply("Mul", &[x, x]);
    let mean = graph.apply_with("ReduceMean", &[&square], [ints_attribute("axes", &[1])]);
    let mean = graph.apply("Add", &[&mean, &eps]);
    let root = graph.apply("Sqrt", &[&mean]);
    let normed = graph.apply("Div", &[x, &root]);
    graph.apply("Mul", &[&normed, &weight])
}

/// Adds what all layers share of a step that follows `count` others: the row of the memory that it takes, the mask
/// of rows not yet written, and the rotation of its position.
fn add_layer_inputs(graph: &mut Graph, shape: &DecoderShape, count: &str) -> LayerInputs {
    let context = shape.context;
    let position = graph.apply_with("Cast", &[count], [int_attribute("to", INT64)]);
    let rows: Vec<i64> = (0..context as i64).collect();
    let (rows, length) = (graph.add_integers(&rows), graph.add_integers(&[context as i64]));
    let current_row = graph.apply("Mod", &[&position, &length]);
    let is_current_row = graph.apply("Equal", &[&rows, &current_row]);
    let is_current_row = reshape(graph, &is_current_row, &[context, 1, 1]);
    let is_unwritten = graph.apply("Greater", &[&rows, &position]);
    let is_unwritten = graph.apply_with("Cast", &[&is_unwritten], [int_attribute("to", FLOAT)]);
    let masked_score = graph.add_scalar(MASKED_SCORE);
    let mask = graph.apply("Mul", &[&is_unwritten, &masked_score]);
    let mask = reshape(graph, &mask, &[1, 1, context]);
    let rope_tables = shape.rope_tables();
    let table = &rope_tables[0];
    let [low_parts, high_parts] = table.parts.map(|parts| graph.add_integers(&[parts as i64]));
    let low = graph.apply("Mod", &[&position, &low_parts]);
    let high = graph.apply("Div", &[&position, &low_parts]);
    let high = graph.apply("Mod", &[&high, &high_parts]);
    let mut look_up = |entries: &[[f32; 2]], column: usize, row_index: &str| {
        let values: Vec<f32> = entries.iter().map(|cos_sin| cos_sin[column]).collect();
        let values =
            graph.add_constant(&[entries.len() / table.num_pairs, table.num_pairs], &values);
        graph.apply("Gather", &[&values, row_index])
    };
    let [low_cos, low_sin] = [0, 1].map(|column| look_up(&table.low, column, &low));
    let [high_cos, high_sin] = [0, 1].map(|column| look_up(&table.high, column, &high));
    let mut product = |a: &str, b: &str| graph.apply("Mul", &[a, b]);
    let cos_terms = [product(&high_cos, &low_cos), product(&high_sin, &low_sin)];
    let sin_terms = [product(&high_sin, &low_cos), product(&high_cos, &low_sin)];
    let cos = graph.apply("Sub", &[&cos_terms[0], &cos_terms[1]]);
    let sin = graph.apply("Add", &[&sin_terms[0], &sin_terms[1]]);
    LayerInputs { is_current_row, mask, rotation: [cos, sin] }
}

/// Applies RoPE to heads, `[batch, heads, head_dim]`.
fn rotate(graph: &mut Graph, x: &str, [cos, sin]: &[String; 2]) -> String {
    let halves = graph.split(x, 2, 2);
    let (a, b) = (&halves[0], &halves[1]);
    let mut product = |x: &str, y: &str| graph.apply("Mul", &[x, y]);
    let (ac, bs, bc, as_) = (product(a, cos), product(b, sin), product(b, cos), product(a, sin));
    let (left, right) = (graph.apply("Sub", &[&ac, &bs]), graph.apply("Add", &[&bc, &as_]));
    graph.apply_with("Concat", &[&left, &right], [int_attribute("axis", 2)])
}

/// Adds the attention of a layer. Returns its output, and the layer's keys and values in the next memory.
fn add_attention(
    graph: &mut Graph,
    shape: &DecoderShape,
    layer_inputs: &LayerInputs,
    layer: usize,
    input: &str,
) -> (String, [String; 2]) {
    let (heads, kv_heads, dim, context) =
        (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.context);
    let size = shape.hidden_size;
    let queries = multiply(graph, input, size, heads * dim);
    let keys = multiply(graph, input, size, kv_heads * dim);
    let values = multiply(graph, input, size, kv_heads * dim);
    let queries = reshape(graph, &queries, &[heads, dim]);
    let queries = rotate(graph, &queries, &layer_inputs.rotation);
    let scale = graph.add_scalar(shape.head_shape().scale);
    let queries = graph.apply("Mul", &[&queries, &scale]);
    let queries = reshape(graph, &queries, &[kv_heads, heads / kv_heads, dim]);
    let keys = reshape(graph, &keys, &[kv_heads, dim]);
    let keys = rotate(graph, &keys, &layer_inputs.rotation);
    let start = shape.cache_start(layer);
    let cached = [(keys, start), (values, start + shape.cache_size())].map(|(new, start)| {
        let new = reshape(graph, &new, &[1, kv_heads, dim]);
        let old = slice_memory(graph, start, shape.cache_size());
        let old = reshape(graph, &old, &[context, kv_heads, dim]);
        graph.apply("Where", &[&layer_inputs.is_current_row, &new, &old])
    });
    let keys = transpose(graph, &cached[0], [0, 2, 3, 1]);
    let values = transpose(graph, &cached[1], [0, 2, 1, 3]);
    let scores = graph.apply("MatMul", &[&queries, &keys]);
    let scores = graph.apply("Add", &[&scores, &layer_inputs.mask]);
    let weights = graph.apply_with("Softmax", &[&scores], [int_attribute("axis", 3)]);
    let attended = graph.apply("MatMul", &[&weights, &values]);
    let attended = reshape(graph, &attended, &[heads * dim]);
    let output = multiply(graph, &attended, heads * dim, size);
    let keys_values = cached.map(|cached| reshape(graph, &cached, &[shape.cache_size()]));
    (output, keys_values)
}
