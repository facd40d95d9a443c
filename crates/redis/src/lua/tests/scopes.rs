//! The names that a fragment declares and uses, by the grammar of Lua 5.1 as far as the fragments use it.

use crate::lua::is_tail;
use std::collections::BTreeSet;

/// The tokens of a text, by the grammar of Lua 5.1 as far as the fragments use it.
pub(super) fn tokens(text: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), text.trim_start());
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '-' if rest.starts_with("--") => {
                let end = rest.find('\n').unwrap_or(rest.len());
                rest = rest[end..].trim_start();
                continue;
            }
            '\'' | '"' => string_len(rest, first),
            _ if first.is_ascii_alphanumeric() || first == '_' => {
                let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                rest.find(|c| !word(c)).unwrap_or(rest.len())
            }
            _ => {
                let symbols = ["...", "..", "==", "~=", "<=", ">="];
                let symbol = symbols.iter().find(|symbol| rest.starts_with(**symbol));
                symbol.map_or(first.len_utf8(), |symbol| symbol.len())
            }
        };
        tokens.push(&rest[..len]);
        rest = rest[len..].trim_start();
    }
    tokens
}

fn string_len(text: &str, quote: char) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|(_, c)| {
        let is_end = *c == quote && !escaped;
        escaped = *c == '\\' && !escaped;
        is_end
    });
    end.expect("a string ends").0 + 1
}

/// The names that a fragment reads or writes and does not declare, and those that it declares for later ones.
#[derive(Default)]
struct Names<'a> {
    free: BTreeSet<&'a str>,
    exported: BTreeSet<&'a str>,
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];
const BUILTINS: [&str; 14] = [
    "error", "ipairs", "math", "next", "pairs", "pcall", "redis", "select", "string", "table", "tonumber",
    "tostring", "type", "unpack",
];

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && !KEYWORDS.contains(&token)
}

/// The names in a list that begins at `tokens[at]`, and the index of the token after it.
fn name_list<'a>(tokens: &[&'a str], mut at: usize) -> (Vec<&'a str>, usize) {
    let mut names = Vec::new();
    while tokens.get(at).is_some_and(|token| is_name(token) || *token == ",") {
        names.extend(is_name(tokens[at]).then_some(tokens[at]));
        at += 1;
    }
    (names, at)
}

/// Follows the scopes of a stripped fragment. A local is in scope from the end of its line on.
fn names(text: &str) -> Names<'_> {
    let mut names = Names::default();
    let mut scopes: Vec<BTreeSet<&str>> = vec![BTreeSet::new()];
    let (mut brackets, mut loop_names) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let tokens = tokens(line);
        let (mut at, mut declared, mut depth, mut is_closed_late) = (0, Vec::new(), 0, false);
        while at < tokens.len() {
            let (token, previous) = (tokens[at], at.checked_sub(1).map_or("", |before| tokens[before]));
            at += 1;
            match token {
                "local" if tokens.get(at) != Some(&"function") => {
                    depth = scopes.len() - 1;
                    (declared, at) = name_list(&tokens, at);
                }
                "for" => (loop_names, at) = name_list(&tokens, at),
                "function" => {
                    if tokens[at] != "(" {
                        assert_eq!(previous, "local", "{line}");
                        if let [global] = &mut scopes[..] {
                            global.insert(tokens[at]);
                            names.exported.insert(tokens[at]);
                        }
                        scopes.last_mut().expect("a scope").insert(tokens[at]);
                        at += 1;
                    }
                    let (parameters, after) = name_list(&tokens, at + 1);
                    scopes.push(parameters.into_iter().collect());
                    at = after + 1;
                }
                "do" => scopes.push(std::mem::take(&mut loop_names).into_iter().collect()),
                "then" | "repeat" => scopes.push(BTreeSet::new()),
                "else" => *scopes.last_mut().expect("a scope") = BTreeSet::new(),
                "elseif" | "end" => drop(scopes.pop()),
                // Its condition sees the locals of the loop.
                "until" => is_closed_late = true,
                "{" | "(" | "[" => brackets.push(token),
                "}" | ")" | "]" => drop(brackets.pop()),
                _ => {
                    let is_key = brackets.last() == Some(&"{") && tokens.get(at) == Some(&"=");
                    let is_used = is_name(token) && !is_key && !matches!(previous, "." | ":");
                    if is_used && !scopes.iter().any(|scope| scope.contains(token)) {
                        names.free.insert(token);
                    }
                }
            }
        }
        let is_constant = |name: &&str| !name.contains(|c: char| c.is_ascii_lowercase());
        if depth == 0 {
            names.exported.extend(declared.iter().copied().filter(is_constant));
        }
        // The scope may have ended on this line.
        if let Some(scope) = scopes.get_mut(depth) {
            scope.extend(declared);
        }
        if is_closed_late {
            scopes.pop();
        }
    }
    assert_eq!((scopes.len(), brackets.len()), (1, 0), "every scope ends: {text}");
    names
}

/// The names that fragments of a script read although no fragment before declares them for others (2).
pub(super) fn undeclared(fragments: &[(&str, &str)]) -> Vec<String> {
    let (mut declared, mut found) = (BTreeSet::from(BUILTINS), Vec::new());
    for (file, text) in fragments {
        let Names { free, exported } = names(text);
        let is_allowed = |name: &&str| is_tail(file) && matches!(*name, "KEYS" | "ARGV");
        found.extend(
            free.iter()
                .filter(|name| !declared.contains(*name) && !is_allowed(name))
                .map(|name| format!("{file}: {name}")),
        );
        declared.extend(exported);
    }
    found
}
