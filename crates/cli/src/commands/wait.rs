//! `leasehold wait`: waits until a lock is free.
//!
//! It acquires nothing and has no queue entry, so no notification reaches it. It polls, less and less often, and at the
//! end of the holder's lease.

use crate::backoff::{Backoff, jitter};
use crate::duration;
use crate::lock::any_lock;
use crate::lock::wait_limit::WaitLimit;
use crate::lock::waiting;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::output::log::LogArgs;
use crate::output::report::{ErrorReport, json_line, millis, print};
use crate::store::args::StoreArgs;
use crate::store::client::ClientConfig;
use anyhow::anyhow;
use clap::Args;
use leasehold::{Client, LockName, Moment};
use serde::Serialize;
use std::slice;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Wait until a lock is free, without acquiring it.
///
/// Works with a lock of any kind. Polls when the lease of the holder would end, and at first every 100ms, then less and
/// less often: every 2s at least. Another client may hold the lock again by the time this command has ended: to work
/// under the lock, use `leasehold run`. A lock is not free while the period of `run --once-per` lasts, nor while too few
/// nodes of a quorum can grant it.
#[derive(Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct WaitArgs {
    /// Name of the lock
    name: String,

    /// Maximum time to wait; without it, wait for ever
    ///
    /// With it, a store that cannot be reached at the start is tried again within that time. Later, one that does not
    /// answer for 2s ends this command.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,

    /// Exit status if the lock was not free in time
    #[arg(long, value_name = "N", default_value_t = Exit::CONFLICT.status())]
    conflict_exit_code: u8,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    pub(super) log: LogArgs,
}

/// The pauses between two polls.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
/// How long the last poll, which begins at the limit, may take.
const LAST_POLL: Duration = Duration::from_secs(1);
/// How long after the end of a lease it polls, and the minimum pause: a holder may renew at the last moment, again and
/// again.
const AFTER_LEASE: Duration = Duration::from_millis(10);

/// Waits until the lock is free.
pub(crate) async fn wait(args: &WaitArgs) -> Result<Exit, Failure> {
    let mut progress = Progress::default();
    let result = try_to_wait(args, &mut progress).await;
    if args.json {
        let report = Report {
            name: &args.name,
            free: result.is_ok(),
            waited_ms: millis(progress.waited),
            holder: progress.holder.as_deref(),
            remaining_ms: progress.remaining.map(millis),
            error: ErrorReport::from_result(&result),
        };
        print(&json_line(&report))?;
    }
    result
}

/// What the polls have found.
#[derive(Debug, Default)]
struct Progress {
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

async fn try_to_wait(args: &WaitArgs, progress: &mut Progress) -> Result<Exit, Failure> {
    let name = super::lock_name(&args.name)?;
    let config = ClientConfig::from_args(&args.store)?.without_session();
    let mut findings = config.finding_reporter();
    let (client, wait) = config.connect_within(WaitLimit::new(args.wait)).await?;
    findings.report(&client).await;
    let polling = poll_until_free(&client, &name, wait, args, progress);
    if wait == WaitLimit::Try {
        polling.await
    } else {
        waiting::shown(&client, slice::from_ref(&name), polling).await
    }
}

async fn poll_until_free(
    client: &Client,
    name: &LockName,
    wait: WaitLimit,
    args: &WaitArgs,
    progress: &mut Progress,
) -> Result<Exit, Failure> {
    let start = client.now();
    let limit = match wait {
        WaitLimit::Try => Some(start),
        WaitLimit::AtMost(left) => Some(start + left),
        WaitLimit::Forever => None,
    };
    let mut backoff = BACKOFF;
    loop {
        // A single poll takes whatever its calls may take.
        let limit_of_poll = limit.filter(|_| wait != WaitLimit::Try);
        let within = poll_timeout(client.now(), limit_of_poll);
        let found = timeout(within, any_lock::find(client, name)).await;
        let no_answer = |_| Failure::unavailable(anyhow!("no answer in time")).failed_to("inspect", name);
        let status = found.map_err(no_answer)??.details.status;
        let now = client.now();
        progress.waited = now.since(start);
        progress.remaining = status.remaining.filter(|_| status.held).or(status.blocked);
        if !status.held && status.blocked.is_none() {
            return Ok(Exit::SUCCESS);
        }
        progress.holder.clone_from(&status.holder);
        if limit.is_some_and(|limit| limit <= now) {
            let held = match (&status.holder, status.held) {
                (Some(holder), _) => format!("held by {holder}"),
                (None, true) => "held by a client without a label".to_owned(),
                (None, false) => "not held, but too few nodes of the quorum can grant it".to_owned(),
            };
            let cause = anyhow!("timed out after {:?}: {held}", progress.waited);
            let failure = Failure::taken(Exit::new(args.conflict_exit_code), cause);
            return Err(failure.failed_to("wait for", name));
        }
        sleep(next_pause(now, backoff.next_pause(), progress.remaining, limit)).await;
    }
}

/// How long a poll may take: a little longer than the limit, so that the last one can be answered.
fn poll_timeout(now: Moment, limit: Option<Moment>) -> Duration {
    limit.map_or(Duration::MAX, |limit| limit.since(now) + LAST_POLL)
}

/// How long to sleep before the next poll: the pause less up to a quarter, at most until the lease ends or until the
/// limit.
fn next_pause(now: Moment, pause: Duration, remaining: Option<Duration>, limit: Option<Moment>) -> Duration {
    let pause = pause.saturating_sub(jitter(now, pause / 4));
    let pause = remaining.map_or(pause, |remaining| (remaining + AFTER_LEASE).min(pause));
    limit.map_or(pause, |limit| pause.min(limit.since(now)))
}

const AFTER_HELP: &str = "\
JSON (--json), one line, also if it fails; later versions may add fields:
  name, free (true or false), waited_ms, holder (the last one that was seen, or
  null), remaining_ms (of the lease, or until a quorum can grant the lock);
  error: null, or an object with kind (taken, unavailable, usage, other_kind),
  reason (null), message

Exit status:
    0  the lock is free
    2  the name or a setting cannot be used
   65  the name is in use for something that is no lock
   69  the store cannot be reached, or refuses the request
   75  the lock was not free within --wait (see --conflict-exit-code)

Examples:
  leasehold wait nightly --wait 1h && ./after-nightly.sh
  leasehold wait deploy --wait 0s || echo 'a deploy is under way'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_comes_at_the_end_of_the_lease_and_never_sooner_than_allowed() {
        let (now, s) = (Moment::from_micros(5_000_500), Duration::from_secs);
        let ms = Duration::from_millis;
        assert_eq!(next_pause(now, s(2), None, None), ms(1_750));
        assert_eq!(next_pause(now, s(2), Some(s(9)), None), ms(1_750));
        assert_eq!(next_pause(now, s(2), Some(ms(30)), None), ms(40));
        assert_eq!(next_pause(now, s(2), Some(Duration::ZERO), None), AFTER_LEASE);
        assert_eq!(next_pause(now, s(2), Some(ms(30)), Some(now + ms(7))), ms(7));
    }

    #[test]
    fn a_poll_without_an_answer_does_not_outlast_the_limit() {
        let now = Moment::from_micros(5_000_500);
        assert_eq!(poll_timeout(now, None), Duration::MAX);
        assert_eq!(poll_timeout(now, Some(now + Duration::from_secs(3))), Duration::from_secs(4));
        assert_eq!(poll_timeout(now, Some(now)), LAST_POLL);
    }
}
