//! Which requests are answered: by their host, their origin and the token.
//!
//! 1. A page of another site that makes its name point to this address (DNS rebinding) sends that name as the host: only an
//!    address, `localhost` and names that were given are answered.
//! 2. The token is compared in constant time, and never sent back. The cookie of a browser has a value of its own, made at the
//!    start, so that a token of the user's is in no cookie.

use crate::store::secret::Secret;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use std::hint::black_box;
use std::net::IpAddr;

/// A shorter token could be guessed.
pub(crate) const MIN_TOKEN: usize = 16;

/// What a request needs to be answered.
#[derive(Debug)]
pub(crate) struct Access {
    /// Names of this host in lower case, beside its addresses and `localhost`.
    names: Vec<String>,
    /// `None` if the page needs none.
    token: Option<Secret>,
    /// The name of the cookie of a browser that has given the token.
    cookie: String,
    cookie_value: Secret,
    allow_free: bool,
}

/// Why a request is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Host,
    Origin,
    ContentType,
    Token,
    ReadOnly,
}

impl Refusal {
    pub(super) const fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin | Self::ReadOnly => StatusCode::FORBIDDEN,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Token => StatusCode::UNAUTHORIZED,
        }
    }

    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::Host => {
                "this is not a name of the board: use its address, or give the name by --host when it starts"
            }
            Self::Origin => "the request comes from a page of another site",
            Self::ContentType => "the content type must be application/json",
            Self::Token => "the token is missing or wrong",
            Self::ReadOnly => "the board is read-only: start it with --allow-free",
        }
    }
}

impl Access {
    /// For a page at this port. `names`: further names of this host.
    pub(crate) fn new(names: &[String], token: Option<Secret>, port: u16, allow_free: bool) -> Self {
        Self {
            names: names.iter().map(|name| name.to_ascii_lowercase()).collect(),
            token,
            cookie: format!("leasehold_board_{port}"),
            cookie_value: random_token(),
            allow_free,
        }
    }

    pub(super) const fn allows_free(&self) -> bool {
        self.allow_free
    }

    pub(super) fn check_free(&self) -> Result<(), Refusal> {
        if self.allow_free { Ok(()) } else { Err(Refusal::ReadOnly) }
    }

    /// Whether the request names this host (1).
    pub(super) fn check_host(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = single(headers, &HOST).and_then(host_of).ok_or(Refusal::Host)?;
        let is_address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        let host = host.to_ascii_lowercase();
        if is_address || host == "localhost" || self.names.contains(&host) {
            Ok(())
        } else {
            Err(Refusal::Host)
        }
    }

    /// Whether the request comes from the page, as far as it says where it comes from.
    pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), Refusal> {
        if headers.contains_key(ORIGIN) { Self::check_page(headers) } else { Ok(()) }
    }

    /// Whether a request that changes something comes from the page: it says so, and no form of another site can send it.
    pub(super) fn check_change(headers: &HeaderMap) -> Result<(), Refusal> {
        Self::check_page(headers)?;
        let content_type = single(headers, &CONTENT_TYPE).unwrap_or_default();
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        if kind.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(Refusal::ContentType) }
    }

    fn check_page(headers: &HeaderMap) -> Result<(), Refusal> {
        let origin = single(headers, &ORIGIN).ok_or(Refusal::Origin)?;
        // A proxy may speak TLS with the browser.
        let of_page = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        match (of_page, single(headers, &HOST)) {
            (Some(page), Some(host)) if page.eq_ignore_ascii_case(host) => Ok(()),
            _ => Err(Refusal::Origin),
        }
    }

    /// Whether the request has the token or the cookie, if one is needed (2).
    pub(super) fn check_token(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if self.token.is_none() {
            return Ok(());
        }
        let bearer = single(headers, &AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut cookies = cookies.flat_map(|line| line.split(';')).filter_map(|pair| {
            let (name, value) = pair.trim().split_once('=')?;
            (name == self.cookie).then_some(value)
        });
        if bearer.is_some_and(|token| self.is_token(token))
            || cookies.any(|value| is_equal(value, self.cookie_value.reveal()))
        {
            Ok(())
        } else {
            Err(Refusal::Token)
        }
    }

    /// Whether this is the token.
    pub(super) fn is_token(&self, text: &str) -> bool {
        self.token.as_ref().is_some_and(|token| is_equal(text, token.reveal()))
    }

    /// The value of `Set-Cookie` for a browser that has given the token. No script reads it, no other site causes it to be sent,
    /// and if the browser speaks TLS, with a proxy, it is sent over TLS alone.
    pub(super) fn cookie(&self, headers: &HeaderMap) -> String {
        let is_tls = single(headers, &ORIGIN).is_some_and(|origin| origin.starts_with("https://"));
        let secure = if is_tls { "; Secure" } else { "" };
        format!("{}={}; Path=/; HttpOnly; SameSite=Strict{secure}", self.cookie, self.cookie_value.reveal())
    }
}

