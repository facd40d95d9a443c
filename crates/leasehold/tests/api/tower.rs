//! The layers that carry an owner over HTTP: each alone, and both through a real server.

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{HeaderValue, Request, Response, StatusCode};
use axum::{Router, routing::get};
use futures_util::future::{FutureExt, join_all};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use leasehold::tower::{ReceiveOwner, ReceiveOwnerLayer, SendOwner, SendOwnerLayer};
use leasehold::{Attempt, Client, Owner};
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio::sync::Barrier;
use tower::{Layer, Service, ServiceExt, service_fn};

// Outgoing requests.

#[tokio::test]
async fn the_owner_is_that_of_the_call_and_not_of_the_waiter() {
    let mut http = SendOwnerLayer::new().layer(service_fn(headers));
    let (caller, waiter) = (owner("caller"), owner("waiter"));
    let sent = caller.sync_scope(|| http.call(request(&[])));
    assert_eq!(waiter.scope(sent).await, Ok(vec!["caller".into()]));
    let sent = http.call(request(&[]));
    assert_eq!(waiter.scope(sent).await, Ok(vec![]));
}

#[tokio::test]
async fn the_scope_alone_determines_the_header() {
    let mut http = SendOwner::new(service_fn(headers));
    for there in [&["a stranger's"][..], &["one", "two"]] {
        let sent = owner("caller").sync_scope(|| http.call(request(there)));
        assert_eq!(sent.await, Ok(vec!["caller".into()]), "in place of {there:?}");
        assert_eq!(http.call(request(there)).await, Ok(vec![]), "in place of {there:?}");
    }
}

// Incoming requests.

#[tokio::test]
async fn every_part_of_a_service_runs_for_the_received_owner() {
    let (service, observations) = ObservedService::new();
    let mut service = ReceiveOwnerLayer::new().layer(service);
    let came = Some(owner("Überweisung, 7"));
    let header = owner("Überweisung, 7").to_header();

    let ready = service.ready().await.expect("it is ready");
    ready.call(request(&[&header])).await.expect("it does not fail");
    let parts = ["call", "poll", "poll again", "drop"];
    assert_eq!(take(&observations), parts.map(|part| (part, came.clone())));

    let ready = service.ready().await.expect("it is ready");
    let mut cancelled = Box::pin(ready.call(request(&[&header])));
    assert!(cancelled.as_mut().now_or_never().is_none(), "it yields once");
    drop(cancelled);
    assert_eq!(take(&observations), ["call", "poll", "drop"].map(|part| (part, came.clone())));
    assert_eq!(Owner::current(), None);
}

#[tokio::test]
async fn a_request_without_an_owner_is_passed_on_unchanged() {
    let mut service = ReceiveOwner::new(service_fn(current_owner));
    assert_eq!(body(service.call(request(&[])).await).await, "none");
    let within = owner("caller").scope(async { service.call(request(&[])).await });
    assert_eq!(body(within.await).await, "caller");
}

#[tokio::test]
async fn an_invalid_owner_is_refused_before_the_service_is_called() {
    let called = Arc::new(AtomicU32::new(0));
    let mut service = ReceiveOwner::new(service_fn({
        let called = called.clone();
        move |request| {
            called.fetch_add(1, Relaxed);
            current_owner(request)
        }
    }));
    let long = "x".repeat(Owner::MAX_LEN + 1);
    let none: [&[&str]; 9] = [
        &[""],
        &["%ff"],
        &["%"],
        &["a%00b"],
        &["Übung"],
        &["leasehold"],
        &[&long],
        &["one,two"],
        &["same", "same"],
    ];
    for headers in none {
        let answer = service.call(request(headers)).await.expect("a refusal is a reply");
        let (head, body) = answer.into_parts();
        assert_eq!(head.status, StatusCode::BAD_REQUEST, "{headers:?}");
        assert!(head.headers.is_empty(), "{headers:?}: {:?}", head.headers);
        assert!(to_bytes(body, 1000).await.expect("a body").is_empty(), "{headers:?}");
    }
    assert_eq!(called.load(Relaxed), 0);
    service.call(request(&["trace-4711"])).await.expect("it goes on");
    assert_eq!(called.load(Relaxed), 1);
}

