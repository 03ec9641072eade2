//! Check that all numbers of a checkpoint are finite.

use crate::checkpoint::Checkpoint;
use safetensors::tensor::{Dtype, SafeTensors};

/// Whether all numbers in a checkpoint's tensors are finite: weights, optimizer state and memory of the model. The
/// loss alone does not tell, since it is computed before the step that may overflow.
pub fn is_finite(checkpoint: &Checkpoint) -> bool {
    let files = checkpoint.sections.iter().filter(|section| section.name.ends_with(".safetensors"));
    // Other files have no numbers; errors in them are reported where they are read.
    let mut tensors = files.filter_map(|file| SafeTensors::deserialize(&file.bytes).ok());
    tensors
        .all(|tensors| tensors.iter().all(|(_, tensor)| are_finite(tensor.dtype(), tensor.data())))
}

/// Whether all numbers of this type are finite; integers always are.
fn are_finite(dtype: Dtype, bytes: &[u8]) -> bool {
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().all(|x| f32::from_le_bytes(*x).is_finite()),
        Dtype::BF16 => {
            bytes.as_chunks().0.iter().all(|x| u16::from_le_bytes(*x) & 0x7f80 != 0x7f80)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Section;
    use safetensors::tensor::TensorView;

    fn checkpoint(dtype: Dtype, numbers: [f32; 3]) -> Checkpoint {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        let view = TensorView::new(dtype, vec![3], &bytes).unwrap();
        let bytes = safetensors::serialize([("x", view)], None).unwrap();
        let section = |name: &str, bytes| Section { name: name.into(), version: 1, bytes };
        let sections = vec![section("config.toml", vec![0xff]), section("x.safetensors", bytes)];
        Checkpoint { iteration: 1, sections }
    }

    #[test]
    fn numbers_out_of_range_are_seen_where_there_are_numbers() {
        assert!(is_finite(&checkpoint(Dtype::F32, [0.0, -1.0, f32::MAX])));
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!is_finite(&checkpoint(Dtype::F32, [0.0, -1.0, wrong])));
            assert!(is_finite(&checkpoint(Dtype::U32, [0.0, -1.0, wrong])), "words are any");
        }
        let finite = |number: f32| are_finite(Dtype::BF16, &number.to_le_bytes()[2..]);
        assert!([0.0, -1.5, 1e38, -1e-40].into_iter().all(finite));
        assert!(![f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().any(finite));
    }
}
