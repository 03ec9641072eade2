//! Protocol Buffers' wire format, as far as TensorBoard's events and ONNX models need it.
//!
//! <https://protobuf.dev/programming-guides/encoding/>. Fields are written in the order of the calls.

/// An encoded message under construction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

/// The wire types in use.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

impl Message {
    /// Returns the encoded bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn push_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn push_tag(&mut self, field: u64, wire_type: u64) {
        self.push_varint(field << 3 | wire_type);
    }

    /// Adds an integer; negative ones take ten bytes, as the format requires.
    #[must_use]
    pub fn int(mut self, field: u64, value: i64) -> Self {
        self.push_tag(field, VARINT);
        self.push_varint(value as u64);
        self
    }

    /// Adds a single-precision number.
    #[must_use]
    pub fn float(mut self, field: u64, value: f32) -> Self {
        self.push_tag(field, FIXED32);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds a double-precision number.
    #[must_use]
    pub fn double(mut self, field: u64, value: f64) -> Self {
        self.push_tag(field, FIXED64);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds bytes or a string.
    #[must_use]
    pub fn bytes(mut self, field: u64, bytes: impl AsRef<[u8]>) -> Self {
        let bytes = bytes.as_ref();
        self.push_tag(field, LENGTH_DELIMITED);
        self.push_varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Adds a nested message.
    #[must_use]
    pub fn message(self, field: u64, inner: Message) -> Self {
        self.bytes(field, inner.0)
    }

    /// Adds a nested message for each of `inner`.
    #[must_use]
    pub fn messages(self, field: u64, inner: impl IntoIterator<Item = Message>) -> Self {
        inner.into_iter().fold(self, |message, inner| message.message(field, inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of the format's description.
    #[test]
    fn fields_are_encoded_as_specified() {
        assert_eq!(Message::default().int(1, 150).into_bytes(), [0x08, 0x96, 0x01]);
        let text = Message::default().bytes(2, "testing").into_bytes();
        assert_eq!(text, b"\x12\x07testing");
        let nested = Message::default().message(3, Message::default().int(1, 150)).into_bytes();
        assert_eq!(nested, [0x1a, 0x03, 0x08, 0x96, 0x01]);
        let minus = Message::default().int(1, -2).into_bytes();
        assert_eq!(minus, [&[0x08, 0xfe][..], &[0xff; 8], &[0x01]].concat());
        assert_eq!(Message::default().float(1, 1.0).into_bytes(), [0x0d, 0, 0, 0x80, 0x3f]);
        assert_eq!(Message::default().double(1, 1.0).into_bytes()[..3], [0x09, 0, 0]);
    }
}
