//! Checks of every value that a chat template computes, which stand between its instructions.
//!
//! minijinja computes some values only where they are used, and then without regard to limits: `[1] * 1000000000` takes
//! no memory, its `sort` takes all. With each result checked before the next instruction, every instruction works on
//! values of a bounded size.

use super::limits::{self, COMPUTED, STORED};
use minijinja::machinery::{
    CompiledTemplate, Instruction, Instructions, TemplateConfig, Token, Vm, WhitespaceConfig,
    make_string_output, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, Value};
use std::sync::Arc;

/// Maximum number of lists or dictionaries whose parts become arguments of a call, as in `f(*a, *b)`.
const MAX_UNPACKED: usize = 8;

/// Renders a template, with the filters that [`limits::apply`] adds.
///
/// # Errors
/// If it cannot be read, fails, or passes a limit.
pub(super) fn render(
    environment: &Environment<'_>,
    source: &str,
    values: Value,
) -> Result<String, Error> {
    let source = edit(source)?;
    let ws_config =
        WhitespaceConfig { trim_blocks: true, lstrip_blocks: true, ..Default::default() };
    let config = TemplateConfig {
        syntax_config: SyntaxConfig,
        ws_config,
        default_auto_escape: Arc::new(|_| AutoEscape::None),
    };
    let compiled = CompiledTemplate::new("<string>", &source, &config)?;
    let instructions = add_checks(&compiled.instructions)?;
    let blocks = compiled.blocks.iter().map(|(name, block)| Ok((*name, add_checks(block)?)));
    let blocks = blocks.collect::<Result<_, Error>>()?;
    let mut text = String::new();
    let mut output = make_string_output(&mut text);
    Vm::new(environment).eval(&instructions, values, &blocks, &mut output, AutoEscape::None)?;
    drop(output);
    limits::check_text(&text)?;
    Ok(text)
}

/// Puts a check before every `*` between two values: minijinja would multiply constants while it reads a template.
/// Replaces `generation` tags, by which `transformers` finds the assistant's text, by `with` blocks, which have a scope
/// of their own, too.
fn edit(source: &str) -> Result<String, Error> {
    // By minijinja's own lexer: any other could be made to miss some.
    let tokens = tokenize(source, false, SyntaxConfig, WhitespaceConfig::default());
    let tokens: Vec<_> = tokens.collect::<Result<_, Error>>()?;
    let (mut edited, mut end) = (String::with_capacity(source.len()), 0);
    for (i, (token, span)) in tokens.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| &tokens[i].0);
        let after = tokens.get(i + 1).map(|(token, _)| token);
        let is_statement =
            matches!((before, after), (Some(Token::BlockStart), Some(Token::BlockEnd)));
        // Otherwise it is of arguments, as in `f(*a, *b)`.
        let follows_value =
            before.is_some_and(|token| !matches!(token, Token::ParenOpen | Token::Comma));
        let new = match token {
            Token::Mul if follows_value => format!(" |{COMPUTED} *"),
            Token::Ident("generation") if is_statement => "with".to_string(),
            Token::Ident("endgeneration") if is_statement => "endwith".to_string(),
            _ => continue,
        };
        edited += &source[end..span.start_offset as usize];
        edited += &new;
        end = span.end_offset as usize;
    }
    Ok(edited + &source[end..])
}

/// Adds checks to instructions.
fn add_checks<'a>(unchecked: &Instructions<'a>) -> Result<Instructions<'a>, Error> {
    let (mut groups, mut starts, mut start) = (Vec::new(), Vec::new(), 0);
    while let Some(instruction) = unchecked.get(groups.len() as u32) {
        let group = add_check(instruction)?;
        starts.push(start);
        start += group.len() as u32;
        groups.push(group);
    }
    starts.push(start);
    let mut checked = Instructions::new(unchecked.name(), unchecked.source());
    for (i, group) in groups.into_iter().enumerate() {
        let line = unchecked.get_line(i as u32).unwrap_or(0) as u16;
        for mut instruction in group {
            if let Instruction::Iterate(target)
            | Instruction::Jump(target)
            | Instruction::JumpIfFalse(target)
            | Instruction::JumpIfFalseOrPop(target)
            | Instruction::JumpIfTrueOrPop(target)
            | Instruction::BuildMacro(_, target, _) = &mut instruction
            {
                *target = starts[*target as usize];
            }
            checked.add_with_line(instruction, line);
        }
    }
    Ok(checked)
}

/// Adds the check of what an instruction computes or stores.
fn add_check<'a>(instruction: &Instruction<'a>) -> Result<Vec<Instruction<'a>>, Error> {
    let check = |filter| Instruction::ApplyFilter(filter, Some(1), !0);
    let own = instruction.clone();
    Ok(match instruction {
        Instruction::Add
        | Instruction::Mul
        | Instruction::StringConcat
        | Instruction::Slice
        | Instruction::BuildList(_)
        | Instruction::BuildMap(_)
        | Instruction::ApplyFilter(..)
        | Instruction::CallFunction(..)
        | Instruction::CallMethod(..)
        | Instruction::CallObject(_) => vec![own, check(COMPUTED)],
        // The value is below the namespace.
        Instruction::SetAttr(_) => vec![Instruction::Swap, check(STORED), Instruction::Swap, own],
        // Written like any other text, so that it is counted.
        Instruction::EmitRaw(text) => {
            let text = Value::from_safe_string((*text).to_string());
            vec![Instruction::LoadConst(text), Instruction::Emit]
        }
        Instruction::UnpackLists(count) | Instruction::MergeKwargs(count)
            if *count > MAX_UNPACKED =>
        {
            return Err(limits::refusal("a call has too many arguments with `*`"));
        }
        _ => vec![own],
    })
}

