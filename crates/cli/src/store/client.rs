//! A client of the store: its configuration from the options, and its end.

use crate::backoff::{Backoff, half_jittered};
use crate::environment::{HISTORY, STATISTICS, enclosing_holds, variable};
use crate::lock::wait_limit::WaitLimit;
use crate::output::error_map::connect_failure;
use crate::output::failure::Failure;
use crate::output::log;
use crate::output::printable::printable;
use crate::output::session_report::COMMAND_LABEL;
use crate::store::CALL_TIMEOUT;
use crate::store::access::Access;
use crate::store::args::StoreArgs;
use crate::store::findings::{self, FindingReporter};
use crate::store::password::{PROVIDER_TIMEOUT, Password};
use anyhow::anyhow;
use leasehold::error::ConnectError;
use leasehold::inspect::MAX_HISTORY;
use leasehold::store::{Diagnosis, StoreKind};
use leasehold::{Client, ClientBuilder, LockName, Moment};
use std::ffi::OsString;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::time::{sleep, timeout};

/// The pauses between attempts to connect.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// The part of a limit that is kept for the last attempt.
const LAST_ATTEMPT: Duration = Duration::from_millis(500);

/// How many characters of the name of a command its session has.
const MAX_COMMAND: usize = 60;

/// The configuration of a client.
///
/// All inputs have been read; only the connection is missing.
pub(crate) struct ClientConfig {
    builder: ClientBuilder,
    kind: StoreKind,
    /// The addresses of the servers, if it has any.
    servers: Option<String>,
    /// Set if the user has named no store.
    is_default: bool,
}

/// The number in `LEASEHOLD_HISTORY`.
fn history_entries(text: &str) -> Result<u16, Failure> {
    let entries = text.parse().ok().filter(|entries| *entries <= MAX_HISTORY);
    entries.ok_or_else(|| {
        Failure::usage(anyhow!(
            "{HISTORY} is `{}`, but must be a number from 0 to {MAX_HISTORY}: how many holds the history of a lock keeps",
            printable(text)
        ))
    })
}

/// The setting in `LEASEHOLD_STATISTICS`.
fn counts_statistics(text: &str) -> Result<bool, Failure> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        other => {
            Err(Failure::usage(anyhow!("{STATISTICS} is `{}`, but must be `on` or `off`", printable(other))))
        }
    }
}

impl ClientConfig {
    /// The store from the options, with its credentials. May read standard input.
    pub(crate) fn from_args(args: &StoreArgs) -> Result<Self, Failure> {
        let Access { text, url, password, username, prefix, is_default } = Access::from_args(args)?;
        let mut builder = Client::builder(text).call_timeout(CALL_TIMEOUT);
        builder = match password {
            Some(Password::Fixed(secret)) => builder.password(secret.reveal()),
            Some(Password::Changing(source)) => {
                let provider = move || source.clone().credentials();
                builder.credentials(provider).credentials_timeout(PROVIDER_TIMEOUT)
            }
            None => builder,
        };
        if let Some(user) = username {
            builder = builder.username(user);
        }
        if let Some(prefix) = prefix {
            builder = builder.prefix(prefix);
        }
        if let Some(entries) = variable(HISTORY)? {
            builder = builder.history(history_entries(&entries)?);
        }
        if let Some(counts) = variable(STATISTICS)? {
            builder = builder.statistics(counts_statistics(&counts)?);
        }
        for (lock, fence) in enclosing_holds() {
            builder = builder.enclosing_hold(&lock, fence);
        }
        Ok(Self { builder, kind: url.kind(), servers: findings::store_name(&url), is_default })
    }

    /// Sets the lease for locks that are renewed.
    pub(crate) fn watchdog_lease(self, lease: Duration) -> Self {
        Self { builder: self.builder.watchdog_lease(lease), ..self }
    }

    /// Sets the label of the holder, if one is given.
    pub(crate) fn label(self, label: Option<&str>) -> Self {
        let Some(label) = label else { return self };
        Self { builder: self.builder.label(label), ..self }
    }

    /// Has the session name the command that runs under the lock: its first word, or the text that the user gives; nothing if
    /// that is empty. Further words can be secrets.
    pub(crate) fn command(self, command: Option<&OsString>, given: Option<&str>) -> Self {
        let word = || command.map(|word| word.to_string_lossy().chars().take(MAX_COMMAND).collect());
        let Some(text) = given.map(str::to_owned).or_else(word).filter(|text| !text.is_empty()) else {
            return self;
        };
        Self { builder: self.builder.session_label(COMMAND_LABEL, text), ..self }
    }

    /// Sets how long the session lives without a heartbeat, if that is given.
    pub(crate) fn session(self, session: Option<Duration>) -> Self {
        let Some(session) = session else { return self };
        Self { builder: self.builder.session_ttl(session), ..self }
    }

    /// Without a session: for a client none of whose holds depends on one.
    pub(crate) fn without_session(self) -> Self {
        Self { builder: self.builder.without_session(), ..self }
    }

