//! Rendering of chat templates as in `transformers`, so that a model sees texts as in its training.

use super::ChatTemplate;
use super::checks;
use super::json::to_json;
use super::limits;
use super::python;
use crate::text::error::LanguageError;
use minijinja::value::merge_maps;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

impl ChatTemplate {
    /// Renders messages (anything with `role` and `content`), up to where the assistant is to answer.
    ///
    /// # Errors
    /// If the template fails, raises an error itself, or takes more time, memory or depth than a chat template needs.
    pub fn render(&self, messages: &[impl Serialize]) -> Result<String, LanguageError> {
        self.render_with(messages, &Map::<String, Json>::new(), None)
    }

    /// Text that the template puts after an answer; `None` if it rejects the conversation.
    pub(in crate::text) fn find_answer_suffix(&self) -> Option<String> {
        // A word that templates neither change nor contain.
        const ANSWER: &str = "Zq7answerZq7";
        let question = [json!({ "role": "user", "content": "question" })];
        let text = self.render_with(&question, &Map::<String, Json>::new(), Some(ANSWER)).ok()?;
        Some(text.rsplit_once(ANSWER)?.1.to_string())
    }

    /// Renders messages with values of the template's own variables: as [`ChatTemplate::render`], or with the
    /// assistant's answer if it is given.
    pub(in crate::text) fn render_with(
        &self,
        messages: &[impl Serialize],
        values: &impl Serialize,
        answer: Option<&str>,
    ) -> Result<String, LanguageError> {
        let answered =
            answer.map(|text| Value::from_iter([("role", "assistant"), ("content", text)]));
        let messages: Vec<Value> =
            messages.iter().map(Value::from_serialize).chain(answered).collect();
        let tokens = Value::from_serialize(&self.special_tokens);
        // Not undefined, since templates test whether they are `none`.
        let absent = Value::from_iter([("tools", ()), ("documents", ())]);
        let given = Value::from_serialize(values);
        let fixed = Value::from_iter([
            ("messages", Value::from_serialize(&messages)),
            ("add_generation_prompt", Value::from(answer.is_none())),
        ]);
        // The last value of a name counts, as in `transformers`.
        let values = merge_maps([tokens, absent, given, fixed]);
        let has_tools = values.get_attr("tools").is_ok_and(|tools| !tools.is_none());
        let source = self.tool_source.as_ref().filter(|_| has_tools).unwrap_or(&self.source);
        // As in Jinja; a template may have been saved with Windows line ends.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        limits::check_source(&source).map_err(LanguageError::Template)?;
        limits::run(&self.exceeded, move || checks::render(&new_environment(), &source, values))
            .map_err(LanguageError::Template)
    }
}

/// Creates Jinja with the filters and functions that `transformers` adds.
fn new_environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", strftime_now);
    python::replace_filters_and_tests(&mut environment);
    limits::apply(&mut environment, python::format_python, python::call_method);
    environment
}