#[tokio::test]
async fn a_spawned_task_has_the_owner_only_if_it_is_carried() {
    let mut service = ReceiveOwner::new(service_fn(async |_: Request<Body>| {
        let here = async { Owner::current().is_some() };
        let spawned = tokio::spawn(here).await.expect("it does not panic");
        let carried = Owner::spawn(async { Owner::current().is_some() }).await.expect("it does not panic");
        // The first chunk of the body is produced when it is read.
        let later =
            futures_util::stream::once(async { Ok::<_, Infallible>(Owner::current().is_some().to_string()) });
        let mut response = Response::new(Body::from_stream(later));
        response.extensions_mut().insert((spawned, carried));
        Ok::<_, Infallible>(response)
    }));
    let answer = service.call(request(&["trace-4711"])).await;
    assert_eq!(answer.as_ref().map(|answer| answer.extensions().get()), Ok(Some(&(false, true))));
    assert_eq!(body(answer).await, "false");
}

#[tokio::test]
async fn readiness_is_that_of_the_inner_service() {
    async fn check(mut service: impl Service<Request<Body>, Error = &'static str>) {
        let mut ready = poll_fn(|cx| service.poll_ready(cx));
        assert_eq!((&mut ready).now_or_never(), None, "it is busy");
        assert_eq!(ready.await, Err("out of order"));
    }
    check(SendOwner::new(Busy(0))).await;
    check(ReceiveOwner::new(Busy(0))).await;
}

// Both, with a server between them.

/// A handler enters the lock that its caller holds, and so does a service that the handler calls. No handler code
/// mentions owners.
#[tokio::test]
async fn a_callers_lock_is_re_entered_across_the_network() {
    let locks = || async { Client::connect("memory:tower-behind-the-network").await.expect("it connects") };
    let enter = async |State(locks): State<Client>| match account(&locks).try_acquire().await {
        Ok(Attempt::Granted(guard)) => {
            let count = guard.count();
            guard.release().await.expect("it is held");
            format!("entered as number {count}")
        }
        Ok(Attempt::Taken(_)) => "taken".into(),
        Err(error) => error.to_string(),
    };
    let back = serve(Router::new().route("/", get(enter)).with_state(locks().await)).await;
    let pass_on = async move |State((locks, http)): State<(Client, Http)>| {
        let guard = account(&locks).acquire().await.expect("its caller holds it, or no client does");
        let answer = reply_of(&http, back).await;
        guard.release().await.expect("it is held");
        answer
    };
    let front = serve(Router::new().route("/", get(pass_on)).with_state((locks().await, http()))).await;

    let (locks, http) = (locks().await, http());
    let account = account(&locks);
    let answers = account.run(async |_guard| {
        let stranger = tokio::spawn({
            let http = http.clone();
            async move { reply_of(&http, back).await }
        });
        (
            reply_of(&http, back).await,
            reply_of(&http, front).await,
            stranger.await.expect("it does not panic"),
        )
    });
    let expected = ["entered as number 2", "entered as number 3", "taken"].map(str::to_owned).into();
    assert_eq!(answers.await.expect("it is held throughout"), expected);
    assert_eq!(account.inspect().await.expect("an answer").count, 0);
    assert_eq!(reply_of(&http, back).await, "entered as number 1");
}

