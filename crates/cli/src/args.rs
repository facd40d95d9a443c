//! The command line: its arguments and help texts. The modules of the same names as the subcommands carry them out.
//!
//! URLs stay plain strings here: clap repeats a value that it cannot parse, and a URL can contain a password.

use crate::duration;
use crate::lock::once_per::OncePerArgs;
use crate::lock::owner::OwnerArgs;
use crate::lock::shared::SharedArgs;
use crate::lock::wait_limit::WaitLimitArgs;
use crate::output::exit::Exit;
use crate::output::log::LogArgs;
use crate::store::args::StoreArgs;
use clap::{Args, Parser, Subcommand};
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
    /// Name of the lock: up to 512 bytes without control characters. Several names are acquired together, all or none
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) owner: OwnerArgs,

    #[command(flatten)]
    pub(crate) shared: SharedArgs,

    /// Lease of the lock: how long it can outlive this process [default: 30s]
    ///
    /// The lock is held for as long as the command runs, and is renewed every third of the lease. If this machine dies,
    /// the lock becomes free when the lease ends. On a server it becomes free when the session lapses, if that is
    /// earlier. On a quorum (redlock://) there are no sessions, so only the lease counts.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,

    #[command(flatten)]
    pub(crate) wait: WaitLimitArgs,

    #[command(flatten)]
    pub(crate) once_per: OncePerArgs,

    /// Exit status if the lock was not acquired [default: 75; with --once-per, 0]
    #[arg(long, value_name = "N")]
    pub(crate) conflict_exit_code: Option<u8>,

    /// Time without a heartbeat after which the session counts as dead [default: 10s]
    ///
    /// If this machine dies, or is cut off from the server for that long, the next waiter gets the lock, however long
    /// the lease is. An outage of up to half of it is tolerated. If --kill-grace is longer than its default and this is
    /// not given, the session is six times --kill-grace. In a file (sqlite:) the end of a process is detected at once,
    /// and no session lapses. A quorum (redlock://) has no sessions: only the lease ends the lock there.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) session: Option<Duration>,

    /// No session: after a crash only the lease ends the lock, and an outage is tolerated for as long
    #[arg(long, conflicts_with = "session")]
    pub(crate) no_session: bool,

    /// Time between SIGTERM and SIGKILL for the command when the lock is lost [default: 5s or less]
    ///
    /// If the server does not answer, the command gets SIGTERM that long before the lease or the session ends. So it
    /// must be shorter than the lease, and at most half of the session. The default is the shortest of 5s, a third of
    /// the lease, and, on a server, a sixth of the session.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) kill_grace: Option<Duration>,

    /// Print one line of JSON at the end, on standard error: standard output belongs to the command
    #[arg(long)]
    pub(crate) json: bool,
    /// Maximum time to hold the lock; without it, as long as the command runs
    ///
    /// For a command that may hang and whose lock would be renewed for ever. The command is ended as if the lock were
    /// lost, --kill-grace before this time is over, and the next waiter gets the lock.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct LeadArgs {
    /// Name of the election: up to 512 bytes without control characters
    pub(crate) name: String,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,

    /// Lease of the leadership: how long it can outlive this process [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,

    /// Time without a heartbeat after which the session counts as dead [default: 10s]
    ///
    /// As with `run`.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) session: Option<Duration>,

    /// No session: after a crash only the lease ends the leadership
    #[arg(long, conflicts_with = "session")]
    pub(crate) no_session: bool,

    /// Time between SIGTERM and SIGKILL for the command when the leadership is lost [default: 5s or less]
    ///
    /// As with `run`.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) kill_grace: Option<Duration>,

    /// Label of the leader, shown to other users [default: this host and process]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Print one line of JSON at the end, on standard error: standard output belongs to the command
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args)]
pub(crate) struct WaitArgs {
    /// Name of the lock
    pub(crate) name: String,

    /// Maximum time to wait; without it, wait for ever
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,

    /// Exit status if the lock was not free in time
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
pub(crate) struct ShowArgs {
    /// Name of the lock
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
    /// Name of the lock: up to 512 bytes without control characters
    pub(crate) name: String,

    /// Lease: how long the lock is held, unless it is extended or released
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) lease: Duration,

    /// File for the token: created with mode 0600, or an existing empty file of yours with that mode
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: PathBuf,

    #[command(flatten)]
    pub(crate) wait: WaitLimitArgs,

