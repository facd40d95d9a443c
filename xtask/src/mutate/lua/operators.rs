//! The mutants of a fragment: which small change of its text makes each.
//!
//! Owns the operators and the names. A mutant may be no valid Lua, or mean what the fragment means: the run finds out.
//!
//! 1. The list depends on the text alone, and is in the order of the text.
//! 2. A name is `file:line:change`; of equal ones on a line, the second and later end with `#2`, `#3` …

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result};

use super::tokens::{Token, TokenKind, tokens};

/// A change to the text of a fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mutant {
    /// The fragment's file, without its directory.
    pub(crate) file: String,
    pub(crate) line: usize,
    /// The operator, and what it changes (2).
    pub(crate) change: String,
    /// The text of the line, without its indentation.
    pub(crate) line_text: String,
    /// The bytes that are replaced, and by what.
    pub(crate) range: Range<usize>,
    pub(crate) text: String,
}

impl Mutant {
    pub(crate) fn name(&self) -> String {
        format!("{}:{}:{}", self.file, self.line, self.change)
    }
}

/// A constant of a fragment: its name, and whether it is a number.
pub(crate) type Constant = (String, bool);

/// The constants that a fragment declares: `local NAME, OTHER = 1, 'a'`.
pub(crate) fn constants(source: &str) -> Result<Vec<Constant>> {
    let tokens = tokens(source)?;
    let mut found = Vec::new();
    for at in (0..tokens.len()).filter(|at| tokens[*at].is("local") && tokens[*at].depth == 0) {
        let Some(equals) = tokens[at..].iter().position(|token| token.is("=")) else { continue };
        let names: Vec<&Token<'_>> = tokens[at + 1..at + equals].iter().step_by(2).collect();
        let values = tokens[at + equals + 1..].iter().step_by(2);
        if !names.iter().all(|name| is_constant(name)) {
            continue;
        }
        for (name, value) in names.into_iter().zip(values) {
            match value.kind {
                TokenKind::Number => found.push((name.text.to_owned(), true)),
                TokenKind::Text => found.push((name.text.to_owned(), false)),
                _ => break,
            }
        }
    }
    Ok(found)
}

fn is_constant(token: &Token<'_>) -> bool {
    let is_upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    token.kind == TokenKind::Name
        && token.text.len() > 1
        && token.text.chars().all(is_upper)
        && !matches!(token.text, "KEYS" | "ARGV")
}

/// All mutants of a fragment (1). `constants` are those that it can use.
pub(crate) fn mutants(file: &str, source: &str, constants: &[Constant]) -> Result<Vec<Mutant>> {
    let tokens = tokens(source).with_context(|| format!("{file} is not understood"))?;
    let lines: Vec<&str> = source.lines().collect();
    let fragment = Fragment { source, tokens: &tokens, constants };
    let mut names: BTreeMap<(usize, String), usize> = BTreeMap::new();
    let mut mutants = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        for Change { what, range, text } in fragment.changes(at) {
            let line = token.line;
            let times = names.entry((line, what.clone())).or_insert(0);
            *times += 1;
            let change = if *times == 1 { what } else { format!("{what}#{times}") };
            let line_text = lines.get(line - 1).map_or("", |line| line.trim()).to_owned();
            mutants.push(Mutant { file: file.to_owned(), line, change, line_text, range, text });
        }
    }
    Ok(mutants)
}

struct Change {
    what: String,
    range: Range<usize>,
    text: String,
}

struct Fragment<'a> {
    source: &'a str,
    tokens: &'a [Token<'a>],
    constants: &'a [Constant],
}

