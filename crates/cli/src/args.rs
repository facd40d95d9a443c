//! The command line. What it says is in here; what it means is in the files of the same names.
//!
//! A URL stays a plain text in here: clap repeats what it cannot parse, and a URL may have a password.

use crate::duration;
use crate::exit::Exit;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Distributed locks, held by lease, for shells, cron jobs and operators
#[derive(Parser)]
#[command(name = "leasehold", version, propagate_version = true, arg_required_else_help = true)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Subcommand)]
pub(crate) enum Task {
    #[command(about = RUN_ABOUT, long_about = RUN_LONG, after_long_help = RUN_AFTER)]
    Run(RunArgs),
    #[command(about = LEAD_ABOUT, long_about = LEAD_LONG, after_long_help = LEAD_AFTER)]
    Lead(LeadArgs),
    #[command(about = WAIT_ABOUT, long_about = WAIT_LONG, after_long_help = WAIT_AFTER)]
    Wait(WaitArgs),
    #[command(about = SHOW_ABOUT, long_about = SHOW_LONG, after_long_help = SHOW_AFTER)]
    Show(ShowArgs),
    #[command(about = ACQUIRE_ABOUT, long_about = ACQUIRE_LONG, after_long_help = ACQUIRE_AFTER)]
    Acquire(AcquireArgs),
    #[command(about = EXTEND_ABOUT, long_about = EXTEND_LONG, after_long_help = EXTEND_AFTER)]
    Extend(ExtendArgs),
    #[command(about = RELEASE_ABOUT, long_about = RELEASE_LONG, after_long_help = RELEASE_AFTER)]
    Release(ReleaseArgs),
    #[command(about = LS_ABOUT, long_about = LS_LONG, after_long_help = LS_AFTER)]
    Ls(LsArgs),
    #[command(about = FREE_ABOUT, long_about = FREE_LONG, after_long_help = FREE_AFTER)]
    Free(FreeArgs),
    #[command(about = MONITOR_ABOUT, long_about = MONITOR_LONG, after_long_help = MONITOR_AFTER)]
    Monitor(MonitorArgs),
    #[command(about = DOCTOR_ABOUT, long_about = DOCTOR_LONG, after_long_help = DOCTOR_AFTER)]
    Doctor(DoctorArgs),
    #[command(about = ACL_ABOUT, long_about = ACL_LONG, after_long_help = ACL_AFTER)]
    Acl(AclArgs),
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// The lock's name: up to 512 bytes of text without control characters. Several are held together, all or none
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) enter: EnterArgs,

    #[command(flatten)]
    pub(crate) share: ShareArgs,

    /// How long the lock outlives us at most [default: 30s]
    ///
    /// The lock is held for as long as the command runs, and is renewed every third of the lease. If
    /// this machine dies, the lock is free when the lease ends, or on a server when the session lapses, if
    /// that is earlier. On a majority of servers (redlock://) there are no sessions: the lease alone counts.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,

    /// How long to wait for the lock at most; for ever, if not given
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: give up at once if somebody else has the lock
    #[arg(long = "try", conflicts_with = "wait")]
    pub(crate) try_once: bool,

    #[command(flatten)]
    pub(crate) once: OnceArgs,

    /// The exit status that says that the lock was not acquired [default: 75; with --once-per, 0]
    #[arg(long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// How long our session lives without a beat: a crash is noticed by then [default: 10s]
    ///
    /// If this machine dies, or is cut off from the server for that long, the lock goes to the next, however
    /// long the lease is. An outage of half of it is ridden out. With a longer --kill-grace it is six times
    /// that, if it is not given. In a file (sqlite:) a death is noticed at once, and nothing lapses. A majority of
    /// servers (redlock://) has no sessions: only the lease ends the lock there.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) session: Option<Duration>,

    /// Without a session: the lease alone ends the lock after a crash, and an outage is ridden out as long
    #[arg(long, conflicts_with = "session")]
    pub(crate) no_session: bool,

    /// How long the command has between SIGTERM and SIGKILL when the lock is lost [default: 5s or less]
    ///
    /// If the server does not answer, SIGTERM comes that long before the lease or the session ends, so it
    /// must be shorter than the lease, and half of the session at most. If it is not given, it is 5s, a
    /// third of the lease, or a sixth of the session on a server, whichever is the shortest.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) kill_grace: Option<Duration>,

    /// Print one line of JSON at the end, on standard error: standard output is the command's
    #[arg(long)]
    pub(crate) json: bool,
    /// How long the lock is held at most; for as long as the command runs, if not given
    ///
    /// For a command that may hang, whose lock would be renewed for ever: it is ended as if the lock were
    /// lost, --kill-grace before this time is over, and others get the lock.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

