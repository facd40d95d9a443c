//! The command line, its errors (`usage`), and the subcommands, a file each.

pub(crate) mod acl;
pub(crate) mod acquire;
pub(crate) mod advise;
pub(crate) mod board;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod extend;
pub(crate) mod free;
pub(crate) mod graph;
pub(crate) mod lead;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod monitor;
pub(crate) mod release;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod top;
pub(crate) mod usage;
pub(crate) mod verify;
pub(crate) mod wait;
pub(crate) mod r#where;

use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::runtime;
use clap::{CommandFactory as _, Parser, Subcommand};
use leasehold::LockName;

/// Distributed locks, held by lease, for shells, cron jobs and operators
#[derive(Parser)]
#[command(name = "leasehold", version, propagate_version = true, arg_required_else_help = true)]
#[command(max_term_width = 80, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Lead(lead::LeadArgs),
    Wait(wait::WaitArgs),
    Show(show::ShowArgs),
    Acquire(acquire::AcquireArgs),
    Extend(extend::ExtendArgs),
    Release(release::ReleaseArgs),
    Ls(ls::LsArgs),
    Graph(graph::GraphArgs),
    Top(top::TopArgs),
    Advise(advise::AdviseArgs),
    Board(board::BoardArgs),
    Free(free::FreeArgs),
    Monitor(monitor::MonitorArgs),
    Doctor(doctor::DoctorArgs),
    Verify(verify::VerifyArgs),
    Acl(acl::AclArgs),
    Where(r#where::WhereArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
    VerifyWorker(verify::WorkerArgs),
}

/// Parses the command line and executes the subcommand.
pub(crate) fn execute() -> Result<Exit, Failure> {
    let command = match Arguments::try_parse() {
        Ok(arguments) => arguments.command,
        Err(error) => return usage::outcome(&error, &std::env::args_os().skip(1).collect::<Vec<_>>()),
    };
    log::start(command.log());
    let runtime = runtime::build()?;
    let result = runtime.block_on(command.execute());
    // A lookup of a host name cannot be cancelled, and would delay the end.
    runtime.shutdown_background();
    result
}

impl Command {
    const fn log(&self) -> &LogArgs {
        match self {
            Self::Run(args) => &args.log,
            Self::Lead(args) => &args.log,
            Self::Wait(args) => &args.log,
            Self::Show(args) => &args.log,
            Self::Acquire(args) => &args.log,
            Self::Extend(args) => &args.log,
            Self::Release(args) => &args.log,
            Self::Ls(args) => &args.log,
            Self::Graph(args) => &args.log,
            Self::Top(args) => &args.log,
            Self::Advise(args) => &args.log,
            Self::Board(args) => &args.log,
            Self::Free(args) => &args.log,
            Self::Monitor(args) => &args.log,
            Self::Doctor(args) => &args.log,
            Self::Verify(args) => &args.log,
            Self::VerifyWorker(args) => &args.log,
            Self::Acl(args) => &args.log,
            Self::Where(args) => &args.log,
            Self::Completions(args) => &args.log,
            Self::Man(args) => &args.log,
        }
    }

    async fn execute(&self) -> Result<Exit, Failure> {
        match self {
            Self::Run(args) => run::run(args).await,
            Self::Lead(args) => lead::lead(args).await,
            Self::Wait(args) => wait::wait(args).await,
            Self::Show(args) => show::show(args).await,
            Self::Acquire(args) => acquire::acquire(args).await,
            Self::Extend(args) => extend::extend(args).await,
            Self::Release(args) => release::release(args).await,
            Self::Ls(args) => ls::ls(args).await,
            Self::Graph(args) => graph::graph(args).await,
            Self::Top(args) => top::top(args).await,
            Self::Advise(args) => advise::advise(args).await,
            Self::Board(args) => board::board(args).await,
            Self::Free(args) => free::free(args).await,
            Self::Monitor(args) => monitor::monitor(args).await,
            Self::Doctor(args) => doctor::doctor(args).await,
            Self::Verify(args) => verify::verify(args).await,
            Self::VerifyWorker(_) => verify::work().await,
            Self::Acl(args) => acl::acl(args).await,
            Self::Where(args) => r#where::r#where(args),
            Self::Completions(args) => completions::completions(args),
            Self::Man(args) => man::man(args),
        }
    }
}

/// The command line without what is not for users.
fn documented() -> clap::Command {
    let all = Arguments::command();
    let shown: Vec<_> = all.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let about = all.get_about().cloned().unwrap_or_default();
    clap::Command::new("leasehold")
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .about(about)
        .after_help(EXAMPLES)
        .subcommands(shown)
}

/// Parses the name of a lock.
fn lock_name(text: &str) -> Result<LockName, Failure> {
    LockName::new(text).map_err(|error| {
        let shown = text.escape_debug().take(60).collect::<String>();
        Failure::usage(anyhow::Error::new(error).context(format!("`{shown}` cannot be the name of a lock")))
    })
}

const EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./backup.sh           one at a time on this machine
  leasehold run nightly --try -- ./backup.sh     or not at all: exit status 75
  export LEASEHOLD_STORE=redis://db.example.org  one at a time on all machines
  leasehold show nightly                         its holder, and how many wait
  leasehold acquire nightly --lease 1h --token-file /run/nightly.lock
                                                 for a script without a command
  leasehold run digest --once-per 55m -- ./send  once an hour, on one machine
  leasehold lead scheduler -- ./scheduler        on one machine, while it leads
  leasehold wait nightly && ./after-nightly.sh   when the lock is free
  leasehold ls                                   all held locks
  leasehold graph                                what waits for what
  leasehold top                                  follow all of it on the screen
  leasehold advise nightly                       the lease that fits
  leasehold board                                all that as a web page
  leasehold free nightly                         take it from its holder
  leasehold doctor                               find unsafe server settings
  leasehold verify --for 60s                     try the store, with faults
  leasehold where                                the store in use