#[tokio::test]
async fn owners_of_requests_at_the_same_time_do_not_mix() {
    const REQUESTS: usize = 16;
    let all_here = Arc::new(Barrier::new(REQUESTS));
    let echo = async |State(all_here): State<Arc<Barrier>>| {
        let before = Owner::current();
        all_here.wait().await;
        tokio::task::yield_now().await;
        assert_eq!(Owner::current(), before);
        before.map_or("none".into(), |owner| owner.to_string())
    };
    let address = serve(Router::new().route("/", get(echo)).with_state(all_here)).await;
    let http = http();
    let names: Vec<_> = (0..REQUESTS).map(|n| format!("Überweisung {n}, 100%")).collect();
    let answers = names.iter().map(|name| owner(name).scope(reply_of(&http, address)));
    assert_eq!(join_all(answers).await, names);
}

// Shared helpers.

type Http = SendOwner<legacy::Client<HttpConnector, Body>>;

fn http() -> Http {
    SendOwner::new(legacy::Client::builder(TokioExecutor::new()).build_http())
}

/// The address of the server, which ends with the test.
async fn serve(service: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let service = service.layer(ReceiveOwnerLayer::new());
    tokio::spawn(async { axum::serve(listener, service).await });
    address
}

async fn reply_of(http: &Http, address: SocketAddr) -> String {
    let request = Request::get(format!("http://{address}/")).body(Body::empty()).expect("a request");
    body(http.clone().oneshot(request).await.map(|answer| answer.map(Body::new))).await
}

async fn body<E: std::fmt::Debug>(answer: Result<Response<Body>, E>) -> String {
    let answer = answer.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    let bytes = to_bytes(answer.into_body(), 1000).await.expect("a body");
    String::from_utf8(bytes.into()).expect("a text")
}

fn account(locks: &Client) -> leasehold::ReentrantMutex {
    locks.reentrant_mutex("account/7").expect("a name")
}

fn owner(text: &str) -> Owner {
    Owner::new(text).expect("an owner")
}

/// A request with these owner headers, with any content.
fn request(owners: &[&str]) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    for owner in owners {
        let value = HeaderValue::from_bytes(owner.as_bytes()).expect("HTTP could carry it");
        request.headers_mut().append(Owner::HEADER, value);
    }
    request
}

/// The content of the owner headers that have arrived.
async fn headers(request: Request<Body>) -> Result<Vec<String>, Infallible> {
    let text = |value: &HeaderValue| value.to_str().expect("visible ASCII").to_owned();
    Ok(request.headers().get_all(Owner::HEADER).iter().map(text).collect())
}

/// The owner for which a service runs.
async fn current_owner(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    let current_owner = Owner::current().map_or("none".into(), |owner| owner.to_string());
    Ok(Response::new(current_owner.into()))
}

type Observations = Arc<Mutex<Vec<(&'static str, Option<Owner>)>>>;

fn record(observations: &Observations, part: &'static str) {
    observations.lock().unwrap_or_else(PoisonError::into_inner).push((part, Owner::current()));
}

fn take(observations: &Observations) -> Vec<(&'static str, Option<Owner>)> {
    std::mem::take(&mut observations.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A service that records the owner for which each of its parts runs. It is not `Clone`, and panics if it is called
/// before it is ready.
struct ObservedService {
    ready: bool,
    observations: Observations,
}

impl ObservedService {
    fn new() -> (Self, Observations) {
        let observations = Observations::default();
        (Self { ready: false, observations: observations.clone() }, observations)
    }
}

impl Service<Request<Body>> for ObservedService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = futures_util::future::BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called before it was ready");
        record(&self.observations, "call");
        let inside = Inside(self.observations.clone());
        Box::pin(async move {
            record(&inside.0, "poll");
            tokio::task::yield_now().await;
            record(&inside.0, "poll again");
            Ok(Response::new(Body::empty()))
        })
    }
}

/// A value that a future owns, and drops when it ends or is dropped.
struct Inside(Observations);

impl Drop for Inside {
    fn drop(&mut self) {
        record(&self.0, "drop");
    }
}

/// A service that is busy at first, and then fails.
struct Busy(u32);

impl Service<Request<Body>> for Busy {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = std::future::Pending<Result<Response<Body>, &'static str>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        self.0 += 1;
        if self.0 == 1 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Err("out of order"))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        pending()
    }
}
