//! The files of the page, and the headers of every response.

use axum::http::header::{self, HeaderName, HeaderValue};

/// A file, and its type.
pub(super) struct Asset {
    pub(super) path: &'static str,
    pub(super) content_type: &'static str,
    pub(super) text: &'static str,
}

/// Separate files, so that the policy below needs no exception for what is inline.
pub(super) const ASSETS: [Asset; 4] = [
    Asset { path: "/", content_type: "text/html; charset=utf-8", text: include_str!("assets/index.html") },
    Asset {
        path: "/style.css",
        content_type: "text/css; charset=utf-8",
        text: include_str!("assets/style.css"),
    },
    Asset {
        path: "/board.js",
        content_type: "text/javascript; charset=utf-8",
        text: include_str!("assets/board.js"),
    },
    Asset { path: "/icon.svg", content_type: "image/svg+xml", text: include_str!("assets/icon.svg") },
];

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) const HEADERS: [(HeaderName, HeaderValue); 7] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];
