//! `leasehold lead`: runs a command while this process leads, and again after each re-election.
//!
//! 1. The command starts only under a leadership, and is gone before that can have ended, as under any lock.
//! 2. A request to end is never taken for a loss: a signal that arrives while the command is being ended also ends this
//!    process.
//! 3. Once a campaign has reached the store, this process never gives up: while the store does not answer, it pauses,
//!    longer and longer.

use crate::args::LeadArgs;
use crate::commands::run::{command, give_back, whole_lease};
use crate::job::Ended;
use crate::job::held::Held;
use crate::job::signals::Signals;
use crate::job::terms::{AcquireTerms, LEASE};
use crate::output::error_map::acquire_failure;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::report::{ErrorReport, json_line};
use crate::store::client::{ClientConfig, shut_down};
use anyhow::Context;
use leasehold::{AcquireError, Client, Election, Leadership, LockName, Moment};
use serde::Serialize;
use std::time::Duration;
use tokio::time::sleep;

/// The pauses between campaigns that the store did not accept: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Runs the command while this process leads.
pub(crate) async fn lead(args: &LeadArgs) -> Result<Exit, Failure> {
    let mut course = Course::default();
    let done = try_to_lead(args, &mut course).await;
    if !args.json {
        return done;
    }
    let status = match &done {
        Ok(exit) => *exit,
        // Before the report, which is the last line.
        Err(failure) => crate::output::log::failure(failure),
    };
    // Standard output belongs to the command.
    log::line(&json_line(&Report {
        name: &args.name,
        led: course.led,
        fence: course.fence,
        command_status: course.command.map(Exit::status),
        status: status.status(),
        error: ErrorReport::from_result(&done),
    }));
    Ok(status)
}

/// The progress, for the report.
#[derive(Debug, Default)]
struct Course {
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

async fn try_to_lead(args: &LeadArgs, course: &mut Course) -> Result<Exit, Failure> {
    let name = crate::lock_name(&args.name)?;
    let config = ClientConfig::from_args(&args.store)?;
    let by_session = !args.no_session && config.has_heartbeats();
    let lease = args.lease.unwrap_or(LEASE);
    let terms = AcquireTerms::with(lease, by_session, args.session, args.kill_grace)?;
    let config = config.watchdog_lease(terms.lease);
    let config = if args.no_session {
        config.without_session()
    } else {
        config.session(terms.session.or(args.session))
    };
    let config = config.label(args.label.as_deref());
    let unavailable = |error| Failure::unavailable(error);
    let mut signals = Signals::catch().context("failed to catch signals").map_err(unavailable)?;
    let client = tokio::select! {
        biased;
        signal = signals.ending() => return Ok(Exit::from_signal(signal)),
        client = config.connect() => client?,
    };
    let outcome = again_and_again(&client, &name, &terms, args, &mut signals, course).await;
    shut_down(&client).await;
    outcome
}

async fn again_and_again(
    client: &Client,
    name: &LockName,
    terms: &AcquireTerms,
    args: &LeadArgs,
    signals: &mut Signals,
    course: &mut Course,
) -> Result<Exit, Failure> {
    let shown = format!("`{name}`");
    let election = client.election(name.clone());
    let election = election.map_err(|error| Failure::usage(error).failed_to("use", name))?;
    let (mut pause, longest) = PAUSES;
    loop {
        let leadership = tokio::select! {
            biased;
            signal = signals.ending() => return Ok(Exit::from_signal(signal)),
            elected = campaign(client, &election) => elected.map_err(|failure| failure.failed_to("lead", name))?,
        };
        course.led += 1;
        course.fence = Some(leadership.fencing_token().as_u64());
        tracing::info!(election = %shown, fence = course.fence, "leading");
        let held = Held::Lead(leadership);
        let ended = match whole_lease(&held, terms).await {
            Ok(()) => command(client, &held, terms, &args.command, signals).await,
            Err(failure) => Err(failure.failed_to("hold", name)),
        };
        let began = ended.is_ok();
        course.command = ended.as_ref().ok().map(|ended| ended.exit).or(course.command);
        let (stopped, asked) = match &ended {
            Ok(Ended { stopped, asked, .. }) => (*stopped, *asked),
            Err(failure) => (failure.exit == Exit::LOST || failure.exit == Exit::UNAVAILABLE, None),
        };
        let given_back = give_back(client, held, &shown, ended).await;
        match (given_back, asked) {
            // The command was ended because the leadership is over, or it could not be started before: another process
            // may lead now.
            (Err(failure), None) if stopped => {
                log::warning(&format!("{}; campaigning again", failure.message()));
                // A process that cannot start its command would otherwise be elected again and again.
                if began {
                    pause = PAUSES.0;
                } else {
                    tokio::select! {
                        biased;
                        signal = signals.ending() => return Ok(Exit::from_signal(signal)),
                        () = sleep(pause / 2 + share(client.now(), pause / 2)) => {}
                    }
                    pause = (pause * 2).min(longest);
                }
            }
            (Err(_), Some(signal)) if stopped => return Ok(Exit::from_signal(signal)),
            (outcome, _) => return outcome,
        }
    }
}

/// Campaigns until this process leads, however long the store does not answer (3).
async fn campaign(client: &Client, election: &Election) -> Result<Leadership, Failure> {
    let (mut pause, longest) = PAUSES;
    loop {
        let error = match election.campaign().await {
            Ok(leadership) => return Ok(leadership),
            Err(error) => error,
        };
        let passes = match &error {
            AcquireError::Store(fault) | AcquireError::Unknown(fault) => fault.is_transient(),
            AcquireError::LeaseTooShort { .. } | AcquireError::Closed => false,
            _ => true,
        };
        if !passes {
            return Err(acquire_failure(error, Exit::UNAVAILABLE));
        }
        log::warning(&format!("failed to lead `{}`: {error}; campaigning again", election.name()));
        sleep(pause / 2 + share(client.now(), pause / 2)).await;
        pause = (pause * 2).min(longest);
    }
}

/// A part of `most` that differs from process to process, taken from the last digits of a clock.
pub(crate) fn share(now: Moment, most: Duration) -> Duration {
    let micros = u32::try_from(now.as_micros() % 1000).unwrap_or_default();
    most * micros / 1000
}
