//! The URL of the store, from the arguments or the environment.
//!
//! A URL with a password is accepted from the environment, and rejected as an argument (password.rs, 1). Only the
//! library's [`StoreUrl`] decides what a URL contains; a URL that it does not parse may contain a secret anywhere.

use crate::environment::{STORE, variable};
use crate::output::error_map::connect_failure;
use crate::output::failure::Failure;
use crate::store::args::StoreArgs;
use anyhow::anyhow;
use leasehold::store::{StoreKind, StoreUrl, StoreUrlError, UrlError};
use std::ffi::OsStr;

/// The URL that a command inherits in place of one that does not parse. It opens no store.
const WITHHELD: &str = "withheld:";

/// The URL of `--store` or of the environment, as text and parsed; `None` if neither is given.
pub(crate) fn named(args: &StoreArgs) -> Result<Option<(String, StoreUrl)>, Failure> {
    if let Some(text) = &args.store {
        return Ok(Some((text.clone(), parse_argument(text)?)));
    }
    let Some(text) = variable(STORE)? else { return Ok(None) };
    let url = StoreUrl::parse(&text).map_err(|error| url_failure(None, error))?;
    Ok(Some((text, url)))
}

/// Fails if other processes cannot see the locks of the store.
pub(crate) fn check_shared(url: &StoreUrl) -> Result<(), Failure> {
    if url.kind() == StoreKind::Memory {
        return Err(Failure::usage(anyhow!(
            "a `memory:` store ends with this program, so no other process would see its locks: give a file \
             (sqlite:PATH) or a server (redis://…)"
        )));
    }
    Ok(())
}

/// What a command inherits in place of the URL in the environment; `None` if that is passed on unchanged.
pub(crate) fn inherited(url: &OsStr) -> Option<String> {
    if url.is_empty() {
        return None;
    }
    match url.to_str().map(StoreUrl::parse) {
        Some(Ok(url)) => url.has_password().then(|| url.redacted()),
        Some(Err(_)) | None => Some(WITHHELD.to_owned()),
    }
}

/// The URL of --store, which must not contain a password.
fn parse_argument(text: &str) -> Result<StoreUrl, Failure> {
    match StoreUrl::parse(text) {
        Ok(url) if url.has_password() => Err(Failure::usage(anyhow!(
            "the URL of --store contains a password, which every user of this machine can read in the process \
             list: change the password, and give it by --password-file, LEASEHOLD_PASSWORD or LEASEHOLD_STORE"
        ))),
        Ok(url) => Ok(url),
        Err(error) => Err(argument_failure(text, error)),
    }
}

/// The failure for a `--store` that does not parse. It warns of a password that the URL may contain; nothing else
/// depends on that guess.
fn argument_failure(text: &str, error: StoreUrlError) -> Failure {
    // The values of known settings are passwords only under that name.
    let is_setting =
        matches!(&error, StoreUrlError::Redis(UrlError::Twice { .. })) && !text.contains("password");
    let failure = url_failure(Some(text), error);
    if !text.contains('@') && (is_setting || !text.contains('=')) {
        return failure;
    }
    Failure::usage(anyhow!(
        "{}; if it contains a password, change the password: every user of this machine can read --store in the \
         process list",
        failure.message()
    ))
}

/// The failure for a URL that does not parse. The library's errors also recommend `memory:`, which this program refuses.
/// `shown` is the text, if it may be shown: that of --store is visible in the process list anyway.
fn url_failure(shown: Option<&str>, error: StoreUrlError) -> Failure {
    let what = match error {
        StoreUrlError::NoScheme => "it has no scheme",
        StoreUrlError::Scheme => "there is no store of its scheme",
        _ => return connect_failure(error.into(), false),
    };
    let advice = match shown.and_then(suggestion) {
        Some(url) => format!("did you mean `{url}`?"),
        None => "write redis://HOST:PORT for a server, or sqlite:PATH for a file; `leasehold help where` lists all \
                 schemes"
            .to_owned(),
    };
    Failure::usage(anyhow!("failed to open the store: the store's URL cannot be used: {what}: {advice}"))
}

/// The URL that a text without a scheme is meant to be, if that is clear: `HOST:PORT`, or the path of a file.
fn suggestion(text: &str) -> Option<String> {
    let is_word = |text: &str, signs: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || signs.contains(c))
    };
    if let Some((host, port)) = text.rsplit_once(':') {
        let is_address = is_word(host, ".-_") && port.parse::<u16>().is_ok_and(|port| port > 0);
        return is_address.then(|| format!("redis://{text}"));
    }
    let is_path = text.contains('/') || [".db", ".sqlite", ".sqlite3"].iter().any(|end| text.ends_with(end));
    (is_path && is_word(text, "./-_")).then(|| format!("sqlite:{text}"))
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
            assert!(parse_argument(url).is_err() && inherited(url.as_ref()).is_some(), "{url}");
        }
        for url in ["redis://h:1", "redis://user@h", "redis://h/?prefix=a:b@c", "sqlite:/a:b@c", "memory:"] {
            assert!(parse_argument(url).is_ok() && inherited(url.as_ref()).is_none(), "{url}");
        }
        assert_eq!(inherited("".as_ref()), None);
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
            assert_eq!(inherited(url.as_ref()).as_deref(), Some(without), "{url}");
        }
    }

    #[test]
    fn what_is_no_text_is_withheld_and_what_is_withheld_opens_nothing() {
        use std::os::unix::ffi::OsStrExt;
        let url = OsStr::from_bytes(b"redis://:pw\xff@h");
        assert_eq!(inherited(url).as_deref(), Some(WITHHELD));
        assert!(StoreUrl::parse(WITHHELD).is_err());
    }

    #[test]
    fn a_text_without_a_scheme_is_recognized() {
        for (text, wanted) in [
            ("localhost:6379", Some("redis://localhost:6379")),
            ("10.0.0.7:7000", Some("redis://10.0.0.7:7000")),
            ("locks.db", Some("sqlite:locks.db")),
            ("/var/lib/app/locks", Some("sqlite:/var/lib/app/locks")),
            ("localhost", None),
            ("postgres://h", None),
            ("user:pass", None),
            ("h:0", None),
            ("h:65536", None),
            ("a b.db", None),
            ("", None),
        ] {
            assert_eq!(suggestion(text).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn the_text_of_the_environment_is_not_repeated() {
        let failure = url_failure(None, StoreUrlError::Scheme).message();
        assert!(failure.contains("redis://HOST:PORT") && !failure.contains("memory:"), "{failure}");
    }
}
