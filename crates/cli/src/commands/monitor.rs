//! `leasehold monitor`: a daemon that frees the locks of dead sessions, and reports each.

use crate::daemon::health_check;
use crate::daemon::listener::{self, Listener};
use crate::daemon::page::Pages;
use crate::daemon::service_manager::ServiceManager;
use crate::duration;
use crate::fleet::{self, FleetWatch};
use crate::job::signals::Signals;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::{self, LogArgs};
use crate::output::printable::printable_lines;
use crate::output::report::{json_line, print_or_warn};
use crate::output::timestamp::rfc3339;
use crate::store::args::StoreArgs;
use crate::store::client::ClientConfig;
use clap::Args;
use leasehold::inspect::{Eviction, MonitorReport, Skipped};
use leasehold::store::FaultKind;
use leasehold::{FencingToken, Label};
use serde::Serialize;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Free the locks of dead sessions, as a daemon.
///
/// A waiter detects by itself that the holder has died. The monitor also frees locks that have no waiter. The step that
/// takes a lock checks that its session is dead. Any number of monitors may run.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct MonitorArgs {
    /// Interval between two checks, varied by up to a quarter [default: 2500ms]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    every: Option<Duration>,

    /// Serve /metrics and /healthz over HTTP, without a login; a port alone is one of 127.0.0.1
    ///
    /// The metrics are those of all locks of the store, for Prometheus, grouped by classes of names. They are read at an even
    /// pace: the server does no more work for more scrapes. /healthz is 200 while rounds go on and the store answers them, and
    /// 503 with the reason otherwise.
    #[arg(long, value_name = "ADDR", value_parser = listener::parse_address)]
    listen: Option<SocketAddr>,

    /// Ask the /healthz of a running monitor instead, and end: for a container's health check
    ///
    /// Opens no store.
    #[arg(long, value_name = "ADDR", value_parser = listener::parse_address)]
    #[arg(conflicts_with_all = ["every", "listen", "label", "json", "store", "prefix", "password_file", "password_command"])]
    check: Option<SocketAddr>,

    /// Label of the monitor, for the audit of the locks [default: this host and process]
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    /// Print lines of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// The interval between two rounds, if none is given: that of the library for sessions of the default length.
const DEFAULT_EVERY: Duration = Duration::from_millis(2500);

/// Runs until a signal ends it, which is no failure.
pub(crate) async fn monitor(args: &MonitorArgs) -> Result<Exit, Failure> {
    if let Some(address) = args.check {
        return health_check::run(address).await.map(|()| Exit::SUCCESS).map_err(Failure::unavailable);
    }
    let every = args.every.unwrap_or(DEFAULT_EVERY);
    let mut manager = ServiceManager::from_environment();
    manager.check(every)?;
    let config = ClientConfig::from_args(&args.store)?.without_session().label(args.label.as_deref());
    let mut signals = Signals::catch()?;
    // Before the store is asked for anything: an address in use is found at once.
    let listener = match args.listen {
        Some(address) => Some(Listener::bind(address).await?),
        None => None,
    };
    let Ok(client) = signals.interruptible(config.connect()).await else { return Ok(Exit::SUCCESS) };
    let client = client?;
    if let Ok(Err(error)) = signals.interruptible(client.sessions()).await
        && matches!(error.fault().kind, FaultKind::Unusable(_))
    {
        // A quorum, for example. It never will.
        return Err(Failure::usage(error));
    }
    let server = match listener {
        Some(listener) => match signals.interruptible(fleet::watch(client.clone())).await {
            Ok(fleet) => Some((listener, fleet?)),
            Err(_) => return Ok(Exit::SUCCESS),
        },
        None => None,
    };
    let mut printer = EventPrinter { json: args.json, in_trouble: false, skipped: Skipped::default() };
    printer.print(&Event::Started { at: now(), version: env!("CARGO_PKG_VERSION") });
    let server = server.map(|(listener, fleet)| {
        printer.print(&Event::Listening { at: now(), address: listener.address().to_string() });
        Server::start(listener, every, fleet)
    });
    let monitor = client.monitor().interval(every);
    let mut freed = 0;
    let rounds = monitor.run(|round| {
        printer.report(round);
        if let Some(server) = &server {
            server.pages.add(round);
        }
        freed += round.evicted.len();
        manager.round(round.fault.is_none(), &status(round, freed));
    });
    let Err(_) = signals.interruptible(rounds).await;
    manager.stopping();
    if let Some(server) = server {
        server.end().await;
    }
    printer.print(&Event::Ended { at: now() });
    Ok(Exit::SUCCESS)
}