/// Formats the date that templates take for today: the first moment of Friday, 26 July 2024, so that prompts do not
/// depend on the date.
fn strftime_now(format: String) -> Result<String, Error> {
    let (mut text, mut rest) = (String::new(), format.chars());
    while let Some(c) = rest.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let mut code = rest.next();
        let is_unpadded = code == Some('-');
        if is_unpadded {
            code = rest.next();
        }
        let part = match code {
            Some('Y') => "2024",
            Some('y') => "24",
            Some('m') => "07",
            Some('B') => "July",
            Some('b' | 'h') => "Jul",
            Some('d' | 'e') => "26",
            Some('j') => "208",
            Some('A') => "Friday",
            Some('a') => "Fri",
            Some('H' | 'M' | 'S') => "00",
            Some('I') => "12",
            Some('p') => "AM",
            Some('F') => "2024-07-26",
            Some('T') => "00:00:00",
            Some('%') => "%",
            other => {
                let code = other.map(String::from).unwrap_or_default();
                let what = format!("`strftime_now` does not know %{code}");
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        };
        text += part.strip_prefix('0').filter(|_| is_unpadded).unwrap_or(part);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> ChatTemplate {
        let special_tokens = [("bos_token", "<s>"), ("eos_token", "</s>")]
            .map(|(name, text)| (name.to_string(), text.to_string()))
            .into();
        ChatTemplate { source: source.to_string(), special_tokens, ..ChatTemplate::default() }
    }

    #[test]
    fn templates_are_filled_in_as_python_would() {
        let chatml = "{% for message in messages %}\n    {% if loop.first and message['role'] != \
             'system' %}{{ bos_token }}{% endif %}\n{{'<|im_start|>' + message['role'] + '\\n' + \
             message['content'].strip() + '<|im_end|>' + '\\n'}}{% endfor %}\n\
             {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
        let text = template(chatml).render(&[json!({"role": "user", "content": " hi "})]).unwrap();
        assert_eq!(text, "<s><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
        let refuses = template("{{ raise_exception('no system prompt') }}");
        let error = refuses.render(&[json!({})]).unwrap_err().to_string();
        assert!(error.contains("no system prompt"), "{error}");
    }

    #[test]
    fn today_is_a_fixed_day_in_the_format_of_the_template() {
        let day = |format: &str| {
            template(&format!("{{{{ strftime_now('{format}') }}}}")).render(&[json!({})])
        };
        // The results of Python's `datetime(2024, 7, 26).strftime`.
        for (format, expected) in [
            ("%d %b %Y", "26 Jul 2024"),
            ("%Y-%m-%d", "2024-07-26"),
            ("%A, %B %-d, %y (%a, %-m, %j)", "Friday, July 26, 24 (Fri, 7, 208)"),
            ("%H:%M:%S %-H %I %p 100%%", "00:00:00 0 12 AM 100%"),
        ] {
            assert_eq!(day(format).unwrap(), expected);
        }
        let error = day("%d %Q").unwrap_err().to_string();
        assert!(error.contains("`strftime_now` does not know %Q"), "{error}");
    }

    #[test]
    fn generation_tags_leave_what_is_between_them() {
        let marked = "{% for m in messages %}\n{%- generation -%}\n {% set x = m.content %}{{ x }}\n\
             {%- endgeneration %}{{ x }}{{ '{% generation' }}{% endfor %}";
        let messages = [json!({"content": "a"}), json!({"content": "b"})];
        assert_eq!(template(marked).render(&messages).unwrap(), "a{% generationb{% generation");
        let raw = "{% generation %}{% endgeneration %}{% raw %}{% generation %}{% set x = 1 %}{% endraw %}";
        assert_eq!(template(raw).render(&messages).unwrap(), "{% generation %}{% set x = 1 %}");
    }

    #[test]
    fn endless_templates_are_rejected() {
        let loops = "{% for a in range(99999) %}".repeat(3) + &"{% endfor %}".repeat(3);
        let deep = |operator: &str, times| format!("{{{{ {}1 }}}}", operator.repeat(times));
        let doubles = "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for a in range(40) %}\
                       {% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}";
        let doubles_in_turn =
            format!("{{% set x = 'aa' %}}{}{{{{ x }}}}", "{% set x = x ~ x %}".repeat(60));
        let long = "'aaaaaaaaaaaaaaaa'";
        let nested = |begin: &str, end: &str| {
            format!("{{% set x = {long} %}}{}{{{{ x }}}}{}", begin.repeat(40), end.repeat(40))
        };
        let in_turn = |values: Vec<String>| values.join(", ");
        let withs = (0..40).map(|_| "x = x ~ x".to_string()).collect();
        let defaults = (0..40).map(|i| format!("a{i} = a{} ~ a{}", i + 1, i + 1)).collect();
        let macros = (0..40)
            .map(|i| format!("{{% macro f{}(x) %}}{{{{ f{i}(x ~ x) }}}}{{% endmacro %}}", i + 1));
        let macros: String = macros.collect();
        let calls = "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('aaaaaaaaaaaaaaaa') }}";
        for source in [
            &loops,
            doubles,
            &doubles_in_turn,
            calls,
            &nested("{% with x = x ~ x %}", "{% endwith %}"),
            &nested("{% for x in [x ~ x] %}", "{% endfor %}"),
            &nested("{% set x %}{{ x }}{{ x }}{% endset %}", ""),
            &format!("{{% set x = {long} %}}{{% with {} %}}{{% endwith %}}", in_turn(withs)),
            &format!(
                "{{% macro f({}, a40 = {long}) %}}{{% endmacro %}}{{{{ f() }}}}",
                in_turn(defaults)
            ),
            &format!("{{% macro f0(x) %}}{{% endmacro %}}{macros}{{{{ f40({long}) }}}}"),
            "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
            "{% set ns = namespace() %}{% set ns.a = [{'b': ns}] %}{{ ns|tojson }}",
            "{% set a = namespace() %}{% set b = namespace() %}{% set a.b = b %}{% set b.a = a %}{{ a == b }}",
            // Brackets, a comment and a raw block that end elsewhere than a cursory reader thinks.
            "{% set ns = namespace() %}{{ {'a': {}}|length ~ '{#' }}{% set ns.a = ns %}{# #}{{ ns }}",
            "{% set ns = namespace() %}{#}{{ '#}{% set ns.a = ns %}{{ ns }}' }}",
            "{% set ns = namespace() %}{% raw %}{% -endraw %}{# {% endraw %}{% set ns.a = ns %}{{ ns }}#}",
            // Values that would end before their check.
            "{% set ns = namespace() %}{% set ns.a = ns) if true else (1 %}{{ ns }}",
            "{% set ns = namespace() %}{% with a = 1) if true else (ns, ns.a = ns %}{{ ns }}{% endwith %}",
            "{{ ('a\n' * 1000)|indent(100000000) }}",
            "{{ 'a'|indent(width=100000000) }}",
            "{{ ('a\n' * 1000)|_indent(100000) }}",
            "{{ [1]|batch(100000000000, 'x')|list }}",
            "{{ '%1000000000000d'|format(1) }}",
            "{{ 'a' * 90000000 }}",
            "{{ [1]|tojson(indent=99999999999) }}",
            "{{ [[[[1]]]]|tojson(indent=9000000) }}",
            "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
            "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
            "{{ ('a' * 1000000)|join('b' * 1000000) }}",
            "{{ ('b' * 1000000).join('a' * 1000000) }}",
        ] {
            assert!(template(source).render(&[json!({})]).is_err(), "{source}");
        }
        assert!(template(&deep("not ", 100_000)).render(&[json!({})]).is_err());
        assert_eq!(template(&deep("not ", 30_000)).render(&[json!({})]).unwrap(), "True");
        assert_eq!(template(&deep("-", 130_000)).render(&[json!({})]).unwrap(), "1");
        let longer = "{{ 'a\nb'|indent(2, true) }}{% set x, y = 1, [2] %}{{ x }}{{ y }}";
        assert_eq!(template(longer).render(&[json!({})]).unwrap(), "  a\n  b1[2]");
        let names = "{% for a, b in [(1, 2)] -%}\n {{ a }}{{ b }}{%- endfor %}|{% macro f(a, b='x') %}{{ a }}{{ b }}\
                     {% endmacro %}{{ f(1) }}|{% with a = 1, b = [2, 3] %}{{ a }}{{ b }}{% endwith %}|{% set x %}y\
                     {% endset %}{{ x }}|{% macro g(a) %}{{ caller(a) }}{% endmacro %}\
                     {% call(b) g(1) %}{{ b }}{% endcall %}";
        assert_eq!(template(names).render(&[json!({})]).unwrap(), "12|1x|1[2, 3]|y|1");
    }

    #[test]
    fn tools_are_none_unless_they_are_given() {
        let source = template(
            "{% if tools is not none %}{{ tools[0] | tojson }}{% endif %}{{ documents is defined }}{{ bos_token }}",
        );
        assert_eq!(source.render(&[json!({})]).unwrap(), "True<s>");
        // As in a Python dict, keys keep their order.
        let values =
            r#"{"tools": [{"type": "function", "function": {"name": "f"}}], "bos_token": "!"}"#;
        let values: Value = serde_json::from_str(values).unwrap();
        assert_eq!(
            source.render_with(&[json!({})], &values, None).unwrap(),
            "{\"type\": \"function\", \"function\": {\"name\": \"f\"}}True!"
        );
    }
}
