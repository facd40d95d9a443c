//! Patterns for names. They are matched here, and never by the store.

/// A pattern: `*` stands for any text, `?` for one character, and `\` takes the meaning from the character after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob(Vec<Part>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Character(char),
    One,
    Any,
}

impl Glob {
    pub(crate) fn new(pattern: &str) -> Self {
        let (mut parts, mut rest) = (Vec::new(), pattern.chars());
        while let Some(c) = rest.next() {
            parts.push(match c {
                '*' => Part::Any,
                '?' => Part::One,
                '\\' => Part::Character(rest.next().unwrap_or('\\')),
                c => Part::Character(c),
            });
        }
        Self(parts)
    }

    /// The text with which each match begins.
    pub(crate) fn start(&self) -> String {
        self.0
            .iter()
            .map_while(|part| match part {
                Part::Character(c) => Some(*c),
                Part::One | Part::Any => None,
            })
            .collect()
    }

    /// Whether the whole text matches. Takes at most as many steps as both have characters, multiplied.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let text: Vec<_> = text.chars().collect();
        let (mut at, mut part) = (0, 0);
        // Where the last `*` is, and up to where it matches now.
        let mut retry = None;
        while at < text.len() {
            match self.0.get(part) {
                Some(Part::Any) => {
                    retry = Some((part, at));
                    part += 1;
                    continue;
                }
                Some(Part::One) => {}
                Some(Part::Character(c)) if *c == text[at] => {}
                Some(Part::Character(_)) | None => match &mut retry {
                    Some((any, end)) => {
                        *end += 1;
                        (part, at) = (*any + 1, *end);
                        continue;
                    }
                    None => return false,
                },
            }
            (at, part) = (at + 1, part + 1);
        }
        self.0[part..].iter().all(|part| *part == Part::Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        let table = [
            ("orders:*", "orders:42", true),
            ("orders:*", "orders", false),
            ("*", "", true),
            ("", "a", false),
            ("a?c", "aäc", true),
            ("a?c", "ac", false),
            ("*a*b", "xaybzb", true),
            ("*a*b", "xaybz", false),
            ("a*b*c", "abbc", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[ab]", "a", false),
            ("[ab]", "[ab]", true),
            ("x**y", "xy", true),
        ];
        for (pattern, text, matches) in table {
            assert_eq!(Glob::new(pattern).matches(text), matches, "{pattern} {text}");
        }
        assert_eq!(Glob::new("orders:4?*").start(), "orders:4");
        assert_eq!(Glob::new("a\\*b").start(), "a*b");
    }
}
