//! Propagates an owner over HTTP: a service re-enters a lock that its caller holds, and neither passes the
//! owner explicitly.
//!
//! There are two processes. The shop holds an order's lock and calls the till, which acquires the same lock.
//! That succeeds, since the till runs in the scope of the shop's owner. A call by another client meanwhile is
//! rejected.
//!
//! It needs the feature `tower`. The till is this program, started a second time:
//!
//!     cargo run --example owner_over_http
//!     LEASEHOLD_STORE=redis://127.0.0.1/ cargo run --example owner_over_http

use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::{Router, routing::post};
use hyper_util::client::legacy::{self, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use leasehold::tower::{ReceiveOwnerLayer, SendOwner, SendOwnerLayer};
use leasehold::{Attempt, Client, ReentrantMutex};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use tokio::net::TcpListener;
use tower::{Layer, ServiceExt};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Set for the second process.
const TILL: &str = "LEASEHOLD_EXAMPLE_TILL";
/// What the till prints before its address.
const LISTENING: &str = "the till listens at ";

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<()> {
    match std::env::var(TILL) {
        Ok(store) => till(&store).await,
        Err(_) => shop().await,
    }
}

// The till: the callee.

async fn till(store: &str) -> Result<()> {
    let locks = Client::builder(store).label("till").connect().await?;
    let service = Router::new()
        .route("/orders/{order}/pay", post(pay))
        .layer(ReceiveOwnerLayer::new()) // the only line about owners
        .with_state(locks.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{LISTENING}{}", listener.local_addr()?);
    axum::serve(listener, service).with_graceful_shutdown(end_of_the_shop()).await?;
    locks.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

async fn pay(State(locks): State<Client>, Path(order): Path<u32>) -> (StatusCode, String) {
    match pay_alone(&locks, order).await {
        Ok(Some(paid)) => (StatusCode::OK, paid),
        // The owner is not shown: a client that knows an owner could impersonate it.
        Ok(None) => (StatusCode::LOCKED, "another client holds this order".into()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Acquires the order's lock, even if its owner already holds it.
async fn pay_alone(locks: &Client, order: u32) -> Result<Option<String>> {
    let Attempt::Granted(guard) = lock(locks, order)?.try_acquire().await? else { return Ok(None) };
    let paid = format!("paid; hold {} of its owner", guard.count());
    guard.release().await?;
    Ok(Some(paid))
}

/// The till's input ends with the shop, however the shop ends.
async fn end_of_the_shop() {
    let read = || std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    if let Ok(Err(error)) = tokio::task::spawn_blocking(read).await {
        eprintln!("the till ends, since its input cannot be read: {error}");
    }
}

// The shop: the caller.

type Http = SendOwner<legacy::Client<HttpConnector, Body>>;

async fn shop() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let store = match std::env::var("LEASEHOLD_STORE") {
        Ok(store) if store.starts_with("memory:") => {
            return Err("a memory store is not shared with other processes".into());
        }
        Ok(store) => store,
        Err(_) => format!("sqlite:{}", folder.path().join("locks.db").display()),
    };
    let till = Till::start(&store)?;
    let locks = Client::builder(&store).label("shop").connect().await?;
    let http = SendOwnerLayer::new() // and its counterpart
        .layer(legacy::Client::builder(TokioExecutor::new()).build_http());

    // Everything inside `run` acquires for the owner that holds the lock.
    let lock = lock(&locks, 42)?;
    let answers = lock.run(async |guard| {
        println!("the shop holds the order: hold {} of its owner", guard.count());
        let ours = ask(http.clone(), till.url(42)).await?;
        // A spawned task leaves the scope: the same call, by another client.
        let strangers = tokio::spawn(ask(http.clone(), till.url(42))).await??;
        Ok::<_, Box<dyn Error + Send + Sync>>([ours, strangers])
    });
    let [ours, strangers] = answers.await??;
    println!("the shop received: {ours}");
    println!("another client received: {strangers}");
    println!("later it received: {}", ask(http, till.url(42)).await?);

    locks.shutdown(Duration::from_secs(5)).await?;
    till.end()
}

/// Nothing in here knows about owners.
async fn ask(http: Http, url: String) -> Result<String> {
    let response = http.oneshot(Request::post(url).body(Body::empty())?).await?;
    let status = response.status();
    let body = to_bytes(Body::new(response.into_body()), 1000).await?;
    Ok(format!("{status}, {}", String::from_utf8_lossy(&body)))
}

fn lock(locks: &Client, order: u32) -> Result<ReentrantMutex> {
    Ok(locks.reentrant_mutex(format!("example/owner_over_http/order/{order}"))?)
}

/// The second process. It ends with its input, which ends with this process.
struct Till {
    process: Child,
    /// Read up to the line with the address; kept open, since the till may print more.
    output: BufReader<ChildStdout>,
    address: String,
}

impl Till {
    fn start(store: &str) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(TILL, store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = BufReader::new(process.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        while output.read_line(&mut line)? > 0 {
            if let Some((_, address)) = line.trim_end().split_once(LISTENING) {
                let address = address.to_owned();
                return Ok(Self { process, output, address });
            }
            line.clear();
        }
        Err(format!("the till did not start: {}", process.wait()?).into())
    }

    fn url(&self, order: u32) -> String {
        format!("http://{}/orders/{order}/pay", self.address)
    }

    fn end(mut self) -> Result<()> {
        drop(self.process.stdin.take());
        std::io::copy(&mut self.output, &mut std::io::sink())?;
        let status = self.process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the till failed: {status}").into()) }
    }
}