impl RunArgs {
    /// The exit status that says that the lock was not acquired.
    pub(crate) fn conflict(&self) -> Exit {
        Exit::of(self.conflict_exit_code.unwrap_or(Exit::CONFLICT))
    }
}

#[derive(Args)]
pub(crate) struct OnceArgs {
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, help = ONCE_HELP, long_help = ONCE_LONG)]
    #[arg(conflicts_with_all = ["wait", "try_once", "lease", "max_hold", "session", "no_session", "reentrant", "owner", "shared", "exclusive", "permits", "take"])]
    pub(crate) once_per: Option<Duration>,

    /// How long the command may run, where that is longer than the period of --once-per
    ///
    /// It is ended --kill-grace before that time is over. If this machine dies meanwhile, nobody runs the command for as
    /// long.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "once_per")]
    pub(crate) at_most: Option<Duration>,
}

#[derive(Args)]
pub(crate) struct LeadArgs {
    /// The election's name: up to 512 bytes of text without control characters
    pub(crate) name: String,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    /// How long a leadership outlives us at most [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,

    /// How long our session lives without a beat: a crash is noticed by then [default: 10s]
    ///
    /// As with `run`.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) session: Option<Duration>,

    /// Without a session: the lease alone ends the leadership after a crash
    #[arg(long, conflicts_with = "session")]
    pub(crate) no_session: bool,

    /// How long the command has between SIGTERM and SIGKILL when we lead no more [default: 5s or less]
    ///
    /// As with `run`.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) kill_grace: Option<Duration>,

    /// What others are shown of the leader [default: this host and process]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Print one line of JSON at the end, on standard error: standard output is the command's
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct WaitArgs {
    /// The lock's name
    pub(crate) name: String,

    /// How long to wait at most; for ever, if not given
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// The exit status that says that the lock was not free in time
    #[arg(long, value_name = "N", default_value_t = Exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,

    /// Print one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct EnterArgs {
    #[arg(long, help = REENTRANT_HELP, long_help = REENTRANT_LONG)]
    pub(crate) reentrant: bool,

    #[arg(long, value_name = "ID", help = OWNER_HELP, long_help = OWNER_LONG)]
    pub(crate) owner: Option<String>,
}

#[derive(Args)]
pub(crate) struct ShareArgs {
    /// Hold the lock as one of its readers: beside others with --shared, never beside one with --exclusive
    ///
    /// Fair to both: who came before one who wants it alone goes first, and who came after him waits for him.
    #[arg(long, conflicts_with_all = ["exclusive", "permits"])]
    pub(crate) shared: bool,

    /// Hold it alone, while nobody has it with --shared or --exclusive
    #[arg(long, conflicts_with = "permits")]
    pub(crate) exclusive: bool,

    /// Hold one of N permits: at most N commands run at a time
    ///
    /// All who use the name say the same N. The store goes by what the first of them said, until nobody has used it for an
    /// hour.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(conflicts_with_all = ["reentrant", "owner"])]
    pub(crate) permits: Option<u32>,

    /// Hold so many of the permits, all at once [default: 1]
    #[arg(long, value_name = "M", value_parser = clap::value_parser!(u32).range(1..), requires = "permits")]
    pub(crate) take: Option<u32>,
}

#[derive(Args)]
pub(crate) struct ShowArgs {
    /// The lock's name
    pub(crate) name: String,

    /// Print one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct AcquireArgs {
    /// The lock's name: up to 512 bytes of text without control characters
    pub(crate) name: String,

    /// How long the lock is held, unless it is extended or released
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) lease: Duration,

    /// The file for the token: made with mode 0600, or an empty one of yours with that mode
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: PathBuf,

    /// How long to wait for the lock at most; for ever, if not given
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: give up at once if somebody else has the lock
    #[arg(long = "try", conflicts_with = "wait")]
    pub(crate) once: bool,

