//! The blocks of shell in the documents, run as a reader types them.
//!
//! 1. The blocks of a page run in order in one shell (`bash -e`), in an empty home, with the program on the path. So what
//!    one exports, the next one has.
//! 2. `on a server`: from that block on a Redis of the page's own runs. URLs of this machine and of the documents'
//!    example host lead to it, and so does `redis-cli`.
//! 3. `background`: what a reader types in another terminal. The next block begins once the lock that it names has
//!    another holder or more waiters, or, without a lock, once it has printed something; or once it has ended.
//! 4. Programs of the reader, `./NAME`, exist, do nothing and succeed.
//! 5. What is left out is counted: [`LEFT`] bounds it.

use leasehold_book::{Class, Mark, Snippet, classify, commands, difference, documents, root, snippets};
use leasehold_testkit::RedisServer;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How many blocks of shell are not run, at most: those that need root, other machines, a network or a long build.
const LEFT: usize = 40;
/// How many pages run at a time.
const AT_ONCE: usize = 4;
/// Longer than the blocks of a page take on a busy machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Hosts whose URLs lead to the server of the page.
const HOSTS: [&str; 3] = ["127.0.0.1", "localhost", "locks.example.org"];

/// What each script begins with.
const PRELUDE: &str = r#"
set -e
book_state() {
    for name in $1; do leasehold show "$name" 2>&1 | grep -E '^(held|holder|holders|waiting|fence)' || true; done
}
book_wait() {
    for _ in $(seq 400); do
        kill -0 "$1" 2>/dev/null || return 0
        if [ -n "$3" ]; then
            [ "$(book_state "$3")" = "$4" ] || return 0
        elif [ -s "$2" ]; then
            return 0
        fi
        sleep 0.05
    done
    echo "the block in the background has shown nothing for 20 s"
    return 1
}
"#;

/// A page whose blocks are run.
struct Page {
    path: String,
    snippets: Vec<Snippet>,
}

/// A home with what the blocks of a page need.
struct Home {
    dir: TempDir,
    server: Option<RedisServer>,
}

impl Page {
    fn runs(&self) -> impl Iterator<Item = (usize, &Snippet)> {
        let is_run = |(_, snippet): &(usize, &Snippet)| classify(snippet) == Ok(Class::Run);
        self.snippets.iter().enumerate().filter(is_run)
    }

    /// The script of all blocks. Each one's output goes to a file, and so does the fact that it has ended.
    fn script(&self, home: &Home) -> String {
        let mut script = PRELUDE.to_owned();
        let mut server = None;
        for (at, snippet) in self.runs() {
            if snippet.has(&Mark::OnServer) {
                server = home.server.as_ref();
                if let Some(server) = server {
                    let _ = writeln!(script, "export LEASEHOLD_STORE='{}'", url(server));
                }
            }
            let code =
                server.map_or_else(|| snippet.code.clone(), |server| redirected(&snippet.code, server));
            let output = home.output(at).display().to_string();
            let _ = writeln!(script, "exec >'{output}' 2>&1");
            if snippet.has(&Mark::Background) {
                let names = locks(&code).join(" ");
                let _ = writeln!(
                    script,
                    "book_before=$(book_state '{names}')\n(\n{code}\n) >'{output}.background' 2>&1 &\nbook_pid=$!\n\
                     disown $book_pid\nbook_wait $book_pid '{output}.background' '{names}' \"$book_before\""
                );
            } else if snippet.exits() == 0 {
                let _ = writeln!(script, "{code}");
            } else {
                let status = snippet.exits();
                let _ = writeln!(
                    script,
                    "set +e\n{code}\nbook_status=$?\nset -e\n[ $book_status -eq {status} ] || {{ echo \"ended with \
                     $book_status, and not with {status}\"; exit 1; }}"
                );
            }
            let _ = writeln!(script, "echo >'{output}.ended'");
        }
        script
    }

    /// Runs the blocks, and returns what is wrong with them.
    fn problems(&self) -> Vec<String> {
        let of_cargo = |(_, snippet): &(usize, &Snippet)| !commands(&snippet.code, "cargo").is_empty();
        if let Some((_, snippet)) = self.runs().find(of_cargo) {
            return vec![format!("{}:{}: a build is `not run: REASON`", self.path, snippet.line)];
        }
        let home = Home::of(self);
        let problem = home.run(&self.script(&home));
        let ended = |at: usize| home.output(at).with_extension("out.ended").exists();
        let printed = |at: usize| {
            let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
            read(&home.output(at)) + &read(&home.output(at).with_extension("out.background"))
        };
        let title = |snippet: &Snippet| format!("{}:{}", self.path, snippet.line);
        if let Some((at, snippet)) = self.runs().find(|(at, _)| !ended(*at)) {
            let problem = problem.unwrap_or_default();
            return vec![format!("{}: failed {problem}\n{}\n{}", title(snippet), snippet.code, printed(at))];
        }
        let mut problems = Vec::new();
        let mut last = 0;
        for (at, snippet) in self.snippets.iter().enumerate() {
            if classify(snippet) == Ok(Class::Run) {
                last = at;
            } else if snippet.has(&Mark::Printed) {
                let printed = home.as_shown(&printed(last));
                if let Some(line) = difference(&snippet.code, &printed) {
                    problems.push(format!("{}: printed is not `{line}`, but\n{printed}", title(snippet)));
                }
            }
        }
        problems
    }
}

