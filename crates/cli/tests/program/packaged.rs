//! What a package installs beside the program: completions and manual pages.

use super::fixture::Fixture;
use std::fs;
use std::process::{Command, Output};

/// The output of a tool of the machine, or `None` if it is not there.
fn output(program: &str, arguments: &[&str]) -> Option<Output> {
    Command::new(program).args(arguments).output().ok()
}

#[test]
fn a_shell_completes_commands_options_and_values() {
    let fixture = Fixture::sqlite();
    for (shell, sign) in
        [("bash", "complete -F _leasehold"), ("zsh", "#compdef leasehold"), ("fish", "complete -c leasehold")]
    {
        let outcome = fixture.run(&["completions", shell]);
        outcome.check(0, "");
        let script = outcome.stdout;
        assert!(script.contains(sign) && script.contains("once-per"), "{shell}: {script}");
        assert!(!script.contains("verify-worker"), "{shell}: it is not for users");
        fs::write(fixture.path(shell), script).expect("a file");
        // No shell but bash is needed to run the tests.
        let file = fixture.path(shell).display().to_string();
        let checked = output(shell, &["-n", &file]);
        assert!(checked.as_ref().is_none_or(|output| output.status.success()), "{shell}: {checked:?}");
    }
    let completed = |words: &str, at: usize| {
        let script = format!(
            "source ./bash; COMP_WORDS=({words}); COMP_CWORD={at}; _leasehold leasehold \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at}-1]}}\";
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let mut shell = Command::new("bash");
        shell.args(["--norc", "-c", &script]).current_dir(fixture.path(""));
        let output = shell.output().expect("there is a bash");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(completed("leasehold mon", 1), "monitor\n");
    assert_eq!(completed("leasehold run job --once", 3), "--once-per\n");
    assert_eq!(completed("leasehold acl --for operator-", 3), "operator-free\n");
    fixture.run(&["completions", "tcsh"]).check(2, "invalid value 'tcsh'");
}

#[test]
fn each_command_has_a_manual_page() {
    let fixture = Fixture::sqlite();
    fixture.run(&["man", "--dir", "share/man1"]).check(0, "");
    let files = fs::read_dir(fixture.path("share/man1")).expect("it was made");
    let mut pages: Vec<_> =
        files.map(|file| file.expect("a file").file_name().into_string().expect("UTF-8")).collect();
    pages.sort();
    assert_eq!(pages.first().map(String::as_str), Some("leasehold-acl.1"));
    for wanted in ["leasehold.1", "leasehold-run.1", "leasehold-where.1", "leasehold-man.1"] {
        assert!(pages.iter().any(|page| page == wanted), "{wanted}: {pages:?}");
    }
    assert!(!pages.iter().any(|page| page.contains("worker")), "{pages:?}");
    for page in &pages {
        let text = fixture.read(&format!("share/man1/{page}"));
        assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{page}: {text}");
        // Without groff, only what the page contains is tested.
        let path = fixture.path("share/man1").join(page).display().to_string();
        if let Some(checked) = output("groff", &["-man", "-Tascii", "-ww", "-z", &path]) {
            let warnings = String::from_utf8_lossy(&checked.stderr);
            assert!(checked.status.success() && warnings.is_empty(), "{page}: {warnings}");
        }
    }
    let printed = fixture.run(&["man", "run"]);
    printed.check(0, "");
    assert_eq!(printed.stdout, fixture.read("share/man1/leasehold-run.1"));
    assert!(
        printed.stdout.contains("Exit status") && printed.stdout.contains("once\\-per"),
        "{}",
        printed.stdout
    );
    fixture.run(&["man", "no-such-command"]).check(2, "there is no command `no-such-command`");
    fixture.run(&["man", "run", "--dir", "x"]).check(2, "cannot be used with");
    fs::write(fixture.path("file"), "").expect("a file");
    fixture.run(&["man", "--dir", "file/man1"]).check(69, "failed to write manual pages into file/man1");
}
