//! What is wrong with a command line, in the form of this program's own errors.

use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::report::printed;
use anyhow::anyhow;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Help and version are no errors; all else is reported. `arguments` are those behind the name of the program.
pub(crate) fn outcome(error: &clap::Error, arguments: &[OsString]) -> Result<Exit, Failure> {
    if !error.use_stderr() {
        return printed(error.print()).map(|()| Exit::SUCCESS);
    }
    let text = report(error, arguments);
    if let Some(text) = text.strip_prefix("error: ") {
        return Err(Failure::usage(anyhow!("{text}")));
    }
    log::line(&text);
    Ok(Exit::USAGE)
}

/// What is reported of an error, which begins with `error: ` unless it is a help.
pub(super) fn report(error: &clap::Error, arguments: &[OsString]) -> String {
    if let Some(advice) = command_advice(error, arguments) {
        return format!("error: {}", without_passwords(&advice));
    }
    let text = error.render().to_string();
    without_passwords(&match text.strip_prefix("error: ") {
        Some(text) => format!("error: {}", missing_on_one_line(error, text).trim_end()),
        None => text,
    })
}

/// The text with `…` in place of what stands in front of the host in a URL: clap repeats a word that it does not expect.
fn without_passwords(text: &str) -> String {
    let mut parts = text.split("://");
    let mut cleaned = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // A password can contain anything, also spaces and quotes: rather too much is left out.
        cleaned.push_str("://");
        match part.rsplit_once('@') {
            Some((_, rest)) => cleaned.extend(["…@", rest]),
            None => cleaned.push_str(part),
        }
    }
    cleaned
}

/// What to do if the command of `run` or `lead` is missing, or the `--` in front of it: without that, the words of the
/// command are names of locks, and its options those of this program.
fn command_advice(error: &clap::Error, arguments: &[OsString]) -> Option<String> {
    let [subcommand, words @ ..] = arguments else { return None };
    let subcommand = subcommand.to_str().filter(|name| ["run", "lead"].contains(name))?;
    let has_separator = words.iter().any(|word| word == "--");
    match error.kind() {
        ErrorKind::MissingRequiredArgument if missing(error) == ["<CMD>..."] && has_separator => {
            Some("the command is missing after `--`".to_owned())
        }
        ErrorKind::MissingRequiredArgument if missing(error) == ["<CMD>..."] => {
            let example = example(subcommand, words);
            let what = if words.len() == 1 { "the command" } else { "the `--` before the command" };
            Some(format!("{what} is missing: write `{example}`"))
        }
        ErrorKind::UnknownArgument if !has_separator => Some(format!(
            "unexpected argument '{}' found, and no `--` before a command: write `{}`",
            error.get(ContextKind::InvalidArg)?,
            example(subcommand, words)
        )),
        _ => None,
    }
}

/// The command line with `--`, if the first two words are no options and a shell would read them as they are: the name,
/// and the command. The arguments of the command, which may be secret, are not repeated.
fn example(subcommand: &str, words: &[OsString]) -> String {
    let is_plain = |word: &&str| {
        !word.is_empty()
            && !word.starts_with('-')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c))
    };
    let mut plain = words.iter().map(|word| word.to_str().filter(is_plain));
    match (plain.next().flatten(), plain.next(), words.len()) {
        (Some(name), None, _) => format!("leasehold {subcommand} {name} -- CMD ARGS..."),
        (Some(name), Some(Some(command)), 2) => format!("leasehold {subcommand} {name} -- {command}"),
        (Some(name), Some(Some(command)), _) => format!("leasehold {subcommand} {name} -- {command} ..."),
        _ => format!("leasehold {subcommand} NAME [OPTIONS] -- CMD ARGS..."),
    }
}

/// The arguments that are missing.
fn missing(error: &clap::Error) -> &[String] {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(missing)) => missing,
        _ => &[],
    }
}

/// The message of clap, with missing arguments on its first line.
fn missing_on_one_line(error: &clap::Error, text: &str) -> String {
    let missing = missing(error);
    match text.split_once("\n\n") {
        Some((first, rest)) if error.kind() == ErrorKind::MissingRequiredArgument && !missing.is_empty() => {
            let first = first.lines().next().unwrap_or_default();
            format!("{first} {}\n\n{rest}", missing.join(", "))
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_a_url_is_not_repeated() {
        let check = |text: &str, wanted: &str| assert_eq!(without_passwords(text), wanted);
        check("unexpected argument 'redis://u:p@h/1' found", "unexpected argument 'redis://…@h/1' found");
        check("`redis://h` and `redis://:a@b@h`", "`redis://h` and `redis://…@h`");
        check("'redis://:a b' c@h' found", "'redis://…@h' found");
        check("a@b: see https://example.org", "a@b: see https://example.org");
    }

    #[test]
    fn an_example_repeats_the_name_and_the_command_and_no_argument() {
        let check = |words: &[&str], wanted: &str| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            assert_eq!(example("run", &words), wanted);
        };
        check(&["nightly", "echo", "hi"], "leasehold run nightly -- echo ...");
        check(&["orders/42", "./ship"], "leasehold run orders/42 -- ./ship");
        check(&["nightly"], "leasehold run nightly -- CMD ARGS...");
        check(&["nightly", "mysql", "-phunter2"], "leasehold run nightly -- mysql ...");
        for words in [
            &["nightly", "--try", "echo"][..],
            &["a b", "echo"],
            &["a", ""],
            &["a", "$b"],
            &["--try", "a"],
            &[],
        ] {
            check(words, "leasehold run NAME [OPTIONS] -- CMD ARGS...");
        }
    }
}
