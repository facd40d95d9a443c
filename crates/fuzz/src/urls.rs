//! URLs of stores.
//!
//! 1. What is shown of a URL parses to the same, and shows the same.
//! 2. Neither that nor an error shows a password.

use crate::input::Input;
use leasehold::store::{StoreUrl, StoreUrlError};
use std::fmt::Write as _;

/// What URLs are made of.
pub(crate) const WORDS: &[&str] = &[
    "redis://",
    "rediss://",
    "redis+unix://",
    "redis+sentinel://",
    "rediss+sentinel://",
    "redis+cluster://",
    "rediss+cluster://",
    "redis+shard://",
    "rediss+shard://",
    "redlock://",
    "redlocks://",
    "sqlite:",
    "memory:",
    "host",
    "[::1]",
    ":6379",
    "/0",
    "/mymaster",
    "?",
    "&",
    "@",
    ",",
    "%2F",
    "%00",
    "%ff",
    "prefix=",
    "user=",
    "password=",
    "db=",
    "replicas=",
    "durable=1",
    "protocol=resp2",
    "tracking=1",
    "probe=skip",
    "accept=eviction,memory_full",
    "strict=1",
    "sentinel_user=",
    "sentinel_password=",
    "ca=/ca",
    "cert=/c",
    "key=/k",
    "min_uptime=30s",
    "node_timeout=50ms",
];

/// Part of every password, and of nothing else in a URL that [`composed`] makes.
const SECRET: &str = "S3CR3T";
/// Characters that mean something in a URL, for its password.
const SPECIAL: &[&str] = &["%40", "%3A", "%2F", "@", ":", "%25", "%23", "%3F", "%26", "é", "=", " "];

pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(url) = StoreUrl::parse(&text) {
        check_shown(&url);
        for prefix in ["app:", &text] {
            if let Ok(url) = url.clone().with_prefix(prefix) {
                check_shown(&url);
            }
        }
    }
    let url = composed(Input::new(input));
    match StoreUrl::parse(&url) {
        Ok(parsed) => {
            check_shown(&parsed);
            let shown = format!("{parsed:?} {}", parsed.redacted());
            assert!(!shown.contains(SECRET), "a password is shown: {shown}");
            assert!(parsed.has_password(), "the password of {url} was overlooked");
        }
        Err(error) => check_error(&error),
    }
}

fn check_error(error: &StoreUrlError) {
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(SECRET), "an error shows a password: {shown}");
}

/// The first property.
fn check_shown(url: &StoreUrl) {
    let shown = url.redacted();
    let again = match StoreUrl::parse(&shown) {
        Ok(again) => again,
        Err(error) => panic!("`{shown}` is shown of a URL, and does not parse: {error}"),
    };
    assert_eq!((again.kind(), again.redacted()), (url.kind(), shown.clone()));
    assert_eq!(again.servers().len(), url.servers().len(), "{shown}");
    assert!(!again.has_password(), "{shown}");
}

/// A URL with a password.
fn composed(mut input: Input<'_>) -> String {
    let scheme = input.one_of(&WORDS[..11]);
    let mut password = SECRET.to_owned();
    for _ in 0..input.below(3) {
        password.insert_str(if input.below(2) == 0 { 0 } else { password.len() }, input.one_of(SPECIAL));
    }
    let in_query = input.below(4) == 0;
    let mut url = scheme.to_owned();
    if !in_query {
        let _ = write!(url, "{}:{password}@", input.one_of(&["", "user", "us%65r"]));
    }
    url.push_str(input.one_of(&[
        "host",
        "[::1]",
        "a,b,c",
        "a:1,b:2,c:3",
        "/run/redis.sock",
        "h%6Fst:7000",
        "",
    ]));
    url.push_str(input.one_of(&["", "/", "/2", "/name", "/name/3"]));
    let mut separator = '?';
    if in_query {
        let name = input.one_of(&["password", "sentinel_password"]);
        let _ = write!(url, "?{name}={password}");
        separator = '&';
    }
    // Not in front of the rest of a text that could then be the password.
    let rest = String::from_utf8_lossy(input.rest()).replace(SECRET, "");
    if !rest.is_empty() {
        let _ = write!(url, "{separator}{rest}");
    }
    url
}
