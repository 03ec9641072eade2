//! Integers beyond 64 bits in the fields of prompts, which JSON's usual readers round: kept as marked texts, and
//! written again as they were.

use serde_json::Value;
use std::borrow::Cow;
use std::iter;

/// The mark before the digits: a code point that Unicode keeps for uses within programs.
const MARK: &str = "\u{fdd0}";

/// Replaces integers beyond 64 bits by marked texts.
pub fn mark_large_integers(json: &[u8]) -> Cow<'_, [u8]> {
    if !split_json(json).any(is_large) {
        return Cow::Borrowed(json);
    }
    let quote: &[u8] = b"\"";
    let mark_if_large = |token: &[u8]| {
        if is_large(token) {
            [quote, MARK.as_bytes(), token, quote].concat()
        } else {
            token.to_vec()
        }
    };
    Cow::Owned(split_json(json).flat_map(mark_if_large).collect())
}

/// Splits JSON into its strings, its words, which are numbers and names, and what stands between them.
pub fn split_json(json: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_word_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    let mut rest = json;
    iter::from_fn(move || {
        let first = *rest.first()?;
        let is_alike = |byte: &u8| *byte != b'"' && is_word_byte(*byte) == is_word_byte(first);
        let length = match first {
            b'"' => find_string_end(rest, 0),
            _ => rest.iter().take_while(|byte| is_alike(byte)).count(),
        };
        rest.split_off(..length)
    })
}

/// Finds the index after the JSON string that starts at `start`.
pub fn find_string_end(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

/// Whether a number is an integer beyond 64 bits.
fn is_large(number: &[u8]) -> bool {
    let digits = number.strip_prefix(b"-").unwrap_or(number);
    let fits = || {
        let text = str::from_utf8(number).unwrap_or_default();
        text.parse::<u64>().is_ok() || text.parse::<i64>().is_ok()
    };
    digits.len() > 18 && digits[0] != b'0' && digits.iter().all(u8::is_ascii_digit) && !fits()
}

/// Writes the integers that [`mark_large_integers`] has replaced as they were.
pub fn unmark_large_integers(json: String) -> String {
    if !json.contains(MARK) {
        return json;
    }
    let unmark = |token: &[u8]| {
        let text = token.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\""));
        let digits = text.and_then(|text| text.strip_prefix(MARK.as_bytes()));
        digits.filter(|digits| is_large(digits)).unwrap_or(token).to_vec()
    };
    let unmarked = split_json(json.as_bytes()).flat_map(unmark).collect();
    String::from_utf8(unmarked).expect("a text without some of its marks")
}

/// The text of a field: itself, or the digits of a number.
pub fn value_text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.strip_prefix(MARK).unwrap_or(text).into()),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_integers_are_written_as_they_were_read() {
        let json = r#"{"a":[-123456789012345678901234567890,18446744073709551615,18446744073709551616],"b":"9\"99999999999999999999","c":1.5e300,"d":-9223372036854775808}"#;
        let value: Value = serde_json::from_slice(&mark_large_integers(json.as_bytes())).unwrap();
        assert_eq!(value_text(&value["a"][2]).unwrap(), "18446744073709551616");
        assert_eq!(value["a"][1], 18_446_744_073_709_551_615_u64);
        let written = unmark_large_integers(value.to_string());
        assert_eq!(written, json.replace("1.5e300", "1.5e+300"));
    }

    #[test]
    fn other_json_is_left_alone() {
        for json in [
            r#"{"a":"123456789012345678901234567890"}"#,
            "[0123456789012345678901234567890]",
            "{\"open",
            "\"\\",
            "[1,-]",
        ] {
            assert_eq!(mark_large_integers(json.as_bytes()), json.as_bytes(), "{json}");
        }
        let large = "\u{fdd0}123456789012345678901234567890";
        for text in [
            "[\"\u{fdd0}12\",\"\u{fdd0}",
            &format!("[\"x\\\"{large}\",\"{large}x\"]"),
            &format!("[\"x{large}\", 1]"),
        ] {
            assert_eq!(unmark_large_integers(text.to_string()), text);
        }
    }
}
