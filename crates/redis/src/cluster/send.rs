//! Sending a call to the node that serves its slot.
//!
//! 1. A call that may have been executed is not sent again. If a node reports that it executed nothing, because the
//!    slot is elsewhere, is migrating or has no primary, the call goes on to the node that serves the slot: until its
//!    deadline, a limited number of times, and with a pause before the same node is tried again. Of the calls that a
//!    node refuses because the cluster is down, only one retries on behalf of all ([`recovery`](super::recovery)).
//! 2. ASKING and its call go out in one write, so that no command of another task comes between them.

use super::recovery::RetryingCall;
use super::topology::Redirect;
use super::{Cluster, Node, RETRY_BACKOFF};
use crate::config::address::Address;
use crate::conn::link::{LinkConnection, NoReply};
use crate::error_map::is_unknown_script;
use crate::script::Call;
use leasehold_store::{Executed, Fault, Outcome};
use redis::{Cmd, Pipeline, Value, cmd};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How many times one call is sent at most (1).
const MAX_SENDS: u32 = 64;
/// How many redirects are followed without a pause.
const IMMEDIATE_REDIRECTS: u32 = 4;
/// Number of retries with [`Report`](OnTryAgain::Report).
const TRYAGAIN_RETRIES: u32 = 2;
/// How long to wait for a connection to the target of an ASK redirect.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// What to do if only some keys of a call are on the node that received it, because the slot migrates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnTryAgain {
    /// Retry until the deadline of the call.
    Retry,
    /// Retry a few times, then return the reply.
    Report,
}

/// A command, and the command that loads its script, if it is a script call.
type Sent<'a> = (&'a Cmd, Option<&'a (dyn Fn() -> Cmd + Sync)>);

impl Cluster {
    /// Sends a script call to the node that serves the slot (1), and returns the reply and that node. Set
    /// `with_script` if the server is known to lack the script.
    pub(crate) async fn reply<T>(
        &self,
        slot: u16,
        call: &Call,
        with_script: bool,
        on_try_again: OnTryAgain,
        deadline: Instant,
    ) -> Result<(Value, Arc<Node>), Outcome<T>> {
        let loading = || call.load();
        self.send(slot, (call.cmd(), Some(&loading)), with_script, on_try_again, deadline).await
    }

    /// Same as [`reply`](Self::reply), for a command with one key and without a script.
    pub(crate) async fn command<T>(
        &self,
        slot: u16,
        cmd: &Cmd,
        deadline: Instant,
    ) -> Result<(Value, Arc<Node>), Outcome<T>> {
        self.send(slot, (cmd, None), false, OnTryAgain::Retry, deadline).await
    }

    async fn send<T>(
        &self,
        slot: u16,
        (cmd, script): Sent<'_>,
        with_script: bool,
        on_try_again: OnTryAgain,
        deadline: Instant,
    ) -> Result<(Value, Arc<Node>), Outcome<T>> {
        let mut attempts = Attempts { with_script, ..Attempts::default() };
        let mut last = None;
        while attempts.sent < MAX_SENDS {
            attempts.sent += 1;
            let asking = attempts.ask_target.is_some();
            let (node, mut connection) = match self.next_connection(slot, &mut attempts, deadline).await {
                Ok(Some(reached)) => reached,
                Ok(None) => continue,
                // An earlier reply says more than the connection fault.
                Err(fault) => return last.ok_or(Outcome::Failed(Executed::No, fault)),
            };
            let loading = script.filter(|_| attempts.with_script).map(|loading| loading());
            let value = {
                let value = pin!(send(&node, &mut connection, (loading, asking, cmd), deadline));
                attempts.retries.releasing_if_slow(value).await
            };
            let value = value.map_err(|no_reply| {
                self.mark_stale();
                Outcome::Failed(Executed::Unknown, node.no_reply(no_reply))
            })?;
            let next = if script.is_some() && is_unknown_script(&value) {
                attempts.ask_target = asking.then(|| node.address.clone());
                attempts.with_script = true;
                Next::Resend
            } else {
                self.follow(slot, (&value, &node), &mut attempts, on_try_again, deadline).await
            };
            match next {
                Next::Done => return Ok((value, node)),
                Next::Resend => last = Some((value, node)),
                Next::OutOfTime => {
                    last = Some((value, node));
                    break;
                }
            }
        }
        last.ok_or_else(|| Outcome::Failed(Executed::No, self.shared.last_fault()))
    }

