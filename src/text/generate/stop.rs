//! Stop texts, which end a completion and are removed from it.

/// The part of a text before the first of `stops`; `None` if it contains none of them. An empty text is no
/// stop.
pub fn text_before<'a>(text: &'a str, stops: &[String]) -> Option<&'a str> {
    let stops = stops.iter().filter(|stop| !stop.is_empty());
    let first = stops.filter_map(|stop| text.find(stop.as_str())).min()?;
    Some(&text[..first])
}

/// Number of the last tokens of a completion in which a character may be incomplete.
const UNSETTLED_TOKENS: usize = 8;
/// Number of tokens before them that are decoded at first.
const TAIL_TOKENS: usize = 16;
/// Number of bytes in which the text of some tokens alone may differ at its start from the whole text, such as a space
/// that a tokenizer drops before the first token.
const BORDER_BYTES: usize = 16;

/// Whether the text of a completion contains one of `stops`, if it did not before the last token. Decodes no more
/// tokens than needed, so that a completion takes a time proportional to its length.
pub fn is_reached(decode: impl Fn(&[u32]) -> String, tokens: &[u32], stops: &[String]) -> bool {
    let longest = stops.iter().map(String::len).max().unwrap_or(0);
    if longest == 0 {
        return false;
    }
    let contains_stop = |tokens: &[u32]| text_before(&decode(tokens), stops).is_some();
    // What stands for undecodable bytes may also appear earlier in the text.
    let first = match stops.iter().any(|stop| stop.contains(char::REPLACEMENT_CHARACTER)) {
        true => 0,
        false => tail_start(&decode, tokens, longest),
    };
    contains_stop(&tokens[first..]) && (first == 0 || contains_stop(tokens))
}

/// Finds how many of a completion's first tokens need not be decoded again: the text of the others is the end of the
/// whole text, also after more tokens, and has `length` bytes or more that no longer change. 0 if all are needed.
pub fn tail_start(decode: impl Fn(&[u32]) -> String, tokens: &[u32], length: usize) -> usize {
    let end = tokens.len().saturating_sub(UNSETTLED_TOKENS);
    let mut count = TAIL_TOKENS;
    while count < end {
        let text = decode(&tokens[end - count..end]);
        let settled = text.trim_end_matches(char::REPLACEMENT_CHARACTER);
        // A text that begins within a character may differ as a whole.
        if !text.starts_with(char::REPLACEMENT_CHARACTER) && settled.len() >= length + BORDER_BYTES
        {
            return end - count;
        }
        count += count / 4;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{below, draw};

    /// Tokens of one byte, of some characters, and one without a text.
    const PIECES: [&[u8]; 12] = [
        b"\xe2",
        b"\x82",
        b"\xac",
        b"\xc3",
        b"\xa9",
        b"a",
        b"b",
        b" a",
        b"abab b",
        "\u{e9}b".as_bytes(),
        b" ",
        b"",
    ];

    fn pieces(tokens: &[u32]) -> impl Iterator<Item = &'static [u8]> {
        tokens.iter().map(|token| PIECES[*token as usize])
    }

    /// Decodes bytes one by one, as byte-level tokenizers do.
    fn decode_bytes(tokens: &[u32]) -> String {
        String::from_utf8_lossy(&pieces(tokens).collect::<Vec<_>>().concat()).into_owned()
    }

    /// Decodes each run of single bytes as a whole if it is valid, and drops the first space, as SentencePiece does.
    fn decode_runs(tokens: &[u32]) -> String {
        let is_byte = |piece: &[u8]| piece.len() == 1 && !piece.is_ascii();
        let all: Vec<&[u8]> = pieces(tokens).filter(|piece| !piece.is_empty()).collect();
        let decode_run = |run: &[&[u8]]| {
            let text = String::from_utf8(run.concat());
            text.unwrap_or_else(|_| char::REPLACEMENT_CHARACTER.to_string().repeat(run.len()))
        };
        let text: String = all.chunk_by(|a, b| is_byte(a) == is_byte(b)).map(decode_run).collect();
        text.strip_prefix(' ').map(str::to_string).unwrap_or(text)
    }

    /// Decodes tokens with a space between them.
    fn decode_words(tokens: &[u32]) -> String {
        let words: Vec<_> = pieces(tokens).map(String::from_utf8_lossy).collect();
        words.join(" ")
    }

    /// A completion of random tokens, some of which are rare.
    fn random_tokens(key: u32) -> Vec<u32> {
        let num_kinds = 1 + below(draw(key, 0), PIECES.len() as u32);
        let token = |at| (key + below(draw(key, at), num_kinds)) % PIECES.len() as u32;
        (2..160).map(token).collect()
    }

    #[test]
    fn the_last_tokens_show_the_first_stop_of_the_whole_text() {
        let decoders: [fn(&[u32]) -> String; 3] = [decode_bytes, decode_runs, decode_words];
        let texts = [
            "ab b\u{e9}",
            "\u{20ac}",
            "a a",
            "b  b",
            "\u{e9}\u{e9}",
            "aaaa",
            "\u{20ac}\u{e9}a",
            "\u{fffd}a",
        ];
        let mut num_found = 0;
        for key in 0..400 {
            let tokens = random_tokens(key);
            let some = |index: u32| texts[below(draw(key, index), texts.len() as u32) as usize];
            let stops = [some(1000).to_string(), some(1001).to_string(), String::new()];
            for decode in decoders {
                let is_in_text =
                    |end: &usize| text_before(&decode(&tokens[..*end]), &stops).is_some();
                let is_seen = |end: &usize| is_reached(decode, &tokens[..*end], &stops);
                let first = (1..=tokens.len()).find(is_in_text);
                assert_eq!((1..=tokens.len()).find(is_seen), first, "{key}: {stops:?} {tokens:?}");
                num_found += usize::from(first.is_some_and(|end| end > 40));
            }
        }
        assert!(num_found > 50, "{num_found} stops in long texts");
    }

    #[test]
    fn few_tokens_of_a_long_completion_are_decoded() {
        let tokens: Vec<u32> = (0..5000).map(|at| 5 + at % 3).collect();
        let decode = |tokens: &[u32]| {
            assert!(tokens.len() < 100, "{} tokens", tokens.len());
            decode_runs(tokens)
        };
        assert!(!is_reached(decode, &tokens, &["longest stop".to_string()]));
    }

    #[test]
    fn a_text_ends_before_the_first_of_its_stops() {
        let stops = ["\n\n".to_string(), "End".to_string()];
        assert_eq!(text_before("aäEnd\n\nEnd", &stops), Some("aä"));
        assert_eq!(text_before("\n\nEnd", &stops), Some(""));
        assert_eq!((text_before("a\nb", &stops), text_before("End", &[])), (None, None));
        assert_eq!(text_before("a", &[String::new()]), None);
    }
}
