//! Metadata values of GGUF files, and the codes of token kinds.

/// Kinds of tokens (ggml's `llama_token_type`).
pub(super) mod kinds {
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
pub(super) enum Entry {
    U32(u32),
    F32(f32),
    Flag(bool),
    Text(String),
    Texts(Vec<String>),
    /// Written as `i32`.
    Wholes(Vec<u32>),
    Numbers(Vec<f32>),
}

impl Entry {
    /// Appends the value, preceded by the code of its type.
    pub fn write(&self, to: &mut Vec<u8>) {
        match self {
            Self::U32(x) => one(to, 4, &x.to_le_bytes()),
            Self::F32(x) => one(to, 6, &x.to_le_bytes()),
            Self::Flag(x) => one(to, 7, &[u8::from(*x)]),
            Self::Text(x) => {
                one(to, 8, &[]);
                text(to, x);
            }
            Self::Texts(all) => list(to, 8, all, |to, x| text(to, x)),
            Self::Wholes(all) => list(to, 5, all, |to, x| to.extend(x.to_le_bytes())),
            Self::Numbers(all) => list(to, 6, all, |to, x| to.extend(x.to_le_bytes())),
        }
    }
}

/// Appends a value of a kind.
fn one(to: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    to.extend(kind.to_le_bytes());
    to.extend(bytes);
}

/// Appends a list of values of a kind.
fn list<T>(to: &mut Vec<u8>, kind: u32, all: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    one(to, 9, &kind.to_le_bytes());
    to.extend((all.len() as u64).to_le_bytes());
    all.iter().for_each(|value| write(to, value));
}

/// Appends a string with its length.
pub(super) fn text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}