/// What `systemctl status` shows after a round.
fn status(round: &MonitorReport, freed: usize) -> String {
    match &round.fault {
        Some(fault) => format!("trouble: {fault}"),
        None => format!(
            "sessions: {} alive, {} dead; locks and queue entries freed: {freed}",
            round.alive, round.dead
        ),
    }
}

/// Serves the pages.
struct Server {
    pages: Arc<Pages>,
    end: CancellationToken,
    task: JoinHandle<()>,
    /// The reading of the fleet, which ends with this.
    _fleet: FleetWatch,
}

impl Server {
    fn start(listener: Listener, every: Duration, fleet: FleetWatch) -> Self {
        let pages = Arc::new(Pages::new(every, fleet.subscribe()));
        let end = CancellationToken::new();
        let served = Arc::clone(&pages);
        let task = tokio::spawn(listener.serve(move |path| served.page(path), end.clone()));
        Self { pages, end, task, _fleet: fleet }
    }

    /// Ends with the answers that are under way, within a second.
    async fn end(self) {
        self.end.cancel();
        // It does not panic, and would end with the program if it did.
        let _ = self.task.await;
    }
}

/// The events, one line each. The fields of their JSON are stable.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Started { at: String, version: &'a str },
    Listening { at: String, address: String },
    Evicted { at: String, name: &'a str, fence: Option<u64>, session: String, whose: Option<&'a str> },
    Trouble { at: String, message: String },
    Recovered { at: String },
    Ended { at: String },
}

impl<'a> Event<'a> {
    fn evicted(eviction: &'a Eviction) -> Self {
        Self::Evicted {
            at: now(),
            name: eviction.name.as_str(),
            fence: eviction.fence.map(FencingToken::as_u64),
            session: eviction.session.to_string(),
            whose: eviction.label.as_ref().map(Label::as_str),
        }
    }

    fn text(&self) -> String {
        printable_lines(&self.raw_text())
    }

    fn raw_text(&self) -> String {
        match self {
            Self::Started { at, version } => format!("{at} started leasehold {version}\n"),
            Self::Listening { at, address } => format!("{at} listening on http://{address}\n"),
            Self::Evicted { at, name, fence, session, whose } => {
                let whose = whose.unwrap_or("unknown");
                match fence {
                    Some(fence) => {
                        format!("{at} evicted `{name}` (fence {fence}) from {whose}, session {session}\n")
                    }
                    None => format!("{at} removed {whose} from the queue of `{name}`, session {session}\n"),
                }
            }
            Self::Trouble { at, message } => format!("{at} trouble: {message}\n"),
            Self::Recovered { at } => format!("{at} recovered\n"),
            Self::Ended { at } => format!("{at} ended\n"),
        }
    }
}

/// Reports the results of rounds. Trouble is reported once, and its end once.
struct EventPrinter {
    json: bool,
    in_trouble: bool,
    /// What was left out of the last round.
    skipped: Skipped,
}

impl EventPrinter {
    fn report(&mut self, round: &MonitorReport) {
        for eviction in &round.evicted {
            self.print(&Event::evicted(eviction));
        }
        match &round.fault {
            Some(fault) if !self.in_trouble => {
                self.print(&Event::Trouble { at: now(), message: fault.to_string() });
            }
            None if self.in_trouble => self.print(&Event::Recovered { at: now() }),
            _ => {}
        }
        self.in_trouble = round.fault.is_some();
        if round.fault.is_none() && round.skipped != self.skipped {
            self.skipped.clone_from(&round.skipped);
            if !self.skipped.is_empty() {
                log::warning(&format!("the check is incomplete: {}", self.skipped));
            }
        }
    }

    fn print(&self, event: &Event<'_>) {
        let text = if self.json { json_line(event) } else { event.text() };
        // The locks of dead sessions are freed even if no reader is left for the output.
        print_or_warn(&text);
    }
}

fn now() -> String {
    rfc3339(SystemTime::now())
}

const AFTER_HELP: &str = "\
Runs until SIGTERM, SIGINT, SIGHUP or SIGQUIT, and then ends with 0. Prints one
line for each lock that was freed, and when trouble with the store begins and
ends. During trouble it checks less and less often, every 5s at least.

JSON (--json), lines; later versions may add fields and events:
  event (started, listening, evicted, trouble, recovered, ended), at
  started:    version
  listening:  address, with the port that was found if 0 is given
  evicted:    name, fence (null for a queue entry), session, whose
  trouble:    message

Under systemd (Type=notify) it reports that it is ready after the first round,
what it has found, and after each round that it is alive.

Exit status:
    0  a signal ended it, or (--check) the other monitor is healthy
    2  the URL or another setting cannot be used, or the store keeps no sessions
       (a quorum)
   69  the store could not be reached at the start, or the address is in use;
       (--check) the other monitor does not answer, or is not healthy

A systemd unit is in contrib/systemd/leasehold-monitor.service.";
