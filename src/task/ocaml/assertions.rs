//! Tests written as OCaml assertions, taken apart into calls with expected values.

/// Splits the tests of the function `name` into expressions that use it, each with an expression of its expected value
/// that does not use it.
///
/// `assert (a = b)`, where one side uses the function, becomes that side, with the value of the other side as expected
/// value. Any other assertion becomes a pair of `mark` and whether it holds; `mark` is a string that an answer cannot
/// know beforehand. So does `let () = ...` with assertions within, or with a call of a definition that has some.
/// Definitions between the assertions are available to those after them.
///
/// # Errors
/// A sentence if there is no assertion, or one in a definition that is not used.
pub fn parse(text: &str, name: &str, mark: &str) -> Result<Vec<(String, String)>, String> {
    let mut tests = Vec::new();
    let mut definitions = String::new();
    // The definitions with assertions, and whether they are used.
    let mut asserting_definitions: Vec<(&str, bool)> = Vec::new();
    for item in split_items(text) {
        if let Some(conditions) = asserted_conditions(item) {
            tests.extend(
                conditions
                    .into_iter()
                    .map(|condition| call_and_value(condition, name, mark, &definitions)),
            );
            continue;
        }
        let mut asserts = false;
        for word in token_texts(item) {
            asserts |= word == "assert";
            for (_, is_used) in asserting_definitions.iter_mut().filter(|(known, _)| *known == word)
            {
                (*is_used, asserts) = (true, true);
            }
        }
        match expression(item) {
            Some(body) if asserts => {
                tests.push(whole_condition(&format!("(({body}); true)"), mark, &definitions));
            }
            // An expression alone would continue the definition before it.
            Some(body) => definitions += &format!("let _ = ({body})\n"),
            None => {
                definitions += &format!("{item}\n");
                asserting_definitions
                    .extend(defined_name(item).filter(|_| asserts).map(|name| (name, false)));
            }
        }
    }
    if let Some((unused, _)) = asserting_definitions.iter().find(|(_, is_used)| !is_used) {
        return Err(format!("`{unused}` in `tests` has an `assert`, but is not used"));
    }
    if tests.is_empty() { Err("`tests` has no `assert`".to_string()) } else { Ok(tests) }
}

/// The expression of an item that defines nothing: `let () = ...`, `let _ = ...`, or an expression alone.
fn expression(item: &str) -> Option<&str> {
    let mut tokens = Lexer::new(item).map(|(at, _, token)| (at, token));
    let (_, first) = tokens.next()?;
    if matches!(first, "open" | "module" | "type" | "exception" | "include") {
        return None;
    }
    if first != "let" {
        return Some(item);
    }
    let opening = tokens.next()?.1;
    let is_unit = opening == "(" && tokens.next()?.1 == ")";
    if opening != "_" && !is_unit {
        return None;
    }
    let (at, _) = tokens.find(|(_, token)| *token == "=")?;
    Some(&item[at + 1..])
}

/// The name that an item defines, or the first of several.
fn defined_name(item: &str) -> impl Iterator<Item = &str> {
    let is_keyword = |word: &&str| matches!(*word, "let" | "rec" | "module" | "exception" | "type");
    token_texts(item).skip_while(is_keyword).take(1)
}

/// The call and the expected value of an assertion.
fn call_and_value(condition: &str, name: &str, mark: &str, definitions: &str) -> (String, String) {
    let has = |text: &str, wanted: &str| token_texts(text).any(|word| word == wanted);
    let uses = |text: &str| has(text, name);
    if let Some((left, right)) = equation_sides(condition)
        && !uses(definitions)
        // An exception of theirs is another one in each process.
        && !has(definitions, "exception")
        && uses(left) != uses(right)
    {
        let (call, value) = if uses(left) { (left, right) } else { (right, left) };
        return (after_definitions(definitions, call), after_definitions(definitions, value));
    }
    whole_condition(condition, mark, definitions)
}

fn whole_condition(condition: &str, mark: &str, definitions: &str) -> (String, String) {
    (
        after_definitions(definitions, &format!("({mark:?}, ({condition}))")),
        format!("({mark:?}, true)"),
    )
}

