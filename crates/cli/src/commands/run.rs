//! `leasehold run`: acquires the lock, runs the command under it, and releases the lock.
//!
//! However the program ends, it releases the lock explicitly and shuts the client down, in a bounded time, so that no
//! queue entry is left either.

use crate::duration;
use crate::job;
use crate::job::signals::Signals;
use crate::job::times::{DEFAULT_LEASE, JobTimes};
use crate::lock::acquire_options::AcquireOptions;
use crate::lock::guard::AnyGuard;
use crate::lock::once_per::OncePerArgs;
use crate::lock::owner::OwnerArgs;
use crate::lock::request::LockRequest;
use crate::lock::shared::SharedArgs;
use crate::lock::shared_guard::SharedGuard;
use crate::lock::wait_limit::{WaitLimit, WaitLimitArgs};
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::output::printable::quoted;
use crate::output::report::{ErrorReport, json_line};
use crate::store::args::StoreArgs;
use crate::store::client::{ClientConfig, shut_down};
use clap::Args;
use leasehold::Client;
use serde::Serialize;
use std::ffi::OsString;
use std::time::Duration;

/// Run a command while holding a lock.
///
/// Waits until the lock is free, runs the command, and releases the lock when the command has ended. Waiting is fair:
/// first come, first served. On a quorum (redlock://) it is not: there is no queue, and the first client that requests
/// the lock after a release gets it. --shared, --exclusive and --permits do not work there.
///
/// Several locks are acquired together: all of them, or none. While the command waits for one of them, it either leaves
/// the others free or acquires them in the order of their names; so two commands never wait for each other.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct RunArgs {
    /// Name of the lock: up to 512 bytes without control characters. Several names are acquired together, all or none
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,

    #[command(flatten)]
    owner: OwnerArgs,

    #[command(flatten)]
    shared: SharedArgs,

    /// Lease of the lock: how long it can outlive this process [default: 30s]
    ///
    /// The lock is held for as long as the command runs, and is renewed every third of the lease. If this machine dies,
    /// the lock becomes free when the lease ends. On a server it becomes free when the session lapses, if that is
    /// earlier. On a quorum (redlock://) there are no sessions, so only the lease counts.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease: Option<Duration>,

    #[command(flatten)]
    wait: WaitLimitArgs,

    #[command(flatten)]
    once_per: OncePerArgs,

    /// Exit status if the lock was not acquired [default: 75; with --once-per, 0]
    #[arg(long, value_name = "N")]
    conflict_exit_code: Option<u8>,

    /// Time without a heartbeat after which the session counts as dead [default: 10s]
    ///
    /// If this machine dies, or is cut off from the server for that long, the next waiter gets the lock, however long
    /// the lease is. An outage of up to half of it is tolerated. If --kill-grace is longer than its default and this is
    /// not given, the session is six times --kill-grace. In a file (sqlite:) the end of a process is detected at once,
    /// and no session lapses. A quorum (redlock://) has no sessions: only the lease ends the lock there.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    session: Option<Duration>,

    /// No session: after a crash only the lease ends the lock, and an outage is tolerated for as long
    #[arg(long, conflicts_with = "session")]
    no_session: bool,

    /// Time between SIGTERM and SIGKILL for the command when the lock is lost [default: 5s or less]
    ///
    /// If the server does not answer, the command gets SIGTERM that long before the lease or the session ends. So it
    /// must be shorter than the lease, and at most half of the session. The default is the shortest of 5s, a third of
    /// the lease, and, on a server, a sixth of the session.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    kill_grace: Option<Duration>,

    /// Print one line of JSON at the end, on standard error: standard output belongs to the command
    #[arg(long)]
    json: bool,

    /// Maximum time to hold the lock; without it, as long as the command runs
    ///
    /// For a command that may hang and whose lock would be renewed for ever. The command is ended as if the lock were
    /// lost, --kill-grace before this time is over, and the next waiter gets the lock.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    max_hold: Option<Duration>,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

impl RunArgs {
    /// The exit status if the lock was not acquired.
    fn conflict(&self) -> Exit {
        self.conflict_exit_code.map_or(Exit::CONFLICT, Exit::new)
    }

    /// Whether a lock that another client holds is no failure: another instance has started the period.
    fn ignores_conflict(&self) -> bool {
        self.once_per.once_per.is_some() && self.conflict_exit_code.is_none()
    }

    /// How to acquire the lock, with what is left of the time to wait.
    fn acquire_options(&self, wait: WaitLimit) -> AcquireOptions {
        AcquireOptions { wait, max_hold: self.max_hold, conflict: self.conflict() }
    }

    fn lease(&self) -> Duration {
        let lease = self.once_per.lease().or(self.lease).unwrap_or(DEFAULT_LEASE);
        // A hold never outlives this process by more than its cap.
        self.max_hold.map_or(lease, |cap| cap.min(lease))
    }
}

