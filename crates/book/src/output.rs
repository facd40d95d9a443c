//! What a command printed, beside what a page shows.
//!
//! 1. Spaces that follow one another are one, and empty lines at the ends do not count.
//! 2. Times, durations, numbers of four digits or more, and labels of the form `HOST/PID/PROGRAM` are the same on both sides.
//! 3. `…` in a line of the page stands for any text, and a line that is only `…` or `...` for any lines.

/// The first line of a page's block that the output does not have in its place; `None` if they agree.
pub fn difference(shown: &str, printed: &str) -> Option<String> {
    let lines = |text: &str| -> Vec<String> {
        let lines: Vec<String> = text.trim().lines().map(normalised).collect();
        if text.trim().is_empty() { Vec::new() } else { lines }
    };
    let (shown, printed) = (lines(shown), lines(printed));
    let reached = furthest(&shown, &printed);
    if reached == usize::MAX {
        return None;
    }
    Some(shown.get(reached).cloned().unwrap_or_else(|| "(the end)".to_owned()))
}

fn is_gap(line: &str) -> bool {
    line == "…" || line == "..."
}

/// The first line that did not match on the best way through; `usize::MAX` if all do.
fn furthest(shown: &[String], printed: &[String]) -> usize {
    let Some((first, rest)) = shown.split_first() else {
        return if printed.is_empty() { usize::MAX } else { 0 };
    };
    let after = |reached: usize| if reached == usize::MAX { reached } else { reached + 1 };
    if is_gap(first) {
        return (0..=printed.len()).map(|skip| after(furthest(rest, &printed[skip..]))).max().unwrap_or(0);
    }
    match printed.split_first() {
        Some((line, others)) if fits(first, line) => after(furthest(rest, others)),
        _ => 0,
    }
}

fn fits(pattern: &str, line: &str) -> bool {
    let Some((before, after)) = pattern.split_once('…') else { return pattern == line };
    line.strip_prefix(before).is_some_and(|rest| {
        (0..=rest.len()).filter(|at| rest.is_char_boundary(*at)).any(|at| fits(after, &rest[at..]))
    })
}

fn normalised(line: &str) -> String {
    let line = line.split_whitespace().map(word).collect::<Vec<_>>().join(" ");
    line.replace("(DURATION ago)", "(now)")
}

/// Whether a word is such as `1.5s` or `2h13m`.
fn is_duration(word: &str) -> bool {
    word.starts_with(|char: char| char.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h', 'd'])
        && word.chars().all(|char| char.is_ascii_digit() || ".µsmhd".contains(char))
}

/// Which part of an instant a word is.
fn instant(word: &str) -> Option<&'static str> {
    let form: String = word.chars().map(|char| if char.is_ascii_digit() { '0' } else { char }).collect();
    let (is_date, is_time) = (form.starts_with("0000-00-00"), form.starts_with("00:00:00"));
    match (is_date && form.len() == 10, is_date && form.get(10..19) == Some("T00:00:00"), is_time) {
        (true, _, _) => Some("DATE"),
        (_, true, _) => Some("INSTANT"),
        (_, _, true) => Some("TIME"),
        _ => None,
    }
}

/// A word whose varying parts are replaced.
fn word(word: &str) -> String {
    let is_part = |char: char| char.is_ascii_alphanumeric() || ".-_:".contains(char);
    let core = word.trim_matches(|char: char| !char.is_ascii_alphanumeric() && char != '…');
    let parts: Vec<&str> = core.split('/').collect();
    if let [host, pid, program] = parts[..] {
        let is_pid = !pid.is_empty() && pid.chars().all(|char| char.is_ascii_digit());
        if is_pid && host.chars().all(is_part) && program.chars().all(is_part) {
            return word.replacen(core, "HOST/PID/PROGRAM", 1);
        }
    }
    if let Some(kind) = instant(core) {
        return word.replacen(core, kind, 1);
    }
    if is_duration(core) {
        return word.replacen(core, "DURATION", 1);
    }
    let mut out = String::new();
    let mut run = String::new();
    for char in word.chars().chain(['\n']) {
        if char.is_ascii_digit() {
            run.push(char);
        } else {
            out.push_str(if run.len() >= 4 { "NUMBER" } else { &run });
            run.clear();
            out.push(char);
        }
    }
    out.pop();
    out
}
