//! Mutations of files: of bytes, of binary numbers, and of numbers and words in texts.

use arbtest::arbitrary::{Result, Unstructured};
use std::ops::Range;

/// Numbers at the edges of their types.
const NUMBERS: [u64; 14] = [
    0,
    1,
    7,
    255,
    256,
    65_535,
    1 << 31,
    (1 << 31) - 1,
    (1 << 32) - 1,
    1 << 32,
    1 << 40,
    1 << 60,
    1 << 63,
    u64::MAX,
];

/// Strings to replace a word of a text.
const WORDS: [&str; 24] = [
    "0",
    "-1",
    "1e999",
    "-1e-999",
    "4294967296",
    "18446744073709551616",
    "0.5",
    "NaN",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "[[[[[[[[",
    "}}",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "é",
    "{{ x * 999999 }}",
    "{% for i in range(999999) %}{% for i in range(999999) %}{% endfor %}{% endfor %}",
    "\r\n",
    "\"",
    "../../x",
];

/// Draws one of the files with some mutations.
pub fn draw_mutation(files: &[Vec<u8>], u: &mut Unstructured) -> Result<Vec<u8>> {
    let mut bytes = u.choose(files)?.clone();
    for _ in 0..u.int_in_range(1..=8)? {
        mutate(&mut bytes, files, u)?;
    }
    Ok(bytes)
}

/// Makes one random change to a file: flips a bit, writes a number, or removes, copies, replaces or repeats a piece.
fn mutate(bytes: &mut Vec<u8>, files: &[Vec<u8>], u: &mut Unstructured) -> Result<()> {
    match u.int_in_range(0..=8)? {
        kind @ 0..=1 => {
            let at = draw_position(bytes, u)?;
            if let Some(byte) = bytes.get_mut(at) {
                *byte =
                    if kind == 0 { *byte ^ 1 << u.int_in_range(0..=7)? } else { u.arbitrary()? };
            }
        }
        2 => {
            let number = u.choose(&NUMBERS)?.to_le_bytes();
            let width = *u.choose(&[2, 4, 8])?;
            let at = draw_position(bytes, u)?;
            let room = width.min(bytes.len() - at);
            bytes[at..at + room].copy_from_slice(&number[..room]);
        }
        3 => drop(bytes.drain(draw_range(bytes, u)?)),
        4 => {
            let copied = bytes[draw_range(bytes, u)?].to_vec();
            let at = draw_position(bytes, u)?;
            bytes.splice(at..at, copied);
        }
        5 => {
            let other = u.choose(files)?;
            let copied = other[draw_range(other, u)?].to_vec();
            let replaced = draw_range(bytes, u)?;
            bytes.splice(replaced, copied);
        }
        6 => bytes.truncate(draw_position(bytes, u)?),
        7 => {
            let word = u.choose(&WORDS)?.bytes();
            let replaced = word_around(bytes, draw_position(bytes, u)?);
            bytes.splice(replaced, word);
        }
        _ => {
            let word = u.choose(&WORDS)?.repeat(u.int_in_range(1..=300)?);
            let at = draw_position(bytes, u)?;
            bytes.splice(at..at, word.into_bytes());
        }
    }
    Ok(())
}

/// Draws a position in the bytes, or after them.
fn draw_position(bytes: &[u8], u: &mut Unstructured) -> Result<usize> {
    u.int_in_range(0..=bytes.len())
}

/// Draws a short range.
fn draw_range(bytes: &[u8], u: &mut Unstructured) -> Result<Range<usize>> {
    let at = draw_position(bytes, u)?;
    let length = u.int_in_range(0..=64)?;
    Ok(at..bytes.len().min(at + length))
}

/// The word or the number around a position.
fn word_around(bytes: &[u8], at: usize) -> Range<usize> {
    let is_inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    let before = bytes[..at].iter().rev().take_while(|byte| is_inside(byte)).count();
    let after = bytes[at..].iter().take_while(|byte| is_inside(byte)).count();
    at - before..at + after
}
