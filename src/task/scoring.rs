//! Helpers to parse and score answers. Only ASCII digits count as digits, so that parsing is unambiguous.

/// Finds the last number in a text: ASCII digits, with a minus sign before them unless that stands after an operand,
/// and with adjoining characters that make a different number of them, as in `1,158`, `0.158`, `1e158` or `1_158`.
pub(super) fn find_last_number(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
    let mut start = end - 1;
    loop {
        match start.checked_sub(1) {
            Some(before) if is_digit(before) => start = before,
            Some(before)
                if b".,_'eEx".contains(&bytes[before]) && before > 0 && is_digit(before - 1) =>
            {
                start = before - 1;
            }
            _ => break,
        }
    }
    let before = text[..start].strip_suffix(['-', '\u{2212}']);
    let is_sign = |before: &&str| !before.ends_with(|c: char| c.is_alphanumeric() || c == ')');
    Some(before.filter(is_sign).map_or(&text[start..end], |before| &text[before.len()..end]))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_its_sign_and_all_of_its_digits() {
        for (text, number) in [
            ("", None),
            ("none, ever", None),
            ("\u{661}\u{665}\u{668}", None),
            ("158", Some("158")),
            ("= 158.", Some("158")),
            ("15+43=58cm", Some("58")),
            ("x158", Some("158")),
            ("-158", Some("-158")),
            ("15 + 43 = -58", Some("-58")),
            ("\u{2212}158", Some("\u{2212}158")),
            ("60-158", Some("158")),
            ("(60)-158", Some("158")),
            ("- 158", Some("158")),
            ("1,158", Some("1,158")),
            ("0.158", Some("0.158")),
            ("1e158", Some("1e158")),
            (".158", Some("158")),
            ("1, 158", Some("158")),
            ("-1,158.50 ", Some("-1,158.50")),
        ] {
            assert_eq!(find_last_number(text), number, "{text:?}");
        }
    }
}
