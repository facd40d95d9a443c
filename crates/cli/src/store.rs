//! Which store, from arguments, environment and defaults, and the client of it.
//!
//! A URL with a password is taken from the environment, and refused as an argument (secret.rs, 1).

use crate::args::StoreArgs;
use crate::exit::{Exit, Failure};
use crate::secret::{self, Secret, variable};
use anyhow::{Context, anyhow};
use leasehold::{Client, ClientBuilder, ConnectError, store::FaultKind};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The environment variable that holds the store's URL.
pub(crate) const STORE: &str = "LEASEHOLD_STORE";
const USERNAME: &str = "LEASEHOLD_USERNAME";

/// How long a call to the store may take; also how long we wait for what is given back at the end.
pub(crate) const CALL: Duration = Duration::from_secs(2);

/// Connects to the store that was asked for.
pub(crate) async fn connect(
    args: &StoreArgs,
    set: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> Result<Client, Failure> {
    let (mut url, asked) = match (&args.store, variable(STORE)?) {
        (Some(url), _) => (argument(url)?, true),
        (None, Some(url)) => (url, true),
        (None, None) => (default_store()?, false),
    };
    if is_server(&url) {
        let password = secret::password(args.password_file.as_deref())?;
        url = with_credentials(&url, variable(USERNAME)?.as_deref(), password.as_ref())?;
        if let Some(prefix) = &args.prefix {
            url = with_prefix(&url, prefix)?;
        }
    } else if args.password_file.is_some() || args.prefix.is_some() {
        return Err(usage("--password-file and --prefix are for a redis:// store: give one by --store"));
    }
    let connected = set(Client::builder(url).call_timeout(CALL)).connect().await;
    connected.map_err(|error| {
        let exit = match &error {
            ConnectError::Url(_) | ConnectError::Setting(_) => Exit::USAGE,
            ConnectError::Store(fault) if matches!(fault.kind, FaultKind::Unusable(_)) => Exit::USAGE,
            _ => Exit::UNAVAILABLE,
        };
        let hint =
            if asked { "" } else { " (none was given by --store or LEASEHOLD_STORE: it is the default)" };
        Failure::new(exit, anyhow::Error::new(error).context(format!("failed to open the store{hint}")))
    })
}

/// Whether a URL holds a password.
pub(crate) fn has_password(url: &str) -> bool {
    let password = |pair: &str| pair.starts_with("pass=") || pair.starts_with("password=");
    let query = url.split_once('?').is_some_and(|(_, query)| query.split('&').any(password));
    query || userinfo(url).is_some_and(|user| user.split_once(':').is_some_and(|(_, word)| !word.is_empty()))
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

/// What stands between `://` and the last `@` before the path.
fn userinfo(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    authority.rsplit_once('@').map(|(user, _)| user)
}

/// The URL with what was given apart from it, which goes before what is in it.
fn with_credentials(url: &str, user: Option<&str>, password: Option<&Secret>) -> Result<String, Failure> {
    if user.is_none() && password.is_none() {
        return Ok(url.to_owned());
    }
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(url.to_owned()) };
    let given = userinfo(url);
    let rest = given.map_or(rest, |given| &rest[given.len() + 1..]);
    let (old_user, old_password) =
        given.map_or(("", ""), |given| given.split_once(':').unwrap_or((given, "")));
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let user = user.map_or_else(|| old_user.to_owned(), encoded);
    let password = password.map_or_else(|| old_password.to_owned(), |password| encoded(password.reveal()));
    if password.is_empty() {
        return Err(usage(
            "a user needs a password: give it by LEASEHOLD_PASSWORD or --password-file, or unset LEASEHOLD_USERNAME",
        ));
    }
    Ok(format!("{scheme}://{user}:{password}@{rest}"))
}

fn with_prefix(url: &str, prefix: &str) -> Result<String, Failure> {
    let query = url.split_once('?').map(|(_, query)| query);
    if query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("prefix="))) {
        return Err(usage("the store's URL has a prefix already: leave --prefix out"));
    }
    let sign = if query.is_some() { '&' } else { '?' };
    Ok(format!("{url}{sign}prefix={}", utf8_percent_encode(prefix, NON_ALPHANUMERIC)))
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
        for url in ["redis://:pw@h", "rediss://user:pw@h:1/2?prefix=a", "redis+unix:///s?db=1&pass=pw"] {
            assert!(has_password(url), "{url}");
        }
        for url in ["redis://h", "redis://user@h", "redis://h/?prefix=a:b@c", "sqlite:/a:b@c", "memory:", ""]
        {
            assert!(!has_password(url), "{url}");
        }
    }

    #[test]
    fn what_was_given_apart_goes_before_what_is_in_the_url() {
        let secret = Secret::new("p@s/s:w%rd".to_owned());
        let check = |url, user, password, wanted: &str| {
            let got = with_credentials(url, user, password).expect("there is a password");
            assert_eq!(got, wanted);
        };
        check("redis://h:1/2", None, Some(&secret), "redis://:p%40s%2Fs%3Aw%25rd@h:1/2");
        check("redis://bob@h", None, Some(&secret), "redis://bob:p%40s%2Fs%3Aw%25rd@h");
        check("redis://a:b@h/?x=@", Some("bob"), None, "redis://bob:b@h/?x=@");
        check("redis://h", None, None, "redis://h");
        assert!(with_credentials("redis://h", Some("bob"), None).is_err());
    }

    #[test]
    fn a_prefix_is_one_more_setting_of_the_url() {
        let check = |url, wanted: &str| assert_eq!(with_prefix(url, "app:").ok().as_deref(), Some(wanted));
        check("redis://h", "redis://h?prefix=app%3A");
        check("redis+unix:///s?db=1", "redis+unix:///s?db=1&prefix=app%3A");
        assert!(with_prefix("redis://h/?prefix=b", "app:").is_err());
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
