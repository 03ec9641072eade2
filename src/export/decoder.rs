//! ONNX nodes for one step of a decoder over observations.
//!
//! The memory is that of [`DecoderShape::memory_size`]: the count of steps so far, then keys and values of each layer,
//! `[context, kv_size]` each, in a ring. The step writes its own keys and values before it looks at all of them.

use super::graph::{FLOAT, Graph, INT64, int_attribute, ints_attribute};
use crate::model::DecoderShape;

/// Number added to the scores of empty memory rows.
const UNSEEN: f32 = -1e9;

/// Tensors used by all layers.
struct LayerInputs {
    /// Whether a memory row is that of the current step: `[batch, context, 1, 1]`.
    is_own: String,
    /// 0 for memory rows that hold a step, else [`UNSEEN`]: `[batch, 1, 1, context]`.
    mask: String,
    /// Cosines and sines of the step's position: `[batch, 1, half]`.
    rotation: [String; 2],
}

/// Adds the nodes of a step. Returns the names of the logits, `[batch, num_actions]`, and of the next memory.
pub(super) fn step(graph: &mut Graph, shape: &DecoderShape) -> (String, String) {
    let size = shape.hidden_size;
    let mut x = graph.linear("obs", shape.num_features, size);
    let count = slice(graph, 0, 1);
    let layer_inputs = layer_inputs(graph, shape, &count);
    let one = graph.number(1.0);
    let mut memory = vec![graph.apply("Add", &[&count, &one])];
    for layer in 0..shape.num_layers {
        let input = norm(graph, shape, &x);
        let (attended, rows) = attention(graph, shape, &layer_inputs, layer, &input);
        memory.extend(rows);
        x = graph.apply("Add", &[&x, &attended]);
        let input = norm(graph, shape, &x);
        let gate = matrix(graph, &input, size, shape.intermediate_size);
        let gate = graph.activation(&gate, shape.activation);
        let up = matrix(graph, &input, size, shape.intermediate_size);
        let gated = graph.apply("Mul", &[&gate, &up]);
        let output = matrix(graph, &gated, shape.intermediate_size, size);
        x = graph.apply("Add", &[&x, &output]);
    }
    let hidden = norm(graph, shape, &x);
    let logits = matrix(graph, &hidden, size, shape.num_actions);
    let parts: Vec<&str> = memory.iter().map(String::as_str).collect();
    let next = graph.apply_with("Concat", &parts, [int_attribute("axis", 1)]);
    (logits, next)
}

/// Columns of the memory.
fn slice(graph: &mut Graph, start: usize, count: usize) -> String {
    let [start, end, axis] =
        [start, start + count, 1].map(|number| graph.integers(&[number as i64]));
    graph.apply("Slice", &["memory", &start, &end, &axis])
}

fn reshape(graph: &mut Graph, x: &str, sizes: &[usize]) -> String {
    let sizes: Vec<i64> = std::iter::once(-1).chain(sizes.iter().map(|n| *n as i64)).collect();
    let sizes = graph.integers(&sizes);
    graph.apply("Reshape", &[x, &sizes])
}

fn transpose(graph: &mut Graph, x: &str, order: [i64; 4]) -> String {
    graph.apply_with("Transpose", &[x], [ints_attribute("perm", &order)])
}

/// Product with a weight matrix, `[inputs, outputs]`, taken from the next parameters.
fn matrix(graph: &mut Graph, x: &str, inputs: usize, outputs: usize) -> String {
    let weight = graph.parameter(&[inputs, outputs]);
    graph.apply("MatMul", &[x, &weight])
}

/// RMSNorm over the rows of `x`, `[batch, hidden_size]`, weighted by the next parameters.
fn norm(graph: &mut Graph, shape: &DecoderShape, x: &str) -> String {
    let weight = graph.parameter(&[shape.hidden_size]);
    let eps = graph.number(shape.rms_norm_eps);
    let square = graph.apply("Mul", &[x, x]);
    let mean = graph.apply_with("ReduceMean", &[&square], [ints_attribute("axes", &[1])]);
    let mean = graph.apply("Add", &[&mean, &eps]);
    let root = graph.apply("Sqrt", &[&mean]);
    let normed = graph.apply("Div", &[x, &root]);
    graph.apply("Mul", &[&normed, &weight])
}