impl Fragment<'_> {
    /// The changes at a token.
    fn changes(&self, at: usize) -> Vec<Change> {
        let token = &self.tokens[at];
        let mut changes = Vec::new();
        let mut replace = |operator: &str, by: String| {
            let what = format!("{operator} {} to {by}", token.text);
            changes.push(Change { what, range: token.range(), text: by });
        };
        match (token.kind, token.text) {
            (TokenKind::Symbol, "<" | "<=" | ">" | ">=" | "==" | "~=") => {
                replace("compare", opposite(token.text).to_owned());
            }
            // A sign stands behind no expression.
            (TokenKind::Symbol, "+" | "-" | "*" | "/") if at > 0 && self.tokens[at - 1].ends_expression() => {
                replace("arithmetic", opposite(token.text).to_owned());
            }
            (TokenKind::Number, text) => {
                if let Ok(number) = text.parse::<u64>() {
                    replace("number", (number + 1).to_string());
                    if let Some(less) = number.checked_sub(1) {
                        replace("number", less.to_string());
                    }
                }
            }
            (TokenKind::Text, text) => {
                // Behind its first quote, so that a field of several parts has another beginning; and behind what
                // anchors a pattern.
                let (quote, rest) = text.split_at(1);
                let (anchor, rest) = rest.strip_prefix('^').map_or(("", rest), |rest| ("^", rest));
                replace("text", format!("{quote}{anchor}x{rest}"));
            }
            (TokenKind::Name, _) if is_constant(token) => {
                if let Some(other) = self.other_constant(at) {
                    replace("constant", other);
                }
            }
            (TokenKind::Name, text) if self.is_field(at) => replace("field", format!("{text}_x")),
            (TokenKind::Keyword, "and" | "or") => {
                replace("logic", opposite(token.text).to_owned());
                changes.extend(self.without_a_side(at));
            }
            (TokenKind::Keyword, "not") => {
                changes.push(Change { what: "negate".to_owned(), range: token.range(), text: String::new() });
            }
            (TokenKind::Keyword, "if" | "elseif") => changes.extend(self.decided(at)),
            _ => {}
        }
        changes.extend(self.without_call(at));
        changes
    }

    /// The next constant of its type, unless it is declared here.
    fn other_constant(&self, at: usize) -> Option<String> {
        let before = self.tokens[..at].iter().rev().find(|token| !token.is(",") && !is_constant(token));
        if before.is_some_and(|token| token.is("local")) {
            return None;
        }
        let own = self.constants.iter().position(|(name, _)| name == self.tokens[at].text)?;
        let is_number = self.constants[own].1;
        let others = self.constants.iter().cycle().skip(own + 1).take(self.constants.len() - 1);
        others.filter(|(_, number)| *number == is_number).map(|(name, _)| name.clone()).next()
    }

    /// Whether a name is a field of one of the scripts' own tables.
    fn is_field(&self, at: usize) -> bool {
        let of = |n: usize| at.checked_sub(n).map(|at| self.tokens[at].text);
        let is_library = matches!(of(2), Some("redis" | "string" | "table" | "math"));
        of(1) == Some(".") && !is_library
    }

    /// A statement that is a call, without it; and a write whose result is used, as if it had succeeded.
    fn without_call(&self, at: usize) -> Option<Change> {
        let token = &self.tokens[at];
        if token.kind != TokenKind::Name
            || at > 0 && (self.tokens[at - 1].is(".") || self.tokens[at - 1].is("function"))
        {
            return None;
        }
        let mut open = at + 1;
        while self.tokens.get(open).is_some_and(|token| token.is(".")) {
            open += 2;
        }
        if !self.tokens.get(open)?.is("(") {
            return None;
        }
        let close = self.closing(open)?;
        let range = token.start..self.tokens[close].range().end;
        let name = &self.source[token.start..self.tokens[open].start];
        // `f(x).y` and `f(x) + 1` are expressions.
        if self.begins_statement(at) && !self.continues_expression(close + 1) {
            return Some(Change { what: format!("drop {name}"), range, text: String::new() });
        }
        let is_command = matches!(name, "redis.call" | "redis.pcall");
        let command = self.tokens.get(open + 1).filter(|_| is_command)?.text.trim_matches('\'');
        let done = match command {
            "SET" => "({ ok = 'OK' })",
            "DEL" | "HSET" | "HDEL" | "PEXPIRE" | "ZADD" | "ZREM" | "PUBLISH" | "SPUBLISH" => "(1)",
            _ => return None,
        };
        Some(Change { what: format!("drop {command}"), range, text: done.to_owned() })
    }

    fn begins_statement(&self, at: usize) -> bool {
        let Some(before) = at.checked_sub(1).map(|before| &self.tokens[before]) else { return true };
        before.ends_expression() && before.depth == self.tokens[at].depth
            || matches!(before.text, "then" | "do" | "else" | "repeat" | ";")
            || before.is(")")
            || before.is("break")
    }

    fn continues_expression(&self, at: usize) -> bool {
        self.tokens.get(at).is_some_and(|token| {
            let is_operator = token.kind == TokenKind::Symbol && !matches!(token.text, ";" | ")" | "}" | "]");
            is_operator || matches!(token.text, "and" | "or")
        })
    }

    fn closing(&self, open: usize) -> Option<usize> {
        let depth = self.tokens[open].depth;
        (open + 1..self.tokens.len()).find(|at| self.tokens[*at].depth == depth)
    }

    /// A condition that always holds, one that never does, and its negation.
    fn decided(&self, at: usize) -> Vec<Change> {
        let depth = self.tokens[at].depth;
        let then = (at + 1..self.tokens.len())
            .find(|then| self.tokens[*then].is("then") && self.tokens[*then].depth == depth);
        let Some(then) = then else { return Vec::new() };
        let range = self.tokens[at + 1].start..self.tokens[then - 1].range().end;
        let condition = &self.source[range.clone()];
        let by = |what: &str, text: String| Change { what: what.to_owned(), range: range.clone(), text };
        vec![
            by("if true", "true".to_owned()),
            by("if false", "false".to_owned()),
            by("if not", format!("not ({condition})")),
        ]
    }

    /// An `and` or `or` without its left operand, and without its right one.
    fn without_a_side(&self, at: usize) -> Vec<Change> {
        let token = &self.tokens[at];
        let is_end = |token: &Token<'_>, before: Option<&Token<'_>>, depth: usize| {
            if token.depth < depth {
                return true;
            }
            if token.depth > depth {
                return false;
            }
            let is_keyword = token.kind == TokenKind::Keyword
                && !matches!(token.text, "and" | "or" | "not" | "nil" | "true" | "false");
            let is_next = token.kind == TokenKind::Name && before.is_some_and(Token::ends_expression);
            is_keyword || is_next || matches!(token.text, "," | ";" | "=")
        };
        // `and` binds more tightly.
        let stops = |other: &Token<'_>| {
            other.depth == token.depth && (other.is("or") || other.is("and") && token.is("and"))
        };
        let mut last = at + 1;
        while last < self.tokens.len() {
            let other = &self.tokens[last];
            if stops(other) || last > at + 1 && is_end(other, self.tokens.get(last - 1), token.depth) {
                break;
            }
            last += 1;
        }
        let mut first = at;
        while first > 0 {
            let other = &self.tokens[first - 1];
            let is_open = other.depth < token.depth;
            let is_new = is_end(other, None, token.depth)
                || other.depth == token.depth
                    && self.tokens[first].kind == TokenKind::Name
                    && other.ends_expression();
            if is_open || stops(other) || is_new {
                break;
            }
            first -= 1;
        }
        if first == at || last == at + 1 {
            return Vec::new();
        }
        let what = |side: &str| format!("{} without its {side}", token.text);
        let left = self.tokens[first].start..self.tokens[at + 1].start;
        let right = token.start..self.tokens[last - 1].range().end;
        let has_function = |range: &Range<usize>| self.source[range.clone()].contains("function");
        [(left, "left"), (right, "right")]
            .into_iter()
            .filter(|(range, _)| !has_function(range))
            .map(|(range, side)| Change { what: what(side), range, text: String::new() })
            .collect()
    }
}