#[cfg(test)]
mod tests {
    use crate::text::template::ChatTemplate;
    use serde_json::json;

    fn render(source: &str) -> Result<String, String> {
        let template = ChatTemplate { source: source.to_string(), ..ChatTemplate::default() };
        template.render(&[json!({"role": "user"})]).map_err(|error| error.to_string())
    }

    #[test]
    fn repeated_lists_are_rejected_before_they_are_used() {
        let many = "[1] * 100000000000";
        for used in [
            format!("({many})|sort"),
            format!("({many})|max"),
            format!("({many})|last"),
            format!("({many})|groupby('a')"),
            format!("({many})[::-1]"),
            format!("2 in {many}"),
            format!("{many} == {many}"),
            format!("{many} ~ ''"),
            format!("[1] + {many}"),
            format!("[({many})]"),
            format!("range(*{many})"),
            "100000000000 * [1]".to_string(),
            "range(9) * 100000000000".to_string(),
            "messages * 100000000000".to_string(),
            "messages[0:] * (3 * 100000000000)".to_string(),
            "'a' ~ 'a' * 90000000".to_string(),
            "[[1] * 9000] * 9000".to_string(),
            format!("[{}]", ["[1] * 9000"; 200].join(", ")),
            "[1] * 600000 + [1] * 600000".to_string(),
        ] {
            let error = render(&format!("{{{{ ({used})|length }}}}")).unwrap_err();
            assert!(error.contains("parts") || error.contains("16 MiB"), "{used}: {error}");
        }
    }

    #[test]
    fn filters_and_methods_without_bounds_are_rejected() {
        for source in [
            "{{ ('{0}' * 100000).format('a' * 100000) }}",
            "{{ 'ab'.strip('x' * 2000) }}",
            "{{ 'ab'|trim('x' * 2000) }}",
            "{{ {}|chain({}) }}",
            "{{ debug() }}",
            "{{ range(*[1], *[1], *[1], *[1], *[1], *[1], *[1], *[1], *[1]) }}",
        ] {
            assert!(render(source).is_err(), "{source}");
        }
        let long = "a".repeat(50_000);
        for source in [
            format!("{{% for a in range(10000) %}}{long}{{% endfor %}}"),
            format!("{{% set x %}}{{% for a in range(10000) %}}{long}{{% endfor %}}{{% endset %}}"),
        ] {
            let error = render(&source).unwrap_err();
            assert!(error.contains("its text is longer than 16 MiB"), "{error}");
        }
    }

    #[test]
    fn checks_change_nothing_that_a_template_computes() {
        for (source, expected) in [
            ("{{ -2 * 3 }} {{ 2 ** 3 * 2 }} {{ 7 // 2 * 2 }} {{ 2.5 * 2 }}", "-6 16 6 5.0"),
            ("{{ 3 * 'ab' }} {{ 0 or 'a' * 3 }} {{ not 1 * 0 }}", "ababab aaa True"),
            ("{{ [1] * 2 }} {{ 2 * [1, 'a'] + [3] }}", "[1, 1] [1, 'a', 1, 'a', 3]"),
            ("{{ 10 is divisibleby 5 * 2 }} {{ 1 is odd * 2 }}", "2 2"),
            (
                "{% macro f(a, b=3) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }}{{ f( * [1]) }}",
                "1213",
            ),
            (
                "{{ range(5)[1:3] }}{{ 'abc'.count('') }}{{ ' a '|trim }}{{ 'xax'.strip('x') }}",
                "[1, 2]4aa",
            ),
            (
                "{% for a in [[1, [2]], [3]] recursive %}({% if a is iterable %}{{ loop(a) }}{% else %}{{ a }}\
                 {% endif %}){% endfor %}",
                "((1)((2)))((3))",
            ),
            (
                "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}\
                 {{ i }}{{ loop.index * 2 }}{% else %}none{% endfor %}",
                "0226",
            ),
            ("{% block a %}x{{ 1 + 2 }}{% endblock %}{{ self.a() }}", "x3x3"),
            (
                "{% set ns = namespace(a=1) %}{% set m = ns %}{% set m.a, b = [2], 3 %}{{ ns.a }}{{ b }}",
                "[2]3",
            ),
            (
                "{% set d = {'a': 1, 'b': 2} %}{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %}\
                 {% filter upper %}c{{ 'd' ~ 'e' }}{% endfilter %}",
                "a1b2CDE",
            ),
        ] {
            assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
        }
        let error = render("a\n\n{{ 'a' + 1 }}").unwrap_err();
        assert!(error.ends_with("(in <string>:3)"), "{error}");
    }
}
