//! The store to use, from arguments, environment and defaults, and a client for it.
//!
//! A URL with a password is accepted from the environment, and refused as an argument (secret.rs, 1). Only the
//! library's [`StoreUrl`] decides what a URL contains; a URL that it does not parse may contain a secret anywhere.

use crate::args::StoreArgs;
use crate::output::error_map::fault_exit;
use crate::output::exit::Exit;
use crate::output::failure::Failure;
use crate::secret::{self, variable};
use anyhow::{Context, anyhow};
use leasehold::store::{Diagnosis, RedisConfig, StoreKind, StoreUrl, StoreUrlError};
use leasehold::{Client, ClientBuilder, ConnectError};
use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The environment variable that holds the URL of the store.
pub(crate) const STORE: &str = "LEASEHOLD_STORE";
const USERNAME: &str = "LEASEHOLD_USERNAME";
/// The value that a command inherits in place of a URL that does not parse. It opens no store.
const WITHHELD: &str = "withheld:";

/// The time limit of a call to the store, and of the release at the end.
pub(crate) const CALL: Duration = Duration::from_secs(2);

/// A chosen store and its credentials.
///
/// All inputs have been read; only the connection is missing.
pub(crate) struct Partition {
    builder: ClientBuilder,
    kind: StoreKind,
    /// Set if the user has named the store.
    named: bool,
}

impl Partition {
    /// The store from the arguments. May read standard input.
    pub(crate) fn of(args: &StoreArgs) -> Result<Self, Failure> {
        let (text, named) = match (&args.store, variable(STORE)?) {
            (Some(text), _) => (text.clone(), true),
            (None, Some(text)) => (text, true),
            (None, None) => (default_store()?, false),
        };
        let url = match &args.store {
            Some(text) => argument(text)?,
            None => StoreUrl::parse(&text).map_err(|error| unopened(error.into(), named))?,
        };
        if url.kind() == StoreKind::Memory {
            return Err(usage(
                "a `memory:` store ends with this program, so no other process would see its locks: give a file \
                 (sqlite:PATH) or a server (redis://…)",
            ));
        }
        let mut builder = Client::builder(text).call_timeout(CALL);
        // A variable in the environment may be meant for other stores.
        if let Some(password) = secret::password(args.password_file.as_deref(), url.takes_credentials())? {
            builder = builder.password(password.reveal());
        }
        if url.takes_credentials()
            && let Some(user) = variable(USERNAME)?
        {
            builder = builder.username(user);
        }
        if let Some(prefix) = &args.prefix {
            builder = builder.prefix(prefix);
        }
        Ok(Self { builder, kind: url.kind(), named })
    }

    /// Sets the lease for locks that are renewed.
    pub(crate) fn watchdog_lease(self, lease: Duration) -> Self {
        Self { builder: self.builder.watchdog_lease(lease), ..self }
    }

    /// Sets the label of the holder.
    pub(crate) fn label(self, label: Option<&str>) -> Self {
        let Some(label) = label else { return self };
        Self { builder: self.builder.label(label), ..self }
    }

    /// Sets how long the session lives without a heartbeat.
    pub(crate) fn session(self, alive: Duration) -> Self {
        Self { builder: self.builder.session(alive), ..self }
    }

    /// Without a session: for a client that holds nothing by one.
    pub(crate) fn without_session(self) -> Self {
        Self { builder: self.builder.without_session(), ..self }
    }

    /// Whether sessions of this store live by heartbeats, and lapse without them.
    pub(crate) const fn needs_beats(&self) -> bool {
        matches!(self.kind, StoreKind::Redis | StoreKind::Shards)
    }

    /// Connects to the store.
    pub(crate) async fn connect(self) -> Result<Client, Failure> {
        self.builder.connect().await.map_err(|error| unopened(error, self.named))
    }

    /// Checks the server or servers of the store.
    pub(crate) async fn diagnose(self) -> Result<Vec<Diagnosis>, Failure> {
        self.builder.diagnose().await.map_err(|error| unopened(error, self.named))
    }
}

/// The failure for a store that could not be opened.
fn unopened(error: ConnectError, named: bool) -> Failure {
    let exit = match &error {
        ConnectError::Url(_) | ConnectError::Setting(_) => Exit::USAGE,
        ConnectError::Store(fault) => fault_exit(fault),
        _ => Exit::UNAVAILABLE,
    };
    let which = if named { "" } else { " (the default, since neither --store nor LEASEHOLD_STORE is given)" };
    Failure::new(exit, anyhow::Error::new(error).context(format!("failed to open the store{which}")))
}

/// The configuration of each server of the store, with credentials; empty if no server is given. May read standard
/// input.
pub(crate) fn servers(args: &StoreArgs) -> Result<Vec<RedisConfig>, Failure> {
    let url = match (&args.store, variable(STORE)?) {
        (Some(text), _) => Some(argument(text)?),
        (None, Some(text)) => Some(StoreUrl::parse(&text).map_err(|error| unopened(error.into(), true))?),
        (None, None) => None,
    };
    let Some(url) = url.filter(StoreUrl::takes_credentials) else {
        if args.store.is_some() {
            return Err(usage("only a server (redis://…) has users, and --store names no server"));
        }
        if args.password_file.is_some() {
            return Err(usage("--password-file is for a server, and none is given: give one by --store"));
        }
        // A variable in the environment may be meant for other commands.
        return Ok(Vec::new());
    };
    let password = secret::password(args.password_file.as_deref(), true)?;
    let user = variable(USERNAME)?;
    let with_access = |config: &RedisConfig| {
        let mut config = config.clone().connect_timeout(CALL);
        if let Some(password) = &password {
            config = config.password(password.reveal());
        }
        if let Some(user) = &user {
            config = config.username(user);
        }
        config
    };
    Ok(url.servers().iter().map(with_access).collect())
}

