//! Writes that are rejected when they arrive too late, by resources that are reached over HTTP: a service that compares
//! fencing tokens, and an object store that knows nothing of them, but writes on a condition.
//!
//!     cargo run --example guarded_over_http
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example guarded_over_http

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::put};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use leasehold::{Client, FencingToken};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Mutex;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
type Http = legacy::Client<HttpConnector, Body>;

// A service that compares tokens.

/// The header with the token of the caller's hold.
const FENCE: &str = "leasehold-fence";

#[derive(Clone, Default)]
struct Stock(Arc<Mutex<HashMap<String, (u64, String)>>>);

/// Handles `PUT /stock/{item}`. A token that is smaller than the greatest one seen is rejected, in the step that writes.
async fn change_stock(
    State(stock): State<Stock>,
    Path(item): Path<String>,
    headers: HeaderMap,
    remaining: String,
) -> StatusCode {
    let Some(fence) = number(&headers, FENCE) else { return StatusCode::PRECONDITION_REQUIRED };
    let mut stock = stock.0.lock().await;
    let seen = stock.entry(item).or_default();
    if fence < seen.0 {
        return StatusCode::PRECONDITION_FAILED;
    }
    *seen = (fence, remaining);
    StatusCode::NO_CONTENT
}

/// The caller: whether it was written.
async fn send_guarded(http: &Http, url: &str, remaining: u32, fence: FencingToken) -> Result<bool> {
    let request = Request::put(url).header(FENCE, fence.as_u64()).body(remaining.to_string().into())?;
    match http.request(request).await?.status() {
        StatusCode::PRECONDITION_FAILED => Ok(false),
        status if status.is_success() => Ok(true),
        status => Err(format!("the service answered {status}").into()),
    }
}

// An object store.

/// The token of the hold that wrote an object, as metadata of the object.
const META: &str = "x-amz-meta-fence";
/// How often a write is tried that others come before.
const TRIES: usize = 10;

/// Writes an object, unless a later hold has written it. Returns whether it was written.
async fn put_guarded(http: &Http, url: &str, content: &str, fence: FencingToken) -> Result<bool> {
    for _ in 0..TRIES {
        let seen = http.request(Request::head(url).body(Body::empty())?).await?;
        let request = Request::put(url).header(META, fence.as_u64());
        let request = match (seen.status(), seen.headers().get(ETAG)) {
            (StatusCode::NOT_FOUND, _) => request.header(IF_NONE_MATCH, "*"),
            (StatusCode::OK, _) if number(seen.headers(), META) > Some(fence.as_u64()) => return Ok(false),
            // The object is still the one whose token was compared, or it is not written.
            (StatusCode::OK, Some(version)) => request.header(IF_MATCH, version),
            (status, _) => return Err(format!("the object store answered {status}").into()),
        };
        let written = http.request(request.body(content.to_owned().into())?).await?;
        match written.status() {
            // Another write came between. Its token decides.
            StatusCode::PRECONDITION_FAILED => {}
            status if status.is_success() => return Ok(true),
            status => return Err(format!("the object store answered {status}").into()),
        }
    }
    Err("other writes came before, each time".into())
}

/// A number in a header.
fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    let store = std::env::var("LEASEHOLD_STORE").unwrap_or_else(|_| "memory:".into());
    let slow = Client::builder(&store).label("slow").connect().await?;
    let quick = Client::builder(&store).label("quick").connect().await?;
    let resources = Router::new()
        .merge(Router::new().route("/stock/{item}", put(change_stock)).with_state(Stock::default()))
        .merge(Router::new().route("/objects/{name}", put(write).head(read)).with_state(Objects::default()));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async { axum::serve(listener, resources).await });
    let http: Http = legacy::Client::builder(TokioExecutor::new()).build_http();

    // The first holder stalls until its lease is over, and the second one acquires the lock.
    let lock = slow.mutex("example/guarded_over_http")?.lease(Duration::from_millis(100));
    let guard = lock.acquire_timeout(Duration::from_secs(10)).await?;
    let stale = guard.fencing_token();
    println!("slow: {}", guard.lost().await);
    let lock = quick.mutex("example/guarded_over_http")?;
    let guard = lock.acquire_timeout(Duration::from_secs(10)).await?;
    let current = guard.fencing_token();

    // The second holder writes twice, and the first arrives too late.
    let (lamp, report) = (format!("http://{address}/stock/lamp"), format!("http://{address}/objects/report"));
    let mut written = Vec::new();
    for (remaining, fence) in [(7, current), (6, current), (9, stale)] {
        let to_service = send_guarded(&http, &lamp, remaining, fence).await?;
        let to_objects = put_guarded(&http, &report, &format!("{remaining} remain"), fence).await?;
        written.push((to_service, to_objects));
    }
    assert_eq!(written, [(true, true), (true, true), (false, false)]);
    println!("the service and the object store rejected the late writes");
    guard.release().await?;
    Ok(())
}

// The object store of this example: what S3 and others do with these headers.

/// Version, token and content of an object.
type Object = (u64, String, String);

#[derive(Clone, Default)]
struct Objects(Arc<Mutex<HashMap<String, Object>>>);

async fn read(State(objects): State<Objects>, Path(name): Path<String>) -> Response {
    match objects.0.lock().await.get(&name) {
        Some((version, fence, _)) => {
            [(ETAG.as_str(), format!("\"{version}\"")), (META, fence.clone())].into_response()
        }
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

async fn write(
    State(objects): State<Objects>,
    Path(name): Path<String>,
    headers: HeaderMap,
    content: String,
) -> StatusCode {
    let mut objects = objects.0.lock().await;
    let version = objects.get(&name).map(|(version, ..)| *version);
    let is_met = match (headers.get(IF_MATCH), version) {
        (Some(wanted), Some(version)) => wanted.as_bytes() == format!("\"{version}\"").as_bytes(),
        (Some(_), None) => false,
        (None, found) => !headers.contains_key(IF_NONE_MATCH) || found.is_none(),
    };
    if !is_met {
        return StatusCode::PRECONDITION_FAILED;
    }
    let fence = headers.get(META).and_then(|fence| fence.to_str().ok()).unwrap_or_default().to_owned();
    objects.insert(name, (version.unwrap_or_default() + 1, fence, content));
    StatusCode::OK
}
