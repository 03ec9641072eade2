//! Helpers to parse and score answers. Only ASCII digits count as digits, so that parsing is unambiguous.

/// The numbers in a text: all maximal runs of ASCII digits.
pub(super) fn numbers(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty()).collect()
}

/// The ASCII digits in a text, in order.
pub(super) fn digits(text: &str) -> Vec<u8> {
    text.bytes().filter(u8::is_ascii_digit).collect()
}

/// The fraction of positions at which two sequences agree. The denominator is the longer length, so that
/// extra elements do not raise the score.
pub(super) fn agreement<T: PartialEq>(answer: &[T], expected: &[T]) -> f64 {
    let longest = answer.len().max(expected.len());
    if longest == 0 {
        return 1.0;
    }
    let same = answer.iter().zip(expected).filter(|(a, b)| a == b).count();
    same as f64 / longest as f64
}

/// 1 for true, 0 for false.
pub(super) fn indicator(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}