    /// The exit status that says that the lock was not acquired
    #[arg(long, value_name = "N", default_value_t = Exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,

    /// What others are shown of the holder [default: this host and process]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Print one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct ExtendArgs {
    /// The lock's name, to be sure that the token is its
    pub(crate) name: Option<String>,

    /// The file with the token
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: PathBuf,

    /// How long the lock is held from now at least [default: the lease that it was acquired with]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,

    /// Print one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct ReleaseArgs {
    /// The lock's name, to be sure that the token is its
    pub(crate) name: Option<String>,

    /// The file with the token; it is removed once the hold is over
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: PathBuf,

    /// Print one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct LsArgs {
    /// List who is there instead: sessions, alive or dead
    #[arg(long)]
    pub(crate) sessions: bool,

    /// Print one line of JSON for each
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct FreeArgs {
    /// The lock's name
    pub(crate) name: String,

    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// End the hold with this fencing token alone, of a lock that several share: `show` tells them
    #[arg(long, value_name = "TOKEN")]
    pub(crate) fence: Option<u64>,

    /// Who does it, for the lock's audit [default: user@host]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Print one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct MonitorArgs {
    /// How often to look, give or take a quarter [default: 2500ms]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) every: Option<Duration>,

    /// Who does it, for the locks' audit [default: this host and process]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Print lines of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Print one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct AclArgs {
    /// The user's name
    #[arg(long, value_name = "NAME", default_value = "leasehold")]
    pub(crate) user: String,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    #[arg(long, value_name = "URL", help = STORE_HELP, long_help = STORE_LONG)]
    pub(crate) store: Option<String>,

    /// A prefix for all keys, on a Redis server that others use too
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,

    #[arg(long, value_name = "FILE", help = PASSWORD_HELP, long_help = PASSWORD_LONG)]
    pub(crate) password_file: Option<PathBuf>,
}

#[derive(Args)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// Say more on standard error; up to three times
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// The form of what is said on standard error
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

const EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./backup.sh           one at a time on this machine
  leasehold run nightly --try -- ./backup.sh     or not at all: exit status 75
  export LEASEHOLD_STORE=redis://db.example.org  one at a time on all machines
  leasehold show nightly                         who has it, since when, who waits
  leasehold acquire nightly --lease 1h --token-file /run/nightly.lock
                                                 where a script cannot wrap a command
  leasehold run digest --once-per 55m -- ./send  on one machine of all that try, once an hour
  leasehold lead scheduler -- ./scheduler        on one machine of all, for as long as it can
  leasehold wait nightly && ./after-nightly.sh   when nobody has it
  leasehold ls                                   which locks are held
  leasehold free nightly                         take it from its holder, after a question
  leasehold doctor                               what could fail the locks of a server

`leasehold help run` says what becomes of signals, exit statuses and a lock that is lost.";

const STORE_HELP: &str = "Where the locks are [env: LEASEHOLD_STORE] [default: a SQLite file of this user's]";

const STORE_LONG: &str = "\
Where the locks are [env: LEASEHOLD_STORE] [default: a SQLite file of this user's]