    /// The connection for the next attempt; `None` if the target of an ASK redirect cannot be reached in time.
    async fn next_connection(
        &self,
        slot: u16,
        attempts: &mut Attempts,
        deadline: Instant,
    ) -> Result<Option<(Arc<Node>, LinkConnection)>, Fault> {
        let Some(target) = attempts.ask_target.take() else {
            let connection = pin!(self.connection(slot, deadline));
            return attempts.retries.releasing_if_slow(connection).await.map(Some);
        };
        match self.connect_to(&target, deadline.min(Instant::now() + ASK_TIMEOUT)).await {
            Err(fault) if fault.is_transient() && Instant::now() < deadline => Ok(None),
            reached => reached.map(Some),
        }
    }

    /// Follows the redirect in a reply, if it is one, and waits until the call may be sent again.
    async fn follow(
        &self,
        slot: u16,
        (value, node): (&Value, &Arc<Node>),
        attempts: &mut Attempts,
        on_try_again: OnTryAgain,
        deadline: Instant,
    ) -> Next {
        let random = self.shared.config.shared_environment().random();
        let redirect = node.redirect(value);
        if redirect != Some(Redirect::Later) {
            attempts.retries.replied();
        }
        let mut needs_pause = attempts.sent > IMMEDIATE_REDIRECTS;
        match redirect {
            None => return Next::Done,
            Some(Redirect::Moved(to)) => self.moved(slot, to),
            Some(Redirect::Ask(to)) => attempts.ask_target = Some(to),
            Some(Redirect::TryAgain) => {
                attempts.tryagain_replies += 1;
                if on_try_again == OnTryAgain::Report && attempts.tryagain_replies > TRYAGAIN_RETRIES {
                    return Next::Done;
                }
                needs_pause = true;
            }
            Some(Redirect::Unnamed) => {
                self.mark_stale();
                needs_pause = true;
            }
            Some(Redirect::Later) => {
                self.mark_stale();
                if !attempts.retries.wait_to_retry(node, random, deadline).await {
                    return Next::OutOfTime;
                }
                // Not counted: the deadline and the pauses limit these retries.
                attempts.sent -= 1;
                return Next::Resend;
            }
        }
        if needs_pause {
            attempts.pauses += 1;
            let pause = RETRY_BACKOFF.pause(attempts.pauses, random);
            if Instant::now() + pause >= deadline {
                return Next::OutOfTime;
            }
            tokio::time::sleep(pause).await;
        }
        Next::Resend
    }
}

/// State of one call over its attempts (1).
#[derive(Default)]
struct Attempts {
    /// Number of attempts that count towards the limit.
    sent: u32,
    /// Whether to load the script in front of the call.
    with_script: bool,
    /// Target of an ASK redirect, for the next attempt only.
    ask_target: Option<Address>,
    /// Number of replies that only some of the keys are on the node.
    tryagain_replies: u32,
    /// Number of pauses.
    pauses: u32,
    /// Retries at a node that reports the cluster down.
    retries: RetryingCall,
}

/// What follows a reply.
enum Next {
    /// The reply is final.
    Done,
    /// The call is sent again.
    Resend,
    /// The reply is final, because there is no time to send the call again.
    OutOfTime,
}

/// Sends a command and returns its reply. With `asking`, ASKING precedes it in the same write (2).
async fn send(
    node: &Node,
    connection: &mut LinkConnection,
    (loading, asking, command): (Option<Cmd>, bool, &Cmd),
    deadline: Instant,
) -> Result<Value, NoReply> {
    if !asking && loading.is_none() {
        return node.link.call(connection, command, deadline).await;
    }
    let mut pipeline = Pipeline::with_capacity(3);
    let loads = loading.is_some();
    if let Some(loading) = loading {
        pipeline.add_command(loading);
    }
    if asking {
        pipeline.add_command(cmd("ASKING"));
    }
    pipeline.add_command(command.clone());
    let mut values = node.link.call_all(connection, &pipeline, deadline).await?;
    let value = values.pop().unwrap_or_default();
    // If loading the script failed, for example for lack of permission, that error counts.
    let load_error =
        values.into_iter().next().filter(|value| loads && matches!(value, Value::ServerError(_)));
    Ok(load_error.filter(|_| is_unknown_script(&value)).unwrap_or(value))
}