    /// Exit status if the lock was not acquired
    #[arg(long, value_name = "N", default_value_t = Exit::CONFLICT)]
    pub(crate) conflict_exit_code: u8,

    /// Label of the holder, shown to other users [default: this host and process]
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
    /// Name of the lock, to check that the token belongs to it
    pub(crate) name: Option<String>,

    /// File with the token
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: PathBuf,

    /// New lease, counted from now [default: the lease with which the lock was acquired]
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
    /// Name of the lock, to check that the token belongs to it
    pub(crate) name: Option<String>,

    /// File with the token; it is removed once the hold is over
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
    /// List sessions instead of locks, alive or dead
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
    /// Name of the lock
    pub(crate) name: String,

    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// End only the hold with this fencing token, if several clients share the lock; `show` prints the tokens
    #[arg(long, value_name = "TOKEN")]
    pub(crate) fence: Option<u64>,

    /// Label of the operator, for the audit of the lock [default: user@host]
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
    /// Interval between two checks, varied by up to a quarter [default: 2500ms]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) every: Option<Duration>,

    /// Label of the monitor, for the audit of the locks [default: this host and process]
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
    /// Name of the user
    #[arg(long, value_name = "NAME", default_value = "leasehold")]
    pub(crate) user: String,

    #[command(flatten)]
    pub(crate) store: StoreArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

const EXAMPLES: &str = "\
Examples:
  leasehold run nightly -- ./backup.sh           one at a time on this machine
  leasehold run nightly --try -- ./backup.sh     or not at all: exit status 75
  export LEASEHOLD_STORE=redis://db.example.org  one at a time on all machines
  leasehold show nightly                         the holder, since when, how many wait
  leasehold acquire nightly --lease 1h --token-file /run/nightly.lock
                                                 for a script that cannot wrap a command
  leasehold run digest --once-per 55m -- ./send  once an hour, on one of all machines
  leasehold lead scheduler -- ./scheduler        on one machine, as long as it leads
  leasehold wait nightly && ./after-nightly.sh   when the lock is free
  leasehold ls                                   all held locks
  leasehold free nightly                         take it from its holder, after a question
  leasehold doctor                               check a server for unsafe settings

`leasehold help run` describes signals, exit statuses and the loss of a lock.";

const RUN_ABOUT: &str = "Run a command while holding a lock";

const RUN_LONG: &str = "\
Run a command while holding a lock.

Waits until the lock is free, runs the command, and releases the lock when the command has ended. Waiting is fair: \
first come, first served. On a quorum (redlock://) it is not: there is no queue, and the first client that requests \
the lock after a release gets it. --shared, --exclusive and --permits do not work there.

Several locks are acquired together: all of them, or none. While the command waits for one of them, it either leaves \
the others free or acquires them in the order of their names; so two commands never wait for each other.";

const RUN_AFTER: &str = "\
The command:
  It inherits standard input, output and error, and runs in a process group of its own. Its
  environment contains LEASEHOLD_NAME, the name of the lock, and LEASEHOLD_FENCE, the fencing
  token: a number that grows with every hold of the lock, so that a resource can reject a token
  smaller than one it has seen. With several locks, both contain one line for each, in the order of
  the names.

Reentrant locks (--reentrant, --owner):
  Such a lock belongs to an owner, and is free when all commands that run under it have ended. With
  --reentrant alone the owner is that of LEASEHOLD_OWNER, or a new, unique one if that is not set.
  The command finds its owner in LEASEHOLD_OWNER, so that a nested `leasehold run --reentrant` of
  the same name runs at once, from whichever process it is started. Commands of one owner do NOT
  exclude each other, wherever they run: `env -u LEASEHOLD_OWNER` starts with a new owner. A
  process that knows the owner and may use the store can acquire the lock: the owner is as secret
  as the environment of the command. It is not logged; `show` prints it, and so does the message of
  a command that waited in vain. The hold of an owner from the environment ends with its lease
  alone (--lease), not with the session. All holds of an owner have the same fencing token. Takes
  one NAME. `acquire`, `extend` and `release` do not support such locks.

Once per period (--once-per):
  Of all machines that try, one runs the command. The others end at once with status 0 and no
  output (or with --conflict-exit-code, if given), even if the command has already ended. From the
  start of the command, no other machine runs it before the period is over, even if this machine
  dies; `show` then reports that the lock rests. A command that takes longer is ended, unless
  --at-most is longer. Choose a period a little shorter than the interval of the timer: the next
  timer may fire a moment early. A command that fails has used its turn: to try again, `leasehold
  free` the lock.

Shared locks (--shared, --exclusive, --permits):
  Several commands can hold such a lock at the same time: any number with --shared, or one with
  --exclusive; with --permits 3, three commands, or fewer if they --take more. Waiters are served
  in order of arrival, so none starves. Each command has a fencing token of its own, and loses its
  hold independently. All users of the name must use it in the same way. Takes one NAME. With
  --reentrant or --owner a read lock belongs to its owner: another read of the same owner runs at
  once, even if an --exclusive command waits. A request that would wait for its own owner, such as
  --exclusive under --shared of the same owner, fails at once with status 2. Without an owner, a
  nested `run --shared` of the same name may wait for ever, behind an --exclusive that waits for
  the outer one.

Signals:
  SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT and SIGTSTP are passed on
  to the process group of the command, and the lock is released when the command has ended. Signals
  that were ignored when leasehold started (nohup) stay ignored. If the command wants to read from
  the terminal, it becomes the foreground job. After Ctrl-Z nothing is renewed: if the lease ends
  before `fg`, the lock is lost.

Loss of the lock:
  If the lock cannot be renewed, the command gets SIGTERM early enough to end before another client
  can acquire the lock: --kill-grace before the lease or the session ends. Whatever is left of its
  process group then gets SIGKILL. The same happens --kill-grace before --max-hold is over. If the
  lock was taken away (its key was removed), SIGTERM follows when that is detected, at the next
  renewal. If leasehold itself is killed, the kernel kills the command (Linux). It does not kill
  the children of the command, nor a program that is setuid or has file capabilities: for those use
  a container or a cgroup. While leasehold is stopped (SIGSTOP) it cannot end the command: it does
  so once it continues.

Exit status:
  that of the command; 128 + n if signal n ended it
    2  the arguments, the name, the URL or another setting cannot be used; or the lock can never be
       acquired in this way
   69  the store cannot be reached, or refuses the request
   70  the lock was lost before the command had ended
   75  the lock was not acquired (see --conflict-exit-code); with --once-per that is 0
  126  the command cannot be executed
  127  there is no such command

JSON (--json), the last line on standard error; later versions may add fields:
  name, acquired (true or false), fence, count (the number of holds of the owner then; 1 without
  --reentrant, null if it was not acquired), locks (name and fence of each), portion (read, write
  or permits; null for a lock that is not shared), permits (how many it acquired, or null),
  command_status (null if the command was not started), status (of this program); error: null, or
  an object with kind (taken, lost, unavailable, usage, not_started), reason (of a loss, or null),
  message

Examples:
  leasehold run nightly -- ./backup.sh
  leasehold run till stock -- ./close-the-day.sh
  leasehold run uploads --permits 3 -- ./upload.sh    three at a time
  leasehold run index --shared -- ./query.sh          never during `… index --exclusive -- ./rebuild.sh`
  leasehold run deploy --reentrant -- ./deploy.sh     which may run `leasehold run deploy --reentrant -- …`
  leasehold run deploy --owner \"ci-$RUN_ID\" -- ./step-2.sh       in every step of one run
  leasehold run nightly --wait 10s --conflict-exit-code 0 -- ./backup.sh
  leasehold run digest --once-per 55m --at-most 2h -- ./send-digest       from an hourly timer everywhere
  leasehold run orders/42 --store redis://db.example.org --password-file /run/secrets/redis -- ./ship
  leasehold run report --lease 5m --kill-grace 1m -- sh -c 'make report && publish --fence $LEASEHOLD_FENCE'";

const LEAD_ABOUT: &str = "Run a command while leading, again after each re-election";

const LEAD_LONG: &str = "\
Run a command while leading, again after each re-election.

Campaigns until this process leads, and runs the command for as long as it leads. If the leadership is lost, the \
command is ended before another process can lead, and this process campaigns again. When the command ends by itself, \
or a signal asks this process to end, it resigns and ends as well.";

const LEAD_AFTER: &str = "\
The command has LEASEHOLD_NAME and LEASEHOLD_FENCE in its environment, receives the signals that
leasehold receives, and is ended as with `run`: SIGTERM --kill-grace before the lease or the
session ends, and then SIGKILL. Each leadership has a new, greater fencing token.
Once a campaign has reached the store, a store that does not answer does not end this program: it
retries less and less often, every 5s at least.

An election is a lock of its own kind: `show` prints the leader, and `free` deposes it.

Exit status:
  that of the command, if it ended by itself; 128 + n if signal n ended it, or ended a campaign
    2  the arguments, the name, the URL or another setting cannot be used
   69  the store could not be reached at the start, or refuses the request
   70  the leadership was lost while the command ran, and that was detected only after it had ended
  126  the command cannot be executed
  127  there is no such command

JSON (--json), the last line on standard error; later versions may add fields:
  name, led (how often), fence (the last one, or null), command_status (of the last command, or
  null), status (of this program); error: as with `run`

Examples:
  leasehold lead scheduler -- ./scheduler
  leasehold lead scheduler --session 4s --label \"$HOSTNAME\" -- ./scheduler";

const WAIT_ABOUT: &str = "Wait until a lock is free, without acquiring it";

const WAIT_LONG: &str = "\
Wait until a lock is free, without acquiring it.

Works with a lock of any kind. Polls when the lease of the holder would end, and at first every 100ms, then less and \
less often: every 2s at least. Another client may hold the lock again by the time this command has ended: to work \
under the lock, use `leasehold run`. A lock that rests (--once-per) is not free.";

const WAIT_AFTER: &str = "\
JSON (--json), one line, also if it fails; later versions may add fields:
  name, free (true or false), waited_ms, holder (the last one that was seen, or null),
  remaining_ms; error as with `run`

Exit status:
    0  the lock is free
    2  the name or a setting cannot be used
   69  the store cannot be reached, or refuses the request
   75  the lock was not free within --wait (see --conflict-exit-code)

Examples:
  leasehold wait nightly --wait 1h && ./after-nightly.sh
  leasehold wait deploy --wait 0s || echo 'a deploy is under way'";

const SHOW_ABOUT: &str = "Show the holder of a lock";

const SHOW_LONG: &str = "\
Show the holder of a lock, since when and until when it is held, its session, the number of waiters, and the audit.

Works with a lock of any kind: a plain lock, a reentrant one (`run --reentrant`), an election (`lead`), or one that \
several clients can hold at the same time (`run --shared`, `--permits`; also latches and barriers of programs), with \
all holders.

The exit status is 0 whether or not the lock is held; 69 if the store cannot be reached, and 2 if the name or a \
setting cannot be used.";

const SHOW_AFTER: &str = "\
JSON (--json), one line; later versions may add fields:
  name          the name of the lock
  kind          mutex, reentrant, election, semaphore, rwlock, latch or barrier; of a free lock,
                mutex unless it is known to have been another
  held          true or false
  rests         true if the last holder is done, and the lock stays taken until `until` (`run
                --once-per`)
  holder        the label of the holder, by default `host/pid/program`; null if the lock is free,
                or held by another library, which records no label
  owner         the owner, for which it can be acquired again; null if the lock is free, or a mutex
  count         the number of holds: 0 if it is free, 1 if a mutex is held
  since         when the hold began, by the clock of the store: RFC 3339 in UTC, or null
  until         when the lease ends unless it is renewed, by the clock of this machine; null if the
                lock is free, or held without an expiry
  remaining_ms  the milliseconds until then, or null
  fence         the fencing token of the holder, a number of at most 53 bits, or null
  waiting       how many processes wait
  behind        the session of the holder, or null: session, alive, alive_ms, label, host, pid,
                program, version, started, labels
  audit         the last holds that were ended by others, the latest first: at, how (freed,
                evicted), fence, whose, by
  taken         how many permits are taken, or how many have arrived; null for other kinds
  limit         the number of permits, arrivals or parties, or null
  sharers       all holders, for a kind that can be shared, the oldest first (4096 at most):
                portion, count (of permits or arrivals), holder, owner, since, remaining_ms, fence,
                behind. The holder above is the first

Examples:
  leasehold show nightly
  leasehold show nightly --json | jq -r 'select(.held) | .holder'";

const ACQUIRE_ABOUT: &str = "Acquire a lock and leave it held, for scripts that cannot wrap a command";

const ACQUIRE_LONG: &str = "\
Acquire a lock and leave it held, for scripts that cannot wrap a command.

The lock is not renewed, and no process watches it: it ends with `leasehold release` or with its lease, whatever \
happens to the script. If a command can be wrapped, use `leasehold run`. The lock is a plain one, not a reentrant one. \
Prints the fencing token, unless --json is given: a number that grows with every hold of the lock.";

const ACQUIRE_AFTER: &str = "\
The token file:
  A process that can read it can end the hold. It is created with mode 0600 before the lock is
  requested. An existing file is never used, except an empty one of yours with mode 0600 (from
  mktemp). The file is on the disk when this command ends with 0. If the lock is not acquired, a
  file that this command created is removed. If leasehold is killed (SIGKILL, a crash of the
  machine) after the lock was granted and before the file was written, no process has the token:
  the lock ends with its lease.

JSON (--json), one line, also if it fails; later versions may add fields:
  name, acquired (true or false), fence, lease_ms, until (when the lease ends at the latest, by the
  clock of this machine), token_file; error: null, or an object with kind (taken, lost,
  unavailable, usage, interrupted), reason (of a loss, or null), message

Exit status:
    0  the lock is held, and the token is in its file
    2  the arguments, the name, the file or another setting cannot be used
   69  the store cannot be reached, or refuses the request
   70  the lock was lost before its lease began
   75  the lock was not acquired (see --conflict-exit-code)

Examples:
  leasehold acquire deploy --lease 10m --wait 30s --token-file ~/.deploy.lock
  trap 'leasehold release --token-file ~/.deploy.lock' EXIT";

const EXTEND_ABOUT: &str = "Extend a lock that `acquire` left held";

const EXTEND_LONG: &str = "\
Extend a lock that `acquire` left held, for at least the lease from now on. A hold never becomes shorter.

The store must be the one in which the lock was acquired.";

const EXTEND_AFTER: &str = "\
JSON (--json), one line, also if it fails; later versions may add fields:
  name (null if the file cannot be used), extended (true or false), fence, lease_ms, until; error
  as with acquire

Exit status:
    0  the lock is still held, for the lease from now on
    2  the arguments, the name, the file or another setting cannot be used
   69  the store cannot be reached, or refuses: the lock lasts at least as long as before
   70  the lock was lost

Example:
  leasehold extend deploy --token-file ~/.deploy.lock || exit 1";

const RELEASE_ABOUT: &str = "Release a lock that `acquire` left held";

const RELEASE_LONG: &str = "\
Release a lock that `acquire` left held, and remove the file with its token.

The store must be the one in which the lock was acquired. After status 69 the file still exists: try again.";

const RELEASE_AFTER: &str = "\
JSON (--json), one line, also if it fails; later versions may add fields:
  name (null if the file cannot be used), released (true or false), fence; error as with acquire

Exit status:
    0  the lock was released
    2  the arguments, the name, the file or another setting cannot be used
   69  the store cannot be reached, or refuses: the lock ends with its lease
   70  the lock was lost before: another client may have held it at the same time. The file is
       removed, unless the store knows nothing of the lock although its lease runs: is it the right
       store?

Example:
  leasehold release deploy --token-file ~/.deploy.lock";

const LS_ABOUT: &str = "List the locks that are held, and their holders";

const LS_LONG: &str = "\
List the locks that are held, and their holders.

Lists what sessions report: the locks that they have held for longer than about a second. The current state of each \
lock is read before it is printed. Not listed are locks that were just acquired, detached ones, and those of clients \
without a session or of other libraries: look these up by name, with `leasehold show`. No scan goes through the \
server's keys.";

const LS_AFTER: &str = "\
JSON (--json), one line a lock; later versions may add fields:
  name, kind, holder, owner, count, since, remaining_ms, fence, waiting, behind, taken, limit,
  sharers: as with `show`

JSON (--sessions --json), one line a session:
  session, alive, alive_ms, label, host, pid, program, version, started, labels; locks: an array of
  names

Exit status:
    0  the list is complete
    2  the URL or another setting cannot be used
   69  the store cannot be reached, or refuses the request

Examples:
  leasehold ls
  leasehold ls --json | jq -r 'select(.behind.host == \"web-3\") | .name'
  leasehold ls --sessions";

const FREE_ABOUT: &str = "Take a lock from its holder by force";

const FREE_LONG: &str = "\
Take a lock from its holder by force.

Shows the holder, and asks for confirmation. The holder is notified at once, and the next waiter gets the lock. Until \
the holder has received that notification, both may work: stop the holder first, if you can. A client that acquired \
the lock after it was shown keeps it. All holds of a reentrant lock's owner end together. For a shared lock, all \
holders that were shown lose it, or with --fence one of them. The audit of the lock records what was done: see \
`leasehold show`.";

const FREE_AFTER: &str = "\
JSON (--json), one line, once the lock has been read; later versions may add fields:
  name, kind, freed (true or false), held, holder, owner, count, fence, waiting, behind, taken,
  limit, sharers: as they were before; freed_fences: the tokens of the holds that this command has
  ended

Exit status:
    0  the lock was taken from its holder, or was free
    1  you answered no
    2  the name or a setting cannot be used, or --yes is not given and there is no terminal to ask
       at
   69  the store cannot be reached, or did not report whether it was done: check again
   75  the lock was no longer held as it was shown: no hold was ended

Examples:
  leasehold free nightly
  leasehold free nightly --yes --label 'ticket 4711'
  leasehold free index --fence 1772368200250117      one of several readers";

const MONITOR_ABOUT: &str = "Free the locks of dead sessions, as a daemon";

const MONITOR_LONG: &str = "\
Free the locks of dead sessions, as a daemon.

A waiter detects by itself that the holder has died. The monitor also frees locks that have no waiter. The step that \
takes a lock checks that its session is dead. Any number of monitors may run.";

const MONITOR_AFTER: &str = "\
Runs until SIGTERM, SIGINT, SIGHUP or SIGQUIT, and then ends with 0. Prints one line for each lock
that was freed, and when trouble with the store begins and ends. During trouble it checks less and
less often, every 5s at least.

JSON (--json), lines; later versions may add fields and events:
  event (started, evicted, trouble, recovered, ended), at
  evicted:  name, fence (null for a queue entry), session, whose
  trouble:  message

Exit status:
    0  a signal ended it
    2  the URL or another setting cannot be used
   69  the store could not be reached at the start

A systemd unit is in contrib/leasehold-monitor.service.";

const DOCTOR_ABOUT: &str = "Check a server for settings that could lose locks, and suggest remedies";

const DOCTOR_LONG: &str = "\
Check a server for settings that could lose locks, and suggest remedies.

Reads version, role, memory, persistence and clock of the server with INFO, TIME and ACL WHOAMI, and writes no key. \
What the user may not read is reported as unknown. Missing permissions are not checked: they show in use. A server is \
checked whatever its findings are, even if the URL contains `?strict=1`.";

const DOCTOR_AFTER: &str = "\
Findings:
  A warning means that locks can be lost although all seems well. The library logs it when it
  connects; this program shows that with -v. With `?strict=1` in the URL the server is refused. A
  notice may be intended, and does not change the exit status.
    eviction        an eviction policy that can remove locks; a notice while there is no
                    `maxmemory`
    replica         a replica, which has the data of a primary, and refuses writes or loses them
    lua_holes       a version whose Lua has known vulnerabilities; distributions may have fixed
                    them
    unreachable     one of several servers does not answer, or refuses the login
    memory_full     no client can acquire a lock (notice)
    not_persistent  a restart loses locks (notice)
    clock_apart     its clock is certainly off by more than a second (notice)
    not_told        the user may not run INFO (notice)

JSON (--json), one line a server; later versions may add fields and words:
  store           its address; null for a file, which has nothing to report
  product, version, role (primary or replica), replicas, append_only, snapshots (since its start),
  eviction_policy, maxmemory (0: no limit), used_memory, clock_ahead_us (less than 0: behind),
  clock_uncertainty_us, round_trip_us, user: each null if it is unknown
  findings         objects: hazard (a word of those above), severity (warning or notice), message,
                  remedy

Exit status:
    0  no warning
    2  the URL or another setting cannot be used
   69  the store cannot be reached, or refuses the request
   78  there is a warning

Examples:
  leasehold doctor --store redis://db.example.org
  leasehold doctor --json | jq -r '.hazards[].remedy'";

const ACL_ABOUT: &str = "Print the minimal permissions for a user of the server";

const ACL_LONG: &str = "\
Print the minimal permissions for a user of the server, as the command that creates the user.

For the locks of one prefix, or for all, the user can do whatever this program and the library do, and nothing else. \
The version of the server is read first, since a server refuses a list with a command that it does not know. Nothing \
is changed.";

const ACL_AFTER: &str = "\
Without a server (--store or LEASEHOLD_STORE) the list is for the newest versions. It applies to
the database of the URL.

Replace the word that begins with `#` by the SHA-256 of a password, in hexadecimal, preceded by
`#`, or by `>` and the password. The server refuses the line as it is printed. An existing user of
that name loses all other permissions. Type the line into `redis-cli`: a shell would interpret the
patterns and redirections in it, and show it in the process list.

Exit status:
    0  it is printed
    2  the prefix, the name or another setting cannot be used
   69  the server cannot be reached, or does not report its version

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
