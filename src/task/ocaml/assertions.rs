//! Tests written as OCaml assertions, taken apart into calls with expected values.

use super::lexer::{Lexer, Token, token_texts};

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
        if let Some(conditions) = extract_conditions(item) {
            tests.extend(
                conditions
                    .into_iter()
                    .map(|condition| split_assertion(condition, name, mark, &definitions)),
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
        match extract_expression(item) {
            Some(body) if asserts => {
                tests.push(mark_condition(&format!("(({body}); true)"), mark, &definitions));
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

/// Extracts the expression of an item that defines nothing: `let () = ...`, `let _ = ...`, or an expression alone.
fn extract_expression(item: &str) -> Option<&str> {
    let mut tokens = Lexer::new(item);
    let first = tokens.next()?.text;
    if matches!(first, "open" | "module" | "type" | "exception" | "include") {
        return None;
    }
    if first != "let" {
        return Some(item);
    }
    let opening = tokens.next()?.text;
    let is_unit = opening == "(" && tokens.next()?.text == ")";
    if opening != "_" && !is_unit {
        return None;
    }
    let equals_sign = tokens.find(|token| token.text == "=")?;
    Some(&item[equals_sign.offset + 1..])
}

/// The name that an item defines, or the first of several.
fn defined_name(item: &str) -> Option<&str> {
    let is_keyword = |word: &&str| matches!(*word, "let" | "rec" | "module" | "exception" | "type");
    token_texts(item).find(|word| !is_keyword(word))
}

/// Splits an assertion into a call and its expected value.
fn split_assertion(condition: &str, name: &str, mark: &str, definitions: &str) -> (String, String) {
    let has = |text: &str, wanted: &str| token_texts(text).any(|word| word == wanted);
    let uses = |text: &str| has(text, name);
    if let Some((left, right)) = split_equation(condition)
        && !uses(definitions)
        // An exception of theirs is another one in each process.
        && !has(definitions, "exception")
        && uses(left) != uses(right)
    {
        let (call, value) = if uses(left) { (left, right) } else { (right, left) };
        return (prepend_definitions(definitions, call), prepend_definitions(definitions, value));
    }
    mark_condition(condition, mark, definitions)
}

/// Turns a whole condition into a call whose value is a pair of `mark` and whether it holds.
fn mark_condition(condition: &str, mark: &str, definitions: &str) -> (String, String) {
    (
        prepend_definitions(definitions, &format!("({mark:?}, ({condition}))")),
        format!("({mark:?}, true)"),
    )
}

fn prepend_definitions(definitions: &str, expression: &str) -> String {
    match definitions {
        "" => format!("({expression})"),
        _ => format!(
            "(let module Tests = struct {definitions} end in let open Tests in ({expression}))"
        ),
    }
}

/// Splits a file into its items: they begin at the start of a line, or after `;;`.
fn split_items(text: &str) -> Vec<&str> {
    let mut cuts = vec![0];
    let mut last = "";
    for Token { offset, depth, text: token } in Lexer::new(text) {
        let is_keyword =
            matches!(token, "let" | "open" | "module" | "type" | "exception" | "assert");
        let is_first = offset == 0 || text[..offset].ends_with('\n');
        let follows_end = last == ";" && text[..offset].trim_end().ends_with(";;");
        if depth == 0 && ((is_keyword && is_first) || follows_end) {
            cuts.push(offset);
        }
        last = token;
    }
    cuts.push(text.len());
    let item = |pair: &[usize]| text[pair[0]..pair[1]].trim().trim_end_matches(";;").trim();
    let items: Vec<&str> = cuts.windows(2).map(item).collect();
    items.into_iter().filter(|item| token_texts(item).next().is_some()).collect()
}

/// Extracts the conditions of an item that consists of assertions alone.
fn extract_conditions(item: &str) -> Option<Vec<&str>> {
    let mut conditions = Vec::new();
    let mut from = None;
    let mut was_assert = false;
    for Token { offset, depth, text } in Lexer::new(item) {
        match (depth, text) {
            (0, "(") if was_assert => from = Some(offset + 1),
            (0, ")") if from.is_some() => conditions.push(&item[from.take()?..offset]),
            _ if from.is_some() || depth > 0 => {}
            (0, "assert" | "let" | "_" | "=" | ";" | "(" | ")") => {}
            _ => return None,
        }
        was_assert = text == "assert";
    }
    (!conditions.is_empty() && from.is_none()).then_some(conditions)
}

/// Splits a condition that is one equation into its sides.
fn split_equation(condition: &str) -> Option<(&str, &str)> {
    let mut sides = None;
    for Token { offset, text, .. } in Lexer::new(condition).filter(|token| token.depth == 0) {
        match text {
            "=" if sides.is_none() => {
                sides = Some((&condition[..offset], &condition[offset + 1..]));
            }
            "=" | "==" | "!=" | "<>" | "<" | ">" | "<=" | ">=" | "&&" | "&" | "||" | "or"
            | "->" | ":=" | "," | ";" | "begin" | "let" | "fun" | "function" | "match" | "if"
            | "try" | "not" => {
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
    fn brackets_in_literals_and_comments_do_not_end_an_assertion() {
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
            "begin f 1 = 2 end",
            "f 1 = true or f 2",
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
