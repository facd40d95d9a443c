//! `leasehold monitor`: a daemon that frees the locks of dead sessions, and reports each.

use crate::args::MonitorArgs;
use crate::job::signals::Signals;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::printable::printable;
use crate::output::report::{json_line, print_or_warn};
use crate::output::timestamp::rfc3339;
use crate::store::client::ClientConfig;
use leasehold::{Eviction, FencingToken, Label, MonitorReport};
use serde::Serialize;
use std::time::SystemTime;

/// Runs until a signal ends it, which is no failure.
pub(crate) async fn monitor(args: &MonitorArgs) -> Result<Exit, Failure> {
    let config = ClientConfig::from_args(&args.store)?.without_session().label(args.label.as_deref());
    let mut signals = Signals::catch()?;
    let Ok(client) = signals.interruptible(config.connect()).await else { return Ok(Exit::SUCCESS) };
    let mut monitor = client?.monitor();
    if let Some(every) = args.every {
        monitor = monitor.every(every);
    }
    let mut printer = EventPrinter { json: args.json, in_trouble: false };
    printer.print(&Event::Started { at: now(), version: env!("CARGO_PKG_VERSION") });
    let Err(_) = signals.interruptible(monitor.run(|round| printer.report(round))).await;
    printer.print(&Event::Ended { at: now() });
    Ok(Exit::SUCCESS)
}

/// The events, one line each. The fields of their JSON are stable.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Started { at: String, version: &'a str },
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
            whose: eviction.whose.as_ref().map(Label::as_str),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Started { at, version } => format!("{at} started leasehold {version}\n"),
            Self::Evicted { at, name, fence, session, whose } => {
                let whose = printable(whose.unwrap_or("unknown"));
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
}

impl EventPrinter {
    fn report(&mut self, round: &MonitorReport) {
        for eviction in &round.evicted {
            self.print(&Event::evicted(eviction));
        }
        match &round.trouble {
            Some(fault) if !self.in_trouble => {
                self.print(&Event::Trouble { at: now(), message: fault.to_string() });
            }
            None if self.in_trouble => self.print(&Event::Recovered { at: now() }),
            _ => {}
        }
        self.in_trouble = round.trouble.is_some();
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
