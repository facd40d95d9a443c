//! `leasehold lead`: runs a command while this process leads, and again after each re-election.
//!
//! 1. The command starts only under a leadership, and is gone before that can have ended, as under any lock.
//! 2. A request to end is never mistaken for a loss: a signal that arrives while the command is being ended also ends
//!    this process.
//! 3. An outage of the store does not end this process, not even at the start: it retries after growing pauses.

use crate::backoff::{Backoff, half_jittered};
use crate::duration;
use crate::job::signals::Signals;
use crate::job::times::{DEFAULT_LEASE, JobTimes};
use crate::job::{self, CommandEnd};
use crate::lock::guard::AnyGuard;
use crate::lock::lease::GivenLease;
use crate::lock::other_kind;
use crate::lock::waiting;
use crate::output::error_map::acquire_failure;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::output::report::{ErrorReport, json_line};
use crate::store::CALL_TIMEOUT;
use crate::store::args::StoreArgs;
use crate::store::client::{ClientConfig, shut_down};
use clap::Args;
use leasehold::core::Kind;
use leasehold::error::AcquireError;
use leasehold::{Client, Election, Leadership};
use rustix::process::Signal;
use serde::Serialize;
use std::ffi::OsString;
use std::slice;
use std::time::Duration;
use tokio::time::sleep;

/// Run a command while leading, again after each re-election.
///
/// Campaigns until this process leads, and runs the command for as long as it leads. If the leadership is lost, the
/// command is ended before another process can lead, and this process campaigns again. When the command ends by itself,
/// or a signal asks this process to end, it resigns and ends as well.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct LeadArgs {
    /// Name of the election: up to 512 bytes without control characters
    name: String,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,

    /// Lease of the leadership: how long it can outlive this process [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lease: Option<Duration>,

    /// Time without a heartbeat after which the session counts as dead [default: 10s]
    ///
    /// If this machine dies, or is cut off from the server for that long, another process leads, however long the lease
    /// is. An outage of up to half of it is tolerated. If --kill-grace is longer than its default and this is not given,
    /// the session is six times --kill-grace. In a file (sqlite:) the end of a process is detected at once, and no
    /// session lapses.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    session: Option<Duration>,

    /// No session: after a crash only the lease ends the leadership
    #[arg(long, conflicts_with = "session")]
    no_session: bool,

    /// After a loss of the leadership, let no other process lead for that much longer
    ///
    /// For resources that cannot compare fencing tokens: what the command has still under way has that long to end. The
    /// lease alone ends the leadership then, and no session: after a crash, the next process leads when the lease and this
    /// are over. When the command ends by itself, or this process resigns, another one leads at once.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    lock_delay: Option<Duration>,

    /// Let other candidates go first for that long, as on a host that leads only if no better one campaigns
    ///
    /// Until then this process asks once a second whether there is neither a leader nor another candidate. After that it
    /// has a place in the queue like all others.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    low_priority: Option<Duration>,

    /// Time between SIGTERM and SIGKILL for the command when the leadership is lost [default: 5s or less]
    ///
    /// If the server does not answer, the command gets SIGTERM that long before the lease or the session ends. So it
    /// must be shorter than the lease, and at most half of the session. The default is the shortest of 5s, a third of
    /// the lease, and, on a server, a sixth of the session.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    kill_grace: Option<Duration>,

    /// Label of the leader, shown to other users [default: this host and process]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// Print one line of JSON at the end, on standard error: standard output belongs to the command
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// The pauses between campaigns that the store did not accept.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// Runs the command while this process leads.
pub(crate) async fn lead(args: &LeadArgs) -> Result<Exit, Failure> {
    let mut progress = Progress::default();
    let result = try_to_lead(args, &mut progress).await;
    if !args.json {
        return result;
    }
    let status = match &result {
        Ok(exit) => *exit,
        // Before the report, which is the last line.
        Err(failure) => log::failure(failure),
    };
    // Standard output belongs to the command.
    log::line(&json_line(&Report {
        name: &args.name,
        led: progress.led,
        fence: progress.fence,
        command_status: progress.command.map(Exit::status),
        status: status.status(),
        error: ErrorReport::from_result(&result),
    }));
    Ok(status)
}

/// The progress, for the report.
#[derive(Debug, Default)]
struct Progress {
    /// The number of leaderships.
    led: u64,
    /// The last fencing token.
    fence: Option<u64>,
    /// How the last command ended.
    command: Option<Exit>,
}

/// The report for programs, printed at the end. Its fields are stable.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    led: u64,
    fence: Option<u64>,
    command_status: Option<u8>,
    status: u8,
    error: Option<ErrorReport>,
}

async fn try_to_lead(args: &LeadArgs, progress: &mut Progress) -> Result<Exit, Failure> {
    let name = super::lock_name(&args.name)?;
    let config = ClientConfig::from_args(&args.store)?;
    config.check_session(args.session)?;
    let ends_with_session = !args.no_session && args.lock_delay.is_none() && config.has_heartbeats();
    let lease = GivenLease::new("--lease", args.lease.unwrap_or(DEFAULT_LEASE));
    let times = JobTimes::new(lease, ends_with_session, args.session, args.kill_grace)?;
    let config = config.watchdog_lease(times.lease).label(args.label.as_deref());
    // A label names the leader, not its command; an empty one hides both.
    let config = config.command(args.command.first(), args.label.as_deref().filter(|label| label.is_empty()));
    let config = if args.no_session {
        config.without_session()
    } else {
        config.session(times.session.or(args.session))
    };
    let mut findings = config.finding_reporter();
    let mut signals = Signals::catch()?;
    let client = match signals.interruptible(config.connect_eventually()).await {
        Ok(client) => client?,
        Err(signal) => return Ok(Exit::from_signal(signal)),
    };
    findings.report(&client).await;
    let election = client.election(name.clone());
    let outcome = match election.map_err(|error| Failure::usage(error).failed_to("use", &name)) {
        Ok(election) => {
            let election = args.lock_delay.into_iter().fold(election, Election::lock_delay);
            let election = args.low_priority.into_iter().fold(election, Election::low_priority_for);
            lead_until_end(&client, &election, &times, args, &mut signals, progress).await
        }
        Err(failure) => Err(failure),
    };
    findings.report(&client).await;
    shut_down(&client, CALL_TIMEOUT).await;
    outcome
}

