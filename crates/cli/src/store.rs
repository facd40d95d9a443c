//! Which store, from arguments, environment and defaults, and the client of it.
//!
//! A URL with a password is taken from the environment, and refused as an argument (secret.rs, 1).

use crate::args::StoreArgs;
use crate::exit::{Exit, Failure};
use crate::secret::{self, variable};
use anyhow::{Context, anyhow};
use leasehold::store::{Examination, Fault, FaultKind, RedisConfig, UrlError};
use leasehold::{Client, ClientBuilder, ConnectError};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The environment variable that holds the store's URL.
pub(crate) const STORE: &str = "LEASEHOLD_STORE";
const USERNAME: &str = "LEASEHOLD_USERNAME";

/// How long a call to the store may take; also how long we wait for what is given back at the end.
pub(crate) const CALL: Duration = Duration::from_secs(2);

/// A store that is settled on, and what lets us in.
///
/// Whatever is read for it has been read; only the connection is missing.
pub(crate) struct Place {
    builder: ClientBuilder,
    /// Set if it is a server, at which a session lives by beats.
    is_server: bool,
    /// Set if the user named it.
    named: bool,
}

impl Place {
    /// The store that was asked for. May read standard input.
    pub(crate) fn of(args: &StoreArgs) -> Result<Self, Failure> {
        let (url, named) = match (&args.store, variable(STORE)?) {
            (Some(url), _) => (argument(url)?, true),
            (None, Some(url)) => (url, true),
            (None, None) => (default_store()?, false),
        };
        if url.starts_with("memory:") {
            return Err(usage(
                "a `memory:` store ends with this program, so nobody else would see its locks: give a file \
                 (sqlite:PATH) or a server (redis://…)",
            ));
        }
        let mut builder = Client::builder(url.as_str()).call_timeout(CALL);
        // What is only in the environment may be meant for other stores.
        let server = is_server(&url);
        if let Some(password) = secret::password(args.password_file.as_deref(), server)? {
            builder = builder.password(password.reveal());
        }
        if server && let Some(user) = variable(USERNAME)? {
            builder = builder.username(user);
        }
        if let Some(prefix) = &args.prefix {
            builder = builder.prefix(prefix);
        }
        Ok(Self { builder, is_server: server, named })
    }

    /// With another lease for locks that are renewed.
    pub(crate) fn watchdog_lease(self, lease: Duration) -> Self {
        Self { builder: self.builder.watchdog_lease(lease), ..self }
    }

    /// With what others are shown of the holder.
    pub(crate) fn label(self, label: Option<&str>) -> Self {
        let Some(label) = label else { return self };
        Self { builder: self.builder.label(label), ..self }
    }

    /// With a session that lives for that long without a beat.
    pub(crate) fn session(self, alive: Duration) -> Self {
        Self { builder: self.builder.session(alive), ..self }
    }

    /// As nobody who holds anything by a session.
    pub(crate) fn without_session(self) -> Self {
        Self { builder: self.builder.without_session(), ..self }
    }

    /// Whether a session lives by beats there, and lapses without.
    pub(crate) const fn needs_beats(&self) -> bool {
        self.is_server
    }

    /// Connects to the store.
    pub(crate) async fn connect(self) -> Result<Client, Failure> {
        self.builder.connect().await.map_err(|error| unopened(error, self.named))
    }

    /// Looks over what the store tells of itself.
    pub(crate) async fn examine(self) -> Result<Vec<Examination>, Failure> {
        self.builder.examine().await.map_err(|error| unopened(error, self.named))
    }
}

/// The store was not opened.
fn unopened(error: ConnectError, named: bool) -> Failure {
    let exit = match &error {
        ConnectError::Url(_) | ConnectError::Setting(_) => Exit::USAGE,
        ConnectError::Store(fault) => exit_of(fault),
        _ => Exit::UNAVAILABLE,
    };
    let which = if named { "" } else { " (the default, since neither --store nor LEASEHOLD_STORE is given)" };
    Failure::new(exit, anyhow::Error::new(error).context(format!("failed to open the store{which}")))
}

/// The server that was asked for, and what lets us in; `None` if none was. May read standard input.
pub(crate) fn server(args: &StoreArgs) -> Result<Option<RedisConfig>, Failure> {
    let url = match (&args.store, variable(STORE)?) {
        (Some(url), _) => argument(url)?,
        // What is only in the environment may be meant for other commands.
        (None, Some(url)) if is_server(&url) => url,
        (None, _) if args.password_file.is_some() => {
            return Err(usage("--password-file is for a server, and none is given: give one by --store"));
        }
        (None, _) => return Ok(None),
    };
    if !is_server(&url) {
        return Err(usage("a server has users (redis://…), and the store of --store is none"));
    }
    let config = match RedisConfig::from_url(&url) {
        // What one of the servers needs all of them do.
        Err(UrlError::Shards) => RedisConfig::shards_from_url(&url).map(|mut servers| servers.swap_remove(0)),
        config => config,
    };
    let config = config.map_err(|error| Failure::new(Exit::USAGE, error))?;
    let mut config = config.connect_timeout(CALL);
    if let Some(password) = secret::password(args.password_file.as_deref(), true)? {
        config = config.password(password.reveal());
    }
    if let Some(user) = variable(USERNAME)? {
        config = config.username(user);
    }
    Ok(Some(config))
}