/// A header that is given once.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

/// The host of `HOST[:PORT]`; an IPv6 address is in brackets.
fn host_of(value: &str) -> Option<&str> {
    let end = match value.strip_prefix('[') {
        Some(rest) => rest.find(']')? + 2,
        None => value.find(':').unwrap_or(value.len()),
    };
    let (host, port) = value.split_at(end);
    let is_port = |port: &str| port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    (!host.is_empty() && (port.is_empty() || is_port(port))).then_some(host)
}

/// Compares in a time that depends on the lengths alone (2).
fn is_equal(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let differing = a.iter().zip(b).fold(0_u8, |bits, (a, b)| black_box(bits | (a ^ b)));
    a.len() == b.len() && differing == 0
}

/// 256 random bits in hexadecimal.
pub(crate) fn random_token() -> Secret {
    let bytes: [u8; 32] = rand::random();
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    Secret::new(digits.filter_map(|digit| char::from_digit(u32::from(digit), 16)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let value = |text: &str| HeaderValue::from_str(text).expect("a header");
        pairs.iter().map(|(name, text)| (name.clone(), value(text))).collect()
    }

    fn access(token: Option<&str>) -> Access {
        Access::new(
            &["Board.example".to_owned()],
            token.map(|token| Secret::new(token.to_owned())),
            80,
            false,
        )
    }

    #[test]
    fn only_names_of_this_host_are_answered() {
        let table = [
            ("localhost:8470", true),
            ("LOCALHOST", true),
            ("127.0.0.1:9000", true),
            ("[::1]:8470", true),
            ("192.168.0.7", true),
            ("board.example:443", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost:8470.evil.example", false),
            ("board.example@evil.example", false),
            ("", false),
            ("[::1", false),
        ];
        for (host, is_known) in table {
            assert_eq!(access(None).check_host(&headers(&[(HOST, host)])).is_ok(), is_known, "{host}");
        }
        assert_eq!(access(None).check_host(&HeaderMap::new()), Err(Refusal::Host));
        let mut two = headers(&[(HOST, "localhost")]);
        two.append(HOST, HeaderValue::from_static("evil.example"));
        assert_eq!(access(None).check_host(&two), Err(Refusal::Host));
    }

    #[test]
    fn a_change_comes_from_the_page_and_from_no_form() {
        let check = |origin: Option<&str>, content_type: &str| {
            let mut all = headers(&[(HOST, "localhost:8470"), (CONTENT_TYPE, content_type)]);
            if let Some(origin) = origin {
                all.insert(ORIGIN, HeaderValue::from_str(origin).expect("a header"));
            }
            Access::check_change(&all)
        };
        let json = "application/json";
        assert_eq!(check(Some("http://localhost:8470"), json), Ok(()));
        assert_eq!(check(Some("https://localhost:8470"), "application/json; charset=utf-8"), Ok(()));
        for origin in [
            None,
            Some("null"),
            Some("http://localhost"),
            Some("http://localhost:84700"),
            Some("http://evil.example"),
        ] {
            assert_eq!(check(origin, json), Err(Refusal::Origin), "{origin:?}");
        }
        for form in ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
            assert_eq!(check(Some("http://localhost:8470"), form), Err(Refusal::ContentType), "{form}");
        }
    }

    #[test]
    fn the_token_is_accepted_as_a_bearer_or_by_its_cookie() {
        let access = access(Some("a token of 16 bytes"));
        let check = |name, text: &str| access.check_token(&headers(&[(name, text)]));
        assert_eq!(check(AUTHORIZATION, "Bearer a token of 16 bytes"), Ok(()));
        let over_tls = access.cookie(&headers(&[(ORIGIN, "https://board.example")]));
        assert!(over_tls.ends_with("; HttpOnly; SameSite=Strict; Secure"), "{over_tls}");
        let cookie = access.cookie(&headers(&[(ORIGIN, "http://localhost:80")]));
        assert!(!cookie.contains("Secure"), "{cookie}");
        assert!(!cookie.contains("a token") && cookie.contains("HttpOnly; SameSite=Strict"), "{cookie}");
        let pair = cookie.split(';').next().expect("a pair");
        assert_eq!(check(COOKIE, &format!("other=1; {pair}")), Ok(()));
        for (name, text) in [
            (AUTHORIZATION, "Bearer a token of 16 bytez"),
            (AUTHORIZATION, "Bearer a token of 16 byte"),
            (AUTHORIZATION, "Bearer "),
            (AUTHORIZATION, "Basic a token of 16 bytes"),
            (COOKIE, "leasehold_board_80=a token of 16 bytes"),
            (COOKIE, "leasehold_board_80="),
        ] {
            assert_eq!(check(name, text), Err(Refusal::Token), "{text}");
        }
        assert_eq!(access.check_token(&HeaderMap::new()), Err(Refusal::Token));
    }
}
