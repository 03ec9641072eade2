//! Chat templates: messages to the text that a model was taught them in.

use crate::model::language::error::LanguageError;
use minijinja::{Environment, Error, ErrorKind, context};
use serde::Serialize;

/// A chat template, in Jinja, as Hugging Face's files hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The template.
    pub source: String,
    /// The text of the token that begins a text, if there is one.
    pub bos: String,
    /// The text of the token that ends one.
    pub eos: String,
}

impl ChatTemplate {
    /// The text of messages (anything with `role` and `content`), up to where the assistant speaks.
    ///
    /// # Errors
    /// If the template fails.
    pub fn render(&self, messages: &[impl Serialize]) -> Result<String, LanguageError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        // No text depends on the day on which it is made.
        environment.add_function("strftime_now", |_: String| "26 Jul 2024");
        let fails = |error: Error| LanguageError::Template(error.to_string());
        let template = environment.template_from_str(&self.source).map_err(fails)?;
        let values = context! {
            messages => messages,
            bos_token => self.bos,
            eos_token => self.eos,
            add_generation_prompt => true,
        };
        template.render(values).map_err(fails)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(source: &str) -> ChatTemplate {
        let (bos, eos) = ("<s>".to_string(), "</s>".to_string());
        ChatTemplate { source: source.to_string(), bos, eos }
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
}