/// How the program ends where the store did not do something.
pub(crate) fn exit_of(fault: &Fault) -> Exit {
    if matches!(fault.kind, FaultKind::Unusable(_)) { Exit::USAGE } else { Exit::UNAVAILABLE }
}

/// Whether a URL holds a password, or has one where it does not belong.
pub(crate) fn has_password(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://").filter(|_| is_server(url)) else { return false };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let user = place.rsplit_once('@').filter(|_| scheme != "redis+unix").map(|(user, _)| user);
    query.split('&').any(|pair| pair.starts_with("pass"))
        || user.and_then(|user| user.split_once(':')).is_some_and(|(_, password)| !password.is_empty())
}

/// The same store without the password.
pub(crate) fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return String::new() };
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    let place = match place.rsplit_once('@').filter(|_| scheme != "redis+unix") {
        Some((user, host)) => match user.split_once(':').map_or(user, |(name, _)| name) {
            "" => host.to_owned(),
            name => format!("{name}@{host}"),
        },
        None => place.to_owned(),
    };
    let kept =
        query.map(|query| query.split('&').filter(|pair| !pair.starts_with("pass")).collect::<Vec<_>>());
    match kept.filter(|kept| !kept.is_empty()) {
        Some(kept) => format!("{scheme}://{place}?{}", kept.join("&")),
        None => format!("{scheme}://{place}"),
    }
}

fn argument(url: &str) -> Result<String, Failure> {
    if has_password(url) {
        return Err(usage(
            "the URL of --store has a password in it, which every user of this machine can read in the process \
             list: change the password, and give it by --password-file, LEASEHOLD_PASSWORD or LEASEHOLD_STORE",
        ));
    }
    Ok(url.to_owned())
}

/// Whether the URL is of a server, which has users, passwords and prefixes.
fn is_server(url: &str) -> bool {
    url.starts_with("redis")
}

/// The SQLite file in the user's state directory, whose directory is there afterwards.
fn default_store() -> Result<String, Failure> {
    let var = |name| std::env::var_os(name).map(PathBuf::from);
    let dir = state_dir(var("XDG_STATE_HOME"), var("HOME"), rustix::process::geteuid().is_root())
        .ok_or_else(|| {
            usage("there is no place for the locks, since HOME is not set: give a store by --store")
        })?;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.with_context(|| format!("failed to make the directory of the locks, `{}`", dir.display()))
        .map_err(|error| Failure::new(Exit::UNAVAILABLE, error))?;
    let path = dir.join("locks.db");
    match path.to_str() {
        Some(path) => Ok(format!("sqlite:{path}")),
        None => Err(usage("the path of the state directory is not UTF-8 text: give a store by --store")),
    }
}

/// Where the locks of this user are. By the XDG specification a relative path is as good as none.
fn state_dir(xdg: Option<PathBuf>, home: Option<PathBuf>, root: bool) -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let state = xdg.filter(absolute).or_else(|| Some(home.filter(absolute)?.join(".local/state")));
    let state = state.or_else(|| root.then(|| Path::new("/var/lib").to_owned()))?;
    Some(state.join("leasehold"))
}

fn usage(text: &'static str) -> Failure {
    Failure::new(Exit::USAGE, anyhow!(text))
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
        ] {
            assert!(has_password(url), "{url}");
        }
        for url in
            ["redis://h:1", "redis://user@h", "redis://h/?prefix=a:b@c", "sqlite:/a:b@c", "memory:", ""]
        {
            assert!(!has_password(url), "{url}");
        }
    }

    #[test]
    fn a_password_is_taken_out_and_the_rest_stays() {
        for (url, without) in [
            ("redis://:pw@h", "redis://h"),
            ("rediss://user:p:w@h:1/2?prefix=a", "rediss://user@h:1/2?prefix=a"),
            ("redis://:p/w@h", "redis://h"),
            ("redis+unix:///s?db=1&password=pw", "redis+unix:///s?db=1"),
            ("redis://h?password=pw", "redis://h"),
        ] {
            assert_eq!(without_password(url), without, "{url}");
            assert!(!has_password(&without_password(url)), "{url}");
        }
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
