//! Policies as ONNX models (<https://onnx.ai/onnx/repo-docs/IR.html>), opset 17.
//!
//! Inputs are the observations, `[batch, num_features]`, scaled as the game gives them, and of a recurrent policy the
//! memory, `[batch, memory_size]`, which is 0 at the start of an episode. Outputs are the logits, `[batch,
//! num_actions]`, the greedy action, `[batch]`, and the next memory. The fields are those of `onnx.proto3`.

use crate::math::Activation;
use crate::model::{ModelKind, PolicyConfig};
use crate::protobuf::Message;

/// A policy that has no form in ONNX here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a policy of the kind `{0}` cannot be exported to ONNX; `mlp` and `gru` can")]
pub struct OnnxError(pub String);

/// Version of the intermediate representation, and of the operators.
const IR_VERSION: i64 = 8;
const OPSET: i64 = 17;
/// `TensorProto.DataType`.
const FLOAT: i64 = 1;
const INT64: i64 = 7;

/// A policy to export.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// The name of the game.
    pub name: &'a str,
    /// The network.
    pub config: &'a PolicyConfig,
    /// Features of an observation.
    pub num_features: usize,
    /// Actions.
    pub num_actions: usize,
    /// The parameters, in the order of [`PolicyConfig::parameters`].
    pub params: &'a [f32],
}

/// The nodes and constants of a model under construction.
struct Graph<'a> {
    nodes: Vec<Message>,
    constants: Vec<Message>,
    /// The parameters that were not taken yet.
    rest: &'a [f32],
}

/// The bytes of an ONNX file.
///
/// # Errors
/// [`OnnxError`] if the network has no form in ONNX here.
///
/// # Panics
/// If the number of parameters differs from the network's.
pub fn encode(policy: &Policy) -> Result<Vec<u8>, OnnxError> {
    let Policy { config, num_features, num_actions, .. } = *policy;
    let sizes = &config.hidden;
    let mut graph = Graph { nodes: Vec::new(), constants: Vec::new(), rest: policy.params };
    let mut memory = None;
    let mut x = "obs".to_string();
    let mut width = num_features;
    match config.kind {
        ModelKind::Mlp => {
            for size in sizes {
                x = graph.linear(&x, width, *size);
                x = graph.activation(&x, config.activation);
                width = *size;
            }
        }
        ModelKind::Gru => {
            let (size, encoder) = sizes.split_last().expect("a network has a hidden layer");
            for hidden in encoder {
                x = graph.linear(&x, width, *hidden);
                x = graph.activation(&x, config.activation);
                width = *hidden;
            }
            x = graph.gru(&x, width, *size);
            graph.node("Identity", &[&x], "next_memory");
            (width, memory) = (*size, Some(*size));
        }
        _ => return Err(OnnxError(config.kind.to_string())),
    }
    let logits = graph.linear(&x, width, num_actions);
    graph.node("Identity", &[&logits], "logits");
    let attributes = [int_attribute("axis", 1), int_attribute("keepdims", 0)];
    graph.node_with("ArgMax", &["logits"], "action", attributes);
    assert!(graph.rest.is_empty(), "{} parameters are too many", graph.rest.len());
    let mut inputs = vec![value("obs", FLOAT, &[num_features])];
    let mut outputs = vec![value("logits", FLOAT, &[num_actions]), value("action", INT64, &[])];
    inputs.extend(memory.map(|size| value("memory", FLOAT, &[size])));
    outputs.extend(memory.map(|size| value("next_memory", FLOAT, &[size])));
    let graph = Message::default()
        .messages(1, graph.nodes)
        .bytes(2, policy.name)
        .messages(5, graph.constants)
        .messages(11, inputs)
        .messages(12, outputs);
    let opset = Message::default().bytes(1, "").int(2, OPSET);
    let model = Message::default()
        .int(1, IR_VERSION)
        .bytes(2, "grove")
        .bytes(3, env!("CARGO_PKG_VERSION"))
        .message(7, graph)
        .message(8, opset);
    Ok(model.into_bytes())
}

