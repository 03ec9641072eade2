//! The nodes and constants of an ONNX graph under construction.

use crate::math::Activation;
use crate::protobuf::Message;

/// `TensorProto.DataType`.
pub(super) const FLOAT: i64 = 1;
pub(super) const INT64: i64 = 7;

/// The nodes and constants of a model under construction.
pub(super) struct Graph<'a> {
    pub nodes: Vec<Message>,
    pub constants: Vec<Message>,
    /// The parameters that were not taken yet.
    pub rest: &'a [f32],
}

impl<'a> Graph<'a> {
    /// Takes the next parameters.
    pub fn take(&mut self, count: usize) -> &'a [f32] {
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        taken
    }

    /// A name for the result of the next node.
    fn fresh(&self) -> String {
        format!("x{}", self.nodes.len())
    }

    pub fn node(&mut self, operator: &str, inputs: &[&str], output: &str) {
        self.node_with(operator, inputs, output, []);
    }

    pub fn node_with<const N: usize>(
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
    pub fn apply(&mut self, operator: &str, inputs: &[&str]) -> String {
        let output = self.fresh();
        self.node(operator, inputs, &output);
        output
    }

    /// Splits a tensor into equal parts along an axis.
    pub fn split(&mut self, x: &str, count: usize, axis: i64) -> Vec<String> {
        let parts: Vec<String> = (0..count).map(|i| format!("{x}_{i}")).collect();
        let name = format!("Split_{}", self.nodes.len());
        let node = Message::default().bytes(1, x);
        let node = parts.iter().fold(node, |node, part| node.bytes(2, part));
        let node = node.bytes(3, name).bytes(4, "Split");
        self.nodes.push(node.message(5, int_attribute("axis", axis)));
        parts
    }

    /// Adds a node with attributes and a result of its own.
    pub fn apply_with<const N: usize>(
        &mut self,
        operator: &str,
        inputs: &[&str],
        attributes: [Message; N],
    ) -> String {
        let output = self.fresh();
        self.node_with(operator, inputs, &output, attributes);
        output
    }

    /// Adds a constant of this shape.
    pub fn constant(&mut self, shape: &[usize], values: &[f32]) -> String {
        let name = format!("w{}", self.constants.len());
        let tensor = shape.iter().fold(Message::default(), |it, size| it.int(1, *size as i64));
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constants.push(tensor.int(2, FLOAT).bytes(8, &name).bytes(9, bytes));
        name
    }

    /// Adds a list of whole numbers.
    pub fn wholes(&mut self, values: &[i64]) -> String {
        let name = format!("w{}", self.constants.len());
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let tensor = Message::default().int(1, values.len() as i64).int(2, INT64);
        self.constants.push(tensor.bytes(8, &name).bytes(9, bytes));
        name
    }

    pub fn number(&mut self, value: f32) -> String {
        self.constant(&[], &[value])
    }

    /// A linear layer, whose weight `[inputs, outputs]` and bias are the next parameters.
    pub fn linear(&mut self, x: &str, inputs: usize, outputs: usize) -> String {
        let weight = self.take(inputs * outputs);
        let weight = self.constant(&[inputs, outputs], weight);
        let bias = self.take(outputs);
        let bias = self.constant(&[outputs], bias);
        self.apply("Gemm", &[x, &weight, &bias])
    }

    pub fn activation(&mut self, x: &str, function: Activation) -> String {
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
    pub fn gru(&mut self, x: &str, inputs: usize, size: usize) -> String {
        let input = self.linear(x, inputs, 3 * size);
        let own = self.linear("memory", size, 3 * size);
        let [input, own] = [input, own].map(|gates| self.split(&gates, 3, 1));
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
pub(super) fn int_attribute(name: &str, value: i64) -> Message {
    const INT: i64 = 2;
    Message::default().bytes(1, name).int(3, value).int(20, INT)
}

/// An attribute of a node that is a list.
pub(super) fn ints_attribute(name: &str, values: &[i64]) -> Message {
    const INTS: i64 = 7;
    let attribute = Message::default().bytes(1, name);
    values.iter().fold(attribute, |it, value| it.int(8, *value)).int(20, INTS)
}
