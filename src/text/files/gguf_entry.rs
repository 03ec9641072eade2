//! Values of a GGUF file's metadata, as bytes.

/// A value of a file's metadata.
pub(super) enum Entry {
    U32(u32),
    F32(f32),
    Flag(bool),
    Text(String),
    Texts(Vec<String>),
    Wholes(Vec<i32>),
    Numbers(Vec<f32>),
}

impl Entry {
    /// The number of its kind, and of that of its elements.
    fn kind(&self) -> (u32, Option<u32>) {
        match self {
            Self::U32(_) => (4, None),
            Self::F32(_) => (6, None),
            Self::Flag(_) => (7, None),
            Self::Text(_) => (8, None),
            Self::Texts(_) => (9, Some(8)),
            Self::Wholes(_) => (9, Some(5)),
            Self::Numbers(_) => (9, Some(6)),
        }
    }

    /// Appends the kind and the value.
    pub fn write(&self, to: &mut Vec<u8>) {
        let (kind, inner) = self.kind();
        to.extend(kind.to_le_bytes());
        to.extend(inner.into_iter().flat_map(u32::to_le_bytes));
        let count = |to: &mut Vec<u8>, count: usize| to.extend((count as u64).to_le_bytes());
        match self {
            Self::U32(x) => to.extend(x.to_le_bytes()),
            Self::F32(x) => to.extend(x.to_le_bytes()),
            Self::Flag(x) => to.push(u8::from(*x)),
            Self::Text(x) => text(to, x),
            Self::Texts(all) => {
                count(to, all.len());
                all.iter().for_each(|x| text(to, x));
            }
            Self::Wholes(all) => {
                count(to, all.len());
                all.iter().for_each(|x| to.extend(x.to_le_bytes()));
            }
            Self::Numbers(all) => {
                count(to, all.len());
                all.iter().for_each(|x| to.extend(x.to_le_bytes()));
            }
        }
    }
}

/// Appends a text with its length.
pub(super) fn text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}