fn opposite(operator: &str) -> &str {
    match operator {
        "<" => "<=",
        "<=" => "<",
        ">" => ">=",
        ">=" => ">",
        "==" => "~=",
        "~=" => "==",
        "+" => "-",
        "-" => "+",
        "*" => "/",
        "/" => "*",
        "and" => "or",
        "or" => "and",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(source: &str) -> Vec<(String, String)> {
        let constants =
            [("KEPT_MS".to_owned(), true), ("LONG_MS".to_owned(), true), ("NAME".to_owned(), false)];
        let apply = |mutant: Mutant| {
            let mut text = source.to_owned();
            text.replace_range(mutant.range.clone(), &mutant.text);
            (mutant.name(), text)
        };
        mutants("a.lua", source, &constants).expect("well-formed").into_iter().map(apply).collect()
    }

    fn has(source: &str, expected: &[(&str, &str)]) {
        let found = changed(source);
        for (name, text) in expected {
            let pair = ((*name).to_owned(), (*text).to_owned());
            assert!(found.contains(&pair), "{name}: {text}\n{found:#?}");
        }
    }

    #[test]
    fn conditions_are_decided_and_lose_their_sides() {
        has(
            "if a.b and not c or d(1) == 2 then\n",
            &[
                ("a.lua:1:if true", "if true then\n"),
                ("a.lua:1:if false", "if false then\n"),
                ("a.lua:1:if not", "if not (a.b and not c or d(1) == 2) then\n"),
                ("a.lua:1:and without its left", "if not c or d(1) == 2 then\n"),
                ("a.lua:1:and without its right", "if a.b  or d(1) == 2 then\n"),
                ("a.lua:1:or without its left", "if d(1) == 2 then\n"),
                ("a.lua:1:or without its right", "if a.b and not c  then\n"),
                ("a.lua:1:logic and to or", "if a.b or not c or d(1) == 2 then\n"),
                ("a.lua:1:negate", "if a.b and  c or d(1) == 2 then\n"),
                ("a.lua:1:compare == to ~=", "if a.b and not c or d(1) ~= 2 then\n"),
                ("a.lua:1:field b to b_x", "if a.b_x and not c or d(1) == 2 then\n"),
            ],
        );
    }

    /// The operands of an expression end where the next statement begins.
    #[test]
    fn an_operand_ends_with_its_statement() {
        has(
            "local x = f(a) or b\ng(x)\nreturn { a and 'b' or nil, x }\n",
            &[
                ("a.lua:1:or without its right", "local x = f(a) \ng(x)\nreturn { a and 'b' or nil, x }\n"),
                ("a.lua:1:or without its left", "local x = b\ng(x)\nreturn { a and 'b' or nil, x }\n"),
                ("a.lua:2:drop g", "local x = f(a) or b\n\nreturn { a and 'b' or nil, x }\n"),
                ("a.lua:3:or without its left", "local x = f(a) or b\ng(x)\nreturn { nil, x }\n"),
                ("a.lua:3:or without its right", "local x = f(a) or b\ng(x)\nreturn { a and 'b' , x }\n"),
            ],
        );
    }

    #[test]
    fn calls_are_dropped() {
        has(
            "if x then redis.call('DEL', KEYS[1]) end\nlocal set = redis.pcall('SET', k, v).ok\n",
            &[
                ("a.lua:1:drop redis.call", "if x then  end\nlocal set = redis.pcall('SET', k, v).ok\n"),
                (
                    "a.lua:2:drop SET",
                    "if x then redis.call('DEL', KEYS[1]) end\nlocal set = ({ ok = 'OK' }).ok\n",
                ),
            ],
        );
        let reads = changed("local left = redis.call('PTTL', k)\nlocal function f(a) end\n");
        assert!(!reads.iter().any(|(name, _)| name.contains("drop")), "{reads:?}");
    }

    #[test]
    fn literals_and_constants_are_replaced() {
        has(
            "f(KEPT_MS + 0, 'w:', '^%d', NAME, x - 1, 1)\n",
            &[
                ("a.lua:1:constant KEPT_MS to LONG_MS", "f(LONG_MS + 0, 'w:', '^%d', NAME, x - 1, 1)\n"),
                ("a.lua:1:number 0 to 1", "f(KEPT_MS + 1, 'w:', '^%d', NAME, x - 1, 1)\n"),
                ("a.lua:1:number 1 to 0", "f(KEPT_MS + 0, 'w:', '^%d', NAME, x - 0, 1)\n"),
                ("a.lua:1:number 1 to 0#2", "f(KEPT_MS + 0, 'w:', '^%d', NAME, x - 1, 0)\n"),
                ("a.lua:1:text 'w:' to 'xw:'", "f(KEPT_MS + 0, 'xw:', '^%d', NAME, x - 1, 1)\n"),
                ("a.lua:1:text '^%d' to '^x%d'", "f(KEPT_MS + 0, 'w:', '^x%d', NAME, x - 1, 1)\n"),
                ("a.lua:1:arithmetic - to +", "f(KEPT_MS + 0, 'w:', '^%d', NAME, x + 1, 1)\n"),
            ],
        );
        let found = constants("-- A\nlocal A1, B1 = 1, 'b'\nlocal C1 = 7\nlocal d, E1 = 1, 2\n")
            .expect("well-formed");
        let expected =
            [("A1", true), ("B1", false), ("C1", true)].map(|(name, number)| (name.to_owned(), number));
        assert_eq!(found, expected);
        assert!(!changed("local KEPT_MS = 1\n").iter().any(|(name, _)| name.contains("constant")));
    }

    /// Every fragment is understood, and each name is of one mutant.
    #[test]
    fn each_mutant_of_the_scripts_has_its_own_name() {
        let all = super::super::list().expect("all fragments");
        let names: std::collections::BTreeSet<String> = all.iter().map(Mutant::name).collect();
        assert_eq!(names.len(), all.len());
        assert!(all.len() > 3_000, "{}", all.len());
    }
}
