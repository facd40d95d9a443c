//! Writes JSON that can stand in a script element.

use std::fmt::Write as _;

/// A JSON text under construction: values follow one another, and this puts the commas between them.
#[derive(Default)]
pub(super) struct Json {
    text: String,
    needs_comma: bool,
}

impl Json {
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn value(&mut self, write: impl FnOnce(&mut String)) {
        if self.needs_comma {
            self.text.push(',');
        }
        write(&mut self.text);
        self.needs_comma = true;
    }

    fn nested(&mut self, brackets: [char; 2], write: impl FnOnce(&mut Self)) {
        self.value(|text| text.push(brackets[0]));
        self.needs_comma = false;
        write(self);
        self.text.push(brackets[1]);
        self.needs_comma = true;
    }

    pub(super) fn object(&mut self, write: impl FnOnce(&mut Self)) {
        self.nested(['{', '}'], write);
    }

    /// An array whose values differ in what they mean.
    pub(super) fn row(&mut self, write: impl FnOnce(&mut Self)) {
        self.nested(['[', ']'], write);
    }

    pub(super) fn array<T>(&mut self, values: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.nested(['[', ']'], |json| values.iter().for_each(|value| write(json, value)));
    }

    /// The name of the value that follows.
    pub(super) fn key(&mut self, name: &str) {
        self.text(name);
        self.text.push(':');
        self.needs_comma = false;
    }

    pub(super) fn number(&mut self, number: impl std::fmt::Display) {
        self.value(|text| {
            let _ = write!(text, "{number}");
        });
    }

    pub(super) fn null(&mut self) {
        self.value(|text| text.push_str("null"));
    }

    /// A text: nothing in it ends the script element, or begins a comment of HTML.
    pub(super) fn text(&mut self, value: &str) {
        self.value(|text| {
            text.push('"');
            for char in value.chars() {
                match char {
                    '"' => text.push_str("\\\""),
                    '\\' => text.push_str("\\\\"),
                    '\n' => text.push_str("\\n"),
                    '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                        let _ = write!(text, "\\u{:04x}", u32::from(char));
                    }
                    _ => text.push(char),
                }
            }
            text.push('"');
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_are_between_values_and_nowhere_else() {
        let mut json = Json::default();
        json.object(|json| {
            json.key("empty");
            json.array(&[] as &[u8], |json, value| json.number(value));
            json.key("rows");
            json.array(&[1, 2], |json, value| {
                json.row(|json| {
                    json.number(value);
                    json.null();
                    json.text("a \"text\"\n</script>\u{2028}\u{1}\\");
                });
            });
        });
        let text = r#""a \"text\"\n\u003c/script\u003e\u2028\u0001\\""#;
        assert_eq!(json.finish(), format!(r#"{{"empty":[],"rows":[[1,null,{text}],[2,null,{text}]]}}"#));
    }
}