/// Computes what all layers share of a step that follows `count` others: the row of the memory that it takes, the mask
/// of rows not yet written, and the rotation of its position.
fn layer_inputs(graph: &mut Graph, shape: &DecoderShape, count: &str) -> LayerInputs {
    let context = shape.context;
    let position = graph.apply_with("Cast", &[count], [int_attribute("to", INT64)]);
    let places: Vec<i64> = (0..context as i64).collect();
    let (places, length) = (graph.integers(&places), graph.integers(&[context as i64]));
    let own = graph.apply("Mod", &[&position, &length]);
    let is_own = graph.apply("Equal", &[&places, &own]);
    let is_own = reshape(graph, &is_own, &[context, 1, 1]);
    let is_later = graph.apply("Greater", &[&places, &position]);
    let is_later = graph.apply_with("Cast", &[&is_later], [int_attribute("to", FLOAT)]);
    let unseen = graph.number(UNSEEN);
    let mask = graph.apply("Mul", &[&is_later, &unseen]);
    let mask = reshape(graph, &mask, &[1, 1, context]);
    let tables = shape.rope_tables();
    let table = &tables[0];
    let [low_parts, high_parts] = table.parts.map(|parts| graph.integers(&[parts as i64]));
    let low = graph.apply("Mod", &[&position, &low_parts]);
    let high = graph.apply("Div", &[&position, &low_parts]);
    let high = graph.apply("Mod", &[&high, &high_parts]);
    let mut look_up = |rows: &[[f32; 2]], which: usize, at: &str| {
        let numbers: Vec<f32> = rows.iter().map(|row| row[which]).collect();
        let numbers = graph.constant(&[rows.len() / table.half, table.half], &numbers);
        graph.apply("Gather", &[&numbers, at])
    };
    let [cl, sl] = [0, 1].map(|which| look_up(&table.low, which, &low));
    let [ch, sh] = [0, 1].map(|which| look_up(&table.high, which, &high));
    let mut product = |a: &str, b: &str| graph.apply("Mul", &[a, b]);
    let (cc, ss, sc, cs) =
        (product(&ch, &cl), product(&sh, &sl), product(&sh, &cl), product(&ch, &sl));
    let rotation = [graph.apply("Sub", &[&cc, &ss]), graph.apply("Add", &[&sc, &cs])];
    LayerInputs { is_own, mask, rotation }
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
fn attention(
    graph: &mut Graph,
    shape: &DecoderShape,
    layer_inputs: &LayerInputs,
    layer: usize,
    input: &str,
) -> (String, [String; 2]) {
    let (heads, kv_heads, dim, context) =
        (shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.context);
    let size = shape.hidden_size;
    let queries = matrix(graph, input, size, heads * dim);
    let keys = matrix(graph, input, size, kv_heads * dim);
    let values = matrix(graph, input, size, kv_heads * dim);
    let queries = reshape(graph, &queries, &[heads, dim]);
    let queries = rotate(graph, &queries, &layer_inputs.rotation);
    let scale = graph.number(shape.head_shape().scale);
    let queries = graph.apply("Mul", &[&queries, &scale]);
    let queries = reshape(graph, &queries, &[kv_heads, heads / kv_heads, dim]);
    let keys = reshape(graph, &keys, &[kv_heads, dim]);
    let keys = rotate(graph, &keys, &layer_inputs.rotation);
    let start = shape.cache_start(layer);
    let rows = [(keys, start), (values, start + shape.cache_size())].map(|(new, start)| {
        let new = reshape(graph, &new, &[1, kv_heads, dim]);
        let old = slice(graph, start, shape.cache_size());
        let old = reshape(graph, &old, &[context, kv_heads, dim]);
        graph.apply("Where", &[&layer_inputs.is_own, &new, &old])
    });
    let keys = transpose(graph, &rows[0], [0, 2, 3, 1]);
    let values = transpose(graph, &rows[1], [0, 2, 1, 3]);
    let scores = graph.apply("MatMul", &[&queries, &keys]);
    let scores = graph.apply("Add", &[&scores, &layer_inputs.mask]);
    let weights = graph.apply_with("Softmax", &[&scores], [int_attribute("axis", 3)]);
    let attended = graph.apply("MatMul", &[&weights, &values]);
    let attended = reshape(graph, &attended, &[heads * dim]);
    let output = matrix(graph, &attended, heads * dim, size);
    let rows = rows.map(|rows| reshape(graph, &rows, &[shape.cache_size()]));
    (output, rows)
}
