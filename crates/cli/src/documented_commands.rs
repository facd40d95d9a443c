//! The command lines that documents show, tried with the parser of the program.
//!
//! 1. Each command `leasehold …` in a block of shell is parsed, whether the block is run or not.
//! 2. Code spans, and blocks of other languages, leave things out: of what they show, the subcommand and its options
//!    must exist.

use crate::commands::Arguments;
use clap::{CommandFactory as _, Parser as _};
use leasehold_book::{
    Class, Document, Mark, Snippet, classify, code_spans, commands, documents, root, snippets,
};

const PROGRAM: &str = "leasehold";

fn parser() -> clap::Command {
    let mut parser = Arguments::command();
    parser.build();
    parser
}

/// What the parser says of a whole command. Help that is asked for is no error.
fn refused(words: &[String]) -> Option<String> {
    let error = Arguments::try_parse_from(words).err()?;
    error.use_stderr().then(|| format!("`{}`: {error}", words.join(" ")))
}

/// What a command names that does not exist. It may leave out arguments, and have `[`, `]` and `|` around options.
fn unknown(parser: &clap::Command, shown: &str) -> Option<String> {
    let own = shown.split(" -- ").next().unwrap_or(shown);
    let is_between = |char: char| char.is_whitespace() || "[]|()`".contains(char);
    let mut words = own.split(is_between).filter(|word| !word.is_empty());
    if words.next() != Some(PROGRAM) {
        return None;
    }
    let is_option = |word: &str| word.strip_prefix("--").is_some_and(|name| !name.is_empty());
    let mut command = parser;
    let mut words = words.peekable();
    if let Some(name) = words.next_if(|word| word.starts_with(|char: char| char.is_ascii_lowercase())) {
        match parser.find_subcommand(name) {
            Some(found) => command = found,
            None => return Some(format!("`{shown}`: there is no command `{name}`")),
        }
    }
    let has = |name: &str| {
        let mut arguments = command.get_arguments();
        ["help", "version"].contains(&name) || arguments.any(|it| it.get_long() == Some(name))
    };
    let options =
        words.filter(|word| is_option(word)).filter_map(|word| word[2..].split(['=', ',', '…']).next());
    let missing: Vec<&str> = options.filter(|name| !has(name)).collect();
    (!missing.is_empty()).then(|| format!("`{shown}`: no option --{}", missing.join(", --")))
}

/// The commands of a block that is no shell: from the program's name to the end of its line, and of the lines that
/// are indented below it.
fn shown(snippet: &Snippet) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in snippet.code.lines() {
        let start = format!("{PROGRAM} ");
        let begins = line.find(&start).filter(|at| line[..*at].ends_with([' ', '/']) || *at == 0);
        match (begins, commands.last_mut()) {
            (Some(at), _) => commands.push(line[at..].to_owned()),
            (None, Some(last)) if is_open && line.starts_with("     ") => {
                last.push(' ');
                last.push_str(line.trim());
                continue;
            }
            _ => {}
        }
        is_open = begins == Some(0);
    }
    commands
}

fn wrong(parser: &clap::Command, document: &Document) -> Vec<String> {
    let mut wrong = Vec::new();
    let blocks = snippets(&document.text).unwrap_or_default();
    let mut report = |line: usize, what: Option<String>| {
        wrong.extend(what.map(|what| format!("{}:{line}: {what}", document.path)));
    };
    for block in &blocks {
        if block.language == "sh" {
            // A block that ends with 2 shows what the parser refuses.
            if block.exits() != 2 {
                for words in &commands(&block.code, PROGRAM) {
                    report(block.line, refused(words));
                }
            }
        } else if !block.has(&Mark::Printed)
            && classify(block) != Ok(Class::Parsed)
            && block.language != "rust"
        {
            for command in &shown(block) {
                report(block.line, unknown(parser, command));
            }
        }
    }
    for (line, span) in code_spans(&document.text) {
        report(line, unknown(parser, &span));
    }
    wrong
}

#[test]
fn every_command_line_of_the_documents_is_understood() {
    let parser = parser();
    let documents = documents(root()).expect("the repository can be read");
    // The history of changes names what there was.
    let wrong: Vec<String> = documents
        .iter()
        .filter(|document| document.path != "CHANGELOG.md")
        .flat_map(|document| wrong(&parser, document))
        .collect();
    assert!(wrong.is_empty(), "{} command lines:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_command_line_with_what_does_not_exist_is_found() {
    let parser = parser();
    let found =
        |text: &str| wrong(&parser, &Document { path: "docs/a.md".to_owned(), text: text.to_owned() }).len();
    assert_eq!(
        found(
            "`leasehold run a --wait 1s -- x --no`, `leasehold show NAME`, `leasehold`, `leasehold ls --json`"
        ),
        0
    );
    assert_eq!(found("```sh\nleasehold run a -- x | leasehold ls --sessions\n```"), 0);
    assert_eq!(found("`leasehold nothing`, `leasehold run --wait-for 1s`, `leasehold ls --wait`"), 3);
    assert_eq!(found("```sh\nif leasehold run a; then leasehold ls --no; fi\n```"), 2);
    assert_eq!(
        found(
            "<!-- not run: a usage -->\n```text\nleasehold run NAME [--wait 1s | --tri]\n           [--takee M]\n```"
        ),
        1
    );
}
