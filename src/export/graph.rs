//! A builder of ONNX graphs: adds nodes and constants by name.

use crate::math::Activation;
use crate::protobuf::Message;

/// Element types, as `TensorProto.DataType` numbers them.
pub(super) const FLOAT: i64 = 1;
pub(super) const INT64: i64 = 7;

/// The nodes and constants of a model under construction.
pub(super) struct Graph<'a> {
    pub nodes: Vec<Message>,
    pub constants: Vec<Message>,
    /// The parameters that no constant has yet.
    pub params_left: &'a [f32],
}

impl Graph<'_> {
    /// Adds a node whose output has the name `output`.
    pub fn add_node(&mut self, operator: &str, inputs: &[&str], output: &str) {
        self.add_node_with(operator, inputs, &[output], []);
    }

    /// Adds a node with attributes, whose outputs have the names `outputs`.
    pub fn add_node_with<const N: usize>(
        &mut self,
        operator: &str,
        inputs: &[&str],
        outputs: &[&str],
        attributes: [Message; N],
    ) {
        let node = inputs.iter().fold(Message::default(), |node, input| node.bytes(1, input));
        let node = outputs.iter().fold(node, |node, output| node.bytes(2, output));
        let name = format!("{operator}_{}", self.nodes.len());
        self.nodes.push(node.bytes(3, name).bytes(4, operator).messages(5, attributes));
    }

    /// Adds a node and returns the name of its output.
    pub fn apply(&mut self, operator: &str, inputs: &[&str]) -> String {
        self.apply_with(operator, inputs, [])
    }

    /// Splits a tensor into `count` equal parts along an axis and returns their names.
    pub fn split(&mut self, x: &str, count: usize, axis: i64) -> Vec<String> {
        let parts: Vec<String> = (0..count).map(|i| format!("{x}_{i}")).collect();
        let outputs: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.add_node_with("Split", &[x], &outputs, [int_attribute("axis", axis)]);
        parts
    }

    /// Adds a node with attributes and returns the name of its output.
    pub fn apply_with<const N: usize>(
        &mut self,
        operator: &str,
        inputs: &[&str],
        attributes: [Message; N],
    ) -> String {
        let output = format!("x{}", self.nodes.len());
        self.add_node_with(operator, inputs, &[&output], attributes);
        output
    }

    /// Adds a constant of this shape and returns its name.
    pub fn add_constant(&mut self, shape: &[usize], values: &[f32]) -> String {
        self.add_tensor(shape, FLOAT, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// Adds the next parameters as a constant of this shape.
    pub fn add_parameter(&mut self, shape: &[usize]) -> String {
        let (values, rest) = self.params_left.split_at(shape.iter().product());
        self.params_left = rest;
        self.add_constant(shape, values)
    }

    /// Adds a constant list of integers and returns its name.
    pub fn add_integers(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.add_tensor(&[values.len()], INT64, bytes)
    }

    /// Adds a constant of an element type from its little-endian bytes and returns its name.
    fn add_tensor(&mut self, shape: &[usize], element_type: i64, bytes: Vec<u8>) -> String {
        let name = format!("w{}", self.constants.len());
        let tensor =
            shape.iter().fold(Message::default(), |tensor, size| tensor.int(1, *size as i64));
        self.constants.push(tensor.int(2, element_type).bytes(8, &name).bytes(9, bytes));
        name
    }

    /// Adds a constant number and returns its name.
    pub fn add_scalar(&mut self, value: f32) -> String {
        self.add_constant(&[], &[value])
    }

    /// Adds a linear layer, whose weight `[inputs, outputs]` and bias are the next parameters.
    pub fn add_linear(&mut self, x: &str, inputs: usize, outputs: usize) -> String {
        let weight = self.add_parameter(&[inputs, outputs]);
        let bias = self.add_parameter(&[outputs]);
        self.apply("Gemm", &[x, &weight, &bias])
    }

    /// Adds an activation function and returns the name of its result.
    pub fn add_activation(&mut self, x: &str, function: Activation) -> String {
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
                    [0.044_715, 0.797_884_6, 0.5, 1.0].map(|value| self.add_scalar(value));
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

    /// Adds a gated recurrent layer (Cho et al. 2014; PyTorch's form) over the input `memory`, whose gates `r`, `z` and
    /// `n` stand side by side in its weights. Returns the next memory.
    pub fn add_gru(&mut self, x: &str, inputs: usize, size: usize) -> String {
        let input = self.add_linear(x, inputs, 3 * size);
        let recurrent = self.add_linear("memory", size, 3 * size);
        let [input, recurrent] = [input, recurrent].map(|gates| self.split(&gates, 3, 1));
        let [reset, keep] = [0, 1].map(|i| {
            let sum = self.apply("Add", &[&input[i], &recurrent[i]]);
            self.apply("Sigmoid", &[&sum])
        });
        let gated = self.apply("Mul", &[&reset, &recurrent[2]]);
        let sum = self.apply("Add", &[&input[2], &gated]);
        let new = self.apply("Tanh", &[&sum]);
        // (1 - z) * n + z * h = n + z * (h - n)
        let difference = self.apply("Sub", &["memory", &new]);
        let kept = self.apply("Mul", &[&keep, &difference]);
        self.apply("Add", &[&new, &kept])
    }
}

/// Encodes an attribute of a node.
pub(super) fn int_attribute(name: &str, value: i64) -> Message {
    const INT: i64 = 2;
    Message::default().bytes(1, name).int(3, value).int(20, INT)
}

/// Encodes an attribute of a node that is a list.
pub(super) fn ints_attribute(name: &str, values: &[i64]) -> Message {
    const INTS: i64 = 7;
    let attribute = Message::default().bytes(1, name);
    values.iter().fold(attribute, |attribute, value| attribute.int(8, *value)).int(20, INTS)
}