/// What a command inherits in place of the URL in the environment; `None` if that is passed on unchanged.
pub(crate) fn for_command(url: &OsStr) -> Option<String> {
    if url.is_empty() {
        return None;
    }
    match url.to_str().map(StoreUrl::parse) {
        Some(Ok(url)) => url.has_password().then(|| url.redacted()),
        Some(Err(_)) | None => Some(WITHHELD.to_owned()),
    }
}

/// The URL of --store, which must not contain a password.
fn argument(text: &str) -> Result<StoreUrl, Failure> {
    match StoreUrl::parse(text) {
        Ok(url) if url.has_password() => Err(usage(
            "the URL of --store contains a password, which every user of this machine can read in the process \
             list: change the password, and give it by --password-file, LEASEHOLD_PASSWORD or LEASEHOLD_STORE",
        )),
        Ok(url) => Ok(url),
        Err(error) => Err(unusable_argument(text, error)),
    }
}

/// The failure for a `--store` that does not parse. It warns of a password that the URL may contain; nothing else
/// depends on that guess.
fn unusable_argument(text: &str, error: StoreUrlError) -> Failure {
    let failure = unopened(error.into(), true);
    if !text.contains(['@', '=']) {
        return failure;
    }
    let cause = anyhow!(
        "{}; if it contains a password, change the password: every user of this machine can read --store in the \
         process list",
        failure.message()
    );
    Failure::usage(cause)
}

/// The SQLite file in the user's state directory, which is created if necessary.
fn default_store() -> Result<String, Failure> {
    let var = |name| std::env::var_os(name).map(PathBuf::from);
    let dir = state_dir(var("XDG_STATE_HOME"), var("HOME"), rustix::process::geteuid().is_root())
        .ok_or_else(|| {
            usage("there is no directory for the locks, because HOME is not set: give a store by --store")
        })?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.with_context(|| format!("failed to create the directory of the locks, `{}`", dir.display()))
        .map_err(Failure::unavailable)?;
    let path = dir.join("locks.db");
    match path.to_str() {
        Some(path) => Ok(format!("sqlite:{path}")),
        None => Err(usage("the path of the state directory is not UTF-8 text: give a store by --store")),
    }
}

/// The directory of this user's locks. The XDG specification says to ignore a relative path.
fn state_dir(xdg: Option<PathBuf>, home: Option<PathBuf>, root: bool) -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let state = xdg.filter(absolute).or_else(|| Some(home.filter(absolute)?.join(".local/state")));
    let state = state.or_else(|| root.then(|| Path::new("/var/lib").to_owned()))?;
    Some(state.join("leasehold"))
}

fn usage(text: &'static str) -> Failure {
    Failure::usage(anyhow!(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_found_wherever_it_is() {
        for url in [
            "redis://:pw@h",
            "rediss://user:pw@h:1/2?prefix=a",
            "redis://:p/w@h",
            "redis+unix:///s?db=1&password=pw",
            "redlock://:pw@a,b,c",
            "redis+sentinel://a/m?sentinel_password=pw",
        ] {
            assert!(argument(url).is_err() && for_command(url.as_ref()).is_some(), "{url}");
        }
        for url in ["redis://h:1", "redis://user@h", "redis://h/?prefix=a:b@c", "sqlite:/a:b@c", "memory:"] {
            assert!(argument(url).is_ok() && for_command(url.as_ref()).is_none(), "{url}");
        }
        assert_eq!(for_command("".as_ref()), None);
    }

    #[test]
    fn a_password_is_taken_out_and_the_rest_stays() {
        for (url, without) in [
            ("redis://:pw@h", "redis://h"),
            ("rediss://user:p:w@h:1/2?prefix=a", "rediss://user@h:1/2?prefix=a"),
            ("redis://:p/w@h", WITHHELD),
            ("redis+unix:///s?db=1&password=pw", "redis+unix:///s?db=1"),
            ("redis://h?password=pw", "redis://h"),
        ] {
            assert_eq!(for_command(url.as_ref()).as_deref(), Some(without), "{url}");
        }
    }

    #[test]
    fn what_is_no_text_is_withheld_and_what_is_withheld_opens_nothing() {
        use std::os::unix::ffi::OsStrExt;
        let url = OsStr::from_bytes(b"redis://:pw\xff@h");
        assert_eq!(for_command(url).as_deref(), Some(WITHHELD));
        assert!(StoreUrl::parse(WITHHELD).is_err());
    }

    #[test]
    fn the_state_directory() {
        let check = |xdg: Option<&str>, home: Option<&str>, root, wanted: Option<&str>| {
            assert_eq!(state_dir(xdg.map(Into::into), home.map(Into::into), root), wanted.map(Into::into));
        };
        check(Some("/x"), Some("/home/u"), false, Some("/x/leasehold"));
        check(Some("x"), Some("/home/u"), false, Some("/home/u/.local/state/leasehold"));
        check(None, Some(""), true, Some("/var/lib/leasehold"));
        check(None, None, true, Some("/var/lib/leasehold"));
        check(None, None, false, None);
    }
}