/// An expression after definitions.
fn after_definitions(definitions: &str, expression: &str) -> String {
    match definitions {
        "" => format!("({expression})"),
        _ => format!(
            "(let module Tests = struct {definitions} end in let open Tests in ({expression}))"
        ),
    }
}

/// The tokens of some code outside of comments, as `(offset, depth of brackets, token)`: words, literals, and runs of
/// other characters.
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    depth: i32,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }
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
        } else if is_word(first) {
            // The prime in `don't "x"` begins no character.
            at += prefix_len(rest, is_word);
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
fn prefix_len(text: &str, of: fn(char) -> bool) -> usize {
    text.find(|c| !of(c)).unwrap_or(text.len())
}

/// Whether a character is a part of names, numbers and keywords.
pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '\''
}

fn is_operator(c: char) -> bool {
    "!$%&*+-./:<=>?@^|~#".contains(c)
}

/// A token at the depth of brackets at which it stands.
impl<'a> Iterator for Lexer<'a> {
    type Item = (usize, i32, &'a str);

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
                return Some((start, self.depth, &rest[..length]));
            }
            let mut depth = self.depth;
            self.at = match c {
                c if is_word(c) => start + prefix_len(rest, is_word),
                c if is_operator(c) => start + prefix_len(rest, is_operator),
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
                return Some((start, depth, &self.text[start..self.at]));
            }
        }
    }
}

fn token_texts(text: &str) -> impl Iterator<Item = &str> {
    Lexer::new(text).map(|(_, _, token)| token)
}

/// The items of a file: they begin at the start of a line, or after `;;`.
fn split_items(text: &str) -> Vec<&str> {
    let mut cuts = vec![0];
    let mut last = "";
    for (at, depth, token) in Lexer::new(text) {
        let begins = matches!(token, "let" | "open" | "module" | "type" | "exception" | "assert");
        let is_first = at == 0 || text[..at].ends_with('\n');
        let after_end = last == ";" && text[..at].trim_end().ends_with(";;");
        if depth == 0 && ((begins && is_first) || after_end) {
            cuts.push(at);
        }
        last = token;
    }
    cuts.push(text.len());
    let item = |pair: &[usize]| text[pair[0]..pair[1]].trim().trim_end_matches(";;").trim();
    let items: Vec<&str> = cuts.windows(2).map(item).collect();
    items.into_iter().filter(|item| token_texts(item).next().is_some()).collect()
}

/// The conditions of an item that consists of assertions alone.
fn asserted_conditions(item: &str) -> Option<Vec<&str>> {
    let mut conditions = Vec::new();
    let mut from = None;
    let mut was_assert = false;
    for (at, depth, token) in Lexer::new(item) {
        match (depth, token) {
            (0, "(") if was_assert => from = Some(at + 1),
            (0, ")") if from.is_some() => conditions.push(&item[from.take()?..at]),
            _ if from.is_some() || depth > 0 => {}
            (0, "assert" | "let" | "_" | "=" | ";" | "(" | ")") => {}
            _ => return None,
        }
        was_assert = token == "assert";
    }
    (!conditions.is_empty() && from.is_none()).then_some(conditions)
}