impl<'a> Graph<'a> {
    /// Takes the next parameters.
    fn take(&mut self, count: usize) -> &'a [f32] {
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        taken
    }

    /// A name for the result of the next node.
    fn fresh(&self) -> String {
        format!("x{}", self.nodes.len())
    }

    fn node(&mut self, operator: &str, inputs: &[&str], output: &str) {
        self.node_with(operator, inputs, output, []);
    }

    fn node_with<const N: usize>(
        &mut self,
        operator: &str,
        inputs: &[&str],
        output: &str,
        attributes: [Message; N],
    ) {
        let node = inputs.iter().fold(Message::default(), |node, input| node.bytes(1, input));
        let name = format!("{operator}_{}", self.nodes.len());
        let node = node.bytes(2, output).bytes(3, name).bytes(4, operator);
        self.nodes.push(node.messages(5, attributes));
    }

    /// Adds a node with a result of its own.
    fn apply(&mut self, operator: &str, inputs: &[&str]) -> String {
        let output = self.fresh();
        self.node(operator, inputs, &output);
        output
    }

    /// Adds a constant of this shape.
    fn constant(&mut self, shape: &[usize], values: &[f32]) -> String {
        let name = format!("w{}", self.constants.len());
        let tensor = shape.iter().fold(Message::default(), |it, size| it.int(1, *size as i64));
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constants.push(tensor.int(2, FLOAT).bytes(8, &name).bytes(9, bytes));
        name
    }

    fn number(&mut self, value: f32) -> String {
        self.constant(&[], &[value])
    }

    /// A linear layer, whose weight `[inputs, outputs]` and bias are the next parameters.
    fn linear(&mut self, x: &str, inputs: usize, outputs: usize) -> String {
        let weight = self.take(inputs * outputs);
        let weight = self.constant(&[inputs, outputs], weight);
        let bias = self.take(outputs);
        let bias = self.constant(&[outputs], bias);
        self.apply("Gemm", &[x, &weight, &bias])
    }

    fn activation(&mut self, x: &str, function: Activation) -> String {
        match function {
            Activation::Relu => self.apply("Relu", &[x]),
            Activation::Tanh => self.apply("Tanh", &[x]),
            Activation::Silu => {
                let gate = self.apply("Sigmoid", &[x]);
                self.apply("Mul", &[x, &gate])
            }
            // In its form with tanh: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).
            Activation::Gelu => {
                let [cubic, scale, half, one] =
                    [0.044_715, 0.797_884_6, 0.5, 1.0].map(|value| self.number(value));
                let square = self.apply("Mul", &[x, x]);
                let cube = self.apply("Mul", &[&square, x]);
                let cube = self.apply("Mul", &[&cube, &cubic]);
                let inner = self.apply("Add", &[x, &cube]);
                let inner = self.apply("Mul", &[&inner, &scale]);
                let tanh = self.apply("Tanh", &[&inner]);
                let factor = self.apply("Add", &[&tanh, &one]);
                let half = self.apply("Mul", &[x, &half]);
                self.apply("Mul", &[&half, &factor])
            }
        }
    }

    /// A gated recurrent layer (Cho et al. 2014; PyTorch's form) over the input `memory`, whose gates `r`, `z` and `n`
    /// stand side by side in its weights. Returns the next memory.
    fn gru(&mut self, x: &str, inputs: usize, size: usize) -> String {
        let input = self.linear(x, inputs, 3 * size);
        let own = self.linear("memory", size, 3 * size);
        let [input, own] = [input, own].map(|gates| {
            let parts = [0, 1, 2].map(|i| format!("{gates}_{i}"));
            let name = format!("Split_{}", self.nodes.len());
            let node = Message::default().bytes(1, &gates);
            let node = parts.iter().fold(node, |node, part| node.bytes(2, part));
            let axis = int_attribute("axis", 1);
            self.nodes.push(node.bytes(3, name).bytes(4, "Split").message(5, axis));
            parts
        });
        let [reset, keep] = [0, 1].map(|i| {
            let sum = self.apply("Add", &[&input[i], &own[i]]);
            self.apply("Sigmoid", &[&sum])
        });
        let gated = self.apply("Mul", &[&reset, &own[2]]);
        let sum = self.apply("Add", &[&input[2], &gated]);
        let new = self.apply("Tanh", &[&sum]);
        // (1 - z) * n + z * h = n + z * (h - n)
        let step = self.apply("Sub", &["memory", &new]);
        let step = self.apply("Mul", &[&keep, &step]);
        self.apply("Add", &[&new, &step])
    }
}

/// An attribute of a node.
fn int_attribute(name: &str, value: i64) -> Message {
    const INT: i64 = 2;
    Message::default().bytes(1, name).int(3, value).int(20, INT)
}

/// An input or output of the model: a batch of tensors of this shape.
fn value(name: &str, element: i64, shape: &[usize]) -> Message {
    let sizes = shape.iter().map(|size| Message::default().int(1, *size as i64));
    let dimensions = std::iter::once(Message::default().bytes(2, "batch")).chain(sizes);
    let tensor = Message::default().int(1, element);
    let tensor = tensor.message(2, Message::default().messages(1, dimensions));
    Message::default().bytes(1, name).message(2, Message::default().message(1, tensor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(kind: ModelKind, hidden: &[usize]) -> Result<Vec<u8>, OnnxError> {
        let config = PolicyConfig::new(kind, hidden, Activation::Relu);
        let parameters = config.parameters(5, 3);
        let count = parameters.iter().map(|it| it.shape.iter().product::<usize>()).sum();
        let params: Vec<f32> = (0..count).map(|i| i as f32).collect();
        encode(&Policy {
            name: "test",
            config: &config,
            num_features: 5,
            num_actions: 3,
            params: &params,
        })
    }

    #[test]
    fn every_parameter_is_in_the_file_once() {
        for (kind, hidden) in [(ModelKind::Mlp, vec![4, 2]), (ModelKind::Gru, vec![4, 2])] {
            let bytes = encoded(kind, &hidden).unwrap();
            let holds =
                |number: f32| bytes.windows(4).filter(move |it| **it == number.to_le_bytes());
            assert_eq!(holds(17.0).count(), 1);
            assert_eq!(holds(30.0).count(), 1);
        }
        assert_eq!(encoded(ModelKind::Decoder, &[4]), Err(OnnxError("decoder".to_string())));
    }
}
