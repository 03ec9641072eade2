//! What an answer says, read strictly: ASCII digits alone are digits, and every answer has one reading.

/// The numbers of a text: each longest run of ASCII digits.
pub(super) fn numbers(text: &str) -> Vec<&str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty()).collect()
}

/// The ASCII digits of a text, in their order.
pub(super) fn digits(text: &str) -> Vec<u8> {
    text.bytes().filter(u8::is_ascii_digit).collect()
}

/// The share of places at which two sequences agree, from the left; the longer one counts, so that nothing is
/// gained by going on.
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
