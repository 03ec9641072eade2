//! Metadata values of GGUF files, and the codes of their types and of token kinds.

/// Types of metadata values (`gguf_metadata_value_type`).
pub(super) mod value_types {
    pub const U8: u32 = 0;
    pub const I8: u32 = 1;
    pub const U16: u32 = 2;
    pub const I16: u32 = 3;
    pub const U32: u32 = 4;
    pub const I32: u32 = 5;
    pub const F32: u32 = 6;
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
    pub const U64: u32 = 10;
    pub const I64: u32 = 11;
    pub const F64: u32 = 12;
}

/// Kinds of tokens (ggml's `llama_token_type`).
pub(super) mod token_kinds {
    pub const NORMAL: u32 = 1;
    pub const UNKNOWN: u32 = 2;
    pub const CONTROL: u32 = 3;
    pub const USER_DEFINED: u32 = 4;
    pub const UNUSED: u32 = 5;
    pub const BYTE: u32 = 6;
}

/// SentencePiece's mark for a space.
pub(super) const SPACE: &str = "\u{2581}";

/// A metadata value.
pub(super) enum MetadataValue {
    U32(u32),
    F32(f32),
    Bool(bool),
    String(String),
    Strings(Vec<String>),
    /// Written as `i32`.
    Integers(Vec<u32>),
    Floats(Vec<f32>),
}

impl MetadataValue {
    /// Appends the value, preceded by the code of its type.
    pub fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::U32(x) => append_value(to, value_types::U32, &x.to_le_bytes()),
            Self::F32(x) => append_value(to, value_types::F32, &x.to_le_bytes()),
            Self::Bool(x) => append_value(to, value_types::BOOL, &[u8::from(*x)]),
            Self::String(x) => {
                append_value(to, value_types::STRING, &[]);
                append_string(to, x);
            }
            Self::Strings(values) => {
                append_list(to, value_types::STRING, values, |to, x| append_string(to, x))
            }
            Self::Integers(values) => {
                append_list(to, value_types::I32, values, |to, x| to.extend(x.to_le_bytes()))
            }
            Self::Floats(values) => {
                append_list(to, value_types::F32, values, |to, x| to.extend(x.to_le_bytes()))
            }
        }
    }
}

/// Appends a value, preceded by the code of its type.
fn append_value(to: &mut Vec<u8>, value_type: u32, bytes: &[u8]) {
    to.extend(value_type.to_le_bytes());
    to.extend(bytes);
}

/// Appends a list of values of a type.
fn append_list<T>(
    to: &mut Vec<u8>,
    value_type: u32,
    values: &[T],
    write: impl Fn(&mut Vec<u8>, &T),
) {
    append_value(to, value_types::ARRAY, &value_type.to_le_bytes());
    to.extend((values.len() as u64).to_le_bytes());
    values.iter().for_each(|value| write(to, value));
}

/// Appends a string with its length.
pub(super) fn append_string(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}
