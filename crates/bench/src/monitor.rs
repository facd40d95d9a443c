//! Lines of MONITOR, which shows every command that a server runs.

/// The command in a line of MONITOR, if a client has sent it. Commands of scripts are marked as such.
pub(crate) fn sent_command(line: &str) -> Option<Vec<String>> {
    let (source, command) = line.split_once("] ")?;
    (!source.ends_with(" lua")).then(|| arguments(command))
}

/// The arguments of a command as MONITOR shows it: in quotes, with backslashes.
fn arguments(command: &str) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut chars = command.chars();
    while chars.by_ref().any(|c| c == '"') {
        let mut argument = String::new();
        while let Some(c) = chars.next().filter(|c| *c != '"') {
            argument.push(if c == '\\' { chars.next().unwrap_or(c) } else { c });
        }
        arguments.push(argument);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_monitor_is_parsed() {
        let sent = r#"1762000000.123456 [0 127.0.0.1:4711] "EVALSHA" "sha" "1" "a \"b\"" "" "back\\slash""#;
        let command = ["EVALSHA", "sha", "1", "a \"b\"", "", "back\\slash"];
        assert_eq!(sent_command(sent).expect("a client has sent it"), command);
        assert_eq!(sent_command(r#"1762000000.123456 [0 lua] "TIME""#), None);
    }
}