/// Campaigns and leads until the command ends by itself, or a signal asks this process to end.
async fn lead_until_end(
    client: &Client,
    election: &Election,
    times: &JobTimes,
    args: &LeadArgs,
    signals: &mut Signals,
    progress: &mut Progress,
) -> Result<Exit, Failure> {
    let mut backoff = BACKOFF;
    loop {
        let elected = match signals
            .interruptible(waiting::shown(
                client,
                slice::from_ref(election.name()),
                campaign(client, election),
            ))
            .await
        {
            Ok(elected) => elected,
            Err(signal) => return Ok(Exit::from_signal(signal)),
        };
        let leadership = elected.map_err(|failure| failure.failed_to("lead", election.name()))?;
        progress.led += 1;
        progress.fence = Some(leadership.fencing_token().as_u64());
        tracing::info!(election = %election.name(), fence = progress.fence, "leading");
        let guard = AnyGuard::Leadership(leadership);
        let ended = job::run(client, &guard, times, &args.command, signals).await;
        progress.command = ended.as_ref().ok().map(|ended| ended.exit).or(progress.command);
        let term = Term::new(&ended);
        match (job::release::release(client, guard, args.lock_delay, ended).await, term) {
            // Another process may lead now.
            (Err(failure), Term::Lost { was_started, requested: None }) => {
                log::warning(&format!("{}; campaigning again", failure.message()));
                if was_started {
                    backoff.reset();
                    continue;
                }
                // A process that cannot start its command would otherwise be elected again and again.
                let pause = sleep(half_jittered(client.now(), backoff.next_pause()));
                if let Err(signal) = signals.interruptible(pause).await {
                    return Ok(Exit::from_signal(signal));
                }
            }
            (Err(_), Term::Lost { requested: Some(signal), .. }) => return Ok(Exit::from_signal(signal)),
            (outcome, _) => return outcome,
        }
    }
}

/// How a leadership ended.
enum Term {
    /// The command ended by itself, or cannot be started.
    Finished,
    /// The leadership was lost before the command had ended, or before it could be started.
    Lost {
        was_started: bool,
        /// The signal that meanwhile asked this process to end (2).
        requested: Option<Signal>,
    },
}

impl Term {
    fn new(ended: &Result<CommandEnd, Failure>) -> Self {
        match ended {
            Ok(CommandEnd { lock_ended: true, requested, .. }) => {
                Self::Lost { was_started: true, requested: *requested }
            }
            Err(failure) if failure.exit == Exit::LOST || failure.exit == Exit::UNAVAILABLE => {
                Self::Lost { was_started: false, requested: None }
            }
            Ok(_) | Err(_) => Self::Finished,
        }
    }
}

/// Campaigns until this process leads, however long the store is unavailable (3).
async fn campaign(client: &Client, election: &Election) -> Result<Leadership, Failure> {
    let mut backoff = BACKOFF;
    loop {
        let error = match election.campaign().await {
            Ok(leadership) => return Ok(leadership),
            Err(error) => error,
        };
        if !can_retry(&error) {
            let failure = acquire_failure(error, Exit::UNAVAILABLE);
            let names = slice::from_ref(election.name());
            return Err(other_kind::explain(failure, client, names, Kind::Election).await);
        }
        log::warning(&format!("failed to lead `{}`: {error}; campaigning again", election.name()));
        sleep(half_jittered(client.now(), backoff.next_pause())).await;
    }
}

fn can_retry(error: &AcquireError) -> bool {
    match error {
        AcquireError::Store(fault) | AcquireError::Unknown(fault) | AcquireError::Unconfirmed(fault) => {
            fault.is_transient()
        }
        AcquireError::LeaseTooShort { .. } | AcquireError::Closed => false,
        _ => true,
    }
}

const AFTER_HELP: &str = "\
The command has LEASEHOLD_NAME and LEASEHOLD_FENCE in its environment, receives
the signals that leasehold receives, and is ended as with `run`: SIGTERM
--kill-grace before the lease or the session ends, and then SIGKILL. Each
leadership has a new, greater fencing token. A store that cannot be reached,
also by a wrong address, does not end this program: it warns, and retries less
and less often, every 5s at least.

An election is a lock of its own kind: `show` prints the leader, and `free` ends
its leadership.

Exit status:
  that of the command, if it ended by itself; 128 + n if signal n ended it, or
  ended a campaign
    2  the arguments, the name, the URL or another setting cannot be used
   65  the name is in use for another kind of lock
   69  the store refuses the request
   70  the leadership was lost while the command ran, and that was detected only
       after it had ended
  126  the command cannot be executed
  127  there is no such command

JSON (--json), the last line on standard error; later versions may add fields:
  name, led (how many times), fence (the last one, or null), command_status (of
  the last command, or null), status (of this program); error: null, or an
  object with kind (taken, lost, unavailable, usage, other_kind, not_started),
  reason (of a loss, or null), message

Examples:
  leasehold lead scheduler -- ./scheduler
  leasehold lead scheduler --session 4s --label \"$HOSTNAME\" -- ./scheduler";