  redis://[user@]host[:port][/db]  a Redis or Valkey server; rediss:// with TLS
                                   (?ca=FILE, and ?cert=FILE&key=FILE where it wants to see a certificate)
  redis+unix:///path/to/socket     the same, by a socket
  redis+sentinel://a,b,c/name      the primary that these Sentinels know by that name
  redis+cluster://a,b,c            a cluster, of which these nodes know the others
  redis+shard://a,b,c              independent servers: each name lies on one of them
  redlock://a,b,c                  a majority of these servers
  sqlite:PATH                      a file, for the processes of this machine

With `?strict=1` behind it, a server that could lose locks is refused: see `leasehold doctor`.

If none is given, the file is leasehold/locks.db in $XDG_STATE_HOME, or else in ~/.local/state; for root without a \
home it is /var/lib/leasehold/locks.db. A password does not belong in here, where every user of the machine \
can read it: see --password-file.";

const PASSWORD_HELP: &str =
    "Read the server's password from the first line of a file, or of standard input (`-`)";

const PASSWORD_LONG: &str = "\
Read the server's password from the first line of a file, or of standard input (`-`)

Of standard input no more than that line is read: what follows is the command's. The password can also be \
given in the environment, as LEASEHOLD_PASSWORD or in the URL in LEASEHOLD_STORE, and the user as \
LEASEHOLD_USERNAME. The command does not inherit what holds a password.";

const REENTRANT_HELP: &str =
    "Enter the lock again where our owner has it: that of LEASEHOLD_OWNER, or else a new one";

const REENTRANT_LONG: &str = "\
Enter the lock again where our owner has it: that of LEASEHOLD_OWNER, or else a new one

The owner is handed to the command, so that what it runs with --reentrant enters the same locks, and does not wait for \
it. Whoever else uses the lock must enter it so, too: it is another kind of lock, Redisson's RLock.";

const OWNER_HELP: &str =
    "The same for this owner: 1 to 256 bytes of text that stand for one piece of work; implies --reentrant";

const OWNER_LONG: &str = "\
The same for this owner: 1 to 256 bytes of text that stand for one piece of work; implies --reentrant

Every user of this machine can read it in the process list. If that matters, set LEASEHOLD_OWNER instead.";

const RUN_ABOUT: &str = "Run a command while holding a lock";

const RUN_LONG: &str = "\
Run a command while holding a lock.

Waits until the lock is free, runs the command, and gives the lock back when the command has ended. \
Waiting is fair: first come, first served. Over a majority of servers (redlock://) it is not: there is no queue, and the \
first to ask after a release gets the lock. The options --shared, --exclusive and --permits do not work there.

Several locks are held together: all of them, or none. While one of them is waited for the others are left to \
whoever wants them, or they are taken in the order of their names; so two commands never wait for each other.";

const RUN_AFTER: &str = "\
The command:
  It inherits standard input, output and error, and runs in a process group of its own. In its
  environment are LEASEHOLD_NAME, the lock's name, and LEASEHOLD_FENCE, the fencing token: a number
  that grows with every hold of the lock, for resources that can refuse smaller ones than they saw.
  Of several locks there is a line each, in both, in the order of their names.

Entering again (--reentrant, --owner):
  Such a lock is its owner's, and is free when all that he runs under it have ended. With --reentrant
  alone the owner is the one of LEASEHOLD_OWNER, if that is set, and otherwise new: nobody has been him
  before. The command finds him in its environment, as LEASEHOLD_OWNER, so that a nested `leasehold run
  --reentrant` of the same name runs at once, by whichever process it is called. Commands of one owner do
  NOT exclude each other, wherever they run: `env -u LEASEHOLD_OWNER` begins anew.
  Whoever knows the owner and may use the store gets in: it is as secret as the command's environment. The
  log does not have it; `show` says who has a lock, and so does the message of who waited in vain.
  A hold for an owner of the environment ends with its lease alone (--lease), and not when our session
  does. All that are inside have the same fencing token. It takes one NAME. `acquire`, `extend` and
  `release` do not know such locks.

Once per period (--once-per):
  Of all that try, on all machines, one runs the command; the others end at once, with 0 and without a word (or with
  --conflict-exit-code, if it is given), also if they come when the command has ended. From the start of
  the command nobody else runs it before the period is over, also if this machine dies; `show` says
  then that the lock rests. A command that takes longer is ended, unless --at-most is longer. Choose
  the period a little shorter than the interval of the timer: the next one may come a moment early.
  A command that fails has had its turn: to try again, `leasehold free` the lock.

Beside others (--shared, --exclusive, --permits):
  Such a lock several have at the same time: all with --shared, or one with --exclusive; with --permits 3
  three of them, or fewer who --take more. Who waits is served in the order in which all have come, so that
  nobody waits for ever. Each has a fencing token of its own, and loses what it has by itself. Everybody who
  uses the name has to use it in the same way. It takes one NAME.
  With --reentrant or --owner a read is its owner's: one of his who reads again runs at once, also past one
  with --exclusive who waits. What would wait for its own owner, like --exclusive under his --shared, ends with
  2 at once. Without them a nested `run --shared` of the same name may wait for ever, behind one who waits
  for the outer one.

Signals:
  SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT and SIGTSTP are passed on to
  the command's process group, and the lock is given back when the command has ended. Those that were
  ignored when we were started (nohup) stay ignored. If the command wants to read from the terminal,
  it becomes the foreground job. After Ctrl-Z nothing is renewed: if the lease ends before `fg`, the
  lock is lost.

A lock that is lost:
  If the lock cannot be renewed, the command gets SIGTERM early enough to be gone before anybody else
  can have the lock: --kill-grace before the lease ends, or the session. What is left of its process group then gets
  SIGKILL. The same happens --kill-grace before --max-hold is over. If the lock was taken away (its key was removed), SIGTERM comes when that is noticed, at
  the next renewal.
  If leasehold itself is killed, the kernel kills the command (Linux). It does not kill the command's
  own children, nor a program that is setuid or has file capabilities: for those use a container or a
  cgroup. While leasehold is stopped (SIGSTOP) it can stop nothing: it does so as soon as it goes on.

Exit status:
  the command's own; 128 + n if signal n ended it
    2  the arguments, the name, the URL or another setting cannot be used; or the lock can never be had so
   69  the store cannot be reached, or does not serve us
   70  the lock was lost before the command had ended
   75  the lock was not acquired (see --conflict-exit-code); with --once-per that is 0
  126  the command cannot be executed
  127  there is no such command

JSON (--json), the last line on standard error; later versions may add fields:
  name, acquired (true or false), fence, count (how often its owner had it then; 1 without --reentrant,
  null if it was not acquired), locks (name and fence of each), portion (read, write or permits; null of a lock
  that nobody shares), permits (how many it took, or null), command_status (null if the command was not started), status
  (ours); error: null, or an object with kind (taken, lost, unavailable, usage, not_started), reason
  (of a loss, or null), message

Examples:
  leasehold run nightly -- ./backup.sh
  leasehold run till stock -- ./close-the-day.sh
  leasehold run uploads --permits 3 -- ./upload.sh    three at a time
  leasehold run index --shared -- ./query.sh          while nobody runs `… index --exclusive -- ./rebuild.sh`
  leasehold run deploy --reentrant -- ./deploy.sh     which may run `leasehold run deploy --reentrant -- …`
  leasehold run deploy --owner \"ci-$RUN_ID\" -- ./step-2.sh       in every step of one run
  leasehold run nightly --wait 10s --conflict-exit-code 0 -- ./backup.sh
  leasehold run digest --once-per 55m --at-most 2h -- ./send-digest       from an hourly timer everywhere
  leasehold run orders/42 --store redis://db.example.org --password-file /run/secrets/redis -- ./ship
  leasehold run report --lease 5m --kill-grace 1m -- sh -c 'make report && publish --fence $LEASEHOLD_FENCE'";

const ONCE_HELP: &str = "Run the command if nobody has in this time; otherwise end with 0 at once";

const ONCE_LONG: &str = "\
Run the command if nobody has in this time; otherwise end with 0 at once

The time counts from the start of a command. Whatever becomes of the command or of this machine, nobody else runs it \
before. It needs no session, and takes one NAME.";

const LEAD_ABOUT: &str = "Run a command while leading, again after each re-election";

const LEAD_LONG: &str = "\
Run a command while leading, again after each re-election.

Campaigns until we lead, and runs the command for as long as we do. If the leadership is lost the command is ended before \
anybody else can lead, and we campaign again. When the command ends by itself, or is asked to end by a signal, we \
resign and end as well.";

const LEAD_AFTER: &str = "\
The command has LEASEHOLD_NAME and LEASEHOLD_FENCE in its environment, gets our signals, and is ended as with `run`: SIGTERM
--kill-grace before the lease or the session ends, and then SIGKILL. The fencing token is another one, and a greater one, each time.
Once we have led or waited, a store that does not answer is no reason to end: it is asked less and less often, every 5s at least.

An election is a lock of its own kind: `show` says who leads, and `free` deposes him.

Exit status:
  the command's own, when it ended by itself; 128 + n if signal n ended it, or us while we campaigned
    2  the arguments, the name, the URL or another setting cannot be used
   69  the store could not be reached at the start, or does not serve us
   70  the leadership was lost while the command ran, which was noticed only when it had ended
  126  the command cannot be executed
  127  there is no such command

JSON (--json), the last line on standard error; later versions may add fields:
  name, led (how often), fence (the last one, or null), command_status (of the last command, or null), status (ours); error:
  as with `run`

Examples:
  leasehold lead scheduler -- ./scheduler
  leasehold lead scheduler --session 4s --label \"$HOSTNAME\" -- ./scheduler";

const WAIT_ABOUT: &str = "Wait until nobody has a lock, without taking it";

const WAIT_LONG: &str = "\
Wait until nobody has a lock, without taking it.

Of whichever kind it is. It looks when the holder's lease would end, and at first every 100ms, then less and less often: \
every 2s at least. When this has ended somebody may have it again: to work under it, use `leasehold run`. A lock that rests \
(--once-per) is not free.";

const WAIT_AFTER: &str = "\
JSON (--json), one line, also where it fails; later versions may add fields:
  name, free (true or false), waited_ms, holder (who had it last as we saw it, or null), remaining_ms; error as
  with `run`

Exit status:
    0  nobody has it
    2  the name or a setting cannot be used
   69  the store cannot be reached, or does not serve us
   75  somebody had it for as long as --wait says (see --conflict-exit-code)

Examples:
  leasehold wait nightly --wait 1h && ./after-nightly.sh
  leasehold wait deploy --wait 0s || echo 'a deploy is under way'";

const SHOW_ABOUT: &str = "Show who holds a lock";

const SHOW_LONG: &str = "\
Show who holds a lock, since when, until when, who is behind that, how many wait for it, and who took it from whom.

Of whichever kind it is: a plain lock, one that its owner enters again (`run --reentrant`), an election (`lead`), or one that \
several have at the same time (`run --shared`, `--permits`; also latches and barriers of programs), with all who have it.

The exit status is 0 whether or not the lock is held; 69 if the store cannot be reached, and 2 if the \
name or a setting cannot be used.";

const SHOW_AFTER: &str = "\
JSON (--json), one line; later versions may add fields:
  name          the lock's name
  kind          mutex, reentrant, election, semaphore, rwlock, latch or barrier; of a free lock, mutex unless
                it is known to have been another
  held          true or false
  rests         true if whoever had it is done, and it stays taken until `until` (`run --once-per`)
  holder        what the holder calls itself, `host/pid/program` as a rule; null if the lock is free, or
                held by another library, which says nothing of itself
  owner         who may enter it again; null if it is free, or a mutex
  count         how often it is held: 0 if it is free, 1 if a mutex is held
  since         since when, by the store's clock: RFC 3339 in UTC, or null
  until         when the lease ends unless it is renewed, by this machine's clock; null if the lock is
                free, or held without an expiry
  remaining_ms  how many milliseconds that is from now, or null
  fence         the holder's fencing token, a number of at most 53 bits, or null
  waiting       how many processes wait
  behind        who is behind the holder, or null: session, alive, alive_ms, label, host, pid, program,
                version, started, labels
  audit         who took the lock from whom, the last first: at, how (freed, evicted), fence, whose, by
  taken         how many permits are taken, or how many have arrived; null of another kind
  limit         how many permits, arrivals or parties there are, or null
  sharers       all who have it, of a kind that several can have, the oldest first (4096 at most): portion,
                count (of permits or arrivals), holder, owner, since, remaining_ms, fence, behind. The holder
                above is the first

Examples:
  leasehold show nightly
  leasehold show nightly --json | jq -r 'select(.held) | .holder'";

const ACQUIRE_ABOUT: &str = "Acquire a lock and leave it held, for scripts that cannot wrap a command";

const ACQUIRE_LONG: &str = "\
Acquire a lock and leave it held, for scripts that cannot wrap a command.

Nothing renews the lock and nothing watches over it: it ends by `leasehold release`, or with its lease, whatever \
becomes of the script. Where a command can be wrapped, use `leasehold run`. The lock is a plain one, which nobody \
enters again. The fencing token is printed, unless \
--json is given: a number that grows with every hold of the lock.";

const ACQUIRE_AFTER: &str = "\
The token file:
  Whoever can read it can end the hold. It is made with mode 0600 before the lock is asked for, and is
  never an existing file, except an empty one of yours with mode 0600 (from mktemp). It is on the disk
  when this ends with 0. If the lock is not acquired, a file that was made is removed.
  If leasehold is killed (SIGKILL, a crash of the machine) after the lock was given to it and before
  the file was written, nobody has the token: the lock ends with its lease.

JSON (--json), one line, also where it fails; later versions may add fields:
  name, acquired (true or false), fence, lease_ms, until (when the lease ends at the latest, by this
  machine's clock), token_file; error: null, or an object with kind (taken, lost, unavailable, usage,
  interrupted), reason (of a loss, or null), message

Exit status:
    0  the lock is held, and the token in its file
    2  the arguments, the name, the file or another setting cannot be used
   69  the store cannot be reached, or does not serve us
   70  the lock was lost before its lease began
   75  the lock was not acquired (see --conflict-exit-code)

Examples:
  leasehold acquire deploy --lease 10m --wait 30s --token-file ~/.deploy.lock
  trap 'leasehold release --token-file ~/.deploy.lock' EXIT";

const EXTEND_ABOUT: &str = "Lengthen a lock that was acquired before";

const EXTEND_LONG: &str = "\
Lengthen a lock that was acquired before: it is held for the lease from now on at least. It never ends earlier for it.

The store must be the one that the lock was acquired in.";

const EXTEND_AFTER: &str = "\
JSON (--json), one line, also where it fails; later versions may add fields:
  name (null if the file cannot be used), extended (true or false), fence, lease_ms, until; error as
  with acquire

Exit status:
    0  the lock is held still, for the lease from now on
    2  the arguments, the name, the file or another setting cannot be used
   69  the store cannot be reached, or does not serve us: the lock lasts at least as long as before
   70  the lock was lost

Example:
  leasehold extend deploy --token-file ~/.deploy.lock || exit 1";

const RELEASE_ABOUT: &str = "Give back a lock that was acquired before";

const RELEASE_LONG: &str = "\
Give back a lock that was acquired before, and remove the file with its token.

The store must be the one that the lock was acquired in. After 69 the file is still there: try again.";

const RELEASE_AFTER: &str = "\
JSON (--json), one line, also where it fails; later versions may add fields:
  name (null if the file cannot be used), released (true or false), fence; error as with acquire

Exit status:
    0  the lock was given back
    2  the arguments, the name, the file or another setting cannot be used
   69  the store cannot be reached, or does not serve us: the lock ends with its lease
   70  the lock was lost before: somebody else may have worked at the same time. The file is removed,
       unless the store knows nothing of the lock although its lease runs: is it the right store?

Example:
  leasehold release deploy --token-file ~/.deploy.lock";

const LS_ABOUT: &str = "List the locks that are held, and by whom";

const LS_LONG: &str = "\
List the locks that are held, and by whom.

Seen is what sessions have told of: what they have held for longer than a second or so. Each lock is looked at before \
it is told of. Not seen are locks that were just taken, detached ones, and those of clients without a session or of \
other libraries: ask about them by name, with `leasehold show`. No search goes through the server's keys.";

const LS_AFTER: &str = "\
JSON (--json), one line a lock; later versions may add fields:
  name, kind, holder, owner, count, since, remaining_ms, fence, waiting, behind, taken, limit, sharers: as
  with `show`

JSON (--sessions --json), one line a session:
  session, alive, alive_ms, label, host, pid, program, version, started, labels; locks: an array of names

Exit status:
    0  all that there is was listed
    2  the URL or another setting cannot be used
   69  the store cannot be reached, or does not serve us

Examples:
  leasehold ls
  leasehold ls --json | jq -r 'select(.behind.host == \"web-3\") | .name'
  leasehold ls --sessions";

const FREE_ABOUT: &str = "Take a lock from its holder by force";

const FREE_LONG: &str = "\
Take a lock from its holder by force.

Shows whom it would be taken from, and asks. The holder is told at once, and the next who waits gets the lock. Until \
the holder has heard of it, both may work: stop it first, if you can. Whoever has got the lock since it was shown \
keeps it. A lock that its owner has entered several times is taken as a whole. Of one that several share, all who were \
shown lose it, or with --fence one of them. What was done stands in the lock's audit: see `leasehold show`.";

const FREE_AFTER: &str = "\
JSON (--json), one line, once the lock was looked at; later versions may add fields:
  name, kind, freed (true or false), held, holder, owner, count, fence, waiting, behind, taken, limit,
  sharers: the holder as it was seen before; freed_fences: the tokens of the holds that this has ended

Exit status:
    0  the lock was taken from its holder, or was free
    1  you did not want it
    2  the name or a setting cannot be used, or nobody can be asked and --yes is not given
   69  the store cannot be reached, or did not say whether it was done: look again
   75  it was not held any more as it was shown: nobody lost it

Examples:
  leasehold free nightly
  leasehold free nightly --yes --label 'ticket 4711'
  leasehold free index --fence 1772368200250117      one of several readers";

const MONITOR_ABOUT: &str = "Take from dead sessions what they held, as a daemon";

const MONITOR_LONG: &str = "\
Take from dead sessions what they held, as a daemon.

Who waits for a lock notices by himself that its holder has died. The monitor frees also the locks for which nobody \
waits. Whether a session is dead is looked at in the step that takes its lock. Any number of monitors may run.";

const MONITOR_AFTER: &str = "\
It runs until SIGTERM, SIGINT, SIGHUP or SIGQUIT, and then ends with 0. One line is printed for each lock that was \
taken, and when trouble with the store begins and ends; during which it asks less and less often, every 5s at least.

JSON (--json), lines; later versions may add fields and events:
  event (started, evicted, trouble, recovered, ended), at
  evicted:  name, fence (null for a place in the queue), session, whose
  trouble:  message

Exit status:
    0  a signal ended it
    2  the URL or another setting cannot be used
   69  the store could not be reached at the start

A systemd unit is in contrib/leasehold-monitor.service.";

const DOCTOR_ABOUT: &str = "Look a server over: what could fail its locks, and what to do about it";

const DOCTOR_LONG: &str = "\
Look a server over: what could fail its locks, and what to do about it.

It asks for its version, role, memory, persistence and clock, by INFO, TIME and ACL WHOAMI, and writes no key. What it may \
not ask is told as unknown. Which of the rights a user needs are missing is not looked at: that shows in use. A server is \
looked at whatever its hazards are, also where the URL says `?strict=1`.";

const DOCTOR_AFTER: &str = "\
Hazards:
  By a warning locks can be lost while all seems well. The library logs it when it connects; this program
  shows that with -v. With `?strict=1` in the URL the server is refused. A notice can be meant so, and changes no status.
    eviction        an eviction policy that can remove locks; a notice while there is no `maxmemory`
    replica         a replica, which has a primary's data, and takes no writes or loses them
    lua_holes       a version whose Lua has known holes; distributions may have mended them
    unreachable     one of several servers does not answer, or does not let us in
    memory_full     nobody can acquire a lock (notice)
    not_persistent  a restart loses locks (notice)
    clock_apart     its clock is off ours by more than a second, for certain (notice)
    not_told        the user may not run INFO (notice)

JSON (--json), one line a server; later versions may add fields and words:
  store           its address; null of a file, of which there is nothing to tell
  product, version, role (primary or replica), replicas, append_only, snapshots (since its start),
  eviction_policy, maxmemory (0: no limit), used_memory, clock_ahead_us (less than 0: behind),
  clock_uncertainty_us, round_trip_us, user: each null if it is unknown
  hazards         objects: hazard (a word of those above), severity (warning or notice), message, remedy

Exit status:
    0  no warning
    2  the URL or another setting cannot be used
   69  the store cannot be reached, or does not serve us
   78  there is a warning

Examples:
  leasehold doctor --store redis://db.example.org
  leasehold doctor --json | jq -r '.hazards[].remedy'";

const ACL_ABOUT: &str = "Print the least permissions of a user of the server";

const ACL_LONG: &str = "\
Print the least permissions of a user of the server, as the command that makes him.

With the locks of one prefix, or of all, he can do whatever this program and the library do, and nothing else. The server \
is asked for its version, since it refuses a list with a command that it does not know. Nothing is changed.";

const ACL_AFTER: &str = "\
Without a server (--store or LEASEHOLD_STORE) the list is for the newest versions. It is for the database of the URL.

What begins with `#` in the line stands for a password: write the SHA-256 of one in its place, in hexadecimal, or `>`
and the password. The server refuses the line as it stands. Who had the user's name before has nothing else afterwards.
Type it into `redis-cli`: a shell would see patterns and redirections in it, and show it to all who see the process list.

Exit status:
    0  it is printed
    2  the prefix, the name or another setting cannot be used
   69  the server cannot be reached, or does not say which it is

Examples:
  leasehold acl --prefix app: --user app
  leasehold acl --store redis://db.example.org --prefix app:      for that server's version";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_in_order() {
        Arguments::command().debug_assert();
    }
}