`leasehold help COMMAND` describes the options and exit statuses of a command.";

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold_fuzz::{Target, mutate};
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt as _;
    use std::time::Duration;

    #[test]
    fn the_command_line_is_in_order() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn no_help_has_a_line_longer_than_80_columns_or_one_that_was_broken() {
        let program = || Arguments::command().term_width(80);
        let mut pages = vec![vec!["--help"], vec!["-h"]];
        let commands = program();
        for name in commands.get_subcommands().map(clap::Command::get_name) {
            pages.extend([vec![name, "--help"], vec![name, "-h"]]);
        }
        assert_eq!(pages.len(), 44, "{pages:?}");
        for page in pages {
            let help = program().try_get_matches_from([&["leasehold"], &page[..]].concat());
            let help = help.expect_err("it is help").to_string();
            let long: Vec<_> = help.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{page:?}: {long:#?}");
            let command = commands.find_subcommand(page[0]).unwrap_or(&commands);
            let end = command.get_after_long_help().or(command.get_after_help());
            let end = end.map(ToString::to_string).unwrap_or_default();
            let is_long = page.contains(&"--help");
            assert!(!is_long || help.trim_end().ends_with(&end), "{page:?}: its lines are broken:\n{help}");
        }
    }

    #[test]
    fn the_help_of_run_is_two_screens_of_unbroken_lines() {
        let help = |option| {
            let program = Arguments::command().term_width(80);
            program.try_get_matches_from(["leasehold", "run", option]).expect_err("it is help").to_string()
        };
        let long = help("--help");
        assert_eq!(long, help("-h"));
        let lines: Vec<_> = long.lines().collect();
        assert!(lines.len() <= 80, "{} lines:\n{long}", lines.len());
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{long}");
        assert!(long.trim_end().ends_with(run::AFTER_HELP), "its lines are not broken:\n{long}");
    }

    /// What command lines are made of, a word on each line.
    const WORDS: &[&str] = &[
        "run\n",
        "lead\n",
        "wait\n",
        "show\n",
        "acquire\n",
        "extend\n",
        "release\n",
        "ls\n",
        "graph\n",
        "top\n",
        "advise\n",
        "board\n",
        "free\n",
        "monitor\n",
        "doctor\n",
        "acl\n",
        "where\n",
        "help\n",
        "--\n",
        "--help\n",
        "--store\n",
        "redis://u:S3CR3T@h\n",
        "--store=redis://:S3CR3T@h/x\n",
        "redis://:S3CR3T%40/@h?x\n",
        "--wait\n",
        "--lease\n",
        "30s\n",
        "1h30m\n",
        "--try\n",
        "--json\n",
        "--permits\n",
        "--read\n",
        "--write\n",
        "--owner\n",
        "--once-per\n",
        "-1\n",
        "18446744073709551615\n",
        "--token-file\n",
        "--key\n",
        "--per-key\n",
        "--interval\n",
        "--kind\n",
        "semaphore\n",
        "job\n",
        "echo\n",
        "\n",
        "--accept\n",
        "eviction\n",
        "--strict\n",
        "--label\n",
        "--history\n",
    ];

    fn parse_line(input: &[u8]) {
        let words: Vec<_> =
            input.split(|byte| *byte == b'\n').map(|word| OsString::from_vec(word.to_vec())).collect();
        let line = std::iter::once(OsString::from("leasehold")).chain(words.iter().cloned());
        let Err(error) = Arguments::try_parse_from(line) else { return };
        // Only as the password of a URL.
        let is_secret = |word: &OsString| {
            let word = word.to_string_lossy();
            let url =
                word.split_once("://").map(|(_, rest)| rest.rsplit_once('@').map_or("", |(login, _)| login));
            word.matches("S3CR3T").count() == url.map_or(0, |login| login.matches("S3CR3T").count())
        };
        if error.use_stderr() && words.iter().all(is_secret) {
            let shown = usage::report(&error, &words);
            assert!(!shown.contains("S3CR3T"), "a password is shown: {shown}");
        }
    }

    #[test]
    fn no_command_line_panics_or_shows_the_password_of_a_url() {
        let target =
            Target { name: "arguments", run: parse_line, max_memory: 16 << 20, max_len: 512, words: WORDS };
        let lines = [
            "run\nnightly\n--store\nredis://:S3CR3T@h\n--wait\n5s\n--\necho\nhi",
            "acquire\nnightly\n--lease\n1h\n--token-file\n/run/x",
            "ls\n--json",
            "ls\nredis://u:S3CR3T@h",
            "lead\nscheduler\n--\n./scheduler",
            "free\nnightly\n--kind\nsemaphore",
        ];
        let corpus: Vec<_> = lines.iter().map(|line| line.as_bytes().to_vec()).collect();
        let report = mutate::run(&target, &corpus, 1, Duration::from_secs(1));
        assert!(report.finding.is_none(), "{:?}", report.finding);
        assert!(report.runs > 100, "{}", report.runs);
    }
}