impl Home {
    fn of(page: &Page) -> Self {
        let dir = TempDir::with_prefix("leasehold-book-").expect("there is a directory for temporary files");
        let needs_server = page.runs().any(|(_, snippet)| snippet.has(&Mark::OnServer));
        let server = needs_server.then(|| RedisServer::start().expect("a server starts"));
        let home = Self { dir, server };
        for directory in ["bin", "home", "output"] {
            fs::create_dir(home.dir.path().join(directory)).expect("a directory");
        }
        symlink(env!("CARGO_BIN_EXE_leasehold"), home.dir.path().join("bin/leasehold")).expect("a link");
        let port = home.server.as_ref().map_or(0, RedisServer::port);
        // The server is there, and is not to be stopped.
        home.program("bin/redis-server", "exit 0");
        let options = "while [ \"$1\" = -p ] || [ \"$1\" = -h ]; do shift 2; done\n";
        let client = "PATH=${PATH#*:}\nexport PATH\n[ \"$1\" = shutdown ] || exec redis-cli -p";
        home.program("bin/redis-cli", &format!("{options}{client} {port} \"$@\""));
        for (_, snippet) in page.runs() {
            for name in own_programs(&snippet.code) {
                home.program(&format!("home/{name}"), "exit 0");
            }
        }
        home
    }

    fn program(&self, path: &str, script: &str) {
        let path = self.dir.path().join(path);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }

    fn output(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("output/{at}.out"))
    }

    /// Runs a script to its end, and ends what it leaves behind. Returns why it was ended, if it was.
    fn run(&self, script: &str) -> Option<String> {
        let home = self.dir.path().join("home");
        let mut shell = Command::new("bash");
        shell.args(["--norc", "-c", script]).current_dir(&home).process_group(0).env_clear();
        let path = std::env::var("PATH").unwrap_or_default();
        shell.env("PATH", format!("{}:{path}", self.dir.path().join("bin").display()));
        shell.env("HOME", &home).env("TMPDIR", self.dir.path()).env("USER", "app").env("LANG", "C.UTF-8");
        shell.env("LEASEHOLD_STORE", format!("sqlite:{}", home.join("locks.db").display()));
        shell.env("LEASEHOLD_STATE_DIR", self.dir.path().join("state"));
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut shell = shell.spawn().expect("there is a bash");
        let group = shell.id();
        let deadline = Instant::now() + LIMIT;
        let problem = loop {
            match shell.try_wait().expect("it is a child of ours") {
                Some(status) if status.success() => break None,
                Some(status) => break Some(format!("({status})")),
                None if Instant::now() >= deadline => break Some(format!("(after {LIMIT:?})")),
                None => sleep(Duration::from_millis(10)),
            }
        };
        let _ =
            Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).stderr(Stdio::null()).status();
        let _ = shell.wait();
        problem
    }

    /// An output without what the test has put in.
    fn as_shown(&self, printed: &str) -> String {
        let home = self.dir.path().join("home").display().to_string();
        let port = self.server.as_ref().map_or_else(String::new, |server| server.port().to_string());
        let printed = printed.replace(&home, "~");
        if port.is_empty() { printed } else { printed.replace(&format!(":{port}"), ":6379") }
    }
}

/// The URL of a server. Which version it has is not what pages are about.
fn url(server: &RedisServer) -> String {
    format!("{}?accept=lua_vulnerabilities", server.url())
}

/// A block whose URLs lead to the server, but for those with port 1, where none is.
fn redirected(code: &str, server: &RedisServer) -> String {
    let mut parts = code.split("redis://");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let of_host = |host: &&str| part.strip_prefix(*host);
        let after_host = HOSTS.iter().find_map(of_host);
        let Some(rest) = after_host.filter(|rest| !rest.starts_with(":1 ") && *rest != ":1") else {
            out.push_str("redis://");
            out.push_str(part);
            continue;
        };
        let without_port = |rest: &str| {
            rest.strip_prefix(':')
                .map(|port| port.trim_start_matches(|char: char| char.is_ascii_digit()).to_owned())
        };
        let rest = without_port(rest).unwrap_or_else(|| rest.to_owned());
        // The page's own settings stay alone: it has quoted them as they are.
        out.push_str(&if rest.starts_with('?') { server.url() } else { url(server) });
        out.push_str(&rest);
    }
    out
}

