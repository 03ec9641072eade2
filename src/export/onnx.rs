//! Policies as ONNX models (<https://onnx.ai/onnx/repo-docs/IR.html>), opset 17.
//!
//! Inputs are the observations, `[batch, num_features]`, scaled as the game gives them, and of a recurrent policy the
//! memory, `[batch, memory_size]`, which is 0 at the start of an episode. Outputs are the logits, `[batch,
//! num_actions]`, the greedy action, `[batch]`, and the next memory. The fields are those of `onnx.proto3`.

use super::decoder;
use super::graph::{FLOAT, Graph, INT64, int_attribute};
use crate::model::{DecoderShape, ModelKind, PolicyConfig};
use crate::protobuf::Message;

/// The error for a policy that has no form in ONNX here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a policy of the kind `{0}` cannot be exported to ONNX")]
pub struct OnnxError(pub String);

/// Version of the intermediate representation.
const IR_VERSION: i64 = 8;
/// Version of the operators.
const OPSET: i64 = 17;

/// A policy to export.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// The name of the game.
    pub name: &'a str,
    /// The network.
    pub config: &'a PolicyConfig,
    /// Number of features of an observation.
    pub num_features: usize,
    /// Number of actions.
    pub num_actions: usize,
    /// The parameters, in the order of [`PolicyConfig::parameters`].
    pub params: &'a [f32],
    /// Names and texts for other programs; those without a text are left out.
    pub metadata: &'a [(&'a str, String)],
}

/// Encodes a policy as an ONNX file.
///
/// # Errors
/// [`OnnxError`] if the network has no form in ONNX here.
///
/// # Panics
/// If the number of parameters differs from the network's.
pub fn encode(policy: &Policy) -> Result<Vec<u8>, OnnxError> {
    let config = policy.config;
    let mut graph = Graph { nodes: Vec::new(), constants: Vec::new(), params_left: policy.params };
    let memory_size = match config.kind {
        ModelKind::Mlp | ModelKind::Gru => add_mlp_or_gru(&mut graph, policy),
        ModelKind::Decoder => {
            let shape = DecoderShape::new(policy.num_features, policy.num_actions, config);
            decoder::add_step(&mut graph, &shape);
            Some(shape.memory_size())
        }
        ModelKind::UserDefined(_) => return Err(OnnxError(config.kind.to_string())),
    };
    let attributes = [int_attribute("axis", 1), int_attribute("keepdims", 0)];
    graph.add_node_with("ArgMax", &["logits"], &["action"], attributes);
    assert!(graph.params_left.is_empty(), "{} parameters are too many", graph.params_left.len());
    Ok(encode_model(graph, policy, memory_size))
}

/// Adds an MLP, or a GRU after an MLP, and returns the size of its memory, if it has one.
fn add_mlp_or_gru(graph: &mut Graph, policy: &Policy) -> Option<usize> {
    let config = policy.config;
    let sizes = &config.hidden;
    let recurrent = sizes.last().filter(|_| config.kind == ModelKind::Gru);
    let encoder = &sizes[..sizes.len() - recurrent.iter().count()];
    let (mut x, mut width) = ("obs".to_string(), policy.num_features);
    for size in encoder {
        x = graph.add_linear(&x, width, *size);
        x = graph.add_activation(&x, config.activation);
        width = *size;
    }
    if let Some(size) = recurrent {
        x = graph.add_gru(&x, width, *size);
        graph.add_node("Identity", &[&x], "next_memory");
        width = *size;
    }
    let logits = graph.add_linear(&x, width, policy.num_actions);
    graph.add_node("Identity", &[&logits], "logits");
    recurrent.copied()
}

/// Encodes the graph of a policy with a memory of this size, if it has one.
fn encode_model(graph: Graph, policy: &Policy, memory_size: Option<usize>) -> Vec<u8> {
    let mut inputs = vec![value_info("obs", FLOAT, &[policy.num_features])];
    let mut outputs =
        vec![value_info("logits", FLOAT, &[policy.num_actions]), value_info("action", INT64, &[])];
    inputs.extend(memory_size.map(|size| value_info("memory", FLOAT, &[size])));
    outputs.extend(memory_size.map(|size| value_info("next_memory", FLOAT, &[size])));
    let graph = Message::default()
        .messages(1, graph.nodes)
        .bytes(2, policy.name)
        .messages(5, graph.constants)
        .messages(11, inputs)
        .messages(12, outputs);
    let opset = Message::default().bytes(1, "").int(2, OPSET);
    let metadata = policy.metadata.iter().filter(|(_, text)| !text.is_empty());
    let metadata = metadata.map(|(key, text)| Message::default().bytes(1, key).bytes(2, text));
    let model = Message::default()
        .int(1, IR_VERSION)
        .bytes(2, "grove")
        .bytes(3, env!("CARGO_PKG_VERSION"))
        .message(7, graph)
        .message(8, opset)
        .messages(14, metadata);
    model.into_bytes()
}

/// Encodes an input or output of the model: a batch of tensors of this shape.
fn value_info(name: &str, element_type: i64, shape: &[usize]) -> Message {
    let sizes = shape.iter().map(|size| Message::default().int(1, *size as i64));
    let dimensions = std::iter::once(Message::default().bytes(2, "batch")).chain(sizes);
    let tensor = Message::default().int(1, element_type);
    let tensor = tensor.message(2, Message::default().messages(1, dimensions));
    Message::default().bytes(1, name).message(2, Message::default().message(1, tensor))
}
