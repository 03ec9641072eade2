//! A lexer for OCaml: tokens outside of comments, with the depth of brackets at which they stand.

/// A word, a literal, or a run of other characters.
pub struct Token<'a> {
    /// Offset in the code.
    pub offset: usize,
    /// Depth of brackets at which it stands.
    pub depth: i32,
    /// The token in the code.
    pub text: &'a str,
}

/// The tokens of some code outside of comments.
pub struct Lexer<'a> {
    text: &'a str,
    at: usize,
    depth: i32,
}

impl<'a> Lexer<'a> {
    /// Creates the lexer of some code.
    pub fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    /// Returns the next token that is neither a comment nor white space.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let start = self.at;
            let c = self.text[start..].chars().next()?;
            let rest = &self.text[start..];
            if let Some(length) = comment_len(rest) {
                self.at += length;
                continue;
            }
            if let Some(length) = literal_len(rest) {
                self.at += length;
                return Some(Token { offset: start, depth: self.depth, text: &rest[..length] });
            }
            let mut depth = self.depth;
            self.at = match c {
                c if is_word_char(c) => start + prefix_len(rest, is_word_char),
                c if is_operator_char(c) => start + prefix_len(rest, is_operator_char),
                '(' | '[' | '{' => {
                    self.depth += 1;
                    start + 1
                }
                ')' | ']' | '}' => {
                    self.depth -= 1;
                    depth -= 1;
                    start + 1
                }
                c => start + c.len_utf8(),
            };
            if !c.is_whitespace() {
                return Some(Token { offset: start, depth, text: &self.text[start..self.at] });
            }
        }
    }
}

/// The texts of the tokens of some code.
pub fn token_texts(text: &str) -> impl Iterator<Item = &str> {
    Lexer::new(text).map(|token| token.text)
}

/// The length of the comment at the start of some code. Like the compiler, skips the comments and literals within.
fn comment_len(text: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 0);
    loop {
        let rest = &text[at..];
        let Some(first) = rest.chars().next() else { return (depth > 0).then_some(at) };
        if rest.starts_with("(*") {
            (at, depth) = (at + 2, depth + 1);
        } else if depth == 0 {
            return None;
        } else if rest.starts_with("*)") {
            (at, depth) = (at + 2, depth - 1);
            if depth == 0 {
                return Some(at);
            }
        } else if rest.starts_with("''") {
            at += 2;
        } else if let Some(length) = literal_len(rest) {
            at += length;
        } else if is_word_char(first) {
            // The prime in `don't "x"` begins no character.
            at += prefix_len(rest, is_word_char);
        } else {
            at += first.len_utf8();
        }
    }
}

/// The length of the literal at the start of some code: a string in quotes or in braces such as `{id|...|id}`, or a
/// character, as opposed to a type variable or a prime. One without an end takes the rest of the text.
fn literal_len(text: &str) -> Option<usize> {
    if let Some(inside) = text.strip_prefix('"') {
        let mut is_escaped = false;
        let end = inside.find(|c| {
            let is_end = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            is_end
        });
        return Some(end.map_or(text.len(), |end| end + 2));
    }
    if let Some(inside) = text.strip_prefix('{') {
        let id = &inside[..prefix_len(inside, |c| c.is_ascii_lowercase() || c == '_')];
        let content = inside[id.len()..].strip_prefix('|')?;
        let end = format!("|{id}}}");
        let rest = content.split_once(&end).map_or("", |(_, rest)| rest);
        return Some(text.len() - rest.len());
    }
    let mut inside = text.strip_prefix('\'')?.chars();
    let rest = match inside.next()? {
        '\'' => return None,
        '\\' => {
            inside.next()?;
            // The digits of a code such as `\065`.
            inside.as_str().trim_start_matches(|c: char| c.is_ascii_alphanumeric())
        }
        _ => inside.as_str(),
    };
    rest.starts_with('\'').then(|| text.len() - rest.len() + 1)
}

/// The length of the characters of a kind at the start of a string.
fn prefix_len(text: &str, is_member: fn(char) -> bool) -> usize {
    text.find(|c| !is_member(c)).unwrap_or(text.len())
}

/// Whether a character is a part of names, numbers and keywords.
pub fn is_word_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '\''
}

/// Whether a character is a part of operators.
fn is_operator_char(c: char) -> bool {
    "!$%&*+-./:<=>?@^|~#".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_end_where_the_compiler_ends_them() {
        for (text, tokens) in [
            (r#"a{|"(|}b"#, r#"a {|"(|} b"#),
            ("{q_a|x|}|q|q_a}b", "{q_a|x|}|q|q_a} b"),
            ("{a with b|c}{|open", "{ a with b | c } {|open"),
            (r#"(* "*)" *)a(* "(*" *)b"#, "a b"),
            (r#"(* {|*)|} '"' don't '' (* x'"*)" *) *)a"#, "a"),
            (r#"(* " *)a"#, ""),
            (r"'\'''\\''\065''é''a", r"'\'' '\\' '\065' 'é' 'a"),
        ] {
            assert_eq!(token_texts(text).collect::<Vec<_>>().join(" "), tokens, "{text}");
        }
    }
}