/// The locks that the commands of a block acquire.
fn locks(code: &str) -> Vec<String> {
    let commands = commands(code, "leasehold");
    let acquires =
        commands.into_iter().filter(|words| words.get(1).is_some_and(|it| it == "run" || it == "lead"));
    acquires.filter_map(|words| words.into_iter().skip(2).find(|word| !word.starts_with('-'))).collect()
}

/// The programs of the reader that a block names: `./NAME`.
fn own_programs(code: &str) -> BTreeSet<&str> {
    let is_name = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    let after = code.match_indices("./").filter(|(at, _)| {
        code[..*at].chars().next_back().is_none_or(|before| before.is_whitespace() || "'\"(".contains(before))
    });
    let names = after.filter_map(|(at, _)| code[at + 2..].split(|char| !is_name(char)).next());
    names.filter(|name| !name.is_empty()).collect()
}

fn pages() -> Vec<Page> {
    let documents = documents(root()).expect("the repository can be read");
    // What is wrong with a mark is found by the tests of leasehold-book.
    let read = |text: &str| snippets(text).unwrap_or_default();
    documents.into_iter().map(|it| Page { snippets: read(&it.text), path: it.path }).collect()
}

/// `LEASEHOLD_BOOK=docs/tutorial` runs only pages below that path.
#[test]
fn every_block_of_shell_does_what_its_page_shows() {
    let only = std::env::var("LEASEHOLD_BOOK").unwrap_or_default();
    let mut pages = pages();
    pages.retain(|page| page.path.starts_with(&only) && page.runs().next().is_some());
    let count = pages.iter().map(|page| page.runs().count()).sum::<usize>();
    println!("{count} blocks of {} pages", pages.len());
    let (waiting, problems) = (Mutex::new(pages), Mutex::new(Vec::new()));
    let next = || waiting.lock().expect("no page panics").pop();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(page) = next() {
                    let began = Instant::now();
                    let mut found = page.problems();
                    println!("{} {:?}", page.path, began.elapsed());
                    problems.lock().expect("no page panics").append(&mut found);
                }
            });
        }
    });
    let problems = problems.into_inner().expect("no page panicked");
    assert!(problems.is_empty(), "{} blocks:\n\n{}", problems.len(), problems.join("\n\n"));
}

#[test]
fn few_blocks_of_shell_are_not_run() {
    let pages = pages();
    let mut left = Vec::new();
    for page in &pages {
        let of = |snippet: &Snippet| {
            let reason = snippet.not_run().filter(|_| snippet.language == "sh")?;
            Some(format!("{}:{}: {reason}", page.path, snippet.line))
        };
        left.extend(page.snippets.iter().filter_map(of));
    }
    println!("{} blocks of shell are not run:\n{}", left.len(), left.join("\n"));
    assert!(left.len() <= LEFT, "{} blocks are not run, more than {LEFT}:\n{}", left.len(), left.join("\n"));
}

#[test]
fn a_block_that_fails_or_prints_something_else_is_found() {
    let problems = |text: &str| {
        let snippets = snippets(text).expect("the marks are known");
        Page { path: "a.md".to_owned(), snippets }.problems()
    };
    let none: [&str; 0] = [];
    let fine = [
        "```sh\n./own.sh\nexport A=1\nmkdir sub && cd sub\n```\n",
        "```sh\necho $A $(basename $PWD)\n```\n",
        "<!-- printed -->\n```text\n1 sub\n```\n",
        "<!-- exits: 3 -->\n```sh\nfalse\nsh -c 'exit 3'\n```\n",
    ];
    assert_eq!(problems(&fine.join("\n")), none);
    let found = |text: &str, part: &str| {
        let problems = problems(text);
        assert!(problems.len() == 1 && problems[0].contains(part), "{text}: {problems:?}");
    };
    found("```sh\ntrue\n```\n\n```sh\necho before; false\necho after\n```\n", "a.md:5: failed");
    found("<!-- exits: 3 -->\n```sh\ntrue\n```\n", "ended with 0, and not with 3");
    found("```sh\ncd x && cargo build\n```\n", "a.md:1: a build is");
    found("```sh\necho one\n```\n\n<!-- printed -->\n```text\ntwo\n```\n", "printed is not `two`");
    let waits = [
        "<!-- background -->\n```sh\nleasehold run a -- sleep 60\n```\n",
        "<!-- exits: 75 -->\n```sh\nleasehold run a --try -q -- echo never\n```\n",
    ];
    assert_eq!(problems(&waits.join("\n")), none);
}