/// Runs the command under the lock.
pub(crate) async fn run(args: &RunArgs) -> Result<Exit, Failure> {
    let mut progress = Progress::default();
    let result = try_to_run(args, &mut progress).await;
    if !args.json {
        return result;
    }
    let status = match &result {
        Ok(exit) => *exit,
        // Before the report, which is the last line.
        Err(failure) => log::failure(failure),
    };
    let name = args.names.first().map(String::as_str).unwrap_or_default();
    // Standard output belongs to the command.
    log::line(&json_line(&Report {
        name,
        acquired: !progress.locks.is_empty(),
        fence: progress.locks.iter().find(|lock| lock.name == name).map(|lock| lock.fence),
        count: progress.count,
        locks: &progress.locks,
        mode: progress.mode,
        permits: progress.permits,
        command_status: progress.command.map(Exit::status),
        status: status.status(),
        error: ErrorReport::from_result(&result),
    }));
    Ok(status)
}

/// The progress, for the report.
#[derive(Debug, Default)]
struct Progress {
    /// What was acquired, in the order of the names.
    locks: Vec<AcquiredLock>,
    /// The number of holds of the owner at that time.
    count: Option<u64>,
    /// The mode of a shared lock.
    mode: Option<&'static str>,
    permits: Option<u32>,
    /// The exit status of the command, if it ran.
    command: Option<Exit>,
}

impl Progress {
    fn set_acquired(&mut self, guard: &AnyGuard) {
        let tokens = guard.tokens().into_iter();
        self.locks = tokens
            .map(|(name, fence)| AcquiredLock { name: name.to_string(), fence: fence.as_u64() })
            .collect();
        self.count = Some(guard.count());
        self.mode = guard.shared().map(SharedGuard::mode);
        self.permits = guard.shared().and_then(SharedGuard::permits);
    }
}

/// A lock that was acquired. The fields of its JSON are stable.
#[derive(Debug, Serialize)]
struct AcquiredLock {
    name: String,
    fence: u64,
}

/// The report for programs, printed at the end. Its fields are stable.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    acquired: bool,
    fence: Option<u64>,
    count: Option<u64>,
    locks: &'a [AcquiredLock],
    #[serde(rename = "portion")]
    mode: Option<&'static str>,
    permits: Option<u32>,
    command_status: Option<u8>,
    status: u8,
    error: Option<ErrorReport>,
}

async fn try_to_run(args: &RunArgs, progress: &mut Progress) -> Result<Exit, Failure> {
    let names = args.names.iter().map(|name| super::lock_name(name)).collect::<Result<Vec<_>, _>>()?;
    let request = LockRequest::from_args(names, &args.owner, &args.shared, &args.once_per)?;
    // This may read a password from a terminal; Ctrl-C interrupts that only while signals are not caught.
    let config = ClientConfig::from_args(&args.store)?;
    let ends_with_session = !args.no_session && request.can_use_session() && config.has_heartbeats();
    let times = JobTimes::new(args.lease(), ends_with_session, args.session, args.kill_grace)?;
    let config = config.watchdog_lease(times.lease);
    let config = if args.no_session || matches!(request, LockRequest::OncePer { .. }) {
        config.without_session()
    } else {
        config.session(times.session.or(args.session))
    };
    let mut signals = Signals::catch()?;
    let (client, wait) = match signals.interruptible(config.connect_within(args.wait.limit())).await {
        Ok(connected) => connected?,
        Err(signal) => return Ok(Exit::from_signal(signal)),
    };
    let outcome = run_under_lock(&client, &request, &times, (args, wait), &mut signals, progress).await;
    shut_down(&client).await;
    outcome
}

async fn run_under_lock(
    client: &Client,
    request: &LockRequest,
    times: &JobTimes,
    (args, wait): (&RunArgs, WaitLimit),
    signals: &mut Signals,
    progress: &mut Progress,
) -> Result<Exit, Failure> {
    let options = args.acquire_options(wait);
    let guard = match signals.interruptible(request.acquire(client, &options)).await {
        Ok(Ok(guard)) => guard,
        // One of all instances runs the command, so the others have done their part.
        Ok(Err(failure)) if failure.is_taken() && args.ignores_conflict() => {
            tracing::info!(reason = %failure.message(), "already started in this period");
            return Ok(Exit::SUCCESS);
        }
        Ok(Err(failure)) => return Err(failure.failed_to_all("acquire", &quoted(request.names()))),
        Err(signal) => return Ok(Exit::from_signal(signal)),
    };
    progress.set_acquired(&guard);
    tracing::info!(locks = %guard.quoted_names(), "acquired");
    let ended = job::run(client, &guard, times, &args.command, signals).await;
    progress.command = ended.as_ref().ok().map(|ended| ended.exit);
    job::release::release(client, guard, ended).await
}

const AFTER_HELP: &str = "\
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
  a command that could not acquire the lock. The hold of an owner from the environment ends with
  its lease alone (--lease), not with the session. All holds of an owner have the same fencing
  token. Takes one NAME. `acquire`, `extend` and `release` do not support such locks.

Once per period (--once-per):
  Of all machines that try, one runs the command. The others end at once with status 0 and no
  output (or with --conflict-exit-code, if given), even if the command has already ended. From the
  start of the command, no other machine runs it before the period is over, even if this machine
  dies; `show` then reports the cooldown. A command that takes longer is ended, unless
  --at-most is longer. Choose a period a little shorter than the interval of the timer: the next
  timer may fire a moment early. The period also counts if the command fails: to try again,
  `leasehold free` the lock.

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
  SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT and SIGTSTP are forwarded
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