/// The sides of a condition that is one equation.
fn equation_sides(condition: &str) -> Option<(&str, &str)> {
    let mut sides = None;
    for (at, _, token) in Lexer::new(condition).filter(|(_, depth, _)| *depth == 0) {
        match token {
            "=" if sides.is_none() => sides = Some((&condition[..at], &condition[at + 1..])),
            "=" | "==" | "!=" | "<>" | "<" | ">" | "<=" | ">=" | "&&" | "||" | "->" | ":="
            | "," | ";" | "let" | "fun" | "function" | "match" | "if" | "try" | "not" => {
                return None;
            }
            _ => {}
        }
    }
    let is_blank = |side: &str| token_texts(side).next().is_none();
    sides.filter(|(left, right)| !is_blank(left) && !is_blank(right))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(text: &str) -> Vec<(String, String)> {
        parse(text, "f", "mark").unwrap()
    }

    fn pair(call: &str, value: &str) -> (String, String) {
        (call.to_string(), value.to_string())
    }

    #[test]
    fn equations_become_calls_with_values() {
        let expected =
            [pair("(f [] )", "( 0)"), pair("( f [1; 2])", "(3 )"), pair("(f [7] )", "( (-7))")];
        let text =
            "let () = assert (f [] = 0)\nlet () = assert (3 = f [1; 2]); assert (f [7] = (-7));;\n";
        assert_eq!(calls(text), expected);
        assert_eq!(
            calls("assert (f [] = 0);; assert (3 = f [1; 2]) ;;\nassert (f [7] = (-7))"),
            expected
        );
        let texts = r#"let () = assert (f "a = \" b)" 'x' = "(* =") (* assert (f = 1) *)"#;
        assert_eq!(calls(texts), [pair(r#"(f "a = \" b)" 'x' )"#, r#"( "(* =")"#)]);
    }

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
        let found = calls(r#"let () = assert (f {|"|} = 1 (* "(*" *)); assert (f {|(|} = 2)"#);
        let expected = [pair(r#"(f {|"|} )"#, r#"( 1 (* "(*" *))"#), pair("(f {|(|} )", "( 2)")];
        assert_eq!(found, expected);
    }

    #[test]
    fn other_assertions_count_as_a_whole() {
        for condition in [
            "abs_float (f 2. -. 1.) < 1e-6",
            "f 1 = 1 && f 2 = 2",
            "f 1 = f 2",
            "not (f 1 = 2)",
            "1 = 1",
        ] {
            let expected = pair(&format!("((\"mark\", ({condition})))"), "(\"mark\", true)");
            assert_eq!(calls(&format!("let () = assert ({condition})")), [expected]);
        }
        let found = calls("let () = let x = f 3 in assert (x = 4)");
        assert_eq!(
            found,
            [pair("((\"mark\", ((( let x = f 3 in assert (x = 4)); true))))", "(\"mark\", true)")]
        );
    }

    #[test]
    fn definitions_are_available_afterwards() {
        let found = calls("let two = 2\nlet () = assert (f two = two + 1)\n");
        let module = "(let module Tests = struct let two = 2\n end in let open Tests in ";
        assert_eq!(found, [pair(&format!("{module}(f two ))"), &format!("{module}( two + 1))"))]);
        let found = calls("let ok x = f x = x\nlet () = assert (ok 3)");
        assert!(found[0].0.contains("\"mark\"") && found[0].1 == "(\"mark\", true)");
        let found = calls("let t = [|1|];;\nt.(0) <- 2;;\nassert (f t = 3)");
        let module = "(let module Tests = struct let t = [|1|]\nlet _ = (t.(0) <- 2)\n end in let open Tests in ";
        assert_eq!(found, [pair(&format!("{module}(f t ))"), &format!("{module}( 3))"))]);
        let found = calls("exception E\nassert (g f = Error E)");
        assert!(found[0].0.contains("\"mark\", (g f = Error E)"), "{found:?}");
        assert!(parse("let x = 1", "f", "mark").is_err());
    }

    #[test]
    fn assertions_in_definitions_count_where_these_are_called() {
        let found =
            calls("let check x y = assert (f x = y)\nlet () = check 1 2\nlet () = check 2 3");
        assert_eq!(found.len(), 2);
        let module = "(let module Tests = struct let check x y = assert (f x = y)\n end in let open Tests in ";
        assert_eq!(
            found[0],
            pair(&format!("{module}((\"mark\", ((( check 1 2); true)))))"), "(\"mark\", true)")
        );
        for text in [
            "let main () =\n  assert (f 1 = 2);\n  assert (f 2 = 3)\nlet () = main ()",
            "let one () = assert (f 1 = 2)\nlet all () = one ()\nlet _ = all ()",
            "let rec go n = if n > 0 then (assert (f n = n); go (n - 1));;\ngo 3;;",
        ] {
            let found = calls(text);
            assert!(found.len() == 1 && found[0].0.contains("true"), "{text}: {found:?}");
        }
        let error = parse("let main () = assert (f 1 = 2)", "f", "mark").unwrap_err();
        assert_eq!(error, "`main` in `tests` has an `assert`, but is not used");
        // An equation without a side is left to the compiler, which refuses it.
        assert!(calls("assert (f 1 = )")[0].0.contains("(f 1 = )"));
    }
}
