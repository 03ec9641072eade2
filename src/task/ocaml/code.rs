//! Extraction of code from a completion, with checks of its presentation.

use super::lexer::Lexer;

/// The code in a completion.
#[derive(Debug, PartialEq)]
pub struct Code {
    /// The code; the problem's head comes first if the code does not define the function.
    pub text: String,
    /// Whether the completion is degenerate: repetitive, mostly prose, or with many fences.
    pub is_degenerate: bool,
    /// Whether the code looks like a placeholder, which it is not if it passes all tests.
    pub is_stub: bool,
    /// Penalty on a perfect score for additional code blocks and for prose after the code, 0 to 0.1.
    pub untidiness: f64,
}

const FENCE: &str = "```";

impl Code {
    /// Extracts the code of `completion`: its first fenced block, or all of it if there is none. If the code
    /// does not define `name`, `head` is prepended. `None` if there is no code.
    pub fn extract(completion: &str, name: &str, head: &str) -> Option<Self> {
        let blocks = find_fenced_blocks(completion);
        let text = blocks.first().map_or(completion, |(text, _)| *text);
        // Comments alone are not code.
        Lexer::new(text).next()?;
        let with_head =
            if defines(text, name) { text.to_string() } else { format!("{head}\n{text}") };
        let prose_len =
            blocks.last().map_or(0, |(_, end)| completion[*end..].trim().chars().count());
        let further_blocks = 0.02 * blocks.len().saturating_sub(1) as f64;
        let prose = if prose_len > 30 { 0.03 } else { 0.0 };
        Some(Self {
            is_degenerate: is_repetitive(completion)
                || 2 * text.trim().len() < completion.trim().len()
                || completion.matches(FENCE).count() > 4,
            is_stub: is_stub(text),
            untidiness: (further_blocks + prose).min(0.1),
            text: with_head,
        })
    }
}

/// Whether some code defines a name outside of brackets, and not only up to the `in` of a local definition.
fn defines(text: &str, name: &str) -> bool {
    // Whether each `let` that has no `in` yet defines the name.
    let mut open: Vec<bool> = Vec::new();
    let mut is_name_next = false;
    for token in Lexer::new(text).filter(|token| token.depth == 0) {
        match token.text {
            "let" => {
                open.push(false);
                is_name_next = true;
            }
            "rec" | "and" => is_name_next = true,
            "in" => {
                open.pop();
            }
            // An attribute, such as `[@inline]`.
            "[" | "]" => {}
            word => {
                if let Some(defines) = open.last_mut().filter(|_| is_name_next && word == name) {
                    *defines = true;
                }
                is_name_next = false;
            }
        }
    }
    open.contains(&true)
}

/// Finds the fenced blocks of a text, each with the offset of the text after it; the last one may be unclosed.
fn find_fenced_blocks(text: &str) -> Vec<(&str, usize)> {
    let mut blocks = Vec::new();
    let mut at = 0;
    while let Some(start) = text[at..].find(FENCE).map(|i| at + i + FENCE.len()) {
        // The rest of the fence's line names the language.
        let first = text[start..].find('\n').map_or(text.len(), |i| start + i + 1);
        let (last, end) = match text[first..].find(FENCE) {
            Some(i) => (first + i, first + i + FENCE.len()),
            None => (text.len(), text.len()),
        };
        blocks.push((&text[first..last], end));
        at = end;
    }
    blocks
}

/// Whether a text of more than 100 characters is repetitive: fewer than 30 % of its windows of 50
/// characters, with stride 25, are distinct.
fn is_repetitive(text: &str) -> bool {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= 100 {
        return false;
    }
    let mut windows: Vec<&[char]> = chars.windows(50).step_by(25).collect();
    let num_windows = windows.len() as f64;
    windows.sort_unstable();
    windows.dedup();
    (windows.len() as f64) < 0.3 * num_windows
}