    /// Whether sessions of this store live by heartbeats, and lapse without them.
    pub(crate) const fn has_heartbeats(&self) -> bool {
        matches!(self.kind, StoreKind::Redis | StoreKind::Shards)
    }

    /// Fails if the user gives a time for the session, and the store keeps no sessions. In a file, which needs no
    /// heartbeats, a session is safe at any length.
    pub(crate) fn check_session(&self, session: Option<Duration>) -> Result<(), Failure> {
        if session.is_some() && self.kind == StoreKind::Quorum {
            return Err(Failure::usage(anyhow!(
                "--session cannot be used with a quorum (redlock://), which keeps no sessions: there the lock of a \
                 dead process ends with its lease, so give --lease instead"
            )));
        }
        Ok(())
    }

    /// The addresses of the servers of the store; `None` if it has none.
    pub(crate) fn servers(&self) -> Option<&str> {
        self.servers.as_deref()
    }

    /// What reports findings about the servers.
    pub(crate) fn finding_reporter(&self) -> FindingReporter {
        FindingReporter::new(self.servers.clone())
    }

    /// With the findings that this user has accepted.
    async fn accepting(self) -> Self {
        let accepted = findings::accepted(self.servers.clone()).await;
        Self { builder: self.builder.accept(accepted), ..self }
    }

    /// Connects to the store, or fails at once.
    pub(crate) async fn connect(self) -> Result<Client, Failure> {
        let this = self.accepting().await;
        this.builder.connect().await.map_err(|error| connect_failure(error, this.is_default))
    }

    /// Connects to the store. With a limit, a store that cannot be reached is tried again within it. Returns also how long
    /// the client may still wait.
    pub(crate) async fn connect_within(self, wait: WaitLimit) -> Result<(Client, WaitLimit), Failure> {
        match wait {
            WaitLimit::AtMost(limit) => {
                let (client, left) = self.connect_until(Some(limit)).await?;
                Ok((client, left.map_or(wait, WaitLimit::AtMost)))
            }
            WaitLimit::Try | WaitLimit::Forever => Ok((self.connect().await?, wait)),
        }
    }

    /// Connects to the store, however long it cannot be reached.
    pub(crate) async fn connect_eventually(self) -> Result<Client, Failure> {
        Ok(self.connect_until(None).await?.0)
    }

    /// Connects within a limit, and returns what is left of it. The first attempt may take longer than the limit, and does
    /// not count: the limit is for waiting.
    async fn connect_until(self, limit: Option<Duration>) -> Result<(Client, Option<Duration>), Failure> {
        let start = Instant::now();
        let left = || limit.map(|limit| limit.saturating_sub(start.elapsed()));
        let this = self.accepting().await;
        let (mut backoff, mut last) = (BACKOFF, None::<ConnectError>);
        loop {
            let (before, connecting) = (left(), this.builder.clone().connect());
            let connected = match (&last, before) {
                (Some(last), Some(left)) => {
                    timeout(left, connecting).await.unwrap_or_else(|_| Err(last.clone()))
                }
                _ => connecting.await,
            };
            let error = match connected {
                Ok(client) => return Ok((client, if last.is_some() { left() } else { before })),
                Err(error) => error,
            };
            let is_transient = matches!(&error, ConnectError::Store(fault) if fault.is_transient());
            let failure = connect_failure(error.clone(), this.is_default);
            if !is_transient {
                return Err(failure);
            }
            let mut pause = half_jittered(now(), backoff.next_pause());
            if let Some(left) = left() {
                if left <= LAST_ATTEMPT {
                    sleep(left).await;
                    return Err(failure);
                }
                pause = pause.min(left.saturating_sub(LAST_ATTEMPT));
            }
            log::warning(&format!("{}; trying again", failure.message()));
            sleep(pause).await;
            last = Some(error);
        }
    }

    /// Checks the server or servers of the store.
    pub(crate) async fn diagnose(self) -> Result<Vec<Diagnosis>, Failure> {
        let this = self.accepting().await;
        this.builder.diagnose().await.map_err(|error| connect_failure(error, this.is_default))
    }
}

/// The time of the wall clock, as a source of jitter.
fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment::from_micros(since.subsec_micros().into())
}

/// Waits for background work already in flight, before the program ends and cancels it.
pub(crate) async fn flush(client: &Client, name: &LockName) {
    flush_within(client, name, CALL_TIMEOUT).await;
}

/// [`flush`] with another time limit.
pub(crate) async fn flush_within(client: &Client, name: &LockName, within: Duration) {
    if timeout(within, client.flush()).await.is_err() {
        log::warning(&format!(
            "not every request for `{name}` could be sent: whatever is still held ends with its lease"
        ));
    }
}

/// Shuts the client down within a time limit. A warning names what could not be released.
pub(crate) async fn shut_down(client: &Client, within: Duration) {
    if let Err(error) = client.shutdown(within).await {
        log::warning(&error.to_string());
    }
}
