//! `leasehold wait`: waits until a lock is free.
//!
//! It acquires nothing and has no queue entry, so no notification reaches it. It polls, less and less often, and at the
//! end of the holder's lease.

use crate::args::WaitArgs;
use crate::commands::lead::share;
use crate::look::look;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::report::{ErrorReport, json_line, millis, print};
use crate::store::client::ClientConfig;
use anyhow::anyhow;
use leasehold::{Client, LockName, Moment, Status};
use serde::Serialize;
use std::time::Duration;
use tokio::time::sleep;

/// The pauses between two polls: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long after the end of a lease it polls, and the minimum pause: a holder may renew at the last moment, again and
/// again.
const AFTER: Duration = Duration::from_millis(10);

/// Waits until the lock is free.
pub(crate) async fn wait(args: &WaitArgs) -> Result<Exit, Failure> {
    let mut course = Course::default();
    let done = try_to_wait(args, &mut course).await;
    if args.json {
        let report = Report {
            name: &args.name,
            free: done.is_ok(),
            waited_ms: millis(course.waited),
            holder: course.holder.as_deref(),
            remaining_ms: course.remaining.map(millis),
            error: ErrorReport::from_result(&done),
        };
        print(&json_line(&report))?;
    }
    done
}

/// What the polls have shown.
#[derive(Debug, Default)]
struct Course {
    waited: Duration,
    /// The holder at the last poll that found one.
    holder: Option<String>,
    /// The remaining lease, at the last poll.
    remaining: Option<Duration>,
}

/// The report for programs. Its fields are stable.
#[derive(Debug, Serialize)]
struct Report<'a> {
    name: &'a str,
    free: bool,
    waited_ms: u64,
    holder: Option<&'a str>,
    remaining_ms: Option<u64>,
    error: Option<ErrorReport>,
}

async fn try_to_wait(args: &WaitArgs, course: &mut Course) -> Result<Exit, Failure> {
    let name = crate::lock_name(&args.name)?;
    let client = ClientConfig::from_args(&args.store)?.without_session().connect().await?;
    let start = client.now();
    let limit = args.wait.map(|limit| start + limit);
    let mut pause = PAUSES.0;
    loop {
        let status = looked(&client, &name).await?;
        let now = client.now();
        course.waited = now.since(start);
        course.remaining = status.remaining.filter(|_| status.held);
        if !status.held {
            return Ok(Exit::SUCCESS);
        }
        course.holder.clone_from(&status.holder);
        if limit.is_some_and(|limit| limit <= now) {
            let who = status.holder.as_deref().unwrap_or("a client without a label");
            let cause = anyhow!("`{name}` is not free after {:?}: {who} holds it", course.waited);
            return Err(Failure::taken(Exit::new(args.conflict_exit_code), cause));
        }
        sleep(next_look(now, pause, status.remaining, limit)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

async fn looked(client: &Client, name: &LockName) -> Result<Status, Failure> {
    look(client, name).await.map(|looked| looked.details.status)
}

/// How long to sleep before the next poll: the pause less up to a quarter, at most until the lease ends or until the
/// limit.
fn next_look(now: Moment, pause: Duration, remaining: Option<Duration>, limit: Option<Moment>) -> Duration {
    let usual = pause.saturating_sub(share(now, pause / 4));
    let over = remaining.map_or(usual, |remaining| (remaining + AFTER).min(usual));
    limit.map_or(over, |limit| over.min(limit.since(now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_at_the_end_of_the_lease_and_never_closer_than_they_may() {
        let (now, s) = (Moment::from_micros(5_000_500), Duration::from_secs);
        let ms = Duration::from_millis;
        assert_eq!(next_look(now, s(2), None, None), ms(1_750));
        assert_eq!(next_look(now, s(2), Some(s(9)), None), ms(1_750));
        assert_eq!(next_look(now, s(2), Some(ms(30)), None), ms(40));
        assert_eq!(next_look(now, s(2), Some(Duration::ZERO), None), AFTER);
        assert_eq!(next_look(now, s(2), Some(ms(30)), Some(now + ms(7))), ms(7));
    }
}