/// Whether a string looks like a placeholder for code.
fn is_stub(text: &str) -> bool {
    let lines = text.lines().filter(|line| !line.trim().is_empty()).count();
    let lower = text.to_lowercase();
    let placeholders = ["assert false", "todo", "your code here", "not implemented", "fill in"];
    (lines < 5 && placeholders.iter().any(|words| lower.contains(words)))
        || (lines < 3 && lower.contains("failwith"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(completion: &str) -> Option<Code> {
        Code::extract(completion, "f", "let rec f x =")
    }

    #[test]
    fn code_is_extracted_from_prose_and_gets_its_head() {
        assert_eq!(code("  x + 1\n").unwrap().text, "let rec f x =\n  x + 1\n");
        let own = code("Sure:\n```ocaml\nlet f x = x + 1\n```").unwrap();
        assert_eq!((own.text.as_str(), own.untidiness), ("let f x = x + 1\n", 0.0));
        assert_eq!(code("```\nx + 1").unwrap().text, "let rec f x =\nx + 1");
        // A function with a similar name does not count as a definition.
        assert_eq!(
            code("let f2 = 3 in x + f2").unwrap().text,
            "let rec f x =\nlet f2 = 3 in x + f2"
        );
    }

    #[test]
    fn a_definition_of_any_form_is_not_given_the_head() {
        for definition in [
            "let f: int -> int = fun x -> x + 1",
            "let f(x) = x + 1",
            "let rec f(x) = x + 1",
            "let[@inline] f x = x + 1",
            "let rec g x = f x\nand f x = x + 1",
            "let f =\n  fun x -> x + 1",
            "let one = 1 let f x = x + one",
            "let f x = let f y = y + 1 in f x",
            "let f x = let one = 1 in\n  let g y = y in g x + one",
            "let f x = x let g x = let f y = y in f x",
        ] {
            assert_eq!(code(definition).unwrap().text, definition);
        }
        for body in [
            "(* let f x = *) x + 1",
            "g \"let f x\" x",
            "g {|let f x|} x",
            "let f' x = x in f' x",
            "let rec f n = if n = 0 then x else f (n - 1) in f x",
            "let g y = y and f y = y in let h y = f y in h (g x)",
        ] {
            assert!(code(body).unwrap().text.starts_with("let rec f x =\n"), "{body}");
        }
    }

    #[test]
    fn comments_alone_are_not_code() {
        for nothing in
            ["", "  \n", "(* x + 1 *)", "(* a (* b *) c *)\n", "```\n```", "(* open", "(* \"*)\" x"]
        {
            assert_eq!(code(nothing), None, "{nothing:?}");
        }
        for some in ["(* a *) x", "(* \"(*\" *) x", "(* '\"' *) x", "(* {|(*|} *) x"] {
            assert!(code(some).is_some(), "{some}");
        }
    }

    #[test]
    fn degenerate_completions_are_detected() {
        let is_degenerate = |completion: &str| code(completion).unwrap().is_degenerate;
        assert!(!is_degenerate("  x + 1"));
        assert!(is_degenerate(&"x + x + ".repeat(100)));
        for stub in ["assert false", "(* TODO *) 0", "failwith \"no\""] {
            assert!(is_stub(stub) && !is_degenerate(stub), "{stub}");
        }
        assert!(!is_stub("match x with\n| 0 -> 1\n| 1 -> 2\n| 2 -> 3\n| _ -> assert false"));
        assert!(!is_stub("if x < 0\nthen failwith \"negative\"\nelse x"));
        let prose = "It is easy to see that one has to add something to it, and so we do.";
        assert!(is_degenerate(&format!("{prose}\n```\nx + 1\n```")));
        assert!(is_degenerate("```\nx + 1\n```\n```\n\n```\n```\n\n```"));
    }

    #[test]
    fn untidiness_is_bounded() {
        let after = |text: &str| code(&format!("```\nx + 1\n```{text}")).unwrap().untidiness;
        assert_eq!(after(""), 0.0);
        assert_eq!(after("\nThat is all."), 0.0);
        assert_eq!(after("\nThat is all that there is to be done."), 0.03);
        assert_eq!(after("\n```\ny\n```"), 0.02);
        assert_eq!(after(&"\n```\ny\n```".repeat(9)), 0.1);
    }
}
